"""The clients of a run: which node is which client, who is connected, and who is asked less often."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Sequence

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from softswitch.flower import messages as wire
from softswitch.flower.membership import ClientInfo, confusable_key, get_version, parse_registration, to_pem
from softswitch.flower.settings import StrategySettings
from softswitch.results.events import EventLog

logger = logging.getLogger("softswitch.flower")
LONGEST_BACKOFF = 64  # the longest time, in rounds or polls, before a silent client or node is asked again
SILENT_ROUNDS = 2  # number of silent rounds in a row after which a client is asked less often


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
    replaces the earlier. Without keys, the second node of a name is turned away until the first one leaves.
    ``constraints`` and, for a pooled constraint, ``statistics`` are None until clients are met. A client is None if
    only its name is known. ``excluded`` has the keys of the names of excluded clients that are known to exist.
    """

    def __init__(self, grid: Grid, settings: StrategySettings) -> None:
        self.grid, self.events, self._timeout = grid, EventLog(settings.events), settings.report_timeout
        self._min_votes = max(settings.min_clients, len(settings.expected))
        self.constraints, self.statistics = settings.constraints, 0 if settings.pooled is None else None
        self._expected, self._is_closed = set(settings.expected), settings.secure is not None
        self._owners = {str(key): name for name, key in settings.clients.items()}
        self._exclude = {confusable_key(name) for name in settings.exclude}
        self.excluded = {confusable_key(name) for name in (*settings.names, *settings.clients)} & self._exclude
        self.names: list[str] = list(settings.expected)
        self.clients: list[ClientInfo | None] = [None] * len(self.names)
        self._indices = {confusable_key(name): index for index, name in enumerate(self.names)}
        self._owner_of: dict[int, str | None] = {}  # node -> the client that its key belongs to, if there is a list
        self._nodes: dict[int, int] = {}  # node -> index
        self._candidates: dict[int, ClientInfo] = {}  # node -> client that is not admitted yet
        self._turned_away: set[int] = set()
        self._greetings = wire.PendingMessages(grid, self._timeout)
        self._node_backoff, self._polls = Backoff(), 0
        self._client_backoff = Backoff(tolerated=SILENT_ROUNDS)

    @property
    def connected(self) -> dict[int, int]:
        """The node of every connected client, by the client's index, in order."""
        return dict(sorted((index, node) for node, index in self._nodes.items()))

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

    def restore_order(self, names: Sequence[str]) -> None:
        """Put the clients into the order of a checkpoint, followed by those that it does not have."""
        clients = dict(zip(self.names, self.clients, strict=True))
        names_of_nodes = {node: self.names[index] for node, index in self._nodes.items()}
        self.names = [*names, *(name for name in clients if name not in names)]
        self.clients = [clients.get(name) for name in self.names]
        self._indices = {confusable_key(name): index for index, name in enumerate(self.names)}
        self._nodes = {node: self._indices[confusable_key(name)] for node, name in names_of_nodes.items()}

    def available(self, k: int, min_clients: int) -> list[int]:
        """Return the connected clients for round k, without silent ones unless fewer than ``min_clients`` are left."""
        connected = list(self.connected)
        available = [index for index in connected if not self._client_backoff.is_waiting(index, k)]
        return available if len(available) >= min(min_clients, len(connected)) else connected

    def finish_round(self, k: int, silent: set[int], replied: set[int]) -> None:
        """Record which clients were silent in round k, and which replied."""
        backoff = self._client_backoff
        for index in sorted(silent):
            if delay := backoff.record_silence(index, k):
                reason = f"{backoff.silences[index]} times in a row; asked again after {delay} rounds"
                wire.log_event(self.events, "silent", reason, client=self.names[index])
        for index in sorted(replied - silent):
            if backoff.reset(index):
                logger.info("client %r is back", self.names[index])
                self.events.record("back", "it replied", client=self.names[index])

    def refresh(self, min_clients: int, wait: float, *, all_expected: bool = False) -> None:
        """Update who is connected; wait up to ``wait`` seconds for ``min_clients`` clients.

        If ``all_expected``, wait for all expected clients and for all greeted nodes. If only nodes that have not
        introduced themselves are connected, these have the time of a report.
        """
        deadline = time.monotonic() + wait
        greeting_deadline = max(deadline, time.monotonic() + (self._timeout if min_clients else 0.0))
        for interval in wire.poll_intervals():
            self._poll()
            present = {*(self.names[index] for index in self._nodes.values()), *self._candidates_by_name}
            is_complete = len(self._nodes) + len(self._candidates) >= min_clients
            if all_expected:
                is_complete = is_complete and not self._greetings and self._expected <= present
            is_greeting_first = bool(self._greetings) and not present
            left = (greeting_deadline if is_greeting_first else deadline) - time.monotonic()
            if left <= 0 or is_complete:
                break
            time.sleep(min(interval, left))
        self._admit_candidates(time_is_up=True)

    def _poll(self) -> None:
        grid, greetings = self.grid, self._greetings
        if self._owners:
            self._owner_of = {node.node_id: self._find_owner(node.public_key) for node in grid.get_nodes()}
        else:
            self._owner_of = dict.fromkeys(grid.get_node_ids())
        present = set(self._owner_of)
        for node in set(self._nodes) - present:
            name = self.names[self._nodes.pop(node)]
            logger.warning("client %r has left", name)
            self.events.record("left", client=name)
            self._turned_away.clear()  # another node may take its name now
        self._turned_away &= present
        self._candidates = {node: client for node, client in self._candidates.items() if node in present}
        self._polls += 1
        busy = {*self._nodes, *self._candidates, *self._turned_away, *greetings.keys}
        busy |= {node for node in present if self._node_backoff.is_waiting(node, self._polls)}
        new = [node for node in sorted(present - busy) if self._may_join(node)]
        hello = RecordDict({wire.SETTINGS: ConfigRecord(get_version())})
        greetings.send({node: Message(hello, node, wire.REGISTER, ttl=self._timeout, group_id="hello") for node in new})
        for node, reply in greetings.poll():
            if node in present:
                self._read_introduction(node, reply)
        self._admit_candidates(time_is_up=False)

    def _find_owner(self, key: bytes) -> str | None:
        try:
            return self._owners.get(to_pem(bytes(key).decode().strip()))
        except Exception:
            return None  # it is not a public key

    def _may_join(self, node: int) -> bool:
        """Return whether to greet a node; with a list, its key decides."""
        owner = self._owner_of[node]
        if self._owners and owner is None:
            self._turn_away(node, "its public key is not in the list of clients")
        elif owner is not None and confusable_key(owner) in self._exclude:
            self._exclude_node(node, owner)
        return node not in self._turned_away

    def _read_introduction(self, node: int, reply: wire.Reply) -> None:
        owner = self._owner_of[node]
        try:
            client = parse_registration(wire.check_reply(reply))
            problem = f"its key is that of {owner!r}, but it calls itself {wire.sanitize(client.name)!r}"
            wire.require(owner in (None, client.name), problem)
        except (wire.NoReply, wire.RefusedError) as failure:
            self._node_backoff.record_silence(node, self._polls)
            wire.log_event(self.events, "not introduced", str(failure), node=node, client=owner)
        except wire.InvalidMessageError as error:
            self._turn_away(node, str(error), owner)
        else:
            self._node_backoff.reset(node)
            if confusable_key(client.name) in self._exclude:
                self._exclude_node(node, client.name)
            else:
                self._candidates[node] = client

    @property
    def _candidates_by_name(self) -> dict[str, ClientInfo]:
        return {client.name: client for client in self._candidates.values()}

    def _admit_candidates(self, *, time_is_up: bool) -> None:
        """Admit the clients that introduced themselves, once the numbers of constraints and statistics are known.

        Most clients decide these numbers, of those that are expected if some are. The vote needs enough voters, or the
        end of the waiting time.
        """
        if not self._candidates or (self._greetings and not time_is_up):
            return
        by_name, count = self._candidates_by_name, len(self._candidates)
        if not (self._met or self._owners) and count > 1 and len(by_name) == 1:
            advice = "give every client a unique name, such as one from its node's config (context.node_config)"
            raise ValueError(f"all {count} nodes call themselves {next(iter(by_name))!r}: {advice}")
        voters = [client for name, client in by_name.items() if not self._expected or name in self._expected]
        unknown = [name for name in ("constraints", "statistics") if getattr(self, name) is None]
        if unknown and len(voters) < self._min_votes and not time_is_up:
            return
        for name in unknown:
            setattr(self, name, _majority(voters or list(by_name.values()), name))
        candidates, self._candidates = self._candidates, {}
        for node in sorted(candidates, key=lambda node: (_sort_key(candidates[node].name), node)):
            self._admit(node, candidates[node])

    def _admit(self, node: int, client: ClientInfo) -> None:
        index = self._indices.get(confusable_key(client.name), len(self.names))
        is_new = index == len(self.names)
        known, name = (None, client.name) if is_new else (self.clients[index], self.names[index])
        current_node = self.connected.get(index)
        reported = f"it reports {client.rows:,} rows and {client.held_out_rows:,} held-out rows"
        problem = None
        if is_new and self._is_closed:
            problem = "secure aggregation has a fixed cohort, the names of the settings, without it"
        elif client.constraints != self.constraints:
            problem = f"it has {client.constraints} constraints, the others {self.constraints}"
        elif self.statistics and client.statistics != self.statistics:
            problem = f"it has {client.statistics} statistics, the others {self.statistics}"
        elif client.name != name:
            problem = f"its name {wire.sanitize(client.name)!r} looks like that of {name!r}"
        elif known is not None and (known.rows, known.held_out_rows) != (client.rows, client.held_out_rows):
            before = f"it reported {known.rows:,} and {known.held_out_rows:,} before"
            problem = f"{reported}, but {before}: a client's rows must not change in a run"
        elif current_node is not None and not self._owners:
            problem = f"client {name!r} is connected already"
        if problem is not None:
            self._turn_away(node, problem, client.name)
            return
        if is_new:
            self._indices[confusable_key(name)] = index
            self.names.append(name)
            self.clients.append(None)
        self._nodes[node], self.clients[index] = index, client
        self._client_backoff.reset(index)  # it has just replied
        if current_node is not None:
            del self._nodes[current_node]
            self._turned_away.add(current_node)
            reason = f"it is now node {node}, no longer node {current_node}: it has reconnected with the same key"
            wire.log_event(self.events, "replaced", reason, client=name, node=node)
            return
        self.events.record("met", reported, client=name, node=node)

    def _turn_away(self, node: int, reason: str, client: str | None = None) -> None:
        wire.log_event(self.events, "turned away", reason, client=client, node=node)
        self._turned_away.add(node)

    def _exclude_node(self, node: int, name: str) -> None:
        logger.info("client %r is excluded", name)
        self.excluded.add(confusable_key(name))
        self.events.record("excluded", "it does not take part (exclude)", client=name, node=node)
        self._turned_away.add(node)


def _majority(clients: Sequence[ClientInfo], name: str) -> int:
    counts = Counter(getattr(client, name) for client in clients).most_common()
    if len(counts) > 1 and counts[0][1] == counts[1][1]:
        votes = ", ".join(f"{clients} with {number}" for number, clients in counts)
        advice = ": set constraints" if name == "constraints" else ""
        raise ValueError(f"clients differ in their number of {name}, and there is no majority ({votes}){advice}")
    if not counts[0][0]:
        raise ValueError("pooled needs clients with an attribute statistics, the number of their additive statistics")
    return int(counts[0][0])


def _sort_key(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts "site 10" after "site 9"."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]
