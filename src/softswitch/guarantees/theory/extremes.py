"""How the worst of many clients grows with their number, where clients are a base function plus independent noise.

f_i = f + e_i with e_1, …, e_n independent and alike: then F − f_i = max_j e_j − e_i, and extreme value theory says how
it grows. Bounded noise: not at all in the end, F − f_i is dominated by M − e_i for every n, M the largest value of e
(σ·beta(a, b) noise: ``Constants(…, heterogeneity=σ, gap="beta", gap_shape=(b, a))``). Unbounded noise: for ever, so
that no fixed σ fits all n.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from scipy import integrate, special, stats

from softswitch.support import checks

NOISES = {
    "normal": stats.norm,
    "exponential": stats.expon,
    "cauchy": stats.cauchy,
    "uniform": stats.uniform,
    "beta": stats.beta,
}
"""Distributions of a client's noise; beta has two shape parameters."""


@dataclass(frozen=True)
class ExtremeValueLimit:
    """Where the largest of n noises lies: (max_j e_j − location)/scale is distributed nearly as ``limit``.

    Attributes:
        kind: "Gumbel" for tails that fall exponentially or faster, "Fréchet" for heavier ones, "Weibull" where there
            is a largest value.
        location: b_n.
        scale: a_n.
        limit: the limit distribution, of ``scipy.stats``.
    """

    kind: str
    location: float
    scale: float
    limit: Any


def expected_gap(noise: str, clients: int, scale: float = 1.0, shape: tuple[float, ...] = ()) -> float:
    """E[F − f_i] = E[max_j e_j] − E[e_i] over n clients, exactly: σ·∫(Φ(x) − Φ(x)ⁿ)dx, Φ the noise's distribution.

    For normal noise the paper has σ√(2 ln n), its limit from above; it is 31% too large at n = 20 and 8% at a million.
    Infinite for Cauchy noise.

    Args:
        noise: see ``NOISES``.
        clients: n.
        scale: σ, what the standard noise is multiplied by.
        shape: the shape parameters: (a, b) for beta.
    """
    family, shape = _family(noise, shape)
    n = checks.whole_number("clients", clients, at_least=1)
    factor = checks.real_number("scale", scale, at_least=0)
    if n == 1 or factor == 0:
        return 0.0
    if noise == "cauchy":
        return math.inf

    def between(x: float) -> float:
        above = float(family.sf(x, *shape))
        return float(family.cdf(x, *shape)) - (math.exp(n * math.log1p(-above)) if above < 1 else 0.0)

    # Φⁿ rises within a few 1/n of the top: pieces that end there, so that the quadrature cannot step over it.
    levels = (1 - 1e-15, 0.5, *(c / n for c in (100, 10, 1, 0.1, 0.01, 1e-15) if c / n < 0.5))
    ends = [float(family.isf(level, *shape)) for level in levels]
    pieces = itertools.pairwise(ends)
    return factor * sum(integrate.quad(between, low, high, limit=200)[0] for low, high in pieces if low < high)


def extreme_value_limit(noise: str, clients: int, shape: tuple[float, ...] = ()) -> ExtremeValueLimit:
    """The normalising b_n and a_n of the standard noise, and the limit of (max_j e_j − b_n)/a_n.

    With Q the quantile function and M the largest value: Gumbel has b_n = Q(1 − 1/n), a_n = 1/(n·density(b_n));
    Fréchet b_n = 0, a_n = Q(1 − 1/n), index 1 for Cauchy noise; Weibull b_n = M, a_n = M − Q(1 − 1/n), index 1 for
    uniform noise and b for beta(a, b).

    Such numbers need not exist: of geometric noise, say, no b_n and a_n give a limit. The theorem (Fisher, Tippett,
    Gnedenko) says that if there is a limit it is one of these three, not that there is one, as the paper has it.

    Args:
        noise: see ``NOISES``.
        clients: n, at least 2.
        shape: the shape parameters: (a, b) for beta.
    """
    family, shape = _family(noise, shape)
    n = checks.whole_number("clients", clients, at_least=2)
    high = float(family.isf(1 / n, *shape))
    if noise == "cauchy":
        return ExtremeValueLimit("Fréchet", 0.0, high, stats.invweibull(1.0))
    if noise in ("uniform", "beta"):
        index = shape[1] if shape else 1.0
        # 1 − Q(1 − 1/n) without cancellation: the 1/n-quantile of 1 − e.
        below = float(special.betaincinv(index, shape[0] if shape else 1.0, 1 / n))
        return ExtremeValueLimit("Weibull", 1.0, below, stats.weibull_max(index))
    return ExtremeValueLimit("Gumbel", high, 1 / (n * float(family.pdf(high))), stats.gumbel_r())


def _family(noise: str, shape: Any) -> tuple[Any, tuple[float, ...]]:
    checks.one_of("noise", noise, tuple(NOISES))
    family = NOISES[noise]
    if len(shape) != family.numargs or not all(number > 0 for number in shape):
        raise ValueError(f"shape must have {family.numargs} positive numbers for noise={noise!r}, but is {shape!r}")
    return family, tuple(float(number) for number in shape)
