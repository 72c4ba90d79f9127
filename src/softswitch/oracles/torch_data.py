"""TorchData: PyTorch data sets as clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader, Dataset


@dataclass(frozen=True, eq=False)
class TorchData:
    """Clients with PyTorch data sets, for a problem whose start is a PyTorch module.

    The clients share the module, and compute one after another in this process.

    Attributes:
        datasets: For each client a ``Dataset``; or a ``DataLoader``, whose own batches are used then.
        optimizer: Optimizer of the local steps, ``(parameters, lr=γ) -> optimizer``, such as ``torch.optim.Adam``,
            created for every client and round. Default: plain gradient steps.
        device: Device to compute on, such as "cuda". Default: the device of the module.
        client_optimum: f_i* of each client in a problem of regrets; set by ``with_regret``.
    """

    datasets: Mapping[Any, Dataset | DataLoader]
    optimizer: Callable[..., Any] | None = None
    device: str | torch.device | None = None
    client_optimum: np.ndarray | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.datasets, Mapping) or not self.datasets:
            raise ValueError(
                f"datasets must be a mapping from names to data sets with at least one entry, but is {self.datasets!r}"
            )

    @property
    def names(self) -> tuple[Any, ...]:
        """The names of the clients."""
        return tuple(self.datasets)

    def __len__(self) -> int:
        return len(self.datasets)
