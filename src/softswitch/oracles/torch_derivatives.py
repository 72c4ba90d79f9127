"""Second derivatives of PyTorch modules at clients, in float64 for modules of any precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from softswitch.methods.sqp import Derivatives, Query
from softswitch.oracles.base import Evaluation
from softswitch.oracles.derivatives import DerivativeOracle, mean_rounding
from softswitch.oracles.evaluation import SLICE_BYTES
from softswitch.oracles.torch import TorchOracle
from softswitch.oracles.torch_functions import FunctionValues, ModuleFunctions, parameters, preserve_module
from softswitch.oracles.torch_rows import TorchRows, map_batch, seeded
from softswitch.problem.domains import Domain

PROBE_ROWS = 8  # maximum number of rows on which the functions are checked before a run


class TorchDerivatives(DerivativeOracle):
    """Derivative oracle of clients with PyTorch data, by automatic differentiation, one client after another.

    Functions compute in ``eval`` mode; the parameters of their module are the start. ``reply`` does not change the
    module, ``evaluate`` loads parameters into it. ``held_out`` has an entry for each client, None for one without such
    rows. ``client_optimum`` are the f_i* if objectives are regrets.
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
        with preserve_module(functions.module):
            functions.module.eval()
            self._oracle = TorchOracle(functions, self._clients, held_out, client_optimum=client_optimum)
        self.names, self.start = tuple(clients), parameters(functions.module)
        self.domain, self.convex = domain, convex
        self.sizes = np.array([len(rows) for rows in self._clients])
        self.shape = (len(clients), self._oracle.constraints)
        self.rounding = mean_rounding(self.sizes, is_exact=True)
        self._call = FunctionValues(functions.module, (functions.objective, functions.constraint))
        self._probe()

    def _probe(self) -> None:
        """Raise if both functions cannot be differentiated twice on a few rows, or draw random numbers."""
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
        """Return the values of every client on all of its rows, in the precision of the module."""
        return Evaluation(*self._oracle.evaluate(params))

    def evaluate_held_out(self, params: Any) -> Evaluation | None:
        """Return the values of every client on held-out rows, or None if there are none."""
        values = self._oracle.evaluate_held_out(params)
        return None if values is None else Evaluation(*values)

    def load_params(self, params: Any) -> None:
        """Load parameters into the module, and set ``eval`` mode."""
        self._oracle.load_answer(params)

    def digest(self) -> dict[str, str]:
        """Return digests of the functions and of the data, as text by name."""
        return self._oracle.digest()

    def reply(self, query: Query, needed: np.ndarray | None = None) -> Derivatives:
        """Return values, gradients and the Hessian at the query's point; 0 for clients that are not ``needed``."""
        weights = np.c_[query.weights, query.multipliers]
        needed = np.ones(len(weights), bool) if needed is None else needed
        batches = ((i, self._clients[i].all_rows(keep=True)) for i in np.flatnonzero(needed))
        parts = ((i, self._derive(batch, query.point, weights[i])) for i, batch in batches)
        values, jacobian, hessian = self.add_up(parts, weights, needed)
        if self._optimum is not None:
            values[:, 0] -= np.where(needed, self._optimum, 0)
        return Derivatives(values[:, 0], values[:, 1:], jacobian[:, 0], jacobian[:, 1:], hessian)

    def row_hessian(self, point: np.ndarray, function: int, row: int) -> np.ndarray:
        """Return the Hessian of function 0 (f), 1, 2, … (g) on one row of the first client; NaN if it has no value."""
        weights = np.eye(1 + self.shape[1])[function]
        values, _, hessian = self._derive(self._clients[0].take(np.array([row])), point, weights)
        return np.where(np.isfinite(values[function]), hessian, np.nan) + np.zeros((self.size, self.size))

    def _derive(self, batch: Any, point: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any]:
        """Return (f, g) of one client, their gradients, and the Hessian of their sum with ``weights``."""
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
        """Return f followed by all g on a batch, as functions of the flat parameters ``at``."""
        module, ends = self._functions.module, np.cumsum([self.start[name].size for name in sorted(self.start)])
        parts = zip(sorted(self.start), at.tensor_split(ends[:-1].tolist()), strict=True)
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        fixed = {name: _to_double(tensor.detach()) for name, tensor in tensors.items()}
        swapped = fixed | {name: part.reshape(self.start[name].shape) for name, part in parts}
        with preserve_module(module), _InDouble() as precision:
            module.eval()
            values = self._call.at(swapped, map_batch(_to_double, batch))
        if precision.is_lost:
            self.is_exact, self.rounding = False, mean_rounding(self.sizes, is_exact=False)
        return values.to(at)


class _InDouble(TorchFunctionMode):
    """A mode that computes in float64 instead of float32; ``is_lost`` is True if a result had fewer digits."""

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
    """Return a float32 tensor as float64, ``torch.float32`` as ``torch.float64``, and anything else unchanged."""
    if value is torch.float32:
        return torch.float64
    return value.double() if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value


def _pull_back(outputs: torch.Tensor, at: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
    """Return the gradient of <unit, outputs> with respect to ``at`` for every row of ``units``, stacked."""
    try:
        return torch.autograd.grad(outputs, at, units, retain_graph=True, is_grads_batched=True)[0]
    except RuntimeError:  # an operation that cannot be batched
        return torch.stack([torch.autograd.grad(outputs, at, unit, retain_graph=True)[0] for unit in units])


def _check_layers(module: torch.nn.Module) -> None:
    """Raise ValueError if a module has layers whose values depend on other rows or on random numbers."""
    for name, layer in module.named_modules():
        dropout = layer.dropout if isinstance(layer, torch.nn.RNNBase | torch.nn.MultiheadAttention) else 0
        if isinstance(layer, _NormBase) and layer.track_running_stats:
            reason = f"running means of normalisation ({name}) for SQP; use GroupNorm or LayerNorm"
        elif (layer.p if isinstance(layer, _DropoutNd) else dropout) > 0:
            reason = f"dropout ({name}) for SQP; set it to 0"
        else:
            continue
        raise ValueError(f"module must not have {reason}, or use SoftmaxSGM")
