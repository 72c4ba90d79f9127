"""Exchanges of messages with clients, within a time limit.

Flower's ``send_and_receive`` polls every few seconds and drops failures. These functions poll often at first and ever
less often later, and return one result for each message: its reply, or the reason why there is none.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from softswitch.flower import messages as wire
from softswitch.results.events import EventLog

logger = logging.getLogger("softswitch.flower")
SHORTEST_POLL, LONGEST_POLL = 0.002, 0.5  # the first and the longest interval between two polls, in seconds
CLIENT_RAISED = 2  # Flower's error code for a ClientApp that raised an exception


class NoReply(Exception):  # noqa: N818 (the outcome of a message, not an error of the server)
    """A client sent no usable reply, for the reason in the text.

    It is ``permanent`` if the client would fail again, ``silent`` if nothing came before the timeout.
    """

    def __init__(self, reason: str, *, permanent: bool = False, silent: bool = False) -> None:
        super().__init__(reason)
        self.permanent, self.silent = permanent, silent


class RefusedError(wire.InvalidMessageError):
    """A client refused a request, for the reason in the text."""


Reply = Message | NoReply


def log_event(events: EventLog, what: str, why: str, *, client: str | None = None, node: int | None = None) -> None:
    """Record an event of a client or node, and log it as a warning."""
    who = f"node {node}" if client is None else f"client {client!r}"
    logger.warning("%s%s is %s: %s", "" if events.round is None else f"round {events.round}: ", who, what, why)
    events.record(what, why, client=client, node=node)


def check_reply(reply: Reply) -> RecordDict:
    """Return the content of a reply; raise the failure, or ``RefusedError`` for a refusal."""
    if isinstance(reply, NoReply):
        raise reply
    if (reason := wire.read_refusal(reply.content)) is not None:
        raise RefusedError(f"it refused: {reason}")
    return reply.content


class PendingMessages:
    """Messages that were sent and have no reply yet, each identified by an integer that the caller chooses."""

    def __init__(self, grid: Grid, timeout: float) -> None:
        self._grid, self._timeout = grid, timeout
        self._pending: dict[str, tuple[int, float]] = {}  # message id -> (key, deadline)
        self._unsent: list[int] = []

    def __len__(self) -> int:
        return len(self._pending) + len(self._unsent)

    @property
    def keys(self) -> set[int]:
        """The keys of the pending messages."""
        return {key for key, _ in self._pending.values()} | set(self._unsent)

    def send(self, messages: Mapping[int, Message]) -> None:
        """Send messages by their keys."""
        sent = set(self._grid.push_messages(list(messages.values()))) if messages else ()
        deadline = time.monotonic() + self._timeout
        for key, message in messages.items():
            if message.metadata.message_id in sent:
                self._pending[message.metadata.message_id] = key, deadline
            else:
                self._unsent.append(key)

    def poll(self) -> list[tuple[int, Reply]]:
        """Return the replies, failures and timeouts since the last poll, with the keys of their messages."""
        results: list[tuple[int, Reply]] = [(key, NoReply("the message could not be sent")) for key in self._unsent]
        self._unsent = []
        if not self._pending:
            return results
        now = time.monotonic()
        for message_id, reply in _pull(self._grid, list(self._pending)):
            if message_id in self._pending:
                results.append((self._pending.pop(message_id)[0], reply))
        for message_id, (key, deadline) in list(self._pending.items()):
            if now >= deadline:
                del self._pending[message_id]
                results.append((key, NoReply(f"no reply within {self._timeout:g} s", silent=True)))
        return results


def poll_intervals() -> Iterator[float]:
    """Yield the seconds to sleep between polls, short at first and growing up to a limit."""
    interval = SHORTEST_POLL
    while True:
        yield interval
        interval = min(1.3 * interval, LONGEST_POLL)


def exchange(grid: Grid, messages: Sequence[Message], timeout: float) -> list[Reply]:
    """Send messages and wait for the replies; return them, or the reasons why there are none, in order."""
    results: dict[int, Reply] = {}
    pending = PendingMessages(grid, timeout)
    pending.send(dict(enumerate(messages)))
    deadline = time.monotonic() + timeout
    for interval in poll_intervals():
        results |= dict(pending.poll())
        if not pending:
            break
        time.sleep(max(0.0, min(interval, deadline - time.monotonic())))
    return [results[place] for place in range(len(messages))]


def _pull(grid: Grid, ids: list[str]) -> Iterator[tuple[str, Reply]]:
    """Yield the replies so far with the ids of their messages; an unreadable reply does not affect the rest."""
    try:
        for reply in grid.pull_messages(ids):
            yield reply.metadata.reply_to_message_id, _failure(reply) if reply.has_error() else reply
    except Exception as error:
        if len(ids) == 1:
            logger.warning("a reply could not be read: %s", wire.sanitize(repr(error)))
            yield ids[0], NoReply("its reply could not be read")
            return
        for message_id in ids:
            yield from _pull(grid, [message_id])


def _failure(reply: Message) -> NoReply:
    """Return why a client failed: the last line of a traceback, else the whole reason."""
    reason = (reply.error.reason or "no reason given").strip()
    errors = [line for line in reason.splitlines() if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)]
    text = wire.sanitize(errors[-1] if errors and reason.startswith("Traceback") else reason)
    return NoReply(f"error {reply.error.code}: {text}", permanent=reply.error.code == CLIENT_RAISED)
