"""How much better an action was than expected, on a baseline that is fitted anew to every batch of episodes."""

from __future__ import annotations

import numpy as np

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
