"""Error rates and decision gaps between groups, with surrogates for their gradients.

A row is predicted positive if its score is above 0, that is, if its probability is above 0.5. A rate of such
decisions is a step function with a gradient of 0 almost everywhere, so each rate has a smooth surrogate for gradients.
The switch, reports, evaluations and certificates use the rate itself:

    rate = miss_rate(score)
    Problem(objective, rate.constraint, start, constraint_surrogate=rate.surrogate)

``score(params, batch)`` returns every row's score, its log-odds. A batch has labels ``y`` (1 for the positive class)
and, for gaps, ``group`` (1 for the protected group). A client without such rows has the value −∞.

Rates are exact: a client with 5 misses among 100 has 0.05, and meets a tolerance of 0.05. So are gaps between groups of
up to about 40,000 rows per client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float

from softswitch.problem.fairness import gap_from_sums, group_sums
from softswitch.problem.losses import class_weights, event_rate, mean_or_zero, round_down, scale_to_max
from softswitch.problem.parameters import Batch, Params
from softswitch.problem.problem import PooledConstraint
from softswitch.support import checks

Score = Callable[[Params, Batch], Any]
NEIGHBOURHOOD = 0.1
"""Length scale on which row weights decay beyond the nearest wrong row, relative to the mean distance of wrong rows."""
GAP_TEMPERATURE, FAR_WEIGHT = 0.1, 0.001
"""Temperature of the sigmoid that replaces a decision in a gap's surrogate, and weight of a second sigmoid with
temperature 1, which gives rows far from the threshold a gradient."""
MAX_EXACT_PRODUCT = 2.0**31
"""Limit of int32: products of row counts below it are computed exactly."""


class Rate(NamedTuple):
    """A rate and its surrogate: the arguments ``constraint`` and ``constraint_surrogate`` of a ``Problem``."""

    constraint: Callable[..., Any]
    surrogate: Callable[..., Any]


def is_positive(score: Float[Array, " rows"]) -> Bool[Array, " rows"]:
    """Return which rows are predicted positive: those with a score above 0, a probability above 0.5."""
    return score > 0


def miss_rate(score: Score) -> Rate:
    """Return the false negative rate, the fraction of positive rows that are predicted negative, with its surrogate."""
    return _error_rate(score, 1)


def false_alarm_rate(score: Score) -> Rate:
    """Return the false positive rate, the fraction of negative rows that are predicted positive, with its surrogate."""
    return _error_rate(score, 0)


def error_rate(score: Score) -> Rate:
    """Return the error rate, the fraction of all rows that are misclassified, with its surrogate."""
    return _error_rate(score, None)


def decision_parity(score: Score) -> Rate:
    """Return the absolute difference of the two groups' rates of positive predictions, with its surrogate."""
    return _gap(score, None)


def decision_opportunity(score: Score) -> Rate:
    """Return the absolute difference of the two groups' true positive rates, with its surrogate."""
    return _gap(score, 1)


@lru_cache
def _error_rate(score: Score, label: int | None) -> Rate:
    """Return the error rate on the rows of class ``label`` (0 or 1), or on all rows (None)."""
    checks.check_callable("score", score, "(params, batch) -> one score per row")

    def constraint(params: Params, batch: Batch) -> Array:
        return event_rate(is_positive(score(params, batch)) != (batch["y"] == 1), class_weights(batch, label))

    def surrogate(params: Params, batch: Batch) -> Array:
        values, positive = score(params, batch), batch["y"] == 1
        margin = jnp.where(positive, values, -values)
        return nearest_error_loss(margin, is_positive(values) != positive, class_weights(batch, label))

    return Rate(constraint, surrogate)


