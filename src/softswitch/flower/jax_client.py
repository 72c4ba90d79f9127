"""JaxClient: a client that computes with JAX, and the conversion of pytrees of parameters to named arrays."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ArrayRecord
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike

from softswitch.certification.intervals import ErrorLevels
from softswitch.certification.row_values import compute_intervals
from softswitch.data.client_data import ClientData, Rows
from softswitch.flower import compression as codes
from softswitch.flower.local_client import Classes, RowClient, Task, expected_class_rows
from softswitch.flower.messages import Arrays, LocalDerivatives, Values, single_client, to_record
from softswitch.methods.messages import Decision, LocalLoss
from softswitch.methods.sqp import Query
from softswitch.oracles.batch_sizes import choose_batches
from softswitch.oracles.derivatives import MAX_PARAMETERS, RowDerivatives
from softswitch.oracles.evaluation import Losses, compiled_values
from softswitch.oracles.gradient import GradientOracle, make_gradient_oracle
from softswitch.oracles.options import BatchSize, Compute, Sampling, ValueBatchSize
from softswitch.privacy.jax_rows import compile_exactly, evaluate_rows, sum_clipped_gradients
from softswitch.problem.parameters import Params, count_parameters, float_dtype, to_vector
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import Range, function_ranges
from softswitch.results.certificate import Interval
from softswitch.support.arrays import fingerprint, unflatten_by_path, unflatten_vector


def initial_arrays(params: Params) -> ArrayRecord:
    """Return parameters as a Flower record, the start of ``SwitchingStrategy.start``.

    For example ``initial_arrays(problem.start)``, or ``initial_arrays(parameters(module))`` for a PyTorch module.

    Args:
        params: The parameters w_0: a pytree of arrays, or arrays by name.
    """
    return to_record(flatten_params(params))


def flatten_params(params: Params) -> Arrays:
    """Return NumPy arrays by name: a dict of arrays keeps its names, and other trees use their paths as names."""
    return {name: np.asarray(leaf, order="C") for name, leaf in flatten_traced(params).items()}


def flatten_traced(params: Params) -> dict[str, Any]:
    """Return the leaves by name without conversion to NumPy, for use in compiled programs."""
    if _is_flat(params):
        return dict(params)
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def unflatten_params(arrays: Arrays, like: Params) -> Params:
    """Return arrays by name in the structure of ``like``."""
    return {name: arrays[name] for name in like} if _is_flat(like) else unflatten_by_path(arrays, like)


def _is_flat(params: Any) -> bool:
    return isinstance(params, dict) and all(
        isinstance(name, str) and jax.tree_util.all_leaves([leaf]) for name, leaf in params.items()
    )


class JaxClient(RowClient):
    """A client with a ``Problem``, computed as in the compiled engine; the client draws its own batches.

    The further arguments are those of ``RowClient``.

    Args:
        problem: The problem with objective, constraint and start.
        data: The columns, with one entry per sample.
        strata: A column to stratify batches by, as in ``ClientData.from_arrays``. It is also the default of
            ``classes``.
    """

    def __init__(
        self,
        problem: Problem,
        data: Mapping[str, Any],
        *,
        name: str,
        batch_size: BatchSize = "auto",
        value_batch_size: ValueBatchSize = "same",
        replace: bool | None = None,
        strata: ArrayLike | None = None,
        held_out: Mapping[str, Any] | None = None,
        classes: Classes = None,
        held_out_classes: Classes = None,
    ) -> None:
        self._problem = problem
        self._data = _client_data(data, name, strata)
        self.data_digest = fingerprint(dict(self._data.rows.columns))
        self._held_out = None if held_out is None else _client_data(held_out, name, None)
        self.rows = int(self._data.sizes[0])
        self.held_out_rows = 0 if held_out is None else int(self._held_out.sizes[0])
        self._sampling = Sampling(batch_size=batch_size, value_batch_size=value_batch_size, replace=replace)
        if self._sampling.is_automatic:
            parameters = count_parameters(problem.start)
            report, update = choose_batches(batch_size, value_batch_size, replace, self.rows, parameters)
            self._sampling = Sampling(batch_size=update, value_batch_size=report, replace=replace)
        self._oracles: dict[int, GradientOracle] = {}
        oracle = self._oracle(1)
        self._dtype = np.dtype(float_dtype(problem.start))
        self.name = str(name)
        self.value_rows, self.gradient_rows = oracle.report_batching.width, oracle.update_batching.width
        self.constraints, self.has_surrogate = oracle.constraints, oracle.has_surrogate
        self.ranges = function_ranges(problem.objective_range, problem.constraint_range, self.constraints)
        self._is_stratified_by_class = classes is None
        self._set_classes(strata if classes is None else classes, held_out_classes, (data, held_out))
        statistics = jax.eval_shape(_report, oracle, problem.start, np.zeros(3, np.uint32))[2]
        self.statistics = 0 if statistics is None else int(statistics.shape[0])

    def _min_class_rows_in_batch(self, class_rows: Mapping[str, int]) -> int:
        counts, sizes = [], self._data.stratum_sizes[0].tolist()
        for batching in (self._oracle(1).report_batching, self._oracle(1).update_batching):
            if self._is_stratified_by_class and batching.draws is not None:
                counts += [min(size, draws) for size, draws in zip(sizes, batching.draws, strict=True) if size]
            else:
                counts.append(expected_class_rows(class_rows, batching.width))
        return min(counts)

    def report(self, params: Arrays, task: Task) -> Values:
        """Return f_i and g_i on a batch."""
        return _to_values(*_report(self._oracle(task.local_steps), self._tree(params), self._seed_words(task)))

    def update(self, params: Arrays, task: Task, loss: LocalLoss) -> Arrays:
        """Return u_i, computed by the paper's LocalSolver."""
        direction = _update(
            self._oracle(task.local_steps),
            self._tree(params),
            self._seed_words(task),
            LocalLoss(*(np.asarray(part, self._dtype) for part in loss[:4])),  # type: ignore[arg-type]
            np.asarray(task.step_size, self._dtype),
            switches=task.switches,
        )
        return flatten_params(direction)

    def evaluate(self, params: Arrays) -> Values:
        """Return f_i and g_i on all rows."""
        oracle = self._oracle(1)
        values = compiled_values(oracle.evaluation_plan, oracle.rows, self._tree(params), oracle.losses)
        return _to_values(*jax.tree.map(itemgetter(0), values))

    def _intervals(self, params: Arrays, levels: ErrorLevels, ranges: list[Range | None]) -> list[Interval]:
        return compute_intervals(self._tree(params), self._problem, self._held_out, levels, ranges)[0]

    @property
    def start(self) -> Arrays:
        """The problem's start as arrays by name."""
        return flatten_params(self._problem.start)

    @property
    def pieces(self) -> int:
        """Number of smooth functions that the constraints consist of; 0 without second derivatives."""
        if count_parameters(self._problem.start) > MAX_PARAMETERS or self.has_surrogate:
            return 0
        return 0 if self._row_derivatives.kink else self._row_derivatives.shape[1]

    @property
    def is_exact(self) -> bool:
        """Whether second derivatives are computed in float64."""
        return self._row_derivatives.is_exact

    @cached_property
    def _row_derivatives(self) -> RowDerivatives:
        return RowDerivatives(self._problem, self._data)

    def derivatives(self, params: Arrays, weights: np.ndarray) -> LocalDerivatives:
        """Return f_i, g_i, their gradients and the Hessian of their weighted sum on all rows."""
        vector, unravel = ravel_pytree(self._problem.start)
        places = flatten_params(unravel(jnp.arange(vector.size, dtype=vector.dtype)))
        found = self._row_derivatives.reply(Query(to_vector(self._tree(params)), weights[:1], weights[None, 1:]))
        return single_client(found, codes.to_vector(places).astype(int))

    def row_curvatures(self, params: Arrays, weights: np.ndarray) -> np.ndarray:
        """Return the norm of each row's share of each function's Hessian."""
        point = to_vector(self._tree(params))
        columns = [self._row_derivatives.row_curvatures(point, i) for i in np.flatnonzero(weights).tolist()]
        return np.stack(columns, axis=1)

    def clipped_gradient(self, params: Arrays, rows: np.ndarray, mix: np.ndarray, clip: float) -> Arrays:
        """Return the sum over rows of the clipped gradients of <mix, (f, g)>, in integers."""
        losses, tree = Losses.of(self._problem), self._tree(params)
        total = np.asarray(_clipped(self._data.rows, tree, *_pad(rows), mix, clip, losses))
        return flatten_params(unflatten_vector(total, tree))

    def _by_rows(self, params: Arrays, data: ClientData, rows: np.ndarray) -> np.ndarray:
        if self.statistics:
            raise ValueError("a PooledConstraint has no values on single rows")
        indices, _ = _pad(rows)
        values = _row_values(data.rows, self._tree(params), indices, Losses.of(self._problem))
        return np.asarray(values, float)[: len(rows)]

    def _oracle(self, local_steps: int) -> GradientOracle:
        if local_steps not in self._oracles:
            sampling, compute = replace(self._sampling, local_steps=local_steps), Compute(client_batch_size=1)
            self._oracles[local_steps] = make_gradient_oracle(self._problem, self._data, sampling, compute)
        return self._oracles[local_steps]

    def _tree(self, params: Arrays) -> Params:
        return unflatten_params(params, self._problem.start)

    def _seed_words(self, task: Task) -> np.ndarray:
        """Return the seed of a round's draws as three words; a seed of more than 32 bits is spread over all three."""
        low, middle, high = ((task.seed >> shift) & 0xFFFFFFFF for shift in (0, 32, 64))
        return np.array([low, task.round ^ middle, zlib.crc32(self.name.encode()) ^ high], np.uint32)


