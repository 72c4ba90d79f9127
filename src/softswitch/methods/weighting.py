"""Weights and statistics of client values: softmax weights of array API arrays, and trimmed NumPy statistics.

The weights treat the entries of ``values`` as one set: a vector has one value per client, a matrix (clients ×
constraints) one per pair. ``mask`` is True for the entries to include, and must broadcast against ``values``. Default:
all. Excluded entries get weight 0 and may hold any value, including NaN. With an empty mask all weights are 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

Array = Any  # NumPy, JAX or PyTorch


def _masked(values: Array, mask: Array | None) -> tuple[Any, Array, Array]:
    """Return the array namespace, a mask of the shape of ``values``, and values − maximum (0 outside of the mask)."""
    xp = array_namespace(values)
    full = xp.ones(values.shape, dtype=xp.bool, device=device(values))
    mask = full if mask is None else xp.logical_and(full, mask)
    zeros = xp.zeros_like(values)
    gaps = xp.where(mask, values, zeros) - maximum(values, mask)
    return xp, mask, xp.where(mask, gaps, zeros)


def _normalise(xp: Any, weights: Array) -> Array:
    total = xp.sum(weights)
    return weights / xp.where(total > 0, total, xp.ones_like(total))


def softmax_weights(values: Array, alpha: float | Array, mask: Array | None = None) -> Array:
    """Return the masked softmax, softmax_I(αx)_i = 1[i ∈ I]·exp(αx_i) / Σ_{j∈I} exp(αx_j).

    It is shifted by the maximum over the mask to avoid overflow. It maximises <q, x> + Ent(q)/α over the simplex.

    Args:
        values: One value per client, or per client and constraint.
        alpha: α >= 0, per unit of the values: 0 gives equal weights, a large α the largest only.
        mask: True for the entries to include. Default: all.
    """
    xp, mask, gaps = _masked(values, mask)
    return _normalise(xp, xp.where(mask, xp.exp(alpha * gaps), xp.zeros_like(gaps)))


def softmax_mean(values: Array, alpha: float | Array, mask: Array | None = None) -> Array:
    """Return the softmax mean m(x, α) = <softmax(αx), x>: from the mean (α = 0) towards the maximum (α → ∞).

    0 <= max x − m(x, α) <= ln(n)/α. It is computed as max x + <softmax(αx), x − max x>, which is accurate for large
    common offsets. With an empty mask the result is −∞.

    Args:
        values: One value per client, or per client and constraint.
        alpha: α >= 0, per unit of the values: 0 gives the mean, a large α the maximum.
        mask: True for the entries to include. Default: all.
    """
    xp, mask, gaps = _masked(values, mask)
    weights = _normalise(xp, xp.where(mask, xp.exp(alpha * gaps), xp.zeros_like(gaps)))
    return maximum(values, mask) + xp.sum(weights * gaps)


def spread(values: Array, mask: Array | None = None) -> Array:
    """Return the largest minus the smallest entry in the mask; 0 if the mask is empty."""
    xp, _, gaps = _masked(values, mask)
    return -xp.min(gaps)


def hardmax_weights(values: Array, mask: Array | None = None) -> Array:
    """Return equal weights on the largest entries (up to rounding), the limit of the softmax as α → ∞; 0 elsewhere."""
    xp, mask, gaps = _masked(values, mask)
    rounding = 8 * xp.finfo(values.dtype).eps * xp.max(xp.where(mask, xp.abs(values), xp.zeros_like(values)))
    largest = xp.logical_and(mask, xp.logical_and(xp.isfinite(gaps), gaps >= -rounding))
    return _normalise(xp, xp.astype(largest, values.dtype))


def equal_weights(values: Array, mask: Array | None = None, stand_for: Array | None = None) -> Array:
    """Return 1/m for each of the m entries in the mask, or weights proportional to ``stand_for``, one number a row."""
    xp, mask, _ = _masked(values, mask)
    weights = xp.astype(mask, values.dtype)
    if stand_for is not None:
        weights = weights * xp.reshape(stand_for, (-1,) + (1,) * (values.ndim - 1))
    return _normalise(xp, weights)


def softmax_or_equal(values: Array, alpha: Any, mask: Array, stand_for: Array | None = None) -> Array:
    """Return the weights softmax(α·values) over the mask, or ``equal_weights`` if α is None."""
    return equal_weights(values, mask, stand_for) if alpha is None else softmax_weights(values, alpha, mask)


def maximum(values: Array, mask: Array | None = None) -> Array:
    """Return the largest entry in the mask; −∞ if the mask is empty."""
    xp = array_namespace(values)
    if mask is None:
        return xp.max(values)
    lowest = xp.full(values.shape, -xp.inf, dtype=values.dtype, device=device(values))
    return xp.max(xp.where(mask, values, lowest))


def trimmed_max(values: np.ndarray, byzantine: int | None) -> float:
    """Return the largest value of a client, without the b largest clients; NaN counts as largest, and None is b = 0."""
    by_client = np.asarray(values, float).reshape(len(values), -1).max(axis=1)
    trimmed = min(int(byzantine or 0), len(by_client) - 1)
    worst = np.sort(np.where(np.isnan(by_client), np.inf, by_client))[-1 - trimmed]
    return float("nan") if np.isnan(by_client).any() and worst == np.inf else float(worst)


def winsorised_mean(values: np.ndarray, byzantine: int | None) -> float:
    """Return the mean of the values that are not missing (−∞), with the b smallest and b largest clipped per column."""
    kept = []
    for column in np.asarray(values).reshape(len(values), -1).T:
        known = column[~np.isneginf(column)]
        trimmed = min(int(byzantine or 0), (len(known) - 1) // 2)
        if trimmed > 0 and not np.isnan(known).any():
            ordered = np.sort(known)
            known = np.clip(known, ordered[trimmed], ordered[-1 - trimmed])
        kept.append(known)
    return float(np.mean(np.concatenate(kept)))


def trimmed_clients(values: np.ndarray, byzantine: int | None) -> list[int]:
    """Return the indices of the b clients with the largest values, in descending order; NaN counts as the largest."""
    known = np.where(np.isnan(values), np.inf, values)
    return np.argsort(-known, kind="stable")[: int(byzantine or 0)].tolist()
