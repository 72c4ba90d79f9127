"""The interface of a client, what clients with rows have in common, and NumpyClient."""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from softswitch.flower.messages import Arrays, LocalDerivatives, Values, to_values
from softswitch.methods.messages import LocalLoss
from softswitch.oracles.batch_sizes import choose_batches, draw_rows
from softswitch.privacy.numpy_rows import average_steps, sum_clipped_gradients
from softswitch.problem.ranges import Range, function_ranges
from softswitch.results.certificate import Interval
from softswitch.support import checks

if TYPE_CHECKING:  # importing JAX and SciPy takes longer than most messages
    from softswitch.certification.intervals import ErrorLevels
    from softswitch.oracles.options import BatchSize, ValueBatchSize

Function = Callable[[Arrays, Arrays], tuple[Any, Mapping[str, Any]]]
Classes = Any
"""A column name, a tuple of column names (all combinations of their values), one label per row, or None."""


class RefusalError(Exception):
    """Raise this in a client to refuse a request; the text is sent to the server as the reason."""


def refuse_unless(condition: Any, reason: str) -> None:
    """Raise ``RefusalError`` unless a condition for a reply holds."""
    if not condition:
        raise RefusalError(reason)


class Task(NamedTuple):
    """The settings that the server sends with the parameters of a round.

    Attributes:
        round, seed: The round k, and the run's seed. A client's batches depend only on the seed, its name and k.
        local_steps, step_size: The number of local steps E, and the local step size γ.
        switches: Whether the local loss is either f_i or a mix of client i's constraints, never both.
    """

    round: int
    seed: int
    local_steps: int
    step_size: float
    switches: bool


@runtime_checkable
class LocalOracle(Protocol):
    """A client. Parameters and directions are arrays by name.

    A client may have more attributes. ``statistics`` is the number of additive statistics that a pooled
    constraint reports. ``has_surrogate = True`` means that its updates follow a surrogate of its constraint. The switch
    then accepts a constraint that equals the tolerance. ``can_repeat_reports = True`` means that ``report`` draws the
    same batch for the same task. A server with drift correction then requests reports at both w_k and w_{k−1}.
    A client for ``SQP`` has the attributes and methods of ``SecondOrderClient`` too. With ``data_digest``, a text that
    identifies the rows, a ``ClientPolicy`` counts answers for each data set separately.

    Attributes:
        name: The client's name, unique among the clients of a run.
        rows, held_out_rows: Numbers of training rows, and of rows held out for the certificate.
        value_rows, gradient_rows: Numbers of rows in the batch of a report, and in that of a gradient.
        constraints: Number of constraints.
    """

    name: str
    rows: int
    held_out_rows: int
    value_rows: int
    gradient_rows: int
    constraints: int

    def report(self, params: Arrays, task: Task) -> Values:
        """Return f_i and g_i at w_k on a batch.

        Args:
            params: The parameters w_k.
            task: The settings of the round.
        """

    def update(self, params: Arrays, task: Task, loss: LocalLoss) -> Arrays:
        """Return the direction u_i of E local steps from w_k on the local loss.

        Args:
            params: The parameters w_k.
            task: The settings of the round.
            loss: The weights of the objective and of this client's constraints.
        """

    def evaluate(self, params: Arrays) -> Values:
        """Return f_i and g_i on all training rows.

        Args:
            params: The parameters to evaluate.
        """

    def certify(self, params: Arrays, levels: ErrorLevels, ranges: Sequence[Range | None]) -> list[Interval]:
        """Return confidence intervals for f_i and g_i from the rows held out.

        Args:
            params: The parameters to certify.
            levels: The error probability of each side of each interval (``joint``); and for the p-values, which may be
                omitted, a second error probability and the tolerance.
            ranges: The ranges of f and of each g on a single row, or None for those that are not known.
        """


