"""Training with certification from a settings file: messages before and after training, and prediction."""

import numpy as np
import pandas as pd
import pytest
from test_training import hospital_table, invoke

import softswitch as ss
from softswitch.results.folder import find_runs
from softswitch.tables import training

SETTINGS = """
[data]
file = "cases.csv"
label = "diagnosis"
client = "hospital"
positive = "malignant"
held_out = 0.25
validation = 0.15
[task]
kind = "miss-rate"
bound = {bound}
[run]
rounds = 200
"""


def large_table():
    """Stack four slightly perturbed copies of the table, which are enough rows to certify."""
    draws, table = np.random.default_rng(0), hospital_table()
    numbers = table.select_dtypes("number").columns
    copies = []
    for _ in range(4):
        copy = table.copy()
        copy[numbers] *= 1 + 0.01 * draws.normal(size=(len(table), len(numbers)))
        copies.append(copy)
    return pd.concat(copies)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("aim")
    large_table().to_csv(folder / "cases.csv", index=False)
    for name, bound in (("loose", 0.2), ("tight", 0.02)):
        (folder / f"{name}.toml").write_text(SETTINGS.format(bound=bound))
    return folder


@pytest.fixture(scope="module")
def certified(home):
    printed = invoke("train", home / "loose.toml")
    return next(run for run in find_runs(home / "runs") if run.name.startswith("loose")), printed


@pytest.fixture(scope="module")
def uncertified(home, certified):
    printed = invoke("train", home / "tight.toml", code=3)
    return next(run for run in find_runs(home / "runs") if run.name.startswith("tight")), printed


def test_certified_model_predicts(certified, home):
    run, printed = certified
    assert "There are enough rows." in printed
    assert "✔ Certified" in printed
    assert "at each of the 4 clients on new data." in printed
    assert run.about["certification"]["certified"]
    assert run.certificate["verdict"] == "meets"
    assert ss.load(run.folder).predict(large_table().head(3)).shape == (3,)
    rows = large_table()
    train_rows = sum(run.clients["rows"])
    assert 0.55 * len(rows) < train_rows < 0.6 * len(rows), "60%, and less of small clients"


def test_too_few_rows_are_not_certified(uncertified):
    run, printed = uncertified
    assert "needs 149 applicable rows per client" in printed
    assert "Too few rows for any model at" in printed
    assert run.about["certification"]["outcome"] == "too few rows"
    assert "The same rows have certified 1 model of other runs." in printed
    assert run.about["certification"] | {"certified": False, "earlier_certificates": 1} == run.about["certification"]
    assert not run.about["violating"], "the bound holds on the training rows"


def test_predict_requires_uncertified_flag(uncertified, home, tmp_path):
    run, _ = uncertified
    new = tmp_path / "new.csv"
    large_table().head(5).drop(columns=["diagnosis"]).to_csv(new, index=False)
    printed = invoke("predict", run.folder, new, code=2)
    assert "has no certified model. Not certified" in printed
    assert not (tmp_path / "new-predicted.csv").exists()
    invoke("predict", run.folder, new, "--uncertified")
    assert len(pd.read_csv(tmp_path / "new-predicted.csv")) == 5
    with pytest.raises(ValueError, match="no certified model"):
        ss.load(run.folder).probability(large_table())
    assert ss.load(run.folder, allow_uncertified=True).probability(large_table().head(2)).shape == (2,)


def test_report_shows_certification(certified, uncertified):
    from softswitch.results.report.clients import judge_run

    assert judge_run(certified[0]).level == "good"
    judgement = judge_run(uncertified[0])
    assert judgement[:2] == ("unsure", "Not certified: too few rows")
    assert "rows" in judgement.new_data


def test_resume_reproduces_certified_model(certified, home):
    """Finished runs are restored from their checkpoints, and reuse of the certification rows is counted."""
    run, _ = certified
    before = run.params["[0]['w']"]
    resumed = training.resume(run.folder, progress=False)
    np.testing.assert_array_equal(np.asarray(resumed.result.params[0]["w"]), before)
    assert resumed.aim["earlier_certificates"] >= 1


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_uncertified_estimator_refuses_to_predict():
    table = hospital_table()
    X, y = table.drop(columns=["hospital", "diagnosis"]), (table["diagnosis"] == "malignant").to_numpy()
    model = ss.BoundedClassifier("miss-rate", 0.02, rounds=100, held_out=0.3, validation=0.2)
    model.fit(X, y, clients=table["hospital"])
    assert model.certified_ is False
    with pytest.raises(ValueError, match="Not certified"):
        model.predict(X)
    assert model.set_params(allow_uncertified=True).predict(X).shape == y.shape
    with pytest.raises(ValueError, match="held_out"):
        ss.BoundedClassifier(validation=0.2).fit(X, y)


def test_violating_clients_of_a_partly_certified_model_are_named(tmp_path):
    """Small clients, which cannot be certified, have opposite labels in two of three cases."""
    draws = np.random.default_rng(0)
    clients = np.repeat(["large", "north", "south", "east"], [800, 12, 12, 12])
    table = pd.DataFrame({"clinic": clients, "x": draws.normal(size=len(clients))})
    table["ill"] = (table["x"] > 0) ^ table["clinic"].isin(["north", "south"])
    table.to_csv(tmp_path / "cases.csv", index=False)
    settings = (
        '[data]\nfile = "cases.csv"\nlabel = "ill"\nclient = "clinic"\nheld_out = 0.1\n'
        '[task]\nkind = "error-rate"\nbound = 0.2\n'
    )
    (tmp_path / "cases.toml").write_text(f'{settings}[model]\nscore = "linear"\n')
    printed = invoke("train", tmp_path / "cases.toml", code=5)
    assert "No problems detected" not in printed
    (run,) = find_runs(tmp_path / "runs")
    assert set(run.about["violating"]) == {"north", "south"}
    (found,) = [one for one in run.about["diagnostics"] if one["code"] == "violating-clients"]
    assert "2 of 4 clients" in found["evidence"]
    assert "'north'" in found["evidence"]
    assert "'east'" not in found["evidence"]
