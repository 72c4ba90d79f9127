"""Trimming of clients by robust methods, with several constraints."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from softswitch.methods.weighting import trimmed_max
from softswitch.oracles.base import Evaluation
from softswitch.results.baseline import LowerBound

CONSTRAINT = np.zeros((7, 2), np.float32)
CONSTRAINT[0, 0] = CONSTRAINT[1, 1] = 0.5  # the worst-off client of each constraint


@pytest.fixture(scope="module")
def result_with_two_violations():
    """A result with two constraints, each with another worst client, and robust=1."""
    problem = ss.Problem(
        lambda w, batch: jnp.square(w - 1).sum(),
        lambda w, batch: (w + batch["demand"] - 0.3).mean(0),
        jnp.zeros(2),
    )
    clients = ss.ClientData.from_arrays({"demand": CONSTRAINT}, np.arange(7))
    method = ss.SoftmaxSGM(alpha=50.0, step_size=0.05, tolerance=0.05, robust=1)
    return flat.solve(problem, clients, method, rounds=200, batch_size=None)


def test_client_is_ranked_by_largest_constraint():
    assert trimmed_max(np.array([[9.0, 0.0], [0.0, 8.0], [1.0, 2.0]]), 1) == 8
    assert trimmed_max(np.array([[9.0, 7.0], [0.0, 6.0], [1.0, 2.0]]), 1) == 6
    assert trimmed_max(np.array([[np.nan, 7.0], [0.0, 6.0], [1.0, -np.inf]]), 1) == 6
    assert np.isnan(trimmed_max(np.array([[np.nan, 7.0], [np.nan, 6.0], [1.0, 2.0]]), 1))


def test_more_violations_than_robust_are_not_trimmed(result_with_two_violations):
    assert result_with_two_violations.violating == (0, 1)
    assert result_with_two_violations.status.code is ss.StatusCode.VIOLATED
    assert "2 of 7 clients are above" in result_with_two_violations.status.message
    assert result_with_two_violations.worst_constraint > 0.4
    assert "trimmed-violation" not in {diagnostic.code for diagnostic in result_with_two_violations.diagnostics}


def test_lower_bound_of_all_clients_is_not_trimmed(result_with_two_violations):
    """The lower bound covers all clients, so it is not compared with a result that violates some of them."""
    zero = np.zeros(1)
    numbers = {"value": 0.5, "objective": 0.6, "tolerance": 0.05, "subtracted": 0.0, "rows": 1}
    fields = {"feasible": True, "certified": True, "reason": "", "assumptions": ""}
    bound = LowerBound(**numbers, **fields, weights=zero, multipliers=zero)
    feasible = np.zeros((7, 2))
    feasible[0, 0] = 1.0
    evaluation = Evaluation(np.array([9.0, *[0.1] * 6]), feasible)
    result = replace(result_with_two_violations, lower_bound=bound).with_model(
        result_with_two_violations.params, "another", evaluation
    )
    assert result.status.ok
    assert (result.worst_objective, result.lower_bound.objective) == (0.1, 9.0)
    assert not result.lower_bound.feasible
