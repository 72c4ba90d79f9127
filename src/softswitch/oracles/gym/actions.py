"""Action distributions of a policy, with the derivatives that TRPO needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np

LOG_TWO_PI = math.log(2 * math.pi)


class ActionDistribution(Protocol):
    """Distribution of actions for every row of a network's outputs."""

    @property
    def outputs(self) -> int:
        """Number of network outputs for an observation."""
        ...

    def sample(self, outputs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Draw one action for each row."""
        ...

    def for_environment(self, actions: np.ndarray) -> np.ndarray:
        """Convert actions to those of the environment."""
        ...

    def log_density(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log π(a|s) for each row."""
        ...

    def score(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the gradient of ``log_density`` with respect to the outputs."""
        ...

    def divergence(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return KL(old ‖ new) for each row."""
        ...

    def fisher(self, outputs: np.ndarray, change: np.ndarray) -> np.ndarray:
        """Multiply the Fisher matrix of the outputs by a change of them, row by row."""
        ...


@dataclass(frozen=True)
class Categorical:
    """Discrete actions; the outputs are logits.

    Attributes:
        actions: Number of actions.
        first: The environment's number of the first action.
    """

    actions: int
    first: int = 0

    @property
    def outputs(self) -> int:
        """One logit for each action."""
        return self.actions

    def sample(self, outputs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return the action with the largest logit plus Gumbel noise."""
        return np.argmax(outputs + generator.gumbel(size=outputs.shape), axis=1)

    def for_environment(self, actions: np.ndarray) -> np.ndarray:
        """Add the environment's first number."""
        return actions + self.first

    def log_density(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the log softmax of the actions."""
        return _log_softmax(outputs)[np.arange(len(actions)), actions]

    def score(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return e_a − p."""
        taken = np.zeros_like(outputs)
        taken[np.arange(len(actions)), actions] = 1
        return taken - np.exp(_log_softmax(outputs))

    def divergence(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return Σ p (log p − log q)."""
        log_p, log_q = _log_softmax(old), _log_softmax(new)
        return (np.exp(log_p) * (log_p - log_q)).sum(axis=1)

    def fisher(self, outputs: np.ndarray, change: np.ndarray) -> np.ndarray:
        """Return (diag p − p pᵀ) v."""
        p = np.exp(_log_softmax(outputs))
        return p * (change - (p * change).sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Gaussian:
    """Continuous actions; the outputs are the means, followed by the logarithms of the standard deviations.

    Attributes:
        low: Lower limits of the environment, at which actions are clipped.
        high: Upper limits.
    """

    low: np.ndarray
    high: np.ndarray

    @property
    def outputs(self) -> int:
        """A mean and a log deviation for each component."""
        return 2 * len(self.low)

    def sample(self, outputs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return mean + deviation · noise, not clipped."""
        mean, log_deviation = np.split(outputs, 2, axis=1)
        return mean + np.exp(log_deviation) * generator.standard_normal(mean.shape)

    def for_environment(self, actions: np.ndarray) -> np.ndarray:
        """Scale [−1, 1] to the limits of the environment and clip."""
        middle, half = (self.high + self.low) / 2, (self.high - self.low) / 2
        return np.clip(middle + half * actions, self.low, self.high).astype(np.float32)

    def log_density(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the sum of the log densities of the components."""
        mean, log_deviation = np.split(outputs, 2, axis=1)
        off = (actions - mean) / np.exp(log_deviation)
        return -(0.5 * off**2 + log_deviation + 0.5 * LOG_TWO_PI).sum(axis=1)

    def score(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return (a − μ)/σ² and ((a − μ)/σ)² − 1."""
        mean, log_deviation = np.split(outputs, 2, axis=1)
        off = (actions - mean) / np.exp(log_deviation)
        return np.concatenate([off / np.exp(log_deviation), off**2 - 1], axis=1)

    def divergence(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return Σ log σ' − log σ + (σ² + (μ − μ')²)/(2σ'²) − 1/2."""
        (mean, log_deviation), (other, log_other) = np.split(old, 2, axis=1), np.split(new, 2, axis=1)
        ratio = (np.exp(2 * log_deviation) + (mean - other) ** 2) / (2 * np.exp(2 * log_other))
        return (log_other - log_deviation + ratio - 0.5).sum(axis=1)

    def fisher(self, outputs: np.ndarray, change: np.ndarray) -> np.ndarray:
        """Multiply by 1/σ² for means and by 2 for log deviations."""
        _, log_deviation = np.split(outputs, 2, axis=1)
        of_mean, of_deviation = np.split(change, 2, axis=1)
        return np.concatenate([of_mean * np.exp(-2 * log_deviation), 2 * of_deviation], axis=1)


def distribution_for(space: Any) -> ActionDistribution:
    """Return the distribution for an action space; raise if it is not supported."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return Categorical(int(space.n), int(space.start))
    if isinstance(space, gymnasium.spaces.Box) and space.shape and len(space.shape) == 1 and space.is_bounded():
        return Gaussian(np.asarray(space.low, float), np.asarray(space.high, float))
    raise ValueError(
        f"environments must have a Discrete action space or a bounded Box with one axis, but one has {space}"
    )


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
