"""The clients as the server sees them: their reports, evaluation and certification of an answer, privacy budgets."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from softswitch.certification.certify import build_certificate
from softswitch.certification.intervals import ErrorLevels
from softswitch.flower import messages as wire
from softswitch.flower.client import clip_direction
from softswitch.flower.compression import parse_direction
from softswitch.flower.membership import confusable_key
from softswitch.flower.messages import (
    NoReply,
    Reply,
    check_in_range,
    check_reply,
    exchange,
    log_event,
    read_intervals,
    require,
)
from softswitch.flower.roster import Roster
from softswitch.flower.secure_aggregation import MaskedUpdate, parse_key
from softswitch.flower.server_state import no_reports
from softswitch.flower.settings import StrategySettings
from softswitch.methods.compressors import Compressor
from softswitch.methods.memory import Memory
from softswitch.methods.messages import Reports
from softswitch.oracles.base import Evaluation
from softswitch.privacy.accounting import PrivacyAccount
from softswitch.problem.parameters import Params
from softswitch.problem.ranges import endpoints, function_ranges, has_two_values
from softswitch.results.certificate import Certificate, Interval
from softswitch.results.events import EventLog
from softswitch.results.history import ClientOutcome
from softswitch.results.result import Result
from softswitch.results.status import Diagnostic, DiagnosticCode
from softswitch.support import checks
from softswitch.support.text import join_first

logger = logging.getLogger("softswitch.flower")
_Read = Callable[[int, RecordDict], None]
ATTEMPTS = 3  # number of times that a client is asked if it fails for now


class PrivacyReport(NamedTuple):
    """Spent ε, δ, the neighbouring relation, and the deviations of the noise on f and each g, or None if unknown."""

    epsilon: float
    delta: float
    neighbours: str
    deviations: tuple[float | None, ...]


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
        epsilon, delta = wire.read(record, "epsilon", float), wire.read(record, "delta", float)
        require(epsilon >= 0 and 0 < delta < 1, f"it reports a spent budget of ε = {epsilon:g}, δ = {delta:g}")
        numbers = wire.read_numbers(record, "deviations")
        is_valid = len(numbers) == self._functions and all(number >= 0 for number in numbers)
        require(is_valid, f"it must report {self._functions} deviations of its noise >= 0, but reports {numbers!r:.80}")
        deviations = tuple(None if math.isinf(number) else number for number in numbers)
        self.reports[name] = PrivacyReport(epsilon, delta, wire.read_text(record, "neighbours"), deviations)
        return epsilon

    def restore(self, reports: Mapping[str, Any]) -> None:
        """Take over the reports of a checkpoint."""
        self.reports = {
            name: PrivacyReport(epsilon, delta, neighbours, tuple(deviations))
            for name, (epsilon, delta, neighbours, deviations) in reports.items()
        }

    def account(self, names: Sequence[Any]) -> PrivacyAccount | None:
        """Return the budgets that these clients have spent; None if no client reports one."""
        if not self.reports:
            return None
        unknown = PrivacyReport(math.nan, 0.0, "", (None,) * self._functions)
        reports = [self.reports.get(str(name), unknown) for name in names]
        return PrivacyAccount(
            epsilon=tuple(None if report is unknown else report.epsilon for report in reports),
            delta=max(report.delta for report in self.reports.values()),
            neighbours="; or ".join(sorted({report.neighbours for report in self.reports.values()})),
            deviations=tuple(report.deviations for report in reports),
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
        reports: Sequence[PrivacyReport] = list(self.reports.values())
        largest = {name: max(getattr(report, name) for report in reports) for name in ("epsilon", "delta")}
        return replace(certificate, **largest)


def pool_statistics(value: Callable[[Any], Any], sums: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return the pooled constraint of the clients' statistics; None, with a warning, if it cannot be computed."""
    try:
        pooled = np.atleast_1d(np.asarray(value(np.sum(sums, axis=0))))
        if not np.isfinite(pooled).all():
            raise ValueError(f"the pooled constraint is {pooled}")
    except Exception as error:
        logger.warning("the pooled constraint could not be computed: %s", error)
        return None
    return pooled


