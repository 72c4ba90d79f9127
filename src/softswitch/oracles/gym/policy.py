"""Policies: action distributions with the derivatives that TRPO needs, and a network in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from scipy.special import log_softmax

from softswitch.support import checks

Weights = dict[str, np.ndarray]  # of a policy network, by name
LOG_DEVIATION = "log_deviation"  # name of the weights that are logarithms of standard deviations
FIRST_LOG_DEVIATION = -0.5  # their initial value
LAST_LAYER = 0.1  # factor of the initial weights of the last layer: actions hardly depend on observations at first


@dataclass(frozen=True)
class Categorical:
    """Categorical distribution of discrete actions; the outputs of the network are logits."""

    actions: int  # number of actions
    first: int = 0  # number of the first action in the environment
    outputs = property(attrgetter("actions"))

    def sample(self, outputs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return one random action for each row, from 0: the largest logit plus Gumbel noise."""
        return np.argmax(outputs + generator.gumbel(size=outputs.shape), axis=1)

    def for_environment(self, actions: np.ndarray) -> np.ndarray:
        """Return the actions as the environment numbers them, from ``first``."""
        return actions + self.first

    def log_density(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log π(a|s) for each row."""
        return log_softmax(outputs, axis=1)[np.arange(len(actions)), actions]

    def score(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the gradient of ``log_density`` with respect to the outputs: e_a − p."""
        return np.eye(self.actions)[actions] - np.exp(log_softmax(outputs, axis=1))

    def divergence(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return KL(old ‖ new) for each row: Σ p (log p − log q)."""
        log_p, log_q = log_softmax(old, axis=1), log_softmax(new, axis=1)
        return (np.exp(log_p) * (log_p - log_q)).sum(axis=1)

    def fisher(self, outputs: np.ndarray, change: np.ndarray) -> np.ndarray:
        """Return the Fisher matrix of the outputs times a change v of them, row by row: (diag p − p pᵀ) v."""
        p = np.exp(log_softmax(outputs, axis=1))
        return p * (change - (p * change).sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Gaussian:
    """Independent normal actions, clipped at the limits; outputs are means, then logarithms of standard deviations."""

    low: np.ndarray  # smallest action of each component
    high: np.ndarray  # largest action of each component
    outputs = property(lambda self: 2 * len(self.low))

    def sample(self, outputs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return one random action for each row, mean + deviation · noise, not clipped."""
        mean, log_deviation = np.split(outputs, 2, axis=1)
        return mean + np.exp(log_deviation) * generator.standard_normal(mean.shape)

    def for_environment(self, actions: np.ndarray) -> np.ndarray:
        """Return the actions with [−1, 1] scaled to the limits of the environment, and clipped."""
        middle, half = (self.high + self.low) / 2, (self.high - self.low) / 2
        return np.clip(middle + half * actions, self.low, self.high).astype(np.float32)

    def log_density(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log π(a|s) for each row: the sum of the log densities of the components."""
        mean, log_deviation = np.split(outputs, 2, axis=1)
        off = (actions - mean) / np.exp(log_deviation)
        return -(0.5 * off**2 + log_deviation + 0.5 * math.log(2 * math.pi)).sum(axis=1)

    def score(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the gradient of ``log_density`` with respect to the outputs: (a − μ)/σ² and ((a − μ)/σ)² − 1."""
        mean, log_deviation = np.split(outputs, 2, axis=1)
        off = (actions - mean) / np.exp(log_deviation)
        return np.concatenate([off / np.exp(log_deviation), off**2 - 1], axis=1)

    def divergence(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return KL(old ‖ new) for each row: Σ log σ' − log σ + (σ² + (μ − μ')²)/(2σ'²) − 1/2."""
        (mean, log_deviation), (other, log_other) = np.split(old, 2, axis=1), np.split(new, 2, axis=1)
        ratio = (np.exp(2 * log_deviation) + (mean - other) ** 2) / (2 * np.exp(2 * log_other))
        return (log_other - log_deviation + ratio - 0.5).sum(axis=1)

    def fisher(self, outputs: np.ndarray, change: np.ndarray) -> np.ndarray:
        """Return the Fisher matrix times a change: the change times 1/σ² for means, and times 2 for log deviations."""
        _, log_deviation = np.split(outputs, 2, axis=1)
        of_mean, of_deviation = np.split(change, 2, axis=1)
        return np.concatenate([of_mean * np.exp(-2 * log_deviation), 2 * of_deviation], axis=1)


ActionDistribution = Categorical | Gaussian


def distribution_for(space: Any) -> ActionDistribution:
    """Return the action distribution for a Gymnasium action space; raise ValueError if it is not supported."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return Categorical(int(space.n), int(space.start))
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 and space.is_bounded():
        return Gaussian(np.asarray(space.low, float), np.asarray(space.high, float))
    raise ValueError(f"environments must have a Discrete action space or a bounded one-axis Box, but one has {space}")


class Slopes(NamedTuple):
    """Products with the Jacobian J of a network's outputs with respect to its weights."""

    times: Callable[[Weights], np.ndarray]  # v -> J·v
    transposed: Callable[[np.ndarray], Weights]  # u -> Jᵀ·u


@dataclass(frozen=True)
class NumpyNetwork:
    """Policy network of fully connected layers with tanh; log deviations of continuous actions are separate weights.

    A subclass that overrides ``first_weights``, ``outputs`` and ``slopes`` is another policy network.

    Attributes:
        hidden: Widths of the hidden layers. Default: (32, 32).
    """

    hidden: Sequence[int] = (32, 32)

    def __post_init__(self) -> None:
        for width in self.hidden:
            checks.check_integer("hidden", width, minimum=1)

    def first_weights(self, observed: int, outputs: int, spread: bool, generator: np.random.Generator) -> Weights:
        """Draw initial weights from normal distributions of variance 1/inputs of a layer, smaller in the last layer.

        ``spread`` adds a log standard deviation for each output.
        """
        last = outputs // 2 if spread else outputs
        weights: Weights = {}
        for i, (into, out) in enumerate(pairwise([observed, *self.hidden, last])):
            scale = (LAST_LAYER if i == len(self.hidden) else 1.0) / np.sqrt(into)
            weights[f"weights {i}"] = (scale * generator.standard_normal((into, out))).astype(np.float32)
            weights[f"bias {i}"] = np.zeros(out, np.float32)
        return weights | ({LOG_DEVIATION: np.full(last, FIRST_LOG_DEVIATION, np.float32)} if spread else {})

    def outputs(self, weights: Weights, observations: np.ndarray) -> np.ndarray:
        """Return the outputs for each row of observations, which are the parameters of the action distribution."""
        return self._forward(weights, observations)[0]

    def slopes(self, weights: Weights, observations: np.ndarray) -> tuple[np.ndarray, Slopes]:
        """Return the outputs for the observations, and products with their Jacobian with respect to the weights."""
        outputs, inputs = self._forward(weights, observations)

        def times(change: Weights) -> np.ndarray:
            moved: Any = 0.0
            for i, layer in enumerate(inputs):
                moved = moved @ weights[f"weights {i}"] if i else 0.0
                moved = moved + layer @ change[f"weights {i}"] + change[f"bias {i}"]
                if i + 1 < len(inputs):
                    moved = moved * (1 - inputs[i + 1] ** 2)
            return _append_deviation(moved, change)

        def transposed(on_outputs: np.ndarray) -> Weights:
            gradient: Weights = {}
            back = on_outputs
            if LOG_DEVIATION in weights:
                back, on_deviation = np.split(on_outputs, 2, axis=1)
                gradient[LOG_DEVIATION] = on_deviation.sum(axis=0)
            for i in reversed(range(len(inputs))):
                gradient[f"weights {i}"] = inputs[i].T @ back
                gradient[f"bias {i}"] = back.sum(axis=0)
                if i:
                    back = (back @ weights[f"weights {i}"].T) * (1 - inputs[i] ** 2)
            return gradient

        return outputs, Slopes(times, transposed)

    def _forward(self, weights: Weights, observations: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the outputs for the observations, and the inputs of each layer."""
        inputs = [np.asarray(observations, float)]
        for i in range(len(self.hidden)):
            inputs.append(np.tanh(inputs[-1] @ weights[f"weights {i}"] + weights[f"bias {i}"]))
        last = len(self.hidden)
        return _append_deviation(inputs[-1] @ weights[f"weights {last}"] + weights[f"bias {last}"], weights), inputs


def _append_deviation(outputs: np.ndarray, weights: Weights) -> np.ndarray:
    if LOG_DEVIATION not in weights:
        return outputs
    return np.concatenate([outputs, np.broadcast_to(weights[LOG_DEVIATION], outputs.shape)], axis=1)
