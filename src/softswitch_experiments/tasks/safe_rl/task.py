"""The safe reinforcement learning task of the paper: ten carts on three planets, one policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.engine.solve import solve
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.oracles.base import Federation
from softswitch.oracles.options import count_participants
from softswitch.support import checks
from softswitch_experiments.options import group_options
from softswitch_experiments.tasks.paper_settings import ANSWER, SOFTMAX_SWITCH, steps
from softswitch_experiments.tasks.safe_rl.oracle import CartPoleOracle
from softswitch_experiments.tasks.safe_rl.physics import PLANETS, Physics
from softswitch_experiments.tasks.safe_rl.policy import Policy, init_policy
from softswitch_experiments.tasks.safe_rl.trpo import TrustRegion

TEN_PLANETS = ("earth",) * 4 + ("mars",) * 3 + ("jupiter",) * 3
MIN_BUDGET, MAX_BUDGET = 25.0, 35.0


def cartpole(
    *,
    seed: int = 0,
    planets: Sequence[str] = TEN_PLANETS,
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
    """Return carts on several planets that share one policy, each with a budget for cost.

    Args:
        seed: Seed of the policy's initial weights and of drawn budgets.
        planets: Planet of each client: "earth", "mars" or "jupiter".
        budgets: d_i. ``"even"`` spaces them evenly from 25 to 35 in the order of the clients, ``"drawn"`` draws them
            from this interval. Otherwise one number per client.
        participation: m/n, the share of clients drawn for each round.
        horizon: T, the maximum length of an episode.
        gradient_episodes: Episodes per client and local step to learn from.
        estimation_episodes: Additional episodes to estimate f and g. They reduce the bias of the largest estimate.
        evaluation_episodes: Episodes per client to evaluate a policy.
        local_steps: E, the TRPO steps of a client per round.
        discount: γ.
        trace: λ of the advantage estimates.
        discounted_cost: Whether the constraint is on the discounted cost. Otherwise it is on the plain cost.
        kl_limit: Maximum mean KL divergence of a local step.
        fisher_every: Compute Fisher products from every n-th time step. 1 is the reference, 5 is much faster.
        hidden: Widths of the policy's hidden layers.
    """
    for name, value in (("planets", planets), ("hidden", hidden)):
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise TypeError(f"{name} must be a list, but is {value!r}")
    for planet in planets:
        checks.check_choice("planets", planet, tuple(PLANETS))
    n = len(planets)
    if not n:
        raise ValueError("planets must name at least one client's planet, but is empty")
    participation = checks.check_real("participation", participation, above=0, maximum=1)
    seed = checks.check_seed("seed", seed)
    key = jax.random.fold_in(jax.random.key(seed), 1_000_000_000)  # no round uses this number
    oracle = CartPoleOracle(
        physics=Physics(*(jnp.asarray(numbers) for numbers in zip(*(PLANETS[p] for p in planets), strict=True))),
        budgets=jnp.asarray(_make_budgets(budgets, n, seed)),
        participants=count_participants(participation, n),
        horizon=checks.check_integer("horizon", horizon, minimum=1),
        gradient_episodes=checks.check_integer("gradient_episodes", gradient_episodes, minimum=1),
        estimation_episodes=checks.check_integer("estimation_episodes", estimation_episodes, minimum=0),
        evaluation_episodes=checks.check_integer("evaluation_episodes", evaluation_episodes, minimum=1),
        local_steps=checks.check_integer("local_steps", local_steps, minimum=1),
        discount=checks.check_real("discount", discount, above=0, maximum=1),
        trace=checks.check_real("trace", trace, minimum=0, maximum=1),
        discounted_cost=bool(discounted_cost),
        trust_region=TrustRegion(
            kl_limit=checks.check_real("kl_limit", kl_limit, above=0),
            fisher_every=checks.check_integer("fisher_every", fisher_every, minimum=1),
        ),
        client_batch_size=1 if jax.default_backend() == "cpu" else n,
    )
    widths = [checks.check_integer("hidden", width, minimum=1) for width in hidden]
    return Federation(oracle, init_policy(key, widths), _make_names(planets))


def _make_budgets(budgets: Any, n: int, seed: int) -> np.ndarray:
    if isinstance(budgets, str):
        checks.check_choice("budgets", budgets, ("even", "drawn"))
        if budgets == "even":
            return np.linspace(MIN_BUDGET, MAX_BUDGET, n)
        return np.random.default_rng(seed).uniform(MIN_BUDGET, MAX_BUDGET, n)
    if np.shape(budgets) != (n,):
        raise ValueError(f"budgets must be 'even', 'drawn' or {n} numbers, one per client, but is {budgets!r}")
    return np.array([checks.check_real("budgets", budget) for budget in budgets])


def _make_names(planets: Sequence[str]) -> tuple[str, ...]:
    counts: Counter[str] = Counter()
    names = []
    for planet in planets:
        counts[planet] += 1
        names.append(f"{planet} {counts[planet]}")
    return tuple(names)


def train_policy(rounds: int, seed: int, **settings: Any) -> Policy:
    """Train a policy for all carts with the settings of the paper.

    Returns the iterate with the best worst return among those that passed the switch, or else the answer. The switch
    uses the softmax mean of noisy reports, and the worst cart may be above its budget.
    """
    method = SoftmaxSGM(alpha=0.05, tolerance=0.0, threshold=-5.0, **steps(1.0), **SOFTMAX_SWITCH)
    carts = cartpole(seed=seed, **{"fisher_every": 5} | settings)
    result = solve(carts, None, method, rounds=rounds, seed=seed, **group_options(eval_every=0, **ANSWER))
    return result.params if result.best is None else result.best
