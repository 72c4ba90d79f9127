"""Intervals that clients tell for a certificate: which can be, and which are better than their rows allow.

A client computes its own intervals, and the server sees no row. What it can do is to compute again what follows from
the numbers told: a rate's limits follow from how many of how many rows count, those of a normal approximation from
mean, deviation and rows. Limits by betting depend on every row and on their order; there is a best that so many rows
can give at all, and whoever tells more is not believed. Of gaps only the range is checked. A client can still tell
values that its rows do not have, and rows that it does not have: see ``AllowedClient``.
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
"""Rounding at a client: a share of the range, or of its ends."""


def widest(bounds: Range) -> tuple[float, float]:
    """Where the mean of a row's values lies, or the gap between two groups' means; a little more for rounding.

    Args:
        bounds: of a single row.
    """
    low, high = ends(bounds)
    slack = RANGE_SLACK * max(high - low, abs(low), abs(high))
    return min(low, 0.0) - slack, max(high, high - low) + slack


class ValueLimits:
    """Refuses values that cannot be.

    Args:
        objective_range: of the objective on a single row, where it is known.
        constraint_range: of the constraint; one for all, or one each.
        statistics_range: of a pooled constraint's statistics.
        constraints: how many a client has.
    """

    def __init__(
        self,
        objective_range: Range | None,
        constraint_range: Range | Sequence[Range | None] | None,
        statistics_range: Range | Sequence[Range | None] | None,
        constraints: int,
    ) -> None:
        self._ranges = function_ranges(objective_range, constraint_range, constraints)
        self._of_statistics: Any = statistics_range

    def check(self, values: wire.Values) -> wire.Values:
        """The values, or raise ``InvalidMessageError``. −∞ is what a client does not have.

        Args:
            values: that a client told.
        """
        for value, bounds in zip((values.objective, *values.constraint), self._ranges, strict=True):
            if bounds is not None and value != -math.inf:
                low, high = widest(bounds)
                if not low <= value <= high:
                    raise wire.InvalidMessageError(f"it reports {value:g}, where rows lie in the range {ends(bounds)}")
        if values.statistics is not None and self._of_statistics is not None:
            try:
                known = each_range(self._of_statistics, len(values.statistics), "statistics_range")
            except ValueError as error:
                raise wire.InvalidMessageError(str(error)) from error
            for value, bounds in zip(values.statistics, known, strict=True):
                if bounds is None:
                    continue
                low, high = ends(bounds)
                slack = RANGE_SLACK * max(high - low, abs(low), abs(high))
                if not low - slack <= value <= high + slack:
                    raise wire.InvalidMessageError(
                        f"a statistic is {value:g}, where rows lie in the range {(low, high)}"
                    )
        return values


SLACK, P_SLACK = 1e-5, 0.99
"""By how much a client's limits, in units of the range, and p-values may be better than ours: for rounding."""


