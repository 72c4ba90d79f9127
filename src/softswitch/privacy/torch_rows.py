"""Values and clipped gradients of single rows with PyTorch, for private clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from softswitch.methods.messages import LocalLoss
from softswitch.oracles.torch_functions import ModuleFunctions, preserve_module
from softswitch.oracles.torch_rows import TorchRows
from softswitch.privacy.numpy_rows import Arrays, sum_clipped_gradients
from softswitch.problem.parameters import Params


def evaluate_rows(functions: ModuleFunctions, params: Params, data: TorchRows, rows: np.ndarray) -> np.ndarray:
    """Return f and each g on every single row of ``rows``, as an array of rows × functions."""
    functions.load(params)

    def one(row: int) -> np.ndarray:
        with preserve_module(functions.module):
            return functions.values(data.take(np.array([row])))

    return np.array([one(row) for row in rows])


def sum_row_gradients(
    functions: ModuleFunctions, params: Params, data: TorchRows, rows: np.ndarray, mix: Any, clip: float
) -> Arrays:
    """Return the sum over rows of the gradients of <mix, (f, surrogate of g)>, each clipped to norm ``clip``."""
    functions.load(params)
    loss = LocalLoss(float(mix[0]), mix[1:], 0.0, 0.0)

    def one(row: int) -> Arrays:
        with preserve_module(functions.module):
            gradient = functions.direction([data.take(np.array([row]))], loss, 1, 0.0)
        return {name: part.double().cpu().numpy() for name, part in gradient.items()}

    return sum_clipped_gradients(map(one, rows), params, clip)


def describe_row_mixing(module: torch.nn.Module) -> str | None:
    """Return an error message if a layer mixes rows, whose influence clipping then does not bound, else None."""
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) or (isinstance(layer, _NormBase) and layer.running_mean is not None):
            layer_type = f"{name!r} is {type(layer).__name__}, whose output for one row depends on other rows"
            return f"module must not mix rows with privacy, but {layer_type}; use GroupNorm or LayerNorm"
    return None
