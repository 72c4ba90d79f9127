"""Client metrics, compared with hand-computed counts and scikit-learn."""

import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from small_run import small_run
from softswitch.tables import metrics, training
from softswitch.tables.labels import BinaryLabel, NumberLabel
from softswitch.tables.preparation import prepare_table
from softswitch.tables.settings import TaskSection, read_config

BINARY = metrics.METRICS["binary"]


def test_binary_error_rates():
    y, score = np.array([1, 1, 1, 1, 0, 0, 0]), np.array([1.0, 0.0, -1.0, 2.0, -1.0, 0.5, 0.0])
    assert BINARY["miss_rate"](y, score) == 0.5  # a score of 0 is classified as negative
    assert BINARY["false_alarm_rate"](y, score) == pytest.approx(1 / 3)
    assert math.isnan(BINARY["miss_rate"](y[4:], score[4:]))
    assert math.isnan(BINARY["false_alarm_rate"](y[:4], score[:4]))


def test_auc_with_ties_matches_scikit_learn():
    draw = np.random.default_rng(0)
    for _ in range(20):
        y, score = draw.integers(0, 2, 40), np.round(draw.normal(size=40), 1)
        assert metrics.auc(y, score) == pytest.approx(roc_auc_score(y, score))
    assert metrics.auc(np.array([0, 1]), np.zeros(2)) == 0.5
    assert math.isnan(metrics.auc(np.ones(3), np.zeros(3)))


def test_regression_and_multiclass_metrics():
    assert metrics.METRICS["number"]["mean_absolute_error"](np.array([1.0, 2.0]), np.array([2.0, 4.0])) == 1.5
    y, score = np.array([0, 0, 1, 2]), np.eye(4, 3)[[0, 1, 1, 0]]
    assert metrics.METRICS["multiclass"]["error_rate"](y, score) == 0.5
    assert metrics.worst_class_recall(y, score) == 0
    assert metrics.worst_class_recall(y[:3], score[:3]) == 0.5
    assert math.isnan(metrics.worst_class_recall(y[:0], score[:0]))


@pytest.fixture(scope="module")
def assessed(tmp_path_factory):
    """A trained model, its prepared table and its assessment."""
    home = tmp_path_factory.mktemp("assessed")
    folder = small_run(home)
    config = read_config(folder / "config.toml")
    prepared = prepare_table(config, home)
    result = training.train(home / "small.toml", progress=False).result
    return config, prepared, result, metrics.assess_model(config, prepared, result)


def test_assessment_of_a_model(assessed):
    _, prepared, result, assessment = assessed
    columns, y = assessment.columns, np.asarray(prepared.held_out.rows.columns["y"])
    assert sum(columns["positives_held_out"]) == y.sum()
    probability = 1 / (1 + np.exp(-metrics.predict_log_odds(result.params, prepared.held_out)))
    assert sum(columns["expected_events"]) == pytest.approx(probability.sum(), rel=1e-5)
    worst = assessment.usefulness
    assert (worst.metric, worst.condition, worst.prediction) == ("false_alarm_rate", "y = 0", "y = 1")
    assert assessment.usefulness.is_useful is worst.is_useful
    assert assessment.about["classes"] == {"negative": "y = 0", "positive": "y = 1"}
    curves = assessment.about["reliability"]
    assert sum(one["rows"] for one in curves["all"]) == len(y)
    assert list(curves["clients"]) == list(map(str, prepared.held_out.names))


def test_constant_model_is_diagnosed(assessed):
    """Every row is called positive: no model is worse, whatever its loss."""
    config, prepared, result, _ = assessed
    params = prepared.label.constant(prepared.problem.start, 3.0)
    assessment = metrics.assess_model(config, prepared, replace(result, params=params))
    assert assessment.usefulness.is_useful is False
    assert [one.code for one in assessment.result.diagnostics].count("no-better-than-constant") == 1
    rows = replace(prepared, held_out=None)
    on_training_rows = metrics.assess_model(config, rows, replace(result, params=params))
    assert on_training_rows.usefulness.is_held_out is False
    assert "reliability" not in on_training_rows.about


def test_log_odds_are_those_before_the_threshold(assessed):
    """The first feature is the score; thresholds of single clients are left out."""
    _, prepared, _, _ = assessed
    held_out = prepared.held_out
    features = held_out.rows.columns["x"].shape[1]
    weights = np.arange(1.0, features + 1)[:, None]
    log_odds = metrics.predict_log_odds([{"w": weights, "b": np.array([-0.5])}], held_out, 0.7)
    assert log_odds == pytest.approx(np.asarray(held_out.rows.columns["x"])[:, 0] + 0.2, abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "y", "outputs", "values"),
    [
        ("error-rate", [0, 1, 1], [[1.0], [1.0], [-1.0]], [True, False, True]),
        ("class-miss-rate", [0, 2, 1], np.eye(3), [False, True, True]),
        ("decision-parity", [1, 0], [[2.0], [2.0]], np.log1p(np.exp([-2.0, 2.0]))),
        ("absolute-error", [0.0, 1.0], [[1.0], [3.0]], [100.0, 400.0]),
        ("coverage", [0.0, 1.0], [[1.0], [0.0]], [0.1 * 10, 0.9 * 10]),
    ],
)
def test_values_of_single_rows(kind, y, outputs, values):
    """Squared errors of a number with standard deviation 10, and the quantile loss at 0.9."""
    task, label = TaskSection(kind=kind, bound=0.1), BinaryLabel(0, 1)
    label = NumberLabel(5.0, 10.0) if kind in ("absolute-error", "coverage") else label
    y, outputs = np.array(y), np.array(outputs)
    if kind in metrics.ERROR_KINDS:
        assert metrics.wrong_rows(y, outputs).tolist() == values
    else:
        assert metrics.row_losses(task, label, y, outputs) == pytest.approx(values, rel=1e-5)
