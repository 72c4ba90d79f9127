"""The iterate before, where clients report at it as well (``Memory(corrected=True)``): who has it, and who is sent it.

The server tells a digest of w_{k−1}. A client keeps the parameters that it was sent last, for its second exchange: if
it was asked in the round before, it has w_{k−1}; so it has where it comes to w_k by compressed changes, on its way. All
others are sent it beside w_k. A client that lacks it nevertheless, because it was started again, reports at w_k only,
and counts as one that is heard for the first time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, Context, Message, RecordDict

from softswitch.engines.flower import wire
from softswitch.engines.flower.compressed.codes import digest

BEFORE = "before"
"""The digest of w_{k−1} in a round's settings, and w_{k−1} itself in a message."""
EARLIER = "earlier"
"""What the same batch gave there, in a client's answer."""


def kept_or_sent(
    wanted: Any, params: wire.Arrays, came_by: Iterable[wire.Arrays], message: Message, context: Context
) -> wire.Arrays | None:
    """w_{k−1}, if the client has it; None where it has not.

    Args:
        wanted: its digest, as the server tells it.
        params: w_k.
        came_by: the parameters that it came by on the way to w_k.
        message: the server's.
        context: Flower's, as the last round left it.
    """
    if not isinstance(wanted, bytes):
        raise wire.Unacceptable(f"its {BEFORE} must be a digest, but is {wanted!r:.80}")
    if digest(params) == wanted:  # a run, or a cycle of one, begins: there is no other before it
        return params
    records = message.content.get(BEFORE), context.state.get(wire.PARAMS)
    held = (wire.from_record(record) for record in records if isinstance(record, ArrayRecord))
    for found in (*came_by, *held):
        if digest(found) == wanted:
            return found
    return None


class BeforeAtClients:
    """The server's side: which clients have w_{k−1}. After a restart it knows of none, and all are sent it."""

    def __init__(self) -> None:
        self._has: dict[int, bytes] = {}
        self._now = self.digest = b""
        self._record = ArrayRecord()

    def begin(self, params: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        """A round begins.

        Args:
            params: w_k.
            before: w_{k−1}.
        """
        self._now, self.digest, self._record = digest(params), digest(before), wire.to_record(before)

    def beside(self, index: int, content: RecordDict) -> RecordDict:
        """What a client is sent, with w_{k−1} where it gets whole parameters and has it not.

        Args:
            index: which client.
            content: what it is sent anyway.
        """
        if wire.PARAMS not in content or self.digest in (self._now, self._has.get(index)):
            return content
        return RecordDict({**content, BEFORE: self._record})

    def heard(self, index: int, answer: Any) -> None:
        """Note whether a client has the round's parameters: it has them once it has answered.

        Args:
            index: which client.
            answer: to its report.
        """
        self._has.pop(index, None)
        if isinstance(answer, Message) and wire.refused(answer.content) is None:
            self._has[index] = self._now
