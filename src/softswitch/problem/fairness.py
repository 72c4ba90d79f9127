"""Fairness constraints between two groups, as functions of additive statistics.

A batch has the rows' labels ``y`` (1 for the positive class) and ``group`` (1 for the protected one; any other number
is the other). ``predict(params, batch)`` gives every row's probability π of the positive class. Each constraint is a
``PooledConstraint``: sums over groups first, then a function of the sums, so that the pooled criterion recomputes it
exactly over all clients.

Where a batch, or a client, has no row of a group there is no gap: the value is −∞ (see ``Problem``), which counts in no
maximum and no mean. It is not 0, which would look feasible, and not NaN, which would end the run. Draw by
``strata="group"``, or by ``strata=("group", "y")`` where labels matter too, so that no batch lacks what its client has.

The constraints are made once for a ``predict``: the same function gives the same constraint, and compiles once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from softswitch.problem.losses import mean_over
from softswitch.problem.parameters import Batch, Params
from softswitch.problem.pooled import PooledConstraint
from softswitch.support import checks

Predict = Callable[[Params, Batch], Any]


def demographic_parity(predict: Predict) -> PooledConstraint:
    """|mean π over the protected group − mean π over the rest|."""
    return _demographic_parity(_checked(predict))


def equal_opportunity(predict: Predict) -> PooledConstraint:
    """The gap of mean π between the groups' positive rows: the chances of those who deserve it."""
    return _equal_opportunity(_checked(predict))


def equalized_odds(predict: Predict) -> PooledConstraint:
    """Two constraints: the gap of mean π between the groups' positive rows, and between their negative rows."""
    return _equalized_odds(_checked(predict))


def bounded_group_loss(predict: Predict, level: float) -> PooledConstraint:
    """Two constraints: the cross-entropy of each group's rows, minus ``level``. A group without rows has none."""
    return _bounded_group_loss(_checked(predict), checks.real_number("level", level))


def cross_entropy(probability: Array, label: Array) -> Array:
    """−log of the probability given to each row's label, kept finite where a probability rounds to 0 or 1."""
    smallest = jnp.finfo(probability.dtype).eps
    probability = jnp.clip(probability, smallest, 1 - smallest)
    return -jnp.where(label == 1, jnp.log(probability), jnp.log1p(-probability))


def cross_entropy_range(level: float = 0.0) -> tuple[float, float]:
    """From where to where ``cross_entropy`` of float32 probabilities goes, minus ``level``."""
    smallest = float(jnp.finfo(jnp.float32).eps)
    return -level, -math.log(smallest) - level


def _checked(predict: Any) -> Predict:
    checks.function("predict", predict, "(params, batch) -> one probability a row")
    function: Predict = predict
    return function


@lru_cache
def _demographic_parity(predict: Predict) -> PooledConstraint:
    def statistics(params: Params, batch: Batch) -> Array:
        return sums_by_group(predict(params, batch), batch["weight"], batch)

    return PooledConstraint(statistics, gap_of_sums, gaps=True)


@lru_cache
def _equal_opportunity(predict: Predict) -> PooledConstraint:
    def statistics(params: Params, batch: Batch) -> Array:
        return sums_by_group(predict(params, batch), batch["weight"] * (batch["y"] == 1), batch)

    return PooledConstraint(statistics, gap_of_sums, gaps=True)


@lru_cache
def _equalized_odds(predict: Predict) -> PooledConstraint:
    def statistics(params: Params, batch: Batch) -> Array:
        positive = predict(params, batch)
        deserving = batch["y"] == 1
        return jnp.concatenate(
            [sums_by_group(positive, batch["weight"] * rows, batch) for rows in (deserving, ~deserving)]
        )

    def value(statistics: Float[Array, " eight"]) -> Float[Array, " two"]:
        return jnp.stack([gap_of_sums(statistics[:4]), gap_of_sums(statistics[4:])])

    return PooledConstraint(statistics, value, gaps=True)


@lru_cache
def _bounded_group_loss(predict: Predict, level: float) -> PooledConstraint:
    def statistics(params: Params, batch: Batch) -> Array:
        return sums_by_group(cross_entropy(predict(params, batch), batch["y"]), batch["weight"], batch)

    def value(statistics: Float[Array, " four"]) -> Float[Array, " two"]:
        means, known = _means(statistics)
        return jnp.where(known, means - level, -jnp.inf)

    return PooledConstraint(statistics, value)


def sums_by_group(values: Array, weights: Float[Array, " rows"], batch: Batch) -> Float[Array, " four"]:
    """Σ weights·values and Σ weights over the protected group, then over the rest."""
    if values.shape != weights.shape:
        raise ValueError(
            f"predict must give one probability a row, of shape {weights.shape}, but gives {values.shape}; a network "
            "with one output needs [:, 0]"
        )
    protected = batch["group"] == 1
    parts = []
    for own in (weights * protected, weights * ~protected):
        parts += [(own * values).sum(), own.sum()]
    return jnp.stack(parts)


def _means(statistics: Float[Array, " four"]) -> tuple[Float[Array, " two"], Bool[Array, " two"]]:
    """Both groups' means, and which of them have any rows; without rows a mean is 0, with no gradient."""
    sums, counts = statistics[0::2], statistics[1::2]
    return sums / jnp.where(counts > 0, counts, 1), counts > 0


def gap_of_sums(statistics: Float[Array, " four"]) -> Float[Array, ""]:
    """|mean of the protected group − mean of the rest|; −∞ where there is no such group."""
    means, known = _means(statistics)
    return jnp.where(known.all(), jnp.abs(means[0] - means[1]), -jnp.inf)


SIDE = "side"
"""The column that a batch has it in."""


def gap_sides(predict: Predict) -> Any:
    """Two constraints, the difference of the groups' mean π and its negative; batches have a column ``side``.

    The same function gives the same constraint, and compiles once.

    Args:
        predict: ``(params, batch) -> π`` of every row.
    """
    checks.function("predict", predict, "(params, batch) -> one probability a row")
    return _gap_sides(predict)


@lru_cache
def _gap_sides(predict: Predict) -> Any:
    def sides(params: Params, batch: Batch) -> Float[Array, " two"]:
        side = batch[SIDE]
        difference = mean_over(side * predict(params, batch), batch["weight"] * (side != 0))
        known = difference > -jnp.inf
        return jnp.where(known, jnp.stack([difference, -difference]), -jnp.inf)

    return sides


def side_of_rows(group: ArrayLike, client: ArrayLike, *, counted: ArrayLike | None = None) -> np.ndarray:
    """The ``side`` of every row; 0 for rows that do not count, and at clients that lack one of the groups.

    Args:
        group: 1 for the protected one, one a row.
        client: whose row each is.
        counted: which rows count: for equal opportunity those with y = 1. None: all, for demographic parity.
    """
    protected = np.asarray(group) == 1
    counts = np.ones(len(protected), bool) if counted is None else np.asarray(counted, bool)
    _, owner = np.unique(np.asarray(client), return_inverse=True)
    sizes = [np.bincount(owner[counts & own], minlength=owner.max() + 1) for own in (protected, ~protected)]
    both = (sizes[0] > 0) & (sizes[1] > 0)
    total = sizes[0] + sizes[1]
    inside, outside = (total / np.maximum(own, 1) for own in sizes)
    side = np.where(protected, inside[owner], -outside[owner])
    return np.where(counts & both[owner], side, 0).astype(np.float32)
