"""Distributions that dominate the gap of a random client to the worst client: their quantiles and scale."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from softswitch.support import checks

GAPS = {
    "uniform": stats.uniform,
    "half-normal": stats.halfnorm,
    "exponential": stats.expon,
    "half-cauchy": stats.halfcauchy,
    "chi-square": stats.chi2,
    "beta": stats.beta,
}
"""SciPy distributions of Z by name, which may dominate the gap. Chi-square has one shape parameter, beta two."""


def check_gap_shape(gap: str, shape: Any) -> tuple[float, ...]:
    """Return the shape parameters of ``GAPS[gap]`` as floats; raise ValueError if they are not valid."""
    needed = GAPS[checks.check_choice("gap", gap, tuple(GAPS))].numargs
    try:
        numbers = tuple(float(number) for number in shape)
    except (TypeError, ValueError):
        numbers = (math.nan,)
    if len(numbers) != needed or not all(0 < number < math.inf for number in numbers):
        raise ValueError(f"shape must have {needed} positive numbers for gap={gap!r}, but is {shape!r}")
    return numbers


def gap_quantile(level: float, gap: str = "uniform", shape: tuple[float, ...] = ()) -> float:
    """Return the quantile Q_Z(ρ) = inf{z: P(Z < z) > ρ} of the named distribution.

    Args:
        level: ρ, from 0 to 1.
        gap: Name of the distribution of Z, a key of ``GAPS``. Default: "uniform".
        shape: Shape parameters of Z: (k,) for chi-square, (a, b) for beta, otherwise ().
    """
    shape = check_gap_shape(gap, shape)
    return float(GAPS[gap].ppf(checks.check_real("level", level, minimum=0, maximum=1), *shape))


def heterogeneity(values: ArrayLike, gap: str = "uniform", shape: tuple[float, ...] = ()) -> float:
    """Return the scale of the clients' gaps: the smallest σ with (1/n)#{i: max x − x_i >= t} <= P(σZ >= t) for all t.

    In order statistics x_(1) <= … <= x_(n):  σ = max over i < n of (x_(n) − x_(i))/Q_Z(1 − i/n), which is
    (x_(n) − x_(i))/(1 − i/n) for the uniform distribution. (The paper has 1 − (i−1)/n, which is off by one:
    x = (0, 1) needs σ = 2.)

    Args:
        values: x, one finite value per client.
        gap: Name of the distribution of Z, a key of ``GAPS``. Default: "uniform".
        shape: Shape parameters of Z: (k,) for chi-square, (a, b) for beta, otherwise ().
    """
    shape = check_gap_shape(gap, shape)
    ordered = np.sort(np.asarray(values, dtype=float).ravel())
    n = len(ordered)
    if n == 0 or not np.isfinite(ordered).all():
        raise ValueError(f"values must be one or more finite numbers, but is {values!r}")
    levels = 1 - np.arange(1, n) / n
    quantiles = levels if gap == "uniform" else GAPS[gap].ppf(levels, *shape)
    return float(((ordered[-1] - ordered[:-1]) / quantiles).max(initial=0.0))
