"""State at the clients that changes their local steps: ADMM consensus and control variates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
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
    """Information of a round that participants have when they compute their directions.

    Attributes:
        params: w_k.
        feasible: The switch bit.
        weights: r, the participants' weights.
        local_steps: E.
        step_size: γ, the local step size.
        server_step: η, the server's step size.
        changes: Number of parameter changes sent so far, if these are compressed.
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
    """State at every client that changes its local steps; for ``Method.at_clients``.

    A local step goes along ∇h_i(w) + shift_i + pull·(w − w_k), where h_i is the client's local loss. All state has the
    clients as its first axis. Subclasses are frozen dataclasses.
    """

    pull: ClassVar[float | None] = None
    """Strength of the proximal term towards w_k; a subclass may have it as a setting. None: no proximal term."""

    @abstractmethod
    def init(self, params: Params, clients: int, switches: bool) -> Any:
        """Return the state before round 0, one entry per client.

        Args:
            params: w_0, for its shapes.
            clients: Number of clients n.
            switches: Whether the method switches between objective and constraint.
        """

    def shift(self, state: Any, info: RoundAtClients) -> Params | None:
        """Return the vector that each participant adds to every gradient; None if there is none.

        Args:
            state: State of the participants.
            info: The round.
        """
        return None

    @abstractmethod
    def after(self, state: Any, info: RoundAtClients, shift: Params | None, directions: Params) -> tuple[Params, Any]:
        """Return the vectors that the participants send, and their new state.

        Args:
            state: State of the participants.
            info: The round.
            shift: Result of ``shift``.
            directions: Means of the vectors along which they stepped.
        """

    def after_void(self, before: Any, after: Any) -> Any:
        """Return the state of all clients after a void round. Default: the state before it.

        Args:
            before: State before the round.
            after: State if the round had counted.
        """
        return before


class ClientStates(Part):
    """The states of all clients in the server step."""

    name = "at_clients"
    must_be_finite: ClassVar[bool] = True

    def __init__(self, way: AtClients, switches: bool) -> None:
        self.way, self.switches = way, switches

    def init(self, params: Params, clients: int, constraints: int, statistics: int | None) -> Any:
        """Return the state of all clients before the first round."""
        return self.way.init(params, clients, self.switches)

    def redirect(self, state: Any, decision: Decision, direction: Params, update: Update) -> tuple[Params, Any]:
        """Take over the states after the second exchange."""
        return direction, update.at_clients

    def settle(self, taken: Bool[Array, ""], new: Any, old: Any) -> Any:
        """Return the new states if the step was taken, and those after a void round otherwise."""
        return select(taken, new, self.way.after_void(old, new))


@dataclass(frozen=True, kw_only=True)
class Consensus(AtClients):
    """One inexact iteration of consensus ADMM per round, with dual variables κ_i.

        u_i ≈ argmin h_i(u) + <κ_i, u − w_k> + (π/2) ‖u − w_k‖²,   by local steps from w_k
        κ_i ← κ_i + π (u_i − w_k);    the client sends u_i + κ_i/π

    With plain server steps, w_{k+1} is the weighted mean of what clients send.

    Attributes:
        pull: π > 0, in units of h per unit of w².
    """

    pull: float = 1.0  # type: ignore[misc]

    def __post_init__(self) -> None:
        object.__setattr__(self, "pull", checks.check_real("pull", self.pull, above=0))

    def init(self, params: Params, clients: int, switches: bool) -> Any:
        """Return dual variables of 0."""
        return zeros_per_client(params, clients)

    def shift(self, state: Any, info: RoundAtClients) -> Params:
        """Return κ_i."""
        return cast(Params, state)

    def after(self, state: Any, info: RoundAtClients, shift: Params | None, directions: Params) -> tuple[Params, Any]:
        """Return the direction from w_k to the sent vector, per server step, and the new dual variables."""
        length = info.step_size * info.local_steps
        change = jax.tree.map(lambda u: -length * u, directions)  # u_i − w_k
        dual = jax.tree.map(lambda old, step: old + self.pull * step, state, change)
        sent = jax.tree.map(lambda step, new: -(step + new / self.pull) / info.server_step, change, dual)
        return sent, dual


class Variates(NamedTuple):
    """Control variates for the objective or the constraint: which clients have one, and their c_i."""

    known: Bool[Array, " n"]
    mean: Params


@dataclass(frozen=True, kw_only=True)
class ControlVariates(AtClients):
    """SCAFFOLD's control variates (Karimireddy et al., 2020), with the round's weights instead of equal weights.

        local step along ∇h_i(w) − c_i + Σ_j r_j c_j;   c_i ← the mean of the round's gradients ∇h_i

    All participants step along the weighted direction, so several local steps do not drift apart. A switching method
    has one c_i for the objective and one for the constraint. A client without c_i takes plain steps, and the sum is
    over clients with one. With E = 1 it has no effect.
    """

    def init(self, params: Params, clients: int, switches: bool) -> Any:
        """Return the state without control variates."""
        return (Variates(jnp.zeros(clients, bool), zeros_per_client(params, clients)),) * (2 if switches else 1)

    def shift(self, state: Any, info: RoundAtClients) -> Params:
        """Return −c_i + Σ_j r_j c_j."""
        known, mean = active_state(state, info.feasible)
        weights = jnp.where(known, info.weights, 0)
        total = weights.sum()
        average = weighted_sum(mean, weights / jnp.where(total > 0, total, 1))
        return jax.tree.map(lambda c, total: jnp.where(expand_like(known, c), total - c, 0), mean, average)

    def after(self, state: Any, info: RoundAtClients, shift: Params | None, directions: Params) -> tuple[Params, Any]:
        """Return the directions, and c_i as the directions minus the shift."""
        mean = jax.tree.map(lambda u, s: u - s.astype(u.dtype), directions, shift)
        new = Variates(jnp.ones(info.weights.shape, bool), mean)
        return directions, replace_active(state, info.feasible, new)


def zeros_per_client(params: Params, clients: int) -> Params:
    """Return zeros of the shape of the parameters for every client."""
    return cast(Params, jax.tree.map(lambda leaf: jnp.zeros((clients, *leaf.shape), leaf.dtype), params))
