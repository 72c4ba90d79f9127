"""GradientOracle: the paper's clients, which draw batches of rows and take E local gradient steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Integer, Key, UInt32

from softswitch.data.client_data import ClientData, Rows
from softswitch.data.sampling import Batching, all_rows, client_bit_count, make_batching, sample_clients
from softswitch.methods.messages import Decision, LocalLoss, Reports
from softswitch.oracles import evaluation
from softswitch.oracles.base import STATIC, Evaluation, Federation, Oracle
from softswitch.oracles.evaluation import WRITE_MEANS, Loss, Losses, client_values, map_slices, slice_size, sum_slices
from softswitch.oracles.options import Compute, Sampling
from softswitch.problem.parameters import Batch, Params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.support import checks
from softswitch.support.activations import estimate_activation_bytes
from softswitch.support.arrays import take_clients, weighted_sum

FUNCTION_STREAM = 1  # integer folded into a round's random key for functions that take a key


class RowDraws(NamedTuple):
    """The random choices of one round. Row indices are empty for all rows, and word locations for sharded clients."""

    clients: Int[Array, " m"]  # indices of the participants
    report_rows: Integer[Array, "m drawn"]  # rows of the reports
    update_rows: Integer[Array, "e m drawn_too"]  # rows of each local step
    keys: Key[Array, "m e"] | None  # random keys of each local step; None if no function takes one


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GradientOracle(Oracle):
    """Oracle of clients that hold rows in memory and take gradient steps on them; see ``make_gradient_oracle``."""

    rows: Rows
    evaluation_plan: Any  # an ``EvaluationPlan``; None if clients are not evaluated on all rows
    losses: Losses = field(metadata=STATIC)
    constraints: int = field(metadata=STATIC)
    participants: int = field(metadata=STATIC)
    local_steps: int = field(metadata=STATIC)
    report_batching: Batching = field(metadata=STATIC)
    update_batching: Batching = field(metadata=STATIC)
    slice_size: int = field(metadata=STATIC)  # number of clients that are computed together
    held_out: tuple[Any, Rows] | None = None  # evaluation plan and rows of held-out data
    by_size: bool = field(default=False, metadata=STATIC)  # whether clients of similar size are computed together
    can_repeat_updates: ClassVar[bool] = True
    can_repeat_reports = True
    has_pooled_constraint = property(attrgetter("losses.has_pooled_constraint"))
    has_surrogate = property(attrgetter("losses.has_surrogate"))
    reports_full_data = property(attrgetter("by_size"))
    report_batch_size = property(lambda self: self.report_batching.draws and self.report_batching.width)
    total_rows = property(lambda self: int(self.rows.sizes.sum()))
    client_count = property(lambda self: int(self.rows.counts.shape[0]))

    def draw(self, key: Array) -> RowDraws:
        """Return the participants of a round and the rows that they draw."""
        n, m = self.client_count, self.participants
        client_words = client_bit_count(n, m)
        words = jax.random.bits(key, (client_words + self._row_words,), jnp.uint32)
        for_clients, for_rows = jnp.split(words, (client_words,))
        return self.draw_for(sample_clients(for_clients, n, m), (for_rows, self._keys(key)))

    def draw_randomness(self, key: Array) -> tuple[UInt32[Array, " words"], Key[Array, "m e"] | None]:
        """Return the random words for rows, and the keys for functions that take one (or None)."""
        return jax.random.bits(key, (self._row_words,), jnp.uint32), self._keys(key)

    def draw_for(self, clients: Int[Array, " m"], randomness: tuple[Array, Array | None]) -> RowDraws:
        """Return the draws of given participants from the result of ``draw_randomness``."""
        words, keys = randomness
        report, update = jnp.split(words, (self.report_batching.bit_count(self.participants, 1),))
        report_rows = self.report_batching.draw(report, self.rows, clients, 1)[0]
        update_rows = self.update_batching.draw(update, self.rows, clients, self.local_steps)
        return RowDraws(clients, report_rows, update_rows, keys)

    @property
    def _row_words(self) -> int:
        m = self.participants
        return self.report_batching.bit_count(m, 1) + self.update_batching.bit_count(m, self.local_steps)

    def _keys(self, key: Array) -> Key[Array, "m e"] | None:
        if not self.losses.is_random:
            return None
        return jax.random.split(jax.random.fold_in(key, FUNCTION_STREAM), (self.participants, self.local_steps))

    def pool(self, sums: Float[Array, " s"]) -> Float[Array, " c"]:
        """Return the pooled constraints from summed statistics."""
        return self.losses.pool(sums)

    def report(self, params: Params, draws: Any) -> tuple[Reports, None]:
        """Return f_i and g_i at ``params`` on a fresh batch of each participant; nothing is kept (None)."""
        objective, constraint, statistics = self.report_values(params, draws)
        mask = jnp.ones(objective.shape, bool)
        if statistics is None:
            return Reports(objective, constraint, None, mask), None
        sizes = self.rows.sizes[draws.clients].astype(statistics.dtype)
        pooled = self.losses.pool(jnp.tensordot(sizes, statistics, axes=1))
        return Reports(objective, constraint, pooled, mask, sums=sizes[:, None] * statistics), None

    def report_values(self, params: Params, draws: Any) -> tuple[Array, Array, Array | None]:
        """Return f_i, g_i and the statistics of a pooled constraint (or None) of every participant."""
        dtype = float_dtype(params)
        if self.by_size:
            objective, constraint = self.evaluate(params)
            return objective.astype(dtype), constraint.astype(dtype), None

        def one(client: tuple[Array, Array]) -> tuple[Array, Array, Array | None]:
            batch = self.batch(self.report_batching, *client, dtype)
            values = self.losses.objective(params, batch), self.losses.constraints(params, batch)
            return values[0].astype(dtype), values[1].astype(dtype), self.losses.statistics(params, batch)

        return self.map_participants(one, (draws.clients, draws.report_rows))

    def map_participants(self, function: Callable[[Any], Any], participants: Any) -> Any:
        """Return the stacked results of ``function`` for every participant."""
        return map_slices(function, participants, self.slice_size)

    def sum_participants(self, function: Callable[[Any], Any], weights: Float[Array, " m"], participants: Any) -> Any:
        """Return the sum of ``function((weights, participants))``, a weighted sum, over slices of participants."""
        return sum_slices(function, (weights, participants), self.slice_size)

    def direction(
        self, params: Params, draws: Any, kept: None, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Return Σ_i r_i u_i: by one backward pass if E = 1, otherwise by local steps of each client."""
        return self.update(params, draws, decision, step_size, switches, stack=False)

    def directions(
        self, params: Params, draws: Any, kept: None, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Return every u_i, stacked along the first axis."""
        return self.update(params, draws, decision, step_size, switches, stack=True)

    def update(
        self, params: Params, draws: Any, decision: Decision, step_size: Any, switches: bool, stack: bool
    ) -> Params:
        """Return the directions u_i: stacked if ``stack``, else as the weighted sum Σ_i r_i u_i."""
        mix = decision.local_loss

        def minimise(loss: Loss) -> Params:
            local = partial(self.local_direction, loss, params, mix, step_size)
            participants = (draws.clients, jnp.swapaxes(draws.update_rows, 0, 1), draws.keys, mix.own)
            if stack:
                return self.map_participants(local, participants)
            if self.by_size and self.update_batching.draws is None:
                return self.fused_by_size(loss, params, decision)

            def first_loss(params: Params, participant: tuple[Any, ...]) -> Array:
                client, rows, keys, own = participant
                batch = self.batch(self.update_batching, client, rows[0], float_dtype(params))
                return loss(params, batch, mix.with_own(own), None if keys is None else keys[0])

            def in_slice(part: tuple[Any, Any]) -> Params:
                weights, participants = part
                if self.local_steps == 1:
                    return _fused_gradient(first_loss, params, weights, participants)
                return weighted_sum(jax.vmap(local)(participants), weights)

            return self.sum_participants(in_slice, decision.weights, participants)

        if not switches:
            return minimise(self.losses.mixed_loss)
        # Outside the client axis: inside it, both branches of a switching method would be computed.
        objective, constraint = self.losses.objective_loss, self.losses.constraint_loss
        return lax.cond(decision.feasible, lambda: minimise(objective), lambda: minimise(constraint))

    def fused_by_size(self, loss: Loss, params: Params, decision: Decision) -> Params:
        """Return Σ_i r_i ∇h_i of the local losses h_i for E = 1 and all rows of all clients, grouped by size."""
        plan, total = self.evaluation_plan, jax.tree.map(jnp.zeros_like, params)
        for clients, width in zip(plan.groups, plan.widths, strict=True):

            def full_loss(params: Params, participant: tuple[Array, Any], width: int = width) -> Array:
                client, own = participant
                batch = self.rows.take(*all_rows(self.rows, client, width, float_dtype(params)))
                return loss(params, batch, decision.local_loss.with_own(own), None)

            def in_slice(part: tuple[Any, Any], full_loss: Any = full_loss) -> Params:
                return _fused_gradient(full_loss, params, *part)

            group = decision.weights[clients], (clients, take_clients(decision.local_loss.own, clients))
            part = sum_slices(in_slice, group, slice_size(len(clients), 4 * width * self.rows.row_bytes))
            total = jax.tree.map(jnp.add, total, part)
        return total

    def local_direction(self, loss: Loss, params: Params, mix: LocalLoss, step_size: Any, participant: Any) -> Params:
        """Return u_i = (w_k − w_{k,E})/(γE) of one client, as the mean of E gradients: exact even for small γ."""
        client, drawn, keys, own = participant
        local_loss = mix.with_own(own)

        def step(total: Params, drawn: tuple[Array, Any]) -> tuple[Params, None]:
            rows, key = drawn
            here = jax.tree.map(lambda w, s: w - jnp.asarray(step_size, w.dtype) * s, params, total)
            batch = self.batch(self.update_batching, client, rows, float_dtype(params))
            gradient = jax.grad(loss)(here, batch, local_loss, key)
            if local_loss.linear is not None:
                gradient = jax.tree.map(jnp.add, gradient, local_loss.linear)
            if (pull := local_loss.pull) is not None:
                gradient = jax.tree.map(lambda slope, w, at: slope + pull * (at - w), gradient, params, here)
            return jax.tree.map(jnp.add, total, gradient), None

        total, _ = lax.scan(step, jax.tree.map(jnp.zeros_like, params), (drawn, keys))
        return jax.tree.map(lambda leaf: leaf / self.local_steps, total)

    def count_rows(self, draws: Any) -> Int[Array, ""] | None:
        """Return the number of the participants' rows if a batch has all of them, else None."""
        both_draw = self.report_batching.draws is not None and self.update_batching.draws is not None
        return None if both_draw else self.rows.sizes[draws.clients].sum()

    def cost(self, row_count: Any) -> tuple[Any, Any]:
        """Return the rows of a round for values, m·B_ζ, and for gradients, m·E·B_g; all rows are ``row_count``."""
        both = (self.report_batching, self.update_batching)
        values, gradients = (row_count if how.draws is None else self.participants * how.width for how in both)
        return values, self.local_steps * gradients

    def evaluate(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]]:
        """Return f_i and g_i of every client on all of its rows."""
        return client_values(self.evaluation_plan, self.rows, params, self.losses)[:2]

    def evaluate_held_out(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]] | None:
        """Return f_i and g_i on held-out rows, or None if there are none."""
        return None if self.held_out is None else client_values(*self.held_out, params, self.losses)[:2]

    def without_evaluation(self) -> GradientOracle:
        """Return the clients without evaluation plan and held-out rows, which are then not part of the program."""
        return replace(self, evaluation_plan=self.evaluation_plan if self.by_size else None, held_out=None)

    def evaluate_params(self, params: Params) -> Evaluation:
        """Return f_i, g_i and pooled constraints on all rows of every client, as NumPy arrays."""
        return evaluation.evaluate_clients(self.evaluation_plan, self.rows, params, self.losses)

    def batch(self, batching: Batching, client: Array, drawn: Array, dtype: Any) -> Batch:
        """Return the batch of one client from its row indices ``drawn``; the row weights have ``dtype``."""
        return self.rows.take(*batching.batch(self.rows, client, drawn, dtype))


