"""Confidence intervals of objectives and constraints from a client's held-out rows.

An interval is exact if the values on single rows are independent draws from a known range, which determines the method:
binomial limits for {low, high}, limits by betting for (low, high), and for a gap betting on differences of rows of both
groups. For a mean over one class or group, coverage is conditional on its number of rows. Without a range, or for a
function that is neither a mean over rows nor a declared gap, the interval is a normal approximation, labelled
approximate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from softswitch.certification.limits import BettingMean, BinomialRate, NoisyMean
from softswitch.problem.ranges import Range, endpoints, has_two_values
from softswitch.results.certificate import Interval, IntervalMethod
from softswitch.support import checks

RESAMPLES = 400  # bootstrap samples for a function that is not a mean over rows
MAX_PERTURBATIONS = 20  # largest number of further parameter vectors at which a function is tested for being a mean

MeanLimits = BinomialRate | BettingMean | NoisyMean  # upper confidence limits of a mean in [0, 1]
Ranges = Sequence[Range | None]  # of f and then of each g on a single row; None if unknown


class ErrorLevels(NamedTuple):
    """Error probabilities of confidence limits, and the tolerance of their verdicts."""

    joint: float  # of one client's limit if all clients' limits hold simultaneously: (1 − confidence)/clients
    marginal: float  # of a limit for one client alone: 1 − confidence
    tolerance: float  # upper bound on the constraint; NaN if there is none

    @classmethod
    def of(cls, confidence: float, clients: int, tolerance: float) -> ErrorLevels:
        """Return the levels of a certificate for this number of clients, or raise if an argument is invalid."""
        error = 1 - checks.check_probability("confidence", confidence)
        return cls(error / clients, error, checks.check_real("tolerance", tolerance))


def mean_interval(rows: np.ndarray, levels: ErrorLevels, bounds: Range | None) -> Interval:
    """Return the confidence interval of the mean of a row's value; by Student's t, approximate, without ``bounds``."""
    estimate, deviation, size = float(rows.mean()), _deviation(rows), len(rows)
    if bounds is None:  # Student's t; infinite if all rows are equal
        if size < 2 or not deviation > 0:
            return Interval(estimate, -math.inf, math.inf, size, deviation, approximate=True)
        error, quantile, cdf = deviation / math.sqrt(size), partial(stdtrit, size - 1), partial(stdtr, size - 1)
        return _symmetric_interval(estimate, error, size, deviation, levels, quantile, cdf)
    scaled = _to_unit_range(rows, bounds)
    above: MeanLimits
    below: MeanLimits
    if has_two_values(bounds):
        count = round(float(scaled.sum()))
        above, below, method = BinomialRate(count, size), BinomialRate(size - count, size), IntervalMethod.BINOMIAL
    else:
        above, below, method = _bet(scaled, levels), _bet(1 - scaled, levels), IntervalMethod.BETTING
    return exact_interval(estimate, above, below, size, deviation, levels, bounds, method)


def exact_interval(
    value: float,
    above: MeanLimits,
    below: MeanLimits,
    rows: int,
    deviation: float,
    levels: ErrorLevels,
    bounds: Range,
    method: IntervalMethod,
) -> Interval:
    """Return an exact interval of a mean, extended to contain ``value``.

    ``above`` has the upper limits of the mean m of the values scaled to [0, 1], and ``below`` those of 1 − m.
    """
    low, high = endpoints(bounds)
    upper, marginal = (low + (high - low) * above.upper(error) for error in (levels.joint, levels.marginal))
    lower = high - (high - low) * below.upper(levels.joint)
    share = (levels.tolerance - low) / (high - low)
    meets = 0.0 if share >= 1 else above.p_value(share) if share > 0 else 1.0
    violates = 0.0 if share < 0 else below.p_value(1 - share) if share < 1 else 1.0
    lower, upper, marginal = min(lower, value), max(upper, value), max(marginal, value)
    return Interval(value, lower, upper, rows, deviation, False, marginal, meets, violates, method)


def gap_interval(first: np.ndarray, second: np.ndarray, levels: ErrorLevels, bounds: Range) -> Interval:
    """Return a confidence interval for |mean of first − mean of second|; ``bounds`` is the range of a row's value.

    The differences of ``paired_differences`` have the difference of the means as their mean, and limits by betting.
    """
    low, high = endpoints(bounds)
    span, rows = high - low, len(first) + len(second)
    differences = paired_differences(_to_unit_range(first, bounds), _to_unit_range(second, bounds))
    sides = [_bet((1 + sign * differences) / 2, levels) for sign in (1, -1)]
    estimate = abs(float(first.mean()) - float(second.mean()))
    upper, marginal = (
        max(estimate, *(span * (2 * side.upper(error) - 1) for side in sides))
        for error in (levels.joint, levels.marginal)
    )
    lower = min(estimate, span * max(*(1 - 2 * side.upper(levels.joint / 2) for side in sides), 0.0))
    bound = levels.tolerance / span
    standard_error = math.sqrt(sum(_deviation(group) ** 2 / len(group) for group in (first, second)))
    meets = max(side.p_value((1 + bound) / 2) for side in sides) if bound >= 0 else 1.0
    violates = 0.0 if bound < 0 else min(1.0, 2 * min(side.p_value((1 - bound) / 2) for side in sides))
    deviation = standard_error * math.sqrt(rows)
    return Interval(estimate, lower, upper, rows, deviation, False, marginal, meets, violates, IntervalMethod.GAP)


def paired_differences(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return each value of the smaller group minus the mean of a block of the other, with the sign of first − second.

    Both groups are permuted with a fixed seed. The blocks have nearly equal sizes and no value in common, so the
    differences are independent, and each has the difference of the means as its expected value.
    """
    if len(first) > len(second):
        return -paired_differences(second, first)
    generator = np.random.default_rng((len(first), len(second)))
    ends = np.linspace(0, len(second), len(first) + 1).astype(int)
    blocks = np.add.reduceat(generator.permutation(second), ends[:-1]) / np.diff(ends)
    differences: np.ndarray = generator.permutation(first) - blocks
    return differences


