"""Rates of decisions: exact comparison with the tolerance, −∞ without rows, and training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from softswitch.problem import rates
from softswitch.problem.losses import event_rate
from softswitch.tables.constraints import build_problem


def given_scores(params, batch):
    return batch["score"] * params


def batch_of(score, y, group=None, weight=None):
    rows = len(score)
    weight = np.full(rows, 1 / rows) if weight is None else np.asarray(weight)
    columns = {"score": score, "y": y, "weight": weight, "group": np.zeros(rows) if group is None else group}
    return {name: jnp.asarray(column, jnp.float32) for name, column in columns.items()}


def value(rate, batch):
    return float(rate.constraint(jnp.float32(1), batch))


SCORES, LABELS = [2.0, -1.0, 0.0, -3.0, 0.5], [1, 1, 1, 0, 0]
"""Two of three positives are missed, including one at the threshold, and one of two negatives is a false alarm."""


def test_rates():
    batch = batch_of(SCORES, LABELS)
    assert value(rates.miss_rate(given_scores), batch) == pytest.approx(2 / 3)
    assert value(rates.false_alarm_rate(given_scores), batch) == pytest.approx(1 / 2)
    assert value(rates.error_rate(given_scores), batch) == pytest.approx(3 / 5)


def test_gaps():
    batch = batch_of([1.0, -1.0, 1.0, 1.0, -1.0, -1.0], [1, 1, 0, 1, 1, 0], group=[1, 1, 1, 0, 0, 0])
    assert value(rates.decision_parity(given_scores), batch) == pytest.approx(2 / 3 - 1 / 3)
    assert value(rates.decision_opportunity(given_scores), batch) == 0
    weighted = batch_of([1.0, -1.0, 1.0, -1.0], [1, 1, 1, 1], group=[1, 1, 0, 0], weight=[0.3, 0.1, 0.2, 0.4])
    assert value(rates.decision_parity(given_scores), weighted) == pytest.approx(0.75 - 1 / 3, abs=1e-6)


@pytest.mark.parametrize("make", [rates.miss_rate, rates.decision_opportunity])
def test_rate_without_rows_is_missing(make):
    batch = batch_of([1.0, -1.0], [0, 0], group=[0, 1])
    rate = make(given_scores)
    assert value(rate, batch) == -np.inf
    assert float(rate.surrogate(jnp.float32(1), batch)) == -np.inf
    assert float(jax.grad(rate.surrogate)(jnp.float32(1), batch)) == 0


@pytest.mark.parametrize(("misses", "rows", "tolerance"), [(5, 100, 0.05), (1, 20, 0.05), (3, 30, 0.1), (7, 70, 0.1)])
def test_rate_equal_to_tolerance_is_feasible(misses, rows, tolerance):
    weights = jnp.full(rows, 1 / rows, jnp.float32)
    share = float(event_rate(jnp.arange(rows) < misses, weights))
    assert share <= tolerance
    assert share == pytest.approx(tolerance, rel=1e-6)
    assert float(event_rate(jnp.arange(rows) < misses + 1, weights)) > tolerance


@pytest.mark.parametrize("rows", [20, 100, 1000])
def test_rounded_rates_compare_exactly_with_bounds(rows):
    """k/n in single precision is compared as Python numbers, as in every engine."""
    counts = jnp.arange(rows + 1)
    shares = np.asarray(
        jax.vmap(lambda k: event_rate(jnp.arange(rows) < k, jnp.full(rows, 1 / rows, jnp.float32)))(counts), float
    )
    for bound in range(1, rows, max(1, rows // 20)):
        np.testing.assert_array_equal(shares <= bound / rows, np.arange(rows + 1) <= bound)
    assert shares[0] == 0
    assert shares[-1] == 1


def test_gaps_are_exact():
    """The gap of 11 of 20 and 50 of 100 is 0.05, and of 12 of 20 it is larger. Naive float32 gives 0.05000001."""
    rate = rates.decision_parity(given_scores)
    for misses, is_met in ((11, True), (12, False)):
        score = np.concatenate([np.where(np.arange(20) < misses, 1, -1), np.where(np.arange(100) < 50, 1, -1)])
        gap = value(rate, batch_of(score, np.ones(120), group=np.arange(120) < 20))
        assert (gap <= 0.05) == is_met


def score_pull(score, label, make=rates.miss_rate, weight=None):
    """Return how strongly the surrogate pulls each row's score up (> 0) or down."""
    batch = batch_of(score, label, weight=weight)
    gradient = jax.grad(lambda values: make(given_scores).surrogate(jnp.float32(1), batch | {"score": values}))
    return -np.asarray(gradient(batch["score"]))


def test_surrogate_uses_nearest_wrong_row():
    """This is independent of other rows and of the scale."""
    for scale in (1e-3, 1.0, 1e3):
        score = scale * np.array([5.0, 0.01, -0.02, -3.0, -4.0, 2.0])
        np.testing.assert_allclose(score_pull(score, [1, 1, 1, 1, 1, 0]), [0, 0, 1, 0, 0, 0], atol=1e-5)
        np.testing.assert_allclose(
            score_pull(-score, [0, 0, 0, 0, 0, 1], rates.false_alarm_rate), [0, 0, -1, 0, 0, 0], atol=1e-5
        )
    pulls = score_pull([3.0, -0.5, 0.1, -3.0], [1, 1, 0, 0], rates.error_rate)
    np.testing.assert_allclose(pulls, [0, 0, -1, 0], atol=1e-5)


