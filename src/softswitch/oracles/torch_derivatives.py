"""Derivatives of PyTorch modules, in float64 whatever the precision of the module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from softswitch.methods.sqp import Derivatives, Query
from softswitch.oracles.base import Evaluation
from softswitch.oracles.batch_sizes import Batches
from softswitch.oracles.derivatives import DerivativeOracle, mean_rounding
from softswitch.oracles.evaluation import SLICE_BYTES
from softswitch.oracles.torch import TorchOracle
from softswitch.oracles.torch_functions import ModuleFunctions, TorchRows, map_batch, parameters, seeded
from softswitch.problem.domains import Domain

PROBE_ROWS = 8
"""Number of rows on which the functions are checked before a run."""


class TorchDerivatives(DerivativeOracle):
    """The derivatives of clients with PyTorch data, by automatic differentiation, one client after another.

    Functions compute in ``eval`` mode. ``reply`` leaves the module as it is; ``evaluate`` loads parameters into it.

    Args:
        functions: Objective and constraint of a module. Its parameters are the start.
        clients: Rows by client; one client is enough.
        held_out: Rows for ``evaluate_held_out``, None for a client without any.
        domain: ``Ball``, ``Box`` or None.
        convex: Whether the functions are declared convex.
        client_optimum: f_i* of each client if objectives are regrets.
    """

    def __init__(
        self,
        functions: ModuleFunctions,
        clients: Mapping[Any, TorchRows],
        *,
        held_out: Sequence[TorchRows | None] | None = None,
        domain: Domain | None = None,
        convex: bool | None = None,
        client_optimum: np.ndarray | None = None,
    ) -> None:
        _check_layers(functions.module)
        self._clients, self._optimum, self._functions = list(clients.values()), client_optimum, functions
        with _evaluating(functions.module):
            self._oracle = TorchOracle(
                functions,
                self._clients,
                held_out,
                participants=len(clients),
                local_steps=1,
                batches=Batches(None, None),
                replace=None,
                client_optimum=client_optimum,
            )
        self.names, self.start = tuple(clients), parameters(functions.module)
        self.domain, self.convex = domain, convex
        self.sizes = np.array([len(rows) for rows in self._clients])
        self.shape = (len(clients), self._oracle.constraints)
        self.rounding = mean_rounding(self.sizes, is_exact=True)
        self._call = _Call(functions)
        self._probe()

    def _probe(self) -> None:
        """Differentiate both functions twice on a few rows, and raise if that fails or if values are random."""
        rows = self._clients[0]
        batch = rows.take(np.arange(min(PROBE_ROWS, len(rows))))
        point = np.concatenate([self.start[name].ravel() for name in sorted(self.start)])
        values = []
        for seed in range(2):
            try:
                with seeded((seed,)):
                    values.append(np.c_[self._derive(batch, point, np.ones(1 + self.shape[1]))[:2]])
            except (RuntimeError, NotImplementedError) as error:
                reason = f"must be twice differentiable in float64 by PyTorch for SQP, but {error}"
                raise TypeError(f"objective and constraint {reason}; use SoftmaxSGM") from error
        if not np.array_equal(values[0], values[1], equal_nan=True):
            raise ValueError("objective and constraint must not draw random numbers for SQP; use SoftmaxSGM")

    def evaluate(self, params: Any) -> Evaluation:
        """Evaluate parameters at every client, in the module's precision."""
        return Evaluation(*self._oracle.evaluate(params))

    def evaluate_held_out(self, params: Any) -> Evaluation | None:
        """Evaluate parameters on held-out rows; None if there are none."""
        values = self._oracle.evaluate_held_out(params)
        return None if values is None else Evaluation(*values)

    def load_answer(self, params: Any) -> None:
        """Load parameters into the module, and set ``eval`` mode."""
        self._oracle.load_answer(params)

    def digest(self) -> dict[str, str]:
        """Return digests of the functions and of the data, as text by name."""
        return self._oracle.digest()

    def reply(self, query: Query, needed: np.ndarray | None = None) -> Derivatives:
        """Return values, gradients and the Hessian at a point; clients that are not ``needed`` return 0."""
        weights = np.c_[query.weights, query.multipliers]
        needed = np.ones(len(weights), bool) if needed is None else needed
        self.rows += int(3 * self.sizes[needed].sum() + self.size * self.sizes[weights.any(axis=1) & needed].sum())
        values, jacobian = np.zeros(weights.shape), np.zeros((*weights.shape, self.size))
        hessian = np.zeros((self.size, self.size))
        for i in np.flatnonzero(needed):
            batch = self._clients[i].all_rows(keep=True)
            values[i], jacobian[i], part = self._derive(batch, query.point, weights[i])
            hessian += part
        if self._optimum is not None:
            values[:, 0] -= np.where(needed, self._optimum, 0)
        symmetric = (hessian + hessian.T) / 2
        return Derivatives(values[:, 0], values[:, 1:], jacobian[:, 0], jacobian[:, 1:], symmetric)

    def _derive(
        self, batch: Any, point: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | float]:
        """Return the values and gradients of one client, and the Hessian of their weighted sum."""
        device = next(iter(self._functions.trained.values())).device
        at = torch.tensor(point, dtype=torch.float64, device=device, requires_grad=True)
        # The term of 0 makes every function, and every gradient, depend on the parameters.
        values = self._values(batch, at) + 0 * (at @ at)
        is_known = ~np.isneginf(found := values.detach().cpu().numpy())
        jacobian = _pull_back(values, at, torch.eye(len(found)).to(at)).cpu().numpy() * is_known[:, None]
        weights = np.where(is_known, weights, 0)
        if not weights.any():
            return found, jacobian, 0.0
        used = np.flatnonzero(weights)
        total = torch.from_numpy(weights[used]).to(at) @ values[torch.from_numpy(used).to(device)]
        (gradient,) = torch.autograd.grad(total, at, create_graph=True)
        columns = max(1, SLICE_BYTES // (64 * int(self.sizes.max())))
        parts = [_pull_back(gradient, at, units) for units in torch.eye(self.size).to(at).split(columns)]
        return found, jacobian, torch.cat(parts).cpu().numpy()

    def _values(self, batch: Any, at: torch.Tensor) -> torch.Tensor:
        """Return f followed by g."""
        module, ends = self._functions.module, np.cumsum([self.start[name].size for name in sorted(self.start)])
        parts = zip(sorted(self.start), at.tensor_split(ends[:-1].tolist()), strict=True)
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        fixed = {name: _to_double(tensor.detach()) for name, tensor in tensors.items()}
        swapped = fixed | {name: part.reshape(self.start[name].shape) for name, part in parts}
        with _evaluating(module), _InDouble() as precision:
            values = torch.func.functional_call(
                self._call,
                {f"module.{name}": tensor for name, tensor in swapped.items()},
                (map_batch(_to_double, batch),),
            )
        if precision.is_lost:
            self.is_exact, self.rounding = False, mean_rounding(self.sizes, is_exact=False)
        return values.to(at)


class _Call(torch.nn.Module):
    """Both functions as one module, whose parameters ``functional_call`` can replace."""

    def __init__(self, functions: ModuleFunctions) -> None:
        super().__init__()
        self.module, self._functions = functions.module, (functions.objective, functions.constraint)

    def forward(self, batch: Any) -> torch.Tensor:
        values = [torch.as_tensor(function(self.module, batch)).reshape(-1) for function in self._functions]
        return torch.cat([value.to(values[0]) for value in values])


class _InDouble(TorchFunctionMode):
    """Computes in float64 what a function computes in float32; ``is_lost`` says whether something stayed shorter."""

    def __init__(self) -> None:
        super().__init__()
        self.is_lost = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = map_batch(_to_double, (tuple(args), kwargs or {}))
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        result = function(*args, **kwargs)
        if isinstance(result, torch.Tensor) and result.is_floating_point() and result.dtype != torch.float64:
            self.is_lost |= any(isinstance(a, torch.Tensor) and a.dtype == torch.float64 for a in args)
        return map_batch(_to_double, result)


def _to_double(value: Any) -> Any:
    """Return a float32 tensor, or that dtype, as float64; anything else unchanged."""
    if value is torch.float32:
        return torch.float64
    return value.double() if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value


@contextmanager
def _evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Set ``eval`` mode within the context."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def _pull_back(outputs: torch.Tensor, at: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
    """Return the gradients of <unit, outputs>, stacked."""
    try:
        return torch.autograd.grad(outputs, at, units, retain_graph=True, is_grads_batched=True)[0]
    except RuntimeError:  # an operation that cannot be batched
        return torch.stack([torch.autograd.grad(outputs, at, unit, retain_graph=True)[0] for unit in units])


def _check_layers(module: torch.nn.Module) -> None:
    """Raise if a module has layers whose values depend on other rows or on random numbers."""
    for name, layer in module.named_modules():
        if isinstance(layer, _NormBase) and layer.track_running_stats:
            reason = f"running means of normalisation ({name}) for SQP; use GroupNorm or LayerNorm"
        elif isinstance(layer, _DropoutNd) and layer.p > 0:
            reason = f"dropout ({name}) for SQP; set its p to 0"
        elif isinstance(layer, torch.nn.RNNBase | torch.nn.MultiheadAttention) and layer.dropout > 0:
            reason = f"dropout ({name}) for SQP; set it to 0"
        else:
            continue
        raise ValueError(f"module must not have {reason}, or use SoftmaxSGM")
