"""NumpyClient: a client that computes with NumPy."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from softswitch.flower.local_client import Classes, RowClient, Task, row_shares
from softswitch.flower.messages import Arrays, LocalDerivatives, Values, to_values
from softswitch.methods.messages import LocalLoss
from softswitch.oracles.batch_sizes import choose_batches, draw_rows
from softswitch.privacy.clipping import sum_clipped_gradients
from softswitch.problem.ranges import Range, function_ranges
from softswitch.results.certificate import Interval
from softswitch.support import checks

if TYPE_CHECKING:  # importing JAX and SciPy takes longer than most messages
    from softswitch.certification.intervals import ErrorLevels
    from softswitch.oracles.options import BatchSize, ValueBatchSize

Function = Callable[[Arrays, Arrays], tuple[Any, Mapping[str, Any]]]


class NumpyClient(RowClient):
    """A client with NumPy functions that return a value and its gradient, as for SciPy's ``jac=True``.

    The further arguments are those of ``RowClient``.

    Args:
        objective: ``(params, batch) -> (value, gradient)``; the gradient has the names of the parameters.
        constraint: ``(params, batch) -> (value, gradient)``; a vector of values has a gradient with one row per value.
            With a ``constraint_surrogate``, the gradient of the constraint may be None.
        data: The columns, such as ``{"X": X, "y": y}``, with one entry per sample.
        start: Parameters by name, to determine the number of constraints.
        hessian: ``(params, batch, weights) -> matrix``, for ``SQP``: the Hessian of the objective and the constraints,
            summed with these weights. Parameters are in the order of their sorted names. Default: no second
            derivatives.
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
        hessian: Callable[[Arrays, Arrays, np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self._init = NumpyClient.__init__, {key: value for key, value in locals().items() if key != "self"}
        functions = {"objective": objective, "constraint": constraint}
        if constraint_surrogate is not None:
            functions["constraint_surrogate"] = constraint_surrogate
        for argument, function in functions.items():
            checks.check_callable(argument, function, "(params, batch) -> (value, gradient)")
        self._objective, self._constraint, self._surrogate = objective, constraint, constraint_surrogate
        self.has_surrogate = constraint_surrogate is not None
        self._data, self.rows = _columns("data", data)
        self._held_out, self.held_out_rows = (None, 0) if held_out is None else _columns("held_out", held_out)
        self.start = {key: np.asarray(value) for key, value in start.items()}
        parameters = sum(value.size for value in self.start.values())
        self._batches = choose_batches(batch_size, value_batch_size, replace, self.rows, parameters)
        if hessian is not None:
            checks.check_callable("hessian", hessian, "(params, batch, weights) -> matrix")
        self._hessian, self.is_exact = hessian, True
        self._replace = replace is not False
        self.name = str(name)
        self.value_rows, self.gradient_rows = (self.rows if size is None else size for size in self._batches)
        self.constraints = len(self._values(self.start, self._data)) - 1
        if constraint_surrogate is not None:
            from softswitch.problem.problem import check_surrogate_size

            check_surrogate_size(np.size(constraint_surrogate(self.start, self._data)[0]), self.constraints)
        self.pieces = 0 if hessian is None or self.has_surrogate else self.constraints
        self.ranges = function_ranges(objective_range, constraint_range, self.constraints)
        self._set_classes(classes, held_out_classes, (self._data, self._held_out))

    def report(self, params: Arrays, task: Task) -> Values:
        """Return f_i and g_i on a batch."""
        return to_values(self._values(params, self._batch(self._generator(task, 0), self._batches.report)))

    def update(self, params: Arrays, task: Task, loss: LocalLoss) -> Arrays:
        """Return u_i, the mean of E gradients along the local path."""
        generator = self._generator(task, 1)
        total = {name: np.zeros_like(value) for name, value in params.items()}
        for _ in range(task.local_steps):
            point = {name: value - task.step_size * total[name] for name, value in params.items()}
            gradient = self._gradient(point, self._batch(generator, self._batches.update), loss)
            total = {name: total[name] + gradient[name] for name in total}
        return {name: (part / task.local_steps).astype(params[name].dtype) for name, part in total.items()}

    def evaluate(self, params: Arrays) -> Values:
        """Return f_i and g_i on all rows."""
        return to_values(self._values(params, self._data))

    def _intervals(self, params: Arrays, levels: ErrorLevels, ranges: list[Range | None]) -> list[Interval]:
        from softswitch.certification.intervals import intervals_from_function, perturb_params

        def evaluate_rows(point: Arrays, rows: np.ndarray) -> np.ndarray:
            return self._values(point, _take(self._held_out, rows))

        def evaluate_elsewhere(attempt: int) -> Callable[[np.ndarray], np.ndarray]:
            return partial(evaluate_rows, perturb_params(params, attempt))

        evaluate = partial(evaluate_rows, params)
        return intervals_from_function(evaluate, self.held_out_rows, levels, ranges, evaluate_elsewhere)

    def derivatives(self, params: Arrays, weights: np.ndarray) -> LocalDerivatives:
        """Return f_i, g_i, their gradients and the Hessian of their weighted sum on all rows."""
        assert self._hessian is not None
        values, gradients, size = [], [], sum(value.size for value in params.values())
        for function in (self._objective, self._constraint):
            value, gradient = function(params, self._data)
            values.append(np.atleast_1d(np.asarray(value, float)))
            rows = [np.reshape(gradient[name], (len(values[-1]), -1)) for name in sorted(params)]
            gradients.append(np.concatenate(rows, axis=1))
        hessian = np.zeros((size, size))
        if weights.any():
            hessian = np.asarray(self._hessian(params, self._data, weights), float)
        return LocalDerivatives(np.concatenate(values), np.concatenate(gradients), (hessian + hessian.T) / 2)

    def row_curvatures(self, params: Arrays, weights: np.ndarray) -> np.ndarray:
        """Return the norm of each row's share of each function's Hessian."""

        def row_hessian(weight: np.ndarray, row: int) -> np.ndarray:
            assert self._hessian is not None
            return np.asarray(self._hessian(params, _take(self._data, slice(row, row + 1)), weight), float)

        with np.errstate(all="ignore"):
            used = np.eye(len(weights))[weights > 0]
            return np.stack([row_shares(partial(row_hessian, weight), self.rows) for weight in used], axis=1)

    def clipped_gradient(self, params: Arrays, rows: np.ndarray, mix: np.ndarray, clip: float) -> Arrays:
        """Return the sum over rows of the clipped gradients of <mix, (f, g)>."""
        batches = (_take(self._data, slice(row, row + 1)) for row in rows)
        return sum_clipped_gradients((self._row_gradient(params, batch, mix) for batch in batches), params, clip)

    def _row_gradient(self, params: Arrays, row: Arrays, mix: np.ndarray) -> Arrays:
        """Return the gradient of <mix, (f, g)> on one row, without functions that do not apply to it."""
        with np.errstate(all="ignore"):
            values = self._values(params, row)
            weights = np.where(np.isnan(values) | np.isneginf(values), 0.0, mix)
            return self._gradient(params, row, LocalLoss(float(weights[0]), weights[1:], 0.0, 0.0))  # type: ignore[arg-type]

    def _by_rows(self, params: Arrays, data: Arrays, rows: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            values = [self._values(params, _take(data, slice(row, row + 1))) for row in rows]
        return np.array(values).reshape(len(rows), 1 + self.constraints)

    def _values(self, params: Arrays, batch: Arrays) -> np.ndarray:
        """Return f and each g."""
        values = (function(params, batch)[0] for function in (self._objective, self._constraint))
        return np.concatenate([np.atleast_1d(np.asarray(value, float)) for value in values])

    def _gradient(self, params: Arrays, batch: Arrays, loss: LocalLoss) -> Arrays:
        """Return the gradient of a·f + <b, g> + c·Σ max(0, g − ε), with the surrogate's gradient in place of g's."""
        total = {name: np.zeros_like(value) for name, value in params.items()}
        if loss.objective:
            gradient = self._objective(params, batch)[1]
            total = {name: part + float(loss.objective) * gradient[name] for name, part in total.items()}
        mix = np.asarray(loss.constraint)
        if loss.penalty or mix.any():
            value, gradient = self._constraint(params, batch)
            if self._surrogate is not None:
                gradient = self._surrogate(params, batch)[1]
            weights = mix + float(loss.penalty) * (np.atleast_1d(value) > float(loss.tolerance))
            rows = {name: np.reshape(gradient[name], (len(weights), *part.shape)) for name, part in total.items()}
            used = weights != 0  # the gradient of a constraint of weight 0 may be NaN
            total = {name: part + np.tensordot(weights[used], rows[name][used], axes=1) for name, part in total.items()}
        return total

    def _batch(self, generator: np.random.Generator, size: int | None) -> Arrays:
        return self._data if size is None else _take(self._data, draw_rows(generator, self.rows, size, self._replace))

    def _generator(self, task: Task, purpose: int) -> np.random.Generator:
        return np.random.default_rng((task.seed, task.round, zlib.crc32(self.name.encode()), purpose))


def _take(columns: Arrays, rows: Any) -> Arrays:
    return {key: column[rows] for key, column in columns.items()}


def _columns(argument: str, data: Mapping[str, Any]) -> tuple[Arrays, int]:
    columns = {key: np.asarray(column) for key, column in data.items()}
    sizes = {len(column) for column in columns.values()}
    if len(sizes) != 1 or not max(sizes):
        raise ValueError(f"{argument} must be columns of the same length, at least 1, but has lengths {sizes}")
    return columns, sizes.pop()
