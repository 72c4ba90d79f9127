"""The Lagrangian Σ p_i f_i + Σ μ_ic (g_ic − ε) on all of the clients' rows, and what it costs to look at it.

Data go through in slices, and what a slice computes is computed again for its gradient: memory stays that of one slice.
Clients of weight 0 are passed over where there are many rows.
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
from softswitch.data.sampling import whole
from softswitch.oracles.client_batches import full_data_slice_size, map_slices
from softswitch.oracles.evaluation import FEW_ROWS, compiled_values, plan_evaluation, pooled_value
from softswitch.oracles.losses import Losses
from softswitch.problem.domains import Ball
from softswitch.problem.parameters import Params, float_dtype
from softswitch.problem.problem import Problem

BLOCK = 16
"""So many clients in one call, where not all of them are wanted."""
SMALL = 16
"""Clients with at most this part of the largest one's rows are padded to that, the others to the largest."""
MERGED = 0.1
"""but not where there are only so few of them for each of the others: then all are padded to the largest."""
DIRECTIONS = 8
"""So many columns of a Hessian side by side."""


class Weights(NamedTuple):
    """Of the functions in a Lagrangian.

    Attributes:
        objective: p, one a client.
        constraint: μ; clients × constraints, or 1 × constraints for a constraint on all data together.
        ball: that of (‖w‖² − radius²)/2, where the domain is a ball.
    """

    objective: np.ndarray
    constraint: np.ndarray
    ball: float = 0.0


class Looked(NamedTuple):
    """A weighted sum at a point.

    Attributes:
        value: the sum.
        gradient: its gradient.
        size: the sum of what it consists of, without signs: what its rounding is a share of.
    """

    value: float
    gradient: np.ndarray
    size: float


class NoRowsLeft(Exception):  # noqa: N818
    """As many rows as were allowed have been looked at."""


class _Part(NamedTuple):
    """Some clients of one width with their weights; those that are there to fill up weigh 0."""

    clients: Any
    objective: Any
    constraint: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Some:
    """Some clients, width by width; the multipliers of a pooled constraint; widths, and how many clients at once."""

    parts: tuple[_Part, ...]
    pooled: Any
    slices: tuple[tuple[int, int], ...] = field(metadata={"static": True})


