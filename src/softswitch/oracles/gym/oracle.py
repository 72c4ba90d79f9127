"""GymOracle: Gymnasium environments as clients, which report return and cost of episodes, and take TRPO steps."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from softswitch.methods.messages import Decision, Reports
from softswitch.oracles.base import Federation, HostDraws, HostOracle
from softswitch.oracles.gym.policy import ActionDistribution, Gaussian, NumpyNetwork, Weights, distribution_for
from softswitch.oracles.gym.trpo import Taken, advantage_estimates, trust_region_step
from softswitch.oracles.options import count_participants
from softswitch.support import checks
from softswitch.support.tracing import function_digest

Environment = str | Callable[[], gymnasium.Env] | Callable[[int], VectorEnv]
"""A Gymnasium id; a function that makes an environment; or one that makes a vector environment of a given size."""
CostFunction = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Function (observations, environment actions, next observations) -> costs, with one row for each episode."""
EVALUATION_SEED = 20_240  # random seed of all evaluations, so that policies are compared on the same random numbers


class Played(NamedTuple):
    """Played episodes. Arrays are 0 after the end of an episode."""

    observations: np.ndarray  # horizon × episodes × components
    actions: np.ndarray  # horizon × episodes, with a third axis for continuous actions
    rewards: np.ndarray  # horizon × episodes
    costs: np.ndarray  # horizon × episodes
    alive: np.ndarray  # horizon × episodes; 1 until the end of an episode

    def totals(self, per_step: np.ndarray, discount: float = 1.0) -> np.ndarray:
        """Return Σ_t γᵗ x_t for each episode, where x is ``per_step`` and γ the discount."""
        return np.asarray((discount ** np.arange(len(per_step)))[:, None] * per_step).sum(axis=0)


def make_vector_env(environment: Environment, count: int) -> VectorEnv:
    """Return a vector environment with ``count`` copies; raise ValueError if the function returns another one."""
    if isinstance(environment, str):
        return gymnasium.make_vec(environment, num_envs=count)
    required = [p for p in inspect.signature(environment).parameters.values() if p.default is p.empty]
    if not any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in required):
        return SyncVectorEnv([environment] * count)  # type: ignore[list-item]
    made: Any = environment(count)  # type: ignore[call-arg]
    if getattr(made, "metadata", {}).get("autoreset_mode") == AutoresetMode.SAME_STEP:
        raise ValueError("a vector environment must use AutoresetMode.NEXT_STEP or DISABLED, but uses SAME_STEP")
    if not isinstance(made, VectorEnv) or made.num_envs != count:
        raise ValueError(f"an environment's function of {count} must make a VectorEnv of that size, but makes {made!r}")
    return made


def play(
    environments: VectorEnv,
    network: NumpyNetwork,
    distribution: ActionDistribution,
    weights: Weights,
    horizon: int,
    seed: int,
    cost: CostFunction | None,
) -> Played:
    """Play one episode of at most ``horizon`` steps in each environment; ``cost=None`` uses ``info["cost"]``."""
    generator = np.random.default_rng(seed)
    seen, _ = environments.reset(seed=int(generator.integers(2**31)))
    alive = np.ones(environments.num_envs)
    steps: list[tuple[np.ndarray, ...]] = []
    for _ in range(horizon):
        observed = np.reshape(np.asarray(seen, np.float32), (len(alive), -1))
        actions = distribution.sample(network.outputs(weights, observed), generator)
        taken = distribution.for_environment(actions)
        seen, rewards, ended, truncated, info = environments.step(taken)
        after = np.reshape(np.asarray(seen), (len(alive), -1))
        costs = np.asarray(check_cost("environments", info) if cost is None else cost(observed, taken, after), float)
        if costs.shape != alive.shape:
            raise ValueError(f"cost must give one number for each of {len(alive)} episodes, but gives {costs.shape}")
        steps.append((observed, actions, alive * rewards, alive * costs, alive))
        alive = alive * ~(ended | truncated)
        if not alive.any():
            break
    parts = (np.stack(part) for part in zip(*steps, strict=True))
    return Played(*(np.pad(part, [(0, horizon - len(part)), *[(0, 0)] * (part.ndim - 1)]) for part in parts))


