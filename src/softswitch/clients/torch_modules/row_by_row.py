"""A module asked row by row: what each row tells, and gradients of which none is longer than it may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from softswitch.clients.private.numpy_sums import Arrays, clipped_total
from softswitch.clients.torch_modules.module_functions import ModuleFunctions
from softswitch.clients.torch_modules.torch_rows import TorchRows
from softswitch.method.messages import LocalLoss


def row_values(functions: ModuleFunctions, params: Mapping[str, Any], data: TorchRows, rows: np.ndarray) -> np.ndarray:
    """f and then g on single rows; rows × functions.

    Args:
        functions: the module's.
        params: where.
        data: the rows.
        rows: the indices of those asked.
    """
    functions.load(params)

    def alone(row: int) -> np.ndarray:
        with buffers_kept(functions.module):
            return functions.values(data.take(np.array([row])))

    return np.array([alone(row) for row in rows])


def clipped_gradients(
    functions: ModuleFunctions, params: Mapping[str, Any], data: TorchRows, rows: np.ndarray, mix: Any, clip: float
) -> Arrays:
    """Σ over rows of the gradient of <mix, (f, g)> on each, none longer than ``clip``; for g its stand-in.

    Args:
        functions: the module's.
        params: where.
        data: the rows.
        rows: the indices of those asked.
        mix: weights of f and each g.
        clip: the longest that a row's gradient may be.
    """
    functions.load(params)
    loss = LocalLoss(float(mix[0]), mix[1:], 0.0, 0.0)

    def alone(row: int) -> dict[str, torch.Tensor]:
        with buffers_kept(functions.module):
            return functions.direction([data.take(np.array([row]))], loss, 1, 0.0)

    each = (alone(row) for row in rows)
    like = {name: np.asarray(value) for name, value in params.items()}
    return clipped_total(
        ({name: part.double().cpu().numpy() for name, part in found.items()} for found in each), like, clip
    )


@contextmanager
def buffers_kept(module: torch.nn.Module) -> Iterator[None]:
    """Within, rows may change the module's buffers; after, these are as before: else later rows would tell of them.

    Args:
        module: the model.
    """
    before = {name: part.detach().clone() for name, part in module.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, part in module.named_buffers():
                part.copy_(before[name])


def mixes_rows(module: torch.nn.Module) -> str | None:
    """Why what a row tells would depend on other rows, in words; None where it does not.

    Batch normalisation takes means over a batch, and running means are kept of all rows that went by: then no clip
    bounds what one row changes.

    Args:
        module: the model.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) or (isinstance(layer, _NormBase) and layer.running_mean is not None):
            return (
                f"module must not mix rows to be private, but {name!r} is {type(layer).__name__}, by which what one "
                "row tells depends on the others; GroupNorm and LayerNorm do not"
            )
    return None
