"""DerivativeOracle: clients that return values, gradients and Hessians on all of their rows, in float64.

``RowDerivatives`` are those of ``ClientData``. The precision of the user does not change: rows and parameters are cast
inside compiled programs, which run under a local ``enable_x64``. A gap |a − b| between groups is given as its smooth
pieces a − b and b − a.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal
from jaxtyping import Array

from softswitch.data.client_data import ClientData, Rows
from softswitch.data.sampling import all_rows
from softswitch.methods.sqp import Derivatives, Query
from softswitch.oracles.base import Evaluation
from softswitch.oracles.evaluation import SLICE_BYTES, Losses, functions_ignoring_weights, make_evaluator
from softswitch.problem.domains import Domain
from softswitch.problem.fairness import difference_from_sums
from softswitch.problem.parameters import WEIGHT, Batch, Params, count_parameters
from softswitch.problem.problem import PooledConstraint, Problem
from softswitch.support.arrays import fingerprint
from softswitch.support.tracing import program_digest

MAX_PARAMETERS = 500
"""Largest model: the server factorises matrices of d × d numbers."""
KINKS = ("abs", "max", "min", "clamp", "sign", "floor", "round")
"""Operations of JAX that are not differentiable everywhere."""
MAX_WIDTHS = 3
"""Number of batch widths among which clients are divided: each is compiled separately."""
WIDTH_CANDIDATES = 48
"""Number of client sizes that are considered as widths."""
WORTH_A_WIDTH = 6_000_000
"""Padded rows times parameters that another width must save: its compilation costs about as much in ten exchanges."""


class UnavailableError(RuntimeError):
    """A client returns no derivatives; the text names it and the reason."""


class DerivativeOracle(ABC):
    """Clients that return derivatives of second order on all of their rows: what ``SQP`` and lower bounds need.

    Attributes:
        names: Labels of the clients.
        start: Initial parameters, a pytree of floating arrays; results have its structure and dtypes.
        domain: ``Ball``, ``Box`` or None.
        convex: Whether f_i and g_i are declared convex; None if that is unknown.
        shape: Shape of the constraints: clients × pieces, or 1 × pieces if they are pooled.
        sizes: Number of rows of each client.
        rows: Number of rows evaluated so far; a Hessian counts d times.
        rounding: Relative rounding error allowed for a mean over a client's rows.
        is_exact: Whether everything is computed in float64: False if a function casts to float32.
        has_gaps: Whether the constraints are the pieces a − b and b − a of gaps |a − b|, in this order.
        kink: An operation of the functions that is not differentiable everywhere, such as "abs"; None if none is known.
        outcomes: The ``ClientOutcome`` of each client in the last exchange; None if clients cannot be lost.
    """

    names: tuple[Any, ...]
    start: Params
    domain: Domain | None
    convex: bool | None
    shape: tuple[int, int]
    sizes: np.ndarray
    rows: int = 0
    rounding: float
    is_exact: bool = True
    has_gaps: bool = False
    kink: str | None = None
    outcomes: np.ndarray | None = None

    @abstractmethod
    def reply(self, query: Query, needed: np.ndarray | None = None) -> Derivatives:
        """Return values, gradients and the Hessian at a point: one exchange.

        If clients can be lost, all functions of one that is absent are −∞, and new clients follow the others; ``names``
        and ``shape`` then change. ``UnavailableError`` ends the run.

        Args:
            query: Point, and weights of the functions in the Hessian.
            needed: Which clients are evaluated; the others may return 0. Default: all.
        """

    @abstractmethod
    def evaluate(self, params: Params) -> Evaluation:
        """Evaluate parameters at every client, in the user's precision.

        Args:
            params: Parameters of the structure of ``start``.
        """

    def evaluate_held_out(self, params: Params) -> Evaluation | None:
        """Evaluate parameters on held-out rows; None if there are none.

        Args:
            params: Parameters of the structure of ``start``.
        """
        return None

    def load_answer(self, params: Params) -> None:
        """Store the answer in a model of the user, if there is one.

        Args:
            params: Parameters of the structure of ``start``.
        """
        return

    @abstractmethod
    def digest(self) -> dict[str, str]:
        """Return what the replies depend on, as text by name. Checkpoints with another one are refused."""

    @property
    def size(self) -> int:
        """Number of parameters d."""
        return count_parameters(self.start)

    @property
    def is_pooled(self) -> bool:
        """Whether the constraint is one of all clients together."""
        return self.shape[0] != len(self.names)

    def values(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return f_i and g_ic, without a Hessian.

        Args:
            point: Parameters as one vector.
        """
        reply = self.reply(Query(point, np.zeros(len(self.names)), np.zeros(self.shape)))
        return reply.objective, reply.constraint

    def rebuild(self, point: np.ndarray) -> Params:
        """Return the parameters at a point, with the structure and dtypes of the start.

        Args:
            point: Parameters as one vector.
        """
        leaves, structure = jax.tree.flatten(self.start)
        parts = np.split(np.asarray(point, float), np.cumsum([np.size(leaf) for leaf in leaves])[:-1])
        with jax.enable_x64(True):
            pairs = zip(parts, leaves, strict=True)
            return jax.tree.unflatten(structure, [jnp.asarray(p.reshape(x.shape), x.dtype) for p, x in pairs])

    def cost(self, rows: Any) -> tuple[Any, Any]:
        """Return the numbers of rows on which an exchange evaluates values, and gradients.

        Args:
            rows: Number of rows of gradients; a Hessian counts d times.
        """
        return int(self.sizes.sum()), rows


