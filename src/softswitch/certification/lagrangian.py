"""The Lagrangian Σ p_i f_i + Σ μ_ic (g_ic − ε) on all of the clients' rows.

Rows are processed in slices with rematerialisation, so memory stays that of one slice. With many rows, clients of
weight 0 are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from softswitch.data.client_data import ClientData, Rows
from softswitch.data.sampling import all_rows
from softswitch.oracles.evaluation import (
    FEW_ROWS,
    Losses,
    compiled_values,
    full_data_slice_size,
    map_slices,
    plan_evaluation,
    pooled_value,
)
from softswitch.problem.domains import Ball
from softswitch.problem.parameters import Params, float_dtype
from softswitch.problem.problem import Problem

BLOCK_CLIENTS = 16  # clients per call if clients of weight 0 are skipped
SMALL_FRACTION = 16  # clients with at most 1/16 of the largest client's rows are padded to that width
MIN_SMALL_RATIO = 0.1  # smallest ratio of small to large clients at which two widths are used
HESSIAN_COLUMNS = 8  # computed simultaneously


class PointValues(NamedTuple):
    """f_i and g_ic − ε at a point."""

    objective: np.ndarray
    constraint: np.ndarray

    @property
    def worst(self) -> float:
        """F."""
        return float(self.objective.max())

    @property
    def excess(self) -> float:
        """G − ε."""
        return float(self.constraint.max())


class Weights(NamedTuple):
    """p, one entry per client; μ, of the constraints' shape; and the multiplier of (‖w‖² − radius²)/2 for a ball."""

    objective: np.ndarray
    constraint: np.ndarray
    ball: float = 0.0


class WeightedSum(NamedTuple):
    """A weighted sum of functions at a point; ``size`` is the sum of the terms' absolute values."""

    value: float
    gradient: np.ndarray
    size: float


class RowBudgetExceeded(Exception):  # noqa: N818
    """The evaluation would exceed the row budget."""


class _Part(NamedTuple):
    """Clients of one width with their weights; clients that fill up the block have weight 0."""

    clients: Any
    objective: Any
    constraint: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Block:
    """Clients by width, the multipliers of a pooled constraint, and each part's width and clients per slice."""

    parts: tuple[_Part, ...]
    pooled: Any
    slices: tuple[tuple[int, int], ...] = field(metadata={"static": True})

    @property
    def weights(self) -> list[Any]:
        """The weights, in the order of the values of ``_total``."""
        if self.pooled is None:
            return [weight for part in self.parts for weight in (part.objective, part.constraint)]
        return [*(part.objective for part in self.parts), self.pooled]


