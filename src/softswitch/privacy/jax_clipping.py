"""Sums of clipped rows with JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from softswitch.oracles.client_batches import map_slices, sum_slices
from softswitch.oracles.losses import Losses
from softswitch.problem.parameters import WEIGHT, Batch, Params, float_dtype

ROWS_TOGETHER = 4096
"""Number of rows whose values are computed together."""
NUMBERS_TOGETHER = 1 << 22
"""Number of entries of the gradients that are computed together."""


def sum_clipped_values(
    losses: Losses, params: Params, batch: Batch, counted: Bool[Array, " rows"], clip: Any
) -> Float[Array, " functions"]:
    """Sum f and g over the counted rows, the vector of each row clipped to norm ``clip``; −∞ and NaN count as 0."""

    def one(values: Array) -> Array:
        values = jnp.where(jnp.isposinf(values), jnp.finfo(values.dtype).max, values)
        return _clip(jnp.where(jnp.isfinite(values), values, 0), clip)

    clipped = jax.vmap(one)(evaluate_rows(losses, params, batch))
    return jnp.where(counted[:, None], clipped, 0).sum(axis=0)


def evaluate_rows(losses: Losses, params: Params, batch: Batch) -> Float[Array, "rows functions"]:
    """Return f and g on every single row; the weights of the batch are ignored."""

    def one(row: Batch) -> Array:
        return losses.values(params, _single_row(row, float_dtype(params)))

    values: Array = map_slices(one, _without_weight(batch), ROWS_TOGETHER)
    return values


def sum_clipped_gradients(
    losses: Losses,
    params: Params,
    batch: Batch,
    counted: Bool[Array, " rows"],
    mix: Float[Array, " functions"],
    clip: Any,
) -> Params:
    """Sum the gradients of <mix, (f, g)> over the counted rows, each clipped to norm ``clip``.

    The surrogate replaces g if there is one. Gradients that are not finite count as 0.
    """

    def loss(params: Params, row: Batch) -> Array:
        batch = _single_row(row, float_dtype(params))
        constraints = losses.differentiable_constraints(params, batch)
        values = jnp.concatenate([losses.objective(params, batch)[None], constraints])
        return jnp.dot(mix, jnp.where(jnp.isneginf(values), 0, values))

    def one(row: Batch) -> Params:
        gradient = jax.grad(loss)(params, row)
        norm = optax.tree.norm(gradient)
        is_finite = jnp.isfinite(norm)
        scale = jnp.minimum(1, clip / jnp.maximum(jnp.where(is_finite, norm, 1), jnp.finfo(norm.dtype).tiny))
        return jax.tree.map(lambda part: jnp.where(is_finite, part * scale, 0), gradient)

    def in_slice(rows: tuple[Batch, Array]) -> Params:
        gradients = jax.vmap(one)(rows[0])
        return jax.tree.map(lambda part: jnp.tensordot(rows[1].astype(part.dtype), part, axes=1), gradients)

    numbers = sum(leaf.size for leaf in jax.tree.leaves(params))
    total: Params = sum_slices(in_slice, (_without_weight(batch), counted), max(1, NUMBERS_TOGETHER // numbers))
    return total


def _clip(vector: Float[Array, " d"], clip: Any) -> Float[Array, " d"]:
    """Clip a vector to norm ``clip``, without overflow for large entries."""
    largest = jnp.abs(vector).max()
    unit = vector / jnp.where(largest > 0, largest, 1)
    norm = jnp.linalg.norm(unit)
    return unit * jnp.minimum(largest, clip / jnp.where(norm > 0, norm, 1))


def _single_row(row: Batch, dtype: Any) -> Batch:
    return {**{key: column[None] for key, column in row.items()}, WEIGHT: jnp.ones(1, dtype)}


def _without_weight(batch: Batch) -> Batch:
    return {key: column for key, column in batch.items() if key != WEIGHT}
