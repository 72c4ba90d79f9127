"""A step of trust-region policy optimisation (TRPO), the local step of a client.

Conjugate gradients on Fisher products give the natural gradient. The step is as long as the quadratic model of the KL
divergence allows. It is then shortened until the true KL is within the limit and the surrogate has improved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from softswitch_experiments.tasks.safe_rl.episodes import Episodes
from softswitch_experiments.tasks.safe_rl.policy import Jacobian, Policy, logit_of_columns

Vector = Float[Array, " parameters"]
BLOCK = 500
"""Number of steps per block."""


class TrustRegion(NamedTuple):
    """Settings of a step."""

    kl_limit: float = 0.01  # maximum mean KL divergence from the old policy to the new one
    iterations: int = 10  # iterations of conjugate gradients
    damping: float = 1e-3  # number added to the diagonal of the Fisher matrix
    fisher_every: int = 1  # compute Fisher products from every n-th time step; 1 is the full Fisher matrix
    shorten: float = 0.8  # factor by which a rejected step is shortened
    attempts: int = 10  # maximum number of lengths to try before the policy stays unchanged


class Block(NamedTuple):
    """A block of steps. ``weight`` is 1/(number of steps played) for steps that were played, otherwise 0."""

    states: Float[Array, "*blocks 4 steps"]
    actions: Bool[Array, "*blocks steps"]
    logits: Float[Array, "*blocks steps"]
    advantages: Float[Array, "*blocks steps"]
    weight: Float[Array, "*blocks steps"]


class Steps(NamedTuple):
    """All steps of a client's episodes in blocks, played steps first. Blocks without any played step cost nothing."""

    blocks: Block  # the steps
    used: Int[Array, ""]  # number of blocks with played steps

    @classmethod
    def from_episodes(cls, episodes: Episodes, advantages: Float[Array, "horizon episodes"], every: int = 1) -> Steps:
        """Return the steps of every n-th time step, with advantages normalised over them."""
        columns = (episodes.states, episodes.actions, episodes.logits, advantages, episodes.rewards)
        states, actions, logits, advantages, alive = (leaf[::every].reshape(-1, *leaf.shape[2:]) for leaf in columns)
        played = alive.sum()
        weight = alive / jnp.maximum(played, 1)
        block = Block(states, actions, logits, normalize(advantages, weight), weight)
        size = min(BLOCK, len(alive))
        spare = -len(alive) % size
        # Position of each step, played steps first. Cheaper than sorting.
        position = jnp.where(alive > 0, jnp.cumsum(alive) - 1, len(alive)).astype(jnp.int32)
        order = jnp.full(len(alive), jnp.argmin(alive)).at[position].set(jnp.arange(len(alive)), mode="drop")

        def split_blocks(column: Array) -> Array:
            padded = jnp.pad(column[order], [(0, spare), *[(0, 0)] * (column.ndim - 1)])
            return padded.reshape(-1, size, *column.shape[1:])

        blocks = jax.tree.map(split_blocks, block)
        blocks = blocks._replace(states=jnp.swapaxes(blocks.states, 1, 2))
        return cls(blocks, jnp.ceil(played / size).astype(jnp.int32))

    def map(self, function: Callable[[Block], Any]) -> Any:
        """Return ``function`` of every used block, stacked; zeros for unused blocks."""
        blocks = self.blocks.weight.shape[0]
        shapes = jax.eval_shape(function, self.block(0))
        begin = jax.tree.map(lambda leaf: jnp.zeros((blocks, *leaf.shape), leaf.dtype), shapes)

        def set_block(i: Array, results: Any) -> Any:
            return jax.tree.map(lambda stack, one: stack.at[i].set(one), results, function(self.block(i)))

        return lax.fori_loop(0, self.used, set_block, begin)

    def sum(self, function: Callable[[Block, Any], Any], extra: Any = None) -> Any:
        """Return the sum of ``function(block, part of extra)`` over the used blocks."""

        def one(i: Any) -> Any:
            return function(self.block(i), jax.tree.map(lambda leaf: leaf[i], extra))

        begin = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(lambda: one(0)))
        return lax.fori_loop(0, self.used, lambda i, total: jax.tree.map(jnp.add, total, one(i)), begin)

    def block(self, i: Any) -> Block:
        """Return the i-th block."""
        return jax.tree.map(lambda leaf: leaf[i], self.blocks)


def normalize(advantages: Float[Array, " steps"], weight: Float[Array, " steps"]) -> Float[Array, " steps"]:
    """Return advantages with mean 0 and standard deviation 1 over the played steps."""
    centred = advantages - weight @ advantages
    return centred / (jnp.sqrt(weight @ centred**2) + 1e-6)


