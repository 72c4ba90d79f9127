"""TRPO's parts against autodiff, NumPy and SciPy's words for the same; then whole steps."""

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


def shaken(policy, size=0.3, seed=1):
    """A policy that is not nearly a fair coin."""
    flat, back = ravel_pytree(policy)
    return back(flat + size * jax.random.normal(jax.random.key(seed), flat.shape))


def played(planet="earth", seed=0, hidden=(8, 8)):
    policy = shaken(init_policy(jax.random.key(seed), hidden))
    chance = draw_randomness(jax.random.key(seed), 1, HORIZON, EPISODES)
    return policy, play(policy, Randomness(chance.starts[0], chance.uniforms[:, 0]), PLANETS[planet])


@pytest.fixture
def batch(x64_isolated):
    policy, episodes = played()
    return policy, episodes, Steps.from_episodes(episodes, jax.random.normal(jax.random.key(9), episodes.costs.shape))


def flat(steps):
    """All blocks' steps in a row."""
    blocks = steps.blocks._replace(states=jnp.swapaxes(steps.blocks.states, 1, 2))
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), blocks)


def test_episodes_end_and_stay_ended():
    _, episodes = played()
    lengths = np.asarray(episodes.alive).sum(axis=0)
    assert lengths.min() < HORIZON
    for e, length in enumerate(lengths):
        np.testing.assert_array_equal(episodes.alive[:, e], np.arange(HORIZON) < length)
        assert not np.asarray(episodes.costs)[length:, e].any()
    np.testing.assert_array_equal(totals(episodes.rewards), lengths)
    np.testing.assert_allclose(totals(episodes.rewards, 0.9), (1 - 0.9**lengths) / 0.1, rtol=1e-5)


