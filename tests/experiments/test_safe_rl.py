"""Carts as clients: reports, directions, sweeps, claims, policy files and animations."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from PIL import Image
from typer.testing import CliRunner

import softswitch as ss
from benchmarks import flat as calls
from softswitch.cli import app
from softswitch_experiments.paper import alpha_scale, safe_rl_comparison
from softswitch_experiments.paper.safe_rl_comparison import Paired
from softswitch_experiments.paper.safe_rl_study import PRIMARY
from softswitch_experiments.tasks.safe_rl import cartpole, load_policy, save_policy, train_policy
from softswitch_experiments.tasks.safe_rl.advantages import advantages
from softswitch_experiments.tasks.safe_rl.episodes import Randomness, play
from softswitch_experiments.tasks.safe_rl.physics import PLANETS
from softswitch_experiments.tasks.safe_rl.policy import init_policy
from softswitch_experiments.tasks.safe_rl.trpo import TrustRegion, improve

SMALL = {
    "planets": ("earth", "mars", "jupiter"),
    "horizon": 30,
    "gradient_episodes": 4,
    "estimation_episodes": 3,
    "evaluation_episodes": 5,
    "hidden": (8,),
}
COMMON = {"step_size": 1.0, "tolerance": 0.0}


def flatten(policy):
    return np.asarray(ravel_pytree(policy)[0])


def play_round(federation, key=0):
    """Return a round's draws, reports and client state."""
    draws = federation.oracle.draw(jax.random.key(key))
    return draws, *jax.jit(lambda o, w, d: o.report(w, d))(federation.oracle, federation.start, draws)


def compute_direction(federation, draws, state, reports, rule):
    decision, _ = rule.decide((), reports)
    direction = jax.jit(lambda o, *observations: o.direction(*observations, rule.switches, 1.0))
    return flatten(direction(federation.oracle, federation.start, draws, state, decision))


@partial(jax.jit, static_argnames="region")
def local_step(policy, episodes, signal, region=TrustRegion()):  # noqa: B008
    """Return one client's step, with default settings unless another region is given."""
    return improve(policy, episodes, advantages(episodes, signal, 0.99, 0.97), region)


def play_client(federation, draws, i):
    """Return client i's episodes."""
    physics = PLANETS[federation.names[int(draws.clients[i])].split()[0]]
    return play(federation.start, Randomness(draws.report.starts[i], draws.report.uniforms[:, i]), physics)


def test_names_budgets_and_start():
    ten = cartpole()
    assert ten.names[:5] == ("earth 1", "earth 2", "earth 3", "earth 4", "mars 1")
    np.testing.assert_allclose(ten.oracle.budgets, np.linspace(25, 35, 10), rtol=1e-6)
    assert sum(leaf.size for leaf in jax.tree.leaves(ten.start)) == 4 * 32 + 32 + 32 * 32 + 32 + 32 + 1
    random_budgets, other_budgets = (np.asarray(cartpole(budgets="drawn", seed=seed).oracle.budgets) for seed in (1, 2))
    assert ((random_budgets >= 25) & (random_budgets <= 35)).all()
    assert (random_budgets != other_budgets).all()
    assert (flatten(cartpole(seed=1).start) != flatten(cartpole(seed=2).start)).any()
    np.testing.assert_array_equal(flatten(cartpole(seed=1).start), flatten(cartpole(seed=1).start))


@pytest.mark.parametrize("discounted", [True, False])
def test_reports(discounted):
    carts = cartpole(budgets=[1.0, 2.0, 3.0], discount=0.9, discounted_cost=discounted, **SMALL)
    draws, reports, episodes_kept = play_round(carts)
    np.testing.assert_array_equal(np.sort(draws.clients), [0, 1, 2])
    for i in range(3):
        episodes = play_client(carts, draws, i)
        mask, costs = np.asarray(episodes.alive, float), np.asarray(episodes.costs)
        gamma = 0.9 ** np.arange(30)[:, None]
        cost = ((gamma if discounted else 1) * costs).sum(axis=0).mean()
        np.testing.assert_allclose(reports.objective[i], -(gamma * mask).sum(axis=0).mean(), rtol=1e-5)
        np.testing.assert_allclose(reports.constraint[i, 0], cost - (1.0 + int(draws.clients[i])), rtol=1e-4)
        np.testing.assert_allclose(reports.metrics["return"][i], mask.sum(axis=0).mean(), rtol=1e-5)
        np.testing.assert_allclose(reports.metrics["cost"][i], costs.sum(axis=0).mean(), rtol=1e-5)
        np.testing.assert_allclose(episodes_kept.episodes.states[i], episodes.states[:, :4], rtol=1e-4, atol=1e-5)
    assert carts.oracle.cost(None) == (3 * 7 * 30, 3 * 4 * 30)


