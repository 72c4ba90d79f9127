"""Rates of decisions: misses, false alarms, errors, and gaps between two groups' decisions.

A row is decided positive where its score is above 0, its probability above one half. A rate of such decisions moves in
jumps and has no gradient, so each comes with a stand-in to descend on; the switch, reports, verdicts and certificates
read the rate itself:

    rate = miss_rate(score)
    Problem(objective, rate.constraint, start, constraint_surrogate=rate.stand_in)

``score(params, batch)`` gives every row's score, its log-odds. A batch has the rows' labels ``y`` (1 for the positive
class) and, for gaps, ``group`` (1 for the protected one). Where a client has no such rows there is no rate: −∞.

Rates are exact: a client with 5 misses among 100 has 0.05, and meets a tolerance of 0.05. So are gaps between groups of
up to some 40,000 rows a client.
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

from softswitch.problem.fairness import gap_of_sums, sums_by_group
from softswitch.problem.losses import in_units, rounded_down, share_over
from softswitch.problem.parameters import Batch, Params
from softswitch.problem.pooled import PooledConstraint
from softswitch.support import checks

Score = Callable[[Params, Batch], Any]
REACH = 0.1
"""How far beyond the first wrong row others still count, as a share of how far wrong rows lie off on average."""
GAP_TEMPERATURE, FAR = 0.1, 0.001
"""How smooth the step is that stands for a decision in a gap, in log-odds, and how much rows far from the threshold
count beside it. All three came out best on public tables (``python -m benchmarks.rates stand-ins``)."""
MOST_PRODUCTS = 2.0**31
"""Whole numbers below this are multiplied exactly."""


class Rate(NamedTuple):
    """A rate, and what is descended on in its place: a problem's ``constraint`` and ``constraint_surrogate``."""

    constraint: Callable[..., Any]
    stand_in: Callable[..., Any]


def decided(score: Float[Array, " rows"]) -> Bool[Array, " rows"]:
    """Which rows are decided positive: those whose probability is above one half."""
    return score > 0


def miss_rate(score: Score) -> Rate:
    """The share of the positive rows that are decided negative."""
    return _wrong_among(_checked(score), 1)


def false_alarm_rate(score: Score) -> Rate:
    """The share of the negative rows that are decided positive."""
    return _wrong_among(_checked(score), 0)


def error_rate(score: Score) -> Rate:
    """The share of all rows that are decided wrongly."""
    return _wrong_among(_checked(score), None)


def decision_parity(score: Score) -> Rate:
    """The gap between the two groups' shares of rows that are decided positive."""
    return _gap(_checked(score), None)


def decision_opportunity(score: Score) -> Rate:
    """The same among positive rows: the gap between the groups' hit rates."""
    return _gap(_checked(score), 1)


def _checked(score: Any) -> Score:
    checks.function("score", score, "(params, batch) -> one score a row")
    function: Score = score
    return function


@lru_cache
def _wrong_among(score: Score, label: int | None) -> Rate:
    """The rate of wrong decisions among the rows of a class, or among all."""

    def wrongly(values: Array, batch: Batch) -> Array:
        return decided(values) != (batch["y"] == 1)

    def constraint(params: Params, batch: Batch) -> Array:
        return share_over(wrongly(score(params, batch), batch), _weights(batch, label))

    def stand_in(params: Params, batch: Batch) -> Array:
        values = score(params, batch)
        margin = jnp.where(batch["y"] == 1, values, -values)
        return first_to_mend(margin, wrongly(values, batch), _weights(batch, label))

    return Rate(constraint, stand_in)


def first_to_mend(
    margin: Float[Array, " rows"], wrong: Bool[Array, " rows"], weights: Float[Array, " rows"]
) -> Float[Array, ""]:
    """How far off the wrong rows are that lie nearest to the threshold; what stands in for a rate of wrong decisions.

    Where a rate is just above its bound, it comes back by the nearest wrong row alone: the bound's edge is where that
    row's score is 0, and the way back across it is that row's gradient. A smooth step over all rows points elsewhere,
    and a run that goes to and fro across the edge then comes to rest at a wrong place. Rows about as near as the first
    count too, in units of how far wrong rows are off, so that the scale of the scores does not matter. Where no row is
    wrong, those count that would be the first.

    Args:
        margin: how far each row's score is on the right side.
        wrong: which rows are decided wrongly.
        weights: of the rows; those of weight 0 do not count.
    """
    known = weights.sum() > 0
    rows = jnp.where((wrong & (weights > 0)).any(), weights * wrong, weights)
    off = jnp.abs(stop_gradient(margin))
    nearest = jnp.where(rows > 0, off, jnp.inf).min(initial=jnp.inf)
    reach = REACH * _mean(off, rows)
    beyond = jnp.where(rows > 0, off - nearest, 0) / jnp.where(reach > 0, reach, 1)
    return jnp.where(known, -_mean(margin, rows * jnp.exp(-beyond)), -jnp.inf)


