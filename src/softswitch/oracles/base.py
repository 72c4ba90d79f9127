"""Oracle: the interface between an engine and the clients. Federation: clients with initial parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from softswitch.data.sampling import client_bit_count, sample_clients
from softswitch.methods.base import Method
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.weighting import trimmed_max
from softswitch.problem.domains import Domain, check_domain
from softswitch.problem.parameters import Params, check_start

STATIC = {"static": True}  # metadata of a dataclass field of an oracle that is part of the compiled program, not traced


class Evaluation(NamedTuple):
    """Values of the n clients at some parameters.

    Attributes:
        objective: f_i on all data of client i; −∞ if it has no objective, NaN if the value is unknown.
        constraint: g_i, clients × constraints; −∞ and NaN as for the objective.
        pooled: The constraints on the data of all clients together; None unless the constraint is pooled.
    """

    objective: np.ndarray
    constraint: np.ndarray
    pooled: np.ndarray | None = None

    def constraint_level(self, method: Method) -> float:
        """Return G: the pooled constraint if the method switches on it, else the largest of a client, after trimming.

        Args:
            method: The method, for its criterion and its number of Byzantine clients.
        """
        if self.pooled is not None and method.switches_on == "pooled":
            return float(self.pooled.max())
        return trimmed_max(self.constraint, method.robust)

    def is_feasible(self, method: Method) -> bool:
        """Return whether G is at most the tolerance. A client with an unknown value counts as a violation.

        Args:
            method: The method, for its tolerance and as in ``constraint_level``.
        """
        known = method.switches_on != "pooled" or not np.isnan(self.constraint).any()
        return known and bool(self.constraint_level(method) <= method.tolerance)


class Oracle(ABC):
    """Base class of a set of clients: they report values in a round, then return update directions.

    An oracle is a pytree: its arrays are traced, everything else is static. Clients that do not compute with JAX are a
    ``HostOracle``. A subclass must define ``client_count``, ``participants``, ``draw``, ``report``, ``direction`` and
    ``evaluate``; the remaining members have defaults.

    Attributes:
        client_count: Number of clients n.
        participants: Number of clients m in a round.
        constraints: Number of constraints of a client.
        local_steps: Number of local steps E in a round.
        reports_full_data: Whether reports are computed on all data of all clients, in the clients' order.
        has_pooled_constraint: Whether reports contain the additive statistics of a pooled constraint.
        has_surrogate: Whether a differentiable surrogate replaces the constraint in gradients.
        noise_setting: Name of the setting that reduces the noise of reports, for diagnostics.
        report_batch_size: Number of rows that a client draws for a report; None if it uses all rows or has none.
        total_rows: Number of rows of all clients; None if unknown.
        is_compiled: Whether rounds are compiled with JAX.
        can_repeat_updates: Whether ``report`` and ``direction`` accept another iterate with the same draws, and local
            losses with ``linear`` and ``pull``.
        can_repeat_reports: Whether ``report`` accepts another iterate with the same draws.
        is_private: Whether every release of data counts towards a privacy budget. A run then uses only the reports and
            directions of its rounds, and one evaluation of its answer.
    """

    participants: int
    constraints: int = 1
    local_steps: int = 1
    reports_full_data: bool = False
    has_pooled_constraint: bool = False
    has_surrogate: bool = False
    report_batch_size: int | None = None
    total_rows: int | None = None
    noise_setting: ClassVar[str] = "value_batch_size"
    is_compiled: ClassVar[bool] = True
    can_repeat_updates: ClassVar[bool] = False
    can_repeat_reports: bool = False
    is_private: ClassVar[bool] = False

    @property
    @abstractmethod
    def client_count(self) -> int:
        """Number of clients n."""

    @property
    def supports_client_selection(self) -> bool:
        """Whether the server can select the participants, because ``draw_randomness`` is overridden."""
        return type(self).draw_randomness is not Oracle.draw_randomness

    @abstractmethod
    def draw(self, key: Array) -> Any:
        """Return all random choices of one round: a pytree with the participants' indices as ``.clients``.

        Args:
            key: JAX random key of the round.
        """

    def draw_randomness(self, key: Array) -> Any:
        """Return the random numbers of one round, before its participants are known.

        Args:
            key: JAX random key of the round.
        """
        raise ValueError(f"memory needs clients that the server can select, but {type(self).__name__} draws its own")

    def draw_for(self, clients: Int[Array, " m"], randomness: Any) -> Any:
        """Return the random choices of one round for given participants, as ``draw`` does.

        Args:
            clients: Indices of the m participants.
            randomness: Result of ``draw_randomness`` for the round.
        """
        raise ValueError(f"memory needs clients that the server can select, but {type(self).__name__} draws its own")

    def pool(self, sums: Float[Array, " s"]) -> Float[Array, " c"]:
        """Return the pooled constraints from summed statistics; raise ValueError if the constraint is not pooled.

        Args:
            sums: Sum of the clients' additive statistics, each times the client's number of rows.
        """
        raise ValueError(f"{type(self).__name__} has no pooled constraint")

    @abstractmethod
    def report(self, params: Params, draws: Any) -> tuple[Reports, Any]:
        """Return the reports of the participants at w_k, and data that they keep for ``direction`` (or None).

        Args:
            params: Current parameters w_k.
            draws: Result of ``draw`` for the round.
        """

    @abstractmethod
    def direction(
        self, params: Params, draws: Any, kept: Any, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Return the weighted sum Σ_i r_i u_i of the participants' update directions.

        Args:
            params: Current parameters w_k.
            draws: Result of ``draw`` for the round.
            kept: Second result of ``report``.
            decision: Weights and local losses of the participants.
            switches: Whether every local loss is either the objective or a mix of constraints, never both.
            step_size: Local step size γ.
        """

    def directions(
        self, params: Params, draws: Any, kept: Any, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Return every update direction u_i, stacked along the first axis of each array.

        The default calls ``direction`` once for each participant.

        Args:
            params: Current parameters w_k.
            draws: Result of ``draw`` for the round.
            kept: Second result of ``report``.
            decision: Local losses of the participants; the weights are ignored.
            switches: Whether every local loss is either the objective or a mix of constraints, never both.
            step_size: Local step size γ.
        """

        def one(weights: Array) -> Params:
            return self.direction(params, draws, kept, decision._replace(weights=weights), switches, step_size)

        if self.is_compiled:
            return lax.map(one, jnp.eye(self.participants, dtype=decision.weights.dtype))
        one_hot: Any = np.eye(self.participants, dtype=np.asarray(decision.weights).dtype)
        return jax.tree.map(lambda *parts: np.stack(parts), *map(one, one_hot))

    @abstractmethod
    def evaluate(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]]:
        """Return f_i and g_i of every client on all of its data. JAX traces this method if ``is_compiled``.

        Args:
            params: Parameters, a pytree of floating arrays.
        """

    def evaluate_held_out(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]] | None:
        """Return f_i and g_i of every client on held-out data, or None if there is none.

        Args:
            params: Parameters, a pytree of floating arrays.
        """
        return None

    def count_rows(self, draws: Any) -> Int[Array, ""] | None:
        """Return the number of rows of the participants, or None if the cost of a round does not depend on it.

        Args:
            draws: Result of ``draw`` for the round.
        """
        return None

    def cost(self, row_count: Any) -> tuple[Any, Any]:
        """Return the number of rows on which a round computes values, and the number for gradients.

        Args:
            row_count: Result of ``count_rows`` for one round, or an array for several.
        """
        return self.participants, self.participants

    def without_evaluation(self) -> Oracle:
        """Return the same clients for rounds that do not call ``evaluate``, so that less has to be compiled."""
        return self

    def evaluate_params(self, params: Params) -> Evaluation:
        """Return the values of every client on all of its data as NumPy arrays, outside of a compiled program.

        Args:
            params: Parameters, a pytree of floating arrays.
        """
        evaluated = _evaluate(self, params) if self.is_compiled else self.evaluate(params)
        return Evaluation(*(np.asarray(values) for values in evaluated))


@jax.jit
def _evaluate(oracle: Oracle, params: Params) -> tuple[Array, Array]:
    return oracle.evaluate(params)


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients of any kind with initial parameters, for ``solve`` and ``sweep``.

    ``solve`` makes one from a problem and data. Construct one directly for clients that do not compute gradients on
    rows, such as simulators with a policy.

    Attributes:
        oracle: Reports, directions and evaluations of the clients.
        start: Initial parameters w_0, a pytree of floating arrays.
        names: Labels of the clients, in the order of their indices.
        domain: Set Θ onto which every server step is projected: ``Ball``, ``Box``, or anything with a ``project``.
            Default: None, no projection.
    """

    oracle: Oracle
    start: Params
    names: tuple[Any, ...]
    domain: Domain | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.oracle, Oracle):
            raise TypeError(f"oracle must be a subclass of softswitch.oracles.base.Oracle, but is {self.oracle!r}")
        object.__setattr__(self, "start", check_start("start", self.start))
        if self.domain is not None:
            check_domain(self.domain, self.start)
        object.__setattr__(self, "names", tuple(self.names))
        n = self.oracle.client_count
        if len(self.names) != n:
            raise ValueError(f"names must have one label for each of {n} clients, but has {len(self.names)}")


