"""Gymnasium environments as clients: derivatives by differences, a task with a known solution, and errors."""

import gc
from functools import partial

import gymnasium
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from softswitch.oracles.gym import Categorical, Gaussian, NumpyNetwork, make_gym_federation
from softswitch.oracles.gym.oracle import make_vector_env, play
from softswitch.oracles.gym.trpo import Taken, advantage_estimates, discounted_sums, trust_region_step
from softswitch_experiments.tasks.pendulums import pendulums

SMALL = NumpyNetwork((5, 4))


class Target(gymnasium.Env):
    """An environment of two steps. An action's reward is largest at ``best``, and its cost is its value."""

    def __init__(self, best=1.0, steps=2, discrete=False):
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        self.action_space = gymnasium.spaces.Discrete(3) if discrete else gymnasium.spaces.Box(-2, 2, (1,))
        self._best, self._steps, self._discrete = best, steps, discrete

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._done = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self._done += 1
        value = float(action) if self._discrete else float(action[0])
        reward = -((value - self._best) ** 2)
        observation = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return observation, reward, self._done >= self._steps, False, {"cost": max(0.0, value)}


def test_network_derivatives():
    generator = np.random.default_rng(0)
    weights = SMALL.first_weights(3, 4, True, generator)
    weights = {name: generator.normal(size=w.shape) for name, w in weights.items()}
    observations = generator.normal(size=(7, 3))
    change = {name: generator.normal(size=w.shape) for name, w in weights.items()}
    outputs, slopes = SMALL.slopes(weights, observations)
    assert outputs.shape == (7, 4)

    def loss_at(t):
        return SMALL.outputs({name: w + t * change[name] for name, w in weights.items()}, observations)

    np.testing.assert_allclose(slopes.times(change), (loss_at(1e-6) - loss_at(-1e-6)) / 2e-6, atol=1e-7)
    on_outputs = generator.normal(size=outputs.shape)
    transposed = slopes.transposed(on_outputs)
    assert set(transposed) == set(weights)
    inner = sum((transposed[name] * change[name]).sum() for name in weights)
    np.testing.assert_allclose(inner, (on_outputs * slopes.times(change)).sum(), rtol=1e-10)


@pytest.mark.parametrize("kind", [Categorical(3), Gaussian(np.array([-1.0, 0.0]), np.array([1.0, 4.0]))])
def test_distribution_derivatives_and_divergences(kind):
    generator = np.random.default_rng(2)
    outputs = generator.normal(size=(1, kind.outputs))
    repeated_outputs = np.repeat(outputs, 200_000, axis=0)
    actions = kind.sample(repeated_outputs, generator)
    score = kind.score(repeated_outputs, actions)

    def is_mean(samples, expected):
        assert (np.abs(samples.mean(axis=0) - expected) <= 5 * samples.std(axis=0) / np.sqrt(len(samples))).all()

    is_mean(score, 0.0)
    change = generator.normal(size=(1, kind.outputs))
    fisher = kind.fisher(outputs, change)[0]  # = E[score scoreᵀ] v
    is_mean(score * (score @ change[0])[:, None], fisher)
    first_actions = actions[:1]
    for j in range(kind.outputs):
        step = np.zeros_like(outputs)
        step[0, j] = 1e-6
        up, down = (kind.log_density(outputs + s * step, first_actions)[0] for s in (1, -1))
        assert kind.score(outputs, first_actions)[0, j] == pytest.approx((up - down) / 2e-6, abs=1e-6)
    shifted_outputs = outputs + 0.1 * change
    log_ratios = kind.log_density(repeated_outputs, actions) - kind.log_density(
        np.repeat(shifted_outputs, len(repeated_outputs), axis=0), actions
    )
    is_mean(log_ratios[:, None], kind.divergence(outputs, shifted_outputs))
    assert kind.divergence(outputs, outputs)[0] == pytest.approx(0, abs=1e-12)


def test_actions_are_converted_for_environment():
    kind = Gaussian(np.array([0.0]), np.array([4.0]))
    np.testing.assert_allclose(kind.for_environment(np.array([[0.0], [0.5], [9.0]])), [[2.0], [3.0], [4.0]])
    assert Categorical(3, first=1).for_environment(np.array([0, 2])).tolist() == [1, 3]


