"""The constrained CartPole as pure functions: Gymnasium's dynamics on three planets, with prohibited strips.

A state is (x, velocity, angle, angular velocity). Functions accept any leading axes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

FORCE, TIME_STEP, CART_MASS = 10.0, 0.02, 1.0
X_LIMIT, ANGLE_LIMIT = 2.4, math.radians(12)
"""An episode ends beyond either limit."""
COSTLY_ANGLE = math.radians(6)
STRIPS = ((-2.4, -2.2), (-1.3, -1.1), (-0.1, 0.1), (1.1, 1.3), (2.2, 2.4))
"""A step costs 1 if the cart is in one of these intervals, or if the pole is beyond ``COSTLY_ANGLE``."""
START_WITHIN = 0.05
"""Every coordinate of the first state is uniform between plus and minus this."""


class Physics(NamedTuple):
    """Physical constants of a planet and its cart."""

    gravity: Float[Array, "*clients"] | float
    pole_mass: Float[Array, "*clients"] | float
    half_length: Float[Array, "*clients"] | float


PLANETS = {"earth": Physics(9.8, 0.1, 0.5), "mars": Physics(3.7, 0.2, 0.8), "jupiter": Physics(20.0, 0.5, 0.2)}


def step(
    state: Float[Array, "*batch 4"], action: Bool[Array, "*batch"] | Int[Array, "*batch"], physics: Physics
) -> tuple[Float[Array, "*batch 4"], Bool[Array, "*batch"]]:
    """Return the next state, by Euler's method, and whether the episode ends there. Action 1 pushes to the right."""
    x, velocity, angle, spin = (state[..., i] for i in range(4))
    mass = physics.pole_mass + CART_MASS
    moment = physics.pole_mass * physics.half_length
    push = jnp.where(action, FORCE, -FORCE)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    pull = (push + moment * spin**2 * sin) / mass
    torque = physics.gravity * sin - cos * pull
    spin_change = torque / (physics.half_length * (4.0 / 3.0 - physics.pole_mass * cos**2 / mass))
    speed_change = pull - moment * spin_change * cos / mass
    after = jnp.stack(
        [
            x + TIME_STEP * velocity,
            velocity + TIME_STEP * speed_change,
            angle + TIME_STEP * spin,
            spin + TIME_STEP * spin_change,
        ],
        axis=-1,
    )
    return after, (jnp.abs(after[..., 0]) > X_LIMIT) | (jnp.abs(after[..., 2]) > ANGLE_LIMIT)


def cost(state: Float[Array, "*batch 4"]) -> Float[Array, "*batch"]:
    """Return 1 in a prohibited strip or with the pole beyond six degrees, otherwise 0."""
    x, angle = state[..., 0], state[..., 2]
    low, high = jnp.array(STRIPS).T
    inside = ((x[..., None] >= low) & (x[..., None] <= high)).any(axis=-1)
    return (inside | (jnp.abs(angle) > COSTLY_ANGLE)).astype(state.dtype)
