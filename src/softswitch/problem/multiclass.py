"""Labels of several classes: the cross-entropy, and rates of wrong decisions by class.

A batch has the rows' features ``x`` and labels ``y``: 0, 1, … A network with one output a class gives scores, and a row
is decided to be of the class with the largest.
"""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from softswitch.problem.losses import mean_over, share_over
from softswitch.problem.networks import Network, outputs
from softswitch.problem.parameters import Batch
from softswitch.problem.rates import Rate, first_to_mend


def class_cross_entropy(params: Network, batch: Batch) -> Float[Array, ""]:
    """The mean of −log of the probability given to each row's class."""
    chances = jax.nn.log_softmax(outputs(params, batch["x"]))
    return mean_over(-_of_label(chances, batch), batch["weight"])


def decided_class(values: Float[Array, "rows classes"]) -> Int[Array, " rows"]:
    """Which class each row is decided to be of."""
    return jnp.argmax(values, axis=1)


@lru_cache
def class_miss_rates(classes: int) -> Rate:
    """The share of each class's rows that are decided otherwise: as many constraints as classes."""

    def constraint(params: Network, batch: Batch) -> Array:
        wrong = decided_class(outputs(params, batch["x"])) != batch["y"]
        return jnp.stack([share_over(wrong, own) for own in _by_class(batch, classes)])

    def stand_in(params: Network, batch: Batch) -> Array:
        margin, wrong = _margins(params, batch)
        return jnp.stack([first_to_mend(margin, wrong, own) for own in _by_class(batch, classes)])

    return Rate(constraint, stand_in)


@lru_cache
def class_error_rate() -> Rate:
    """The share of all rows that are decided wrongly."""

    def constraint(params: Network, batch: Batch) -> Array:
        return share_over(decided_class(outputs(params, batch["x"])) != batch["y"], batch["weight"])

    def stand_in(params: Network, batch: Batch) -> Array:
        return first_to_mend(*_margins(params, batch), batch["weight"])

    return Rate(constraint, stand_in)


def _by_class(batch: Batch, classes: int) -> list[Float[Array, " rows"]]:
    return [batch["weight"] * (batch["y"] == label) for label in range(classes)]


def _of_label(values: Float[Array, "rows classes"], batch: Batch) -> Float[Array, " rows"]:
    return jnp.take_along_axis(values, batch["y"][:, None].astype(int), axis=1)[:, 0]


def _margins(params: Network, batch: Batch) -> tuple[Float[Array, " rows"], Array]:
    """How far each row's class is ahead of the best other one, and which rows are decided wrongly."""
    values = outputs(params, batch["x"])
    own = jax.nn.one_hot(batch["y"], values.shape[1], dtype=bool)
    best_other = jnp.where(own, -jnp.inf, values).max(axis=1)
    return _of_label(values, batch) - best_other, decided_class(values) != batch["y"]
