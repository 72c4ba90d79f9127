"""States that clients keep between rounds and that change their local steps or messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from softswitch.methods.messages import Decision
from softswitch.methods.parts import Part, Update
from softswitch.problem.parameters import Params
from softswitch.support.arrays import select
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


def zeros_per_client(params: Params, clients: int) -> Params:
    """Return zeros in the structure of the parameters, with a first axis of length ``clients`` in every array."""
    return cast(Params, jax.tree.map(lambda leaf: jnp.zeros((clients, *leaf.shape), leaf.dtype), params))