@runtime_checkable
class SecondOrderClient(Protocol):
    """What a client has besides the methods of ``LocalOracle`` if it returns second derivatives.

    ``weights`` are those of f and of the pieces of g, and parameters are in float64.

    Attributes:
        pieces: Number of smooth functions that the constraints consist of: a gap |a − b| has two. 0: none.
        is_exact: Whether everything is computed in float64.
        start: Parameters of the model's names and shapes.
    """

    pieces: int
    is_exact: bool
    start: Arrays

    def derivatives(self, params: Arrays, weights: np.ndarray) -> LocalDerivatives:
        """Return f_i, g_i and their gradients on all training rows, and the Hessian of their weighted sum.

        Args:
            params: The parameters.
            weights: λ_i followed by μ_i, one for each piece.
        """

    def row_curvatures(self, params: Arrays, weights: np.ndarray) -> np.ndarray:
        """Return the norm of each training row's share of each function's Hessian, without what all rows share.

        Args:
            params: The parameters.
            weights: λ_i followed by μ_i; functions of weight 0 are omitted.

        Returns:
            Array of shape rows × functions.
        """


@runtime_checkable
class PerRowOracle(LocalOracle, Protocol):
    """A client whose functions can be evaluated on single rows, as a ``PrivateClient`` requires.

    If the values of a row depend on other rows, an attribute ``mixes_rows`` must contain the reason; such a client
    cannot be private. Neither can a client whose attribute ``optimizer`` is not None.

    Attributes:
        start: Parameters of the model's names and shapes; their values do not matter.
    """

    start: Arrays

    def row_values(self, params: Arrays, rows: np.ndarray) -> np.ndarray:
        """Return f and each g on single training rows: an array of shape (rows, functions).

        An entry is −∞ or NaN if the function does not apply to the row.

        Args:
            params: The parameters.
            rows: The indices of the rows.
        """

    def clipped_gradient(self, params: Arrays, rows: np.ndarray, mix: np.ndarray, clip: float) -> Arrays:
        """Return the sum over rows of the clipped gradients of <mix, (f, g)>; a surrogate replaces its constraint.

        The gradient of each row is clipped and rounded to integers, whose sum has dtype int64; call
        ``softswitch.privacy.noise.quantize_rows`` on the stacked gradients, a matrix of rows × parameters.

        Args:
            params: The parameters.
            rows: The indices of the rows.
            mix: The weights of f and each g.
            clip: The largest norm of a row's gradient.
        """

    def held_out_values(self, params: Arrays, rows: np.ndarray) -> np.ndarray:
        """Return f and each g on single rows held out, as ``row_values`` does for training rows.

        Args:
            params: The parameters to certify.
            rows: The indices of the rows.
        """


