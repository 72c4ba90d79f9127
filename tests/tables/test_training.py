"""Training from a CSV file to a certified model, on the command line and in Python."""

import json
import re
import signal
import subprocess
import sys
import tomllib
from dataclasses import asdict

import numpy as np
import optax
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

import softswitch as ss
from benchmarks import flat
from softswitch.cli import app
from softswitch.results.folder import find_runs, open_run
from softswitch.results.report.page import write_report
from softswitch.tables import training
from softswitch.tables.constraints import build_problem
from softswitch.tables.settings import parse_config, write_config


def invoke(*arguments, code=0):
    """Run a command and return its output. ``code`` None accepts exit codes 0 and 1."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code in ((0, 1) if code is None else (code,)), result.output
    return re.sub(r"[\s│╭╮╰╯─]+", " ", result.output)


def hospital_table():
    """Return the breast cancer data with four synthetic hospitals of different sizes."""
    data = load_breast_cancer(as_frame=True)
    table = data.data.iloc[:, :10].copy()
    table["diagnosis"] = np.where(data.target == 0, "malignant", "benign")
    draws = np.random.default_rng(0).choice(["north", "south", "west", "east"], p=[0.4, 0.3, 0.2, 0.1], size=len(table))
    table.insert(0, "hospital", draws)
    return table


SETTINGS = """
[data]
file = "cases.csv"
label = "diagnosis"
client = "hospital"
positive = "malignant"
[task]
bound = 0.2
[run]
aim = "bare"
rounds = 600
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hospitals")
    hospital_table().to_csv(folder / "cases.csv", index=False)
    (folder / "cases.toml").write_text(SETTINGS)
    return folder


@pytest.fixture(scope="module")
def trained(home):
    """Train on the command line and return the run and the output."""
    printed = invoke("train", home / "cases.toml")
    (run,) = find_runs(home / "runs")
    return run, printed


def test_train_prints_settings_certificate_and_verdict(trained):
    run, printed = trained
    for phrase in ("4 clients", "10 features from 10 columns", "positive: 'malignant'"):
        assert phrase in printed
    assert " feasible: " in printed
    assert "Constraint <= 0.2 with confidence 0.95" in printed
    assert run.folder.name.startswith("cases-20")


def test_run_folder_contents(trained, home):
    run, _ = trained
    about = run.about
    assert about["status"]["code"] == "feasible"
    assert about["clients"] == 4
    assert about["worst_constraint"] == pytest.approx(max(run.clients["constraint"]))
    assert about["data"]["rows"] == sum(run.clients["rows"])
    assert set(about["versions"]) >= {"softswitch", "jax", "python"}
    assert run.clients["client"] == ["east", "north", "south", "west"]
    assert run.history.per_client.objective.shape == (about["rounds"], 4)
    assert run.history.held_out is not None
    assert len(run.certificate["clients"]) == 4
    assert sorted(run.params) == ["[0]['b']", "[0]['w']"]
    assert list((run.folder / "checkpoints").glob("round-*"))
    assert (run.folder / "config.toml").read_text().count('file = "cases.csv"') == 1


def test_baselines_are_reported(trained):
    """With a bound of 0.2, the best constant log odds are −log(e^0.2 − 1), and F = 1.708 from false alarms."""
    run, printed = trained
    models = {one["name"]: one for one in run.about["models"]}
    names = ["the start", "best constant prediction", "no constraint, worst client"]
    assert list(models) == ["the answer", *names]
    assert models["the answer"]["objective"] == pytest.approx(run.about["worst_objective"])
    assert models["the start"]["objective"] == pytest.approx(np.log(2), rel=1e-5)
    constant = models["best constant prediction"]
    assert constant["objective"] == pytest.approx(np.log1p(1 / np.expm1(0.2)), rel=1e-3)
    assert constant["feasible"]
    free = models["no constraint, worst client"]
    assert free["objective"] < 0.1 * run.about["worst_objective"]
    assert free["violating"] == 4
    assert run.about["price"] == pytest.approx(run.about["worst_objective"] - free["objective"])
    for phrase in (*names, f"The constraint costs the worst client {run.about['price']:.4g}."):
        assert phrase in printed


