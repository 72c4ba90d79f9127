"""All numbers of a vector, each roughly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from softswitch.method.compressors import levels
from softswitch.method.compressors.compressor import Compressor
from softswitch.support import checks
from softswitch.support.bit_packing import packed_size

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
        object.__setattr__(self, "bits", levels.checked_bits(self.bits))
        if checks.whole_number("block", self.block, at_least=1) > LARGEST_BLOCK:
            raise ValueError(f"block must be a whole number from 1 to {LARGEST_BLOCK:,}, but is {self.block!r}")

    def __call__(self, vector: Any) -> Any:
        """Multiples of the scales."""
        found, scale = self._rounded(vector)
        return (found * scale[:, None]).reshape(-1)[: vector.shape[0]].astype(vector.dtype)

    def size(self, numbers: int, itemsize: int) -> int:
        """Scales, and the bits of all numbers."""
        return levels.SCALE_BYTES * self._blocks(numbers) + packed_size(numbers, self.bits)

    def encode(self, vector: np.ndarray) -> bytes:
        """The scales, and then all multiples."""
        found, scale = self._rounded(vector)
        return levels.scale_bytes(scale) + levels.multiple_bytes(found.reshape(-1)[: vector.shape[0]], self.bits)

    def decode(self, code: bytes, numbers: int, dtype: np.dtype) -> np.ndarray:
        """The multiples of the scales."""
        blocks = self._blocks(numbers)
        if len(code) != self.size(numbers, dtype.itemsize):
            raise ValueError(
                f"there are {len(code):,} bytes, where {self.size(numbers, dtype.itemsize):,} are expected"
            )
        ends = levels.SCALE_BYTES * blocks
        scale = levels.scales_from(code[:ends], dtype)
        found = levels.multiples_from(code[ends:], numbers, self.bits, dtype)
        return found * np.repeat(scale, self.block)[:numbers]

    def _blocks(self, numbers: int) -> int:
        return -(-numbers // self.block)

    def _rounded(self, vector: Any) -> tuple[Any, Any]:
        """Multiples by block, the last one filled up, and the blocks' scales."""
        xp, many = levels.library_of(vector), vector.shape[0]
        blocks = self._blocks(many)
        over = blocks * self.block - many
        full = xp.concatenate([vector, xp.zeros(over, dtype=vector.dtype)]).reshape(blocks, self.block)
        counts = np.full(blocks, self.block)
        counts[-1:] -= over
        scale = levels.scale_of(xp.abs(full), counts.astype(vector.dtype), self.bits)
        return levels.multiples(full, scale[:, None], self.bits), scale
