"""States that clients keep between rounds and that change their local steps: ADMM consensus and control variates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from softswitch.methods.messages import Decision
from softswitch.methods.parts import Part, Update, active_state, replace_active
from softswitch.problem.parameters import Params
from softswitch.support import checks
from softswitch.support.arrays import expand_like, select, weighted_sum
from softswitch.support.function_equality import TracedSettings


class RoundAtClients(NamedTuple):
    """Information about round k for its m participants, when they compute their directions.

    Attributes:
        params: Parameters w_k.
        feasible: Switch bit: True if the round descends on the objective, False on the constraint.
        weights: Weights r of the participants, which sum to 1.
        local_steps: Number of local steps E.
        step_size: Local step size γ.
        server_step: Step size η of the server.
        changes: Number of parameter changes sent so far, if these are compressed; else 0.
    """

    params: Params
    feasible: Bool[Array, ""]
    weights: Float[Array, " m"]
    local_steps: int
    step_size: Any
    server_step: Any
    changes: Any = 0


@dataclass(frozen=True, kw_only=True)
class AtClients(TracedSettings, ABC):
    """Base class of ``Method.at_clients``: a state of every client, which changes its local steps or messages.

    A local step descends along ∇h_i(w) + shift_i + pull·(w − w_k), where h_i is the client's local loss. The first axis
    of every array of a state is the clients. Subclasses are frozen dataclasses.
    """

    pull: ClassVar[float | None] = None
    """Weight of the proximal term towards w_k; a subclass may have it as a setting. None: no proximal term."""

    @abstractmethod
    def init(self, params: Params, clients: int, switches: bool) -> Any:
        """Return the state of all clients before round 0, a pytree of arrays.

        Args:
            params: Parameters w_0; only their shapes and dtypes matter.
            clients: Number of clients n.
            switches: Whether the method switches between objective and constraint.
        """

    def shift(self, state: Any, info: RoundAtClients) -> Params | None:
        """Return shift_i, which each participant adds to every gradient, stacked; None if there is none.

        Args:
            state: State of the m participants.
            info: Parameters, weights and step sizes of the round.
        """
        return None

    @abstractmethod
    def after(self, state: Any, info: RoundAtClients, shift: Params | None, directions: Params) -> tuple[Params, Any]:
        """Return the directions that the participants send, and their new state.

        Args:
            state: State of the m participants.
            info: Parameters, weights and step sizes of the round.
            shift: Result of ``shift``.
            directions: For each participant the mean of the vectors along which it stepped.
        """

    def after_void(self, before: Any, after: Any) -> Any:
        """Return the state of all clients after a round without a server step. Default: ``before``.

        Args:
            before: State of all clients before the round.
            after: State of all clients if the server had taken its step.
        """
        return before


class ClientStates(Part):
    """Hooks of the server step that keep the states of all clients for an ``AtClients``."""

    name = "at_clients"
    must_be_finite: ClassVar[bool] = True

    def __init__(self, way: AtClients, switches: bool) -> None:
        self.way, self.switches = way, switches

    def init(self, params: Params, clients: int, constraints: int, statistics: int | None) -> Any:
        """Return the state of all clients before round 0."""
        return self.way.init(params, clients, self.switches)

    def redirect(self, state: Any, decision: Decision, direction: Params, update: Update) -> tuple[Params, Any]:
        """Return the direction unchanged, and the states that the clients have after their updates."""
        return direction, update.at_clients

    def settle(self, taken: Bool[Array, ""], new: Any, old: Any) -> Any:
        """Return ``new`` if the server took its step, else the result of ``AtClients.after_void``."""
        return select(taken, new, self.way.after_void(old, new))


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


def zeros_per_client(params: Params, clients: int) -> Params:
    """Return zeros in the structure of the parameters, with a first axis of length ``clients`` in every array."""
    return cast(Params, jax.tree.map(lambda leaf: jnp.zeros((clients, *leaf.shape), leaf.dtype), params))
