"""Who is set aside where clients may lie: so many clients, whatever the number of constraints."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from softswitch.methods.weighting import trimmed_max
from softswitch.oracles.base import Evaluation
from softswitch.results.baseline import LowerBound

DEMAND = np.zeros((7, 2), np.float32)
DEMAND[0, 0] = DEMAND[1, 1] = 0.5  # the worst-off client of each constraint


@pytest.fixture(scope="module")
def two_worst_off():
    """Two constraints, each with a worst-off client of its own, and one that may lie."""
    problem = ss.Problem(
        lambda w, batch: jnp.square(w - 1).sum(),
        lambda w, batch: (w + batch["demand"] - 0.3).mean(0),
        jnp.zeros(2),
    )
    clients = ss.ClientData.from_arrays({"demand": DEMAND}, np.arange(7))
    method = ss.SoftmaxSGM(alpha=50.0, step_size=0.05, tolerance=0.05, robust=1)
    return flat.solve(problem, clients, method, rounds=200, batch_size=None)


def test_a_client_counts_by_its_largest():
    assert trimmed_max(np.array([[9.0, 0.0], [0.0, 8.0], [1.0, 2.0]]), 1) == 8
    assert trimmed_max(np.array([[9.0, 7.0], [0.0, 6.0], [1.0, 2.0]]), 1) == 6
    assert trimmed_max(np.array([[np.nan, 7.0], [0.0, 6.0], [1.0, -np.inf]]), 1) == 6
    assert np.isnan(trimmed_max(np.array([[np.nan, 7.0], [np.nan, 6.0], [1.0, 2.0]]), 1))


def test_more_clients_above_than_may_lie_are_not_set_aside(two_worst_off):
    assert two_worst_off.violating == (0, 1)
    assert two_worst_off.status.code is ss.StatusCode.VIOLATED
    assert "2 of 7 clients are above" in two_worst_off.status.message
    assert two_worst_off.worst_constraint > 0.4
    assert "trimmed-violation" not in {finding.code for finding in two_worst_off.diagnostics}


def test_nobody_is_set_aside_beside_a_bound_for_all(two_worst_off):
    """The best possible is that of all clients: an answer that some of them violate is not compared with it."""
    nothing = np.zeros(1)
    numbers = {"value": 0.5, "objective": 0.6, "tolerance": 0.05, "subtracted": 0.0, "rows": 1}
    words = {"feasible": True, "certified": True, "reason": "", "assumptions": ""}
    bound = LowerBound(**numbers, **words, weights=nothing, multipliers=nothing)
    within = np.zeros((7, 2))
    within[0, 0] = 1.0
    judged = Evaluation(np.array([9.0, *[0.1] * 6]), within)
    result = replace(two_worst_off, lower_bound=bound).with_model(two_worst_off.params, "another", judged)
    assert result.status.ok
    assert (result.worst_objective, result.lower_bound.objective) == (0.1, 9.0)
    assert not result.lower_bound.feasible
