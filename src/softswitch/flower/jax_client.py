"""A client that computes with JAX: the same Problem as in solve(), on one client's rows."""

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
from softswitch.data.sampling import whole
from softswitch.engine.auto_tuning import size_of
from softswitch.flower.arrays import flatten_params, unflatten_params
from softswitch.flower.local_client import Task, merge_ranges
from softswitch.flower.messages import Arrays, Values
from softswitch.flower.policy import Classes, RowClasses, min_class_rows_in_batch, part_of
from softswitch.methods.messages import Decision, LocalLoss
from softswitch.oracles.batch_sizes import choose_batches
from softswitch.oracles.federation import make_gradient_oracle
from softswitch.oracles.gradient import GradientOracle
from softswitch.oracles.losses import Losses
from softswitch.oracles.options import BatchSize, Compute, Sampling, ValueBatchSize
from softswitch.privacy.jax_clipping import summed_gradients, told_by_rows
from softswitch.problem.domains import Domain
from softswitch.problem.parameters import Params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import Range
from softswitch.results.certificate import Interval


class JaxClient:
    """One client of a ``Problem``, computed as in the compiled engine; batches are drawn by the client for itself.

    Args:
        problem: objective and constraint; the start says how parameters look.
        data: its columns, one row a sample.
        name: its label.
        batch_size: rows it draws for a gradient; None: all of its rows; "auto": all of them where that is cheap.
        value_batch_size: rows it draws for its report; "same": as ``batch_size``, each by its own cost where that is
            "auto".
        replace: draw rows with replacement, or without. Left out: with, but where it has no more rows than a batch, it
            takes each of them once.
        strata: a column to draw by, as in ``ClientData.from_arrays``.
        held_out: rows it does not train on, for the certificate.
        classes: which class or group each row is of, where the functions look at some rows by themselves: a column's
            name, a tuple of names, or one label a row; left out: ``strata``. For the client's policy, which answers on
            none of too few rows.
        held_out_classes: likewise of the rows held out; left out: the same columns, where ``classes`` names them.
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
        self._data = _alone(data, name, strata)
        self._held_out = None if held_out is None else _alone(held_out, name, None)
        self.rows = int(self._data.sizes[0])
        self._batches: dict[str, Any] = {
            "batch_size": batch_size,
            "value_batch_size": value_batch_size,
            "replace": replace,
        }
        if "auto" in (batch_size, value_batch_size):
            report, update = choose_batches(batch_size, value_batch_size, replace, self.rows, size_of(problem.start))
            self._batches |= {"batch_size": update, "value_batch_size": report}
        self._oracles: dict[int, GradientOracle] = {}
        first = self._oracle(1)
        self._dtype = np.dtype(float_dtype(problem.start))
        self.name = str(name)
        self._number = zlib.crc32(self.name.encode())
        self.held_out_rows = 0 if self._held_out is None else int(self._held_out.sizes[0])
        self.value_rows = first.report_batching.width
        self.gradient_rows = first.update_batching.width
        self.constraints = first.constraints
        self.has_surrogate = first.has_surrogate
        self.can_repeat_reports = True
        self.classes = RowClasses.told(
            strata if classes is None else classes,
            held_out_classes,
            (data, held_out),
            (self.rows, self.held_out_rows),
        )
        self.class_rows = self.classes.rows
        self._drawn_by_class = classes is None
        if self.class_rows is not None:
            self.class_rows_per_batch = self._least_in_a_batch(self.class_rows)
        self._columns = data, held_out, strata
        self._how: dict[str, Any] = {
            "name": name,
            "batch_size": batch_size,
            "value_batch_size": value_batch_size,
            "replace": replace,
        }
        told = jax.eval_shape(_report, first, problem.start, np.zeros(3, np.uint32))[2]
        self.statistics = 0 if told is None else int(told.shape[0])

    def _least_in_a_batch(self, class_rows: Mapping[str, int]) -> int:
        """How many rows of its rarest class a batch has."""
        found, sizes = [], self._data.stratum_sizes[0].tolist()
        for batching in (self._oracle(1).report_batching, self._oracle(1).update_batching):
            if self._drawn_by_class and batching.draws is not None:
                found += [min(size, draws) for size, draws in zip(sizes, batching.draws, strict=True) if size]
            else:
                found.append(min_class_rows_in_batch(class_rows, batching.width))
        return min(found)

    def only(self, rows: np.ndarray, held_out: np.ndarray | None) -> JaxClient:
        """The same client with some of its rows, as if it had no others.

        Args:
            rows: which of those to train on,
            held_out: and which of those held out; None: all.
        """
        data, left, strata = self._columns
        own, how = copy(self), self._how | self.classes.of(rows, held_out)
        if self._drawn_by_class:
            del how["classes"]
        if not (strata is None or isinstance(strata, str | tuple)):
            strata = np.asarray(strata)[rows]
        JaxClient.__init__(
            own, self._problem, part_of(data, rows), strata=strata, held_out=part_of(left, held_out), **how
        )
        return own

    def report(self, params: Arrays, task: Task) -> Values:
        """f_i and g_i on a batch."""
        return _values(*_report(self._oracle(task.local_steps), self._tree(params), self._chance(task)))

    def update(self, params: Arrays, task: Task, loss: LocalLoss) -> Arrays:
        """u_i, by the paper's LocalSolver."""
        direction = _update(
            self._oracle(task.local_steps),
            self._tree(params),
            self._chance(task),
            LocalLoss(*(np.asarray(part, self._dtype) for part in loss[:4])),  # type: ignore[arg-type]
            np.asarray(task.step_size, self._dtype),
            switches=task.switches,
        )
        return flatten_params(direction)

    def evaluate(self, params: Arrays) -> Values:
        """f_i and g_i on all rows."""
        return _values(*_judge(self._oracle(1), self._tree(params)))

    def certify(
        self, params: Arrays, error: float, ranges: Sequence[Range | None], *, levels: ErrorLevels | None = None
    ) -> list[Interval]:
        """Intervals from the rows held out, as ``softswitch.certify`` makes them, by ranges given or the problem's."""
        assert self._held_out is not None
        own = resolve_ranges(self._problem, None, None, len(ranges) - 1)
        known = merge_ranges(ranges, own)
        at = ErrorLevels.uniform(error) if levels is None else levels
        return compute_intervals(self._tree(params), self._problem, self._held_out, at, known)[0]

    @property
    def start(self) -> Arrays:
        """Parameters by name, as they come."""
        return flatten_params(self._problem.start)

    @property
    def ranges(self) -> list[Range | None]:
        """Of f and then g on a row, as far as the problem says."""
        return resolve_ranges(self._problem, None, None, self.constraints)

    def row_values(self, params: Arrays, rows: np.ndarray) -> np.ndarray:
        """f and then g on single rows."""
        if self.statistics:
            raise ValueError("a PooledConstraint is no mean over rows")
        return self._by_rows(self._data, params, rows)

    def held_out_values(self, params: Arrays, rows: np.ndarray) -> np.ndarray:
        """The same of rows held out."""
        assert self._held_out is not None
        return self._by_rows(self._held_out, params, rows)

    def clipped_gradient(self, params: Arrays, rows: np.ndarray, mix: np.ndarray, clip: float) -> Arrays:
        """The sum of the gradients of <mix, (f, g)> on single rows, none longer than ``clip``."""
        indices, counted = _padded(rows)
        store, losses = self._data.rows, Losses.of(self._problem)
        shares = mix.astype(self._dtype)
        return flatten_params(
            _clipped(store, self._tree(params), indices, counted, shares, self._dtype.type(clip), losses)
        )

    def _by_rows(self, data: ClientData, params: Arrays, rows: np.ndarray) -> np.ndarray:
        indices, _ = _padded(rows)
        found = _row_values(data.rows, self._tree(params), indices, Losses.of(self._problem))
        return np.asarray(found, float)[: len(rows)]

    @property
    def domain(self) -> Domain | None:
        """What parameters must lie in, by its problem; or None."""
        return self._problem.domain

    def _oracle(self, local_steps: int) -> GradientOracle:
        if local_steps not in self._oracles:
            sampling = Sampling(local_steps=local_steps, **self._batches)
            one_by_one = Compute(client_batch_size=1)
            self._oracles[local_steps] = make_gradient_oracle(self._problem, self._data, sampling, one_by_one)
        return self._oracles[local_steps]

    def _tree(self, params: Arrays) -> Params:
        return unflatten_params(params, self._problem.start)

    def _chance(self, task: Task) -> np.ndarray:
        """What a round's draws depend on; a seed of more than 32 bits is spread over all three."""
        low, middle, high = ((task.seed >> shift) & 0xFFFFFFFF for shift in (0, 32, 64))
        return np.array([low, task.round ^ middle, self._number ^ high], np.uint32)


