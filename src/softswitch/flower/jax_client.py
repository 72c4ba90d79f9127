"""JaxClient: a client that computes with JAX, with the same Problem as solve()."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from softswitch.certification.certify import compute_intervals, resolve_ranges
from softswitch.certification.intervals import ErrorLevels
from softswitch.data.client_data import ClientData, Rows
from softswitch.data.sampling import all_rows
from softswitch.engine.auto_tuning import size_of
from softswitch.flower.arrays import flatten_params, unflatten_params
from softswitch.flower.local_client import Task, merge_ranges
from softswitch.flower.messages import Arrays, Values
from softswitch.flower.policy import Classes, RowClasses, min_class_rows_in_batch, take_rows
from softswitch.methods.messages import Decision, LocalLoss
from softswitch.oracles.batch_sizes import choose_batches
from softswitch.oracles.federation import make_gradient_oracle
from softswitch.oracles.gradient import GradientOracle
from softswitch.oracles.losses import Losses
from softswitch.oracles.options import BatchSize, Compute, Sampling, ValueBatchSize
from softswitch.privacy.jax_rows import evaluate_rows, sum_clipped_gradients
from softswitch.problem.domains import Domain
from softswitch.problem.parameters import Params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import Range
from softswitch.results.certificate import Interval


class JaxClient:
    """A client with a ``Problem``, computed as in the compiled engine; the client draws its own batches.

    Args:
        problem: The problem with objective, constraint and start.
        data: The columns, with one entry per sample.
        name: The client's name.
        batch_size: Number of rows in the batch of a gradient; None: all rows; "auto": all rows if that is cheap.
        value_batch_size: Number of rows in the batch of a report. "same": as ``batch_size``; if that is "auto", each
            size is chosen from its own cost.
        replace: Whether rows are drawn with replacement. Default: with replacement, except that a client with no more
            rows than a batch uses each row once.
        strata: A column to stratify batches by, as in ``ClientData.from_arrays``.
        held_out: Columns of rows that are not used for training, for the certificate.
        classes: The class or group of each row, if a function depends on it: a column name, a tuple of column names, or
            one label per row. Default: ``strata``. ``ClientPolicy`` excludes small classes.
        held_out_classes: The classes of the held-out rows. Default: the same columns, if ``classes`` names columns.
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
        self._held_out = None if held_out is None else _client_data(held_out, name, None)
        self.rows = int(self._data.sizes[0])
        sizes: dict[str, Any] = {"batch_size": batch_size, "value_batch_size": value_batch_size, "replace": replace}
        self._batches, self._options = sizes, {"name": name, **sizes}
        if "auto" in (batch_size, value_batch_size):
            report, update = choose_batches(batch_size, value_batch_size, replace, self.rows, size_of(problem.start))
            self._batches = {**sizes, "batch_size": update, "value_batch_size": report}
        self._oracles: dict[int, GradientOracle] = {}
        oracle = self._oracle(1)
        self._dtype = np.dtype(float_dtype(problem.start))
        self.name = str(name)
        self._checksum = zlib.crc32(self.name.encode())
        self.held_out_rows = 0 if self._held_out is None else int(self._held_out.sizes[0])
        self.value_rows = oracle.report_batching.width
        self.gradient_rows = oracle.update_batching.width
        self.constraints = oracle.constraints
        self.has_surrogate = oracle.has_surrogate
        self.can_repeat_reports = True
        self.classes = RowClasses.from_arguments(
            strata if classes is None else classes,
            held_out_classes,
            (data, held_out),
            (self.rows, self.held_out_rows),
        )
        self.class_rows = self.classes.rows
        self._is_stratified_by_class = classes is None
        if self.class_rows is not None:
            self.class_rows_per_batch = self._min_class_rows_in_batch(self.class_rows)
        self._columns = data, held_out, strata
        statistics = jax.eval_shape(_report, oracle, problem.start, np.zeros(3, np.uint32))[2]
        self.statistics = 0 if statistics is None else int(statistics.shape[0])

    def _min_class_rows_in_batch(self, class_rows: Mapping[str, int]) -> int:
        counts, sizes = [], self._data.stratum_sizes[0].tolist()
        for batching in (self._oracle(1).report_batching, self._oracle(1).update_batching):
            if self._is_stratified_by_class and batching.draws is not None:
                counts += [min(size, draws) for size, draws in zip(sizes, batching.draws, strict=True) if size]
            else:
                counts.append(min_class_rows_in_batch(class_rows, batching.width))
        return min(counts)

    def restrict(self, rows: np.ndarray, held_out: np.ndarray | None) -> JaxClient:
        """Return this client with the selected rows only.

        Args:
            rows: Mask of the training rows to keep.
            held_out: Mask of the held-out rows to keep, or None for all.
        """
        data, held_out_data, strata = self._columns
        client, options = copy(self), self._options | self.classes.arguments(rows, held_out)
        if self._is_stratified_by_class:
            del options["classes"]
        if not (strata is None or isinstance(strata, str | tuple)):
            strata = np.asarray(strata)[rows]
        options |= {"strata": strata, "held_out": take_rows(held_out_data, held_out)}
        JaxClient.__init__(client, self._problem, take_rows(data, rows), **options)
        return client

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
        return _to_values(*_evaluate(self._oracle(1), self._tree(params)))

    def certify(
        self, params: Arrays, error: float, ranges: Sequence[Range | None], *, levels: ErrorLevels | None = None
    ) -> list[Interval]:
        """Return confidence intervals from the held-out rows, as ``softswitch.certify`` does."""
        assert self._held_out is not None
        levels, known = levels or ErrorLevels.uniform(error), merge_ranges(ranges, self.ranges)
        return compute_intervals(self._tree(params), self._problem, self._held_out, levels, known)[0]

    @property
    def start(self) -> Arrays:
        """The problem's start as arrays by name."""
        return flatten_params(self._problem.start)

    @property
    def ranges(self) -> list[Range | None]:
        """The problem's ranges of f and each g on a single row."""
        return resolve_ranges(self._problem, None, None, self.constraints)

    def row_values(self, params: Arrays, rows: np.ndarray) -> np.ndarray:
        """Return f and each g on single training rows."""
        if self.statistics:
            raise ValueError("a PooledConstraint has no values on single rows")
        return self._by_rows(self._data, params, rows)

    def held_out_values(self, params: Arrays, rows: np.ndarray) -> np.ndarray:
        """Return f and each g on single held-out rows."""
        assert self._held_out is not None
        return self._by_rows(self._held_out, params, rows)

    def clipped_gradient(self, params: Arrays, rows: np.ndarray, mix: np.ndarray, clip: float) -> Arrays:
        """Return the sum over rows of the clipped gradients of <mix, (f, g)>."""
        indices, is_row = _pad(rows)
        store, losses = self._data.rows, Losses.of(self._problem)
        shares = mix.astype(self._dtype)
        return flatten_params(
            _clipped(store, self._tree(params), indices, is_row, shares, self._dtype.type(clip), losses)
        )

    def _by_rows(self, data: ClientData, params: Arrays, rows: np.ndarray) -> np.ndarray:
        indices, _ = _pad(rows)
        values = _row_values(data.rows, self._tree(params), indices, Losses.of(self._problem))
        return np.asarray(values, float)[: len(rows)]

    @property
    def domain(self) -> Domain | None:
        """The problem's domain, or None."""
        return self._problem.domain

    def _oracle(self, local_steps: int) -> GradientOracle:
        if local_steps not in self._oracles:
            sampling, compute = Sampling(local_steps=local_steps, **self._batches), Compute(client_batch_size=1)
            self._oracles[local_steps] = make_gradient_oracle(self._problem, self._data, sampling, compute)
        return self._oracles[local_steps]

    def _tree(self, params: Arrays) -> Params:
        return unflatten_params(params, self._problem.start)

    def _seed_words(self, task: Task) -> np.ndarray:
        """Return the seed of a round's draws as three words; a seed of more than 32 bits is spread over all three."""
        low, middle, high = ((task.seed >> shift) & 0xFFFFFFFF for shift in (0, 32, 64))
        return np.array([low, task.round ^ middle, self._checksum ^ high], np.uint32)


