"""BoundedRegressor, and the coefficients and warnings of all estimators."""

import pickle

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LinearRegression

import softswitch as ss
from softswitch.results.certificate import Verdict

RUN = {"rounds": 400}
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def patients():
    X, y = load_diabetes(return_X_y=True)
    return X[:, :5], y, np.random.default_rng(0).integers(3, size=len(y))


@pytest.fixture(scope="module")
def fitted(patients):
    X, y, clinic = patients
    return ss.BoundedRegressor("mean-error", 8.0, held_out=0.25, **RUN).fit(X, y, clients=clinic)


def test_predict_before_fit_is_refused(patients):
    with pytest.raises(NotFittedError):
        ss.BoundedRegressor().predict(patients[0])


def test_mean_error_bound(patients, fitted):
    X, y, clinic = patients
    error = fitted.predict(X) - y
    assert fitted.status_.ok
    assert fitted.worst_constraint_ <= 8
    assert all(abs(error[clinic == i].mean()) < 25 for i in range(3))  # on all rows, not only the training rows
    assert fitted.score(X, y) > 0.8 * LinearRegression().fit(X, y).score(X, y)
    assert fitted.certificate_.approximate


def test_coefficients_apply_to_original_features(patients, fitted):
    X, _, _ = patients
    np.testing.assert_allclose(X @ fitted.coef_ + fitted.intercept_, fitted.predict(X), rtol=1e-4)
    restored = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(restored.predict(X), fitted.predict(X))


def test_coverage_certificate_is_exact(patients):
    X, y, clinic = patients
    model = ss.BoundedRegressor("coverage", 0.2, held_out=0.25, validation=0.15, allow_uncertified=True, **RUN)
    model.fit(X, y, clients=clinic)
    assert not model.certificate_.approximate
    assert np.mean(y > model.predict(X)) < 0.2
    assert model.certified_ is (model.certificate_.verdict is Verdict.MEETS)


def test_label_range_makes_certificate_exact(patients):
    X, y, clinic = patients
    model = ss.BoundedRegressor("absolute-error", 100.0, label_range=(0, 400), held_out=0.5, **RUN)
    model.fit(X, y, clients=clinic)
    assert not model.certificate_.approximate
    assert model.certificate_.verdict is Verdict.MEETS
    wild = model.predict(100 * X)
    assert (wild.min(), wild.max()) == (0, 400)


def test_convergence_warning(patients):
    X, y, clinic = patients
    with pytest.warns(ConvergenceWarning):
        ss.BoundedRegressor("mean-error", 0.001, step_size=1e-9, rounds=5).fit(X, y, clients=clinic)


def test_multiclass_classifier(patients):
    X, y, clinic = patients
    label = np.array(["low", "middle", "high"])[np.digitize(y, [90, 180])]
    model = ss.BoundedClassifier("class-miss-rate", 0.6, **RUN).fit(X, label, clients=clinic)
    assert model.classes_.tolist() == ["high", "low", "middle"]
    assert model.coef_.shape == (3, 5)
    scores = X @ model.coef_.T + model.intercept_
    np.testing.assert_allclose(model.decision_function(X), scores, rtol=1e-3, atol=1e-3)
    assert (model.predict(X) == model.classes_[scores.argmax(axis=1)]).all()
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)
    missed = [
        np.mean(model.predict(X)[(clinic == i) & (label == one)] != one) for i in range(3) for one in model.classes_
    ]
    assert max(missed) == pytest.approx(model.worst_constraint_, abs=1e-5)
    assert max(missed) <= 0.6
    with pytest.raises(ValueError, match="y must have 2 classes, but has 3"):
        ss.BoundedClassifier("miss-rate").fit(X, label)
