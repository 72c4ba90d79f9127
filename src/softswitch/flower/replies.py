"""Reading of clients' replies: reports, directions and privacy budgets, and the outcome of clients that fail."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from softswitch.flower import messages as wire
from softswitch.flower.client import clip_direction
from softswitch.flower.compression import parse_direction
from softswitch.flower.exchange import NoReply
from softswitch.flower.roster import Roster
from softswitch.flower.secure_aggregation import MaskedUpdate, parse_key
from softswitch.flower.settings import StrategySettings
from softswitch.methods.compressors import Compressor
from softswitch.methods.memory import Memory
from softswitch.methods.messages import Reports
from softswitch.privacy.accounting import PrivacyAccount
from softswitch.problem.ranges import Range, endpoints, expand_ranges, function_ranges
from softswitch.results.certificate import Certificate
from softswitch.results.events import EventLog
from softswitch.results.history import ClientOutcome
from softswitch.results.result import Result

logger = logging.getLogger("softswitch.flower")
RANGE_SLACK = 1e-5
"""Tolerance for rounding at a client, relative to a range or to its ends."""


def no_reports(clients: int, constraints: int, dtype: Any, pools: bool) -> Reports:
    """Return the reports of a round in which no client reported."""
    return Reports(
        jnp.full(clients, -jnp.inf, dtype),
        jnp.full((clients, constraints), -jnp.inf, dtype),
        jnp.zeros(constraints, dtype) if pools else None,
        jnp.zeros(clients, bool),
    )


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
    return low, high, RANGE_SLACK * max(high - low, abs(low), abs(high))


def value_range(bounds: Range) -> tuple[float, float]:
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
                low, high = value_range(bounds)
                if not low <= value <= high:
                    raise wire.InvalidMessageError(
                        f"it reports {value:g}, outside the range {endpoints(bounds)} of single rows"
                    )
        if values.statistics is not None and self._statistics_range is not None:
            try:
                ranges = expand_ranges(self._statistics_range, len(values.statistics), "statistics_range")
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


class PrivacyReport(NamedTuple):
    """A client's report on its privacy budget.

    Attributes:
        epsilon: ε spent so far.
        delta: δ.
        neighbours: Description of neighbouring data sets.
        deviations: Standard deviations of the noise on f and each g at the answer; None for a function that the client
            does not have. Empty if unknown.
    """

    epsilon: float
    delta: float
    neighbours: str
    deviations: tuple[float | None, ...] = ()


class PrivacyReports:
    """The last privacy report of each client that sends one.

    Args:
        functions: Number of functions of a client: f and all g.
    """

    def __init__(self, functions: int) -> None:
        self._functions = functions
        self._reports: dict[str, PrivacyReport] = {}

    def read(self, name: str, content: RecordDict) -> float | None:
        """Keep the privacy report in a client's reply and return its ε, or raise ``InvalidMessageError``."""
        record = content.get(wire.PRIVACY)
        if not isinstance(record, ConfigRecord):
            return None
        epsilon, delta = wire.read_float(record, "epsilon"), wire.read_float(record, "delta")
        if epsilon < 0 or not 0 < delta < 1:
            raise wire.InvalidMessageError(f"it reports a spent budget of ε = {epsilon:g}, δ = {delta:g}")
        deviations: tuple[float | None, ...] = ()
        if "deviations" in record:
            numbers = wire.read_numbers(record, "deviations")
            if len(numbers) != self._functions or not all(number >= 0 for number in numbers):
                raise wire.InvalidMessageError(
                    f"it must report {self._functions} deviations of its noise >= 0, but reports {numbers!r:.80}"
                )
            deviations = tuple(None if math.isinf(number) else number for number in numbers)
        self._reports[name] = PrivacyReport(epsilon, delta, wire.read_text(record, "neighbours"), deviations)
        return epsilon

    def to_dict(self) -> dict[str, PrivacyReport]:
        """Return all reports, for a checkpoint."""
        return self._reports

    def restore(self, reports: Mapping[str, Any]) -> None:
        """Take over the reports of a checkpoint."""
        self._reports = {
            name: PrivacyReport(float(epsilon), float(delta), str(neighbours), *map(tuple, deviations))
            for name, (epsilon, delta, neighbours, *deviations) in reports.items()
        }

    @property
    def _delta(self) -> float:
        return max(report.delta for report in self._reports.values())

    def account(self, names: Sequence[Any]) -> PrivacyAccount | None:
        """Return the budgets that these clients have spent; None if no client reports one."""
        if not self._reports:
            return None
        reports, unknown = [self._reports.get(str(name)) for name in names], (None,) * self._functions
        return PrivacyAccount(
            epsilon=tuple(None if report is None else report.epsilon for report in reports),
            delta=self._delta,
            neighbours="; or ".join(sorted({report.neighbours for report in self._reports.values()})),
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
        if not self._reports:
            return certificate
        spent = max(report.epsilon for report in self._reports.values())
        return replace(certificate, epsilon=spent, delta=self._delta)


class ReplyReader:
    """Converts replies to reports and directions, and logs the clients that fail.

    Attributes:
        silent: The clients from which nothing came in the present round.
        replied: The clients that replied in the present round.
        epsilon: The budget spent by each client of the present round, by place; NaN if it reports none.
    """

    def __init__(
        self,
        roster: Roster,
        shapes: Mapping[str, wire.ArraySpec],
        constraints: int,
        statistics: int | None,
        dtype: np.dtype,
        settings: StrategySettings,
        events: EventLog,
        privacy: PrivacyReports,
        up: Compressor | None = None,
        read_masked: Callable[[RecordDict], MaskedUpdate] | None = None,
    ) -> None:
        self._roster, self._events, self._privacy = roster, events, privacy
        self._shapes, self._constraints, self._dtype = shapes, constraints, dtype
        self._up, self._read_masked = up, read_masked
        ranges = settings.objective_range, settings.constraint_range, settings.statistics_range
        self._limits = ValueLimits(*ranges, constraints)
        self._largest, self._clip_norm, self._pooled = settings.largest_number, settings.clip_norm, settings.pooled
        self._statistics = settings.statistics if statistics is None else statistics
        self._keeps_sums = statistics is not None
        self._reads_earlier = isinstance(settings.memory, Memory) and settings.memory.corrected
        self.silent: set[int] = set()
        self.replied: set[int] = set()
        self.epsilon = np.zeros(0)

    def read_reports(
        self, k: int, clients: list[int], replies: Sequence[Message | NoReply]
    ) -> tuple[Reports, np.ndarray]:
        """Return the reports of round k and the outcome of each client.

        A server with memory gets the sums of each client's statistics; else they are pooled here.
        """
        void = no_reports(len(clients), self._constraints, self._dtype, self._pooled is not None)
        objective, constraint, mask = (np.array(part) for part in (void.objective, void.constraint, void.mask))
        outcomes, sums = np.zeros(len(clients), np.int32), {}
        earlier = dict[int, wire.Values]()
        self.silent, self.replied, self.epsilon = set(), set(), np.full(len(clients), np.nan)
        if self._pooled is not None and not self._statistics:
            self._statistics = _most_common_statistics(replies)
        failures = ClientOutcome.NO_REPORT, ClientOutcome.BAD_REPORT
        for place, (index, reply) in enumerate(zip(clients, replies, strict=True)):
            report = self._read(k, index, reply, place, outcomes, failures, self._read_report)
            if report is None:
                continue
            values, values_before = report
            if values_before is not None:
                earlier[place] = values_before
            objective[place], constraint[place], mask[place] = values.objective, values.constraint, True
            if values.statistics is not None:
                sums[place] = self._roster.rows(index) * np.asarray(values.statistics)
        reports = Reports(jnp.asarray(objective), jnp.asarray(constraint), void.pooled, jnp.asarray(mask))
        if self._reads_earlier:
            reports = reports._replace(earlier=self._collect_earlier(clients, earlier))
        if self._keeps_sums:
            all_sums = np.zeros((len(clients), self._statistics or 0), self._dtype)
            for place, client_sums in sums.items():
                all_sums[place] = client_sums
            return reports._replace(sums=jnp.asarray(all_sums)), outcomes
        if self._pooled is None or not sums:
            return reports, outcomes
        pooled = pool_statistics(self._pooled, list(sums.values()))
        if pooled is None:
            return void, np.where(outcomes == ClientOutcome.COUNTED, ClientOutcome.VOID, outcomes)
        return reports._replace(pooled=jnp.asarray(pooled, self._dtype)), outcomes

    def read_updates(
        self,
        k: int,
        clients: list[int],
        updating: list[int],
        replies: Sequence[Message | NoReply],
        outcomes: np.ndarray,
    ) -> dict[int, Any]:
        """Return the usable directions, masked with secure aggregation, by place; update ``outcomes`` for all."""
        updates, failures = {}, (ClientOutcome.NO_UPDATE, ClientOutcome.BAD_UPDATE)
        read = self._read_direction if self._read_masked is None else self._read_masked
        for place, reply in zip(updating, replies, strict=True):
            update = self._read(k, clients[place], reply, place, outcomes, failures, read)
            if update is not None:
                updates[place] = update
        return updates

    def _read(
        self,
        k: int,
        index: int,
        reply: Message | NoReply,
        place: int,
        outcomes: np.ndarray,
        failures: tuple[ClientOutcome, ClientOutcome],
        read: Callable[[RecordDict], Any],
    ) -> Any:
        """Return what ``read`` makes of a reply, or None if it is not usable; record the client's outcome."""
        name, content = self._roster.names[index], None
        try:
            if isinstance(reply, NoReply):
                raise reply
            if (reason := wire.read_refusal(reply.content)) is None:
                content = read(reply.content)
                if (epsilon := self._privacy.read(name, reply.content)) is not None:
                    self.epsilon[place] = epsilon
                outcomes[place] = ClientOutcome.COUNTED
            else:
                outcomes[place] = ClientOutcome.REFUSED
                logger.warning("round %d: client %r refuses: %s", k, name, reason)
                self._events.record("refused", reason, client=name)
        except NoReply as failure:
            outcomes[place] = failures[0]
            if failure.silent:
                self.silent.add(index)
            logger.warning("round %d: client %r is lost: %s", k, name, failure)
            self._events.record("lost", f"{failures[0].label}: {failure}", client=name)
            return None
        except wire.InvalidMessageError as error:
            outcomes[place], content = failures[1], None
            logger.warning("round %d: the reply of client %r is rejected: %s", k, name, error)
            self._events.record("rejected", f"{failures[1].label}: {error}", client=name)
        self.replied.add(index)
        return content

    def _collect_earlier(self, clients: list[int], earlier: Mapping[int, wire.Values]) -> tuple[Any, Any, Any]:
        """Return the values at the previous iterate by place; NaN for clients without them."""
        objective = np.full(len(clients), np.nan, self._dtype)
        constraint = np.full((len(clients), self._constraints), np.nan, self._dtype)
        sums = np.full((len(clients), self._statistics or 0), np.nan, self._dtype) if self._keeps_sums else None
        for place, values in earlier.items():
            objective[place], constraint[place] = values.objective, values.constraint
            if sums is not None and values.statistics is not None:
                sums[place] = self._roster.rows(clients[place]) * np.asarray(values.statistics)
        return jnp.asarray(objective), jnp.asarray(constraint), None if sums is None else jnp.asarray(sums)

    def _read_report(self, content: RecordDict) -> tuple[wire.Values, wire.Values | None]:
        """Return a client's report, and that of its batch at the previous iterate if it is wanted and present."""
        if self._read_masked is not None:
            parse_key(content)  # raises for a client that could not take part in the second exchange
        has_earlier = self._reads_earlier and wire.PREVIOUS_VALUES in content
        return self._read_values(content, wire.VALUES), self._read_values(
            content, wire.PREVIOUS_VALUES
        ) if has_earlier else None

    def _read_values(self, content: RecordDict, name: str) -> wire.Values:
        values = wire.parse_values(content, self._constraints, self._pooled is not None, self._largest, name)
        if values.statistics is not None and self._statistics is None:
            raise wire.InvalidMessageError("clients differ in how many statistics they report; set statistics")
        check_statistics(values, self._statistics)
        return self._limits.check(values)

    def _read_direction(self, content: RecordDict) -> wire.Arrays:
        record = content.get(wire.DIRECTION)
        if self._up is None:
            direction = wire.parse_arrays(record, self._shapes, self._largest)
        else:
            direction = parse_direction(record, self._up, self._shapes, self._largest)
        return direction if self._clip_norm is None else clip_direction(direction, self._clip_norm)


def check_statistics(values: wire.Values, expected: int | None) -> None:
    """Raise ``InvalidMessageError`` if a client's number of statistics is not the expected one."""
    if values.statistics is not None and len(values.statistics) != expected:
        raise wire.InvalidMessageError(f"it reports {len(values.statistics)} statistics, but {expected} are expected")


def _most_common_statistics(replies: Sequence[Message | NoReply]) -> int | None:
    """Return the most common number of statistics; None for a tie."""
    records = (reply.content.get(wire.VALUES) for reply in replies if isinstance(reply, Message))
    counts = Counter(
        len(record["statistics"]) if isinstance(record["statistics"], list) else 1
        for record in records
        if isinstance(record, MetricRecord) and "statistics" in record
    ).most_common(2)
    return None if not counts or (len(counts) > 1 and counts[0][1] == counts[1][1]) else counts[0][0]
