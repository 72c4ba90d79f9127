"""Compressed messages: encoding of parameters and directions, error feedback, and which parameters clients hold.

This module must not import JAX, because clients import it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from softswitch.flower import messages as wire
from softswitch.flower.messages import require
from softswitch.methods.compressors import TopK

if TYPE_CHECKING:
    from softswitch.methods.compression import Compression
    from softswitch.results.history import ClientHistory

CHANGE, CODE, CODES, DIGEST = "change", "code", "codes", "digest"
"""The name of the record with parameter changes, and of the entries of compressed records."""
UP, DOWN, LAST_COUNTED = "up", "down", "last_counted"
"""The settings of compression that the server sends in every round."""
NEEDS_PARAMS = "needs_params"  # the entry of a refusal from a client that can continue with whole parameters
ERRORS, NEXT_ERRORS, ERROR_ROUNDS = "errors", "next_errors", "error_rounds"
"""The records of error feedback in a client's context."""
MAX_CHANGES = 10**6


class OutdatedParamsError(Exception):
    """The client lacks the parameters that a change applies to, and must be sent whole ones."""


def describe_compressor(compressor: TopK) -> str:
    """Return the text by which a compressor is sent to clients."""
    return json.dumps(asdict(compressor))


def parse_compressor(settings: Mapping[str, Any], name: str) -> TopK:
    """Return the compressor that the server describes in a setting."""
    try:
        return TopK(**json.loads(str(settings[name])))
    except (KeyError, TypeError, ValueError) as error:
        raise wire.InvalidMessageError(f"its {name} is not a known compressor: {wire.sanitize(str(error))}") from error


def to_vector(arrays: Mapping[str, Any]) -> np.ndarray:
    """Return all entries in one vector, in the order of the arrays' names."""
    return np.concatenate([np.asarray(arrays[name]).reshape(-1) for name in sorted(arrays)])


def from_vector(vector: np.ndarray, specs: Mapping[str, wire.ArraySpec]) -> wire.Arrays:
    """Return the arrays of a vector, the inverse of ``to_vector``."""
    names = sorted(specs)
    ends = np.cumsum([math.prod(specs[name].shape) for name in names])
    parts = zip(names, np.split(vector, ends[:-1]), strict=True)
    return {name: part.reshape(specs[name].shape).astype(specs[name].dtype) for name, part in parts}


def decode(compressor: TopK, code: Any, specs: Mapping[str, wire.ArraySpec]) -> wire.Arrays:
    """Return the arrays of a code, or raise ``InvalidMessageError`` if it is malformed or not finite."""
    dtype = np.result_type(*(spec.dtype for spec in specs.values()))
    require(isinstance(code, bytes), f"its code must be bytes, but is {type(code).__name__}")
    try:
        vector = compressor.decode(code, sum(math.prod(spec.shape) for spec in specs.values()), dtype)
    except ValueError as error:
        raise wire.InvalidMessageError(f"its code does not match the compressor: {error}") from error
    require(np.isfinite(vector).all(), "its code contains NaN or infinity")
    return from_vector(vector, specs)


def parse_direction(record: Any, compressor: TopK, specs: Mapping[str, wire.ArraySpec]) -> wire.Arrays:
    """Return a client's compressed direction, or raise ``InvalidMessageError``."""
    is_code = isinstance(record, ConfigRecord) and set(record) == {CODE}
    require(is_code, "it contains no compressed direction; upgrade softswitch at the client")
    require(record[CODE] != b"", "its direction contains NaN or infinity")
    direction = decode(compressor, record[CODE], specs)
    for part in direction.values():
        wire.check_size("its direction", part)
    return direction


def apply_change(params: Mapping[str, Any], change: wire.Arrays) -> wire.Arrays:
    """Return the parameters after a change; NumPy gives the same bits at server and client."""
    return {name: np.asarray(array) + change[name] for name, array in params.items()}


def digest(params: Mapping[str, Any]) -> bytes:
    """Return a hash that identifies parameters at server and client."""
    result = hashlib.blake2b(digest_size=16)
    for name in sorted(params):
        result.update(np.ascontiguousarray(params[name]).tobytes())
    return result.digest()


