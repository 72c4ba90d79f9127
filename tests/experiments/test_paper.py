"""softswitch paper: outputs of the quick versions, and claims that can fail."""

import csv
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import cvxpy
import numpy as np
import pytest
from typer.testing import CliRunner

from softswitch.cli import app
from softswitch.results.folder import find_runs
from softswitch.results.report.page import write_report
from softswitch_experiments.paper import (
    EXPERIMENTS,
    alpha_tradeoff,
    error_budget,
    fair_frontier,
    fair_noniid,
    np_sweeps,
    safe_rl_study,
    tuning,
)
from softswitch_experiments.paper.experiment import Claim, Scale
from softswitch_experiments.paper.np_study import FULL, STUDY
from softswitch_experiments.paper.study import Point, answers, gradient_evaluations, last_iterates, paired_difference

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def paper_outputs(tmp_path_factory):
    """Run each experiment once in its quick version, and return its folder and printed output."""
    out, printed = tmp_path_factory.mktemp("results"), {}

    def run(name):
        if name not in printed:
            invocation = CliRunner().invoke(app, ["paper", name, "--quick", "--seeds", "1", "--out", str(out)])
            assert invocation.exit_code == 0, invocation.output
            printed[name] = invocation.output
        return out / name, printed[name]

    return run


def test_list_and_unknown_name():
    runner = CliRunner()
    listed = runner.invoke(app, ["paper"]).output
    assert all(name in listed for name in EXPERIMENTS)
    rejected = runner.invoke(app, ["paper", "np-comparson"])
    assert rejected.exit_code == 2
    assert "np-comparson" in rejected.output
    assert runner.invoke(app, ["paper", "all", "--seeds", "0"]).exit_code == 2


SAFE_RL = [name for name in EXPERIMENTS if name.startswith("safe-rl")]  # these share their runs
SMALL_SETTINGS = {
    "horizon": 15,
    "gradient_episodes": 2,
    "estimation_episodes": 2,
    "evaluation_episodes": 2,
    "hidden": (8,),
}

SLOW = (
    "alpha-scale",
    "alpha-tradeoff",
    "error-budget",
    "fair-alpha",
    "fair-comparison",
    "fair-noniid",
    "fair-noniid-readings",
    "fair-passes",
    "fair-readings",
    "fair-frontier",
    "fair-optimizer",
    "fair-criterion",
    "fair-tuning",
    "local-steps",
    "local-steps-readings",
    "np-noniid",
    "np-readings",
    "np-readings-partial",
    "np-tuning",
    "sgm-comparison",
)
SINGLE_EXPERIMENTS = [
    pytest.param([name], marks=[pytest.mark.slow] if name in SLOW else [], id=name)
    for name in EXPERIMENTS
    if name not in SAFE_RL
]


@pytest.mark.parametrize("names", [*SINGLE_EXPERIMENTS, pytest.param(SAFE_RL, id="safe-rl", marks=pytest.mark.slow)])
def test_figures_and_claims_are_written(paper_outputs, names):
    for name in names:
        check_outputs(name, *paper_outputs(name))


def test_safe_rl_figures_with_few_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(safe_rl_study, "_cache", {})
    monkeypatch.setattr(safe_rl_study, "QUICK", SMALL_SETTINGS)
    monkeypatch.setattr(safe_rl_study, "QUICK_ROUNDS", 10)
    for name in SAFE_RL:
        invocation = CliRunner().invoke(app, ["paper", name, "--quick", "--seeds", "1", "--out", str(tmp_path)])
        assert invocation.exit_code == 0, invocation.output
        check_outputs(name, tmp_path / name, invocation.output)


