"""How much better an action was than expected: generalised advantage estimates on a baseline without memory.

The baseline is a ridge regression of returns on features of state and time, fitted anew to each batch of episodes:
nothing for clients to keep, nothing to federate.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve
from jaxtyping import Array, Float

from softswitch_experiments.tasks.safe_rl.cartpole import ANGLE_LIMIT, X_LIMIT
from softswitch_experiments.tasks.safe_rl.episodes import Episodes

RIDGE = 1e-2
SCALES = (X_LIMIT, 1.5, ANGLE_LIMIT, 1.5)
"""What counts as large in each coordinate."""
BUMPS = 13
"""Bumps along x, of the width of a prohibited strip: the cost depends on where the cart stands."""
BUMP_WIDTH = 0.2
PAIRS = np.triu_indices(4)


def features(states: Float[Array, "horizon episodes 4"]) -> Float[Array, "horizon episodes features"]:
    """Coordinates, their products, bumps along x, powers of time, and squares times time."""
    horizon = states.shape[0]
    time = jnp.broadcast_to((jnp.arange(horizon) / horizon)[:, None, None], (*states.shape[:2], 1))
    scaled = jnp.clip(states / jnp.asarray(SCALES), -3, 3)
    products = scaled[..., PAIRS[0]] * scaled[..., PAIRS[1]]
    bumps = jnp.exp(-0.5 * ((states[..., :1] - jnp.linspace(-X_LIMIT, X_LIMIT, BUMPS)) / BUMP_WIDTH) ** 2)
    powers = time ** jnp.arange(4)
    return jnp.concatenate([scaled, products, bumps, powers, time * scaled**2], axis=-1)


def to_go(per_step: Float[Array, "horizon episodes"], discount: float) -> Float[Array, "horizon episodes"]:
    """Σ_{s>=t} γ^(s−t) x_s, from every step on."""

    def back(later: Array, now: Array) -> tuple[Array, Array]:
        total = now + discount * later
        return total, total

    return lax.scan(back, jnp.zeros_like(per_step[0]), per_step, reverse=True)[1]


def advantages(
    episodes: Episodes, signal: Float[Array, "horizon episodes"], discount: float, trace: float
) -> Float[Array, "horizon episodes"]:
    """Generalised advantage estimates A_t = Σ_s (γλ)^(s−t) δ_s, δ_t = signal_t + γ V_{t+1} − V_t; 0 where not alive.

    V is 0 after an episode's end, and also beyond the horizon.

    Args:
        episodes: what was played.
        signal: what each step gave; 0 where not alive.
        discount: γ.
        trace: λ: 0 trusts the baseline, 1 the returns.
    """
    alive = episodes.rewards
    known = features(episodes.states) * alive[..., None]
    flat = known.reshape(-1, known.shape[-1])
    ridge = RIDGE * (1 + alive.sum() / 1000)
    gram = flat.T @ flat + ridge * jnp.eye(flat.shape[1])
    weights = solve(gram, flat.T @ to_go(signal, discount).reshape(-1), assume_a="pos")
    value = known @ weights
    after = jnp.concatenate([value[1:], jnp.zeros_like(value[:1])])
    return to_go((signal + discount * after - value) * alive, discount * trace) * alive
