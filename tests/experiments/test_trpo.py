"""Parts of TRPO compared with autodiff, NumPy and SciPy, and complete steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import softswitch as ss
from benchmarks import flat as calls
from softswitch_experiments.tasks.safe_rl import advantages as gae
from softswitch_experiments.tasks.safe_rl import cartpole, trpo
from softswitch_experiments.tasks.safe_rl.episodes import Randomness, draw_randomness, play, totals
from softswitch_experiments.tasks.safe_rl.physics import PLANETS
from softswitch_experiments.tasks.safe_rl.policy import Jacobian, init_policy, logit
from softswitch_experiments.tasks.safe_rl.trpo import (
    Steps,
    TrustRegion,
    conjugate_gradient,
    fisher_product,
    improve,
    line_search,
    normalize,
    policy_gradient,
    surrogate_and_kl,
)

HORIZON, EPISODES = 40, 8


def perturb(policy, size=0.3, seed=1):
    """Return a policy that is not almost uniform."""
    vector, unflatten = ravel_pytree(policy)
    return unflatten(vector + size * jax.random.normal(jax.random.key(seed), vector.shape))


def play_episodes(planet="earth", seed=0, hidden=(8, 8)):
    policy = perturb(init_policy(jax.random.key(seed), hidden))
    randomness = draw_randomness(jax.random.key(seed), 1, HORIZON, EPISODES)
    return policy, play(policy, Randomness(randomness.starts[0], randomness.uniforms[:, 0]), PLANETS[planet])


@pytest.fixture
def batch(x64_isolated):
    policy, episodes = play_episodes()
    return policy, episodes, Steps.from_episodes(episodes, jax.random.normal(jax.random.key(9), episodes.costs.shape))


def flatten(steps):
    """Return the steps of all blocks in order."""
    blocks = steps.blocks._replace(states=jnp.swapaxes(steps.blocks.states, 1, 2))
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), blocks)


def test_ended_episodes_stay_ended():
    _, episodes = play_episodes()
    lengths = np.asarray(episodes.alive).sum(axis=0)
    assert lengths.min() < HORIZON
    for e, length in enumerate(lengths):
        np.testing.assert_array_equal(episodes.alive[:, e], np.arange(HORIZON) < length)
        assert not np.asarray(episodes.costs)[length:, e].any()
    np.testing.assert_array_equal(totals(episodes.rewards), lengths)
    np.testing.assert_allclose(totals(episodes.rewards, 0.9), (1 - 0.9**lengths) / 0.1, rtol=1e-5)


def test_clients_are_independent():
    policy = perturb(init_policy(jax.random.key(0), (8,)))
    randomness = draw_randomness(jax.random.key(1), 3, HORIZON, EPISODES)
    physics = jax.tree.map(lambda *planet_physics: jnp.array(planet_physics), *PLANETS.values())
    joint = play(policy, randomness, physics)
    for i, planet_physics in enumerate(PLANETS.values()):
        single = play(policy, Randomness(randomness.starts[i], randomness.uniforms[:, i]), planet_physics)
        np.testing.assert_array_equal(joint.alive[:, i], single.alive)
        np.testing.assert_allclose(joint.states[:, i], single.states, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(joint.costs[:, i], single.costs)


def test_actions_follow_policy():
    policy, episodes = play_episodes()
    coins = draw_randomness(jax.random.key(0), 1, HORIZON, EPISODES).uniforms[:, 0]
    mask = np.asarray(episodes.alive)
    logits = logit(policy, episodes.states)
    np.testing.assert_array_equal(episodes.actions[mask], (coins < jax.nn.sigmoid(logits))[mask])
    np.testing.assert_allclose(episodes.logits[mask], logits[mask], rtol=1e-5, atol=1e-6)


SLOW = [pytest.param(hidden, marks=pytest.mark.slow) for hidden in ((5,), (8, 8))]


@pytest.mark.parametrize("hidden", [(), (6, 5, 4), *SLOW])
def test_jacobian_matches_autodiff(x64_isolated, hidden):
    policy = perturb(init_policy(jax.random.key(2), hidden))
    states = jax.random.normal(jax.random.key(3), (7, 4))
    change, on_logits = perturb(policy, seed=4), jnp.arange(7.0) - 3
    jacobian = Jacobian.at(policy, states.T)
    _, forward = jax.jvp(lambda p: logit(p, states), (policy,), (change,))
    np.testing.assert_allclose(jacobian.times(change), forward, rtol=1e-10)
    (backward,) = jax.vjp(lambda p: logit(p, states), policy)[1](on_logits)
    np.testing.assert_allclose(
        ravel_pytree(jacobian.transposed_times(on_logits))[0], ravel_pytree(backward)[0], rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize(("block", "every"), [(500, 1), (7, 1), (16, 3)])
def test_blocks_contain_played_steps(monkeypatch, block, every):
    monkeypatch.setattr(trpo, "BLOCK", block)
    _, episodes = play_episodes()
    advantages = jnp.arange(HORIZON * EPISODES, dtype=jnp.float32).reshape(HORIZON, EPISODES)
    steps = Steps.from_episodes(episodes, advantages, every)
    mask = np.asarray(episodes.alive)[::every]
    count = mask.sum()
    all_steps = flatten(steps)
    np.testing.assert_array_equal(all_steps.states[:count], np.asarray(episodes.states)[::every][mask])
    np.testing.assert_array_equal(all_steps.actions[:count], np.asarray(episodes.actions)[::every][mask])
    expected = np.asarray(advantages)[::every][mask]
    np.testing.assert_allclose(
        all_steps.advantages[:count], (expected - expected.mean()) / expected.std(), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(all_steps.weight[:count], 1 / count, rtol=1e-6)
    np.testing.assert_array_equal(all_steps.weight[count:], 0)
    size = min(block, mask.size)
    assert steps.blocks.weight.shape == (-(-mask.size // size), size)
    assert steps.used == -(-count // size)
    assert steps.sum(lambda part, _: part.weight.sum()) == pytest.approx(1)
    logits_by_block = steps.map(lambda part: part.logits)
    np.testing.assert_array_equal(np.asarray(logits_by_block).reshape(-1)[:count], all_steps.logits[:count])


def test_surrogate_and_kl(batch):
    policy, episodes, steps = batch
    other_policy = perturb(policy, 0.1, seed=5)
    mask = np.asarray(episodes.alive)
    p, q = (1 / (1 + np.exp(-np.asarray(z)[mask])) for z in (episodes.logits, logit(other_policy, episodes.states)))
    advantages = flatten(steps).advantages[: mask.sum()]
    ratio = np.where(np.asarray(episodes.actions)[mask], q / p, (1 - q) / (1 - p))
    kl = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    surrogate, divergence = surrogate_and_kl(other_policy, steps)
    np.testing.assert_allclose(surrogate, (ratio * advantages).mean(), rtol=1e-9)
    np.testing.assert_allclose(divergence, kl.mean(), rtol=1e-9)
    np.testing.assert_allclose(surrogate_and_kl(policy, steps), 0, atol=1e-12)


def reference_surrogate_and_kl(policy, steps):
    """Surrogate and KL without blocks or loops, to differentiate."""
    all_steps = trpo.Block(*(jnp.asarray(leaf) for leaf in flatten(steps)))
    logits, signs = logit(policy, all_steps.states), jnp.where(all_steps.actions, 1.0, -1.0)
    ratio = jnp.exp(jax.nn.log_sigmoid(signs * logits) - jax.nn.log_sigmoid(signs * all_steps.logits))
    right = jax.nn.sigmoid(all_steps.logits)
    kl = right * (jax.nn.log_sigmoid(all_steps.logits) - jax.nn.log_sigmoid(logits))
    kl += (1 - right) * (jax.nn.log_sigmoid(-all_steps.logits) - jax.nn.log_sigmoid(-logits))
    return all_steps.weight @ (ratio * all_steps.advantages), all_steps.weight @ kl


def test_policy_gradient_matches_autodiff(batch):
    policy, _, steps = batch
    expected = jax.grad(lambda p: reference_surrogate_and_kl(p, steps)[0])(policy)
    actual = policy_gradient(policy, steps)
    np.testing.assert_allclose(ravel_pytree(actual)[0], ravel_pytree(expected)[0], rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("every", "block"), [(1, 500), (3, 20)])
def test_fisher_product_is_curvature_of_kl(monkeypatch, batch, every, block):
    monkeypatch.setattr(trpo, "BLOCK", block)
    policy, episodes, _ = batch
    steps = Steps.from_episodes(episodes, episodes.costs, every)
    v = perturb(policy, seed=6)
    _, curvature = jax.jvp(jax.grad(lambda p: reference_surrogate_and_kl(p, steps)[1]), (policy,), (v,))
    actual = fisher_product(policy, steps)(v)
    np.testing.assert_allclose(ravel_pytree(actual)[0], ravel_pytree(curvature)[0], rtol=1e-7, atol=1e-12)


@pytest.mark.slow
def test_sampled_fisher_matrix_gives_similar_direction(x64_isolated):
    policy, episodes = play_episodes(hidden=(16, 16))
    advantages = gae.advantages(episodes, episodes.rewards, 0.99, 0.97)
    start, step = ravel_pytree(policy)[0], jax.jit(improve, static_argnames="region")
    full, subset = (
        ravel_pytree(step(policy, episodes, advantages, region=TrustRegion(fisher_every=every)))[0] - start
        for every in (1, 2)
    )
    assert full @ subset / jnp.linalg.norm(full) / jnp.linalg.norm(subset) > 0.9


def test_conjugate_gradient(x64_isolated):
    root = np.random.default_rng(0).normal(size=(12, 12))
    matrix, target = jnp.asarray(root @ root.T + np.eye(12)), jnp.arange(12.0)
    x, image = conjugate_gradient(lambda v: matrix @ v, target, 12)
    np.testing.assert_allclose(x, np.linalg.solve(matrix, target), rtol=1e-6)
    four_steps, image = conjugate_gradient(lambda v: matrix @ v, target, 4)
    np.testing.assert_allclose(image, matrix @ four_steps, rtol=1e-9)
    expected, _ = jax.scipy.sparse.linalg.cg(lambda v: matrix @ v, target, tol=0.0, maxiter=4)
    np.testing.assert_allclose(four_steps, expected, rtol=1e-9)
    zero, _ = conjugate_gradient(lambda v: matrix @ v, jnp.zeros(12), 4)
    np.testing.assert_array_equal(zero, 0)


def test_line_search():
    full = jnp.array([4.0, 0.0])
    for longest, expected in ((9.0, 4.0), (4.0, 4.0), (3.9, 2.0), (1.1, 1.0), (0.5, 0.5), (0.4, 0.0)):
        step_found = line_search(lambda change, longest=longest: change[0] <= longest, full, 0.5, 4)
        np.testing.assert_allclose(step_found, [expected, 0.0])


def reference_advantages(features, mask, signal, gamma, lam):
    """Return generalised advantage estimates, computed by a loop."""
    horizon, episodes = signal.shape
    returns = np.zeros((horizon + 1, episodes))
    for t in reversed(range(horizon)):
        returns[t] = signal[t] + gamma * returns[t + 1]
    x, y = features[mask], returns[:-1][mask]
    ridge = gae.RIDGE * (1 + mask.sum() / 1000)
    weights = np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ y)
    value = np.where(mask, features @ weights, 0)
    out = np.zeros((horizon, episodes))
    for e in range(episodes):
        accumulated = 0.0
        for t in reversed(range(int(mask[:, e].sum()))):
            next_value = value[t + 1, e] if t + 1 < horizon and mask[t + 1, e] else 0.0
            accumulated = signal[t, e] + gamma * next_value - value[t, e] + gamma * lam * accumulated
            out[t, e] = accumulated
    return out


SLOW_TRACES = [pytest.param(*pair, marks=pytest.mark.slow) for pair in ((0.9, 0.0), (0.95, 1.0))]


@pytest.mark.parametrize(("gamma", "lam"), [(0.99, 0.97), *SLOW_TRACES])
def test_advantages_match_reference_loop(x64_isolated, gamma, lam):
    _, episodes = play_episodes("mars")
    features, mask = np.asarray(gae.features(episodes.states)), np.asarray(episodes.alive)
    for signal in (episodes.rewards, -episodes.costs):
        actual = gae.advantages(episodes, signal, gamma, lam)
        np.testing.assert_allclose(
            actual, reference_advantages(features, mask, np.asarray(signal), gamma, lam), atol=1e-8
        )


def test_advantages_with_unit_trace(x64_isolated):
    _, episodes = play_episodes()
    with_trace = gae.advantages(episodes, episodes.rewards, 0.9, 1.0)
    known_features = gae.features(episodes.states) * episodes.rewards[..., None]
    baseline = gae.discounted_sums(episodes.rewards, 0.9) - with_trace  # the baseline, which is linear in the features
    mask = np.asarray(episodes.alive)
    weights, *_ = np.linalg.lstsq(np.asarray(known_features)[mask], np.asarray(baseline)[mask], rcond=None)
    np.testing.assert_allclose(np.asarray(known_features)[mask] @ weights, np.asarray(baseline)[mask], atol=1e-6)


def test_normalised():
    weight = jnp.array([0.5, 0.0, 0.5])
    np.testing.assert_allclose(normalize(jnp.array([1.0, 99.0, 3.0]), weight)[jnp.array([0, 2])], [-1, 1], rtol=1e-5)


@pytest.mark.parametrize("planet", ["mars", *(pytest.param(p, marks=pytest.mark.slow) for p in ("earth", "jupiter"))])
def test_step_improves_surrogate_within_kl_limit(planet):
    region = TrustRegion()
    step = jax.jit(improve, static_argnames="region")
    evaluate, fisher = jax.jit(surrogate_and_kl), jax.jit(lambda w, s, v: fisher_product(w, s)(v))
    for seed in range(2):
        policy, episodes = play_episodes(planet, seed, hidden=(16, 16))
        for signal in (episodes.rewards, -episodes.costs):
            advantages = gae.advantages(episodes, signal, 0.99, 0.97)
            steps = Steps.from_episodes(episodes, advantages)
            new_policy = step(policy, episodes, advantages, region=region)
            surrogate, kl = evaluate(new_policy, steps)
            assert kl <= region.kl_limit * (1 + 1e-3)
            assert surrogate > 0
            # The step is maximal: the full step of the quadratic model, or the next longer step is rejected.
            change = jax.tree.map(jnp.subtract, new_policy, policy)
            flat_change, image = (ravel_pytree(v)[0] for v in (change, fisher(policy, steps, change)))
            model = 0.5 * flat_change @ (image + region.damping * flat_change)
            longer_step = jax.tree.map(lambda w, u: w + u / region.shorten, policy, change)
            surrogate, kl = evaluate(longer_step, steps)
            assert model > 0.999 * region.kl_limit or kl > region.kl_limit or surrogate <= 0


def test_zero_advantages_keep_policy():
    policy, episodes = play_episodes()
    new_policy = improve(policy, episodes, jnp.zeros((HORIZON, EPISODES)), TrustRegion())
    np.testing.assert_array_equal(ravel_pytree(new_policy)[0], ravel_pytree(policy)[0])


@pytest.mark.parametrize(("rounds", "min_length"), [(25, 100), pytest.param(80, 190, marks=pytest.mark.slow)])
def test_unconstrained_cartpole_is_solved(rounds, min_length):
    """One Earth cart with an unlimited budget. An episode has at most 200 steps."""
    earth = cartpole(planets=["earth"], budgets=[1000.0], seed=0)
    rule = ss.SoftmaxSGM(alpha=1.0, step_size=1.0, tolerance=0.0)
    result = calls.solve_federation(earth, rule, rounds=rounds, seed=0, eval_every=0, record_clients=True)
    assert result.history.switch_share == 1.0
    assert result.history.per_client.metrics["return"][-10:].mean() >= min_length
