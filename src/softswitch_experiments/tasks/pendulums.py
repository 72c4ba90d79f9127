"""Pendulums under several gravities, a task for Gymnasium clients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from softswitch.oracles.base import Federation
from softswitch.oracles.gym.oracle import make_gym_federation
from softswitch.support import checks

FAST = 3.0
"""Speed in radians per second above which a step costs 1."""


def pendulums(
    *, gravities: Sequence[float] = (4.0, 6.0, 8.0, 10.0), budget: float = 30.0, seed: int = 0, **settings: Any
) -> Federation:
    """Return Gymnasium's Pendulum under several gravities: one policy swings all of them up and holds them.

    The reward of a step is Gymnasium's, −(angle² + 0.1·speed² + 0.001·torque²), divided by 10. A step costs 1 if the
    pendulum turns faster than 3 radians a second; heavy ones need swings to come up.

    Args:
        gravities: Gravity of each client in m/s².
        budget: Number of fast steps of 200 that an episode may have on average.
        seed: Seed of the initial weights.
        settings: Other arguments of ``make_gym_federation``.
    """
    if len(set(gravities)) < len(gravities):
        raise ValueError(f"gravities must differ, since clients are named by them, but are {tuple(gravities)}")
    for gravity in gravities:
        checks.check_real("gravities", gravity, above=0)
    made = {f"gravity {gravity:g}": partial(gymnasium.make, "Pendulum-v1", g=gravity) for gravity in gravities}
    return make_gym_federation(
        made, budget, cost=_is_fast, seed=seed, **{"reward_scale": 0.1, "horizon": 200} | settings
    )


def _is_fast(observations: np.ndarray, actions: np.ndarray, after: np.ndarray) -> np.ndarray:
    return np.abs(after[:, 2]) > FAST
