"""Episodes of vectorised Gymnasium environments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from softswitch.oracles.gym.actions import ActionDistribution
from softswitch.oracles.gym.networks import PolicyNetwork

Environment = str | Callable[[], gymnasium.Env] | Callable[[int], gymnasium.vector.VectorEnv]
"""A Gymnasium id; a function that makes an environment; or one that makes a vector environment of a given size."""
CostFunction = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(observations, environment actions, next observations) -> costs, one row for each episode."""


class Played(NamedTuple):
    """Episodes with time as the first axis, and zeros after the end of an episode.

    Attributes:
        observations: horizon × episodes × components.
        actions: Sampled actions, horizon × episodes (× components).
        rewards: horizon × episodes.
        costs: horizon × episodes.
        alive: 1 before the end of an episode, else 0.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    costs: np.ndarray
    alive: np.ndarray

    def first(self, episodes: int) -> Played:
        """Return the first episodes."""
        return Played(*(part[:, :episodes] for part in self))

    def totals(self, per_step: np.ndarray, discount: float = 1.0) -> np.ndarray:
        """Return Σ γᵗ x_t of each episode."""
        return np.asarray((discount ** np.arange(len(per_step)))[:, None] * per_step).sum(axis=0)


def side_by_side(environment: Environment, many: int) -> gymnasium.vector.VectorEnv:
    """Return a vector environment with this many copies."""
    if isinstance(environment, str):
        return gymnasium.make_vec(environment, num_envs=many)
    if not _takes_a_number(environment):
        return gymnasium.vector.SyncVectorEnv([environment] * many)  # type: ignore[list-item]
    made: Any = environment(many)  # type: ignore[call-arg]
    if getattr(made, "metadata", {}).get("autoreset_mode") == gymnasium.vector.AutoresetMode.SAME_STEP:
        raise ValueError(
            "a vector environment must not use AutoresetMode.SAME_STEP, which discards the last observation and cost "
            "of an episode; use NEXT_STEP or DISABLED"
        )
    if not isinstance(made, gymnasium.vector.VectorEnv) or made.num_envs != many:
        raise ValueError(f"an environment's function of {many} must make so many side by side, but makes {made!r}")
    return made


def _takes_a_number(function: Callable[..., Any]) -> bool:
    wanted = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
    return any(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in wanted)


def play(
    environments: gymnasium.vector.VectorEnv,
    network: PolicyNetwork,
    distribution: ActionDistribution,
    weights: Mapping[str, np.ndarray],
    horizon: int,
    seed: int,
    cost: CostFunction | None,
) -> Played:
    """Play one episode of at most ``horizon`` steps in each environment.

    Args:
        environments: Vector environment; steps after the end of an episode are ignored.
        network: Network of the policy.
        distribution: Distribution of its actions.
        weights: Weights of the policy.
        horizon: Maximum number of steps.
        seed: Seed of the environments and of the actions.
        cost: Cost of a step. Default: ``info["cost"]``.
    """
    generator = np.random.default_rng(seed)
    seen, _ = environments.reset(seed=int(generator.integers(2**31)))
    alive = np.ones(environments.num_envs)
    steps: list[tuple[np.ndarray, ...]] = []
    for _ in range(horizon):
        observed = np.reshape(np.asarray(seen, np.float32), (len(alive), -1))
        actions = distribution.sample(network.outputs(weights, observed), generator)
        taken = distribution.for_environment(actions)
        seen, rewards, ended, truncated, info = environments.step(taken)
        if cost is None:
            costs = _told_costs(info, len(alive))
        else:
            costs = _one_each(cost(observed, taken, np.reshape(np.asarray(seen), (len(alive), -1))), len(alive))
        steps.append((observed, actions, alive * rewards, alive * costs, alive))
        alive = alive * ~(ended | truncated)
        if not alive.any():
            break
    parts = (np.stack(part) for part in zip(*steps, strict=True))
    return Played(*(_up_to(horizon, part) for part in parts))


def _one_each(costs: Any, many: int) -> np.ndarray:
    found = np.asarray(costs, float)
    if found.shape != (many,):
        raise ValueError(f"cost must give one number for each of {many} episodes, but gives shape {found.shape}")
    return found


def _told_costs(info: Mapping[str, Any], many: int) -> np.ndarray:
    if "cost" not in info:
        raise ValueError(
            "environments must tell what a step costs as info['cost'], or cost= must say it, but an environment's step "
            f"told {sorted(info) or 'nothing'}"
        )
    return _one_each(info["cost"], many)


def _up_to(horizon: int, part: np.ndarray) -> np.ndarray:
    """Pad with zeros up to the horizon."""
    return np.concatenate([part, np.zeros((horizon - len(part), *part.shape[1:]), part.dtype)])
