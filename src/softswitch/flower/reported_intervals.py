"""Checks of the values and intervals that clients report.

The server sees no rows, but it recomputes what follows from the reported numbers. The limits of a rate follow from its
counts, and those of a normal approximation from mean, deviation and number of rows. Limits by betting depend on every
row, so only the best limits that a number of rows can give are checked. Gaps are checked against their range only. A
client can still report wrong values within these bounds; see ``AllowedClient`` to limit its number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import MetricRecord, RecordDict
from scipy.special import ndtr, ndtri

from softswitch.certification.betting import MAX_BET
from softswitch.certification.binomial import BinomialRate
from softswitch.certification.intervals import ErrorLevels
from softswitch.flower import messages as wire
from softswitch.problem.ranges import Range, each_range, ends, function_ranges, has_two_values
from softswitch.results.certificate import Interval, IntervalMethod

RANGE_SLACK = 1e-5
"""Tolerance for rounding at a client, relative to a range or to its ends."""
SLACK, P_SLACK = 1e-5, 0.99
"""Tolerance for a client's limits, in units of the range, and factor on its p-values."""


def _with_slack(bounds: Range) -> tuple[float, float, float]:
    low, high = ends(bounds)
    return low, high, RANGE_SLACK * max(high - low, abs(low), abs(high))


def _value_range(bounds: Range) -> tuple[float, float]:
    """Return the range of a mean of rows, or of a gap between two means, with tolerance for rounding."""
    low, high, slack = _with_slack(bounds)
    return min(low, 0.0) - slack, max(high, high - low) + slack


class ValueLimits:
    """Checks of reported values against known ranges."""

    def __init__(
        self,
        objective_range: Range | None,
        constraint_range: Range | Sequence[Range | None] | None,
        statistics_range: Range | Sequence[Range | None] | None,
        constraints: int,
    ) -> None:
        self._ranges = function_ranges(objective_range, constraint_range, constraints)
        self._statistics_range: Any = statistics_range

    def check(self, values: wire.Values) -> wire.Values:
        """Return the values, or raise ``InvalidMessageError``; −∞ marks a missing function."""
        for value, bounds in zip((values.objective, *values.constraint), self._ranges, strict=True):
            if bounds is not None and value != -math.inf:
                low, high = _value_range(bounds)
                if not low <= value <= high:
                    raise wire.InvalidMessageError(
                        f"it reports {value:g}, outside the range {ends(bounds)} of single rows"
                    )
        if values.statistics is not None and self._statistics_range is not None:
            try:
                ranges = each_range(self._statistics_range, len(values.statistics), "statistics_range")
            except ValueError as error:
                raise wire.InvalidMessageError(str(error)) from error
            for value, bounds in zip(values.statistics, ranges, strict=True):
                if bounds is None:
                    continue
                low, high, slack = _with_slack(bounds)
                if not low - slack <= value <= high + slack:
                    raise wire.InvalidMessageError(
                        f"a statistic is {value:g}, outside the range {(low, high)} of single rows"
                    )
        return values


