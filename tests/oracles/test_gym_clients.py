"""Any Gymnasium environment as a client: derivatives by differences, a task with a known answer, and clear refusals."""

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
    """Two steps; in each a number is chosen, worth most at ``best`` and costing what it is."""

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
        seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return seen, reward, self._done >= self._steps, False, {"cost": max(0.0, value)}


def test_slopes_of_a_network_are_its_derivatives():
    generator = np.random.default_rng(0)
    weights = SMALL.first_weights(3, 4, True, generator)
    weights = {name: generator.normal(size=w.shape) for name, w in weights.items()}
    seen = generator.normal(size=(7, 3))
    change = {name: generator.normal(size=w.shape) for name, w in weights.items()}
    outputs, slopes = SMALL.slopes(weights, seen)
    assert outputs.shape == (7, 4)

    def at(t):
        return SMALL.outputs({name: w + t * change[name] for name, w in weights.items()}, seen)

    np.testing.assert_allclose(slopes.times(change), (at(1e-6) - at(-1e-6)) / 2e-6, atol=1e-7)
    on_outputs = generator.normal(size=outputs.shape)
    back = slopes.transposed(on_outputs)
    assert set(back) == set(weights)
    inner = sum((back[name] * change[name]).sum() for name in weights)
    np.testing.assert_allclose(inner, (on_outputs * slopes.times(change)).sum(), rtol=1e-10)


@pytest.mark.parametrize("kind", [Categorical(3), Gaussian(np.array([-1.0, 0.0]), np.array([1.0, 4.0]))])
def test_distributions_know_their_derivatives_and_distances(kind):
    generator = np.random.default_rng(2)
    outputs = generator.normal(size=(1, kind.outputs))
    many = np.repeat(outputs, 200_000, axis=0)
    actions = kind.sample(many, generator)
    score = kind.score(many, actions)

    def is_mean(samples, wanted):
        assert (np.abs(samples.mean(axis=0) - wanted) <= 5 * samples.std(axis=0) / np.sqrt(len(samples))).all()

    is_mean(score, 0.0)
    change = generator.normal(size=(1, kind.outputs))
    fisher = kind.fisher(outputs, change)[0]  # = E[score scoreᵀ] v
    is_mean(score * (score @ change[0])[:, None], fisher)
    one = actions[:1]
    for j in range(kind.outputs):
        step = np.zeros_like(outputs)
        step[0, j] = 1e-6
        up, down = (kind.log_density(outputs + s * step, one)[0] for s in (1, -1))
        assert kind.score(outputs, one)[0, j] == pytest.approx((up - down) / 2e-6, abs=1e-6)
    other = outputs + 0.1 * change
    found = kind.log_density(many, actions) - kind.log_density(np.repeat(other, len(many), axis=0), actions)
    is_mean(found[:, None], kind.divergence(outputs, other))
    assert kind.divergence(outputs, outputs)[0] == pytest.approx(0, abs=1e-12)


def test_actions_as_the_environment_takes_them():
    kind = Gaussian(np.array([0.0]), np.array([4.0]))
    np.testing.assert_allclose(kind.for_environment(np.array([[0.0], [0.5], [9.0]])), [[2.0], [3.0], [4.0]])
    assert Categorical(3, first=1).for_environment(np.array([0, 2])).tolist() == [1, 3]


def test_a_step_keeps_its_divergence_and_improves():
    generator = np.random.default_rng(3)
    weights = SMALL.first_weights(2, 2, True, generator)
    kind = Gaussian(np.array([-1.0]), np.array([1.0]))
    seen = generator.normal(size=(500, 2))
    old = SMALL.outputs(weights, seen)
    actions = kind.sample(old, generator)
    taken = Taken(seen, actions, -((actions[:, 0] - 1) ** 2))
    better = trust_region_step(SMALL, kind, weights, taken, 0.01)
    new = SMALL.outputs(better, seen)
    assert 0.005 < kind.divergence(old, new).mean() <= 0.01
    assert new[:, 0].mean() > old[:, 0].mean() + 0.05
    nothing = trust_region_step(SMALL, kind, weights, taken._replace(advantages=np.zeros(500)), 0.01)
    assert all(np.array_equal(nothing[name], weights[name]) for name in weights)


def test_returns_and_advantages_by_hand():
    np.testing.assert_allclose(discounted_sums(np.array([[1.0], [2.0], [4.0]]), 0.5)[:, 0], [3.0, 4.0, 4.0])
    generator = np.random.default_rng(4)
    seen = np.repeat(generator.normal(size=(1, 400, 1)), 3, axis=0)
    alive = np.ones((3, 400))
    alive[2, ::2] = 0
    signal = alive * seen[..., 0]
    found = advantage_estimates(seen, alive, signal, 1.0, 1.0)
    assert np.all(found[2, ::2] == 0)
    # With λ = 1 an advantage is the return less the baseline; the returns are linear in what is seen and time.
    returns = discounted_sums(signal, 1.0)
    assert np.abs(found[0, 1::2]).mean() < 0.6 * np.abs(returns[0, 1::2]).mean()


