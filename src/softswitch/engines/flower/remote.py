"""All clients over the network, asked outside of the rounds: how good is an answer, and with what certainty."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from softswitch.clients.oracle import Judged
from softswitch.engines.flower import wire
from softswitch.engines.flower.exchange import Lost, exchange
from softswitch.engines.flower.reading import put_together
from softswitch.engines.flower.roster import Roster
from softswitch.engines.flower.strategy_settings import StrategySettings
from softswitch.guarantees.unseen_rows.intervals import ErrorLevels
from softswitch.guarantees.unseen_rows.step_up import certificate_of
from softswitch.problem.parameters import Params
from softswitch.problem.ranges import Range, checked_range, each_range, ends, has_two_values
from softswitch.results.certificate import Certificate, Interval, Method
from softswitch.support import checks

logger = logging.getLogger("softswitch.flower")
ATTEMPTS = 3
"""A client that does not answer is asked so many times before it is given up."""


class RemoteClients:
    """The clients behind a grid.

    Attributes:
        participants: m, how many took part in the last round.
        steadied_by: what makes reports less noisy.
        rows_a_report: how many rows a report rests on, which is not known here.
    """

    steadied_by = "batch_size"
    rows_a_report: int | None = None

    def __init__(self, grid: Grid, roster: Roster, settings: StrategySettings) -> None:
        self._grid = grid
        self._roster = roster
        self._local_steps = settings.local_steps
        self._timeout = settings.report_timeout
        self._wait = settings.wait
        self._largest = settings.largest_number
        self._pooled = settings.pooled
        self.participants = 1

    def rows(self, index: int) -> int:
        """How many rows a client trains on."""
        return self._roster.rows(index)

    @property
    def stands_in(self) -> bool:
        """Whether the constraint moves in jumps, and clients descend on something else in its place."""
        return self._roster.stands_in

    def cost(self, rows_held: Any) -> tuple[Any, Any]:
        """How many rows a round evaluates values on, and how many it evaluates gradients on."""
        return rows_held[:, 0], self._local_steps * rows_held[:, 1]

    def judge(self, params: Params, *, patiently: bool = True) -> Judged:
        """f_i and g_i of every client on all of its rows; NaN for one that does not answer.

        ``patiently``: wait for those who are not connected, and ask again those who do not answer.
        """
        constraints = self._roster.constraints or 1
        many = len(self._roster.names)
        objective, constraint = np.full(many, np.nan), np.full((many, constraints), np.nan)
        sums, content = [], RecordDict({wire.PARAMS: wire.to_record(params)})

        def take(index: int, answer: Message) -> None:
            values = wire.checked_values(answer.content, constraints, self._pooled is not None, self._largest)
            objective[index], constraint[index] = values.objective, values.constraint
            client = self._roster.clients[index]
            if values.statistics is not None and client is not None:
                sums.append(client.rows * np.asarray(values.statistics))

        self._ask_all(wire.JUDGE, content, take, patiently=patiently)
        together = None
        if self._pooled is not None and sums:
            together = put_together(self._pooled, sums)
        return Judged(objective, constraint, together)

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

        Each client computes its own intervals and tells only those. The arguments are those of ``softswitch.certify``.
        """
        error = 1 - checks.probability("confidence", confidence)
        functions = 1 + (self._roster.constraints or 1)
        ranges = [checked_range("objective_range", objective_range), *each_range(constraint_range, functions - 1)]
        held_out = [client is not None and client.held_out_rows > 0 for client in self._roster.clients]
        if not any(held_out):
            return None
        who = np.flatnonzero(held_out).tolist()
        levels = ErrorLevels(error / len(who), error, tolerance)
        settings = ConfigRecord(
            {
                "error": levels.joint,
                "alone": levels.alone,
                "tolerance": levels.tolerance,
                "low": [math.nan if bounds is None else ends(bounds)[0] for bounds in ranges],
                "high": [math.nan if bounds is None else ends(bounds)[1] for bounds in ranges],
                "two_values": [float(has_two_values(bounds)) for bounds in ranges],
            }
        )
        content = RecordDict({wire.PARAMS: wire.to_record(params), wire.SETTINGS: settings})
        found: dict[int, list[Interval]] = {}

        def take(index: int, answer: Message) -> None:
            found[index] = checked_intervals(answer.content, functions)

        self._ask_all(wire.CERTIFY, content, take, who)
        told = [(name, found.get(i)) for i, name in enumerate(self._roster.names)]
        return certificate_of(told, confidence, levels, ranges)

    def _ask_all(
        self,
        kind: str,
        content: RecordDict,
        take: Callable[[int, Message], None],
        who: list[int] | None = None,
        *,
        patiently: bool = True,
    ) -> None:
        """Ask every client; whoever does not answer is asked again."""
        left = list(range(len(self._roster.names))) if who is None else list(who)
        for attempt in range(ATTEMPTS if patiently else 1):
            wait = self._wait if patiently and not attempt else 0.0
            self._roster.look(self._grid, len(self._roster.names), wait)
            nodes = self._roster.connected
            asked = [index for index in left if index in nodes]
            messages = [Message(content, nodes[index], kind, ttl=self._timeout, group_id=kind) for index in asked]
            for index, answer in zip(asked, exchange(self._grid, messages, self._timeout), strict=True):
                name = self._roster.names[index]
                try:
                    if isinstance(answer, Lost):
                        raise answer
                    if (why := wire.refused(answer.content)) is not None:
                        raise wire.Unacceptable(f"it refused: {why}")
                    take(index, answer)
                    left.remove(index)
                except Lost as lost:
                    logger.warning("client %r did not answer (%s): %s", name, kind, lost)
                    if lost.for_good:
                        left.remove(index)
                except wire.Unacceptable as error:
                    logger.warning("client %r's answer is rejected (%s): %s", name, kind, error)
                    left.remove(index)
            if not left:
                return


