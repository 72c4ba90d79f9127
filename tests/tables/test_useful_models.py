"""From a table to a verdict: useless, overfitted and certified models are named as such."""

import numpy as np
import pandas as pd
import pytest
from test_thresholds import LABEL, simulate, to_clients
from test_training import invoke

from softswitch.results.folder import find_runs
from softswitch.tables.frontier import train_frontier
from softswitch.tables.thresholds import train_score
from softswitch.tables.training import train


def write_cases(folder, table, task, **sections):
    """Write a table with the label "y" and the client "site", and its settings; return the settings file."""
    table.to_csv(folder / "cases.csv", index=False)
    lines = ["[data]", 'file = "cases.csv"', 'label = "y"', 'client = "site"']
    for section, values in ({"task": task} | sections).items():
        lines += [f"[{section}]", *(f"{name} = {value!r}" for name, value in values.items())]
    (folder / "cases.toml").write_text("\n".join(lines).replace("'", '"'))
    return folder / "cases.toml"


def noise_table(rows, features=2):
    draws = np.random.default_rng(0)
    table = pd.DataFrame(draws.normal(size=(rows, features))).add_prefix("x")
    return table.assign(site=draws.choice(["a", "b"], rows), y=draws.choice([0, 1], rows))


def codes(run):
    return [one["code"] for one in run.about["diagnostics"]]


def test_certified_constant_has_its_own_verdict_and_warning(tmp_path):
    """Features without information leave only to call nearly every row positive."""
    file = write_cases(tmp_path, noise_table(800), {"kind": "miss-rate", "bound": 0.1}, model={"score": "linear"})
    printed = invoke("train", file, code=4)
    assert "? Certified, but no better than a constant" in printed
    (run,) = find_runs(tmp_path / "runs")
    assert run.about["certification"]["outcome"] == "no better than a constant"
    assert "no-better-than-constant" in codes(run)
    printed = invoke("predict", run.folder, tmp_path / "cases.csv")
    assert "Warning: Certified, but no better than a constant prediction" in printed


def test_number_predicted_no_better_than_by_a_constant(tmp_path):
    table = noise_table(400, features=3).rename(columns={"y": "class", "x2": "y"})
    file = write_cases(tmp_path, table, {"kind": "absolute-error", "bound": 2.0}, run={"rounds": 100})
    trained = train(file, progress=False)
    assert "no-better-than-constant" in [one.code for one in trained.result.diagnostics]


def test_overfitted_model_is_diagnosed(tmp_path):
    """A linear model with as many features as training rows separates random classes."""
    task, run = {"kind": "miss-rate", "bound": 0.3}, {"aim": "bare", "rounds": 100}
    trained = train(write_cases(tmp_path, noise_table(200, 150), task, run=run), progress=False)
    (found,) = [one for one in trained.result.diagnostics if one.code == "overfitted"]
    assert "held-out rows" in found.evidence


def test_certification_costs_little_usefulness():
    """False alarms without certification rows, with a certificate only, and with the selected threshold."""
    x, y, owner = simulate({"a": 2500, "b": 2500})
    is_training = np.random.default_rng(1).random(len(y)) < 0.6
    learning, calibration = (to_clients(x, y, owner, part) for part in (is_training, ~is_training))
    options = {"bound": 0.15, "score": "linear"}
    models = [
        train_score("miss-rate", LABEL, learning, **options),
        train_score("miss-rate", LABEL, learning, calibration, select=False, **options),
        train_score("miss-rate", LABEL, learning, calibration, **options),
    ]
    plain, _, selected = costs = [model.result.worst_objective for model in models]
    assert costs[1] == plain
    assert selected < plain + 0.1 < 0.5


@pytest.mark.parametrize("kind", ["miss-rate", "decision-parity"])
def test_frontier_of_features_of_wide_range(tmp_path, kind):
    table = noise_table(400)
    table = table.assign(x0=1e6 * np.exp(4 * table["x0"]) + table["y"], x1=1e-9 * table["x1"], sex=np.arange(400) % 2)
    group = {} if kind == "miss-rate" else {"sensitive": "sex", "protected": 1}
    file = write_cases(tmp_path, table, {"kind": kind, "bound": 0.3} | group, run={"rounds": 50})
    _, curve, _ = train_frontier(file, [0.5, 0.3], progress=False)
    assert [point.bound for point in curve.points] == [0.5, 0.3]