def test_held_out_split_is_stratified(trained):
    run, _ = trained
    table = hospital_table()
    held = {one["client"]: one["constraints"][0]["rows"] for one in run.certificate["clients"]}
    held_out_rows = {}
    for hospital, cases in table.groupby("hospital"):
        share = np.clip(0.25 * len(table) / 4 / len(cases), 0.25, 0.5)
        counts = [int(share * (cases["diagnosis"] == kind).sum()) for kind in ("malignant", "benign")]
        assert held[hospital] == counts[0]
        held_out_rows[hospital] = sum(counts)
    train_rows = dict(zip(run.clients["client"], run.clients["rows"], strict=True))
    for hospital, cases in table.groupby("hospital"):
        assert train_rows[hospital] == len(cases) - held_out_rows[hospital]


def test_held_out_client_metrics(trained, home):
    run, _ = trained
    held = training.prepare_table(training.read_config(home / "cases.toml"), home).held_out
    x, y = (np.asarray(held.rows.columns[name]) for name in ("x", "y"))
    score = x @ run.params["[0]['w']"][:, 0] + run.params["[0]['b']"]
    owner = np.repeat(held.names, held.sizes)
    clients = run.clients
    assert clients["rows_held_out"] == held.sizes.tolist()
    for i, name in enumerate(clients["client"]):
        is_client = owner == name
        assert clients["held_out_miss_rate"][i] == pytest.approx((score[is_client & (y == 1)] <= 0).mean())
        assert clients["held_out_false_alarm_rate"][i] == pytest.approx((score[is_client & (y == 0)] > 0).mean())
        assert clients["held_out_auc"][i] == pytest.approx(roc_auc_score(y[is_client], score[is_client]), abs=1e-6)
    # The best feasible constant predicts malignant for all cases. The unconstrained model misses far more cases.
    assert (clients["constant_miss_rate"], clients["constant_false_alarm_rate"]) == ([0] * 4, [1] * 4)
    free, bounded = (np.array(clients[f"{model}_miss_rate"]) for model in ("unconstrained", "held_out"))
    assert (free > bounded + 0.2).all()
    assert run.about["requirement"].startswith(
        "At every hospital, the mean log loss of the rows with diagnosis = malignant"
    )


def test_predictions_in_python_and_cli(trained, home):
    run, _ = trained
    table = hospital_table()
    model = ss.load(run.folder)
    probability = model.probability(table)
    assert ((probability > 0.45) & (probability < 0.65)).any()  # rows that are sensitive to the threshold
    np.testing.assert_array_equal(model.predict(table) == model.classes[1], probability >= 0.5)
    assert ((probability >= 0.5) == (table["diagnosis"] == "malignant")).mean() > 0.85
    new = home / "new.csv"
    table.drop(columns=["hospital", "diagnosis"]).to_csv(new, index=False)
    assert "Predicted 569 rows" in invoke("predict", run.folder, new)
    predicted = pd.read_csv(home / "new-predicted.csv")
    np.testing.assert_allclose(predicted["diagnosis_probability_of_malignant"], probability, rtol=1e-5)
    np.testing.assert_array_equal(predicted["diagnosis_predicted"], model.predict(table))
    assert set(predicted["diagnosis_predicted"]) == {"malignant", "benign"}
    assert "already exists" in invoke("predict", run.folder, new, code=2)


def test_train_matches_solve(trained, home):
    """Training from settings equals solving the prepared problem directly."""
    run, _ = trained
    ready = training.prepare_table(training.read_config(home / "cases.toml"), home)
    result = flat.solve(
        ready.problem,
        ready.train,
        ss.Automatic(tolerance=0.2),
        rounds=600,
        held_out=ready.held_out,
        record_clients=True,
    )
    np.testing.assert_array_equal(result.params[0]["w"], run.params["[0]['w']"])
    assert run.about["restarts"] == [asdict(restart) for restart in result.restarts]


