"""Scores with a threshold: cross-validation, paths of shifts, their tests, and stored scores."""

import json
import zipfile

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from scipy.stats import binom
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

import softswitch as ss
from softswitch.problem.networks import apply_network
from softswitch.results.certificate import Verdict
from softswitch.tables import scores
from softswitch.tables.labels import BinaryLabel, fit_multiclass_label, fit_number_label
from softswitch.tables.scores import Score
from softswitch.tables.thresholds import add_indicators, train_score

LABEL = BinaryLabel(0, 1)


def simulate(sizes, seed=0, noise=0.5):
    """Return features, labels of two classes and clients; one feature decides."""
    generator = np.random.default_rng(seed)
    owner = np.repeat(list(sizes), list(sizes.values()))
    x = generator.normal(size=(len(owner), 4)).astype(np.float32)
    y = (x[:, 0] + noise * generator.normal(size=len(owner)) > 0.5).astype(np.int32)
    return x, y, owner


def to_clients(x, y, owner, rows):
    return ss.ClientData.from_arrays({"x": x[rows], "y": y[rows]}, client=owner[rows])


def outputs_of(model, data):
    return np.asarray(apply_network(model.result.params, data.rows.columns["x"]))


@pytest.fixture(scope="module")
def rows():
    x, y, owner = simulate({"large": 2000, "medium": 800, "tiny": 40})
    is_training = np.random.default_rng(1).random(len(y)) < 0.7
    return x, y, owner, is_training


def test_row_weights_by_hand():
    """Weights 1/√n per client and class, equal totals of the classes; cells of fewer than five rows count as five."""
    y, owner = np.array([0] * 16 + [0] * 9 + [1] * 25), np.array([0] * 16 + [1] * 9 + [0] * 25)
    weights = scores.row_weights(y, owner, balance=True)
    assert weights.mean() == pytest.approx(1)
    assert weights[y == 0].sum() == pytest.approx(weights[y == 1].sum())
    assert weights[0] / weights[16] == pytest.approx(np.sqrt(9 / 16))
    few = scores.row_weights(np.zeros(7, int), np.array([0] * 5 + [1] * 2), balance=False)
    np.testing.assert_allclose(few, 1)


def test_folds_have_rows_of_all_classes_and_clients():
    y, owner = np.repeat([0, 1], [80, 20]), np.tile([0, 1], 50)
    fold = scores.assign_folds(y, owner, 4, seed=0)
    counts = pd.crosstab([y, owner], fold)
    assert (counts.max(axis=1) - counts.min(axis=1) <= 1).all()


def test_outputs_are_cross_validated(rows):
    """A model that remembers its rows has no better outputs on training rows than on new ones."""
    x, y, owner, is_training = rows
    noise = np.random.default_rng(2).integers(0, 2, len(y)).astype(np.int32)
    learning = to_clients(x, noise, owner, is_training)
    x, labels = (np.asarray(learning.rows.columns[name]) for name in "xy")
    client, weights = np.repeat(np.arange(3), learning.sizes), np.ones(len(labels))
    estimators = scores.make_estimators("boosting", "binary")
    crossed = scores.cross_validate(estimators, x, labels, client, weights, "binary", 2)
    assert abs(np.mean((crossed[:, 0] > 0) == labels) - 0.5) < 0.05


@pytest.mark.parametrize(("cells", "steps"), [(10**6, 100), (5 * 10**6, 50), (10**9, 20)])
def test_boosting_takes_fewer_steps_on_large_tables(cells, steps):
    (boosting,) = scores.make_estimators("boosting", "multiclass", cells=cells)
    assert boosting.max_iter == steps
    assert boosting.max_iter * boosting.learning_rate == pytest.approx(6)