def count_bytes(record: Any) -> int:
    """Return the number of bytes of a record's arrays or codes."""
    if isinstance(record, ArrayRecord):
        return sum(len(array.data) for array in record.values())
    codes: Any = record.get(CODES, [record.get(CODE)]) if isinstance(record, ConfigRecord) else []
    return sum(len(code) for code in codes if isinstance(code, bytes)) if isinstance(codes, list) else 0


def read_params(message: Message, context: Context) -> tuple[ArrayRecord, list[wire.Arrays]]:
    """Return the round's parameters at the client, and the parameters before the last change applied here, if any.

    The parameters are either in the message, or those in the context with the changes in the message applied.
    """
    change = message.content.get(CHANGE)
    if not isinstance(change, ConfigRecord):
        whole: Any = message.content.get(wire.PARAMS)
        return whole, []
    expected, held = change.get(DIGEST), context.state.get(wire.PARAMS)
    if not isinstance(held, ArrayRecord):
        raise OutdatedParamsError("it has no parameters: it is new or was restarted")
    params = wire.from_record(held)
    if digest(params) == expected:  # a repeated message: the reply to the first one was lost
        return held, []
    codes: Any = change.get(CODES, [])
    is_valid = isinstance(codes, list) and len(codes) <= MAX_CHANGES
    require(is_valid, f"its changes of the parameters must be a list of at most {MAX_CHANGES:,} codes")
    compressor = parse_compressor(wire.get_config(message.content, wire.SETTINGS), DOWN)
    specs, earlier = wire.array_specs(params), list[wire.Arrays]()
    for code in codes:
        earlier = [params]
        params = apply_change(params, decode(compressor, code, specs))
    if digest(params) != expected:
        raise OutdatedParamsError("its parameters are not those that the change applies to")
    return wire.to_record(params), earlier


def settle_errors(settings: ConfigRecord, context: Context) -> None:
    """Keep the compression error of the client's last direction if that direction was counted.

    Errors are reset if client and server disagree about the last counted round, for example after a server restart.
    """
    if LAST_COUNTED not in settings:
        return
    counted: Any = settings[LAST_COUNTED]
    is_valid = isinstance(counted, int) and counted >= -1
    require(is_valid, f"its {LAST_COUNTED} must be a round or −1, but is {counted!r:.80}")
    rounds: Any = context.state.get(ERROR_ROUNDS) or {"settled": -1, "next": -1}
    errors, next_errors = context.state.get(ERRORS), context.state.get(NEXT_ERRORS)
    if counted >= 0 and rounds["next"] == counted and isinstance(next_errors, ArrayRecord):
        context.state[ERRORS] = next_errors
    elif rounds["settled"] != counted or not isinstance(errors, ArrayRecord):
        context.state[ERRORS] = wire.to_record({})
    context.state[NEXT_ERRORS] = wire.to_record({})
    context.state[ERROR_ROUNDS] = ConfigRecord({"settled": counted, "next": -1})


def compress_direction(
    direction: wire.Arrays, settings: ConfigRecord, decision: ConfigRecord, context: Context
) -> ConfigRecord:
    """Return the compressed sum of a direction and the client's kept error; store the new error until it counts."""
    compressor = parse_compressor(settings, UP)
    vector, held = to_vector(direction), context.state.get(ERRORS)
    if not np.isfinite(vector).all():
        return ConfigRecord({CODE: b""})
    errors = wire.from_record(held) if isinstance(held, ArrayRecord) else {}
    branch = "objective" if decision.get("feasible", True) else "constraint"
    error = errors.get(branch)
    if error is not None and error.shape == vector.shape:
        vector = error.astype(vector.dtype) + vector
    code = compressor.encode(vector)
    error = vector - compressor.decode(code, len(vector), vector.dtype)
    rounds: Any = context.state.get(ERROR_ROUNDS) or {"settled": -1}
    context.state[NEXT_ERRORS] = wire.to_record({**errors, branch: error})
    next_round = wire.read(settings, "round", int)
    context.state[ERROR_ROUNDS] = ConfigRecord({"settled": rounds["settled"], "next": next_round})
    return ConfigRecord({CODE: code})


# ---- the server's part