class HostDraws(NamedTuple):
    """Random choices of one round: the indices of its participants, and a seed for all other random numbers."""

    clients: np.ndarray
    seed: int


class HostOracle(Oracle):
    """Base class of clients that compute with NumPy arrays in Python, and are never compiled.

    A subclass must define ``client_count``, ``participants``, ``report``, ``direction``, ``evaluate`` and ``digest``.

    Attributes:
        has_held_out: Whether there is held-out data for ``evaluate_held_out``.
        statistics: Number of additive statistics of a pooled constraint; None for a plain one.
    """

    is_compiled: ClassVar[bool] = False
    has_held_out: bool = False
    statistics: int | None = None

    def draw(self, key: Array) -> HostDraws:
        """Return the participants, drawn as in the compiled engine, and a seed of 63 bits."""
        n, m = self.client_count, self.participants
        clients: Any = np.arange(n) if m == n else _draw_clients(key, n, m)
        return self.draw_for(clients, self.draw_randomness(key))

    def draw_randomness(self, key: Array) -> int:
        """Return the seed of the round, an integer of 63 bits."""
        high, low = (int(word) for word in np.asarray(_draw_words(key)))
        return ((high << 32) | low) >> 1

    def draw_for(self, clients: Int[Array, " m"], randomness: int) -> HostDraws:
        """Return the draws of given participants with the seed ``randomness``."""
        return HostDraws(np.asarray(clients), randomness)

    @abstractmethod
    def digest(self) -> dict[str, str]:
        """Return texts by name that identify data, functions and settings; a checkpoint with others is rejected."""

    def load_buffers(self, params: Params, buffers: Any) -> None:
        """Restore the state besides the parameters before a run continues. Default: there is none.

        Args:
            params: Parameters to continue with.
            buffers: Earlier result of ``buffers``; None to recompute the state from the data.
        """

    def buffers(self) -> Any:
        """Return the clients' state besides the parameters, such as batch-norm statistics; None if there is none."""
        return None


@jax.jit
def _draw_words(key: Array) -> Array:
    return jax.random.bits(jax.random.fold_in(key, 1), (2,), jnp.uint32)


@partial(jax.jit, static_argnums=(1, 2))
def _draw_clients(key: Array, clients: int, participants: int) -> Array:
    words = jax.random.bits(key, (client_bit_count(clients, participants),), jnp.uint32)
    return sample_clients(words, clients, participants)
