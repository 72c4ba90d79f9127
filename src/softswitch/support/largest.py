"""Where the largest of many numbers are."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

NARROWEST = 4
"""Blocks of fewer numbers are not worth the second search."""


def largest(values: Float[Array, " n"], many: int) -> Int[Array, " many"]:
    """The places of the ``many`` largest, in falling order; of equals the first: exactly ``lax.top_k``'s, and sooner.

    Only the ``many`` blocks with the largest maxima are searched. A number elsewhere has at least that many before it:
    each of these maxima is larger, or as large and stands earlier.
    """
    n = values.shape[0]
    width = math.isqrt(n // max(1, many))  # both searches are then among √(n·many) numbers
    if width < NARROWEST:
        return lax.top_k(values, many)[1].astype(jnp.int32)
    blocks = -(-n // width)
    split = jnp.pad(values, (0, blocks * width - n), constant_values=-jnp.inf).reshape(blocks, width)
    which = jnp.sort(lax.top_k(split.max(axis=1), many)[1])
    place = lax.top_k(split[which].reshape(-1), many)[1]
    return (which[place // width] * width + place % width).astype(jnp.int32)
