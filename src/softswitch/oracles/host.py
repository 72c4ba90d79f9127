"""HostOracle: clients that do not compute with JAX, such as PyTorch modules and simulators."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from softswitch.data.sampling import client_bit_count, sample_clients
from softswitch.methods.messages import Decision, Reports
from softswitch.oracles.base import Evaluation, Oracle
from softswitch.problem.parameters import Params


class HostDraws(NamedTuple):
    """The random choices of one round.

    Attributes:
        clients: Indices of the participants.
        seed: Seed of all other random numbers of the round.
    """

    clients: np.ndarray
    seed: int


class HostOracle(Oracle):
    """Clients that are called once a round from Python, with NumPy arrays, and are never compiled.

    A subclass must define ``client_count``, ``participants``, ``report``, ``direction``, ``evaluate`` and ``digest``.
    """

    is_compiled: ClassVar[bool] = False
    has_held_out: bool = False
    """Whether there is held-out data for ``evaluate_held_out``."""

    def draw(self, key: Array) -> HostDraws:
        """Draw the participants, as the compiled engine does, and a seed of 63 bits."""
        clients, words = _draw(key, self.client_count, self.participants)
        return HostDraws(np.asarray(clients), _to_seed(words))

    def draw_randomness(self, key: Array) -> int:
        """Draw the seed of the round."""
        return _to_seed(_draw_words(key))

    def draw_for(self, clients: Int[Array, " m"], randomness: int) -> HostDraws:
        """Combine given participants with the seed of the round."""
        return HostDraws(np.asarray(clients), randomness)

    @abstractmethod
    def report(self, params: Params, draws: HostDraws) -> tuple[Reports, Any]:
        """Compute f_i and g_i of the participants, and what they keep for the second exchange (or None)."""

    @abstractmethod
    def direction(
        self, params: Params, draws: HostDraws, kept: Any, decision: Decision, switches: bool, step_size: float
    ) -> Params:
        """Compute Σ_i r_i u_i in the structure of the parameters."""

    def directions(
        self, params: Params, draws: HostDraws, kept: Any, decision: Decision, switches: bool, step_size: float
    ) -> Params:
        """Compute every u_i, stacked along the first axis: one call of ``direction`` for each participant."""
        one_hot: Any = np.eye(self.participants, dtype=np.asarray(decision.weights).dtype)
        directions = [
            self.direction(params, draws, kept, decision._replace(weights=weights), switches, step_size)
            for weights in one_hot
        ]
        stacked: Params = jax.tree.map(lambda *parts: np.stack(parts), *directions)
        return stacked

    @abstractmethod
    def evaluate(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]]:
        """Compute f_i and g_i of every client on all of its data."""

    @abstractmethod
    def digest(self) -> dict[str, str]:
        """Return what a run of these clients depends on, as text by name. Checkpoints with another one are refused."""

    @property
    def statistics(self) -> int | None:
        """Number of additive statistics of a pooled constraint; None for a plain one."""
        return None

    def load_buffers(self, params: Params, buffers: Any) -> None:
        """Restore the state besides the parameters before a run continues.

        Args:
            params: Parameters to continue with.
            buffers: Earlier result of ``buffers``; None to recompute it from the data.
        """

    def buffers(self) -> Any:
        """Return the state besides the parameters, such as batch-norm statistics; None if there is none."""
        return None

    def evaluate_params(self, params: Params) -> Evaluation:
        """Evaluate parameters at every client."""
        return Evaluation(*(np.asarray(values) for values in self.evaluate(params)))


def _to_seed(words: Array) -> int:
    high, low = (int(word) for word in np.asarray(words))
    return ((high << 32) | low) >> 1


@jax.jit
def _draw_words(key: Array) -> Array:
    return jax.random.bits(jax.random.fold_in(key, 1), (2,), jnp.uint32)


@partial(jax.jit, static_argnums=(1, 2))
def _draw(key: Array, clients: int, participants: int) -> tuple[Array, Array]:
    words = jax.random.bits(key, (client_bit_count(clients, participants),), jnp.uint32)
    return sample_clients(words, clients, participants), _draw_words(key)
