"""A cap on client weights: heavier clients are capped, and the method distributes the rest."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from softswitch.methods.messages import Decision, Reports
from softswitch.methods.parts import Decide, Part
from softswitch.support.arrays import expand_like


def cap_weights(decide: Decide, state: Any, reports: Reports, decision: Decision, cap: Float[Array, ""]) -> Decision:
    """Return the decision with weights of at most ``cap`` and the same switch bit.

    If too few clients have a positive weight, the weights sum to less than 1.
    """

    def exceeds_cap(carry: tuple[Array, Array, Any]) -> Array:
        is_capped, weights, _ = carry
        return (~is_capped & (weights > cap * 1.001)).any()

    def apply_cap(carry: tuple[Array, Array, Any]) -> tuple[Array, Array, Any]:
        is_capped, weights, per_client = carry
        is_capped = is_capped | (weights > cap)
        remaining = reports._replace(mask=reports.mask & ~is_capped, bit=decision.feasible)
        again, _ = decide(state, remaining)
        rest = jnp.maximum(1 - cap * is_capped.sum(), 0)
        weights = jnp.where(is_capped, cap, rest * again.weights).astype(weights.dtype)
        per_client = jax.tree.map(
            lambda kept, new: jnp.where(expand_like(is_capped, kept), kept, new).astype(kept.dtype),
            per_client,
            again.local_loss.own,
        )
        return is_capped, weights, per_client

    first = (jnp.zeros(decision.weights.shape, bool), decision.weights, decision.local_loss.own)
    _, weights, per_client = lax.while_loop(exceeds_cap, apply_cap, first)
    return decision._replace(weights=weights, local_loss=decision.local_loss.with_own(per_client))


class WeightCap(Part):
    """A cap on the weight of each client, as secure aggregation demands."""

    name = "weight_cap"

    def __init__(self, cap: Any) -> None:
        self.cap = cap

    def wrap(self, decide: Decide, parts: dict[str, Any], clients: Array) -> Decide:
        """Return a decision with capped weights."""

        def decide_capped(state: Any, reports: Reports) -> tuple[Decision, Any]:
            decision, after = decide(state, reports)
            cap = jnp.asarray(self.cap, decision.weights.dtype)
            return cap_weights(decide, state, reports, decision, cap), after

        return decide_capped