def check_outputs(name, folder, printed):
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")
    tables = list(folder.glob("*.csv"))
    assert tables
    for table in tables:
        with table.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert rows
        assert "nan" not in [value for row in rows for value in row.values()]
    claims = json.loads((folder / "claims.json").read_text())
    assert claims["quick"]
    assert claims["seeds"] == 1
    assert claims["claims"] or name == "participation", "its quick version has a single point and no comparison"
    for claim in claims["claims"]:
        assert str(Claim(**claim)) in printed


@pytest.mark.slow
def test_number_of_seeds(tmp_path):
    invocation = CliRunner().invoke(app, ["paper", "alpha-sensitivity", "--quick", "--out", str(tmp_path)])
    assert invocation.exit_code == 0, invocation.output
    assert "2 seeds" in invocation.output
    with (tmp_path / "alpha-sensitivity" / "answers.csv").open(newline="") as stream:
        assert {row["seed"] for row in csv.DictReader(stream)} == {"0", "1"}


def points_with_constraints(*constraints):
    return [Point(np.array([0.3, 0.1]), np.array([g, 0.0]), 0.1) for g in constraints]


def test_significant_rise_is_detected():
    assert np_sweeps._falls(
        {
            1.0: points_with_constraints(0.5, 0.6),
            2.0: points_with_constraints(0.1, 0.2),
            3.0: points_with_constraints(0.12, 0.22),
        }
    )
    assert not np_sweeps._falls(
        {
            1.0: points_with_constraints(0.5, 0.6),
            2.0: points_with_constraints(0.1, 0.12),
            3.0: points_with_constraints(0.15, 0.17),
        }
    )
    assert not np_sweeps._falls({1.0: points_with_constraints(0.5), 2.0: points_with_constraints(0.51)})


def test_steady_small_rise_is_not_a_fall():
    rising = {float(k): points_with_constraints(0.1 + 0.01 * k, 0.14 + 0.01 * k) for k in range(6)}
    assert not np_sweeps._falls(rising)
    assert not np_sweeps._falls({1.0: points_with_constraints(0.1, 0.2), 2.0: points_with_constraints(0.1, 0.2)})


def test_paired_difference():
    difference, error = paired_difference(
        points_with_constraints(0.5, 0.7), points_with_constraints(0.2, 0.2), "worst_constraint"
    )
    assert difference == pytest.approx(0.4)
    assert error == pytest.approx(1.2706, abs=1e-4)  # 0.3 and 0.5: standard error 0.1, times t(1) = 12.706
    assert paired_difference(points_with_constraints(0.5), points_with_constraints(0.2), "worst_constraint") == (
        pytest.approx(0.3),
        np.inf,
    )


def test_slopes_of_power_law():
    rounds = np.array([100, 1000, 10_000])
    gaps = np.stack([3 * rounds**-0.5, 2 * rounds**-0.7], axis=1)
    middle, low, high = error_budget.slopes(rounds, gaps)
    assert middle == pytest.approx(-0.6)
    # Two slopes, −0.5 and −0.7: the standard error is 0.1, and t with one degree of freedom 12.706.
    assert (low, high) == pytest.approx((-0.6 - 1.2706, -0.6 + 1.2706), abs=1e-3)
    assert error_budget._slope_claim(rounds, np.stack([rounds**-0.6, rounds**-0.61], axis=1)).held
    assert not error_budget._slope_claim(rounds, np.stack([rounds**-0.3, rounds**-0.31], axis=1)).held
    assert not error_budget._slope_claim(rounds, np.array([[0.1], [0.05], [-0.01]])).held, "a negative gap has no slope"


def test_regime_claims_can_fail():
    for regime, product in alpha_tradeoff.REGIMES.items():
        right = alpha_tradeoff.iterates(alpha_tradeoff.run_method(product))
        assert alpha_tradeoff._claim(regime, product, right).held
        altered = right.copy()
        altered[-2] += 0.01
        assert not alpha_tradeoff._claim(regime, product, altered).held


