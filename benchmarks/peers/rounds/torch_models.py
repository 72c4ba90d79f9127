"""The models in PyTorch, as functions of their parameters and as a module."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

Params = dict[str, torch.Tensor]


def tensors(arrays: dict[str, Any]) -> Params:
    """Copies of arrays or tensors."""
    return {name: torch.as_tensor(array).detach().clone() for name, array in arrays.items()}


def outputs(model: str, params: Params, x: torch.Tensor) -> torch.Tensor:
    """One number a row, the log odds; of the images one a class."""
    if model == "logistic":
        return x @ params["w"]
    if model == "mlp":
        return torch.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]
    x = x.permute(0, 3, 1, 2)
    for kernel, bias in (("k1", "c1"), ("k2", "c2")):
        x = functional.conv2d(x, params[kernel].permute(3, 2, 0, 1), params[bias], padding=1)
        x = functional.max_pool2d(torch.relu(x), 2)
    return x.permute(0, 2, 3, 1).flatten(1) @ params["w"] + params["b"]


def loss(model: str, params: Params, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The mean over rows: the logistic loss, or the cross-entropy of ten classes."""
    score = outputs(model, params, x)
    if model == "cnn":
        return functional.cross_entropy(score, y)
    return functional.binary_cross_entropy_with_logits(score, y.to(score.dtype))


class Module(torch.nn.Module):
    """The same with parameters of its own."""

    def __init__(self, model: str, start: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        for name, tensor in tensors(start).items():
            self.register_parameter(name, torch.nn.Parameter(tensor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Its outputs."""
        return outputs(self.model, dict(self.named_parameters()), x)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The mean over rows."""
        return loss(self.model, dict(self.named_parameters()), x, y)


def labels(model: str, params: Params, x: torch.Tensor) -> torch.Tensor:
    """What a model says rows are."""
    with torch.no_grad():
        score = outputs(model, params, x)
    return score.argmax(1) if model == "cnn" else (score > 0).to(torch.int32)
