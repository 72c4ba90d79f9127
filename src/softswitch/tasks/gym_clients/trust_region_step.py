"""One step of trust-region policy optimisation (TRPO) in NumPy, for any network and distribution of actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from softswitch.tasks.gym_clients.actions import ActionDistribution
from softswitch.tasks.gym_clients.networks_by_hand import PolicyNetwork, Weights

ITERATIONS, DAMPING = 10, 1e-3
"""Of conjugate gradients; and what is added to the Fisher matrix's diagonal."""
SHORTEN, ATTEMPTS = 0.8, 10
"""A step that is refused is tried again at this share of its length, so often; then the policy stays."""


class Taken(NamedTuple):
    """Steps that were taken: what was observed, what was done, and how much better that was than expected."""

    observations: np.ndarray
    actions: np.ndarray
    advantages: np.ndarray


def better_weights(
    network: PolicyNetwork,
    distribution: ActionDistribution,
    weights: Mapping[str, np.ndarray],
    taken: Taken,
    kl_limit: float,
) -> Weights:
    """The weights after a step: the natural gradient, as long as the mean KL divergence stays within its limit.

    The limit is kept exactly, and the surrogate has improved; where no length does both, the weights stay.
    """
    here: Weights = {name: np.asarray(value, float) for name, value in weights.items()}
    rows = len(taken.actions)
    spread = taken.advantages.std()
    advantages = (taken.advantages - taken.advantages.mean()) / (spread if spread > 0 else 1.0)
    old, slopes = network.slopes(here, taken.observations)
    log_old = distribution.log_density(old, taken.actions)
    gradient = slopes.transposed(distribution.score(old, taken.actions) * advantages[:, None] / rows)
    if not any(np.any(part) for part in gradient.values()):
        return here

    def fisher(change: np.ndarray) -> np.ndarray:
        moved = slopes.times(_shaped(change, here))
        curved = slopes.transposed(distribution.fisher(old, moved) / rows)
        return _flat(curved, here) + DAMPING * change

    along = _conjugate_gradients(fisher, _flat(gradient, here))
    curvature = float(along @ fisher(along))
    length = math.sqrt(2 * kl_limit / curvature) if curvature > 0 else 0.0
    for attempt in range(ATTEMPTS):
        moved = _flat(here, here) + SHORTEN**attempt * length * along
        there = _shaped(moved, here)
        new = network.outputs(there, taken.observations)
        ratio = np.exp(distribution.log_density(new, taken.actions) - log_old)
        gained = float((ratio * advantages).mean() - advantages.mean())
        if gained > 0 and float(distribution.divergence(old, new).mean()) <= kl_limit:
            return there
    return here


def _conjugate_gradients(product: Callable[[np.ndarray], np.ndarray], wanted: np.ndarray) -> np.ndarray:
    """x with A x ≈ b, by so many steps."""
    x, residual = np.zeros_like(wanted), wanted.copy()
    along, left = residual.copy(), float(residual @ residual)
    for _ in range(ITERATIONS):
        if left < 1e-20:
            break
        moved = product(along)
        step = left / float(along @ moved)
        x += step * along
        residual -= step * moved
        left, before = float(residual @ residual), left
        along = residual + left / before * along
    return x


def _flat(parts: Mapping[str, np.ndarray], like: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([np.ravel(parts[name]) for name in like])


def _shaped(vector: np.ndarray, like: Mapping[str, np.ndarray]) -> Weights:
    found, begin = {}, 0
    for name, array in like.items():
        found[name] = vector[begin : begin + array.size].reshape(array.shape)
        begin += array.size
    return found
