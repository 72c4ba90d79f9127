"""The gap of a random client to the worst client: dominating distributions, their quantiles and scale."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import integrate, special, stats

from softswitch.support import checks

GAPS = {
    "uniform": stats.uniform,
    "half-normal": stats.halfnorm,
    "exponential": stats.expon,
    "half-cauchy": stats.halfcauchy,
    "chi-square": stats.chi2,
    "beta": stats.beta,
}
"""Distributions that may dominate the gap. Chi-square has one shape parameter, beta two."""
NOISES = {
    "normal": stats.norm,
    "exponential": stats.expon,
    "cauchy": stats.cauchy,
    "uniform": stats.uniform,
    "beta": stats.beta,
}
"""Distributions of a client's noise. Beta has two shape parameters."""


def check_gap_shape(gap: str, shape: Any) -> tuple[float, ...]:
    """Return the shape parameters as floats, or raise an error."""
    return _check_shape("gap", gap, shape, GAPS)


def _check_shape(kind: str, name: str, shape: Any, families: Mapping[str, Any]) -> tuple[float, ...]:
    needed = families[checks.check_choice(kind, name, tuple(families))].numargs
    try:
        numbers = tuple(float(number) for number in shape)
    except (TypeError, ValueError):
        numbers = (math.nan,)
    if len(numbers) != needed or not all(0 < number < math.inf for number in numbers):
        raise ValueError(f"shape must have {needed} positive numbers for {kind}={name!r}, but is {shape!r}")
    return numbers


def gap_quantile(level: float, gap: str = "uniform", shape: tuple[float, ...] = ()) -> float:
    """Return Q_Z(ρ) = inf{z: P(Z < z) > ρ} of the named distribution.

    Args:
        level: ρ, from 0 to 1.
        gap: Distribution of Z; see ``GAPS``.
        shape: Shape parameters of Z: (k,) for chi-square, (a, b) for beta.
    """
    shape = check_gap_shape(gap, shape)
    return float(GAPS[gap].ppf(checks.check_real("level", level, minimum=0, maximum=1), *shape))


def quantile_bound(level: float, gap: str = "uniform", shape: tuple[float, ...] = ()) -> float:
    """Return the paper's upper bound on Q_Z(ρ) in elementary functions. Plans use the exact quantile.

    With o = ρ/(1 − ρ): uniform ρ; half-normal √(π/2)·o; exponential o; half-Cauchy (π/2)·o; chi-square of k degrees
    (8k/e)·o^(2/k); beta min(1, C·ρ^(1/a)), with C = 1 if b > 1 and (a·B(a, b))^(1/a) otherwise.

    Args:
        level: ρ, from 0 to 1.
        gap: Distribution of Z; see ``GAPS``.
        shape: Shape parameters of Z: (k,) for chi-square, (a, b) for beta.
    """
    shape = check_gap_shape(gap, shape)
    level = checks.check_real("level", level, minimum=0, maximum=1)
    if gap == "uniform":
        return level
    if gap == "beta":
        a, b = shape
        factor = 1.0 if b > 1 else (a * float(special.beta(a, b))) ** (1 / a)
        return min(1.0, factor * level ** (1 / a))
    odds = level / (1 - level) if level < 1 else math.inf
    if gap == "chi-square":
        return 8 * shape[0] / math.e * float(odds ** (2 / shape[0]))
    return {"half-normal": math.sqrt(math.pi / 2), "exponential": 1.0, "half-cauchy": math.pi / 2}[gap] * odds


def heterogeneity(values: ArrayLike, gap: str = "uniform", shape: tuple[float, ...] = ()) -> float:
    """Return the smallest σ with (1/n)#{i: max x − x_i >= t} <= P(σZ >= t) for all t.

    In order statistics x_(1) <= … <= x_(n):  σ = max over i < n of (x_(n) − x_(i))/Q_Z(1 − i/n), which is
    (x_(n) − x_(i))/(1 − i/n) for the uniform distribution. (The paper has 1 − (i−1)/n, which is off by one:
    x = (0, 1) needs σ = 2.)

    Args:
        values: x, one value per client.
        gap: Distribution of Z; see ``GAPS``.
        shape: Shape parameters of Z: (k,) for chi-square, (a, b) for beta.
    """
    shape = check_gap_shape(gap, shape)
    ordered = np.sort(np.asarray(values, dtype=float).ravel())
    n = len(ordered)
    if n == 0 or not np.isfinite(ordered).all():
        raise ValueError(f"values must be one or more finite numbers, but is {values!r}")
    levels = 1 - np.arange(1, n) / n
    quantiles = levels if gap == "uniform" else GAPS[gap].ppf(levels, *shape)
    return float(((ordered[-1] - ordered[:-1]) / quantiles).max(initial=0.0))


