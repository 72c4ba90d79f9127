"""Private rows with NumPy: clipped values and gradients, the local loss of single rows, and secret noise."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace

from softswitch.methods.messages import LocalLoss

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


def clip_values(values: Any, clip: Any) -> Any:
    """Return values (rows × functions) with rows clipped to norm ``clip``; −∞ and NaN count as 0, ∞ as very large."""
    xp = array_namespace(values)
    values = xp.where(values == xp.inf, xp.finfo(values.dtype).max, values)
    values = xp.where(xp.isfinite(values), values, xp.zeros_like(values))
    largest = xp.max(xp.abs(values), axis=1, keepdims=True)
    unit = values / xp.where(largest > 0, largest, xp.ones_like(largest))  # large entries would overflow in the norm
    norm = xp.linalg.vector_norm(unit, axis=1, keepdims=True)
    return unit * xp.minimum(largest, clip / xp.where(norm > 0, norm, xp.ones_like(norm)))


def sum_clipped_gradients(gradients: Iterable[Arrays], like: Arrays, clip: float) -> Arrays:
    """Return the sum of row gradients, each clipped to norm ``clip``; gradients that are not finite count as 0."""
    total = {name: np.zeros(value.shape) for name, value in like.items()}
    with np.errstate(all="ignore"):
        for gradient in gradients:
            norm = np.sqrt(sum(float(np.square(part, dtype=float).sum()) for part in gradient.values()))
            if np.isfinite(norm):
                scale = min(1.0, clip / norm) if norm > 0 else 1.0
                total = {name: total[name] + scale * gradient[name] for name in total}
    return total


def average_steps(params: Arrays, local_steps: int, step_size: float, gradient: Callable[[Arrays], Arrays]) -> Arrays:
    """Return u_i, the mean of gradients along local steps, each on fresh rows."""
    total = {name: np.zeros(value.shape) for name, value in params.items()}
    for _ in range(local_steps):
        iterate = {name: (value - step_size * total[name]).astype(value.dtype) for name, value in params.items()}
        step = gradient(iterate)
        total = {name: part + step[name] for name, part in total.items()}
    return {name: (part / local_steps).astype(params[name].dtype) for name, part in total.items()}


# ---- random numbers from the operating system, which cannot be reproduced from a seed


def secret_normals(*shape: int) -> np.ndarray:
    """Return an array of independent standard normal numbers, each from 53 bits of ``os.urandom``."""
    from scipy.special import ndtri  # clients that are not private do not need SciPy

    uniform = (secret_words(math.prod(shape)) >> np.uint64(11)).astype(float)
    return np.asarray(ndtri((uniform + 0.5) / 2**53)).reshape(shape)


def secret_draw(rows: int, rate: float) -> np.ndarray:
    """Return the indices of a Poisson sample of ``rows`` rows: each with a probability in (rate − 2⁻⁶⁴, rate]."""
    if rate >= 1:
        return np.arange(rows)
    return np.flatnonzero(secret_words(rows) < np.uint64(math.floor(rate * 2**64)))


def secret_words(count: int) -> np.ndarray:
    """Return ``count`` random uint64 numbers from ``os.urandom``."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)
