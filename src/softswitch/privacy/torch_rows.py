"""Values and clipped gradients of single rows with PyTorch, for private clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from softswitch.methods.messages import LocalLoss
from softswitch.oracles.torch_functions import ModuleFunctions, preserve_module
from softswitch.oracles.torch_joint import ClientBatches, JointFunctions, LocalLosses
from softswitch.oracles.torch_rows import TorchRows
from softswitch.privacy.numpy_rows import Arrays, sum_clipped_gradients
from softswitch.problem.parameters import Params

ROWS = 64  # number of rows that are computed together


class RowFunctions:
    """Values and gradients of single rows: of many at once by ``vmap`` where that is possible, else one by one."""

    def __init__(self, functions: ModuleFunctions, data: TorchRows) -> None:
        self._functions = functions
        self._joint = JointFunctions(functions, [data.take(np.array([0]))] * 2)
        self._joint.split_error = "rows are kept apart"  # a module that mixes rows would break the privacy

    def evaluate(self, params: Params, data: TorchRows, rows: np.ndarray) -> np.ndarray:
        """Return f and each g on every single row of ``rows``, as an array of rows × functions."""
        self._functions.load(params)
        with preserve_module(self._functions.module):
            values = [self._joint.report(batches).double().cpu().numpy() for batches in _single_rows(data, rows)]
        return np.concatenate(values) if values else np.zeros((0, 0))

    def sum_gradients(self, params: Params, data: TorchRows, rows: np.ndarray, mix: Any, clip: float) -> Arrays:
        """Return the sum over rows of clipped gradients of <mix, (f, surrogate of g)>, in integers."""
        self._functions.load(params)
        like = next(iter(self._functions.trained.values()))

        def gradients() -> Iterator[Arrays]:
            for batches in _single_rows(data, rows):
                constraint: Any = np.tile(mix[1:], (len(batches), 1))
                loss = LocalLoss(float(mix[0]), constraint, 0.0, 0.0)
                losses = LocalLosses.of(loss, np.arange(len(batches)), like)
                stacked = self._joint.directions([batches], losses, 1, 0.0)
                yield {name: part.double().cpu().numpy() for name, part in stacked.items()}

        with preserve_module(self._functions.module):
            return sum_clipped_gradients(gradients(), params, clip)


def _single_rows(data: TorchRows, rows: np.ndarray) -> Iterator[ClientBatches]:
    """Yield slices of the rows, each row as a batch."""
    for start in range(0, len(rows), ROWS):
        yield ClientBatches([data.take(rows[i : i + 1]) for i in range(start, min(start + ROWS, len(rows)))])


def describe_row_mixing(module: torch.nn.Module) -> str | None:
    """Return an error message if a layer mixes rows, whose influence clipping then does not bound, else None."""
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) or (isinstance(layer, _NormBase) and layer.running_mean is not None):
            layer_type = f"{name!r} is {type(layer).__name__}, whose output for one row depends on other rows"
            return f"module must not mix rows with privacy, but {layer_type}; use GroupNorm or LayerNorm"
    return None