def nearest_error_loss(margin: Array, wrong: Bool[Array, " rows"], weights: Array) -> Float[Array, ""]:
    """Return the surrogate of an error rate: the mean distance to the threshold of the wrong rows nearest to it.

    A rate just above its bound becomes feasible when the nearest wrong row crosses the threshold, and the gradient of
    that row's score points there. Rows at a similar distance count too, relative to the mean distance of wrong rows,
    so that the scale of the scores does not matter. If no row is wrong, all rows are used. If all weights are 0, the
    value is −∞. The ``margin`` of a row is the signed distance of its score to the threshold, positive if correct.
    """
    rows = jnp.where((wrong & (weights > 0)).any(), weights * wrong, weights)
    distance = jnp.abs(stop_gradient(margin))
    nearest = jnp.where(rows > 0, distance, jnp.inf).min(initial=jnp.inf)
    scale = NEIGHBOURHOOD * mean_or_zero(distance, rows)
    excess = jnp.where(rows > 0, distance - nearest, 0) / jnp.where(scale > 0, scale, 1)
    return jnp.where(weights.sum() > 0, -mean_or_zero(margin, rows * jnp.exp(-excess)), -jnp.inf)


def soft_positive(score: Float[Array, " rows"]) -> Float[Array, " rows"]:
    """Return a smooth version of ``is_positive``, about 0 or 1, for the surrogate of a gap."""
    return jax.nn.sigmoid(score / GAP_TEMPERATURE) + FAR_WEIGHT * jax.nn.sigmoid(score)


@dataclass(frozen=True)
class _ExactGap(PooledConstraint):
    """A gap that is computed with integers (``exact``) for one client, and from statistics for pooled clients."""

    exact: Callable[[Params, Batch], Any] = field(kw_only=True)

    def __call__(self, params: Params, batch: Batch, key: Any = None) -> Any:
        return self.exact(params, batch)


@lru_cache
def _gap(score: Score, label: int | None) -> Rate:
    """Return the gap between the groups' rates of positive predictions on the rows of a class, or on all (None)."""
    checks.check_callable("score", score, "(params, batch) -> one score per row")

    def statistics(params: Params, batch: Batch) -> Array:
        weights = class_weights(batch, label)
        return group_sums(is_positive(score(params, batch)).astype(weights.dtype), weights, batch)

    def exact(params: Params, batch: Batch) -> Array:
        return _exact_gap(is_positive(score(params, batch)), class_weights(batch, label), batch["group"] == 1)

    def surrogate(params: Params, batch: Batch) -> Array:
        """Return the smooth difference of the groups' rates, with the sign that makes the exact one positive."""
        values, weights, protected = score(params, batch), class_weights(batch, label), batch["group"] == 1
        groups = weights * protected, weights * ~protected
        first, second = (event_rate(is_positive(values), group) for group in groups)
        smooth = [mean_or_zero(soft_positive(values), group) for group in groups]
        known = (groups[0].sum() > 0) & (groups[1].sum() > 0)
        sign = stop_gradient(jnp.sign(jnp.where(known, first - second, 0)))
        return jnp.where(known, sign * (smooth[0] - smooth[1]), -jnp.inf)

    return Rate(_ExactGap(statistics, gap_from_sums, gaps=True, exact=exact), surrogate)


def _exact_gap(events: Array, weights: Array, protected: Bool[Array, " rows"]) -> Float[Array, ""]:
    """Return the absolute difference of the event rates of protected and other rows, or −∞ if a group has no rows.

    With equal weights the gap of k of n protected and l of m other rows is |k·m − l·n|/(n·m), computed with integers
    and rounded down.
    """
    rows = scale_to_max(weights)
    groups = rows * protected, rows * ~protected
    sizes, counts = [group.sum() for group in groups], [jnp.where(events, group, 0).sum() for group in groups]
    known = (sizes[0] > 0) & (sizes[1] > 0)
    product = jnp.where(known, sizes[0] * sizes[1], 1)
    is_exact = ((rows == 0) | (rows == 1)).all() & (product < MAX_EXACT_PRODUCT)
    first, second = (
        jnp.where(is_exact, count, 0).astype(jnp.int32) * jnp.where(is_exact, size, 0).astype(jnp.int32)
        for count, size in zip(counts, reversed(sizes), strict=True)
    )
    gap = jnp.abs(first - second).astype(rows.dtype) / product
    exact = jnp.where(gap < 1, round_down(gap), gap)
    inexact = jnp.abs(counts[0] / jnp.where(known, sizes[0], 1) - counts[1] / jnp.where(known, sizes[1], 1))
    return jnp.where(known, jnp.where(is_exact, exact, inexact), -jnp.inf)
