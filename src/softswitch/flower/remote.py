"""The clients as the server sees them: their reports, evaluation and certification of an answer, privacy budgets."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from softswitch.certification.certify import build_certificate
from softswitch.certification.intervals import ErrorLevels
from softswitch.flower import messages as wire
from softswitch.flower.client import clip_direction, encode_decision
from softswitch.flower.compression import HeldParams, count_bytes, needs_params, parse_direction
from softswitch.flower.membership import confusable_key
from softswitch.flower.roster import Roster
from softswitch.flower.secure_aggregation import MASKED, TERMS, make_terms, parse_key, parse_masked, sum_directions
from softswitch.flower.server_state import Observed, ServerState
from softswitch.flower.settings import StrategySettings
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.parts import Round, Update
from softswitch.oracles.base import Evaluation
from softswitch.oracles.evaluation import ClientSummary
from softswitch.privacy.accounting import PrivacyAccount
from softswitch.problem.parameters import Params, count_parameters
from softswitch.problem.ranges import endpoints, function_ranges, has_two_values
from softswitch.results.certificate import Certificate, Interval
from softswitch.results.history import ClientOutcome
from softswitch.results.result import Result
from softswitch.results.status import Diagnostic, DiagnosticCode
from softswitch.support import checks
from softswitch.support.text import join_first

T = TypeVar("T")
logger = logging.getLogger("softswitch.flower")
ATTEMPTS = 3  # number of times that a client is asked if it fails for now
FAILURES = {  # outcomes of a client without a reply, and of one with an invalid reply
    wire.REPORT: (ClientOutcome.NO_REPORT, ClientOutcome.BAD_REPORT),
    wire.UPDATE: (ClientOutcome.NO_UPDATE, ClientOutcome.BAD_UPDATE),
}
Parse = Callable[[RecordDict], Any]


class PrivacyReport(NamedTuple):
    """Spent ε, δ, the neighbouring relation, and the deviations of the noise on f and each g, or None if unknown."""

    epsilon: float | None
    delta: float
    neighbours: str
    deviations: Sequence[float | None]


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
        wire.require(epsilon >= 0 and 0 < delta < 1, f"it reports a spent budget of ε = {epsilon:g}, δ = {delta:g}")
        numbers = wire.read_numbers(record, "deviations")
        is_valid = len(numbers) == self._functions and all(number >= 0 for number in numbers)
        problem = f"it must report {self._functions} deviations of its noise >= 0, but reports {numbers!r:.80}"
        wire.require(is_valid, problem)
        deviations = [None if math.isinf(number) else number for number in numbers]
        self.reports[name] = PrivacyReport(epsilon, delta, wire.read_text(record, "neighbours"), deviations)
        return epsilon

    def account(self, names: Sequence[Any]) -> PrivacyAccount | None:
        """Return the budgets that these clients have spent; None if no client reports one."""
        if not self.reports:
            return None
        unknown = PrivacyReport(None, 0.0, "", [None] * self._functions)
        reports = [self.reports.get(str(name), unknown) for name in names]
        return PrivacyAccount(
            epsilon=tuple(report.epsilon for report in reports),
            delta=max(report.delta for report in self.reports.values()),
            neighbours="; or ".join(sorted({report.neighbours for report in self.reports.values()})),
            deviations=tuple(tuple(report.deviations) for report in reports),
        )

    def add_to_result(self, result: Result) -> Result:
        """Return the result with the spent budgets, and a remark on noisy values in its status."""
        account = self.account(result.names)
        if account is None or np.isnan(result.client_objective).all():
            return replace(result, privacy=account)
        status = replace(result.status, message=f"{result.status.message}; {account.value_note}")
        return replace(result, status=status, privacy=account)


class RemoteClients:
    """All clients of a run, as an oracle for the evaluation of answers; ``participants`` is their mean number."""

    noise_setting, report_batch_size = "batch_size", None

    def __init__(self, roster: Roster, settings: StrategySettings) -> None:
        self.roster, self.settings, self.events = roster, settings, roster.events
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
        """The excluded names that no client has or had."""
        known = self.roster.excluded | {confusable_key(name) for name in self.withdrawn}
        return [name for name in self.settings.exclude if confusable_key(name) not in known]

    def diagnostics(self) -> Iterator[Diagnostic]:
        """Yield what the result does not cover: excluded clients."""
        if self.settings.exclude:
            evidence = f"{quote_first(self.settings.exclude)} excluded (exclude)"
            if self.withdrawn:
                evidence += f"; {quote_first(self.withdrawn)} took part in earlier rounds"
            if unknown := self.unknown_excluded:
                evidence += f"; no client is known by the name {quote_first(unknown)}"
            advice = "Neither the status nor a certificate covers these clients: state this wherever the model is used"
            yield Diagnostic(DiagnosticCode.EXCLUDED_CLIENTS, evidence, advice)

    def cost(self, row_count: Any) -> tuple[Any, Any]:
        """Return the numbers of rows on which a round evaluates values and gradients."""
        return row_count[:, 0], self.settings.local_steps * row_count[:, 1]

    def read_values(self, content: RecordDict, name: str = wire.VALUES) -> wire.Values:
        """Return a client's values, or raise ``InvalidMessageError``."""
        values = wire.parse_values(content, self.constraints, self.roster.statistics or 0, name)
        self.check_ranges(values.objective, *values.constraint)
        return values

    def check_ranges(self, *values: float) -> None:
        """Raise ``InvalidMessageError`` if f or one of the g, unless it is −∞, is outside its range on single rows."""
        for value, bounds in zip(values, self.ranges, strict=True):
            if value != -math.inf:
                wire.check_in_range(value, bounds)

    def evaluate_params(self, params: Params, *, patient: bool = True) -> Evaluation:
        """Return f_i and g_i of every client on all its rows; NaN if it does not reply.

        If ``patient``, wait for clients that are not connected, and ask those that fail for now again.
        """
        content = RecordDict({wire.PARAMS: wire.to_record(params)})
        replies, _ = self.ask_all(wire.EVALUATE, content, lambda _, reply: self.read_values(reply), patient=patient)
        count = len(self.roster.names)
        objective, constraint = np.full(count, np.nan), np.full((count, self.constraints), np.nan)
        for index, values in replies.items():
            objective[index], constraint[index] = values.objective, values.constraint
        return Evaluation(objective, constraint, self.pool(replies))

    def pool(self, values: Mapping[int, wire.Values]) -> np.ndarray | None:
        """Return the pooled constraint of the clients' statistics; None, with a warning, if it cannot be computed."""
        value = self.settings.pooled
        if value is None or not values:
            return None
        sums = [self.roster.rows(index) * np.asarray(reported.statistics) for index, reported in values.items()]
        try:
            pooled = np.atleast_1d(np.asarray(value(np.sum(sums, axis=0))))
            if not np.isfinite(pooled).all():
                raise ValueError(f"the pooled constraint is {pooled}")
        except Exception as error:
            logger.warning("the pooled constraint could not be computed: %s", error)
            return None
        return pooled

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
        request = {
            **levels._asdict(),
            "low": [low for low, _ in limits],
            "high": [high for _, high in limits],
            "two_values": [float(has_two_values(bounds)) for bounds in ranges],
        }
        content = RecordDict({wire.PARAMS: wire.to_record(params), wire.SETTINGS: ConfigRecord(request)})

        def parse(index: int, reply: RecordDict) -> list[Interval]:
            return wire.read_intervals(reply, held_out_rows[index], ranges)

        intervals, _ = self.ask_all(wire.CERTIFY, content, parse, set(held_out_rows))
        reported = [(name, intervals.get(i)) for i, name in enumerate(roster.names)]
        certificate = build_certificate(reported, confidence, levels, ranges)
        if (account := self.privacy.account(list(self.privacy.reports))) is None:
            return certificate
        return replace(certificate, epsilon=account.worst_epsilon, delta=account.delta)

    def ask_all(
        self,
        kind: str,
        content: RecordDict | Callable[[int], RecordDict],
        parse: Callable[[int, RecordDict], T],
        indices: set[int] | None = None,
        *,
        patient: bool = True,
        wait_for: int | None = None,
    ) -> tuple[dict[int, T], dict[int, Exception]]:
        """Ask all clients, or some, within one time limit; return parsed replies, and failures, by index.

        ``content`` is the same for all clients, or a function of a client's index. If ``patient``, wait until all
        clients, or ``wait_for`` of them, are connected, repeat requests that fail for now, and ask clients that were
        silent in rounds.
        """
        roster, settings, names = self.roster, self.settings, self.roster.names
        count = len(names) if wait_for is None else wait_for
        roster.refresh(count if patient else 0, settings.wait if patient else 0.0)
        left = set(range(len(names))) if indices is None else set(indices)
        nodes, results, failures = roster.connected, dict[int, T](), dict[int, Exception]()
        for i in sorted(left - set(nodes)) if patient else ():
            failures[i] = wire.NoReply("it was not connected")
            wire.log_event(self.events, "lost", f"it was not connected ({kind})", client=names[i])
        left &= set(nodes if patient else roster.available(self.events.round or 0, 0))
        deadline = time.monotonic() + settings.report_timeout
        for _ in range(ATTEMPTS if patient else 1):
            timeout = deadline - time.monotonic()
            if not left or timeout <= 0:
                break
            contents = {i: content(i) if callable(content) else content for i in sorted(left)}
            messages = [Message(one, nodes[i], kind, ttl=timeout, group_id=kind) for i, one in contents.items()]
            for i, reply in zip(contents, wire.exchange(roster.grid, messages, timeout), strict=True):
                try:
                    received = wire.check_reply(reply)
                    result = parse(i, received)
                    self.privacy.read(names[i], received)
                except (wire.NoReply, wire.InvalidMessageError) as error:
                    failures[i] = error
                    what = "lost" if isinstance(error, wire.NoReply) else "rejected"
                    wire.log_event(self.events, what, f"{kind}: {error}", client=names[i])
                else:
                    results[i] = result
                    failures.pop(i, None)
                failure = failures.get(i)
                if not isinstance(failure, wire.NoReply) or failure.permanent:
                    left.discard(i)
        return results, failures