class Lagrangian:
    """Objectives, constraints and weighted sums of them, as functions of a flat vector of float64.

    Attributes:
        tolerance: ε.
        size: d, the number of parameters.
        shape: that of the constraints: clients × constraints, or 1 × constraints for one on all data together.
        radius: of the ball, where the domain is one; else None.
        eps: the rounding of the numbers it is computed in.
        allowed: how many rows may be looked at.
        rows: how many have been.
    """

    def __init__(
        self, problem: Problem, clients: ClientData, params: Params, tolerance: float, *, pooled: bool, allowed: int
    ) -> None:
        flat, self._rebuild = ravel_pytree(params)
        dtype = float_dtype(params)
        traced = problem.trace(clients.batch_shapes(int(clients.sizes.max()), dtype), params)
        self._clients, self._losses, self._pooled = clients, Losses.of(problem), pooled
        self._way = plan_evaluation(clients, traced.ignore_weight)
        self._flat_dtype = flat.dtype
        self._groups = [
            (np.asarray(group), width) for group, width in zip(self._way.groups, self._way.widths, strict=True)
        ]
        if not traced.ignore_weight:
            self._groups = _few_widths(clients.sizes)
        self._few = sum(len(group) * width for group, width in self._groups) <= FEW_ROWS
        self.tolerance, self.allowed, self.rows = tolerance, allowed, 0
        self.size = int(flat.size)
        self.eps = float(jnp.finfo(dtype).eps)
        self.radius = problem.domain.radius if isinstance(problem.domain, Ball) else None
        self.shape = (1 if pooled else len(clients), traced.constraints)

    def values(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """f_i, and g_ic − ε; a pooled constraint's is one line."""
        self._spend(int(self._clients.sizes.sum()))
        params = self._params(point)
        objective, constraint = compiled_values(self._way, self._clients.rows, params, self._losses)
        if self._pooled:
            constraint = pooled_value(self._way, self._clients.rows, params, self._losses)[None]
        return np.asarray(objective, float), np.asarray(constraint, float) - self.tolerance

    def weighted(self, point: np.ndarray, weights: Weights) -> Looked:
        """The weighted sum and its gradient; clients are summed in float64."""
        params, rows = self._params(point), self._clients.rows
        slope, terms = weights.ball * point, []
        for some in self._some(weights):
            gradient, (objectives, constraints) = _gradient(params, some, rows, self._losses)
            slope = slope + np.asarray(ravel_pytree(gradient)[0], float)
            terms += [_products(part.objective, f) for part, f in zip(some.parts, objectives, strict=True)]
            if some.pooled is not None:
                terms.append(_products(weights.constraint[0], constraints))
            else:
                terms += [_products(part.constraint, g) for part, g in zip(some.parts, constraints, strict=True)]
        terms += [-self.tolerance * weights.constraint.ravel(), np.array([weights.ball * self.outside(point)])]
        every = np.concatenate(terms)
        return Looked(float(every.sum()), slope, float(np.abs(every).sum()))

    def outside(self, point: np.ndarray) -> float:
        """(‖w‖² − radius²)/2: not above 0 in the ball; without a ball 0."""
        return 0.0 if self.radius is None else (float(point @ point) - self.radius**2) / 2

    def hessian(self, point: np.ndarray, weights: Weights) -> np.ndarray:
        """All second derivatives of the weighted sum."""
        params, rows = self._params(point), self._clients.rows
        matrix = weights.ball * np.eye(self.size)
        for some in self._some(weights, times=self.size):
            matrix += np.asarray(_hessian(params, some, rows, self._losses), float)
        return (matrix + matrix.T) / 2

    def gradients(self, point: np.ndarray, chosen: Weights) -> np.ndarray:
        """The gradients of single functions, one line each: the objectives that are chosen (true), then constraints."""
        wanted = chosen.objective if self._pooled else chosen.objective | chosen.constraint.any(axis=1)
        params, rows = self._params(point), self._clients.rows
        who, found = [], []
        for some in self._some(Weights(wanted.astype(float), np.zeros(self.shape)), alone=True):
            who += [part.clients for part in some.parts]
            found += [np.asarray(lines, float) for lines in _jacobians(params, some, rows, self._losses)]
        place, lines = np.zeros(len(wanted), int), np.concatenate(found)
        place[np.concatenate(who)] = np.arange(len(lines))
        objectives = lines[place[chosen.objective], 0]
        if not self._pooled:
            client, which = np.nonzero(chosen.constraint)
            return np.concatenate([objectives, lines[place[client], 1 + which]])
        every = np.eye(self.shape[1])[np.flatnonzero(chosen.constraint[0])]
        pooled = [self.weighted(point, Weights(np.zeros(len(wanted)), unit[None])).gradient for unit in every]
        return np.concatenate([objectives, np.reshape(pooled, (-1, self.size))])

    def rounded(self, point: np.ndarray) -> np.ndarray:
        """The point as it is looked at, in the parameters' own precision."""
        return np.asarray(jnp.asarray(point, self._flat_dtype), float)

    @property
    def rounding(self) -> float:
        """How far a mean over a client's rows may be off, as a share of it: an allowance, not a proof."""
        return self.eps * (4 + float(np.sqrt(self._clients.sizes.max())) / 4)

    def _params(self, point: np.ndarray) -> Params:
        return self._rebuild(jnp.asarray(point, self._flat_dtype))

    def _spend(self, rows: int) -> None:
        if self.rows + rows > self.allowed:
            raise NoRowsLeft
        self.rows += rows

    def _some(self, weights: Weights, times: int = 1, *, alone: bool = False) -> list[_Some]:
        """The clients that weigh anything, in blocks of one width and so many clients each: a program a width.

        All of them together, where there are few rows, and where a constraint is one on all data together.
        """
        pooled = self._pooled and not alone
        constraint = np.zeros((len(weights.objective), self.shape[1])) if self._pooled else weights.constraint
        wanted = (weights.objective > 0) | (constraint > 0).any(axis=1)
        if pooled or self._few:
            wanted = np.ones_like(wanted)
        self._spend(times * int(self._clients.sizes[wanted].sum()))

        def part(own: np.ndarray, places: int) -> _Part:
            every = np.r_[own, np.full(places - len(own), own[0])].astype(np.int32)
            alive = np.arange(places) < len(own)
            return _Part(every, alive * weights.objective[every], alive[:, None] * constraint[every])

        def slices(places: int, width: int) -> tuple[int, int]:
            return width, full_data_slice_size(places, width * self._way.row_bytes)

        if pooled or self._few:
            parts = tuple(part(group, len(group)) for group, _ in self._groups)
            sizes = tuple(slices(len(group), width) for group, width in self._groups)
            return [_Some(parts, weights.constraint[0] if pooled else None, sizes)]
        blocks = []
        for group, width in self._groups:
            own, places = group[wanted[group]], min(BLOCK, len(group))
            blocks += [
                _Some((part(own[i : i + places], places),), None, (slices(places, width),))
                for i in range(0, len(own), places)
            ]
        return blocks


def _few_widths(sizes: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Clients by one of two widths, for fewer programs to compile; those of weight 0 are passed over anyway."""
    largest = int(sizes.max())
    small = sizes <= largest // SMALL
    if small.sum() <= MERGED * (~small).sum():
        small = np.zeros_like(small)
    groups = [(np.flatnonzero(small), largest // SMALL), (np.flatnonzero(~small), largest)]
    return [(group, width) for group, width in groups if len(group)]


def _products(weights: Any, values: Any) -> np.ndarray:
    """weights·values in float64, one by one; what weighs nothing is left out, −∞ among it."""
    weights, values = np.asarray(weights, float), np.asarray(values, float)
    return weights[weights > 0] * values[weights > 0]


def _total(params: Params, some: _Some, rows: Rows, losses: Losses) -> tuple[jax.Array, Any]:
    """The weighted sum without the tolerance; and the clients' values beside."""
    dtype = float_dtype(params)
    total = jnp.zeros((), dtype)
    objectives, constraints, sums = [], [], []
    for part, (width, size) in zip(some.parts, some.slices, strict=True):

        @jax.checkpoint
        def one(params: Params, client: jax.Array, width: int = width) -> tuple[jax.Array, jax.Array]:
            batch = rows.take(*whole(rows, client, width, dtype))
            if some.pooled is None:
                return losses.objective(params, batch), losses.constraints(params, batch)
            statistics = losses.statistics(params, batch)
            assert statistics is not None
            return losses.objective(params, batch), rows.sizes[client].astype(statistics.dtype) * statistics

        objective, constraint = map_slices(partial(one, params), jnp.asarray(part.clients), size)
        total += _masked(part.objective, objective)
        objectives.append(objective)
        if some.pooled is None:
            total += _masked(part.constraint, constraint)
            constraints.append(constraint)
        else:
            sums.append(constraint.sum(axis=0))
    if some.pooled is None:
        return total, (objectives, constraints)
    pooled = losses.pool(sum(sums[1:], sums[0]))
    return total + _masked(some.pooled, pooled), (objectives, pooled)


def _masked(weights: Any, values: jax.Array) -> jax.Array:
    weights = jnp.asarray(weights, values.dtype)
    return (weights * jnp.where(weights > 0, values, 0)).sum()


@partial(jax.jit, static_argnames="losses")
def _gradient(params: Params, some: _Some, rows: Rows, losses: Losses) -> tuple[Params, Any]:
    return jax.grad(_total, has_aux=True)(params, some, rows, losses)


@partial(jax.jit, static_argnames="losses")
def _hessian(params: Params, some: _Some, rows: Rows, losses: Losses) -> jax.Array:
    flat, rebuild = ravel_pytree(params)

    def gradient(point: jax.Array) -> jax.Array:
        return ravel_pytree(jax.grad(_total, has_aux=True)(rebuild(point), some, rows, losses)[0])[0]

    def column(unit: jax.Array) -> jax.Array:
        return jax.jvp(gradient, (flat,), (unit,))[1]

    # Slices of one size: a smaller one at the end would be compiled by itself.
    slices = -(-flat.size // DIRECTIONS)
    at_once = -(-flat.size // slices)
    return map_slices(column, jnp.eye(slices * at_once, flat.size, dtype=flat.dtype), at_once)[: flat.size]


@partial(jax.jit, static_argnames="losses")
def _jacobians(params: Params, some: _Some, rows: Rows, losses: Losses) -> list[jax.Array]:
    """Every client's gradients: of f, then of each g."""
    flat, rebuild = ravel_pytree(params)
    found = []
    for part, (width, size) in zip(some.parts, some.slices, strict=True):

        def one(client: jax.Array, width: int = width) -> jax.Array:
            batch = rows.take(*whole(rows, client, width, float_dtype(params)))
            return jax.jacrev(lambda point: losses.values(rebuild(point), batch))(flat)

        found.append(map_slices(one, jnp.asarray(part.clients), size))
    return found
