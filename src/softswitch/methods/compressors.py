"""What every way to compress can do: in a compiled program, and in bytes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from softswitch.support import checks


@dataclass(frozen=True)
class Compressor(ABC):
    """C: a vector, made such that it takes few bytes.

    ``C(v)`` is what arrives, the same for JAX and NumPy: what ``decode`` makes of what ``encode`` made. To compress
    what was compressed changes nothing. A way of your own is a subclass, a frozen dataclass; over Flower only those of
    this package are known to the other side.
    """

    keeps_all: ClassVar[bool] = False
    """Whether what arrives is the vector itself."""

    @abstractmethod
    def __call__(self, vector: Any) -> Any:
        """What arrives of a vector.

        Args:
            vector: JAX's or NumPy's, of one axis.
        """

    @abstractmethod
    def size(self, numbers: int, itemsize: int) -> int:
        """How many bytes a vector takes.

        Args:
            numbers: how many it has.
            itemsize: how many bytes one takes as it is.
        """

    @abstractmethod
    def encode(self, vector: np.ndarray) -> bytes:
        """A vector in bytes.

        Args:
            vector: finite, of one axis.
        """

    @abstractmethod
    def decode(self, code: bytes, numbers: int, dtype: np.dtype) -> np.ndarray:
        """What arrives of it, or raise ``ValueError`` where these bytes cannot come from ``encode``.

        Args:
            code: what was sent.
            numbers: how many the vector has.
            dtype: of what type.
        """


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


MOST_BITS = 8
"""A number is rounded to so many bits at most: with more, a scale of 8 bits would lose the largest multiple."""
SCALE_BYTES = 2
"""What a scale takes: the upper half of a float32."""
SMALLEST, LARGEST = 1e-30, 1e38
"""A scale below is 0: numbers that small are nothing. None is above."""


def library_of(array: Any) -> Any:
    """NumPy, or what else the array is computed with: JAX, within a compiled program."""
    return np if isinstance(array, np.ndarray | np.generic) else array_namespace(array)


def checked_bits(bits: Any) -> int:
    """The number of bits, or raise."""
    found = checks.whole_number("bits", bits, at_least=1)
    if found > MOST_BITS:
        raise ValueError(f"bits must be a whole number from 1 to {MOST_BITS}, but is {bits!r}")
    return found


def most(bits: int) -> int:
    """The largest multiple: 1 for one bit, which is a sign."""
    return max(1, 2 ** (bits - 1) - 1)


def scale_of(sizes: Any, counts: Any, bits: int) -> Any:
    """The scale of every block of sizes |v|: its largest over the largest multiple; for signs the mean.

    Args:
        sizes: blocks × their numbers; 0 where a block has fewer.
        counts: how many numbers each block has.
        bits: of a multiple.
    """
    xp = library_of(sizes)
    exact = sizes.sum(axis=-1) / counts if bits == 1 else sizes.max(axis=-1) / most(bits)
    share, power = xp.frexp(exact)
    found = xp.ldexp(xp.round(share * 256) / 256, power)
    return xp.where(found < SMALLEST, xp.zeros_like(found), xp.clip(found, None, LARGEST))


def multiples(vector: Any, scale: Any, bits: int) -> Any:
    """The nearest multiple of the scale, of every number; a sign for one bit."""
    xp = library_of(vector)
    if bits == 1:
        return xp.where(vector < 0, -xp.ones_like(vector), xp.ones_like(vector))
    nearest = xp.round(vector / xp.where(scale > 0, scale, xp.ones_like(scale)))
    return xp.where(scale > 0, xp.clip(nearest, -most(bits), most(bits)), xp.zeros_like(nearest))


def scale_bytes(scale: np.ndarray) -> bytes:
    """Scales, to be sent."""
    return (np.atleast_1d(scale).astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()


def scales_from(data: bytes, dtype: np.dtype) -> np.ndarray:
    """Scales that were sent, or raise."""
    found = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    if not (np.isfinite(found).all() and (found >= 0).all()):
        raise ValueError("a scale is negative, NaN or infinity")
    return found.astype(dtype)


def multiple_bytes(found: np.ndarray, bits: int) -> bytes:
    """Multiples, to be sent."""
    return packed((found > 0) if bits == 1 else found.astype(np.int64) + most(bits), bits)


def multiples_from(data: bytes, count: int, bits: int, dtype: np.dtype) -> np.ndarray:
    """Multiples that were sent, or raise."""
    found = unpacked(data, count, bits)
    if bits == 1:
        return (2 * found - 1).astype(dtype)
    if (found > 2 * most(bits)).any():
        raise ValueError(f"a number is no multiple of its scale from {-most(bits)} to {most(bits)}")
    return (found - most(bits)).astype(dtype)


LARGEST_BLOCK = 2**15


@dataclass(frozen=True)
class Quantised(Compressor):
    """Every number as the nearest multiple of its block's scale, in few bits; one bit is its sign.

        C(v)_j = s·round(v_j/s),  s = max |v| of the block / (2^(bits−1) − 1)
        one bit:  C(v)_j = s·sign(v_j),  s = mean |v| of the block

    Rounding is to the nearest, not at random: what a round leaves out is sent later, so that no unbiasedness is needed,
    and the nearest leaves out least.

    Attributes:
        bits: of a number, from 1 to 8.
        block: so many numbers share a scale, of 2 bytes.
    """

    bits: int = 4
    block: int = 256

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", checked_bits(self.bits))
        if checks.whole_number("block", self.block, at_least=1) > LARGEST_BLOCK:
            raise ValueError(f"block must be a whole number from 1 to {LARGEST_BLOCK:,}, but is {self.block!r}")

    def __call__(self, vector: Any) -> Any:
        """Multiples of the scales."""
        found, scale = self._rounded(vector)
        return (found * scale[:, None]).reshape(-1)[: vector.shape[0]].astype(vector.dtype)

    def size(self, numbers: int, itemsize: int) -> int:
        """Scales, and the bits of all numbers."""
        return SCALE_BYTES * self._blocks(numbers) + packed_size(numbers, self.bits)

    def encode(self, vector: np.ndarray) -> bytes:
        """The scales, and then all multiples."""
        found, scale = self._rounded(vector)
        return scale_bytes(scale) + multiple_bytes(found.reshape(-1)[: vector.shape[0]], self.bits)

    def decode(self, code: bytes, numbers: int, dtype: np.dtype) -> np.ndarray:
        """The multiples of the scales."""
        blocks = self._blocks(numbers)
        if len(code) != self.size(numbers, dtype.itemsize):
            raise ValueError(
                f"there are {len(code):,} bytes, where {self.size(numbers, dtype.itemsize):,} are expected"
            )
        ends = SCALE_BYTES * blocks
        scale = scales_from(code[:ends], dtype)
        found = multiples_from(code[ends:], numbers, self.bits, dtype)
        return found * np.repeat(scale, self.block)[:numbers]

    def _blocks(self, numbers: int) -> int:
        return -(-numbers // self.block)

    def _rounded(self, vector: Any) -> tuple[Any, Any]:
        """Multiples by block, the last one filled up, and the blocks' scales."""
        xp, many = library_of(vector), vector.shape[0]
        blocks = self._blocks(many)
        over = blocks * self.block - many
        full = xp.concatenate([vector, xp.zeros(over, dtype=vector.dtype)]).reshape(blocks, self.block)
        counts = np.full(blocks, self.block)
        counts[-1:] -= over
        scale = scale_of(xp.abs(full), counts.astype(vector.dtype), self.bits)
        return multiples(full, scale[:, None], self.bits), scale


