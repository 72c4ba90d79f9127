"""The largest numbers of a vector, and nothing of the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from softswitch.method.compressors import levels
from softswitch.method.compressors.compressor import Compressor
from softswitch.support import checks
from softswitch.support.bit_packing import packed, packed_size, unpacked


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
            object.__setattr__(self, "bits", levels.checked_bits(self.bits))

    @property
    def keeps_all(self) -> bool:  # type: ignore[override]
        """Whether all numbers are sent as they are."""
        return self.share == 1 and self.bits is None

    def __call__(self, vector: Any) -> Any:
        """The largest, and zeros."""
        xp, chosen = levels.library_of(vector), self._chosen(vector)
        kept = xp.where(chosen, vector, xp.zeros_like(vector))
        if self.bits is None:
            return kept
        scale = self._scale(kept)
        found = levels.multiples(kept, scale, self.bits) * scale
        return xp.where(chosen, found, xp.zeros_like(found)).astype(vector.dtype)

    def size(self, numbers: int, itemsize: int) -> int:
        """Places and values."""
        many = self._count(numbers)
        values = many * itemsize if self.bits is None else levels.SCALE_BYTES + packed_size(many, self.bits)
        return self._place_bytes(numbers) + values

    def encode(self, vector: np.ndarray) -> bytes:
        """The places, and then the values in their order."""
        chosen = self._chosen(vector)
        places, values = _places(chosen, self._width(len(vector))), vector[chosen]
        if self.bits is None:
            return places + values.astype(values.dtype.newbyteorder("<")).tobytes()
        scale = self._scale(np.where(chosen, vector, 0).astype(vector.dtype))
        found = levels.multiples(values, scale, self.bits)
        return places + levels.scale_bytes(scale) + levels.multiple_bytes(found, self.bits)

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
            scale = levels.scales_from(rest[: levels.SCALE_BYTES], dtype)
            vector[places] = levels.multiples_from(rest[levels.SCALE_BYTES :], many, self.bits, dtype) * scale
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
        xp, many = levels.library_of(vector), vector.shape[0]
        count = min(self._count(many), many)
        sizes = xp.abs(vector)
        if count == many:
            return sizes >= 0
        if isinstance(sizes, np.ndarray):
            smallest = np.partition(sizes, many - count)[many - count]
        else:  # a client of another kind need not import JAX
            from softswitch.method.compressors.kth_largest import kth_largest

            smallest = kth_largest(sizes, count)
        above, alike = sizes > smallest, sizes == smallest
        return above | (alike & (xp.cumsum(alike.astype(np.int32)) <= count - above.sum()))

    def _scale(self, kept: Any) -> Any:
        xp = levels.library_of(kept)
        counts = np.asarray(min(self._count(kept.shape[0]), kept.shape[0]), kept.dtype)
        return levels.scale_of(xp.abs(kept), counts, self.bits or 1)


def _places(chosen: np.ndarray, width: int | None) -> bytes:
    if width == 0:
        return b""
    return packed(chosen, 1) if width is None else packed(np.flatnonzero(chosen), width)
