"""Where the truth lies, from a client's rows: intervals, each side with an error probability of its own.

A bound on a client's mean is a promise where its values on single rows are independent draws from a known range. Which
bound is taken is settled by what is said of the range, before any row is looked at, and never by which is the smaller:

    {low, high}, one of two values (wrong or right):    exact binomial limits       ``binomial.py``
    [low, high], anything between:                      limits by betting           ``betting.py``
    a gap between two groups' means of such values:     limits from both means      ``gap.py``

A mean over the rows of one class or group is a mean over a random number of rows. Given which rows belong to it, those
rows are independent draws from that class, as many as there are: the limits are right whatever that number is, and so
on the whole.

Without a range, or for a function that is neither a mean over rows nor declared to be a gap of two, there is no such
promise: the bound is then x̄ ± z·(standard error) and is labelled approximate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import chdtri, ndtr, ndtri, stdtr, stdtrit

from softswitch.certification.betting import BettingMean
from softswitch.certification.binomial import BinomialRate
from softswitch.problem.ranges import Range, ends, has_two_values
from softswitch.results.certificate import Interval, IntervalMethod

CELLS = 64


class OneSide(Protocol):
    """What is known of one mean from one side: of values in [0, 1], or of their distance from 1."""

    estimate: float

    def p_value(self, mean: float) -> float:
        """Of "the mean is this or more"."""
        ...

    def p_values(self, means: np.ndarray) -> np.ndarray:
        """Of many of them."""
        ...

    def upper(self, error: float) -> float:
        """The mean is at most this, but for a chance of ``error``."""
        ...


class Excess:
    """What is known of the first mean minus the second, from above.

    Args:
        first: the first mean, from above.
        second: the second, from below: its values' distances from 1, from above.
        error: the smallest error probability that matters much; limits at others are valid, and wider.
    """

    def __init__(self, first: OneSide, second: OneSide, error: float) -> None:
        self.estimate = first.estimate - (1 - second.estimate)
        beyond, chance = zip(*(_cells(side, _product(error)) for side in (first, second)), strict=True)
        self._difference = self.estimate + beyond[0][:, None] + beyond[1][None, :]
        self._chance = chance[0][:, None] * chance[1][None, :]

    def upper(self, error: float) -> float:
        """The difference is at most this, but for a chance of ``error``."""
        left = self._chance > _product(error)
        return float(min(1.0, self._difference[left].max())) if left.any() else self.estimate

    def p_value(self, difference: float) -> float:
        """Of "the difference is more than this"."""
        more = ~(self._difference <= difference)
        product = float(self._chance[more].max()) if more.any() else 0.0
        return product * (1 - np.log(product)) if product > 0 else 0.0


def absolute_upper(first: Excess, second: Excess, error: float) -> float:
    """The gap is at most this, from the differences in both directions."""
    return max(first.upper(error), second.upper(error), 0.0)


def absolute_lower(first: Excess, second: Excess, error: float) -> float:
    """The gap is at least this."""
    return max(-first.upper(error / 2), -second.upper(error / 2), 0.0)


def p_above(first: Excess, second: Excess, bound: float) -> float:
    """The p-value of "the gap is more than the bound"."""
    return max(first.p_value(bound), second.p_value(bound)) if bound >= 0 else 1.0


def p_within(first: Excess, second: Excess, bound: float) -> float:
    """The p-value of "the gap is within the bound"."""
    if bound < 0:
        return 0.0
    return min(1.0, 2 * min(first.p_value(-bound), second.p_value(-bound)))


def _cells(side: OneSide, least: float) -> tuple[np.ndarray, np.ndarray]:
    """How far each cell of means goes beyond the estimate, and the largest p-value in it.

    The first cell is all that lies below the estimate, the last what even a quarter of the least chance rules out.
    """
    starts = np.linspace(side.estimate, max(side.upper(least / 4), side.estimate), CELLS)
    chances = side.p_values(starts[1:])
    stops = np.concatenate([starts, [1.0]]) - side.estimate
    return stops, np.concatenate([[1.0, 1.0], chances])


def _product(error: float) -> float:
    """The product of two p-values that has the p-value ``error``."""
    return float(np.exp(-chdtri(4, error) / 2))


RESAMPLES = 400  # for functions that are not a mean over rows
OTHER_PARAMS = 20  # to try at most, where rows do not differ


class ErrorLevels(NamedTuple):
    """At what intervals aim.

    Attributes:
        joint: the error probability of each limit, such that those of all clients hold together.
        marginal: the error probability of a limit that is said of one client alone, or of the worst.
        tolerance: what the constraint may be at most.
    """

    joint: float
    marginal: float
    tolerance: float

    @classmethod
    def uniform(cls, error: float) -> ErrorLevels:
        """A single error probability, and no tolerance to decide about."""
        return cls(error, error, math.nan)

    @property
    def geometric_mean(self) -> float:
        """Between both error probabilities: what bets aim at that are used for both."""
        return math.sqrt(self.joint * self.marginal)


def applicable(by_row: np.ndarray) -> np.ndarray:
    """The values on the rows that a function concerns."""
    return by_row[~(np.isnan(by_row) | np.isneginf(by_row))]


def is_row_mean(evidence: Iterable[tuple[np.ndarray, float]]) -> bool | None:
    """Whether a function's values on single rows have its value on all of them as their mean, in all the evidence.

    Rows that all have the same value are no evidence: there almost any function looks like a mean. Without evidence the
    answer is None.
    """
    answers = []
    for by_row, total in evidence:
        valid = applicable(by_row)
        if len(valid) > 1 and np.ptp(valid) > 0:
            answers.append(np.isclose(valid.mean(), total, rtol=1e-4, atol=1e-5 * np.abs(valid).max()))
    return all(answers) if answers else None


def perturb_array(values: np.ndarray, generator: np.random.Generator, attempt: int) -> np.ndarray:
    """Random parameters as large as these; around them in every second attempt, around 0 in the others."""
    size = float(np.abs(values).mean()) or 1.0
    return np.asarray(attempt % 2 * values + size * generator.standard_normal(values.shape), values.dtype)


def perturb_params(params: Mapping[str, np.ndarray], attempt: int) -> dict[str, np.ndarray]:
    """Other parameters, by the number of the attempt alone."""
    generator = np.random.default_rng(attempt)
    return {name: perturb_array(np.asarray(value), generator, attempt) for name, value in params.items()}


def mean_interval(rows: np.ndarray, levels: ErrorLevels, bounds: Range | None) -> Interval:
    """Where the mean of the distribution lies from which ``rows`` were drawn."""
    if bounds is None:
        return _student(rows, levels)
    low, high = ends(bounds)
    above, below = _sides(rows, bounds, levels.geometric_mean)

    def at_most(error: float) -> float:
        return low + (high - low) * above.upper(error)

    share = (levels.tolerance - low) / (high - low)
    estimate = float(rows.mean())
    return Interval(
        estimate,
        min(high - (high - low) * below.upper(levels.joint), estimate),
        max(at_most(levels.joint), estimate),
        len(rows),
        _deviation(rows),
        approximate=False,
        marginal_upper=max(at_most(levels.marginal), estimate),
        meets_at=0.0 if share >= 1 else above.p_value(share) if share > 0 else 1.0,
        violates_at=0.0 if share < 0 else below.p_value(1 - share) if share < 1 else 1.0,
        method=IntervalMethod.BINOMIAL if has_two_values(bounds) else IntervalMethod.BETTING,
    )


def gap_interval(first: np.ndarray, second: np.ndarray, levels: ErrorLevels, bounds: Range) -> Interval:
    """Where the gap between two groups' means lies; ``bounds`` is the range of their values, not of the gap."""
    low, high = ends(bounds)
    span = high - low
    (first_above, first_below), (second_above, second_below) = (
        _sides(rows, bounds, levels.geometric_mean) for rows in (first, second)
    )
    excess = Excess(first_above, second_below, levels.joint), Excess(second_above, first_below, levels.joint)
    bound = levels.tolerance / span
    rows = len(first) + len(second)
    estimate = abs(float(first.mean()) - float(second.mean()))
    spread = math.sqrt(sum(_deviation(own) ** 2 / len(own) for own in (first, second)))
    return Interval(
        estimate,
        min(span * absolute_lower(*excess, levels.joint), estimate),
        max(span * absolute_upper(*excess, levels.joint), estimate),
        rows,
        spread * math.sqrt(rows),
        approximate=False,
        marginal_upper=max(span * absolute_upper(*excess, levels.marginal), estimate),
        meets_at=p_above(*excess, bound),
        violates_at=p_within(*excess, bound),
        method=IntervalMethod.GAP,
    )


