"""Trackers write the history once per chunk."""

import csv
import importlib
import sys
import time
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import softswitch as ss
from benchmarks import flat
from problems import client_data, least_squares, regression, softplus_level
from softswitch.results.callbacks import Chunk
from softswitch.trackers import CSVTracker, MLflowTracker, PrometheusTracker, TensorBoardTracker

RULE = ss.SoftmaxSGM(alpha=20.0, step_size=0.05, tolerance=0.1)
ROUNDS = 600


def solve(*callbacks):
    data = client_data(*regression())
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(4))
    return flat.solve(problem, data, RULE, rounds=ROUNDS, eval_every=100, held_out=data, callbacks=callbacks)


def test_csv(tmp_path):
    file = tmp_path / "deep" / "progress.csv"
    with CSVTracker(file) as tracker:
        sizes = []
        result = solve(tracker, lambda chunk: sizes.append(file.stat().st_size))
    assert sizes == sorted(set(sizes))  # written after every chunk
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["round"]) for row in rows] == list(range(ROUNDS))
    np.testing.assert_allclose([float(row["criterion"]) for row in rows], result.history.criterion, rtol=1e-6)
    evaluated_rows = [row for row in rows if row["train_objective"]]
    assert [int(row["round"]) for row in evaluated_rows] == result.history.full_rounds.tolist()
    np.testing.assert_allclose(
        [float(r["held_out_constraint"]) for r in evaluated_rows], result.history.held_out.constraint
    )
    with pytest.raises(ValueError, match=r"file must not exist, but .*progress.csv does"):
        CSVTracker(file)


def test_tensorboard(tmp_path):
    with TensorBoardTracker(tmp_path) as tracker:
        result = solve(tracker)
    reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    events.Reload()
    sampled = events.Scalars("sampled/constraint")
    assert [event.step for event in sampled] == list(range(ROUNDS))
    np.testing.assert_allclose([event.value for event in sampled], result.history.constraint, rtol=1e-6)
    full = events.Scalars("train/objective")
    np.testing.assert_allclose([event.value for event in full], result.history.full.objective, rtol=1e-6)
    assert [event.step for event in events.Scalars("held_out/mean_constraint")] == result.history.full_rounds.tolist()


def test_mlflow(monkeypatch, tmp_path):
    """MLflow writes to files without a server."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    with MLflowTracker("trial", settings={"alpha": 20.0}, tracking_uri=uri) as tracker:
        result = solve(tracker)
    client = importlib.import_module("mlflow.tracking").MlflowClient(tracking_uri=uri)
    run = client.get_run(tracker.run_id)
    assert run.data.params == {"alpha": "20.0"}
    assert run.info.status == "FINISHED"
    metric_history = sorted(
        client.get_metric_history(tracker.run_id, "sampled_objective"), key=lambda metric: metric.step
    )
    np.testing.assert_allclose([metric.value for metric in metric_history], result.history.objective, rtol=1e-6)
    assert run.data.metrics["train_constraint"] == pytest.approx(result.history.full.constraint[-1], rel=1e-6)


def test_mlflow_marks_failed_runs(monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    with pytest.raises(ZeroDivisionError), MLflowTracker("trial", tracking_uri=uri) as tracker:
        raise ZeroDivisionError
    client = importlib.import_module("mlflow.tracking").MlflowClient(tracking_uri=uri)
    assert client.get_run(tracker.run_id).info.status == "FAILED"


def parse_metrics(file):
    """Parse metrics with the Prometheus client, and return values and types by name."""
    families = list(text_string_to_metric_families(file.read_text(encoding="utf-8")))
    assert all(len(family.samples) == 1 and family.documentation for family in families)
    kinds = {family.samples[0].name: family.type for family in families}
    return {family.samples[0].name: family.samples[0] for family in families}, kinds


def test_prometheus(tmp_path):
    file = tmp_path / "metrics" / "trial.prom"
    recorded = []
    name = 'a "run"\\ of\nmine'
    with PrometheusTracker(file, run=name) as tracker:
        result = solve(tracker, lambda chunk: recorded.append(parse_metrics(file)[0]["softswitch_round"].value))
    assert recorded == sorted(set(recorded))
    assert recorded[-1] == ROUNDS
    metrics, kinds = parse_metrics(file)
    assert {sample.labels["run"] for sample in metrics.values()} == {name}
    assert metrics["softswitch_objective"].value == pytest.approx(float(result.history.objective[-1]))
    assert metrics["softswitch_constraint"].value == pytest.approx(float(result.history.constraint[-1]))
    assert metrics["softswitch_feasible_share"].value == pytest.approx(result.history.switch_share)
    assert metrics["softswitch_rounds"].value == ROUNDS
    assert metrics["softswitch_running"].value == 0
    assert abs(metrics["softswitch_updated_timestamp_seconds"].value - time.time()) < 600
    assert kinds["softswitch_void_rounds_total"] == "counter"
    assert kinds["softswitch_round"] == "gauge"
    assert "softswitch_clients_lost" not in metrics  # no client can be lost here
    assert [path.name for path in file.parent.iterdir()] == ["trial.prom"]
    with pytest.raises(ValueError, match=r"must end in \.prom"):
        PrometheusTracker(tmp_path / "trial.txt")


@pytest.mark.parametrize(
    ("make", "module", "extra"),
    [
        (lambda folder: TensorBoardTracker(folder), "tensorboard.summary.writer.event_file_writer", "tensorboard"),
        (lambda folder: MLflowTracker(tracking_uri=folder.as_uri()), "mlflow.tracking", "mlflow"),
        (lambda folder: PrometheusTracker(folder / "run.prom"), "prometheus_client", "prometheus"),
    ],
)
def test_missing_extra_is_named(monkeypatch, tmp_path, make, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"softswitch\[{extra}\]"):
        make(tmp_path)


def test_prometheus_counts_lost_clients(tmp_path):
    def history(outcomes, objective):
        return SimpleNamespace(
            objective=np.array(objective),
            constraint=np.array(objective),
            void=np.isneginf(objective),
            per_client=SimpleNamespace(outcomes=np.array(outcomes), epsilon=None),
        )

    tracker = PrometheusTracker(tmp_path / "x.prom")
    tracker(Chunk(2, 5, history([[1, 1, 2, 0], [5, 1, 6, 4]], [0.5, -np.inf]), 1.0, None, 1.0))
    metrics, _ = parse_metrics(tmp_path / "x.prom")
    assert [
        metrics[f"softswitch_{name}"].value for name in ("clients_counted", "clients_lost", "clients_lost_total")
    ] == [*(1, 3, 4)]
    assert metrics["softswitch_objective"].value == -np.inf
    tracker(Chunk(3, 5, history([[1, 1, 1, 7]], [np.nan]), 1.0, None, 2.0))
    metrics, _ = parse_metrics(tmp_path / "x.prom")
    assert [
        metrics[f"softswitch_{name}"].value for name in ("clients_counted", "clients_lost", "clients_lost_total")
    ] == [*(4, 0, 4)]
    assert np.isnan(metrics["softswitch_constraint"].value)
    assert metrics["softswitch_void_rounds_total"].value == 1
    assert metrics["softswitch_running"].value == 1
