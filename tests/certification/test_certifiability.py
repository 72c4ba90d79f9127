"""What rows can certify at best is said before anything is trained, and chances are foreseen as they turn out."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import softswitch as ss
from softswitch.certification.certifiability import EvaluatedRows, certifiability, forecast_candidate
from softswitch.certification.intervals import ErrorLevels
from softswitch.certification.row_values import Kind, RowValues
from softswitch.problem.rates import decision_parity, miss_rate


def score(w, batch):
    return batch["x"] @ w


def loss(w, batch):
    return (batch["weight"] * jnp.logaddexp(0, score(w, batch))).sum()


RATE = miss_rate(score)
MISSES = ss.Problem(
    loss, RATE.constraint, jnp.zeros(1), constraint_surrogate=RATE.surrogate, constraint_range=frozenset({0, 1})
)


def clients(positives, negatives=20, wrong=0):
    """One feature; ``wrong`` of each client's positives are decided negative by w = 1."""
    made = []
    for many in positives:
        x = np.concatenate([-np.ones(wrong), np.ones(many - wrong), -np.ones(negatives)])
        y = np.concatenate([np.ones(many), np.zeros(negatives)]).astype(np.int32)
        made.append({"x": x[:, None].astype(np.float32), "y": y})
    return ss.ClientData.from_list(made, names=[f"site {i}" for i in range(len(made))])


def test_the_rows_that_it_takes_are_those_of_the_binomial():
    """0.95^58 = 0.0510, 0.95^59 = 0.0485: 59 rows without a miss."""
    told = certifiability(MISSES, clients([59, 80, 58]), 0.05)
    assert told.rows_needed == 59
    assert told.rows == (59, 80, 58)
    assert told.uncertifiable == ("site 2",)
    assert told.smallest_bound == pytest.approx(1 - 0.05 ** (1 / 58))
    assert "1 of 3 clients: site 2 (58)" in str(told)


def test_enough_rows_are_said_to_be_enough():
    told = certifiability(MISSES, clients([59, 80]), 0.05)
    assert told.uncertifiable == ()
    assert "There are enough rows." in str(told)


def test_a_client_without_rows_that_count_is_in_the_way():
    data = ss.ClientData.from_list([{"x": np.ones((3, 1), np.float32), "y": np.zeros(3, np.int32)}])
    told = certifiability(MISSES, data, 0.05)
    assert told.rows == (0,)
    assert told.smallest_bound == math.inf


def test_without_a_range_nothing_is_promised():
    told = certifiability(ss.Problem(loss, loss, jnp.zeros(1)), clients([20]), 0.05)
    assert told.rows_needed is None
    assert "approximate" in str(told)


def test_gaps_take_rows_of_both_groups():
    rate = decision_parity(score)
    problem = ss.Problem(
        loss, rate.constraint, jnp.zeros(1), constraint_surrogate=rate.surrogate, constraint_range=frozenset({0, 1})
    )
    many = 400
    data = {"x": np.ones((many, 1), np.float32), "y": np.ones(many, np.int32), "group": np.arange(many) % 2}
    told = certifiability(problem, ss.ClientData.from_list([data]), 0.05)
    assert told.rows_needed is not None
    levels = ErrorLevels(0.05, 0.05, 0.05)
    enough = {**data} | {key: column[: told.rows_needed] for key, column in data.items()}
    assert certifiability(problem, ss.ClientData.from_list([enough]), levels.tolerance).uncertifiable == ()
    fewer = {key: column[: told.rows_needed - 2] for key, column in data.items()}
    assert certifiability(problem, ss.ClientData.from_list([fewer]), levels.tolerance).uncertifiable == (0,)


@pytest.mark.parametrize("rate", [0.02, 0.06])
def test_the_chance_foreseen_is_about_that_which_comes(rate):
    """Of many draws of rows to choose by, the mean chance foreseen is near the share that a certificate then passes."""
    draws, later, at_hand, bound = np.random.default_rng(0), 300, 200, 0.1
    levels = ErrorLevels(0.05, 0.05, bound)
    foreseen, passed = [], []
    for _ in range(40):
        wrong, unlearnt = (int(draws.binomial(at_hand, rate)) for _ in range(2))
        seen = [
            EvaluatedRows(data, RowValues(MISSES, data, jnp.ones(1), kinds=(Kind.MEAN, Kind.MEAN)))
            for data in (clients([at_hand], at_hand, wrong), clients([at_hand], at_hand, unlearnt))
        ]
        foreseen.append(
            forecast_candidate(*seen, {"site 0": 2 * later}, levels, [None, frozenset({0, 1})]).pass_probability
        )
        passed.append(stats.binom.cdf(draws.binomial(later, rate), later, bound) <= 0.05)
    assert np.mean(foreseen) == pytest.approx(np.mean(passed), abs=0.2)


def test_no_chance_without_enough_rows():
    data = clients([30])
    seen = EvaluatedRows(data, RowValues(MISSES, data, jnp.ones(1), kinds=(Kind.MEAN, Kind.MEAN)))
    told = forecast_candidate(seen, seen, {"site 0": 50}, ErrorLevels(0.05, 0.05, 0.05), [None, frozenset({0, 1})])
    assert told.pass_probability == 0
    assert told.constraint == told.train_constraint == 0
