"""Playing episodes: a policy on one client's cart."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from softswitch.tasks.safe_rl.cartpole import START_WITHIN, Physics, cost, step
from softswitch.tasks.safe_rl.policy import STATE_SIZE, Policy, logit


class Luck(NamedTuple):
    """All that is random in a set of episodes.

    Attributes:
        starts: the first states.
        coins: uniform numbers that decide the actions: 1 where below the policy's probability.
    """

    starts: Float[Array, "*client episodes 4"]
    coins: Float[Array, "*client horizon episodes"]


def luck(key: PRNGKeyArray, clients: int, horizon: int, episodes: int) -> Luck:
    """Draw it for all clients."""
    for_starts, for_coins = jax.random.split(key)
    return Luck(
        jax.random.uniform(for_starts, (clients, episodes, STATE_SIZE), minval=-START_WITHIN, maxval=START_WITHIN),
        jax.random.uniform(for_coins, (clients, horizon, episodes)),
    )


class Episodes(NamedTuple):
    """One client's episodes side by side, time first. After its end an episode stands still and is not alive.

    Attributes:
        states: before each step.
        actions: 1 pushes to the right.
        alive: whether the step is played; the reward is 1 for it.
        costs: of the state that the step leads to; 0 where not alive.
        logits: of the policy that played.
    """

    states: Float[Array, "horizon episodes 4"]
    actions: Bool[Array, "horizon episodes"]
    alive: Bool[Array, "horizon episodes"]
    costs: Float[Array, "horizon episodes"]
    logits: Float[Array, "horizon episodes"]

    @property
    def rewards(self) -> Float[Array, "horizon episodes"]:
        """1 for every step played."""
        return self.alive.astype(self.costs.dtype)


def play(policy: Policy, luck: Luck, physics: Physics) -> Episodes:
    """Play one client's episodes."""

    def one_step(now: tuple[Array, Array], coins: Array) -> tuple[tuple[Array, Array], Episodes]:
        states, alive = now
        logits = logit(policy, states)
        actions = coins < jax.nn.sigmoid(logits)
        after, ended = step(states, actions, physics)
        costs = jnp.where(alive, cost(after), 0.0)
        goes_on = alive & ~ended
        return (jnp.where(goes_on[:, None], after, states), goes_on), Episodes(states, actions, alive, costs, logits)

    everyone = jnp.ones(luck.starts.shape[0], bool)
    return lax.scan(one_step, (luck.starts, everyone), luck.coins)[1]


def totals(per_step: Float[Array, "horizon episodes"], discount: float = 1.0) -> Float[Array, " episodes"]:
    """Σ_t γᵗ of what each step gave."""
    return discount ** jnp.arange(per_step.shape[0]) @ per_step
