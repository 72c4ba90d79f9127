"""What a local loss of several functions is on single rows: each function is a mean over rows of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace

from softswitch.methods.messages import LocalLoss

if TYPE_CHECKING:
    from jaxtyping import Array, Float


def row_mix(
    loss: LocalLoss, told: Float[Array, " c"], counts: Float[Array, " functions"]
) -> tuple[Float[Array, " functions"], Any]:
    """The weights of f and each g on a row, and what a sum over rows of their mixture is multiplied by.

    The local loss is Σ_j m_j h_j with h_j = Σ_rows h_j(row)/n_j. On a row that is Σ_j (m_j N/n_j) h_j(row), times 1/N,
    with the weighted harmonic mean N of the n_j: for a single function its own rows count as they are. Where the loss
    has a price on what exceeds the tolerance, what was told of g with noise says whether it does.

    Args:
        loss: what one client descends on.
        told: what it reported of g.
        counts: n_j, how many rows f and each g concern; 0: none.
    """
    xp = array_namespace(counts)
    one = xp.reshape(xp.asarray(loss.objective, dtype=counts.dtype), (1,))
    above = xp.astype(told > xp.asarray(loss.tolerance, dtype=told.dtype), counts.dtype)
    price = xp.asarray(loss.constraint, dtype=counts.dtype) + xp.asarray(loss.penalty, dtype=counts.dtype) * above
    known = counts > 0
    mix = xp.where(known, xp.concat([one, price]), xp.zeros_like(counts))
    per_row = mix / xp.where(known, counts, xp.ones_like(counts))
    total, size = xp.sum(xp.abs(per_row)), xp.sum(xp.abs(mix))
    anything = total > 0
    rows = size / xp.where(anything, total, xp.ones_like(total))
    scale = xp.where(anything, 1 / xp.where(anything, rows, xp.ones_like(rows)), xp.zeros_like(rows))
    return per_row * rows, scale


Arrays = dict[str, np.ndarray]
PLAIN_STEPS = (
    "optimizer must be left out with privacy: a local step is a plain one along clipped gradients; the server's "
    "optimiser is the rule's"
)
"""Why a client with an optimiser of its own cannot be private."""


def clipped_sum(values: np.ndarray, clip: float, functions: int) -> np.ndarray:
    """Σ over rows of what each tells of f and all g, no vector longer than ``clip``; what is not finite tells 0.

    Args:
        values: rows × functions.
        clip: how long what a row tells is at most.
        functions: how many there are, also where there is no row.
    """
    told = np.nan_to_num(np.asarray(values, float).reshape(-1, functions), nan=0.0, neginf=0.0, posinf=1e300)
    largest = np.abs(told).max(axis=1, keepdims=True, initial=0)
    unit = told / np.where(largest > 0, largest, 1)
    norm = np.linalg.norm(unit, axis=1, keepdims=True)
    shortened: np.ndarray = unit * np.minimum(largest, clip / np.where(norm > 0, norm, 1))
    return shortened.sum(axis=0)


def clipped_total(gradients: Iterable[Arrays], like: Arrays, clip: float) -> Arrays:
    """The sum of gradients, none longer than ``clip``; one that is not finite counts as 0.

    Args:
        gradients: one a row.
        like: arrays of their shapes.
        clip: the longest that one may be.
    """
    total = {name: np.zeros(value.shape) for name, value in like.items()}
    with np.errstate(all="ignore"):  # a row may give anything
        for gradient in gradients:
            norm = np.sqrt(sum(float(np.square(part, dtype=float).sum()) for part in gradient.values()))
            if np.isfinite(norm):
                scale = min(1.0, clip / norm) if norm > 0 else 1.0
                total = {name: total[name] + scale * gradient[name] for name in total}
    return total


def mean_of_steps(
    params: Arrays, local_steps: int, step_size: float, per_row: float, noised: Callable[[Arrays], Arrays]
) -> Arrays:
    """u_i: the mean of E gradients along the way, each made of fresh rows and with noise of its own.

    Args:
        params: w_k, arrays by name.
        local_steps: E.
        step_size: γ.
        per_row: what a sum over drawn rows is multiplied by.
        noised: the sum of clipped gradients with noise at some parameters.
    """
    total = {name: np.zeros(value.shape) for name, value in params.items()}
    for _ in range(local_steps):
        here = {name: (value - step_size * total[name]).astype(value.dtype) for name, value in params.items()}
        found = noised(here)
        total = {name: part + per_row * found[name] for name, part in total.items()}
    return {name: (part / local_steps).astype(params[name].dtype) for name, part in total.items()}
