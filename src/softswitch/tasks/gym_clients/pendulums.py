"""Pendulums under different gravity, with a budget for fast swings: continuous torque, and nothing ends early."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from softswitch.clients.federation import Federation
from softswitch.support import checks
from softswitch.tasks.gym_clients.gym_task import environment_clients

GRAVITIES = (4.0, 6.0, 8.0, 10.0)
FAST = 3.0
"""A pendulum that turns faster than so many radians a second costs 1 a step."""


def pendulums(
    *, gravities: Sequence[float] = GRAVITIES, budget: float = 30.0, seed: int = 0, **settings: Any
) -> Federation:
    """Gymnasium's Pendulum under several gravities: one policy is to swing all of them up and hold them there.

    The reward of a step is Gymnasium's, −(angle² + 0.1·speed² + 0.001·torque²), divided by 10. A step costs 1 where the
    pendulum turns faster than 3 radians a second: heavy ones need swings to come up at all.

    Args:
        gravities: each client's, in m/s².
        budget: how many fast steps of 200 an episode may have on average.
        seed: of the policy's first weights.
        settings: others of ``environment_clients``.
    """
    if len(set(gravities)) < len(gravities):
        raise ValueError(f"gravities must differ, since clients are named by them, but are {tuple(gravities)}")
    made = {
        f"gravity {gravity:g}": partial(
            gymnasium.make, "Pendulum-v1", g=checks.real_number("gravities", gravity, above=0)
        )
        for gravity in gravities
    }
    chosen = {"reward_scale": 0.1, "horizon": 200} | settings
    return environment_clients(made, budget, cost=_fast, seed=seed, **chosen)


def _fast(observations: np.ndarray, actions: np.ndarray, after: np.ndarray) -> np.ndarray:
    """1 where the speed, the third number observed, is beyond ``FAST``."""
    del observations, actions
    return np.abs(after[:, 2]) > FAST