def _sides(rows: np.ndarray, bounds: Range, error: float) -> tuple[OneSide, OneSide]:
    """What is known of a mean from above, and of its distance from the upper end; both in units of the range."""
    low, high = ends(bounds)
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


def _student(rows: np.ndarray, levels: ErrorLevels) -> Interval:
    """Approximate limits of a mean, by Student's t. Rows that are all equal tell nothing of how far others lie."""
    n, estimate, deviation = len(rows), float(rows.mean()), _deviation(rows)
    if n < 2 or not deviation > 0:
        return Interval(estimate, -math.inf, math.inf, n, deviation, approximate=True)
    spread = deviation / math.sqrt(n)
    distance = (levels.tolerance - estimate) / spread
    margins = [-float(stdtrit(n - 1, error)) * spread for error in (levels.joint, levels.marginal)]
    within, above = float(stdtr(n - 1, -distance)), float(stdtr(n - 1, distance))
    return _around(estimate, margins, n, deviation, within, above)


def resampled_interval(resampled: np.ndarray, value: float, size: int, levels: ErrorLevels) -> Interval:
    """An approximate interval for what is not a mean over rows: normal, with the bootstrap's standard error.

    Where a resample in a hundred has no value, or all have the same, the rows are too few to say anything.
    """
    finite = resampled[np.isfinite(resampled)]
    spread = float(finite.std(ddof=1)) if len(finite) >= 0.99 * len(resampled) else 0.0
    if not spread > 0:
        return Interval(value, -math.inf, math.inf, size, math.inf, approximate=True)
    distance = (levels.tolerance - value) / spread
    margins = [-float(ndtri(error)) * spread for error in (levels.joint, levels.marginal)]
    return _around(value, margins, size, spread * math.sqrt(size), float(ndtr(-distance)), float(ndtr(distance)))


