"""Whether what a client reports agrees with where it points.

A client's direction says how the number it minimises would change along the server's step: by <u_i, w_{k+1} − w_k>, to
first order. Its next report says how it did change. A number that falls again and again where its own direction says
that it should rise is not that direction's: for a convex function it cannot be at all, and noise does so half the time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from softswitch.methods.messages import LocalLoss, Reports
from softswitch.problem.parameters import Params
from softswitch.support.arrays import some, with_more


class Consistency(NamedTuple):
    """What is known of every client's consistency, and what its next report is compared with.

    Attributes:
        round: the round of its last direction; −1: none.
        loss: what it minimised there, one row of constraints a client.
        value: what it reported of that.
        foretold: how that was to change, by its own direction.
        times: how often its report could be compared with its direction before.
        hurt: how often its direction said that the step would hurt it,
        denied: and how often of these it then reported to be better off.
        said: the sum of the sizes of the changes that it reported,
        meant: and of those that its directions foretold.
    """

    round: Int[Array, " n"]
    loss: LocalLoss
    value: Float[Array, " n"]
    foretold: Float[Array, " n"]
    times: Int[Array, " n"]
    hurt: Int[Array, " n"]
    denied: Int[Array, " n"]
    said: Float[Array, " n"]
    meant: Float[Array, " n"]


def nothing_compared(clients: int, constraints: int, dtype: Any) -> Consistency:
    """Before the first round."""
    none, zero = jnp.zeros(clients, jnp.int32), jnp.zeros(clients, dtype)
    scalar = jnp.zeros((), dtype)
    loss = LocalLoss(zero, jnp.zeros((clients, constraints), dtype), scalar, scalar)
    return Consistency(none - 1, loss, zero, zero, none, none, none, zero, zero)


def widened(known: Consistency, clients: int) -> Consistency:
    """The same for more clients, of whom nothing is known."""
    had, constraints = known.loss.constraint.shape
    more = nothing_compared(clients - had, constraints, known.value.dtype)
    return with_more(known, more)


def elsewhere(known: Consistency) -> Consistency:
    """The same where the server goes on from other parameters: what was foretold is not compared with what comes."""
    return known._replace(round=jnp.full_like(known.round, -1))


def minimised(reports: Reports, loss: LocalLoss) -> Float[Array, " m"]:
    """What each client minimises, by its report: a·f_i + <b_i, g_i> + c·Σ max(0, g_i − ε)."""
    objective = jnp.where(reports.has_objective, reports.objective, 0)
    constraint = jnp.where(reports.has_constraint, reports.constraint, 0)
    excess = jnp.where(reports.has_constraint, jnp.maximum(constraint - loss.tolerance, 0), 0)
    return loss.objective * objective + (loss.constraint * constraint).sum(axis=1) + loss.penalty * excess.sum(axis=1)


def compared(
    known: Consistency,
    k: Int[Array, ""],
    clients: Int[Array, " m"],
    reports: Reports,
    loss: LocalLoss,
    directions: Params,
    returned: Bool[Array, " m"],
    step: Params,
) -> Consistency:
    """What is known after a round: its reports compared with what was foretold in the one before.

    Args:
        known: before it.
        k: the round.
        clients: who was asked.
        reports: what they said, untrimmed.
        loss: what they were told to minimise.
        directions: what they returned, with the clients as the first axis of every array.
        returned: who did.
        step: w_{k+1} − w_k.
    """
    before = some(known, clients)
    now = minimised(reports, before.loss)
    change = now - before.value
    counts = reports.mask & (before.round == k - 1) & (k > 0) & jnp.isfinite(change)
    hurt = counts & (before.foretold > 0)
    foretold = jnp.zeros_like(before.foretold)
    for leaf, moved in zip(jax.tree.leaves(directions), jax.tree.leaves(step), strict=True):
        foretold += jnp.tensordot(leaf.reshape(len(clients), -1), moved.ravel().astype(leaf.dtype), axes=1)

    def add(total: Array, more: Array) -> Array:
        return total.at[clients].add(jnp.where(counts, more, 0).astype(total.dtype))

    def put(every: Array, new: Array) -> Array:
        return every.at[clients].set(new.astype(every.dtype))

    mix = jnp.broadcast_to(loss.constraint, before.loss.constraint.shape)
    penalty, tolerance = (jnp.asarray(part, known.value.dtype) for part in (loss.penalty, loss.tolerance))
    objective = put(jnp.asarray(known.loss.objective), jnp.broadcast_to(loss.objective, clients.shape))
    return Consistency(
        round=put(known.round, jnp.where(returned, k, before.round)),
        loss=LocalLoss(objective, put(known.loss.constraint, mix), penalty, tolerance),
        value=put(known.value, minimised(reports, loss)),
        foretold=put(known.foretold, foretold),
        times=add(known.times, counts),
        hurt=add(known.hurt, hurt),
        denied=add(known.denied, hurt & (change < 0)),
        said=add(known.said, jnp.abs(change)),
        meant=add(known.meant, jnp.abs(before.foretold)),
    )
