"""A cap on client weights: heavier clients are capped, and the method distributes the rest."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from softswitch.methods.base import Method
from softswitch.methods.messages import Decision, Reports
from softswitch.support.arrays import expand_like


def capped(method: Method, state: Any, reports: Reports, decision: Decision, most: Float[Array, ""]) -> Decision:
    """Return the decision with weights of at most ``most`` and the same switch bit.

    If too few clients have a positive weight, the weights sum to less than 1.
    """

    def exceeds_cap(carry: tuple[Array, Array, Any]) -> Array:
        is_capped, weights, _ = carry
        return (~is_capped & (weights > most * 1.001)).any()

    def apply_cap(carry: tuple[Array, Array, Any]) -> tuple[Array, Array, Any]:
        is_capped, weights, own = carry
        is_capped = is_capped | (weights > most)
        remaining = reports._replace(mask=reports.mask & ~is_capped, bit=decision.feasible)
        again, _ = method.decide(state, remaining)
        rest = jnp.maximum(1 - most * is_capped.sum(), 0)
        weights = jnp.where(is_capped, most, rest * again.weights).astype(weights.dtype)

        def keep_capped(kept: Array, new: Array) -> Array:
            return jnp.where(expand_like(is_capped, kept), kept, new).astype(kept.dtype)

        return is_capped, weights, jax.tree.map(keep_capped, own, again.local_loss.own)

    first = (jnp.zeros(decision.weights.shape, bool), decision.weights, decision.local_loss.own)
    _, weights, own = lax.while_loop(exceeds_cap, apply_cap, first)
    return decision._replace(weights=weights, local_loss=decision.local_loss.with_own(own))