def _around(
    value: float, margins: Sequence[float], rows: int, deviation: float, meets_at: float, violates_at: float
) -> Interval:
    joint, alone = margins
    return Interval(
        value,
        value - joint,
        value + joint,
        rows,
        deviation,
        approximate=True,
        marginal_upper=value + alone,
        meets_at=1.0 if math.isnan(meets_at) else meets_at,
        violates_at=1.0 if math.isnan(violates_at) else violates_at,
    )


def unknown_interval(rows: int = 0) -> Interval:
    """Nothing is known."""
    return Interval(math.nan, -math.inf, math.inf, rows, math.inf, approximate=True)


Values = Callable[[np.ndarray], np.ndarray]
"""f and then g on the rows of the given indices."""


def intervals_from_function(
    value: Values,
    size: int,
    levels: ErrorLevels,
    ranges: Sequence[Range | None],
    elsewhere: Callable[[int], Values] | None = None,
) -> list[Interval]:
    """An interval for each function of one client's rows, where they can be computed on any choice of rows.

    Args:
        value: the functions at the parameters.
        size: how many rows there are.
        levels: the error probabilities, and the tolerance.
        ranges: of each function on a single row.
        elsewhere: gives the functions at other parameters, for the first attempt, the second and so on: to see whether
            they are means over rows where these rows do not differ.
    """
    everything = np.arange(size)
    by_row, totals = _by_row(value, everything), np.asarray(value(everything), dtype=float)
    means = _are_means(value, by_row, totals, elsewhere)
    generator = np.random.default_rng(1)
    resampled: np.ndarray | None = None
    found = []
    for j, bounds in enumerate(ranges):
        rows = applicable(by_row[:, j])
        if not math.isfinite(totals[j]):
            found.append(unknown_interval(len(rows)))
        elif means[j]:
            found.append(mean_interval(rows, levels, bounds))
        else:
            if resampled is None:
                resampled = np.stack([value(generator.integers(size, size=size)) for _ in range(RESAMPLES)])
            found.append(resampled_interval(resampled[:, j], float(totals[j]), size, levels))
    return found


def _by_row(value: Values, rows: np.ndarray) -> np.ndarray:
    return np.stack([np.asarray(value(rows[i : i + 1]), dtype=float) for i in range(len(rows))])


def _are_means(
    value: Values, by_row: np.ndarray, totals: np.ndarray, elsewhere: Callable[[int], Values] | None
) -> list[bool]:
    """Which functions are means over rows: they are so on all rows and on a random half; see ``is_row_mean``."""
    everything = np.arange(len(by_row))
    half = np.sort(np.random.default_rng(0).permutation(len(by_row))[: (len(by_row) + 1) // 2])
    answers: list[bool | None] = [None] * len(totals)
    for attempt in range(1 + (0 if elsewhere is None else OTHER_PARAMS)):
        if attempt and elsewhere is not None:
            value = elsewhere(attempt)
            by_row, totals = _by_row(value, everything), np.asarray(value(everything), dtype=float)
        partial = np.asarray(value(half), dtype=float)
        for j, answer in enumerate(answers):
            if answer is None:
                answers[j] = is_row_mean([(by_row[:, j], totals[j]), (by_row[half, j], partial[j])])
        # What no single row has is no mean at any parameters.
        if all(answer is not None or not len(applicable(by_row[:, j])) for j, answer in enumerate(answers)):
            break
    return [bool(answer) for answer in answers]
