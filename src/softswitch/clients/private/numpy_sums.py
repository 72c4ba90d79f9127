"""Sums over rows in which no single row counts for more than it may, for clients that compute outside of JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

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
