"""Rows of private clients in compiled programs: Poisson samples, and sums of clipped values and gradients."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from softswitch.data.client_data import Rows
from softswitch.oracles.evaluation import Losses, map_slices, sum_slices
from softswitch.privacy.numpy_rows import clip_values
from softswitch.problem.parameters import WEIGHT, Batch, Params, float_dtype

ROWS_TOGETHER, NUMBERS_TOGETHER = 4096, 1 << 22  # maximum number of rows, and of entries of row gradients, at a time


class DrawnRows(NamedTuple):
    """Row indices of one client with padding, and a mask that is False for padding."""

    indices: Int[Array, " capacity"]
    counted: Bool[Array, " capacity"]


def all_rows(rows: Rows, client: Array, width: int) -> DrawnRows:
    """Return all rows of a client, padded to ``width``, the number of rows of the largest client."""
    return _at(rows, client, jnp.arange(width, dtype=jnp.int32))


def draw_poisson_sample(rows: Rows, client: Array, width: int, capacity: int, key: Array, rate: float) -> DrawnRows:
    """Return at most ``capacity`` rows of a client, each drawn with a probability in (rate − 2⁻³², rate]; rate < 1."""
    words = jax.random.bits(key, (width,), jnp.uint32)
    drawn = (words < jnp.uint32(math.floor(rate * 2**32))) & (jnp.arange(width) < rows.counts[client].sum())
    return _at(rows, client, jnp.nonzero(drawn, size=capacity, fill_value=width)[0].astype(jnp.int32))


def poisson_capacity(rate: float, width: int) -> int:
    """Return a number of rows that a Poisson sample exceeds with probability < exp(−60) (Bernstein's inequality)."""
    mean = rate * width
    return min(width, math.ceil(mean + 12 * math.sqrt(mean * (1 - rate)) + 40))


def _at(rows: Rows, client: Array, places: Array) -> DrawnRows:
    size = rows.counts[client].sum()
    return DrawnRows(rows.offsets[client, 0] + jnp.minimum(places, size - 1), places < size)


def evaluate_rows(losses: Losses, params: Params, batch: Batch) -> Float[Array, "rows functions"]:
    """Return f and g on each row of a batch as a batch of one row; the row weights are ignored."""
    return map_slices(lambda row: losses.values(params, as_batch(row, params)), _columns(batch), ROWS_TOGETHER)


def sum_clipped_values(losses: Losses, params: Params, batch: Batch, counted: Array, clip: Any) -> Array:
    """Return the sum over the counted rows of the vectors (f, g), each clipped to norm ``clip``.

    Before clipping, −∞ and NaN count as 0, and +∞ as the largest finite number.
    """
    return jnp.where(counted[:, None], clip_values(evaluate_rows(losses, params, batch), clip), 0).sum(axis=0)


def sum_clipped_gradients(losses: Losses, params: Params, batch: Batch, counted: Array, mix: Any, clip: Any) -> Params:
    """Return the sum over counted rows of gradients of <mix, (f, surrogate of g)>, clipped; infinite ones are 0."""

    def loss(params: Params, row: Batch) -> Array:
        batch = as_batch(row, params)
        constraints = losses.differentiable_constraints(params, batch)
        values = jnp.concatenate([losses.objective(params, batch)[None], constraints])
        return jnp.dot(mix, jnp.where(jnp.isneginf(values), 0, values))

    def clip_gradient(row: Batch) -> Params:
        gradient = jax.grad(loss)(params, row)
        norm = optax.tree.norm(gradient)
        is_finite = jnp.isfinite(norm)
        scale = jnp.minimum(1, clip / jnp.maximum(jnp.where(is_finite, norm, 1), jnp.finfo(norm.dtype).tiny))
        return jax.tree.map(lambda part: jnp.where(is_finite, part * scale, 0), gradient)

    def in_slice(rows: tuple[Batch, Array]) -> Params:
        gradients = jax.vmap(clip_gradient)(rows[0])
        return jax.tree.map(lambda part: jnp.tensordot(rows[1].astype(part.dtype), part, axes=1), gradients)

    numbers = sum(leaf.size for leaf in jax.tree.leaves(params))
    return sum_slices(in_slice, (_columns(batch), counted), max(1, NUMBERS_TOGETHER // numbers))


def as_batch(row: Batch, params: Params) -> Batch:
    """Return one row, without the axis of rows, as a batch of weight 1 in the dtype of the parameters."""
    return {**{key: column[None] for key, column in row.items()}, WEIGHT: jnp.ones(1, float_dtype(params))}


def _columns(batch: Batch) -> Batch:
    return {key: column for key, column in batch.items() if key != WEIGHT}