class HeldParams:
    """Tracks which parameters each client holds, and its last counted direction, to send no more than it needs.

    A client that replied in a round holds that round's parameters. With compressed changes it is sent only the changes
    since then. All other clients, and all clients after a server restart, are sent whole parameters, as is a client
    that requests them. With ``reports_twice`` clients also report at w_{k−1}, which is sent to those that lack it.
    """

    def __init__(self, compression: Compression | None, *, reports_twice: bool) -> None:
        self._up = None if compression is None else compression.up
        self._down = None if compression is None else compression.down
        self.reports_twice = reports_twice
        self._codes: dict[bytes, bytes] = {}  # digest of parameters -> code of the change that follows them
        self._digest = self._previous_digest = b""
        self._record, self._previous = ArrayRecord(), ArrayRecord()
        self._held: dict[int, bytes] = {}  # client -> digest of the parameters it holds
        self._counted: dict[int, int] = {}  # client -> last round in which its direction counted
        self.down = 0  # number of bytes of parameters sent in the present round
        self.settings = dict[str, Any]()  # settings of a round that all clients need
        if self._up is not None:
            self.settings[UP] = describe_compressor(self._up)
        if self._down is not None:
            self.settings[DOWN] = describe_compressor(self._down)

    def restore(self, history: ClientHistory, begin: int) -> None:
        """Restore the last counted directions from a history, beginning at round ``begin``."""
        for k in range(begin, len(history.clients)):
            self._note_counted(k, history.clients[k], history.outcomes[k])

    def _note_counted(self, k: int, clients: Any, outcomes: Any) -> None:
        from softswitch.results.history import ClientOutcome  # imports JAX

        counted = np.asarray(clients)[np.asarray(outcomes) == ClientOutcome.COUNTED]
        self._counted |= dict.fromkeys(counted.tolist(), k)

    def begin(self, params: Mapping[str, Any], previous: Mapping[str, Any] | None) -> None:
        """Begin a round at w_k = ``params``; ``previous`` is w_{k−1} if clients report there too."""
        self.down, self._record = 0, wire.to_record(params)
        if self._down is None and not self.reports_twice:
            return
        current = digest(params)
        if current != self._digest:  # the changes do not lead to these parameters
            self._codes, self._digest = {}, current
        whole = count_bytes(self._record)
        while sum(map(len, self._codes.values())) >= whole:  # whole parameters need fewer bytes
            del self._codes[next(iter(self._codes))]
        if previous is not None and self.reports_twice:
            self._previous, self._previous_digest = wire.to_record(previous), digest(previous)
            self.settings[wire.PREVIOUS] = self._previous_digest

    def content(self, index: int, settings: Mapping[str, Any], begin: int) -> RecordDict:
        """Return the content of a client's first message in a round; no error is kept from before round ``begin``."""
        client_settings, held = {**settings, **self.settings}, self._held.get(index)
        if self._up is not None:
            counted = self._counted.get(index, -1)
            client_settings[LAST_COUNTED] = counted if counted >= begin else -1
        content = RecordDict({wire.SETTINGS: ConfigRecord(client_settings)})
        digests = [*self._codes, self._digest]
        if self._down is not None and held in digests:
            codes = list(self._codes.values())[digests.index(held) :]
            content[CHANGE] = ConfigRecord({CODES: codes, DIGEST: self._digest})
        else:
            content[wire.PARAMS] = self._record
            if self.reports_twice and self._previous_digest not in (self._digest, held):
                content[wire.PREVIOUS] = self._previous
        self.down += sum(count_bytes(content.get(name)) for name in (wire.PARAMS, CHANGE, wire.PREVIOUS))
        return content

    def record_reply(self, index: int, reply: Any) -> None:
        """Note whether a client holds the round's parameters: it replied and did not refuse."""
        has_replied = isinstance(reply, Message) and wire.read_refusal(reply.content) is None
        self._held[index] = self._digest if has_replied else b""

    def end_round(self, k: int, clients: Any, outcomes: Any, code: bytes | None, params: Mapping[str, Any]) -> None:
        """Note whose direction counted, the code of the parameters' change, if any, and the new parameters."""
        self._note_counted(k, clients, outcomes)
        if code is not None:
            self._codes[self._digest] = code
            self._digest = digest(params)


def needs_params(reply: Any) -> bool:
    """Return whether a client refused because it must be sent whole parameters."""
    refusal = reply.content.get(wire.REFUSAL) if isinstance(reply, Message) else None
    return isinstance(refusal, ConfigRecord) and refusal.get(NEEDS_PARAMS) is True