def test_automatic_settings_are_saved(trained):
    run, printed = trained
    assert 'step_size = "auto"' in (run.folder / "config.toml").read_text()
    assert "SQP" in run.about["auto_settings"]["method"]
    assert "Automatic settings: " in printed


def test_first_order_restarts_are_saved(home, tmp_path):
    """The settings are those of ``trained`` except for the method."""
    path = write_settings(tmp_path / "t.toml", settings(home, method={"name": "softmax"}))
    printed = invoke("train", path)
    (run,) = find_runs(tmp_path / "runs")
    restarts = run.about["restarts"]
    assert [restart["begin"] for restart in restarts[1:]] == [restart["end"] for restart in restarts[:-1]]
    assert restarts[-1]["end"] == run.about["rounds"] == 600
    assert f"step {restarts[-1]['step_size']:.3g} decaying to 0" in printed


MANUAL = {
    "method": {"step_size": 0.5},
    "run": {"rounds": 80, "local_steps": 1, "participation": 1.0, "batch_size": 32, "seed": 0, "confidence": 0.95},
}
"""Settings without automatic values."""


def settings(home, **changes):
    """Return ``SETTINGS`` as nested dicts with some sections replaced."""
    sections = tomllib.loads(SETTINGS)
    sections["data"]["file"] = str(home / "cases.csv")
    changes["run"] = {"aim": "bare"} | changes.get("run", sections["run"])
    return sections | changes


def write_settings(file, sections):
    file.write_text(write_config(parse_config(sections)), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param(MANUAL, id="all settings"),
        pytest.param({"method": {"step_size": 0.5}, "run": {}}, id="step size only", marks=pytest.mark.slow),
    ],
)
def test_step_size_disables_automatic_settings(home, tmp_path, sections):
    lines = "\n".join(
        f"[{name}]\n" + "\n".join(f"{k} = {v!r}" for k, v in part.items()) for name, part in sections.items()
    )
    text = SETTINGS.replace('"cases.csv"', f'"{home / "cases.csv"}"').split("[run]")[0] + lines.replace("'", '"')
    (tmp_path / "old.toml").write_text(text.replace("[run]", '[run]\naim = "bare"'))
    trained = training.train(tmp_path / "old.toml")
    ready = training.prepare_table(training.read_config(tmp_path / "old.toml"), home)
    method = ss.SoftmaxSGM(tolerance=0.2, step_size=0.5, alpha=10 * np.log(4) / 0.2)
    rounds, batch_size = sections["run"].get("rounds", 1000), sections["run"].get("batch_size")
    expected = flat.solve(ready.problem, ready.train, method, rounds=rounds, batch_size=batch_size, answer="average")
    assert trained.result.restarts == ()
    np.testing.assert_array_equal(trained.result.params[0]["w"], expected.params[0]["w"])


def test_all_settings_are_applied(home, tmp_path):
    run = {"rounds": 60, "batch_size": 16, "value_batch_size": "all", "average_last": 0.25, "participation": 0.5}
    method = {"memory": "on", "threshold": 0.1, "local_step_size": 0.01, "criterion": "softmax", "optimizer": "adam"}
    sections = settings(home, method=method | {"alpha": 7}, run=run | {"local_steps": 2, "answer": "last"})
    result = training.train(write_settings(tmp_path / "t.toml", sections)).result
    ready = training.prepare_table(parse_config(sections), home)
    method = ss.Automatic(
        tolerance=0.2, alpha=7.0, threshold=0.1, local_step_size=0.01, criterion="softmax", optimizer=optax.adam
    )
    expected = flat.solve(
        ready.problem,
        ready.train,
        method,
        held_out=ready.held_out,  # with these two options the compiled program and its rounding equal train's
        record_clients=True,
        **run | {"value_batch_size": None, "local_steps": 2, "answer": "last", "memory": ss.Memory()},
    )
    np.testing.assert_array_equal(result.params[0]["w"], expected.params[0]["w"])
    assert result.restarts == expected.restarts
    assert result.selected.startswith("last iterate")


