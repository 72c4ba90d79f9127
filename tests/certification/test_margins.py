"""Margins per client: distances below the bound at which calibration rows certify it."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import softswitch as ss
from softswitch.certification.certifiability import ClientMargins, align, certifiability, largest_rate
from softswitch.certification.row_values import RowValues
from softswitch.data.splits import DataSplit
from softswitch.oracles.client_shifts import with_margins
from softswitch.problem.fairness import demographic_parity
from softswitch.problem.ranges import ZERO_ONE
from softswitch.problem.rates import miss_rate


def score(w, batch):
    return batch["x"] @ w


def loss(w, batch):
    return (batch["weight"] * jnp.logaddexp(0, score(w, batch))).sum()


RATE = miss_rate(score)
MISSES = ss.Problem(loss, RATE.constraint, jnp.ones(1), constraint_surrogate=RATE.surrogate, constraint_range=ZERO_ONE)


def make_clients(sizes, wrong=0.0, names=None):
    """Return clients of positive rows, a share of which is predicted negative by w = 1."""
    x = [np.where(np.arange(size) < round(wrong * size), -1.0, 1.0)[:, None].astype(np.float32) for size in sizes]
    return ss.ClientData.from_list([{"x": one, "y": np.ones(len(one), np.int32)} for one in x], names=names)


def estimate(problem, split, params, bound):
    kinds = RowValues(problem, split.validation, params).kinds
    return ClientMargins.estimate(problem, split, params, certifiability(problem, split.calibration, bound), kinds)


@pytest.mark.parametrize(("rows", "bound", "events"), [(59, 0.05, 0), (92, 0.05, 0), (93, 0.05, 1), (300, 0.2, 48)])
def test_largest_certifiable_rate(rows, bound, events):
    assert stats.binom.cdf(events, rows, bound) <= 0.05 < stats.binom.cdf(events + 1, rows, bound)
    assert largest_rate(rows, 0.05, bound, ZERO_ONE) == pytest.approx(events / rows)
    assert largest_rate(rows, 0.05, 10 * bound, frozenset((0.0, 10.0))) == pytest.approx(10 * events / rows)


def test_margins_of_rates():
    """93 rows certify 5% with at most 1 miss, 59 rows with none, and 58 rows cannot."""
    names = ["a", "b", "c"]
    validation, calibration = make_clients([20] * 3, 0.1, names), make_clients([93, 59, 58], names=names)
    margins = estimate(
        MISSES, DataSplit(make_clients([60] * 3, names=names), validation, calibration), jnp.ones(1), 0.05
    )
    np.testing.assert_allclose(margins.unit[:, 0], [0.05 - 1 / 93, 0.05, 0.0])
    np.testing.assert_array_equal(margins.is_certifiable, [True, True, False])
    errors = np.sqrt(0.05 * 0.95 * (1 / 50 + 1 / np.array([93, 59])))  # 60 training rows weigh as much as 30 others
    np.testing.assert_allclose(margins.errors[:2, 0], errors)
    expected = [0.2 * (0.05 + errors[1]), 0, 0.2 * (0.05 - 1 / 93 + errors[0])]
    np.testing.assert_allclose(margins.of(0.2, ["b", "unknown", "a"])[:, 0], expected)
    np.testing.assert_allclose(margins.of(9.0, names)[:, 0], [0.045, 0.045, 0.0], err_msg="at most 90% of the bound")
    assert margins.worst(np.array([[0.01], [0.02], [0.9]]), names) == pytest.approx(0.02)


def test_margins_of_other_functions():
    """Without a range, s_i is a quantile of Student's t times the standard error with the calibration rows."""
    generator = np.random.default_rng(0)

    def mean(w, batch):
        return (batch["weight"] * score(w, batch)).sum()

    train, validation, calibration = (
        ss.ClientData.from_list([{"x": generator.normal(size=(size, 1)).astype(np.float32)}]) for size in (90, 30, 50)
    )
    split = DataSplit(train, validation, calibration)
    margins = estimate(ss.Problem(loss, mean, jnp.ones(1)), split, jnp.ones(1), 0.3)
    deviation = np.asarray(validation.rows.columns["x"]).std(ddof=1)
    assert margins.unit[0, 0] == pytest.approx(stats.t.ppf(0.95, 29) * deviation / math.sqrt(50), rel=1e-5)
    # A training row has half the weight of a validation row: 90/2 + 30 = 75.
    assert margins.shares[0, 0] == pytest.approx(45 / 75)
    assert margins.errors[0, 0] == pytest.approx(deviation * math.sqrt(1 / 75 + 1 / 50), rel=1e-5)
    value = 0.6 * 0.1 + 0.4 * 0.2
    expected = stats.norm.logcdf((0.3 - margins.unit[0, 0] - value) / margins.errors[0, 0])
    found = margins.log_pass_probability(np.array([[0.1]]), train.names, np.array([[0.2]]), validation.names)
    assert found == pytest.approx(expected)


