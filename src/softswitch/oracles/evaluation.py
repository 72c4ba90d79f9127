"""The functions of a problem as clients compute them, and evaluations of all clients on all of their rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from softswitch.data.client_data import ClientData, Rows
from softswitch.data.sampling import all_rows
from softswitch.methods.messages import LocalLoss
from softswitch.oracles.base import STATIC, Evaluation
from softswitch.problem.losses import mean_over
from softswitch.problem.parameters import Batch, Params, call_with_key, float_dtype, takes_key
from softswitch.problem.problem import PooledConstraint, Problem
from softswitch.support.activations import estimate_activation_bytes
from softswitch.support.function_equality import ComparableFunction

SLICE_BYTES = 256 * 2**20  # memory for batches, activations and local iterates of clients that are computed together
SLICE_SHARE = 8  # divisor of an accelerator's memory; the result replaces ``SLICE_BYTES`` if it is larger
CACHE_BYTES = 8 * 2**20  # memory for evaluations of all rows on a CPU: data in its cache is not read twice
MAX_WIDTHS = 64  # maximum number of client sizes for functions that ignore row weights; each is compiled separately
PADDED_WIDTHS = 8  # maximum number of widths of padded batches
WIDTH_CANDIDATES = 48  # number of client sizes that are considered as widths
FEW_ROWS = 1 << 14  # a further width must save half as many padded rows: fewer widths compile faster
SliceSize = Callable[[int, int], int]  # (number of clients, bytes of each) -> number that are computed together
WRITE_MEANS = "write means as jnp.average(loss, weights=batch['weight'])"  # advice in errors
Evaluator = Callable[[Params], Evaluation]
Loss = Callable[[Params, Batch, LocalLoss, Any], Array]  # (params, batch, coefficients, key or None) -> scalar


@dataclass(frozen=True)
class Losses:
    """Objective, constraint and surrogate of a problem, hashable: equal functions compare equal and compile once."""

    objective_function: Callable[..., Any] = field(compare=False)
    constraint_function: Callable[..., Any] = field(compare=False)
    surrogate_function: Callable[..., Any] | None = field(default=None, compare=False)
    comparable: tuple[ComparableFunction, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "comparable", tuple(map(ComparableFunction, self._functions)))

    @property
    def _functions(self) -> tuple[Any, ...]:
        return self.objective_function, self.constraint_function, self.surrogate_function

    @classmethod
    def of(cls, problem: Problem) -> Losses:
        """Return the functions of a problem."""
        return cls(problem.objective, problem.constraint, problem.constraint_surrogate)

    @property
    def is_random(self) -> bool:
        """Whether the objective, the constraint or the surrogate takes a random key."""
        return any(map(takes_key, filter(None, self._functions)))

    @property
    def has_pooled_constraint(self) -> bool:
        """Whether the constraint is a function of additive statistics."""
        return isinstance(self.constraint_function, PooledConstraint)

    @property
    def has_surrogate(self) -> bool:
        """Whether a differentiable surrogate replaces the constraint in gradients."""
        return self.surrogate_function is not None

    def objective(self, params: Params, batch: Batch, key: Any = None) -> Float[Array, ""]:
        """Return the objective f on a batch."""
        return call_with_key(self.objective_function, params, batch, key)

    def constraints(self, params: Params, batch: Batch, key: Any = None) -> Float[Array, " c"]:
        """Return the constraints g on a batch as a vector."""
        return jnp.atleast_1d(call_with_key(self.constraint_function, params, batch, key))

    def differentiable_constraints(self, params: Params, batch: Batch, key: Any = None) -> Float[Array, " c"]:
        """Return the surrogate of g on a batch if there is one, else g, as a vector."""
        return jnp.atleast_1d(call_with_key(self.surrogate_function or self.constraint_function, params, batch, key))

    def values(self, params: Params, batch: Batch) -> Float[Array, " functions"]:
        """Return f followed by all g on a batch, as one vector."""
        return jnp.concatenate([self.objective(params, batch)[None], self.constraints(params, batch)])

    def statistics(self, params: Params, batch: Batch) -> Array | None:
        """Return the additive statistics of a pooled constraint on a batch; None for a plain one."""
        if not isinstance(self.constraint_function, PooledConstraint):
            return None
        return call_with_key(self.constraint_function.statistics, params, batch, None)

    def pool(self, sums: Float[Array, " s"]) -> Float[Array, " c"]:
        """Return the pooled constraints from the sum of the clients' statistics, each times its number of rows."""
        assert isinstance(self.constraint_function, PooledConstraint)
        return jnp.atleast_1d(self.constraint_function.value(sums))

    def objective_loss(self, params: Params, batch: Batch, mix: LocalLoss, key: Any) -> Array:
        """Return f_i, the local loss of a switching method in feasible rounds; ``mix`` is not used."""
        return self.objective(params, batch, key)

    def constraint_loss(self, params: Params, batch: Batch, mix: LocalLoss, key: Any) -> Array:
        """Return <b_i, g_i>, or <b_i, s_i> with a surrogate s_i: a switching method's loss in infeasible rounds."""
        return jnp.dot(mix.constraint, self.differentiable_constraints(params, batch, key))

    def mixed_loss(self, params: Params, batch: Batch, mix: LocalLoss, key: Any) -> Array:
        """Return a·f + <b, g> + c·Σ max(0, g − ε) of ``mix``; a surrogate s gives a·f + <b, s> + c·Σ s over g > ε."""
        objective = mix.objective * self.objective(params, batch, key)
        constraints = self.differentiable_constraints(params, batch, key)
        if self.has_surrogate:
            excess = jnp.where(self.constraints(params, batch) > mix.tolerance, constraints, 0).sum()
        else:
            excess = jnp.maximum(constraints - mix.tolerance, 0).sum()
        return objective + jnp.dot(mix.constraint, constraints) + mix.penalty * excess


