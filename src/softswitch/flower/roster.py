"""Who is there: which node is which client, and who has been met."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from softswitch.flower import messages as wire
from softswitch.flower.exchange import Lost, Outstanding, pauses
from softswitch.flower.membership import (
    ClientInfo,
    confusable_key,
    encode_key,
    parse_registration,
    registration_request,
)
from softswitch.flower.settings import StrategySettings
from softswitch.results.events import EventLog

RAREST = 64
"""Whoever stays silent is asked again after at most so many rounds, or looks."""


class Silence:
    """How often each stayed silent in a row, and when it is to be asked again.

    Args:
        allowed: so many times in a row are let pass.
    """

    def __init__(self, allowed: int = 0) -> None:
        self._allowed = allowed
        self._times: dict[int, int] = {}
        self._again: dict[int, int] = {}

    def note(self, who: int, now: int) -> int:
        """It stayed silent; the number of rounds (or looks) from now on until it is asked again, 0 for the next one.

        Args:
            who: its number.
            now: the present round, or look.
        """
        self._times[who] = self._times.get(who, 0) + 1
        beyond = self._times[who] - self._allowed
        if beyond <= 0:
            return 0
        rest = min(2**beyond, RAREST)
        self._again[who] = now + rest
        return rest

    def times(self, who: int) -> int:
        """How often it stayed silent in a row.

        Args:
            who: its number.
        """
        return self._times.get(who, 0)

    def answered(self, who: int) -> bool:
        """It answered, and is asked as before; whether it had been asked more rarely.

        Args:
            who: its number.
        """
        self._times.pop(who, None)
        return self._again.pop(who, None) is not None

    def rests(self, who: int, now: int) -> bool:
        """Whether it is not to be asked yet.

        Args:
            who: its number.
            now: the present round, or look.
        """
        return self._again.get(who, now) > now


logger = logging.getLogger("softswitch.flower")
SILENT_ROUNDS = 2
"""So many rounds in a row may a client stay silent, and is asked in the next one all the same."""


class Roster:
    """The clients met so far, in a fixed order, and the nodes at which they can be reached now.

    A client is its name: a node that returns with another id is the same client again. Where there is a list of clients
    with their keys, a node is the client that its key says, and whoever is not in the list is turned away. Clients met
    together are in the order of their names, numbers by their size; later ones follow. Of two connected nodes of one
    key the later one counts; without keys two nodes of one name are a mistake, and the second one is turned away unless
    the first stays silent.

    Attributes:
        clients: all that were met, in the order of their indices; None for one known by its name only.
        names: their labels.
    """

    def __init__(self, settings: StrategySettings, events: EventLog | None = None) -> None:
        self._timeout = settings.report_timeout
        self._largest_rows = settings.largest_rows
        self._enough_votes = max(settings.min_clients, len(settings.expected))
        self._constraints, self._statistics = settings.constraints, settings.statistics or 0
        self._fixed = {what for what in ("constraints", "statistics") if getattr(settings, what) is not None}
        self._expected = set(settings.expected)
        self._listed = settings.listed
        self._owners = {listed.identity: name for name, listed in self._listed.items()}
        self._excluded = {confusable_key(name) for name in settings.exclude}
        self._left_out = {confusable_key(name) for name in (*settings.names, *settings.clients)} & self._excluded
        self._events = EventLog() if events is None else events
        self.names: list[str] = list(settings.expected)
        self.clients: list[ClientInfo | None] = [None] * len(self.names)
        self._places = {confusable_key(name): index for index, name in enumerate(self.names)}
        self._nodes: dict[int, int] = {}  # node -> index
        self._node_of: dict[int, int] = {}  # and the other way round
        self._turned_away: dict[int, str] = {}  # node -> the name of a client that it is another node of, or ""
        self._voters: dict[int, ClientInfo] = {}  # node -> what it told, before it is known what most clients have
        self._contenders: dict[int, ClientInfo] = {}  # node -> what it told, where its name is another node's
        self._unlike: dict[int, ClientInfo] = {}  # node -> what it told, where that is not what the others have
        self._since: dict[int, tuple[str, int]] = {}  # node -> when it was registered
        self._greetings: Outstanding | None = None
        self._overdue: set[int] = set()  # nodes whose greeting was waited for once
        self._quiet_nodes, self._looks = Silence(), 0
        self._quiet_clients = Silence(allowed=SILENT_ROUNDS)

    @property
    def connected(self) -> dict[int, int]:
        """The node of every client that is connected, by its index, in order."""
        return dict(sorted(self._node_of.items()))

    @property
    def kept(self) -> list[int]:
        """The indices of all clients but those that are excluded."""
        if not self._excluded:
            return list(range(len(self.names)))
        return [index for index, name in enumerate(self.names) if confusable_key(name) not in self._excluded]

    @property
    def constraints(self) -> int | None:
        """How many constraints a client has; None as long as nobody was met."""
        return self._constraints

    @property
    def statistics(self) -> int:
        """How many additive statistics a client's constraint has; 0 as long as nobody has told of any."""
        return self._statistics

    @property
    def outvoted(self) -> bool:
        """Whether more clients were turned away for what the others do not have than there are others."""
        away = [client for client in self._unlike.values() if self._votes(client.name)]
        there = sum(self._votes(self.names[index]) for index in self._node_of)
        return max(Counter((one.constraints, one.statistics) for one in away).values(), default=0) > there

    def _votes(self, name: str) -> bool:
        """Whether a client has a say in what clients have: all, or those who are known beforehand."""
        return not self._expected or name in self._expected

    def rows(self, index: int) -> int:
        """How many rows a client trains on; 0 where it was not met."""
        client = self.clients[index]
        return 0 if client is None else client.rows

    @property
    def tells_all(self) -> bool:
        """Whether all clients met so far report on all of their rows."""
        return all(client is None or client.value_rows >= client.rows for client in self.clients)

    @property
    def has_surrogate(self) -> bool:
        """Whether all clients met so far descend on something else in place of their constraints."""
        met = [client for client in self.clients if client is not None]
        return bool(met) and all(client.has_surrogate for client in met)

    @property
    def reporting_once(self) -> list[str]:
        """The names of those met so far who cannot report at two iterates on the same batch."""
        met = zip(self.names, self.clients, strict=True)
        return [name for name, client in met if client is not None and not client.can_repeat_reports]

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
        self._places = {confusable_key(name): index for index, name in enumerate(self.names)}
        self._nodes = {node: self._places[confusable_key(name)] for node, name in at.items()}
        self._node_of = {index: node for node, index in self._nodes.items()}

    def awake(self, k: int, wanted: int) -> list[int]:
        """Those connected that are to be asked in round k: without those that stayed silent, if ``wanted`` are left."""
        connected = list(self.connected)
        ready = [index for index in connected if not self._quiet_clients.rests(index, k)]
        return ready if len(ready) >= min(wanted, len(connected)) else connected

    def after_round(self, k: int, silent: Iterable[int], answered: Iterable[int]) -> None:
        """Remember who stayed silent in round k, and who answered."""
        for index in set(silent):
            rest = self._quiet_clients.note(index, k)
            self._make_room(index)
            if rest:
                often = f"silent {self._quiet_clients.times(index)} times in a row; asked again after {rest} rounds"
                logger.warning("client %r is %s", self.names[index], often)
                self._events.record("silent", often, client=self.names[index])
        for index in set(answered) - set(silent):
            if self._quiet_clients.answered(index):
                logger.info("client %r is back", self.names[index])
                self._events.record("back", "it answered", client=self.names[index])

    def _make_room(self, index: int) -> None:
        """A client stays silent: another node of its name may take its place."""
        name = self.names[index]
        for node in [node for node, own in self._turned_away.items() if own == name]:
            del self._turned_away[node]  # it is greeted again
        waiting = [node for node, client in self._contenders.items() if client.name == name]
        if waiting and index in self._node_of:
            self._replace(self._node_of[index], waiting[0], self._contenders.pop(waiting[0]), "it stayed silent")

    def look(self, grid: Grid, wanted: int, limit: float, *, all_expected: bool = False) -> None:
        """See who is connected; wait up to ``limit`` seconds for ``wanted`` clients.

        Where nobody is there but those being greeted, these have all the time that an answer may take.
        ``all_expected``: wait for all that are known beforehand, and for those being greeted, whoever else is there.
        """
        until = time.monotonic() + limit
        at_most = time.monotonic() + max(limit, self._timeout if wanted else 0.0)
        for pause in pauses():
            self._meet(grid)
            left = until - time.monotonic()
            waits = len(self._nodes) + len(self._voters) < wanted
            if all_expected and not waits:
                there = {*map(self.names.__getitem__, self._node_of), *self._by_name()}
                waits = self._expects_answers or not self._expected <= there
            if left <= 0 and not (self._nodes or self._voters) and self._expects_answers:
                left = at_most - time.monotonic()
            if left <= 0 or not waits:
                break
            time.sleep(min(pause, left))
        self._settle(at_last=True)
        self._overdue = set() if self._greetings is None else self._greetings.numbers  # nobody waits for them again

    def _meet(self, grid: Grid) -> None:
        if self._greetings is None:
            self._greetings = Outstanding(grid, self._timeout)
        keys = self._keys(grid)
        self._drop(set(keys))
        self._looks += 1
        busy = {*self._nodes, *self._voters, *self._contenders, *self._turned_away, *self._greetings.numbers}
        new = [node for node in sorted(set(keys) - busy) if not self._quiet_nodes.rests(node, self._looks)]
        self._greet([node for node in new if self._may_join(node, keys[node])])
        for _ in range(2):
            for node, answer in self._greetings.hear():
                if node in keys:
                    self._hear(node, keys[node], answer)
            self._settle(at_last=False)
            if not self._contenders:
                break  # else a node was asked whether it is still there, and may have answered at once

    @property
    def _expects_answers(self) -> bool:
        """Whether some node was greeted, and has not been waited for yet."""
        return self._greetings is not None and not self._greetings.numbers <= self._overdue | set(self._nodes)

    def _keys(self, grid: Grid) -> dict[int, bytes | None]:
        """The nodes that are connected, with their keys where there is a list."""
        if not self._listed:
            return dict.fromkeys(grid.get_node_ids())
        nodes = list(grid.get_nodes())
        self._since = {node.node_id: (node.registered_at, node.node_id) for node in nodes}
        return {node.node_id: encode_key(bytes(node.public_key)) for node in nodes}

    def _drop(self, there: set[int]) -> None:
        """Forget whoever is connected no longer."""
        for node in set(self._nodes) - there:
            index = self._nodes.pop(node)
            del self._node_of[index]
            name = self.names[index]
            logger.warning("client %r has left", name)
            self._events.record("left", client=name)
            self._turned_away.clear()  # its place may be another node's now
            self._unlike.clear()
        for known in (self._turned_away, self._voters, self._contenders, self._unlike):
            for node in set(known) - there:
                del known[node]

    def _may_join(self, node: int, key: bytes | None) -> bool:
        """Whether a node is greeted at all: by its key, where there is a list."""
        if not self._listed:
            return True
        name = self._owners.get(key) if key is not None else None
        if name is None:
            self._turn_away(node, "its public key is not in the list of clients")
        elif confusable_key(name) in self._excluded:
            self._leave_out(node, name)
        return node not in self._turned_away

    def _greet(self, nodes: Iterable[int]) -> None:
        assert self._greetings is not None
        content = registration_request()
        self._greetings.send(
            {node: Message(content, node, wire.REGISTER, ttl=self._timeout, group_id="hello") for node in nodes}
        )

    def _hear(self, node: int, key: bytes | None, answer: Message | Lost) -> None:
        """Take what a node answered to a greeting."""
        if node in self._nodes:
            self._contest(node, answer)
            return
        try:
            if isinstance(answer, Lost):
                raise answer
            if (why := wire.read_refusal(answer.content)) is not None:
                raise Lost(f"it refused: {why}")
            client = parse_registration(answer.content, self._largest_rows)
            self._check_identity(client, key)
        except Lost as lost:
            self._quiet_nodes.note(node, self._looks)  # asked again, ever more rarely
            logger.warning("node %d did not introduce itself: %s", node, lost)
            self._events.record("not introduced", str(lost), node=node, client=self._owner(key))
        except wire.InvalidMessageError as error:
            self._turn_away(node, str(error), self._owner(key))
        else:
            self._quiet_nodes.answered(node)
            if confusable_key(client.name) in self._excluded:
                self._leave_out(node, client.name)
            else:
                self._voters[node] = client

    def _owner(self, key: bytes | None) -> str | None:
        """Whose key it is."""
        return None if key is None else self._owners.get(key)

    def _check_identity(self, client: ClientInfo, key: bytes | None) -> None:
        """Raise where a node is not who it says it is, or says more than is known of it."""
        owner = self._owner(key)
        if not self._listed:
            return
        assert owner is not None
        if client.name != owner:
            raise wire.InvalidMessageError(
                f"its key is that of {owner!r}, but it calls itself {wire.sanitize(client.name)!r}"
            )
        for what in ("rows", "held_out_rows"):
            most = getattr(self._listed[owner], what)
            if most is not None and getattr(client, what) > most:
                told = f"it says that it has {getattr(client, what):,} {what.replace('_', ' ')}"
                raise wire.InvalidMessageError(f"{told}, where the list says {most:,} at most")

    def _settle(self, *, at_last: bool) -> None:
        """Take in those who introduced themselves, once it is known what most clients have.

        That is not decided by whoever comes first: as many must have come as are wanted, or there is no more time.
        """
        if not self._voters or (self._expects_answers and not at_last):
            return
        by_name = self._by_name()
        self._refuse_one_name(by_name)
        voting = [client for name, client in by_name.items() if self._votes(name)]
        if not voting and at_last:
            voting = list(by_name.values())  # none of those who are known beforehand has come
        telling = [client for client in voting if client.statistics and not self._statistics]
        if (self._constraints is None or telling) and len(voting) < self._enough_votes and not at_last:
            return
        if self._constraints is None:
            self._constraints = _most(voting, "constraints", lambda client: client.constraints)
        if telling:
            self._statistics = _most(telling, "statistics", lambda client: client.statistics, raises=not self._nodes)
        waiting, self._voters = self._voters, {}
        order = sorted(waiting, key=lambda node: (_natural(waiting[node].name), self._since.get(node, ("", node))))
        for node in order:
            self._take_in(node, waiting[node])

    def _by_name(self) -> dict[str, ClientInfo]:
        """Those who introduced themselves and are not taken in yet."""
        return {client.name: client for client in self._voters.values()}

    def _refuse_one_name(self, by_name: dict[str, ClientInfo]) -> None:
        """Raise where all nodes have the same name: whoever wrote the clients forgot to tell them apart."""
        met = any(client is not None for client in self.clients)
        if met or self._listed or len(self._voters) < 2 or len(by_name) > 1:
            return
        (name,) = by_name
        raise ValueError(
            f"all {len(self._voters)} nodes call themselves {name!r}: every client needs a name of its own, such as "
            "one from its node's config (context.node_config)"
        )

    def _take_in(self, node: int, client: ClientInfo) -> None:
        for what, has, others in (
            ("constraints", client.constraints, self.constraints),
            ("statistics", client.statistics, client.statistics and self.statistics),  # 0: it does not tell
        ):
            if has != others:
                why = f"it has {has} {what}, the others {others}"
                logger.warning("client %r is turned away: %s", client.name, why)
                self._events.record("turned away", why, client=client.name, node=node)
                self._turned_away[node] = ""
                if what not in self._fixed:
                    self._unlike[node] = client
                return
        index = self._places.setdefault(confusable_key(client.name), len(self.names))
        if index == len(self.names):
            self.names.append(client.name)
            self.clients.append(None)
        if self.names[index] != client.name:
            alike = f"its name {wire.sanitize(client.name)!r} looks like that of client {self.names[index]!r}"
            self._turn_away(node, alike)
            return
        known = self.clients[index]
        told = f"it says {client.rows:,} rows and {client.held_out_rows:,} held out"
        if client.excluded_classes:
            logger.warning("client %r leaves out %s", client.name, small_classes(client.excluded_classes))
        if known is not None and (known.rows, known.held_out_rows) != (client.rows, client.held_out_rows):
            before = f"it said {known.rows:,} and {known.held_out_rows:,} before"
            self._turn_away(node, f"{told}, but {before}: a client's rows stay the same in a run", client.name)
            return
        there = self._node_of.get(index)
        if there is not None and self._listed:
            self._replace(there, node, client, "its client has connected anew, with the same key")
        elif there is not None:
            self._contenders[node] = client
            self._greet([there])  # is it still there?
        else:
            self.clients[index] = client
            self._nodes[node], self._node_of[index] = index, node
            self._quiet_clients.answered(index)
            if client.excluded_classes:
                told += f"; it leaves out {small_classes(client.excluded_classes)}"
            self._events.record("met", told, client=client.name, node=node)

    def _contest(self, node: int, answer: Message | Lost) -> None:
        """A connected node whose name another one claims was asked whether it is still there."""
        name = self.names[self._nodes[node]]
        rivals = sorted(rival for rival, client in self._contenders.items() if client.name == name)
        if isinstance(answer, Lost) and rivals:
            self._replace(node, rivals[0], self._contenders.pop(rivals[0]), f"it stayed silent: {answer}")
            rivals = rivals[1:]
        for rival in rivals:
            del self._contenders[rival]
            self._turn_away(rival, f"client {name!r} is connected already", name)
            self._turned_away[rival] = name

    def _replace(self, old: int, node: int, client: ClientInfo, why: str) -> None:
        """Another node takes a client's place."""
        index = self._nodes.pop(old)
        self._turned_away[old] = client.name
        self._nodes[node], self._node_of[index], self.clients[index] = index, node, client
        self._quiet_clients.answered(index)
        logger.warning("client %r is now node %d, no longer node %d: %s", client.name, node, old, why)
        self._events.record("replaced", f"no longer node {old}: {why}", client=client.name, node=node)

    def _turn_away(self, node: int, why: str, client: str | None = None) -> None:
        logger.warning("node %d is turned away: %s", node, why)
        self._events.record("turned away", why, client=client, node=node)
        self._turned_away[node] = ""

    def is_known(self, name: str) -> bool:
        """Whether there is, or was, a client of this name, taking part or left out."""
        return confusable_key(name) in self._left_out or confusable_key(name) in self._places

    def _leave_out(self, node: int, name: str) -> None:
        self._left_out.add(confusable_key(name))
        logger.info("client %r is excluded", name)
        self._events.record("excluded", "it is left out of the run (exclude)", client=name, node=node)
        self._turned_away[node] = ""


def small_classes(many: int) -> str:
    """What a client leaves out, in words."""
    return f"{many} {'class' if many == 1 else 'classes'} of too few rows (its own policy)"


def _most(clients: Iterable[ClientInfo], what: str, count: Callable[[ClientInfo], int], *, raises: bool = True) -> int:
    """What most clients have; where no number is that of most, raise, or 0 in a run that is under way."""
    counts = Counter(map(count, clients)).most_common()
    if len(counts) > 1 and counts[0][1] == counts[1][1]:
        if not raises:
            return 0
        told = ", ".join(f"{many} with {number}" for number, many in counts)
        raise ValueError(f"clients differ in their number of {what}, and none is that of most ({told}): set {what}")
    return counts[0][0]


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Sorts "site 10" after "site 9"."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]
