"""The clients as the server sees them: readers of their replies, evaluation and certification of an answer."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from scipy.special import ndtr, ndtri

from softswitch.certification.certify import build_certificate
from softswitch.certification.intervals import ErrorLevels
from softswitch.certification.limits import MAX_BET, BinomialRate
from softswitch.flower import messages as wire
from softswitch.flower.client import clip_direction
from softswitch.flower.compression import parse_direction
from softswitch.flower.exchange import NoReply, PendingMessages, Reply, check_reply, log_event, poll_intervals
from softswitch.flower.messages import require
from softswitch.flower.roster import Roster
from softswitch.flower.secure_aggregation import MaskedUpdate, parse_key
from softswitch.flower.settings import StrategySettings
from softswitch.methods.compressors import Compressor
from softswitch.methods.memory import Memory
from softswitch.methods.messages import Reports
from softswitch.oracles.base import Evaluation
from softswitch.privacy.accounting import PrivacyAccount
from softswitch.problem.parameters import Params
from softswitch.problem.ranges import Range, endpoints, expand_ranges, function_ranges, has_two_values
from softswitch.results.certificate import Certificate, Interval, IntervalMethod
from softswitch.results.events import EventLog
from softswitch.results.history import ClientOutcome
from softswitch.results.result import Result
from softswitch.support import checks

logger = logging.getLogger("softswitch.flower")
_Read = Callable[[int, RecordDict], None]
ATTEMPTS = 3
"""Number of times that a client is asked if it fails for now."""
SLACK, P_SLACK = 1e-5, 0.99
"""Tolerance for a client's numbers, in units of their range, and factor on its p-values."""


def no_reports(clients: int, constraints: int, dtype: Any, pools: bool) -> Reports:
    """Return the reports of a round in which no client reported."""
    objective, constraint = (jnp.full(shape, -jnp.inf, dtype) for shape in (clients, (clients, constraints)))
    return Reports(objective, constraint, jnp.zeros(constraints, dtype) if pools else None, jnp.zeros(clients, bool))


def pool_statistics(value: Callable[[Any], Any], sums: Sequence[np.ndarray] | np.ndarray) -> np.ndarray | None:
    """Return the pooled constraint of the clients' statistics; None, with a warning, if it cannot be computed."""
    try:
        pooled = np.atleast_1d(np.asarray(value(np.sum(sums, axis=0))))
        if not np.isfinite(pooled).all():
            raise ValueError(f"the pooled constraint is {pooled}")
    except Exception as error:
        logger.warning("the pooled constraint could not be computed: %s", error)
        return None
    return pooled


def _with_slack(bounds: Range) -> tuple[float, float, float]:
    low, high = endpoints(bounds)
    return low, high, SLACK * max(high - low, abs(low), abs(high))


def _value_range(bounds: Range) -> tuple[float, float]:
    """Return the range of a mean of rows, or of a gap between two means, with tolerance for rounding."""
    low, high, slack = _with_slack(bounds)
    return min(low, 0.0) - slack, max(high, high - low) + slack


class PrivacyReport(NamedTuple):
    """Spent ε, δ, the neighbouring relation, and the deviations of the noise on f and each g, if they are known."""

    epsilon: float
    delta: float
    neighbours: str
    deviations: tuple[float | None, ...] = ()