def _pad(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pad indices to a power of two, to compile few programs, and return them with a mask of the actual rows."""
    width = 1 << max(0, len(rows) - 1).bit_length()
    indices = np.zeros(width, np.int32)
    indices[: len(rows)] = rows
    return indices, np.arange(width) < len(rows)


@partial(jax.jit, static_argnames="losses")
def _row_values(rows: Rows, params: Params, indices: jax.Array, losses: Losses) -> jax.Array:
    return evaluate_rows(losses, params, rows.take(indices, indices))


@partial(jax.jit, static_argnames="losses")
def _clipped(
    rows: Rows, params: Params, indices: jax.Array, is_row: jax.Array, mix: jax.Array, clip: Any, losses: Losses
) -> Params:
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
    draws = _draw(oracle, seed_words)
    reports, _ = oracle.report(params, draws)
    batch = oracle.batch(oracle.report_batching, draws.clients[0], draws.report_rows[0], float_dtype(params))
    return reports.objective[0], reports.constraint[0], oracle.losses.statistics(params, batch)


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


@jax.jit
def _evaluate(oracle: GradientOracle, params: Params) -> tuple[Any, Any, Any]:
    objective, constraint = oracle.evaluate(params)
    assert oracle.evaluation_plan is not None
    everything = oracle.rows.take(
        *all_rows(oracle.rows, jnp.int32(0), oracle.evaluation_plan.widths[0], float_dtype(params))
    )
    return objective[0], constraint[0], oracle.losses.statistics(params, everything)