class Lagrangian:
    """Objectives, constraints and their weighted sums, as functions of a flat float64 vector of d = ``size`` entries.

    ``shape`` is clients × constraints, or 1 × constraints for a pooled constraint; ``radius`` that of a ball as the
    domain; ``rounding`` the relative rounding error allowed for a mean over a client's rows; and ``rows`` the number of
    rows evaluated so far, at most ``row_budget``.
    """

    def __init__(
        self, problem: Problem, clients: ClientData, params: Params, tolerance: float, *, pooled: bool, row_budget: int
    ) -> None:
        flat, self._rebuild = ravel_pytree(params)
        dtype = float_dtype(params)
        traced = problem.trace(clients.rows.batch_shapes(int(clients.sizes.max()), dtype), params)
        self._clients, self._losses, self._pooled = clients, Losses.of(problem), pooled
        self._plan = plan_evaluation(clients, traced.ignore_weight)
        self._flat_dtype = flat.dtype
        if traced.ignore_weight:
            self._groups = list(zip(map(np.asarray, self._plan.groups), self._plan.widths, strict=True))
        else:
            self._groups = _few_widths(clients.sizes)
        self._few = sum(len(group) * width for group, width in self._groups) <= FEW_ROWS
        self.tolerance, self.row_budget, self.rows = tolerance, row_budget, 0
        self.size = int(flat.size)
        self.eps = float(jnp.finfo(dtype).eps)
        self.rounding = self.eps * (4 + float(np.sqrt(clients.sizes.max())) / 4)
        self.domain = problem.domain
        self.radius = problem.domain.radius if isinstance(problem.domain, Ball) else None
        self.shape = (1 if pooled else len(clients), traced.constraints)

    def values(self, point: np.ndarray) -> PointValues:
        """Return f_i and g_ic − ε; a pooled constraint has one row."""
        self._spend(int(self._clients.sizes.sum()))
        params = self._params(point)
        objective, constraint = compiled_values(self._plan, self._clients.rows, params, self._losses)
        if self._pooled:
            constraint = pooled_value(self._plan, self._clients.rows, params, self._losses)[None]
        return PointValues(np.asarray(objective, float), np.asarray(constraint, float) - self.tolerance)

    def weighted_sum(self, point: np.ndarray, weights: Weights) -> WeightedSum:
        """Return the weighted sum and its gradient; clients are summed in float64."""
        params, rows = self._params(point), self._clients.rows
        total_gradient, terms = weights.ball * point, []
        for block in self._blocks(weights):
            gradient, values = _gradient(params, block, rows, self._losses)
            total_gradient = total_gradient + np.asarray(ravel_pytree(gradient)[0], float)
            for weight, value in zip(block.weights, values, strict=True):
                is_used = np.asarray(weight, float) > 0  # a value of weight 0 may be −∞
                terms.append(np.asarray(weight, float)[is_used] * np.asarray(value, float)[is_used])
        terms += [-self.tolerance * weights.constraint.ravel(), np.array([weights.ball * self.ball_excess(point)])]
        summands = np.concatenate(terms)
        return WeightedSum(float(summands.sum()), total_gradient, float(np.abs(summands).sum()))

    def ball_excess(self, point: np.ndarray) -> float:
        """Return (‖w‖² − radius²)/2, at most 0 in the ball; 0 without a ball."""
        return 0.0 if self.radius is None else (float(point @ point) - self.radius**2) / 2

    def hessian(self, point: np.ndarray, weights: Weights) -> np.ndarray:
        """Return the Hessian of the weighted sum."""
        params, rows = self._params(point), self._clients.rows
        matrix = weights.ball * np.eye(self.size)
        for block in self._blocks(weights, times=self.size):
            matrix += np.asarray(_hessian(params, block, rows, self._losses), float)
        return (matrix + matrix.T) / 2

    def gradients(self, point: np.ndarray, chosen: Weights) -> np.ndarray:
        """Return the gradients of the chosen objectives, then of the chosen constraints, one row each."""
        clients = chosen.objective if self._pooled else chosen.objective | chosen.constraint.any(axis=1)
        params, rows = self._params(point), self._clients.rows
        order, jacobians = [], []
        for block in self._blocks(Weights(clients.astype(float), np.zeros(self.shape)), by_client=True):
            order += [part.clients for part in block.parts]
            jacobians += [np.asarray(lines, float) for lines in _jacobians(params, block, rows, self._losses)]
        place, lines = np.zeros(len(clients), int), np.concatenate(jacobians)
        place[np.concatenate(order)] = np.arange(len(lines))
        objectives = lines[place[chosen.objective], 0]
        if not self._pooled:
            client, which = np.nonzero(chosen.constraint)
            return np.concatenate([objectives, lines[place[client], 1 + which]])
        units = np.eye(self.shape[1])[np.flatnonzero(chosen.constraint[0])]
        pooled = [self.weighted_sum(point, Weights(np.zeros(len(clients)), unit[None])).gradient for unit in units]
        return np.concatenate([objectives, np.reshape(pooled, (-1, self.size))])

    def round_point(self, point: np.ndarray) -> np.ndarray:
        """Return the point rounded to the precision of the parameters."""
        return np.asarray(jnp.asarray(point, self._flat_dtype), float)

    def _params(self, point: np.ndarray) -> Params:
        return self._rebuild(jnp.asarray(point, self._flat_dtype))

    def _spend(self, rows: int) -> None:
        if self.rows + rows > self.row_budget:
            raise RowBudgetExceeded
        self.rows += rows

    def _blocks(self, weights: Weights, times: int = 1, *, by_client: bool = False) -> list[_Block]:
        """Return the clients of positive weight in blocks of one width; with few rows or pooled, all in one block."""
        pooled = self._pooled and not by_client
        together = pooled or self._few
        constraint = np.zeros((len(weights.objective), self.shape[1])) if self._pooled else weights.constraint
        positive = (weights.objective > 0) | (constraint > 0).any(axis=1) | together
        self._spend(times * int(self._clients.sizes[positive].sum()))

        def part(clients: np.ndarray, places: int) -> _Part:
            padded = np.r_[clients, np.full(places - len(clients), clients[0])].astype(np.int32)
            is_real = np.arange(places) < len(clients)
            return _Part(padded, is_real * weights.objective[padded], is_real[:, None] * constraint[padded])

        def slices(places: int, width: int) -> tuple[int, int]:
            return width, full_data_slice_size(places, width * self._plan.row_bytes)

        if together:
            every = tuple(part(group, len(group)) for group, _ in self._groups)
            sizes = tuple(slices(len(group), width) for group, width in self._groups)
            return [_Block(every, weights.constraint[0] if pooled else None, sizes)]
        blocks = []
        for group, width in self._groups:
            clients, places = group[positive[group]], min(BLOCK_CLIENTS, len(group))
            parts = (part(clients[i : i + places], places) for i in range(0, len(clients), places))
            blocks += [_Block((one,), None, (slices(places, width),)) for one in parts]
        return blocks


