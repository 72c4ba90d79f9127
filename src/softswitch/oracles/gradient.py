"""The paper's clients: batches of rows, and a LocalSolver of E gradient steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Key, UInt32

from softswitch.data.client_data import Rows
from softswitch.data.sampling import Batching, choose_clients, whole, words_to_choose
from softswitch.methods.messages import Decision, LocalLoss, Reports
from softswitch.oracles.base import STATIC, Evaluation, Oracle
from softswitch.oracles.client_batches import map_slices, slice_size, sum_slices
from softswitch.oracles.evaluation import EvaluationPlan, judged, values
from softswitch.oracles.losses import Loss, Losses
from softswitch.problem.parameters import CLIENT_OPTIMUM, WEIGHT, Batch, Params, float_dtype
from softswitch.support.arrays import some, weighted_sum

FOR_FUNCTIONS = 1
"""Folded into a round's key for the functions that take one: what they draw is not what rows are drawn by."""


class RowDraws(NamedTuple):
    """The random choices of one round.

    Attributes:
        clients: I_k, the participants.
        report_rows: the row indices of each participant's value batch; none where a batch is all of its rows.
        update_rows: the row indices of each participant's gradient batch at each local step; likewise.
        keys: each participant's key at each local step, for functions that take one; else None.
    """

    clients: Int[Array, " m"]
    report_rows: Int[Array, "m drawn"]
    update_rows: Int[Array, "e m drawn_too"]
    keys: Key[Array, "m e"] | None

    @property
    def update_rows_of_each(self) -> Int[Array, "m e drawn_too"]:
        """The rows of the gradient batches, with the participants as the first axis."""
        return jnp.swapaxes(self.update_rows, 0, 1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GradientOracle(Oracle):
    """Clients that hold rows and take gradient steps on them.

    Attributes:
        rows: all clients' rows.
        evaluation_plan: how to go through all data; None where that is not needed.
        losses: the problem's objective and constraint.
        constraints: how many constraints a client has.
        participants: m, how many clients take part in a round.
        local_steps: E.
        report_batching: how the batch for f_i and g_i is drawn.
        update_batching: how the batches for gradients are drawn.
        slice_size: how many clients are computed side by side; the rest wait, to bound memory.
        held_out: rows not trained on, to be evaluated beside, and how to go through them; or None.
        by_size: compute clients of similar size together.
        compute_dtype: what reports and gradients are computed in, narrower than the parameters; None: as these are.
        all_rows: how a client takes all of its rows.
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
    all_rows: Batching | None = field(default=None, metadata=STATIC)
    can_repeat_updates: ClassVar[bool] = True
    can_repeat_reports = True

    @property
    def client_count(self) -> int:
        """n."""
        return int(self.rows.counts.shape[0])

    @property
    def has_pooled_constraint(self) -> bool:  # type: ignore[override]
        """Whether the constraint is a function of additive statistics."""
        return self.losses.has_pooled_constraint

    @property
    def has_surrogate(self) -> bool:  # type: ignore[override]
        """Whether the constraint has a stand-in to descend on."""
        return self.losses.has_surrogate

    @property
    def reports_full_data(self) -> bool:  # type: ignore[override]
        """Whether reports are of all rows of all clients."""
        return self.by_size

    @property
    def report_batch_size(self) -> int | None:
        """How many rows a client draws for its report; None: all of them."""
        return None if self.report_batching.draws is None else self.report_batching.width

    @property
    def total_rows(self) -> int | None:
        """All rows of all clients."""
        return int(self.rows.sizes.sum())

    def draw(self, key: Array) -> RowDraws:
        """Draw I_k, then its members' rows, all from one stretch of random words: one generator to compile and run."""
        n, m = self.client_count, self.participants
        for_clients = words_to_choose(n, m)
        words = jax.random.bits(key, (for_clients + self._words_for_rows,), jnp.uint32)
        who, rows = jnp.split(words, (for_clients,))
        return self.draw_for(choose_clients(who, n, m), (rows, self._keys(key)))

    def draw_randomness(self, key: Array) -> tuple[UInt32[Array, " words"], Key[Array, "m e"] | None]:
        """The random words that rows are drawn by, and the keys of functions that take one."""
        return jax.random.bits(key, (self._words_for_rows,), jnp.uint32), self._keys(key)

    def draw_for(self, clients: Int[Array, " m"], randomness: tuple[Array, Array | None]) -> RowDraws:
        """The given participants' rows."""
        words, keys = randomness
        report, update = jnp.split(words, (self.report_batching.words(self.participants, 1),))
        return RowDraws(
            clients,
            self.report_batching.draw(report, self.rows, clients, 1)[0],
            self.update_batching.draw(update, self.rows, clients, self.local_steps),
            keys,
        )

    @property
    def _words_for_rows(self) -> int:
        m = self.participants
        return self.report_batching.words(m, 1) + self.update_batching.words(m, self.local_steps)

    def _keys(self, key: Array) -> Key[Array, "m e"] | None:
        if not self.losses.random:
            return None
        return jax.random.split(jax.random.fold_in(key, FOR_FUNCTIONS), (self.participants, self.local_steps))

    def pool(self, sums: Float[Array, " s"]) -> Float[Array, " c"]:
        """The constraint of the clients' data put together."""
        return self.losses.pool(sums)

    def report(self, params: Params, draws: Any) -> tuple[Reports, None]:
        """f_i(w_k, ξ_i) and g_i(w_k, ξ_i) on a fresh batch of each participant."""
        objective, constraint, statistics = self.reported(params, draws)
        mask = jnp.ones(objective.shape, bool)
        if statistics is None:
            return Reports(objective, constraint, None, mask), None
        sizes = self.rows.sizes[draws.clients].astype(statistics.dtype)
        pooled = self.losses.pool(jnp.tensordot(sizes, statistics, axes=1))
        return Reports(objective, constraint, pooled, mask, sums=sizes[:, None] * statistics), None

    def reported(self, params: Params, draws: Any) -> tuple[Array, Array, Array | None]:
        """Every participant's f_i and g_i, and the statistics of a pooled constraint."""
        dtype = float_dtype(params)
        if self.by_size:
            assert self.evaluation_plan is not None
            objective, constraint = values(self.evaluation_plan, self.rows, params, self.losses)
            return objective.astype(dtype), constraint.astype(dtype), None
        params = self._narrowed(params)

        def one(client: tuple[Array, Array]) -> tuple[Array, Array, Array | None]:
            batch = self._narrowed_rows(self.batch(self.report_batching, *client, dtype))
            return (
                self.losses.objective(params, batch).astype(dtype),
                self.losses.constraints(params, batch).astype(dtype),
                self.losses.statistics(params, batch),
            )

        found: tuple[Array, Array, Array | None] = self.of_each(one, (draws.clients, draws.report_rows))
        return found

    def of_each(self, function: Callable[[Any], Any], everyone: Any) -> Any:
        """``function`` of every participant, stacked."""
        return map_slices(function, everyone, self.slice_size)

    def summed(self, function: Callable[[Any], Any], weights: Float[Array, " m"], everyone: Any) -> Any:
        """The sum of ``function((weights, participants))`` over slices of them, in which it is a weighted sum."""
        return sum_slices(function, (weights, everyone), self.slice_size)

    def direction(
        self, params: Params, draws: Any, kept: None, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Σ_i r_i u_i, by one backward pass where E = 1 and by the local solver otherwise.

        A switching rule's branch is chosen here, outside the client axis: inside it both would be computed.
        """

        def minimise(loss: Loss) -> Params:
            if self.by_size and self.update_batching.draws is None:
                return self.by_sizes(loss, params, decision)

            def in_slice(some: tuple[Any, ...]) -> Params:
                server_weights, (clients, rows, keys, own) = some
                mixed = decision.local_loss.with_own(own)
                if self.local_steps == 1:
                    first = None if keys is None else keys[:, 0]
                    return self.fused(loss, params, clients, rows[:, 0], first, server_weights, mixed)
                return self.local_solver(loss, params, clients, rows, keys, server_weights, mixed, step_size)

            everyone = (draws.clients, draws.update_rows_of_each, draws.keys, decision.local_loss.own)
            total: Params = self.summed(in_slice, decision.weights, everyone)
            return total

        return self._by_branch(minimise, decision, switches)

    def _by_branch(self, minimise: Callable[[Loss], Params], decision: Decision, switches: bool) -> Params:
        """What is minimised in this round. A switching rule's branch is chosen outside the client axis."""
        if not switches:
            return minimise(self._narrow(self.losses.mixed_loss))
        return lax.cond(
            decision.feasible,
            lambda: minimise(self._narrow(self.losses.objective_loss)),
            lambda: minimise(self._narrow(self.losses.constraint_loss)),
        )

    def _narrow(self, loss: Loss) -> Loss:
        """The loss, computed in fewer digits; its gradient has the parameters' own."""
        if self.compute_dtype is None:
            return loss

        def narrow(params: Params, batch: Batch, mix: LocalLoss, key: Any) -> Array:
            value = loss(self._narrowed(params), self._narrowed_rows(batch), mix, key)
            return value.astype(float_dtype(params))

        return narrow

    def _narrowed(self, tree: Any) -> Any:
        if self.compute_dtype is None:
            return tree
        dtype = jnp.dtype(self.compute_dtype)
        return jax.tree.map(lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree)

    def _narrowed_rows(self, batch: Batch) -> Batch:
        """Rows in fewer digits; but their weights stay as they are, so that means over rows are summed in full."""
        if self.compute_dtype is None:
            return batch
        return self._narrowed(batch) | {name: batch[name] for name in (WEIGHT, CLIENT_OPTIMUM) if name in batch}

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
        """E = 1: Σ_i r_i ∇h_i(w) = ∇(Σ_i r_i h_i)(w), one backward pass and O(d) memory."""

        def total(params: Params) -> Array:
            def one(client: Array, rows: Array, key: Any, own: Any) -> Array:
                batch = self.batch(self.update_batching, client, rows, float_dtype(params))
                return loss(params, batch, local_loss.with_own(own), key)

            return jnp.dot(server_weights, jax.vmap(one)(clients, rows, keys, local_loss.own))

        return jax.grad(total)(params)

    def by_sizes(self, loss: Loss, params: Params, decision: Decision) -> Params:
        """E = 1, all clients and all of their rows: those of similar size together, so that few rows are pads."""
        assert self.evaluation_plan is not None
        total = jax.tree.map(jnp.zeros_like, params)
        for clients, width in zip(self.evaluation_plan.groups, self.evaluation_plan.widths, strict=True):

            def in_slice(some: tuple[Array, Array, Any], width: int = width) -> Params:
                def weighted(params: Params) -> Array:
                    def one(client: Array, mix: Any) -> Array:
                        batch = self.rows.take(*whole(self.rows, client, width, float_dtype(params)))
                        return loss(params, batch, decision.local_loss.with_own(mix), None)

                    return jnp.dot(some[1], jax.vmap(one)(some[0], some[2]))

                return jax.grad(weighted)(params)

            everyone = (clients, decision.weights[clients], some(decision.local_loss.own, clients))
            at_once = slice_size(len(clients), 4 * width * self.evaluation_plan.row_bytes)
            total = jax.tree.map(jnp.add, total, sum_slices(in_slice, everyone, at_once))
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
        """Σ_i r_i u_i over some clients, each by its local steps."""

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
        """The paper's LocalSolver at one client: E steps of size γ from w_k, each on a fresh batch.

        u_i = (w_k − w_{k,E})/(γE) is computed as the mean of the E gradients: the same number, without the digits that
        the difference loses when γ is small.
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
        """Every u_i by itself: m gradients side by side, as the first axis of every array."""

        def minimise(loss: Loss) -> Params:
            def one(its: tuple[Any, Any, Any, Any]) -> Params:
                client, rows, keys, own = its
                mixed = decision.local_loss.with_own(own)
                return self.local_direction(loss, params, client, rows, keys, mixed, step_size)

            everyone = (draws.clients, draws.update_rows_of_each, draws.keys, decision.local_loss.own)
            every: Params = self.of_each(one, everyone)
            return every

        return self._by_branch(minimise, decision, switches)

    def with_all_rows(self, draws: Any) -> tuple[GradientOracle, Any]:
        """The same with gradients on all rows of each, and draws that draw none."""
        assert self.all_rows is not None
        at_once = slice_size(self.participants, 4 * self.all_rows.width * self.rows.row_bytes)
        whole = replace(self, update_batching=self.all_rows, slice_size=min(self.slice_size, at_once))
        return whole, draws._replace(update_rows=draws.update_rows[..., :0])

    def count_rows(self, draws: Any) -> Int[Array, ""] | None:
        """Σ_i of the participants' rows, where a batch is all of them; else None."""
        if self.report_batching.draws is not None and self.update_batching.draws is not None:
            return None
        return self.rows.sizes[draws.clients].sum()

    def cost(self, row_count: Any) -> tuple[Any, Any]:
        """m·B_ζ values and m·E·B_g gradients; a batch of all rows counts its rows."""
        values, gradients = (
            row_count if batching.draws is None else self.participants * batching.width
            for batching in (self.report_batching, self.update_batching)
        )
        return values, self.local_steps * gradients

    def evaluate(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]]:
        """f_i and g_i of every client on all of its rows."""
        assert self.evaluation_plan is not None
        return values(self.evaluation_plan, self.rows, params, self.losses)

    def evaluate_held_out(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]] | None:
        """The same on rows not trained on, where there are such."""
        if self.held_out is None:
            return None
        rows, way = self.held_out
        return values(way, rows, params, self.losses)

    def without_evaluation(self) -> GradientOracle:
        """Without a way through all data: a smaller program, shared by data whose clients differ in size only."""
        return replace(self, evaluation_plan=self.evaluation_plan if self.by_size else None, held_out=None)

    def evaluate_params(self, params: Params) -> Evaluation:
        """f_i and g_i on all rows, and a pooled constraint on all rows put together; None for a plain one."""
        assert self.evaluation_plan is not None
        return judged(self.evaluation_plan, self.rows, params, self.losses)

    def batch(self, batching: Batching, client: Array, drawn: Array, dtype: Any) -> Batch:
        """One participant's batch."""
        return self.rows.take(*batching.batch(self.rows, client, drawn, dtype))
