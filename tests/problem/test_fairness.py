"""Fairness constraints by hand, pooled exactly, and where a group is missing."""

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


PARITY = fairness.demographic_parity(given_probability)


def test_parity_by_hand():
    rows = batch([0.2, 0.4, 0.9, 0.5], [1, 1, 0, 0])
    assert value(PARITY, rows) == pytest.approx(abs(0.3 - 0.7))
    weighted = batch([0.2, 0.4, 0.9, 0.5], [1, 1, 0, 0], weight=[0.3, 0.1, 0.5, 0.1])
    assert value(PARITY, weighted) == pytest.approx(abs(0.25 - (0.45 + 0.05) / 0.6))


def test_opportunity_and_odds_by_hand():
    rows = batch([0.2, 0.4, 0.9, 0.5, 0.1, 0.7], [1, 1, 0, 0, 1, 0], [1, 0, 1, 0, 1, 0])
    assert value(fairness.equal_opportunity(given_probability), rows) == pytest.approx(abs(0.15 - 0.9))
    odds = value(fairness.equalized_odds(given_probability), rows)
    np.testing.assert_allclose(odds, [abs(0.15 - 0.9), abs(0.4 - 0.6)], rtol=1e-6)


def test_group_loss_by_hand():
    rows = batch([0.2, 0.4, 0.9], [1, 1, 0], [1, 0, 1])
    losses = value(fairness.bounded_group_loss(given_probability, 0.5), rows)
    np.testing.assert_allclose(losses, [-(np.log(0.2) + np.log(0.6)) / 2 - 0.5, -np.log(0.9) - 0.5], rtol=1e-5)
    certain = batch([0.0, 1.0], [1, 0], [1, 0])
    assert np.isfinite(value(fairness.bounded_group_loss(given_probability, 0.5), certain)).all()


@pytest.mark.parametrize("group", [[1, 1, 1], [0, 0, 0]])
def test_without_a_group_there_is_no_gap(group):
    """Not 0, which would look feasible; not NaN, which would end the run."""
    rows = batch([0.2, 0.4, 0.9], group, [1, 0, 1])
    assert value(PARITY, rows) == -np.inf
    assert value(fairness.equal_opportunity(given_probability), rows) == -np.inf
    assert (value(fairness.equalized_odds(given_probability), rows) == -np.inf).all()
    bounds = value(fairness.bounded_group_loss(given_probability, 0.5), rows)
    np.testing.assert_array_equal(np.isneginf(bounds), [group[0] == 0, group[0] == 1])


def test_without_a_group_there_is_no_gradient():
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
def test_gap_is_a_gap(pairs, scale):
    pi, group = zip(*pairs, strict=True)
    rows = batch(pi, np.array(group, int))
    gap = value(PARITY, rows)
    if len(set(group)) < 2:
        assert gap == -np.inf
        return
    assert -1e-6 <= gap <= 1 + 1e-6
    swapped = value(PARITY, {**rows, "group": 1 - rows["group"]})
    scaled = value(PARITY, {**rows, "weight": np.float32(scale) * rows["weight"]})
    assert swapped == pytest.approx(gap, abs=1e-6)
    assert scaled == pytest.approx(gap, abs=1e-5)


def people(clients, seed=0):
    generator = np.random.default_rng(seed)
    rows = 60 * clients
    group, owner = generator.integers(0, 2, rows), np.repeat(np.arange(clients), 60)
    group[owner == 0] = 1  # the first client has one group only
    x = generator.normal(size=(rows, 3)) + 0.8 * group[:, None] * np.array([1, 0, 0])
    y = (x @ [1.0, 0.5, 0] + 0.5 * generator.normal(size=rows) > 0.5).astype(int)
    return {"x": x.astype(np.float32), "y": y, "group": group}, owner


