"""Readings of the paper: passes, steps, γ, selection and claims."""

from dataclasses import replace

import numpy as np
import pytest

from softswitch_experiments.paper import fair_readings, np_readings
from softswitch_experiments.paper.experiment import Scale
from softswitch_experiments.paper.np_study import FULL, PARTIAL, SOFTMAX, STUDY
from softswitch_experiments.paper.readings import (
    FIRST_TUNING_SEED,
    PAPER,
    TUNED,
    Entry,
    Reading,
    count_steps,
    format_interval,
    meets,
    select_setting,
)
from softswitch_experiments.paper.safe_rl_clients import planet_claims
from softswitch_experiments.paper.study import Point


def make_points(f, g, spread=0.001):
    return [Point(np.array([f + d, 0.01]), np.array([g + d, 0.0]), 0.1) for d in (-spread, 0.0, spread)]


def test_steps_of_passes():
    assert count_steps(5, rows=23, batch_size=32) == 5  # all rows are one batch
    assert count_steps(2, rows=3256, batch_size=128) == 52  # 25 full batches and a short one
    assert count_steps(1, rows=256, batch_size=128) == 2
    assert count_steps(3, rows=1000, batch_size=None) == 3


def test_local_step_of_reading():
    assert Reading("", PARTIAL, divided=True).apply(SOFTMAX).local_step_size == pytest.approx(0.1)  # η = 0.5, E = 5
    assert Reading("", PARTIAL).apply(SOFTMAX).local_step_size == 0.5
    assert Reading("", PARTIAL, divided=True).apply(SOFTMAX).step_size == 0.5


def test_grids_have_equal_size_and_paper_setting():
    for contest in (
        np_readings.make_contest(),
        fair_readings.make_contest(False),
        fair_readings.make_occupation_contest(),
    ):
        assert len({len(grid) for grid in contest.grids.values()}) == 1
    full_contest = np_readings.make_contest()
    assert len(full_contest.grids["Penalty"]) == 42
    for method, rule in STUDY.methods.items():
        assert str(rule) in map(str, full_contest.grids[method].values())
    with pytest.raises(ValueError, match="same size"):
        replace(full_contest, grids={**full_contest.grids, "Penalty": {}})


def test_selected_setting_is_best_feasible():
    tried = {"a": make_points(0.1, 0.3), "b": make_points(0.3, 0.09), "c": make_points(0.2, 0.099)}
    assert select_setting(tried) == ("c", True)
    assert select_setting({"a": make_points(0.1, 0.3), "d": make_points(0.5, 0.2)}) == ("d", False)


def test_mean_is_compared_within_interval():
    """0.10, 0.11, 0.12: mean 0.11, standard error 0.01/√3, times t(2) = 4.303: 0.0248."""
    assert format_interval([0.10, 0.11, 0.12]) == "0.110 ± 0.025"
    assert meets([0.10, 0.11, 0.12], 0.1)
    assert not meets([0.10, 0.11, 0.12], 0.08)
    assert meets([0.1], 0.1)
    assert not meets([0.11], 0.1), "a single seed has no interval"


def make_entries(**changes):
    """The first method meets G with the lower F; each change replaces one entry."""
    default_entries = {
        ("Softmax SGM", PAPER): Entry(PAPER, make_points(0.20, 0.09)),
        ("Softmax SGM", TUNED): Entry("α", make_points(0.15, 0.09)),
        ("Softmax SGM, w̄", PAPER): Entry(PAPER, make_points(0.20, 0.08)),
        ("Softmax SGM, w̄", TUNED): Entry("α", make_points(0.16, 0.08)),
        ("Penalty", PAPER): Entry(PAPER, make_points(0.10, 0.3)),
        ("Penalty", TUNED): Entry("ρ", make_points(0.25, 0.09)),
        ("Primal-dual", PAPER): Entry(PAPER, make_points(0.10, 0.3)),
        ("Primal-dual", TUNED): Entry("μ₀", make_points(0.25, 0.09)),
    }
    return {
        **default_entries,
        **{("Penalty" if key == "penalty" else "Softmax SGM", TUNED): e for key, e in changes.items()},
    }


def test_claims_can_fail_separately():
    contest, reading = np_readings.make_contest(), Reading("here", FULL)

    def failing_claims(changed_entries):
        return [i for i, claim in enumerate(contest.claims(reading, changed_entries)) if not claim.held]

    assert len(contest.claims(reading, make_entries())) == 9
    assert failing_claims(make_entries()) == []
    # 1, 2: not competitive with the penalty method; 3, 5, 7: worse at the paper's setting, tuned, and with w̄.
    assert failing_claims(make_entries(penalty=Entry("ρ", make_points(0.12, 0.09)))) == [1, 2, 3, 5, 7]
    close_entries = make_entries(penalty=Entry("ρ", make_points(0.145, 0.09)))
    assert failing_claims(close_entries) == [1, 3, 5, 7], "worse, but within 5%: 0.15 against 0.145"
    assert "+3.4%" in contest.claims(reading, close_entries)[2].measured
    assert failing_claims(make_entries(penalty=Entry("ρ", make_points(0.12, 0.2)))) == [], (
        "G is violated on the evaluation seeds"
    )
    assert failing_claims(make_entries(penalty=Entry("ρ", make_points(0.12, 0.09), met=False))) == [], (
        "G was violated on the tuning seeds"
    )
    assert failing_claims(make_entries(own=Entry("α", make_points(0.15, 0.2)))) == [2, 5, 6]


def test_tuning_and_evaluation_seeds_differ(monkeypatch):
    requests = []
    contest = np_readings.make_contest((0.5,), (4, 5))
    reading, scale = np_readings.FULL_READINGS[1], Scale(2, quick=True)

    def run(self, methods, scheme, scale, *, first=0, **options):
        requests.append((first, scale.seeds, options["batch_size"]))
        raise InterruptedError

    monkeypatch.setattr(type(STUDY), "run", run)
    with pytest.raises(InterruptedError):
        contest.tune(reading, scale)
    choices = {c.name: (next(iter(contest.grids[c.method])), True) for c in contest.contenders}
    with pytest.raises(InterruptedError):
        contest.evaluate(reading, choices, scale)
    assert requests == [(FIRST_TUNING_SEED, 2, 32), (0, 2, 32)]


def test_robustness_claim_can_fail():
    steady = {1: make_points(0.20, 0.09), 5: make_points(0.24, 0.09)}
    assert np_readings.robustness_claim("here", "w̄", steady).held
    assert not np_readings.robustness_claim("here", "w̄", {**steady, 20: make_points(0.26, 0.09)}).held
    assert not np_readings.robustness_claim("here", "w̄", {**steady, 20: make_points(0.20, 0.12)}).held


def test_planet_claims():
    names = ("earth 1", "earth 2", "mars 1")
    baseline = np.array([[100.0, 120.0, 20.0], [100.0, 120.0, 20.0]])
    gains, losses = planet_claims(names, {"Parallel CRPO": baseline, "Softmax SGM": baseline + np.array([0, 0, 30])})
    assert gains.held
    assert losses.held
    assert "mars 20 → 50, +30 ± 0" in gains.measured
    assert "0 of 2 seeds" in losses.measured
    gains, losses = planet_claims(names, {"Parallel CRPO": baseline, "Softmax SGM": baseline - np.array([70, 70, 0])})
    assert not gains.held
    assert not losses.held
    assert "earth 110 → 40" in losses.measured
    assert "2 of 2 seeds" in losses.measured