@pytest.mark.parametrize(("threshold", "sign"), [(1e6, 1), pytest.param(-1e6, -1, marks=pytest.mark.slow)])
def test_direction_is_weighted_mean_of_local_steps(x64_isolated, threshold, sign):
    """Clients improve their return in feasible rounds, and lower their cost in others."""
    carts = cartpole(**SMALL)
    draws, reports, state = play_round(carts)
    rule = ss.SoftmaxSGM(alpha=0.3, threshold=threshold, **COMMON)
    direction = compute_direction(carts, draws, state, reports, rule)
    values = np.asarray(reports.objective if sign > 0 else reports.constraint[:, 0])
    weights = np.exp(0.3 * values) / np.exp(0.3 * values).sum()
    total = 0.0
    for i in range(3):
        episodes = jax.tree.map(lambda leaf, i=i: leaf[i], state.episodes)
        signal = episodes.rewards if sign > 0 else -episodes.costs
        local = local_step(carts.start, episodes, signal)
        total = total + weights[i] * (flatten(carts.start) - flatten(local))
    np.testing.assert_allclose(direction, total, rtol=1e-6, atol=1e-9)
    assert np.abs(total).max() > 1e-3
    sliced = dataclasses.replace(carts, oracle=dataclasses.replace(carts.oracle, client_batch_size=3))
    np.testing.assert_allclose(compute_direction(sliced, draws, state, reports, rule), direction, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_second_local_step_uses_new_episodes(x64_isolated):
    carts = cartpole(local_steps=2, **SMALL | {"planets": ("mars",)})
    region = TrustRegion(damping=0.1)  # with less damping, conjugate gradients amplify rounding errors
    carts = dataclasses.replace(carts, oracle=dataclasses.replace(carts.oracle, trust_region=region))
    draws, reports, state = play_round(carts)
    direction = compute_direction(carts, draws, state, reports, ss.SoftmaxSGM(alpha=1.0, threshold=1e6, **COMMON))
    policy = carts.start
    later_randomness = Randomness(draws.later.starts[0, 0], draws.later.uniforms[0, :, 0])
    for episodes in (jax.tree.map(lambda leaf: leaf[0], state.episodes), None):
        client_episodes = play(policy, later_randomness, PLANETS["mars"]) if episodes is None else episodes
        policy = local_step(policy, client_episodes, client_episodes.rewards, region)
    np.testing.assert_allclose(direction, flatten(carts.start) - flatten(policy), rtol=1e-6, atol=1e-9)
    assert not np.array_equal(later_randomness.uniforms, draws.report.uniforms[:, 0, :4])


def test_method_without_switch_mixes_reward_and_cost(x64_isolated):
    carts = cartpole(budgets=[0.0], **SMALL | {"planets": ("earth",)})
    draws, reports, state = play_round(carts)
    assert reports.constraint[0, 0] > 0
    direction = compute_direction(carts, draws, state, reports, ss.Penalty(penalty=2.5, **COMMON))
    episodes = jax.tree.map(lambda leaf: leaf[0], state.episodes)
    local = local_step(carts.start, episodes, episodes.rewards - 2.5 * episodes.costs)
    np.testing.assert_allclose(direction, flatten(carts.start) - flatten(local), rtol=1e-6, atol=1e-9)


def run_crpo_and_zero():
    carts = cartpole(budgets=[8.0, 9.0, 10.0], **SMALL)
    return [
        calls.solve_federation(carts, rule, rounds=12, seed=5, eval_every=0, record_clients=True)
        for rule in (ss.AverageSGM(threshold=1.0, **COMMON), ss.SoftmaxSGM(alpha=0.0, threshold=1.0, **COMMON))
    ]


def test_parallel_crpo_equals_softmax_sgm_at_zero():
    average, zero = run_crpo_and_zero()
    np.testing.assert_allclose(flatten(average.last), flatten(zero.last), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(average.history.criterion, zero.history.criterion, rtol=1e-4, atol=1e-5)
    reports = average.history.per_client
    np.testing.assert_allclose(average.history.criterion, reports.constraint[:, :, 0].mean(axis=1), rtol=1e-4)
    assert 0 < average.history.feasible_rounds < 12


@pytest.mark.slow
@pytest.mark.default_compiler
def test_parallel_crpo_equals_softmax_sgm_at_zero_exactly():
    average, zero = run_crpo_and_zero()
    np.testing.assert_array_equal(flatten(average.last), flatten(zero.last))
    np.testing.assert_array_equal(average.history.criterion, zero.history.criterion)


@pytest.mark.slow
def test_partial_participation_with_evaluation():
    carts = cartpole(participation=0.67, **SMALL)
    rule = ss.SoftmaxSGM(alpha=0.1, **COMMON)
    result = calls.solve_federation(carts, rule, rounds=6, seed=1, eval_every=3, record_clients=True)
    participants = result.history.per_client.clients
    assert participants.shape == (6, 2)
    assert set(participants.ravel()) == {0, 1, 2}
    assert result.history.full_rounds.tolist() == [0, 3]
    f, g, _ = carts.oracle.evaluate_params(carts.start)
    np.testing.assert_allclose(result.history.full.objective[0], f.max(), rtol=1e-5)
    np.testing.assert_allclose(result.history.full.constraint[0], g.max(), rtol=1e-5)
    np.testing.assert_array_equal(carts.oracle.evaluate_params(result.params)[0], result.client_objective)
    assert result.client_constraint.shape == (3, 1)


@pytest.mark.slow
def test_sweep_matches_solve():
    carts = [cartpole(seed=seed, budgets="drawn", **SMALL) for seed in (1, 2)]
    rule = ss.SoftmaxSGM(alpha=0.1, **COMMON)
    runs = calls.sweep_federation(carts, {"a": rule}, seeds=[1, 2], rounds=6, eval_every=0, record_clients=True)["a"]
    single = calls.solve_federation(carts[1], rule, rounds=6, seed=2, eval_every=0, record_clients=True)
    np.testing.assert_array_equal(flatten(runs[1].last), flatten(single.last))
    np.testing.assert_array_equal(
        runs[1].history.per_client.metrics["return"], single.history.per_client.metrics["return"]
    )
    assert (flatten(runs[0].last) != flatten(runs[1].last)).any()
    vectorized = calls.sweep_federation(
        carts, {"a": rule}, seeds=[1, 2], rounds=6, eval_every=0, record_clients=True, vectorize=True
    )["a"]
    np.testing.assert_allclose(
        vectorized[1].history.per_client.metrics["return"][0], single.history.per_client.metrics["return"][0], rtol=1e-5
    )
    with pytest.raises(ValueError, match="problem must be one for all seeds or a list of 3, but is a list of 2"):
        calls.sweep_federation(carts, [rule], seeds=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"planets": ["venus"]}, r"planets must be one of .*, but is 'venus'"),
        ({"planets": []}, "planets must name at least one"),
        ({"budgets": "fair"}, r"budgets must be one of .*, but is 'fair'"),
        ({"budgets": [1.0]}, r"budgets must be 'even', 'drawn' or 10 numbers, one per client, but is \[1.0\]"),
        ({"horizon": 0}, "horizon must be .* but is 0"),
        ({"discount": 1.5}, "discount must be .* but is 1.5"),
        ({"kl_limit": 0}, "kl_limit must be .* but is 0"),
        ({"fisher_every": 0}, "fisher_every must be .* but is 0"),
        ({"participation": 0}, "participation must be .* but is 0"),
    ],
)
def test_bad_settings_are_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        cartpole(**settings)


