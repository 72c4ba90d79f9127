"""Rows of private clients in compiled programs: values of rows, and integer sums of clipped values and gradients.

Sums are computed in 64-bit integers: call these functions under ``jax.enable_x64``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from softswitch.oracles.evaluation import Losses, map_slices, sum_slices
from softswitch.privacy.noise import quantize_rows
from softswitch.problem.parameters import WEIGHT, Batch, Params, float_dtype

ROWS_TOGETHER, NUMBERS_TOGETHER = 4096, 1 << 22  # maximum number of rows, and of entries of row gradients, at a time


class DrawnRows(NamedTuple):
    """Row indices of one client with padding, and a mask that is False for padding."""

    indices: Int[Array, " capacity"]
    counted: Bool[Array, " capacity"]


def evaluate_rows(losses: Losses, params: Params, batch: Batch) -> Float[Array, "rows functions"]:
    """Return f and g on each row of a batch as a batch of one row; the row weights are ignored."""
    return map_slices(lambda row: losses.values(params, as_batch(row, params)), _columns(batch), ROWS_TOGETHER)


def sum_clipped_values(losses: Losses, params: Params, batch: Batch, counted: Array, clip: Any) -> Int[Array, " f"]:
    """Return the sum over the counted rows of the vectors (f, g), clipped and rounded; see ``quantize_rows``."""
    values = evaluate_rows(losses, params, batch).astype(float)
    return jnp.where(counted[:, None], quantize_rows(values, clip), 0).sum(axis=0)


def sum_clipped_gradients(
    losses: Losses, params: Params, batch: Batch, counted: Array, mix: Any, clip: Any
) -> Int[Array, " d"]:
    """Return the sum over counted rows of gradients of <mix, (f, surrogate of g)>, clipped and rounded, as a vector.

    A row whose gradient is not finite counts as 0.
    """

    def loss(params: Params, row: Batch) -> Array:
        batch = as_batch(row, params)
        constraints = losses.differentiable_constraints(params, batch)
        values = jnp.concatenate([losses.objective(params, batch)[None], constraints])
        return jnp.dot(mix, jnp.where(jnp.isneginf(values), 0, values))

    def in_slice(rows: tuple[Batch, Array]) -> Array:
        batch, counted = rows
        gradients = jax.vmap(lambda row: ravel_pytree(jax.grad(loss)(params, row))[0].astype(float))(batch)
        is_used = counted & jnp.isfinite(gradients).all(axis=1)
        return quantize_rows(jnp.where(is_used[:, None], gradients, 0), clip).sum(axis=0)

    numbers = sum(leaf.size for leaf in jax.tree.leaves(params))
    return sum_slices(in_slice, (_columns(batch), counted), max(1, NUMBERS_TOGETHER // numbers))


def compile_exactly(function: Callable[..., Any], **static: Any) -> Callable[..., Any]:
    """Return a compiled function that computes with 64-bit integers, whatever precision the user has set."""
    compiled = jax.jit(function, **static)

    def call(*arguments: Any) -> Any:
        with jax.enable_x64(True):
            return compiled(*arguments)

    return call


def as_batch(row: Batch, params: Params) -> Batch:
    """Return one row, without the axis of rows, as a batch of weight 1 in the dtype of the parameters."""
    return {**{key: column[None] for key, column in row.items()}, WEIGHT: jnp.ones(1, float_dtype(params))}


def _columns(batch: Batch) -> Batch:
    return {key: column for key, column in batch.items() if key != WEIGHT}
