"""What clients can do: report two numbers, and return a direction. An engine asks an oracle, and knows nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from softswitch.methods.messages import Decision, Reports
from softswitch.problem.parameters import Params

STATIC = {"static": True}  # part of the compiled program


class Judged(NamedTuple):
    """How good parameters are at every client.

    Attributes:
        objective: f_i on all data of client i; −∞ where it has none, NaN where it is not known.
        constraint: g_i likewise; clients × constraints.
        pooled: the constraint on all clients' data put together; None where that has no meaning.
    """

    objective: np.ndarray
    constraint: np.ndarray
    pooled: np.ndarray | None = None


class Oracle(ABC):
    """The clients, as an engine sees them. A pytree: its arrays are traced, the rest is compiled in.

    One that computes with something else than JAX says ``compiles = False`` and is a ``RoundByRound``: it is called
    once a round, with numbers.

    Six members make one (``draw``, ``report``, ``direction``, ``evaluate`` and two numbers); the others have answers
    that fit most clients.

    Attributes:
        client_count: n, how many clients there are.
        participants: m, how many clients take part in a round.
        constraints: how many constraints a client has.
        local_steps: E, how many steps a client takes in a round.
        reports_all: whether every report is of all data of all clients, in their order.
        pools: whether reports hold the constraint on all participants' data put together.
        stands_in: whether the constraint moves in jumps, and something else is descended on in its place.
        steadied_by: the name of the setting that makes reports less noisy, for advice.
        rows_a_report: how many rows a report rests on; None where it is all of them, or no rows.
        rows_judged: how many rows all clients have together; None where that is not known.
        compiles: whether whole stretches of rounds are compiled with it, as one program.
        over_devices: whether clients are divided over devices, each of which computes its own.
        processes: how many processes have these devices.
        looks_back: whether ``report`` and ``direction`` can be asked again at another iterate, with the same draws,
            whether there is ``with_all_rows``, and whether local losses may have a ``linear`` part and a ``pull``.
        reports_again: whether ``report`` at least can.
        guards_rows: whether all that is told of rows is counted: a run then asks for its rounds and for one judging of
            its answer, and for nothing else.
    """

    participants: int
    constraints: int = 1
    local_steps: int = 1
    reports_all: bool = False
    pools: bool = False
    stands_in: bool = False
    steadied_by: ClassVar[str] = "value_batch_size"
    compiles: ClassVar[bool] = True
    over_devices: ClassVar[bool] = False
    looks_back: ClassVar[bool] = False
    reports_again: bool = False
    guards_rows: ClassVar[bool] = False

    @property
    def processes(self) -> int:
        """How many processes compute with these clients together."""
        return 1

    @property
    @abstractmethod
    def client_count(self) -> int:
        """n."""

    @property
    def rows_a_report(self) -> int | None:
        """How many rows a client draws for its report."""
        return None

    @property
    def rows_judged(self) -> int | None:
        """How many rows are gone through where all clients are evaluated; None where that is not known."""
        return None

    @property
    def takes_whom_it_is_told(self) -> bool:
        """Whether the server can choose who takes part (memory): whether it has a ``chance`` of its own."""
        return type(self).chance is not Oracle.chance

    @abstractmethod
    def draw(self, key: Array) -> Any:
        """All random choices of one round, from its key: a pytree with the participants under ``.clients``.

        Args:
            key: the round's random key.
        """

    def draw_rounds(self, keys: Array) -> Any:
        """``draw`` for many rounds at once, which is far cheaper than one by one.

        Args:
            keys: the rounds' random keys.
        """
        return jax.vmap(self.draw)(keys)

    def chance(self, key: Array) -> Any:
        """The random numbers of one round, before it is known who takes part: for a server that chooses by need.

        Args:
            key: the round's random key.
        """
        raise ValueError(f"{type(self).__name__} cannot draw for clients that the server chooses (memory)")

    def draw_for(self, clients: Int[Array, " m"], chance: Any) -> Any:
        """As ``draw``, for given participants and with these random numbers.

        Args:
            clients: the participants' indices.
            chance: what ``chance`` gave for this round.
        """
        raise ValueError(f"{type(self).__name__} cannot draw for clients that the server chooses (memory)")

    def pool(self, sums: Float[Array, " s"]) -> Float[Array, " c"]:
        """The constraint on data put together, by its summed statistics, where the constraint is pooled.

        Args:
            sums: the clients' statistics, added up.
        """
        raise ValueError(f"{type(self).__name__} has no pooled constraint")

    @abstractmethod
    def report(self, params: Params, draws: Any) -> tuple[Reports, Any]:
        """First exchange: f_i and g_i of the participants at w_k; and what clients keep for the second, if anything.

        Args:
            params: w_k.
            draws: what ``draw`` gave for this round.
        """

    @abstractmethod
    def direction(
        self, params: Params, draws: Any, kept: Any, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Second exchange: Σ_i r_i u_i, the participants' weighted directions.

        Args:
            params: w_k.
            draws: what ``draw`` gave for this round.
            kept: what ``report`` gave to keep.
            decision: weights and local losses of the participants.
            switches: whether every local loss is either the objective or a mix of constraints, never both.
            step_size: γ, the clients' own step.
        """

    def directions(
        self, params: Params, draws: Any, kept: Any, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """The participants' directions u_i by themselves, as the first axis of every array: for a robust rule.

        As it stands, ``direction`` is asked once for each of them, with all weight on one; an oracle that can do better
        does.

        Args:
            params: w_k.
            draws: what ``draw`` gave for this round.
            kept: what ``report`` gave to keep.
            decision: local losses of the participants; their weights are not looked at.
            switches: whether every local loss is either the objective or a mix of constraints, never both.
            step_size: γ, the clients' own step.
        """

        def of_one(weights: Array) -> Params:
            return self.direction(params, draws, kept, decision._replace(weights=weights), switches, step_size)

        return lax.map(of_one, jnp.eye(self.participants, dtype=decision.weights.dtype))

    def with_all_rows(self, draws: Any) -> tuple[Oracle, Any]:
        """The same clients with gradients on all of their rows, and a round's draws for that.

        Args:
            draws: what ``draw`` gave for this round.
        """
        raise ValueError(f"{type(self).__name__} cannot take gradients on all rows where rows are drawn")

    @abstractmethod
    def evaluate(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]]:
        """f_i and g_i of every client on all of its data.

        Args:
            params: parameters, any tree of floating arrays.
        """

    def evaluate_held_out(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]] | None:
        """The same on data not trained on, where there is such.

        Args:
            params: parameters, any tree of floating arrays.
        """
        return None

    def rows_held(self, draws: Any) -> Int[Array, ""] | None:
        """How many rows the participants hold together, where the cost of a round depends on it; else None.

        Args:
            draws: what ``draw`` gave for this round.
        """
        return None

    def cost(self, rows_held: Any) -> tuple[Any, Any]:
        """How many rows a round evaluates values (of f and g) on, and how many it evaluates gradients on.

        Args:
            rows_held: what ``rows_held`` gave, of one round or of several; None where the cost is always the same.
        """
        return self.participants, self.participants

    def without_evaluation(self) -> Oracle:
        """The same clients for rounds that never look at all data: what only that needs may be left out."""
        return self

    def judge(self, params: Params) -> Judged:
        """Outside of a program: how good parameters are.

        Args:
            params: parameters, any tree of floating arrays.
        """
        return Judged(*(np.asarray(values) for values in _evaluate(self, params)))


@jax.jit
def _evaluate(oracle: Oracle, params: Params) -> tuple[Array, Array]:
    return oracle.evaluate(params)
