"""Trust-region policy optimisation, one step of it as a client's local step.

Among policies within a mean KL divergence of the present one, take the one that promises most: the natural gradient by
conjugate gradients on Fisher products, as long as the KL limit allows by the quadratic model, then shortened until the
true KL keeps the limit and the surrogate has improved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from softswitch.tasks.safe_rl.episodes import Episodes
from softswitch.tasks.safe_rl.policy import Jacobian, Policy, logit

Vector = Float[Array, " parameters"]


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


class Steps(NamedTuple):
    """Steps of episodes as one batch: ``weight`` is 1/(how many are alive) for those, and 0 for the others."""

    states: Float[Array, "steps 4"]
    actions: Bool[Array, " steps"]
    logits: Float[Array, " steps"]
    weight: Float[Array, " steps"]

    @classmethod
    def of(cls, episodes: Episodes, every: int = 1) -> Steps:
        """All steps, or those of every so-many-th time step."""
        some = jax.tree.map(lambda leaf: leaf[::every].reshape(-1, *leaf.shape[2:]), episodes)
        alive = some.rewards
        return cls(some.states, some.actions, some.logits, alive / jnp.maximum(alive.sum(), 1))


def normalised(advantages: Float[Array, " steps"], weight: Float[Array, " steps"]) -> Float[Array, " steps"]:
    """Advantages with mean 0 and deviation 1 over the steps played."""
    centred = advantages - weight @ advantages
    return centred / (jnp.sqrt(weight @ centred**2) + 1e-6)


def surrogate_and_kl(
    policy: Policy, steps: Steps, advantages: Float[Array, " steps"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """E[π(a)/π_old(a) · A] and E[KL(π_old ‖ π)] over the steps."""
    logits = logit(policy, steps.states)
    side = jnp.where(steps.actions, 1.0, -1.0)
    ratio = jnp.exp(jax.nn.log_sigmoid(side * logits) - jax.nn.log_sigmoid(side * steps.logits))
    right = jax.nn.sigmoid(steps.logits)
    # KL of two coins by their log-odds: p·(z_old − z) plus the difference of log(1 − p).
    divergence = right * (steps.logits - logits) + jax.nn.softplus(logits) - jax.nn.softplus(steps.logits)
    return steps.weight @ (ratio * advantages), steps.weight @ divergence


def policy_gradient(policy: Policy, steps: Steps, advantages: Float[Array, " steps"]) -> Policy:
    """The surrogate's gradient at the old policy: Jᵀ of weight·A·(a − p)."""
    surprise = steps.actions - jax.nn.sigmoid(steps.logits)
    return Jacobian.at(policy, steps.states).transposed(steps.weight * advantages * surprise)


def fisher_product(policy: Policy, steps: Steps) -> Callable[[Policy], Policy]:
    """v ↦ F·v with F = E[p(1 − p) ∂z ∂zᵀ], the Fisher matrix and the Hessian of the KL at the old policy."""
    jacobian = Jacobian.at(policy, steps.states)
    right = jax.nn.sigmoid(steps.logits)
    curvature = steps.weight * right * (1 - right)
    return lambda v: jacobian.transposed(curvature * jacobian.times(v))


def conjugate_gradient(product: Callable[[Vector], Vector], target: Vector, iterations: int) -> tuple[Vector, Vector]:
    """x with A·x ≈ target for a positive definite A, and A·x itself, which costs no further product."""

    def refine(_: int, now: tuple[Array, ...]) -> tuple[Array, ...]:
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
    steps = Steps.of(episodes)
    better = normalised(advantages.reshape(-1), steps.weight)
    gradient, as_policy = ravel_pytree(policy_gradient(policy, steps, better))
    product = fisher_product(policy, Steps.of(episodes, how.fisher_every))

    def damped(v: Vector) -> Vector:
        return ravel_pytree(product(as_policy(v)))[0] + how.damping * v

    natural, image = conjugate_gradient(damped, gradient, how.iterations)
    # ½ xᵀFx is the quadratic model's KL of a step x.
    full = natural * jnp.sqrt(how.kl_limit / jnp.maximum(0.5 * natural @ image, 1e-10))
    here = ravel_pytree(policy)[0]

    def accepts(change: Vector) -> Bool[Array, ""]:
        surrogate, kl = surrogate_and_kl(as_policy(here + change), steps, better)
        return (surrogate > 0) & (kl <= how.kl_limit)

    return as_policy(here + line_search(accepts, full, how.shorten, how.attempts))
