"""How much better an action was than expected, on a baseline that is fitted anew to every batch of episodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from softswitch.oracles.gym.actions import ActionDistribution
from softswitch.oracles.gym.networks import PolicyNetwork, Weights

RIDGE = 1e-2
MOST_FOR_PRODUCTS = 12
"""Up to so many observed numbers, products of any two are features of the baseline too."""


def to_go(per_step: np.ndarray, discount: float) -> np.ndarray:
    """Σ_{s>=t} γ^(s−t) x_s from every step on; time comes first."""
    found, later = np.zeros_like(per_step), np.zeros_like(per_step[0])
    for t in reversed(range(len(per_step))):
        later = per_step[t] + discount * later
        found[t] = later
    return found


def advantage_estimates(
    observations: np.ndarray, alive: np.ndarray, signal: np.ndarray, discount: float, trace: float
) -> np.ndarray:
    """Generalised advantage estimates A_t = Σ_s (γλ)^(s−t) δ_s, δ_t = signal_t + γ V_{t+1} − V_t; 0 where not alive.

    V is 0 after an episode's end, and also beyond the horizon.

    Args:
        observations: horizon × episodes × numbers.
        alive: horizon × episodes: whether the step was played.
        signal: what each step gave; 0 where not alive.
        discount: γ.
        trace: λ: 0 trusts the baseline, 1 the returns.
    """
    known = _features(observations, alive)
    learnt = known.reshape(-1, known.shape[-1])
    ridge = RIDGE * (1 + alive.sum() / 1000)
    gram = learnt.T @ learnt + ridge * np.eye(learnt.shape[1])
    value = known @ np.linalg.solve(gram, learnt.T @ to_go(signal, discount).reshape(-1))
    after = np.concatenate([value[1:], np.zeros_like(value[:1])])
    return to_go((signal + discount * after - value) * alive, discount * trace) * alive


def _features(observations: np.ndarray, alive: np.ndarray) -> np.ndarray:
    """Numbers in units of their spread, their products, powers of time, and both times time; 0 where not alive."""
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
