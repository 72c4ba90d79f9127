"""What clients can do: report two numbers, and return a direction.

An engine asks an ``Oracle`` and knows nothing of data or gradients. ``GradientOracle`` is the paper's: batches of rows,
and a LocalSolver of E gradient steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from softswitch.clients.client_data import Rows
from softswitch.clients.evaluation import Evaluation, evaluate, evaluate_all, evaluate_pooled
from softswitch.clients.losses import Loss, Losses
from softswitch.clients.sampling import Batching, choose_clients, words_to_choose
from softswitch.clients.slices import map_slices, sum_slices
from softswitch.method.rules import Decision, LocalLoss, Reports
from softswitch.problem.problem import Batch, Params, PooledConstraint, float_dtype

STATIC = {"static": True}  # part of the compiled program


@runtime_checkable
class Oracle(Protocol):
    """The clients, as an engine sees them. A pytree: its arrays are traced, the rest is compiled in."""

    @property
    def constraints(self) -> int:
        """How many constraints a client has."""
        ...

    def draw(self, key: Array) -> Any:
        """All random choices of one round, from its key: a pytree with the participants under ``.clients``."""
        ...

    @property
    def client_count(self) -> int:
        """n, how many clients there are."""
        ...

    @property
    def participants(self) -> int:
        """m, how many clients take part in a round."""
        ...

    @property
    def pools(self) -> bool:
        """Whether reports hold the constraint on all participants' data put together."""
        ...

    @property
    def steadied_by(self) -> str:
        """The name of the setting that makes reports less noisy, for advice."""
        ...

    def report(self, params: Params, draws: Any) -> tuple[Reports, Any]:
        """First exchange: f_i and g_i of the participants at w_k; and what clients keep for the second, if anything."""
        ...

    def direction(
        self, params: Params, draws: Any, kept: Any, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Second exchange: Σ_i r_i u_i, the participants' weighted directions."""
        ...

    def rows_held(self, draws: Any) -> Int[Array, ""] | None:
        """How many rows the participants hold together, where the cost of a round depends on it; else None."""
        ...

    def cost(self, rows_held: Any) -> tuple[Any, Any]:
        """How many rows a round evaluates values (of f and g) on, and how many it evaluates gradients on."""
        ...

    @property
    def evaluates(self) -> bool:
        """Whether it can look at all data in the course of a run."""
        ...

    def evaluate(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]]:
        """f_i and g_i of every client on all of its data."""
        ...

    def evaluate_held_out(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]] | None:
        """The same on data not trained on, where there is such."""
        ...

    def blind(self) -> Oracle:
        """The same clients without a way through all data, for runs that never look."""
        ...

    def judge(self, params: Params) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Outside of a program: f_i and g_i on all data, and the constraint on all clients' data put together.

        The last is None where that has no meaning.
        """
        ...


class Draws(NamedTuple):
    """The random choices of one round.

    Attributes:
        clients: I_k, the participants.
        report_rows: the row indices of each participant's value batch; none where a batch is all of its rows.
        update_rows: the row indices of each participant's gradient batch at each local step; likewise.
    """

    clients: Int[Array, " m"]
    report_rows: Int[Array, "m drawn"]
    update_rows: Int[Array, "e m drawn_too"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GradientOracle:
    """Clients that hold rows and take gradient steps on them.

    Attributes:
        rows: all clients' rows.
        evaluation: how to go through all data; None where that is not needed.
        losses: the problem's objective and constraint.
        constraints: how many constraints a client has.
        participants: m, how many clients take part in a round.
        local_steps: E.
        report_batching: how the batch for f_i and g_i is drawn.
        update_batching: how the batches for gradients are drawn.
        slice_size: how many clients are computed side by side; the rest wait, to bound memory.
        held_out: rows not trained on, to be evaluated beside, and how to go through them; or None.
    """

    rows: Rows
    evaluation: Evaluation | None
    losses: Losses = field(metadata=STATIC)
    constraints: int = field(metadata=STATIC)
    participants: int = field(metadata=STATIC)
    local_steps: int = field(metadata=STATIC)
    report_batching: Batching = field(metadata=STATIC)
    update_batching: Batching = field(metadata=STATIC)
    slice_size: int = field(metadata=STATIC)
    held_out: tuple[Rows, Evaluation] | None = None

    @property
    def client_count(self) -> int:
        """n."""
        return int(self.rows.counts.shape[0])

    @property
    def pools(self) -> bool:
        """Whether the constraint is a function of additive statistics."""
        return isinstance(self.losses.constraint, PooledConstraint)

    @property
    def steadied_by(self) -> str:
        """What makes reports less noisy."""
        return "value_batch_size"

    def draw(self, key: Array) -> Draws:
        """Draw I_k, then its members' rows, all from one stretch of random words: one generator to compile and run."""
        n, m = self.client_count, self.participants
        for_clients = words_to_choose(n, m)
        for_report = self.report_batching.words(m, 1)
        for_update = self.update_batching.words(m, self.local_steps)
        words = jax.random.bits(key, (for_clients + for_report + for_update,), jnp.uint32)
        who, report, update = jnp.split(words, (for_clients, for_clients + for_report))
        clients = choose_clients(who, n, m)
        return Draws(
            clients,
            self.report_batching.draw(report, self.rows, clients, 1)[0],
            self.update_batching.draw(update, self.rows, clients, self.local_steps),
        )

    def report(self, params: Params, draws: Draws) -> tuple[Reports, None]:
        """f_i(w_k, ξ_i) and g_i(w_k, ξ_i) on a fresh batch of each participant."""
        dtype = float_dtype(params)

        def one(client: tuple[Array, Array]) -> tuple[Array, Array, Array | None]:
            batch = self.batch(self.report_batching, *client, dtype)
            return (
                self.losses.objective(params, batch).astype(dtype),
                self.losses.constraints(params, batch).astype(dtype),
                self.losses.statistics(params, batch),
            )

        objective, constraint, statistics = map_slices(one, (draws.clients, draws.report_rows), self.slice_size)
        mask = jnp.ones(objective.shape, bool)
        pooled = self.losses.pool(statistics, self.rows.sizes[draws.clients])
        return Reports(objective, constraint, pooled, mask), None

    def direction(
        self, params: Params, draws: Draws, kept: None, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Σ_i r_i u_i, by one backward pass where E = 1 and by the local solver otherwise.

        A switching rule's branch is chosen here, outside the client axis: inside it both would be computed.
        """

        def minimise(loss: Loss) -> Params:
            def in_slice(some: tuple[Array, ...]) -> Params:
                clients, rows, server_weights, mix = some
                mixed = decision.local_loss._replace(constraint=mix)
                if self.local_steps == 1:
                    return self.fused(loss, params, clients, rows[:, 0], server_weights, mixed)
                return self.local_solver(loss, params, clients, rows, server_weights, mixed, step_size)

            everyone = (
                draws.clients,
                jnp.swapaxes(draws.update_rows, 0, 1),
                decision.weights,
                decision.local_loss.constraint,
            )
            return sum_slices(in_slice, everyone, self.slice_size)

        if not switches:
            return minimise(self.losses.mixed_loss)
        return lax.cond(
            decision.feasible,
            lambda: minimise(self.losses.objective_loss),
            lambda: minimise(self.losses.constraint_loss),
        )

    def fused(
        self,
        loss: Loss,
        params: Params,
        clients: Int[Array, " s"],
        rows: Int[Array, "s drawn"],
        server_weights: Float[Array, " s"],
        local_loss: LocalLoss,
    ) -> Params:
        """E = 1: Σ_i r_i ∇h_i(w) = ∇(Σ_i r_i h_i)(w), one backward pass and O(d) memory."""

        def total(params: Params) -> Array:
            def one(client: Array, rows: Array, mix: Array) -> Array:
                batch = self.batch(self.update_batching, client, rows, float_dtype(params))
                return loss(params, batch, local_loss._replace(constraint=mix))

            return jnp.dot(server_weights, jax.vmap(one)(clients, rows, local_loss.constraint))

        return jax.grad(total)(params)

    def local_solver(
        self,
        loss: Loss,
        params: Params,
        clients: Int[Array, " s"],
        rows: Int[Array, "s e drawn"],
        server_weights: Float[Array, " s"],
        local_loss: LocalLoss,
        step_size: Any,
    ) -> Params:
        """The paper's LocalSolver at each client: E steps of size γ from w_k, each on a fresh batch.

        u_i = (w_k − w_{k,E})/(γE) is computed as the mean of the E gradients: the same number, without the digits that
        the difference loses when γ is small.
        """

        def one(client: Array, rows: Array, mix: Array) -> Params:
            def step(total: Params, rows: Array) -> tuple[Params, None]:
                here = jax.tree.map(lambda w, s: w - jnp.asarray(step_size, w.dtype) * s, params, total)
                batch = self.batch(self.update_batching, client, rows, float_dtype(params))
                gradient = jax.grad(loss)(here, batch, local_loss._replace(constraint=mix))
                return jax.tree.map(jnp.add, total, gradient), None

            total, _ = lax.scan(step, jax.tree.map(jnp.zeros_like, params), rows)
            return jax.tree.map(lambda leaf: leaf / self.local_steps, total)

        directions = jax.vmap(one)(clients, rows, local_loss.constraint)
        return jax.tree.map(lambda u: jnp.tensordot(server_weights.astype(u.dtype), u, axes=1), directions)

    def rows_held(self, draws: Draws) -> Int[Array, ""] | None:
        """Σ_i of the participants' rows, where a batch is all of them; else None."""
        if self.report_batching.draws is not None and self.update_batching.draws is not None:
            return None
        return self.rows.sizes[draws.clients].sum()

    def cost(self, rows_held: Any) -> tuple[Any, Any]:
        """m·B_ζ values and m·E·B_g gradients; a batch of all rows counts its rows."""
        values, gradients = (
            rows_held if batching.draws is None else self.participants * batching.width
            for batching in (self.report_batching, self.update_batching)
        )
        return values, self.local_steps * gradients

    @property
    def evaluates(self) -> bool:
        """Whether it can look at all data in the course of a run."""
        return self.evaluation is not None

    def evaluate(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]]:
        """f_i and g_i of every client on all of its rows."""
        assert self.evaluation is not None
        return evaluate(self.evaluation, self.rows, params, self.losses)

    def evaluate_held_out(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]] | None:
        """The same on rows not trained on, where there are such."""
        if self.held_out is None:
            return None
        rows, evaluation = self.held_out
        return evaluate(evaluation, rows, params, self.losses)

    def blind(self) -> GradientOracle:
        """Without a way through all data: a smaller program, shared by data whose clients differ in size only."""
        return replace(self, evaluation=None, held_out=None)

    def judge(self, params: Params) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """f_i and g_i on all rows, and a pooled constraint on all rows put together; None for a plain one."""
        assert self.evaluation is not None
        objective, constraint = evaluate_all(self.evaluation, self.rows, params, self.losses)
        pooled = None
        if self.pools:
            pooled = np.asarray(evaluate_pooled(self.evaluation, self.rows, params, self.losses))
        return np.asarray(objective), np.asarray(constraint), pooled

    def batch(self, batching: Batching, client: Array, drawn: Array, dtype: Any) -> Batch:
        """One participant's batch."""
        return self.rows.take(*batching.batch(self.rows, client, drawn, dtype))
