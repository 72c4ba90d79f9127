"""PyTorch at one client: its rows, values and local steps of a module, and batch-norm statistics."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from softswitch.methods.messages import LocalLoss
from softswitch.oracles.batch_sizes import draw_rows
from softswitch.problem.problem import PooledConstraint, check_surrogate_size
from softswitch.support import checks
from softswitch.support.tracing import function_digest

Function = Callable[[torch.nn.Module, Any], torch.Tensor]
Optimizer = Callable[..., torch.optim.Optimizer]
Weights = dict[str, torch.Tensor]
ROWS_IN_DIGEST = 64  # maximum number of evenly spaced rows in the digest of a Dataset that does not consist of tensors
STATISTICS_SEED = 0x5EED  # random seed for layers that draw random numbers while batch-norm statistics are recomputed


class TorchRows:
    """Rows of a client: a ``Dataset`` with a length, or a ``DataLoader``. ``argument`` is its name in errors."""

    def __init__(self, argument: str, data: Dataset | DataLoader, device: str | torch.device) -> None:
        self.argument, self._device = argument, device
        self.loader = data if isinstance(data, DataLoader) else None
        self._rows: Dataset = data.dataset if isinstance(data, DataLoader) else data
        self._collate: Callable[[list[Any]], Any] = getattr(self.loader, "collate_fn", None) or default_collate
        if not hasattr(self._rows, "__len__") or not len(self._rows):
            raise ValueError(f"{argument} must be a Dataset with a length of at least 1, but is {data!r}")
        self._cached: Any = None

    def __len__(self) -> int:
        return len(self._rows)  # type: ignore[arg-type]

    def take(self, indices: np.ndarray, seed: tuple[int, ...] = (0,)) -> Any:
        """Return the rows ``indices`` as one batch; ``seed`` is for random numbers that a Dataset draws."""
        if isinstance(self._rows, TensorDataset):
            return to_device(self._rows[torch.from_numpy(indices)], self._device)
        with seeded(seed):
            return to_device(self._collate([self._rows[int(i)] for i in indices]), self._device)

    def all_rows(self, *, keep: bool = False) -> Any:
        """Return all rows as one batch; with ``keep`` it is cached for later calls."""
        if self._cached is not None:
            return self._cached
        tensors = self._rows.tensors if isinstance(self._rows, TensorDataset) else None
        batch = self.take(np.arange(len(self))) if tensors is None else to_device(tensors, self._device)
        self._cached = batch if keep else None
        return batch

    def batches(self, seed: tuple[int, ...], size: int | None, replace: bool) -> Generator[Any]:
        """Yield batches of ``size`` random rows (None: all), or of the ``DataLoader``, without end; close after use."""
        if self.loader is not None:
            with seeded(seed, self.loader.generator):
                while True:
                    is_empty = True
                    for batch in self.loader:
                        is_empty = False
                        yield to_device(batch, self._device)
                    if is_empty:
                        raise ValueError("data must yield at least one batch, but the DataLoader yields none")
        generator = np.random.default_rng(seed)
        for i in count():
            if size is None:
                yield self.all_rows(keep=True)
            else:
                yield self.take(draw_rows(generator, len(self), size, replace), (*seed, i))

    def digest(self) -> str:
        """Return a SHA-256 digest of all rows if they are tensors, else of up to ``ROWS_IN_DIGEST`` rows."""
        some = np.unique(np.linspace(0, len(self) - 1, ROWS_IN_DIGEST).astype(int))
        batch = self._rows.tensors if isinstance(self._rows, TensorDataset) else self.take(some)
        parts: list[Any] = [type(self._rows).__name__, len(self), batch]
        if self.loader is not None:
            parts += [self.loader.batch_size, self.loader.drop_last, type(self.loader.sampler).__name__]
        return function_digest(*parts)


def to_device(batch: Any, device: str | torch.device) -> Any:
    """Return a batch with its tensors, in nested dicts, lists and tuples, on a device."""
    return map_batch(lambda leaf: leaf.to(device) if hasattr(leaf, "to") else leaf, batch)


def map_batch(function: Callable[[Any], Any], batch: Any) -> Any:
    """Return a batch with ``function`` applied to every leaf of its nested dicts, lists and tuples."""
    if hasattr(batch, "to"):  # a tensor, a packed sequence, a tokenizer's batch
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: map_batch(function, value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        parts = [map_batch(function, value) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return function(batch)


@contextmanager
def seeded(seed: tuple[int, ...], extra: torch.Generator | None = None) -> Iterator[None]:
    """Seed PyTorch's generators, and ``extra``, for the ``with`` block; restore their states afterwards."""
    generators = [torch.default_generator, *([] if extra is None else [extra])]
    if torch.cuda.is_initialized():
        generators.extend(torch.cuda.default_generators)
    before = [generator.get_state() for generator in generators]
    number = int(np.random.default_rng(seed).integers(2**62))
    for generator in generators:  # without a GPU, torch.manual_seed keeps a traceback for every call
        generator.manual_seed(number)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


