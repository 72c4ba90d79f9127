"""What a lower bound says, and that result, folder and report keep it."""

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
from softswitch.results.baseline import LowerBound
from softswitch.results.folder import write_result
from softswitch.results.report import write_report


def bound(**changed):
    plain = LowerBound(
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
    return dataclasses.replace(plain, **changed)


def test_in_words():
    assert str(bound()) == "at most 1.5% above the optimum (certified: the problem is convex)"
    guess = bound(certified=False, reason="convexity is not known")
    assert str(guess) == "about 1.5% above the optimum (estimated: convexity is not known)"
    assert str(bound(objective=0.7)).startswith("at most 250% above")
    assert str(bound(value=-0.2)).startswith("at most 0.403 above")
    assert str(bound(value=1e-9)).startswith("at most 0.203 above")
    assert str(bound(value=-math.inf, certified=False, reason="it falls")) == "no bound: it falls"
    assert "may be below the optimum" in str(bound(feasible=False))
    np.testing.assert_allclose([bound().gap, bound().relative_gap], [0.003, 0.015])
    assert bound(value=0.0).relative_gap == math.inf


@pytest.mark.parametrize("kept", [bound(), bound(value=-math.inf, certified=False, reason="it falls")])
def test_as_plain_words(kept):
    told = json.loads(json.dumps(kept.to_dict(), allow_nan=False))
    assert told["value"] == (kept.value if math.isfinite(kept.value) else None)
    assert (told["certified"], told["reason"], told["description"]) == (kept.certified, kept.reason, str(kept))


def test_a_result_keeps_it(tmp_path):
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(4), convex=True)
    clients = client_data(*regression())
    plain = flat.solve(problem, clients, ss.SoftmaxSGM(alpha=20.0, step_size=0.02, tolerance=0.1), rounds=300)
    assert plain.lower_bound is None
    assert plain.gap is None
    assert "Optimality:" not in plain.explain()
    result = with_lower_bound(plain, problem, clients)
    assert result.lower_bound.certified
    assert result.gap == pytest.approx(result.worst_objective - result.lower_bound.value, abs=1e-5)
    assert f"Optimality: {result.lower_bound}." in result.explain()
    write_result(tmp_path / "run", result)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["lower_bound"]["description"] == str(result.lower_bound)
    page = write_report([tmp_path / "run"]).read_text()
    assert f"Optimality: {result.lower_bound}." in page
    assert "optimal F, at least" in page
    write_result(tmp_path / "other", plain)
    assert "Optimality:" not in write_report([tmp_path / "other"]).read_text()