def test_many_clients_at_once_are_each_by_itself():
    policy = shaken(init_policy(jax.random.key(0), (8,)))
    chance = draw_randomness(jax.random.key(1), 3, HORIZON, EPISODES)
    physics = jax.tree.map(lambda *own: jnp.array(own), *PLANETS.values())
    together = play(policy, chance, physics)
    for i, own in enumerate(PLANETS.values()):
        alone = play(policy, Randomness(chance.starts[i], chance.uniforms[:, i]), own)
        np.testing.assert_array_equal(together.alive[:, i], alone.alive)
        np.testing.assert_allclose(together.states[:, i], alone.states, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(together.costs[:, i], alone.costs)


def test_actions_follow_the_policys_odds():
    policy, episodes = played()
    coins = draw_randomness(jax.random.key(0), 1, HORIZON, EPISODES).uniforms[:, 0]
    alive = np.asarray(episodes.alive)
    odds = logit(policy, episodes.states)
    np.testing.assert_array_equal(episodes.actions[alive], (coins < jax.nn.sigmoid(odds))[alive])
    np.testing.assert_allclose(episodes.logits[alive], odds[alive], rtol=1e-5, atol=1e-6)


SLOW = [pytest.param(hidden, marks=pytest.mark.slow) for hidden in ((5,), (8, 8))]


@pytest.mark.parametrize("hidden", [(), (6, 5, 4), *SLOW])
def test_the_jacobian_is_autodiffs(x64_isolated, hidden):
    policy = shaken(init_policy(jax.random.key(2), hidden))
    states = jax.random.normal(jax.random.key(3), (7, 4))
    change, on_logits = shaken(policy, seed=4), jnp.arange(7.0) - 3
    jacobian = Jacobian.at(policy, states.T)
    _, forward = jax.jvp(lambda p: logit(p, states), (policy,), (change,))
    np.testing.assert_allclose(jacobian.times(change), forward, rtol=1e-10)
    (backward,) = jax.vjp(lambda p: logit(p, states), policy)[1](on_logits)
    np.testing.assert_allclose(
        ravel_pytree(jacobian.transposed_times(on_logits))[0], ravel_pytree(backward)[0], rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize(("block", "every"), [(500, 1), (7, 1), (16, 3)])
def test_blocks_hold_the_steps_that_were_played(monkeypatch, block, every):
    monkeypatch.setattr(trpo, "BLOCK", block)
    _, episodes = played()
    advantages = jnp.arange(HORIZON * EPISODES, dtype=jnp.float32).reshape(HORIZON, EPISODES)
    steps = Steps.from_episodes(episodes, advantages, every)
    alive = np.asarray(episodes.alive)[::every]
    count = alive.sum()
    found = flat(steps)
    np.testing.assert_array_equal(found.states[:count], np.asarray(episodes.states)[::every][alive])
    np.testing.assert_array_equal(found.actions[:count], np.asarray(episodes.actions)[::every][alive])
    ahead = np.asarray(advantages)[::every][alive]
    np.testing.assert_allclose(found.advantages[:count], (ahead - ahead.mean()) / ahead.std(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.weight[:count], 1 / count, rtol=1e-6)
    np.testing.assert_array_equal(found.weight[count:], 0)
    size = min(block, alive.size)
    assert steps.blocks.weight.shape == (-(-alive.size // size), size)
    assert steps.used == -(-count // size)
    assert steps.sum(lambda part, _: part.weight.sum()) == pytest.approx(1)
    each = steps.map(lambda part: part.logits)
    np.testing.assert_array_equal(np.asarray(each).reshape(-1)[:count], found.logits[:count])


def test_surrogate_and_kl_by_hand(batch):
    policy, episodes, steps = batch
    other = shaken(policy, 0.1, seed=5)
    alive = np.asarray(episodes.alive)
    p, q = (1 / (1 + np.exp(-np.asarray(z)[alive])) for z in (episodes.logits, logit(other, episodes.states)))
    advantages = flat(steps).advantages[: alive.sum()]
    ratio = np.where(np.asarray(episodes.actions)[alive], q / p, (1 - q) / (1 - p))
    kl = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    surrogate, divergence = surrogate_and_kl(other, steps)
    np.testing.assert_allclose(surrogate, (ratio * advantages).mean(), rtol=1e-9)
    np.testing.assert_allclose(divergence, kl.mean(), rtol=1e-9)
    np.testing.assert_allclose(surrogate_and_kl(policy, steps), 0, atol=1e-12)


def plainly(policy, steps):
    """Surrogate and KL without blocks or loops, to differentiate."""
    all_steps = trpo.Block(*(jnp.asarray(leaf) for leaf in flat(steps)))
    logits, side = logit(policy, all_steps.states), jnp.where(all_steps.actions, 1.0, -1.0)
    ratio = jnp.exp(jax.nn.log_sigmoid(side * logits) - jax.nn.log_sigmoid(side * all_steps.logits))
    right = jax.nn.sigmoid(all_steps.logits)
    kl = right * (jax.nn.log_sigmoid(all_steps.logits) - jax.nn.log_sigmoid(logits))
    kl += (1 - right) * (jax.nn.log_sigmoid(-all_steps.logits) - jax.nn.log_sigmoid(-logits))
    return all_steps.weight @ (ratio * all_steps.advantages), all_steps.weight @ kl


def test_the_policy_gradient_is_autodiffs(batch):
    policy, _, steps = batch
    expected = jax.grad(lambda p: plainly(p, steps)[0])(policy)
    ours = policy_gradient(policy, steps)
    np.testing.assert_allclose(ravel_pytree(ours)[0], ravel_pytree(expected)[0], rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("every", "block"), [(1, 500), (3, 20)])
def test_the_fisher_product_is_the_kls_curvature(monkeypatch, batch, every, block):
    monkeypatch.setattr(trpo, "BLOCK", block)
    policy, episodes, _ = batch
    steps = Steps.from_episodes(episodes, episodes.costs, every)
    v = shaken(policy, seed=6)
    _, curvature = jax.jvp(jax.grad(lambda p: plainly(p, steps)[1]), (policy,), (v,))
    ours = fisher_product(policy, steps)(v)
    np.testing.assert_allclose(ravel_pytree(ours)[0], ravel_pytree(curvature)[0], rtol=1e-7, atol=1e-12)


@pytest.mark.slow
def test_a_subset_of_the_fisher_matrix_points_the_same_way(x64_isolated):
    policy, episodes = played(hidden=(16, 16))
    better = gae.advantages(episodes, episodes.rewards, 0.99, 0.97)
    start, step = ravel_pytree(policy)[0], jax.jit(improve, static_argnames="region")
    full, subset = (
        ravel_pytree(step(policy, episodes, better, region=TrustRegion(fisher_every=every)))[0] - start
        for every in (1, 2)
    )
    assert full @ subset / jnp.linalg.norm(full) / jnp.linalg.norm(subset) > 0.9


def test_conjugate_gradient(x64_isolated):
    root = np.random.default_rng(0).normal(size=(12, 12))
    matrix, target = jnp.asarray(root @ root.T + np.eye(12)), jnp.arange(12.0)
    x, image = conjugate_gradient(lambda v: matrix @ v, target, 12)
    np.testing.assert_allclose(x, np.linalg.solve(matrix, target), rtol=1e-6)
    few, image = conjugate_gradient(lambda v: matrix @ v, target, 4)
    np.testing.assert_allclose(image, matrix @ few, rtol=1e-9)
    expected, _ = jax.scipy.sparse.linalg.cg(lambda v: matrix @ v, target, tol=0.0, maxiter=4)
    np.testing.assert_allclose(few, expected, rtol=1e-9)
    nothing, _ = conjugate_gradient(lambda v: matrix @ v, jnp.zeros(12), 4)
    np.testing.assert_array_equal(nothing, 0)


def test_line_search():
    full = jnp.array([4.0, 0.0])
    for longest, expected in ((9.0, 4.0), (4.0, 4.0), (3.9, 2.0), (1.1, 1.0), (0.5, 0.5), (0.4, 0.0)):
        found = line_search(lambda change, longest=longest: change[0] <= longest, full, 0.5, 4)
        np.testing.assert_allclose(found, [expected, 0.0])


def plain_advantages(features, alive, signal, gamma, lam):
    """Generalised advantage estimates as a plain loop."""
    horizon, episodes = signal.shape
    returns = np.zeros((horizon + 1, episodes))
    for t in reversed(range(horizon)):
        returns[t] = signal[t] + gamma * returns[t + 1]
    x, y = features[alive], returns[:-1][alive]
    ridge = gae.RIDGE * (1 + alive.sum() / 1000)
    weights = np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ y)
    value = np.where(alive, features @ weights, 0)
    out = np.zeros((horizon, episodes))
    for e in range(episodes):
        later = 0.0
        for t in reversed(range(int(alive[:, e].sum()))):
            following = value[t + 1, e] if t + 1 < horizon and alive[t + 1, e] else 0.0
            later = signal[t, e] + gamma * following - value[t, e] + gamma * lam * later
            out[t, e] = later
    return out


SLOW_TRACES = [pytest.param(*pair, marks=pytest.mark.slow) for pair in ((0.9, 0.0), (0.95, 1.0))]


@pytest.mark.parametrize(("gamma", "lam"), [(0.99, 0.97), *SLOW_TRACES])
def test_advantages_are_a_plain_loops(x64_isolated, gamma, lam):
    _, episodes = played("mars")
    features, alive = np.asarray(gae.features(episodes.states)), np.asarray(episodes.alive)
    for signal in (episodes.rewards, -episodes.costs):
        ours = gae.advantages(episodes, signal, gamma, lam)
        np.testing.assert_allclose(ours, plain_advantages(features, alive, np.asarray(signal), gamma, lam), atol=1e-8)


def test_with_a_trace_of_one_advantages_are_returns_above_the_baseline(x64_isolated):
    _, episodes = played()
    with_trace = gae.advantages(episodes, episodes.rewards, 0.9, 1.0)
    known = gae.features(episodes.states) * episodes.rewards[..., None]
    above = gae.discounted_sums(episodes.rewards, 0.9) - with_trace  # the baseline, and so linear in the features
    alive = np.asarray(episodes.alive)
    weights, *_ = np.linalg.lstsq(np.asarray(known)[alive], np.asarray(above)[alive], rcond=None)
    np.testing.assert_allclose(np.asarray(known)[alive] @ weights, np.asarray(above)[alive], atol=1e-6)


def test_normalised():
    weight = jnp.array([0.5, 0.0, 0.5])
    np.testing.assert_allclose(normalize(jnp.array([1.0, 99.0, 3.0]), weight)[jnp.array([0, 2])], [-1, 1], rtol=1e-5)


@pytest.mark.parametrize("planet", ["mars", *(pytest.param(p, marks=pytest.mark.slow) for p in ("earth", "jupiter"))])
def test_a_step_keeps_the_kl_limit_and_improves_the_surrogate(planet):
    region = TrustRegion()
    step = jax.jit(improve, static_argnames="region")
    judged, curved = jax.jit(surrogate_and_kl), jax.jit(lambda w, s, v: fisher_product(w, s)(v))
    for seed in range(2):
        policy, episodes = played(planet, seed, hidden=(16, 16))
        for signal in (episodes.rewards, -episodes.costs):
            better = gae.advantages(episodes, signal, 0.99, 0.97)
            steps = Steps.from_episodes(episodes, better)
            after = step(policy, episodes, better, region=region)
            surrogate, kl = judged(after, steps)
            assert kl <= region.kl_limit * (1 + 1e-3)
            assert surrogate > 0
            # As far as it may go: the quadratic model's whole step, or a longer one would have been refused.
            change = jax.tree.map(jnp.subtract, after, policy)
            flat_change, image = (ravel_pytree(v)[0] for v in (change, curved(policy, steps, change)))
            model = 0.5 * flat_change @ (image + region.damping * flat_change)
            longer = jax.tree.map(lambda w, u: w + u / region.shorten, policy, change)
            surrogate, kl = judged(longer, steps)
            assert model > 0.999 * region.kl_limit or kl > region.kl_limit or surrogate <= 0


def test_where_nothing_is_better_the_policy_stays():
    policy, episodes = played()
    after = improve(policy, episodes, jnp.zeros((HORIZON, EPISODES)), TrustRegion())
    np.testing.assert_array_equal(ravel_pytree(after)[0], ravel_pytree(policy)[0])


@pytest.mark.parametrize(("rounds", "least"), [(25, 100), pytest.param(80, 190, marks=pytest.mark.slow)])
def test_it_solves_plain_cartpole(rounds, least):
    """One Earth cart with a budget that cannot be spent. An episode has at most 200 steps."""
    earth = cartpole(planets=["earth"], budgets=[1000.0], seed=0)
    rule = ss.SoftmaxSGM(alpha=1.0, step_size=1.0, tolerance=0.0)
    result = calls.solve_federation(earth, rule, rounds=rounds, seed=0, eval_every=0, record_clients=True)
    assert result.history.switch_share == 1.0
    assert result.history.per_client.metrics["return"][-10:].mean() >= least
