"""Client metrics, compared with hand-computed counts and scikit-learn."""

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from softswitch.tables import metrics

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
