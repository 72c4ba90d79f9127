"""Episodes of a policy on a client's cart."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from softswitch_experiments.tasks.safe_rl.physics import START_WITHIN, Physics, cost, step
from softswitch_experiments.tasks.safe_rl.policy import STATE_SIZE, Policy, logit


class Randomness(NamedTuple):
    """The random numbers of a set of episodes.

    Attributes:
        uniforms: Uniform numbers. The action is 1 if the number is below the policy's probability.
    """

    starts: Float[Array, "*clients episodes 4"]  # first states
    uniforms: Float[Array, "horizon *clients episodes"]


def draw_randomness(key: PRNGKeyArray, clients: int, horizon: int, episodes: int) -> Randomness:
    """Draw the random numbers of all clients."""
    start_key, action_key = jax.random.split(key)
    return Randomness(
        jax.random.uniform(start_key, (clients, episodes, STATE_SIZE), minval=-START_WITHIN, maxval=START_WITHIN),
        jax.random.uniform(action_key, (horizon, clients, episodes)),
    )


class Episodes(NamedTuple):
    """A batch of episodes, time first. After its end an episode keeps its state and is not alive."""

    states: Float[Array, "horizon *clients episodes 4"]  # state before each step
    actions: Bool[Array, "horizon *clients episodes"]  # 1 pushes to the right
    alive: Bool[Array, "horizon *clients episodes"]  # whether the episode still runs; every such step has a reward of 1
    costs: Float[Array, "horizon *clients episodes"]  # cost of the next state; 0 after the end
    logits: Float[Array, "horizon *clients episodes"]  # logits of the policy

    @property
    def rewards(self) -> Float[Array, "horizon *clients episodes"]:
        """1 for every step before the end."""
        return self.alive.astype(self.costs.dtype)


def play(policy: Policy, randomness: Randomness, physics: Physics) -> Episodes:
    """Play the episodes of one client, or of several clients with one physics each.

    Nothing is computed after the last episode has ended.
    """
    broad = jax.tree.map(lambda numbers: jnp.asarray(numbers)[..., None], physics)

    def one_step(states: Array, alive: Array, uniforms: Array) -> tuple[tuple[Array, Array], Episodes]:
        logits = logit(policy, states)
        actions = uniforms < jax.nn.sigmoid(logits)
        after, ended = step(states, actions, broad)
        costs = jnp.where(alive, cost(after), 0.0)
        continues = alive & ~ended
        played = Episodes(states, actions, alive, costs, logits)
        return (jnp.where(continues[..., None], after, states), continues), played

    def skip(states: Array, alive: Array, uniforms: Array) -> tuple[tuple[Array, Array], Episodes]:
        zeros = jnp.zeros_like(uniforms)
        return (states, alive), Episodes(states, jnp.zeros_like(alive), alive, zeros, zeros)

    def next_step(now: tuple[Array, Array], uniforms: Array) -> tuple[tuple[Array, Array], Episodes]:
        return lax.cond(now[1].any(), one_step, skip, *now, uniforms)

    alive = jnp.ones(randomness.starts.shape[:-1], bool)
    return lax.scan(next_step, (randomness.starts, alive), randomness.uniforms)[1]


def totals(
    per_step: Float[Array, "horizon *clients episodes"], discount: float = 1.0
) -> Float[Array, "*clients episodes"]:
    """Return Σ_t γᵗ x_t of every episode."""
    return jnp.tensordot(discount ** jnp.arange(per_step.shape[0]), per_step, axes=1)
