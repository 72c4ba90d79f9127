"""Confidence limits of a mean from a sum with Gaussian noise.

The sum S of n values in [0, 1] is released as S + s·Z. With error probability e/2, S is at most the released value plus
s·z(1 − e/2). With error probability e/2, the mean is at most what such a sum allows: by the binomial distribution if
every value is 0 or 1, and by Chernoff's bound exp(−n·kl(S/n, p)) otherwise. The limit holds with probability 1 − e.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from softswitch.certification.binomial import clopper_pearson_upper
from softswitch.certification.intervals import ErrorLevels, unknown_interval
from softswitch.privacy.accounting import calibrate_noise, compute_epsilon
from softswitch.privacy.noise import secret_normals
from softswitch.privacy.settings import Drawing, NoiseLevels, RecordPrivacy, Releases
from softswitch.problem.ranges import Range, endpoints, has_two_values
from softswitch.results.certificate import Interval, IntervalMethod

BISECTIONS = 60
ALL_ROWS = Drawing("poisson", 1.0)


def noisy_interval(total: float, rows: int, noise: float, levels: ErrorLevels, bounds: Range) -> Interval:
    """Return a confidence interval for a mean.

    Args:
        total: Noisy sum of the values, each scaled from its range to [0, 1].
        rows: Number of values.
        noise: Standard deviation of the noise.
        levels: Error probabilities and tolerance.
        bounds: Range of a value.
    """
    low, high = endpoints(bounds)
    binary = has_two_values(bounds)

    def upper(error: float) -> float:
        return low + (high - low) * noisy_mean_upper(total, rows, noise, error, binary=binary)

    def lower(error: float) -> float:
        return high - (high - low) * noisy_mean_upper(rows - total, rows, noise, error, binary=binary)

    estimate = low + (high - low) * min(max(total / rows, 0.0), 1.0)
    return Interval(
        estimate,
        min(lower(levels.joint), estimate),
        max(upper(levels.joint), estimate),
        rows,
        math.inf,
        approximate=False,
        marginal_upper=max(upper(levels.marginal), estimate),
        meets_at=_p_value(lambda error: upper(error) <= levels.tolerance),
        violates_at=_p_value(lambda error: lower(error) > levels.tolerance),
        method=IntervalMethod.NOISED,
    )


def noisy_mean_upper(total: float, rows: int, noise: float, error: float, *, binary: bool) -> float:
    """Return an upper confidence limit for the mean of values in [0, 1] from their noisy sum.

    Args:
        total: Noisy sum of the values.
        rows: Number of values.
        noise: Standard deviation of the noise.
        error: Error probability, half of it for the noise.
        binary: Whether every value is 0 or 1.
    """
    total = max(total - float(ndtri(error / 2)) * noise, 0.0)
    if total >= rows:
        return 1.0
    if binary:
        return clopper_pearson_upper(math.floor(total), rows, error / 2)
    share, allowed = total / rows, math.log(2 / error) / rows
    low, high = share, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _divergence(share, middle) < allowed else (low, middle)
    return high


def _divergence(p: float, q: float) -> float:
    """Return the Kullback–Leibler divergence of two Bernoulli distributions."""
    if q in (0.0, 1.0):
        return 0.0 if p == q else math.inf
    first = p * math.log(p / q) if p > 0 else 0.0
    return first + ((1 - p) * math.log((1 - p) / (1 - q)) if p < 1 else 0.0)


def _p_value(holds: Callable[[float], bool]) -> float:
    """Return the smallest error probability at which a statement holds; 1 if there is none."""
    if not holds(math.exp(-1e-9)):
        return 1.0
    low, high = -690.0, 0.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(math.exp(middle)) else (middle, high)
    return math.exp(high)


class CertificateNoise(NamedTuple):
    """Noise and privacy cost of a certificate.

    Attributes:
        multiplier: Standard deviation of the noise over the largest change by one row.
        epsilon: ε of each client's held-out rows.
        delta: δ.
    """

    multiplier: float
    epsilon: float
    delta: float


def certificate_noise(privacy: RecordPrivacy) -> CertificateNoise:
    """Return the noise for one certificate that uses the whole budget of the held-out rows."""
    if not privacy.public_sizes:
        raise ValueError(
            "public_sizes must be True in the privacy of the held-out rows, but is False: a certificate depends on "
            "the number of rows"
        )
    if privacy.noise is not None:
        multiplier = privacy.noise
    else:
        budget = RecordPrivacy(
            epsilon=privacy.epsilon, delta=privacy.delta, report_share=1e-6, evaluation_share=1e-6, sampling="poisson"
        )
        multiplier = calibrate_noise(budget, Releases(steps=1), ALL_ROWS).step
    spent = compute_epsilon(Releases(evaluations=1), NoiseLevels(1.0, 1.0, multiplier, 1.0), ALL_ROWS, privacy.delta)
    if privacy.noise is not None and privacy.epsilon is not None and spent > privacy.epsilon:
        raise ValueError(
            f"noise = {privacy.noise:g} spends ε = {spent:.3g} on one certificate, more than epsilon = "
            f"{privacy.epsilon:g}; increase noise, or omit it to choose it from epsilon"
        )
    return CertificateNoise(multiplier, spent, privacy.delta)


def private_intervals(
    by_row: np.ndarray,
    reference: np.ndarray,
    multiplier: float,
    levels: ErrorLevels,
    ranges: Sequence[Range | None],
) -> list[Interval]:
    """Return one client's intervals of f and then g from noisy sums.

    Values are scaled from their range to [0, 1] and clipped, so a row changes all sums together by at most the square
    root of their number. The number of applicable rows is released without noise, and must not depend on the model. It
    is counted at reference parameters; a row without a finite value at the model counts as the upper end of the range.
    An objective without a range is omitted.

    Args:
        by_row: Values on the client's rows at the model's parameters; rows × functions.
        reference: Values at parameters that do not depend on the data.
        multiplier: Noise multiplier.
        levels: Error probabilities and tolerance.
        ranges: Range of each function on a row. Those of constraints must be known.
    """
    if any(bounds is None for bounds in ranges[1:]):
        raise ValueError("a private certificate needs the range of every constraint on a row; give constraint_range")
    noise = multiplier * float(np.sqrt(sum(bounds is not None for bounds in ranges)))
    intervals = []
    columns = zip(by_row.T, reference.T, ranges, secret_normals(len(ranges)), strict=True)
    for values, at_reference, bounds, normal in columns:
        rows = values[~(np.isnan(at_reference) | np.isneginf(at_reference))]
        if bounds is None or not len(rows):
            intervals.append(unknown_interval())
            continue
        low, high = endpoints(bounds)
        finite = np.where(np.isfinite(rows), rows, high)
        total = float(np.clip((finite - low) / (high - low), 0, 1).sum())
        intervals.append(noisy_interval(total + noise * float(normal), len(rows), noise, levels, bounds))
    return intervals