def test_pooled_statistics_give_the_gap_on_all_data_put_together():
    """Three clients of different sizes, one of them with one group only: as computed on the concatenated rows."""
    data, owner = people(3)
    keep = np.flatnonzero((owner != 1) | (np.arange(180) % 3 == 0))
    data, owner = {key: column[keep] for key, column in data.items()}, owner[keep]
    params = init_network(3, (4,), seed=1)
    constraint = fairness.demographic_parity(predict_probability)
    statistics = []
    for i in range(3):
        own = {key: jnp.asarray(column[owner == i]) for key, column in data.items()}
        own["weight"] = jnp.full((owner == i).sum(), 1 / (owner == i).sum())
        statistics.append(constraint.statistics(params, own) * (owner == i).sum())
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
def test_every_constraint_and_every_criterion_trains(criterion, constraint):
    """With a client that has one group only: it has no gap, and the others' comes down."""
    data, owner = people(4)
    clients = ss.ClientData.from_arrays(data, client=owner, strata="group")
    problem = ss.Problem(logistic_objective, constraint, init_network(3, (4,)))
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.3, tolerance=0.15, criterion=criterion)
    result = flat.solve(problem, clients, method, rounds=300)
    assert result.status.code is not ss.StatusCode.DIVERGED, result.status
    absent = np.isneginf(result.client_constraint)
    assert absent[0].any()
    assert not absent[1:].any()
    free = flat.solve(problem, clients, ss.SoftmaxSGM(alpha=20.0, step_size=0.3, tolerance=10.0), rounds=300)
    if criterion == "pooled":  # which looks at the data put together, not at the worst client
        together = {key: jnp.asarray(column) for key, column in data.items()} | {"weight": jnp.full(240, 1 / 240)}
        assert (
            constraint(result.params, together) <= jnp.maximum(0.16, constraint(free.params, together) + 1e-3)
        ).all()
    else:
        assert result.worst_constraint <= max(0.16, free.worst_constraint + 1e-3)


def test_the_same_prediction_gives_the_same_constraint():
    assert fairness.demographic_parity(predict_probability) is fairness.demographic_parity(predict_probability)
    assert fairness.bounded_group_loss(predict_probability, 0.3) is fairness.bounded_group_loss(
        predict_probability, 0.3
    )
    with pytest.raises(ValueError, match="level must be"):
        fairness.bounded_group_loss(predict_probability, float("nan"))


def column_of_probabilities(params, batch):
    return batch["pi"][:, None] + 0 * params


def test_a_prediction_of_the_wrong_shape_is_refused():
    """One column instead of a vector would broadcast to a matrix, and every gap would be 0."""
    rows = batch([0.2, 0.4], [1, 0])
    with pytest.raises(ValueError, match=r"one probability per row, of shape \(2,\), but returns \(2, 1\)"):
        value(fairness.demographic_parity(column_of_probabilities), rows)
    with pytest.raises(ValueError, match="same shape"):
        ss.mean_over(jnp.ones((2, 1)), jnp.ones(2))
    with pytest.raises(TypeError, match="predict must be"):
        fairness.demographic_parity(None)


def test_any_other_code_is_the_other_group():
    pi = [0.2, 0.4, 0.9, 0.5]
    coded = batch(pi, [1, 1, 2, 2], [1, -1, 1, -1])
    usual = batch(pi, [1, 1, 0, 0], [1, 0, 1, 0])
    for make in (fairness.demographic_parity, fairness.equal_opportunity, fairness.equalized_odds):
        np.testing.assert_array_equal(value(make(given_probability), coded), value(make(given_probability), usual))


def apart(params, batch):
    """Probabilities that differ between the groups by the parameter."""
    return 0.5 + params * (batch["group"] == 1)


def nearness(params, batch):
    return (batch["weight"] * (params - 0.4) ** 2).sum()


def test_with_the_pooled_criterion_the_status_is_about_the_data_put_together():
    """One mixed client of 4 rows, and two of one group each: the pooled gap is the parameter itself."""
    group, owner = np.array([1, 0, 1, 0] + [1] * 8 + [0] * 8), np.repeat([0, 1, 2], [4, 8, 8])
    clients = ss.ClientData.from_arrays({"group": group}, client=owner)
    problem = ss.Problem(nearness, fairness.demographic_parity(apart), jnp.float32(0.3))
    method = ss.SoftmaxSGM(alpha=1.0, step_size=0.05, tolerance=0.1, criterion="pooled")
    met = flat.solve(problem, clients, method, rounds=400, batch_size=None, average_last=0.5)
    assert met.status.ok
    assert "the constraint on the pooled data is" in met.status.message
    np.testing.assert_allclose(met.pooled_constraint, abs(float(met.params)), atol=1e-6)
    early = flat.solve(problem, clients, method, rounds=400, batch_size=None)
    assert "masked-worst-client" not in {finding.code for finding in early.diagnostics}
    far = ss.SoftmaxSGM(alpha=1.0, step_size=0.05, tolerance=0.1, threshold=0.35, criterion="pooled")
    missed = flat.solve(problem, clients, far, rounds=100, batch_size=None)
    assert missed.status.code is ss.StatusCode.VIOLATED
    plain = ss.Problem(nearness, lambda w, batch: (batch["weight"] * w).sum(), jnp.float32(0.0))
    method = ss.SoftmaxSGM(alpha=1.0, step_size=0.05, tolerance=0.1)
    assert flat.solve(plain, clients, method, rounds=20).pooled_constraint is None