def test_episodes_end_where_they_end():
    environments = make_vector_env(partial(Target, steps=2), 4)
    weights = SMALL.first_weights(2, 2, True, np.random.default_rng(0))
    kind = Gaussian(np.array([-2.0]), np.array([2.0]))
    played = play(environments, SMALL, kind, weights, 5, 7, None)
    assert played.alive.sum(axis=0).tolist() == [2.0] * 4
    assert played.observations.shape == (5, 4, 2)
    assert not played.rewards[2:].any()
    taken = kind.for_environment(played.actions[0])[:, 0]
    np.testing.assert_allclose(played.rewards[0], -((taken - 1) ** 2), rtol=1e-5)
    np.testing.assert_allclose(played.costs[0], np.maximum(0, taken), rtol=1e-5)
    again = play(environments, SMALL, kind, weights, 5, 7, None)
    np.testing.assert_array_equal(again.rewards, played.rewards)
    assert np.abs(play(environments, SMALL, kind, weights, 5, 8, None).rewards - played.rewards).max() > 0
    squared = play(environments, SMALL, kind, weights, 1, 7, lambda seen, actions, after: actions[:, 0] ** 2)
    np.testing.assert_allclose(squared.costs[0], taken**2, rtol=1e-5)  # of what the environment took
    with pytest.raises(ValueError, match=r"one number for each of 4 episodes, but gives \(4, 1\)"):
        play(environments, SMALL, kind, weights, 1, 7, lambda seen, actions, after: actions)
    np.testing.assert_allclose(played.totals(played.rewards, 0.5), played.rewards[0] + 0.5 * played.rewards[1])
    vector = make_vector_env(lambda many: gymnasium.make_vec("CartPole-v1", num_envs=many), 3)
    assert vector.num_envs == 3
    with pytest.raises(ValueError, match="function of 3 must make"):
        make_vector_env(lambda many: Target(), 3)
    at_once = gymnasium.vector.AutoresetMode.SAME_STEP
    with pytest.raises(ValueError, match="SAME_STEP"):
        make_vector_env(lambda many: gymnasium.vector.SyncVectorEnv([Target] * many, autoreset_mode=at_once), 3)
    with pytest.raises(ValueError, match=r"info\['cost'\]"):
        play(vector, SMALL, Categorical(2), SMALL.first_weights(4, 2, False, np.random.default_rng(0)), 2, 0, None)


def test_clients_with_a_known_answer():
    """Each step is worth most at the client's target and costs what it is; a budget of 1 for two steps allows 0.5."""
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
    told = result.history.per_client
    assert told.metrics["cost"].shape == (40, 2)
    assert np.abs(result.client_constraint).max() < 0.25  # at the budget, neither far above nor far below
    assert result.worst_objective < 0.6 * told.objective[0].max()
    assert result.names[int(np.argmax(result.client_objective))] == "far"
    again = flat.solve_federation(clients, method, rounds=3, record_clients=True, eval_every=0)
    np.testing.assert_array_equal(again.history.per_client.objective, told.objective[:3])


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    def clients(budget=1.0):
        made = {"one": partial(Target, 0.8, discrete=True), "two": partial(Target, 1.2, discrete=True)}
        return make_gym_federation(made, budget, horizon=2, gradient_episodes=5, evaluation_episodes=5)

    method = ss.SoftmaxSGM(alpha=5.0, step_size=1.0, tolerance=0.0)
    whole = flat.solve_federation(clients(), method, rounds=20)
    stops = {"callbacks": [lambda chunk: True], "checkpoints": ss.Checkpoints(tmp_path, every=0)}
    flat.solve_federation(clients(), method, rounds=20, **stops)
    on = flat.solve_federation(clients(), method, rounds=20, checkpoints=ss.Checkpoints(tmp_path))
    np.testing.assert_array_equal(on.last["weights 0"], whole.last["weights 0"])
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
    assert len(closed) > first  # those it was judged by
    judged = len(closed)
    del clients
    gc.collect()
    assert len(closed) == judged + 3


def test_pendulums_play_their_cost():
    clients = pendulums(gravities=(5.0, 9.0), gradient_episodes=3, estimation_episodes=0, horizon=30)
    assert clients.names == ("gravity 5", "gravity 9")
    result = flat.solve_federation(
        clients, ss.SoftmaxSGM(alpha=0.1, step_size=1.0, tolerance=0.0), rounds=2, record_clients=True, eval_every=0
    )
    told = result.history.per_client.metrics
    assert (told["return"] < 0).all()
    assert ((told["cost"] >= 0) & (told["cost"] <= 30)).all()
    assert told["cost"].max() > 0


def test_bad_input_is_named():
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

    class Odd(Target):
        def __init__(self):
            super().__init__()
            self.action_space = gymnasium.spaces.MultiBinary(2)

    with pytest.raises(ValueError, match="environments must have a Discrete action space"):
        make_gym_federation({"a": Odd}, 1.0)
