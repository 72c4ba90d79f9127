"""Fairness constraints between two groups.

A batch has labels ``y`` (1 for the positive class) and ``group`` (1 for the protected group). The function
``predict(params, batch)`` returns every row's probability π of the positive class. Each constraint is a
``PooledConstraint``: a function of sums over groups, so that the pooled criterion computes it exactly over all clients.

If a batch or a client has no row of a group, the value is −∞ (see ``Problem``), which maxima and means exclude. Draw
batches with ``strata="group"``, or ``strata=("group", "y")`` if labels matter too, so that no batch lacks a group of
its client. Constraints are cached by ``predict``, so the same function compiles once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from softswitch.problem.losses import class_weights, mean_over
from softswitch.problem.parameters import Batch, Params
from softswitch.problem.problem import PooledConstraint
from softswitch.support import checks

Predict = Callable[[Params, Batch], Any]
SIDE = "side"
"""Name of the batch column that ``gap_sides`` computes and ``signed_gaps`` reads."""


def demographic_parity(predict: Predict) -> PooledConstraint:
    """Return the constraint |mean probability in the protected group − mean probability in the other rows|."""
    return _gaps(predict, None)


def equal_opportunity(predict: Predict) -> PooledConstraint:
    """Return the gap of the mean probability between the groups on positive rows (y = 1), as a constraint."""
    return _gaps(predict, 1)


def equalized_odds(predict: Predict) -> PooledConstraint:
    """Return two constraints: the gap of the mean probability between the groups on positive and on negative rows."""
    return _gaps(predict, 1, 0)


def cross_entropy_range(level: float = 0.0) -> tuple[float, float]:
    """Return the smallest and largest value of ``bounded_group_loss`` on one row, for float32 probabilities."""
    return -level, -math.log(float(jnp.finfo(jnp.float32).eps)) - level


@lru_cache
def _gaps(predict: Predict, *labels: int | None) -> PooledConstraint:
    """Return a gap of the mean probability between the groups for each label: on its rows, or on all rows (None)."""
    checks.check_callable("predict", predict, "(params, batch) -> one probability per row")

    def statistics(params: Params, batch: Batch) -> Array:
        probability = predict(params, batch)
        return jnp.concatenate([group_sums(probability, class_weights(batch, label), batch) for label in labels])

    def value(statistics: Array) -> Array:
        return jnp.stack([gap_from_sums(four) for four in jnp.split(statistics, len(labels))])

    return PooledConstraint(statistics, gap_from_sums if len(labels) == 1 else value, gaps=True)


@lru_cache
def bounded_group_loss(predict: Predict, level: float) -> PooledConstraint:
    """Return two constraints: the mean cross-entropy of the protected group minus ``level``, and that of other rows."""
    checks.check_callable("predict", predict, "(params, batch) -> one probability per row")
    level = checks.check_real("level", level)

    def statistics(params: Params, batch: Batch) -> Array:
        probability = predict(params, batch)
        smallest = jnp.finfo(probability.dtype).eps
        probability = jnp.clip(probability, smallest, 1 - smallest)
        cross_entropy = -jnp.where(batch["y"] == 1, jnp.log(probability), jnp.log1p(-probability))
        return group_sums(cross_entropy, batch["weight"], batch)

    def value(statistics: Float[Array, " four"]) -> Float[Array, " two"]:
        means, known = _group_means(statistics)
        return jnp.where(known, means - level, -jnp.inf)

    return PooledConstraint(statistics, value)


def group_sums(values: Array, weights: Float[Array, " rows"], batch: Batch) -> Float[Array, " four"]:
    """Return (Σ weights·values, Σ weights) over the protected group, then over the other rows, as one vector."""
    if values.shape != weights.shape:
        expected = f"one probability per row, of shape {weights.shape}"
        raise ValueError(f"predict must return {expected}, but returns {values.shape}; select an output with [:, 0]")
    protected = batch["group"] == 1
    groups = weights * protected, weights * ~protected
    return jnp.stack([total for group in groups for total in ((group * values).sum(), group.sum())])


def _group_means(statistics: Float[Array, " four"]) -> tuple[Float[Array, " two"], Bool[Array, " two"]]:
    """Return the two means from ``group_sums``, and which groups have rows; a group without rows has the mean 0."""
    sums, counts = statistics[0::2], statistics[1::2]
    return sums / jnp.where(counts > 0, counts, 1), counts > 0


def difference_from_sums(statistics: Float[Array, " four"]) -> Float[Array, ""]:
    """Return the protected group's mean minus the other rows' mean from ``group_sums``; −∞ if a group has no rows."""
    means, known = _group_means(statistics)
    return jnp.where(known.all(), means[0] - means[1], -jnp.inf)


def gap_pieces(statistics: Float[Array, " fours"]) -> Float[Array, " pieces"]:
    """Return the smooth pieces of all gaps from their ``group_sums``: all differences, then their negatives."""
    difference = jax.vmap(difference_from_sums)(statistics.reshape(-1, 4))
    return jnp.concatenate([difference, jnp.where(jnp.isneginf(difference), difference, -difference)])


def gap_from_sums(statistics: Float[Array, " four"]) -> Float[Array, ""]:
    """Return |protected group's mean − other rows' mean| from ``group_sums``; −∞ if a group has no rows."""
    means, known = _group_means(statistics)
    return jnp.where(known.all(), jnp.abs(means[0] - means[1]), -jnp.inf)


@lru_cache
def signed_gaps(predict: Predict) -> Any:
    """Return two constraints: the difference of the groups' mean probabilities by ``gap_sides``, and its negative."""
    checks.check_callable("predict", predict, "(params, batch) -> one probability per row")

    def constraint(params: Params, batch: Batch) -> Float[Array, " two"]:
        side = batch[SIDE]
        difference = mean_over(side * predict(params, batch), batch["weight"] * (side != 0))
        return jnp.where(difference > -jnp.inf, jnp.stack([difference, -difference]), -jnp.inf)

    return constraint


def gap_sides(group: ArrayLike, client: ArrayLike, *, counted: ArrayLike | None = None) -> np.ndarray:
    """Return the column ``side`` of ``signed_gaps``: row factors of a difference of means.

    The mean of side·probability over counted rows is the difference of the groups' mean probabilities. With n counted
    rows of a client, m of them in the row's group, side is n/m in the protected group and −n/m outside. It is 0 for
    rows that do not count, and for all rows of a client that lacks one of the groups.

    Args:
        group: Group of each row; 1 is the protected group.
        client: Client of each row, as any sortable labels.
        counted: Mask of the rows that count: for equal opportunity those with y = 1. Default: all rows, for
            demographic parity.
    """
    protected = np.asarray(group) == 1
    counts = np.ones(len(protected), bool) if counted is None else np.asarray(counted, bool)
    _, owner = np.unique(np.asarray(client), return_inverse=True)
    sizes = [np.bincount(owner[counts & members], minlength=owner.max() + 1) for members in (protected, ~protected)]
    has_both = (sizes[0] > 0) & (sizes[1] > 0)
    inside, outside = ((sizes[0] + sizes[1]) / np.maximum(size, 1) for size in sizes)
    side = np.where(protected, inside[owner], -outside[owner])
    return np.where(counts & has_both[owner], side, 0).astype(np.float32)
