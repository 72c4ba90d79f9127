"""A policy network that is a PyTorch module."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.func import functional_call

from softswitch.oracles.gym.policy import Slopes, Weights
from softswitch.oracles.torch_functions import parameters


@dataclass(frozen=True, eq=False)
class TorchNetwork:
    """A PyTorch module that maps a batch of observations to outputs.

    Attributes:
        module: Returns a logit for each discrete action, or 2k outputs for k continuous actions: means, with −1 and 1
            at the limits of the environment, followed by log deviations. It is used in ``eval`` mode.
    """

    module: torch.nn.Module

    def __post_init__(self) -> None:
        self.module.eval()  # dropout would not be part of the action distribution

    def first_weights(self, observed: int, outputs: int, spread: bool, generator: np.random.Generator) -> Weights:
        """Return the module's weights; raise if it does not fit the environment."""
        weights = parameters(self.module)
        shape = self.outputs(weights, np.zeros((1, observed), np.float32)).shape
        if shape != (1, outputs):
            raise ValueError(f"network must give {outputs} outputs for {observed} observed numbers, but gives {shape}")
        return weights

    def outputs(self, weights: Weights, observations: np.ndarray) -> np.ndarray:
        """Return one row of outputs for each observation."""
        with torch.no_grad():
            outputs: torch.Tensor = functional_call(self.module, _tensors(weights), (_tensor(observations),))
        return np.asarray(outputs.numpy(), float)

    def slopes(self, weights: Weights, observations: np.ndarray) -> tuple[np.ndarray, Slopes]:
        """Return the outputs and their Jacobian: Jᵀu is linear in u, and J is its derivative."""
        tensors = {name: tensor.requires_grad_() for name, tensor in _tensors(weights).items()}
        outputs: torch.Tensor = functional_call(self.module, tensors, (_tensor(observations),))

        def pull_back(on_outputs: torch.Tensor, *, create_graph: bool = False) -> list[torch.Tensor]:
            inputs = list(tensors.values())
            options = {"create_graph": create_graph, "retain_graph": True, "allow_unused": True}
            gradients = torch.autograd.grad(outputs, inputs, on_outputs, **options)
            return [torch.zeros_like(w) if part is None else part for w, part in zip(inputs, gradients, strict=True)]

        on_outputs = torch.zeros_like(outputs, requires_grad=True)
        back = pull_back(on_outputs, create_graph=True)

        def times(change: Weights) -> np.ndarray:
            parts = zip(back, _tensors(change).values(), strict=True)
            inner = sum(((part * moved).sum() for part, moved in parts), start=torch.zeros(()))
            return np.asarray(torch.autograd.grad(inner, on_outputs, retain_graph=True)[0].numpy(), float)

        def transposed(on_outputs: np.ndarray) -> Weights:
            parts = zip(tensors, pull_back(_tensor(on_outputs)), strict=True)
            return {name: np.asarray(part.numpy(), float) for name, part in parts}

        return np.asarray(outputs.detach().numpy(), float), Slopes(times, transposed)


def _tensor(numbers: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(numbers, np.float32))


def _tensors(weights: Weights) -> dict[str, torch.Tensor]:
    return {name: _tensor(array) for name, array in weights.items()}