class ModuleFunctions:
    """Objective, constraint and surrogate of a module, with values in ``eval`` and gradients in ``train`` mode.

    The optimizer of local steps is ``(parameters, lr=γ) -> optimizer``, by default plain gradient steps.
    """

    def __init__(
        self, module: Any, objective: Function, constraint: Any, surrogate: Any = None, optimizer: Any = None
    ) -> None:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, but is {module!r}")
        checks.check_callable("objective", objective, "(module, batch) -> scalar")
        checks.check_callable("constraint", constraint, "(module, batch) -> scalar or vector")
        if isinstance(constraint, PooledConstraint):
            raise TypeError("constraint must be a function of module and batch, not a PooledConstraint (JAX only)")
        if surrogate is not None:
            checks.check_callable("constraint_surrogate", surrogate, "(module, batch) -> scalar or vector")
        if optimizer is not None:
            checks.check_callable("optimizer", optimizer, "(parameters, lr=step size) -> torch.optim.Optimizer")
        self.module, self.objective, self.constraint = module, objective, constraint
        self.surrogate: Function | None = surrogate
        self.optimizer: Optimizer | None = optimizer
        if not self.trained:
            raise ValueError("module must have at least one parameter that requires a gradient, but has none")

    @property
    def trained(self) -> dict[str, torch.nn.Parameter]:
        """Parameters of the module that require a gradient, by name."""
        return {name: weight for name, weight in self.module.named_parameters() if weight.requires_grad}

    def constraints(self, batch: Any) -> int:
        """Return the number of constraints on a batch; raise ValueError if the surrogate has another number."""
        number = len(self.values(batch)) - 1
        if self.surrogate is not None:
            with torch.no_grad():
                check_surrogate_size(self._vector(self.surrogate, batch).numel(), number)
        return number

    def load(self, params: Mapping[str, Any]) -> None:
        """Copy trained parameters by name into the module; raise ValueError if the names differ."""
        weights = self.trained
        if set(weights) != set(params):
            raise ValueError(f"the server's parameters are {sorted(params)}, the module's are {sorted(weights)}")
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(torch.from_numpy(np.array(params[name])))

    def values(self, batch: Any) -> np.ndarray:
        """Return f followed by all g on a batch as float64, computed in ``eval`` mode without gradients."""
        self.module.eval()
        with torch.no_grad():
            values = self.objective(self.module, batch), self.constraint(self.module, batch)
        objective, constraint = (np.atleast_1d(torch.as_tensor(v).detach().cpu().numpy()).astype(float) for v in values)
        if objective.shape != (1,):
            raise ValueError(f"objective must return a scalar, but returns a tensor of shape {objective.shape}")
        if constraint.ndim != 1 or not len(constraint):
            raise ValueError(f"constraint must return a scalar or a vector, but returns shape {constraint.shape}")
        return np.concatenate([objective, constraint])

    def objective_slope(self, batch: Any) -> tuple[float, dict[str, np.ndarray]]:
        """Return f and its gradient by parameter name on a batch, both in ``eval`` mode."""
        self.module.eval()
        weights = self.trained
        value = torch.as_tensor(self.objective(self.module, batch)).reshape(())
        slopes: Any = [torch.zeros_like(weight) for weight in weights.values()]
        if value.requires_grad:  # else constant, such as −∞
            slopes = torch.autograd.grad(value, list(weights.values()), materialize_grads=True)
        return float(value.detach()), {name: s.cpu().numpy() for name, s in zip(weights, slopes, strict=True)}

    def direction(self, batches: Iterable[Any], loss: LocalLoss, local_steps: int, step_size: float) -> Weights:
        """Return u_i = (w_k − w_{k,E})/(γE) after E steps from the module's parameters, which are undefined then."""
        weights = self.trained
        self.module.train()
        if self.optimizer is None or step_size == 0:
            return self._plain_steps(batches, loss, local_steps, step_size)
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        optimizer = self.optimizer(list(weights.values()), lr=step_size)
        for batch in islice(batches, local_steps):
            optimizer.zero_grad()
            self._backward(batch, loss)
            optimizer.step()
        optimizer.zero_grad()
        scale = 1 / (step_size * local_steps)
        return {name: (before[name] - weight.detach()) * scale for name, weight in weights.items()}

    def _plain_steps(self, batches: Iterable[Any], loss: LocalLoss, local_steps: int, step_size: float) -> Weights:
        weights = self.trained
        total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.module.zero_grad(set_to_none=True)  # gradients left by the user
        for step, batch in enumerate(islice(batches, local_steps), start=1):
            self._backward(batch, loss)
            with torch.no_grad():
                for name, weight in weights.items():
                    if weight.grad is None:
                        continue
                    total[name] += weight.grad
                    if step < local_steps:
                        weight.sub_(weight.grad, alpha=step_size)
                    weight.grad = None
        return total if local_steps == 1 else {name: part / local_steps for name, part in total.items()}

    def _backward(self, batch: Any, loss: LocalLoss) -> None:
        """Add the gradient of a·f + <b, g> + c·Σ max(0, g − ε), with the surrogate for g, to every ``grad``."""
        parts: list[torch.Tensor] = []
        if loss.objective:
            parts.append(float(loss.objective) * torch.as_tensor(self.objective(self.module, batch)))
        mix = torch.from_numpy(np.array(loss.constraint, float))
        if loss.penalty or mix.any():
            constraints = self._vector(self.surrogate or self.constraint, batch)
            parts.append((mix.to(constraints) * constraints).sum())
            if loss.penalty:
                excess = torch.relu(constraints - float(loss.tolerance))
                if self.surrogate is not None:  # its sum over the constraints with g > ε
                    with torch.no_grad():
                        above = self._vector(self.constraint, batch) > float(loss.tolerance)
                    excess = torch.where(above, constraints, torch.zeros_like(constraints))
                parts.append(float(loss.penalty) * excess.sum())
        local = sum((part.reshape(()) for part in parts), start=torch.zeros(()))
        if local.requires_grad:  # else constant, such as −∞
            local.backward()

    def _vector(self, function: Function, batch: Any) -> torch.Tensor:
        return torch.atleast_1d(torch.as_tensor(function(self.module, batch)))

    def pass_forward(self, batches: Iterable[Any]) -> None:
        """Compute both functions in ``train`` mode on all batches, to update batch-norm statistics."""
        self.module.train()
        with torch.no_grad(), seeded((STATISTICS_SEED,)):
            for batch in batches:
                self.objective(self.module, batch)
                self.constraint(self.module, batch)  # it may use other layers