class PrivacyReports:
    """The last privacy report of each client that sends one; ``functions`` is the number of f and all g."""

    def __init__(self, functions: int) -> None:
        self._functions = functions
        self.reports: dict[str, PrivacyReport] = {}

    def read(self, name: str, content: RecordDict) -> float | None:
        """Keep the privacy report in a client's reply and return its ε, or raise ``InvalidMessageError``."""
        record = content.get(wire.PRIVACY)
        if not isinstance(record, ConfigRecord):
            return None
        epsilon, delta = wire.read_float(record, "epsilon"), wire.read_float(record, "delta")
        require(epsilon >= 0 and 0 < delta < 1, f"it reports a spent budget of ε = {epsilon:g}, δ = {delta:g}")
        numbers = wire.read_numbers(record, "deviations") if "deviations" in record else []
        valid = "deviations" not in record or len(numbers) == self._functions
        problem = f"it must report {self._functions} deviations of its noise >= 0, but reports {numbers!r:.80}"
        require(valid and all(number >= 0 for number in numbers), problem)
        deviations = tuple(None if math.isinf(number) else number for number in numbers)
        self.reports[name] = PrivacyReport(epsilon, delta, wire.read_text(record, "neighbours"), deviations)
        return epsilon

    def restore(self, reports: Mapping[str, Any]) -> None:
        """Take over the reports of a checkpoint."""
        self.reports = {
            name: PrivacyReport(float(epsilon), float(delta), str(neighbours), *map(tuple, deviations))
            for name, (epsilon, delta, neighbours, *deviations) in reports.items()
        }

    def account(self, names: Sequence[Any]) -> PrivacyAccount | None:
        """Return the budgets that these clients have spent; None if no client reports one."""
        if not self.reports:
            return None
        reports, unknown = [self.reports.get(str(name)) for name in names], (None,) * self._functions
        return PrivacyAccount(
            epsilon=tuple(None if report is None else report.epsilon for report in reports),
            delta=max(report.delta for report in self.reports.values()),
            neighbours="; or ".join(sorted({report.neighbours for report in self.reports.values()})),
            deviations=tuple(unknown if report is None else report.deviations or unknown for report in reports),
        )

    def add_to_result(self, result: Result) -> Result:
        """Return the result with the spent budgets, and a remark on noisy values in its status."""
        account = self.account(result.names)
        if account is None or np.isnan(result.client_objective).all():
            return replace(result, privacy=account)
        status = replace(result.status, message=f"{result.status.message}; {account.value_note}")
        return replace(result, status=status, privacy=account)

    def add_to_certificate(self, certificate: Certificate) -> Certificate:
        """Return the certificate with the largest budget that was spent, its own cost included."""
        if not self.reports:
            return certificate
        reports = self.reports.values()
        epsilon, delta = max(report.epsilon for report in reports), max(report.delta for report in reports)
        return replace(certificate, epsilon=epsilon, delta=delta)


