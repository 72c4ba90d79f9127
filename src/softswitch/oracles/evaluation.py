"""f_i and g_i of every client on all of its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from softswitch.data.client_data import ClientData, Rows
from softswitch.data.sampling import whole
from softswitch.oracles.base import Evaluation
from softswitch.oracles.client_batches import map_slices, slice_of_whole_data, slice_size
from softswitch.oracles.losses import Losses
from softswitch.problem.losses import mean_over
from softswitch.problem.parameters import Batch, Params, checked_params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.support import checks
from softswitch.support.row_blocks import by_blocks, bytes_computed

MAX_WIDTHS = 64
"""With functions that ignore row weights each distinct client size is a program of its own: how many are allowed."""
FEW_ROWS = 1 << 14
"""Up to so many rows, pads included, all clients go together: a single program is worth more than the work it saves."""
AtOnce = Callable[[int, int], int]
"""From how many clients there are, and the bytes of each: how many go side by side."""


class ClientSummary(NamedTuple):
    """The worst and the mean client, on all rows of each; those who have no such function are left out.

    Attributes:
        objective: F, max_i f_i.
        constraint: G, max_i g_i, over all constraints.
        mean_objective: the mean of f_i over the clients.
        mean_constraint: the mean of g_i over clients and constraints.
    """

    objective: Float[Array, "*rounds"]
    constraint: Float[Array, "*rounds"]
    mean_objective: Float[Array, "*rounds"]
    mean_constraint: Float[Array, "*rounds"]

    @classmethod
    def nothing(cls) -> ClientSummary:
        """That of a round that did not look: all NaN."""
        return cls(*[jnp.full((), jnp.nan)] * 4)


def overview(objective: Float[Array, " n"], constraint: Float[Array, "n c"]) -> ClientSummary:
    """The worst and the mean of the clients' values."""

    def mean(values: Array) -> Array:
        having = ~jnp.isneginf(values)
        return mean_over(jnp.where(having, values, 0), having.astype(values.dtype))

    return ClientSummary(objective.max(), constraint.max(), mean(objective), mean(constraint.ravel()))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EvaluationPlan:
    """A way through all data: clients of similar size together, in slices.

    Attributes:
        groups: client indices, one array a width.
        order: where in the groups' concatenation each client stands.
        widths: how many rows a batch of each group has; pads weigh 0.
        row_bytes: bytes of one row, over all columns.
    """

    groups: tuple[Array, ...]
    order: Array
    widths: tuple[int, ...] = field(metadata={"static": True})
    row_bytes: int = field(metadata={"static": True})

    def each(
        self,
        function: Callable[[Batch], Any],
        rows: Rows,
        dtype: Any,
        at_once: AtOnce = slice_of_whole_data,
    ) -> Any:
        """A function of every client's whole data, in the clients' order; ``at_once`` says how many side by side.

        Where what it makes of them is too much for memory fewer go side by side, and one that is too large for itself
        goes some of its rows at a time.
        """
        parts = []
        for clients, width in zip(self.groups, self.widths, strict=True):
            many, its_rows = at_once(len(clients), width * self.row_bytes), width
            if many * width > FEW_ROWS:
                computed = bytes_computed(function, rows.batch_shapes(width, dtype))
                many, its_rows = min(many, slice_size(len(clients), computed)), slice_size(width, computed // width)

            def one(client: Array, width: int = width, its_rows: int = its_rows) -> Any:
                return by_blocks(function, rows.take(*whole(rows, client, width, dtype)), its_rows)

            parts.append(map_slices(one, clients, many))
        return jax.tree.map(lambda *leaves: self.in_order(jnp.concatenate(leaves)), *parts)

    def in_order(self, values: Array) -> Array:
        """Values of the clients group by group, in the clients' order."""
        return values[self.order]


def values(
    way: EvaluationPlan, rows: Rows, params: Params, losses: Losses, at_once: AtOnce = slice_size
) -> tuple[Float[Array, " n"], Float[Array, "n c"]]:
    """f_i and g_i of every client. Within a program use this: a compiled function there costs a copy of the data.

    In a program of many rounds the rows are put side by side once for all of them, where slices are large enough.
    """

    def both(batch: Batch) -> tuple[Array, Array]:
        return losses.objective(params, batch), losses.constraints(params, batch)

    found: tuple[Array, Array] = way.each(both, rows, float_dtype(params), at_once)
    return found


compiled_values = jax.jit(partial(values, at_once=slice_of_whole_data), static_argnames="losses")
"""The same, compiled once for a data set's shape, whatever is trained on it and how."""


def evaluate(problem: Problem, clients: ClientData, params: Params) -> tuple[np.ndarray, np.ndarray]:
    """f_i and g_i of every client on all of its rows: one entry a client, and clients × constraints.

    For held-out data as well: make a ``ClientData`` of it.

    Args:
        problem: whose objective and constraint.
        clients: on whose data; all rows of it.
        params: parameters, any tree of floating arrays.
    """
    checks.expect("problem", problem, Problem)
    checks.expect("clients", clients, ClientData)
    params = checked_params("params", params)
    traced = problem.trace(clients.batch_shapes(int(clients.sizes.max()), float_dtype(params)), params)
    way = plan_evaluation(clients, traced.ignore_weight)
    objective, constraint = compiled_values(way, clients.rows, params, Losses.of(problem))
    return np.asarray(objective), np.asarray(constraint)


@partial(jax.jit, static_argnames="losses")
def pooled_value(way: EvaluationPlan, rows: Rows, params: Params, losses: Losses) -> Float[Array, " c"]:
    """A pooled constraint on all clients' data put together, compiled."""
    statistics = way.each(lambda batch: losses.statistics(params, batch), rows, float_dtype(params))
    return losses.pool(jnp.tensordot(rows.sizes.astype(statistics.dtype), statistics, axes=1))


def judged(way: EvaluationPlan, rows: Rows, params: Params, losses: Losses) -> Evaluation:
    """How good parameters are at every client by all of its rows; a pooled constraint also on all rows put together."""
    objective, constraint = compiled_values(way, rows, params, losses)
    pooled = np.asarray(pooled_value(way, rows, params, losses)) if losses.has_pooled_constraint else None
    return Evaluation(np.asarray(objective), np.asarray(constraint), pooled)


Evaluator = Callable[[Params], Evaluation]


def make_evaluator(problem: Problem, clients: ClientData) -> Evaluator:
    """What judges parameters by all rows of the clients."""
    losses, way = Losses.of(problem), plan_evaluation(clients, ignoring_weights(problem, clients))
    return lambda params: judged(way, clients.rows, params, losses)


def ignoring_weights(problem: Problem, clients: ClientData) -> tuple[str, ...]:
    """The functions that do not read the rows' weights."""
    batch = clients.batch_shapes(int(clients.sizes.max()), float_dtype(problem.start))
    return problem.trace(batch).ignore_weight


def plan_evaluation(clients: ClientData, weights_ignored_by: tuple[str, ...]) -> EvaluationPlan:
    """Group the clients by size.

    Functions that read the row weights are given sizes rounded up to powers of two, pads at weight 0: few programs, at
    most twice the rows. Functions that ignore them are given exactly their rows.
    """
    widths = clients.sizes if weights_ignored_by else widths_by_size(clients)
    distinct = np.unique(widths)
    if len(distinct) > MAX_WIDTHS:
        names = " and ".join(weights_ignored_by)
        raise ValueError(
            f"{names} must read batch['weight'], because clients have {len(distinct)} different sizes (more than "
            f"{MAX_WIDTHS}) and are evaluated in padded batches whose pads weigh 0; write means as "
            "jnp.average(loss, weights=batch['weight'])"
        )
    groups = [np.flatnonzero(widths == width) for width in distinct]
    order = np.argsort(np.concatenate(groups), kind="stable")
    return EvaluationPlan(
        groups=tuple(jnp.asarray(group.astype(np.int32)) for group in groups),
        order=jnp.asarray(order.astype(np.int32)),
        widths=tuple(int(width) for width in distinct),
        row_bytes=clients.rows.row_bytes,
    )


def widths_by_size(clients: ClientData) -> np.ndarray:
    """How many rows each client's batch of all its rows has, pads included."""
    sizes = clients.sizes
    if len(np.unique(sizes)) == 1:
        return sizes
    widths = _next_power_of_two(sizes)
    return np.full_like(widths, widths.max()) if len(sizes) * widths.max() <= FEW_ROWS else widths


def _next_power_of_two(sizes: np.ndarray) -> np.ndarray:
    return 2 ** np.ceil(np.log2(sizes)).astype(int)
