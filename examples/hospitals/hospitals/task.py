"""The network, its two losses, and a hospital's rows: all that is about this task."""

import numpy as np
import torch
from torch.nn.functional import softplus
from torch.utils.data import TensorDataset

FEATURES = 30
MOST_MISS_LOSS = 0.3
"""What the mean loss of malignant tumours may be at any hospital."""


def network() -> torch.nn.Module:
    """A small network, the same at the start wherever it is made."""
    generator = torch.Generator().manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    with torch.no_grad():
        for weight in net.parameters():
            scale = weight.shape[-1] ** -0.5 if weight.ndim > 1 else 0.0
            weight.copy_(scale * torch.randn(weight.shape, generator=generator))
    return net


def class_loss(net: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor], label: int) -> torch.Tensor:
    """The mean logistic loss over the rows of one class; −∞ says that the batch has none."""
    x, y = batch
    rows = y == label
    if not rows.any():
        return torch.tensor(-torch.inf)
    score = net(x[rows])[:, 0]
    return softplus(-score if label else score).mean()


def false_alarms(net: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The objective: the loss of benign tumours."""
    return class_loss(net, batch, 0)


def misses(net: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The constraint: the loss of malignant ones; the tolerance is its bound."""
    return class_loss(net, batch, 1)


def rows(file: str) -> tuple[TensorDataset, TensorDataset]:
    """A hospital's rows to train on, and those it holds out for the certificate: every third. The label comes last."""
    table = torch.tensor(np.loadtxt(file, delimiter=",", skiprows=1, dtype=np.float32))
    x, y = table[:, :FEATURES], table[:, FEATURES].long()
    apart = torch.arange(len(y)) % 3 == 2
    return TensorDataset(x[~apart], y[~apart]), TensorDataset(x[apart], y[apart])