@dataclass(frozen=True)
class IntervalLimits:
    """What the server knows about a client's intervals.

    Attributes:
        rows: Number of rows that the client reported to hold out.
        levels: Error probabilities of the certificate.
        ranges: Known ranges of the objective and of each constraint on a single row.
        largest: Largest absolute value of a number.
    """

    rows: int
    levels: ErrorLevels
    ranges: list[Range | None]
    largest: float

    def check(self, interval: Interval, bounds: Range | None) -> None:
        """Raise ``InvalidMessageError`` if an interval is impossible, or better than its rows allow."""
        if interval.rows > self.rows:
            raise wire.InvalidMessageError(
                f"its interval uses {interval.rows:,} rows, but it reported {self.rows:,} held-out rows"
            )
        for value in (interval.estimate, interval.lower, interval.upper, interval.marginal_upper):
            if math.isfinite(value) and abs(value) > self.largest:
                raise wire.InvalidMessageError(
                    f"its interval contains {value:g}, but the largest number is {self.largest:g}"
                )
        if not interval.rows or math.isnan(interval.estimate):
            if interval.meets_at < 1 or interval.violates_at < 1:
                raise wire.InvalidMessageError("it reports p-values of a function without an estimate")
            return
        if bounds is not None:
            _check_range(interval, bounds)
        if interval.method is IntervalMethod.NORMAL:
            self._check_normal(interval)
        elif bounds is not None and interval.method is IntervalMethod.BINOMIAL:
            self._check_rate(interval, bounds)
        elif bounds is not None and interval.method is IntervalMethod.BETTING:
            self._check_betting(interval, bounds)
        self._check_p_values(interval)

    def _check_normal(self, interval: Interval) -> None:
        """Compare with the normal approximation; without a spread, limits must be infinite."""
        spread = interval.deviation / math.sqrt(interval.rows)
        if not spread > 0:
            if math.isfinite(interval.lower) or math.isfinite(interval.upper):
                raise wire.InvalidMessageError("its rows have no deviation, but its interval has finite limits")
            spread = math.inf
        upper, lower = (interval.estimate - side * float(ndtri(self.levels.joint)) * spread for side in (1, -1))
        alone = interval.estimate - float(ndtri(self.levels.marginal)) * spread
        self._compare_limits(interval, lower, upper, alone, spread)
        distance = (self.levels.tolerance - interval.estimate) / spread if math.isfinite(spread) else 0.0
        if not math.isnan(distance):
            self._compare_p_values(interval, float(ndtr(-distance)), float(ndtr(distance)))

    def _check_rate(self, interval: Interval, bounds: Range) -> None:
        """Compare with the exact limits of the counts."""
        if not has_two_values(bounds):
            raise wire.InvalidMessageError("its interval is for rows with two values, but its function has more")
        low, high = ends(bounds)
        span, rows = high - low, interval.rows
        exact_count = (interval.estimate - low) / span * rows
        count = round(exact_count)
        if not 0 <= count <= rows or abs(exact_count - count) > max(1e-3, SLACK * rows):
            raise wire.InvalidMessageError(
                f"{interval.estimate:g} is no rate of {rows:,} rows with values {(low, high)}"
            )
        rounding = math.floor(1e-6 * rows)  # of an estimate in float32, in the client's favour
        above, below = (BinomialRate(max(0, number - rounding), rows) for number in (count, rows - count))
        lower, upper = high - span * below.upper(self.levels.joint), low + span * above.upper(self.levels.joint)
        self._compare_limits(interval, lower, upper, low + span * above.upper(self.levels.marginal), span)
        share = (self.levels.tolerance - low) / span
        if 0 < share < 1:
            self._compare_p_values(interval, above.p_value(share), below.p_value(1 - share))

    def _check_betting(self, interval: Interval, bounds: Range) -> None:
        """Compare with the limits if every row had the value by which a bet gains most."""
        low, high = ends(bounds)
        span, rows = high - low, interval.rows

        def smallest_upper_limit(error: float) -> float:
            growth = math.expm1(min(700.0, math.log(1 / error) / rows)) / MAX_BET
            return growth / (1 + growth)

        def smallest_p_value(bound: float) -> float:
            return math.exp(-rows * math.log1p(MAX_BET * bound / (1 - bound)))

        best = span * smallest_upper_limit(self.levels.joint)
        alone = low + span * smallest_upper_limit(self.levels.marginal)
        self._compare_limits(interval, high - best, low + best, alone, span)
        share = (self.levels.tolerance - low) / span
        if 0 < share < 1:
            self._compare_p_values(interval, smallest_p_value(share), smallest_p_value(1 - share))

    def _compare_limits(self, interval: Interval, lower: float, upper: float, alone: float, unit: float) -> None:
        slack = SLACK * unit if math.isfinite(unit) else 0.0
        reported_alone = interval.upper if math.isnan(interval.marginal_upper) else interval.marginal_upper
        for too_good, name, limit, best in (
            (interval.upper < upper - slack, "upper limit", interval.upper, upper),
            (interval.lower > lower + slack, "lower limit", interval.lower, lower),
            (reported_alone < alone - slack, "limit for a single client", reported_alone, alone),
        ):
            if too_good:
                raise wire.InvalidMessageError(
                    f"its {name} {limit:g} is better than {best:g}, the best that {interval.rows:,} rows allow"
                )

    def _compare_p_values(self, interval: Interval, meets_at: float, violates_at: float) -> None:
        for name, p_value, best in (
            ("meets_at", interval.meets_at, meets_at),
            ("violates_at", interval.violates_at, violates_at),
        ):
            if p_value < P_SLACK * min(best, 0.5) - 1e-300:
                raise wire.InvalidMessageError(
                    f"its {name} {p_value:.3g} is better than {best:.3g}, the best that {interval.rows:,} rows allow"
                )

    def _check_p_values(self, interval: Interval) -> None:
        """Check that the p-values are consistent with the limits."""
        tolerance, joint = self.levels.tolerance, self.levels.joint
        if math.isnan(tolerance):
            return
        if max(interval.meets_at, interval.violates_at) <= self.levels.marginal:
            raise wire.InvalidMessageError("by its p-values it both meets and violates the tolerance")
        slack = SLACK * max(1.0, abs(tolerance))
        # Limits never exclude the estimate.
        above = interval.upper > max(tolerance, interval.estimate) + slack
        below = interval.lower < min(tolerance, interval.estimate) - slack
        if (above and interval.meets_at < P_SLACK * joint) or (below and interval.violates_at < P_SLACK * joint):
            raise wire.InvalidMessageError("its p-values are smaller than its limits allow")


