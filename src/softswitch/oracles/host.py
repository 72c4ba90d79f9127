"""Clients that compute with something else than JAX: asked once a round, and never compiled."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from softswitch.data.sampling import choose_clients, words_to_choose
from softswitch.methods.messages import Decision, Reports
from softswitch.oracles.base import Judged, Oracle
from softswitch.problem.parameters import Params


class Turn(NamedTuple):
    """The random choices of one round.

    Attributes:
        clients: I_k, the participants.
        seed: of all else that is random in this round.
    """

    clients: np.ndarray
    seed: int


class RoundByRound(Oracle):
    """Clients as NumPy arrays see them: PyTorch modules, simulators, anything that Python can call.

    Six members make one: ``client_count``, ``participants``, ``report``, ``direction``, ``evaluate`` and ``digest``.
    All of them are called outside of any compiled program, with concrete numbers.
    """

    compiles: ClassVar[bool] = False
    holds_out: bool = False
    """Whether there is data not trained on, for ``evaluate_held_out``."""

    def draw(self, key: Array) -> Turn:
        """Who takes part, as in the compiled engine; and a seed of 63 bits for the rest."""
        clients, seed = _drawn(key, self.client_count, self.participants)
        return Turn(np.asarray(clients), _as_seed(seed))

    def chance(self, key: Array) -> int:
        """The round's seed."""
        return _as_seed(_seed(key))

    def draw_for(self, clients: Int[Array, " m"], chance: int) -> Turn:
        """As ``draw``, for given participants."""
        return Turn(np.asarray(clients), chance)

    @abstractmethod
    def report(self, params: Params, draws: Turn) -> tuple[Reports, Any]:
        """First exchange: f_i and g_i of the participants at w_k, and what clients keep for the second."""

    @abstractmethod
    def direction(
        self, params: Params, draws: Turn, kept: Any, decision: Decision, switches: bool, step_size: float
    ) -> Params:
        """Second exchange: Σ_i r_i u_i, in the structure of the parameters."""

    def directions(
        self, params: Params, draws: Turn, kept: Any, decision: Decision, switches: bool, step_size: float
    ) -> Params:
        """The participants' directions u_i, as the first axis of every array: ``direction`` asked for one at a time."""
        found = []
        weights: Any = np.eye(self.participants, dtype=np.asarray(decision.weights).dtype)
        for own in weights:
            alone = decision._replace(weights=own)
            found.append(self.direction(params, draws, kept, alone, switches, step_size))
        together: Params = jax.tree.map(lambda *parts: np.stack(parts), *found)
        return together

    @abstractmethod
    def evaluate(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]]:
        """f_i and g_i of every client on all of its data."""

    @abstractmethod
    def digest(self) -> dict[str, str]:
        """What a run of these clients depends on, as text by name: checkpoints of others are refused."""

    @property
    def statistics(self) -> int | None:
        """How many additive statistics a report of a pooled constraint has; None for a plain one."""
        return None

    def take_up(self, params: Params, beside: Any) -> None:
        """Before some rounds: what went beside the parameters when they stopped; None: to be found anew.

        Args:
            params: the parameters to go on with, any tree of floating arrays.
            beside: what ``beside`` gave when the rounds before stopped; None: to be found anew.
        """

    def beside(self) -> Any:
        """After some rounds: what goes beside the parameters and no step changes; None where there is none."""
        return None

    def judge(self, params: Params) -> Judged:
        """How good parameters are at every client."""
        return Judged(*(np.asarray(values) for values in self.evaluate(params)))


def _as_seed(words: Array) -> int:
    high, low = (int(word) for word in np.asarray(words))
    return ((high << 32) | low) >> 1


@jax.jit
def _seed(key: Array) -> Array:
    return jax.random.bits(jax.random.fold_in(key, 1), (2,), jnp.uint32)


@partial(jax.jit, static_argnums=(1, 2))
def _drawn(key: Array, clients: int, participants: int) -> tuple[Array, Array]:
    words = jax.random.bits(key, (words_to_choose(clients, participants),), jnp.uint32)
    return choose_clients(words, clients, participants), _seed(key)
