"""A round of which b clients may lie: what they report, what they weigh, and where they point.

    f̃, g̃ = each number moved between the (b+1)-th smallest and the (b+1)-th largest of all participants'
    r_i <= 1/(2b+1), the rest to the next: so that b liars never weigh half
    c = the geometric median of the directions by these weights;  u = c + Σ r_i clip(u_i − c, median distance)

What b liars can do to any of the three is bounded by what the honest say. The b worst-off honest clients pay for it:
nobody can tell them from liars.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from softswitch.methods.base import Method
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.weight_cap import capped
from softswitch.problem.parameters import Params
from softswitch.support.arrays import expand_like, weighted_sum

STEPS_TO_THE_MIDDLE = 8
"""Of Weiszfeld's iteration: more change nothing that a step of the server would show."""
NEARLY_THERE = 1e-3
"""Directions nearer to the middle than this share of a usual length pull no harder: they would divide by nothing."""

MOST_BYTES = 4 * 2**30
"""How much the directions of a round may take together; some three times as much is needed to combine them."""


def fewest(liars: int) -> int:
    """How many must take part in a round: 2b + 1."""
    return 2 * liars + 1


def check_robust(method: Method, participants: int, params: Params) -> None:
    """Raise where too few take part in a round for the rule to be robust, or their directions together are too large.

    Args:
        method: the method.
        participants: m.
        params: an iterate, for its size.
    """
    if method.robust is None:
        return
    least = fewest(method.robust)
    if participants < least:
        raise ValueError(
            f"robust={method.robust} needs at least 2·{method.robust} + 1 = {least} clients in every round, but "
            f"{participants} take part"
        )
    size = participants * sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    if size > MOST_BYTES:
        raise ValueError(
            f"robust={method.robust} keeps the directions of all {participants} participants at once: "
            f"{size / 2**30:.1f} GiB, more than {MOST_BYTES / 2**30:g}; let fewer clients take part in a round"
        )


def trimmed(reports: Reports, liars: Any) -> Reports:
    """Reports none of which is larger than the (b+1)-th largest, or smaller than the (b+1)-th smallest.

    Each constraint by itself, over those who have it.

    Args:
        reports: of a round.
        liars: b.
    """
    columns = jax.vmap(_within_others, (1, 1, None), 1)(reports.constraint, reports.has_constraint, liars)
    objective = _within_others(reports.objective, reports.has_objective, liars)
    return reports._replace(objective=objective, constraint=columns)


def _within_others(values: Float[Array, " m"], known: Bool[Array, " m"], liars: Any) -> Float[Array, " m"]:
    place = jnp.clip(jnp.asarray(liars, jnp.int32), 0, jnp.maximum(known.sum() - 1, 0))
    high = jnp.sort(jnp.where(known, values, -jnp.inf))[len(values) - 1 - place]
    low = jnp.sort(jnp.where(known, values, jnp.inf))[place]
    return jnp.where(known, jnp.clip(values, jnp.minimum(low, high), high), values)


def decide(method: Method, state: Any, reports: Reports) -> tuple[Decision, Any]:
    """The rule's decision; where it is to be robust, by trimmed reports and with nobody's weight above 1/(2b+1).

    Whoever would weigh more is held there, and the rule weighs the others again, for what is left.

    Args:
        method: the method.
        state: what it remembers.
        reports: of the round.
    """
    if method.robust is None:
        return method.decide(state, reports)
    reports = trimmed(reports, method.robust)
    decision, after = method.decide(state, reports)
    most = 1 / (2 * jnp.asarray(method.robust, decision.weights.dtype) + 1)
    return capped(method, state, reports, decision, most), after


def combined(directions: Params, weights: Float[Array, " m"]) -> Params:
    """One direction of many, that those of less than half of the weight cannot take anywhere.

    Args:
        directions: in the structure of the parameters, with the clients as the first axis of every array.
        weights: of the clients.
    """
    usual = _median(lengths(directions), weights)
    near = (NEARLY_THERE * usual) ** 2 + jnp.finfo(weights.dtype).tiny

    def nearer(_: Any, middle: Params) -> Params:
        apart = _less(directions, middle)
        pull = weights / jnp.sqrt(lengths(apart) ** 2 + near)
        return weighted_sum(directions, pull / _or_one(pull.sum()))

    first = weighted_sum(_shortened(directions, usual), weights / _or_one(weights.sum()))
    middle = lax.fori_loop(0, STEPS_TO_THE_MIDDLE, nearer, first)
    apart = _less(directions, middle)
    moved = weighted_sum(_shortened(apart, _median(lengths(apart), weights)), weights)
    return jax.tree.map(jnp.add, middle, moved)


def lengths(directions: Params) -> Float[Array, " m"]:
    """The length of every client's direction, over all of its arrays. None overflows where its parts do not."""
    parts = [jnp.reshape(leaf, (leaf.shape[0], -1)) for leaf in jax.tree.leaves(directions)]
    largest = jnp.stack([jnp.max(jnp.abs(part), axis=1, initial=0) for part in parts]).max(axis=0)
    scale = _or_one(largest)
    return largest * jnp.sqrt(sum(jnp.square(part / scale[:, None]).sum(axis=1) for part in parts))


def _median(values: Float[Array, " m"], weights: Float[Array, " m"]) -> Float[Array, ""]:
    """The smallest value at or below which half of the weight lies."""
    order = jnp.argsort(values)
    below = jnp.cumsum(weights[order])
    return values[order][jnp.argmax(below >= 0.5 * below[-1])]


def _shortened(directions: Params, most: Float[Array, ""]) -> Params:
    """Directions none of which is longer."""
    of_each = lengths(directions)
    factor = jnp.where(of_each > most, most / _or_one(of_each), 1)
    return jax.tree.map(lambda leaf: leaf * expand_like(factor, leaf).astype(leaf.dtype), directions)


def _less(directions: Params, middle: Params) -> Params:
    return jax.tree.map(lambda leaf, own: leaf - own, directions, middle)


def _or_one(value: Array) -> Array:
    return jnp.where(value > 0, value, 1)
