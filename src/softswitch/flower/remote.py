"""Requests to all clients outside of the rounds: evaluation and certification of an answer."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from scipy.special import ndtr, ndtri

from softswitch.certification.certify import build_certificate
from softswitch.certification.intervals import ErrorLevels
from softswitch.certification.limits import MAX_BET, BinomialRate
from softswitch.flower import messages as wire
from softswitch.flower.exchange import NoReply, PendingMessages, poll_intervals
from softswitch.flower.replies import PrivacyReports, ValueLimits, check_statistics, pool_statistics, value_range
from softswitch.flower.roster import Roster
from softswitch.flower.settings import StrategySettings
from softswitch.oracles.base import Evaluation
from softswitch.problem.parameters import Params
from softswitch.problem.ranges import Range, check_range, endpoints, expand_ranges, has_two_values
from softswitch.results.certificate import Certificate, Interval, IntervalMethod
from softswitch.results.events import EventLog
from softswitch.support import checks

logger = logging.getLogger("softswitch.flower")
ATTEMPTS = 3
"""Number of times that a client is asked if it fails for now."""
SLACK, P_SLACK = 1e-5, 0.99
"""Tolerance for a client's limits, in units of the range, and factor on its p-values."""


class RemoteClients:
    """All clients of a run, as an oracle for the evaluation of answers.

    Attributes:
        participants: Mean number of clients in a round.
        privacy: The clients' reports on their privacy budgets.
    """

    noise_setting = "batch_size"
    report_batch_size: int | None = None

    def __init__(self, grid: Grid, roster: Roster, settings: StrategySettings, events: EventLog | None = None) -> None:
        self._grid, self._roster, self._settings = grid, roster, settings
        self._events = EventLog() if events is None else events
        self._constraints = roster.constraints or 1
        ranges = settings.objective_range, settings.constraint_range, settings.statistics_range
        self._limits = ValueLimits(*ranges, self._constraints)
        self.participants = 1
        self.privacy = PrivacyReports(1 + self._constraints)

    def rows(self, index: int) -> int:
        """Return a client's number of training rows, by its index among the clients that are not excluded."""
        return self._roster.rows(self._roster.included[index])

    @property
    def has_surrogate(self) -> bool:
        """Whether clients descend on surrogates of their constraints."""
        return self._roster.has_surrogate

    def cost(self, row_count: Any) -> tuple[Any, Any]:
        """Return the numbers of rows on which a round evaluates values and gradients."""
        return row_count[:, 0], self._settings.local_steps * row_count[:, 1]

    def evaluate_params(self, params: Params) -> Evaluation:
        """Return f_i and g_i of every client that is not excluded, on all its rows; NaN if it does not reply.

        Wait for clients that are not connected, and ask those that fail for now again.
        """
        values, included = self.judge_now(params, patient=True), self._roster.included
        return Evaluation(values.objective[included], values.constraint[included], values.pooled)

    def judge_now(self, params: Params, *, patient: bool = False) -> Evaluation:
        """Return the same for all clients by index; NaN for those that are excluded or not connected."""
        count, pooled = len(self._roster.names), self._settings.pooled
        objective, constraint = np.full(count, np.nan), np.full((count, self._constraints), np.nan)
        sums, content = [], RecordDict({wire.PARAMS: wire.to_record(params)})

        def read(index: int, reply: Message) -> None:
            largest = self._settings.largest_number
            values = wire.parse_values(reply.content, self._constraints, pooled is not None, largest)
            self._limits.check(values)
            if self._roster.statistics:
                check_statistics(values, self._roster.statistics)
            objective[index], constraint[index] = values.objective, values.constraint
            if values.statistics is not None and self._roster.clients[index] is not None:
                sums.append(self._roster.rows(index) * np.asarray(values.statistics))

        self._ask_all(wire.EVALUATE, content, read, patient=patient)
        return Evaluation(objective, constraint, pool_statistics(pooled, sums) if pooled is not None and sums else None)

    def certify(
        self,
        params: Params,
        tolerance: float,
        confidence: float = 0.95,
        *,
        objective_range: Range | None = None,
        constraint_range: Any = None,
    ) -> Certificate | None:
        """Certify every client's constraint on its held-out rows; return None if no client has such rows.

        Each client computes its own intervals and sends only these.

        Args:
            params: The answer.
            tolerance: The tolerance ε of the constraint.
            confidence: The confidence of the certificate.
            objective_range: Range of the objective on a single row. Default: that of the run's settings.
            constraint_range: Range of the constraint on a single row. Default: that of the run's settings.
        """
        settings, roster = self._settings, self._roster
        objective_range = settings.objective_range if objective_range is None else objective_range
        constraint_range = settings.constraint_range if constraint_range is None else constraint_range
        error = 1 - checks.check_probability("confidence", confidence)
        functions = 1 + self._constraints
        ranges = [check_range("objective_range", objective_range), *expand_ranges(constraint_range, functions - 1)]
        held_out_rows = {
            i: client.held_out_rows
            for i in roster.included
            if (client := roster.clients[i]) is not None and client.held_out_rows > 0
        }
        if not held_out_rows:
            return None
        levels = ErrorLevels(error / len(held_out_rows), error, tolerance)
        request = ConfigRecord(
            {
                "error": levels.joint,
                "marginal": levels.marginal,
                "tolerance": levels.tolerance,
                "low": [math.nan if bounds is None else endpoints(bounds)[0] for bounds in ranges],
                "high": [math.nan if bounds is None else endpoints(bounds)[1] for bounds in ranges],
                "two_values": [float(has_two_values(bounds)) for bounds in ranges],
            }
        )
        content = RecordDict({wire.PARAMS: wire.to_record(params), wire.SETTINGS: request})
        intervals: dict[int, list[Interval]] = {}

        def read(index: int, reply: Message) -> None:
            limits = IntervalLimits(held_out_rows[index], levels, ranges, settings.largest_number)
            intervals[index] = read_intervals(reply.content, functions, limits)

        self._ask_all(wire.CERTIFY, content, read, list(held_out_rows))
        reported = [(roster.names[i], intervals.get(i)) for i in roster.included]
        return self.privacy.add_to_certificate(build_certificate(reported, confidence, levels, ranges))

    def _ask_all(
        self,
        kind: str,
        content: RecordDict,
        read: Callable[[int, Message], None],
        indices: list[int] | None = None,
        *,
        patient: bool = True,
    ) -> None:
        """Ask all clients, or some, within one time limit.

        If ``patient``, wait for clients that are not connected, repeat requests that fail for now, and ask clients
        that were silent before.
        """
        roster, timeout = self._roster, self._settings.report_timeout
        roster.refresh(self._grid, 0, 0.0)
        left = set(roster.included if indices is None else indices)
        if not patient:
            left &= set(roster.available(self._events.round or 0, 0))
        tries, max_tries = Counter[int](), ATTEMPTS if patient else 1
        pending, began = PendingMessages(self._grid, timeout), time.monotonic()
        deadline = began + timeout
        connect_deadline = min(deadline, began + (self._settings.wait if patient else 0.0))
        for interval in poll_intervals():
            nodes, now = roster.connected, time.monotonic()
            may_ask = now < deadline or not tries  # connected clients are asked even if the refresh took long
            ready = [i for i in sorted(left - pending.keys) if i in nodes and tries[i] < max_tries and may_ask]
            tries.update(ready)
            messages = {i: Message(content, nodes[i], kind, ttl=timeout, group_id=kind) for i in ready}
            pending.send(messages, max(0.0, deadline - now))
            left -= {i for i, reply in pending.poll() if self._is_done(i, reply, kind, read)}
            can_retry = any(i in nodes and tries[i] < max_tries for i in left - pending.keys)
            may_connect = now < connect_deadline and any(i not in nodes for i in left)
            if now >= deadline or not (pending or can_retry or may_connect):
                break
            time.sleep(min(interval, max(0.0, deadline - now)))
            roster.refresh(self._grid, 0, 0.0)
        for i in sorted(pending.keys):
            self._is_done(i, NoReply(f"no reply within {timeout:g} s"), kind, read)
        for i in sorted(i for i in left if not tries[i]):
            logger.warning("client %r was not connected (%s)", roster.names[i], kind)
            self._events.record("lost", f"it was not connected ({kind})", client=roster.names[i])

    def _is_done(self, index: int, reply: Message | NoReply, kind: str, read: Callable[[int, Message], None]) -> bool:
        """Read a reply; return whether there is no need to ask the client again."""
        name = self._roster.names[index]
        try:
            if isinstance(reply, NoReply):
                raise reply
            if (reason := wire.read_refusal(reply.content)) is not None:
                raise wire.InvalidMessageError(f"it refused: {reason}")
            read(index, reply)
            self.privacy.read(name, reply.content)
        except NoReply as failure:
            logger.warning("client %r did not reply (%s): %s", name, kind, failure)
            self._events.record("lost", f"{kind}: {failure}", client=name)
            return failure.permanent
        except wire.InvalidMessageError as error:
            logger.warning("the reply of client %r is rejected (%s): %s", name, kind, error)
            self._events.record("rejected", f"{kind}: {error}", client=name)
        return True


@dataclass(frozen=True)
class IntervalLimits:
    """Checks of a client's intervals.

    The server sees no rows, but recomputes what follows from the reported numbers. The limits of a rate follow from its
    counts, and those of a normal approximation from mean, deviation and number of rows. Limits by betting depend on
    every row, so they are compared with the best limits for that number of rows. Gaps are checked against their range.

    ``rows`` is the reported number of held-out rows, ``largest`` the largest absolute value of a number.
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
        low, high = endpoints(bounds)
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
        low, high = endpoints(bounds)
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
    low, high = value_range(bounds)
    limits = () if interval.method is IntervalMethod.NORMAL else (interval.lower, interval.upper)
    for value in (interval.estimate, *limits):
        if not low <= value <= high:
            raise wire.InvalidMessageError(
                f"its interval contains {value:g}, outside the range {endpoints(bounds)} of single rows"
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