def surrogate_and_kl(policy: Policy, steps: Steps) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return E[π(a)/π_old(a) · A] and E[KL(π_old ‖ π)] over the steps."""

    def of(block: Block, _: None) -> tuple[Array, Array]:
        old, new = block.logits, logit_of_columns(policy, block.states)
        side = jnp.where(block.actions, 1.0, -1.0)
        ratio = jnp.exp(jax.nn.log_sigmoid(side * new) - jax.nn.log_sigmoid(side * old))
        # KL of two Bernoulli distributions by their log-odds: p·(z_old − z) plus the difference of log(1 − p).
        divergence = jax.nn.sigmoid(old) * (old - new) + jax.nn.softplus(new) - jax.nn.softplus(old)
        return block.weight @ (ratio * block.advantages), block.weight @ divergence

    return steps.sum(of)


def policy_gradient(policy: Policy, steps: Steps) -> Policy:
    """Return the gradient of the surrogate at the old policy: Jᵀ of weight·A·(a − p)."""

    def of(block: Block, _: None) -> Policy:
        surprise = block.actions - jax.nn.sigmoid(block.logits)
        return Jacobian.at(policy, block.states).transposed_times(block.weight * block.advantages * surprise)

    return steps.sum(of)


def fisher_product(policy: Policy, steps: Steps) -> Callable[[Policy], Policy]:
    """Return v ↦ F·v for the Fisher matrix F = E[p(1 − p) ∂z ∂zᵀ], the Hessian of the KL at the old policy."""
    jacobians = steps.map(lambda block: Jacobian.at(policy, block.states))

    def product(v: Policy) -> Policy:
        def of(block: Block, jacobian: Jacobian) -> Policy:
            right = jax.nn.sigmoid(block.logits)
            return jacobian.transposed_times(block.weight * right * (1 - right) * jacobian.times(v))

        return steps.sum(of, jacobians)

    return product


def conjugate_gradient(product: Callable[[Vector], Vector], target: Vector, iterations: int) -> tuple[Vector, Vector]:
    """Return x with A·x ≈ target for a positive definite A, and A·x."""

    def refine(_: Any, now: tuple[Array, ...]) -> tuple[Array, ...]:
        x, residual, along, squared = now
        image = product(along)
        length = squared / (along @ image + 1e-12)
        x, residual = x + length * along, residual - length * image
        after = residual @ residual
        return x, residual, residual + after / (squared + 1e-12) * along, after

    begin = (jnp.zeros_like(target), target, target, target @ target)
    x, residual, _, _ = lax.fori_loop(0, iterations, refine, begin)
    return x, target - residual


def line_search(accepts: Callable[[Vector], Bool[Array, ""]], full: Vector, shorten: float, attempts: int) -> Vector:
    """Return the longest of full, shorten·full, shorten²·full, … that is accepted, or zero if none is."""

    def refused(now: tuple[Array, Array, Array]) -> Array:
        tried, _, accepted = now
        return ~accepted & (tried < attempts)

    def attempt(now: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        tried, _, _ = now
        length = jnp.asarray(shorten) ** tried
        return tried + 1, length, accepts(length * full)

    _, length, accepted = lax.while_loop(refused, attempt, (jnp.int32(0), jnp.ones(()), jnp.bool_(False)))
    return jnp.where(accepted, length * full, jnp.zeros_like(full))


def improve(
    policy: Policy, episodes: Episodes, advantages: Float[Array, "horizon episodes"], region: TrustRegion
) -> Policy:
    """Take one step from the policy that played the episodes towards larger advantages."""
    steps = Steps.from_episodes(episodes, advantages)
    gradient, as_policy = ravel_pytree(policy_gradient(policy, steps))
    for_fisher = steps if region.fisher_every == 1 else Steps.from_episodes(episodes, advantages, region.fisher_every)
    product = fisher_product(policy, for_fisher)

    def damped(v: Vector) -> Vector:
        return ravel_pytree(product(as_policy(v)))[0] + region.damping * v

    natural, image = conjugate_gradient(damped, gradient, region.iterations)
    # ½ xᵀFx is the quadratic model's KL of a step x.
    full = natural * jnp.sqrt(region.kl_limit / jnp.maximum(0.5 * natural @ image, 1e-10))
    here = ravel_pytree(policy)[0]

    def accepts(change: Vector) -> Bool[Array, ""]:
        surrogate, kl = surrogate_and_kl(as_policy(here + change), steps)
        return (surrogate > 0) & (kl <= region.kl_limit)

    return as_policy(here + line_search(accepts, full, region.shorten, region.attempts))
