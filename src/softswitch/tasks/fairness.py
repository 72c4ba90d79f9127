"""Fairness constraints between two groups, as functions of additive statistics.

A batch has the rows' labels ``y`` (0 or 1) and ``group`` (1 for the protected one). ``predict(params, batch)`` gives
every row's probability π of the positive class. Each constraint is a ``PooledConstraint``: sums over groups first, then
a function of the sums, so that the pooled criterion recomputes it exactly over all clients.

Where a batch, or a client, has no row of a group there is no gap: the value is −∞ (see ``Problem``), which counts in no
maximum and no mean. It is not 0, which would look feasible, and not NaN, which would end the run. Draw by
``strata="group"`` so that no batch lacks a group its client has.

The constraints are made once for a ``predict``: the same function gives the same constraint, and compiles once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from softswitch import checks
from softswitch.problem import Batch, Params, PooledConstraint

Predict = Callable[[Params, Batch], Any]
GROUPS = (1, 0)


def _sums(values: Array, weights: Float[Array, " rows"], batch: Batch) -> Float[Array, " four"]:
    """Σ weights·values and Σ weights over the protected group, then over the rest."""
    parts = []
    for group in GROUPS:
        own = weights * (batch["group"] == group)
        parts += [(own * values).sum(), own.sum()]
    return jnp.stack(parts)


def _means(statistics: Float[Array, " four"]) -> tuple[Array, Array, Array]:
    """The two groups' means, and whether both have any rows; without rows a mean is 0, with no gradient."""
    sums, counts = statistics[0::2], statistics[1::2]
    means = sums / jnp.where(counts > 0, counts, 1)
    return means[0], means[1], (counts > 0).all()


def _gap(statistics: Float[Array, " four"]) -> Float[Array, ""]:
    """|mean of the protected group − mean of the rest|; −∞ where there is no such group."""
    protected, rest, known = _means(statistics)
    return jnp.where(known, jnp.abs(protected - rest), -jnp.inf)


@lru_cache
def demographic_parity(predict: Predict) -> PooledConstraint:
    """|mean π over the protected group − mean π over the rest|."""

    def statistics(params: Params, batch: Batch) -> Array:
        return _sums(predict(params, batch), batch["weight"], batch)

    return PooledConstraint(statistics, _gap)


@lru_cache
def equal_opportunity(predict: Predict) -> PooledConstraint:
    """The gap of mean π between the groups' positive rows: the chances of those who deserve it."""

    def statistics(params: Params, batch: Batch) -> Array:
        return _sums(predict(params, batch), batch["weight"] * (batch["y"] == 1), batch)

    return PooledConstraint(statistics, _gap)


@lru_cache
def equalized_odds(predict: Predict) -> PooledConstraint:
    """Two constraints: the gap of mean π between the groups' positive rows, and between their negative rows."""

    def statistics(params: Params, batch: Batch) -> Array:
        positive = predict(params, batch)
        return jnp.concatenate([_sums(positive, batch["weight"] * (batch["y"] == label), batch) for label in (1, 0)])

    return PooledConstraint(statistics, _two_gaps)


def _two_gaps(statistics: Float[Array, " eight"]) -> Float[Array, " two"]:
    return jnp.stack([_gap(statistics[:4]), _gap(statistics[4:])])


@lru_cache
def bounded_group_loss(predict: Predict, level: float) -> PooledConstraint:
    """Two constraints: the cross-entropy of each group's rows, minus ``level``. A group without rows has none."""
    level = checks.real_number("level", level)

    def statistics(params: Params, batch: Batch) -> Array:
        return _sums(cross_entropy(predict(params, batch), batch["y"]), batch["weight"], batch)

    def value(statistics: Float[Array, " four"]) -> Float[Array, " two"]:
        sums, counts = statistics[0::2], statistics[1::2]
        return jnp.where(counts > 0, sums / jnp.where(counts > 0, counts, 1) - level, -jnp.inf)

    return PooledConstraint(statistics, value)


def cross_entropy(probability: Array, label: Array) -> Array:
    """−log of the probability given to each row's label, kept finite where a probability rounds to 0 or 1."""
    smallest = jnp.finfo(probability.dtype).eps
    probability = jnp.clip(probability, smallest, 1 - smallest)
    return -jnp.where(label == 1, jnp.log(probability), jnp.log1p(-probability))
