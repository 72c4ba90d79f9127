"""Labels of several classes: analytical values, and training with bounded rates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import softswitch as ss
from benchmarks import flat
from softswitch.problem.networks import (
    apply_network,
    class_cross_entropy,
    class_error_rate,
    class_miss_rates,
    predict_class,
)
from softswitch.tables.constraints import build_problem
from softswitch.tables.labels import MulticlassLabel

PARAMS = [{"w": jnp.array([[1.0, 0.0, -1.0]]), "b": jnp.array([0.0, 0.5, 0.0])}]
BATCH = {
    "x": jnp.array([[2.0], [0.0], [-2.0], [0.2], [3.0]]),  # decided 0, 1, 2, 1, 0
    "y": jnp.array([0, 1, 2, 0, 2]),
    "weight": jnp.full(5, 0.2),
}
LABEL = MulticlassLabel(("a", "b", "c"), (0.6, 0.3, 0.1))


def test_class_miss_rates():
    np.testing.assert_allclose(class_miss_rates(3).constraint(PARAMS, BATCH), [0.5, 0.0, 0.5], atol=1e-6)
    assert float(class_error_rate().constraint(PARAMS, BATCH)) == pytest.approx(0.4)
    scores = np.asarray(BATCH["x"]) * [1.0, 0.0, -1.0] + [0.0, 0.5, 0.0]
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = -np.log(chances[np.arange(5), BATCH["y"]]).mean()
    assert float(class_cross_entropy(PARAMS, BATCH)) == pytest.approx(expected, rel=1e-5)


def test_class_without_rows_has_no_rate():
    batch = BATCH | {"weight": BATCH["weight"] * (BATCH["y"] != 1)}
    rates = np.asarray(class_miss_rates(3).constraint(PARAMS, batch))
    assert np.isneginf(rates[1])
    assert np.isfinite(rates[[0, 2]]).all()
    moves = jax.tree.leaves(jax.jacobian(class_miss_rates(3).surrogate)(PARAMS, batch))
    assert all(np.isfinite(leaf).all() for leaf in moves)


def test_surrogate_corrects_nearest_wrong_row():
    """Row 3 of class 0 is narrowly decided as 1: a step must raise class 0 and lower class 1."""
    moves = jax.jacobian(class_miss_rates(3).surrogate)(PARAMS, BATCH)[0]["b"]
    assert moves[0][0] < 0 < moves[0][1]
    assert moves[0][2] == 0


def test_class_rates_are_met_at_every_client():
    """An unconstrained logistic regression rarely predicts the rare class."""
    generator = np.random.default_rng(1)
    label = generator.choice(3, size=600, p=[0.65, 0.25, 0.1]).astype(np.int32)
    centres = np.array([[0.0, 0.0], [1.6, 0.0], [0.8, 1.4]])
    x = (centres[label] + generator.normal(size=(600, 2))).astype(np.float32)
    owner = generator.integers(2, size=600)
    clients = ss.ClientData.from_arrays({"x": x, "y": label}, owner, strata="y")
    problem = build_problem("class-miss-rate", 2, label=LABEL).problem
    result = flat.solve(problem, clients, ss.Automatic(tolerance=0.5), rounds=1000)

    def worst(decisions):
        of_class = [(owner == client) & (label == class_index) for client in range(2) for class_index in range(3)]
        return max((decisions != label)[rows].mean() for rows in of_class)

    unconstrained = LogisticRegression().fit(x, label)
    constrained_decisions = np.asarray(predict_class(apply_network(result.params, jnp.asarray(x))))
    assert worst(unconstrained.predict(x)) > 0.6
    assert worst(constrained_decisions) <= 0.5
    assert result.worst_constraint == pytest.approx(worst(constrained_decisions), abs=1e-6)
    assert result.worst_objective < 0.9 * np.log(3)


def test_constants_and_moves():
    params = build_problem("error-rate", 2, label=LABEL).problem.start
    shares = jax.nn.softmax(LABEL.constant(params, 1.0)[0]["b"])
    np.testing.assert_allclose(shares, LABEL.shares, rtol=1e-5)
    moved = LABEL.move(params, 1.0, 2.0)
    assert moved[0]["b"][2] > moved[0]["b"][1] > moved[0]["b"][0]  # rarer classes are raised more
    assert MulticlassLabel(("a", "b"), (0.5, 0.5)).move is None


def test_unsupported_kinds_are_rejected():
    with pytest.raises(ValueError, match=r"task\.kind must be one of error-rate, class-miss-rate if the label type"):
        build_problem("miss-rate", 2, label=LABEL)
