"""Compression of vectors by their largest entries, in compiled programs and as bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from softswitch.support import checks

HALF = 15  # bits of the lower part of a byte count, which is recorded in two parts to avoid overflow of int32
MAX_BITS = 8  # largest ``TopK.bits``: a scale has 8 significant bits
SCALE_BYTES = 2  # a scale is the upper half of a float32
SMALLEST, LARGEST = 1e-30, 1e38  # smaller scales become 0, and larger ones are clipped


@dataclass(frozen=True)
class TopK:
    """Sparsification: keep the k entries of largest magnitude (the first ones among ties), and set the rest to 0.

    ``C(v)`` equals ``decode(encode(v))``, and C is idempotent. With ``bits`` = b a kept number is rounded:

        C(v)_j = s·round(v_j/s),  s = max |v| / (2^(b−1) − 1)

    Rounding is deterministic. Error feedback makes unbiased rounding unnecessary.

    The positions are encoded as packed indices, or as one bit per entry of the vector if that is shorter.

    Attributes:
        share: Fraction of the entries to keep, above 0 and below 1; k is rounded up.
        bits: Bits of each kept number, from 2 to 8. Default: None, no rounding.
    """

    share: float
    bits: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "share", checks.check_probability("share", self.share))
        if self.bits is not None and checks.check_integer("bits", self.bits, minimum=2) > MAX_BITS:
            raise ValueError(f"bits must be an integer from 2 to {MAX_BITS}, but is {self.bits!r}")

    def __call__(self, vector: Any) -> Any:
        """Return ``decode(encode(vector))`` for a one-dimensional JAX or NumPy array, which may be traced."""
        xp, chosen = array_namespace(vector), self._choose(vector)
        kept = xp.where(chosen, vector, xp.zeros_like(vector))
        if self.bits is None:
            return kept
        scale = _scale_of(kept, self.bits)
        return (_multiples(kept, scale, self.bits) * scale).astype(vector.dtype)

    def size(self, numbers: int, itemsize: int) -> int:
        """Return the number of bytes of a compressed vector.

        Args:
            numbers: Number of entries of the vector.
            itemsize: Bytes of each entry before compression.
        """
        count = self._count(numbers)
        values = count * itemsize if self.bits is None else SCALE_BYTES + _packed_size(count, self.bits)
        return _packed_size(*self._layout(numbers)) + values

    def encode(self, vector: np.ndarray) -> bytes:
        """Return the packed positions of the k entries, followed by their values: ``size`` bytes.

        Args:
            vector: One-dimensional array of finite numbers.
        """
        chosen, (entries, width) = self._choose(vector), self._layout(len(vector))
        positions = _pack(chosen if entries == len(vector) else np.flatnonzero(chosen), width)
        values = vector[chosen]
        if self.bits is None:
            return positions + values.astype(values.dtype.newbyteorder("<")).tobytes()
        scale = _scale_of(values, self.bits)
        return positions + _encode_multiples(scale, _multiples(values, scale, self.bits), self.bits)

    def decode(self, code: bytes, numbers: int, dtype: np.dtype) -> np.ndarray:
        """Return the vector that ``encode`` compressed; raise ValueError if the bytes are not valid.

        Args:
            code: Result of ``encode``.
            numbers: Number of entries of the vector.
            dtype: Dtype of the vector.
        """
        if len(code) != (expected := self.size(numbers, dtype.itemsize)):
            raise ValueError(f"expected {expected:,} bytes, but there are {len(code):,}")
        end = _packed_size(*self._layout(numbers))
        positions, rest = self._decode_positions(code[:end], numbers), code[end:]
        vector = np.zeros(numbers, dtype)
        if self.bits is None:
            vector[positions] = np.frombuffer(rest, dtype.newbyteorder("<"))
        else:
            vector[positions] = _decode_multiples(rest, self._count(numbers), self.bits, dtype)
        return vector

    def _count(self, numbers: int) -> int:
        return max(1, math.ceil(self.share * numbers))

    def _layout(self, numbers: int) -> tuple[int, int]:
        """Return how positions are packed, as (count, bits): k indices, or one bit for each entry of the vector."""
        count, width = self._count(numbers), (numbers - 1).bit_length()
        return (count, width) if 0 < count * width < numbers else (numbers, 1)

    def _decode_positions(self, data: bytes, numbers: int) -> np.ndarray:
        """Return the k positions in increasing order; raise ValueError if the bytes are not valid."""
        count, (entries, width) = self._count(numbers), self._layout(numbers)
        unpacked = _unpack(data, entries, width)
        positions = np.flatnonzero(unpacked) if entries == numbers else unpacked
        if len(positions) != count:
            raise ValueError(f"expected {count:,} positions, but there are {len(positions):,}")
        if (np.diff(positions) <= 0).any() or positions[-1] >= numbers:
            raise ValueError(f"positions must be increasing and below {numbers:,}")
        return positions

    def _choose(self, vector: Any) -> Any:
        """Return a bool mask of the k entries of largest magnitude, the first ones among ties."""
        xp, numbers = array_namespace(vector), vector.shape[0]
        count, sizes = self._count(numbers), xp.abs(vector)
        is_numpy = isinstance(sizes, np.ndarray)
        smallest = np.partition(sizes, numbers - count)[numbers - count] if is_numpy else _kth_largest(sizes, count)
        above, tied = sizes > smallest, sizes == smallest
        return above | (tied & (xp.cumsum(tied.astype(np.int32)) <= count - above.sum()))


def split_byte_counts(each: Any) -> tuple[Any, Any]:
    """Return the sum of byte counts in two parts, (high, low), whose value is high·2^15 + low."""
    return (each >> HALF).sum(), (each & (2**HALF - 1)).sum()


def join_byte_counts(parts: np.ndarray) -> np.ndarray:
    """Return int64 sums from rows (high, low) of ``split_byte_counts``."""
    return (parts[:, 0].astype(np.int64) << HALF) + parts[:, 1]


def _packed_size(count: int, bits: int) -> int:
    return -(-count * bits // 8)


def _pack(numbers: np.ndarray, bits: int) -> bytes:
    """Return integers from 0 to 2^bits − 1 as packed bytes, highest bit first; the last byte is padded with zeros."""
    wide = numbers.astype(">u4").view(np.uint8).reshape(-1, 4)
    return np.packbits(np.unpackbits(wide, axis=1)[:, 32 - bits :]).tobytes()


def _unpack(data: bytes, count: int, bits: int) -> np.ndarray:
    unpacked = np.unpackbits(np.frombuffer(data, np.uint8))
    if unpacked[count * bits :].any():
        raise ValueError("the bits after the last number must be 0")
    wide = np.zeros((count, 32), np.uint8)
    wide[:, 32 - bits :] = unpacked[: count * bits].reshape(count, bits)
    return np.packbits(wide, axis=1).view(">u4")[:, 0].astype(np.int64)


def _largest_multiple(bits: int) -> int:
    return int(2 ** (bits - 1) - 1)


def _scale_of(vector: Any, bits: int) -> Any:
    """Return the scale of a vector: its largest magnitude over the largest multiple."""
    xp = array_namespace(vector)
    share, power = xp.frexp(xp.abs(vector).max() / _largest_multiple(bits))
    scale = xp.ldexp(xp.round(share * 256) / 256, power)
    return xp.where(scale < SMALLEST, xp.zeros_like(scale), xp.clip(scale, None, LARGEST))


def _multiples(vector: Any, scale: Any, bits: int) -> Any:
    """Return round(number/scale) for every number, clipped to the range of ``bits`` bits; 0 if the scale is 0."""
    xp, largest = array_namespace(vector), _largest_multiple(bits)
    nearest = xp.round(vector / xp.where(scale > 0, scale, xp.ones_like(scale)))
    return xp.where(scale > 0, xp.clip(nearest, -largest, largest), xp.zeros_like(nearest))


def _encode_multiples(scale: np.ndarray, multiples: np.ndarray, bits: int) -> bytes:
    upper_half = (np.atleast_1d(scale).astype("<f4").view("<u4") >> 16).astype("<u2")
    return upper_half.tobytes() + _pack(multiples.astype(np.int64) + _largest_multiple(bits), bits)


def _decode_multiples(code: bytes, count: int, bits: int, dtype: np.dtype) -> np.ndarray:
    """Return the integer multiples times their scale; ValueError if they are not valid."""
    scale = (np.frombuffer(code[:SCALE_BYTES], "<u2").astype("<u4") << 16).view("<f4")
    if not 0 <= scale[0] < np.inf:
        raise ValueError("the scale must be finite and not negative")
    codes, largest = _unpack(code[SCALE_BYTES:], count, bits), _largest_multiple(bits)
    if (codes > 2 * largest).any():
        raise ValueError(f"multiples must be from {-largest} to {largest}")
    return np.asarray((codes - largest).astype(dtype) * scale.astype(dtype))


def _kth_largest(sizes: Any, k: int) -> Any:
    """Return the k-th largest entry of a non-negative JAX vector, whose bit patterns are ordered like its floats."""
    import jax.numpy as jnp  # NumPy clients do not import JAX
    from jax import lax

    kind = jnp.uint32 if sizes.dtype.itemsize == 4 else jnp.uint64
    bits = lax.bitcast_convert_type(sizes, kind)
    highest = 8 * sizes.dtype.itemsize - 2  # the next higher bit is the sign

    def step(i: Any, prefix: Any) -> Any:
        candidate = prefix | (jnp.ones((), kind) << (highest - i).astype(kind))
        return jnp.where((bits >= candidate).sum() >= k, candidate, prefix)

    return lax.bitcast_convert_type(lax.fori_loop(0, highest + 1, step, jnp.zeros((), kind)), sizes.dtype)
