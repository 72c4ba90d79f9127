"""The logistic loss of rows with two labels, with a derivative that costs one exponential."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float


@jax.custom_jvp
def _log_one_plus_exp(score: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
    return jnp.logaddexp(score, 0)


@_log_one_plus_exp.defjvp
def _slope(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (score,), (along,) = primals, tangents
    return _log_one_plus_exp(score), jax.nn.sigmoid(score) * along


def logistic_loss(score: Float[Array, "*rows"], positive: ArrayLike) -> Float[Array, "*rows"]:
    """Every row's log(1 + exp(score)) − positive·score, the negative log likelihood of its label.

    The same as ``jnp.logaddexp(0, score) - positive * score``, but its derivative, sigmoid(score) − positive, is
    computed as such: JAX's own way to it costs three times as much, which is a third of a round of logistic regression.

    Args:
        score: one a row, the log odds of the positive label.
        positive: 1 or True where a row has that label, else 0; anything in between is a share.
    """
    return _log_one_plus_exp(score) - positive * score


STEPS_DOWN = 4
"""Rates are rounded down by so many steps of their precision."""


def mean_over(values: Float[Array, "*rows"], weights: Float[Array, "*rows"]) -> Float[Array, ""]:
    """Σ weights·values / Σ weights; −∞, the maximum over nothing, where all weights are 0.

    For a loss of one class or group: ``mean_over(loss, batch["weight"] * (batch["y"] == 1))``. A client without such
    rows then has no objective, or no constraint, of this kind: see ``Problem``. Its gradient is 0.

    −∞ must also be what your function returns: ``mean_over(…) - 0.3`` keeps it, ``0.3 - mean_over(…)`` and the
    difference of two means do not. For those test Σ weights yourself, and keep the branch that is not taken finite,
    since JAX differentiates both: ``jnp.where(known, 0.3 - mean, -jnp.inf)``. A batch that lacks the class by chance
    says −∞ too, and its client then has no say in that round: draw by ``strata``.

    Args:
        values: one a row, such as losses.
        weights: one a row, not below 0: ``batch["weight"]``, made 0 where a row does not count.
    """
    if values.shape != weights.shape:
        raise ValueError(f"values and weights must have the same shape, but have {values.shape} and {weights.shape}")
    total = weights.sum()
    known = total > 0
    mean = (weights * values).sum() / jnp.where(known, total, 1)
    return jnp.where(known, mean, -jnp.inf)


def share_over(events: Bool[Array, "*rows"], weights: Float[Array, "*rows"]) -> Float[Array, ""]:
    """The share of the rows with an event, by weight: a rate, of misses say; −∞ where all weights are 0.

    As ``mean_over`` of zeros and ones, but exact where rows weigh the same: k events among n rows give k/n, rounded
    down. So 5 of 100 are not above 0.05, which single precision else makes 0.0500000007.

    Args:
        events: one a row: whether it happened, or 0 and 1.
        weights: one a row, as for ``mean_over``.
    """
    if events.shape != weights.shape:
        raise ValueError(f"events and weights must have the same shape, but have {events.shape} and {weights.shape}")
    rows = in_units(weights)
    total, happened = rows.sum(), jnp.where(events, rows, 0).sum()
    known = total > 0
    share = happened / jnp.where(known, total, 1)
    return jnp.where(known, jnp.where(happened < total, rounded_down(share), share), -jnp.inf)


def in_units(weights: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
    """The weights in units of the largest: ones and zeros where all that count weigh the same."""
    largest = weights.max(initial=0)
    parts = weights / jnp.where(largest > 0, largest, 1)
    return jnp.where((weights == largest) & (largest > 0), 1, parts)  # a compiler may divide by way of 1/largest


def rounded_down(value: Float[Array, ""]) -> Float[Array, ""]:
    """Lower by a few steps of the number's precision: more than a quotient of whole numbers is rounded up by."""
    return value * (1 - STEPS_DOWN * jnp.finfo(value.dtype).eps)