def test_time_limit_and_resume(home, tmp_path):
    short = training.train(write_settings(tmp_path / "t.toml", settings(home, run={"rounds": 600, "seconds": 1e-3})))
    rounds = len(short.result.history)
    assert rounds < 600
    assert len(training.resume(short.folder).result.history) == rounds
    invoke("resume", short.folder, "--seconds", "600", code=None)
    longer = open_run(short.folder)
    assert rounds < longer.about["rounds"] < 600
    assert longer.about["status"]["code"] == "feasible"
    assert longer.settings["run.seconds"] == 600


def test_runs_and_compare_commands(trained, home, tmp_path):
    run, _ = trained
    other = tmp_path / "other.toml"
    other.write_text(SETTINGS.replace("rounds = 600", "rounds = 30").replace('"cases.csv"', f'"{home / "cases.csv"}"'))
    invoke("train", other)
    (second,) = find_runs(tmp_path / "runs")
    assert run.name[:9] in invoke("runs", home / "runs")
    assert "nowhere does not exist" in invoke("runs", tmp_path / "nowhere", code=2)
    side_by_side = invoke("compare", run.folder, second.folder)
    assert "run.rounds" in side_by_side
    assert "run.seed" not in side_by_side


@pytest.mark.parametrize("chunks", [3, *(pytest.param(chunks, marks=pytest.mark.slow) for chunks in (1, 5))])
def test_resume_after_ctrl_c_is_bitwise(trained, home, tmp_path, chunks):
    whole, _ = trained
    rounds = []

    def interrupt(chunk):
        rounds.append(chunk.round)
        if len(rounds) == chunks:
            raise KeyboardInterrupt

    copy = tmp_path / "cases.toml"
    copy.write_text(SETTINGS.replace('"cases.csv"', f'"{home / "cases.csv"}"'))
    stopped = training.train(copy, callbacks=[interrupt])
    assert stopped.result.status.code == "stopped"
    started = open_run(stopped.folder).about["started"]
    assert ss.load(stopped.folder).run.about["rounds"] == rounds[-1]
    assert " feasible: " in invoke("resume", stopped.folder)
    assert_same_run(open_run(stopped.folder), whole)
    assert open_run(stopped.folder).about["started"] == started


def assert_same_run(resumed, whole):
    for name, array in whole.params.items():
        np.testing.assert_array_equal(resumed.params[name], array)
    np.testing.assert_array_equal(resumed.history.criterion, whole.history.criterion)
    assert resumed.about["restarts"] == whole.about["restarts"]
    assert resumed.certificate == whole.certificate


KILLED = """
import os, signal, sys
from softswitch.results import checkpoints
from softswitch.tables import training

checkpoints.Checkpoints.is_due = lambda self: True  # not only every ten seconds

def die(chunk):
    if chunk.round >= 4:
        os.kill(os.getpid(), signal.SIGKILL)

training.train(sys.argv[1], callbacks=[die])
"""


def test_resume_after_kill_is_bitwise(trained, home, tmp_path):
    whole, _ = trained
    (tmp_path / "cases.toml").write_text(SETTINGS.replace('"cases.csv"', f'"{home / "cases.csv"}"'))
    process = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "cases.toml"], check=False, capture_output=True)
    assert process.returncode == -signal.SIGKILL
    (killed,) = find_runs(tmp_path / "runs")
    assert not killed.finished
    assert list((killed.folder / "checkpoints").glob("round-*"))
    invoke("resume", killed.folder)
    assert_same_run(open_run(killed.folder), whole)


