"""Baselines of a result: the start, and the diagnostic if the result is no better."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from problems import client_data, least_squares, regression, softplus_level
from softswitch.results.baseline import CONSTANT, START, Baseline, compare_with_trivial, tabulate_baselines
from softswitch.tables.metrics import judge_rate


def two_clients():
    return ss.ClientData.from_arrays({"sign": np.array([1.0, -1.0], np.float32)}, client=["plus", "minus"])


def run(objective, constraint, start, **options):
    problem = ss.Problem(objective, constraint, jnp.float32(start))
    method = ss.SoftmaxSGM(alpha=50.0, step_size=0.01, tolerance=0.1)
    return flat.solve(problem, two_clients(), method, **{"rounds": 100, "batch_size": None} | options)


def codes(result):
    return [diagnostic.code for diagnostic in result.diagnostics]


def test_start_is_evaluated_on_all_data():
    clients, start = client_data(*regression()), jnp.full(4, 0.3)
    problem = ss.Problem(least_squares, softplus_level, start)
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.01, tolerance=0.1)
    result = flat.solve(problem, clients, method, rounds=30, batch_size=4)
    (baseline,) = result.baselines
    objective, constraint = ss.evaluate(problem, clients, start)
    assert baseline.name == START
    assert baseline.objective == pytest.approx(objective.max())
    assert baseline.mean_objective == pytest.approx(objective.mean())
    assert baseline.constraint == pytest.approx(constraint.max())
    assert baseline.violating == (constraint[:, 0] > 0.1).sum() == 6
    assert not baseline.feasible
    warm = flat.solve(problem, clients, method, rounds=30, batch_size=4, warm_start=result)
    assert warm.baselines[0].objective == pytest.approx(ss.evaluate(problem, clients, result.last)[0].max())


def test_no_better_than_a_feasible_start():
    best = lambda w, b: (w - 1) ** 2  # noqa: E731
    assert "no-better-than-start" in codes(run(best, lambda w, b: w - 5 + 0 * b["sign"][0], 1.0))
    improved = run(best, lambda w, b: w - 5 + 0 * b["sign"][0], 0.0)
    assert "no-better-than-start" not in codes(improved)
    infeasible = run(best, lambda w, b: w - 0.5 + 0 * b["sign"][0], 1.0)
    assert infeasible.worst_objective > infeasible.baselines[0].objective
    assert "no-better-than-start" not in codes(infeasible)
    assert run(best, lambda w, b: w - 5 + 0 * b["sign"][0], 1.0).status.ok  # feasibility is checked separately


def make_baseline(name, objective, feasible=True):
    return Baseline(name, objective, objective, 0.0, 0 if feasible else 2, feasible)


@pytest.mark.parametrize(("objective", "count"), [(0.9295, 1), (0.9285, 0), (2.97, 1)])
def test_no_better_than_a_constant(objective, count):
    """A result within a thousandth of the constant's F is no better."""
    answer = make_baseline("", objective)
    diagnostics = compare_with_trivial(answer, [make_baseline(CONSTANT, 0.93)])
    assert [diagnostic.code for diagnostic in diagnostics] == ["no-better-than-constant"] * count
    assert all("has F = 0.93" in diagnostic.evidence for diagnostic in diagnostics)
    assert compare_with_trivial(answer, [make_baseline(CONSTANT, 0.1, feasible=False)]) == []
    assert compare_with_trivial(make_baseline("", -5.003), [make_baseline(CONSTANT, -5.0)]) != []
    assert compare_with_trivial(make_baseline("", -5.007), [make_baseline(CONSTANT, -5.0)]) == []


@pytest.mark.parametrize(("errors", "count"), [(99, 1), (80, 0)])
def test_usefulness_decides_about_the_constant(errors, count):
    """F does not matter then, and one row of 100 does not make a model useful."""
    usefulness = judge_rate("false_alarm_rate", {"a": np.arange(100) < errors}, condition="y = 0", prediction="y = 1")
    diagnostics = compare_with_trivial(make_baseline("", 0.1), [make_baseline(CONSTANT, 0.93)], usefulness)
    assert [diagnostic.code for diagnostic in diagnostics] == ["no-better-than-constant"] * count
    assert all(f"({errors} of 100; at most" in diagnostic.evidence for diagnostic in diagnostics)


def test_table_as_text():
    lines = tabulate_baselines(make_baseline("the answer", 0.5), [make_baseline(START, 0.6931, feasible=False)], 4)
    assert lines[0].split() == ["F", "mean", "G", "clients", "violating"]
    assert lines[1].endswith("0 of 4")
    long = make_baseline("no constraint, worst client", 12345.678), make_baseline("", 0.000123456)
    wide = tabulate_baselines(make_baseline("the answer", 30_400.0), long, 10_000)
    assert max(map(len, wide)) <= 80
    assert "30,400" in wide[1]
    assert lines[2].split() == ["the", "start", "0.6931", "0.6931", "0", "2", "of", "4"]
    result = run(lambda w, b: (w - 1) ** 2, lambda w, b: w - 5 + 0 * b["sign"][0], 0.0)
    assert result.as_baseline.objective == result.worst_objective
    assert "the start" in result.explain()
    assert result.price is None


def test_nonfinite_values_are_stored_as_unknown():
    baseline = Baseline("x", math.inf, 1.0, math.nan, 3, False)
    json.dumps(baseline.to_dict(), allow_nan=False)
    restored = Baseline.from_dict(baseline.to_dict())
    assert math.isnan(restored.objective)
    assert (restored.mean_objective, restored.violating, restored.feasible) == (1.0, 3, False)


def test_unknown_status_code_is_rejected():
    with pytest.raises(ValueError, match="nonsense"):
        ss.StatusCode("nonsense")