class RemoteClients:
    """All clients of a run, as an oracle for the evaluation of answers; ``participants`` is their mean number."""

    noise_setting, report_batch_size = "batch_size", None

    def __init__(self, grid: Grid, roster: Roster, settings: StrategySettings, events: EventLog) -> None:
        self._grid, self.roster, self.settings, self.events = grid, roster, settings, events
        self.constraints = roster.constraints or 1
        self._ranges = function_ranges(settings.objective_range, settings.constraint_range, self.constraints)
        self.participants = 1
        self.privacy = PrivacyReports(1 + self.constraints)

    def rows(self, index: int) -> int:
        """Return a client's number of training rows, by its index among the clients that are not excluded."""
        return self.roster.rows(self.roster.included[index])

    @property
    def has_surrogate(self) -> bool:
        """Whether clients descend on surrogates of their constraints."""
        return self.roster.has_surrogate

    def cost(self, row_count: Any) -> tuple[Any, Any]:
        """Return the numbers of rows on which a round evaluates values and gradients."""
        return row_count[:, 0], self.settings.local_steps * row_count[:, 1]

    def read_values(self, content: RecordDict, statistics: int | None, name: str = wire.VALUES) -> wire.Values:
        """Return values, or raise ``InvalidMessageError``; the number of ``statistics`` is checked if it is known."""
        settings = self.settings
        pools, largest = settings.pooled is not None, settings.largest_number
        values = wire.parse_values(content, self.constraints, pools, largest, name)
        for value, bounds in zip((values.objective, *values.constraint), self._ranges, strict=True):
            if bounds is not None and value != -math.inf:
                low, high = _value_range(bounds)
                problem = f"it reports {value:g}, outside the range {endpoints(bounds)} of single rows"
                require(low <= value <= high, problem)
        if values.statistics is None:
            return values
        count, statistics_range = len(values.statistics), settings.statistics_range
        require(statistics in (None, count), f"it reports {count} statistics, but {statistics} are expected")
        try:
            ranges = expand_ranges(statistics_range, count, "statistics_range")
        except ValueError as error:
            raise wire.InvalidMessageError(str(error)) from error
        for value, bounds in zip(values.statistics, ranges, strict=True):
            if bounds is not None:
                low, high, slack = _with_slack(bounds)
                problem = f"a statistic is {value:g}, outside the range {(low, high)} of single rows"
                require(low - slack <= value <= high + slack, problem)
        return values

    def evaluate_params(self, params: Params) -> Evaluation:
        """Return f_i and g_i of every client that is not excluded, on all its rows; NaN if it does not reply.

        Wait for clients that are not connected, and ask those that fail for now again.
        """
        values, included = self.judge_now(params, patient=True), self.roster.included
        return Evaluation(values.objective[included], values.constraint[included], values.pooled)

    def judge_now(self, params: Params, *, patient: bool = False) -> Evaluation:
        """Return the same for all clients by index; NaN for those that are excluded or not connected."""
        roster, pooled = self.roster, self.settings.pooled
        count, sums = len(roster.names), []
        objective, constraint = np.full(count, np.nan), np.full((count, self.constraints), np.nan)

        def read(index: int, content: RecordDict) -> None:
            values = self.read_values(content, roster.statistics or None)
            objective[index], constraint[index] = values.objective, values.constraint
            if values.statistics is not None and roster.clients[index] is not None:
                sums.append(roster.rows(index) * np.asarray(values.statistics))

        self._ask_all(wire.EVALUATE, RecordDict({wire.PARAMS: wire.to_record(params)}), read, patient=patient)
        return Evaluation(objective, constraint, pool_statistics(pooled, sums) if pooled is not None and sums else None)

    def certify(self, params: Params, tolerance: float, confidence: float = 0.95) -> Certificate | None:
        """Certify every client's constraint on its held-out rows; return None if no client has such rows.

        Each client computes its own intervals and sends only these.
        """
        settings, roster, functions, ranges = self.settings, self.roster, 1 + self.constraints, self._ranges
        error = 1 - checks.check_probability("confidence", confidence)
        clients = {i: client for i in roster.included if (client := roster.clients[i]) is not None}
        held_out_rows = {i: client.held_out_rows for i, client in clients.items() if client.held_out_rows > 0}
        if not held_out_rows:
            return None
        levels = ErrorLevels(error / len(held_out_rows), error, tolerance)
        limits = [(math.nan, math.nan) if bounds is None else endpoints(bounds) for bounds in ranges]
        request = ConfigRecord({"error": levels.joint, "marginal": levels.marginal, "tolerance": levels.tolerance})
        request["low"], request["high"] = [low for low, _ in limits], [high for _, high in limits]
        request["two_values"] = [float(has_two_values(bounds)) for bounds in ranges]
        content = RecordDict({wire.PARAMS: wire.to_record(params), wire.SETTINGS: request})
        intervals: dict[int, list[Interval]] = {}

        def read(index: int, content: RecordDict) -> None:
            limits = IntervalLimits(held_out_rows[index], levels, ranges, settings.largest_number)
            intervals[index] = read_intervals(content, functions, limits)

        self._ask_all(wire.CERTIFY, content, read, list(held_out_rows))
        reported = [(roster.names[i], intervals.get(i)) for i in roster.included]
        return self.privacy.add_to_certificate(build_certificate(reported, confidence, levels, ranges))

    def _ask_all(
        self, kind: str, content: RecordDict, read: _Read, indices: list[int] | None = None, *, patient: bool = True
    ) -> None:
        """Ask all clients, or some, within one time limit.

        If ``patient``, wait for clients that are not connected, repeat requests that fail for now, and ask clients
        that were silent before.
        """
        roster, timeout = self.roster, self.settings.report_timeout
        roster.refresh(self._grid, 0, 0.0)
        left = set(roster.included if indices is None else indices)
        if not patient:
            left &= set(roster.available(self.events.round or 0, 0))
        tries, max_tries = Counter[int](), ATTEMPTS if patient else 1
        pending, began = PendingMessages(self._grid, timeout), time.monotonic()
        deadline = began + timeout
        connect_deadline = min(deadline, began + (self.settings.wait if patient else 0.0))
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
            log_event(self.events, "lost", f"it was not connected ({kind})", client=roster.names[i])

    def _is_done(self, index: int, reply: Reply, kind: str, read: _Read) -> bool:
        """Read a reply; return whether there is no need to ask the client again."""
        name = self.roster.names[index]
        try:
            content = check_reply(reply)
            read(index, content)
            self.privacy.read(name, content)
        except NoReply as failure:
            log_event(self.events, "lost", f"{kind}: {failure}", client=name)
            return failure.permanent
        except wire.InvalidMessageError as error:
            log_event(self.events, "rejected", f"{kind}: {error}", client=name)
        return True


