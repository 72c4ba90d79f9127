"""Who is there: which node is which client, and who has been met."""

from __future__ import annotations

import logging
import re
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from softswitch.engines.flower import wire
from softswitch.engines.flower.exchange import Lost, exchange

logger = logging.getLogger("softswitch.flower")
PAUSE = 1.0
"""Seconds from one look for new nodes to the next."""
RAREST = 64
"""A node that stays silent is asked again after at most so many looks."""
ROWS = ("rows", "held_out_rows", "value_rows", "gradient_rows")
MOST_ROWS, MOST_CONSTRAINTS, MOST_STATISTICS = 2**40, 10_000, 100_000
"""What a client may say of itself, at most."""


@dataclass(frozen=True)
class Client:
    """What a client told of itself; see ``LocalOracle``."""

    name: str
    rows: int
    held_out_rows: int
    value_rows: int
    gradient_rows: int
    constraints: int
    statistics: int = 0
    stands_in: bool = False


class Roster:
    """The clients met so far, in a fixed order, and the nodes at which they can be reached now.

    A client is its name: a node that returns with another id is the same client again. Clients met together are in the
    order of their names, numbers by their size; later ones follow. Two connected nodes of one name are a mistake: the
    second one is passed over.

    Attributes:
        clients: all that were met, in the order of their indices; None for one known by its name only.
        names: their labels.
    """

    def __init__(self, timeout: float, names: Iterable[str] = (), constraints: int | None = None) -> None:
        self._timeout = timeout
        self._constraints = constraints
        self._statistics = 0
        self.names: list[str] = list(names)
        self.clients: list[Client | None] = [None] * len(self.names)
        self._nodes: dict[int, int] = {}  # node -> index
        self._turned_away: set[int] = set()
        self._silent: dict[int, tuple[int, int]] = {}  # node -> how often it was silent, and when to ask it again
        self._looks = 0

    @property
    def connected(self) -> dict[int, int]:
        """The node of every client that is connected, by its index, in order."""
        return dict(sorted((index, node) for node, index in self._nodes.items()))

    @property
    def constraints(self) -> int | None:
        """How many constraints a client has; None as long as nobody was met."""
        return self._constraints

    @property
    def statistics(self) -> int:
        """How many additive statistics a client's constraint has; 0 as long as nobody has told of any."""
        return self._statistics

    def rows(self, index: int) -> int:
        """How many rows a client trains on; 0 where it was not met."""
        client = self.clients[index]
        return 0 if client is None else client.rows

    @property
    def tells_all(self) -> bool:
        """Whether all clients met so far report on all of their rows."""
        return all(client is None or client.value_rows >= client.rows for client in self.clients)

    @property
    def stands_in(self) -> bool:
        """Whether all clients met so far descend on something else in place of their constraints."""
        met = [client for client in self.clients if client is not None]
        return bool(met) and all(client.stands_in for client in met)

    def cost(self, index: int) -> tuple[int, int]:
        """On how many rows it computes a report, and on how many a gradient."""
        client = self.clients[index]
        return (0, 0) if client is None else (client.value_rows, client.gradient_rows)

    def recall(self, names: Sequence[str]) -> None:
        """Take up the order of an earlier process; clients that it had not met come after."""
        met = dict(zip(self.names, self.clients, strict=True))
        at = {node: self.names[index] for node, index in self._nodes.items()}
        self.names = [*names, *(name for name in met if name not in names)]
        self.clients = [met.get(name) for name in self.names]
        self._nodes = {node: self.names.index(name) for node, name in at.items()}

    def look(self, grid: Grid, wanted: int, limit: float) -> None:
        """See who is connected; wait up to ``limit`` seconds for at least ``wanted`` clients."""
        until = time.monotonic() + limit
        while True:
            self._meet(grid)
            if len(self._nodes) >= wanted or time.monotonic() >= until:
                return
            time.sleep(min(PAUSE, max(0.0, until - time.monotonic())))

    def _meet(self, grid: Grid) -> None:
        there = set(grid.get_node_ids())
        for node in set(self._nodes) - there:
            logger.warning("client %r has left", self.names[self._nodes.pop(node)])
            self._turned_away.clear()  # its place may be another node's now
        self._turned_away &= there
        self._looks += 1
        later = {node for node, (_, when) in self._silent.items() if when > self._looks}
        new = sorted(there - set(self._nodes) - self._turned_away - later)
        messages = [Message(RecordDict(), node, wire.HELLO, ttl=self._timeout, group_id="hello") for node in new]
        told = []
        for node, answer in zip(new, exchange(grid, messages, self._timeout), strict=True):
            try:
                told.append((node, _introduced(answer)))
                self._silent.pop(node, None)
            except Lost as lost:
                times = self._silent.get(node, (0, 0))[0] + 1
                self._silent[node] = times, self._looks + min(2**times, RAREST)  # asked again, ever more rarely
                logger.warning("node %d did not introduce itself: %s", node, lost)
            except wire.Unacceptable as error:
                logger.warning("node %d is turned away: %s", node, error)
                self._turned_away.add(node)
        if told and self._constraints is None:  # what most of those first met have
            self._constraints = statistics.mode(client.constraints for _, client in told)
        counts = [client.statistics for _, client in told if client.statistics]
        if counts and not self._statistics:
            self._statistics = statistics.mode(counts)
        for node, client in sorted(told, key=lambda pair: _natural(pair[1].name)):
            self._take_in(node, client)

    def _take_in(self, node: int, client: Client) -> None:
        for what, has, others in (
            ("constraints", client.constraints, self.constraints),
            ("statistics", client.statistics, client.statistics and self.statistics),  # 0: it does not tell
        ):
            if has != others:
                logger.warning("client %r is turned away: it has %d %s, the others %d", client.name, has, what, others)
                self._turned_away.add(node)
                return
        if client.name in self.names:
            index = self.names.index(client.name)
            if index in self._nodes.values():
                logger.warning("node %d is turned away: client %r is connected already", node, client.name)
                self._turned_away.add(node)
                return
            self.clients[index] = client
        else:
            index = len(self.names)
            self.names.append(client.name)
            self.clients.append(client)
        self._nodes[node] = index


def _introduced(answer: Message | Lost) -> Client:
    if isinstance(answer, Lost):
        raise answer
    if (why := wire.refused(answer.content)) is not None:
        raise Lost(f"it refused: {why}")
    about = answer.content.get(wire.ABOUT)
    if not isinstance(about, ConfigRecord):
        raise wire.Unacceptable("it does not run a softswitch client")
    rows = {name: wire.whole(about, name, MOST_ROWS) for name in ROWS}
    constraints = wire.whole(about, "constraints", MOST_CONSTRAINTS)
    if not constraints:
        raise wire.Unacceptable("it has no constraint")
    counted = wire.whole(about, "statistics", MOST_STATISTICS) if "statistics" in about else 0
    stands_in = about.get("stands_in") is True
    name = wire.word(about, "name")
    return Client(name, constraints=constraints, statistics=counted, stands_in=stands_in, **rows)


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Sorts "site 10" after "site 9"."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]
