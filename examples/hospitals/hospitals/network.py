"""A small PyTorch network with the same two losses: the option ``model="network"``."""

import torch
from torch.nn.functional import softplus
from torch.utils.data import TensorDataset

from hospitals.linear import FEATURES, read_rows


def network() -> torch.nn.Module:
    """Return a small network, with the same initial weights on every machine."""
    generator = torch.Generator().manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(FEATURES, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    with torch.no_grad():
        for weight in net.parameters():
            scale = weight.shape[-1] ** -0.5 if weight.ndim > 1 else 0.0
            weight.copy_(scale * torch.randn(weight.shape, generator=generator))
    return net


def class_loss(net: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor], label: int) -> torch.Tensor:
    """Return the mean logistic loss over the rows of one class, or −∞ if there are none."""
    x, y = batch
    rows = y == label
    if not rows.any():
        return torch.tensor(-torch.inf)
    score = net(x[rows])[:, 0]
    return softplus(-score if label else score).mean()


def false_alarms(net: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the objective: the loss of benign tumours."""
    return class_loss(net, batch, 0)


def misses(net: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the constraint: the loss of malignant tumours, which the tolerance bounds."""
    return class_loss(net, batch, 1)


def datasets(file: str) -> tuple[TensorDataset, ...]:
    """Return the training rows and the held-out rows of a hospital."""
    return tuple(
        TensorDataset(torch.from_numpy(rows["x"]), torch.from_numpy(rows["y"]).long()) for rows in read_rows(file)
    )
