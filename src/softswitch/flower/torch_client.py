"""A client that computes with PyTorch: a module, two functions of it and a batch, and a data set."""

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
from softswitch.oracles.torch_functions import Function, ModuleFunctions, Optimizer, RunningMeans
from softswitch.oracles.torch_rows import TorchRows, seeded
from softswitch.privacy.torch_oracle import buffers_kept, clipped_gradients, mixes_rows, row_values
from softswitch.problem.ranges import Range, function_ranges
from softswitch.results.certificate import Interval


class TorchClient:
    """One client with a PyTorch module.

    Values are computed in the module's ``eval`` mode, gradients in its ``train`` mode. Parameters travel; buffers, such
    as running means, stay at the client, so prefer layers without them.

    Args:
        module: its parameters are those of the run.
        objective: ``(module, batch) -> scalar``; smaller is better.
        constraint: ``(module, batch) -> scalar or vector``; satisfied where <= 0 within the rule's tolerance.
        data: a ``Dataset`` with a length, or a ``DataLoader``, whose own batches are then used.
        name: its label.
        batch_size: rows it draws for a gradient; None: all rows, as one batch; "auto": all of them where that is cheap.
            For a ``DataLoader`` this and the next two have no meaning.
        value_batch_size: rows it draws for its report; "same": as ``batch_size``, each by its own cost where that is
            "auto".
        replace: draw rows with replacement, or without. Left out: with, but where it has no more rows than a batch, it
            takes each of them once.
        optimizer: for the local steps: ``(parameters, lr=γ) -> optimizer``, such as ``torch.optim.Adam``, made anew in
            every round; by default plain gradient steps, the paper's. The direction is (w_k − w_{k,E})/(γE).
        held_out: a ``Dataset`` of rows it does not train on, for the certificate.
        classes: which class or group each row is of, where the functions look at some rows by themselves: one label a
            row of ``data``. For the client's policy, which answers on none of too few rows.
        held_out_classes: likewise of the rows held out.
        device: where to compute.
        constraint_surrogate: ``(module, batch) -> scalar or vector``, of the constraint's shape: what is descended on
            in
            place of the constraint, where that one moves in jumps; see ``Problem``.
        objective_range: (low, high) if the objective on a single row lies between them, {low, high} if it is one of the
            two; for the certificate, where the server says nothing of it.
        constraint_range: likewise of the constraint, {0, 1} for a rate; one for all constraints, or one each.
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
        self.can_repeat_reports = not RunningMeans(self._functions)  # these go on from round to round
        self.name = str(name)
        self.rows = len(self._rows)
        self.held_out_rows = 0 if self._held_out is None else len(self._held_out)
        if self._rows.loader is None:
            weights = sum(weight.numel() for weight in self._functions.trained.values())
            self._batches = choose_batches(batch_size, value_batch_size, replace, self.rows, weights)
        else:  # its last batch may be a smaller one
            own = self._rows.loader.batch_size
            self._batches = Batches(*2 * (None if own is None else min(own, self.rows),))
        self._replace = replace is not False
        self.value_rows, self.gradient_rows = (self.rows if size is None else size for size in self._batches)
        self.constraints = self._functions.constraints(self._rows.take(np.arange(1)))
        self._ranges = function_ranges(objective_range, constraint_range, self.constraints)
        self.classes = RowClasses.told(classes, held_out_classes, (None, None), (self.rows, self.held_out_rows))
        self.class_rows = self.classes.rows
        if self.class_rows is not None:
            self.class_rows_per_batch = min_class_rows_in_batch(
                self.class_rows, min(self.value_rows, self.gradient_rows)
            )
        self._made_of = (module, objective, constraint), (data, held_out)
        self._how: dict[str, Any] = {
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

    def only(self, rows: np.ndarray, held_out: np.ndarray | None) -> TorchClient:
        """The same client with some of its rows, as if it had no others.

        Args:
            rows: which of those to train on,
            held_out: and which of those held out; None: all.
        """
        what, (data, left) = self._made_of
        if isinstance(data, DataLoader) and not rows.all():
            raise RefusalError("one of its classes has too few rows, and those of a DataLoader cannot be left out")
        own, how = copy(self), self._how | self.classes.of(rows, held_out)
        TorchClient.__init__(own, *what, _some(data, rows), held_out=_some(left, held_out), **how)
        return own

    def report(self, params: Arrays, task: Task) -> Values:
        """f_i and g_i on a batch."""
        self._functions.load(params)
        with closing(self._drawn(task, 0)) as batches:
            return _told(self._functions.values(next(batches)))

    def update(self, params: Arrays, task: Task, loss: LocalLoss) -> Arrays:
        """u_i after E local steps."""
        self._functions.load(params)
        with seeded((*self._seed(task), 2)), closing(self._drawn(task, 1)) as batches:
            direction = self._functions.direction(batches, loss, task.local_steps, task.step_size)
        return {name: part.cpu().numpy() for name, part in direction.items()}

    def evaluate(self, params: Arrays) -> Values:
        """f_i and g_i on all rows."""
        self._functions.load(params)
        with buffers_kept(self._functions.module):
            return _told(self._functions.values(self._rows.everything()))

    def certify(
        self, params: Arrays, error: float, ranges: Sequence[Range | None], *, levels: ErrorLevels | None = None
    ) -> list[Interval]:
        """Intervals from the rows held out."""
        assert self._held_out is not None
        at, known = levels or ErrorLevels.uniform(error), merge_ranges(ranges, self._ranges)
        return module_intervals(self._functions, params, self._held_out, at, known)

    @property
    def start(self) -> Arrays:
        """Parameters by name, as they come."""
        return {name: weight.detach().cpu().numpy().copy() for name, weight in self._functions.trained.items()}

    @property
    def ranges(self) -> list[Range | None]:
        """Of f and then g on a row, as far as they are known."""
        return self._ranges

    @property
    def optimizer(self) -> Optimizer | None:
        """Of the local steps; None: they are plain ones."""
        return self._functions.optimizer

    @property
    def mixes_rows(self) -> str | None:
        """Why what a row tells depends on other rows; None where it does not."""
        return mixes_rows(self._functions.module)

    def row_values(self, params: Arrays, rows: np.ndarray) -> np.ndarray:
        """f and then g on single rows."""
        return self._by_rows(params, self._rows, rows)

    def held_out_values(self, params: Arrays, rows: np.ndarray) -> np.ndarray:
        """The same of rows held out."""
        assert self._held_out is not None
        return self._by_rows(params, self._held_out, rows)

    def clipped_gradient(self, params: Arrays, rows: np.ndarray, mix: np.ndarray, clip: float) -> Arrays:
        """The sum of the gradients of <mix, (f, g)> on single rows, none longer than ``clip``."""
        return clipped_gradients(self._functions, params, self._rows, rows, mix, clip)

    def _by_rows(self, params: Arrays, data: TorchRows, rows: np.ndarray) -> np.ndarray:
        return row_values(self._functions, params, data, rows).reshape(len(rows), 1 + self.constraints)

    def _drawn(self, task: Task, purpose: int) -> Generator[Any]:
        """Batches without end, from the run's seed, the client's name and the round alone."""
        return self._rows.batches((*self._seed(task), purpose), self._batches[bool(purpose)], self._replace)

    def _seed(self, task: Task) -> tuple[int, int, int]:
        return task.seed, task.round, zlib.crc32(self.name.encode())


def _some(data: Any, kept: np.ndarray | None) -> Any:
    """A data set of some rows; None where there are none."""
    if data is None or kept is None or kept.all():
        return data
    which = np.flatnonzero(kept)
    if isinstance(data, TensorDataset):
        return TensorDataset(*(tensor[torch.from_numpy(which)] for tensor in data.tensors)) if len(which) else None
    return Subset(data, which.tolist()) if len(which) else None


def _told(values: np.ndarray) -> Values:
    return Values(float(values[0]), values[1:].tolist())