def _fused_gradient(loss: Callable[[Params, Any], Array], params: Params, weights: Array, participants: Any) -> Params:
    """Return Σ_i r_i ∇h_i(w) = ∇(Σ_i r_i h_i)(w) by one backward pass, with memory for one gradient."""
    return jax.grad(lambda w: jnp.dot(weights, jax.vmap(lambda one: loss(w, one))(participants)))(params)


def make_gradient_oracle(
    problem: Problem, clients: ClientData, sampling: Sampling, compute: Compute | None = None, held_out: Any = None
) -> GradientOracle:
    """Return the oracle of a problem and its clients; raise if they do not match, or a function is invalid."""
    compute = compute or Compute()
    checks.check_instance("problem", problem, Problem)
    checks.check_instance("clients", clients, ClientData)
    dtype, losses = float_dtype(problem.start), Losses.of(problem)
    report, update = _make_batchings(sampling, clients, sampling.replace)
    traced = problem.trace(clients.rows.batch_shapes(report.width, dtype))
    ignoring = traced.ignore_weight
    if ignoring and sampling.replace is None and not (report.equal and update.equal):
        report, update = _make_batchings(sampling, clients, True)  # with replacement, all drawn rows weigh the same
    if ignoring and not (report.equal and update.equal):
        reason = "clients have different sizes and batch_size=None pads the smaller ones with rows of weight 0"
        if len(clients.strata) > 1:
            reason = "strata are drawn in other proportions than the client's own"
        raise ValueError(f"{' and '.join(ignoring)} must read batch['weight'], because {reason}; {WRITE_MEANS}")
    participants, together = sampling.participants(len(clients)), compute.client_batch_size
    if together is None:
        # Memory of a client: its batch; three more times that, or a network's activations if they are larger; and for
        # E > 1 its iterate, gradient and their sum.
        iterate = sum(leaf.nbytes for leaf in jax.tree.leaves(problem.start)) if sampling.local_steps > 1 else 0
        width = max(report.width, update.width)
        activations = estimate_activation_bytes(
            lambda batch: losses.objective(problem.start, batch) + losses.constraints(problem.start, batch),
            clients.rows.batch_shapes(width, dtype),
        )
        batch = width * clients.rows.row_bytes
        together = slice_size(participants, batch + max(3 * batch, activations) + 3 * iterate)
    if held_out is not None:
        check_columns(held_out, clients)
    return GradientOracle(
        rows=clients.rows,
        evaluation_plan=evaluation.plan_evaluation(clients, ignoring),
        losses=losses,
        constraints=traced.constraints,
        participants=participants,
        local_steps=sampling.local_steps,
        report_batching=report,
        update_batching=update,
        slice_size=together,
        held_out=None if held_out is None else (evaluation.plan_evaluation(held_out, ignoring), held_out.rows),
        by_size=compute.group_by_size and not (losses.is_random or losses.has_pooled_constraint or ignoring),
    )


