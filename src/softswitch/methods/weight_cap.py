"""Nobody weighs more than a cap: whoever would is held there, and the rule weighs the others for what is left."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from softswitch.methods.base import Method
from softswitch.methods.messages import Decision, Reports
from softswitch.support.arrays import beside


def capped(method: Method, state: Any, reports: Reports, decision: Decision, most: Float[Array, ""]) -> Decision:
    """The decision with no weight above the cap. Its switch bit stays.

    Where fewer clients weigh anything than the cap asks for, the weights sum to less than 1.

    Args:
        method: the method.
        state: what it remembers.
        reports: of the round.
        decision: what the rule made of them.
        most: the cap.
    """

    def too_heavy(so_far: tuple[Array, Array, Any]) -> Array:
        held, weights, _ = so_far
        return (~held & (weights > most * 1.001)).any()

    def hold(so_far: tuple[Array, Array, Any]) -> tuple[Array, Array, Any]:
        held, weights, own = so_far
        held = held | (weights > most)
        others = reports._replace(mask=reports.mask & ~held, bit=decision.feasible)
        again, _ = method.decide(state, others)
        rest = jnp.maximum(1 - most * held.sum(), 0)
        weights = jnp.where(held, most, rest * again.weights).astype(weights.dtype)
        own = jax.tree.map(
            lambda kept, new: jnp.where(beside(held, kept), kept, new).astype(kept.dtype), own, again.local_loss.own
        )
        return held, weights, own

    nobody = jnp.zeros(decision.weights.shape, bool)
    first = (nobody, decision.weights, decision.local_loss.own)
    _, weights, own = lax.while_loop(too_heavy, hold, first)
    return decision._replace(weights=weights, local_loss=decision.local_loss.with_own(own))
