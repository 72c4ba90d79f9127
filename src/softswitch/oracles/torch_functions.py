"""Functions of a PyTorch module as clients use them: values, and E local steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from softswitch.methods.messages import LocalLoss
from softswitch.oracles.torch_rows import TorchRows, seeded
from softswitch.problem.problem import PooledConstraint, check_surrogate_size
from softswitch.support import checks

Function = Callable[[torch.nn.Module, Any], torch.Tensor]
Optimizer = Callable[..., torch.optim.Optimizer]
Weights = dict[str, torch.Tensor]


class ModuleFunctions:
    """Objective and constraint of a module. Values are computed in ``eval`` mode, gradients in ``train`` mode.

    Args:
        module: Module whose parameters that require a gradient are trained.
        objective: ``(module, batch) -> scalar``.
        constraint: ``(module, batch) -> scalar or vector``, or a ``PooledConstraint`` of such functions.
        surrogate: Differentiable function that replaces the constraint in gradients; or None.
        optimizer: ``(parameters, lr=γ) -> optimizer`` for local steps. Default: plain gradient steps.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        objective: Function,
        constraint: Function | PooledConstraint,
        surrogate: Function | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, but is {module!r}")
        checks.check_callable("objective", objective, "(module, batch) -> scalar")
        checks.check_callable("constraint", constraint, "(module, batch) -> scalar or vector")
        if surrogate is not None:
            checks.check_callable("constraint_surrogate", surrogate, "(module, batch) -> scalar or vector")
        self.module, self.objective, self.constraint, self.surrogate = module, objective, constraint, surrogate
        if optimizer is not None:
            checks.check_callable("optimizer", optimizer, "(parameters, lr=step size) -> torch.optim.Optimizer")
        self.optimizer = optimizer
        if not self.trained:
            raise ValueError("module must have at least one parameter that requires a gradient, but has none")

    @property
    def trained(self) -> dict[str, torch.nn.Parameter]:
        """Trained parameters by name."""
        return {name: weight for name, weight in self.module.named_parameters() if weight.requires_grad}

    def constraints(self, batch: Any) -> int:
        """Return the number of constraints; raise if the surrogate has another number."""
        count = len(self.values(batch)) - 1
        if self.surrogate is not None:
            self.module.eval()
            with torch.no_grad():
                check_surrogate_size(self._vector(self.surrogate, batch).numel(), count)
        return count

    def load(self, params: Mapping[str, Any]) -> None:
        """Copy parameters into the module."""
        weights = self.trained
        if set(weights) != set(params):
            raise ValueError(f"the server's parameters are {sorted(params)}, the module's are {sorted(weights)}")
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(torch.from_numpy(np.array(params[name])))

    def values(self, batch: Any) -> np.ndarray:
        """Return f followed by g, computed without gradients."""
        self.module.eval()
        with torch.no_grad():
            objective = self.objective(self.module, batch)
            constraint = self.constraint(self.module, batch)
        parts = [
            np.atleast_1d(torch.as_tensor(part).detach().cpu().numpy()).astype(float)
            for part in (objective, constraint)
        ]
        for name, part, expected in zip(
            ("objective", "constraint"), parts, ("a scalar", "a scalar or a vector"), strict=True
        ):
            if part.ndim != 1 or (name == "objective" and len(part) != 1) or not len(part):
                raise ValueError(f"{name} must return {expected}, but returns a tensor of shape {part.shape}")
        return np.concatenate(parts)

    def objective_slope(self, batch: Any) -> tuple[float, dict[str, np.ndarray]]:
        """Return f and its gradient by name, both in ``eval`` mode."""
        self.module.eval()
        weights = self.trained
        value = torch.as_tensor(self.objective(self.module, batch)).reshape(())
        if not value.requires_grad:  # constant, such as −∞
            return float(value), {name: np.zeros(weight.shape) for name, weight in weights.items()}
        slopes = torch.autograd.grad(value, list(weights.values()), allow_unused=True)
        return float(value.detach()), {
            name: np.zeros(weight.shape) if slope is None else slope.cpu().numpy()
            for (name, weight), slope in zip(weights.items(), slopes, strict=True)
        }

    def statistics(self, batch: Any) -> np.ndarray:
        """Return the additive statistics of a pooled constraint."""
        assert isinstance(self.constraint, PooledConstraint)
        self.module.eval()
        with torch.no_grad():
            return np.asarray(self.constraint.statistics(self.module, batch).cpu().numpy(), float)

    def pooled(self, sums: np.ndarray) -> np.ndarray:
        """Compute a pooled constraint from summed statistics."""
        assert isinstance(self.constraint, PooledConstraint)
        with torch.no_grad():
            value = self.constraint.value(torch.from_numpy(np.array(sums, float)))
        return np.atleast_1d(torch.as_tensor(value).cpu().numpy())

    def direction(self, batches: Iterable[Any], loss: LocalLoss, local_steps: int, step_size: float) -> Weights:
        """Return u_i after E steps of size γ from the module's parameters, which are left undefined.

        With plain steps it is the mean of the gradients, which avoids the cancellation of (w_k − w_{k,E})/(γE).
        """
        if self.optimizer is None or step_size == 0:
            return self._plain_steps(batches, loss, local_steps, step_size)
        weights = self.trained
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        optimizer = self.optimizer(list(weights.values()), lr=step_size)
        self.module.train()
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
        self.module.train()
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
        local = self._local_loss(batch, loss)
        if local.requires_grad:  # else constant, such as −∞
            local.backward()

    def _local_loss(self, batch: Any, loss: LocalLoss) -> torch.Tensor:
        """Return a·f + <b, g> + c·Σ max(0, g − ε) without the terms of weight 0, with the surrogate instead of g."""
        parts: list[torch.Tensor] = []
        if loss.objective:
            parts.append(float(loss.objective) * torch.as_tensor(self.objective(self.module, batch)))
        mix = torch.from_numpy(np.array(loss.constraint, float))
        if loss.penalty or mix.any():
            constraints = self._vector(self.surrogate or self.constraint, batch)
            parts.append((mix.to(constraints) * constraints).sum())
            if loss.penalty:
                parts.append(float(loss.penalty) * self._excess(batch, constraints, float(loss.tolerance)))
        return sum((part.reshape(()) for part in parts), start=torch.zeros(()))

    def _vector(self, function: Function | PooledConstraint, batch: Any) -> torch.Tensor:
        return torch.atleast_1d(torch.as_tensor(function(self.module, batch)))

    def _excess(self, batch: Any, constraints: torch.Tensor, tolerance: float) -> torch.Tensor:
        """Return Σ max(0, g − ε), or the sum of the surrogate over the constraints with g > ε."""
        if self.surrogate is None:
            return torch.relu(constraints - tolerance).sum()
        with torch.no_grad():
            above = self._vector(self.constraint, batch) > tolerance
        return torch.where(above, constraints, torch.zeros_like(constraints)).sum()


