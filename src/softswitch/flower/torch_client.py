"""TorchClient: a client that computes with PyTorch."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Sequence
from contextlib import closing
from copy import copy
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from softswitch.certification.intervals import ErrorLevels
from softswitch.certification.torch import module_intervals
from softswitch.flower.local_client import RefusalError, Task, merge_ranges
from softswitch.flower.messages import Arrays, Values
from softswitch.flower.policy import Classes, RowClasses, min_class_rows_in_batch
from softswitch.methods.messages import LocalLoss
from softswitch.oracles.batch_sizes import Batches, choose_batches
from softswitch.oracles.options import BatchSize, ValueBatchSize
from softswitch.oracles.torch_functions import BatchNormStatistics, Function, ModuleFunctions, Optimizer
from softswitch.oracles.torch_rows import TorchRows, seeded
from softswitch.privacy.torch_oracle import describe_row_mixing, evaluate_rows, preserve_buffers, sum_row_gradients
from softswitch.problem.ranges import Range, function_ranges
from softswitch.results.certificate import Interval


class TorchClient:
    """A client with a PyTorch module.

    Values are computed in the module's ``eval`` mode, gradients in its ``train`` mode. Only parameters are exchanged.
    Buffers, such as running means, stay at the client; prefer layers without buffers.

    Args:
        module: The module; its parameters are those of the run.
        objective: ``(module, batch) -> scalar`` to minimise.
        constraint: ``(module, batch) -> scalar or vector``, satisfied if <= 0 within the method's tolerance.
        data: A ``Dataset`` with a length, or a ``DataLoader``. A ``DataLoader`` supplies its own batches, and
            ``batch_size``, ``value_batch_size`` and ``replace`` are ignored.
        name: The client's name.
        batch_size: Number of rows in the batch of a gradient; None: all rows; "auto": all rows if that is cheap.
        value_batch_size: Number of rows in the batch of a report. "same": as ``batch_size``; if that is "auto", each
            size is chosen from its own cost.
        replace: Whether rows are drawn with replacement. Default: with replacement, except that a client with no more
            rows than a batch uses each row once.
        optimizer: The optimizer of the local steps: ``(parameters, lr=γ) -> optimizer``, such as ``torch.optim.Adam``.
            It is created for every round. The direction is (w_k − w_{k,E})/(γE). Default: plain gradient steps.
        held_out: A ``Dataset`` of rows that are not used for training, for the certificate.
        classes: The class or group of each row of ``data``, one label per row, if a function depends on it.
            ``ClientPolicy`` excludes small classes.
        held_out_classes: The classes of the held-out rows.
        device: The device to compute on.
        constraint_surrogate: ``(module, batch) -> scalar or vector`` of the constraint's shape. Updates follow it
            instead of a discontinuous constraint; see ``Problem``.
        objective_range: (low, high) if the objective on a single row lies between them, {low, high} if it is one of
            them. It is used for the certificate if the server does not send a range.
        constraint_range: The same for the constraint, {0, 1} for a rate; one range for all constraints, or one each.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        objective: Function,
        constraint: Function,
        data: Dataset | DataLoader,
        *,
        name: str,
        batch_size: BatchSize = "auto",
        value_batch_size: ValueBatchSize = "same",
        replace: bool | None = None,
        optimizer: Optimizer | None = None,
        held_out: Dataset | None = None,
        classes: Classes = None,
        held_out_classes: Classes = None,
        device: str | torch.device = "cpu",
        constraint_surrogate: Function | None = None,
        objective_range: Range | None = None,
        constraint_range: Range | Sequence[Range | None] | None = None,
    ) -> None:
        self._functions = ModuleFunctions(module.to(device), objective, constraint, constraint_surrogate, optimizer)
        self._rows = TorchRows("data", data, device)
        self._held_out = None if held_out is None else TorchRows("held_out", held_out, device)
        self.has_surrogate = constraint_surrogate is not None
        self.can_repeat_reports = not BatchNormStatistics(self._functions)  # running means change from round to round
        self.name = str(name)
        self.rows = len(self._rows)
        self.held_out_rows = 0 if self._held_out is None else len(self._held_out)
        if self._rows.loader is None:
            weights = sum(weight.numel() for weight in self._functions.trained.values())
            self._batches = choose_batches(batch_size, value_batch_size, replace, self.rows, weights)
        else:
            size = self._rows.loader.batch_size
            size = None if size is None else min(size, self.rows)
            self._batches = Batches(size, size)
        BatchNormStatistics(self._functions).check_batches(self._rows, self._batches.update, f"client {self.name!r}")
        self._replace = replace is not False
        self.value_rows, self.gradient_rows = (self.rows if size is None else size for size in self._batches)
        self.constraints = self._functions.constraints(self._rows.take(np.arange(1)))
        self.ranges = function_ranges(objective_range, constraint_range, self.constraints)
        self.classes = RowClasses.from_arguments(
            classes, held_out_classes, (None, None), (self.rows, self.held_out_rows)
        )
        self.class_rows = self.classes.rows
        if self.class_rows is not None:
            self.class_rows_per_batch = min_class_rows_in_batch(
                self.class_rows, min(self.value_rows, self.gradient_rows)
            )
        self._arguments = (module, objective, constraint), (data, held_out)
        self._options: dict[str, Any] = {
            "name": name,
            "batch_size": batch_size,
            "value_batch_size": value_batch_size,
            "replace": replace,
            "optimizer": optimizer,
            "device": device,
            "constraint_surrogate": constraint_surrogate,
            "objective_range": objective_range,
            "constraint_range": constraint_range,
        }

    def restrict(self, rows: np.ndarray, held_out: np.ndarray | None) -> TorchClient:
        """Return this client with the selected rows only.

        Args:
            rows: Mask of the training rows to keep.
            held_out: Mask of the held-out rows to keep, or None for all.
        """
        functions, (data, held_out_data) = self._arguments
        if isinstance(data, DataLoader) and not rows.all():
            raise RefusalError("one of its classes has too few rows, and rows of a DataLoader cannot be excluded")
        client, options = copy(self), self._options | self.classes.arguments(rows, held_out)
        options |= {"held_out": _take_rows(held_out_data, held_out)}
        TorchClient.__init__(client, *functions, _take_rows(data, rows), **options)
        return client

    def report(self, params: Arrays, task: Task) -> Values:
        """Return f_i and g_i on a batch."""
        self._functions.load(params)
        with closing(self._draw_batches(task, 0)) as batches:
            return _to_values(self._functions.values(next(batches)))

    def update(self, params: Arrays, task: Task, loss: LocalLoss) -> Arrays:
        """Return u_i after E local steps."""
        self._functions.load(params)
        with seeded((*self._seed(task), 2)), closing(self._draw_batches(task, 1)) as batches:
            direction = self._functions.direction(batches, loss, task.local_steps, task.step_size)
        return {name: part.cpu().numpy() for name, part in direction.items()}

    def evaluate(self, params: Arrays) -> Values:
        """Return f_i and g_i on all rows."""
        self._functions.load(params)
        with preserve_buffers(self._functions.module):
            return _to_values(self._functions.values(self._rows.all_rows()))

    def certify(
        self, params: Arrays, error: float, ranges: Sequence[Range | None], *, levels: ErrorLevels | None = None
    ) -> list[Interval]:
        """Return confidence intervals from the held-out rows."""
        assert self._held_out is not None
        known = merge_ranges(ranges, self.ranges)
        return module_intervals(self._functions, params, self._held_out, levels or ErrorLevels.uniform(error), known)

    @property
    def start(self) -> Arrays:
        """The module's parameters by name."""
        return {name: weight.detach().cpu().numpy().copy() for name, weight in self._functions.trained.items()}

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer of the local steps, or None for plain gradient steps."""
        return self._functions.optimizer

    @property
    def mixes_rows(self) -> str | None:
        """Why the values of a row depend on other rows, or None if they do not."""
        return describe_row_mixing(self._functions.module)

    def row_values(self, params: Arrays, rows: np.ndarray) -> np.ndarray:
        """Return f and each g on single training rows."""
        return self._by_rows(params, self._rows, rows)

    def held_out_values(self, params: Arrays, rows: np.ndarray) -> np.ndarray:
        """Return f and each g on single held-out rows."""
        assert self._held_out is not None
        return self._by_rows(params, self._held_out, rows)

    def clipped_gradient(self, params: Arrays, rows: np.ndarray, mix: np.ndarray, clip: float) -> Arrays:
        """Return the sum over rows of the clipped gradients of <mix, (f, g)>."""
        return sum_row_gradients(self._functions, params, self._rows, rows, mix, clip)

    def _by_rows(self, params: Arrays, data: TorchRows, rows: np.ndarray) -> np.ndarray:
        return evaluate_rows(self._functions, params, data, rows).reshape(len(rows), 1 + self.constraints)

    def _draw_batches(self, task: Task, purpose: int) -> Generator[Any]:
        return self._rows.batches((*self._seed(task), purpose), self._batches[bool(purpose)], self._replace)

    def _seed(self, task: Task) -> tuple[int, int, int]:
        return task.seed, task.round, zlib.crc32(self.name.encode())


def _take_rows(data: Any, selected: np.ndarray | None) -> Any:
    if data is None or selected is None or selected.all():
        return data
    indices = np.flatnonzero(selected)
    if isinstance(data, TensorDataset):
        return TensorDataset(*(tensor[torch.from_numpy(indices)] for tensor in data.tensors)) if len(indices) else None
    return Subset(data, indices.tolist()) if len(indices) else None


def _to_values(values: np.ndarray) -> Values:
    return Values(float(values[0]), values[1:].tolist())