class RemoteTask(NamedTuple):
    """The clients, the start w_0 and the maximum number of rounds of a run.

    ``after_round`` is called with the number of rounds so far, the parameters, and the record of the round if any.
    """

    clients: RemoteClients
    start: Params
    rounds: int
    after_round: Callable[..., None]


def quote_first(names: Sequence[str]) -> str:
    """Return the first names in quotes, and the number of others."""
    return join_first([repr(name) for name in names])


class RoundExchange:
    """The messages of one round, with participants by their place in it."""

    def __init__(
        self,
        clients: RemoteClients,
        server: ServerState,
        held: HeldParams,
        participants: list[int],
    ) -> None:
        self._clients, self._roster, self._settings = clients, clients.roster, clients.settings
        self._server, self._held = server, held
        self.participants = participants  # indices among all clients
        self._replies: dict[str, dict[int, wire.Reply]] = {}  # by type of message and place
        self.outcomes = np.zeros(len(participants), np.int32)
        self.epsilon = np.full(len(participants), np.nan)  # spent privacy budgets

    def collect_reports(self) -> Reports:
        """Return the participants' reports; those without a usable one are masked."""
        server, pooled, count = self._server, self._settings.pooled, len(self.participants)
        reported = self._request(wire.REPORT, {place: {} for place in range(count)}, self._parse_report)
        shape = count, 1 + server.constraints
        now, earlier = (np.full(shape, missing, server.dtype) for missing in (-np.inf, np.nan))
        for place, both in reported.items():
            for table, values in zip((now, earlier), both, strict=True):
                if values is not None:
                    table[place] = values.objective, *values.constraint
        mask = jnp.asarray(np.isin(np.arange(count), list(reported)))
        reports = Reports(jnp.asarray(now[:, 0]), jnp.asarray(now[:, 1:]), server.no_reports(count).pooled, mask)
        if self._held.reports_twice:
            reports = reports._replace(earlier=(jnp.asarray(earlier[:, 0]), jnp.asarray(earlier[:, 1:]), None))
        if pooled is None or not reported:
            return reports
        constraint = self._clients.pool({self.participants[place]: values for place, (values, _) in reported.items()})
        if constraint is None:
            self.outcomes[self.outcomes == ClientOutcome.COUNTED] = ClientOutcome.VOID
            return server.no_reports(count)
        return reports._replace(pooled=jnp.asarray(constraint, server.dtype))

    def collect_update(self, played: Round) -> Update | None:
        """Send the decision and aggregate the directions; return None if they cannot be aggregated."""
        server, updating = self._server, np.flatnonzero(np.asarray(played.reports.mask)).tolist()
        decision = jax.tree.map(np.asarray, played.decision)
        if self._settings.secure is not None:
            return self._sum_securely(updating, decision)
        switches, feasible = bool(server.method.switches), bool(decision.feasible)
        losses = {place: decision.local_loss.of(place) for place in updating}
        records = {i: {wire.DECISION: encode_decision(loss, switches, feasible)} for i, loss in losses.items()}
        return server.aggregate(played, self._request(wire.UPDATE, records, self._parse_direction))

    def _sum_securely(self, places: list[int], decision: Decision) -> Update | None:
        """Return the sum of the directions of all clients; None, with a warning, if there is none."""
        settings: Any = self._settings
        specs = wire.array_specs(self._server.state.params)
        names = [self._roster.names[self.participants[place]] for place in places]
        reports = [wire.check_reply(self._replies[wire.REPORT][place]) for place in places]
        try:
            terms = make_terms(names, reports, np.asarray(decision.weights), decision.local_loss)
            terms.check_shares(settings.secure.min_clients)
            records = {place: {TERMS: ConfigRecord(terms._asdict())} for place in places}
            masked = self._request(
                wire.UPDATE, records, partial(parse_masked, size=count_parameters(self._server.state.params))
            )
            total = sum_directions(list(masked.values()), len(names), settings.clip_norm, specs)
        except wire.InvalidMessageError as reason:
            logger.warning("round %d: directions are not aggregated: %s", self._server.done, reason)
            self._clients.events.record("not aggregated", str(reason))
            return None
        return Update(self._server.as_params(total))

    def observe(self, reports: Reports, full: ClientSummary) -> Observed:
        """Return what only a network has of the round; ``full`` has F and G over all clients, if evaluated."""
        costs = np.array([self._roster.cost(index) for index in self.participants], int).reshape(-1, 2)
        costs[~np.asarray(reports.mask)] = 0
        iterates = 1 if reports.earlier is None else 1 + ~np.isnan(np.asarray(reports.earlier[0]))
        rows = int((iterates * costs[:, 0]).sum()), int(costs[:, 1].sum())
        updates = [reply for reply in self._replies.get(wire.UPDATE, {}).values() if isinstance(reply, Message)]
        up = sum(count_bytes(update.content.get(wire.DIRECTION)) for update in updates)
        traffic = None if self._server.compression is None else (up, self._held.down)
        return Observed(self.participants, self.outcomes, full, rows, traffic, self.epsilon)

    def record_silence(self) -> None:
        """Record at the roster which clients were silent in an exchange of this round, and which replied."""
        replies = [(self.participants[i], reply) for each in self._replies.values() for i, reply in each.items()]
        present = {client for client, reply in replies if isinstance(reply, Message)}
        silent = {client for client, reply in replies if isinstance(reply, wire.NoReply) and reply.silent}
        self._roster.finish_round(self._server.done, silent, present)

    def _send(self, kind: str, contents: Mapping[int, RecordDict], timeout: float) -> dict[int, wire.Reply]:
        """Send a message to each of some participants, by place, and return their replies."""
        nodes, group = self._roster.connected, str(self._server.done)
        messages = {
            place: Message(content, nodes[self.participants[place]], kind, ttl=timeout, group_id=group)
            for place, content in contents.items()
            if self.participants[place] in nodes  # others have left since the round began
        }
        replies: dict[int, wire.Reply] = dict.fromkeys(contents, wire.NoReply("it was not connected"))
        sent = wire.exchange(self._roster.grid, list(messages.values()), timeout)
        return replies | dict(zip(messages, sent, strict=True))

    def _request(self, kind: str, records: Mapping[int, dict[str, Any]], parse: Parse) -> dict[int, Any]:
        """Send records by place, with the parameters to clients that need them; return the parsed usable replies."""
        settings, server, held, with_params = self._settings, self._server, self._held, kind == wire.REPORT
        timeout = settings.report_timeout if with_params else settings.update_timeout
        sent: dict[str, Any] = {
            "round": server.done,
            "seed": settings.seed,
            "local_steps": settings.local_steps,
            "step_size": server.local_step_size,
            "switches": bool(server.method.switches),
        }
        if settings.secure is not None:
            sent[MASKED] = True
        if settings.clip_norm is not None:
            sent["clip_norm"] = float(settings.clip_norm)
        replies, places = dict[int, wire.Reply](), list(records)
        for _ in range(2):
            contents = {place: RecordDict(records[place]) for place in places}
            if with_params:
                for place, content in contents.items():
                    content.update(held.content(self.participants[place], sent, server.restart_begin))
            replies |= self._send(kind, contents, timeout)
            lacking = [place for place in places if needs_params(replies[place])]
            for place in places if with_params else lacking:
                held.record_reply(self.participants[place], replies[place])
            places, with_params = lacking, True
            if not places:
                break
        self._replies[kind] = replies
        results = {place: self._read(place, kind, reply, parse) for place, reply in replies.items()}
        return {place: result for place, result in results.items() if result is not None}

    def _read(self, place: int, kind: str, reply: wire.Reply, parse: Parse) -> Any:
        """Return what ``parse`` makes of a reply, or None if it is not usable; record the client's outcome."""
        name = self._roster.names[self.participants[place]]
        missing, invalid = FAILURES[kind]
        try:
            content = wire.check_reply(reply)
            result, epsilon = parse(content), self._clients.privacy.read(name, content)
        except wire.NoReply as failure:
            outcome, what, why = missing, "lost", f"{missing.label}: {failure}"
        except wire.RefusedError as refusal:
            outcome, what, why = ClientOutcome.REFUSED, "refused", refusal.reason
        except wire.InvalidMessageError as error:
            outcome, what, why = invalid, "rejected", f"{invalid.label}: {error}"
        else:
            self.outcomes[place] = ClientOutcome.COUNTED
            if epsilon is not None:
                self.epsilon[place] = epsilon
            return result
        self.outcomes[place] = outcome
        wire.log_event(self._clients.events, what, why, client=name)
        return None

    def _parse_report(self, content: RecordDict) -> tuple[wire.Values, wire.Values | None]:
        """Return a client's report, and that of its batch at the previous iterate if it is wanted and present."""
        if self._settings.secure is not None:
            parse_key(content)  # raises for a client that could not take part in the second exchange
        has_earlier = self._held.reports_twice and wire.PREVIOUS_VALUES in content
        earlier = self._clients.read_values(content, wire.PREVIOUS_VALUES) if has_earlier else None
        return self._clients.read_values(content), earlier

    def _parse_direction(self, content: RecordDict) -> wire.Arrays:
        record, clip_norm, compression = content.get(wire.DIRECTION), self._settings.clip_norm, self._server.compression
        specs = wire.array_specs(self._server.state.params)
        if compression is None or compression.up is None:
            direction = wire.parse_arrays(record, specs)
        else:
            direction = parse_direction(record, compression.up, specs)
        return direction if clip_norm is None else clip_direction(direction, clip_norm)