def expected_gap(noise: str, clients: int, scale: float = 1.0, shape: tuple[float, ...] = ()) -> float:
    """Return E[F − f_i] = E[max_j e_j] − E[e_i] over n clients: σ·∫(Φ(x) − Φ(x)ⁿ)dx, with the noise's distribution Φ.

    For normal noise the paper has the asymptotic upper bound σ√(2 ln n), which is 31% too large at n = 20 and 8% at a
    million. The value is infinite for Cauchy noise.

    Args:
        noise: Distribution of the noise; see ``NOISES``.
        clients: n.
        scale: σ, the factor of the standard noise.
        shape: Shape parameters: (a, b) for beta.
    """
    shape = _check_shape("noise", noise, shape, NOISES)
    n, factor = checks.check_integer("clients", clients, minimum=1), checks.check_real("scale", scale, minimum=0)
    if n == 1 or factor == 0:
        return 0.0
    if noise == "cauchy":
        return math.inf
    family = NOISES[noise](*shape)

    def integrand(x: float) -> float:
        above = float(family.sf(x))
        return float(family.cdf(x)) - (math.exp(n * math.log1p(-above)) if above < 1 else 0.0)

    # Φⁿ rises within a few 1/n of 1: the pieces end there, so the quadrature does not miss it.
    levels = (1 - 1e-15, 0.5, *(c / n for c in (100, 10, 1, 0.1, 0.01, 1e-15) if c / n < 0.5))
    pieces = itertools.pairwise(float(family.isf(level)) for level in levels)
    return factor * sum(integrate.quad(integrand, low, high, limit=200)[0] for low, high in pieces if low < high)


@dataclass(frozen=True)
class ExtremeValueLimit:
    """Limit distribution of the maximum of n noises: (max_j e_j − location)/scale is nearly distributed as ``limit``.

    Attributes:
        kind: "Gumbel" for tails that fall exponentially or faster, "Fréchet" for heavier tails, "Weibull" for noise
            with an upper end.
        location: b_n.
        scale: a_n.
        limit: Limit distribution of ``scipy.stats``.
    """

    kind: str
    location: float
    scale: float
    limit: Any


def extreme_value_limit(noise: str, clients: int, shape: tuple[float, ...] = ()) -> ExtremeValueLimit:
    """Return the normalising b_n and a_n of the standard noise, and the limit of (max_j e_j − b_n)/a_n.

    With the quantile function Q and the upper end M: Gumbel has b_n = Q(1 − 1/n), a_n = 1/(n·density(b_n)); Fréchet
    b_n = 0, a_n = Q(1 − 1/n), index 1 for Cauchy noise; Weibull b_n = M, a_n = M − Q(1 − 1/n), index 1 for uniform
    noise and b for beta(a, b). By the theorem of Fisher, Tippett and Gnedenko every limit is one of these three. Some
    distributions, such as the geometric one, have no limit.

    Args:
        noise: Distribution of the noise; see ``NOISES``.
        clients: n, at least 2.
        shape: Shape parameters: (a, b) for beta.
    """
    shape = _check_shape("noise", noise, shape, NOISES)
    n = checks.check_integer("clients", clients, minimum=2)
    family = NOISES[noise](*shape)
    high = float(family.isf(1 / n))
    if noise == "cauchy":
        return ExtremeValueLimit("Fréchet", 0.0, high, stats.invweibull(1.0))
    if noise in ("uniform", "beta"):
        a, b = shape or (1.0, 1.0)
        # 1 − Q(1 − 1/n) without cancellation: the 1/n-quantile of 1 − e.
        return ExtremeValueLimit("Weibull", 1.0, float(special.betaincinv(b, a, 1 / n)), stats.weibull_max(b))
    return ExtremeValueLimit("Gumbel", high, 1 / (n * float(family.pdf(high))), stats.gumbel_r())
