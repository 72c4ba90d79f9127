"""The paper's safe reinforcement-learning task: ten carts on three planets, one policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.oracles.federation import Federation, count_participants
from softswitch.support import checks
from softswitch_experiments.tasks.safe_rl.cart_clients import CartPoleOracle
from softswitch_experiments.tasks.safe_rl.cartpole import PLANETS, Physics
from softswitch_experiments.tasks.safe_rl.policy import first_policy
from softswitch_experiments.tasks.safe_rl.trpo import TrustRegion

TEN = ("earth",) * 4 + ("mars",) * 3 + ("jupiter",) * 3
LEAST_BUDGET, MOST_BUDGET = 25.0, 35.0


def cartpole(
    *,
    seed: int = 0,
    planets: Sequence[str] = TEN,
    budgets: str | Sequence[float] = "even",
    participation: float = 1.0,
    horizon: int = 200,
    gradient_episodes: int = 20,
    estimation_episodes: int = 30,
    evaluation_episodes: int = 100,
    local_steps: int = 1,
    discount: float = 0.99,
    trace: float = 0.97,
    discounted_cost: bool = True,
    kl_limit: float = 0.01,
    fisher_every: int = 1,
    hidden: Sequence[int] = (32, 32),
) -> Federation:
    """Carts on several planets that share one policy, each with a budget for cost.

    Args:
        seed: of the policy's first weights, and of drawn budgets.
        planets: each client's, of "earth", "mars" and "jupiter".
        budgets: d_i: ``"even"`` spaces them evenly from 25 to 35 in the clients' order, ``"drawn"`` draws them between
            these, or a number a client.
        participation: m/n, the share of clients drawn for each round.
        horizon: T, the longest an episode lasts.
        gradient_episodes: a client learns from so many in a local step,
        estimation_episodes: and estimates f and g from so many besides; the largest of noisy estimates is biased up.
        evaluation_episodes: so many for each client where a policy is judged.
        local_steps: E, steps of TRPO a client takes in a round.
        discount: γ.
        trace: λ of the advantage estimates.
        discounted_cost: whether the constraint is on discounted cost, or on plain cost.
        kl_limit: how far a local step may take the policy, as mean KL divergence.
        fisher_every: Fisher products take every so-many-th time step: 1 is the reference, 5 is much faster.
        hidden: the widths of the policy's hidden layers.
    """
    for name, given in (("planets", planets), ("hidden", hidden)):
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise TypeError(f"{name} must be a list, but is {given!r}")
    for planet in planets:
        checks.one_of("planets", planet, tuple(PLANETS))
    n = len(planets)
    if not n:
        raise ValueError("planets must name at least one client's planet, but is empty")
    participation = checks.real_number("participation", participation, above=0, at_most=1)
    seed = checks.seed("seed", seed)
    key = jax.random.fold_in(jax.random.key(seed), 1_000_000_000)  # no round's: a run has the same seed
    oracle = CartPoleOracle(
        physics=Physics(*(jnp.asarray(numbers) for numbers in zip(*(PLANETS[p] for p in planets), strict=True))),
        budgets=jnp.asarray(_budgets(budgets, n, seed)),
        participants=count_participants(participation, n),
        horizon=checks.whole_number("horizon", horizon, at_least=1),
        gradient_episodes=checks.whole_number("gradient_episodes", gradient_episodes, at_least=1),
        estimation_episodes=checks.whole_number("estimation_episodes", estimation_episodes, at_least=0),
        evaluation_episodes=checks.whole_number("evaluation_episodes", evaluation_episodes, at_least=1),
        local_steps=checks.whole_number("local_steps", local_steps, at_least=1),
        discount=checks.real_number("discount", discount, above=0, at_most=1),
        trace=checks.real_number("trace", trace, at_least=0, at_most=1),
        discounted_cost=bool(discounted_cost),
        trust_region=TrustRegion(
            kl_limit=checks.real_number("kl_limit", kl_limit, above=0),
            fisher_every=checks.whole_number("fisher_every", fisher_every, at_least=1),
        ),
        client_batch_size=1 if jax.default_backend() == "cpu" else n,
    )
    widths = [checks.whole_number("hidden", width, at_least=1) for width in hidden]
    return Federation(oracle, first_policy(key, widths), _names(planets))


def _budgets(wanted: Any, n: int, seed: int) -> np.ndarray:
    if isinstance(wanted, str):
        checks.one_of("budgets", wanted, ("even", "drawn"))
        if wanted == "even":
            return np.linspace(LEAST_BUDGET, MOST_BUDGET, n)
        return np.random.default_rng(seed).uniform(LEAST_BUDGET, MOST_BUDGET, n)
    if np.shape(wanted) != (n,):
        raise ValueError(f"budgets must be 'even', 'drawn' or {n} numbers, one a client, but is {wanted!r}")
    return np.array([checks.real_number("budgets", budget) for budget in wanted])


def _names(planets: Sequence[str]) -> tuple[str, ...]:
    seen: Counter[str] = Counter()
    names = []
    for planet in planets:
        seen[planet] += 1
        names.append(f"{planet} {seen[planet]}")
    return tuple(names)
