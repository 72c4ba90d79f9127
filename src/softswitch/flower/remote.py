"""Requests to all clients outside of the rounds: evaluation and certification of an answer."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from softswitch.certification.intervals import ErrorLevels
from softswitch.certification.multiple_testing import build_certificate
from softswitch.flower import messages as wire
from softswitch.flower.exchange import NoReply, PendingMessages, poll_intervals
from softswitch.flower.replies import PrivacyReports, check_statistics, pool_statistics
from softswitch.flower.reported_intervals import IntervalLimits, ValueLimits, read_intervals
from softswitch.flower.roster import Roster
from softswitch.flower.settings import StrategySettings
from softswitch.oracles.base import Evaluation
from softswitch.problem.parameters import Params
from softswitch.problem.ranges import Range, checked_range, each_range, ends, has_two_values
from softswitch.results.certificate import Certificate, Interval
from softswitch.results.events import EventLog
from softswitch.support import checks

logger = logging.getLogger("softswitch.flower")
ATTEMPTS = 3
"""Number of times that a client is asked if it fails for now."""


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
        error = 1 - checks.probability("confidence", confidence)
        functions = 1 + self._constraints
        ranges = [checked_range("objective_range", objective_range), *each_range(constraint_range, functions - 1)]
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
                "low": [math.nan if bounds is None else ends(bounds)[0] for bounds in ranges],
                "high": [math.nan if bounds is None else ends(bounds)[1] for bounds in ranges],
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
