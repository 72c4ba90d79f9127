"""Multiclass labels: the cross-entropy, and error rates by class.

A batch has features ``x`` and labels ``y``: 0, 1, … A network with one output per class gives scores. The predicted
class is the one with the largest score.
"""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from softswitch.problem.losses import event_rate, mean_over
from softswitch.problem.networks import Network, apply_network
from softswitch.problem.parameters import Batch
from softswitch.problem.rates import Rate, nearest_error_loss


def class_cross_entropy(params: Network, batch: Batch) -> Float[Array, ""]:
    """Return the mean of −log of the probability of each row's class."""
    log_probabilities = jax.nn.log_softmax(apply_network(params, batch["x"]))
    return mean_over(-_take_label(log_probabilities, batch), batch["weight"])


def predict_class(values: Float[Array, "rows classes"]) -> Int[Array, " rows"]:
    """Return the predicted class of each row."""
    return jnp.argmax(values, axis=1)


@lru_cache
def class_miss_rates(classes: int) -> Rate:
    """Return one constraint per class: the share of its rows that are predicted as another class."""

    def constraint(params: Network, batch: Batch) -> Array:
        wrong = predict_class(apply_network(params, batch["x"])) != batch["y"]
        return jnp.stack([event_rate(wrong, weights) for weights in _class_weights(batch, classes)])

    def surrogate(params: Network, batch: Batch) -> Array:
        margin, wrong = _margins(params, batch)
        return jnp.stack([nearest_error_loss(margin, wrong, weights) for weights in _class_weights(batch, classes)])

    return Rate(constraint, surrogate)


@lru_cache
def class_error_rate() -> Rate:
    """Return the share of all rows that are misclassified, as a constraint."""

    def constraint(params: Network, batch: Batch) -> Array:
        return event_rate(predict_class(apply_network(params, batch["x"])) != batch["y"], batch["weight"])

    def surrogate(params: Network, batch: Batch) -> Array:
        return nearest_error_loss(*_margins(params, batch), batch["weight"])

    return Rate(constraint, surrogate)


def _class_weights(batch: Batch, classes: int) -> list[Float[Array, " rows"]]:
    return [batch["weight"] * (batch["y"] == label) for label in range(classes)]


def _take_label(values: Float[Array, "rows classes"], batch: Batch) -> Float[Array, " rows"]:
    return jnp.take_along_axis(values, batch["y"][:, None].astype(int), axis=1)[:, 0]


def _margins(params: Network, batch: Batch) -> tuple[Float[Array, " rows"], Array]:
    """Return how far each row's class is ahead of the best other class, and which rows are misclassified."""
    values = apply_network(params, batch["x"])
    is_label = jax.nn.one_hot(batch["y"], values.shape[1], dtype=bool)
    best_other = jnp.where(is_label, -jnp.inf, values).max(axis=1)
    return _take_label(values, batch) - best_other, predict_class(values) != batch["y"]
