"""Compressors of vectors: quantisation and sparsification, in compiled programs and as bytes."""

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
    """A lossy compressor C of vectors.

    ``C(v)`` equals ``decode(encode(v))``, for JAX and NumPy arrays. Compression is idempotent. Subclasses are frozen
    dataclasses. Flower runs support only the compressors of this package.
    """

    keeps_all: ClassVar[bool] = False
    """Whether the compressor is lossless."""

    @abstractmethod
    def __call__(self, vector: Any) -> Any:
        """Return the vector after compression.

        Args:
            vector: One-dimensional JAX or NumPy array.
        """

    @abstractmethod
    def size(self, numbers: int, itemsize: int) -> int:
        """Return the number of bytes of a compressed vector.

        Args:
            numbers: Length of the vector.
            itemsize: Bytes per uncompressed number.
        """

    @abstractmethod
    def encode(self, vector: np.ndarray) -> bytes:
        """Return a vector as bytes.

        Args:
            vector: One-dimensional array of finite numbers.
        """

    @abstractmethod
    def decode(self, code: bytes, numbers: int, dtype: np.dtype) -> np.ndarray:
        """Return the vector, or raise ``ValueError`` if the bytes are not valid.

        Args:
            code: Result of ``encode``.
            numbers: Length of the vector.
            dtype: Type of the numbers.
        """


HALF = 15
"""Number of bits of the lower part of a byte count, which is recorded in two parts to avoid overflow."""


