"""The server's side: which parameters every client has, whose direction counted last, and how many bytes were sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from softswitch.flower import codec as codes
from softswitch.flower import messages as wire
from softswitch.flower.local_client import PREVIOUS, PreviousParams
from softswitch.methods.compression import Compression
from softswitch.results.history import ClientOutcome


class ClientParams:
    """What a server that compresses knows of its clients; of a resumed run only whose direction counted.

    Whoever has answered in a round has its parameters. All others, and everyone after a restart of the server, are sent
    whole ones; so is a client that says that it needs them.

    Args:
        way: how messages are compressed.
    """

    def __init__(self, way: Compression) -> None:
        self._way = way
        self._codes: list[bytes] = []  # the changes up to the present parameters
        self._dropped = 0  # how many there were before those
        self._digest = b""
        self._has: dict[int, int] = {}  # client -> how many changes it has
        self._counted: dict[int, int] = {}
        self.down = 0

    @property
    def told(self) -> dict[str, Any]:
        """What all clients must know."""
        found: dict[str, Any] = {}
        if self._way.up is not None:
            found |= {codes.UP: codes.describe_compressor(self._way.up), codes.APART: bool(self._way.apart)}
        if self._way.changes is not None:
            found[codes.DOWN] = codes.describe_compressor(self._way.changes)
        return found

    def recall(self, clients: np.ndarray, outcomes: np.ndarray, begin: int) -> None:
        """Take from a history whose direction counted last, since the round ``begin``."""
        self._counted = {}
        for k in range(begin, len(clients)):
            self._note(k, clients[k], outcomes[k])

    def _note(self, k: int, clients: Any, outcomes: Any) -> None:
        for client, fate in zip(clients, outcomes, strict=True):
            if fate == ClientOutcome.COUNTED:
                self._counted[int(client)] = k

    def content(
        self,
        index: int,
        params: Mapping[str, Any],
        settings: ConfigRecord,
        begin: int,
        before: PreviousParams | None = None,
    ) -> RecordDict:
        """What a client is sent in the first exchange of a round.

        Args:
            index: which client.
            params: w_k.
            settings: of the round.
            begin: the first round of the present cycle: nothing is owed from before.
            before: who has w_{k−1}, where clients report there too.
        """
        own = dict(settings)
        if not self._way.up_exactly:
            counted = self._counted.get(index, -1)
            own[codes.LAST_COUNTED] = counted if counted >= begin else -1
        known: dict[str, Any] = {wire.SETTINGS: ConfigRecord(own)}
        change = self._change(index)
        if change is not None:
            known[codes.CHANGE] = ConfigRecord({codes.CODES: change, codes.DIGEST: self._digest})
            self.down += codes.count_bytes(known[codes.CHANGE])
        else:
            known[wire.PARAMS] = wire.to_record(params)
            self.down += codes.count_bytes(known[wire.PARAMS])
        content = RecordDict(known)
        if before is None:
            return content
        content = before.beside(index, content)
        self.down += codes.count_bytes(content.get(PREVIOUS))
        return content

    def begin(self, params: Mapping[str, Any]) -> None:
        """A round begins at these parameters: where they are not those of the last change, nobody has them.

        Args:
            params: w_k.
        """
        self.down = 0
        if self._way.changes is None:
            return
        now = codes.digest(params)
        if now != self._digest:
            self._forget_codes()
            self._digest = now
        whole = sum(np.asarray(part).nbytes for part in params.values())
        while sum(map(len, self._codes)) >= whole:  # whole parameters take fewer bytes
            del self._codes[0]
            self._dropped += 1

    def heard(self, index: int, answer: Any) -> None:
        """Note whether a client has the round's parameters: it has them once it has answered."""
        if isinstance(answer, Message) and wire.read_refusal(answer.content) is None:
            self._has[index] = self._dropped + len(self._codes)
        else:
            self._has.pop(index, None)

    def after_round(self, k: int, clients: Any, outcomes: Any, code: bytes | None, params: Mapping[str, Any]) -> None:
        """Note whose direction counted, and how the parameters changed.

        Args:
            k: the round.
            clients: who was asked.
            outcomes: what became of each.
            code: the change; None where there was none.
            params: after it.
        """
        self._note(k, clients, outcomes)
        if code is not None:
            self._codes.append(code)
            self._digest = codes.digest(params)

    def _change(self, index: int) -> list[bytes] | None:
        """The changes that a client lacks; None where it must be sent whole parameters."""
        has = self._has.get(index)
        if self._way.changes is None or has is None or has < self._dropped:
            return None
        return self._codes[has - self._dropped :]

    def _forget_codes(self) -> None:
        self._codes, self._dropped, self._has = [], 0, {}


def needs_params(answer: Any) -> bool:
    """Whether a client says that it takes part once it is sent whole parameters.

    Args:
        answer: to a report.
    """
    told = answer.content.get(wire.REFUSAL) if isinstance(answer, Message) else None
    return isinstance(told, ConfigRecord) and told.get(codes.NEEDS_PARAMS) is True