class ReplyReader:
    """Converts the replies of rounds to reports and directions, and logs the clients that fail.

    ``silent``, ``replied`` and ``epsilon`` (the spent budgets by place, or NaN) are those of the present round.
    """

    def __init__(
        self,
        clients: RemoteClients,
        shapes: Mapping[str, wire.ArraySpec],
        statistics: int | None,
        dtype: np.dtype,
        up: Compressor | None = None,
        read_masked: Callable[[RecordDict], MaskedUpdate] | None = None,
    ) -> None:
        settings = clients.settings
        self._clients, self._roster, self._settings = clients, clients.roster, settings
        self._shapes, self._dtype, self._up, self._read_masked = shapes, dtype, up, read_masked
        self._statistics = settings.statistics if statistics is None else statistics
        self._keeps_sums = statistics is not None
        self._reads_earlier = isinstance(settings.memory, Memory) and settings.memory.corrected
        self.silent: set[int] = set()
        self.replied: set[int] = set()
        self.epsilon = np.zeros(0)

    def read_reports(self, k: int, clients: list[int], replies: Sequence[Reply]) -> tuple[Reports, np.ndarray]:
        """Return the reports of round k and the outcome of each client.

        A server with memory gets the sums of each client's statistics; else they are pooled here.
        """
        pooled, count = self._settings.pooled, len(clients)
        void = no_reports(count, self._clients.constraints, self._dtype, pooled is not None)
        outcomes, found = np.zeros(count, np.int32), {}
        self.silent, self.replied, self.epsilon = set(), set(), np.full(count, np.nan)
        if pooled is not None and not self._statistics:
            self._statistics = _most_common_statistics(replies)
        failures = ClientOutcome.NO_REPORT, ClientOutcome.BAD_REPORT
        for place, (index, reply) in enumerate(zip(clients, replies, strict=True)):
            report = self._read(index, reply, place, outcomes, failures, self._read_report)
            if report is not None:
                found[place] = report
        values = {place: now for place, (now, _) in found.items()}
        objective, constraint, sums = self._stack(clients, values, -np.inf, 0.0)
        mask = jnp.asarray(np.isin(np.arange(count), list(found)))
        reports = Reports(objective, constraint, void.pooled, mask)
        if self._reads_earlier:
            earlier = {place: before for place, (_, before) in found.items() if before is not None}
            reports = reports._replace(earlier=self._stack(clients, earlier, np.nan, np.nan))
        if self._keeps_sums:
            return reports._replace(sums=sums), outcomes
        if pooled is None or not found:
            return reports, outcomes
        statistics = [self._roster.rows(clients[place]) * np.asarray(now.statistics) for place, now in values.items()]
        constraint_value = pool_statistics(pooled, statistics)
        if constraint_value is None:
            return void, np.where(outcomes == ClientOutcome.COUNTED, ClientOutcome.VOID, outcomes)
        return reports._replace(pooled=jnp.asarray(constraint_value, self._dtype)), outcomes

    def _stack(
        self, clients: list[int], values: Mapping[int, wire.Values], missing: float, no_sums: float
    ) -> tuple[Any, Any, Any]:
        """Return f, g and the sums of statistics by place, if they are kept."""
        shapes, defaults = ((), (self._clients.constraints,), (self._statistics or 0,)), (missing, missing, no_sums)
        parts = [
            np.full((len(clients), *shape), fill, self._dtype) for shape, fill in zip(shapes, defaults, strict=True)
        ]
        for place, (objective, constraint, statistics) in values.items():
            parts[0][place], parts[1][place] = objective, constraint
            if self._keeps_sums and statistics is not None:
                parts[2][place] = self._roster.rows(clients[place]) * np.asarray(statistics)
        return jnp.asarray(parts[0]), jnp.asarray(parts[1]), jnp.asarray(parts[2]) if self._keeps_sums else None

    def read_updates(
        self,
        k: int,
        clients: list[int],
        updating: list[int],
        replies: Sequence[Reply],
        outcomes: np.ndarray,
    ) -> dict[int, Any]:
        """Return the usable directions, masked with secure aggregation, by place; update ``outcomes`` for all."""
        failures, read = (ClientOutcome.NO_UPDATE, ClientOutcome.BAD_UPDATE), self._read_masked or self._read_direction
        updates = {
            place: self._read(clients[place], reply, place, outcomes, failures, read)
            for place, reply in zip(updating, replies, strict=True)
        }
        return {place: update for place, update in updates.items() if update is not None}

    def _read(
        self,
        index: int,
        reply: Reply,
        place: int,
        outcomes: np.ndarray,
        failures: Any,
        read: Callable[[RecordDict], Any],
    ) -> Any:
        """Return what ``read`` makes of a reply, or None if it is not usable; record the client's outcome.

        ``failures`` are the outcomes of a client without a reply and of one with an invalid reply.
        """
        name, content, events = self._roster.names[index], None, self._clients.events
        try:
            if isinstance(reply, NoReply):
                raise reply
            if (reason := wire.read_refusal(reply.content)) is None:
                content = read(reply.content)
                if (epsilon := self._clients.privacy.read(name, reply.content)) is not None:
                    self.epsilon[place] = epsilon
                outcomes[place] = ClientOutcome.COUNTED
            else:
                outcomes[place] = ClientOutcome.REFUSED
                log_event(events, "refused", reason, client=name)
        except NoReply as failure:
            outcomes[place] = failures[0]
            self.silent |= {index} if failure.silent else set()
            log_event(events, "lost", f"{failures[0].label}: {failure}", client=name)
            return None
        except wire.InvalidMessageError as error:
            outcomes[place], content = failures[1], None
            log_event(events, "rejected", f"{failures[1].label}: {error}", client=name)
        self.replied.add(index)
        return content

    def _read_report(self, content: RecordDict) -> tuple[wire.Values, wire.Values | None]:
        """Return a client's report, and that of its batch at the previous iterate if it is wanted and present."""
        if self._read_masked is not None:
            parse_key(content)  # raises for a client that could not take part in the second exchange
        is_known = self._settings.pooled is None or self._statistics is not None
        require(is_known, "clients differ in how many statistics they report; set statistics")
        has_earlier = self._reads_earlier and wire.PREVIOUS_VALUES in content
        read = self._clients.read_values
        earlier = read(content, self._statistics, wire.PREVIOUS_VALUES) if has_earlier else None
        return read(content, self._statistics), earlier

    def _read_direction(self, content: RecordDict) -> wire.Arrays:
        record, largest, clip_norm = (
            content.get(wire.DIRECTION),
            self._settings.largest_number,
            self._settings.clip_norm,
        )
        if self._up is None:
            direction = wire.parse_arrays(record, self._shapes, largest)
        else:
            direction = parse_direction(record, self._up, self._shapes, largest)
        return direction if clip_norm is None else clip_direction(direction, clip_norm)


