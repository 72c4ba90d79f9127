"""Whole numbers of few bits each, packed without gaps; and counts of bytes that fit the whole numbers of a device."""

from __future__ import annotations

from typing import Any

import numpy as np

HALF = 15
"""A count of bytes is recorded in two parts, the lower one of so many bits: one part alone could run over."""


def packed_size(count: int, bits: int) -> int:
    """How many bytes so many numbers of so many bits take."""
    return -(-count * bits // 8)


def packed(numbers: np.ndarray, bits: int) -> bytes:
    """Numbers from 0 to 2^bits − 1, the highest bit of each first; the last byte is filled up with zeros."""
    wide = numbers.astype(">u4").view(np.uint8).reshape(-1, 4)
    return np.packbits(np.unpackbits(wide, axis=1)[:, 32 - bits :]).tobytes()


def unpacked(data: bytes, count: int, bits: int) -> np.ndarray:
    """The numbers again, or raise where the bytes are not those of so many numbers."""
    if len(data) != packed_size(count, bits):
        raise ValueError(f"there are {len(data):,} bytes, where {packed_size(count, bits):,} are expected")
    found = np.unpackbits(np.frombuffer(data, np.uint8))
    if found[count * bits :].any():
        raise ValueError("there is something after the last number")
    wide = np.zeros((count, 32), np.uint8)
    wide[:, 32 - bits :] = found[: count * bits].reshape(count, bits)
    return np.packbits(wide, axis=1).view(">u4")[:, 0].astype(np.int64)


def in_two_parts(each: Any) -> tuple[Any, Any]:
    """The sum of some counts of bytes, as a number of 2^15 bytes and what is over."""
    return (each >> HALF).sum(), (each & (2**HALF - 1)).sum()


def in_one(parts: np.ndarray) -> np.ndarray:
    """Such sums, one a row, as single numbers."""
    return (parts[:, 0].astype(np.int64) << HALF) + parts[:, 1]