def packed_size(count: int, bits: int) -> int:
    """Return the number of bytes of ``count`` packed numbers."""
    return -(-count * bits // 8)


def packed(numbers: np.ndarray, bits: int) -> bytes:
    """Pack numbers from 0 to 2^bits − 1, highest bit first; the last byte is padded with zeros."""
    wide = numbers.astype(">u4").view(np.uint8).reshape(-1, 4)
    return np.packbits(np.unpackbits(wide, axis=1)[:, 32 - bits :]).tobytes()


def unpacked(data: bytes, count: int, bits: int) -> np.ndarray:
    """Return packed numbers, or raise an error if the bytes are not valid."""
    if len(data) != packed_size(count, bits):
        raise ValueError(f"expected {packed_size(count, bits):,} bytes, but there are {len(data):,}")
    unpacked_bits = np.unpackbits(np.frombuffer(data, np.uint8))
    if unpacked_bits[count * bits :].any():
        raise ValueError("the bits after the last number must be 0")
    wide = np.zeros((count, 32), np.uint8)
    wide[:, 32 - bits :] = unpacked_bits[: count * bits].reshape(count, bits)
    return np.packbits(wide, axis=1).view(">u4")[:, 0].astype(np.int64)


def in_two_parts(each: Any) -> tuple[Any, Any]:
    """Return the sum of byte counts as a multiple of 2^15 and the rest."""
    return (each >> HALF).sum(), (each & (2**HALF - 1)).sum()


def in_one(parts: np.ndarray) -> np.ndarray:
    """Return sums in two parts, one per row, as single numbers."""
    return (parts[:, 0].astype(np.int64) << HALF) + parts[:, 1]


MOST_BITS = 8
"""Maximum number of bits per number; with more, a scale of 8 bits would lose the largest multiple."""
SCALE_BYTES = 2
"""Size of a scale, the upper half of a float32."""
SMALLEST, LARGEST = 1e-30, 1e38
"""Scales below the smallest are 0, and those above the largest are clipped."""


def library_of(array: Any) -> Any:
    """Return the array's library: NumPy, or JAX within a compiled program."""
    return np if isinstance(array, np.ndarray | np.generic) else array_namespace(array)


def checked_bits(bits: Any) -> int:
    """Return the number of bits, or raise an error."""
    number = checks.check_integer("bits", bits, minimum=1)
    if number > MOST_BITS:
        raise ValueError(f"bits must be a whole number from 1 to {MOST_BITS}, but is {bits!r}")
    return number


def most(bits: int) -> int:
    """Return the largest multiple; 1 for one bit, which is a sign."""
    return max(1, 2 ** (bits - 1) - 1)


def scale_of(sizes: Any, counts: Any, bits: int) -> Any:
    """Return the scale of every block: its largest |v| over the largest multiple; for signs the mean |v|.

    Args:
        sizes: |v|, blocks × numbers, padded with 0.
        counts: Number of entries of each block.
        bits: Bits of a multiple.
    """
    xp = library_of(sizes)
    exact = sizes.sum(axis=-1) / counts if bits == 1 else sizes.max(axis=-1) / most(bits)
    share, power = xp.frexp(exact)
    scale = xp.ldexp(xp.round(share * 256) / 256, power)
    return xp.where(scale < SMALLEST, xp.zeros_like(scale), xp.clip(scale, None, LARGEST))


def multiples(vector: Any, scale: Any, bits: int) -> Any:
    """Return the nearest multiple of the scale for every number; the sign for one bit."""
    xp = library_of(vector)
    if bits == 1:
        return xp.where(vector < 0, -xp.ones_like(vector), xp.ones_like(vector))
    nearest = xp.round(vector / xp.where(scale > 0, scale, xp.ones_like(scale)))
    return xp.where(scale > 0, xp.clip(nearest, -most(bits), most(bits)), xp.zeros_like(nearest))


def scale_bytes(scale: np.ndarray) -> bytes:
    """Return scales as bytes."""
    return (np.atleast_1d(scale).astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()


def scales_from(data: bytes, dtype: np.dtype) -> np.ndarray:
    """Return scales from bytes, or raise an error."""
    scales = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    if not (np.isfinite(scales).all() and (scales >= 0).all()):
        raise ValueError("scales must be finite and not negative")
    return scales.astype(dtype)


def multiple_bytes(multiples: np.ndarray, bits: int) -> bytes:
    """Return multiples as bytes."""
    return packed((multiples > 0) if bits == 1 else multiples.astype(np.int64) + most(bits), bits)


def multiples_from(data: bytes, count: int, bits: int, dtype: np.dtype) -> np.ndarray:
    """Return multiples from bytes, or raise an error."""
    codes = unpacked(data, count, bits)
    if bits == 1:
        return (2 * codes - 1).astype(dtype)
    if (codes > 2 * most(bits)).any():
        raise ValueError(f"multiples must be from {-most(bits)} to {most(bits)}")
    return (codes - most(bits)).astype(dtype)


LARGEST_BLOCK = 2**15


@dataclass(frozen=True)
class Quantised(Compressor):
    """Quantisation: every number is rounded to a multiple of its block's scale; with one bit, to its sign.

        C(v)_j = s·round(v_j/s),  s = max |v| of the block / (2^(bits−1) − 1)
        one bit:  C(v)_j = s·sign(v_j),  s = mean |v| of the block

    Rounding is deterministic. Error feedback makes unbiased rounding unnecessary.

    Attributes:
        bits: Bits per number, from 1 to 8.
        block: Number of entries that share a scale of 2 bytes.
    """

    bits: int = 4
    block: int = 256

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", checked_bits(self.bits))
        if checks.check_integer("block", self.block, minimum=1) > LARGEST_BLOCK:
            raise ValueError(f"block must be a whole number from 1 to {LARGEST_BLOCK:,}, but is {self.block!r}")

    def __call__(self, vector: Any) -> Any:
        """Return multiples of the scales."""
        rounded, scale = self._rounded(vector)
        return (rounded * scale[:, None]).reshape(-1)[: vector.shape[0]].astype(vector.dtype)

    def size(self, numbers: int, itemsize: int) -> int:
        """Return the bytes of scales and multiples."""
        return SCALE_BYTES * self._blocks(numbers) + packed_size(numbers, self.bits)

    def encode(self, vector: np.ndarray) -> bytes:
        """Return the scales, then the multiples."""
        rounded, scale = self._rounded(vector)
        return scale_bytes(scale) + multiple_bytes(rounded.reshape(-1)[: vector.shape[0]], self.bits)

    def decode(self, code: bytes, numbers: int, dtype: np.dtype) -> np.ndarray:
        """Return the multiples times the scales."""
        blocks = self._blocks(numbers)
        if len(code) != self.size(numbers, dtype.itemsize):
            raise ValueError(f"expected {self.size(numbers, dtype.itemsize):,} bytes, but there are {len(code):,}")
        split = SCALE_BYTES * blocks
        scale = scales_from(code[:split], dtype)
        return multiples_from(code[split:], numbers, self.bits, dtype) * np.repeat(scale, self.block)[:numbers]

    def _blocks(self, numbers: int) -> int:
        return -(-numbers // self.block)

    def _rounded(self, vector: Any) -> tuple[Any, Any]:
        """Return multiples by block, the last one padded, and the blocks' scales."""
        xp, numbers = library_of(vector), vector.shape[0]
        blocks = self._blocks(numbers)
        padding = blocks * self.block - numbers
        full = xp.concatenate([vector, xp.zeros(padding, dtype=vector.dtype)]).reshape(blocks, self.block)
        counts = np.full(blocks, self.block)
        counts[-1:] -= padding
        scale = scale_of(xp.abs(full), counts.astype(vector.dtype), self.bits)
        return multiples(full, scale[:, None], self.bits), scale


@dataclass(frozen=True)
class TopK(Compressor):
    """Sparsification: keep the k entries of largest magnitude (the first ones among ties), and set the rest to 0.

    The positions are encoded as packed indices, or as one bit per entry of the vector if that is shorter.

    Attributes:
        share: k over the length of the vector; k is rounded up.
        bits: Bits of each kept number, from 1 to 8, rounded to a multiple of one scale as by ``Quantised``. None: no
            rounding.
    """

    share: float
    bits: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "share", checks.check_real("share", self.share, above=0, maximum=1))
        if self.bits is not None:
            object.__setattr__(self, "bits", checked_bits(self.bits))

    @property
    def keeps_all(self) -> bool:  # type: ignore[override]
        """Whether the compressor is lossless."""
        return self.share == 1 and self.bits is None

    def __call__(self, vector: Any) -> Any:
        """Return the largest entries, and zeros."""
        xp, chosen = library_of(vector), self._chosen(vector)
        kept = xp.where(chosen, vector, xp.zeros_like(vector))
        if self.bits is None:
            return kept
        scale = self._scale(kept)
        rounded = multiples(kept, scale, self.bits) * scale
        return xp.where(chosen, rounded, xp.zeros_like(rounded)).astype(vector.dtype)

    def size(self, numbers: int, itemsize: int) -> int:
        """Return the bytes of positions and values."""
        count = self._count(numbers)
        values = count * itemsize if self.bits is None else SCALE_BYTES + packed_size(count, self.bits)
        return self._place_bytes(numbers) + values

    def encode(self, vector: np.ndarray) -> bytes:
        """Return the positions, then the values."""
        chosen = self._chosen(vector)
        places, values = _places(chosen, self._width(len(vector))), vector[chosen]
        if self.bits is None:
            return places + values.astype(values.dtype.newbyteorder("<")).tobytes()
        scale = self._scale(np.where(chosen, vector, 0).astype(vector.dtype))
        return places + scale_bytes(scale) + multiple_bytes(multiples(values, scale, self.bits), self.bits)

    def decode(self, code: bytes, numbers: int, dtype: np.dtype) -> np.ndarray:
        """Return the values at their positions, and zeros."""
        expected = self.size(numbers, dtype.itemsize)
        if len(code) != expected:
            raise ValueError(f"expected {expected:,} bytes, but there are {len(code):,}")
        count, end = self._count(numbers), self._place_bytes(numbers)
        places, rest = self._places_from(code[:end], numbers), code[end:]
        vector = np.zeros(numbers, dtype)
        if self.bits is None:
            vector[places] = np.frombuffer(rest, dtype.newbyteorder("<"))
        else:
            scale = scales_from(rest[:SCALE_BYTES], dtype)
            vector[places] = multiples_from(rest[SCALE_BYTES:], count, self.bits, dtype) * scale
        return vector

    def _count(self, numbers: int) -> int:
        return max(1, math.ceil(self.share * numbers))

    def _width(self, numbers: int) -> int | None:
        """Return the bits of a position; 0 if all entries are kept, None for one bit per entry."""
        count = self._count(numbers)
        if count >= numbers:
            return 0
        width = max(1, (numbers - 1).bit_length())
        return width if count * width < numbers else None

    def _place_bytes(self, numbers: int) -> int:
        width = self._width(numbers)
        return packed_size(numbers, 1) if width is None else packed_size(self._count(numbers), width)

    def _places_from(self, data: bytes, numbers: int) -> np.ndarray:
        """Return the positions in increasing order, or raise an error."""
        count, width = self._count(numbers), self._width(numbers)
        if width == 0:
            return np.arange(numbers)
        if width is None:
            places = np.flatnonzero(unpacked(data, numbers, 1))
            if len(places) != count:
                raise ValueError(f"expected {count:,} positions, but there are {len(places):,}")
            return places
        places = unpacked(data, count, width)
        if (np.diff(places) <= 0).any() or places[-1] >= numbers:
            raise ValueError(f"positions must be increasing and below {numbers:,}")
        return places

    def _chosen(self, vector: Any) -> Any:
        """Return a mask of exactly k entries, the first ones among ties."""
        xp, numbers = library_of(vector), vector.shape[0]
        count = min(self._count(numbers), numbers)
        sizes = xp.abs(vector)
        if count == numbers:
            return sizes >= 0
        if isinstance(sizes, np.ndarray):
            smallest = np.partition(sizes, numbers - count)[numbers - count]
        else:  # NumPy clients do not import JAX
            from softswitch.methods.kth_largest import kth_largest

            smallest = kth_largest(sizes, count)
        above, tied = sizes > smallest, sizes == smallest
        return above | (tied & (xp.cumsum(tied.astype(np.int32)) <= count - above.sum()))

    def _scale(self, kept: Any) -> Any:
        xp = library_of(kept)
        counts = np.asarray(min(self._count(kept.shape[0]), kept.shape[0]), kept.dtype)
        return scale_of(xp.abs(kept), counts, self.bits or 1)


def _places(chosen: np.ndarray, width: int | None) -> bytes:
    if width == 0:
        return b""
    return packed(chosen, 1) if width is None else packed(np.flatnonzero(chosen), width)
