"""Confidence intervals of objectives and constraints from a client's held-out rows.

An interval is exact if the values on single rows are independent draws from a known range. The declared range
determines the method before any row is read:

    {low, high}, one of two values:                      exact binomial limits       ``binomial.py``
    [low, high], any value between:                      limits by betting           ``betting.py``
    a gap between two groups' means of such values:      limits from both means      ``MeanDifference``

A mean over one class or group is a mean over a random number of rows. Conditional on their number, the rows are
independent draws from that class, so the limits are valid.

Without a range, or for a function that is neither a mean over rows nor a declared gap, the interval is the normal
approximation x̄ ± z·(standard error), labelled approximate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import chdtri, ndtr, ndtri, stdtr, stdtrit

from softswitch.certification.betting import BettingMean
from softswitch.certification.binomial import BinomialRate
from softswitch.problem.ranges import Range, endpoints, has_two_values
from softswitch.results.certificate import Interval, IntervalMethod

GRID_SIZE = 64
"""Number of cells per mean in the grid of ``MeanDifference``."""
RESAMPLES = 400
"""Number of bootstrap samples for a function that is not a mean over rows."""
MAX_PERTURBATIONS = 20
"""Maximum number of parameter vectors at which a function is tested for being a mean over rows."""


class ErrorLevels(NamedTuple):
    """Error probabilities of confidence limits, and the tolerance of the constraint.

    Attributes:
        joint: Error probability of each limit, such that those of all clients hold simultaneously.
        marginal: Error probability of a limit for a single client, or for the worst client.
        tolerance: Upper bound on the constraint.
    """

    joint: float
    marginal: float
    tolerance: float

    @classmethod
    def uniform(cls, error: float) -> ErrorLevels:
        """Return levels with one error probability and without a tolerance."""
        return cls(error, error, math.nan)

    @property
    def geometric_mean(self) -> float:
        """The error probability for which bets are tuned that serve both levels."""
        return math.sqrt(self.joint * self.marginal)


class UpperBound(Protocol):
    """Upper confidence bounds for the mean of values in [0, 1]."""

    estimate: float

    def p_value(self, mean: float) -> float:
        """Return the p-value of "the mean is at least ``mean``"."""
        ...

    def p_values(self, means: np.ndarray) -> np.ndarray:
        """Return the p-values of several means."""
        ...

    def upper(self, error: float) -> float:
        """Return the upper confidence limit with error probability ``error``."""
        ...


class MeanDifference:
    """Upper confidence bounds for the difference of two means, first minus second.

    Args:
        first: Bounds for the first mean.
        second: Bounds for 1 minus the second mean.
        error: Error probability for which the grid is tuned. Limits for smaller ones are valid but wider.
    """

    def __init__(self, first: UpperBound, second: UpperBound, error: float) -> None:
        self.estimate = first.estimate - (1 - second.estimate)
        distances, p_values = zip(*(_grid(side, _product_quantile(error)) for side in (first, second)), strict=True)
        self._difference = self.estimate + distances[0][:, None] + distances[1][None, :]
        self._p_value = p_values[0][:, None] * p_values[1][None, :]

    def upper(self, error: float) -> float:
        """Return the upper confidence limit with error probability ``error``."""
        plausible = self._p_value > _product_quantile(error)
        return float(min(1.0, self._difference[plausible].max())) if plausible.any() else self.estimate

    def p_value(self, difference: float) -> float:
        """Return the p-value of "the difference is greater than ``difference``"."""
        greater = ~(self._difference <= difference)
        product = float(self._p_value[greater].max()) if greater.any() else 0.0
        return product * (1 - np.log(product)) if product > 0 else 0.0


def _grid(side: UpperBound, smallest: float) -> tuple[np.ndarray, np.ndarray]:
    """Return each cell's distance beyond the estimate and the largest p-value in it.

    The first cell is everything below the estimate. The last one has p-values below a quarter of ``smallest``.
    """
    starts = np.linspace(side.estimate, max(side.upper(smallest / 4), side.estimate), GRID_SIZE)
    p_values = side.p_values(starts[1:])
    stops = np.concatenate([starts, [1.0]]) - side.estimate
    return stops, np.concatenate([[1.0, 1.0], p_values])


def _product_quantile(error: float) -> float:
    """Return the product of two independent p-values whose own p-value is ``error`` (Fisher's method)."""
    return float(np.exp(-chdtri(4, error) / 2))


def mean_interval(rows: np.ndarray, levels: ErrorLevels, bounds: Range | None) -> Interval:
    """Return a confidence interval for the mean of the distribution of ``rows``."""
    if bounds is None:
        return _student_interval(rows, levels)
    low, high = endpoints(bounds)
    above, below = _upper_bounds(rows, bounds, levels.geometric_mean)

    def upper(error: float) -> float:
        return low + (high - low) * above.upper(error)

    share = (levels.tolerance - low) / (high - low)
    estimate = float(rows.mean())
    return Interval(
        estimate,
        min(high - (high - low) * below.upper(levels.joint), estimate),
        max(upper(levels.joint), estimate),
        len(rows),
        _deviation(rows),
        approximate=False,
        marginal_upper=max(upper(levels.marginal), estimate),
        meets_at=0.0 if share >= 1 else above.p_value(share) if share > 0 else 1.0,
        violates_at=0.0 if share < 0 else below.p_value(1 - share) if share < 1 else 1.0,
        method=IntervalMethod.BINOMIAL if has_two_values(bounds) else IntervalMethod.BETTING,
    )


def gap_interval(first: np.ndarray, second: np.ndarray, levels: ErrorLevels, bounds: Range) -> Interval:
    """Return a confidence interval for the gap |first mean − second mean|; ``bounds`` is the range of the values."""
    low, high = endpoints(bounds)
    span = high - low
    (first_above, first_below), (second_above, second_below) = (
        _upper_bounds(rows, bounds, levels.geometric_mean) for rows in (first, second)
    )
    differences = (
        MeanDifference(first_above, second_below, levels.joint),
        MeanDifference(second_above, first_below, levels.joint),
    )

    def upper(error: float) -> float:
        return span * max(*(difference.upper(error) for difference in differences), 0.0)

    bound = levels.tolerance / span
    rows = len(first) + len(second)
    estimate = abs(float(first.mean()) - float(second.mean()))
    standard_error = math.sqrt(sum(_deviation(group) ** 2 / len(group) for group in (first, second)))
    lower = span * max(*(-difference.upper(levels.joint / 2) for difference in differences), 0.0)
    return Interval(
        estimate,
        min(lower, estimate),
        max(upper(levels.joint), estimate),
        rows,
        standard_error * math.sqrt(rows),
        approximate=False,
        marginal_upper=max(upper(levels.marginal), estimate),
        meets_at=max(one.p_value(bound) for one in differences) if bound >= 0 else 1.0,
        violates_at=0.0 if bound < 0 else min(1.0, 2 * min(one.p_value(-bound) for one in differences)),
        method=IntervalMethod.GAP,
    )


def _upper_bounds(rows: np.ndarray, bounds: Range, error: float) -> tuple[UpperBound, UpperBound]:
    """Return bounds for the mean, and for its distance from the upper end, both in units of the range."""
    low, high = endpoints(bounds)
    slack = 1e-6 * max(high - low, abs(low), abs(high))  # float32
    if rows.min() < low - slack or rows.max() > high + slack:
        raise ValueError(f"values from {rows.min():.6g} to {rows.max():.6g} lie outside their range ({low}, {high})")
    scaled = np.clip((rows - low) / (high - low), 0, 1)
    if not has_two_values(bounds):
        return BettingMean(scaled, error), BettingMean(1 - scaled, error)
    count = round(float(scaled.sum()))
    between = np.abs(scaled - np.round(scaled)) > 1e-5
    if between.any():
        raise ValueError(f"every row must have one of the values {{{low}, {high}}}, but one has {rows[between][0]:.6g}")
    return BinomialRate(count, len(rows)), BinomialRate(len(rows) - count, len(rows))


def _deviation(rows: np.ndarray) -> float:
    return float(rows.std(ddof=1)) if len(rows) > 1 else math.inf


def _student_interval(rows: np.ndarray, levels: ErrorLevels) -> Interval:
    """Return an approximate interval by Student's t; infinite if all rows are equal."""
    n, estimate, deviation = len(rows), float(rows.mean()), _deviation(rows)
    if n < 2 or not deviation > 0:
        return Interval(estimate, -math.inf, math.inf, n, deviation, approximate=True)
    standard_error = deviation / math.sqrt(n)
    distance = (levels.tolerance - estimate) / standard_error
    margins = [-float(stdtrit(n - 1, error)) * standard_error for error in (levels.joint, levels.marginal)]
    return _symmetric_interval(
        estimate, margins, n, deviation, float(stdtr(n - 1, -distance)), float(stdtr(n - 1, distance))
    )


def resampled_interval(resampled: np.ndarray, value: float, size: int, levels: ErrorLevels) -> Interval:
    """Return an approximate normal interval with the bootstrap standard error.

    It is infinite if more than 1% of the resamples have no value, or if all have the same value.
    """
    finite = resampled[np.isfinite(resampled)]
    standard_error = float(finite.std(ddof=1)) if len(finite) >= 0.99 * len(resampled) else 0.0
    if not standard_error > 0:
        return Interval(value, -math.inf, math.inf, size, math.inf, approximate=True)
    distance = (levels.tolerance - value) / standard_error
    margins = [-float(ndtri(error)) * standard_error for error in (levels.joint, levels.marginal)]
    deviation = standard_error * math.sqrt(size)
    return _symmetric_interval(value, margins, size, deviation, float(ndtr(-distance)), float(ndtr(distance)))


def _symmetric_interval(
    value: float, margins: Sequence[float], rows: int, deviation: float, meets_at: float, violates_at: float
) -> Interval:
    joint, marginal = margins
    return Interval(
        value,
        value - joint,
        value + joint,
        rows,
        deviation,
        approximate=True,
        marginal_upper=value + marginal,
        meets_at=1.0 if math.isnan(meets_at) else meets_at,
        violates_at=1.0 if math.isnan(violates_at) else violates_at,
    )


def unknown_interval(rows: int = 0) -> Interval:
    """Return the interval of a function without data."""
    return Interval(math.nan, -math.inf, math.inf, rows, math.inf, approximate=True)


def applicable(by_row: np.ndarray) -> np.ndarray:
    """Return the values on the rows to which a function applies: those that are neither NaN nor −∞."""
    return by_row[~(np.isnan(by_row) | np.isneginf(by_row))]


def is_row_mean(evidence: Iterable[tuple[np.ndarray, float]]) -> bool | None:
    """Return whether a function is the mean of its values on single rows, in all of the evidence.

    Rows that all have the same value are no evidence. Without evidence the result is None.

    Args:
        evidence: Pairs of the values on single rows and the value on all of them.
    """
    answers = []
    for by_row, total in evidence:
        rows = applicable(by_row)
        if len(rows) > 1 and np.ptp(rows) > 0:
            answers.append(np.isclose(rows.mean(), total, rtol=1e-4, atol=1e-5 * np.abs(rows).max()))
    return all(answers) if answers else None


def perturb_array(values: np.ndarray, generator: np.random.Generator, attempt: int) -> np.ndarray:
    """Return random values of the same size, centred at ``values`` in odd attempts and at 0 in even ones."""
    size = float(np.abs(values).mean()) or 1.0
    return np.asarray(attempt % 2 * values + size * generator.standard_normal(values.shape), values.dtype)


def perturb_params(params: Mapping[str, np.ndarray], attempt: int) -> dict[str, np.ndarray]:
    """Return random parameters of the same shapes; the attempt's number is the seed."""
    generator = np.random.default_rng(attempt)
    return {name: perturb_array(np.asarray(value), generator, attempt) for name, value in params.items()}


Values = Callable[[np.ndarray], np.ndarray]
"""Return f and then g on the rows of the given indices."""


def intervals_from_function(
    function: Values,
    size: int,
    levels: ErrorLevels,
    ranges: Sequence[Range | None],
    perturbed: Callable[[int], Values] | None = None,
) -> list[Interval]:
    """Return an interval for each function of a client's rows, for clients without JAX.

    Args:
        function: Return f and then g at the parameters, on the rows of the given indices.
        size: Number of rows.
        levels: Error probabilities and tolerance.
        ranges: Range of each function on a single row.
        perturbed: Return the functions at other parameters, by the number of the attempt. They show whether functions
            are means over rows if the values on these rows are all equal.
    """
    all_rows = np.arange(size)
    by_row, totals = _evaluate_rows(function, all_rows), np.asarray(function(all_rows), dtype=float)
    means = _find_means(function, by_row, totals, perturbed)
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
                resampled = np.stack([function(generator.integers(size, size=size)) for _ in range(RESAMPLES)])
            intervals.append(resampled_interval(resampled[:, j], float(totals[j]), size, levels))
    return intervals


def _evaluate_rows(function: Values, rows: np.ndarray) -> np.ndarray:
    return np.stack([np.asarray(function(rows[i : i + 1]), dtype=float) for i in range(len(rows))])


def _find_means(
    function: Values, by_row: np.ndarray, totals: np.ndarray, perturbed: Callable[[int], Values] | None
) -> list[bool]:
    """Return which functions are means over all rows and over a random half of them; see ``is_row_mean``."""
    all_rows = np.arange(len(by_row))
    half = np.sort(np.random.default_rng(0).permutation(len(by_row))[: (len(by_row) + 1) // 2])
    answers: list[bool | None] = [None] * len(totals)
    for attempt in range(1 + (0 if perturbed is None else MAX_PERTURBATIONS)):
        if attempt and perturbed is not None:
            function = perturbed(attempt)
            by_row, totals = _evaluate_rows(function, all_rows), np.asarray(function(all_rows), dtype=float)
        half_totals = np.asarray(function(half), dtype=float)
        for j, answer in enumerate(answers):
            if answer is None:
                answers[j] = is_row_mean([(by_row[:, j], totals[j]), (by_row[half, j], half_totals[j])])
        # A function without a value on any single row is not a mean, at any parameters.
        if all(answer is not None or not len(applicable(by_row[:, j])) for j, answer in enumerate(answers)):
            break
    return [bool(answer) for answer in answers]
