"""Fairness constraints: analytical values, exact pooling and missing groups."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import softswitch as ss
from benchmarks import flat
from softswitch.problem import fairness
from softswitch.problem.networks import init_network, logistic_objective, predict_probability


def given_probability(params, batch):
    return batch["pi"] + 0 * params


def batch(pi, group, y=None, weight=None):
    pi = np.asarray(pi, np.float32)
    weight = np.full(len(pi), 1 / len(pi)) if weight is None else np.asarray(weight)
    y = np.zeros(len(pi), int) if y is None else np.asarray(y)
    return {"pi": pi, "group": np.asarray(group), "y": y, "weight": weight.astype(np.float32)}


def value(constraint, rows):
    return np.asarray(constraint(jnp.float32(0.0), {key: jnp.asarray(column) for key, column in rows.items()}))


DEMOGRAPHIC_PARITY = fairness.demographic_parity(given_probability)


def test_demographic_parity():
    rows = batch([0.2, 0.4, 0.9, 0.5], [1, 1, 0, 0])
    assert value(DEMOGRAPHIC_PARITY, rows) == pytest.approx(abs(0.3 - 0.7))
    weighted = batch([0.2, 0.4, 0.9, 0.5], [1, 1, 0, 0], weight=[0.3, 0.1, 0.5, 0.1])
    assert value(DEMOGRAPHIC_PARITY, weighted) == pytest.approx(abs(0.25 - (0.45 + 0.05) / 0.6))


def test_equal_opportunity_and_equalized_odds():
    rows = batch([0.2, 0.4, 0.9, 0.5, 0.1, 0.7], [1, 1, 0, 0, 1, 0], [1, 0, 1, 0, 1, 0])
    assert value(fairness.equal_opportunity(given_probability), rows) == pytest.approx(abs(0.15 - 0.9))
    odds = value(fairness.equalized_odds(given_probability), rows)
    np.testing.assert_allclose(odds, [abs(0.15 - 0.9), abs(0.4 - 0.6)], rtol=1e-6)


def test_group_loss():
    rows = batch([0.2, 0.4, 0.9], [1, 1, 0], [1, 0, 1])
    losses = value(fairness.bounded_group_loss(given_probability, 0.5), rows)
    np.testing.assert_allclose(losses, [-(np.log(0.2) + np.log(0.6)) / 2 - 0.5, -np.log(0.9) - 0.5], rtol=1e-5)
    batch_with_certain_predictions = batch([0.0, 1.0], [1, 0], [1, 0])
    assert np.isfinite(value(fairness.bounded_group_loss(given_probability, 0.5), batch_with_certain_predictions)).all()


@pytest.mark.parametrize("group", [[1, 1, 1], [0, 0, 0]])
def test_missing_group_has_no_gap(group):
    """A missing group gives −∞: 0 would appear feasible, and NaN would stop the run."""
    rows = batch([0.2, 0.4, 0.9], group, [1, 0, 1])
    assert value(DEMOGRAPHIC_PARITY, rows) == -np.inf
    assert value(fairness.equal_opportunity(given_probability), rows) == -np.inf
    assert (value(fairness.equalized_odds(given_probability), rows) == -np.inf).all()
    bounds = value(fairness.bounded_group_loss(given_probability, 0.5), rows)
    np.testing.assert_array_equal(np.isneginf(bounds), [group[0] == 0, group[0] == 1])


def test_missing_group_has_no_gradient():
    params, x = init_network(3, (4,)), jnp.ones((5, 3))
    for constraint in (
        fairness.demographic_parity(predict_probability),
        fairness.equal_opportunity(predict_probability),
        fairness.equalized_odds(predict_probability),
        fairness.bounded_group_loss(predict_probability, 0.3),
    ):
        rows = {"x": x, "y": jnp.ones(5, int), "group": jnp.ones(5, int), "weight": jnp.full(5, 0.2)}
        for gradient in jax.tree.leaves(jax.jacrev(constraint)(params, rows)):
            assert np.isfinite(gradient).all()
    for gradient in jax.tree.leaves(jax.jacrev(fairness.demographic_parity(predict_probability))(params, rows)):
        np.testing.assert_array_equal(gradient, 0)


@given(st.lists(st.tuples(st.floats(0, 1, width=32), st.booleans()), min_size=2, max_size=20), st.floats(0.1, 10))
def test_gap_is_symmetric_and_bounded(pairs, scale):
    pi, group = zip(*pairs, strict=True)
    rows = batch(pi, np.array(group, int))
    gap = value(DEMOGRAPHIC_PARITY, rows)
    if len(set(group)) < 2:
        assert gap == -np.inf
        return
    assert -1e-6 <= gap <= 1 + 1e-6
    swapped_value = value(DEMOGRAPHIC_PARITY, {**rows, "group": 1 - rows["group"]})
    scaled = value(DEMOGRAPHIC_PARITY, {**rows, "weight": np.float32(scale) * rows["weight"]})
    assert swapped_value == pytest.approx(gap, abs=1e-6)
    assert scaled == pytest.approx(gap, abs=1e-5)


def make_people(clients, seed=0):
    generator = np.random.default_rng(seed)
    rows = 60 * clients
    group, owner = generator.integers(0, 2, rows), np.repeat(np.arange(clients), 60)
    group[owner == 0] = 1  # the first client has one group only
    x = generator.normal(size=(rows, 3)) + 0.8 * group[:, None] * np.array([1, 0, 0])
    y = (x @ [1.0, 0.5, 0] + 0.5 * generator.normal(size=rows) > 0.5).astype(int)
    return {"x": x.astype(np.float32), "y": y, "group": group}, owner


def test_pooled_statistics_equal_gap_of_concatenated_rows():
    """Three clients of different sizes, one with a single group, give the gap of the concatenated rows."""
    data, owner = make_people(3)
    keep = np.flatnonzero((owner != 1) | (np.arange(180) % 3 == 0))
    data, owner = {key: column[keep] for key, column in data.items()}, owner[keep]
    params = init_network(3, (4,), seed=1)
    constraint = fairness.demographic_parity(predict_probability)
    statistics = []
    for i in range(3):
        client_rows = {key: jnp.asarray(column[owner == i]) for key, column in data.items()}
        client_rows["weight"] = jnp.full((owner == i).sum(), 1 / (owner == i).sum())
        statistics.append(constraint.statistics(params, client_rows) * (owner == i).sum())
    positive = np.asarray(predict_probability(params, {"x": jnp.asarray(data["x"])}))
    expected = abs(positive[data["group"] == 1].mean() - positive[data["group"] == 0].mean())
    assert float(constraint.value(sum(statistics))) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("criterion", "constraint"),
    [
        ("softmax", fairness.demographic_parity(predict_probability)),
        pytest.param("pooled", fairness.demographic_parity(predict_probability), marks=pytest.mark.slow),
        pytest.param("max", fairness.equal_opportunity(predict_probability), marks=pytest.mark.slow),
        ("pooled", fairness.equalized_odds(predict_probability)),
        ("mean", fairness.bounded_group_loss(predict_probability, 0.3)),
    ],
    ids=["parity", "pooled parity", "opportunity", "pooled odds", "group loss"],
)
def test_constraints_and_criteria_train(criterion, constraint):
    """A client with a single group has no gap, and the gaps of other clients decrease."""
    data, owner = make_people(4)
    clients = ss.ClientData.from_arrays(data, client=owner, strata="group")
    problem = ss.Problem(logistic_objective, constraint, init_network(3, (4,)))
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.3, tolerance=0.15, criterion=criterion)
    result = flat.solve(problem, clients, method, rounds=300)
    assert result.status.code is not ss.StatusCode.DIVERGED, result.status
    without_gap = np.isneginf(result.client_constraint)
    assert without_gap[0].any()
    assert not without_gap[1:].any()
    unconstrained = flat.solve(problem, clients, ss.SoftmaxSGM(alpha=20.0, step_size=0.3, tolerance=10.0), rounds=300)
    if criterion == "pooled":  # the criterion of the pooled data, not of the worst client
        pooled_rows = {key: jnp.asarray(column) for key, column in data.items()} | {"weight": jnp.full(240, 1 / 240)}
        assert (
            constraint(result.params, pooled_rows)
            <= jnp.maximum(0.16, constraint(unconstrained.params, pooled_rows) + 1e-3)
        ).all()
    else:
        assert result.worst_constraint <= max(0.16, unconstrained.worst_constraint + 1e-3)


def test_equal_predictions_give_equal_constraints():
    assert fairness.demographic_parity(predict_probability) is fairness.demographic_parity(predict_probability)
    assert fairness.bounded_group_loss(predict_probability, 0.3) is fairness.bounded_group_loss(
        predict_probability, 0.3
    )
    with pytest.raises(ValueError, match="level must be"):
        fairness.bounded_group_loss(predict_probability, float("nan"))


def column_of_probabilities(params, batch):
    return batch["pi"][:, None] + 0 * params


def test_prediction_with_wrong_shape_is_rejected():
    """A column instead of a vector would broadcast to a matrix with gaps of 0."""
    rows = batch([0.2, 0.4], [1, 0])
    with pytest.raises(ValueError, match=r"one probability per row, of shape \(2,\), but returns \(2, 1\)"):
        value(fairness.demographic_parity(column_of_probabilities), rows)
    with pytest.raises(ValueError, match="same shape"):
        ss.mean_over(jnp.ones((2, 1)), jnp.ones(2))
    with pytest.raises(TypeError, match="predict must be"):
        fairness.demographic_parity(None)


def test_any_nonzero_code_is_second_group():
    pi = [0.2, 0.4, 0.9, 0.5]
    coded = batch(pi, [1, 1, 2, 2], [1, -1, 1, -1])
    expected_batch = batch(pi, [1, 1, 0, 0], [1, 0, 1, 0])
    for make in (fairness.demographic_parity, fairness.equal_opportunity, fairness.equalized_odds):
        np.testing.assert_array_equal(
            value(make(given_probability), coded), value(make(given_probability), expected_batch)
        )


def group_probabilities(params, batch):
    """Probabilities that differ between the groups by the parameter."""
    return 0.5 + params * (batch["group"] == 1)


def distance_to_one(params, batch):
    return (batch["weight"] * (params - 0.4) ** 2).sum()


def test_pooled_criterion_sets_status():
    """One mixed client of 4 rows and two with one group each: the pooled gap equals the parameter."""
    group, owner = np.array([1, 0, 1, 0] + [1] * 8 + [0] * 8), np.repeat([0, 1, 2], [4, 8, 8])
    clients = ss.ClientData.from_arrays({"group": group}, client=owner)
    problem = ss.Problem(distance_to_one, fairness.demographic_parity(group_probabilities), jnp.float32(0.3))
    method = ss.SoftmaxSGM(alpha=1.0, step_size=0.05, tolerance=0.1, criterion="pooled")
    feasible = flat.solve(problem, clients, method, rounds=400, batch_size=None, average_last=0.5)
    assert feasible.status.ok
    assert "the constraint on the pooled data is" in feasible.status.message
    np.testing.assert_allclose(feasible.pooled_constraint, abs(float(feasible.params)), atol=1e-6)
    without_average = flat.solve(problem, clients, method, rounds=400, batch_size=None)
    assert "masked-worst-client" not in {diagnostic.code for diagnostic in without_average.diagnostics}
    far = ss.SoftmaxSGM(alpha=1.0, step_size=0.05, tolerance=0.1, threshold=0.35, criterion="pooled")
    infeasible = flat.solve(problem, clients, far, rounds=100, batch_size=None)
    assert infeasible.status.code is ss.StatusCode.VIOLATED
    mean_problem = ss.Problem(distance_to_one, lambda w, batch: (batch["weight"] * w).sum(), jnp.float32(0.0))
    method = ss.SoftmaxSGM(alpha=1.0, step_size=0.05, tolerance=0.1)
    assert flat.solve(mean_problem, clients, method, rounds=20).pooled_constraint is None