class RowClient(LocalOracle):
    """What ``JaxClient``, ``NumpyClient`` and ``TorchClient`` have in common: these arguments, by keyword.

    Attributes:
        name: The client's name.
        batch_size: Number of rows in the batch of a gradient; None: all rows; "auto": all rows if that is cheap.
        value_batch_size: Number of rows in the batch of a report. "same": as ``batch_size``; if that is "auto", each
            size is chosen from its own cost.
        replace: Whether rows are drawn with replacement. Default: with replacement, except that a client with no more
            rows than a batch uses each row once.
        held_out: Rows that are not used for training, for the certificate.
        classes: The class or group of each row, if a function depends on it: one label per row, or the name of a column
            or a tuple of names if the data has named columns. See ``ClientPolicy``.
        held_out_classes: The classes of the held-out rows. Default: the same columns, if ``classes`` names columns.
        constraint_surrogate: A function like the constraint. Updates follow its gradient instead of that of a
            discontinuous constraint; see ``Problem``.
        objective_range: (low, high) if the objective on a single row lies between them, {low, high} if it is one of
            them. It is used for the certificate if the server does not send a range.
        constraint_range: The same for the constraint, {0, 1} for a rate; one range for all constraints, or one each.
    """

    ranges: list[Range | None]
    data_digest: str
    has_surrogate, can_repeat_reports = False, True
    held_out_class_rows: Mapping[str, int] | None = None
    _data: Any
    _held_out: Any
    _intervals: Callable[..., list[Interval]]
    _by_rows: Callable[..., np.ndarray]

    def _set_classes(
        self, classes: Classes, held_out_classes: Classes, columns: Sequence[Mapping[str, Any] | None] = (None, None)
    ) -> None:
        """Count the rows of the classes of the training and held-out rows; ``columns`` are those of both."""
        if held_out_classes is None and _column_names(classes):
            held_out_classes = classes
        if classes is not None:
            self.class_rows = _count_class_rows("classes", classes, columns[0], self.rows)
            self.class_rows_per_batch = self._min_class_rows_in_batch(self.class_rows)
        if held_out_classes is not None and self.held_out_rows:
            rows = _count_class_rows("held_out_classes", held_out_classes, columns[1], self.held_out_rows)
            self.held_out_class_rows = rows

    def _min_class_rows_in_batch(self, class_rows: Mapping[str, int]) -> int:
        return expected_class_rows(class_rows, min(self.value_rows, self.gradient_rows))

    def certify(self, params: Arrays, levels: ErrorLevels, ranges: Sequence[Range | None]) -> list[Interval]:
        """Return confidence intervals from the held-out rows."""
        return self._intervals(params, levels, merge_ranges(ranges, self.ranges))

    def row_values(self, params: Arrays, rows: np.ndarray) -> np.ndarray:
        """Return f and each g on single training rows."""
        return self._by_rows(params, self._data, rows)

    def held_out_values(self, params: Arrays, rows: np.ndarray) -> np.ndarray:
        """Return f and each g on single held-out rows."""
        return self._by_rows(params, self._held_out, rows)


def expected_class_rows(class_rows: Mapping[str, int], batch: int) -> int:
    """Return the expected number of rows of the rarest class in a batch, rounded down."""
    rows = sum(class_rows.values())
    return min(batch, rows) * min(class_rows.values()) // rows


def _column_names(classes: Classes) -> tuple[str, ...]:
    names = (classes,) if isinstance(classes, str) else classes
    return names if isinstance(names, tuple) and all(isinstance(name, str) for name in names) else ()


def _count_class_rows(argument: str, classes: Classes, columns: Mapping[str, Any] | None, rows: int) -> dict[str, int]:
    names = _column_names(classes)
    parts = [] if names else [np.asarray(classes)]
    for name in names:
        if columns is None or name not in columns:
            known = "has no named columns" if columns is None else f"has the columns {', '.join(columns)}"
            raise ValueError(f"{argument} must name columns of the client, which {known}, but names {name!r}")
        parts.append(np.asarray(columns[name]))
    if any(part.shape != (rows,) for part in parts):
        raise ValueError(f"{argument} must have one label for each of {rows} rows, but has shape {parts[0].shape}")
    return dict(Counter(" × ".join(map(str, row)) for row in zip(*(part.tolist() for part in parts), strict=True)))


def merge_ranges(server: Sequence[Range | None], client: Sequence[Range | None]) -> list[Range | None]:
    """Return the ranges from the server, completed by those of the client."""
    return [fallback if given is None else given for given, fallback in zip(server, client, strict=True)]