def _bet(values: np.ndarray, levels: ErrorLevels) -> BettingMean:
    """Return limits of the mean of values in [0, 1], with bets that serve both levels."""
    return BettingMean(values, math.sqrt(levels.joint * levels.marginal))


def _to_unit_range(rows: np.ndarray, bounds: Range) -> np.ndarray:
    """Return the values of rows scaled from their range to [0, 1]; raise ValueError if one lies outside the range."""
    low, high = endpoints(bounds)
    slack = 1e-6 * max(high - low, abs(low), abs(high))  # float32
    if rows.min() < low - slack or rows.max() > high + slack:
        raise ValueError(f"values from {rows.min():.6g} to {rows.max():.6g} lie outside their range ({low}, {high})")
    scaled: np.ndarray = np.clip((rows - low) / (high - low), 0, 1)
    between = np.abs(scaled - np.round(scaled)) > 1e-5
    if has_two_values(bounds) and between.any():
        raise ValueError(f"every row must have one of the values {{{low}, {high}}}, but one has {rows[between][0]:.6g}")
    return scaled


def _deviation(rows: np.ndarray) -> float:
    return float(rows.std(ddof=1)) if len(rows) > 1 else math.inf


def resampled_interval(resampled: np.ndarray, value: float, size: int, levels: ErrorLevels) -> Interval:
    """Return a normal interval with the bootstrap standard error; infinite if it is 0 or over 1% of values are not."""
    finite = resampled[np.isfinite(resampled)]
    error = float(finite.std(ddof=1)) if len(finite) >= 0.99 * len(resampled) else 0.0
    if not error > 0:
        return Interval(value, -math.inf, math.inf, size, math.inf, approximate=True)
    return _symmetric_interval(value, error, size, error * math.sqrt(size), levels, ndtri, ndtr)


def _symmetric_interval(
    value: float, error: float, rows: int, deviation: float, levels: ErrorLevels, quantile: Any, cdf: Any
) -> Interval:
    """Return the interval value ± quantile · error, for the quantile and the CDF of a symmetric distribution."""
    joint, marginal = (-float(quantile(level)) * error for level in (levels.joint, levels.marginal))
    distance = (levels.tolerance - value) / error
    meets, violates = (1.0 if math.isnan(distance) else float(cdf(sign * distance)) for sign in (-1, 1))
    lower, upper = value - joint, value + joint
    return Interval(value, lower, upper, rows, deviation, True, value + marginal, meets, violates)


