"""Values and clipped gradients of single rows with PyTorch, for private clients.

PyTorch's rounding depends on the shape of a batch and on a row's place in it, and at extreme parameters that changes
values by much. Another row must not change it. So rows are computed in slices of one size, and each row has a random
place in its slice, drawn independently of all other rows.
"""

from __future__ import annotations

import os
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

ROWS = 64  # number of rows that are computed together; a divisor of 256


class RowFunctions:
    """Values and gradients of single rows: of many at once by ``vmap`` where that is possible, else one by one."""

    def __init__(self, functions: ModuleFunctions, data: TorchRows) -> None:
        self._functions = functions
        self._joint = JointFunctions(functions, [data.take(np.array([0]))] * 2)
        self._joint.split_error = "rows are kept apart"  # a module that mixes rows would break the privacy

    def evaluate(self, params: Params, data: TorchRows, rows: np.ndarray) -> np.ndarray:
        """Return f and each g on every single row of ``rows``, as an array of rows × functions."""
        self._functions.load(params)
        if not len(rows):
            return np.zeros((0, 0))
        values, order = [], []
        with preserve_module(self._functions.module):
            for batches, used, places in _single_rows(data, rows):
                values.append(self._joint.report(batches).double().cpu().numpy()[used])
                order.append(places)
        return np.concatenate(values)[np.argsort(np.concatenate(order))]

    def sum_gradients(self, params: Params, data: TorchRows, rows: np.ndarray, mix: Any, clip: float) -> Arrays:
        """Return the sum over rows of clipped gradients of <mix, (f, surrogate of g)>, in integers."""
        self._functions.load(params)
        like = next(iter(self._functions.trained.values()))

        def gradients() -> Iterator[Arrays]:
            for batches, used, _ in _single_rows(data, rows):
                constraint: Any = np.tile(mix[1:], (len(batches), 1))
                loss = LocalLoss(float(mix[0]), constraint, 0.0, 0.0)
                losses = LocalLosses.of(loss, np.arange(len(batches)), like)
                stacked = self._joint.directions([batches], losses, 1, 0.0)
                yield {name: part.double().cpu().numpy()[used] for name, part in stacked.items()}

        with preserve_module(self._functions.module):
            return sum_clipped_gradients(gradients(), params, clip)


def _single_rows(data: TorchRows, rows: np.ndarray) -> Iterator[tuple[ClientBatches, np.ndarray, np.ndarray]]:
    """Yield slices with each row as a batch: the batches, a mask of those in use, and their places in ``rows``."""
    columns = _draw_columns(rows)
    order = np.argsort(columns, kind="stable")
    lines = np.arange(len(rows)) - np.searchsorted(columns[order], columns[order])
    table: Any = np.full((lines.max(initial=-1) + 1, ROWS), -1)
    table[lines, columns[order]] = order
    for places in table:
        used = places >= 0
        yield ClientBatches([data.take(rows[i : i + 1]) for i in np.where(used, places, 0)]), used, places[used]


def _draw_columns(rows: np.ndarray) -> np.ndarray:
    """Return the place of each row in its slice."""
    return np.frombuffer(os.urandom(len(rows)), np.uint8) % ROWS


def describe_row_mixing(module: torch.nn.Module) -> str | None:
    """Return an error message if a layer mixes rows, whose influence clipping then does not bound, else None."""
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) or (isinstance(layer, _NormBase) and layer.running_mean is not None):
            layer_type = f"{name!r} is {type(layer).__name__}, whose output for one row depends on other rows"
            return f"module must not mix rows with privacy, but {layer_type}; use GroupNorm or LayerNorm"
    return None