def check_cost(name: str, info: Mapping[str, Any]) -> Any:
    """Return ``info["cost"]`` of a step; raise ValueError if it is missing. ``name`` is for the error."""
    if "cost" not in info:
        raise ValueError(f"{name} must return info['cost'], or cost= must be given, but a step has {sorted(info)}")
    return info["cost"]


@dataclass(eq=False, kw_only=True)
class GymOracle(HostOracle):
    """Oracle of clients with an environment and a cost budget each; attributes as for ``make_gym_federation``.

    f_i = −E[Σ γᵗ reward] and g_i = E[Σ γᵗ cost] − d_i. A client plays episodes, reports their means, and takes its
    first TRPO step on some of them; each further local step plays new episodes. u_i = w_k − w_{k,E}: with a step size
    of 1 the server moves to the weighted mean of the clients' policies.
    """

    noise_setting: ClassVar[str] = "estimation_episodes"
    client_count = property(lambda self: len(self.environments))

    environments: Sequence[Environment]
    budgets: np.ndarray
    network: NumpyNetwork
    distribution: ActionDistribution
    participants: int
    horizon: int
    gradient_episodes: int
    estimation_episodes: int
    evaluation_episodes: int
    local_steps: int
    discount: float
    trace: float
    discounted_cost: bool
    reward_scale: float
    kl_limit: float
    cost_function: CostFunction | None
    _made: dict[tuple[int, int], VectorEnv] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        weakref.finalize(self, _close_all, self._made)

    def report(self, params: Weights, draws: HostDraws) -> tuple[Reports, list[Played]]:
        """Play episodes and return the reports, with undiscounted return and cost as metrics, and the episodes."""
        weights, episodes = _as_floats(params), self.gradient_episodes + self.estimation_episodes
        played = [self._play(client, episodes, weights, (draws.seed, int(client), 0)) for client in draws.clients]
        measured = [self._measure(one, client) for one, client in zip(played, draws.clients, strict=True)]
        values: Any = np.asarray(measured).astype(np.float32)
        metrics: Any = {"return": values[:, 2], "cost": values[:, 3]}
        mask: Any = np.ones(len(values), bool)
        return Reports(values[:, 0], values[:, 1:2], None, mask, metrics), played

    def direction(
        self, params: Weights, draws: HostDraws, kept: Any, decision: Decision, switches: bool, step_size: float
    ) -> dict[str, np.ndarray]:
        """Return Σ_i r_i (w_k − w_{k,E}) after E TRPO steps of each client on its local loss of f_i and g_i."""
        loss: Any = decision.local_loss
        begin = _as_floats(params)
        total = {name: np.zeros_like(value) for name, value in begin.items()}
        for place, client in enumerate(draws.clients):
            share = float(decision.weights[place])
            if share == 0:
                continue
            on_reward, on_cost = float(loss.of(place).objective), float(loss.constraint[place, 0])
            if loss.penalty and self._measure(kept[place], client)[1] > loss.tolerance:
                on_cost += float(loss.penalty)
            policy: Weights = begin
            episodes = Played(*(part[:, : self.gradient_episodes] for part in kept[place]))
            for step in range(self.local_steps):
                if step:
                    episodes = self._play(client, self.gradient_episodes, policy, (draws.seed, int(client), step))
                policy = self._improve(policy, episodes, on_reward, on_cost)
            for name, value in policy.items():
                total[name] += share * (begin[name] - value)
        return {name: value.astype(np.asarray(params[name]).dtype) for name, value in total.items()}

    def evaluate(self, params: Weights) -> tuple[Any, Any]:
        """Return estimates of f_i and g_i of every client from ``evaluation_episodes`` episodes with a fixed seed."""
        weights, measured = _as_floats(params), []
        for client in range(self.client_count):
            played = self._play(client, self.evaluation_episodes, weights, (EVALUATION_SEED, client))
            self._made.pop((client, self.evaluation_episodes)).close()
            measured.append(self._measure(played, client))
        values = np.asarray(measured, np.float32)
        return values[:, 0], values[:, 1:2]

    def cost(self, row_count: None) -> tuple[int, int]:
        """Return the environment steps of a round for reports and for local steps, all episodes in full length."""
        steps = self.participants * self.horizon
        reported = steps * (self.gradient_episodes + self.estimation_episodes)
        return reported, steps * self.gradient_episodes * self.local_steps

    def digest(self) -> dict[str, str]:
        """Return texts by name that identify the settings, environments and cost functions."""
        settings = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        del settings["evaluation_episodes"]
        return {name: str(value) for name, value in settings.items() if isinstance(value, int | float)} | {
            "clients": function_digest(*self.environments, self.budgets),
            "program": function_digest(self.cost_function, self.network),
            "gymnasium": gymnasium.__version__,
        }

    def _play(self, client: Any, episodes: int, weights: Weights, seed: tuple[int, ...]) -> Played:
        key = (int(client), episodes)
        if key not in self._made:
            self._made[key] = make_vector_env(self.environments[int(client)], episodes)
        number = int(np.random.default_rng(seed).integers(2**62))
        policy = (self.network, self.distribution, weights)
        played = play(self._made[key], *policy, self.horizon, number, self.cost_function)
        return played._replace(rewards=self.reward_scale * played.rewards)

    def _improve(self, policy: Weights, episodes: Played, on_reward: float, on_cost: float) -> Weights:
        signal = on_reward * episodes.rewards - on_cost * episodes.costs
        better = advantage_estimates(episodes.observations, episodes.alive, signal, self.discount, self.trace)
        alive = episodes.alive > 0
        taken = Taken(episodes.observations[alive], episodes.actions[alive], better[alive])
        return trust_region_step(self.network, self.distribution, policy, taken, self.kl_limit)

    def _measure(self, played: Played, client: Any) -> tuple[float, float, float, float]:
        """Return f_i, g_i, and the undiscounted return and cost, as means over episodes."""
        gain, cost = (float(played.totals(part).mean()) for part in (played.rewards, played.costs))
        discounted = [float(played.totals(part, self.discount).mean()) for part in (played.rewards, played.costs)]
        spent = discounted[1] if self.discounted_cost else cost
        return -discounted[0], spent - float(self.budgets[int(client)]), gain / self.reward_scale, cost


