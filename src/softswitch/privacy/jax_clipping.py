"""Sums over rows in which no single row counts for more than it may: what noise is added to."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from softswitch.oracles.client_batches import map_slices, sum_slices
from softswitch.oracles.losses import Losses
from softswitch.problem.parameters import WEIGHT, Batch, Params, float_dtype

AT_ONCE = 4096
"""So many rows' values are computed side by side,"""
NUMBERS_AT_ONCE = 1 << 22
"""and gradients of so many numbers together."""


def summed_values(
    losses: Losses, params: Params, batch: Batch, counted: Bool[Array, " rows"], clip: Any
) -> Float[Array, " functions"]:
    """Σ over the rows that are counted of what each tells of f and all g, no vector longer than ``clip``.

    A function that does not concern a row (−∞) tells 0 of it, and so does one that is not a number there.

    Args:
        losses: the functions.
        params: where.
        batch: rows, as columns; weights are not looked at.
        counted: which rows count.
        clip: how long what a row tells is at most.
    """

    def one(told: Array) -> Array:
        told = jnp.where(jnp.isposinf(told), jnp.finfo(told.dtype).max, told)
        return shortened(jnp.where(jnp.isfinite(told), told, 0), clip)

    told = jax.vmap(one)(told_by_rows(losses, params, batch))
    return jnp.where(counted[:, None], told, 0).sum(axis=0)


def told_by_rows(losses: Losses, params: Params, batch: Batch) -> Float[Array, "rows functions"]:
    """f and all g on every single row.

    Args:
        losses: the functions.
        params: where.
        batch: rows, as columns; weights are not looked at.
    """

    def one(row: Batch) -> Array:
        return losses.values(params, alone(row, float_dtype(params)))

    told: Array = map_slices(one, without_weight(batch), AT_ONCE)
    return told


def summed_gradients(
    losses: Losses,
    params: Params,
    batch: Batch,
    counted: Bool[Array, " rows"],
    mix: Float[Array, " functions"],
    clip: Any,
) -> Params:
    """Σ over the rows that are counted of the gradient of <mix, (f, g)> on each, none longer than ``clip``.

    For g its stand-in is taken, where there is one. A row whose gradient is not finite counts as 0.

    Args:
        losses: the functions.
        params: where.
        batch: rows, as columns; weights are not looked at.
        counted: which rows count.
        mix: the weight of f and of each g.
        clip: how long a row's gradient is at most.
    """

    def loss(params: Params, row: Batch) -> Array:
        rows = alone(row, float_dtype(params))
        told = jnp.concatenate([losses.objective(params, rows)[None], losses.differentiable_constraints(params, rows)])
        return jnp.dot(mix, jnp.where(jnp.isneginf(told), 0, told))

    def one(row: Batch) -> Params:
        gradient = jax.grad(loss)(params, row)
        norm = optax.tree.norm(gradient)
        finite = jnp.isfinite(norm)
        scale = jnp.minimum(1, clip / jnp.maximum(jnp.where(finite, norm, 1), jnp.finfo(norm.dtype).tiny))
        return jax.tree.map(lambda part: jnp.where(finite, part * scale, 0), gradient)

    def some(rows: tuple[Batch, Array]) -> Params:
        each = jax.vmap(one)(rows[0])
        return jax.tree.map(lambda part: jnp.tensordot(rows[1].astype(part.dtype), part, axes=1), each)

    numbers = sum(leaf.size for leaf in jax.tree.leaves(params))
    total: Params = sum_slices(some, (without_weight(batch), counted), max(1, NUMBERS_AT_ONCE // numbers))
    return total


def shortened(vector: Float[Array, " d"], clip: Any) -> Float[Array, " d"]:
    """The vector, or one in its direction of length ``clip`` where it is longer; of any size without overflow."""
    largest = jnp.abs(vector).max()
    unit = vector / jnp.where(largest > 0, largest, 1)
    norm = jnp.linalg.norm(unit)
    length = jnp.minimum(largest, clip / jnp.where(norm > 0, norm, 1))
    return unit * length


def alone(row: Batch, dtype: Any) -> Batch:
    """A batch of this one row, whose weight is of this dtype."""
    return {**{key: column[None] for key, column in row.items()}, WEIGHT: jnp.ones(1, dtype)}


def without_weight(batch: Batch) -> Batch:
    """The columns alone."""
    return {key: column for key, column in batch.items() if key != WEIGHT}