def test_resume_rejects_changed_data(home, tmp_path):
    table = hospital_table()
    table.to_csv(tmp_path / "cases.csv", index=False)
    (tmp_path / "cases.toml").write_text(SETTINGS.replace("600", "20"))
    run = training.train(tmp_path / "cases.toml")
    table.iloc[1:].to_csv(tmp_path / "cases.csv", index=False)
    with pytest.raises(ValueError, match=r"cases.csv has changed since .*; start a new run"):
        training.resume(run.folder)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"diagnosis"', '"diagnose"', "data.label must name a column of the table, but is 'diagnose'"),
        ('"malignant"', '"bad"', "data.positive must be one of the label's values"),
        (
            'label = "diagnosis"',
            'label = "hospital"',
            "data.label must be a column of two values, but 'hospital' has 4",
        ),
        ('"cases.csv"', '"gone.csv"', "does not exist"),
        ("[task]", '[task]\nkind = "demographic-parity"', "needs task.sensitive and task.protected"),
        ("[data]", '[data]\nignore = ["ward"]', "data.ignore must name columns of the table, but 'ward' is not one"),
        ("[data]", "[data]\nheld_out = 1.0", "data.held_out must be"),
        ("rounds = 600", "rounds = 0", "rounds must be an integer >= 1"),
        ("rounds = 600", 'rounds = "many"', "run.rounds must be an integer or \"auto\", but is 'many'"),
        ("rounds = 600", "value_batch_size = -1", "value_batch_size must be an integer >= 1"),
        ("rounds = 600", "[method]\nmemory = 1.5", "method.memory must be one of auto"),
        ("rounds = 600", "[method]\nslack = 0.5", "slack must be a finite number and >= 1, but is 0.5"),
    ],
)
def test_invalid_settings_create_no_folder(home, tmp_path, old, new, message):
    hospital_table().to_csv(tmp_path / "cases.csv", index=False)
    (tmp_path / "cases.toml").write_text(SETTINGS.replace(old, new))
    printed = invoke("train", tmp_path / "cases.toml", code=2)
    assert message in printed
    assert not find_runs(tmp_path)


def test_invalid_run_folders_are_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"must be the folder of a run, but has no run.json"):
        ss.load(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run.json is damaged"):
        open_run(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"format": "softswitch run 9"}))
    with pytest.raises(ValueError, match="has the format 'softswitch run 9'"):
        open_run(tmp_path)


def test_init_writes_valid_settings(home, tmp_path):
    file = tmp_path / "made.toml"
    flags = (home / "cases.csv", "--label", "diagnosis", "--client", "hospital")
    assert "softswitch train" in invoke("init", *flags, "--bound", 0.2, "--out", file)
    config = training.read_config(file)
    assert (config.data.label, config.task.bound) == ("diagnosis", 0.2)
    assert "already exists" in invoke("init", *flags, "--out", file, code=2)
    for kind, bound in ((), 0.25), (("--kind", "neyman-pearson"), 0.1):
        invoke("init", *flags, *kind, "--out", file, "--force")
        task = training.read_config(file).task
        assert (task.kind, task.bound) == (kind[1] if kind else "miss-rate", bound)
    assert "must be one of" in invoke("init", *flags, "--kind", "fair", "--out", tmp_path / "x.toml", code=2)


@pytest.mark.slow
def test_finished_run_is_extended(home, tmp_path):
    """With a fixed step size, the extended run equals a run of the same length."""
    text = SETTINGS.replace('"cases.csv"', f'"{home / "cases.csv"}"') + "[method]\nstep_size = 0.5\n"
    for name, rounds in (("short", 100), ("long", 300)):
        (tmp_path / f"{name}.toml").write_text(text.replace("rounds = 600", f"rounds = {rounds}"))
    short, long = (training.train(tmp_path / f"{name}.toml") for name in ("short", "long"))
    invoke("resume", short.folder, "--rounds", "300", code=None)
    np.testing.assert_array_equal(open_run(short.folder).params["[0]['w']"], open_run(long.folder).params["[0]['w']"])
    assert open_run(short.folder).settings["run.rounds"] == 300
    assert "must be an integer >= 300" in invoke("resume", short.folder, "--rounds", "200", code=2)