def _check_range(interval: Interval, bounds: Range) -> None:
    """Check the estimate, and the limits unless they are approximations, against the range of single rows."""
    low, high = _value_range(bounds)
    limits = () if interval.method is IntervalMethod.NORMAL else (interval.lower, interval.upper)
    for value in (interval.estimate, *limits):
        if not low <= value <= high:
            raise wire.InvalidMessageError(
                f"its interval contains {value:g}, outside the range {ends(bounds)} of single rows"
            )


def read_intervals(content: RecordDict, functions: int, limits: IntervalLimits | None = None) -> list[Interval]:
    """Return the intervals in a client's reply, one for each function, or raise ``InvalidMessageError``."""
    record = content.get(wire.INTERVALS)
    if not isinstance(record, MetricRecord):
        raise wire.InvalidMessageError("there are no intervals")
    defaults = {
        "marginal_upper": math.nan,
        "meets_at": 1.0,
        "violates_at": 1.0,
        "method": float(list(IntervalMethod).index(IntervalMethod.NORMAL)),
    }
    names = ("estimate", "lower", "upper", "rows", "deviation", "approximate", *defaults)
    columns = {
        name: [defaults[name]] * functions
        if name in defaults and name not in record
        else wire.read_numbers(record, name)
        for name in names
    }
    if {len(column) for column in columns.values()} != {functions}:
        raise wire.InvalidMessageError(f"there are not {functions} intervals")
    intervals = [_interval({name: columns[name][j] for name in names}) for j in range(functions)]
    if limits is not None:
        for interval, bounds in zip(intervals, limits.ranges, strict=True):
            limits.check(interval, bounds)
    return intervals


def _interval(row: dict[str, float]) -> Interval:
    """Return an interval, or raise if its numbers are inconsistent."""
    is_valid = (
        all(0 <= row[name] <= 1 for name in ("meets_at", "violates_at"))
        and (math.isnan(row["marginal_upper"]) or row["marginal_upper"] <= row["upper"])
        and row["method"] in range(len(IntervalMethod))
        and row["lower"] <= row["upper"]
        and (math.isnan(row["estimate"]) or row["lower"] <= row["estimate"] <= row["upper"])
        and 0 <= row["rows"] < 2**53
        and row["rows"] == math.floor(row["rows"])
        and row["deviation"] >= 0
        and (row["rows"] >= 1 or (math.isinf(row["lower"]) and math.isinf(row["upper"])))
    )
    if not is_valid:
        raise wire.InvalidMessageError(f"{row} is not an interval")
    numbers = {**row, "rows": int(row["rows"]), "approximate": row["approximate"] != 0}
    return Interval(**{**numbers, "method": list(IntervalMethod)[int(row["method"])]})  # type: ignore[arg-type]
