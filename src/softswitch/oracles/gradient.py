"""Clients of the paper: batches of rows, and a LocalSolver of E gradient steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Key, UInt32

from softswitch.data.client_data import Rows
from softswitch.data.sampling import Batching, all_rows, client_bit_count, sample_clients
from softswitch.methods.messages import Decision, LocalLoss, Reports
from softswitch.oracles.base import STATIC, Evaluation, Oracle
from softswitch.oracles.client_batches import map_slices, slice_size, sum_slices
from softswitch.oracles.evaluation import EvaluationPlan, client_values, evaluate_clients
from softswitch.oracles.losses import Loss, Losses
from softswitch.problem.parameters import CLIENT_OPTIMUM, WEIGHT, Batch, Params, float_dtype
from softswitch.support.arrays import take_clients, weighted_sum

FUNCTION_STREAM = 1
"""Folded into a round's key for functions that take a random key."""


class RowDraws(NamedTuple):
    """The random choices of one round.

    Attributes:
        clients: Indices of the participants I_k.
        report_rows: Row indices of each participant's value batch; empty if a batch is all rows.
        update_rows: Row indices of each participant's gradient batch at each local step; empty if it is all rows.
        keys: Each participant's random key at each local step; None if no function takes one.
    """

    clients: Int[Array, " m"]
    report_rows: Int[Array, "m drawn"]
    update_rows: Int[Array, "e m drawn_too"]
    keys: Key[Array, "m e"] | None

    @property
    def client_update_rows(self) -> Int[Array, "m e drawn_too"]:
        """``update_rows`` with the participants as the first axis."""
        return jnp.swapaxes(self.update_rows, 0, 1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GradientOracle(Oracle):
    """Clients that hold rows and take gradient steps on them.

    Attributes:
        rows: Rows of all clients.
        evaluation_plan: How all rows are evaluated; None if they never are.
        losses: Objective and constraint.
        constraints: Number of constraints of a client.
        participants: Number of clients m in a round.
        local_steps: Number of local steps E.
        report_batching: How the batch for f_i and g_i is drawn.
        update_batching: How the batches for gradients are drawn.
        slice_size: Number of clients that are computed together.
        held_out: Held-out rows and how they are evaluated; or None.
        by_size: Whether clients of similar size are computed together.
        compute_dtype: Narrower dtype for reports and gradients; None for the dtype of the parameters.
    """

    rows: Rows
    evaluation_plan: EvaluationPlan | None
    losses: Losses = field(metadata=STATIC)
    constraints: int = field(metadata=STATIC)
    participants: int = field(metadata=STATIC)
    local_steps: int = field(metadata=STATIC)
    report_batching: Batching = field(metadata=STATIC)
    update_batching: Batching = field(metadata=STATIC)
    slice_size: int = field(metadata=STATIC)
    held_out: tuple[Rows, EvaluationPlan] | None = None
    by_size: bool = field(default=False, metadata=STATIC)
    compute_dtype: str | None = field(default=None, metadata=STATIC)
    can_repeat_updates: ClassVar[bool] = True
    can_repeat_reports = True
    has_pooled_constraint = property(attrgetter("losses.has_pooled_constraint"))
    has_surrogate = property(attrgetter("losses.has_surrogate"))
    reports_full_data = property(attrgetter("by_size"))

    @property
    def client_count(self) -> int:
        """Number of clients n."""
        return int(self.rows.counts.shape[0])

    @property
    def report_batch_size(self) -> int | None:
        """Number of rows that a client draws for a report; None for all rows."""
        return None if self.report_batching.draws is None else self.report_batching.width

    @property
    def total_rows(self) -> int | None:
        """Number of rows of all clients."""
        return int(self.rows.sizes.sum())

    def draw(self, key: Array) -> RowDraws:
        """Draw I_k and the rows of its members from one block of random words."""
        n, m = self.client_count, self.participants
        client_words = client_bit_count(n, m)
        words = jax.random.bits(key, (client_words + self._row_words,), jnp.uint32)
        for_clients, for_rows = jnp.split(words, (client_words,))
        return self.draw_for(sample_clients(for_clients, n, m), (for_rows, self._keys(key)))

    def draw_randomness(self, key: Array) -> tuple[UInt32[Array, " words"], Key[Array, "m e"] | None]:
        """Draw the random words for rows, and the keys for functions that take one."""
        return jax.random.bits(key, (self._row_words,), jnp.uint32), self._keys(key)

    def draw_for(self, clients: Int[Array, " m"], randomness: tuple[Array, Array | None]) -> RowDraws:
        """Draw the rows of given participants."""
        words, keys = randomness
        report, update = jnp.split(words, (self.report_batching.bit_count(self.participants, 1),))
        return RowDraws(
            clients,
            self.report_batching.draw(report, self.rows, clients, 1)[0],
            self.update_batching.draw(update, self.rows, clients, self.local_steps),
            keys,
        )

    @property
    def _row_words(self) -> int:
        m = self.participants
        return self.report_batching.bit_count(m, 1) + self.update_batching.bit_count(m, self.local_steps)

    def _keys(self, key: Array) -> Key[Array, "m e"] | None:
        if not self.losses.is_random:
            return None
        return jax.random.split(jax.random.fold_in(key, FUNCTION_STREAM), (self.participants, self.local_steps))

    def pool(self, sums: Float[Array, " s"]) -> Float[Array, " c"]:
        """Compute a pooled constraint from summed statistics."""
        return self.losses.pool(sums)

    def report(self, params: Params, draws: Any) -> tuple[Reports, None]:
        """Compute f_i(w_k, ξ_i) and g_i(w_k, ξ_i) on a fresh batch of each participant."""
        objective, constraint, statistics = self.report_values(params, draws)
        mask = jnp.ones(objective.shape, bool)
        if statistics is None:
            return Reports(objective, constraint, None, mask), None
        sizes = self.rows.sizes[draws.clients].astype(statistics.dtype)
        pooled = self.losses.pool(jnp.tensordot(sizes, statistics, axes=1))
        return Reports(objective, constraint, pooled, mask, sums=sizes[:, None] * statistics), None

    def report_values(self, params: Params, draws: Any) -> tuple[Array, Array, Array | None]:
        """Compute f_i, g_i and the statistics of a pooled constraint of every participant."""
        dtype = float_dtype(params)
        if self.by_size:
            assert self.evaluation_plan is not None
            objective, constraint = client_values(self.evaluation_plan, self.rows, params, self.losses)
            return objective.astype(dtype), constraint.astype(dtype), None
        params = self._cast(params)

        def one(client: tuple[Array, Array]) -> tuple[Array, Array, Array | None]:
            batch = self._cast_batch(self.batch(self.report_batching, *client, dtype))
            return (
                self.losses.objective(params, batch).astype(dtype),
                self.losses.constraints(params, batch).astype(dtype),
                self.losses.statistics(params, batch),
            )

        values: tuple[Array, Array, Array | None] = self.map_participants(one, (draws.clients, draws.report_rows))
        return values

    def map_participants(self, function: Callable[[Any], Any], participants: Any) -> Any:
        """Apply ``function`` to every participant and stack the results."""
        return map_slices(function, participants, self.slice_size)

    def sum_participants(self, function: Callable[[Any], Any], weights: Float[Array, " m"], participants: Any) -> Any:
        """Sum ``function((weights, participants))``, a weighted sum, over slices of the participants."""
        return sum_slices(function, (weights, participants), self.slice_size)

    def direction(
        self, params: Params, draws: Any, kept: None, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Compute Σ_i r_i u_i: by one backward pass if E = 1, by the local solver otherwise."""

        def minimise(loss: Loss) -> Params:
            if self.by_size and self.update_batching.draws is None:
                return self.fused_by_size(loss, params, decision)

            def in_slice(part: tuple[Any, ...]) -> Params:
                server_weights, (clients, rows, keys, own) = part
                mixed = decision.local_loss.with_own(own)
                if self.local_steps == 1:
                    first = None if keys is None else keys[:, 0]
                    return self.fused(loss, params, clients, rows[:, 0], first, server_weights, mixed)
                return self.local_solver(loss, params, clients, rows, keys, server_weights, mixed, step_size)

            participants = (draws.clients, draws.client_update_rows, draws.keys, decision.local_loss.own)
            total: Params = self.sum_participants(in_slice, decision.weights, participants)
            return total

        return self._minimise_branch(minimise, decision, switches)

    def _minimise_branch(self, minimise: Callable[[Loss], Params], decision: Decision, switches: bool) -> Params:
        """Select the loss outside the client axis: inside it, both branches of a switching method would be computed."""
        if not switches:
            return minimise(self._in_compute_dtype(self.losses.mixed_loss))
        return lax.cond(
            decision.feasible,
            lambda: minimise(self._in_compute_dtype(self.losses.objective_loss)),
            lambda: minimise(self._in_compute_dtype(self.losses.constraint_loss)),
        )

    def _in_compute_dtype(self, loss: Loss) -> Loss:
        """Return the loss computed in ``compute_dtype``; its gradient has the dtype of the parameters."""
        if self.compute_dtype is None:
            return loss

        def narrow(params: Params, batch: Batch, mix: LocalLoss, key: Any) -> Array:
            value = loss(self._cast(params), self._cast_batch(batch), mix, key)
            return value.astype(float_dtype(params))

        return narrow

    def _cast(self, tree: Any) -> Any:
        if self.compute_dtype is None:
            return tree
        dtype = jnp.dtype(self.compute_dtype)
        return jax.tree.map(lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree)

    def _cast_batch(self, batch: Batch) -> Batch:
        """Convert a batch to ``compute_dtype``, except for its weights, so that means are summed in full precision."""
        if self.compute_dtype is None:
            return batch
        return self._cast(batch) | {name: batch[name] for name in (WEIGHT, CLIENT_OPTIMUM) if name in batch}

    def fused(
        self,
        loss: Loss,
        params: Params,
        clients: Int[Array, " s"],
        rows: Int[Array, "s drawn"],
        keys: Key[Array, " s"] | None,
        server_weights: Float[Array, " s"],
        local_loss: LocalLoss,
    ) -> Params:
        """Compute Σ_i r_i ∇h_i(w) = ∇(Σ_i r_i h_i)(w) for E = 1: one backward pass and O(d) memory."""

        def total(params: Params) -> Array:
            def one(client: Array, rows: Array, key: Any, own: Any) -> Array:
                batch = self.batch(self.update_batching, client, rows, float_dtype(params))
                return loss(params, batch, local_loss.with_own(own), key)

            return jnp.dot(server_weights, jax.vmap(one)(clients, rows, keys, local_loss.own))

        return jax.grad(total)(params)

    def fused_by_size(self, loss: Loss, params: Params, decision: Decision) -> Params:
        """Compute ``fused`` for all clients and all rows, grouped by size so that little padding is computed."""
        assert self.evaluation_plan is not None
        total = jax.tree.map(jnp.zeros_like, params)
        for clients, width in zip(self.evaluation_plan.groups, self.evaluation_plan.widths, strict=True):

            def in_slice(part: tuple[Array, Array, Any], width: int = width) -> Params:
                def weighted(params: Params) -> Array:
                    def one(client: Array, mix: Any) -> Array:
                        batch = self.rows.take(*all_rows(self.rows, client, width, float_dtype(params)))
                        return loss(params, batch, decision.local_loss.with_own(mix), None)

                    return jnp.dot(part[1], jax.vmap(one)(part[0], part[2]))

                return jax.grad(weighted)(params)

            group = (clients, decision.weights[clients], take_clients(decision.local_loss.own, clients))
            together = slice_size(len(clients), 4 * width * self.evaluation_plan.row_bytes)
            total = jax.tree.map(jnp.add, total, sum_slices(in_slice, group, together))
        return total

    def local_solver(
        self,
        loss: Loss,
        params: Params,
        clients: Int[Array, " s"],
        rows: Int[Array, "s e drawn"],
        keys: Key[Array, "s e"] | None,
        server_weights: Float[Array, " s"],
        local_loss: LocalLoss,
        step_size: Any,
    ) -> Params:
        """Compute Σ_i r_i u_i over some clients by their local steps."""

        def one(client: Array, rows: Array, keys: Any, own: Any) -> Params:
            return self.local_direction(loss, params, client, rows, keys, local_loss.with_own(own), step_size)

        directions = jax.vmap(one)(clients, rows, keys, local_loss.own)
        return weighted_sum(directions, server_weights)

    def local_direction(
        self,
        loss: Loss,
        params: Params,
        client: Int[Array, ""],
        rows: Int[Array, "e drawn"],
        keys: Key[Array, " e"] | None,
        local_loss: LocalLoss,
        step_size: Any,
    ) -> Params:
        """Run the paper's LocalSolver at one client: E steps of size γ from w_k, each on a fresh batch.

        u_i = (w_k − w_{k,E})/(γE) is computed as the mean of the E gradients, which avoids cancellation for small γ.
        """

        def step(total: Params, drawn: tuple[Array, Any]) -> tuple[Params, None]:
            rows, key = drawn
            here = jax.tree.map(lambda w, s: w - jnp.asarray(step_size, w.dtype) * s, params, total)
            batch = self.batch(self.update_batching, client, rows, float_dtype(params))
            gradient = jax.grad(loss)(here, batch, local_loss, key)
            if local_loss.linear is not None:
                gradient = jax.tree.map(jnp.add, gradient, local_loss.linear)
            if local_loss.pull is not None:
                pull = local_loss.pull
                gradient = jax.tree.map(lambda slope, w, at: slope + pull * (at - w), gradient, params, here)
            return jax.tree.map(jnp.add, total, gradient), None

        total, _ = lax.scan(step, jax.tree.map(jnp.zeros_like, params), (rows, keys))
        return jax.tree.map(lambda leaf: leaf / self.local_steps, total)

    def directions(
        self, params: Params, draws: Any, kept: None, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Compute every u_i, stacked along the first axis."""

        def minimise(loss: Loss) -> Params:
            def one(participant: tuple[Any, Any, Any, Any]) -> Params:
                client, rows, keys, own = participant
                mixed = decision.local_loss.with_own(own)
                return self.local_direction(loss, params, client, rows, keys, mixed, step_size)

            participants = (draws.clients, draws.client_update_rows, draws.keys, decision.local_loss.own)
            directions: Params = self.map_participants(one, participants)
            return directions

        return self._minimise_branch(minimise, decision, switches)

    def count_rows(self, draws: Any) -> Int[Array, ""] | None:
        """Count the participants' rows if a batch is all of them; else return None."""
        if self.report_batching.draws is not None and self.update_batching.draws is not None:
            return None
        return self.rows.sizes[draws.clients].sum()

    def cost(self, row_count: Any) -> tuple[Any, Any]:
        """Return m·B_ζ values and m·E·B_g gradients; a batch of all rows counts its rows."""
        values, gradients = (
            row_count if batching.draws is None else self.participants * batching.width
            for batching in (self.report_batching, self.update_batching)
        )
        return values, self.local_steps * gradients

    def evaluate(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]]:
        """Compute f_i and g_i of every client on all of its rows."""
        assert self.evaluation_plan is not None
        return client_values(self.evaluation_plan, self.rows, params, self.losses)

    def evaluate_held_out(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]] | None:
        """Compute f_i and g_i on held-out rows; None if there are none."""
        if self.held_out is None:
            return None
        rows, plan = self.held_out
        return client_values(plan, rows, params, self.losses)

    def without_evaluation(self) -> GradientOracle:
        """Drop the evaluation plan: the program is smaller, and shared by data that differ only in client sizes."""
        return replace(self, evaluation_plan=self.evaluation_plan if self.by_size else None, held_out=None)

    def evaluate_params(self, params: Params) -> Evaluation:
        """Evaluate parameters on all rows of every client."""
        assert self.evaluation_plan is not None
        return evaluate_clients(self.evaluation_plan, self.rows, params, self.losses)

    def batch(self, batching: Batching, client: Array, drawn: Array, dtype: Any) -> Batch:
        """Return one participant's batch."""
        return self.rows.take(*batching.batch(self.rows, client, drawn, dtype))
