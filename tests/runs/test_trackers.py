"""Trackers write what the history holds, once a chunk."""

import csv
import importlib

import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from problems import client_data, least_squares, regression, softplus_level
from softswitch.trackers import CSVTracker, MLflowTracker, TensorBoardTracker

RULE = ss.SoftmaxSGM(alpha=20.0, step_size=0.05, tolerance=0.1)
ROUNDS = 600


def solve(*callbacks):
    data = client_data(*regression())
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(4))
    return ss.solve(problem, data, RULE, rounds=ROUNDS, eval_every=100, held_out=data, callbacks=callbacks)


def test_csv(tmp_path):
    file = tmp_path / "deep" / "progress.csv"
    with CSVTracker(file) as tracker:
        sizes = []
        result = solve(tracker, lambda chunk: sizes.append(file.stat().st_size))
    assert sizes == sorted(set(sizes))  # written out after every chunk
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["round"]) for row in rows] == list(range(ROUNDS))
    np.testing.assert_allclose([float(row["criterion"]) for row in rows], result.history.criterion, rtol=1e-6)
    looked = [row for row in rows if row["train_objective"]]
    assert [int(row["round"]) for row in looked] == result.history.full_rounds.tolist()
    np.testing.assert_allclose([float(r["held_out_constraint"]) for r in looked], result.history.held_out.constraint)
    with pytest.raises(ValueError, match=r"progress.csv is there already"):
        CSVTracker(file)


def test_tensorboard(tmp_path):
    with TensorBoardTracker(tmp_path, every=10) as tracker:
        result = solve(tracker)
    reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    events.Reload()
    sampled = events.Scalars("sampled/constraint")
    assert [event.step for event in sampled] == list(range(0, ROUNDS, 10))
    np.testing.assert_allclose([event.value for event in sampled], result.history.constraint[::10], rtol=1e-6)
    full = events.Scalars("train/objective")
    np.testing.assert_allclose([event.value for event in full], result.history.full.objective, rtol=1e-6)
    assert [event.step for event in events.Scalars("held_out/mean_constraint")] == result.history.full_rounds.tolist()


def test_mlflow(monkeypatch, tmp_path):
    """Into files, as the small MLflow does without a server."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    with MLflowTracker("trial", settings={"alpha": 20.0}, tracking_uri=uri, every=50) as tracker:
        result = solve(tracker)
    client = importlib.import_module("mlflow.tracking").MlflowClient(tracking_uri=uri)
    run = client.get_run(tracker.run_id)
    assert run.data.params == {"alpha": "20.0"}
    assert run.info.status == "FINISHED"
    told = sorted(client.get_metric_history(tracker.run_id, "sampled_objective"), key=lambda metric: metric.step)
    np.testing.assert_allclose([metric.value for metric in told], result.history.objective[::50], rtol=1e-6)
    assert run.data.metrics["train_constraint"] == pytest.approx(result.history.full.constraint[-1], rel=1e-6)


def test_unknown_names():
    with pytest.raises(AttributeError, match=r"has no attribute .Nothing."):
        importlib.import_module("softswitch.trackers").__getattr__("Nothing")
