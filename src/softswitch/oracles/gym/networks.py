"""A policy network in NumPy, with the Jacobian products that TRPO needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from softswitch.support import checks

Weights = dict[str, np.ndarray]
LOG_DEVIATION = "log_deviation"
FIRST_LOG_DEVIATION = -0.5
LAST_LAYER = 0.1
"""Factor of the initial weights of the last layer, which makes initial actions nearly independent of observations."""


class Slopes(Protocol):
    """Jacobian J of a network's outputs with respect to its weights, at some observations."""

    def times(self, change: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return J·v."""
        ...

    def transposed(self, on_outputs: np.ndarray) -> Weights:
        """Return Jᵀ·u."""
        ...


class PolicyNetwork(Protocol):
    """A network from observations to outputs."""

    def first_weights(self, observed: int, outputs: int, spread: bool, generator: np.random.Generator) -> Weights:
        """Return initial weights; with ``spread`` the second half of the outputs are log deviations."""
        ...

    def outputs(self, weights: Mapping[str, np.ndarray], observations: np.ndarray) -> np.ndarray:
        """Return one row of outputs for each observation."""
        ...

    def slopes(self, weights: Mapping[str, np.ndarray], observations: np.ndarray) -> tuple[np.ndarray, Slopes]:
        """Return the outputs and their Jacobian."""
        ...


@dataclass(frozen=True)
class NumpyNetwork:
    """Fully connected layers with tanh; log deviations of continuous actions are separate weights.

    Attributes:
        hidden: Widths of the hidden layers.
    """

    hidden: Sequence[int] = (32, 32)

    def __post_init__(self) -> None:
        for width in self.hidden:
            checks.check_integer("hidden", width, minimum=1)

    def first_weights(self, observed: int, outputs: int, spread: bool, generator: np.random.Generator) -> Weights:
        """Return normal weights of variance 1/inputs, smaller in the last layer, and zero biases."""
        given = outputs // 2 if spread else outputs
        widths = [observed, *self.hidden, given]
        weights: Weights = {}
        for i, (into, out) in enumerate(pairwise(widths)):
            scale = (LAST_LAYER if i == len(widths) - 2 else 1.0) / np.sqrt(into)
            weights[f"weights {i}"] = (scale * generator.standard_normal((into, out))).astype(np.float32)
            weights[f"bias {i}"] = np.zeros(out, np.float32)
        if spread:
            weights[LOG_DEVIATION] = np.full(given, FIRST_LOG_DEVIATION, np.float32)
        return weights

    def outputs(self, weights: Mapping[str, np.ndarray], observations: np.ndarray) -> np.ndarray:
        """Return one row of outputs for each observation."""
        return self._forward(weights, observations)[0]

    def slopes(self, weights: Mapping[str, np.ndarray], observations: np.ndarray) -> tuple[np.ndarray, _Layers]:
        """Return the outputs and their Jacobian."""
        outputs, inputs = self._forward(weights, observations)
        return outputs, _Layers(weights, inputs, spread=LOG_DEVIATION in weights)

    def _forward(
        self, weights: Mapping[str, np.ndarray], observations: np.ndarray
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the outputs and the inputs of each layer."""
        inputs = [np.asarray(observations, float)]
        for i in range(len(self.hidden)):
            inputs.append(np.tanh(inputs[-1] @ weights[f"weights {i}"] + weights[f"bias {i}"]))
        last = len(self.hidden)
        given = inputs[-1] @ weights[f"weights {last}"] + weights[f"bias {last}"]
        if LOG_DEVIATION in weights:
            given = np.concatenate([given, np.broadcast_to(weights[LOG_DEVIATION], given.shape)], axis=1)
        return given, inputs


@dataclass(frozen=True, eq=False)
class _Layers:
    """Jacobian of a ``NumpyNetwork``, from the inputs of each layer."""

    weights: Mapping[str, np.ndarray]
    inputs: list[np.ndarray]
    spread: bool

    def times(self, change: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return J·v by a forward pass."""
        moved: Any = 0.0
        for i, given in enumerate(self.inputs):
            moved = moved @ self.weights[f"weights {i}"] if i else 0.0
            moved = moved + given @ change[f"weights {i}"] + change[f"bias {i}"]
            if i + 1 < len(self.inputs):
                moved = moved * (1 - self.inputs[i + 1] ** 2)
        if self.spread:
            moved = np.concatenate([moved, np.broadcast_to(change[LOG_DEVIATION], moved.shape)], axis=1)
        return np.asarray(moved)

    def transposed(self, on_outputs: np.ndarray) -> Weights:
        """Return Jᵀ·u by a backward pass."""
        gradient: Weights = {}
        back = on_outputs
        if self.spread:
            back, on_deviation = np.split(on_outputs, 2, axis=1)
            gradient[LOG_DEVIATION] = on_deviation.sum(axis=0)
        for i in reversed(range(len(self.inputs))):
            gradient[f"weights {i}"] = self.inputs[i].T @ back
            gradient[f"bias {i}"] = back.sum(axis=0)
            if i:
                back = (back @ self.weights[f"weights {i}"].T) * (1 - self.inputs[i] ** 2)
        return gradient
