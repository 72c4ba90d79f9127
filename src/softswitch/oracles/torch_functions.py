"""PyTorch at one client: values and local steps of a module, and batch-norm statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
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
STATISTICS_SEED = 0x5EED  # random seed for layers that draw random numbers while batch-norm statistics are recomputed


@contextmanager
def preserve_module(module: torch.nn.Module) -> Iterator[None]:
    """Restore the module's buffers, and its ``train`` or ``eval`` mode, at the end of the ``with`` block."""
    before = {name: part.detach().clone() for name, part in module.named_buffers()}
    modes = {part: part.training for part in module.modules()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, part in module.named_buffers():
                part.copy_(before[name])
        for layer, mode in modes.items():
            layer.training = mode


@contextmanager
def replaced_forward(module: torch.nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Call ``forward`` in place of the module's method in the ``with`` block."""
    attributes = module.__dict__  # modules check every attribute that is set otherwise
    before = attributes.get("forward")
    attributes["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del attributes["forward"]
        else:
            attributes["forward"] = before


class Remember:
    """The forward method of a module that returns its last outputs again in the next function, for the same arguments.

    A function that calls the module twice gets two outputs, which differ if layers draw random numbers.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._forward = module.forward
        self._inputs: Any = None
        self._outputs: Any = None
        self._is_used = False

    def start_function(self) -> None:
        """Allow that the last outputs are returned once more."""
        self._is_used = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs at these arguments."""
        if self._is_used or not are_same(self._inputs, (args, kwargs)):
            self._inputs, self._outputs = (args, kwargs), self._forward(*args, **kwargs)
        self._is_used = True
        return self._outputs


def are_same(one: Any, other: Any) -> bool:
    """Return whether two arguments (args, kwargs) have the same objects; True for None twice."""
    if one is None or other is None:
        return one is other
    (args, kwargs), (more, options) = one, other
    is_equal = len(args) == len(more) and kwargs.keys() == options.keys()
    return is_equal and all(a is b for a, b in zip((*args, *kwargs.values()), (*more, *options.values()), strict=True))


class FunctionValues(torch.nn.Module):
    """Several functions of a module as a module, so that ``functional_call`` can replace its parameters."""

    def __init__(self, module: torch.nn.Module, chosen: Sequence[Function], *, shares_outputs: bool = False) -> None:
        super().__init__()
        self.module, self._chosen, self._shares_outputs = module, chosen, shares_outputs

    def forward(self, batch: Any) -> torch.Tensor:
        """Return the values of the functions on a batch, one after another."""
        remember, values = Remember(self.module), []
        with replaced_forward(self.module, remember) if self._shares_outputs else nullcontext():
            for function in self._chosen:
                remember.start_function()
                values.append(torch.as_tensor(function(self.module, batch)).reshape(-1))
        return torch.cat([value.to(values[0]) for value in values])

    def at(self, point: Weights | None, batch: Any) -> torch.Tensor:
        """Return the values at parameters and buffers ``point``, by name; None: at those of the module."""
        if point is None:
            return self.forward(batch)
        named = {f"module.{name}": weight for name, weight in point.items()}
        values: torch.Tensor = torch.func.functional_call(self, named, (batch,))
        return values


class ModuleFunctions:
    """Objective, constraint and surrogate of a module, with values in ``eval`` and gradients in ``train`` mode.

    The optimizer of local steps is ``(parameters, lr=γ) -> optimizer``, by default plain gradient steps. ``trained``
    has the parameters of the module that require a gradient, by name.
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
        self.trained: dict[str, torch.nn.Parameter] = {
            name: weight for name, weight in module.named_parameters() if weight.requires_grad
        }
        if not self.trained:
            raise ValueError("module must have at least one parameter that requires a gradient, but has none")

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
                given = params[name]
                weight.copy_(given if isinstance(given, torch.Tensor) else torch.from_numpy(np.array(given)))

    def values(self, batch: Any) -> np.ndarray:
        """Return f followed by all g on a batch as float64, computed in ``eval`` mode without gradients."""
        self.module.eval()
        return self.report(batch).cpu().numpy()

    def report(self, batch: Any) -> torch.Tensor:
        """Return f followed by all g on a batch as float64, without gradients, on the device of the values."""
        remember, values = Remember(self.module), []
        with torch.no_grad(), replaced_forward(self.module, remember):
            for function in (self.objective, self.constraint):
                remember.start_function()
                values.append(torch.as_tensor(function(self.module, batch)))
            objective, constraint = values
            if objective.shape not in ((), (1,)):
                shape = tuple(objective.shape)
                raise ValueError(f"objective must return a scalar, but returns a tensor of shape {shape}")
            if constraint.ndim > 1 or not constraint.numel():
                shape = tuple(constraint.shape)
                raise ValueError(f"constraint must return a scalar or a vector, but returns shape {shape}")
            return torch.cat([objective.reshape(1).to(constraint.device), constraint.reshape(-1)]).double()

    def objective_slope(self, batch: Any) -> tuple[float, dict[str, np.ndarray]]:
        """Return f and its gradient by parameter name on a batch, both in ``eval`` mode."""
        self.module.eval()
        weights = self.trained
        value = torch.as_tensor(self.objective(self.module, batch)).reshape(())
        slopes: Any = [torch.zeros_like(weight) for weight in weights.values()]
        if value.requires_grad:  # else constant, such as −∞
            slopes = torch.autograd.grad(value, list(weights.values()), materialize_grads=True)
        return float(value.detach()), {name: s.cpu().numpy() for name, s in zip(weights, slopes, strict=True)}

    def weighted_gradient(self, weighted: Iterable[tuple[float, Any, LocalLoss]]) -> Weights:
        """Return Σ r_i ∇h_i over (r_i, batch, local loss) of clients, one after another, in ``train`` mode."""
        self._begin_gradients()
        for weight, batch, loss in weighted:
            self._backward(batch, loss, weight)
        return self._take_gradients()

    def _begin_gradients(self) -> None:
        """Set ``train`` mode, and remove gradients that the user left."""
        if not self.module.training:
            self.module.train()
        for weight in self.trained.values():
            weight.grad = None

    def _take_gradients(self) -> Weights:
        """Return the gradients of the parameters, 0 without one, and remove them."""
        taken = {name: torch.zeros_like(w) if w.grad is None else w.grad for name, w in self.trained.items()}
        for weight in self.trained.values():
            weight.grad = None
        return taken

    def direction(self, batches: Iterable[Any], loss: LocalLoss, local_steps: int, step_size: float) -> Weights:
        """Return u_i = (w_k − w_{k,E})/(γE) after E steps from the module's parameters, which are undefined then."""
        weights = self.trained
        self._begin_gradients()
        if self.optimizer is None or step_size == 0:
            return self._plain_steps(iter(batches), loss, local_steps, step_size)
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        optimizer = self.optimizer(list(weights.values()), lr=step_size)
        for batch in islice(batches, local_steps):
            optimizer.zero_grad()
            self._backward(batch, loss)
            optimizer.step()
        optimizer.zero_grad()
        scale = 1 / (step_size * local_steps)
        return {name: (before[name] - weight.detach()) * scale for name, weight in weights.items()}

    def _plain_steps(self, batches: Iterator[Any], loss: LocalLoss, local_steps: int, step_size: float) -> Weights:
        start = [weight.detach().clone() for weight in self.trained.values()]
        for step in range(1, local_steps + 1):
            self._backward(next(batches), loss)  # gradients add up
            if step < local_steps:
                with torch.no_grad():
                    for weight, first in zip(self.trained.values(), start, strict=True):
                        if weight.grad is not None:
                            torch.sub(first, weight.grad, alpha=step_size, out=weight)
        total = self._take_gradients()
        return total if local_steps == 1 else {name: part / local_steps for name, part in total.items()}

    def _backward(self, batch: Any, loss: LocalLoss, scale: float = 1.0) -> None:
        """Add the gradient of a·f + <b, g> + c·Σ max(0, g − ε), with the surrogate for g, to every ``grad``.

        The gradient is multiplied by ``scale``.
        """
        terms: list[tuple[torch.Tensor, torch.Tensor | None]] = []  # values with their coefficients; None for 1
        if coefficient := scale * float(loss.objective):
            value = torch.as_tensor(self.objective(self.module, batch)).reshape(())
            terms.append((value, None if coefficient == 1 else torch.full_like(value, coefficient)))
        mix, penalty = [scale * float(b) for b in loss.constraint], scale * float(loss.penalty)
        if penalty or any(mix):
            values = self._vector(self.surrogate or self.constraint, batch)
            coefficients = None if mix == [1] and not penalty else values.new_tensor(mix)
            if coefficients is not None and penalty:
                with torch.no_grad():
                    exact = values if self.surrogate is None else self._vector(self.constraint, batch)
                    coefficients += penalty * (exact > float(loss.tolerance)).to(coefficients)
            terms.append((values, coefficients))
        if terms := [term for term in terms if term[0].requires_grad]:  # else constant, such as −∞
            roots, slopes = zip(*terms, strict=True)
            torch.autograd.backward(roots, slopes)

    def _vector(self, function: Function, batch: Any) -> torch.Tensor:
        return torch.as_tensor(function(self.module, batch)).reshape(-1)

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
