"""Calibration, compared with scikit-learn and with models of known calibration."""

import math

import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression

from softswitch.tables.metrics import fit_recalibration, reliability_curve


@pytest.mark.parametrize(("shift", "scale", "rows"), [(0, 1, 400), (-2, 0.3, 80), (1, 4, 1000), (500, 30, 300)])
def test_recalibration_matches_scikit_learn(shift, scale, rows):
    generator = np.random.default_rng(rows)
    log_odds = generator.normal(shift, scale, rows)
    y = (generator.random(rows) < expit((log_odds - shift) / scale)).astype(int)
    intercept, slope = fit_recalibration(y, log_odds)
    centred = (log_odds - shift)[:, None]
    reference = LogisticRegression(C=1e12, tol=1e-12, max_iter=10_000).fit(centred, y)
    assert slope == pytest.approx(reference.coef_[0, 0], rel=1e-4)
    assert intercept == pytest.approx(reference.intercept_[0] - slope * shift, rel=1e-4, abs=1e-3)


def test_calibrated_and_overconfident_predictions():
    generator = np.random.default_rng(0)
    log_odds = generator.normal(0, 2, 50_000)
    y = generator.random(50_000) < expit(log_odds)
    assert fit_recalibration(y, log_odds) == pytest.approx((0, 1), abs=0.05)
    assert fit_recalibration(y, 2 * log_odds + 1)[1] == pytest.approx(0.5, abs=0.03)


def test_recalibration_without_an_estimate():
    y, x = np.repeat([0, 1], [9, 30]), np.random.default_rng(0).normal(size=39)
    for given in ((y, x), (np.repeat([0, 1], 20), np.zeros(40)), (np.repeat([0, 1], 20), np.arange(40.0)), ([], [])):
        assert all(map(math.isnan, fit_recalibration(*given)))


def test_reliability_curve_matches_scikit_learn():
    generator = np.random.default_rng(2)
    probability = generator.random(500)
    y = (generator.random(500) < probability).astype(int)
    curve = reliability_curve(y, probability)
    observed, predicted = calibration_curve(y, probability, n_bins=10, strategy="quantile")
    assert [one["rows"] for one in curve] == [50] * 10
    assert [one["predicted"] for one in curve] == pytest.approx(predicted.tolist())
    assert [one["observed"] for one in curve] == pytest.approx(observed.tolist())
    assert all(one["lower"] <= one["observed"] <= one["upper"] for one in curve)


def test_reliability_curve_of_few_rows():
    assert reliability_curve(np.array([]), np.array([])) == []
    (one,) = reliability_curve(np.array([1, 0, 0, 0]), np.full(4, 0.3))
    assert (one["predicted"], one["observed"], one["rows"]) == (pytest.approx(0.3), 0.25, 4)
    assert logit(one["predicted"]) < 0
