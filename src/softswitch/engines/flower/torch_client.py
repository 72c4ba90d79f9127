"""A client that computes with PyTorch: a module, two functions of it and a batch, and a data set."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from softswitch.engines.flower.local import (
    Batches,
    BatchSize,
    Task,
    ValueBatchSize,
    batches_of,
    drawn,
    given_or_own,
    others,
)
from softswitch.engines.flower.wire import Arrays, Values
from softswitch.guarantees.unseen_rows.intervals import ErrorLevels, intervals_by_rows
from softswitch.method.messages import LocalLoss
from softswitch.problem.problem import check_stand_in
from softswitch.problem.ranges import Range, function_ranges
from softswitch.results.certificate import Interval
from softswitch.support import checks

Function = Callable[[torch.nn.Module, Any], torch.Tensor]
Optimizer = Callable[..., torch.optim.Optimizer]


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
        device: where to compute.
        constraint_stand_in: ``(module, batch) -> scalar or vector``, of the constraint's shape: what is descended on in
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
        device: str | torch.device = "cpu",
        constraint_stand_in: Function | None = None,
        objective_range: Range | None = None,
        constraint_range: Range | Sequence[Range | None] | None = None,
    ) -> None:
        checks.function("objective", objective, "(module, batch) -> scalar")
        checks.function("constraint", constraint, "(module, batch) -> scalar or vector")
        self._module = module.to(device)
        if constraint_stand_in is not None:
            checks.function("constraint_stand_in", constraint_stand_in, "(module, batch) -> scalar or vector")
        self._objective, self._constraint, self._stand_in = objective, constraint, constraint_stand_in
        self.stands_in = constraint_stand_in is not None
        self._loader = data if isinstance(data, DataLoader) else None
        self._rows: Dataset = data.dataset if isinstance(data, DataLoader) else data
        self._collate: Callable[[list[Any]], Any] = default_collate
        if isinstance(data, DataLoader) and data.collate_fn is not None:
            self._collate = data.collate_fn
        self._optimizer, self._held_out, self._device = optimizer, held_out, device
        self.name = str(name)
        self.rows = _length("data", self._rows)
        self.held_out_rows = 0 if held_out is None else _length("held_out", held_out)
        if self._loader is None:
            weights = sum(weight.numel() for _, weight in self._trained())
            self._batches = batches_of(batch_size, value_batch_size, replace, self.rows, weights)
        else:  # its last batch may be a smaller one
            own = self._loader.batch_size
            self._batches = Batches(*2 * (None if own is None else min(own, self.rows),))
        self._replace = replace is not False
        self.value_rows, self.gradient_rows = (self.rows if size is None else size for size in self._batches)
        first = self._take(self._rows, np.arange(1))
        self.constraints = len(self._values(first)[1:])
        if constraint_stand_in is not None:
            with torch.no_grad():
                stood_for = torch.atleast_1d(constraint_stand_in(self._module, first)).numel()
            check_stand_in(stood_for, self.constraints)
        self._ranges = function_ranges(objective_range, constraint_range, self.constraints)

    def report(self, params: Arrays, task: Task) -> Values:
        """f_i and g_i on a batch."""
        self._load(params)
        return _told(self._values(next(self._drawn(task, 0))))

    def update(self, params: Arrays, task: Task, loss: LocalLoss) -> Arrays:
        """u_i after E local steps."""
        self._load(params)
        weights = dict(self._trained())
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        made = torch.optim.SGD if self._optimizer is None else self._optimizer
        optimizer = made(list(weights.values()), lr=task.step_size)
        total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self._module.train()
        with self._seeded(task, 2):
            for batch in islice(self._drawn(task, 1), task.local_steps):
                optimizer.zero_grad(set_to_none=False)
                local = self._local_loss(batch, loss)
                if local.requires_grad:  # else the batch has nothing to learn from: −∞, say
                    local.backward()
                for name, weight in weights.items():
                    if weight.grad is not None:
                        total[name] += weight.grad
                optimizer.step()
        if self._optimizer is None:  # the mean of the gradients: the same number, without the digits a difference loses
            return {name: (part / task.local_steps).cpu().numpy() for name, part in total.items()}
        scale = 1 / (task.step_size * task.local_steps)
        return {name: ((before[name] - weight.detach()) * scale).cpu().numpy() for name, weight in weights.items()}

    def judge(self, params: Arrays) -> Values:
        """f_i and g_i on all rows."""
        self._load(params)
        return _told(self._values(self._take(self._rows, np.arange(self.rows))))

    def certify(
        self, params: Arrays, error: float, ranges: Sequence[Range | None], *, levels: ErrorLevels | None = None
    ) -> list[Interval]:
        """Intervals from the rows held out."""
        assert self._held_out is not None
        held_out = self._held_out

        def value(rows: np.ndarray) -> np.ndarray:
            return self._values(self._take(held_out, rows))

        def elsewhere(attempt: int) -> Callable[[np.ndarray], np.ndarray]:
            self._load(others(params, attempt))
            return value

        self._load(params)
        at, known = levels or ErrorLevels.one(error), given_or_own(ranges, self._ranges)
        return intervals_by_rows(value, self.held_out_rows, at, known, elsewhere)

    def _trained(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return ((name, weight) for name, weight in self._module.named_parameters() if weight.requires_grad)

    def _load(self, params: Arrays) -> None:
        weights = dict(self._trained())
        if set(weights) != set(params):
            raise ValueError(f"the server's parameters are {sorted(params)}, the module's are {sorted(weights)}")
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(torch.from_numpy(np.array(params[name])))

    def _values(self, batch: Any) -> np.ndarray:
        """f and then g, computed without gradients."""
        self._module.eval()
        with torch.no_grad():
            objective = self._objective(self._module, batch)
            constraint = torch.atleast_1d(self._constraint(self._module, batch))
        return np.concatenate([np.atleast_1d(part.cpu().numpy()).astype(float) for part in (objective, constraint)])

    def _local_loss(self, batch: Any, loss: LocalLoss) -> torch.Tensor:
        """a·f + <b, g> + c·Σ max(0, g − ε), with a stand-in in place of g; what has weight 0 is not computed."""
        parts = []
        if loss.objective:
            parts.append(float(loss.objective) * self._objective(self._module, batch))
        mix = torch.as_tensor(np.asarray(loss.constraint, np.float32))
        if loss.penalty or mix.any():
            descended = torch.atleast_1d((self._stand_in or self._constraint)(self._module, batch))
            parts.append((mix.to(descended) * descended).sum())
            parts.append(float(loss.penalty) * self._excess(batch, descended, float(loss.tolerance)))
        return torch.stack(parts).sum()

    def _excess(self, batch: Any, descended: torch.Tensor, tolerance: float) -> torch.Tensor:
        """Σ max(0, g − ε); with a stand-in the sum of it over the constraints that are above ε."""
        if self._stand_in is None:
            return torch.relu(descended - tolerance).sum()
        with torch.no_grad():
            above = torch.atleast_1d(self._constraint(self._module, batch)) > tolerance
        return torch.where(above, descended, torch.zeros_like(descended)).sum()

    def _drawn(self, task: Task, purpose: int) -> Iterator[Any]:
        """Batches without end, from the run's seed, the client's name and the round alone."""
        if self._loader is not None:
            with self._seeded(task, purpose):
                while True:
                    some = False
                    for batch in self._loader:
                        some = True
                        yield _on(batch, self._device)
                    if not some:
                        raise ValueError("data must yield at least one batch, but the DataLoader yields none")
        size = self._batches.update if purpose else self._batches.report
        if size is None:
            everything = self._take(self._rows, np.arange(self.rows))
            while True:
                yield everything
        generator = np.random.default_rng((*self._seed(task), purpose))
        while True:
            yield self._take(self._rows, drawn(generator, self.rows, size, self._replace))

    def _take(self, rows: Dataset, indices: np.ndarray) -> Any:
        if isinstance(rows, TensorDataset):
            return _on(rows[torch.from_numpy(indices)], self._device)
        return _on(self._collate([rows[int(i)] for i in indices]), self._device)

    def _seed(self, task: Task) -> tuple[int, int, int]:
        return task.seed, task.round, zlib.crc32(self.name.encode())

    @contextmanager
    def _seeded(self, task: Task, purpose: int) -> Iterator[None]:
        """Within, PyTorch's own generator is of this round; after, it is as it was."""
        state = torch.get_rng_state()
        torch.manual_seed(int(np.random.default_rng((*self._seed(task), purpose)).integers(2**62)))
        try:
            yield
        finally:
            torch.set_rng_state(state)


def parameters(module: torch.nn.Module) -> Arrays:
    """A module's trained parameters by name: the start of a run.

    Args:
        module: a PyTorch module.
    """
    return {name: w.detach().cpu().numpy().copy() for name, w in module.named_parameters() if w.requires_grad}


def _told(values: np.ndarray) -> Values:
    return Values(float(values[0]), values[1:].tolist())


def _length(argument: str, rows: Any) -> int:
    if not hasattr(rows, "__len__") or not len(rows):
        raise ValueError(f"{argument} must be a Dataset with a length of at least 1, but is {rows!r}")
    return len(rows)


def _on(batch: Any, device: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: _on(value, device) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(_on(value, device) for value in batch)
    return batch