def _pad(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pad indices to a power of two, to compile few programs, and return them with a mask of the actual rows."""
    width = 1 << max(0, len(rows) - 1).bit_length()
    indices = np.zeros(width, np.int32)
    indices[: len(rows)] = rows
    return indices, np.arange(width) < len(rows)


@partial(jax.jit, static_argnames="losses")
def _row_values(rows: Rows, params: Params, indices: jax.Array, losses: Losses) -> jax.Array:
    return evaluate_rows(losses, params, rows.take(indices, indices))


@partial(compile_exactly, static_argnums=6)
def _clipped(
    rows: Rows, params: Params, indices: jax.Array, is_row: jax.Array, mix: jax.Array, clip: Any, losses: Losses
) -> jax.Array:
    return sum_clipped_gradients(losses, params, rows.take(indices, is_row), is_row, mix, clip)


def _client_data(data: Mapping[str, Any], name: str, strata: Any | None) -> ClientData:
    size = len(next(iter(data.values()), ()))
    return ClientData.from_arrays(data, np.full(size, str(name)), strata=strata)


def _to_values(objective: Any, constraint: Any, statistics: Any) -> Values:
    sums = None if statistics is None else np.asarray(statistics, float).tolist()
    return Values(float(objective), np.asarray(constraint, float).tolist(), sums)


def _draw(oracle: GradientOracle, seed_words: jax.Array) -> Any:
    seed, k, client = seed_words
    return oracle.draw(jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), k), client))


@jax.jit
def _report(oracle: GradientOracle, params: Params, seed_words: jax.Array) -> tuple[Any, Any, Any]:
    values: tuple[Any, Any, Any] = jax.tree.map(itemgetter(0), oracle.report_values(params, _draw(oracle, seed_words)))
    return values


@partial(jax.jit, static_argnames="switches")
def _update(
    oracle: GradientOracle, params: Params, seed_words: jax.Array, loss: LocalLoss, step_size: Any, *, switches: bool
) -> Params:
    decision = Decision(
        criterion=jnp.zeros(()),
        feasible=jnp.asarray(loss.objective) > 0,
        weights=jnp.ones(1, float_dtype(params)),
        local_loss=loss._replace(constraint=loss.constraint[None]),
    )
    return oracle.direction(params, _draw(oracle, seed_words), None, decision, switches, step_size)