def test_settings_of_wrong_type_are_rejected():
    with pytest.raises(TypeError, match="planets must be a list, but is 'earth'"):
        cartpole(planets="earth")
    with pytest.raises(TypeError, match="hidden must be a list, but is 32"):
        cartpole(hidden=32)
    with pytest.raises(ValueError, match=r"budgets must be .* 10 numbers, one per client, but is 30.0"):
        cartpole(budgets=30.0)


def test_invalid_federation_is_rejected():
    carts = cartpole(**SMALL)
    with pytest.raises(TypeError, match=r"oracle must be a subclass of softswitch.oracles.base.Oracle"):
        ss.Federation(object(), carts.start, carts.names)
    for names in (("one",), tuple("abcd")):
        with pytest.raises(ValueError, match=f"names must have one label for each of 3 clients, but has {len(names)}"):
            ss.Federation(carts.oracle, carts.start, names)
    with pytest.raises(ValueError, match="criterion='pooled' needs a constraint that is a function of additive"):
        calls.solve_federation(carts, ss.AverageSGM(criterion="pooled", **COMMON))
    with pytest.raises(TypeError, match="start must be a floating array, but has dtype int32"):
        ss.Federation(carts.oracle, jnp.int32(1), carts.names)
    with pytest.raises(TypeError, match="problem must be a Problem or a Federation, but is CartPoleOracle"):
        calls.solve_federation(carts.oracle, ss.AverageSGM(**COMMON))