@dataclass(frozen=True)
class IntervalLimits:
    """What is known of a client's intervals before they come.

    Attributes:
        rows: how many rows it said that it holds out.
        levels: at which error probabilities it was asked.
        ranges: of the objective and of each constraint on a single row, where the server knows them.
        largest: the largest size of a number.
    """

    rows: int
    levels: ErrorLevels
    ranges: list[Range | None]
    largest: float

    def check(self, interval: Interval, bounds: Range | None) -> None:
        """Raise ``InvalidMessageError`` where an interval cannot be, or is better than its rows allow.

        Args:
            interval: of one function.
            bounds: of that function on a single row.
        """
        if interval.rows > self.rows:
            raise wire.InvalidMessageError(
                f"its interval rests on {interval.rows:,} rows, but it said that it holds {self.rows:,} out"
            )
        for value in (interval.estimate, interval.lower, interval.upper, interval.marginal_upper):
            if math.isfinite(value) and abs(value) > self.largest:
                raise wire.InvalidMessageError(f"its interval has {value:g}, where {self.largest:g} is the most")
        if not interval.rows or math.isnan(interval.estimate):
            if interval.meets_at < 1 or interval.violates_at < 1:
                raise wire.InvalidMessageError("it knows nothing of a function, and has p-values of it")
            return
        if bounds is not None:
            _check_range(interval, bounds)
        if interval.method is IntervalMethod.NORMAL:
            self._check_normal(interval)
        elif bounds is not None and interval.method is IntervalMethod.BINOMIAL:
            self._check_rate(interval, bounds)
        elif bounds is not None and interval.method is IntervalMethod.BETTING:
            self._check_bets(interval, bounds)
        self._check_p_values(interval)

    def _check_normal(self, interval: Interval) -> None:
        """At least as wide as a normal approximation with its own deviation; endless where rows do not differ."""
        spread = interval.deviation / math.sqrt(interval.rows)
        if not spread > 0:
            if math.isfinite(interval.lower) or math.isfinite(interval.upper):
                raise wire.InvalidMessageError("its rows do not differ, and its interval has ends")
            spread = math.inf
        upper, lower = (interval.estimate - side * float(ndtri(self.levels.joint)) * spread for side in (1, -1))
        self._at_best(interval, lower, upper, interval.estimate - float(ndtri(self.levels.marginal)) * spread, spread)
        distance = (self.levels.tolerance - interval.estimate) / spread if math.isfinite(spread) else 0.0
        if not math.isnan(distance):
            self._p_at_best(interval, float(ndtr(-distance)), float(ndtr(distance)))

    def _check_rate(self, interval: Interval, bounds: Range) -> None:
        """Exactly the limits of so many rows that count, of so many."""
        if not has_two_values(bounds):
            raise wire.InvalidMessageError("its interval is of rows with two values, which its function does not have")
        low, high = ends(bounds)
        span, rows = high - low, interval.rows
        counted = (interval.estimate - low) / span * rows
        count = round(counted)
        if not 0 <= count <= rows or abs(counted - count) > max(1e-3, SLACK * rows):
            raise wire.InvalidMessageError(
                f"{interval.estimate:g} is no rate of {rows:,} rows with values {(low, high)}"
            )
        rounding = math.floor(1e-6 * rows)  # of an estimate in float32, in the client's favour
        above, below = (BinomialRate(max(0, own - rounding), rows) for own in (count, rows - count))
        self._at_best(
            interval,
            high - span * below.upper(self.levels.joint),
            low + span * above.upper(self.levels.joint),
            low + span * above.upper(self.levels.marginal),
            span,
        )
        share = (self.levels.tolerance - low) / span
        if 0 < share < 1:
            self._p_at_best(interval, above.p_value(share), below.p_value(1 - share))

    def _check_bets(self, interval: Interval, bounds: Range) -> None:
        """No better than if every row had the value that a bet gains most by: whichever came first, and how."""
        low, high = ends(bounds)
        span, rows = high - low, interval.rows

        def best(error: float) -> float:
            """The smallest limit on a mean from above."""
            growth = math.expm1(min(700.0, math.log(1 / error) / rows)) / MAX_BET
            return growth / (1 + growth)

        def least(bound: float) -> float:
            """The smallest p-value of "the mean is this or more"."""
            return math.exp(-rows * math.log1p(MAX_BET * bound / (1 - bound)))

        upper, lower = low + span * best(self.levels.joint), high - span * best(self.levels.joint)
        self._at_best(interval, lower, upper, low + span * best(self.levels.marginal), span)
        share = (self.levels.tolerance - low) / span
        if 0 < share < 1:
            self._p_at_best(interval, least(share), least(1 - share))

    def _at_best(self, interval: Interval, lower: float, upper: float, alone: float, unit: float) -> None:
        slack = SLACK * unit if math.isfinite(unit) else 0.0
        told = interval.upper if math.isnan(interval.marginal_upper) else interval.marginal_upper
        for better, name, own, best in (
            (interval.upper < upper - slack, "upper limit", interval.upper, upper),
            (interval.lower > lower + slack, "lower limit", interval.lower, lower),
            (told < alone - slack, "limit of its own", told, alone),
        ):
            if better:
                raise wire.InvalidMessageError(
                    f"its {name} {own:g} is better than {best:g}, the best that {interval.rows:,} rows allow"
                )

    def _p_at_best(self, interval: Interval, meets_at: float, violates_at: float) -> None:
        for name, own, best in (
            ("meets_at", interval.meets_at, meets_at),
            ("violates_at", interval.violates_at, violates_at),
        ):
            if own < P_SLACK * min(best, 0.5) - 1e-300:
                raise wire.InvalidMessageError(
                    f"its {name} {own:.3g} is better than {best:.3g}, the best that {interval.rows:,} rows allow"
                )

    def _check_p_values(self, interval: Interval) -> None:
        """P-values say no more than the limits do."""
        tolerance, joint = self.levels.tolerance, self.levels.joint
        if math.isnan(tolerance):
            return
        if max(interval.meets_at, interval.violates_at) <= self.levels.marginal:
            raise wire.InvalidMessageError("by its p-values it both meets and violates the tolerance")
        slack = SLACK * max(1.0, abs(tolerance))
        # Limits are never beyond the estimate itself, where bets were lucky at first.
        above = interval.upper > max(tolerance, interval.estimate) + slack
        below = interval.lower < min(tolerance, interval.estimate) - slack
        if (above and interval.meets_at < P_SLACK * joint) or (below and interval.violates_at < P_SLACK * joint):
            raise wire.InvalidMessageError("its p-values say more than its limits do")