def _padded(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices, as many as a power of two so that few programs do, and which of them count."""
    width = 1 << max(0, len(rows) - 1).bit_length()
    indices = np.zeros(width, np.int32)
    indices[: len(rows)] = rows
    return indices, np.arange(width) < len(rows)


@partial(jax.jit, static_argnames="losses")
def _row_values(rows: Rows, params: Params, indices: jax.Array, losses: Losses) -> jax.Array:
    return told_by_rows(losses, params, rows.take(indices, indices))


@partial(jax.jit, static_argnames="losses")
def _clipped(
    rows: Rows, params: Params, indices: jax.Array, counted: jax.Array, mix: jax.Array, clip: Any, losses: Losses
) -> Params:
    return summed_gradients(losses, params, rows.take(indices, counted), counted, mix, clip)


def _alone(data: Mapping[str, Any], name: str, strata: Any | None) -> ClientData:
    size = len(next(iter(data.values()), ()))
    return ClientData.from_arrays(data, np.full(size, str(name)), strata=strata)


def _values(objective: Any, constraint: Any, statistics: Any) -> Values:
    told = None if statistics is None else np.asarray(statistics, float).tolist()
    return Values(float(objective), np.asarray(constraint, float).tolist(), told)


def _draw(oracle: GradientOracle, chance: jax.Array) -> Any:
    seed, k, who = chance
    return oracle.draw(jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), k), who))


@jax.jit
def _report(oracle: GradientOracle, params: Params, chance: jax.Array) -> tuple[Any, Any, Any]:
    draws = _draw(oracle, chance)
    reports, _ = oracle.report(params, draws)
    batch = oracle.batch(oracle.report_batching, draws.clients[0], draws.report_rows[0], float_dtype(params))
    return reports.objective[0], reports.constraint[0], oracle.losses.statistics(params, batch)


@partial(jax.jit, static_argnames="switches")
def _update(
    oracle: GradientOracle, params: Params, chance: jax.Array, loss: LocalLoss, step_size: Any, *, switches: bool
) -> Params:
    decision = Decision(
        criterion=jnp.zeros(()),
        feasible=jnp.asarray(loss.objective) > 0,
        weights=jnp.ones(1, float_dtype(params)),
        local_loss=loss._replace(constraint=loss.constraint[None]),
    )
    return oracle.direction(params, _draw(oracle, chance), None, decision, switches, step_size)


@jax.jit
def _judge(oracle: GradientOracle, params: Params) -> tuple[Any, Any, Any]:
    objective, constraint = oracle.evaluate(params)
    assert oracle.evaluation_plan is not None
    everything = oracle.rows.take(
        *whole(oracle.rows, jnp.int32(0), oracle.evaluation_plan.widths[0], float_dtype(params))
    )
    return objective[0], constraint[0], oracle.losses.statistics(params, everything)