def _most_common_statistics(replies: Sequence[Reply]) -> int | None:
    """Return the most common number of statistics; None for a tie."""
    records = (reply.content.get(wire.VALUES) for reply in replies if isinstance(reply, Message))
    counts = Counter(
        len(record["statistics"]) if isinstance(record["statistics"], list) else 1
        for record in records
        if isinstance(record, MetricRecord) and "statistics" in record
    ).most_common(2)
    return None if not counts or (len(counts) > 1 and counts[0][1] == counts[1][1]) else counts[0][0]


class _Best(NamedTuple):
    """The best limits and p-values that the rows of an interval allow, and the unit of their rounding."""

    lower: float
    upper: float
    alone: float
    unit: float
    meets_at: float
    violates_at: float


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
        rows, estimate = interval.rows, interval.estimate
        require(rows <= self.rows, f"its interval uses {rows:,} rows, but it reported {self.rows:,} held-out rows")
        for value in (estimate, interval.lower, interval.upper, interval.marginal_upper):
            small = not math.isfinite(value) or abs(value) <= self.largest
            require(small, f"its interval contains {value:g}, but the largest number is {self.largest:g}")
        if not rows or math.isnan(estimate):
            has_none = interval.meets_at >= 1 and interval.violates_at >= 1
            require(has_none, "it reports p-values of a function without an estimate")
            return
        if bounds is not None:
            low, high = _value_range(bounds)
            limits = () if interval.method is IntervalMethod.NORMAL else (interval.lower, interval.upper)
            for value in (estimate, *limits):
                problem = f"its interval contains {value:g}, outside the range {endpoints(bounds)} of single rows"
                require(low <= value <= high, problem)
        best = None
        if interval.method is IntervalMethod.NORMAL:
            best = self._best_normal(interval)
        elif bounds is not None and interval.method is IntervalMethod.BINOMIAL:
            best = self._best_rate(interval, bounds)
        elif bounds is not None and interval.method is IntervalMethod.BETTING:
            best = self._best_bet(interval, bounds)
        if best is not None:
            self._compare(interval, best)
        self._check_p_values(interval)

    def _best_normal(self, interval: Interval) -> _Best:
        """Return the normal approximation; without a spread, limits must be infinite."""
        estimate, spread, levels = interval.estimate, interval.deviation / math.sqrt(interval.rows), self.levels
        if not spread > 0:
            is_infinite = math.isinf(interval.lower) and math.isinf(interval.upper)
            require(is_infinite, "its rows have no deviation, but its interval has finite limits")
            spread = math.inf
        joint, marginal = (-float(ndtri(error)) * spread for error in (levels.joint, levels.marginal))
        distance = (levels.tolerance - estimate) / spread if math.isfinite(spread) else 0.0
        p_values = 0.0, 0.0
        if not math.isnan(distance):
            p_values = float(ndtr(-distance)), float(ndtr(distance))
        return _Best(estimate - joint, estimate + joint, estimate + marginal, spread, *p_values)

    def _best_rate(self, interval: Interval, bounds: Range) -> _Best:
        """Return the exact limits of the counts."""
        require(has_two_values(bounds), "its interval is for rows with two values, but its function has more")
        low, high = endpoints(bounds)
        span, rows, levels = high - low, interval.rows, self.levels
        exact_count = (interval.estimate - low) / span * rows
        count = round(exact_count)
        valid = 0 <= count <= rows and abs(exact_count - count) <= max(1e-3, SLACK * rows)
        require(valid, f"{interval.estimate:g} is no rate of {rows:,} rows with values {(low, high)}")
        rounding = math.floor(1e-6 * rows)  # of an estimate in float32, in the client's favour
        above, below = (BinomialRate(max(0, number - rounding), rows) for number in (count, rows - count))
        lower, upper = high - span * below.upper(levels.joint), low + span * above.upper(levels.joint)
        share = (levels.tolerance - low) / span
        p_values = (above.p_value(share), below.p_value(1 - share)) if 0 < share < 1 else (0.0, 0.0)
        return _Best(lower, upper, low + span * above.upper(levels.marginal), span, *p_values)

    def _best_bet(self, interval: Interval, bounds: Range) -> _Best:
        """Return the limits if every row had the value by which a bet gains most."""
        low, high = endpoints(bounds)
        span, rows = high - low, interval.rows

        def smallest_upper_limit(error: float) -> float:
            growth = math.expm1(min(700.0, math.log(1 / error) / rows)) / MAX_BET
            return span * (growth / (1 + growth))

        def smallest_p_value(bound: float) -> float:
            return math.exp(-rows * math.log1p(MAX_BET * bound / (1 - bound))) if 0 < bound < 1 else 0.0

        best, alone = smallest_upper_limit(self.levels.joint), smallest_upper_limit(self.levels.marginal)
        share = (self.levels.tolerance - low) / span
        p_values = smallest_p_value(share), smallest_p_value(1 - share)
        return _Best(high - best, low + best, low + alone, span, *p_values)

    def _compare(self, interval: Interval, best: _Best) -> None:
        """Raise if limits or p-values are better than the best that the rows allow."""
        slack = SLACK * best.unit if math.isfinite(best.unit) else 0.0
        alone = interval.upper if math.isnan(interval.marginal_upper) else interval.marginal_upper
        meets, violates = (P_SLACK * min(p_value, 0.5) - 1e-300 for p_value in (best.meets_at, best.violates_at))
        for too_good, name, value, limit in (
            (interval.upper < best.upper - slack, "upper limit", interval.upper, best.upper),
            (interval.lower > best.lower + slack, "lower limit", interval.lower, best.lower),
            (alone < best.alone - slack, "limit for a single client", alone, best.alone),
            (interval.meets_at < meets, "meets_at", interval.meets_at, best.meets_at),
            (interval.violates_at < violates, "violates_at", interval.violates_at, best.violates_at),
        ):
            allowed = f"the best that {interval.rows:,} rows allow"
            require(not too_good, f"its {name} {value:.6g} is better than {limit:.6g}, {allowed}")

    def _check_p_values(self, interval: Interval) -> None:
        """Check that the p-values are consistent with the limits."""
        tolerance, smallest = self.levels.tolerance, P_SLACK * self.levels.joint
        if math.isnan(tolerance):
            return
        is_consistent = max(interval.meets_at, interval.violates_at) > self.levels.marginal
        require(is_consistent, "by its p-values it both meets and violates the tolerance")
        slack = SLACK * max(1.0, abs(tolerance))
        # Limits never exclude the estimate.
        above = interval.upper > max(tolerance, interval.estimate) + slack
        below = interval.lower < min(tolerance, interval.estimate) - slack
        too_small = (above and interval.meets_at < smallest) or (below and interval.violates_at < smallest)
        require(not too_small, "its p-values are smaller than its limits allow")