def test_trust_region_step_improves_within_divergence():
    generator = np.random.default_rng(3)
    weights = SMALL.first_weights(2, 2, True, generator)
    kind = Gaussian(np.array([-1.0]), np.array([1.0]))
    observations = generator.normal(size=(500, 2))
    old_outputs = SMALL.outputs(weights, observations)
    actions = kind.sample(old_outputs, generator)
    samples = Taken(observations, actions, -((actions[:, 0] - 1) ** 2))
    new_weights = trust_region_step(SMALL, kind, weights, samples, 0.01)
    new_outputs = SMALL.outputs(new_weights, observations)
    assert 0.005 < kind.divergence(old_outputs, new_outputs).mean() <= 0.01
    assert new_outputs[:, 0].mean() > old_outputs[:, 0].mean() + 0.05
    unchanged = trust_region_step(SMALL, kind, weights, samples._replace(advantages=np.zeros(500)), 0.01)
    assert all(np.array_equal(unchanged[name], weights[name]) for name in weights)


def test_returns_and_advantages():
    np.testing.assert_allclose(discounted_sums(np.array([[1.0], [2.0], [4.0]]), 0.5)[:, 0], [3.0, 4.0, 4.0])
    generator = np.random.default_rng(4)
    observations = np.repeat(generator.normal(size=(1, 400, 1)), 3, axis=0)
    mask = np.ones((3, 400))
    mask[2, ::2] = 0
    signal = mask * observations[..., 0]
    advantages = advantage_estimates(observations, mask, signal, 1.0, 1.0)
    assert np.all(advantages[2, ::2] == 0)
    # With λ = 1 an advantage is the return minus the baseline; returns are linear in observations and time.
    returns = discounted_sums(signal, 1.0)
    assert np.abs(advantages[0, 1::2]).mean() < 0.6 * np.abs(returns[0, 1::2]).mean()


def test_episode_lengths():
    environments = make_vector_env(partial(Target, steps=2), 4)
    weights = SMALL.first_weights(2, 2, True, np.random.default_rng(0))
    kind = Gaussian(np.array([-2.0]), np.array([2.0]))
    episodes = play(environments, SMALL, kind, weights, 5, 7, None)
    assert episodes.alive.sum(axis=0).tolist() == [2.0] * 4
    assert episodes.observations.shape == (5, 4, 2)
    assert not episodes.rewards[2:].any()
    actions_taken = kind.for_environment(episodes.actions[0])[:, 0]
    np.testing.assert_allclose(episodes.rewards[0], -((actions_taken - 1) ** 2), rtol=1e-5)
    np.testing.assert_allclose(episodes.costs[0], np.maximum(0, actions_taken), rtol=1e-5)
    repeated = play(environments, SMALL, kind, weights, 5, 7, None)
    np.testing.assert_array_equal(repeated.rewards, episodes.rewards)
    assert np.abs(play(environments, SMALL, kind, weights, 5, 8, None).rewards - episodes.rewards).max() > 0
    squared = play(environments, SMALL, kind, weights, 1, 7, lambda observations, actions, tail: actions[:, 0] ** 2)
    np.testing.assert_allclose(
        squared.costs[0], actions_taken**2, rtol=1e-5
    )  # of the actions that the environment applied
    with pytest.raises(ValueError, match=r"one number for each of 4 episodes, but gives \(4, 1\)"):
        play(environments, SMALL, kind, weights, 1, 7, lambda observations, actions, tail: actions)
    np.testing.assert_allclose(episodes.totals(episodes.rewards, 0.5), episodes.rewards[0] + 0.5 * episodes.rewards[1])
    vector = make_vector_env(lambda episode_count: gymnasium.make_vec("CartPole-v1", num_envs=episode_count), 3)
    assert vector.num_envs == 3
    with pytest.raises(ValueError, match="function of 3 must make"):
        make_vector_env(lambda episode_count: Target(), 3)
    at_once = gymnasium.vector.AutoresetMode.SAME_STEP
    with pytest.raises(ValueError, match="SAME_STEP"):
        make_vector_env(
            lambda episode_count: gymnasium.vector.SyncVectorEnv([Target] * episode_count, autoreset_mode=at_once), 3
        )
    with pytest.raises(ValueError, match=r"info\['cost'\]"):
        play(vector, SMALL, Categorical(2), SMALL.first_weights(4, 2, False, np.random.default_rng(0)), 2, 0, None)