def _few_widths(sizes: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Group clients into at most two widths, to compile few programs."""
    largest = int(sizes.max())
    small = sizes <= largest // SMALL_FRACTION
    if small.sum() <= MIN_SMALL_RATIO * (~small).sum():
        small = np.zeros_like(small)
    groups = [(np.flatnonzero(small), largest // SMALL_FRACTION), (np.flatnonzero(~small), largest)]
    return [(group, width) for group, width in groups if len(group)]


def _total(params: Params, block: _Block, rows: Rows, losses: Losses) -> tuple[jax.Array, list[jax.Array]]:
    """Return the weighted sum without the tolerance, and the clients' values."""
    dtype, values, sums = float_dtype(params), [], []
    for part, (width, size) in zip(block.parts, block.slices, strict=True):

        @jax.checkpoint
        def one(params: Params, client: jax.Array, width: int = width) -> tuple[jax.Array, jax.Array]:
            batch = rows.take(*all_rows(rows, client, width, dtype))
            if block.pooled is None:
                return losses.objective(params, batch), losses.constraints(params, batch)
            statistics = losses.statistics(params, batch)
            assert statistics is not None
            return losses.objective(params, batch), rows.sizes[client].astype(statistics.dtype) * statistics

        objective, constraint = map_slices(partial(one, params), jnp.asarray(part.clients), size)
        values.append(objective)
        if block.pooled is None:
            values.append(constraint)
        else:
            sums.append(constraint.sum(axis=0))
    if block.pooled is not None:
        values.append(losses.pool(sum(sums[1:], sums[0])))
    total = jnp.zeros((), dtype)
    for weights, value in zip(block.weights, values, strict=True):
        known = jnp.asarray(weights, value.dtype)
        total += (known * jnp.where(known > 0, value, 0)).sum()
    return total, values


@partial(jax.jit, static_argnames="losses")
def _gradient(params: Params, block: _Block, rows: Rows, losses: Losses) -> tuple[Params, Any]:
    return jax.grad(_total, has_aux=True)(params, block, rows, losses)


@partial(jax.jit, static_argnames="losses")
def _hessian(params: Params, block: _Block, rows: Rows, losses: Losses) -> jax.Array:
    flat, rebuild = ravel_pytree(params)

    def gradient(point: jax.Array) -> jax.Array:
        return ravel_pytree(jax.grad(_total, has_aux=True)(rebuild(point), block, rows, losses)[0])[0]

    # Slices of equal size compile once.
    slices = -(-flat.size // HESSIAN_COLUMNS)
    at_once = -(-flat.size // slices)
    units = jnp.eye(slices * at_once, flat.size, dtype=flat.dtype)
    return map_slices(lambda unit: jax.jvp(gradient, (flat,), (unit,))[1], units, at_once)[: flat.size]


@partial(jax.jit, static_argnames="losses")
def _jacobians(params: Params, block: _Block, rows: Rows, losses: Losses) -> list[jax.Array]:
    """Return every client's gradients of f, then of each g."""
    flat, rebuild = ravel_pytree(params)
    jacobians = []
    for part, (width, size) in zip(block.parts, block.slices, strict=True):

        def one(client: jax.Array, width: int = width) -> jax.Array:
            batch = rows.take(*all_rows(rows, client, width, float_dtype(params)))
            return jax.jacrev(lambda point: losses.values(rebuild(point), batch))(flat)

        jacobians.append(map_slices(one, jnp.asarray(part.clients), size))
    return jacobians
