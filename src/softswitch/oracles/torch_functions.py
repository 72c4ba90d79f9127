"""A module's functions as its clients use them: values, and the E local steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _NormBase

from softswitch.methods.messages import LocalLoss
from softswitch.oracles.torch_rows import seeded
from softswitch.problem.pooled import PooledConstraint
from softswitch.problem.problem import check_stand_in
from softswitch.support import checks

Function = Callable[[torch.nn.Module, Any], torch.Tensor]
Optimizer = Callable[..., torch.optim.Optimizer]
Weights = dict[str, torch.Tensor]


class ModuleFunctions:
    """Objective and constraint of a module. Values are computed in its ``eval`` mode, gradients in its ``train`` mode.

    Args:
        module: its parameters that require a gradient are those of the run.
        objective: ``(module, batch) -> scalar``.
        constraint: ``(module, batch) -> scalar or vector``, or a ``PooledConstraint`` of such functions.
        stand_in: what is descended on in place of the constraint, where that one moves in jumps; or None.
        optimizer: for the local steps: ``(parameters, lr=γ) -> optimizer``; None: plain gradient steps.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        objective: Function,
        constraint: Function | PooledConstraint,
        stand_in: Function | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, but is {module!r}")
        checks.function("objective", objective, "(module, batch) -> scalar")
        checks.function("constraint", constraint, "(module, batch) -> scalar or vector")
        if stand_in is not None:
            checks.function("constraint_surrogate", stand_in, "(module, batch) -> scalar or vector")
        self.module, self.objective, self.constraint, self.stand_in = module, objective, constraint, stand_in
        if optimizer is not None:
            checks.function("optimizer", optimizer, "(parameters, lr=step size) -> torch.optim.Optimizer")
        self.optimizer = optimizer
        if not self.trained:
            raise ValueError("module must have at least one parameter that requires a gradient, but has none")

    @property
    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The parameters of the run by name."""
        return {name: weight for name, weight in self.module.named_parameters() if weight.requires_grad}

    def constraints(self, batch: Any) -> int:
        """How many constraints there are; raise where the stand-in has another number."""
        many = len(self.values(batch)) - 1
        if self.stand_in is not None:
            self.module.eval()
            with torch.no_grad():
                check_stand_in(self._vector(self.stand_in, batch).numel(), many)
        return many

    def load(self, params: Mapping[str, Any]) -> None:
        """Give the module these parameters."""
        weights = self.trained
        if set(weights) != set(params):
            raise ValueError(f"the server's parameters are {sorted(params)}, the module's are {sorted(weights)}")
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(torch.from_numpy(np.array(params[name])))

    def values(self, batch: Any) -> np.ndarray:
        """f and then g, computed without gradients."""
        self.module.eval()
        with torch.no_grad():
            objective = self.objective(self.module, batch)
            constraint = self.constraint(self.module, batch)
        parts = [
            np.atleast_1d(torch.as_tensor(part).detach().cpu().numpy()).astype(float)
            for part in (objective, constraint)
        ]
        for name, part, wanted in zip(
            ("objective", "constraint"), parts, ("a scalar", "a scalar or a vector"), strict=True
        ):
            if part.ndim != 1 or (name == "objective" and len(part) != 1) or not len(part):
                raise ValueError(f"{name} must return {wanted}, but returns a tensor of shape {part.shape}")
        return np.concatenate(parts)

    def objective_slope(self, batch: Any) -> tuple[float, dict[str, np.ndarray]]:
        """f and its gradient by name, both in ``eval`` mode."""
        self.module.eval()
        weights = self.trained
        value = torch.as_tensor(self.objective(self.module, batch)).reshape(())
        if not value.requires_grad:  # nothing to learn from: −∞, say
            return float(value), {name: np.zeros(weight.shape) for name, weight in weights.items()}
        slopes = torch.autograd.grad(value, list(weights.values()), allow_unused=True)
        return float(value.detach()), {
            name: np.zeros(weight.shape) if slope is None else slope.cpu().numpy()
            for (name, weight), slope in zip(weights.items(), slopes, strict=True)
        }

    def statistics(self, batch: Any) -> np.ndarray:
        """The additive statistics of a pooled constraint."""
        assert isinstance(self.constraint, PooledConstraint)
        self.module.eval()
        with torch.no_grad():
            return np.asarray(self.constraint.statistics(self.module, batch).cpu().numpy(), float)

    def pooled(self, sums: np.ndarray) -> np.ndarray:
        """A pooled constraint by its summed statistics."""
        assert isinstance(self.constraint, PooledConstraint)
        with torch.no_grad():
            value = self.constraint.value(torch.from_numpy(np.array(sums, float)))
        return np.atleast_1d(torch.as_tensor(value).cpu().numpy())

    def direction(self, batches: Iterable[Any], loss: LocalLoss, local_steps: int, step_size: float) -> Weights:
        """u_i after E steps of size γ from the parameters the module has; where it is then, is not said.

        With plain steps it is the mean of the gradients, the same number as (w_k − w_{k,E})/(γE) without the digits
        that a difference loses.
        """
        if self.optimizer is None or step_size == 0:
            return self._by_plain_steps(batches, loss, local_steps, step_size)
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

    def _by_plain_steps(self, batches: Iterable[Any], loss: LocalLoss, local_steps: int, step_size: float) -> Weights:
        weights = self.trained
        total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.module.zero_grad(set_to_none=True)  # a user's own from before
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
        if local.requires_grad:  # else the batch has nothing to learn from: −∞, say
            local.backward()

    def _local_loss(self, batch: Any, loss: LocalLoss) -> torch.Tensor:
        """a·f + <b, g> + c·Σ max(0, g − ε), with a stand-in in place of g; what has weight 0 is not computed."""
        parts: list[torch.Tensor] = []
        if loss.objective:
            parts.append(float(loss.objective) * torch.as_tensor(self.objective(self.module, batch)))
        mix = torch.from_numpy(np.array(loss.constraint, float))
        if loss.penalty or mix.any():
            descended = self._vector(self.stand_in or self.constraint, batch)
            parts.append((mix.to(descended) * descended).sum())
            if loss.penalty:
                parts.append(float(loss.penalty) * self._excess(batch, descended, float(loss.tolerance)))
        return sum((part.reshape(()) for part in parts), start=torch.zeros(()))

    def _vector(self, function: Function | PooledConstraint, batch: Any) -> torch.Tensor:
        """What a function says of a batch, one entry a constraint."""
        return torch.atleast_1d(torch.as_tensor(function(self.module, batch)))

    def _excess(self, batch: Any, descended: torch.Tensor, tolerance: float) -> torch.Tensor:
        """Σ max(0, g − ε); with a stand-in the sum of it over the constraints that are above ε."""
        if self.stand_in is None:
            return torch.relu(descended - tolerance).sum()
        with torch.no_grad():
            above = self._vector(self.constraint, batch) > tolerance
        return torch.where(above, descended, torch.zeros_like(descended)).sum()


def parameters(module: torch.nn.Module) -> dict[str, np.ndarray]:
    """A module's trained parameters by name: the start of a run.

    Args:
        module: a PyTorch module.
    """
    return {name: w.detach().cpu().numpy().copy() for name, w in module.named_parameters() if w.requires_grad}


FOR_RUNNING_MEANS = 0x5EED
"""The seed within which they are found anew: what layers draw there is the same every time."""


class RunningMeans:
    """The running means and variances of a module's normalisation layers; of a module without any, nothing.

    Clients begin a round with the server's, their local steps change them, and the mean of the participants' is the
    server's after it. Wherever parameters are judged, they are found anew from all clients' rows: an average of
    iterates has none of its own.

    Args:
        functions: the module's.
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

    def read(self) -> dict[str, np.ndarray]:
        """Their numbers by name."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self._buffers().items()}

    def write(self, numbers: dict[str, Any]) -> None:
        """Give the layers these numbers."""
        with torch.no_grad():
            for name, tensor in self._buffers().items():
                tensor.copy_(torch.from_numpy(np.array(numbers[name])))

    def write_mean(self, several: list[dict[str, np.ndarray]]) -> None:
        """Give the layers the mean of several clients' numbers; of counts the nearest whole number."""
        for name, tensor in self._buffers().items():
            mean = np.mean([numbers[name] for numbers in several], axis=0)
            with torch.no_grad():
                tensor.copy_(torch.as_tensor(mean if tensor.is_floating_point() else np.round(mean)))

    def find_anew(self, batches: Iterable[Any]) -> None:
        """Set them to what the layers see of these batches at the present parameters, each batch counted alike."""
        momenta = {name: layer.momentum for name, layer in self._layers.items()}
        of, module = self._functions, self._functions.module
        try:
            for layer in self._layers.values():
                layer.reset_running_stats()
                layer.momentum = None  # PyTorch's word for a plain mean
            module.train()
            with torch.no_grad(), seeded((FOR_RUNNING_MEANS,)):
                for batch in batches:
                    of.objective(module, batch)
                    of.constraint(module, batch)  # it may have layers of its own
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
