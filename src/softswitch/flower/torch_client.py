"""TorchClient: a client that computes with PyTorch."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from softswitch.certification.intervals import ErrorLevels
from softswitch.certification.torch import module_intervals
from softswitch.flower.compression import to_vector
from softswitch.flower.local_client import Classes, RowClient, Task
from softswitch.flower.messages import Arrays, LocalDerivatives, Values, single_client, to_values
from softswitch.methods.messages import LocalLoss
from softswitch.methods.sqp import Query
from softswitch.oracles.batch_sizes import Batches, choose_batches
from softswitch.oracles.derivatives import MAX_PARAMETERS
from softswitch.oracles.options import BatchSize, ValueBatchSize
from softswitch.oracles.torch_derivatives import TorchDerivatives
from softswitch.oracles.torch_functions import (
    BatchNormStatistics,
    Function,
    ModuleFunctions,
    Optimizer,
    preserve_module,
)
from softswitch.oracles.torch_rows import TorchRows, seeded
from softswitch.privacy.torch_rows import RowFunctions, describe_row_mixing
from softswitch.problem.ranges import Range, function_ranges
from softswitch.results.certificate import Interval


class TorchClient(RowClient):
    """A client with a PyTorch module.

    Values are computed in the module's ``eval`` mode, gradients in its ``train`` mode. Only parameters are exchanged.
    Buffers, such as running means, stay at the client; prefer layers without buffers. The further arguments are those
    of ``RowClient``.

    Args:
        module: The module; its parameters are those of the run.
        objective: ``(module, batch) -> scalar`` to minimise.
        constraint: ``(module, batch) -> scalar or vector``, satisfied if <= 0 within the method's tolerance.
        data: A ``Dataset`` with a length, or a ``DataLoader``. A ``DataLoader`` supplies its own batches, and
            ``batch_size``, ``value_batch_size`` and ``replace`` are ignored.
        optimizer: The optimizer of the local steps: ``(parameters, lr=γ) -> optimizer``, such as ``torch.optim.Adam``.
            It is created for every round. The direction is (w_k − w_{k,E})/(γE). Default: plain gradient steps.
        device: The device to compute on.
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
        self.start = {name: weight.detach().cpu().numpy().copy() for name, weight in self._functions.trained.items()}
        self._data = TorchRows("data", data, device)
        self.data_digest = self._data.digest()
        self._held_out = None if held_out is None else TorchRows("held_out", held_out, device)
        self.has_surrogate, self.optimizer = constraint_surrogate is not None, optimizer
        norms = BatchNormStatistics(self._functions)
        self.can_repeat_reports = not norms  # running means change from round to round
        self.name, self.rows = str(name), len(self._data)
        self.held_out_rows = 0 if self._held_out is None else len(self._held_out)
        if self._data.loader is None:
            weights = sum(weight.numel() for weight in self._functions.trained.values())
            self._batches = choose_batches(batch_size, value_batch_size, replace, self.rows, weights)
        else:
            size = self._data.loader.batch_size
            size = None if size is None else min(size, self.rows)
            self._batches = Batches(size, size)
        norms.check_batches(self._data, self._batches.update, f"client {self.name!r}")
        self._replace = replace is not False
        self.value_rows, self.gradient_rows = (self.rows if size is None else size for size in self._batches)
        self.constraints = self._functions.constraints(self._data.take(np.arange(1)))
        self.ranges = function_ranges(objective_range, constraint_range, self.constraints)
        self._set_classes(classes, held_out_classes)

    def report(self, params: Arrays, task: Task) -> Values:
        """Return f_i and g_i on a batch."""
        self._functions.load(params)
        with closing(self._draw_batches(task, 0)) as batches:
            return to_values(self._functions.values(next(batches)))

    def update(self, params: Arrays, task: Task, loss: LocalLoss) -> Arrays:
        """Return u_i after E local steps."""
        self._functions.load(params)
        with seeded((*self._seed(task), 2)), closing(self._draw_batches(task, 1)) as batches:
            direction = self._functions.direction(batches, loss, task.local_steps, task.step_size)
        return {name: part.cpu().numpy() for name, part in direction.items()}

    def evaluate(self, params: Arrays) -> Values:
        """Return f_i and g_i on all rows."""
        self._functions.load(params)
        with preserve_module(self._functions.module):
            return to_values(self._functions.values(self._data.all_rows()))

    def _intervals(self, params: Arrays, levels: ErrorLevels, ranges: list[Range | None]) -> list[Interval]:
        return module_intervals(self._functions, params, self._held_out, levels, ranges)

    @property
    def pieces(self) -> int:
        """Number of constraints; 0 if the functions have no second derivatives."""
        size = sum(weight.numel() for weight in self._functions.trained.values())
        try:
            is_able = size <= MAX_PARAMETERS and not self.has_surrogate and self._derivatives is not None
        except (TypeError, ValueError):
            is_able = False
        return self.constraints if is_able else 0

    @property
    def is_exact(self) -> bool:
        """Whether second derivatives are computed in float64."""
        return self._derivatives.is_exact

    @cached_property
    def _derivatives(self) -> TorchDerivatives:
        return TorchDerivatives(self._functions, {self.name: self._data})

    def derivatives(self, params: Arrays, weights: np.ndarray) -> LocalDerivatives:
        """Return f_i, g_i, their gradients and the Hessian of their weighted sum on all rows."""
        return single_client(self._derivatives.reply(Query(to_vector(params), weights[:1], weights[None, 1:])))

    def row_curvatures(self, params: Arrays, weights: np.ndarray) -> np.ndarray:
        """Return the norm of each row's share of each function's Hessian."""
        point, hessian = to_vector(params), self._derivatives.row_hessian
        used = np.flatnonzero(weights).tolist()
        return np.stack([_row_shares(partial(hessian, point, i), self.rows) for i in used], axis=1)

    @property
    def mixes_rows(self) -> str | None:
        """Why the values of a row depend on other rows, or None if they do not."""
        return describe_row_mixing(self._functions.module)

    def clipped_gradient(self, params: Arrays, rows: np.ndarray, mix: np.ndarray, clip: float) -> Arrays:
        """Return the sum over rows of the clipped gradients of <mix, (f, g)>, in integers."""
        return self._row_functions.sum_gradients(params, self._data, rows, mix, clip)

    def _by_rows(self, params: Arrays, data: TorchRows, rows: np.ndarray) -> np.ndarray:
        return self._row_functions.evaluate(params, data, rows).reshape(len(rows), 1 + self.constraints)

    @cached_property
    def _row_functions(self) -> RowFunctions:
        return RowFunctions(self._functions, self._data)

    def _draw_batches(self, task: Task, purpose: int) -> Generator[Any]:
        return self._data.batches((*self._seed(task), purpose), self._batches[bool(purpose)], self._replace)

    def _seed(self, task: Task) -> tuple[int, int, int]:
        return task.seed, task.round, zlib.crc32(self.name.encode())


def _row_shares(hessian: Callable[[int], np.ndarray], rows: int) -> np.ndarray:
    """Return the norms of the rows' Hessians less what all rows share: the Hessian of the smallest norm.

    A row to which the function does not apply has NaN, and a share of 0.
    """
    norms = np.array([np.linalg.norm(hessian(row)) for row in range(rows)])
    common = hessian(int(np.where(np.isnan(norms), np.inf, norms).argmin()))
    shares = np.array([np.linalg.norm(hessian(row) - common) for row in range(rows)])
    return np.where(np.isnan(norms), 0.0, shares)