def parameters(module: torch.nn.Module) -> dict[str, np.ndarray]:
    """Return the parameters of a module that require a gradient, as NumPy copies by name.

    Args:
        module: A PyTorch module.
    """
    return {name: w.detach().cpu().numpy().copy() for name, w in module.named_parameters() if w.requires_grad}


class BatchNormStatistics:
    """Running means and variances of normalisation layers; False as a bool if there are none.

    The server takes the mean of the participants' statistics. For an evaluation they are recomputed from all rows.
    """

    def __init__(self, functions: ModuleFunctions) -> None:
        self._functions = functions
        self._layers: list[tuple[str, Any]] = [
            (name, layer)
            for name, layer in functions.module.named_modules()
            if isinstance(layer, _NormBase) and layer.running_mean is not None
        ]

    def __bool__(self) -> bool:
        return bool(self._layers)

    def check_batches(self, rows: TorchRows, batch_size: int | None, client: str | None = None) -> None:
        """Raise ValueError if batch normalisation would get a batch of one row; ``client`` names it in the error."""
        layers = [name for name, layer in self._functions.module.named_modules() if isinstance(layer, _BatchNorm)]
        loader = rows.loader
        rest = 0 if loader is None or loader.drop_last else len(rows) % (loader.batch_size or len(rows))
        if layers and (len(rows) == 1 or batch_size == 1 or rest == 1):
            cause = f"has {len(rows)} rows, and a batch of 1" if len(rows) > 1 else "has 1 row"
            needs = f"batch normalisation ({', '.join(layers)}) needs at least 2 rows in every batch"
            advice = "use GroupNorm or LayerNorm, raise batch_size, or remove the client"
            raise ValueError(f"{client or rows.argument} {cause}, but {needs}; {advice}")

    def read(self) -> dict[str, np.ndarray]:
        """Return copies of the statistics by buffer name."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self._buffers().items()}

    def write(self, numbers: Mapping[str, Any]) -> None:
        """Copy statistics, as ``read`` returns them, into the layers."""
        with torch.no_grad():
            for name, tensor in self._buffers().items():
                tensor.copy_(torch.from_numpy(np.array(numbers[name])))

    def write_mean(self, statistics: list[dict[str, np.ndarray]]) -> None:
        """Copy the mean of several clients' statistics into the layers; counts are rounded."""
        means = {}
        for name, tensor in self._buffers().items():
            mean = np.mean([numbers[name] for numbers in statistics], axis=0)
            means[name] = mean if tensor.is_floating_point() else np.round(mean)
        self.write(means)

    def recompute(self, batches: Iterable[Any]) -> None:
        """Recompute the statistics from batches at the current parameters, with equal weight for each batch."""
        momenta = [layer.momentum for _, layer in self._layers]
        try:
            for _, layer in self._layers:
                layer.reset_running_stats()
                layer.momentum = None  # a plain mean in PyTorch
            self._functions.pass_forward(batches)
        finally:
            for (_, layer), momentum in zip(self._layers, momenta, strict=True):
                layer.momentum = momentum

    def _buffers(self) -> dict[str, torch.Tensor]:
        return {
            f"{name}.{kind}": tensor
            for name, layer in self._layers
            for kind in ("running_mean", "running_var", "num_batches_tracked")
            if (tensor := getattr(layer, kind)) is not None
        }
