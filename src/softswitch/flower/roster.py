"""The clients of a run: which node is which client, who is connected, and who is asked less often."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from softswitch.flower import messages as wire
from softswitch.flower.exchange import NoReply, PendingMessages, Reply, log_event, poll_intervals
from softswitch.flower.membership import ClientInfo, confusable_key, encode_key, get_version, parse_registration
from softswitch.flower.messages import require
from softswitch.flower.settings import StrategySettings
from softswitch.results.events import EventLog

logger = logging.getLogger("softswitch.flower")
LONGEST_BACKOFF = 64
"""The longest time, in rounds or refreshes, before a silent client or node is asked again."""
SILENT_ROUNDS = 2
"""Number of silent rounds in a row after which a client is asked less often."""


class Backoff:
    """Exponential backoff for clients or nodes that are silent more often in a row than is ``tolerated``."""

    def __init__(self, tolerated: int = 0) -> None:
        self._tolerated = tolerated
        self.silences, self._next = Counter[int](), dict[int, int]()

    def record_silence(self, key: int, now: int) -> int:
        """Record a silence at time ``now``; return the time until the next attempt, 0 for no delay."""
        self.silences[key] += 1
        excess = self.silences[key] - self._tolerated
        if excess <= 0:
            return 0
        delay = min(2**excess, LONGEST_BACKOFF)
        self._next[key] = now + delay
        return delay

    def reset(self, key: int) -> bool:
        """Record a reply; return whether there was a delay."""
        del self.silences[key]
        return self._next.pop(key, None) is not None

    def is_waiting(self, key: int, now: int) -> bool:
        """Return whether the next attempt is later than ``now``."""
        return self._next.get(key, now) > now


class Roster:
    """The clients met so far, in a fixed order, and the nodes that they are connected from.

    A client is identified by its name: a node that returns with another id is the same client. With a list of public
    keys, the key determines the client, and other nodes are turned away. Clients that are met together are sorted by
    name, with numbers by their value; later clients follow. If two connected nodes have the same key, the later one
    replaces the earlier. Without keys, the second node of a name is turned away unless the first one is silent.
    ``constraints`` is None and ``statistics`` is 0 until clients are met. A client is None if only its name is known.
    """

    def __init__(self, settings: StrategySettings, events: EventLog) -> None:
        self._timeout, self._largest_rows = settings.report_timeout, settings.largest_rows
        self._min_votes = max(settings.min_clients, len(settings.expected))
        self.constraints, self.statistics = settings.constraints, settings.statistics or 0
        self._fixed = {name for name in ("constraints", "statistics") if getattr(settings, name) is not None}
        self._expected, self._listed = set(settings.expected), settings.listed
        self._owners = {listed.identity: name for name, listed in self._listed.items()}
        self._exclude = {confusable_key(name) for name in settings.exclude}
        self._excluded = {confusable_key(name) for name in (*settings.names, *settings.clients)} & self._exclude
        self._events = events
        self.names: list[str] = list(settings.expected)
        self.clients: list[ClientInfo | None] = [None] * len(self.names)
        self._indices = {confusable_key(name): index for index, name in enumerate(self.names)}
        self._nodes: dict[int, int] = {}  # node -> index
        self._node_of: dict[int, int] = {}  # index -> node
        self._turned_away: dict[int, str] = {}  # node -> the name that another node holds, or ""
        self._candidates: dict[int, ClientInfo] = {}  # node -> client that is not admitted yet
        self._contenders: dict[int, ClientInfo] = {}  # node -> client whose name another node holds
        self._unlike: dict[int, ClientInfo] = {}  # node -> client with other numbers of constraints or statistics
        self._registered: dict[int, tuple[str, int]] = {}  # node -> when it was registered
        self._greetings: PendingMessages | None = None
        self._overdue: set[int] = set()  # nodes whose introduction was awaited once
        self._node_backoff, self._refreshes = Backoff(), 0
        self._client_backoff = Backoff(tolerated=SILENT_ROUNDS)

    @property
    def connected(self) -> dict[int, int]:
        """The node of every connected client, by the client's index, in order."""
        return dict(sorted(self._node_of.items()))

    @property
    def included(self) -> list[int]:
        """The indices of all clients that are not excluded."""
        return [index for index, name in enumerate(self.names) if confusable_key(name) not in self._exclude]

    @property
    def is_outvoted(self) -> bool:
        """Whether a larger group of clients was turned away for its numbers of constraints or statistics."""
        voters = (client for client in self._unlike.values() if self._votes(client.name))
        unlike = Counter((client.constraints, client.statistics) for client in voters)
        return max(unlike.values(), default=0) > sum(self._votes(self.names[index]) for index in self._node_of)

    def _votes(self, name: str) -> bool:
        return not self._expected or name in self._expected

    @property
    def _met(self) -> list[ClientInfo]:
        return [client for client in self.clients if client is not None]

    def rows(self, index: int) -> int:
        """Return a client's number of training rows; 0 if it was not met."""
        return getattr(self.clients[index], "rows", 0)

    def cost(self, index: int) -> tuple[int, int]:
        """Return the numbers of rows that a client's report and its gradient use."""
        return getattr(self.clients[index], "value_rows", 0), getattr(self.clients[index], "gradient_rows", 0)

    @property
    def reports_all_rows(self) -> bool:
        """Whether all clients met so far report on all their rows."""
        return all(client.value_rows >= client.rows for client in self._met)

    @property
    def has_surrogate(self) -> bool:
        """Whether all clients met so far descend on surrogates of their constraints."""
        return bool(self._met) and all(client.has_surrogate for client in self._met)

    @property
    def single_reporters(self) -> list[str]:
        """The names of the clients that cannot report at two iterates on the same batch."""
        return [client.name for client in self._met if not client.can_repeat_reports]

    def is_known(self, name: str) -> bool:
        """Return whether a client of this name was met, is expected or is excluded."""
        return confusable_key(name) in self._excluded or confusable_key(name) in self._indices

    def restore_order(self, names: Sequence[str]) -> None:
        """Put the clients into the order of a checkpoint, followed by those that it does not have."""
        clients = dict(zip(self.names, self.clients, strict=True))
        names_of_nodes = {node: self.names[index] for node, index in self._nodes.items()}
        self.names = [*names, *(name for name in clients if name not in names)]
        self.clients = [clients.get(name) for name in self.names]
        self._indices = {confusable_key(name): index for index, name in enumerate(self.names)}
        self._nodes = {node: self._indices[confusable_key(name)] for node, name in names_of_nodes.items()}
        self._node_of = {index: node for node, index in self._nodes.items()}

    def available(self, k: int, min_clients: int) -> list[int]:
        """Return the connected clients for round k, without silent ones unless fewer than ``min_clients`` are left."""
        connected = list(self.connected)
        available = [index for index in connected if not self._client_backoff.is_waiting(index, k)]
        return available if len(available) >= min(min_clients, len(connected)) else connected

    def finish_round(self, k: int, silent: Iterable[int], replied: Iterable[int]) -> None:
        """Record which clients were silent in round k, and which replied."""
        for index in set(silent):
            delay, name = self._client_backoff.record_silence(index, k), self.names[index]
            for node in [node for node, held_name in self._turned_away.items() if held_name == name]:
                del self._turned_away[node]  # it is greeted again, and may take the name
            rivals = [node for node, client in self._contenders.items() if client.name == name]
            if rivals and index in self._node_of:
                self._replace(self._node_of[index], rivals[0], self._contenders.pop(rivals[0]), "it stayed silent")
            if delay:
                times = self._client_backoff.silences[index]
                log_event(
                    self._events, "silent", f"{times} times in a row; asked again after {delay} rounds", client=name
                )
        for index in set(replied) - set(silent):
            if self._client_backoff.reset(index):
                logger.info("client %r is back", self.names[index])
                self._events.record("back", "it replied", client=self.names[index])

    def refresh(self, grid: Grid, min_clients: int, wait: float, *, all_expected: bool = False) -> None:
        """Update who is connected; wait up to ``wait`` seconds for ``min_clients`` clients.

        If ``all_expected``, wait for all expected clients and for all greeted nodes. If only nodes that have not
        introduced themselves are connected, these have the time of a report.
        """
        deadline = time.monotonic() + wait
        greeting_deadline = time.monotonic() + max(wait, self._timeout if min_clients else 0.0)
        for interval in poll_intervals():
            self._poll(grid)
            left = deadline - time.monotonic()
            waits = len(self._nodes) + len(self._candidates) < min_clients
            if all_expected and not waits:
                present = {*map(self.names.__getitem__, self._node_of), *self._candidates_by_name}
                waits = self._awaits_introductions or not self._expected <= present
            if left <= 0 and not (self._nodes or self._candidates) and self._awaits_introductions:
                left = greeting_deadline - time.monotonic()
            if left <= 0 or not waits:
                break
            time.sleep(min(interval, left))
        self._admit_candidates(time_is_up=True)
        self._overdue = set() if self._greetings is None else self._greetings.keys

    def _poll(self, grid: Grid) -> None:
        if self._greetings is None:
            self._greetings = PendingMessages(grid, self._timeout)
        keys: dict[int, bytes | None] = {}  # the public key of each connected node, if there is a list
        if self._listed:
            nodes = list(grid.get_nodes())
            self._registered = {node.node_id: (node.registered_at, node.node_id) for node in nodes}
            keys = {node.node_id: encode_key(bytes(node.public_key)) for node in nodes}
        else:
            keys = dict.fromkeys(grid.get_node_ids())
        for node in set(self._nodes) - set(keys):
            index = self._nodes.pop(node)
            del self._node_of[index]
            logger.warning("client %r has left", self.names[index])
            self._events.record("left", client=self.names[index])
            self._turned_away.clear()  # another node may take its name now
            self._unlike.clear()
        for waiting in (self._turned_away, self._candidates, self._contenders, self._unlike):
            for node in set(waiting) - set(keys):
                del waiting[node]
        self._refreshes += 1
        busy = {*self._nodes, *self._candidates, *self._contenders, *self._turned_away, *self._greetings.keys}
        new = [node for node in sorted(set(keys) - busy) if not self._node_backoff.is_waiting(node, self._refreshes)]
        self._greet([node for node in new if self._may_join(node, keys[node])])
        for _ in range(2):
            for node, reply in self._greetings.poll():
                if node in self._nodes and node in keys:
                    self._settle_contest(node, reply)
                elif node in keys:
                    self._read_introduction(node, keys[node], reply)
            self._admit_candidates(time_is_up=False)
            if not self._contenders:
                break  # otherwise a connected node was greeted again and may have replied at once

    @property
    def _awaits_introductions(self) -> bool:
        return self._greetings is not None and not self._greetings.keys <= self._overdue | set(self._nodes)

    def _may_join(self, node: int, key: bytes | None) -> bool:
        """Return whether to greet a node; with a list, its key decides."""
        name = self._owner(key)
        if self._listed and name is None:
            self._turn_away(node, "its public key is not in the list of clients")
        elif name is not None and confusable_key(name) in self._exclude:
            self._exclude_node(node, name)
        return node not in self._turned_away

    def _greet(self, nodes: Iterable[int]) -> None:
        assert self._greetings is not None
        content, limit = RecordDict({wire.SETTINGS: ConfigRecord(get_version())}), self._timeout
        self._greetings.send(
            {node: Message(content, node, wire.REGISTER, ttl=limit, group_id="hello") for node in nodes}
        )

    def _read_introduction(self, node: int, key: bytes | None, reply: Reply) -> None:
        try:
            if isinstance(reply, NoReply):
                raise reply
            if (reason := wire.read_refusal(reply.content)) is not None:
                raise NoReply(f"it refused: {reason}")
            client = parse_registration(reply.content, self._largest_rows)
            self._check_identity(client, key)
        except NoReply as failure:
            self._node_backoff.record_silence(node, self._refreshes)
            log_event(self._events, "not introduced", str(failure), node=node, client=self._owner(key))
        except wire.InvalidMessageError as error:
            self._turn_away(node, str(error), self._owner(key))
        else:
            self._node_backoff.reset(node)
            if confusable_key(client.name) in self._exclude:
                self._exclude_node(node, client.name)
            else:
                self._candidates[node] = client

    def _owner(self, key: bytes | None) -> str | None:
        return None if key is None else self._owners.get(key)

    def _check_identity(self, client: ClientInfo, key: bytes | None) -> None:
        """Raise if a node's name is not that of its key, or if it has more rows than the list allows."""
        owner = self._owner(key)
        if owner is None:  # there is no list
            return
        problem = f"its key is that of {owner!r}, but it calls itself {wire.sanitize(client.name)!r}"
        require(client.name == owner, problem)
        for name in ("rows", "held_out_rows"):
            rows, limit = getattr(client, name), getattr(self._listed[owner], name)
            if limit is not None:
                problem = (
                    f"it reports {rows:,} {name.replace('_', ' ')}, but the list of clients allows at most {limit:,}"
                )
                require(rows <= limit, problem)

    def _admit_candidates(self, *, time_is_up: bool) -> None:
        """Admit the clients that introduced themselves, once the majority's numbers of constraints etc. are known.

        The vote needs enough voters, or the end of the waiting time.
        """
        if not self._candidates or (self._awaits_introductions and not time_is_up):
            return
        by_name, count = self._candidates_by_name, len(self._candidates)
        if not (self._met or self._listed) and count > 1 and len(by_name) == 1:
            advice = "give every client a unique name, such as one from its node's config (context.node_config)"
            raise ValueError(f"all {count} nodes call themselves {next(iter(by_name))!r}: {advice}")
        voters = [client for name, client in by_name.items() if self._votes(name)]
        if not voters and time_is_up:
            voters = list(by_name.values())  # no expected client has come
        pooled = [client for client in voters if client.statistics and not self.statistics]
        if (self.constraints is None or pooled) and len(voters) < self._min_votes and not time_is_up:
            return
        if self.constraints is None:
            self.constraints = _majority(voters, "constraints")
        if pooled:
            self.statistics = _majority(pooled, "statistics", strict=not self._nodes)
        candidates, self._candidates = self._candidates, {}
        order = {n: (_sort_key(c.name), self._registered.get(n, ("", n))) for n, c in candidates.items()}
        for node in sorted(candidates, key=order.__getitem__):
            self._admit(node, candidates[node])

    @property
    def _candidates_by_name(self) -> dict[str, ClientInfo]:
        return {client.name: client for client in self._candidates.values()}

    def _admit(self, node: int, client: ClientInfo) -> None:
        for name, count, expected in (
            ("constraints", client.constraints, self.constraints),
            ("statistics", client.statistics, client.statistics and self.statistics),  # 0 means unknown
        ):
            if count != expected:
                self._turn_away(node, f"it has {count} {name}, the others {expected}", client.name)
                if name not in self._fixed:
                    self._unlike[node] = client
                return
        index = self._indices.setdefault(confusable_key(client.name), len(self.names))
        if index == len(self.names):
            self.names.append(client.name)
            self.clients.append(None)
        if self.names[index] != client.name:
            self._turn_away(node, f"its name {wire.sanitize(client.name)!r} looks like that of {self.names[index]!r}")
            return
        known, suppressed = self.clients[index], ""
        reported = f"it reports {client.rows:,} rows and {client.held_out_rows:,} held-out rows"
        if count := client.excluded_classes:
            suppressed = f"{count} {'class' if count == 1 else 'classes'} with too few rows (its own policy)"
            logger.warning("client %r leaves out %s", client.name, suppressed)
        if known is not None and (known.rows, known.held_out_rows) != (client.rows, client.held_out_rows):
            before = f"it reported {known.rows:,} and {known.held_out_rows:,} before"
            self._turn_away(node, f"{reported}, but {before}: a client's rows must not change in a run", client.name)
            return
        current_node = self._node_of.get(index)
        if current_node is not None and self._listed:
            self._replace(current_node, node, client, "its client has reconnected with the same key")
        elif current_node is not None:
            self._contenders[node] = client
            self._greet([current_node])  # to see whether it still replies
        else:
            self._connect(node, index, client)
            reported += f"; it leaves out {suppressed}" if suppressed else ""
            self._events.record("met", reported, client=client.name, node=node)

    def _connect(self, node: int, index: int, client: ClientInfo) -> None:
        self._nodes[node], self._node_of[index], self.clients[index] = index, node, client
        self._client_backoff.reset(index)

    def _settle_contest(self, node: int, reply: Reply) -> None:
        """Decide who holds a name that another node claims: the connected node if it replied to a greeting."""
        name = self.names[self._nodes[node]]
        rivals = sorted(rival for rival, client in self._contenders.items() if client.name == name)
        if isinstance(reply, NoReply) and rivals:
            self._replace(node, rivals[0], self._contenders.pop(rivals[0]), f"it stayed silent: {reply}")
            rivals = rivals[1:]
        for rival in rivals:
            del self._contenders[rival]
            self._turn_away(rival, f"client {name!r} is connected already", name)
            self._turned_away[rival] = name

    def _replace(self, old: int, node: int, client: ClientInfo, reason: str) -> None:
        """Move a client from one node to another."""
        self._turned_away[old] = client.name
        self._connect(node, self._nodes.pop(old), client)
        reason = f"it is now node {node}, no longer node {old}: {reason}"
        log_event(self._events, "replaced", reason, client=client.name, node=node)

    def _turn_away(self, node: int, reason: str, client: str | None = None) -> None:
        log_event(self._events, "turned away", reason, client=client, node=node)
        self._turned_away[node] = ""

    def _exclude_node(self, node: int, name: str) -> None:
        self._excluded.add(confusable_key(name))
        logger.info("client %r is excluded", name)
        self._events.record("excluded", "it does not take part (exclude)", client=name, node=node)
        self._turned_away[node] = ""


def _majority(clients: Iterable[ClientInfo], name: str, *, strict: bool = True) -> int:
    """Return the most common number; for a tie raise, or return 0 if not ``strict``."""
    counts = Counter(getattr(client, name) for client in clients).most_common()
    if len(counts) == 1 or counts[0][1] > counts[1][1]:
        return int(counts[0][0])
    if not strict:
        return 0
    votes = ", ".join(f"{clients} with {number}" for number, clients in counts)
    raise ValueError(f"clients differ in their number of {name}, and there is no majority ({votes}): set {name}")


def _sort_key(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts "site 10" after "site 9"."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]
