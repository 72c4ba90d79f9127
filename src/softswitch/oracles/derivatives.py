"""DerivativeOracle: clients that return values, gradients and Hessians on all of their rows, in float64.

Compiled programs cast rows and parameters to float64 under a local ``enable_x64``, for users of any precision. A gap
|a − b| between groups is represented by two constraints, its smooth pieces a − b and b − a.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

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
from softswitch.oracles.evaluation import SLICE_BYTES, Losses, few_widths, functions_ignoring_weights, make_evaluator
from softswitch.problem.domains import Domain
from softswitch.problem.fairness import gap_pieces
from softswitch.problem.parameters import WEIGHT, Batch, Params, count_parameters
from softswitch.problem.problem import PooledConstraint, Problem
from softswitch.support.arrays import fingerprint
from softswitch.support.tracing import program_digest

MAX_PARAMETERS = 500  # of a model: the server factorises d × d matrices
KINKS = ("abs", "max", "min", "clamp", "sign", "floor", "round")  # operations that are not differentiable everywhere
MAX_WIDTHS = 3  # number of batch widths; each is compiled separately
WORTH_A_WIDTH = 6_000_000  # padded rows × parameters that a further width must save to outweigh its compilation
Parts = tuple[np.ndarray, np.ndarray, np.ndarray]  # values, gradients and a Hessian


class UnavailableError(RuntimeError):
    """Raised if a client returns no derivatives; the message names the client and the reason."""


class DerivativeOracle(ABC):
    """Base class of n clients that return first and second derivatives with respect to d parameters, for ``SQP``."""

    names: tuple[Any, ...]  # client labels
    start: Params  # initial parameters, a pytree of floating arrays; results have its structure and dtypes
    domain: Domain | None  # ``Ball``, ``Box``, or None for no projection
    convex: bool | None  # whether f_i and g_i are declared convex; None if unknown
    shape: tuple[int, int]  # shape of the constraints: (n, pieces), or (1, pieces) if they are pooled
    sizes: np.ndarray  # number of rows of each client, n integers
    rows: int = 0  # number of rows evaluated so far; a value and gradient count 3 times, a Hessian d times
    rounding: float  # relative rounding error of a mean over a client's rows
    can_test_convexity: bool = True  # whether 24 further evaluations may test convexity, which lower bounds assume
    is_exact: bool = True  # whether everything is computed in float64; False if a function casts to float32
    has_gaps: bool = False  # whether the constraints are the pieces of gaps: first all a − b, then all b − a
    kink: str | None = None  # an operation that is not differentiable everywhere, such as "abs"; None if unknown
    outcomes: np.ndarray | None = None  # ``ClientOutcome`` of each client in the last exchange; None if none can fail

    @abstractmethod
    def reply(self, query: Query, needed: np.ndarray | None = None) -> Derivatives:
        """Return values, gradients and the Hessian at a point, for the clients in the mask ``needed`` (None: all).

        Other clients may return 0. If clients can fail, all functions of an absent one are −∞, and new clients are
        appended, which changes ``names`` and ``shape``. ``UnavailableError`` ends the run.
        """

    @abstractmethod
    def evaluate(self, params: Params) -> Evaluation:
        """Return the values of every client on all of its rows, in the precision of the parameters."""

    def evaluate_held_out(self, params: Params) -> Evaluation | None:
        """Return the values of every client on held-out rows, or None if there are none."""
        return None

    def load_params(self, params: Params) -> None:
        """Load parameters into the user's model, and prepare it for use. Default: there is no model."""
        return

    @abstractmethod
    def digest(self) -> dict[str, str]:
        """Return texts by name that identify data, functions and settings; a checkpoint with others is rejected."""

    @property
    def size(self) -> int:
        """Number of parameters d."""
        return count_parameters(self.start)

    def values(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return f (n numbers) and g (of shape ``shape``) at a point, a vector of d parameters."""
        reply = self.reply(Query(point, np.zeros(len(self.names)), np.zeros(self.shape)))
        return reply.objective, reply.constraint

    def rebuild(self, point: np.ndarray) -> Params:
        """Return a vector of d parameters with the structure and dtypes of the start."""
        leaves, structure = jax.tree.flatten(self.start)
        parts = np.split(np.asarray(point, float), np.cumsum([np.size(leaf) for leaf in leaves])[:-1])
        with jax.enable_x64(True):
            pairs = zip(parts, leaves, strict=True)
            return jax.tree.unflatten(structure, [jnp.asarray(p.reshape(x.shape), x.dtype) for p, x in pairs])

    def cost(self, rows: Any) -> tuple[Any, Any]:
        """Return the rows of an exchange for values, and for derivatives, ``rows`` as counted by the attribute."""
        return int(self.sizes.sum()), rows

    def add_up(self, parts: Iterable[tuple[Any, Any]], weights: np.ndarray, needed: np.ndarray) -> Parts:
        """Return values (n × functions), gradients (n × functions × d) and the Hessian (d × d) of all clients.

        ``parts`` yields indices of clients with their values, their gradients and the sum of their Hessians.
        """
        self.rows += int(3 * self.sizes[needed].sum() + self.size * self.sizes[weights.any(axis=1) & needed].sum())
        values, jacobian = np.zeros(weights.shape), np.zeros((*weights.shape, self.size))
        hessian = np.zeros((self.size, self.size))
        for clients, found in parts:
            values[clients], jacobian[clients], part = map(np.asarray, found)
            hessian += part
        return values, jacobian, (hessian + hessian.T) / 2


def mean_rounding(sizes: np.ndarray, *, is_exact: bool) -> float:
    """Return the relative rounding error of a mean over a client's rows, in float64 or in float32."""
    eps = np.finfo(float if is_exact else np.float32).eps
    return float(eps) * (4 + float(np.sqrt(sizes.max())) / 4)


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Functions:
    """Functions of a client with parameters as one float64 vector. Hashable: equal ones are compiled once."""

    losses: Losses
    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    pooled: bool

    @property
    def has_gaps(self) -> bool:
        constraint = self.losses.constraint_function
        return isinstance(constraint, PooledConstraint) and constraint.gaps

    def rebuild(self, point: Array) -> Params:
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])
        leaves = [part.reshape(shape) for part, shape in zip(jnp.split(point, ends[:-1]), self.shapes, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)

    def values(self, point: Array, batch: Batch) -> Array:
        """Return f followed by the pieces of g, or by the client's statistics if the constraint is pooled."""
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
        """Return the constraints from the statistics; for gaps, all differences followed by their negatives."""
        return gap_pieces(statistics) if self.has_gaps else self.losses.pool(statistics)


class Program(NamedTuple):
    """Static settings of ``derive_clients``."""

    functions: _Functions
    width: int  # rows of a batch, with padding
    columns: int  # columns of a Hessian that are computed together


class RowDerivatives(DerivativeOracle):
    """Derivative oracle of rows in memory, by a compiled program.

    With ``pooled``, the constraint is computed on the rows of all clients together. ``held_out`` are the rows for
    ``evaluate_held_out``, by default none.
    """

    def __init__(self, problem: Problem, clients: ClientData, *, pooled: bool = False, held_out: Any = None) -> None:
        leaves, structure = jax.tree.flatten(problem.start)
        shapes = tuple(np.shape(leaf) for leaf in leaves)
        self._functions = _Functions(Losses.of(problem), structure, shapes, pooled)
        self._clients, self._rows, self._held_out = clients, clients.rows, held_out
        self._evaluator = cache(partial(make_evaluator, problem))
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

    def evaluate(self, params: Params) -> Evaluation:
        """Return the values of every client on all of its rows, in the precision of the parameters."""
        return self._evaluator(self._clients)(params)

    def evaluate_held_out(self, params: Params) -> Evaluation | None:
        """Return the values of every client on held-out rows, or None if there are none."""
        return None if self._held_out is None else self._evaluator(self._held_out)(params)

    def digest(self) -> dict[str, str]:
        """Return digests of the rows and of the program, as text by name."""

        def values(point: Array, client: Array) -> Array:
            return self._functions.values(point, _batch(self._rows, client, self.groups[0][1]))

        with jax.enable_x64(True):
            program = program_digest(values, jnp.zeros(self.size), jnp.int32(0))
        return {"clients": fingerprint(self._rows), "program": program}

    def reply(self, query: Query, needed: np.ndarray | None = None) -> Derivatives:
        """Return values, gradients and the Hessian at a point; 0 for clients that are not ``needed``."""
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
        hessian = hessian + summed.T @ curvature @ summed
        return Derivatives(values[:, 0], pieces[None], jacobian[:, 0], (slopes @ summed)[None], hessian)

    def row_curvatures(self, point: np.ndarray, function: int) -> np.ndarray:
        """Return the norm of each row's Hessian of one function at the only client, less what all rows share.

        ``function`` is 0 for the objective, larger for a piece of the constraint. The shared part, such as that of a
        regulariser, is the Hessian of the row with the smallest one.
        """
        with jax.enable_x64(True):
            arguments = jnp.asarray(point, float), self._rows, jnp.int32(function)
            return np.asarray(_row_curvatures(*arguments, functions=self._functions, width=self.groups[0][1]))

    def _derive(self, point: np.ndarray, weights: np.ndarray, needed: np.ndarray) -> Parts:
        with jax.enable_x64(True):
            return self.add_up(self.compute(np.asarray(point, float), weights, needed), weights, needed)

    def compute(self, point: np.ndarray, weights: np.ndarray, needed: np.ndarray) -> Iterator[tuple[np.ndarray, Any]]:
        """Yield indices of clients and the result of ``derive_clients`` for them, until all needed ones are computed.

        ``weights`` are those of the functions in the Hessian, clients × functions; ``needed`` is a mask of the clients.
        """
        for clients, width in self.groups:
            if needed[clients].any():
                arguments = clients.astype(np.int32), weights[clients], needed[clients]
                yield clients, derive_clients(point, self._rows, *arguments, self.program(width))

    def program(self, width: int) -> Program:
        """Return the static argument of ``derive_clients`` for batches of ``width`` rows."""
        return Program(self._functions, width, max(1, min(self.size, SLICE_BYTES // (64 * width))))


def _group_by_width(sizes: np.ndarray, parameters: int, *, exactly: bool) -> list[tuple[np.ndarray, int]]:
    """Return (client indices, width) of few batch widths, the widest first; ``exactly``: one width for each size."""
    widths = np.unique(sizes) if exactly else few_widths(sizes, WORTH_A_WIDTH // parameters, MAX_WIDTHS)
    width_of = widths[np.searchsorted(widths, sizes)]
    return [(np.flatnonzero(width_of == width), int(width)) for width in widths[::-1]]


def _computes_in_float32(program: Any) -> bool:
    """Return whether a jaxpr computes an array of several numbers in float32, or anything in a shorter format."""
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
    """Return ‖H_row − H_smallest‖ of one function for each row; 0 for rows that do not have the function."""
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


@partial(jax.jit, static_argnames="program")
def derive_clients(
    point: Array, rows: Rows, clients: Array, weights: Array, needed: Array, program: Program
) -> tuple[Array, Array, Array]:
    """Return values (clients × functions), gradients, and the Hessian of the sum with ``weights``; 0 if not needed."""
    (functions, width, columns), size, outputs = program, point.size, weights.shape[1]
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
