"""Trust-region policy optimisation, one step of it as a client's local step.

Among policies within a mean KL divergence of the present one, take the one that promises most: the natural gradient by
conjugate gradients on Fisher products, as long as the KL limit allows by the quadratic model, then shortened until the
true KL keeps the limit and the surrogate has improved.
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
"""So many steps are computed at once."""


class TrustRegion(NamedTuple):
    """The settings of a step.

    Attributes:
        kl_limit: the largest mean KL divergence from the old policy to the new.
        iterations: of conjugate gradients.
        damping: added to the Fisher matrix's diagonal.
        fisher_every: Fisher products take every so-many-th time step; 1 is the full Fisher matrix.
        shorten: a step that is refused is tried again at this share of its length.
        attempts: so many lengths are tried, then the policy stays.
    """

    kl_limit: float = 0.01
    iterations: int = 10
    damping: float = 1e-3
    fisher_every: int = 1
    shorten: float = 0.8
    attempts: int = 10


class Block(NamedTuple):
    """Some steps: ``weight`` is 1/(how many were played in all) for those played, and 0 for the others."""

    states: Float[Array, "*blocks 4 steps"]
    actions: Bool[Array, "*blocks steps"]
    logits: Float[Array, "*blocks steps"]
    advantages: Float[Array, "*blocks steps"]
    weight: Float[Array, "*blocks steps"]


class Steps(NamedTuple):
    """All steps of a client's episodes, those played first, in blocks; blocks without any are passed over.

    Most episodes end long before the horizon, and what was not played should cost nothing.

    Attributes:
        blocks: the steps.
        used: so many blocks hold steps that were played.
    """

    blocks: Block
    used: Int[Array, ""]

    @classmethod
    def of(cls, episodes: Episodes, advantages: Float[Array, "horizon episodes"], every: int = 1) -> Steps:
        """All steps, or those of every so-many-th time step; advantages normalised over them."""
        columns = (episodes.states, episodes.actions, episodes.logits, advantages, episodes.rewards)
        states, actions, logits, better, alive = (leaf[::every].reshape(-1, *leaf.shape[2:]) for leaf in columns)
        played = alive.sum()
        weight = alive / jnp.maximum(played, 1)
        block = Block(states, actions, logits, normalised(better, weight), weight)
        size = min(BLOCK, len(alive))
        spare = -len(alive) % size
        # Where each step goes: those played first. Cheaper than to sort.
        place = jnp.where(alive > 0, jnp.cumsum(alive) - 1, len(alive)).astype(jnp.int32)
        order = jnp.full(len(alive), jnp.argmin(alive)).at[place].set(jnp.arange(len(alive)), mode="drop")

        def in_blocks(column: Array) -> Array:
            padded = jnp.pad(column[order], [(0, spare), *[(0, 0)] * (column.ndim - 1)])
            return padded.reshape(-1, size, *column.shape[1:])

        blocks = jax.tree.map(in_blocks, block)
        blocks = blocks._replace(states=jnp.swapaxes(blocks.states, 1, 2))
        return cls(blocks, jnp.ceil(played / size).astype(jnp.int32))

    def each(self, function: Callable[[Block], Any]) -> Any:
        """``function`` of every block that is used, stacked; zeros for the others."""
        blocks = self.blocks.weight.shape[0]
        shapes = jax.eval_shape(function, self.block(0))
        begin = jax.tree.map(lambda leaf: jnp.zeros((blocks, *leaf.shape), leaf.dtype), shapes)

        def put(i: Array, found: Any) -> Any:
            return jax.tree.map(lambda all_of, one: all_of.at[i].set(one), found, function(self.block(i)))

        return lax.fori_loop(0, self.used, put, begin)

    def total(self, function: Callable[[Block, Any], Any], beside: Any = None) -> Any:
        """Σ of ``function`` over the blocks that are used, given each block and its part of ``beside``."""

        def one(i: Any) -> Any:
            return function(self.block(i), jax.tree.map(lambda leaf: leaf[i], beside))

        begin = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(lambda: one(0)))
        return lax.fori_loop(0, self.used, lambda i, total: jax.tree.map(jnp.add, total, one(i)), begin)

    def block(self, i: Any) -> Block:
        """The i-th block."""
        return jax.tree.map(lambda leaf: leaf[i], self.blocks)


def normalised(advantages: Float[Array, " steps"], weight: Float[Array, " steps"]) -> Float[Array, " steps"]:
    """Advantages with mean 0 and deviation 1 over the steps played."""
    centred = advantages - weight @ advantages
    return centred / (jnp.sqrt(weight @ centred**2) + 1e-6)


def surrogate_and_kl(policy: Policy, steps: Steps) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """E[π(a)/π_old(a) · A] and E[KL(π_old ‖ π)] over the steps."""

    def of(block: Block, _: None) -> tuple[Array, Array]:
        old, new = block.logits, logit_of_columns(policy, block.states)
        side = jnp.where(block.actions, 1.0, -1.0)
        ratio = jnp.exp(jax.nn.log_sigmoid(side * new) - jax.nn.log_sigmoid(side * old))
        # KL of two coins by their log-odds: p·(z_old − z) plus the difference of log(1 − p).
        divergence = jax.nn.sigmoid(old) * (old - new) + jax.nn.softplus(new) - jax.nn.softplus(old)
        return block.weight @ (ratio * block.advantages), block.weight @ divergence

    return steps.total(of)


def policy_gradient(policy: Policy, steps: Steps) -> Policy:
    """The surrogate's gradient at the old policy: Jᵀ of weight·A·(a − p)."""

    def of(block: Block, _: None) -> Policy:
        surprise = block.actions - jax.nn.sigmoid(block.logits)
        return Jacobian.at(policy, block.states).transposed(block.weight * block.advantages * surprise)

    return steps.total(of)


