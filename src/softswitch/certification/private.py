"""Certificates under differential privacy: confidence limits from noisy sums, and checks of their assumptions.

The sum S of n values in [0, 1] is released as S + s·Z. With error probability e/2, S is at most the released value plus
s·z(1 − e/2). With error probability e/2, the mean is at most what such a sum allows: by the binomial distribution if
every value is 0 or 1, and by Chernoff's bound exp(−n·kl(S/n, p)) otherwise. The limit holds with probability 1 − e.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from softswitch.certification import intervals
from softswitch.certification.intervals import ErrorLevels, applicable, is_applicable
from softswitch.certification.limits import NoisyMean
from softswitch.certification.row_values import Kind, RowValues
from softswitch.data.client_data import ClientData
from softswitch.oracles.evaluation import Losses
from softswitch.privacy.accounting import calibrate_noise, compute_epsilon
from softswitch.privacy.noise import RESOLUTION, discrete_gaussian
from softswitch.privacy.numpy_rows import Arrays
from softswitch.privacy.settings import NoiseLevels, RecordPrivacy, Releases
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import Range, endpoints, has_two_values
from softswitch.results.certificate import Interval, IntervalMethod

ALL_ROWS = 1.0  # sampling rate of a release of all rows
ATTEMPTS = 3  # number of parameter vectors at which functions are checked to be means over rows
SPLIT_GAPS = (
    "write a gap between two groups as two constraints, one per side (signed_gaps and gap_sides of "
    "softswitch.problem.fairness)"
)
NO_MEAN = f"objective and constraints must be means over rows to be reported privately; {SPLIT_GAPS}"
ArrayFunction = Callable[[Arrays], np.ndarray]  # of the parameters by name


def noisy_interval(total: float, rows: int, noise: float, levels: ErrorLevels, bounds: Range) -> Interval:
    """Return a confidence interval for the mean of ``rows`` values in the range ``bounds``.

    ``total`` is the noisy sum of the values scaled to [0, 1], and ``noise`` the standard deviation of its noise.
    """
    low, high = endpoints(bounds)
    binary = has_two_values(bounds)
    # A tail of the discrete Gaussian is at most that of the Gaussian one grid interval earlier.
    slack = (1 + (0 if binary else rows / 2)) / RESOLUTION
    above, below = (NoisyMean(part + slack, rows, noise, binary) for part in (total, rows - total))
    estimate = low + (high - low) * min(max(total / rows, 0.0), 1.0)
    return intervals.exact_interval(estimate, above, below, rows, math.inf, levels, bounds, IntervalMethod.NOISED)


class CertificateNoise(NamedTuple):
    """Noise of a certificate, and its privacy cost for each client's held-out rows."""

    multiplier: float  # standard deviation of the noise, relative to the largest influence of a row
    epsilon: float  # ε of differential privacy that is spent
    delta: float  # δ of differential privacy


def certificate_noise(privacy: RecordPrivacy) -> CertificateNoise:
    """Return the given noise, or that with which one certificate spends the whole budget of the held-out rows."""
    if privacy.noise is not None:
        multiplier = privacy.noise
    else:
        budget = RecordPrivacy(epsilon=privacy.epsilon, delta=privacy.delta, report_share=1e-6, evaluation_share=1e-6)
        multiplier = calibrate_noise(budget, Releases(steps=1)).step
    spent = compute_epsilon(Releases(evaluations=1), NoiseLevels(1.0, 1.0, multiplier), ALL_ROWS, privacy.delta)
    return CertificateNoise(multiplier, spent, privacy.delta)


