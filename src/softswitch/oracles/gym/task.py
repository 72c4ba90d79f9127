"""make_gym_federation(): Gymnasium environments, each with a cost and a budget, as the clients of one policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from softswitch.oracles.base import Federation
from softswitch.oracles.gym.oracle import CostFunction, Environment, GymOracle, check_cost, side_by_side
from softswitch.oracles.gym.policy import Gaussian, NumpyNetwork, distribution_for
from softswitch.oracles.options import count_participants
from softswitch.support import checks


def make_gym_federation(
    environments: Mapping[Any, Environment],
    budgets: float | Mapping[Any, float],
    *,
    cost: CostFunction | None = None,
    network: NumpyNetwork | None = None,
    horizon: int = 200,
    gradient_episodes: int = 20,
    estimation_episodes: int = 10,
    evaluation_episodes: int = 50,
    local_steps: int = 1,
    participation: float = 1.0,
    discount: float = 0.99,
    trace: float = 0.97,
    discounted_cost: bool = False,
    reward_scale: float = 1.0,
    kl_limit: float = 0.01,
    seed: int = 0,
) -> Federation:
    """Return clients with an environment and a cost budget each, which share one policy.

    With a step size of 1, the server moves to the weighted mean of the clients' policies after their TRPO steps.

    Args:
        environments: Environment of each client by name: a Gymnasium id, a function that makes one environment, or a
            function of a number that makes a vector environment of this size.
        budgets: d_i, the mean cost that an episode may have; one number, or one by name.
        cost: ``(observations, actions, next observations) -> costs``, arrays with one row an episode, actions as the
            environment takes them. Default: ``info["cost"]``.
        network: The policy network. Default: two hidden layers of 32.
        horizon: Maximum number of steps of an episode.
        gradient_episodes: Number of episodes for a local step.
        estimation_episodes: Number of additional episodes for estimates of return and cost.
        evaluation_episodes: Number of episodes of each client in an evaluation.
        local_steps: Number of TRPO steps E of a client in a round.
        participation: Fraction m/n of the clients that is drawn for each round.
        discount: γ of returns and advantages.
        trace: λ of the advantage estimates, from 0 (baseline only) to 1 (returns only).
        discounted_cost: Whether budgets are for the discounted cost instead of the plain sum over an episode.
        reward_scale: Factor of all rewards, so that returns of different tasks have similar sizes.
        kl_limit: Maximum mean KL divergence of a local step.
        seed: Seed of the initial weights.
    """
    if not isinstance(environments, Mapping) or not environments:
        raise ValueError(f"environments must be a mapping with at least one entry, but is {environments!r}")
    names = tuple(environments)
    checks.check_real("participation", participation, above=0, maximum=1)
    spaces = []
    for name, environment in environments.items():
        if not isinstance(environment, str) and not callable(environment):
            raise TypeError(f"environments[{name!r}] must be an id or a function, but is {environment!r}")
        one = side_by_side(environment, 1)
        spaces.append((int(np.prod(one.single_observation_space.shape or (0,))), one.single_action_space))
        if cost is None:
            one.reset(seed=0)
            check_cost(f"environments[{name!r}]", one.step(one.action_space.sample())[-1])
        one.close()
    (observed, space), *_ = spaces
    if len(set(map(repr, spaces))) > 1:
        raise ValueError(f"environments must have the same spaces to share a policy, but have {spaces}")
    if not observed:
        raise ValueError("environments must observe an array of numbers, but do not")
    distribution, policy = distribution_for(space), NumpyNetwork() if network is None else network
    checks.check_instance("network", policy, NumpyNetwork)
    if cost is not None:
        checks.check_callable("cost", cost, "(observations, actions, next observations) -> costs")
    if isinstance(budgets, Mapping) and set(budgets) != set(names):
        raise ValueError(f"budgets must have an entry for every client, {names!r}, but has {tuple(budgets)!r}")
    limits = [budgets[name] if isinstance(budgets, Mapping) else budgets for name in names]
    oracle = GymOracle(
        environments=tuple(environments.values()),
        budgets=np.asarray([checks.check_real("budgets", limit) for limit in limits]),
        network=policy,
        distribution=distribution,
        participants=count_participants(participation, len(names)),
        horizon=checks.check_integer("horizon", horizon, minimum=1),
        gradient_episodes=checks.check_integer("gradient_episodes", gradient_episodes, minimum=1),
        estimation_episodes=checks.check_integer("estimation_episodes", estimation_episodes, minimum=0),
        evaluation_episodes=checks.check_integer("evaluation_episodes", evaluation_episodes, minimum=1),
        local_steps=checks.check_integer("local_steps", local_steps, minimum=1),
        discount=checks.check_real("discount", discount, above=0, maximum=1),
        trace=checks.check_real("trace", trace, minimum=0, maximum=1),
        discounted_cost=bool(discounted_cost),
        reward_scale=checks.check_real("reward_scale", reward_scale, above=0),
        kl_limit=checks.check_real("kl_limit", kl_limit, above=0),
        cost_function=cost,
    )
    generator = np.random.default_rng(checks.check_seed("seed", seed))
    start = policy.first_weights(observed, distribution.outputs, isinstance(distribution, Gaussian), generator)
    return Federation(oracle, start, names)