def mean_rounding(sizes: np.ndarray, *, is_exact: bool) -> float:
    """Return the relative rounding error of a mean over a client's rows, in float64 or in float32."""
    eps = np.finfo(float if is_exact else np.float32).eps
    return float(eps) * (4 + float(np.sqrt(sizes.max())) / 4)


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Functions:
    """The functions of a client as functions of a flat float64 vector; equal ones are compiled once."""

    losses: Losses
    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    pooled: bool

    @property
    def has_gaps(self) -> bool:
        constraint = self.losses.constraint_function
        return isinstance(constraint, PooledConstraint) and constraint.gaps

    def rebuild(self, point: Array) -> Params:
        """Return the parameters, in float64."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])
        leaves = [part.reshape(shape) for part, shape in zip(jnp.split(point, ends[:-1]), self.shapes, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)

    def values(self, point: Array, batch: Batch) -> Array:
        """Return f and the pieces of g; with a pooled constraint, f and the client's statistics."""
        params = self.rebuild(point)
        objective = jnp.atleast_1d(self.losses.objective(params, batch))
        if self.pooled:
            second = self.losses.statistics(params, batch)
        elif self.has_gaps:
            second = self.pieces(self.losses.statistics(params, batch))
        else:
            second = self.losses.constraints(params, batch)
        return jnp.concatenate([objective, jnp.asarray(second)]).astype(point.dtype)

    def pieces(self, statistics: Any) -> Array:
        """Return the pieces of a constraint of statistics: of a gap between two means, both differences."""
        if not self.has_gaps:
            return self.losses.pool(statistics)
        gap = jax.vmap(difference_from_sums)(statistics.reshape(-1, 4))
        return jnp.concatenate([gap, jnp.where(jnp.isneginf(gap), gap, -gap)])


