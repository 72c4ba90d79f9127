"""Rows of private clients in compiled programs: values of rows, and integer sums of clipped values and gradients.

Sums are computed in 64-bit integers: call these functions under ``jax.enable_x64``.

Rounding must not depend on other rows either: a program for 128 rows may round a row's value differently from one for
256, and at extreme parameters that changes every row. So rows are always computed in slices of one size, in a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from softswitch.oracles.evaluation import Losses
from softswitch.privacy.noise import quantize_rows
from softswitch.problem.parameters import WEIGHT, Batch, Params, float_dtype

ROWS_TOGETHER, NUMBERS_TOGETHER = 256, 1 << 22  # maximum number of rows, and of entries of row gradients, at a time


class DrawnRows(NamedTuple):
    """Row indices of one client with padding, and a mask that is False for padding."""

    indices: Int[Array, " capacity"]
    counted: Bool[Array, " capacity"]


def evaluate_rows(losses: Losses, params: Params, batch: Batch) -> Float[Array, "rows functions"]:
    """Return f and g on each row of a batch as a batch of one row; the row weights are ignored."""
    evaluate = jax.vmap(lambda row: losses.values(params, as_batch(row, params)))
    values = lax.map(evaluate, _to_slices(_columns(batch), ROWS_TOGETHER))
    return values.reshape(-1, values.shape[-1])[: len(jax.tree.leaves(batch)[0])]


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

    def add_slice(total: Array, part: tuple[Batch, Array]) -> tuple[Array, None]:
        batch, counted = part
        gradients = jax.vmap(lambda row: ravel_pytree(jax.grad(loss)(params, row))[0].astype(float))(batch)
        is_used = counted & jnp.isfinite(gradients).all(axis=1)
        return total + quantize_rows(jnp.where(is_used[:, None], gradients, 0), clip).sum(axis=0), None

    numbers = sum(leaf.size for leaf in jax.tree.leaves(params))
    size = min(ROWS_TOGETHER, 1 << max(0, (NUMBERS_TOGETHER // numbers).bit_length() - 1))
    return lax.scan(add_slice, jnp.zeros(numbers, int), _to_slices((_columns(batch), counted), size))[0]


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


def _to_slices(rows: Any, size: int) -> Any:
    """Return arrays of rows as slices of ``size`` rows, padded with zeros; at least two, since one is inlined."""
    count = len(jax.tree.leaves(rows)[0])
    slices = max(2, -(-count // size))

    def split(x: Array) -> Array:
        return jnp.pad(x, [(0, slices * size - count)] + [(0, 0)] * (x.ndim - 1)).reshape(slices, size, *x.shape[1:])

    return jax.tree.map(split, rows)
