"""The bounds that a calibration split can certify by its size, before any training."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from softswitch.certification.certifiability import certifiability
from softswitch.certification.intervals import ErrorLevels
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
