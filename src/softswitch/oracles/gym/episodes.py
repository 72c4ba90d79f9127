"""Episodes of a Gymnasium environment, many side by side, and what they cost."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from softswitch.oracles.gym.actions import ActionDistribution
from softswitch.oracles.gym.networks import PolicyNetwork

Environment = str | Callable[[], gymnasium.Env] | Callable[[int], gymnasium.vector.VectorEnv]
"""An environment's id; a function that makes one; or a function of a number that makes so many side by side."""
CostFunction = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(observations, actions as the environment takes them, next observations) -> costs, one row an episode."""


class Played(NamedTuple):
    """Episodes, time first; zeros after an episode's end.

    Attributes:
        observations: horizon × episodes × numbers.
        actions: as they were drawn, horizon × episodes (× numbers).
        rewards: horizon × episodes.
        costs: likewise.
        alive: whether the step was played.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    costs: np.ndarray
    alive: np.ndarray

    def first(self, episodes: int) -> Played:
        """So many of the episodes."""
        return Played(*(part[:, :episodes] for part in self))

    def totals(self, per_step: np.ndarray, discount: float = 1.0) -> np.ndarray:
        """Σ γᵗ x_t of each episode."""
        return np.asarray((discount ** np.arange(len(per_step)))[:, None] * per_step).sum(axis=0)


def side_by_side(environment: Environment, many: int) -> gymnasium.vector.VectorEnv:
    """So many copies of an environment."""
    if isinstance(environment, str):
        return gymnasium.make_vec(environment, num_envs=many)
    if not _takes_a_number(environment):
        return gymnasium.vector.SyncVectorEnv([environment] * many)  # type: ignore[list-item]
    made: Any = environment(many)  # type: ignore[call-arg]
    if getattr(made, "metadata", {}).get("autoreset_mode") == gymnasium.vector.AutoresetMode.SAME_STEP:
        raise ValueError(
            "a vector environment must not begin anew in the step that ends an episode (AutoresetMode.SAME_STEP): that "
            "step's observation and cost would be lost; NEXT_STEP and DISABLED are fine"
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
    """One episode in each of the environments, of at most ``horizon`` steps, from the seed alone.

    Args:
        environments: side by side; where one begins anew after its episode, that is not counted.
        network: of the policy.
        distribution: of its actions.
        weights: the policy.
        horizon: the longest an episode lasts.
        seed: of the environments' chance, and of the actions.
        cost: what a step costs; None: what the environment says as ``info["cost"]``.
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
    """Steps that nobody played are zeros."""
    return np.concatenate([part, np.zeros((horizon - len(part), *part.shape[1:]), part.dtype)])
