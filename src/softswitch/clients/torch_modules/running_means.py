"""Running means of normalisation layers: they go with a module's parameters, and no gradient step changes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _NormBase

from softswitch.clients.torch_modules.module_functions import ModuleFunctions
from softswitch.clients.torch_modules.torch_rows import seeded

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
