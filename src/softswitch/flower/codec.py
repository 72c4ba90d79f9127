"""Arrays by name as one vector, as bytes, and back; and how a way to compress is told. No JAX: clients use it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord

from softswitch.flower import messages as wire
from softswitch.methods.compressors import Compressor, Quantised, TopK

CHANGE, CODE, CODES, DIGEST = "change", "code", "codes", "digest"
"""The names of a record and of what records hold."""
UP, DOWN, APART, LAST_COUNTED = "up", "down", "apart", "last_counted"
"""What the server tells of compression with the settings of a round."""
NEEDS_PARAMS = "needs_params"
"""In a refusal: whoever sends it takes part once it is sent whole parameters."""
KINDS: dict[str, type[Compressor]] = {"top-k": TopK, "quantised": Quantised}


def describe_compressor(by: Compressor) -> str:
    """A way to compress, to be told to clients; raise where they would not know it.

    Args:
        by: how.
    """
    if type(by) is TopK:
        return f"top-k {by.share!r} {by.bits or 0}"
    if type(by) is Quantised:
        return f"quantised {by.bits} {by.block}"
    raise ValueError(f"over Flower, up and down must be TopK or Quantised, which clients know, but one is {by!r}")


def parse_compressor(settings: Mapping[str, Any], name: str) -> Compressor:
    """A way to compress that the server told, or raise.

    Args:
        settings: of the round.
        name: which one.
    """
    try:
        kind, first, second = str(settings[name]).split(" ")
        if kind == "top-k":
            return TopK(float(first), int(second) or None)
        return {"quantised": Quantised}[kind](int(first), int(second))
    except (KeyError, ValueError) as error:
        raise wire.InvalidMessageError(f"its {name} is no way to compress: {wire.sanitize(str(error))}") from error


def to_vector(arrays: Mapping[str, Any]) -> np.ndarray:
    """All numbers in one vector, in the order of the arrays' names."""
    return np.concatenate([np.asarray(arrays[name]).reshape(-1) for name in sorted(arrays)])


def from_vector(vector: np.ndarray, like: Mapping[str, wire.ArraySpec]) -> wire.Arrays:
    """The arrays again."""
    found, begin = {}, 0
    for name in sorted(like):
        shape, dtype = like[name]
        end = begin + int(np.prod(shape, dtype=np.int64))
        found[name] = vector[begin:end].reshape(shape).astype(dtype)
        begin = end
    return found


def decode(by: Compressor, code: Any, like: Mapping[str, wire.ArraySpec]) -> wire.Arrays:
    """What arrives of a code, or raise: of exactly its size, finite, its places increasing and within the arrays."""
    dtype = np.result_type(*(shape.dtype for shape in like.values()))
    numbers = sum(int(np.prod(shape.shape, dtype=np.int64)) for shape in like.values())
    if not isinstance(code, bytes):
        raise wire.InvalidMessageError(f"its numbers must be bytes, but are {type(code).__name__}")
    try:
        vector = by.decode(code, numbers, dtype)
    except ValueError as error:
        raise wire.InvalidMessageError(f"its numbers are not compressed as was asked for: {error}") from error
    if not np.isfinite(vector).all():
        raise wire.InvalidMessageError("it holds NaN or infinity")
    return from_vector(vector, like)


def parse_direction(record: Any, by: Compressor, like: Mapping[str, wire.ArraySpec], largest: float) -> wire.Arrays:
    """A client's compressed direction, or raise: finite and not absurd."""
    if not isinstance(record, ConfigRecord) or set(record) != {CODE}:
        raise wire.InvalidMessageError("there is no compressed direction; is its softswitch older than the server's?")
    if record[CODE] == b"":
        raise wire.InvalidMessageError("its direction holds NaN or infinity")
    direction = decode(by, record[CODE], like)
    size = max((float(np.abs(part).max(initial=0)) for part in direction.values()), default=0.0)
    if not size <= largest:
        raise wire.InvalidMessageError(f"it holds numbers of up to {size:g}, where {largest:g} is the most")
    return direction


def apply_change(params: Mapping[str, Any], change: wire.Arrays) -> wire.Arrays:
    """Parameters after a change: the same bits on both sides, since both add with NumPy."""
    return {name: np.asarray(array) + change[name] for name, array in params.items()}


def digest(params: Mapping[str, Any]) -> bytes:
    """By which both sides see that they have the same parameters."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(params):
        found.update(np.ascontiguousarray(params[name]).tobytes())
    return found.digest()


def count_bytes(record: Any) -> int:
    """How many bytes the numbers of a record take, arrays or codes."""
    if isinstance(record, ArrayRecord):
        return sum(len(array.data) for array in record.values())
    if not isinstance(record, ConfigRecord):
        return 0
    codes = record.get(CODES, [record.get(CODE)])
    return sum(len(code) for code in codes if isinstance(code, bytes)) if isinstance(codes, list) else 0