def checked_intervals(content: RecordDict, functions: int) -> list[Interval]:
    """Intervals that a client sent, or raise."""
    told = content.get(wire.INTERVALS)
    if not isinstance(told, MetricRecord):
        raise wire.Unacceptable("there are no intervals")
    plain = {"alone": math.nan, "meets_at": 1.0, "violates_at": 1.0, "method": float(list(Method).index(Method.NORMAL))}
    names = ("estimate", "lower", "upper", "rows", "deviation", "approximate", *plain)
    columns = {
        name: [plain[name]] * functions if name in plain and name not in told else wire.numbers(told, name)
        for name in names
    }
    if {len(column) for column in columns.values()} != {functions}:
        raise wire.Unacceptable(f"there are not {functions} intervals")
    found = []
    for j in range(functions):
        row = {name: columns[name][j] for name in names}
        ordered = row["lower"] <= row["upper"]
        inside = math.isnan(row["estimate"]) or row["lower"] <= row["estimate"] <= row["upper"]
        counted = row["rows"] == math.floor(row["rows"]) if 0 <= row["rows"] < 2**53 else False
        endless = math.isinf(row["lower"]) and math.isinf(row["upper"])
        chances = all(0 <= row[name] <= 1 for name in ("meets_at", "violates_at"))
        alone = math.isnan(row["alone"]) or row["alone"] <= row["upper"]
        made = row["method"] in range(len(Method))
        if not (chances and alone and made):
            raise wire.Unacceptable(f"{row} is not an interval")
        if not (ordered and inside and counted and row["deviation"] >= 0 and (row["rows"] >= 1 or endless)):
            raise wire.Unacceptable(f"{row} is not an interval")
        found.append(
            Interval(
                row["estimate"],
                row["lower"],
                row["upper"],
                int(row["rows"]),
                row["deviation"],
                approximate=row["approximate"] != 0,
                alone=row["alone"],
                meets_at=row["meets_at"],
                violates_at=row["violates_at"],
                method=list(Method)[int(row["method"])],
            )
        )
    return found