def parameters(module: torch.nn.Module) -> dict[str, np.ndarray]:
    """Return the trained parameters of a module by name.

    Args:
        module: A PyTorch module.
    """
    return {name: w.detach().cpu().numpy().copy() for name, w in module.named_parameters() if w.requires_grad}


STATISTICS_SEED = 0x5EED
"""Seed for layers that draw random numbers while batch-norm statistics are recomputed."""


class BatchNormStatistics:
    """Running means and variances of a module's normalisation layers; empty if there are none.

    Clients start a round with the server's statistics, and the server takes the mean of the participants' statistics
    after their local steps. For an evaluation they are recomputed from the rows of all clients.

    Args:
        functions: Functions of the module.
    """

    def __init__(self, functions: ModuleFunctions) -> None:
        self._functions = functions
        self._layers = {
            name: layer
            for name, layer in functions.module.named_modules()
            if isinstance(layer, _NormBase) and layer.running_mean is not None
        }

    def __bool__(self) -> bool:
        return bool(self._layers)

    def check_batches(self, rows: TorchRows, batch_size: int | None, client: str | None = None) -> None:
        """Raise if some batch of a client has a single row and a layer needs more.

        Args:
            rows: Rows of the client.
            batch_size: Rows of a gradient batch; None for all rows.
            client: Name of the client in the error. Default: the argument's name.
        """
        functions, module, rest = self._functions, self._functions.module, 0
        layers = [name for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)]
        if rows.loader is not None and rows.loader.batch_size is not None and not rows.loader.drop_last:
            rest = len(rows) % rows.loader.batch_size
        if not layers or (len(rows) > 1 and batch_size != 1 and rest != 1):
            return
        before, batch = self.read(), rows.take(np.arange(1))
        module.train()
        try:
            with torch.no_grad(), seeded((STATISTICS_SEED,)):
                functions.objective(module, batch)
                functions.constraint(module, batch)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            cause = f"has {len(rows)} rows, and a batch of 1" if len(rows) > 1 else "has 1 row"
            raise ValueError(
                f"{client or rows.argument} {cause}, but batch normalisation ({', '.join(layers)}) needs at least "
                "2 rows in every batch; use GroupNorm or LayerNorm, raise batch_size, or remove the client"
            ) from error
        finally:
            self.write(before)
            module.eval()

    def read(self) -> dict[str, np.ndarray]:
        """Return the statistics by name."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self._buffers().items()}

    def write(self, numbers: dict[str, Any]) -> None:
        """Copy statistics into the layers."""
        with torch.no_grad():
            for name, tensor in self._buffers().items():
                tensor.copy_(torch.from_numpy(np.array(numbers[name])))

    def write_mean(self, statistics: list[dict[str, np.ndarray]]) -> None:
        """Copy the mean of several clients' statistics into the layers, rounded for counts."""
        for name, tensor in self._buffers().items():
            mean = np.mean([numbers[name] for numbers in statistics], axis=0)
            with torch.no_grad():
                tensor.copy_(torch.as_tensor(mean if tensor.is_floating_point() else np.round(mean)))

    def recompute(self, batches: Iterable[Any]) -> None:
        """Recompute the statistics from batches at the current parameters, with equal weight for each batch."""
        momenta = {name: layer.momentum for name, layer in self._layers.items()}
        functions, module = self._functions, self._functions.module
        try:
            for layer in self._layers.values():
                layer.reset_running_stats()
                layer.momentum = None  # a plain mean in PyTorch
            module.train()
            with torch.no_grad(), seeded((STATISTICS_SEED,)):
                for batch in batches:
                    functions.objective(module, batch)
                    functions.constraint(module, batch)  # it may use other layers
        finally:
            for name, layer in self._layers.items():
                layer.momentum = momenta[name]

    def _buffers(self) -> dict[str, torch.Tensor]:
        return {
            f"{name}.{kind}": tensor
            for name, layer in self._layers.items()
            for kind in ("running_mean", "running_var", "num_batches_tracked")
            if (tensor := getattr(layer, kind)) is not None
        }
