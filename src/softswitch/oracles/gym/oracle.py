"""Gymnasium environments as clients: they report return and cost of episodes, and improve a policy by TRPO."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gymnasium
import numpy as np

from softswitch.methods.messages import Decision, Reports
from softswitch.oracles.gym.actions import ActionDistribution
from softswitch.oracles.gym.episodes import CostFunction, Environment, Played, play, side_by_side
from softswitch.oracles.gym.networks import PolicyNetwork
from softswitch.oracles.gym.trpo import Taken, advantage_estimates, better_weights
from softswitch.oracles.host import HostDraws, HostOracle
from softswitch.support.tracing import function_digest

Weights = Mapping[str, np.ndarray]
SETTINGS_OF_A_RUN = (
    "participants",
    "horizon",
    "gradient_episodes",
    "estimation_episodes",
    "local_steps",
    "discount",
    "trace",
    "discounted_cost",
    "reward_scale",
    "kl_limit",
)
EVALUATION_SEED = 20_240
"""Seed of all evaluations, so that policies are compared on the same random numbers."""


@dataclass(eq=False, kw_only=True)
class GymOracle(HostOracle):
    """Clients with an environment and a cost budget each.

    f_i = −E[Σ γᵗ reward] and g_i = E[Σ γᵗ cost] − d_i. A client plays episodes, reports their means, and takes its
    first TRPO step on some of them; each further local step plays new episodes. u_i = w_k − w_{k,E}: with a step size
    of 1 the server moves to the weighted mean of the clients' policies.

    Attributes:
        environments: Environment of each client.
        budgets: Cost budgets d_i.
        network: Network of the policy.
        distribution: Distribution of its actions.
        participants: Number of clients m in a round.
        horizon: Maximum number of steps of an episode.
        gradient_episodes: Number of episodes for a local step.
        estimation_episodes: Number of additional episodes for estimates of f and g.
        evaluation_episodes: Number of episodes of each client in an evaluation.
        local_steps: Number of local steps E.
        discount: γ.
        trace: λ of the advantage estimates.
        discounted_cost: Whether the cost in the constraint is discounted.
        reward_scale: Factor of all rewards.
        kl_limit: Maximum mean KL divergence of a local step.
        costs: Cost function of each client; None for ``info["cost"]``.
    """

    noise_setting: ClassVar[str] = "estimation_episodes"

    environments: Sequence[Environment]
    budgets: np.ndarray
    network: PolicyNetwork
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
    costs: Sequence[CostFunction | None]
    _made: dict[tuple[int, int], gymnasium.vector.VectorEnv] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        weakref.finalize(self, _close_all, self._made)

    @property
    def client_count(self) -> int:
        """Number of clients n."""
        return len(self.environments)

    def report(self, params: Weights, draws: HostDraws) -> tuple[Reports, list[Played]]:
        """Play episodes and report f_i and g_i, with undiscounted return and cost as metrics."""
        weights = _numbers(params)
        many = self.gradient_episodes + self.estimation_episodes
        played = [self._play(client, many, weights, (draws.seed, int(client), 0)) for client in draws.clients]
        told: Any = np.asarray([self._measured(one, client) for one, client in zip(played, draws.clients, strict=True)])
        told = told.astype(np.float32)
        metrics: Any = {"return": told[:, 2], "cost": told[:, 3]}
        mask: Any = np.ones(len(told), bool)
        return Reports(told[:, 0], told[:, 1:2], None, mask, metrics), played

    def direction(
        self,
        params: Weights,
        draws: HostDraws,
        kept: list[Played],
        decision: Decision,
        switches: bool,
        step_size: float,
    ) -> dict[str, np.ndarray]:
        """Compute Σ_i r_i (w_k − w_{k,E}), where local steps minimise the method's mix of f_i and g_i."""
        loss: Any = decision.local_loss
        weights: Any = decision.weights
        begin = _numbers(params)
        total = {name: np.zeros_like(value) for name, value in begin.items()}
        for place, client in enumerate(draws.clients):
            share = float(weights[place])
            if share == 0:
                continue
            on_reward, on_cost = float(loss.of(place).objective), float(loss.constraint[place, 0])
            if loss.penalty and self._measured(kept[place], client)[1] > loss.tolerance:
                on_cost += float(loss.penalty)
            policy: Weights = begin
            episodes = kept[place].first(self.gradient_episodes)
            for step in range(self.local_steps):
                if step:
                    episodes = self._play(client, self.gradient_episodes, policy, (draws.seed, int(client), step))
                policy = self._improved(policy, episodes, on_reward, on_cost)
            for name, value in policy.items():
                total[name] += share * (begin[name] - value)
        return {name: value.astype(np.asarray(params[name]).dtype) for name, value in total.items()}

    def evaluate(self, params: Weights) -> tuple[Any, Any]:
        """Estimate f_i and g_i of every client over many episodes, with the same seed each time."""
        weights = _numbers(params)
        many, told = self.evaluation_episodes, []
        for client in range(self.client_count):
            played = self._play(client, many, weights, (EVALUATION_SEED, client), keep=False)
            told.append(self._measured(played, client))
        found = np.asarray(told, np.float32)
        return found[:, 0], found[:, 1:2]

    def cost(self, row_count: None) -> tuple[int, int]:
        """Return environment steps for reports and for local steps, every episode counted in full."""
        a_round = self.participants * self.horizon
        reported = a_round * (self.gradient_episodes + self.estimation_episodes)
        return reported, a_round * self.gradient_episodes * self.local_steps

    def digest(self) -> dict[str, str]:
        """Return the settings, and digests of the environments and cost functions."""
        settings = {name: str(getattr(self, name)) for name in SETTINGS_OF_A_RUN}
        return settings | {
            "clients": function_digest(*self.environments, self.budgets),
            "program": function_digest(*self.costs, self.network),
            "gymnasium": gymnasium.__version__,
        }

    def _play(
        self, client: Any, episodes: int, weights: Weights, seed: tuple[int, ...], *, keep: bool = True
    ) -> Played:
        at = (int(client), episodes)
        if at not in self._made:
            self._made[at] = side_by_side(self.environments[int(client)], episodes)
        luck = int(np.random.default_rng(seed).integers(2**62))
        cost = self.costs[int(client)]
        played = play(self._made[at], self.network, self.distribution, weights, self.horizon, luck, cost)
        if not keep:
            self._made.pop(at).close()
        return played._replace(rewards=self.reward_scale * played.rewards)

    def _improved(self, policy: Weights, episodes: Played, on_reward: float, on_cost: float) -> Weights:
        signal = on_reward * episodes.rewards - on_cost * episodes.costs
        better = advantage_estimates(episodes.observations, episodes.alive, signal, self.discount, self.trace)
        alive = episodes.alive > 0
        taken = Taken(episodes.observations[alive], episodes.actions[alive], better[alive])
        return better_weights(self.network, self.distribution, policy, taken, self.kl_limit)

    def _measured(self, played: Played, client: Any) -> tuple[float, float, float, float]:
        """Return f_i, g_i, and the undiscounted return and cost."""
        plain = [float(played.totals(part).mean()) for part in (played.rewards, played.costs)]
        discounted = [float(played.totals(part, self.discount).mean()) for part in (played.rewards, played.costs)]
        spent = discounted[1] if self.discounted_cost else plain[1]
        return -discounted[0], spent - float(self.budgets[int(client)]), plain[0] / self.reward_scale, plain[1]


def _close_all(made: dict[tuple[int, int], gymnasium.vector.VectorEnv]) -> None:
    for environments in made.values():
        environments.close()


def _numbers(params: Weights) -> dict[str, np.ndarray]:
    return {name: np.asarray(value, float) for name, value in params.items()}