def fisher_product(policy: Policy, steps: Steps) -> Callable[[Policy], Policy]:
    """v ↦ F·v with F = E[p(1 − p) ∂z ∂zᵀ], the Fisher matrix and the Hessian of the KL at the old policy."""
    jacobians = steps.each(lambda block: Jacobian.at(policy, block.states))

    def product(v: Policy) -> Policy:
        def of(block: Block, jacobian: Jacobian) -> Policy:
            right = jax.nn.sigmoid(block.logits)
            return jacobian.transposed(block.weight * right * (1 - right) * jacobian.times(v))

        return steps.total(of, jacobians)

    return product


def conjugate_gradient(product: Callable[[Vector], Vector], target: Vector, iterations: int) -> tuple[Vector, Vector]:
    """x with A·x ≈ target for a positive definite A, and A·x itself, which costs no further product."""

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
    """The longest of full, shorten·full, shorten²·full, … that is accepted; zero where none is."""

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
    policy: Policy, episodes: Episodes, advantages: Float[Array, "horizon episodes"], how: TrustRegion
) -> Policy:
    """One step from the policy that played the episodes towards larger advantages."""
    steps = Steps.of(episodes, advantages)
    gradient, as_policy = ravel_pytree(policy_gradient(policy, steps))
    for_fisher = steps if how.fisher_every == 1 else Steps.of(episodes, advantages, how.fisher_every)
    product = fisher_product(policy, for_fisher)

    def damped(v: Vector) -> Vector:
        return ravel_pytree(product(as_policy(v)))[0] + how.damping * v

    natural, image = conjugate_gradient(damped, gradient, how.iterations)
    # ½ xᵀFx is the quadratic model's KL of a step x.
    full = natural * jnp.sqrt(how.kl_limit / jnp.maximum(0.5 * natural @ image, 1e-10))
    here = ravel_pytree(policy)[0]

    def accepts(change: Vector) -> Bool[Array, ""]:
        surrogate, kl = surrogate_and_kl(as_policy(here + change), steps)
        return (surrogate > 0) & (kl <= how.kl_limit)

    return as_policy(here + line_search(accepts, full, how.shorten, how.attempts))