def _check_range(interval: Interval, bounds: Range) -> None:
    """Within what is known of single rows; an approximation's ends may lie outside."""
    low, high = widest(bounds)
    ends_too = () if interval.method is IntervalMethod.NORMAL else (interval.lower, interval.upper)
    for value in (interval.estimate, *ends_too):
        if not low <= value <= high:
            raise wire.InvalidMessageError(f"its interval has {value:g}, where rows lie in the range {ends(bounds)}")


def checked_intervals(content: RecordDict, functions: int, limits: IntervalLimits | None = None) -> list[Interval]:
    """Intervals that a client sent, or raise.

    Args:
        content: of its answer.
        functions: how many there must be.
        limits: what is known of them.
    """
    told = content.get(wire.INTERVALS)
    if not isinstance(told, MetricRecord):
        raise wire.InvalidMessageError("there are no intervals")
    plain = {
        "marginal_upper": math.nan,
        "meets_at": 1.0,
        "violates_at": 1.0,
        "method": float(list(IntervalMethod).index(IntervalMethod.NORMAL)),
    }
    names = ("estimate", "lower", "upper", "rows", "deviation", "approximate", *plain)
    columns = {
        name: [plain[name]] * functions if name in plain and name not in told else wire.read_numbers(told, name)
        for name in names
    }
    if {len(column) for column in columns.values()} != {functions}:
        raise wire.InvalidMessageError(f"there are not {functions} intervals")
    found = [_interval({name: columns[name][j] for name in names}) for j in range(functions)]
    if limits is not None:
        for interval, bounds in zip(found, limits.ranges, strict=True):
            limits.check(interval, bounds)
    return found


def _interval(row: dict[str, float]) -> Interval:
    """One of them, or raise where its numbers contradict each other."""
    ordered = row["lower"] <= row["upper"]
    inside = math.isnan(row["estimate"]) or row["lower"] <= row["estimate"] <= row["upper"]
    counted = row["rows"] == math.floor(row["rows"]) if 0 <= row["rows"] < 2**53 else False
    endless = math.isinf(row["lower"]) and math.isinf(row["upper"])
    chances = all(0 <= row[name] <= 1 for name in ("meets_at", "violates_at"))
    alone = math.isnan(row["marginal_upper"]) or row["marginal_upper"] <= row["upper"]
    made = row["method"] in range(len(IntervalMethod))
    if not (chances and alone and made):
        raise wire.InvalidMessageError(f"{row} is not an interval")
    if not (ordered and inside and counted and row["deviation"] >= 0 and (row["rows"] >= 1 or endless)):
        raise wire.InvalidMessageError(f"{row} is not an interval")
    return Interval(
        row["estimate"],
        row["lower"],
        row["upper"],
        int(row["rows"]),
        row["deviation"],
        approximate=row["approximate"] != 0,
        marginal_upper=row["marginal_upper"],
        meets_at=row["meets_at"],
        violates_at=row["violates_at"],
        method=list(IntervalMethod)[int(row["method"])],
    )