@dataclass(frozen=True)
class TopK(Compressor):
    """The k numbers of largest size, of several alike the first; all others arrive as 0.

    Their places are sent as numbers of as many bits as it takes, or as one bit for every number of the vector where
    that is less.

    Attributes:
        share: k over the length of the vector; k is rounded up.
        bits: each of them is rounded to a multiple of one scale in so many bits, 1 to 8, as by ``Quantised``; None:
            they are sent as they are.
    """

    share: float
    bits: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "share", checks.real_number("share", self.share, above=0, at_most=1))
        if self.bits is not None:
            object.__setattr__(self, "bits", checked_bits(self.bits))

    @property
    def keeps_all(self) -> bool:  # type: ignore[override]
        """Whether all numbers are sent as they are."""
        return self.share == 1 and self.bits is None

    def __call__(self, vector: Any) -> Any:
        """The largest, and zeros."""
        xp, chosen = library_of(vector), self._chosen(vector)
        kept = xp.where(chosen, vector, xp.zeros_like(vector))
        if self.bits is None:
            return kept
        scale = self._scale(kept)
        found = multiples(kept, scale, self.bits) * scale
        return xp.where(chosen, found, xp.zeros_like(found)).astype(vector.dtype)

    def size(self, numbers: int, itemsize: int) -> int:
        """Places and values."""
        many = self._count(numbers)
        values = many * itemsize if self.bits is None else SCALE_BYTES + packed_size(many, self.bits)
        return self._place_bytes(numbers) + values

    def encode(self, vector: np.ndarray) -> bytes:
        """The places, and then the values in their order."""
        chosen = self._chosen(vector)
        places, values = _places(chosen, self._width(len(vector))), vector[chosen]
        if self.bits is None:
            return places + values.astype(values.dtype.newbyteorder("<")).tobytes()
        scale = self._scale(np.where(chosen, vector, 0).astype(vector.dtype))
        found = multiples(values, scale, self.bits)
        return places + scale_bytes(scale) + multiple_bytes(found, self.bits)

    def decode(self, code: bytes, numbers: int, dtype: np.dtype) -> np.ndarray:
        """The values at their places, and zeros."""
        expected = self.size(numbers, dtype.itemsize)
        if len(code) != expected:
            raise ValueError(f"there are {len(code):,} bytes, where {expected:,} are expected")
        many, end = self._count(numbers), self._place_bytes(numbers)
        places, rest = self._places_from(code[:end], numbers), code[end:]
        vector = np.zeros(numbers, dtype)
        if self.bits is None:
            vector[places] = np.frombuffer(rest, dtype.newbyteorder("<"))
        else:
            scale = scales_from(rest[:SCALE_BYTES], dtype)
            vector[places] = multiples_from(rest[SCALE_BYTES:], many, self.bits, dtype) * scale
        return vector

    def _count(self, numbers: int) -> int:
        return max(1, math.ceil(self.share * numbers))

    def _width(self, numbers: int) -> int | None:
        """How many bits a place takes; 0 where all are sent, None where every number has one bit instead."""
        many = self._count(numbers)
        if many >= numbers:
            return 0
        width = max(1, (numbers - 1).bit_length())
        return width if many * width < numbers else None

    def _place_bytes(self, numbers: int) -> int:
        width = self._width(numbers)
        return packed_size(numbers, 1) if width is None else packed_size(self._count(numbers), width)

    def _places_from(self, data: bytes, numbers: int) -> np.ndarray:
        """The places, in order and each once, or raise."""
        many, width = self._count(numbers), self._width(numbers)
        if width == 0:
            return np.arange(numbers)
        if width is None:
            places = np.flatnonzero(unpacked(data, numbers, 1))
            if len(places) != many:
                raise ValueError(f"it has {len(places):,} places, where {many:,} are expected")
            return places
        places = unpacked(data, many, width)
        if (np.diff(places) <= 0).any() or places[-1] >= numbers:
            raise ValueError(f"its places are not increasing, or beyond the {numbers:,} that there are")
        return places

    def _chosen(self, vector: Any) -> Any:
        """Which numbers are sent: exactly k, of several alike the first."""
        xp, many = library_of(vector), vector.shape[0]
        count = min(self._count(many), many)
        sizes = xp.abs(vector)
        if count == many:
            return sizes >= 0
        if isinstance(sizes, np.ndarray):
            smallest = np.partition(sizes, many - count)[many - count]
        else:  # a client of another kind need not import JAX
            from softswitch.methods.kth_largest import kth_largest

            smallest = kth_largest(sizes, count)
        above, alike = sizes > smallest, sizes == smallest
        return above | (alike & (xp.cumsum(alike.astype(np.int32)) <= count - above.sum()))

    def _scale(self, kept: Any) -> Any:
        xp = library_of(kept)
        counts = np.asarray(min(self._count(kept.shape[0]), kept.shape[0]), kept.dtype)
        return scale_of(xp.abs(kept), counts, self.bits or 1)


def _places(chosen: np.ndarray, width: int | None) -> bytes:
    if width == 0:
        return b""
    return packed(chosen, 1) if width is None else packed(np.flatnonzero(chosen), width)