class NumpyClient(RowClient):
    """A client with NumPy functions that return a value and its gradient, as for SciPy's ``jac=True``.

    The further arguments are those of ``RowClient``.

    Args:
        objective: ``(params, batch) -> (value, gradient)``; the gradient has the names of the parameters.
        constraint: ``(params, batch) -> (value, gradient)``; a vector of values has a gradient with one row per value.
            With a ``constraint_surrogate``, the gradient of the constraint may be None.
        data: The columns, such as ``{"X": X, "y": y}``, with one entry per sample.
        start: Parameters by name, to determine the number of constraints.
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
        functions = {"objective": objective, "constraint": constraint}
        if constraint_surrogate is not None:
            functions["constraint_surrogate"] = constraint_surrogate
        for argument, function in functions.items():
            checks.check_callable(argument, function, "(params, batch) -> (value, gradient)")
        self._objective, self._constraint, self._surrogate = objective, constraint, constraint_surrogate
        self.has_surrogate = constraint_surrogate is not None
        self._data, self.rows = _columns("data", data)
        self.data_digest = _digest(self._data)
        self._held_out, self.held_out_rows = (None, 0) if held_out is None else _columns("held_out", held_out)
        self.start = {key: np.asarray(value) for key, value in start.items()}
        parameters = sum(value.size for value in self.start.values())
        self._batches = choose_batches(batch_size, value_batch_size, replace, self.rows, parameters)
        self._replace = replace is not False
        self.name = str(name)
        self.value_rows, self.gradient_rows = (self.rows if size is None else size for size in self._batches)
        self.constraints = len(self._values(self.start, self._data)) - 1
        if constraint_surrogate is not None:
            from softswitch.problem.problem import check_surrogate_size

            check_surrogate_size(np.size(constraint_surrogate(self.start, self._data)[0]), self.constraints)
        self.ranges = function_ranges(objective_range, constraint_range, self.constraints)
        self._set_classes(classes, held_out_classes, (self._data, self._held_out))

    def report(self, params: Arrays, task: Task) -> Values:
        """Return f_i and g_i on a batch."""
        return to_values(self._values(params, self._batch(self._generator(task, 0), self._batches.report)))

    def update(self, params: Arrays, task: Task, loss: LocalLoss) -> Arrays:
        """Return u_i, the mean of E gradients along the local path."""
        generator = self._generator(task, 1)

        def gradient(point: Arrays) -> Arrays:
            return self._gradient(point, self._batch(generator, self._batches.update), loss)

        return average_steps(params, task.local_steps, task.step_size, gradient)

    def evaluate(self, params: Arrays) -> Values:
        """Return f_i and g_i on all rows."""
        return to_values(self._values(params, self._data))

    def _intervals(self, params: Arrays, levels: ErrorLevels, ranges: list[Range | None]) -> list[Interval]:
        from softswitch.certification.intervals import intervals_from_function

        def evaluate_rows(point: Arrays, rows: np.ndarray) -> np.ndarray:
            return self._values(point, _take(self._held_out, rows))

        return intervals_from_function(evaluate_rows, params, self.held_out_rows, levels, ranges)

    def clipped_gradient(self, params: Arrays, rows: np.ndarray, mix: np.ndarray, clip: float) -> Arrays:
        """Return the sum over rows of the clipped gradients of <mix, (f, g)>, in integers."""

        def gradient(row: int) -> Arrays:
            batch = _take(self._data, slice(row, row + 1))
            values = self._values(params, batch)
            weights: Any = np.where(np.isnan(values) | np.isneginf(values), 0.0, mix)  # without functions it lacks
            return self._gradient(params, batch, LocalLoss(float(weights[0]), weights[1:], 0.0, 0.0))

        return sum_clipped_gradients(map(gradient, rows), params, clip)

    def _by_rows(self, params: Arrays, data: Arrays, rows: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            values = [self._values(params, _take(data, slice(row, row + 1))) for row in rows]
        return np.array(values).reshape(len(rows), 1 + self.constraints)

    def _values(self, params: Arrays, batch: Arrays) -> np.ndarray:
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


def _digest(columns: Arrays) -> str:
    digest = hashlib.sha256()
    for name, column in sorted(columns.items()):
        plain = column.astype(str) if column.dtype.hasobject else np.ascontiguousarray(column)
        content: Any = plain.reshape(-1).view(np.uint8)
        digest.update(repr((name, plain.shape, plain.dtype.str)).encode())
        digest.update(content)
    return digest.hexdigest()


def _columns(argument: str, data: Mapping[str, Any]) -> tuple[Arrays, int]:
    columns = {key: np.asarray(column) for key, column in data.items()}
    sizes = {len(column) for column in columns.values()}
    if len(sizes) != 1 or not max(sizes):
        raise ValueError(f"{argument} must be columns of the same length, at least 1, but has lengths {sizes}")
    return columns, sizes.pop()
