"""The clients as the server sees them: evaluation and certification of an answer."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from softswitch.certification.certify import build_certificate
from softswitch.certification.intervals import ErrorLevels
from softswitch.flower import messages as wire
from softswitch.flower.exchange import NoReply, Reply, check_reply, exchange, log_event
from softswitch.flower.intervals import check_in_range, read_intervals
from softswitch.flower.membership import confusable_key
from softswitch.flower.privacy_reports import PrivacyReports
from softswitch.flower.roster import Roster
from softswitch.flower.settings import StrategySettings
from softswitch.oracles.base import Evaluation
from softswitch.problem.parameters import Params
from softswitch.problem.ranges import endpoints, function_ranges, has_two_values
from softswitch.results.certificate import Certificate, Interval
from softswitch.results.events import EventLog
from softswitch.results.status import Diagnostic, DiagnosticCode
from softswitch.support import checks
from softswitch.support.text import join_first

logger = logging.getLogger("softswitch.flower")
_Read = Callable[[int, RecordDict], None]
ATTEMPTS = 3
"""Number of times that a client is asked if it fails for now."""


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
