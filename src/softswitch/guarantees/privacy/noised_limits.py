"""Where a mean lies of which only a sum with Gaussian noise is known: limits that include the noise.

Of n rows with values in [0, 1] a sum S is told as S + s·Z. With error probabilities e/2 each, S is at most what was
told plus s·z(1 − e/2); and the mean that the rows were drawn from is at most what so large a sum allows: by the
binomial distribution where every row has one of two values, by Chernoff's bound, exp(−n·kl(S/n, p)), where it is
anything between. So the limit holds but for a probability of e, whatever the noise came to.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.special import ndtri

from softswitch.guarantees.unseen_rows.binomial import upper_rate
from softswitch.guarantees.unseen_rows.intervals import ErrorLevels
from softswitch.problem.ranges import Range, ends, has_two_values
from softswitch.results.certificate import Interval, Method

STEPS = 60
"""Of bisections."""


def noised_interval(told: float, rows: int, noise: float, levels: ErrorLevels, bounds: Range) -> Interval:
    """The limits of a mean.

    Args:
        told: the sum of the rows' values with noise, each value's distance from the lower end in units of the range.
        rows: how many there are.
        noise: the deviation of the noise on the sum.
        levels: the error probabilities, and the tolerance.
        bounds: of a row's value.
    """
    low, high = ends(bounds)
    two = has_two_values(bounds)

    def at_most(error: float) -> float:
        return low + (high - low) * mean_at_most(told, rows, noise, error, two=two)

    def at_least(error: float) -> float:
        return high - (high - low) * mean_at_most(rows - told, rows, noise, error, two=two)

    estimate = low + (high - low) * min(max(told / rows, 0.0), 1.0)
    return Interval(
        estimate,
        min(at_least(levels.joint), estimate),
        max(at_most(levels.joint), estimate),
        rows,
        math.inf,
        approximate=False,
        alone=max(at_most(levels.alone), estimate),
        meets_at=_p_value(lambda error: at_most(error) <= levels.tolerance),
        violates_at=_p_value(lambda error: at_least(error) > levels.tolerance),
        method=Method.NOISED,
    )


def mean_at_most(told: float, rows: int, noise: float, error: float, *, two: bool) -> float:
    """The mean of values in [0, 1] is at most this, but for a probability of ``error``.

    Args:
        told: their sum, with noise.
        rows: how many they are.
        noise: its deviation.
        error: the probability; half of it is for the noise.
        two: whether every value is 0 or 1.
    """
    total = told - float(ndtri(error / 2)) * noise
    if total >= rows:
        return 1.0
    if total < 0:  # which has a probability of at most error/2, whatever the rows are
        total = 0.0
    if two:
        return upper_rate(math.floor(total), rows, error / 2)
    share, allowed = total / rows, math.log(2 / error) / rows
    low, high = share, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _divergence(share, middle) < allowed else (low, middle)
    return high


def _divergence(p: float, q: float) -> float:
    """The Kullback–Leibler divergence of two coins."""
    if q in (0.0, 1.0):
        return 0.0 if p == q else math.inf
    first = p * math.log(p / q) if p > 0 else 0.0
    return first + ((1 - p) * math.log((1 - p) / (1 - q)) if p < 1 else 0.0)


def _p_value(holds: Callable[[float], bool]) -> float:
    """The smallest error probability at which something is said to hold; 1 where it is at none."""
    low, high = -690.0, 0.0
    if not holds(math.exp(-1e-9)):
        return 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(math.exp(middle)) else (middle, high)
    return math.exp(high)