def private_intervals(
    by_row: np.ndarray, reference: np.ndarray, multiplier: float, levels: ErrorLevels, ranges: Sequence[Range | None]
) -> list[Interval]:
    """Return one client's confidence intervals of f and then each g, from sums with Gaussian noise.

    ``by_row`` has the values at the model, rows × functions with f first, and ``reference`` those at parameters that do
    not depend on the rows. ``multiplier`` is the standard deviation of the noise divided by the sensitivity. Values are
    scaled from their range to [0, 1] and clipped, so that a row changes the vector of m sums by at most √m. The number
    of applicable rows is released without noise, and must not depend on the model. It is counted at the reference; a
    row without a finite value at the model counts as the upper end of the range. An objective without a range is
    omitted.
    """
    if any(bounds is None for bounds in ranges[1:]):
        raise ValueError("a private certificate needs the range of every constraint on a row; give constraint_range")
    noise = multiplier * math.sqrt(sum(bounds is not None for bounds in ranges))
    sums = np.zeros(len(ranges), np.int64)
    for j, bounds in enumerate(ranges):
        if bounds is not None:
            low, high = endpoints(bounds)
            values = np.where(np.isfinite(by_row[:, j]), by_row[:, j], high)[is_applicable(reference[:, j])]
            scaled = (np.clip(values, low, high) - low) / (high - low)
            sums[j] = np.rint(scaled * RESOLUTION).astype(np.int64).sum()
    totals = (sums + discrete_gaussian(len(sums), noise * RESOLUTION)) / RESOLUTION
    known = []
    for total, at_reference, bounds in zip(totals.tolist(), reference.T, ranges, strict=True):
        rows = int(is_applicable(at_reference).sum())
        if bounds is None or not rows:
            known.append(intervals.unknown_interval())
        else:
            known.append(noisy_interval(total, rows, noise, levels, bounds))
    return known


def count_applicable_rows(problem: Problem, clients: ClientData) -> np.ndarray:
    """Return the number of applicable rows, clients × functions, or raise ValueError unless all functions are means."""
    losses = Losses.of(problem)
    if losses.is_random:
        raise ValueError("functions with a random key (dropout, for example) cannot be private; remove the key")
    if losses.has_pooled_constraint:
        error = "a PooledConstraint is not a mean over rows and cannot be reported privately"
        raise ValueError(f"{error}; if the group sizes are public, {SPLIT_GAPS}")
    values = RowValues(problem, clients, problem.start)
    _check_means(values.kinds, "constraint")
    if problem.constraint_surrogate is not None:
        surrogate = replace(problem, constraint=problem.constraint_surrogate, constraint_surrogate=None)
        _check_means(RowValues(surrogate, clients, problem.start).kinds, "constraint_surrogate")
    return np.stack([is_applicable(rows).sum(axis=0) for rows in values.by_client])


def _check_means(kinds: tuple[Kind, ...], name: str) -> None:
    names = ["objective", *(f"{name} {j}" if len(kinds) > 2 else name for j in range(1, len(kinds)))]
    for function, kind in zip(names, kinds, strict=True):
        if kind is not Kind.MEAN:
            raise ValueError(
                f"the {function} is not a mean over rows, or is NaN on some row, and cannot be reported privately. "
                f"Write it as a mean over (some) rows; {SPLIT_GAPS}"
            )


def count_rows_from_values(row_values: ArrayFunction, total: ArrayFunction, start: Arrays, attempts: int) -> list[int]:
    """Return the number of rows to which f and each g apply, or raise ValueError if they are not means over rows.

    ``row_values`` returns f and then each g on every row (rows × functions), ``total`` on all rows together. The mean
    of the former is compared with the latter at ``attempts`` random parameters of the shapes of ``start``, with fixed
    seeds. Rows are counted at the last of them.
    """
    counts = list[int]()
    for attempt in range(attempts, 0, -1):
        params = intervals.perturb_params(start, attempt)
        columns = [applicable(values) for values in row_values(params).T]
        counts = [len(rows) for rows in columns]
        for rows, value in zip(columns, total(params), strict=True):
            mean = rows.mean() if len(rows) else value
            slack = 1e-5 * np.abs(rows).max(initial=0)
            if not (np.isfinite(rows).all() and np.isclose(mean, value, rtol=1e-3, atol=slack)):
                raise ValueError(NO_MEAN)
    return counts