def test_surrogate_includes_close_rows_and_weights():
    moves = score_pull([-1.0, -1.0, -1.01, -9.0], [1, 1, 1, 1], weight=[0.1, 0.2, 0.1, 0.6])
    assert moves[1] == pytest.approx(2 * moves[0])
    assert 0.9 * moves[0] < moves[2] < moves[0]
    assert moves[3] < 1e-3 * moves[0]
    assert moves.sum() == pytest.approx(1)


def test_equal_scores_are_pulled_equally():
    np.testing.assert_allclose(score_pull([0.0, 0.0, 0.0], [1, 1, 0]), [0.5, 0.5, 0])


def test_without_wrong_rows_nearest_correct_row_is_pulled():
    """A batch may not include the wrong rows of its client."""
    np.testing.assert_allclose(score_pull([0.1, 4.0, 7.0, -1.0], [1, 1, 1, 0]), [1, 0, 0, 0], atol=1e-4)


def test_surrogate_of_gap_has_sign_of_decisions():
    """Decisions narrowly favour group 1 and smooth probabilities favour group 0. Scores of group 1 must decrease."""
    batch = batch_of([0.01, 0.01, -0.001, 9.0], [1, 1, 1, 1], group=[1, 1, 0, 0])
    gradient = jax.grad(lambda score: rates.decision_parity(given_scores).surrogate(1.0, batch | {"score": score}))
    moves = gradient(batch["score"])
    assert (moves[:2] > 0).all()
    assert moves[2] < 0


@pytest.fixture(scope="module")
def branch_data():
    """Clients with 20 and 40 positives, so that 0.05 is one or two misses."""
    generator = np.random.default_rng(1)
    y = np.concatenate([np.repeat([1, 0], [20, 30]), np.repeat([1, 0], [40, 30])])
    x = generator.normal(size=(len(y), 2)) + 1.5 * y[:, None]
    return {"x": x.astype(np.float32), "y": y, "group": generator.integers(0, 2, len(y))}, np.repeat([0, 1], [50, 70])


def expected_rates(columns, owner, params):
    """Return each client's rates of each kind for the parameters of a logistic regression."""
    score = columns["x"] @ np.asarray(params[0]["w"])[:, 0] + float(params[0]["b"][0])
    client_rates = []
    for client in (0, 1):
        is_client = owner == client
        positive, decided, group = columns["y"][is_client] == 1, score[is_client] > 0, columns["group"][is_client] == 1
        client_rates.append(
            {
                "miss-rate": np.mean(~decided[positive]),
                "false-alarm-rate": np.mean(decided[~positive]),
                "error-rate": np.mean(decided != positive),
                "decision-parity": abs(decided[group].mean() - decided[~group].mean()),
                "decision-opportunity": abs(decided[group & positive].mean() - decided[~group & positive].mean()),
            }
        )
    return client_rates


@pytest.mark.parametrize(
    "kind", ["miss-rate", "false-alarm-rate", "error-rate", "decision-parity", "decision-opportunity"]
)
def test_kinds_match_expected_rates(branch_data, kind):
    columns, owner = branch_data
    problem = build_problem(kind, 2).problem
    params = [{"w": jnp.array([[0.8], [0.5]]), "b": jnp.array([-1.0])}]
    for client, expected in enumerate(expected_rates(columns, owner, params)):
        batch = {name: jnp.asarray(column[owner == client]) for name, column in columns.items()}
        batch["weight"] = jnp.full(len(batch["y"]), 1 / len(batch["y"]))
        assert float(problem.constraint(params, batch)) == pytest.approx(expected[kind], abs=1e-6)
        moves = jax.tree.leaves(jax.grad(problem.constraint_surrogate)(params, batch))
        assert all(np.isfinite(leaf).all() for leaf in moves)
        if expected[kind] > 0:
            assert all(np.abs(leaf).max() > 0 for leaf in moves)
    assert max(client_rates[kind] for client_rates in expected_rates(columns, owner, params)) > 0


@pytest.mark.parametrize("kind", ["miss-rate", "decision-opportunity"])
def test_training_meets_bound(branch_data, kind):
    columns, owner = branch_data
    built = build_problem(kind, 2)
    clients = ss.ClientData.from_arrays(columns, owner, strata=built.strata)
    result = flat.solve(built.problem, clients, ss.Automatic(tolerance=0.05), rounds=400, batch_size=None)
    assert result.status.ok
    assert result.worst_constraint <= 0.05
    expected = [rates[kind] for rates in expected_rates(columns, owner, result.params)]
    np.testing.assert_allclose(result.client_constraint[:, 0], expected, atol=1e-6)
    if kind == "miss-rate":
        assert max(expected) == 0.05, "the one allowed miss of twenty must be used"


def test_pooled_decisions(branch_data):
    columns, owner = branch_data
    problem = build_problem("decision-parity", 2).problem
    clients = ss.ClientData.from_arrays(columns, owner, strata="group")
    method = ss.SoftmaxSGM(alpha=10.0, step_size=0.1, tolerance=0.05, criterion="pooled")
    result = flat.solve(problem, clients, method, rounds=3, batch_size=None)
    score = columns["x"] @ np.asarray(result.params[0]["w"])[:, 0] + float(result.params[0]["b"][0])
    decided, group = score > 0, columns["group"] == 1
    assert float(result.pooled_constraint[0]) == pytest.approx(
        abs(decided[group].mean() - decided[~group].mean()), abs=1e-5
    )