def read_intervals(content: RecordDict, functions: int, limits: IntervalLimits | None = None) -> list[Interval]:
    """Return the intervals in a client's reply, one for each function, or raise ``InvalidMessageError``."""
    record: Any = content.get(wire.INTERVALS)
    require(isinstance(record, MetricRecord), "there are no intervals")
    methods = list(IntervalMethod)
    normal = float(methods.index(IntervalMethod.NORMAL))
    defaults = {"marginal_upper": math.nan, "meets_at": 1.0, "violates_at": 1.0, "method": normal}
    sent = {name: [default] * functions for name, default in defaults.items() if name not in record} | dict(record)
    names = ("estimate", "lower", "upper", "rows", "deviation", "approximate", *defaults)
    columns = {name: wire.read_numbers(sent, name) for name in names}
    require({len(column) for column in columns.values()} == {functions}, f"there are not {functions} intervals")
    intervals = [_interval({name: columns[name][j] for name in names}, methods) for j in range(functions)]
    if limits is not None:
        for interval, bounds in zip(intervals, limits.ranges, strict=True):
            limits.check(interval, bounds)
    return intervals


def _interval(row: dict[str, Any], methods: list[IntervalMethod]) -> Interval:
    """Return an interval, or raise if its numbers are inconsistent."""
    is_valid = (
        all(0 <= row[name] <= 1 for name in ("meets_at", "violates_at"))
        and (math.isnan(row["marginal_upper"]) or row["marginal_upper"] <= row["upper"])
        and row["method"] in range(len(methods))
        and row["lower"] <= row["upper"]
        and (math.isnan(row["estimate"]) or row["lower"] <= row["estimate"] <= row["upper"])
        and 0 <= row["rows"] < 2**53
        and row["rows"] == math.floor(row["rows"])
        and row["deviation"] >= 0
        and (row["rows"] >= 1 or (math.isinf(row["lower"]) and math.isinf(row["upper"])))
    )
    require(is_valid, f"{row} is not an interval")
    row |= {"rows": int(row["rows"]), "approximate": row["approximate"] != 0, "method": methods[int(row["method"])]}
    return Interval(**row)
