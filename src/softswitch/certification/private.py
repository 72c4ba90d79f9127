"""Where a mean lies of which only a sum with Gaussian noise is known: limits that include the noise.

Of n rows with values in [0, 1] a sum S is told as S + s·Z. With error probabilities e/2 each, S is at most what was
told plus s·z(1 − e/2); and the mean that the rows were drawn from is at most what so large a sum allows: by the
binomial distribution where every row has one of two values, by Chernoff's bound, exp(−n·kl(S/n, p)), where it is
anything between. So the limit holds but for a probability of e, whatever the noise came to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from softswitch.certification.binomial import clopper_pearson_upper
from softswitch.certification.intervals import ErrorLevels, unknown_interval
from softswitch.privacy.accountant import epsilon_of, levels_for
from softswitch.privacy.noise import secret_normals
from softswitch.privacy.releases import Drawing, NoiseLevels, Releases
from softswitch.privacy.settings import RecordPrivacy
from softswitch.problem.ranges import Range, ends, has_two_values
from softswitch.results.certificate import Interval, IntervalMethod

STEPS = 60
"""Of bisections."""


def noisy_interval(told: float, rows: int, noise: float, levels: ErrorLevels, bounds: Range) -> Interval:
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
        return low + (high - low) * noisy_mean_upper(told, rows, noise, error, two=two)

    def at_least(error: float) -> float:
        return high - (high - low) * noisy_mean_upper(rows - told, rows, noise, error, two=two)

    estimate = low + (high - low) * min(max(told / rows, 0.0), 1.0)
    return Interval(
        estimate,
        min(at_least(levels.joint), estimate),
        max(at_most(levels.joint), estimate),
        rows,
        math.inf,
        approximate=False,
        marginal_upper=max(at_most(levels.marginal), estimate),
        meets_at=_p_value(lambda error: at_most(error) <= levels.tolerance),
        violates_at=_p_value(lambda error: at_least(error) > levels.tolerance),
        method=IntervalMethod.NOISED,
    )


def noisy_mean_upper(told: float, rows: int, noise: float, error: float, *, two: bool) -> float:
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
        return clopper_pearson_upper(math.floor(total), rows, error / 2)
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


ONE = Releases(evaluations=1)
"""What a certificate tells of each client's held-out rows."""
ALL_ROWS = Drawing("poisson", 1.0)


class CertificateNoise(NamedTuple):
    """What a certificate costs.

    Attributes:
        multiplier: the deviation of the noise over the most that a row can change.
        epsilon: ε of each client's held-out rows.
        delta: δ.
    """

    multiplier: float
    epsilon: float
    delta: float


def certificate_noise(privacy: RecordPrivacy) -> CertificateNoise:
    """The noise for one certificate, all of the budget spent on it; raise where sizes are no public matter.

    Args:
        privacy: the budget of held-out rows, or the noise multiplier.
    """
    if not privacy.public_sizes:
        raise ValueError(
            "a certificate needs to know how many rows it rests on: public_sizes must be True in the privacy of the "
            "held-out rows"
        )
    if privacy.noise is not None:
        multiplier = privacy.noise
    else:
        alone = RecordPrivacy(
            epsilon=privacy.epsilon, delta=privacy.delta, report_share=1e-6, evaluation_share=1e-6, sampling="poisson"
        )
        multiplier = levels_for(alone, Releases(steps=1), ALL_ROWS).step
    spent = epsilon_of(ONE, NoiseLevels(1.0, 1.0, multiplier, 1.0), ALL_ROWS, privacy.delta)
    if privacy.noise is not None and privacy.epsilon is not None and spent > privacy.epsilon:
        raise ValueError(
            f"noise = {privacy.noise:g} spends ε = {spent:.3g} on one certificate, more than epsilon = "
            f"{privacy.epsilon:g}: raise the noise, or leave it out, and it is found"
        )
    return CertificateNoise(multiplier, spent, privacy.delta)


def private_intervals(
    by_row: np.ndarray,
    elsewhere: np.ndarray,
    multiplier: float,
    levels: ErrorLevels,
    ranges: Sequence[Range | None],
) -> list[Interval]:
    """Intervals of f and then g at one client, of which only sums with noise are used.

    Each value counts by its distance from its range's lower end in units of the range, and at most 1: a row changes
    all sums together by at most the root of their number. How many rows a function concerns is told as it is, so that
    it must not depend on the model: one could be made up on which chosen rows are not finite. It is taken from values
    at other parameters, and a row that is not finite at the model's counts as the upper end. An objective whose range
    is not known is left out.

    Args:
        by_row: the functions' values on its rows at the model's parameters; rows × functions.
        elsewhere: the same at parameters that nobody chose.
        multiplier: the noise multiplier.
        levels: the error probabilities, and the tolerance.
        ranges: of each function on a row; those of constraints must be known.
    """
    if any(bounds is None for bounds in ranges[1:]):
        raise ValueError("a private certificate needs the ranges of constraints on a row: constraint_range")
    noise = multiplier * float(np.sqrt(sum(bounds is not None for bounds in ranges)))
    found = []
    columns = zip(by_row.T, elsewhere.T, ranges, secret_normals(len(ranges)), strict=True)
    for values, at_others, bounds, own in columns:
        rows = values[~(np.isnan(at_others) | np.isneginf(at_others))]
        if bounds is None or not len(rows):
            found.append(unknown_interval())
            continue
        low, high = ends(bounds)
        told = np.where(np.isfinite(rows), rows, high)
        total = float(np.clip((told - low) / (high - low), 0, 1).sum())
        found.append(noisy_interval(total + noise * float(own), len(rows), noise, levels, bounds))
    return found
