"""All clients over the network, asked outside of the rounds: how good is an answer, and with what certainty."""

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
from softswitch.flower.exchange import Lost, Outstanding, pauses
from softswitch.flower.privacy_reports import ToldSpending
from softswitch.flower.replies import put_together
from softswitch.flower.reported_intervals import IntervalLimits, ValueLimits, checked_intervals
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
"""A client that does not answer is asked so many times before it is given up."""


class RemoteClients:
    """The clients behind a grid.

    Attributes:
        participants: m, how many took part in the last round.
        noise_setting: what makes reports less noisy.
        report_batch_size: how many rows a report rests on, which is not known here.
        spent: what clients that keep their rows private told of their budgets.
    """

    noise_setting = "batch_size"
    report_batch_size: int | None = None

    def __init__(self, grid: Grid, roster: Roster, settings: StrategySettings, events: EventLog | None = None) -> None:
        self._events = EventLog() if events is None else events
        self._ranges = settings.objective_range, settings.constraint_range
        self._limits = ValueLimits(*self._ranges, settings.statistics_range, roster.constraints or 1)
        self._grid = grid
        self._roster = roster
        self._local_steps = settings.local_steps
        self._timeout = settings.report_timeout
        self._wait = settings.wait
        self._largest = settings.largest_number
        self._pooled = settings.pooled
        self.participants = 1
        self.spent = ToldSpending(1 + (roster.constraints or 1))

    def rows(self, index: int) -> int:
        """How many rows a client trains on, by its place among those that are not excluded."""
        return self._roster.rows(self._roster.kept[index])

    @property
    def has_surrogate(self) -> bool:
        """Whether the constraint moves in jumps, and clients descend on something else in its place."""
        return self._roster.has_surrogate

    def cost(self, row_count: Any) -> tuple[Any, Any]:
        """How many rows a round evaluates values on, and how many it evaluates gradients on."""
        return row_count[:, 0], self._local_steps * row_count[:, 1]

    def evaluate_params(self, params: Params) -> Evaluation:
        """f_i and g_i of every client that is not excluded, on all of its rows; NaN for one that does not answer.

        Those who are not connected are waited for, and those who fail for now asked again.
        """
        every, kept = self.judge_now(params, patiently=True), self._roster.kept
        return Evaluation(every.objective[kept], every.constraint[kept], every.pooled)

    def judge_now(self, params: Params, *, patiently: bool = False) -> Evaluation:
        """The same of everyone ever met, by its index: NaN for those excluded, and for those not there now."""
        constraints = self._roster.constraints or 1
        many = len(self._roster.names)
        objective, constraint = np.full(many, np.nan), np.full((many, constraints), np.nan)
        sums, content = [], RecordDict({wire.PARAMS: wire.to_record(params)})

        def take(index: int, answer: Message) -> None:
            values = wire.parse_values(answer.content, constraints, self._pooled is not None, self._largest)
            self._limits.check(values)
            known = self._roster.statistics
            if values.statistics is not None and len(values.statistics) != (known or len(values.statistics)):
                raise wire.InvalidMessageError(
                    f"it has {len(values.statistics)} statistics, where {known} are expected"
                )
            objective[index], constraint[index] = values.objective, values.constraint
            client = self._roster.clients[index]
            if values.statistics is not None and client is not None:
                sums.append(client.rows * np.asarray(values.statistics))

        self._ask_all(wire.EVALUATE, content, take, patiently=patiently)
        together = None
        if self._pooled is not None and sums:
            together = put_together(self._pooled, sums)
        return Evaluation(objective, constraint, together)

    def certify(
        self,
        params: Params,
        tolerance: float,
        confidence: float = 0.95,
        *,
        objective_range: Range | None = None,
        constraint_range: Any = None,
    ) -> Certificate | None:
        """Bound every client's objective and constraint from rows that it held out; None where nobody did.

        Each client computes its own intervals and tells only those. The arguments are those of ``softswitch.certify``;
        ranges that are left out are those of the run's settings.
        """
        objective_range = self._ranges[0] if objective_range is None else objective_range
        constraint_range = self._ranges[1] if constraint_range is None else constraint_range
        error = 1 - checks.probability("confidence", confidence)
        functions = 1 + (self._roster.constraints or 1)
        ranges = [checked_range("objective_range", objective_range), *each_range(constraint_range, functions - 1)]
        held_out = {
            i: client.held_out_rows for i in self._roster.kept if (client := self._roster.clients[i]) is not None
        }
        who = [i for i, rows in held_out.items() if rows > 0]
        if not who:
            return None
        levels = ErrorLevels(error / len(who), error, tolerance)
        settings = ConfigRecord(
            {
                "error": levels.joint,
                "marginal": levels.marginal,
                "tolerance": levels.tolerance,
                "low": [math.nan if bounds is None else ends(bounds)[0] for bounds in ranges],
                "high": [math.nan if bounds is None else ends(bounds)[1] for bounds in ranges],
                "two_values": [float(has_two_values(bounds)) for bounds in ranges],
            }
        )
        content = RecordDict({wire.PARAMS: wire.to_record(params), wire.SETTINGS: settings})
        found: dict[int, list[Interval]] = {}

        def take(index: int, answer: Message) -> None:
            limits = IntervalLimits(held_out[index], levels, ranges, self._largest)
            found[index] = checked_intervals(answer.content, functions, limits)

        self._ask_all(wire.CERTIFY, content, take, who)
        told = [(self._roster.names[i], found.get(i)) for i in self._roster.kept]
        return self.spent.in_certificate(build_certificate(told, confidence, levels, ranges))

    def _ask_all(
        self,
        kind: str,
        content: RecordDict,
        take: Callable[[int, Message], None],
        who: list[int] | None = None,
        *,
        patiently: bool = True,
    ) -> None:
        """Ask every client, all within one time limit; whoever comes back in this time, or fails for now, is asked too.

        ``patiently``: wait for those who are not connected, and ask also those who stayed silent of late.
        """
        self._roster.look(self._grid, 0, 0.0)
        left = set(self._roster.kept if who is None else who)
        if not patiently:
            left &= set(self._roster.awake(self._events.round or 0, 0))
        tries, most = Counter[int](), ATTEMPTS if patiently else 1
        outstanding, began = Outstanding(self._grid, self._timeout), time.monotonic()
        until = began + self._timeout
        expected = min(until, began + (self._wait if patiently else 0.0))
        for pause in pauses():
            nodes, now = self._roster.connected, time.monotonic()
            may_ask = now < until or not tries  # those who are there are asked, however long it took to see them
            ready = [i for i in sorted(left - outstanding.numbers) if i in nodes and tries[i] < most and may_ask]
            tries.update(ready)
            messages = {i: Message(content, nodes[i], kind, ttl=self._timeout, group_id=kind) for i in ready}
            outstanding.send(messages, max(0.0, until - now))
            left -= {i for i, answer in outstanding.hear() if self._is_done(i, answer, kind, take)}
            again = any(i in nodes and tries[i] < most for i in left - outstanding.numbers)
            comes = now < expected and any(i not in nodes for i in left)
            if now >= until or not (outstanding or again or comes):
                break
            time.sleep(min(pause, max(0.0, until - now)))
            self._roster.look(self._grid, 0, 0.0)
        for i in sorted(outstanding.numbers):
            self._is_done(i, Lost(f"no answer within {self._timeout:g} s"), kind, take)
        for i in sorted(i for i in left if not tries[i]):
            logger.warning("client %r was not there (%s)", self._roster.names[i], kind)
            self._events.record("lost", f"it was not there ({kind})", client=self._roster.names[i])

    def _is_done(self, index: int, answer: Message | Lost, kind: str, take: Callable[[int, Message], None]) -> bool:
        """Take an answer; whether there is nothing more to ask this client."""
        name = self._roster.names[index]
        try:
            if isinstance(answer, Lost):
                raise answer
            if (why := wire.read_refusal(answer.content)) is not None:
                raise wire.InvalidMessageError(f"it refused: {why}")
            take(index, answer)
            self.spent.note(name, answer.content)
        except Lost as lost:
            logger.warning("client %r did not answer (%s): %s", name, kind, lost)
            self._events.record("lost", f"{kind}: {lost}", client=name)
            return lost.for_good
        except wire.InvalidMessageError as error:
            logger.warning("client %r's answer is rejected (%s): %s", name, kind, error)
            self._events.record("rejected", f"{kind}: {error}", client=name)
        return True
