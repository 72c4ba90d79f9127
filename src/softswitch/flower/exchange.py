"""An exchange: messages out, replies back, within a time limit.

Flower's own ``send_and_receive`` sleeps for seconds between two looks and tells a lost client only by its absence. Here
the looks begin close together and grow rarer, and every message gets its own answer: a reply, or why there is none.
Failures are told apart by the message they answer, since Flower may put its own id where the client's should be.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from softswitch.flower import messages as wire

logger = logging.getLogger("softswitch.flower")
FIRST_LOOK, RAREST_LOOK = 0.002, 0.5
"""Seconds from one look for replies to the next: at first, and at most."""


CLIENT_RAISED = 2
"""Flower's code for a ClientApp that raised: to ask it again is of no use."""


class Lost(Exception):  # noqa: N818 (what became of a client, not an error of ours)
    """A client did not answer; the text says what is known of it.

    Attributes:
        for_good: whether it would do the same again.
        silent: whether nothing at all came from it in all the time it had.
    """

    def __init__(self, why: str, *, for_good: bool = False, silent: bool = False) -> None:
        super().__init__(why)
        self.for_good = for_good
        self.silent = silent


class Outstanding:
    """Messages that were sent and are not answered yet, each known by a number that whoever asks chooses.

    Args:
        grid: Flower's.
        timeout: seconds that each has for its answer.
    """

    def __init__(self, grid: Grid, timeout: float) -> None:
        self._grid = grid
        self._timeout = timeout
        self._waiting: dict[str, tuple[int, float]] = {}  # message's id -> its number, and until when
        self._unsent: list[int] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._unsent)

    @property
    def numbers(self) -> set[int]:
        """Those that are not answered yet."""
        return {number for number, _ in self._waiting.values()} | set(self._unsent)

    def send(self, messages: Mapping[int, Message], timeout: float | None = None) -> None:
        """Send messages.

        Args:
            messages: by their numbers.
            timeout: seconds that these have.
        """
        if not messages:
            return
        sent = set(self._grid.push_messages(list(messages.values())))
        until = time.monotonic() + (self._timeout if timeout is None else timeout)
        for number, message in messages.items():
            if message.metadata.message_id in sent:
                self._waiting[message.metadata.message_id] = number, until
            else:
                self._unsent.append(number)

    def forget(self, numbers: Iterable[int]) -> None:
        """Wait for these no longer: whatever they answer is ignored."""
        gone = set(numbers)
        self._waiting = {own: (number, until) for own, (number, until) in self._waiting.items() if number not in gone}

    def hear(self) -> list[tuple[int, Message | Lost]]:
        """What has come since, with the numbers of the messages it answers; and what has taken too long."""
        found: list[tuple[int, Message | Lost]] = [(one, Lost("the message could not be sent")) for one in self._unsent]
        self._unsent = []
        if not self._waiting:
            return found
        now = time.monotonic()
        for message_id, answer in _pull(self._grid, list(self._waiting)):
            number, _ = self._waiting.pop(message_id, (None, 0.0))
            if number is not None:
                found.append((number, answer))
        for message_id, (number, until) in list(self._waiting.items()):
            if now >= until:
                del self._waiting[message_id]
                found.append((number, Lost(f"no answer within {self._timeout:g} s", silent=True)))
        return found


def pauses() -> Iterator[float]:
    """Seconds from one look for answers to the next: short at first, then ever longer."""
    pause = FIRST_LOOK
    while True:
        yield pause
        pause = min(1.3 * pause, RAREST_LOOK)


def exchange(
    grid: Grid, messages: Sequence[Message], timeout: float, enough: int | None = None
) -> list[Message | Lost]:
    """Send messages and wait for replies, each in its message's place.

    Args:
        grid: Flower's.
        messages: one a client.
        timeout: seconds to wait; what has not come by then is lost.
        enough: as soon as so many replies have come that are no refusals, the others are not waited for; None: all are.
    """
    answers: list[Message | Lost] = [Lost("the message could not be sent")] * len(messages)
    outstanding, replies = Outstanding(grid, timeout), 0
    outstanding.send(dict(enumerate(messages)))
    until = time.monotonic() + timeout
    for pause in pauses():
        for place, answer in outstanding.hear():
            answers[place] = answer
            replies += isinstance(answer, Message) and wire.read_refusal(answer.content) is None
        if not outstanding:
            return answers
        if enough is not None and replies >= enough:
            break
        time.sleep(max(0.0, min(pause, until - time.monotonic())))
    for place in outstanding.numbers:
        answers[place] = Lost(f"it was not waited for: {replies} of {len(messages)} had answered (quorum)")
    return answers


def _pull(grid: Grid, ids: list[str]) -> Iterator[tuple[str, Message | Lost]]:
    """The answers so far, by the message they answer. One that cannot be read does not spoil the others."""
    try:
        for reply in grid.pull_messages(ids):
            yield reply.metadata.reply_to_message_id, _failure(reply) if reply.has_error() else reply
    except Exception as error:
        if len(ids) == 1:
            logger.warning("an answer could not be read: %s", wire.sanitize(repr(error)))
            yield ids[0], Lost("its answer could not be read")
            return
        for one in ids:
            yield from _pull(grid, [one])


def _failure(reply: Message) -> Lost:
    """Why a client failed: of a stack of calls only the error's own line."""
    reason = (reply.error.reason or "no reason given").strip()
    own = [line for line in reason.splitlines() if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)]
    why = wire.sanitize(own[-1] if own and reason.startswith("Traceback") else reason)
    return Lost(f"error {reply.error.code}: {why}", for_good=reply.error.code == CLIENT_RAISED)


class PromptGrid(Grid):
    """A grid that waits as ``exchange`` does, and remembers what came to which message.

    Attributes:
        answers: of the last ``send_and_receive``, in the order of its messages.
    """

    def __init__(self, grid: Grid, timeout: float, enough: Callable[[int], int | None] | None = None) -> None:
        self._grid = grid
        self._timeout = timeout
        self._enough = enough
        self.answers: list[Message | Lost] = []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send and wait; failures are left out here."""
        asked = list(messages)
        enough = None if self._enough is None else self._enough(len(asked))
        self.answers = exchange(self._grid, asked, self._timeout if timeout is None else timeout, enough)
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

    def get_nodes(self) -> Iterable[Any]:
        """As the grid."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As the grid."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As the grid."""
        return self._grid.pull_messages(message_ids)
