"""Playing episodes: a policy on one client's cart."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from softswitch_experiments.tasks.safe_rl.cartpole import START_WITHIN, Physics, cost, step
from softswitch_experiments.tasks.safe_rl.policy import STATE_SIZE, Policy, logit


class Luck(NamedTuple):
    """All that is random in a set of episodes.

    Attributes:
        starts: the first states.
        coins: uniform numbers that decide the actions: 1 where below the policy's probability.
    """

    starts: Float[Array, "*clients episodes 4"]
    coins: Float[Array, "horizon *clients episodes"]


def luck(key: PRNGKeyArray, clients: int, horizon: int, episodes: int) -> Luck:
    """Draw it for all clients."""
    for_starts, for_coins = jax.random.split(key)
    return Luck(
        jax.random.uniform(for_starts, (clients, episodes, STATE_SIZE), minval=-START_WITHIN, maxval=START_WITHIN),
        jax.random.uniform(for_coins, (horizon, clients, episodes)),
    )


class Episodes(NamedTuple):
    """Episodes side by side, time first. After its end an episode stands still and is not alive.

    Attributes:
        states: before each step.
        actions: 1 pushes to the right.
        alive: whether the step is played; the reward is 1 for it.
        costs: of the state that the step leads to; 0 where not alive.
        logits: of the policy that played.
    """

    states: Float[Array, "horizon *clients episodes 4"]
    actions: Bool[Array, "horizon *clients episodes"]
    alive: Bool[Array, "horizon *clients episodes"]
    costs: Float[Array, "horizon *clients episodes"]
    logits: Float[Array, "horizon *clients episodes"]

    @property
    def rewards(self) -> Float[Array, "horizon *clients episodes"]:
        """1 for every step played."""
        return self.alive.astype(self.costs.dtype)


def play(policy: Policy, luck: Luck, physics: Physics) -> Episodes:
    """Play the episodes of one client, or of all at once: a client's physics is that of all its episodes.

    The steps after the last episode has ended are not computed.
    """
    broad = jax.tree.map(lambda numbers: jnp.asarray(numbers)[..., None], physics)

    def one_step(states: Array, alive: Array, coins: Array) -> tuple[tuple[Array, Array], Episodes]:
        logits = logit(policy, states)
        actions = coins < jax.nn.sigmoid(logits)
        after, ended = step(states, actions, broad)
        costs = jnp.where(alive, cost(after), 0.0)
        goes_on = alive & ~ended
        here = Episodes(states, actions, alive, costs, logits)
        return (jnp.where(goes_on[..., None], after, states), goes_on), here

    def rest(states: Array, alive: Array, coins: Array) -> tuple[tuple[Array, Array], Episodes]:
        nothing = jnp.zeros_like(coins)
        return (states, alive), Episodes(states, jnp.zeros_like(alive), alive, nothing, nothing)

    def next_step(now: tuple[Array, Array], coins: Array) -> tuple[tuple[Array, Array], Episodes]:
        return lax.cond(now[1].any(), one_step, rest, *now, coins)

    everyone = jnp.ones(luck.starts.shape[:-1], bool)
    return lax.scan(next_step, (luck.starts, everyone), luck.coins)[1]


def totals(
    per_step: Float[Array, "horizon *clients episodes"], discount: float = 1.0
) -> Float[Array, "*clients episodes"]:
    """Σ_t γᵗ of what each step gave."""
    return jnp.tensordot(discount ** jnp.arange(per_step.shape[0]), per_step, axes=1)