def test_iterates_match_recurrence():
    w = alpha_tradeoff.iterates(alpha_tradeoff.run_method(1.8, rounds=20))
    expected = [alpha_tradeoff.START]
    for _ in range(19):
        expected.append(expected[-1] - np.tanh(1.8 * expected[-1]))
    np.testing.assert_allclose(w, expected, atol=1e-5)


def test_tuned_setting_is_best_feasible(monkeypatch):
    results = {
        (1.0, 0.0, 0.1): [Point(np.array([0.1]), np.array([0.2]), 0.1)],
        (2.5, 0.0, 0.1): [Point(np.array([0.4]), np.array([0.09]), 0.1)],
        (5.0, 0.0, 0.1): [Point(np.array([0.3]), np.array([0.1]), 0.1)],
    }
    monkeypatch.setattr(tuning, "run_grid", lambda *_: results)
    assert tuning.find_best(STUDY, "Penalty", FULL, Scale(1)).penalty == 5.0
    del results[2.5, 0.0, 0.1], results[5.0, 0.0, 0.1]
    assert tuning.find_best(STUDY, "Penalty", FULL, Scale(1)) is None


def test_width_of_good_region():
    """Two curves over 1, 10, 100, 1000: the longest contiguous range is 10 to 1000 on the second."""
    level = dict.fromkeys([(v, 0.0, 0.1) for v in (1, 10, 100, 1000)], 1.0)
    level |= {(1, 0.0, 0.5): 9.0, (10, 0.0, 0.5): 1.0, (100, 0.0, 0.5): 1.1, (1000, 0.0, 0.5): 1.2}
    level[100, 0.0, 0.1] = np.inf
    assert tuning.good_range(level, 1.25) == pytest.approx(2.0)
    assert tuning.good_range(level, 1.05) == pytest.approx(1.0)
    assert tuning.good_range(level, 0.5) == 0
    assert tuning.good_range(dict.fromkeys(level, np.inf), np.inf) == 0


def test_no_good_region_without_feasible_setting():
    bad = {(v, 0.0, 0.1): points_with_constraints(0.5, 0.5) for v in (1, 10, 100)}
    assert not tuning._claim({"Softmax SGM": bad, "Penalty": bad, "Primal-dual": bad}, FULL, 0.1).held


def answer_with(f, g):
    return [Point(np.array([f + d, 0.1]), np.array([g, 0.0]), 0.05) for d in (0.0, 0.001, -0.001)]


def test_occupation_claims_can_fail():
    """Change the values of one method at a time beyond the limit of its claim."""
    right = (answer_with(0.47, 0.14), answer_with(0.47, 0.04), answer_with(0.50, 0.03), answer_with(0.53, 0.02))
    wide = [Point(p.objective, np.array([0.06, 0.06, 0.01, 0.01]), 0.05) for p in right[0]]
    right = (wide, *right[1:])
    assert [claim.held for claim in fair_noniid.claims("ρ = 3", *right)] == [True, True, True, True]
    changes = {
        0: answer_with(0.47, 0.04),
        1: answer_with(0.47, 0.06),
        2: answer_with(0.50, 0.06),
        3: answer_with(0.48, 0.02),
    }
    failing = {0: [0], 1: [1], 2: [2, 3], 3: [3]}
    for position, changed_points in changes.items():
        points_of_methods = [
            changed_points if i == position else original_points for i, original_points in enumerate(right)
        ]
        verdicts = [claim.held for claim in fair_noniid.claims("ρ = 3", *points_of_methods)]
        assert [i for i, is_held in enumerate(verdicts) if not is_held] == failing[position]


def test_tuned_penalty_is_best_feasible():
    ends = {"a": answer_with(0.3, 0.2), "b": answer_with(0.5, 0.05), "c": answer_with(0.4, 0.04)}
    assert fair_noniid.select_setting(ends)[0] == "c"
    assert fair_noniid.select_setting({"a": answer_with(0.3, 0.2), "d": answer_with(0.4, 0.1)})[0] == "d"


