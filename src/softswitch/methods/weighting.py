"""Softmax weights over the clients that take part, on any Array-API array (NumPy, JAX, PyTorch).

All functions treat the entries of ``values`` as one set, whatever its shape: a vector holds one value
a client, a matrix (clients × constraints) one value a pair. ``mask`` tells which entries take part
(True) and must broadcast against ``values``; without it all do. Entries outside the mask get weight 0
and may hold anything, NaN included. With nobody in the mask all weights are 0.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace, device

Array = Any  # NumPy, JAX or PyTorch


def _masked(values: Array, mask: Array | None) -> tuple[Any, Array, Array]:
    """Return the array namespace, a full mask, and the values measured down from their maximum."""
    xp = array_namespace(values)
    everyone = xp.ones(values.shape, dtype=xp.bool, device=device(values))
    mask = everyone if mask is None else xp.logical_and(everyone, mask)
    lowest = xp.full(values.shape, -xp.inf, dtype=values.dtype, device=device(values))
    nothing = xp.zeros_like(values)
    gaps = xp.where(mask, values, nothing) - xp.max(xp.where(mask, values, lowest))
    return xp, mask, xp.where(mask, gaps, nothing)


def _normalised(xp: Any, weights: Array) -> Array:
    total = xp.sum(weights)
    return weights / xp.where(total > 0, total, xp.ones_like(total))


def softmax_weights(values: Array, alpha: float | Array, mask: Array | None = None) -> Array:
    """The masked softmax, softmax_I(αx)_i = 1[i ∈ I]·exp(αx_i) / Σ_{j∈I} exp(αx_j).

    Shifted by the maximum over the mask, so that no α and no size of ``values`` overflows. It is the point
    of the simplex that maximises <q, x> + Ent(q)/α.

    Args:
        values: one a client, or one a client and constraint.
        alpha: α, per unit of the values: 0 weighs all alike, ∞ the largest only.
        mask: which of them count; None: all.
    """
    xp, mask, gaps = _masked(values, mask)
    return _normalised(xp, xp.where(mask, xp.exp(alpha * gaps), xp.zeros_like(gaps)))


def softmax_mean(values: Array, alpha: float | Array, mask: Array | None = None) -> Array:
    """The softmax mean m(x, α) = <softmax(αx), x>: from the mean (α = 0) towards the maximum (α → ∞).

    0 <= max x − m(x, α) <= ln(n)/α. Summed as max x + <softmax(αx), x − max x>, which loses no digits to a
    large common offset. With nobody in the mask there is no mean: the result is −∞ (a maximum over nothing).

    Args:
        values: one a client, or one a client and constraint.
        alpha: α, per unit of the values: 0 is the mean, ∞ the maximum.
        mask: which of them count; None: all.
    """
    xp, mask, gaps = _masked(values, mask)
    weights = _normalised(xp, xp.where(mask, xp.exp(alpha * gaps), xp.zeros_like(gaps)))
    return maximum(values, mask) + xp.sum(weights * gaps)


def spread(values: Array, mask: Array | None = None) -> Array:
    """How far the entries in the mask lie apart: the largest minus the smallest; 0 with nobody in the mask."""
    xp, _, gaps = _masked(values, mask)
    return -xp.min(gaps)


def hardmax_weights(values: Array, mask: Array | None = None) -> Array:
    """The limit of the softmax weights as α → ∞: equal weights on the largest entries, 0 elsewhere.

    Entries that differ by rounding only are equally large. A compiler may compute a value twice, once for the maximum
    and once to compare with it, and not to the same last digit: without this nobody might be the largest.
    """
    xp, mask, gaps = _masked(values, mask)
    rounding = 8 * xp.finfo(values.dtype).eps * xp.max(xp.where(mask, xp.abs(values), xp.zeros_like(values)))
    largest = xp.logical_and(mask, xp.logical_and(xp.isfinite(gaps), gaps >= -rounding))
    return _normalised(xp, xp.astype(largest, values.dtype))


def equal_weights(values: Array, mask: Array | None = None, stand_for: Array | None = None) -> Array:
    """The softmax weights at α = 0: 1/m for each of the m entries in the mask.

    Where row i stands for ``stand_for[i]`` others, itself included, it has as many times the weight of one.
    """
    xp, mask, _ = _masked(values, mask)
    weights = xp.astype(mask, values.dtype)
    if stand_for is not None:
        weights = weights * xp.reshape(stand_for, (-1,) + (1,) * (values.ndim - 1))
    return _normalised(xp, weights)


def maximum(values: Array, mask: Array | None = None) -> Array:
    """The largest entry in the mask; −∞ where the mask is empty."""
    xp = array_namespace(values)
    if mask is None:
        return xp.max(values)
    lowest = xp.full(values.shape, -xp.inf, dtype=values.dtype, device=device(values))
    return xp.max(xp.where(mask, values, lowest))