def nearly_positive(score: Float[Array, " rows"]) -> Float[Array, " rows"]:
    """What stands in for "decided positive" where two groups are compared."""
    return jax.nn.sigmoid(score / GAP_TEMPERATURE) + FAR * jax.nn.sigmoid(score)


@dataclass(frozen=True)
class _ExactGap(PooledConstraint):
    """A gap of one client by whole numbers, and of many put together by their statistics."""

    exact: Callable[[Params, Batch], Any] = field(kw_only=True)

    def __call__(self, params: Params, batch: Batch, key: Any = None) -> Any:
        return self.exact(params, batch)


@lru_cache
def _gap(score: Score, label: int | None) -> Rate:
    """The gap between the groups' rates of positive decisions, among the rows of a class or among all."""

    def statistics(params: Params, batch: Batch) -> Array:
        weights = _weights(batch, label)
        return sums_by_group(decided(score(params, batch)).astype(weights.dtype), weights, batch)

    def exact(params: Params, batch: Batch) -> Array:
        return _exact_gap(decided(score(params, batch)), _weights(batch, label), batch["group"] == 1)

    def stand_in(params: Params, batch: Batch) -> Array:
        """A smooth gap with the sign of the decisions' gap: its own may be the other way."""
        values, weights, protected = score(params, batch), _weights(batch, label), batch["group"] == 1
        parts = weights * protected, weights * ~protected
        ahead, behind = (share_over(decided(values), part) for part in parts)
        smooth = [_mean(nearly_positive(values), part) for part in parts]
        known = (parts[0].sum() > 0) & (parts[1].sum() > 0)
        sign = stop_gradient(jnp.sign(jnp.where(known, ahead - behind, 0)))
        return jnp.where(known, sign * (smooth[0] - smooth[1]), -jnp.inf)

    return Rate(_ExactGap(statistics, gap_of_sums, gaps=True, exact=exact), stand_in)


def _weights(batch: Batch, label: int | None) -> Float[Array, " rows"]:
    """Of the rows that count."""
    weights: Array = batch["weight"]
    return weights if label is None else weights * ((batch["y"] == 1) == (label == 1))


def _mean(values: Float[Array, " rows"], weights: Float[Array, " rows"]) -> Float[Array, ""]:
    """As ``mean_over``, but 0 where there are no rows."""
    total = weights.sum()
    return (weights * values).sum() / jnp.where(total > 0, total, 1)


def _exact_gap(
    events: Bool[Array, " rows"], weights: Float[Array, " rows"], protected: Bool[Array, " rows"]
) -> Float[Array, ""]:
    """|k/n − l/m| of k events among n protected rows and l among m others; −∞ where either has no rows.

    Where rows weigh the same it is |k·m − l·n|/(n·m) in whole numbers, rounded down.
    """
    rows = in_units(weights)
    own, others = rows * protected, rows * ~protected
    sizes, many = (own.sum(), others.sum()), [jnp.where(events, part, 0).sum() for part in (own, others)]
    known = (sizes[0] > 0) & (sizes[1] > 0)
    pairs = jnp.where(known, sizes[0] * sizes[1], 1)
    counted = ((rows == 0) | (rows == 1)).all() & (pairs < MOST_PRODUCTS)
    first, second = (
        jnp.where(counted, number, 0).astype(jnp.int32) * jnp.where(counted, size, 0).astype(jnp.int32)
        for number, size in zip(many, reversed(sizes), strict=True)
    )
    apart = jnp.abs(first - second).astype(rows.dtype) / pairs
    exact = jnp.where(apart < 1, rounded_down(apart), apart)
    plain = jnp.abs(many[0] / jnp.where(known, sizes[0], 1) - many[1] / jnp.where(known, sizes[1], 1))
    return jnp.where(known, jnp.where(counted, exact, plain), -jnp.inf)
