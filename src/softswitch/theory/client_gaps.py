"""The gap of a random client to the worst client: dominating distributions, their quantiles and scale."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import integrate, stats

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
