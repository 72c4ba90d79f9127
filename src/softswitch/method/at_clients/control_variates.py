"""Control variates against client drift, as in SCAFFOLD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from softswitch.method.at_clients.kept import AtClients, RoundAtClients
from softswitch.problem.parameters import Params
from softswitch.support.per_client import beside, weighted_sum


class Variates(NamedTuple):
    """Of each client, for one of the things a rule descends on.

    Attributes:
        known: whether it has one.
        mean: c_i, the mean of the gradients of its last local steps.
    """

    known: Bool[Array, " n"]
    mean: Params


@dataclass(frozen=True, kw_only=True)
class ControlVariates(AtClients):
    """SCAFFOLD's correction (Karimireddy et al., 2020), with the round's weights in place of equal ones.

        local step along ∇h_i(w) − c_i + Σ_j r_j c_j;   c_i ← the mean of its gradients ∇h_i of this round

    So all participants step along the weighted direction, whatever their own is, and several local steps do not drift
    apart. A switching rule has one c_i for the objective and one for the constraint. Who has none yet steps plainly,
    and the sum is over those who have. With E = 1 it changes nothing.
    """

    def init(self, params: Params, clients: int, switches: bool) -> Any:
        """Nobody has one."""
        none = Variates(
            jnp.zeros(clients, bool), jax.tree.map(lambda leaf: jnp.zeros((clients, *leaf.shape), leaf.dtype), params)
        )
        return (none, none) if switches else (none,)

    def shift(self, own: Any, asked: RoundAtClients) -> Params:
        """−c_i + Σ_j r_j c_j."""
        known, mean = _chosen(own, asked.feasible)
        weights = jnp.where(known, asked.weights, 0)
        total = weights.sum()
        together = weighted_sum(mean, weights / jnp.where(total > 0, total, 1))
        return jax.tree.map(lambda c, all_: jnp.where(beside(known, c), all_ - c, 0), mean, together)

    def after(self, own: Any, asked: RoundAtClients, shift: Params | None, directions: Params) -> tuple[Params, Any]:
        """The directions as they are; c_i is what they are without what was added."""
        new = Variates(
            jnp.ones(asked.weights.shape, bool), jax.tree.map(lambda u, s: u - s.astype(u.dtype), directions, shift)
        )
        if len(own) == 1:
            return directions, (new,)
        bits = (asked.feasible, ~asked.feasible)
        kept = tuple(
            jax.tree.map(lambda one, other, bit=bit: jnp.where(bit, one, other), new, old)
            for bit, old in zip(bits, own, strict=True)
        )
        return directions, kept


def _chosen(own: Any, feasible: Bool[Array, ""]) -> Variates:
    """Those for what the round descends on."""
    if len(own) == 1:
        only: Variates = own[0]
        return only
    chosen: Variates = jax.tree.map(lambda one, other: jnp.where(feasible, one, other), *own)
    return chosen