def test_automatic_run_is_extended(tmp_path):
    """The run keeps its settings and adds restarts. The table is easy enough that training stops early."""
    generator = np.random.default_rng(0)
    table = pd.DataFrame({"a": generator.normal(size=400), "branch": generator.choice([1, 2], 400)})
    table["y"] = (table["a"] + 2 * generator.normal(size=400) > 0).astype(int)
    table.to_csv(tmp_path / "t.csv", index=False)
    sections = {"data": {"file": "t.csv", "label": "y", "client": "branch"}, "task": {"bound": 0.6}}
    sections |= {"run": {"aim": "bare"}, "method": {"name": "softmax"}}
    trained = training.train(write_settings(tmp_path / "t.toml", sections))
    rounds = len(trained.result.history)
    assert rounds < 20_000, "training stops when progress stalls"
    resumed = training.resume(trained.folder)
    assert resumed.result.restarts == trained.result.restarts
    assert open_run(trained.folder).settings["run.rounds"] == "auto"
    invoke("resume", trained.folder, "--rounds", str(rounds + 300))
    longer = open_run(trained.folder)
    assert (longer.about["rounds"], longer.settings["run.rounds"]) == (rounds + 300, rounds + 300)
    before = [asdict(restart) for restart in trained.result.restarts]
    assert longer.about["restarts"][: len(before)] == before
    assert longer.about["worst_objective"] <= trained.result.worst_objective
    assert f"must be an integer >= {rounds + 300}" in invoke("resume", trained.folder, "--rounds", str(rounds), code=2)
    assert open_run(trained.folder).settings["run.rounds"] == rounds + 300


@pytest.mark.parametrize("kind", ["demographic-parity", "equal-opportunity", "group-loss"])
def test_kinds_with_groups(kind, tmp_path):
    generator = np.random.default_rng(0)
    table = pd.DataFrame({"a": generator.normal(size=400), "sex": generator.choice(["F", "M"], 400)})
    table["y"] = (table["a"] + generator.normal(size=400) > 0).astype(int)
    table["branch"] = generator.choice([1, 2, 3], 400)
    table.to_csv(tmp_path / "t.csv", index=False)
    sections = {
        "data": {"file": "t.csv", "label": "y", "client": "branch"},
        "task": {"kind": kind, "bound": 0.7, "sensitive": "sex", "protected": "F"},
    }
    ready = training.prepare_table(parse_config(sections), tmp_path)
    assert set(ready.train.rows.columns) == {"x", "y", "group"}
    assert ready.train.names == (1, 2, 3)
    assert len(ready.train.strata) == (4 if kind == "equal-opportunity" else 2)
    assert ready.encoding.features == ("a", "sex=M")
    objective, constraint = ss.evaluate(ready.problem, ready.train, ready.problem.start)
    np.testing.assert_allclose(objective, np.log(2), rtol=1e-5)
    np.testing.assert_allclose(constraint, np.log(2) if kind == "group-loss" else 0, rtol=1e-5)


