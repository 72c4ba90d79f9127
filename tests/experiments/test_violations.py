"""Counts of violated rounds, speed of convergence, and claims that can fail."""

from types import SimpleNamespace

import numpy as np
import pytest

from softswitch.theory.theorems import Constants
from softswitch_experiments.paper import error_budget
from softswitch_experiments.paper.np_sweeps import Progress, speed_claims
from softswitch_experiments.paper.violations import count_violations, fewer_violations, met_early, violation_rows


class History(SimpleNamespace):
    """The part of a history that these claims read."""

    def __len__(self):
        return len(self.constraint)


def run(full, reports, seed=0):
    """Return a run of ten rounds with an evaluation in every second round."""
    history = History(
        full=SimpleNamespace(constraint=np.array(full)), full_rounds=np.arange(0, 10, 2), constraint=np.array(reports)
    )
    return SimpleNamespace(history=history, method=SimpleNamespace(tolerance=0.1), seed=seed)


def test_violation_counts():
    counts = count_violations(run([0.7, 0.2, 0.1, 0.05, 0.11], [0.7] * 6 + [0.1] * 4))
    assert (counts.evaluated, counts.violated, counts.share) == (5, 3, 0.6)
    assert (counts.late_evaluated, counts.late_violated) == (2, 1), "rounds 6 and 8"
    assert (counts.rounds, counts.reported, counts.first_met) == (10, 6, 4)
    assert count_violations(run([0.2] * 5, [0.2] * 10)).first_met is None
    (row,) = violation_rows([run([0.7, 0.2, 0.1, 0.05, 0.11], [0.7] * 10)], scheme="all")
    assert row["scheme"] == "all"
    assert row["violated_share"] == 0.6


def test_violation_claims_can_fail():
    few_violations = [run([0.7, 0.1, 0.1, 0.1, 0.1], [0] * 10), run([0.7, 0.7, 0.1, 0.1, 0.1], [0] * 10)]
    bad = [run([0.7] * 5, [0] * 10), run([0.7] * 4 + [0.1], [0] * 10)]
    (claim,) = fewer_violations("", {"a": few_violations, "b": bad}, "a", ["b"])
    assert not claim.held, "differences of 0.8 and 0.4: the interval of two seeds is wide"
    equal_runs = [run([0.7] * 5, [0] * 10)] * 2
    (claim,) = fewer_violations("", {"a": [few_violations[0]] * 2, "b": equal_runs}, "a", ["b"])
    assert claim.held
    assert "more by 0.80 ± 0.00" in claim.measured
    assert not met_early("", few_violations).held, "round 4 of 10 is late"
    assert met_early("", [run([0.1] * 5, [0] * 10)]).held


def make_course(constraint, objective=(0.5, 0.4, 0.3), per_round=10):
    rounds = np.array([100, 400, 1000])
    return Progress(rounds, per_round * rounds, np.array(objective), np.array(constraint))


def test_met_is_permanent():
    assert make_course([0.05, 0.2, 0.1]).until_met() == 1000
    assert make_course([0.2, 0.1, 0.1]).until_met("gradients") == 4000
    assert make_course([0.05, 0.05, 0.2]).until_met() == np.inf


def test_speed_claims_can_fail():
    """Few participants never meet it. All meet it in a tenth of the rounds, with ten times the gradients per round."""
    two_clients_never, full_participation = (
        [make_course([0.2] * 3)] * 2,
        [make_course([0.1] * 3, (0.4, 0.3, 0.2), 100)] * 2,
    )
    assert [claim.held for claim in speed_claims({0.1: two_clients_never, 1.0: full_participation})] == [
        True,
        True,
        True,
        True,
    ]
    assert [claim.held for claim in speed_claims({0.1: full_participation, 1.0: two_clients_never})] == [False] * 4
    slow = [make_course([0.2, 0.1, 0.1])] * 2  # 400 rounds, 4000 gradients; against 100 rounds, 10,000 gradients
    assert [claim.held for claim in speed_claims({0.1: slow, 1.0: full_participation})][:2] == [True, False]


def test_theory_lines():
    """D = 10, L = 2, σ_ζ = 1, σ = 0.5, δ = 0.05, n = 20, K = 1000."""
    constants = Constants(10.0, 2.0, 3.0, 1.0, 0.5)
    lines = error_budget.theory_lines(constants, (100, 10_000), (8,), (10, 20), 1000)
    assert lines["optimization"] == pytest.approx([4.0, 0.4])  # 2·10·2/√K: gradients are exact
    assert lines["estimation"] == pytest.approx([4 * np.sqrt(2 * 15.3841266 / 8)], rel=1e-6)  # ln(12·1000·20/0.05)
    assert lines["sampling"] == pytest.approx([2 * 6.4614682 / (0.6931472 * 20), 0], rel=1e-6)  # 4·0.5·ln(640)
    assert lines["general"] == pytest.approx([2 * 0.5 * 0.5, 0])  # the cap 2σ(1 − r): ln(160,000)/13.86 is above ½
    assert error_budget._covers("sampling", lines["sampling"], np.array([[0.1], [0.0]])).held
    low = error_budget._covers("optimization", lines["optimization"], np.array([[0.5], [0.5]]))
    assert not low.held
    assert "loose by a factor of 0.8 to 8" in low.measured
