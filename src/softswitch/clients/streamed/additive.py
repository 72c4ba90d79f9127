"""Whether functions are means over rows, found by trying: only then can a client be looked at in pieces."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.clients.losses import Losses
from softswitch.clients.streamed.streamed_data import StreamedData
from softswitch.problem.parameters import WEIGHT, Batch, Params, float_dtype

ROWS, TRIALS, ROUNDING = 2**14, 4, 1e-4
"""Rows to try with at most, spread over a client's; how often they are parted; what rounding may make of a mean."""
FARTHER = (0.0, 0.1, 1.0)
"""How far from the start to try, in standard deviations of random numbers: at the start all rows may be alike."""


def means_over_rows(data: StreamedData, client: int, losses: Losses, start: Params) -> dict[str, bool]:
    """Whether the objective and the constraint of some rows are the mean of what they are of these rows in two parts.

    A pooled constraint is not tried: its statistics are sums over rows by their meaning.
    """
    total = int(data.sizes[client])
    fit = max(3, data.buffer_bytes // 2 // data.row_bytes)
    rows = np.unique(np.linspace(0, total - 1, min(total, ROWS, fit)).astype(np.int64))
    store = data.store(len(rows))
    data.read(int(data.offsets[client, 0]) + rows, store, 0)
    draws, one = np.random.default_rng(0), len(rows) // 3
    means = {"objective": True, "constraint": True}
    for farther in FARTHER:
        params = _moved(start, farther, draws)
        for _ in range(TRIALS):
            order = draws.permutation(len(rows))
            parts = [
                tuple(np.asarray(value, float) for value in _both(params, _batch(store, some, params), losses))
                for some in (order, order[:one], order[one:])
            ]
            for name, whole, first, second in zip(means, *parts, strict=True):
                put_together = (one * first + (len(rows) - one) * second) / len(rows)
                scale = np.maximum(np.abs(first), np.abs(second)) + np.abs(whole)
                means[name] &= bool((np.abs(whole - put_together) <= ROUNDING * scale + 1e-30).all())
    return means | ({"constraint": True} if losses.pools else {})


def _moved(start: Params, farther: float, draws: np.random.Generator) -> Params:
    return jax.tree.map(lambda leaf: leaf + farther * draws.normal(size=leaf.shape).astype(leaf.dtype), start)


def _batch(store: dict[str, np.ndarray], rows: np.ndarray, params: Params) -> Batch:
    weights = jnp.full((len(rows),), 1 / len(rows), float_dtype(params))
    return {**{key: jnp.asarray(column[rows]) for key, column in store.items()}, WEIGHT: weights}


@partial(jax.jit, static_argnames="losses")
def _both(params: Params, batch: Batch, losses: Losses) -> tuple[Any, Any]:
    return losses.objective(params, batch), losses.constraints(params, batch)
