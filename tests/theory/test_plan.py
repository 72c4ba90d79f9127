"""Plans: the inverse of the bound, and unreachable targets."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import softswitch as ss
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
def test_plan_is_inverse_of_bound(problem_constants, factor, clients, participation, local_steps):
    """The plan meets the target; one row fewer per report or 2% fewer rounds do not."""
    participants = max(1, round(participation * clients))
    floor = bound(problem_constants, Setting(clients, participants, 1)).sampling if participants < clients else 0.0
    target_epsilon = floor + factor
    options = {"clients": clients, "participation": participation, "local_steps": local_steps, "switch_share": 0.5}
    planned = plan(problem_constants, epsilon=target_epsilon, **options)
    assert planned.met
    setting = planned.setting
    assert bound(problem_constants, setting).epsilon <= target_epsilon
    assert planned.bound == bound(problem_constants, setting)
    if setting.value_batch_size > 1:
        assert (
            bound(problem_constants, replace(setting, value_batch_size=setting.value_batch_size - 1)).epsilon
            > target_epsilon
        )
    if setting.rounds > 1:
        fewer_rounds = replace(setting, rounds=setting.rounds - max(1, setting.rounds // 50))
        assert bound(problem_constants, fewer_rounds).epsilon > target_epsilon * (1 - 1e-3)


def test_plan_is_cheaper_than_neighbours():
    planned = plan(CONSTANTS, clients=20, epsilon=0.3)
    for factor in (0.7, 0.9, 1.1, 1.5):
        rounds = round(planned.setting.rounds * factor)
        sizes = range(1, 20_000)
        low, high = 0, len(sizes) - 1
        while low < high:  # the smallest batch that meets the target in this number of rounds
            middle = (low + high) // 2
            setting = replace(planned.setting, rounds=rounds, value_batch_size=sizes[middle])
            low, high = (low, middle) if bound(CONSTANTS, setting).epsilon <= 0.3 else (middle + 1, high)
        if bound(CONSTANTS, replace(planned.setting, rounds=rounds, value_batch_size=sizes[low])).epsilon <= 0.3:
            assert rounds * 20 * (sizes[low] + 32) >= planned.setting.samples * 0.999


def test_target_below_sampling_error_is_rejected_with_advice():
    heterogeneous = replace(CONSTANTS, heterogeneity=0.3)
    planned = plan(heterogeneous, clients=20, participation=0.5, epsilon=0.3, switch_share=0.5)
    assert not planned.met
    floor = bound(heterogeneous, Setting(20, 10, 1)).sampling
    assert planned.smallest_epsilon == pytest.approx(floor, rel=1e-5)
    assert planned.bound.epsilon == pytest.approx(1.1 * floor, rel=1e-3)
    assert f"{floor:.4g}" in planned.advice
    assert "select at least 15 clients per round" in planned.advice
    assert bound(heterogeneous, Setting(20, 15, 1)).sampling < 0.3 < bound(heterogeneous, Setting(20, 14, 1)).sampling
    assert plan(heterogeneous, clients=20, participation=15 / 20, epsilon=0.3, switch_share=0.5).met


def test_plan_covers_constraint_with_few_feasible_rounds():
    """κ = 0.05 adds 4σ ln(10)/(|ln(1−r)|n) to the bound of G: 0.199 here."""
    heterogeneous = replace(CONSTANTS, heterogeneity=0.3)
    excess = 4 * 0.3 * np.log(10) / (np.log(2) * 20)
    with_share = plan(heterogeneous, clients=20, participation=0.5, epsilon=1.0, switch_share=0.5)
    without_share = plan(heterogeneous, clients=20, participation=0.5, epsilon=1.0)
    assert with_share.met
    assert without_share.met
    assert constraint_bound(heterogeneous, with_share.setting, 0.05) == pytest.approx(with_share.bound.epsilon + excess)
    assert constraint_bound(heterogeneous, with_share.setting, 0.05) > 1.0 >= without_share.constraint_bound
    assert without_share.constraint_bound == pytest.approx(without_share.bound.epsilon + excess)
    assert "The constraint is at most 1 if κ >= 0.05." in without_share.advice
    infeasible = plan(heterogeneous, clients=20, participation=0.5, epsilon=0.6)
    assert not infeasible.met
    assert infeasible.smallest_epsilon == pytest.approx(
        bound(heterogeneous, Setting(20, 10, 1)).sampling + excess, rel=1e-5
    )
    assert plan(heterogeneous, clients=20, participation=0.5, epsilon=0.6, switch_share=0.5).met
    assert plan(CONSTANTS, clients=20, epsilon=0.5) == plan(CONSTANTS, clients=20, epsilon=0.5, switch_share=0.05)


def test_too_few_rounds_are_reported():
    planned = plan(CONSTANTS, clients=20, epsilon=0.3, rounds=100)
    assert not planned.met
    assert "in 100 rounds" in planned.advice
    assert planned.smallest_epsilon == pytest.approx(
        bound(replace(CONSTANTS, value_noise=0.0), Setting(20, 20, 100)).epsilon
    )
    assert planned.setting.rounds <= 100
    assert planned.smallest_epsilon < planned.bound.epsilon <= 1.1 * planned.smallest_epsilon


def test_two_obstacles_are_reported():
    heterogeneous = replace(CONSTANTS, heterogeneity=0.3)
    planned = plan(heterogeneous, clients=20, participation=0.5, epsilon=0.3, rounds=100, switch_share=0.5)
    assert "select at least 15 clients per round, and allow more than 100 rounds" in planned.advice


@pytest.mark.parametrize("target_epsilon", [1e-9, 1e-7])
def test_unreachable_target(target_epsilon):
    planned = plan(replace(CONSTANTS, value_noise=0.5), clients=20, epsilon=target_epsilon)
    assert not planned.met
    assert "cannot be met in any practical number of rounds and rows" in planned.advice


def test_edge_cases():
    noiseless = Constants(2.0, 1.0)
    assert plan(noiseless, clients=1, epsilon=0.1).bound.alpha == 0
    assert plan(noiseless, clients=5, epsilon=0.1).setting.value_batch_size == 1
    assert plan(CONSTANTS, clients=50, participation=0.001, epsilon=9.0).setting.participants == 1
    assert plan(CONSTANTS, clients=5, epsilon=1e6).setting.rounds == 1


@pytest.mark.parametrize(
    ("problem_constants", "participation", "epsilon", "dominant"),
    [
        (Constants(2.0, 1.0), 1.0, 0.1, "optimization"),
        (replace(CONSTANTS, value_noise=0.0, gradient_noise=5.0), 1.0, 1.0, "optimization"),
        (replace(CONSTANTS, value_noise=9.0, gradient_noise=0.0), 1.0, 9.0, "estimation"),
        (replace(CONSTANTS, heterogeneity=1.0), 0.5, 3.0, "sampling"),
    ],
)
def test_dominant_error(problem_constants, participation, epsilon, dominant):
    planned = plan(problem_constants, clients=20, participation=participation, epsilon=epsilon, rounds=10_000)
    assert planned.bound.dominant == dominant
    assert f"The {dominant} error dominates" in planned.advice


def test_text_and_dict():
    planned = plan(CONSTANTS, clients=20, participation=0.5, local_steps=5, epsilon=1.0)
    assert json.loads(json.dumps(planned.to_dict()))["bound"]["epsilon"] <= 1.0
    assert "Plan by Theorem 3" in str(planned)
    method = ss.SoftmaxSGM(**planned.method_settings())
    assert method.switch_at == pytest.approx(planned.bound.epsilon / 2)
    assert (method.step_size, method.local_step_size) == (planned.bound.step_size, planned.bound.local_step_size)
    assert ss.SoftmaxSGM(**planned.method_settings() | {"alpha": 99.0}).alpha == 99


def test_bad_targets_are_rejected():
    with pytest.raises(ValueError, match="epsilon must be a finite number and > 0, but is 0"):
        plan(CONSTANTS, clients=5, epsilon=0)


def test_guarantee_for_any_share_of_feasible_rounds():
    heterogeneous = replace(CONSTANTS, heterogeneity=0.3)
    planned = plan(heterogeneous, clients=20, participation=0.5, epsilon=1.0)
    guaranteed = planned.bound.epsilon + 4 * 0.3 * np.log(planned.setting.rounds / 2) / (np.log(2) * 20)
    assert f"For any κ >= 1/K it is at most {guaranteed:.4g}." in planned.advice


def test_rule_of_thumb_warnings():
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
    assert list(planned.to_dict()["warnings"]) == [drift]
