"""Trust region policy optimization (TRPO): generalised advantage estimates and a trust-region step."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.signal import lfilter
from scipy.sparse.linalg import LinearOperator, cg

from softswitch.oracles.gym.policy import ActionDistribution, NumpyNetwork, Weights

RIDGE = 1e-2  # regularisation of the baseline
MAX_PRODUCT_INPUTS = 12  # maximum size of an observation for which the baseline uses products of all pairs
ITERATIONS, DAMPING = 10, 1e-3  # maximum number of conjugate gradient iterations, and damping of the Fisher matrix
SHORTEN, ATTEMPTS = 0.8, 10  # backtracking factor and maximum number of step lengths of the line search


def discounted_sums(per_step: np.ndarray, discount: float) -> np.ndarray:
    """Return Σ_{s>=t} γ^(s−t) x_s for every step t, where x is ``per_step`` with time as the first axis."""
    return np.asarray(lfilter([1.0], [1.0, -discount], per_step[::-1], axis=0))[::-1]


def advantage_estimates(
    observations: np.ndarray, alive: np.ndarray, signal: np.ndarray, discount: float, trace: float
) -> np.ndarray:
    """Return A_t = Σ_{s>=t} (γλ)^(s−t) δ_s with δ_t = signal_t + γ V_{t+1} − V_t; arrays are steps × episodes.

    V is a ridge regression on this batch, and 0 after an episode. γ is the ``discount`` and λ the ``trace``.
    """
    features = _features(observations, alive)
    flat = features.reshape(-1, features.shape[-1])
    gram = flat.T @ flat + RIDGE * (1 + alive.sum() / 1000) * np.eye(flat.shape[1])
    value = features @ np.linalg.solve(gram, flat.T @ discounted_sums(signal, discount).reshape(-1))
    after = np.concatenate([value[1:], np.zeros_like(value[:1])])
    return discounted_sums((signal + discount * after - value) * alive, discount * trace) * alive


def _features(observations: np.ndarray, alive: np.ndarray) -> np.ndarray:
    """Return the features of the baseline (products of observations and time), steps × episodes × features."""
    steps, episodes, numbers = observations.shape
    played = observations[alive > 0]
    scaled = np.clip((observations - played.mean(axis=0)) / (played.std(axis=0) + 1e-6), -4, 4)
    time = np.broadcast_to((np.arange(steps) / steps)[:, None, None], (steps, episodes, 1))
    first, second = np.triu_indices(numbers) if numbers <= MAX_PRODUCT_INPUTS else (slice(None), slice(None))
    products = scaled[..., first] * scaled[..., second]
    parts = [scaled, products, time ** np.arange(4), time * scaled, time * scaled**2]
    return np.concatenate(parts, axis=-1) * alive[..., None]


class Taken(NamedTuple):
    """Observations, actions and advantages of all played steps, one row per step."""

    observations: np.ndarray
    actions: np.ndarray
    advantages: np.ndarray


def trust_region_step(
    network: NumpyNetwork, distribution: ActionDistribution, weights: Weights, taken: Taken, kl_limit: float
) -> Weights:
    """Return weights that improve the surrogate with mean KL divergence <= ``kl_limit``, or unchanged weights."""
    here = {name: np.asarray(value, float) for name, value in weights.items()}
    rows = len(taken.actions)
    advantages = (taken.advantages - taken.advantages.mean()) / (taken.advantages.std() or 1.0)
    old, slopes = network.slopes(here, taken.observations)
    log_old = distribution.log_density(old, taken.actions)
    gradient = slopes.transposed(distribution.score(old, taken.actions) * advantages[:, None] / rows)
    if not any(np.any(part) for part in gradient.values()):
        return here

    def flatten(parts: Weights) -> np.ndarray:
        return np.concatenate([np.ravel(parts[name]) for name in here])

    def unflatten(vector: np.ndarray) -> Weights:
        parts = np.split(vector, np.cumsum([array.size for array in here.values()])[:-1])
        return {name: part.reshape(here[name].shape) for name, part in zip(here, parts, strict=True)}

    def fisher(change: np.ndarray) -> np.ndarray:
        moved = slopes.times(unflatten(change))
        return flatten(slopes.transposed(distribution.fisher(old, moved) / rows)) + DAMPING * change

    target = flatten(gradient)
    operator = LinearOperator((len(target), len(target)), matvec=fisher, dtype=float)
    along, _ = cg(operator, target, rtol=0, atol=1e-10, maxiter=ITERATIONS)
    curvature = float(along @ fisher(along))
    length = math.sqrt(2 * kl_limit / curvature) if curvature > 0 else 0.0
    for attempt in range(ATTEMPTS):
        there = unflatten(flatten(here) + SHORTEN**attempt * length * along)
        new = network.outputs(there, taken.observations)
        ratio = np.exp(distribution.log_density(new, taken.actions) - log_old)
        gained = float((ratio * advantages).mean() - advantages.mean())
        if gained > 0 and float(distribution.divergence(old, new).mean()) <= kl_limit:
            return there
    return here
