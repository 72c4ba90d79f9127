"""States of single clients: ADMM consensus, control variates, and arrays with a row for every client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from softswitch.methods.client_state import AtClients, RoundAtClients, zeros_per_client
from softswitch.methods.messages import Reports
from softswitch.methods.parts import active_state, replace_active
from softswitch.methods.weighting import equal_weights, softmax_weights
from softswitch.problem.parameters import Params
from softswitch.support import checks
from softswitch.support.arrays import expand_like, weighted_sum


@dataclass(frozen=True, kw_only=True)
class Consensus(AtClients):
    """One inexact iteration of consensus ADMM per round, with dual variables κ_i.

        u_i ≈ argmin h_i(u) + <κ_i, u − w_k> + (π/2) ‖u − w_k‖²,   by local steps from w_k
        κ_i ← κ_i + π (u_i − w_k);    the client sends u_i + κ_i/π

    With plain server steps, w_{k+1} is the weighted mean of what clients send.

    Attributes:
        pull: π > 0, the weight of the quadratic term, in units of h per unit of w². Default: 1.
    """

    pull: float = field(default=1.0, metadata=checks.POSITIVE)  # type: ignore[misc]

    def init(self, params: Params, clients: int, switches: bool) -> Any:
        """Return the initial dual variables, κ_i = 0 for every client."""
        return zeros_per_client(params, clients)

    def shift(self, state: Any, info: RoundAtClients) -> Params:
        """Return the dual variables κ_i of the participants."""
        return cast(Params, state)

    def after(self, state: Any, info: RoundAtClients, shift: Params | None, directions: Params) -> tuple[Params, Any]:
        """Return (w_k − u_i − κ_i/π)/η with the new κ_i, so that a server step of η reaches u_i + κ_i/π; and κ_i."""
        length = info.step_size * info.local_steps
        change = jax.tree.map(lambda u: -length * u, directions)  # u_i − w_k
        dual = jax.tree.map(lambda old, step: old + self.pull * step, state, change)
        sent = jax.tree.map(lambda step, new: -(step + new / self.pull) / info.server_step, change, dual)
        return sent, dual


class Variates(NamedTuple):
    """Control variates of all clients, for the objective or for the constraint."""

    known: Bool[Array, " n"]  # whether a client has a control variate
    mean: Params  # c_i, stacked along the first axis; 0 if there is none


@dataclass(frozen=True, kw_only=True)
class ControlVariates(AtClients):
    """SCAFFOLD's control variates (Karimireddy et al., 2020), with the round's weights instead of equal weights.

        local step along ∇h_i(w) − c_i + Σ_j r_j c_j;   c_i ← the mean of the round's gradients ∇h_i

    All participants step along the weighted direction, so several local steps do not drift apart. A switching method
    has one c_i for the objective and one for the constraint. A client without c_i takes plain steps, and the sum is
    over clients with one, with their weights normalised. With E = 1 it has no effect.
    """

    def init(self, params: Params, clients: int, switches: bool) -> Any:
        """Return the state in which no client has a control variate: one ``Variates``, or two if ``switches``."""
        return (Variates(jnp.zeros(clients, bool), zeros_per_client(params, clients)),) * (2 if switches else 1)

    def shift(self, state: Any, info: RoundAtClients) -> Params:
        """Return −c_i + Σ_j r_j c_j for each participant; 0 for one without c_i."""
        known, mean = active_state(state, info.feasible)
        weights = jnp.where(known, info.weights, 0)
        total = weights.sum()
        average = weighted_sum(mean, weights / jnp.where(total > 0, total, 1))
        return jax.tree.map(lambda c, total: jnp.where(expand_like(known, c), total - c, 0), mean, average)

    def after(self, state: Any, info: RoundAtClients, shift: Params | None, directions: Params) -> tuple[Params, Any]:
        """Return the directions unchanged, and the new c_i: the directions minus the shift."""
        mean = jax.tree.map(lambda u, s: u - s.astype(u.dtype), directions, shift)
        new = Variates(jnp.ones(info.weights.shape, bool), mean)
        return directions, replace_active(state, info.feasible, new)


def of_participants(state: Any, reports: Reports) -> Any:
    """Return the rows of the participants from arrays with one row per client."""
    return jax.tree.map(lambda every: every[reports.clients], state)


def update_entries(state: Any, reports: Reports, new: Any, mask: Array) -> Any:
    """Return the arrays of all clients with the rows of the participants replaced by ``new`` where ``mask`` is True."""

    def update(every: Array, new: Array) -> Array:
        updated = jnp.where(mask, new, every[reports.clients])
        return every.at[reports.clients].set(updated.astype(every.dtype))

    return jax.tree.map(update, state, new)


def softmax_or_equal(values: Array, alpha: Any, mask: Array, stand_for: Array | None = None) -> Array:
    """Return the weights softmax(α·values) over the mask, or ``equal_weights`` if α is None."""
    return equal_weights(values, mask, stand_for) if alpha is None else softmax_weights(values, alpha, mask)
