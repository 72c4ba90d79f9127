"""Numeric and multiclass labels, from the settings file to predictions."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import softswitch as ss
from softswitch.cli import app
from softswitch.tables import training
from softswitch.tables.frontier import train_frontier
from softswitch.tables.labels import BinaryLabel, MulticlassLabel, NumberLabel
from softswitch.tables.preparation import prepare_table
from softswitch.tables.settings import parse_config

ROWS = 600


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Write a table of deliveries with their minutes, outcome and number of parcels."""
    folder = tmp_path_factory.mktemp("deliveries")
    generator = np.random.default_rng(0)
    branch = generator.choice(["east", "south", "west"], ROWS)
    km, rain = generator.gamma(4, 2, ROWS), generator.random(ROWS)
    minutes = 10 + 3 * km + 8 * rain + 4 * (branch == "west") + 5 * generator.normal(size=ROWS)
    went = np.digitize(minutes + 4 * generator.normal(size=ROWS), [25, 45])
    table = {"km": km, "rain": rain, "branch": branch, "minutes": minutes.round(1)}
    table |= {"went": np.array(["fine", "late", "lost"])[went], "parcels": generator.integers(1, 38, ROWS)}
    pd.DataFrame(table).to_csv(folder / "deliveries.csv", index=False)
    return folder


def settings(home, name, label, ignore, **task):
    data = {"file": "deliveries.csv", "label": label, "client": "branch", "ignore": ignore}
    data |= task.pop("data", {})
    run = {"rounds": 300} | task.pop("run", {})
    lines = []
    for section, part in (("data", data), ("task", task), ("run", run)):
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in part.items())]
    (home / f"{name}.toml").write_text("\n".join(lines))
    return home / f"{name}.toml"


@pytest.fixture(scope="module")
def minutes_run(home):
    """Train an upper limit of the minutes that at most a fifth of the deliveries of each branch exceed."""
    file = settings(home, "minutes", "minutes", ["went", "parcels"], kind="coverage", bound=0.2)
    return training.train(file, progress=False)


def test_coverage_limit_holds_at_every_branch(home, minutes_run):
    table = pd.read_csv(home / "deliveries.csv")
    limit = ss.load(minutes_run.folder, allow_uncertified=True).predict(table)
    above = (table["minutes"] > limit).groupby(table["branch"]).mean()
    assert above.max() <= 0.25  # on all rows
    assert minutes_run.result.worst_constraint <= 0.2
    assert not minutes_run.certificate.approximate
    assert np.corrcoef(limit, table["minutes"])[0, 1] > 0.6


def test_predict_command(home, minutes_run, tmp_path):
    arguments = ["predict", str(minutes_run.folder), str(home / "deliveries.csv"), "--uncertified"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "p.csv")])
    assert result.exit_code == 0, result.output
    predictions = pd.read_csv(tmp_path / "p.csv")
    assert list(predictions.columns)[-2:] == ["parcels", "minutes_predicted"]
    with pytest.raises(ValueError, match="'minutes' is a number, which has no probability"):
        ss.load(minutes_run.folder, allow_uncertified=True).probability(predictions)


def test_mean_error_uses_label_units(home):
    task = {"kind": "mean-error", "bound": 3.0, "data": {"label_range": [0, 200]}, "run": {"aim": "bare"}}
    trained = training.train(settings(home, "mean", "minutes", ["went", "parcels"], **task), progress=False)
    table = pd.read_csv(home / "deliveries.csv")
    error = ss.load(trained.folder).predict(table) - table["minutes"]
    assert error.groupby(table["branch"]).mean().abs().max() < 4
    assert trained.result.worst_constraint <= 3
    assert not trained.certificate.approximate
    start, constant = trained.result.baselines[:2]
    assert trained.result.worst_objective < 0.5 * constant.objective
    assert constant.objective <= start.objective + 1e-3 or not start.feasible


@pytest.fixture(scope="module")
def outcome_run(home):
    file = settings(
        home, "went", "went", ["minutes", "parcels"], kind="class-miss-rate", bound=0.6, run={"aim": "bare"}
    )
    return training.train(file, progress=False)


def test_multiclass_label(home, outcome_run):
    table = pd.read_csv(home / "deliveries.csv")
    model = ss.load(outcome_run.folder, allow_uncertified=True)
    assert model.classes == ("fine", "late", "lost")
    probabilities = model.probability(table)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert (model.predict(table) == np.array(model.classes)[probabilities.argmax(axis=1)]).all()
    assert list(model.columns(table)) == [*(f"went_probability_{one}" for one in model.classes), "went_predicted"]
    missed = (model.predict(table) != table["went"]).groupby([table["branch"], table["went"]]).mean()
    assert missed.max() < 0.75
    assert outcome_run.result.client_constraint.shape == (3, 3)
    assert outcome_run.certificate is not None


@pytest.mark.slow
def test_frontier_measures_of_numeric_label(home):
    file = settings(
        home, "bounds", "minutes", ["went", "parcels"], kind="absolute-error", bound=6.0, run={"rounds": 100}
    )
    (point,) = train_frontier(file, [6.0], progress=False)[1].points
    assert (
        2 < point.measures["mean absolute error, all rows"] <= point.measures["mean absolute error, worst client"] < 9
    )


@pytest.mark.parametrize(
    ("label", "kind", "expected"),
    [
        ("minutes", "coverage", NumberLabel),
        ("parcels", "error-rate", MulticlassLabel),
        ("went", "error-rate", MulticlassLabel),
        ("went", "class-miss-rate", MulticlassLabel),
        ("parcels", "coverage", NumberLabel),
    ],
)
def test_label_type_inference(home, label, kind, expected):
    data = {"file": "deliveries.csv", "label": label, "client": "branch"}
    ready = prepare_table(parse_config({"data": data, "task": {"kind": kind}}), home)
    assert isinstance(ready.label, expected)
    assert ready.problem.start[0]["b"].shape == (ready.label.outputs,)


@pytest.mark.parametrize(
    ("label", "task", "data", "message"),
    [
        ("went", {"kind": "coverage"}, {}, "data.label must be a column of numbers, but 'went' holds"),
        ("went", {"kind": "miss-rate"}, {}, "must be a column of two values, but 'went' has 3"),
        ("minutes", {"kind": "class-miss-rate"}, {}, "must be a column of 2 to 100 classes"),
        ("minutes", {"kind": "mean-error"}, {"label_range": [0, 5]}, "data.label_range must contain all labels"),
        ("minutes", {"kind": "mean-error"}, {"label_range": ["a"]}, "data.label_range must be a list of numbers"),
        ("minutes", {"kind": "mean-error", "loss": "cubic"}, {}, "task.loss must be one of auto, squared"),
        ("minutes", {"kind": "mean-error", "loss": "quantile", "quantile": 2.0}, {}, "quantile must be above 0"),
    ],
)
def test_bad_settings(home, label, task, data, message):
    sections = {"data": {"file": "deliveries.csv", "label": label, "client": "branch"} | data, "task": task}
    with pytest.raises(ValueError, match=message):
        prepare_table(parse_config(sections), home)


def test_two_values_give_binary_label(home):
    table = pd.read_csv(home / "deliveries.csv").assign(late=lambda t: np.where(t["went"] == "fine", "no", "yes"))
    table.to_csv(home / "late.csv", index=False)
    data = {"file": "late.csv", "label": "late", "client": "branch"}
    assert prepare_table(parse_config({"data": data, "task": {"kind": "miss-rate"}}), home).label == BinaryLabel(
        "no", "yes"
    )
