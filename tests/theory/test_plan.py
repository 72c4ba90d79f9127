"""Plans: the bound's inverse, honest about what cannot be had."""

import json
from dataclasses import replace

import cvxpy
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import softswitch as ss
from benchmarks import flat
from softswitch.theory import Constants, Setting, bound, constraint_bound
from softswitch.theory.plan import plan

CONSTANTS = Constants(2.0, 1.0, gradient_noise=0.5, value_noise=0.2, heterogeneity=0.05)

constants = st.builds(
    Constants,
    diameter=st.floats(0.1, 10),
    lipschitz=st.floats(0.1, 10),
    gradient_noise=st.floats(0, 5),
    value_noise=st.floats(0, 2),
    heterogeneity=st.floats(0, 1),
)


@settings(max_examples=60)
@given(constants, st.floats(0.2, 5), st.integers(2, 50), st.sampled_from([1.0, 0.5]), st.sampled_from([1, 5]))
def test_plan_is_the_inverse_of_the_bound(known, factor, clients, participation, local_steps):
    """What is planned meets the wish; one row a report less, or clearly fewer rounds, does not."""
    participants = max(1, round(participation * clients))
    floor = bound(known, Setting(clients, participants, 1)).sampling if participants < clients else 0.0
    wish = floor + factor
    asked = {"clients": clients, "participation": participation, "local_steps": local_steps, "switch_share": 0.5}
    planned = plan(known, epsilon=wish, **asked)
    assert planned.met
    setting = planned.setting
    assert bound(known, setting).epsilon <= wish
    assert planned.bound == bound(known, setting)
    if setting.value_batch_size > 1:
        assert bound(known, replace(setting, value_batch_size=setting.value_batch_size - 1)).epsilon > wish
    if setting.rounds > 1:
        fewer = replace(setting, rounds=setting.rounds - max(1, setting.rounds // 50))
        assert bound(known, fewer).epsilon > wish * (1 - 1e-3)


def test_a_plan_is_cheaper_than_its_neighbours():
    planned = plan(CONSTANTS, clients=20, epsilon=0.3)
    for factor in (0.7, 0.9, 1.1, 1.5):
        rounds = round(planned.setting.rounds * factor)
        sizes = range(1, 20_000)
        low, high = 0, len(sizes) - 1
        while low < high:  # the smallest batch that meets the wish in so many rounds
            middle = (low + high) // 2
            setting = replace(planned.setting, rounds=rounds, value_batch_size=sizes[middle])
            low, high = (low, middle) if bound(CONSTANTS, setting).epsilon <= 0.3 else (middle + 1, high)
        if bound(CONSTANTS, replace(planned.setting, rounds=rounds, value_batch_size=sizes[low])).epsilon <= 0.3:
            assert rounds * 20 * (sizes[low] + 32) >= planned.samples * 0.999


def test_a_budget_is_kept_and_used_well():
    planned = plan(CONSTANTS, clients=20, samples=10**7)
    assert 0.95 * 10**7 < planned.samples <= 10**7
    for rounds in (planned.setting.rounds // 2, planned.setting.rounds * 2):
        size = 10**7 // (20 * rounds) - 32
        other = bound(CONSTANTS, replace(planned.setting, rounds=rounds, value_batch_size=size))
        assert planned.bound.epsilon <= other.epsilon
    capped = plan(CONSTANTS, clients=20, samples=10**7, rounds=100)
    assert capped.setting.rounds <= 100


def test_a_wish_below_the_sampling_error_is_refused_with_a_way_out():
    known = replace(CONSTANTS, heterogeneity=0.3)
    planned = plan(known, clients=20, participation=0.5, epsilon=0.3, switch_share=0.5)
    assert not planned.met
    floor = bound(known, Setting(20, 10, 1)).sampling
    assert planned.smallest_epsilon == pytest.approx(floor, rel=1e-5)
    assert planned.bound.epsilon == pytest.approx(1.1 * floor, rel=1e-3)
    assert f"{floor:.4g}" in planned.advice
    assert "select at least 15 clients per round" in planned.advice
    assert bound(known, Setting(20, 15, 1)).sampling < 0.3 < bound(known, Setting(20, 14, 1)).sampling
    assert plan(known, clients=20, participation=15 / 20, epsilon=0.3, switch_share=0.5).met


def test_a_wish_is_met_for_the_constraint_too_where_few_rounds_are_feasible():
    """κ = 0.05 adds 4σ ln(10)/(|ln(1−r)|n) to what is promised of G: 0.199 here."""
    known = replace(CONSTANTS, heterogeneity=0.3)
    beyond = 4 * 0.3 * np.log(10) / (np.log(2) * 20)
    bold = plan(known, clients=20, participation=0.5, epsilon=1.0, switch_share=0.5)
    careful = plan(known, clients=20, participation=0.5, epsilon=1.0)
    assert bold.met
    assert careful.met
    assert constraint_bound(known, bold.setting, 0.05) == pytest.approx(bold.bound.epsilon + beyond)
    assert constraint_bound(known, bold.setting, 0.05) > 1.0 >= careful.constraint_bound
    assert careful.constraint_bound == pytest.approx(careful.bound.epsilon + beyond)
    assert "The constraint is at most 1 if κ >= 0.05." in careful.advice
    too_low = plan(known, clients=20, participation=0.5, epsilon=0.6)
    assert not too_low.met
    assert too_low.smallest_epsilon == pytest.approx(bound(known, Setting(20, 10, 1)).sampling + beyond, rel=1e-5)
    assert plan(known, clients=20, participation=0.5, epsilon=0.6, switch_share=0.5).met
    assert plan(CONSTANTS, clients=20, epsilon=0.5) == plan(CONSTANTS, clients=20, epsilon=0.5, switch_share=0.05)


def test_a_server_that_remembers_is_not_bound_by_the_sampling_error():
    """n = 20, m = 5: two places by g, one by f, two by turns; T = 2·10 − 1 = 19."""
    known = Constants(2.0, 1.0, heterogeneity=0.5)
    plain = plan(known, clients=20, participation=0.25, epsilon=0.5)
    assert not plain.met
    kept = plan(known, clients=20, participation=0.25, epsilon=0.5, memory=ss.Memory())
    assert kept.met
    assert kept.setting.longest_wait == 19
    assert kept.bound.sampling == pytest.approx(6 * 19 * kept.bound.step_size)
    assert kept.constraint_bound == kept.bound.epsilon <= 0.5
    assert "staleness error" in str(kept)
    few = plan(known, clients=20, participation=0.25, epsilon=0.5, memory=ss.Memory(), rounds=100)
    assert "cannot be met in 100 rounds" in few.advice
    with pytest.raises(ValueError, match="smoothing=0"):
        plan(known, clients=20, participation=0.25, epsilon=0.5, memory=ss.Memory(smoothing=0.5))
    with pytest.raises(ValueError, match="at least 3 per round"):
        plan(known, clients=20, participation=0.1, epsilon=0.5, memory=ss.Memory())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_what_is_planned_with_memory_is_kept(seed):
    """Linear functions on a disc, three of eight clients a round; the optimum is CVXPY's."""
    generator = np.random.default_rng(seed)
    normals, goals = (generator.normal(size=(8, 2)) for _ in range(2))
    normals, goals = (rows / np.linalg.norm(rows, axis=1)[:, None] for rows in (normals, goals))
    offsets = generator.uniform(0, 0.3, 8)
    memory = ss.Memory()
    planned = plan(Constants(2.0, 1.0), clients=8, participation=3 / 8, epsilon=0.6, memory=memory)
    assert planned.met
    w = cvxpy.Variable(2)
    constraints = [normals @ w <= offsets, cvxpy.norm(w) <= 1]
    optimum = cvxpy.Problem(cvxpy.Minimize(cvxpy.max(goals @ w)), constraints).solve()
    clients = ss.ClientData.from_arrays({"a": normals, "c": goals, "b": offsets}, client=np.arange(8))
    problem = ss.Problem(
        lambda w, d: d["c"][0] @ w, lambda w, d: d["a"][0] @ w - d["b"][0], jnp.array([0.6, -0.6]), ss.Ball(1.0)
    )
    options = {**planned.solve_options(), "batch_size": None, "value_batch_size": None, "eval_every": 0}
    method = ss.SoftmaxSGM(**planned.method_settings())
    result = flat.solve(problem, clients, method, memory=memory, seed=seed, **options)
    assert result.worst_objective - optimum <= planned.bound.epsilon
    assert result.worst_constraint <= planned.bound.epsilon


def test_too_few_rounds_are_said_so():
    planned = plan(CONSTANTS, clients=20, epsilon=0.3, rounds=100)
    assert not planned.met
    assert "in 100 rounds" in planned.advice
    assert planned.smallest_epsilon == pytest.approx(
        bound(replace(CONSTANTS, value_noise=0.0), Setting(20, 20, 100)).epsilon
    )
    assert planned.setting.rounds <= 100
    assert planned.smallest_epsilon < planned.bound.epsilon <= 1.1 * planned.smallest_epsilon


def test_two_obstacles_are_both_named():
    known = replace(CONSTANTS, heterogeneity=0.3)
    planned = plan(known, clients=20, participation=0.5, epsilon=0.3, rounds=100, switch_share=0.5)
    assert "select at least 15 clients per round, and allow more than 100 rounds" in planned.advice


@pytest.mark.parametrize("wish", [1e-9, 1e-7])
def test_a_wish_beyond_all_means(wish):
    planned = plan(replace(CONSTANTS, value_noise=0.5), clients=20, epsilon=wish)
    assert not planned.met
    assert "cannot be met in any practical number of rounds and rows" in planned.advice


def test_odd_corners():
    quiet = Constants(2.0, 1.0)
    assert plan(quiet, clients=1, epsilon=0.1).bound.alpha == 0
    assert plan(quiet, clients=5, epsilon=0.1).setting.value_batch_size == 1
    assert plan(quiet, clients=5, samples=10**6, rounds=100).setting.value_batch_size == 1
    assert plan(CONSTANTS, clients=5, samples=165).setting.rounds == 1
    assert plan(CONSTANTS, clients=50, participation=0.001, epsilon=9.0).setting.participants == 1
    assert plan(CONSTANTS, clients=5, epsilon=1e6).setting.rounds == 1


@pytest.mark.parametrize(
    ("known", "participation", "dominant", "remedy"),
    [
        (Constants(2.0, 1.0), 1.0, "optimization", "twice the rounds"),
        (replace(CONSTANTS, value_noise=0.0, gradient_noise=5.0), 1.0, "optimization", "twice the rows per gradient"),
        (replace(CONSTANTS, value_noise=9.0, gradient_noise=0.0), 1.0, "estimation", "twice the rows per report"),
        (replace(CONSTANTS, heterogeneity=1.0), 0.5, "sampling", "20 clients per round"),
    ],
)
def test_the_dominant_error_and_its_remedy(known, participation, dominant, remedy):
    budget = 10**4 if dominant == "estimation" else 10**8
    planned = plan(known, clients=20, participation=participation, samples=budget, rounds=10_000)
    assert planned.bound.dominant == dominant
    assert f"The {dominant} error dominates" in planned.advice
    assert f"cheapest way to lower it: {remedy}" in planned.advice


def test_forms():
    planned = plan(CONSTANTS, clients=20, participation=0.5, local_steps=5, epsilon=1.0)
    assert json.loads(json.dumps(planned.to_dict()))["bound"]["epsilon"] <= 1.0
    assert "Plan by Theorem 3" in str(planned)
    method = ss.SoftmaxSGM(**planned.method_settings())
    assert method.switch_at == pytest.approx(planned.bound.epsilon / 2)
    assert (method.step_size, method.local_step_size) == (planned.bound.step_size, planned.bound.local_step_size)
    assert ss.SoftmaxSGM(**planned.method_settings() | {"alpha": 99.0}).alpha == 99


def test_bad_wishes():
    with pytest.raises(ValueError, match="give either epsilon or samples"):
        plan(CONSTANTS, clients=5)
    with pytest.raises(ValueError, match="give either epsilon or samples"):
        plan(CONSTANTS, clients=5, epsilon=1, samples=10)
    with pytest.raises(ValueError, match="samples must be at least 165, one round of m = 5"):
        plan(CONSTANTS, clients=5, samples=10)
    with pytest.raises(ValueError, match="epsilon must be a finite number and > 0, but is 0"):
        plan(CONSTANTS, clients=5, epsilon=0)


def test_slaters_condition_replaces_the_assumption_on_the_share_of_feasible_rounds():
    """DL = 2, ν = 0.2: κ >= 0.2/(2.2 + ε); the promise on G has ln(1/2 + (2 + ε)/0.4) in it."""
    known = replace(CONSTANTS, heterogeneity=0.3)
    planned = plan(known, clients=20, participation=0.5, epsilon=1.0, slater=0.2)
    assert planned.met
    epsilon, unit = planned.bound.epsilon, 0.3 / (np.log(2) * 20)
    assert planned.switch_share == pytest.approx(0.2 / (2.2 + epsilon))
    assert planned.constraint_bound == pytest.approx(epsilon + 4 * unit * np.log(0.5 + (2 + epsilon) / 0.4))
    assert 0.999 < planned.constraint_bound <= 1.0, "all of the wish is used"
    assert "follows from Slater's condition" in planned.advice
    assert json.loads(json.dumps(planned.to_dict()))["slater"] == 0.2
    closer = plan(known, clients=20, participation=0.5, epsilon=1.0, slater=2.0)
    assert closer.samples < planned.samples
    assert plan(known, clients=20, participation=0.5, epsilon=1.0, slater=1e-9, switch_share=0.05).met
    assert not plan(known, clients=20, participation=0.5, epsilon=1.0, slater=1e-9).met
    with pytest.raises(ValueError, match="slater must be a finite number and > 0, but is 0"):
        plan(known, clients=20, epsilon=1.0, slater=0)


def test_what_is_promised_whatever_the_share_of_feasible_rounds():
    known = replace(CONSTANTS, heterogeneity=0.3)
    planned = plan(known, clients=20, participation=0.5, epsilon=1.0)
    sure = planned.bound.epsilon + 4 * 0.3 * np.log(planned.setting.rounds / 2) / (np.log(2) * 20)
    assert f"For any κ >= 1/K it is at most {sure:.4g}." in planned.advice


@pytest.mark.parametrize(("gap", "shape"), [("half-normal", ()), ("exponential", ()), ("beta", (1.0, 1.0))])
def test_a_plan_with_another_gap_meets_its_wish_and_no_less_would(gap, shape):
    known = replace(CONSTANTS, heterogeneity=0.02, gap=gap, gap_shape=shape)
    planned = plan(known, clients=200, participation=0.1, epsilon=0.3)
    assert planned.met
    assert planned.constraint_bound == planned.bound.epsilon == bound(known, planned.setting).epsilon <= 0.3
    fewer = replace(planned.setting, rounds=planned.setting.rounds * 49 // 50)
    assert bound(known, fewer).epsilon > 0.3 * (1 - 1e-3)
    assert "for any κ." in planned.advice
    assert planned.to_dict()["constants"]["gap"] == gap


def test_a_plan_that_only_a_stretch_of_rounds_meets():
    """With few of many clients the general error grows with ln K for long: ε falls, and rises again."""
    known = Constants(0.05, 1.0, heterogeneity=1.0, gap="exponential")
    errors = {k: bound(known, Setting(10**5, 1000, k)).epsilon for k in (50, 500, 5000, 50_000, 500_000)}
    least = min(errors, key=errors.get)
    assert least == 5000
    planned = plan(known, clients=10**5, participation=0.01, epsilon=1.0001 * errors[5000])
    assert planned.met
    assert 4000 < planned.setting.rounds <= 5000
    assert planned.smallest_epsilon <= errors[5000] * 1.0001
    refused = plan(known, clients=10**5, participation=0.01, epsilon=0.97 * planned.smallest_epsilon)
    assert not refused.met


def test_another_gap_is_refused_with_a_way_out():
    known = Constants(2.0, 1.0, heterogeneity=0.3, gap="half-normal")
    refused = plan(known, clients=20, participation=0.5, epsilon=0.2)
    assert not refused.met
    # 2σQ(1 − r) at most: 0.6·0.6745 = 0.4047 at r = 0.5.
    assert refused.smallest_epsilon == pytest.approx(0.6 * 0.6744898, rel=1e-5)
    enough = int(refused.advice.split("select at least ")[1].split()[0])
    assert plan(known, clients=20, participation=enough / 20, epsilon=0.2).met
    assert not plan(known, clients=20, participation=(enough - 1) / 20, epsilon=0.2).met


def test_the_general_bound_is_told_where_it_promises_more_of_a_uniform_gap():
    """σ(1 − r) is the most that 10 of 20 clients can miss, so 2σ(1 − r) = 0.3; Theorem 3 has 0.5593 at κ >= ½."""
    known = Constants(2.0, 1.0, heterogeneity=0.3)
    refused = plan(known, clients=20, participation=0.5, epsilon=0.4)
    assert "general bound (gap 'beta' of shape (1, 1)) gives ε = 0.3" in refused.advice
    general = replace(known, gap="beta", gap_shape=(1, 1))
    assert plan(general, clients=20, participation=0.5, epsilon=0.4).met
    assert "general bound" not in plan(known, clients=10**5, participation=0.5, epsilon=0.1).advice


def test_settings_that_break_the_rules_of_thumb_are_warned_of():
    """σ_g/L = 0.5: one row is enough. σ_g = 20: 400 rows a round. E² > K."""
    assert plan(CONSTANTS, clients=20, epsilon=0.5).warnings == ()
    noisy = replace(CONSTANTS, gradient_noise=20.0)
    (noise,) = plan(noisy, clients=20, epsilon=0.5).warnings
    assert "B_g·E = 32 gradient rows" in noise
    assert "(σ_g/L)² = 400" in noise
    assert "σ̄² = 12.5" in noise
    assert plan(noisy, clients=20, epsilon=0.5, batch_size=400).warnings == ()
    planned = plan(CONSTANTS, clients=20, epsilon=5.0, local_steps=50)
    (drift,) = planned.warnings
    rounds = planned.setting.rounds
    assert rounds < 2500
    assert f"E = 50 local steps are more than √K = {np.sqrt(rounds):.4g}" in drift
    assert f"by {1 + 50 / np.sqrt(6 * rounds):.3g}." in drift
    assert f"Warning: {drift[:40]}" in str(planned)
    assert planned.to_dict()["warnings"] == [drift]


def test_local_steps_and_gradient_rows_are_chosen():
    noisy = replace(CONSTANTS, gradient_noise=20.0)
    fixed = plan(noisy, clients=20, epsilon=0.5)
    both = plan(noisy, clients=20, epsilon=0.5, local_steps=None, batch_size=None)
    rows = plan(noisy, clients=20, epsilon=0.5, local_steps=4, batch_size=None)
    steps = plan(noisy, clients=20, epsilon=0.5, local_steps=None)
    assert both.setting.local_steps == 1
    assert both.setting.batch_size % 400 == 0
    assert rows.setting.local_steps == 4
    assert rows.setting.batch_size * 4 >= 400
    assert steps.setting.batch_size == 32
    assert 32 * steps.setting.local_steps >= 400
    assert steps.setting.local_steps**2 <= steps.setting.rounds
    for planned in (both, rows, steps):
        assert planned.met
        assert planned.warnings == ()
    assert both.samples < min(rows.samples, fixed.samples)
    # Cheaper than the same with half or twice as many rows a gradient.
    for size in (both.setting.batch_size // 2, both.setting.batch_size * 2):
        assert plan(noisy, clients=20, epsilon=0.5, batch_size=size).samples >= both.samples
    budget = plan(noisy, clients=20, samples=10**7, local_steps=None, batch_size=None)
    assert budget.samples <= 10**7
    assert budget.bound.epsilon < plan(noisy, clients=20, samples=10**7).bound.epsilon
    with pytest.raises(ValueError, match="samples must be at least"):
        plan(noisy, clients=20, samples=100, local_steps=None, batch_size=None)
