"""Numbers as whole multiples of a scale: the same arithmetic for JAX's arrays and NumPy's.

A scale has 8 significant bits, and a multiple at most 7: their product is exact in float32. So whoever adds it to
something, in whichever program, gets the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace

from softswitch.support import checks
from softswitch.support.bit_packing import packed, unpacked

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