def make_federation(
    problem: Problem, clients: ClientData, sampling: Sampling | None = None, compute: Compute | None = None
) -> Federation:
    """Return the federation that ``solve`` makes of a problem and its clients, for functions that take one.

    Args:
        problem: Objective, constraint, start and domain.
        clients: The clients' rows.
        sampling: Sampling of clients and rows. Default: ``Sampling()``, all clients and all rows.
        compute: Number of clients in parallel and grouping by size; other options are ignored. Default: ``Compute()``.
    """
    oracle = make_gradient_oracle(problem, clients, sampling or Sampling(), compute)
    return Federation(oracle, problem.start, clients.names, problem.domain)


def _make_batchings(sampling: Sampling, clients: ClientData, replace: bool | None) -> tuple[Batching, Batching]:
    size, report_size = sampling.batch_size, sampling.value_batch_size
    if size == "auto" or report_size == "auto":
        raise ValueError("batch_size and value_batch_size must be numbers or None here, but one is 'auto'")
    update = make_batching(size, replace, clients.stratum_sizes)
    return update if report_size == "same" else make_batching(report_size, replace, clients.stratum_sizes), update


def check_columns(held_out: ClientData, clients: ClientData) -> None:
    """Raise unless the held-out data is a ``ClientData`` whose columns have the shapes and dtypes of the clients'."""
    checks.check_instance("held_out", held_out, ClientData)
    both = (data.rows.columns.items() for data in (held_out, clients))
    given, expected = ({key: (column.shape[1:], column.dtype.name) for key, column in columns} for columns in both)
    if given != expected:
        raise ValueError(f"held_out must have the clients' columns {expected}, but has {given}")