def test_clients_with_known_solution():
    """Rewards are largest at the client's target, and costs equal actions. A budget of 1 for two steps allows 0.5."""
    clients = make_gym_federation(
        {"near": partial(Target, 0.8), "far": partial(Target, 1.2)},
        1.0,
        network=NumpyNetwork((8,)),
        horizon=2,
        gradient_episodes=40,
        estimation_episodes=40,
        kl_limit=0.05,
        discount=1.0,
    )
    method = ss.SoftmaxSGM(alpha=5.0, step_size=1.0, tolerance=0.0)
    result = flat.solve_federation(clients, method, rounds=40, record_clients=True, eval_every=0, answer="last")
    per_client = result.history.per_client
    assert per_client.metrics["cost"].shape == (40, 2)
    assert np.abs(result.client_constraint).max() < 0.25  # close to the budget
    assert result.worst_objective < 0.6 * per_client.objective[0].max()
    assert result.names[int(np.argmax(result.client_objective))] == "far"
    repeated = flat.solve_federation(clients, method, rounds=3, record_clients=True, eval_every=0)
    np.testing.assert_array_equal(repeated.history.per_client.objective, per_client.objective[:3])


def test_resume_from_checkpoint(tmp_path):
    def clients(budget=1.0):
        environments = {"one": partial(Target, 0.8, discrete=True), "two": partial(Target, 1.2, discrete=True)}
        return make_gym_federation(environments, budget, horizon=2, gradient_episodes=5, evaluation_episodes=5)

    method = ss.SoftmaxSGM(alpha=5.0, step_size=1.0, tolerance=0.0)
    uninterrupted = flat.solve_federation(clients(), method, rounds=20)
    stops = {"callbacks": [lambda chunk: True], "checkpoints": ss.Checkpoints(tmp_path, every=0)}
    flat.solve_federation(clients(), method, rounds=20, **stops)
    resumed = flat.solve_federation(clients(), method, rounds=20, checkpoints=ss.Checkpoints(tmp_path))
    np.testing.assert_array_equal(resumed.last["weights 0"], uninterrupted.last["weights 0"])
    with pytest.raises(ValueError, match="the clients' data differs"):
        flat.solve_federation(clients(2.0), method, rounds=20, checkpoints=ss.Checkpoints(tmp_path))


def test_environments_are_closed():
    closed = []

    class Closing(Target):
        def close(self):
            closed.append(self)

    clients = make_gym_federation(
        {"a": Closing}, 1.0, horizon=2, gradient_episodes=3, estimation_episodes=0, evaluation_episodes=2
    )
    first = len(closed)
    flat.solve_federation(clients, ss.SoftmaxSGM(alpha=5.0, step_size=1.0, tolerance=0.0), rounds=2, eval_every=0)
    assert len(closed) > first  # including the evaluation environments
    closed_after_evaluation = len(closed)
    del clients
    gc.collect()
    assert len(closed) == closed_after_evaluation + 3


def test_pendulum_costs():
    clients = pendulums(gravities=(5.0, 9.0), gradient_episodes=3, estimation_episodes=0, horizon=30)
    assert clients.names == ("gravity 5", "gravity 9")
    result = flat.solve_federation(
        clients, ss.SoftmaxSGM(alpha=0.1, step_size=1.0, tolerance=0.0), rounds=2, record_clients=True, eval_every=0
    )
    metrics = result.history.per_client.metrics
    assert (metrics["return"] < 0).all()
    assert ((metrics["cost"] >= 0) & (metrics["cost"] <= 30)).all()
    assert metrics["cost"].max() > 0


def test_bad_input_is_rejected():
    with pytest.raises(ValueError, match="environments must be a mapping"):
        make_gym_federation({}, 1.0)
    with pytest.raises(TypeError, match=r"environments\['a'\] must be an id or a function"):
        make_gym_federation({"a": 3}, 1.0)
    with pytest.raises(ValueError, match="must have the same spaces"):
        make_gym_federation({"a": "CartPole-v1", "b": "Pendulum-v1"}, 1.0, cost=len)
    with pytest.raises(ValueError, match=r"budgets must have an entry .*'b'.*but has \('a',\)"):
        make_gym_federation({"a": Target, "b": Target}, {"a": 1.0})
    with pytest.raises(ValueError, match=r"environments\['a'\] must return info"):
        make_gym_federation({"a": "CartPole-v1"}, 1.0)
    with pytest.raises(ValueError, match="gravities must differ"):
        pendulums(gravities=(10.0, 10.0))
    with pytest.raises(TypeError, match="network must be a NumpyNetwork"):
        make_gym_federation({"a": Target}, 1.0, network="large")
    with pytest.raises(ValueError, match="kl_limit"):
        make_gym_federation({"a": Target}, 1.0, kl_limit=0)

    class OtherSpaces(Target):
        def __init__(self):
            super().__init__()
            self.action_space = gymnasium.spaces.MultiBinary(2)

    with pytest.raises(ValueError, match="environments must have a Discrete action space"):
        make_gym_federation({"a": OtherSpaces}, 1.0)
