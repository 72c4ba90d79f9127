"""The server's record of the parameters that each client holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from softswitch.flower import compression as codes
from softswitch.flower import messages as wire
from softswitch.methods.compression import Compression
from softswitch.results.history import ClientOutcome


class PreviousParams:
    """Tracks which clients hold w_{k−1}. After a server restart none is assumed to."""

    def __init__(self) -> None:
        self._held: dict[int, bytes] = {}  # client -> digest of the parameters it holds
        self._current = self.digest = b""
        self._record = ArrayRecord()

    def begin(self, params: Mapping[str, Any], previous: Mapping[str, Any]) -> None:
        """Begin a round at w_k = ``params`` with w_{k−1} = ``previous``."""
        self._current, self.digest = codes.digest(params), codes.digest(previous)
        self._record = wire.to_record(previous)

    def add_to(self, index: int, content: RecordDict) -> RecordDict:
        """Add w_{k−1} to the content for a client that is sent whole parameters and does not hold w_{k−1}."""
        if wire.PARAMS not in content or self.digest in (self._current, self._held.get(index)):
            return content
        return RecordDict({**content, wire.PREVIOUS: self._record})

    def record_reply(self, index: int, reply: Any) -> None:
        """Note that a client holds the round's parameters if it replied."""
        self._held.pop(index, None)
        if isinstance(reply, Message) and wire.read_refusal(reply.content) is None:
            self._held[index] = self._current


class ClientParams:
    """Tracks the parameter changes that each client has applied, and its last counted direction.

    A client that replied in a round holds that round's parameters. All other clients, and all clients after a server
    restart, are sent whole parameters, as is a client that requests them.

    Attributes:
        down: Bytes of parameters sent in the present round.
    """

    def __init__(self, compression: Compression) -> None:
        self._compression = compression
        self._codes: list[bytes] = []  # the changes up to the present parameters
        self._dropped = 0  # the number of earlier changes that are no longer kept
        self._digest = b""
        self._held: dict[int, int] = {}  # client -> number of changes it has applied
        self._counted: dict[int, int] = {}  # client -> last round in which its direction counted
        self.down = 0

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that all clients need."""
        settings: dict[str, Any] = {}
        if self._compression.up is not None:
            settings[codes.UP] = codes.describe_compressor(self._compression.up)
            settings[codes.APART] = bool(self._compression.apart)
        if self._compression.changes is not None:
            settings[codes.DOWN] = codes.describe_compressor(self._compression.changes)
        return settings

    def restore(self, clients: np.ndarray, outcomes: np.ndarray, begin: int) -> None:
        """Restore the last counted directions from a history, beginning at round ``begin``."""
        self._counted = {}
        for k in range(begin, len(clients)):
            self._note_counted(k, clients[k], outcomes[k])

    def _note_counted(self, k: int, clients: Any, outcomes: Any) -> None:
        for client, outcome in zip(clients, outcomes, strict=True):
            if outcome == ClientOutcome.COUNTED:
                self._counted[int(client)] = k

    def begin(self, params: Mapping[str, Any]) -> None:
        """Begin a round at these parameters; if the kept changes do not lead to them, forget the changes."""
        self.down = 0
        if self._compression.changes is None:
            return
        current = codes.digest(params)
        if current != self._digest:
            self._codes, self._dropped, self._held = [], 0, {}
            self._digest = current
        whole = sum(np.asarray(part).nbytes for part in params.values())
        while sum(map(len, self._codes)) >= whole:  # whole parameters need fewer bytes
            del self._codes[0]
            self._dropped += 1

    def content(
        self,
        index: int,
        params: Mapping[str, Any],
        settings: ConfigRecord,
        begin: int,
        previous: PreviousParams | None = None,
    ) -> RecordDict:
        """Return the content of a client's first message in a round; no error is kept from before round ``begin``."""
        client_settings = dict(settings)
        if not self._compression.up_exactly:
            counted = self._counted.get(index, -1)
            client_settings[codes.LAST_COUNTED] = counted if counted >= begin else -1
        content = RecordDict({wire.SETTINGS: ConfigRecord(client_settings)})
        held = self._held.get(index)
        if self._compression.changes is None or held is None or held < self._dropped:
            content[wire.PARAMS] = wire.to_record(params)
        else:
            changes = self._codes[held - self._dropped :]
            content[codes.CHANGE] = ConfigRecord({codes.CODES: changes, codes.DIGEST: self._digest})
        if previous is not None:
            content = previous.add_to(index, content)
        self.down += sum(codes.count_bytes(content.get(name)) for name in (wire.PARAMS, codes.CHANGE, wire.PREVIOUS))
        return content

    def record_reply(self, index: int, reply: Any) -> None:
        """Note that a client holds the round's parameters if it replied."""
        self._held.pop(index, None)
        if isinstance(reply, Message) and wire.read_refusal(reply.content) is None:
            self._held[index] = self._dropped + len(self._codes)

    def end_round(self, k: int, clients: Any, outcomes: Any, code: bytes | None, params: Mapping[str, Any]) -> None:
        """Note whose direction counted, the code of the parameters' change, if any, and the new parameters."""
        self._note_counted(k, clients, outcomes)
        if code is not None:
            self._codes.append(code)
            self._digest = codes.digest(params)


def needs_params(reply: Any) -> bool:
    """Return whether a client refused because it must be sent whole parameters."""
    refusal = reply.content.get(wire.REFUSAL) if isinstance(reply, Message) else None
    return isinstance(refusal, ConfigRecord) and refusal.get(codes.NEEDS_PARAMS) is True
