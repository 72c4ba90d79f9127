"""A policy network that is a PyTorch module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch.func import functional_call

from softswitch.oracles.gym.networks import Weights


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
        del generator, spread
        trained = ((name, w) for name, w in self.module.named_parameters() if w.requires_grad)
        weights = {name: w.detach().cpu().numpy().copy() for name, w in trained}
        given = self.outputs(weights, np.zeros((1, observed), np.float32)).shape
        if given != (1, outputs):
            raise ValueError(
                f"network must give {outputs} outputs a row for these environments, but its module gives an array of "
                f"shape {given} for one observation of {observed} numbers"
            )
        return weights

    def outputs(self, weights: Mapping[str, np.ndarray], observations: np.ndarray) -> np.ndarray:
        """Return one row of outputs for each observation."""
        with torch.no_grad():
            given: torch.Tensor = functional_call(self.module, _tensors(weights), (_tensor(observations),))
        return np.asarray(given.numpy(), float)

    def slopes(self, weights: Mapping[str, np.ndarray], observations: np.ndarray) -> tuple[np.ndarray, _Slopes]:
        """Return the outputs and their Jacobian."""
        own = {name: tensor.requires_grad_() for name, tensor in _tensors(weights).items()}
        outputs: torch.Tensor = functional_call(self.module, own, (_tensor(observations),))
        return np.asarray(outputs.detach().numpy(), float), _Slopes(own, outputs)


class _Slopes:
    """Jacobian by reverse-mode differentiation: Jᵀu is linear in u, and J is its derivative."""

    def __init__(self, weights: dict[str, torch.Tensor], outputs: torch.Tensor) -> None:
        self._weights, self._outputs = weights, outputs
        self._any = torch.zeros_like(outputs, requires_grad=True)
        self._back = self._gradient(self._any, create_graph=True)

    def times(self, change: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return J·v."""
        parts = zip(self._back, _tensors(change).values(), strict=True)
        inner = sum(((part * own).sum() for part, own in parts), start=torch.zeros(()))
        (moved,) = torch.autograd.grad(inner, self._any, retain_graph=True)
        return np.asarray(moved.numpy(), float)

    def transposed(self, on_outputs: np.ndarray) -> Weights:
        """Return Jᵀ·u."""
        found = self._gradient(_tensor(on_outputs))
        return {name: np.asarray(part.numpy(), float) for name, part in zip(self._weights, found, strict=True)}

    def _gradient(self, on_outputs: torch.Tensor, *, create_graph: bool = False) -> list[torch.Tensor]:
        own = list(self._weights.values())
        found = torch.autograd.grad(
            self._outputs, own, on_outputs, create_graph=create_graph, retain_graph=True, allow_unused=True
        )
        return [torch.zeros_like(w) if part is None else part for w, part in zip(own, found, strict=True)]


def _tensor(numbers: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(numbers, np.float32))


def _tensors(weights: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: _tensor(array) for name, array in weights.items()}