@pytest.mark.parametrize(("kind", "sign"), [("miss-rate", 1), ("false-alarm-rate", -1)])
def test_threshold_is_the_last_that_passes_at_every_client(rows, kind, sign):
    """An independent search over the calibration rows: the next threshold on the path fails at some client."""
    x, y, owner, is_training = rows
    bound = 0.15
    model = train_score(
        kind,
        LABEL,
        to_clients(x, y, owner, is_training),
        to_clients(x, y, owner, ~is_training),
        bound=bound,
        score="linear",
    )
    data = model.calibration
    margin, labels = sign * outputs_of(model, data)[:, 0], np.asarray(data.rows.columns["y"])
    client = np.repeat(np.arange(len(data)), data.sizes)

    def passes(shift):
        outcomes = []
        for i in range(len(data)):
            margins = margin[(client == i) & (labels == (sign == 1))]
            if binom.cdf(0, len(margins), bound) <= 0.05:
                errors = int((margins - shift <= 0).sum())
                outcomes.append(binom.cdf(errors, len(margins), bound) <= 0.05)
        return all(outcomes)

    assert model.passed > 1
    assert passes(0.0)
    steps = np.sort(margin[labels == (sign == 1)])
    assert not passes(steps[steps > 0][3 * len(steps) // model.models + 3])
    verdicts = {one.client: one.verdict for one in model.certificate.clients}
    assert verdicts == {"large": Verdict.MEETS, "medium": Verdict.MEETS, "tiny": Verdict.TOO_FEW}


@pytest.mark.parametrize("outlier", [False, True])
def test_path_is_fine_where_the_worst_client_decides(outlier):
    """The threshold nearly equals the exact one, also if that is below all positive training rows (``outlier``)."""
    sizes, bound = {f"c{i:02d}": 300 + 40 * i for i in range(30)}, 0.1
    x, y, owner = simulate(sizes, seed=3, noise=0.7)
    x[owner == "c10", 0] -= 1.0  # the worst client: the same labels at lower scores
    is_training = np.random.default_rng(1).random(len(y)) < 0.7
    if outlier:
        worst = np.flatnonzero((owner == "c10") & ~is_training & (y == 1))
        x[worst[: len(worst) // 4], 0] = x[y == 1, 0].min() - 0.3
    parts = [to_clients(x, y, owner, part) for part in (is_training, ~is_training)]
    model = train_score("miss-rate", LABEL, *parts, bound=bound, score="linear")
    assert model.passed > 0
    data, exact = model.calibration, np.inf
    margin, labels = outputs_of(model, data)[:, 0], np.asarray(data.rows.columns["y"])
    for start, stop in client_slices(data):
        margins = np.sort(margin[start:stop][labels[start:stop] == 1])
        errors = int((binom.cdf(np.arange(len(margins) + 1), len(margins), bound) <= 0.05).sum()) - 1
        exact = min(exact, margins[errors] if errors >= 0 else np.inf)
    assert exact > 0  # margins are relative to the threshold of the model
    lost = margin[(labels == 0) & (margin > 0)]
    assert np.mean(lost <= exact) < 0.02


def test_clients_with_too_few_rows_do_not_limit_the_others(rows):
    x, y, owner, is_training = rows
    large = owner != "tiny"
    both = []
    for keep in (np.ones(len(y), bool), large):
        parts = [to_clients(x, y, owner, keep & part) for part in (is_training, ~is_training)]
        both.append(train_score("miss-rate", LABEL, *parts, bound=0.15, score="linear"))
    assert both[0].result.worst_objective < both[1].result.worst_objective + 0.1


def test_decisions_and_probabilities(rows):
    """Probabilities are calibrated, and a row is positive if its probability is above the threshold."""
    x, y, owner, is_training = rows
    learning = to_clients(x, y, owner, is_training)
    model = train_score("miss-rate", LABEL, learning, bound=0.1)
    outputs = outputs_of(model, model.learning)[:, 0]
    probability = expit(outputs + model.threshold)
    labels = np.asarray(model.learning.rows.columns["y"])
    assert probability.mean() == pytest.approx(labels.mean(), abs=0.005)
    np.testing.assert_array_equal(outputs > 0, probability > model.probability)
    missed = [np.mean(outputs[start:stop][labels[start:stop] == 1] <= 0) for start, stop in client_slices(learning)]
    assert model.result.worst_constraint == pytest.approx(max(missed), abs=1e-6)
    assert max(missed) <= 0.1
    assert model.certificate is None


def client_slices(data):
    stops = np.cumsum(data.sizes)
    return list(zip(stops - data.sizes, stops, strict=True))


def test_certified_on_new_data_and_better_than_constant(rows):
    x, y, owner, is_training = rows
    learning, calibration = (to_clients(x, y, owner, part) for part in (is_training, ~is_training))
    model = train_score("miss-rate", LABEL, learning, calibration, bound=0.15)
    new_x, new_y, _ = simulate({"large": 20_000}, seed=7)
    decided = np.asarray(apply_network(model.result.params, model.score.outputs(new_x)))[:, 0] > 0
    assert np.mean(~decided[new_y == 1]) <= 0.15
    assert np.mean(decided[new_y == 0]) < 0.2
    assert model.result.baselines[0].objective == 1, "always positive"


def test_thresholds_per_client():
    """A client whose scores are shifted gets another threshold; unknown clients share one."""
    x, y, owner = simulate({"a": 3000, "b": 3000}, noise=0.7)
    x[owner == "b", 0] += 1.5  # the same labels at higher scores
    is_training = np.random.default_rng(1).random(len(y)) < 0.6
    learning, calibration = (to_clients(x, y, owner, part) for part in (is_training, ~is_training))
    own, shared = (
        train_score("miss-rate", LABEL, learning, calibration, bound=0.2, thresholds=one, score="linear")
        for one in ("per-client", "shared")
    )
    assert own.certificate.verdict is Verdict.MEETS
    assert own.clients == ("a", "b")
    assert own.result.worst_objective < shared.result.worst_objective - 0.05
    outputs = own.score.outputs(x[:1])
    decisions = [
        np.asarray(apply_network(own.result.params, add_indicators(outputs, [name], own.clients)))[0, 0]
        for name in ("a", "b", "unknown")
    ]
    assert decisions[0] > decisions[1]
    assert len({round(float(one), 5) for one in decisions}) == 3
    with pytest.raises(ValueError, match="thresholds must be 'shared' for 'error-rate'"):
        train_score("error-rate", LABEL, learning, bound=0.2, thresholds="per-client")


def test_thresholds_per_client_of_small_clients_stay_near_the_shared_one():
    """A client's own threshold does not follow the lowest of its few rows: false alarms stay near the shared path's."""
    x, y, owner = simulate({f"c{i:02d}": 300 for i in range(25)}, seed=5, noise=0.8)
    is_training = np.random.default_rng(1).random(len(y)) < 0.6
    learning, calibration = (to_clients(x, y, owner, part) for part in (is_training, ~is_training))
    per_client, shared = (
        train_score("miss-rate", LABEL, learning, calibration, bound=0.1, thresholds=one, score="linear")
        for one in ("per-client", "shared")
    )
    assert per_client.passed > 0
    assert per_client.result.worst_objective < shared.result.worst_objective + 0.05


def test_error_rate_has_one_model(rows):
    x, y, owner, is_training = rows
    large = owner != "tiny"
    parts = [to_clients(x, y, owner, large & part) for part in (is_training, ~is_training)]
    model = train_score("error-rate", LABEL, *parts, bound=0.3)
    assert (model.models, model.passed) == (1, 1)
    assert model.result.worst_objective == model.result.worst_constraint < 0.25


def test_offset_of_an_upper_limit():
    generator = np.random.default_rng(0)
    owner = np.repeat(["a", "b"], 1500)
    x = generator.normal(size=(3000, 3)).astype(np.float32)
    y = 3 * x[:, 0] + generator.normal(size=3000) * np.where(owner == "b", 2, 1)
    is_training = generator.random(3000) < 0.6
    label = fit_number_label(pd.Series(y), is_training)
    encoded = label.encode(y)
    learning, calibration = (to_clients(x, encoded, owner, part) for part in (is_training, ~is_training))
    model = train_score("coverage", label, learning, calibration, bound=0.1)
    assert model.certificate.verdict is Verdict.MEETS
    assert model.threshold is None
    upper = outputs_of(model, model.calibration)[:, 0]
    above = [
        np.mean(np.asarray(calibration.rows.columns["y"])[slice(*one)] > upper[slice(*one)])
        for one in client_slices(calibration)
    ]
    assert 0.04 < max(above) < 0.1


def test_class_shifts_of_several_classes():
    generator = np.random.default_rng(0)
    owner = np.repeat(["a", "b"], 2000)
    x = generator.normal(size=(4000, 3)).astype(np.float32)
    y = np.digitize(x[:, 0] + 0.3 * generator.normal(size=4000), [-0.3, 1.3]).astype(np.int32)
    is_training = generator.random(4000) < 0.6
    label = fit_multiclass_label(pd.Series(y), is_training)
    learning, calibration = (to_clients(x, y, owner, part) for part in (is_training, ~is_training))
    model = train_score("class-miss-rate", label, learning, calibration, bound=0.4)
    assert model.certificate.verdict is Verdict.MEETS
    plain = LogisticRegression().fit(x[is_training], y[is_training])
    assert model.result.worst_objective < 1.3 * np.mean(plain.predict(x[~is_training]) != y[~is_training]) + 0.02


def test_too_few_rows_of_a_class():
    x, y, owner = simulate({"a": 50})
    y[:] = 0
    y[0] = 1
    with pytest.raises(ValueError, match="needs at least 2 training rows of each class, but 1 has 1"):
        train_score("miss-rate", LABEL, to_clients(x, y, owner, np.ones(50, bool)), bound=0.2)


def test_scores_are_stored_without_pickle(rows, tmp_path):
    x, y, owner, is_training = rows
    model = train_score("miss-rate", LABEL, to_clients(x, y, owner, is_training), bound=0.2)
    model.score.save(tmp_path)
    loaded = Score.load(tmp_path, "binary", 2)
    np.testing.assert_array_equal(loaded.outputs(x), model.score.outputs(x))
    file = tmp_path / scores.SCORE_FILE
    with zipfile.ZipFile(file) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    schema = json.loads(contents["schema.json"])
    schema["content"][0] |= {"__class__": "Popen", "__module__": "subprocess"}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, json.dumps(schema) if name == "schema.json" else content)
    with pytest.raises(ValueError, match=r"subprocess\.Popen"):
        Score.load(tmp_path, "binary", 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("left", 2**31),
        ("right", 10**6),
        ("left", 0),
        ("feature_idx", 2**40),
        ("feature_idx", -1),
        ("is_categorical", 1),
    ],
)
def test_trees_stay_within_their_arrays(rows, tmp_path, field, value):
    """scikit-learn would read any memory, or follow a loop without end."""
    x, y, *_ = rows
    score = Score.fit(scores.make_estimators("boosting", "binary"), x, y, np.ones(len(x)), "binary", 2)
    score.estimators[0]._predictors[1][0].nodes[field][0] = value
    score.save(tmp_path)
    with pytest.raises(ValueError, match="a tree has nodes"):
        Score.load(tmp_path, "binary", 2)


@pytest.mark.parametrize("part", ["estimator", "loss"])
def test_other_estimators_are_refused(rows, tmp_path, part):
    """Parts of scikit-learn that skops accepts would read any memory if their arrays are wrong."""
    x, y, *_ = rows
    score = Score.fit(scores.make_estimators("boosting", "binary"), x, y, np.ones(len(x)), "binary", 2)
    if part == "loss":
        score.estimators[0]._loss = KNeighborsClassifier()
    else:
        score = Score((KNeighborsClassifier(),), "binary", 2)
    score.save(tmp_path)
    with pytest.raises(ValueError, match="KNeighborsClassifier, which scores do not have"):
        Score.load(tmp_path, "binary", 2)
