"""make_gym_federation(): Gymnasium environments, each with a cost and a budget, as the clients of one policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from softswitch.oracles.federation import Federation
from softswitch.oracles.gym.actions import Gaussian, distribution_for
from softswitch.oracles.gym.episodes import CostFunction, Environment, side_by_side
from softswitch.oracles.gym.networks import NumpyNetwork, PolicyNetwork
from softswitch.oracles.gym.oracle import GymOracle
from softswitch.oracles.options import count_participants
from softswitch.support import checks


def make_gym_federation(
    environments: Mapping[Any, Environment],
    budgets: float | Mapping[Any, float],
    *,
    cost: CostFunction | Mapping[Any, CostFunction] | None = None,
    network: PolicyNetwork | Any = None,
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
        environments: each client's, by its name: a Gymnasium id, a function that makes one environment, or a function
            of a number that makes so many side by side (a vector environment).
        budgets: d_i, what an episode may cost on average; one for all, or one for each name.
        cost: ``(observations, actions, next observations) -> costs``, arrays with one row an episode, actions as the
            environment takes them; one for all or one for each name. Default: ``info["cost"]``.
        network: the policy: a ``NumpyNetwork(hidden)``, a PyTorch module from observations to outputs (for actions of k
            numbers 2k: means, −1 and 1 being the ends of their range, then log deviations), or anything like these.
            By default two hidden layers of 32 in NumPy. A module is a pattern: the answer is in ``result.params``.
        horizon: the longest an episode lasts, in steps.
        gradient_episodes: Number of episodes for a local step.
        estimation_episodes: Number of additional episodes for estimates of return and cost.
        evaluation_episodes: Number of episodes of each client in an evaluation.
        local_steps: E, steps of TRPO a client takes in a round.
        participation: m/n, the share of clients drawn for each round.
        discount: γ, by which a later step counts less; that of returns and advantages.
        trace: λ of the advantage estimates, from 0 (trust the baseline) to 1 (trust the returns).
        discounted_cost: whether budgets are for discounted cost, or for the plain sum over an episode.
        reward_scale: rewards are multiplied by it, so that returns of different tasks are of one size.
        kl_limit: how far a local step may take the policy, as mean KL divergence.
        seed: of the policy's first weights.
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
            told = one.step(one.action_space.sample())[-1]
            if "cost" not in told:
                raise ValueError(
                    f"environments[{name!r}] must tell what a step costs as info['cost'], or cost= must say it; its "
                    f"first step told {sorted(told) or 'nothing'}"
                )
        one.close()
    if len({observed for observed, _ in spaces}) > 1 or len({repr(space) for _, space in spaces}) > 1:
        raise ValueError(f"environments must observe and do the same things to share a policy, but have {spaces}")
    (observed, space), *_ = spaces
    if not observed:
        raise ValueError("environments must observe an array of numbers, but do not")
    distribution = distribution_for(space)
    policy: Any = _network(network)
    oracle = GymOracle(
        environments=tuple(environments.values()),
        budgets=np.asarray([_number_for("budgets", budgets, name) for name in names]),
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
        costs=[_cost_for(cost, name) for name in names],
    )
    generator = np.random.default_rng(checks.check_seed("seed", seed))
    start = policy.first_weights(observed, distribution.outputs, isinstance(distribution, Gaussian), generator)
    return Federation(oracle, start, names)


def _network(given: Any) -> Any:
    if given is None:
        return NumpyNetwork()
    if hasattr(given, "slopes") and hasattr(given, "first_weights"):
        return given
    if hasattr(given, "named_parameters"):
        from softswitch.oracles.gym.torch_network import TorchNetwork

        return TorchNetwork(given)
    raise TypeError(f"network must be a NumpyNetwork, a torch.nn.Module or something like these, but is {given!r}")


def _number_for(argument: str, given: Any, name: Any) -> float:
    if isinstance(given, Mapping):
        if name not in given:
            raise ValueError(f"{argument} must have a number for every client, but has none for {name!r}")
        return checks.check_real(f"{argument}[{name!r}]", given[name])
    return checks.check_real(argument, given)


def _cost_for(given: Any, name: Any) -> CostFunction | None:
    if given is None:
        return None
    own: Any = given.get(name) if isinstance(given, Mapping) else given
    if own is None:
        raise ValueError(f"cost must have a function for every client, but has none for {name!r}")
    checks.check_callable("cost", own, "(observations, actions, next observations) -> costs")
    function: CostFunction = own
    return function


GRAVITIES = (4.0, 6.0, 8.0, 10.0)
FAST = 3.0
"""A pendulum that turns faster than so many radians a second costs 1 a step."""


def pendulums(
    *, gravities: Sequence[float] = GRAVITIES, budget: float = 30.0, seed: int = 0, **settings: Any
) -> Federation:
    """Gymnasium's Pendulum under several gravities: one policy is to swing all of them up and hold them there.

    The reward of a step is Gymnasium's, −(angle² + 0.1·speed² + 0.001·torque²), divided by 10. A step costs 1 where the
    pendulum turns faster than 3 radians a second: heavy ones need swings to come up at all.

    Args:
        gravities: each client's, in m/s².
        budget: how many fast steps of 200 an episode may have on average.
        seed: of the policy's first weights.
        settings: others of ``make_gym_federation``.
    """
    if len(set(gravities)) < len(gravities):
        raise ValueError(f"gravities must differ, since clients are named by them, but are {tuple(gravities)}")
    made = {
        f"gravity {gravity:g}": partial(
            gymnasium.make, "Pendulum-v1", g=checks.check_real("gravities", gravity, above=0)
        )
        for gravity in gravities
    }
    chosen = {"reward_scale": 0.1, "horizon": 200} | settings
    return make_gym_federation(made, budget, cost=_fast, seed=seed, **chosen)


def _fast(observations: np.ndarray, actions: np.ndarray, after: np.ndarray) -> np.ndarray:
    """1 where the speed, the third number observed, is beyond ``FAST``."""
    del observations, actions
    return np.abs(after[:, 2]) > FAST