class RemoteClients:
    """All clients of a run, as an oracle for the evaluation of answers; ``participants`` is their mean number."""

    noise_setting, report_batch_size = "batch_size", None

    def __init__(self, grid: Grid, roster: Roster, settings: StrategySettings, events: EventLog) -> None:
        self._grid, self.roster, self.settings, self.events = grid, roster, settings, events
        self.constraints = roster.constraints or 1
        self.ranges = function_ranges(settings.objective_range, settings.constraint_range, self.constraints)
        self.participants = 1
        self.withdrawn: list[str] = []  # clients that took part in earlier rounds and are excluded
        self.privacy = PrivacyReports(1 + self.constraints)

    def resume(self, names: Sequence[str]) -> list[int]:
        """Take over the clients of a checkpoint in their order; return the indices of those that are not excluded."""
        excluded = {confusable_key(name) for name in self.settings.exclude}
        withdrawn = [name for name in names if confusable_key(name) in excluded]
        for name in withdrawn:
            self.events.record("excluded", "it no longer takes part (exclude)", client=name)
        self.withdrawn = list(dict.fromkeys([*self.withdrawn, *withdrawn]))
        kept = [i for i, name in enumerate(names) if name not in withdrawn]
        self.roster.restore_order([names[i] for i in kept])
        return kept

    @property
    def unknown_excluded(self) -> list[str]:
        """The excluded names that no client has or had, as text."""
        known = self.roster.excluded | {confusable_key(name) for name in self.withdrawn}
        return [repr(name) for name in self.settings.exclude if confusable_key(name) not in known]

    def diagnostics(self) -> Iterator[Diagnostic]:
        """Yield what the result does not cover: excluded clients, and classes that clients left out."""
        if self.settings.exclude:
            evidence = f"{join_first([repr(name) for name in self.settings.exclude], 5)} excluded (exclude)"
            if self.withdrawn:
                evidence += f"; {join_first([repr(name) for name in self.withdrawn], 5)} took part in earlier rounds"
            if unknown := self.unknown_excluded:
                evidence += f"; no client is known by the name {join_first(unknown, 5)}"
            advice = "Neither the status nor a certificate covers these clients: state this wherever the model is used"
            yield Diagnostic(DiagnosticCode.EXCLUDED_CLIENTS, evidence, advice)
        suppressed = [repr(client.name) for client in self.roster.clients if client and client.excluded_classes]
        if suppressed:
            advice = "Results do not cover these rows, and functions of only these rows count as absent: state this"
            yield Diagnostic(
                DiagnosticCode.SUPPRESSED_CLASSES,
                f"{join_first(suppressed, 5)} left out classes with too few rows, by their own policy",
                f"{advice} wherever the model is used",
            )

    def rows(self, index: int) -> int:
        """Return a client's number of training rows."""
        return self.roster.rows(index)

    @property
    def has_surrogate(self) -> bool:
        """Whether clients descend on surrogates of their constraints."""
        return self.roster.has_surrogate

    def cost(self, row_count: Any) -> tuple[Any, Any]:
        """Return the numbers of rows on which a round evaluates values and gradients."""
        return row_count[:, 0], self.settings.local_steps * row_count[:, 1]

    def read_values(self, content: RecordDict, name: str = wire.VALUES) -> wire.Values:
        """Return a client's values, or raise ``InvalidMessageError``."""
        values = wire.parse_values(content, self.constraints, self.roster.statistics or 0, name)
        for value, bounds in zip((values.objective, *values.constraint), self.ranges, strict=True):
            if value != -math.inf:
                check_in_range(value, bounds)
        return values

    def evaluate_params(self, params: Params, *, patient: bool = True) -> Evaluation:
        """Return f_i and g_i of every client on all its rows; NaN if it does not reply.

        If ``patient``, wait for clients that are not connected, and ask those that fail for now again.
        """
        roster, pooled = self.roster, self.settings.pooled
        replies: dict[int, wire.Values] = {}

        def read(index: int, content: RecordDict) -> None:
            replies[index] = self.read_values(content)

        self.ask_all(wire.EVALUATE, RecordDict({wire.PARAMS: wire.to_record(params)}), read, patient=patient)
        count = len(roster.names)
        objective, constraint = np.full(count, np.nan), np.full((count, self.constraints), np.nan)
        for index, values in replies.items():
            objective[index], constraint[index] = values.objective, values.constraint
        if pooled is None or not replies:
            return Evaluation(objective, constraint, None)
        sums = [roster.rows(index) * np.asarray(values.statistics) for index, values in replies.items()]
        return Evaluation(objective, constraint, pool_statistics(pooled, sums))

    def certify(self, params: Params, tolerance: float, confidence: float = 0.95) -> Certificate | None:
        """Certify every client's constraint on its held-out rows; return None if no client has such rows.

        Each client computes its own intervals and sends only these.
        """
        roster, ranges = self.roster, self.ranges
        error = 1 - checks.check_probability("confidence", confidence)
        held_out_rows = {i: one.held_out_rows for i, one in enumerate(roster.clients) if one and one.held_out_rows > 0}
        if not held_out_rows:
            return None
        levels = ErrorLevels(error / len(held_out_rows), error, tolerance)
        limits = [(math.nan, math.nan) if bounds is None else endpoints(bounds) for bounds in ranges]
        request = ConfigRecord(levels._asdict())
        request["low"], request["high"] = [low for low, _ in limits], [high for _, high in limits]
        request["two_values"] = [float(has_two_values(bounds)) for bounds in ranges]
        content = RecordDict({wire.PARAMS: wire.to_record(params), wire.SETTINGS: request})
        intervals: dict[int, list[Interval]] = {}

        def read(index: int, content: RecordDict) -> None:
            intervals[index] = read_intervals(content, held_out_rows[index], ranges)

        self.ask_all(wire.CERTIFY, content, read, set(held_out_rows))
        reported = [(name, intervals.get(i)) for i, name in enumerate(roster.names)]
        return self.privacy.add_to_certificate(build_certificate(reported, confidence, levels, ranges))

    def ask_all(
        self,
        kind: str,
        content: RecordDict | Callable[[int], RecordDict],
        read: _Read,
        indices: set[int] | None = None,
        *,
        patient: bool = True,
        wait_for: int | None = None,
    ) -> dict[int, Exception]:
        """Ask all clients, or some, within one time limit; return why clients gave no usable reply, by index.

        ``content`` is the same for all clients, or a function of a client's index. If ``patient``, wait until all
        clients, or ``wait_for`` of them, are connected, repeat requests that fail for now, and ask clients that were
        silent in rounds.
        """
        roster, settings = self.roster, self.settings
        count = len(roster.names) if wait_for is None else wait_for
        roster.refresh(self._grid, count if patient else 0, settings.wait if patient else 0.0)
        left = set(range(len(roster.names))) if indices is None else set(indices)
        nodes, failures = roster.connected, dict[int, Exception]()
        for i in sorted(left - set(nodes)) if patient else ():
            failures[i] = NoReply("it was not connected")
            log_event(self.events, "lost", f"it was not connected ({kind})", client=roster.names[i])
        left &= set(nodes if patient else roster.available(self.events.round or 0, 0))
        deadline = time.monotonic() + settings.report_timeout
        for _ in range(ATTEMPTS if patient else 1):
            timeout = deadline - time.monotonic()
            if not left or timeout <= 0:
                break
            contents = {i: content(i) if callable(content) else content for i in sorted(left)}
            messages = [Message(one, nodes[i], kind, ttl=timeout, group_id=kind) for i, one in contents.items()]
            for i, reply in zip(contents, exchange(self._grid, messages, timeout), strict=True):
                failures.pop(i, None)
                if (failure := self._read_reply(i, reply, kind, read)) is not None:
                    failures[i] = failure
                if not isinstance(failure, NoReply) or failure.permanent:
                    left.discard(i)
        return failures

    def _read_reply(self, index: int, reply: Reply, kind: str, read: _Read) -> Exception | None:
        """Read a reply; return why it is not usable, or None."""
        name = self.roster.names[index]
        try:
            content = check_reply(reply)
            read(index, content)
            self.privacy.read(name, content)
        except NoReply as failure:
            log_event(self.events, "lost", f"{kind}: {failure}", client=name)
            return failure
        except wire.InvalidMessageError as error:
            log_event(self.events, "rejected", f"{kind}: {error}", client=name)
            return error
        return None