def test_gradient_counts_precede_iterates():
    """Batches of 32 at 20 clients: none led to w_0, 20·32·k to w_k."""
    (result,) = STUDY.run({"": STUDY.methods["Softmax SGM"]}, FULL, Scale(1, quick=True), evaluations=4)[""]
    np.testing.assert_array_equal(gradient_evaluations(result), 640 * np.array([0, 50, 100, 150]))


def test_baselines_use_last_iterate():
    results_by_method = STUDY.run(STUDY.methods, FULL, Scale(1, quick=True), evaluations=4)
    task_list = STUDY.tasks(1)
    for label, results in results_by_method.items():
        answer_params, last = answers(results, task_list)[0], last_iterates(results, task_list)[0]
        assert (answer_params.worst_objective == last.worst_objective) == (label != "Softmax SGM")


def test_accuracy_interpolation():
    curve = np.array([[0.0, 0.80], [0.1, 0.84]])
    assert fair_frontier.accuracy_at(curve, 0.05) == pytest.approx(0.82)
    assert np.isnan(fair_frontier.accuracy_at(curve, 0.2))


def test_missing_package_is_reported_first(monkeypatch):
    monkeypatch.setattr("softswitch_experiments.paper.experiment.find_spec", lambda name: None)
    rejected = CliRunner().invoke(app, ["paper", "all"])
    assert rejected.exit_code == 2
    assert "softswitch[fairness]" in rejected.output


def test_optimum_matches_cvxpy():
    """F* of the convex task in a ball, from SciPy and from a conic solver."""
    train = STUDY.tasks(1)[0].train
    x, y = np.asarray(train.rows.columns["x"], float), np.asarray(train.rows.columns["y"])
    owner = np.repeat(np.arange(20), train.sizes)
    w, t = cvxpy.Variable(31), cvxpy.Variable()
    limits = [cvxpy.norm(w) <= error_budget.RADIUS]
    for i in range(20):
        benign, malignant = x[(owner == i) & (y == 0)], x[(owner == i) & (y == 1)]
        limits += [cvxpy.sum(cvxpy.logistic(benign @ w)) / len(benign) <= t]
        limits += [cvxpy.sum(cvxpy.logistic(-malignant @ w)) / len(malignant) <= error_budget.LEVEL]
    accuracy = {"tol_gap_abs": 1e-6, "tol_gap_rel": 1e-6, "tol_feas": 1e-6}
    cvxpy.Problem(cvxpy.Minimize(t), limits).solve(solver=cvxpy.CLARABEL, **accuracy)
    assert error_budget.find_optimum(train) == pytest.approx(float(t.value), rel=1e-4)


def test_gallery_lists_every_experiment():
    """The page from ``make gallery`` lists every current experiment."""
    page = (ROOT / "docs" / "gallery.md").read_text()
    for name in EXPERIMENTS:
        assert f"    softswitch paper {name}\n" in page
        assert f"images/paper/{name}.png" in page
        assert (ROOT / "docs" / "images" / "paper" / f"{name}.png").exists()


def test_runs_are_saved_and_reported(paper_outputs, tmp_path):
    folder, _ = paper_outputs("np-comparison")
    runs = find_runs(folder / "runs")
    assert {run.about["method"].split("(")[0] for run in runs} == {"SoftmaxSGM", "Penalty", "PrimalDual"}
    page = write_report([runs[0].folder], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "softswitch paper np-comparison --seeds 1 --quick" in page


def test_run_names_are_valid_folder_names():
    scale = Scale()
    answer_with = next(iter(STUDY.run({"": STUDY.methods["Softmax SGM"]}, FULL, Scale(1, quick=True)).values()))
    for _ in range(2):
        scale.add_runs("λ = −5, a/b", answer_with)
    assert list(scale.runs) == ["λ-=-5-a-b-seed-0", "λ-=-5-a-b-seed-0-2"]