def unknown_interval(rows: int = 0) -> Interval:
    """Return the infinite interval, with a NaN estimate, of a function that has no value on the rows."""
    return Interval(math.nan, -math.inf, math.inf, rows, math.inf, approximate=True)


def is_applicable(by_row: np.ndarray) -> np.ndarray:
    """Return whether each row is applicable: whether the function's value on it is neither NaN nor −∞."""
    return ~(np.isnan(by_row) | np.isneginf(by_row))


def applicable(by_row: np.ndarray) -> np.ndarray:
    """Return the values of a function on its applicable rows."""
    return by_row[is_applicable(by_row)]


Evidence = Iterable[tuple[np.ndarray, np.ndarray]]  # of sets of rows: values on single rows, and on the whole set


def find_means(evidence: Callable[[int], Evidence], functions: int) -> list[bool]:
    """Return whether each function is the mean of its values on single rows, on every set of rows of the evidence.

    ``evidence`` takes the number of the attempt, from 0 on, and evaluates at other parameters in each. A further
    attempt is made for functions whose values on single rows are all equal, which shows nothing.
    """
    answers: dict[int, bool] = {}
    for attempt in range(1 + MAX_PERTURBATIONS):
        pairs = [(list(map(applicable, by_row.T)), totals) for by_row, totals in evidence(attempt)]
        for j in set(range(functions)) - answers.keys():
            known = [(rows[j], totals[j]) for rows, totals in pairs if len(rows[j]) > 1 and np.ptp(rows[j]) > 0]
            if known:
                equal = (np.isclose(x.mean(), y, rtol=1e-4, atol=1e-5 * np.abs(x).max()) for x, y in known)
                answers[j] = all(equal)
        # A function without a value on any single row, such as a gap, is not a mean, at any parameters.
        if all(j in answers or not any(len(rows[j]) for rows, _ in pairs) for j in range(functions)):
            break
    return [answers.get(j, False) for j in range(functions)]


def perturb_array(values: np.ndarray, generator: np.random.Generator, attempt: int) -> np.ndarray:
    """Return normal noise of the mean magnitude of ``values``; in odd attempts, ``values`` plus that noise."""
    size = float(np.abs(values).mean()) or 1.0
    return np.asarray(attempt % 2 * values + size * generator.standard_normal(values.shape), values.dtype)


def perturb_params(params: Mapping[str, np.ndarray], attempt: int) -> dict[str, np.ndarray]:
    """Perturb every array of a model; see ``perturb_array``. The seed is ``attempt``."""
    generator = np.random.default_rng(attempt)
    return {name: perturb_array(np.asarray(value), generator, attempt) for name, value in params.items()}


def intervals_from_function(
    function: Callable[[Any, np.ndarray], np.ndarray],
    params: Mapping[str, np.ndarray],
    size: int,
    levels: ErrorLevels,
    ranges: Ranges,
) -> list[Interval]:
    """Return intervals of f and then each g from a client's ``size`` rows, for clients that do not compute with JAX.

    ``function`` returns f and then each g from parameters and the indices of rows, on these rows together.
    """
    all_rows = np.arange(size)
    half = np.sort(np.random.default_rng(0).permutation(size)[: (size + 1) // 2])

    def evaluate(point: Any) -> tuple[np.ndarray, np.ndarray]:
        by_row = [np.asarray(function(point, all_rows[i : i + 1]), dtype=float) for i in range(size)]
        return np.stack(by_row), np.asarray(function(point, all_rows), dtype=float)

    by_row, totals = evaluate(params)

    def evidence(attempt: int) -> Evidence:
        point = perturb_params(params, attempt) if attempt else params
        values, total = evaluate(point) if attempt else (by_row, totals)
        return (values, total), (values[half], np.asarray(function(point, half), dtype=float))

    means = find_means(evidence, len(totals))
    generator = np.random.default_rng(1)
    resampled: np.ndarray | None = None
    intervals = []
    for j, bounds in enumerate(ranges):
        rows = applicable(by_row[:, j])
        if not math.isfinite(totals[j]):
            intervals.append(unknown_interval(len(rows)))
        elif means[j]:
            intervals.append(mean_interval(rows, levels, bounds))
        else:
            if resampled is None:
                resampled = np.stack([function(params, generator.integers(size, size=size)) for _ in range(RESAMPLES)])
            intervals.append(resampled_interval(resampled[:, j], float(totals[j]), size, levels))
    return intervals