def _close_all(made: dict[tuple[int, int], VectorEnv]) -> None:
    for environments in made.values():
        environments.close()


def _as_floats(params: Weights) -> dict[str, np.ndarray]:
    return {name: np.asarray(value, float) for name, value in params.items()}


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
    """Return a federation of clients with an environment and a cost budget each, which share one policy.

    With a step size of 1, the server moves to the weighted mean of the clients' policies after their TRPO steps.

    Args:
        environments: Environment of each client by name: a Gymnasium id, a function that makes one environment, or a
            function of a number that makes a vector environment of this size.
        budgets: d_i, the mean cost that an episode may have; one number for all clients, or one by name.
        cost: ``(observations, actions, next observations) -> costs``, arrays with one row per episode, actions as the
            environment takes them. Default: ``info["cost"]``.
        network: The policy network. Default: two hidden layers of width 32.
        horizon: Maximum number of steps of an episode. Default: 200.
        gradient_episodes: Number of episodes for a local step. Default: 20.
        estimation_episodes: Number of additional episodes for estimates of return and cost. Default: 10.
        evaluation_episodes: Number of episodes of each client in an evaluation. Default: 50.
        local_steps: Number of TRPO steps E of a client in a round. Default: 1.
        participation: Fraction m/n of the clients that is drawn for each round, in (0, 1]. Default: 1.
        discount: γ of returns and advantages, in (0, 1]. Default: 0.99.
        trace: λ of the advantage estimates, from 0 (baseline only) to 1 (returns only). Default: 0.97.
        discounted_cost: Whether budgets are for the discounted cost instead of the plain sum over an episode. Default:
            False.
        reward_scale: Factor > 0 of all rewards, so that returns of different tasks have similar sizes. Default: 1.
        kl_limit: Maximum mean KL divergence of a local step, in nats. Default: 0.01.
        seed: Random seed of the initial weights. Default: 0.
    """
    if not isinstance(environments, Mapping) or not environments:
        raise ValueError(f"environments must be a mapping with at least one entry, but is {environments!r}")
    names = tuple(environments)
    checks.check_real("participation", participation, above=0, maximum=1)
    spaces = []
    for name, environment in environments.items():
        if not isinstance(environment, str) and not callable(environment):
            raise TypeError(f"environments[{name!r}] must be an id or a function, but is {environment!r}")
        one = make_vector_env(environment, 1)
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
