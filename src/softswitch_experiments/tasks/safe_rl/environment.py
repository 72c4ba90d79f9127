"""The constrained CartPole as a Gymnasium environment; needs ``softswitch[rl]``."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from softswitch.support import checks
from softswitch_experiments.tasks.safe_rl.physics import COSTLY_ANGLE, PLANETS, STRIPS, X_LIMIT

STRIP_COLOUR = (250, 210, 205)


class ConstrainedCartPole(CartPoleEnv):
    """Gymnasium's CartPole with the physics of a planet and prohibited strips.

    ``info["cost"]`` of a step is 1 if the next state lies in a strip or the pole leans by more than six degrees,
    otherwise 0. Everything else is as in CartPole-v1. The registered environment ends after 200 steps.

    Args:
        planet: "earth", "mars" or "jupiter".
        render_mode: "rgb_array" or None. Gymnasium derives "human" from "rgb_array".
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012 (Gymnasium's convention)

    def __init__(self, planet: str = "earth", render_mode: str | None = None) -> None:
        checks.check_choice("planet", planet, tuple(PLANETS))
        super().__init__(render_mode=render_mode)
        self.planet = planet
        self.gravity, self.masspole, self.length = map(float, PLANETS[planet])
        self.total_mass = self.masspole + self.masscart
        self.polemass_length = self.masspole * self.length

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take a step; its cost is in ``info``."""
        state, reward, terminated, truncated, info = super().step(action)
        assert self.state is not None
        x, _, angle, _ = self.state
        costly = any(low <= x <= high for low, high in STRIPS) or abs(angle) > COSTLY_ANGLE
        return state, reward, terminated, truncated, info | {"cost": float(costly)}

    def render(self) -> np.ndarray | None:
        """Return the picture, with prohibited strips coloured."""
        frame = super().render()
        if frame is None:
            return None
        x = (np.arange(frame.shape[1]) + 0.5) / frame.shape[1] * 2 * X_LIMIT - X_LIMIT
        prohibited = np.any([(low <= x) & (x <= high) for low, high in STRIPS], axis=0)
        frame[(frame == 255).all(axis=2) & prohibited] = STRIP_COLOUR
        return frame