def test_values_are_aligned_by_name():
    np.testing.assert_array_equal(align([[1.0], [2.0]], ["a", 7], ["7", "b", "a"])[:, 0], [2.0, math.nan, 1.0])


def make_groups(rows=40, clients=2):
    generator = np.random.default_rng(1)
    data = {"x": generator.normal(size=(rows, 2)).astype(np.float32), "group": np.arange(rows) % 2}
    data["x"][:, 0] += data["group"]
    return ss.ClientData.from_arrays(data | {"y": data["group"]}, np.arange(rows) // (rows // clients))


def test_constraints_with_margins():
    """A smooth gap becomes its two pieces; other constraints only grow by the margin."""
    margins, w = np.array([[0.1], [0.3]]), jnp.array([1.0, -0.5])
    clients = make_groups()
    parity = demographic_parity(lambda w, batch: 1 / (1 + jnp.exp(-score(w, batch))))
    plain = ss.Problem(loss, parity, jnp.zeros(2), constraint_range=(0, 1))
    _, gaps = ss.evaluate(plain, clients, w)
    _, shifted = ss.evaluate(*with_margins(plain, clients, margins), w)
    assert shifted.shape == (2, 2)
    np.testing.assert_allclose(shifted.max(axis=1), gaps[:, 0] + margins[:, 0], rtol=1e-6)
    np.testing.assert_allclose(shifted.sum(axis=1), 2 * margins[:, 0], rtol=1e-5)
    rate = ss.Problem(loss, RATE.constraint, jnp.zeros(2), constraint_surrogate=RATE.surrogate)
    (_, values), (_, larger) = ss.evaluate(rate, clients, w), ss.evaluate(*with_margins(rate, clients, margins), w)
    np.testing.assert_allclose(larger, values + margins, rtol=1e-6)
    with pytest.raises(ValueError, match="client_margin"):
        with_margins(*with_margins(rate, clients, margins), margins)


@pytest.mark.parametrize("method", [ss.SQP(tolerance=0.2), ss.Automatic(0.2, ss.SoftmaxSGM)])
def test_training_with_margins(method):
    """Each client keeps its own tolerance, 0.2 minus its margin."""
    margins, clients = np.array([[0.0], [0.15]]), make_groups(400)
    parity = demographic_parity(lambda w, batch: 1 / (1 + jnp.exp(-score(w, batch))))

    def objective(w, batch):
        values = jnp.logaddexp(0, (1 - 2 * batch["y"]) * score(w, batch))
        return (batch["weight"] * values).sum()

    plain = ss.Problem(objective, parity, jnp.zeros(2), constraint_range=(0, 1))
    result = ss.solve(*with_margins(plain, clients, margins), method, rounds=100)
    assert result.status.ok
    _, gaps = ss.evaluate(plain, clients, result.params)
    assert (gaps <= 0.2 - margins + 1e-6).all()
    assert gaps[1, 0] > 0.04
