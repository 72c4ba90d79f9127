"""Private rows with NumPy: sums of clipped gradients, and the local loss of single rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace

from softswitch.methods.messages import LocalLoss
from softswitch.privacy.noise import quantize_rows

if TYPE_CHECKING:
    from jaxtyping import Array, Float

Arrays = dict[str, np.ndarray]  # parameters or gradients by name


def mix_row_losses(
    loss: LocalLoss, constraint: Float[Array, " c"], counts: Float[Array, " functions"]
) -> tuple[Float[Array, " functions"], Any]:
    """Return the weights m_j N/n_j of f and each g on a row, and the factor 1/N of their sum over rows.

    The local loss is Σ_j m_j h_j with h_j = Σ_rows h_j(row)/n_j, where n_j are the ``counts``. On a row it is
    Σ_j (m_j N/n_j) h_j(row) times 1/N, with the weighted harmonic mean N of the n_j. Functions with n_j = 0 are
    ignored. A penalty applies if the reported ``constraint`` exceeds the tolerance.
    """
    xp = array_namespace(counts)
    on_objective = xp.reshape(xp.asarray(loss.objective, dtype=counts.dtype), (1,))
    above = xp.astype(constraint > xp.asarray(loss.tolerance, dtype=constraint.dtype), counts.dtype)
    penalty = xp.asarray(loss.penalty, dtype=counts.dtype) * above
    on_constraint = xp.asarray(loss.constraint, dtype=counts.dtype) + penalty
    defined = counts > 0
    mix = xp.where(defined, xp.concat([on_objective, on_constraint]), xp.zeros_like(counts))
    per_row = mix / xp.where(defined, counts, xp.ones_like(counts))
    total, size = xp.sum(xp.abs(per_row)), xp.sum(xp.abs(mix))
    is_nonzero = total > 0
    rows = size / xp.where(is_nonzero, total, xp.ones_like(total))
    scale = xp.where(is_nonzero, 1 / xp.where(is_nonzero, rows, xp.ones_like(rows)), xp.zeros_like(rows))
    return per_row * rows, scale


def sum_clipped_gradients(gradients: Iterable[Arrays], like: Arrays, clip: float) -> Arrays:
    """Return the sum of clipped row gradients as integers, in grid intervals of ``clip``.

    Every item has the gradients of some rows, stacked. A row whose gradient is not finite counts as 0.
    """
    shapes = {name: np.shape(value) for name, value in like.items()}
    total = np.zeros(sum(math.prod(shape) for shape in shapes.values()), np.int64)
    with np.errstate(all="ignore"):
        for gradient in gradients:
            rows = np.concatenate(
                [np.asarray(gradient[name], float).reshape(-1, math.prod(shape)) for name, shape in shapes.items()],
                axis=1,
            )
            rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)
            total += quantize_rows(rows, clip).sum(axis=0)
    return split_vector(total, like)


def split_vector(vector: np.ndarray, like: Arrays) -> Arrays:
    """Return the parts of a vector as arrays with the names and shapes of ``like``."""
    ends = np.cumsum([np.size(value) for value in like.values()])
    parts = np.split(vector, ends[:-1])
    return {name: part.reshape(np.shape(value)) for (name, value), part in zip(like.items(), parts, strict=True)}


def average_steps(params: Arrays, local_steps: int, step_size: float, gradient: Callable[[Arrays], Arrays]) -> Arrays:
    """Return u_i, the mean of gradients along local steps, each on fresh rows."""
    total = {name: np.zeros(value.shape) for name, value in params.items()}
    for _ in range(local_steps):
        iterate = {name: (value - step_size * total[name]).astype(value.dtype) for name, value in params.items()}
        step = gradient(iterate)
        total = {name: part + step[name] for name, part in total.items()}
    return {name: (part / local_steps).astype(params[name].dtype) for name, part in total.items()}
