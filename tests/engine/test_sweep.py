"""Sweeps give what single runs give, in one table."""

import sys

import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from problems import client_data, least_squares, regression, softplus_level

COMMON = {"step_size": 0.2, "tolerance": 0.05}
RULES = {
    "gentle": ss.SoftmaxSGM(alpha=1.0, **COMMON),
    "sharp": ss.SoftmaxSGM(alpha=100.0, **COMMON),
    "average": ss.AverageSGM(**COMMON),
}
PROBLEM = ss.Problem(least_squares, softplus_level, jnp.zeros(4))
OPTIONS = {"rounds": 60, "batch_size": 8, "participation": 0.5}


@pytest.fixture(scope="module")
def clients():
    return client_data(*regression())


def test_one_by_one_is_solve_bit_for_bit(clients):
    table = flat.sweep(PROBLEM, clients, RULES, seeds=[3, 8], vectorize=False, **OPTIONS)
    for label, results in table:
        for seed, result in zip((3, 8), results, strict=True):
            alone = flat.solve(PROBLEM, clients, RULES[label], seed=seed, **OPTIONS)
            np.testing.assert_array_equal(result.params, alone.params)
            np.testing.assert_array_equal(result.history.criterion, alone.history.criterion)
            assert result.seed == seed


def test_side_by_side_agrees(clients):
    table = flat.sweep(PROBLEM, clients, RULES, seeds=[3, 8], vectorize=True, **OPTIONS)
    for label, results in table:
        for seed, result in zip((3, 8), results, strict=True):
            alone = flat.solve(PROBLEM, clients, RULES[label], seed=seed, **OPTIONS)
            np.testing.assert_allclose(result.params, alone.params, rtol=1e-3, atol=1e-5)
            np.testing.assert_array_equal(result.history.full_rounds, alone.history.full_rounds)


def test_table_has_a_row_for_every_rule_and_seed(clients):
    found = flat.sweep(PROBLEM, clients, RULES, seeds=2, **OPTIONS)
    assert found.table["method"].tolist() == ["gentle", "gentle", "sharp", "sharp", "average", "average"]
    assert found.table["seed"].tolist() == [0, 1] * 3
    assert found.table["worst_objective"][2] == found["sharp"][0].worst_objective
    assert all(label in str(found) for label in RULES)
    with pytest.raises(KeyError, match="gentle, sharp, average"):
        found["blunt"]


def test_rules_in_a_list_are_labelled_by_what_differs(clients):
    methods = [ss.SoftmaxSGM(alpha=a, **COMMON) for a in (1.0, 2.0)]
    found = flat.sweep(PROBLEM, clients, methods, seeds=1, **OPTIONS)
    assert found.labels == ("SoftmaxSGM(alpha=1.0)", "SoftmaxSGM(alpha=2.0)")


@pytest.mark.parametrize("methods", [[], {}, [RULES["sharp"], RULES["sharp"]]])
def test_no_rule_or_the_same_twice_is_refused(clients, methods):
    with pytest.raises(ValueError, match="methods must hold at least one method, and none twice"):
        flat.sweep(PROBLEM, clients, methods, **OPTIONS)


def test_an_error_in_a_run_reaches_the_caller(monkeypatch, clients):
    def broken(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(sys.modules["softswitch.engine.sweep"], "run", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        flat.sweep(PROBLEM, clients, RULES, seeds=2, vectorize=False, **OPTIONS)


def test_settings_of_the_calling_thread_reach_the_runs(x64):
    data, owner = regression()
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(4, jnp.float64))
    clients = client_data(data, owner)
    found = flat.sweep(problem, clients, RULES, seeds=1, vectorize=False, **OPTIONS)
    alone = flat.solve(problem, clients, RULES["sharp"], **OPTIONS)
    assert found["sharp"][0].params.dtype == jnp.float64
    np.testing.assert_array_equal(found["sharp"][0].params, alone.params)


def test_bad_sweeps(clients):
    with pytest.raises(TypeError, match="methods must be a list of methods or a dict"):
        flat.sweep(PROBLEM, clients, RULES["sharp"])
    with pytest.raises(TypeError, match="but is 3"):
        flat.sweep(PROBLEM, clients, [3])
    with pytest.raises(ValueError, match="seeds must hold at least one seed"):
        flat.sweep(PROBLEM, clients, RULES, seeds=[])
    assert "a [/b]" in str(flat.sweep(PROBLEM, clients, {"a [/b]": RULES["sharp"]}, seeds=np.arange(1), **OPTIONS))


@pytest.mark.parametrize("together", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_seed_may_have_its_own_data(clients, together):
    """Two data sets, one a seed: as two sweeps, each on its own."""
    other = client_data(*regression(seed=5))
    found = flat.sweep(PROBLEM, [clients, other], RULES, seeds=[3, 8], held_out=clients, vectorize=together, **OPTIONS)
    for label, results in found:
        for data, seed, result in zip((clients, other), (3, 8), results, strict=True):
            alone = flat.solve(PROBLEM, data, RULES[label], seed=seed, held_out=clients, **OPTIONS)
            np.testing.assert_allclose(result.params, alone.params, rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(result.history.held_out.objective, alone.history.held_out.objective, rtol=1e-3)
    assert np.abs(found["sharp"][0].params - found["sharp"][1].params).max() > 1e-2
    with pytest.raises(ValueError, match=r"clients must be one for all seeds or a list of 3, but is a list of 2"):
        flat.sweep(PROBLEM, [clients, other], RULES, seeds=3, **OPTIONS)


def test_every_seed_may_have_its_own_problem(clients):
    """Two starts, one a seed; few rounds, so that they are still told apart."""
    problems = [ss.Problem(least_squares, softplus_level, jnp.full(4, start)) for start in (0.0, 1.0)]
    found = flat.sweep(problems, clients, RULES, seeds=[3, 8], rounds=5, batch_size=8)
    for label, results in found:
        for problem, seed, result in zip(problems, (3, 8), results, strict=True):
            alone = flat.solve(problem, clients, RULES[label], seed=seed, rounds=5, batch_size=8)
            np.testing.assert_array_equal(result.last, alone.last)
    with pytest.raises(ValueError, match="problem must be one for all seeds or a list of 1, but is a list of 2"):
        flat.sweep(problems, clients, RULES, seeds=1)
