"""How far a random client lies below the worst: distributions that may bound it, their quantiles and scale."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from softswitch.support import checks

GAPS = {
    "uniform": stats.uniform,
    "half-normal": stats.halfnorm,
    "exponential": stats.expon,
    "half-cauchy": stats.halfcauchy,
    "chi-square": stats.chi2,
    "beta": stats.beta,
}
"""Distributions that may dominate the gap of a random client to the worst; chi-square has one shape, beta two."""


def checked_gap(gap: str, shape: Any) -> tuple[float, ...]:
    """The shape as numbers, or an error that says what the distribution needs."""
    checks.one_of("gap", gap, tuple(GAPS))
    needed = GAPS[gap].numargs
    try:
        numbers = tuple(float(number) for number in shape)
    except (TypeError, ValueError):
        numbers = (math.nan,)
    if len(numbers) != needed or not all(0 < number < math.inf for number in numbers):
        raise ValueError(f"shape must have {needed} positive numbers for gap={gap!r}, but is {shape!r}")
    return numbers


def gap_quantile(level: float, gap: str = "uniform", shape: tuple[float, ...] = ()) -> float:
    """Q_Z(ρ) = inf{z: P(Z < z) > ρ} of the named distribution, ρ in [0, 1).

    Args:
        level: ρ, from 0 to 1.
        gap: the distribution of Z; see ``GAPS``.
        shape: its shape parameters: (k,) for chi-square, (a, b) for beta.
    """
    shape = checked_gap(gap, shape)
    level = checks.real_number("level", level, at_least=0, at_most=1)
    return float(GAPS[gap].ppf(level, *shape))


def quantile_bound(level: float, gap: str = "uniform", shape: tuple[float, ...] = ()) -> float:
    """The paper's upper bound on Q_Z(ρ) in elementary functions, which shows how it falls as ρ does.

    With o = ρ/(1 − ρ): uniform ρ; half-normal √(π/2)·o; exponential o; half-Cauchy (π/2)·o; chi-square of k degrees
    (8k/e)·o^(2/k); beta min(1, C·ρ^(1/a)), C = 1 where b > 1 and (a·B(a, b))^(1/a) otherwise. Plans use the quantile.

    Args:
        level: ρ, from 0 to 1.
        gap: the distribution of Z; see ``GAPS``.
        shape: its shape parameters: (k,) for chi-square, (a, b) for beta.
    """
    shape = checked_gap(gap, shape)
    level = checks.real_number("level", level, at_least=0, at_most=1)
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
    """σ of a vector of client values: the smallest with (1/n)#{i: max x − x_i >= t} <= P(σZ >= t) for all t.

    In order statistics x_(1) <= … <= x_(n):  σ = max over i < n of (x_(n) − x_(i))/Q_Z(1 − i/n), which is
    (x_(n) − x_(i))/(1 − i/n) for the uniform distribution. (The paper prints 1 − (i−1)/n, which is off by one:
    x = (0, 1) needs σ = 2.)

    Args:
        values: one a client.
        gap: the distribution of Z; see ``GAPS``.
        shape: its shape parameters: (k,) for chi-square, (a, b) for beta.
    """
    shape = checked_gap(gap, shape)
    ordered = np.sort(np.asarray(values, dtype=float).ravel())
    n = len(ordered)
    if n == 0 or not np.isfinite(ordered).all():
        raise ValueError(f"values must be finite numbers, at least one, but is {values!r}")
    if n == 1:
        return 0.0
    near = 1 - np.arange(1, n) / n
    quantiles = near if gap == "uniform" else GAPS[gap].ppf(near, *shape)
    return float(((ordered[-1] - ordered[:-1]) / quantiles).max())
