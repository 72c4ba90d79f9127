"""A client that computes with NumPy: two functions that give a value and its gradient, and arrays."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from softswitch.flower.local_client import Task, merge_ranges
from softswitch.flower.messages import Arrays, Values
from softswitch.flower.policy import Classes, RowClasses, min_class_rows_in_batch, part_of
from softswitch.methods.messages import LocalLoss
from softswitch.oracles.batch_sizes import choose_batches, draw_rows
from softswitch.privacy.clipping import clipped_total
from softswitch.problem.ranges import Range, function_ranges
from softswitch.results.certificate import Interval
from softswitch.support import checks

if TYPE_CHECKING:  # a process for every message: JAX and SciPy are imported only where they are needed
    from softswitch.certification.intervals import ErrorLevels
    from softswitch.oracles.options import BatchSize, ValueBatchSize

Function = Callable[[Arrays, Arrays], tuple[Any, Mapping[str, Any]]]


class NumpyClient:
    """One client with NumPy functions, as one would write them for scikit-learn or for SciPy's ``jac=True``.

    Args:
        objective: ``(params, batch) -> (value, gradient)``; the gradient has the names of the parameters.
        constraint: ``(params, batch) -> (value, gradient)``; a vector of values has a gradient with one row each.
        data: its columns, such as ``{"X": X, "y": y}``, one row a sample.
        start: parameters by name, to learn from how many constraints there are.
        name: its label.
        batch_size: rows it draws for a gradient; None: all rows; "auto": all of them where that is cheap.
        value_batch_size: rows it draws for its report; "same": as ``batch_size``, each by its own cost where that is
            "auto".
        replace: draw rows with replacement, or without. Left out: with, but where it has no more rows than a batch, it
            takes each of them once.
        held_out: rows it does not train on, for the certificate.
        classes: which class or group each row is of, where the functions look at some rows by themselves: a column's
            name, a tuple of names, or one label a row. For the client's policy, which answers on none of too few rows.
        held_out_classes: likewise of the rows held out; left out: the same columns, where ``classes`` names them.
        constraint_surrogate: ``(params, batch) -> (value, gradient)``: its gradient is followed in place of the
            constraint's, which may then be None; see ``Problem``.
        objective_range: (low, high) if the objective on a single row lies between them, {low, high} if it is one of the
            two; for the certificate, where the server says nothing of it.
        constraint_range: likewise of the constraint, {0, 1} for a rate; one for all constraints, or one each.
    """

    def __init__(
        self,
        objective: Function,
        constraint: Function,
        data: Mapping[str, Any],
        start: Mapping[str, Any],
        *,
        name: str,
        batch_size: BatchSize = "auto",
        value_batch_size: ValueBatchSize = "same",
        replace: bool | None = None,
        held_out: Mapping[str, Any] | None = None,
        classes: Classes = None,
        held_out_classes: Classes = None,
        constraint_surrogate: Function | None = None,
        objective_range: Range | None = None,
        constraint_range: Range | Sequence[Range | None] | None = None,
    ) -> None:
        checks.function("objective", objective, "(params, batch) -> (value, gradient)")
        checks.function("constraint", constraint, "(params, batch) -> (value, gradient)")
        if constraint_surrogate is not None:
            checks.function("constraint_surrogate", constraint_surrogate, "(params, batch) -> (value, gradient)")
        self._objective, self._constraint, self._stand_in = objective, constraint, constraint_surrogate
        self.has_surrogate = constraint_surrogate is not None
        self.can_repeat_reports = True
        self._data, self.rows = _columns("data", data)
        self._held_out: Arrays | None = None
        self.held_out_rows = 0
        if held_out is not None:
            self._held_out, self.held_out_rows = _columns("held_out", held_out)
        first = self.start = {key: np.asarray(value) for key, value in start.items()}
        parameters = sum(value.size for value in first.values())
        self._batches = choose_batches(batch_size, value_batch_size, replace, self.rows, parameters)
        self._replace = replace is not False
        self.name = str(name)
        self.value_rows, self.gradient_rows = (self.rows if size is None else size for size in self._batches)
        self.constraints = len(self._values(first, self._data)) - 1
        if constraint_surrogate is not None:
            from softswitch.problem.problem import check_stand_in

            stood_for = np.atleast_1d(np.asarray(constraint_surrogate(first, self._data)[0])).size
            check_stand_in(stood_for, self.constraints)
        self._ranges = function_ranges(objective_range, constraint_range, self.constraints)
        self.classes = RowClasses.told(
            classes, held_out_classes, (self._data, self._held_out), (self.rows, self.held_out_rows)
        )
        self.class_rows = self.classes.rows
        if self.class_rows is not None:
            self.class_rows_per_batch = min_class_rows_in_batch(
                self.class_rows, min(self.value_rows, self.gradient_rows)
            )
        self._how: dict[str, Any] = {
            "name": name,
            "batch_size": batch_size,
            "value_batch_size": value_batch_size,
            "replace": replace,
            "constraint_surrogate": constraint_surrogate,
            "objective_range": objective_range,
            "constraint_range": constraint_range,
        }

    def only(self, rows: np.ndarray, held_out: np.ndarray | None) -> NumpyClient:
        """The same client with some of its rows, as if it had no others.

        Args:
            rows: which of those to train on,
            held_out: and which of those held out; None: all.
        """
        own, how = copy(self), self._how | self.classes.of(rows, held_out)
        data, left = part_of(self._data, rows), part_of(self._held_out, held_out)
        NumpyClient.__init__(own, self._objective, self._constraint, data, self.start, held_out=left, **how)
        return own

    def report(self, params: Arrays, task: Task) -> Values:
        """f_i and g_i on a batch."""
        values = self._values(params, self._batch(self._generator(task, 0), self._batches.report))
        return Values(float(values[0]), values[1:].tolist())

    def update(self, params: Arrays, task: Task, loss: LocalLoss) -> Arrays:
        """u_i: the mean of E gradients along the local path."""
        generator = self._generator(task, 1)
        total = {name: np.zeros_like(value) for name, value in params.items()}
        for _ in range(task.local_steps):
            here = {name: value - task.step_size * total[name] for name, value in params.items()}
            gradient = self._gradient(here, self._batch(generator, self._batches.update), loss)
            total = {name: total[name] + gradient[name] for name in total}
        return {name: (part / task.local_steps).astype(params[name].dtype) for name, part in total.items()}

    def evaluate(self, params: Arrays) -> Values:
        """f_i and g_i on all rows."""
        values = self._values(params, self._data)
        return Values(float(values[0]), values[1:].tolist())

    def certify(
        self, params: Arrays, error: float, ranges: Sequence[Range | None], *, levels: ErrorLevels | None = None
    ) -> list[Interval]:
        """Intervals from the rows held out."""
        from softswitch.certification.intervals import ErrorLevels, intervals_from_function, perturb_params

        assert self._held_out is not None
        held_out = self._held_out

        def at(there: Arrays, rows: np.ndarray) -> np.ndarray:
            return self._values(there, {key: column[rows] for key, column in held_out.items()})

        def elsewhere(attempt: int) -> Callable[[np.ndarray], np.ndarray]:
            return partial(at, perturb_params(params, attempt))

        known = merge_ranges(ranges, self._ranges)
        return intervals_from_function(
            partial(at, params), self.held_out_rows, levels or ErrorLevels.uniform(error), known, elsewhere
        )

    @property
    def ranges(self) -> list[Range | None]:
        """Of f and then g on a row, as far as they are known."""
        return self._ranges

    def row_values(self, params: Arrays, rows: np.ndarray) -> np.ndarray:
        """f and then g on single rows."""
        return self._by_rows(params, self._data, rows)

    def held_out_values(self, params: Arrays, rows: np.ndarray) -> np.ndarray:
        """The same of rows held out."""
        assert self._held_out is not None
        return self._by_rows(params, self._held_out, rows)

    def clipped_gradient(self, params: Arrays, rows: np.ndarray, mix: np.ndarray, clip: float) -> Arrays:
        """The sum of the gradients of <mix, (f, g)> on single rows, none longer than ``clip``."""
        single = ({key: column[row : row + 1] for key, column in self._data.items()} for row in rows)
        return clipped_total((self._row_gradient(params, one, mix) for one in single), params, clip)

    def _row_gradient(self, params: Arrays, row: Arrays, mix: np.ndarray) -> Arrays:
        """Of <mix, (f, g)> on one row; functions that do not concern it, whose gradients may be anything, left out."""
        with np.errstate(all="ignore"):
            values = self._values(params, row)
            own = np.where(np.isnan(values) | np.isneginf(values), 0.0, mix)
            return self._gradient(params, row, LocalLoss(float(own[0]), own[1:], 0.0, 0.0))  # type: ignore[arg-type]

    def _by_rows(self, params: Arrays, data: Arrays, rows: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            told = [self._values(params, {key: column[row : row + 1] for key, column in data.items()}) for row in rows]
        return np.array(told).reshape(len(rows), 1 + self.constraints)

    def _values(self, params: Arrays, batch: Arrays) -> np.ndarray:
        """f and then g."""
        return np.concatenate(
            [np.atleast_1d(np.asarray(f(params, batch)[0], float)) for f in (self._objective, self._constraint)]
        )

    def _gradient(self, params: Arrays, batch: Arrays, loss: LocalLoss) -> Arrays:
        """Of a·f + <b, g> + c·Σ max(0, g − ε), with its stand-in's gradient for g's; weights of 0 cost nothing."""
        total = {name: np.zeros_like(value) for name, value in params.items()}
        if loss.objective:
            gradient = self._objective(params, batch)[1]
            total = {name: part + float(loss.objective) * gradient[name] for name, part in total.items()}
        mix = np.asarray(loss.constraint)
        if loss.penalty or mix.any():
            value, gradient = self._constraint(params, batch)
            if self._stand_in is not None:
                gradient = self._stand_in(params, batch)[1]
            price = mix + float(loss.penalty) * (np.atleast_1d(value) > float(loss.tolerance))
            rows = {name: np.reshape(gradient[name], (len(price), *part.shape)) for name, part in total.items()}
            used = price != 0  # the gradient of a constraint that weighs nothing may be anything
            total = {name: part + np.tensordot(price[used], rows[name][used], axes=1) for name, part in total.items()}
        return total

    def _batch(self, generator: np.random.Generator, size: int | None) -> Arrays:
        if size is None:
            return self._data
        rows = draw_rows(generator, self.rows, size, self._replace)
        return {key: column[rows] for key, column in self._data.items()}

    def _generator(self, task: Task, purpose: int) -> np.random.Generator:
        """From the run's seed, the client's name and the round alone."""
        return np.random.default_rng((task.seed, task.round, zlib.crc32(self.name.encode()), purpose))


def _columns(argument: str, data: Mapping[str, Any]) -> tuple[Arrays, int]:
    columns = {key: np.asarray(column) for key, column in data.items()}
    sizes = {len(column) for column in columns.values()}
    if len(sizes) != 1 or not max(sizes):
        raise ValueError(f"{argument} must be columns with one entry a sample, at least one, but has lengths {sizes}")
    return columns, sizes.pop()