class RowDerivatives(DerivativeOracle):
    """The derivatives of ``ClientData`` in memory, by a compiled program.

    Args:
        problem: Objective, constraint, start and domain.
        clients: Rows of the clients.
        pooled: Whether the constraint is evaluated on the rows of all clients together.
        held_out: Rows for ``evaluate_held_out``.
    """

    def __init__(
        self, problem: Problem, clients: ClientData, *, pooled: bool = False, held_out: ClientData | None = None
    ) -> None:
        leaves, structure = jax.tree.flatten(problem.start)
        shapes = tuple(np.shape(leaf) for leaf in leaves)
        self._functions = _Functions(Losses.of(problem), structure, shapes, pooled)
        self._problem, self._clients, self._rows, self._held_out = problem, clients, clients.rows, held_out
        self.names, self.start, self.sizes = clients.names, problem.start, clients.sizes
        self.domain, self.convex, self.has_gaps = problem.domain, problem.convex, self._functions.has_gaps
        ignoring = functions_ignoring_weights(problem, clients)
        self.groups = _group_by_width(clients.sizes, self.size, exactly=bool(ignoring))
        widest = self.groups[0][1]
        with jax.enable_x64(True):
            point = jnp.zeros(self.size)
            batch = jax.eval_shape(partial(_batch, width=widest), self._rows, jnp.int32(0))
            program = jax.make_jaxpr(self._functions.values)(point, batch)
        self.is_exact = not _computes_in_float32(program.jaxpr)
        self.kink = _find_kink(program.jaxpr, set(program.jaxpr.invars[:1]), max(2, widest))
        (self._outputs,) = program.out_avals[0].shape
        self.shape = (len(clients), self._outputs - 1)
        if pooled:
            with jax.enable_x64(True):
                statistics = jax.ShapeDtypeStruct((self._outputs - 1,), float)
                self.shape = (1, *jax.eval_shape(self._functions.pieces, statistics).shape)
        self.rounding = mean_rounding(clients.sizes, is_exact=self.is_exact)

    @cached_property
    def _evaluator(self) -> Any:
        return make_evaluator(self._problem, self._clients)

    @cached_property
    def _held_out_evaluator(self) -> Any:
        return None if self._held_out is None else make_evaluator(self._problem, self._held_out)

    def evaluate(self, params: Params) -> Evaluation:
        """Evaluate parameters at every client, in the user's precision."""
        evaluation: Evaluation = self._evaluator(params)
        return evaluation

    def evaluate_held_out(self, params: Params) -> Evaluation | None:
        """Evaluate parameters on held-out rows; None if there are none."""
        return None if self._held_out_evaluator is None else self._held_out_evaluator(params)

    def digest(self) -> dict[str, str]:
        """Return digests of the rows and of the program, as text by name."""
        with jax.enable_x64(True):
            point, client = jnp.zeros(self.size), jnp.int32(0)
            program = program_digest(
                lambda point, client: self._functions.values(point, _batch(self._rows, client, self.groups[0][1])),
                point,
                client,
            )
        return {"clients": fingerprint(self._rows), "program": program}

    def reply(self, query: Query, needed: np.ndarray | None = None) -> Derivatives:
        """Return values, gradients and the Hessian at a point; clients that are not ``needed`` return 0."""
        everyone = np.ones(len(self._clients), bool)
        if not self._functions.pooled:
            weights = np.c_[query.weights, query.multipliers]
            values, jacobian, hessian = self._derive(query.point, weights, everyone if needed is None else needed)
            return Derivatives(values[:, 0], values[:, 1:], jacobian[:, 0], jacobian[:, 1:], hessian)
        # The chain rule: a pooled constraint is a function of the clients' summed statistics.
        sizes = self._clients.sizes.astype(float)
        values, jacobian, _ = self._derive(query.point, np.zeros((len(sizes), self._outputs)), everyone)
        with jax.enable_x64(True):
            pooled = _pool(sizes @ values[:, 1:], query.multipliers[0], functions=self._functions)
        pieces, slopes, curvature = map(np.asarray, pooled)
        weights = np.c_[query.weights, np.outer(sizes, query.multipliers[0] @ slopes)]
        _, _, hessian = self._derive(query.point, weights, weights.any(axis=1))
        summed = np.einsum("n,nsd->sd", sizes, jacobian[:, 1:])
        gradient = (slopes @ summed)[None]
        return Derivatives(
            values[:, 0], pieces[None], jacobian[:, 0], gradient, hessian + summed.T @ curvature @ summed
        )

    def row_curvatures(self, point: np.ndarray, function: int) -> np.ndarray:
        """Return the norm of each row's share of one function's Hessian at the only client.

        The share that all rows have in common, such as that of a regulariser, is not counted: the norm is that of the
        difference from the row of the smallest share.

        Args:
            point: Parameters as one vector.
            function: 0 for the objective; a larger number for a piece of the constraint.
        """
        with jax.enable_x64(True):
            arguments = jnp.asarray(point, float), self._rows, jnp.int32(function)
            return np.asarray(_row_curvatures(*arguments, functions=self._functions, width=self.groups[0][1]))

    def _derive(
        self, point: np.ndarray, weights: np.ndarray, needed: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the values and gradients of all clients, in their order, and the Hessian of the weighted sum."""
        sizes, is_weighted = self._clients.sizes, weights.any(axis=1) & needed
        self.rows += int(3 * sizes[needed].sum() + self.size * sizes[is_weighted].sum())
        values, jacobian = np.zeros(weights.shape), np.zeros((*weights.shape, self.size))
        hessian = np.zeros((self.size, self.size))
        with jax.enable_x64(True):
            for clients, found in self.compute(np.asarray(point, float), weights, needed):
                values[clients], jacobian[clients], part = map(np.asarray, found)
                hessian += part
        return values, jacobian, (hessian + hessian.T) / 2

    def compute(self, point: np.ndarray, weights: np.ndarray, needed: np.ndarray) -> Iterator[tuple[np.ndarray, Any]]:
        """Yield some clients, and what ``derive_clients`` returns for them, until all needed ones were there.

        Args:
            point: Parameters as one vector.
            weights: Weights of the functions in the Hessian; clients × functions.
            needed: Which clients are needed.
        """
        for clients, width in self.groups:
            if needed[clients].any():
                arguments = clients.astype(np.int32), weights[clients], needed[clients]
                yield clients, derive_clients(point, self._rows, *arguments, **self.program(width))

    def program(self, width: int) -> dict[str, Any]:
        """Return the arguments of ``derive_clients`` that are compiled in.

        Args:
            width: Number of rows of a batch.
        """
        columns = max(1, min(self.size, SLICE_BYTES // (64 * width)))
        return {"functions": self._functions, "width": width, "columns": columns}


def _group_by_width(sizes: np.ndarray, parameters: int, *, exactly: bool) -> list[tuple[np.ndarray, int]]:
    """Divide the clients among few widths, the widest first; ``exactly``: each client has the width of its size."""
    widths = np.unique(sizes) if exactly else _few_widths(sizes, WORTH_A_WIDTH // parameters)
    width_of = widths[np.searchsorted(widths, sizes)]
    return [(np.flatnonzero(width_of == width), int(width)) for width in widths[::-1]]


def _few_widths(sizes: np.ndarray, worth: int) -> np.ndarray:
    """Return widths with few padded rows, by dynamic programming; another width must save ``worth`` rows."""
    ordered = np.sort(sizes)
    places = np.unique(np.linspace(0, len(ordered) - 1, WIDTH_CANDIDATES).round().astype(int))
    candidates, filled = ordered[places], places + 1
    # cost[j]: rows with padding if the clients up to candidate j have widths up to that candidate's
    cost, widths = filled * candidates, [[width] for width in candidates]
    for _ in range(MAX_WIDTHS - 1):
        options = cost[:, None] + np.maximum(filled[None] - filled[:, None], 0) * candidates[None]
        best = options.argmin(axis=0)
        if cost[-1] - options[best[-1], -1] < worth:
            break
        cost, widths = options.min(axis=0), [[*widths[i], candidates[j]] for j, i in enumerate(best)]
    return np.unique(widths[-1])


def _computes_in_float32(program: Any) -> bool:
    """Return whether a traced program computes anything in float32 that depends on more than one number."""
    for equation in program.eqns:
        inner = [p for p in equation.params.values() if hasattr(p, "jaxpr") or hasattr(p, "eqns")]
        if any(_computes_in_float32(getattr(p, "jaxpr", p)) for p in inner):
            return True
        outputs = [v.aval for v in equation.outvars if hasattr(v.aval, "dtype")]
        if any((o.dtype == jnp.float32 and o.size > 1) or o.dtype in (jnp.float16, jnp.bfloat16) for o in outputs):
            return True
    return False


def _find_kink(program: Any, dependent: set[Any], size: int) -> str | None:
    """Return an operation on every row that is not differentiable everywhere, such as "abs"; None if there is none.

    ``dependent`` are the variables that depend on the parameters, and ``size`` is the number of rows. Functions with
    derivative rules of their own, such as ``jnp.logaddexp``, are taken to be smooth.
    """
    for equation in program.eqns:
        inputs = [not isinstance(v, Literal) and v in dependent for v in equation.invars]
        name = equation.primitive.name
        if not any(inputs) or name == "stop_gradient":
            continue
        if name in KINKS and equation.outvars[0].aval.size >= size:
            return str(name)
        dependent.update(equation.outvars)
        inner = equation.params.get("jaxpr") if name in ("jit", "pjit") else None
        if inner is not None:
            variables = {v for v, is_dependent in zip(inner.jaxpr.invars, inputs, strict=True) if is_dependent}
            if (kink := _find_kink(inner.jaxpr, variables, size)) is not None:
                return kink
    return None


def _batch(rows: Rows, client: Array, width: int) -> Batch:
    batch = rows.take(*all_rows(rows, client, width, jnp.float64))
    return {k: v.astype(jnp.float64) if jnp.issubdtype(v.dtype, jnp.floating) else v for k, v in batch.items()}


@partial(jax.jit, static_argnames="functions")
def _pool(sums: Array, multipliers: Array, *, functions: _Functions) -> tuple[Array, Array, Array]:
    """Return the pieces of a pooled constraint, their gradients, and the Hessian of their weighted sum."""

    def total(sums: Array) -> Array:
        return jnp.dot(multipliers, jnp.where(multipliers > 0, functions.pieces(sums), 0))

    return functions.pieces(sums), jax.jacrev(functions.pieces)(sums), jax.hessian(total)(sums)


@partial(jax.jit, static_argnames=("functions", "width"))
def _row_curvatures(point: Array, rows: Rows, function: Array, *, functions: _Functions, width: int) -> Array:
    """Return the norms of the rows' Hessians of one function, less the smallest Hessian; 0 for rows without it."""
    everything, losses = _batch(rows, jnp.int32(0), width), functions.losses
    columns = {name: column for name, column in everything.items() if name != WEIGHT}
    slopes = None
    if losses.has_pooled_constraint:
        slopes = jax.jacrev(functions.pieces)(losses.statistics(functions.rebuild(point), everything))

    def value(point: Array, row: Batch) -> Array:
        batch = {**{name: column[None] for name, column in row.items()}, WEIGHT: jnp.ones(1, point.dtype)}
        if slopes is None:
            return functions.values(point, batch)[function]
        params = functions.rebuild(point)
        objective = jnp.atleast_1d(losses.objective(params, batch))
        return jnp.concatenate([objective, slopes @ losses.statistics(params, batch)])[function]

    def hessian(row: Batch) -> tuple[Array, Array]:
        known = jnp.isfinite(value(point, row))
        return jax.hessian(lambda point: jnp.where(known, value(point, row), 0))(point), known

    def norm(row: Batch, common: Any = 0.0) -> tuple[Array, Array]:
        share, known = hessian(row)
        return jnp.where(known, jnp.linalg.norm(share - common), 0), known

    block = max(1, SLICE_BYTES // (64 * point.size**2))
    norms, known = lax.map(norm, columns, batch_size=block)
    smallest = jnp.where(known, norms, jnp.inf).argmin()
    common, _ = hessian({name: column[smallest] for name, column in columns.items()})
    return lax.map(lambda row: norm(row, common)[0], columns, batch_size=block)


@partial(jax.jit, static_argnames=("functions", "width", "columns"))
def derive_clients(
    point: Array,
    rows: Rows,
    clients: Array,
    weights: Array,
    needed: Array,
    *,
    functions: _Functions,
    width: int,
    columns: int,
) -> tuple[Array, Array, Array]:
    """Return the values and gradients of clients, one after another, and the Hessian of their weighted sum."""
    size, outputs = point.size, weights.shape[1]
    slices = -(-size // columns)
    units = jnp.eye(slices * columns, size, dtype=point.dtype).reshape(slices, columns, size)

    def hessian(batch: Batch, weight: Array) -> Array:
        def total(point: Array) -> Array:
            return jnp.dot(weight, jnp.where(weight != 0, functions.values(point, batch), 0))

        _, linear = jax.linearize(jax.grad(total), point)
        if slices == 1:
            return jax.vmap(linear)(units[0])
        return lax.map(jax.vmap(linear), units).reshape(-1, size)[:size]

    def derive(client: Array, weight: Array) -> tuple[Array, Array, Array]:
        batch = _batch(rows, client, width)
        values, pullback = jax.vjp(lambda point: functions.values(point, batch), point)
        jacobian = jax.vmap(lambda unit: pullback(unit)[0])(jnp.eye(outputs, dtype=point.dtype))
        is_weighted = (weight != 0).any()
        return values, jacobian, lax.cond(is_weighted, hessian, lambda *_: jnp.zeros((size, size)), batch, weight)

    def skip(client: Array, weight: Array) -> tuple[Array, Array, Array]:
        return jnp.zeros(outputs), jnp.zeros((outputs, size)), jnp.zeros((size, size))

    def add(total: Array, one: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        client, weight, is_needed = one
        values, jacobian, part = lax.cond(is_needed, derive, skip, client, weight)
        return total + part, (values, jacobian)

    total, (values, jacobian) = lax.scan(add, jnp.zeros((size, size)), (clients, weights, needed))
    return values, jacobian, total