def test_sign_flip_test_is_exact():
    """Of all 2⁴ sign flips, only the original and the complete flip are as extreme."""
    pair = Paired(np.array([1.0, 2, 3, 4]), np.array([2.0, 4, 6, 8]))
    assert pair.p == pytest.approx(2 / 16)
    assert (pair.smaller, pair.difference) == (4, -2.5)
    assert Paired(np.array([1.0]), np.array([2.0])).p == 1.0
    assert pair.half_interval == pytest.approx(3.182446 * np.std([1, 2, 3, 4], ddof=1) / 2, rel=1e-5)


def test_comparison_claims_can_fail():
    better, worse = (Paired(np.arange(6.0) + shift, np.arange(6.0)) for shift in (-3, 3))
    verdicts = [claim.held for claim in safe_rl_comparison._claims(PRIMARY, better, worse)]
    assert verdicts == [True, True, True]
    verdicts = [claim.held for claim in safe_rl_comparison._claims(PRIMARY, worse, better)]
    assert verdicts == [False, False, False]
    small_sample = Paired(np.arange(5.0) - 3, np.arange(5.0))  # p is 0.0625 at best
    assert len(safe_rl_comparison._claims(PRIMARY, small_sample, small_sample)) == 2


def test_common_alpha_claim():
    feasible, infeasible, expensive = (
        alpha_scale.Measured([loss], [constraint]) for loss, constraint in ((1, 0), (0.5, 2), (3, 0))
    )
    assert alpha_scale._best_loss({"raw": {1.0: feasible, 2.0: infeasible}, "spread": {1.0: expensive}}, 1.0) == 1.0
    assert alpha_scale._best_loss({"raw": {1.0: infeasible}}, 1.0) == np.inf
    serving = {"raw": [{1.0}, {2.0}, {1.0, 2.0}], "spread": [{1.0, 4.0}, {4.0}, {4.0, 8.0}]}
    assert [claim.held for claim in alpha_scale._claims(serving)] == [False, True]


def test_policy_file(tmp_path):
    policy = init_policy(jax.random.key(0), (5, 3))
    save_policy(policy, tmp_path / "deep" / "policy.npz")
    np.testing.assert_array_equal(flatten(load_policy(tmp_path / "deep" / "policy.npz")), flatten(policy))
    (tmp_path / "words.npz").write_text("no policy")
    (tmp_path / "nothing.npz").write_bytes(b"")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "deep" / "policy.npz").read_bytes()[:100])
    np.savez(tmp_path / "empty.npz")
    np.savez(tmp_path / "odd.npz", **{"0.weights": np.ones((3, 1)), "0.bias": np.ones(1)})
    np.save(tmp_path / "array.npy", np.ones(3))
    for bad in ("words.npz", "missing.npz", "nothing.npz", "cut.npz", "empty.npz", "odd.npz", "array.npy"):
        with pytest.raises(ValueError, match=f"{bad} must be a policy written by softswitch"):
            load_policy(tmp_path / bad)


@pytest.mark.slow
def test_play_writes_animation_of_every_planet(tmp_path):
    save_policy(train_policy(3, 0, **SMALL), tmp_path / "policy.npz")
    invocation = CliRunner().invoke(
        app, ["play", "--policy", str(tmp_path / "policy.npz"), "--out", str(tmp_path / "shown")]
    )
    assert invocation.exit_code == 0, invocation.output
    for planet in PLANETS:
        assert planet in invocation.output
        with Image.open(tmp_path / "shown" / f"{planet}.gif") as picture:
            assert picture.n_frames > 3
            first = np.asarray(picture.convert("RGB")).copy()
            picture.seek(picture.n_frames - 1)
            assert (np.asarray(picture.convert("RGB")) != first).any()
    rejected = CliRunner().invoke(app, ["play", "--policy", str(tmp_path / "nothing.npz")])
    assert rejected.exit_code == 2