def test_regret_is_trained_and_reported(tmp_path):
    """Branch 3 has random labels and the largest loss. The folder and the report contain both loss and regret."""
    generator = np.random.default_rng(0)
    table = pd.DataFrame({"a": generator.normal(size=300), "branch": np.repeat([1, 2, 3], 100)})
    table["y"] = table["a"] * np.where(table["branch"] == 1, 1.0, 0.8) + 0.1 * generator.normal(size=300)
    table.loc[200:, "y"] = 3 * generator.normal(size=100)
    table.to_csv(tmp_path / "t.csv", index=False)
    sections = {
        "data": {"file": "t.csv", "label": "y", "client": "branch", "held_out": 0.0, "validation": 0.0},
        "task": {"kind": "absolute-error", "bound": 9.0, "regret": True},
        "run": {"aim": "bare", "rounds": 300},
    }
    trained = training.train(write_settings(tmp_path / "t.toml", sections))
    result, run = trained.result, open_run(trained.folder)
    assert result.client_optimum[2] > 10 * result.client_optimum[:2].max()
    assert result.client_loss[:2].max() < 0.5 < result.worst_loss
    np.testing.assert_allclose(run.clients["objective"], result.client_loss, rtol=1e-6)
    np.testing.assert_allclose(run.clients["regret"], result.client_objective, rtol=1e-6)
    assert run.about["worst_loss"] == pytest.approx(result.worst_loss)
    page = write_report([trained.folder], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "F: regret in loss" in page
    assert "above the client&#39;s optimum" in page


def test_unknown_kind_is_rejected():
    with pytest.raises(ValueError, match=r"kind must be one of miss-rate, .*, but is 'parity'"):
        build_problem("parity", 3)


def test_score_run_is_not_extended(home, tmp_path):
    """A score runs no rounds: with more rounds or seconds, another kind of model would replace it."""
    sections = settings(home, task={"kind": "miss-rate", "bound": 0.2}, model={"score": "linear"}, run={})
    folder = training.train(write_settings(tmp_path / "t.toml", sections)).folder
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    for option in ({"rounds": 50}, {"seconds": 60}):
        with pytest.raises(ValueError, match="score"):
            training.resume(folder, **option)
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} == before
    assert training.resume(folder).result.method.score == "linear"


def test_time_limit_of_a_score_is_rejected(home, tmp_path):
    sections = settings(home, task={"kind": "miss-rate", "bound": 0.2}, run={"seconds": 60})
    with pytest.raises(ValueError, match=r"run\.seconds"):
        training.train(write_settings(tmp_path / "t.toml", sections))
    assert not (tmp_path / "runs").exists()


def test_predictions_use_the_text_format_of_the_training_table(tmp_path):
    """In a file with a decimal comma, 1.234 is 1234, also if a short file has no cell that shows it."""
    generator = np.random.default_rng(0)
    table = pd.DataFrame({"sum": generator.integers(1000, 9000, 200), "share": generator.normal(size=200)})
    table["city"] = generator.choice(["Łódź", "Gdańsk"], 200)
    table["y"] = (table["sum"] + 1000 * table["share"] > 5000).astype(int)
    table["branch"] = generator.choice([1, 2], 200)
    german = table.assign(
        sum=table["sum"].map(lambda number: f"{number:,}".replace(",", ".")),
        share=table["share"].map(lambda number: f"{number:.3f}".replace(".", ",")),
    )
    german.to_csv(tmp_path / "t.csv", index=False, sep=";", encoding="iso-8859-2")
    data = {"file": "t.csv", "label": "y", "client": "branch", "separator": ";", "decimal": ","}
    sections = {"data": data | {"encoding": "iso-8859-2"}, "task": {"kind": "miss-rate", "bound": 0.3}}
    sections |= {"run": {"aim": "bare"}, "model": {"score": "linear"}}
    folder = training.train(write_settings(tmp_path / "t.toml", sections)).folder
    few = table.assign(share=0).head(20)
    expected = ss.load(folder).probability(few)
    german.assign(share=0).head(20).to_csv(tmp_path / "new.csv", index=False, sep=";", encoding="iso-8859-2")
    few.to_csv(tmp_path / "other.csv", index=False, encoding="utf-16")
    for name, shown in (("new", "separator ';', decimal sign ',', iso8859-2"), ("other", "separator ',', decimal")):
        assert shown in invoke("predict", folder, tmp_path / f"{name}.csv")
        predicted = pd.read_csv(tmp_path / f"{name}-predicted.csv")
        np.testing.assert_allclose(predicted["y_probability_of_1"], expected, rtol=1e-5)
        assert predicted["city"].tolist() == few["city"].tolist()
