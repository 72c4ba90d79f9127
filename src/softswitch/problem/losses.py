"""The logistic loss, and weighted means and rates over the rows of a batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from softswitch.problem.parameters import Batch


@jax.custom_jvp
def _log_one_plus_exp(score: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
    return jnp.logaddexp(score, 0)


@_log_one_plus_exp.defjvp
def _log_one_plus_exp_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (score,), (tangent,) = primals, tangents
    return _log_one_plus_exp(score), jax.nn.sigmoid(score) * tangent


def logistic_loss(score: Float[Array, "*rows"], positive: ArrayLike) -> Float[Array, "*rows"]:
    """Return log(1 + exp(score)) − positive·score, the negative log likelihood of every row's label.

    Equal to ``jnp.logaddexp(0, score) - positive * score``, with a derivative that costs one exponential.

    Args:
        score: Log-odds of the positive label, one per row.
        positive: 1 or True if a row has the positive label, else 0. Values in between are probabilities.
    """
    return _log_one_plus_exp(score) - positive * score


def mean_over(values: Float[Array, "*rows"], weights: Float[Array, "*rows"]) -> Float[Array, ""]:
    """Return the weighted mean, Σ weights·values / Σ weights, or −∞ if all weights are 0.

    For the loss of one class or group: ``mean_over(loss, batch["weight"] * (batch["y"] == 1))``. A client without
    such rows then has no objective or constraint of this kind (see ``Problem``), and its gradient is 0.

    Your function must also return −∞ for such a client. ``mean_over(…) - 0.3`` does; ``0.3 - mean_over(…)``
    and the difference of two means do not. For those, test Σ weights and keep the unused branch finite, because JAX
    differentiates both: ``jnp.where(known, 0.3 - mean, -jnp.inf)``. A batch that lacks the class by chance also gives
    −∞, and excludes its client from that round. Draw by ``strata`` to avoid this.

    Args:
        values: One value per row, such as losses.
        weights: One weight >= 0 per row: ``batch["weight"]``, set to 0 for rows that do not count.
    """
    if values.shape != weights.shape:
        raise ValueError(f"values and weights must have the same shape, but have {values.shape} and {weights.shape}")
    return jnp.where(weights.sum() > 0, mean_or_zero(values, weights), -jnp.inf)


def mean_or_zero(values: Float[Array, "*rows"], weights: Float[Array, "*rows"]) -> Float[Array, ""]:
    """Return the weighted mean, Σ weights·values / Σ weights, or 0 if all weights are 0."""
    total = weights.sum()
    return (weights * values).sum() / jnp.where(total > 0, total, 1)


def event_rate(events: Bool[Array, "*rows"], weights: Float[Array, "*rows"]) -> Float[Array, ""]:
    """Return the weighted fraction of rows with an event, or −∞ if all weights are 0.

    Like ``mean_over`` of zeros and ones, but exact if all rows weigh the same: k events among n rows give k/n,
    rounded down. So 5 of 100 do not exceed 0.05, which single precision rounds up to 0.0500000007.

    Args:
        events: Whether the event happened, one bool per row; or 0 and 1.
        weights: One weight per row, as for ``mean_over``.
    """
    if events.shape != weights.shape:
        raise ValueError(f"events and weights must have the same shape, but have {events.shape} and {weights.shape}")
    rows = scale_to_max(weights)
    total, happened = rows.sum(), jnp.where(events, rows, 0).sum()
    share = happened / jnp.where(total > 0, total, 1)
    return jnp.where(total > 0, jnp.where(happened < total, round_down(share), share), -jnp.inf)


def class_weights(batch: Batch, label: int | None) -> Float[Array, " rows"]:
    """Return the row weights of a batch, set to 0 outside of the class ``label`` (1 or 0; None keeps all rows)."""
    weights = batch["weight"]
    return weights if label is None else weights * ((batch["y"] == 1) == (label == 1))


def scale_to_max(weights: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
    """Return the weights divided by the largest, which becomes exactly 1; all zeros are unchanged."""
    largest = weights.max(initial=0)
    scaled = weights / jnp.where(largest > 0, largest, 1)
    return jnp.where((weights == largest) & (largest > 0), 1, scaled)  # a compiler may multiply by 1/largest


def round_down(value: Float[Array, ""]) -> Float[Array, ""]:
    """Return a value >= 0 reduced by the relative amount 4·eps, more than the rounding error of a quotient."""
    return value * (1 - 4 * jnp.finfo(value.dtype).eps)
