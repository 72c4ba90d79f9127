"""Carts as clients: they report return and cost of new episodes, and improve the policy by TRPO steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from softswitch.data.sampling import client_bit_count, sample_clients
from softswitch.methods.messages import Decision, Reports
from softswitch.oracles.base import STATIC, Oracle
from softswitch.oracles.evaluation import map_slices
from softswitch_experiments.tasks.safe_rl.advantages import advantages
from softswitch_experiments.tasks.safe_rl.episodes import Episodes, Randomness, draw_randomness, play, totals
from softswitch_experiments.tasks.safe_rl.physics import Physics
from softswitch_experiments.tasks.safe_rl.policy import Policy
from softswitch_experiments.tasks.safe_rl.trpo import TrustRegion, improve

EVALUATION_KEY = 0
"""All evaluations use the same random numbers, which makes policies comparable."""


class EpisodeDraws(NamedTuple):
    """The random numbers of one round."""

    clients: Int[Array, " m"]  # I_k, the participants
    report: Randomness  # randomness of each participant's episodes for its report and first local step
    later: Randomness  # randomness of the episodes of each further local step


class KeptEpisodes(NamedTuple):
    """Episodes that participants keep for their first local step, client first, and their g_i."""

    episodes: Episodes
    constraint: Float[Array, "m 1"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CartPoleOracle(Oracle):
    """Clients that each have a cart with its own physics and a budget for cost.

    The objective f_i = −E[Σ γᵗ reward] is largest for the worst client. The constraint is g_i = E[Σ γᵗ cost] − d_i. A
    client plays ``gradient_episodes + estimation_episodes`` episodes, reports their means, and learns from the first
    ``gradient_episodes``. Each further local step plays ``gradient_episodes`` new ones. The update is
    u_i = w_k − w_{k,E}: with a step size of 1 the server moves to the weighted mean of the clients' policies. The KL
    limit replaces the local step size.

    The attributes are the arguments of ``cartpole``; ``client_batch_size`` clients are updated in parallel.
    """

    noise_setting: ClassVar[str] = "estimation_episodes"

    physics: Physics
    budgets: Float[Array, " n"]
    participants: int = field(metadata=STATIC)
    horizon: int = field(metadata=STATIC)
    gradient_episodes: int = field(metadata=STATIC)
    estimation_episodes: int = field(metadata=STATIC)
    evaluation_episodes: int = field(metadata=STATIC)
    local_steps: int = field(metadata=STATIC)
    discount: float = field(metadata=STATIC)
    trace: float = field(metadata=STATIC)
    discounted_cost: bool = field(metadata=STATIC)
    trust_region: TrustRegion = field(metadata=STATIC)
    client_batch_size: int = field(metadata=STATIC)

    @property
    def client_count(self) -> int:
        """n."""
        return int(self.budgets.shape[0])

    def draw(self, key: PRNGKeyArray) -> EpisodeDraws:
        """Draw I_k and the random numbers of its members."""
        n, m = self.client_count, self.participants
        who = jax.random.split(key, 3)[0]
        words = jax.random.bits(who, (client_bit_count(n, m),), jnp.uint32)
        return self.draw_for(sample_clients(words, n, m), self.draw_randomness(key))

    def draw_randomness(self, key: PRNGKeyArray) -> tuple[Randomness, Randomness]:
        """Draw the random numbers of the participants, whichever clients they are."""
        m, steps = self.participants, self.local_steps
        _, first, later = jax.random.split(key, 3)
        return (
            draw_randomness(first, m, self.horizon, self.gradient_episodes + self.estimation_episodes),
            jax.vmap(lambda key: draw_randomness(key, m, self.horizon, self.gradient_episodes))(
                jax.random.split(later, steps - 1)
            ),
        )

    def draw_for(self, clients: Int[Array, " m"], chance: tuple[Randomness, Randomness]) -> EpisodeDraws:
        """Return the draws of the given participants."""
        return EpisodeDraws(clients, *chance)

    def report(self, params: Policy, draws: EpisodeDraws) -> tuple[Reports, KeptEpisodes]:
        """Play episodes, and report f_i and g_i, with undiscounted return and cost as metrics."""
        episodes = play(params, draws.report, self._physics(draws.clients))
        objective, constraint, metrics = self._measure(episodes, self.budgets[draws.clients])
        mask = jnp.ones(objective.shape, bool)
        first = jax.tree.map(lambda leaf: leaf[:, :, : self.gradient_episodes], episodes)
        gradient_episodes = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), first)
        return Reports(objective, constraint, None, mask, metrics), KeptEpisodes(gradient_episodes, constraint)

    def direction(
        self,
        params: Policy,
        draws: EpisodeDraws,
        kept: KeptEpisodes,
        decision: Decision,
        switches: bool,
        step_size: Any,
    ) -> Policy:
        """Return Σ_i r_i (w_k − w_{k,E}); each local step minimises the method's combination of f_i and g_i.

        The switch only selects the signal of a step, reward or cost, and both use the same computation.
        """
        del switches, step_size
        loss = decision.local_loss
        beyond = jnp.where(kept.constraint > loss.tolerance, loss.penalty, 0.0)
        on_cost = (loss.constraint + beyond)[:, 0]
        on_reward = loss.own[0]

        def local_step(policy: Policy, episodes: Episodes, share: tuple[Any, Array]) -> Policy:
            reward, cost = share
            signal = (loss.objective if reward is None else reward) * episodes.rewards - cost * episodes.costs
            better = advantages(episodes, signal, self.discount, self.trace)
            return improve(policy, episodes, better, self.trust_region)

        def one(client: tuple[Episodes, Randomness, Physics, tuple[Any, Array]]) -> Policy:
            episodes, later, physics, share = client
            first = local_step(params, episodes, share)

            def further(policy: Policy, randomness: Randomness) -> tuple[Policy, None]:
                return local_step(policy, play(policy, randomness, physics), share), None

            last = lax.scan(further, first, later)[0] if self.local_steps > 1 else first
            return jax.tree.map(jnp.subtract, params, last)

        later = Randomness(jnp.moveaxis(draws.later.starts, 1, 0), jnp.moveaxis(draws.later.uniforms, 2, 0))
        everyone = (kept.episodes, later, self._physics(draws.clients), (on_reward, on_cost))
        directions = map_slices(one, everyone, self.client_batch_size)
        return jax.tree.map(lambda u: jnp.tensordot(decision.weights, u, axes=1), directions)

    def cost(self, row_count: None) -> tuple[int, int]:
        """Return the environment steps of reports and of local steps. Episodes that end early count in full."""
        a_round = self.participants * self.horizon
        reported = a_round * (self.gradient_episodes + self.estimation_episodes)
        return reported, a_round * self.gradient_episodes * self.local_steps

    def evaluate(self, params: Policy) -> tuple[Float[Array, " n"], Float[Array, "n 1"]]:
        """Return f_i and g_i of every client over many episodes, with the same random numbers each time."""
        randomness = draw_randomness(
            jax.random.key(EVALUATION_KEY), self.client_count, self.horizon, self.evaluation_episodes
        )
        return self._measure(play(params, randomness, self.physics), self.budgets)[:2]

    def _physics(self, clients: Int[Array, " m"]) -> Physics:
        return jax.tree.map(lambda numbers: numbers[clients], self.physics)

    def _measure(
        self, episodes: Episodes, budgets: Float[Array, " m"]
    ) -> tuple[Float[Array, " m"], Float[Array, "m 1"], dict[str, Float[Array, " m"]]]:
        rewards, costs = episodes.rewards, episodes.costs
        plain = {"return": totals(rewards).mean(axis=1), "cost": totals(costs).mean(axis=1)}
        spent = totals(costs, self.discount).mean(axis=1) if self.discounted_cost else plain["cost"]
        return -totals(rewards, self.discount).mean(axis=1), (spent - budgets)[:, None], plain
