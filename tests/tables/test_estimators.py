"""scikit-learn compatibility of the estimators, and their fitted attributes."""

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.tree import DecisionTreeClassifier

import softswitch as ss
from softswitch.engine.auto_tuning import default_alpha

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
CHECKS = """
import json, warnings
warnings.simplefilter("ignore")
from sklearn.utils.estimator_checks import check_estimator
import softswitch as ss

import sys

# As for scikit-learn's FixedThresholdClassifier: the threshold of the probability is not 0.5.
expected = {"check_classifiers_train": "argmax of predict_proba is not predict"} if sys.argv[2] == "threshold" else {}
results = check_estimator(eval(sys.argv[1]), on_fail=None, expected_failed_checks=expected)
print(json.dumps([[one["check_name"], one["status"], str(one["exception"])] for one in results]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "decision"),
    [
        ('ss.BoundedClassifier("neyman-pearson", 0.1)', "argmax"),
        ("ss.BoundedClassifier()", "threshold"),
        ("ss.BoundedRegressor()", "number"),
    ],
)
def test_scikit_learn_estimator_checks(estimator, decision):
    """Run the checks in a subprocess with less XLA optimisation, because they compile many small programs.

    Kinds that compare groups are excluded because these checks do not pass groups to fit.
    """
    flags = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
    process = subprocess.run(
        [sys.executable, "-c", CHECKS, estimator, decision], capture_output=True, text=True, env=flags, check=False
    )
    assert process.returncode == 0, process.stderr[-2000:]
    results = json.loads(process.stdout.splitlines()[-1])
    failed = [one for one in results if one[1] not in ("passed", "skipped", "xfail")]
    assert failed == []
    assert sum(status == "passed" for _, status, _ in results) > 40


@pytest.fixture(scope="module")
def cases():
    data = load_breast_cancer(as_frame=True)
    frame, malignant = data.data.iloc[:, :8], 1 - data.target.to_numpy()
    hospital = np.random.default_rng(0).choice(["north", "south", "west"], len(frame))
    return frame, malignant, hospital


@pytest.fixture(scope="module")
def fitted(cases):
    frame, malignant, hospital = cases
    return ss.BoundedClassifier("neyman-pearson", 0.2, held_out=0.25, rounds=600).fit(
        frame, malignant, clients=hospital
    )


def test_fitted_attributes(cases, fitted):
    frame, malignant, _ = cases
    assert fitted.status_.ok
    assert fitted.worst_constraint_ <= 0.2
    assert fitted.worst_objective_ == fitted.result_.worst_objective
    assert [one.client for one in fitted.certificate_.clients] == ["north", "south", "west"]
    assert fitted.feature_names_in_.tolist() == list(frame.columns)
    assert fitted.score(frame, malignant) > 0.85


def test_baselines_of_fitted_model(fitted):
    start, constant = fitted.result_.baselines
    assert (start.name, constant.name) == ("the start", "best constant prediction")
    assert constant.objective == pytest.approx(np.log1p(1 / np.expm1(0.2)), rel=1e-3)  # misses cost 0.2
    assert not any(diagnostic.code.startswith("no-better") for diagnostic in fitted.result_.diagnostics)


def test_uninformative_features_are_diagnosed():
    generator = np.random.default_rng(0)
    features, labels = np.ones((300, 2)), generator.choice([0, 1], 300)
    fitted = ss.BoundedClassifier(
        "neyman-pearson", 0.6, rounds=200, sampling=ss.Sampling.automatic(batch_size=None)
    ).fit(features, labels)
    assert "no-better-than-constant" in [diagnostic.code for diagnostic in fitted.result_.diagnostics]


def test_probabilities_and_decisions_agree(cases, fitted):
    frame, _, _ = cases
    probability = fitted.predict_proba(frame)
    np.testing.assert_allclose(probability.sum(axis=1), 1)
    np.testing.assert_array_equal(fitted.predict(frame), (probability[:, 1] > 0.5).astype(int))


def test_pickle_and_clone(cases, fitted):
    frame, _, _ = cases
    restored = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(restored.predict_proba(frame), fitted.predict_proba(frame))
    assert clone(fitted).get_params() == fitted.get_params()


@pytest.mark.slow
def test_grid_search_over_alpha_in_pipeline(cases):
    frame, malignant, hospital = cases
    names = np.where(malignant == 1, "malignant", "benign")
    steps = make_pipeline(MinMaxScaler(), ss.BoundedClassifier("neyman-pearson", 0.3, rounds=100))
    search = GridSearchCV(steps, {"boundedclassifier__alpha": [1.0, 50.0]}, cv=2)
    search.fit(frame, names, boundedclassifier__clients=hospital)
    assert search.best_params_["boundedclassifier__alpha"] in (1.0, 50.0)
    assert set(search.predict(frame)) == {"malignant", "benign"}
    assert search.best_estimator_[-1].result_.names == ("north", "south", "west")


def test_miss_rate_is_bounded_in_cross_validation(cases):
    frame, malignant, hospital = cases
    model = ss.BoundedClassifier("miss-rate", 0.05).fit(frame, malignant, clients=hospital)
    assert model.status_.ok
    assert model.worst_constraint_ <= 0.05
    assert model.score(frame, malignant) > 0.8
    assert model.score_.estimators[0].n_features_in_ == frame.shape[1]
    with pytest.raises(ValueError, match="kind must be one of 'miss-rate'"):
        ss.BoundedClassifier("coverage").fit(frame, malignant)
    with pytest.raises(ValueError, match="sensitive_features must be given"):
        ss.BoundedClassifier("decision-parity").fit(frame, malignant)


def test_rounds_train_with_the_constraint(cases):
    """With a number of rounds the bound applies to the miss rate of ``predict`` on the training rows."""
    frame, malignant, hospital = cases
    model = ss.BoundedClassifier("miss-rate", 0.05, rounds=400).fit(frame, malignant, clients=hospital)
    assert model.status_.ok
    assert model.score_ is None
    missed = [np.mean(model.predict(frame)[(hospital == one) & (malignant == 1)] == 0) for one in np.unique(hospital)]
    assert max(missed) == pytest.approx(model.worst_constraint_, abs=1e-6)
    assert max(missed) <= 0.05


@pytest.mark.parametrize("estimator", ["linear", "boosting", DecisionTreeClassifier(max_depth=3, random_state=0)])
def test_estimators_as_scores(cases, estimator):
    """Decisions are those of the probability and the threshold; a linear score has coefficients."""
    frame, malignant, hospital = cases
    model = ss.BoundedClassifier("miss-rate", 0.2, estimator=estimator).fit(frame, malignant, clients=hospital)
    probability = model.predict_proba(frame)[:, 1]
    np.testing.assert_array_equal(model.predict(frame), (probability > model.threshold_).astype(int))
    assert abs(probability.mean() - malignant.mean()) < 0.05
    if estimator == "linear":
        odds = frame.to_numpy() @ model.coef_[0] + model.intercept_
        np.testing.assert_allclose(odds, model.decision_function(frame), rtol=1e-3, atol=1e-3)
    else:
        assert not hasattr(model, "coef_")


def test_demographic_parity_bound():
    """The labels of two groups differ, and the gap is bounded at both branches."""
    generator = np.random.default_rng(0)
    sex = generator.choice(["F", "M"], 2000)
    frame = pd.DataFrame({"a": generator.normal(size=2000) + (sex == "M"), "b": generator.normal(size=2000)})
    y = (frame["a"] + frame["b"] + 0.5 * generator.normal(size=2000) > 0.5).astype(int)
    branch = generator.choice([1, 2], 2000)
    parity = ss.BoundedClassifier("demographic-parity", 0.05, rounds=500).fit(
        frame, y, clients=branch, sensitive_features=sex
    )
    assert parity.status_.ok
    assert parity.groups_.tolist() == ["F", "M"]
    probability = parity.predict_proba(frame)[:, 1]
    for one in (1, 2):
        gap = abs(
            probability[(branch == one) & (sex == "M")].mean() - probability[(branch == one) & (sex == "F")].mean()
        )
        assert gap <= 0.051
    free = ss.BoundedClassifier("demographic-parity", 1.0, rounds=500).fit(
        frame, y, clients=branch, sensitive_features=sex
    )
    assert free.worst_constraint_ > 0.2
    assert free.worst_objective_ < parity.worst_objective_


def test_network_with_hidden_layer(cases):
    frame, malignant, hospital = cases
    deep = ss.BoundedClassifier("neyman-pearson", 0.3, hidden=(8,), rounds=300).fit(frame, malignant, clients=hospital)
    assert deep.status_.ok
    assert [layer["w"].shape for layer in deep.params_] == [(8, 8), (8, 1)]


def test_defaults_and_automatic_settings(cases):
    frame, malignant, hospital = cases
    assert ss.BoundedClassifier("neyman-pearson").get_params() == {
        "kind": "neyman-pearson",
        "bound": 0.05,
        "alpha": None,
        "step_size": None,
        "rounds": None,
        "seconds": None,
        "sampling": None,
        "output": None,
        "compute": None,
        "logging": None,
        "hidden": (),
        "estimator": "auto",
        "held_out": 0.0,
        "validation": 0.0,
        "allow_uncertified": False,
        "confidence": 0.95,
        "random_state": 0,
    }
    chosen = ss.BoundedClassifier("neyman-pearson", 0.2).fit(frame, malignant, clients=hospital).result_
    assert isinstance(chosen.method, ss.SQP)
    assert chosen.status.ok
    hidden = ss.BoundedClassifier("neyman-pearson", 0.2, hidden=(3,), seconds=0.01)
    network = hidden.fit(frame, malignant, clients=hospital).result_
    assert network.restarts
    assert "layers" in network.auto_settings["method"]
    assert len(network.history) < 20_000, "the time limit did not stop training"
    paper = ss.BoundedClassifier("neyman-pearson", 0.2, step_size=0.5).fit(frame, malignant, clients=hospital).result_
    assert (paper.restarts, len(paper.history)) == ((), 1000)
    assert paper.selected.startswith("mean of the")
    assert paper.method == ss.SoftmaxSGM(tolerance=0.2, step_size=0.5, alpha=default_alpha(3, 0.2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda X, y: ss.BoundedClassifier("demographic-parity").fit(X, y), "sensitive_features must be given to fit"),
        (
            lambda X, y: ss.BoundedClassifier("demographic-parity").fit(X, y, sensitive_features=y[:3]),
            r"one value for each of 6 rows",
        ),
        (
            lambda X, y: ss.BoundedClassifier("demographic-parity").fit(X, y, sensitive_features=[0, 1, 2, 0, 1, 2]),
            "sensitive_features must have two values, but has 3",
        ),
        (
            lambda X, y: ss.BoundedClassifier("neyman-pearson").fit(X, y, clients=["a"]),
            "clients must have one value for each of 6",
        ),
        (
            lambda X, y: ss.BoundedClassifier("neyman-pearson", held_out=1.0).fit(X, y),
            "held_out must be a finite number and >= 0 and < 1",
        ),
        (lambda X, y: ss.BoundedClassifier("neyman-pearson", -1.0).fit(X, y), "tolerance must be .* but is -1"),
        (lambda X, y: ss.BoundedClassifier(seconds=60).fit(X, y), "seconds has no effect"),
        (lambda X, y: ss.BoundedClassifier(output=ss.Output()).fit(X, y), "output has no effect"),
        (lambda X, y: ss.BoundedClassifier(compute=ss.Compute()).fit(X, y), "compute has no effect"),
        (lambda X, y: ss.BoundedClassifier(logging=ss.Logging()).fit(X, y), "logging has no effect"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.eye(6), np.array([0, 1] * 3))


def test_score_without_information_is_diagnosed():
    generator = np.random.default_rng(0)
    features, labels = generator.normal(size=(400, 2)), generator.choice([0, 1], 400)
    fitted = ss.BoundedClassifier("miss-rate", 0.05, held_out=0.3, validation=0.1).fit(features, labels)
    assert "no-better-than-constant" in [diagnostic.code for diagnostic in fitted.result_.diagnostics]
    assert fitted.predict_proba(features)[:, 1].mean() == pytest.approx(labels.mean(), abs=0.05)


@pytest.mark.parametrize("held_out", [0.0, 0.3])
def test_diagnosis_names_the_rows_that_it_used(held_out):
    generator = np.random.default_rng(0)
    features, labels = generator.normal(size=(400, 2)), generator.choice([0, 1], 400)
    fitted = ss.BoundedClassifier("miss-rate", 0.001, held_out=held_out).fit(features, labels)
    (evidence,) = [one.evidence for one in fitted.result_.diagnostics if one.code == "no-better-than-constant"]
    assert evidence.startswith("On training rows") == (held_out == 0)
