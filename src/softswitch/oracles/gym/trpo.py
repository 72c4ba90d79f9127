"""TRPO: generalised advantage estimates and a trust-region step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from softswitch.oracles.gym.actions import ActionDistribution
from softswitch.oracles.gym.networks import PolicyNetwork, Weights

RIDGE = 1e-2
MOST_FOR_PRODUCTS = 12
"""Maximum number of observed components for which the baseline uses products of all pairs."""


def to_go(per_step: np.ndarray, discount: float) -> np.ndarray:
    """Return Σ_{s>=t} γ^(s−t) x_s for every step t; time is the first axis."""
    found, later = np.zeros_like(per_step), np.zeros_like(per_step[0])
    for t in reversed(range(len(per_step))):
        later = per_step[t] + discount * later
        found[t] = later
    return found


def advantage_estimates(
    observations: np.ndarray, alive: np.ndarray, signal: np.ndarray, discount: float, trace: float
) -> np.ndarray:
    """Return generalised advantage estimates A_t = Σ_s (γλ)^(s−t) δ_s with δ_t = signal_t + γ V_{t+1} − V_t.

    V is a ridge regression on this batch of episodes, and 0 after the end of an episode.

    Args:
        observations: horizon × episodes × components.
        alive: horizon × episodes; 1 before the end of an episode.
        signal: Reward or cost of each step; 0 after the end of an episode.
        discount: γ.
        trace: λ from 0 (baseline only) to 1 (returns only).
    """
    known = _features(observations, alive)
    learnt = known.reshape(-1, known.shape[-1])
    ridge = RIDGE * (1 + alive.sum() / 1000)
    gram = learnt.T @ learnt + ridge * np.eye(learnt.shape[1])
    value = known @ np.linalg.solve(gram, learnt.T @ to_go(signal, discount).reshape(-1))
    after = np.concatenate([value[1:], np.zeros_like(value[:1])])
    return to_go((signal + discount * after - value) * alive, discount * trace) * alive


def _features(observations: np.ndarray, alive: np.ndarray) -> np.ndarray:
    """Return standardised observations, their products, powers of time, and products with time."""
    steps, episodes, numbers = observations.shape
    played = observations[alive > 0]
    scaled = np.clip((observations - played.mean(axis=0)) / (played.std(axis=0) + 1e-6), -4, 4)
    time = np.broadcast_to((np.arange(steps) / steps)[:, None, None], (steps, episodes, 1))
    if numbers <= MOST_FOR_PRODUCTS:
        first, second = np.triu_indices(numbers)
        products = scaled[..., first] * scaled[..., second]
    else:
        products = scaled**2
    every = [scaled, products, time ** np.arange(4), time * scaled, time * scaled**2]
    return np.concatenate(every, axis=-1) * alive[..., None]


ITERATIONS, DAMPING = 10, 1e-3
"""Iterations of conjugate gradients, and damping of the Fisher matrix."""
SHORTEN, ATTEMPTS = 0.8, 10
"""Backtracking factor and maximum number of attempts of the line search."""


class Taken(NamedTuple):
    """Observations, actions and advantages of the played steps."""

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
    """Return the weights after a natural gradient step within the limit on the mean KL divergence.

    The surrogate improves and the limit holds exactly. If no step length achieves both, the weights stay the same.
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
    """Solve A x ≈ b."""
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
