"""Where the truth lies, from a client's rows: intervals, and what they say of a constraint.

A bound on a client's mean holds where its values on single rows are independent draws and lie in a known range
[low, high]. With n rows, mean x̄, sample variance s² and error probability p, the truth is at most x̄ + width, and
likewise at least x̄ − width, where width is the smaller of

    Hoeffding:            (high − low)·√(ln(1/p)/(2n))
    empirical Bernstein:  √(2s² ln(2/p)/n) + 7(high − low)·ln(2/p)/(3(n − 1))        (Maurer and Pontil, 2009)

each at p/2, so that both may be looked at. Without a range, or for a function that is not a mean over rows (a parity
gap), there is no such promise: the bound is then x̄ ± z·(standard error) and is labelled approximate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from softswitch.results.certificate import ClientCertificate, Interval, Verdict

Range = tuple[float, float]
RESAMPLES = 400  # for functions that are not a mean over rows


def concerned(by_row: np.ndarray) -> np.ndarray:
    """The values on the rows that a function concerns."""
    return by_row[~(np.isnan(by_row) | np.isneginf(by_row))]


def looks_like_a_mean(evidence: Iterable[tuple[np.ndarray, float]]) -> bool:
    """Whether a function's values on single rows have its value on all of them as their mean, in all the evidence.

    Rows that all have the same value are no evidence: there almost any function looks like a mean. Without evidence the
    answer is no.
    """
    answers = []
    for by_row, total in evidence:
        valid = concerned(by_row)
        if len(valid) > 1 and np.ptp(valid) > 0:
            answers.append(np.isclose(valid.mean(), total, rtol=1e-4, atol=1e-5 * np.abs(valid).max()))
    return bool(answers) and all(answers)


def mean_interval(rows: np.ndarray, error: float, bounds: Range | None) -> Interval:
    """Where the mean of the distribution lies from which ``rows`` were drawn; ``error`` is that of each side."""
    estimate, deviation = float(rows.mean()), float(rows.std(ddof=1)) if len(rows) > 1 else math.inf
    if bounds is not None:
        low, high = bounds
        slack = 1e-6 * max(high - low, abs(low), abs(high))  # float32
        if rows.min() < low - slack or rows.max() > high + slack:
            raise ValueError(f"values from {rows.min():.6g} to {rows.max():.6g} lie outside their range {bounds!r}")
    margin = width(len(rows), deviation, error, bounds)
    lower, upper = estimate - margin, estimate + margin
    if bounds is not None:
        lower, upper = max(lower, bounds[0]), min(upper, bounds[1])
    return Interval(estimate, lower, upper, len(rows), deviation, approximate=bounds is None)


def width(n: int, deviation: float, error: float, bounds: Range | None) -> float:
    """How far the truth may be from the estimate, on either side."""
    if bounds is None:
        # Rows that are all equal tell nothing of how far others lie.
        return -float(stdtrit(n - 1, error)) * deviation / math.sqrt(n) if n > 1 and deviation > 0 else math.inf
    span, half = bounds[1] - bounds[0], error / 2
    hoeffding = span * math.sqrt(math.log(1 / half) / (2 * n))
    if n < 2:
        return hoeffding
    log = math.log(2 / half)
    bernstein = math.sqrt(2 * deviation**2 * log / n) + 7 * span * log / (3 * (n - 1))
    return min(hoeffding, bernstein)


def resampled_interval(resampled: np.ndarray, value: float, size: int, error: float) -> Interval:
    """An approximate interval for what is not a mean over rows: normal, with the bootstrap's standard error.

    Where a resample in a hundred has no value, or all have the same, the rows are too few to say anything.
    """
    finite = resampled[np.isfinite(resampled)]
    known = len(finite) >= 0.99 * len(resampled)
    spread = float(finite.std(ddof=1)) if known else 0.0
    margin = -float(ndtri(error)) * spread if spread > 0 else math.inf
    deviation = spread * math.sqrt(size) if spread > 0 else math.inf
    return Interval(value, value - margin, value + margin, size, deviation, approximate=True)


def unknown(rows: int = 0) -> Interval:
    """Nothing is known."""
    return Interval(math.nan, -math.inf, math.inf, rows, math.inf, approximate=True)


def intervals_by_rows(
    value: Callable[[np.ndarray], np.ndarray], size: int, error: float, ranges: Sequence[Range | None]
) -> list[Interval]:
    """An interval for each function of one client's rows, where they can be computed on any choice of rows.

    Args:
        value: f and then g on the rows of the given indices.
        size: how many rows there are.
        error: the probability of each interval's either side to be wrong.
        ranges: of each function on a single row.
    """
    everything = np.arange(size)
    half = np.sort(np.random.default_rng(0).permutation(size)[: (size + 1) // 2])
    by_row = np.stack([np.asarray(value(everything[i : i + 1]), dtype=float) for i in everything])
    totals, partial = (np.asarray(value(rows), dtype=float) for rows in (everything, half))
    generator = np.random.default_rng(1)
    resampled: np.ndarray | None = None
    found = []
    for j, bounds in enumerate(ranges):
        rows = concerned(by_row[:, j])
        if not math.isfinite(totals[j]):
            found.append(unknown(len(rows)))
        elif looks_like_a_mean([(by_row[:, j], totals[j]), (by_row[half, j], partial[j])]):
            found.append(mean_interval(rows, error, bounds))
        else:
            if resampled is None:
                resampled = np.stack([value(generator.integers(size, size=size)) for _ in range(RESAMPLES)])
            found.append(resampled_interval(resampled[:, j], float(totals[j]), size, error))
    return found


def client_certificate(
    name: Any, intervals: Sequence[Interval], limit: float, error: float, ranges: Sequence[Range | None]
) -> ClientCertificate:
    """What the intervals of f and then g say of a client."""
    objective, *constraints = intervals
    verdict, needed = verdict_on(constraints, limit, error, ranges[1:])
    return ClientCertificate(name, objective, tuple(constraints), verdict, needed)


def nothing_known(name: Any, constraints: int) -> ClientCertificate:
    """What is said of a client without any row to look at."""
    return ClientCertificate(name, unknown(), (unknown(),) * constraints, Verdict.UNKNOWN)


def verdict_on(
    intervals: Sequence[Interval], limit: float, error: float, ranges: Sequence[Range | None]
) -> tuple[Verdict, int | None]:
    """The verdict on a client's constraints, and how many more rows would probably decide an open one."""
    if any(interval.lower > limit for interval in intervals):
        return Verdict.VIOLATES, None
    if all(interval.upper <= limit for interval in intervals):
        return Verdict.MEETS, None
    if any(math.isnan(interval.estimate) for interval in intervals):
        return Verdict.UNKNOWN, None
    needed = 0
    for interval, bounds in zip(intervals, ranges, strict=True):
        if interval.upper <= limit:
            continue
        margin = abs(limit - interval.estimate)
        more = rows_needed(interval, margin, error, None if interval.approximate else bounds)
        if more is None:
            return Verdict.UNCLEAR, None
        needed = max(needed, more)
    return Verdict.UNCLEAR, needed