def slice_size(clients: int, bytes_per_client: int, cpu_limit: int | None = None) -> int:
    """Return the number of clients to compute together, within the memory limit of the backend; at least 1."""
    if jax.default_backend() == "cpu":
        limit = min(SLICE_BYTES, cpu_limit or SLICE_BYTES)
    else:
        stats = jax.local_devices()[0].memory_stats() or {}
        limit = max(SLICE_BYTES, stats.get("bytes_limit", 0) // SLICE_SHARE)
    return max(1, min(clients, limit // max(1, bytes_per_client)))


full_data_slice_size = partial(slice_size, cpu_limit=CACHE_BYTES)  # for an evaluation of all rows


def map_slices(function: Callable[[Any], Any], clients: Any, size: int) -> Any:
    """Return the stacked results of ``function`` for every client (the first axis), with ``size`` clients together."""
    if size >= jax.tree.leaves(clients)[0].shape[0]:
        return jax.vmap(function)(clients)
    if size == 1:
        return lax.map(function, clients)  # without a client axis, each client runs only its own loops and branches
    return lax.map(function, clients, batch_size=size)


def sum_slices(function: Callable[[Any], Any], clients: Any, size: int) -> Any:
    """Return the sum of ``function(part)`` over parts of ``size`` clients; ``function`` sums over its part."""
    count = jax.tree.leaves(clients)[0].shape[0]
    if size >= count:
        return function(clients)
    function = jax.jit(function)  # traced once for all whole slices
    whole, rest = divmod(count, size)
    stacked = jax.tree.map(lambda x: x[: whole * size].reshape(whole, size, *x.shape[1:]), clients)

    def add(total: Any, part: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, function(part)), None

    first = function(jax.tree.map(lambda x: x[0], stacked))
    total, _ = lax.scan(add, first, jax.tree.map(lambda x: x[1:], stacked))
    if rest:
        total, _ = add(total, jax.tree.map(lambda x: x[whole * size :], clients))
    return total


class ClientSummary(NamedTuple):
    """The largest and the mean value over clients; one entry per round if there are several."""

    objective: Float[Array, "*rounds"]  # F = max_i f_i
    constraint: Float[Array, "*rounds"]  # G = max_i g_i over all constraints
    mean_objective: Float[Array, "*rounds"]  # over clients that have an objective
    mean_constraint: Float[Array, "*rounds"]  # over clients and constraints, without missing ones

    @classmethod
    def missing(cls, dtype: Any = None) -> ClientSummary:
        """Return the summary of a round without an evaluation: NaN everywhere."""
        value: Any = np.full((), np.nan, jnp.result_type(float) if dtype is None else dtype)
        return cls(*[value] * 4)


def summarize_clients(objective: Float[Array, " n"], constraint: Float[Array, "n c"]) -> ClientSummary:
    """Return the largest and the mean of the clients' values; −∞ (missing) is excluded from means."""

    def mean(values: Array) -> Array:
        defined = ~jnp.isneginf(values)
        return mean_over(jnp.where(defined, values, 0), defined.astype(values.dtype))

    return ClientSummary(objective.max(), constraint.max(), mean(objective), mean(constraint.ravel()))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EvaluationPlan:
    """Groups of clients of similar size, so that batches of all rows need little padding."""

    groups: tuple[Array, ...]  # client indices, one array for each width; index n is a dummy client
    widths: tuple[int, ...] = field(metadata=STATIC)  # rows of a batch in each group; padding has weight 0
    client_count: int = field(metadata=STATIC)  # number of clients n

    def map_clients(self, function: Callable[[Batch], Any], rows: Rows, dtype: Any, together: SliceSize) -> Any:
        """Return the stacked results of a function of all rows of each client, 0 for clients in no group.

        Row weights have ``dtype``.
        """
        parts = []
        for clients, width in zip(self.groups, self.widths, strict=True):
            count = together(len(clients), width * rows.row_bytes)
            if count * width > FEW_ROWS:
                computed = estimate_activation_bytes(function, rows.batch_shapes(width, dtype))
                count = min(count, slice_size(len(clients), computed))

            def one(client: Array, width: int = width) -> Any:
                return function(rows.take(*all_rows(rows, client, width, dtype)))

            parts.append(map_slices(one, clients, count))
        clients = jnp.concatenate(self.groups)

        def in_order(*leaves: Array) -> Array:
            values = jnp.concatenate(leaves)
            result = jnp.zeros((self.client_count, *values.shape[1:]), values.dtype)
            return result.at[clients].set(values, mode="drop")

        return jax.tree.map(in_order, *parts)


def client_values(
    plan: EvaluationPlan, rows: Rows, params: Params, losses: Losses, together: SliceSize = slice_size
) -> tuple[Array, Array, Any]:
    """Return f_i, g_i and the statistics of a pooled constraint (or None) of every client, on all of its rows.

    For use inside a compiled program.
    """

    def evaluate(batch: Batch) -> tuple[Array, Array, Any]:
        return losses.objective(params, batch), losses.constraints(params, batch), losses.statistics(params, batch)

    return plan.map_clients(evaluate, rows, float_dtype(params), together)


@partial(jax.jit, static_argnames="losses")
def compiled_values(plan: EvaluationPlan, rows: Rows, params: Params, losses: Losses) -> tuple[Array, Array, Any]:
    """Return the result of ``client_values`` by a compiled program."""
    return client_values(plan, rows, params, losses, full_data_slice_size)


@partial(jax.jit, static_argnames="losses")
def pool_statistics(sizes: Array, statistics: Array, losses: Losses) -> Float[Array, " c"]:
    """Return the pooled constraints on the data of all clients together."""
    return losses.pool(jnp.tensordot(sizes.astype(statistics.dtype), statistics, axes=1))


def to_evaluation(losses: Losses, sizes: Array, objective: Any, constraint: Any, statistics: Any) -> Evaluation:
    """Return f_i, g_i and, from the statistics of all clients (or None), pooled constraints as NumPy arrays."""
    pooled = None if statistics is None else np.asarray(pool_statistics(sizes, jnp.asarray(statistics), losses))
    return Evaluation(np.asarray(objective), np.asarray(constraint), pooled)


def evaluate_clients(plan: EvaluationPlan, rows: Rows, params: Params, losses: Losses) -> Evaluation:
    """Return f_i, g_i and pooled constraints on all rows of every client, as NumPy arrays."""
    return to_evaluation(losses, rows.sizes, *compiled_values(plan, rows, params, losses))


def make_evaluator(problem: Problem, clients: ClientData, params: Params | None = None) -> Evaluator:
    """Return the function ``params -> Evaluation`` on all rows of the clients; ``params`` are for their shapes."""
    losses, plan = Losses.of(problem), plan_evaluation(clients, functions_ignoring_weights(problem, clients, params))
    return lambda params: evaluate_clients(plan, clients.rows, params, losses)


def functions_ignoring_weights(problem: Problem, clients: ClientData, params: Params | None = None) -> tuple[str, ...]:
    """Return the names of the problem's functions that do not read the row weights, such as "objective"."""
    params = problem.start if params is None else params
    return problem.trace(clients.rows.batch_shapes(int(clients.sizes.max()), float_dtype(params)), params).ignore_weight


def plan_evaluation(clients: ClientData, ignoring_weights: tuple[str, ...]) -> EvaluationPlan:
    """Return the clients grouped by size, or by few widths with padding; raise ValueError for too many sizes."""
    widths = clients.sizes if ignoring_weights else padded_widths(clients)
    distinct = np.unique(widths)
    if len(distinct) > MAX_WIDTHS:
        sizes = f"clients have {len(distinct)} different sizes (more than {MAX_WIDTHS})"
        reason = f"{sizes} and are evaluated in padded batches whose padding has weight 0"
        raise ValueError(f"{' and '.join(ignoring_weights)} must read batch['weight'], because {reason}; {WRITE_MEANS}")
    groups = [np.flatnonzero(widths == width).astype(np.int32) for width in distinct]
    groups_on_device = tuple(jnp.asarray(group) for group in groups)
    return EvaluationPlan(groups_on_device, tuple(map(int, distinct)), len(clients))


def padded_widths(clients: ClientData) -> np.ndarray:
    """Return the number of rows of each client's batch of all rows with padding: one of few widths."""
    sizes = clients.sizes
    widths = few_widths(sizes, max(FEW_ROWS // 2, int(sizes.sum()) // 16), PADDED_WIDTHS)
    return widths[np.searchsorted(widths, sizes)]


def few_widths(sizes: np.ndarray, worth: int, most: int) -> np.ndarray:
    """Return at most ``most`` widths with few padded rows; another width must save ``worth`` rows."""
    ordered = np.sort(sizes)
    places = np.unique(np.linspace(0, len(ordered) - 1, WIDTH_CANDIDATES).round().astype(int))
    candidates, filled = ordered[places], places + 1
    # cost[j]: rows with padding if the clients up to candidate j have widths up to that candidate's
    cost, widths = filled * candidates, [[width] for width in candidates]
    for _ in range(most - 1):
        options = cost[:, None] + np.maximum(filled[None] - filled[:, None], 0) * candidates[None]
        best = options.argmin(axis=0)
        if cost[-1] - options[best[-1], -1] < worth:
            break
        cost, widths = options.min(axis=0), [[*widths[i], candidates[j]] for j, i in enumerate(best)]
    return np.unique(widths[-1])
