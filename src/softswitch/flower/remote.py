"""The clients as the server sees them: evaluation and certification of an answer."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from softswitch.certification.certify import build_certificate
from softswitch.certification.intervals import ErrorLevels
from softswitch.flower import messages as wire
from softswitch.flower.exchange import NoReply, Reply, check_reply, exchange, log_event
from softswitch.flower.intervals import check_in_range, read_intervals
from softswitch.flower.privacy_reports import PrivacyReports
from softswitch.flower.roster import Roster
from softswitch.flower.settings import StrategySettings
from softswitch.oracles.base import Evaluation
from softswitch.problem.parameters import Params
from softswitch.problem.ranges import endpoints, function_ranges, has_two_values
from softswitch.results.certificate import Certificate, Interval
from softswitch.results.events import EventLog
from softswitch.support import checks

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
        self._ranges = function_ranges(settings.objective_range, settings.constraint_range, self.constraints)
        self.participants = 1
        self.privacy = PrivacyReports(1 + self.constraints)

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
        for value, bounds in zip((values.objective, *values.constraint), self._ranges, strict=True):
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

        self._ask_all(wire.EVALUATE, RecordDict({wire.PARAMS: wire.to_record(params)}), read, patient=patient)
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
        roster, ranges = self.roster, self._ranges
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

        self._ask_all(wire.CERTIFY, content, read, set(held_out_rows))
        reported = [(name, intervals.get(i)) for i, name in enumerate(roster.names)]
        return self.privacy.add_to_certificate(build_certificate(reported, confidence, levels, ranges))

    def _ask_all(
        self, kind: str, content: RecordDict, read: _Read, indices: set[int] | None = None, *, patient: bool = True
    ) -> None:
        """Ask all clients, or some, within one time limit.

        If ``patient``, wait before for those that are not connected, repeat requests that fail for now, and ask clients
        that were silent in rounds.
        """
        roster, settings = self.roster, self.settings
        roster.refresh(self._grid, len(roster.names) if patient else 0, settings.wait if patient else 0.0)
        nodes, left = roster.connected, set(range(len(roster.names))) if indices is None else indices
        for i in sorted(left - set(nodes)) if patient else ():
            log_event(self.events, "lost", f"it was not connected ({kind})", client=roster.names[i])
        left &= set(nodes if patient else roster.available(self.events.round or 0, 0))
        deadline = time.monotonic() + settings.report_timeout
        for _ in range(ATTEMPTS if patient else 1):
            timeout = deadline - time.monotonic()
            if not left or timeout <= 0:
                break
            messages = {i: Message(content, nodes[i], kind, ttl=timeout, group_id=kind) for i in sorted(left)}
            replies = zip(messages, exchange(self._grid, list(messages.values()), timeout), strict=True)
            left -= {i for i, reply in replies if self._is_done(i, reply, kind, read)}

    def _is_done(self, index: int, reply: Reply, kind: str, read: _Read) -> bool:
        """Read a reply; return True if it was used or rejected for good, False if the client must be asked again."""
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
