"""softswitch paper: what it writes and says, in its quick version; and that claims can fail."""

import csv
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import cvxpy
import numpy as np
import pytest
from typer.testing import CliRunner

from softswitch.cli import app
from softswitch.paper import EXPERIMENTS, Claim, Scale, alpha_tradeoff, error_budget, fair_frontier, np_sweeps, tuning
from softswitch.paper.neyman_pearson import FULL, STUDY
from softswitch.paper.study import Point, paired

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Runs each experiment once, in its quick version."""
    out, printed = tmp_path_factory.mktemp("results"), {}

    def of(name):
        if name not in printed:
            done = CliRunner().invoke(app, ["paper", name, "--quick", "--out", str(out)])
            assert done.exit_code == 0, done.output
            printed[name] = done.output
        return out / name, printed[name]

    return of


def test_list_and_refusal():
    runner = CliRunner()
    listed = runner.invoke(app, ["paper"]).output
    assert all(name in listed for name in EXPERIMENTS)
    refused = runner.invoke(app, ["paper", "np-comparson"])
    assert refused.exit_code == 2
    assert "np-comparson" in refused.output
    assert runner.invoke(app, ["paper", "all", "--seeds", "0"]).exit_code == 2


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_figure_numbers_and_claims_are_written(written, name):
    folder, printed = written(name)
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")
    tables = list(folder.glob("*.csv"))
    assert tables
    for table in tables:
        with table.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert rows
        assert "nan" not in [value for row in rows for value in row.values()]
    told = json.loads((folder / "claims.json").read_text())
    assert told["quick"]
    assert told["seeds"] == 2
    assert told["claims"] or name == "participation", "its quick version has one point, and nothing to compare"
    for claim in told["claims"]:
        assert str(Claim(**claim)) in printed


def test_seeds_are_taken(tmp_path):
    done = CliRunner().invoke(app, ["paper", "sgm-comparison", "--quick", "--seeds", "1", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "1 seeds" in done.output
    with (tmp_path / "sgm-comparison" / "answers.csv").open(newline="") as stream:
        assert {row["seed"] for row in csv.DictReader(stream)} == {"0"}


def points(*constraints):
    return [Point(np.array([0.3, 0.1]), np.array([g, 0.0]), 0.1) for g in constraints]


def test_a_rise_beyond_the_standard_error_is_noticed():
    assert np_sweeps._falls({1.0: points(0.5, 0.6), 2.0: points(0.1, 0.2), 3.0: points(0.12, 0.22)})
    assert not np_sweeps._falls({1.0: points(0.5, 0.6), 2.0: points(0.1, 0.12), 3.0: points(0.15, 0.17)})
    assert not np_sweeps._falls({1.0: points(0.5), 2.0: points(0.51)})


def test_a_steady_rise_in_small_steps_is_no_fall():
    rising = {float(k): points(0.1 + 0.01 * k, 0.14 + 0.01 * k) for k in range(6)}
    assert not np_sweeps._falls(rising)
    assert not np_sweeps._falls({1.0: points(0.1, 0.2), 2.0: points(0.1, 0.2)})


def test_paired_difference_by_hand():
    difference, error = paired(points(0.5, 0.7), points(0.2, 0.2), "worst_constraint")
    assert difference == pytest.approx(0.4)
    assert error == pytest.approx(0.1)  # 0.3 and 0.5: deviation 0.1·√2, over √2


def test_slopes_of_a_power_law():
    rounds = np.array([100, 1000, 10_000])
    gaps = np.stack([3 * rounds**-0.5, 2 * rounds**-0.7], axis=1)
    middle, low, high = error_budget.slopes(rounds, gaps)
    assert middle == pytest.approx(-0.6)
    # Two slopes, −0.5 and −0.7: the standard error is 0.1, and t with one degree of freedom 12.706.
    assert (low, high) == pytest.approx((-0.6 - 1.2706, -0.6 + 1.2706), abs=1e-3)
    assert error_budget._slope_claim(rounds, np.stack([rounds**-0.6, rounds**-0.61], axis=1)).held
    assert not error_budget._slope_claim(rounds, np.stack([rounds**-0.3, rounds**-0.31], axis=1)).held
    assert not error_budget._slope_claim(rounds, np.array([[0.1], [0.05], [-0.01]])).held, "a gap below 0 has no slope"


def test_claims_on_the_three_regimes_can_fail():
    for regime, product in alpha_tradeoff.REGIMES.items():
        right = alpha_tradeoff.iterates(product)
        assert alpha_tradeoff._claim(regime, product, right).held
        wrong = right.copy()
        wrong[-2] += 0.01
        assert not alpha_tradeoff._claim(regime, product, wrong).held


def test_iterates_are_those_of_the_recurrence():
    w = alpha_tradeoff.iterates(1.8, rounds=20)
    expected = [alpha_tradeoff.START]
    for _ in range(19):
        expected.append(expected[-1] - np.tanh(1.8 * expected[-1]))
    np.testing.assert_allclose(w, expected, atol=1e-5)


def test_the_tuned_setting_is_the_best_that_meets(monkeypatch):
    found = {
        (1.0, 0.0, 0.1): [Point(np.array([0.1]), np.array([0.2]), 0.1)],
        (2.5, 0.0, 0.1): [Point(np.array([0.4]), np.array([0.09]), 0.1)],
        (5.0, 0.0, 0.1): [Point(np.array([0.3]), np.array([0.1]), 0.1)],
    }
    monkeypatch.setattr(tuning, "tried", lambda *_: found)
    assert tuning.best(STUDY, "Penalty", FULL, Scale(1)).penalty == 5.0
    del found[2.5, 0.0, 0.1], found[5.0, 0.0, 0.1]
    assert tuning.best(STUDY, "Penalty", FULL, Scale(1)) is None


def test_width_of_the_good_region_by_hand():
    """Two lines over 1, 10, 100, 1000: the longest unbroken stretch is from 10 to 1000 on the second."""
    level = dict.fromkeys([(v, 0.0, 0.1) for v in (1, 10, 100, 1000)], 1.0)
    level |= {(1, 0.0, 0.5): 9.0, (10, 0.0, 0.5): 1.0, (100, 0.0, 0.5): 1.1, (1000, 0.0, 0.5): 1.2}
    level[100, 0.0, 0.1] = np.inf
    assert tuning.decades(level, 1.25) == pytest.approx(2.0)
    assert tuning.decades(level, 1.05) == pytest.approx(1.0)
    assert tuning.decades(level, 0.5) == 0


def test_accuracy_between_the_points_of_a_curve():
    curve = np.array([[0.0, 0.80], [0.1, 0.84]])
    assert fair_frontier.accuracy_at(curve, 0.05) == pytest.approx(0.82)
    assert np.isnan(fair_frontier.accuracy_at(curve, 0.2))


def test_what_is_not_installed_is_said_before_any_work(monkeypatch):
    monkeypatch.setattr("softswitch.paper.experiment.find_spec", lambda name: None)
    refused = CliRunner().invoke(app, ["paper", "all"])
    assert refused.exit_code == 2
    assert "softswitch[fairness]" in refused.output


def test_optimum_agrees_with_cvxpy():
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
    assert error_budget.smallest_objective(train) == pytest.approx(float(t.value), rel=1e-4)


def test_the_gallery_shows_every_experiment():
    """The page is written by make gallery; it must not lag behind the list of experiments."""
    page = (ROOT / "docs" / "gallery.md").read_text()
    for name in EXPERIMENTS:
        assert f"    softswitch paper {name}\n" in page
        assert f"images/paper/{name}.png" in page
        assert (ROOT / "docs" / "images" / "paper" / f"{name}.png").exists()
