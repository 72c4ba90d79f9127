"""An exchange: messages out, replies back, within a time limit.

Flower's own ``send_and_receive`` sleeps for seconds between two looks and tells a lost client only by its absence. Here
the looks begin close together and grow rarer, and every message gets its own answer: a reply, or why there is none.
Failures are told apart by the message they answer, since Flower may put its own id where the client's should be.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from softswitch.engines.flower import wire

logger = logging.getLogger("softswitch.flower")
FIRST_LOOK, RAREST_LOOK = 0.002, 0.5
"""Seconds from one look for replies to the next: at first, and at most."""


CLIENT_RAISED = 2
"""Flower's code for a ClientApp that raised: to ask it again is of no use."""


class Lost(Exception):  # noqa: N818 (what became of a client, not an error of ours)
    """A client did not answer; the text says what is known of it.

    Attributes:
        for_good: whether it would do the same again.
    """

    def __init__(self, why: str, *, for_good: bool = False) -> None:
        super().__init__(why)
        self.for_good = for_good


def exchange(grid: Grid, messages: Sequence[Message], timeout: float) -> list[Message | Lost]:
    """Send messages and wait for replies, each in its message's place.

    Args:
        grid: Flower's.
        messages: one a client.
        timeout: seconds to wait; what has not come by then is lost.
    """
    if not messages:
        return []
    messages = list(messages)
    sent = set(grid.push_messages(messages))
    answers: list[Message | Lost] = [Lost("the message could not be sent")] * len(messages)
    ids = {message.metadata.message_id: place for place, message in enumerate(messages)}
    waiting = {message_id: place for message_id, place in ids.items() if message_id in sent}
    until, pause = time.monotonic() + timeout, FIRST_LOOK
    while waiting:
        for message_id, answer in _pull(grid, list(waiting)):
            place = waiting.pop(message_id, None)
            if place is not None:
                answers[place] = answer
        if not waiting:
            break
        left = until - time.monotonic()
        if left <= 0:
            break
        time.sleep(min(pause, left))
        pause = min(1.3 * pause, RAREST_LOOK)
    for place in waiting.values():
        answers[place] = Lost(f"no answer within {timeout:g} s")
    return answers


def _pull(grid: Grid, ids: list[str]) -> Iterator[tuple[str, Message | Lost]]:
    """The answers so far, by the message they answer. One that cannot be read does not spoil the others."""
    try:
        for reply in grid.pull_messages(ids):
            yield reply.metadata.reply_to_message_id, _failure(reply) if reply.has_error() else reply
    except Exception as error:
        if len(ids) == 1:
            logger.warning("an answer could not be read: %s", wire.said(repr(error)))
            yield ids[0], Lost("its answer could not be read")
            return
        for one in ids:
            yield from _pull(grid, [one])


def _failure(reply: Message) -> Lost:
    """Why a client failed: of a stack of calls only the error's own line."""
    reason = (reply.error.reason or "no reason given").strip()
    own = [line for line in reason.splitlines() if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)]
    why = wire.said(own[-1] if own and reason.startswith("Traceback") else reason)
    return Lost(f"error {reply.error.code}: {why}", for_good=reply.error.code == CLIENT_RAISED)


class PromptGrid(Grid):
    """A grid that waits as ``exchange`` does, and remembers what came to which message.

    Attributes:
        answers: of the last ``send_and_receive``, in the order of its messages.
    """

    def __init__(self, grid: Grid, timeout: float) -> None:
        self._grid = grid
        self._timeout = timeout
        self.answers: list[Message | Lost] = []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send and wait; failures are left out here."""
        self.answers = exchange(self._grid, list(messages), self._timeout if timeout is None else timeout)
        return [answer for answer in self.answers if isinstance(answer, Message)]

    def set_run(self, run: Any) -> None:
        """As the grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """As the grid."""
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """As the grid."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """As the grid."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As the grid."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As the grid."""
        return self._grid.pull_messages(message_ids)