class ReplyReader:
    """Converts the replies of rounds to reports and directions, and logs the clients that fail.

    ``epsilon`` has the spent budgets in the present round by place, or NaN.
    """

    def __init__(
        self,
        clients: RemoteClients,
        shapes: Mapping[str, wire.ArraySpec],
        dtype: np.dtype,
        up: Compressor | None = None,
        read_masked: Callable[[RecordDict], MaskedUpdate] | None = None,
    ) -> None:
        self._clients, self._roster, self._settings = clients, clients.roster, clients.settings
        self._shapes, self._dtype, self._up, self._read_masked = shapes, dtype, up, read_masked
        memory = clients.settings.memory
        self._reads_earlier = isinstance(memory, Memory) and memory.corrected
        self.epsilon = np.zeros(0)

    def read_reports(self, clients: list[int], replies: Sequence[Reply]) -> tuple[Reports, np.ndarray]:
        """Return the reports of a round and the outcome of each client."""
        pooled, count = self._settings.pooled, len(clients)
        void = no_reports(count, self._clients.constraints, self._dtype, pooled is not None)
        outcomes = np.zeros(count, np.int32)
        self.epsilon = np.full(count, np.nan)
        failures = ClientOutcome.NO_REPORT, ClientOutcome.BAD_REPORT
        read = {
            place: self._read(index, reply, place, outcomes, failures, self._read_report)
            for place, (index, reply) in enumerate(zip(clients, replies, strict=True))
        }
        reported = {place: values for place, values in read.items() if values is not None}
        values = {place: now for place, (now, _) in reported.items()}
        mask = jnp.asarray(np.isin(np.arange(count), list(reported)))
        reports = Reports(*self._stack(count, values, -np.inf), void.pooled, mask)
        if self._reads_earlier:
            earlier = {place: before for place, (_, before) in reported.items() if before is not None}
            reports = reports._replace(earlier=(*self._stack(count, earlier, np.nan), None))
        if pooled is None or not reported:
            return reports, outcomes
        sums = [self._roster.rows(clients[place]) * np.asarray(now.statistics) for place, now in values.items()]
        constraint = pool_statistics(pooled, sums)
        if constraint is None:
            return void, np.where(outcomes == ClientOutcome.COUNTED, ClientOutcome.VOID, outcomes)
        return reports._replace(pooled=jnp.asarray(constraint, self._dtype)), outcomes

    def _stack(self, count: int, values: Mapping[int, wire.Values], missing: float) -> tuple[Any, Any]:
        """Return f and g by place."""
        objective = np.full(count, missing, self._dtype)
        constraint = np.full((count, self._clients.constraints), missing, self._dtype)
        for place, reported in values.items():
            objective[place], constraint[place] = reported.objective, reported.constraint
        return jnp.asarray(objective), jnp.asarray(constraint)

    def read_updates(self, clients: list[int], replies: Mapping[int, Reply], outcomes: np.ndarray) -> dict[int, Any]:
        """Return the usable directions, masked with secure aggregation, by place; update ``outcomes`` for all."""
        failures, read = (ClientOutcome.NO_UPDATE, ClientOutcome.BAD_UPDATE), self._read_masked or self._read_direction
        updates = {
            place: self._read(clients[place], reply, place, outcomes, failures, read)
            for place, reply in replies.items()
        }
        return {place: update for place, update in updates.items() if update is not None}

    def _read(
        self,
        index: int,
        reply: Reply,
        place: int,
        outcomes: np.ndarray,
        failures: tuple[ClientOutcome, ClientOutcome],
        read: Callable[[RecordDict], Any],
    ) -> Any:
        """Return what ``read`` makes of a reply, or None if it is not usable; record the client's outcome.

        ``failures`` are the outcomes of a client without a reply and of one with an invalid reply.
        """
        name, content, events = self._roster.names[index], None, self._clients.events
        missing, invalid = failures
        if isinstance(reply, NoReply):
            outcomes[place] = missing
            log_event(events, "lost", f"{missing.label}: {reply}", client=name)
            return None
        if (reason := wire.read_refusal(reply.content)) is not None:
            outcomes[place] = ClientOutcome.REFUSED
            log_event(events, "refused", reason, client=name)
            return None
        try:
            content = read(reply.content)
            if (epsilon := self._clients.privacy.read(name, reply.content)) is not None:
                self.epsilon[place] = epsilon
        except wire.InvalidMessageError as error:
            outcomes[place] = invalid
            log_event(events, "rejected", f"{invalid.label}: {error}", client=name)
            return None
        outcomes[place] = ClientOutcome.COUNTED
        return content

    def _read_report(self, content: RecordDict) -> tuple[wire.Values, wire.Values | None]:
        """Return a client's report, and that of its batch at the previous iterate if it is wanted and present."""
        if self._read_masked is not None:
            parse_key(content)  # raises for a client that could not take part in the second exchange
        has_earlier = self._reads_earlier and wire.PREVIOUS_VALUES in content
        earlier = self._clients.read_values(content, wire.PREVIOUS_VALUES) if has_earlier else None
        return self._clients.read_values(content), earlier

    def _read_direction(self, content: RecordDict) -> wire.Arrays:
        record, clip_norm = content.get(wire.DIRECTION), self._settings.clip_norm
        if self._up is None:
            direction = wire.parse_arrays(record, self._shapes)
        else:
            direction = parse_direction(record, self._up, self._shapes)
        return direction if clip_norm is None else clip_direction(direction, clip_norm)
