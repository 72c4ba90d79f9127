"""Generalised advantage estimates.

The baseline is a ridge regression of returns on features of state and time, fitted to each batch of episodes. Clients
keep no state for it.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve
from jaxtyping import Array, Float

from softswitch_experiments.tasks.safe_rl.episodes import Episodes
from softswitch_experiments.tasks.safe_rl.physics import ANGLE_LIMIT, X_LIMIT

RIDGE = 1e-2
SCALES = (X_LIMIT, 1.5, ANGLE_LIMIT, 1.5)
"""Scale of each coordinate."""
BUMPS = 13
"""Number of Gaussian bumps along x, which model how the cost depends on the position of the cart."""
BUMP_WIDTH = 0.2
PAIRS = np.triu_indices(4)


def features(states: Float[Array, "horizon episodes 4"]) -> Float[Array, "horizon episodes features"]:
    """Return coordinates, their products, bumps along x, powers of time, and squares times time."""
    horizon = states.shape[0]
    time = jnp.broadcast_to((jnp.arange(horizon) / horizon)[:, None, None], (*states.shape[:2], 1))
    scaled = jnp.clip(states / jnp.asarray(SCALES), -3, 3)
    products = scaled[..., PAIRS[0]] * scaled[..., PAIRS[1]]
    bumps = jnp.exp(-0.5 * ((states[..., :1] - jnp.linspace(-X_LIMIT, X_LIMIT, BUMPS)) / BUMP_WIDTH) ** 2)
    powers = time ** jnp.arange(4)
    return jnp.concatenate([scaled, products, bumps, powers, time * scaled**2], axis=-1)


def discounted_sums(per_step: Float[Array, "horizon episodes"], discount: float) -> Float[Array, "horizon episodes"]:
    """Return Σ_{s>=t} γ^(s−t) x_s for every step t."""

    def back(later: Array, now: Array) -> tuple[Array, Array]:
        total = now + discount * later
        return total, total

    return lax.scan(back, jnp.zeros_like(per_step[0]), per_step, reverse=True)[1]


def advantages(
    episodes: Episodes, signal: Float[Array, "horizon episodes"], discount: float, trace: float
) -> Float[Array, "horizon episodes"]:
    """Return A_t = Σ_s (γλ)^(s−t) δ_s with δ_t = signal_t + γ V_{t+1} − V_t, and 0 after the end of an episode.

    V is 0 after the end of an episode and beyond the horizon.

    Args:
        episodes: The episodes.
        signal: Reward or cost of each step; 0 after the end of an episode.
        discount: γ.
        trace: λ. With 0 the estimate relies on the baseline, with 1 on the returns.
    """
    alive = episodes.rewards
    known = features(episodes.states) * alive[..., None]
    flat = known.reshape(-1, known.shape[-1])
    ridge = RIDGE * (1 + alive.sum() / 1000)
    gram = flat.T @ flat + ridge * jnp.eye(flat.shape[1])
    weights = solve(gram, flat.T @ discounted_sums(signal, discount).reshape(-1), assume_a="pos")
    value = known @ weights
    after = jnp.concatenate([value[1:], jnp.zeros_like(value[:1])])
    return discounted_sums((signal + discount * after - value) * alive, discount * trace) * alive
