"""Lower bounds: text, and storage in results, folders and reports."""

import dataclasses
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from problems import client_data, least_squares, regression, softplus_level
from softswitch.certification.optimality import with_lower_bound
from softswitch.oracles.base import Evaluation
from softswitch.results.baseline import LowerBound
from softswitch.results.folder import write_result
from softswitch.results.report.page import write_report


def make_bound(**changes):
    default = LowerBound(
        value=0.2,
        objective=0.203,
        tolerance=0.1,
        feasible=True,
        certified=True,
        reason="the problem is convex",
        assumptions="",
        weights=np.array([0.25, 0.0, 0.75]),
        multipliers=np.array([[0.0, 0.5], [0, 0], [0, 0]]),
        subtracted=1e-9,
        rows=1000,
    )
    return dataclasses.replace(default, **changes)


def test_text():
    assert str(make_bound()) == "at most 1.5% above the optimum (certified: the problem is convex)"
    estimated = make_bound(certified=False, reason="convexity is not known")
    assert str(estimated) == "about 1.5% above the optimum (estimated: convexity is not known)"
    assert str(make_bound(objective=0.7)).startswith("at most 250% above")
    assert str(make_bound(value=-0.2)).startswith("at most 0.403 above")
    assert str(make_bound(value=1e-9)).startswith("at most 0.203 above")
    assert str(make_bound(value=-math.inf, certified=False, reason="it falls")) == "no bound: it falls"
    assert "may be below the optimum" in str(make_bound(feasible=False))
    np.testing.assert_allclose([make_bound().gap, make_bound().relative_gap], [0.003, 0.015])
    assert make_bound(value=0.0).relative_gap == math.inf


@pytest.mark.parametrize(("pooled", "feasible"), [(0.05, True), (0.15, False)])
def test_another_model_is_judged_by_pooled_constraint(pooled, feasible):
    """One client of two is above the tolerance 0.1, and the pooled constraint decides."""
    clients = ss.ClientData.from_arrays({"x": np.array([[1.0], [2.0]])}, client=["a", "b"])
    constraint = ss.PooledConstraint(lambda w, batch: jnp.stack([(batch["weight"] * w[0]).sum()]), lambda sums: sums[0])
    problem = ss.Problem(lambda w, batch: (w**2).sum(), constraint, jnp.zeros(1))
    method = ss.SoftmaxSGM(alpha=10.0, step_size=0.1, tolerance=0.1, criterion="pooled")
    result = dataclasses.replace(ss.solve(problem, clients, method, rounds=1), lower_bound=make_bound())
    evaluation = Evaluation(np.array([0.3, 0.4]), np.array([[0.0], [0.2]]), np.array([pooled]))
    changed = result.with_model(result.params, "another model", evaluation)
    assert changed.lower_bound.feasible == changed.status.ok == changed.as_baseline.feasible == feasible
    unknown = evaluation._replace(constraint=np.array([[0.0], [np.nan]]))
    changed = result.with_model(result.params, "another model", unknown)
    verdicts = [changed.lower_bound.feasible, changed.status.ok, changed.as_baseline.feasible]
    assert verdicts == [False] * 3


@pytest.mark.parametrize("lower_bound", [make_bound(), make_bound(value=-math.inf, certified=False, reason="it falls")])
def test_dict_round_trip(lower_bound):
    stored = json.loads(json.dumps(lower_bound.to_dict(), allow_nan=False))
    assert stored["value"] == (lower_bound.value if math.isfinite(lower_bound.value) else None)
    assert (stored["certified"], stored["reason"], stored["description"]) == (
        lower_bound.certified,
        lower_bound.reason,
        str(lower_bound),
    )


def test_result_keeps_lower_bound(tmp_path):
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(4), convex=True)
    clients = client_data(*regression())
    result_without_bound = flat.solve(
        problem, clients, ss.SoftmaxSGM(alpha=20.0, step_size=0.02, tolerance=0.1), rounds=300
    )
    assert result_without_bound.lower_bound is None
    assert result_without_bound.gap is None
    assert "Optimality:" not in result_without_bound.explain()
    result = with_lower_bound(result_without_bound, problem, clients)
    assert result.lower_bound.certified
    assert result.gap == pytest.approx(result.worst_objective - result.lower_bound.value, abs=1e-5)
    assert f"Optimality: {result.lower_bound}." in result.explain()
    write_result(tmp_path / "run", result)
    run_json = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run_json["lower_bound"]["description"] == str(result.lower_bound)
    page = write_report([tmp_path / "run"]).read_text()
    assert f"Optimality: {result.lower_bound}." in page
    assert "optimal F, at least" in page
    write_result(tmp_path / "other", result_without_bound)
    assert "Optimality:" not in write_report([tmp_path / "other"]).read_text()