def rows_needed(interval: Interval, margin: float, error: float, bounds: Range | None) -> int | None:
    """How many more rows, with the same mean and scatter, make the width smaller than the margin."""
    deviation = interval.deviation
    if not margin > 0 or interval.rows < 1 or (bounds is None and not 0 < deviation < math.inf):
        return None
    low, high = interval.rows, 2 * interval.rows
    while width(high, deviation, error, bounds) >= margin:
        low, high = high, 2 * high
        if high > 10**12:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if width(middle, deviation, error, bounds) < margin else (middle, high)
    return high - interval.rows


def each_range(ranges: Any, count: int) -> list[Range | None]:
    """One range a constraint."""
    if ranges is None or (len(ranges) == 2 and all(np.ndim(end) == 0 and end is not None for end in ranges)):
        return [checked_range("constraint_range", ranges)] * count
    if len(ranges) != count:
        raise ValueError(
            f"constraint_range must be one range, or one for each of {count} constraints, but is {ranges!r}"
        )
    return [checked_range("constraint_range", interval) for interval in ranges]


def checked_range(name: str, interval: Any) -> Range | None:
    """A range as two floats, or None; raise where it is neither."""
    if interval is None:
        return None
    if np.shape(interval) != (2,) or not interval[0] < interval[1]:
        raise ValueError(f"{name} must be (low, high) with low < high, but is {interval!r}")
    return float(interval[0]), float(interval[1])
