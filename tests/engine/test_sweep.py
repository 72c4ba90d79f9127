"""Sweeps reproduce single runs, in one table."""

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


def test_sequential_sweep_equals_solve_exactly(clients):
    table = flat.sweep(PROBLEM, clients, RULES, seeds=[3, 8], vectorize=False, **OPTIONS)
    for label, results in table:
        for seed, result in zip((3, 8), results, strict=True):
            single = flat.solve(PROBLEM, clients, RULES[label], seed=seed, **OPTIONS)
            np.testing.assert_array_equal(result.params, single.params)
            np.testing.assert_array_equal(result.history.criterion, single.history.criterion)
            assert result.seed == seed


def test_vectorized_sweep_matches_solve(clients):
    table = flat.sweep(PROBLEM, clients, RULES, seeds=[3, 8], vectorize=True, **OPTIONS)
    for label, results in table:
        for seed, result in zip((3, 8), results, strict=True):
            single = flat.solve(PROBLEM, clients, RULES[label], seed=seed, **OPTIONS)
            np.testing.assert_allclose(result.params, single.params, rtol=1e-3, atol=1e-5)
            np.testing.assert_array_equal(result.history.full_rounds, single.history.full_rounds)


def test_table_has_row_for_each_method_and_seed(clients):
    runs = flat.sweep(PROBLEM, clients, RULES, seeds=2, **OPTIONS)
    assert runs.table["method"].tolist() == ["gentle", "gentle", "sharp", "sharp", "average", "average"]
    assert runs.table["seed"].tolist() == [0, 1] * 3
    assert runs.table["worst_objective"][2] == runs["sharp"][0].worst_objective
    assert all(label in str(runs) for label in RULES)
    with pytest.raises(KeyError, match="gentle, sharp, average"):
        runs["blunt"]


def test_methods_in_list_are_labelled_by_differences(clients):
    methods = [ss.SoftmaxSGM(alpha=a, **COMMON) for a in (1.0, 2.0)]
    runs = flat.sweep(PROBLEM, clients, methods, seeds=1, **OPTIONS)
    assert runs.labels == ("SoftmaxSGM(alpha=1.0)", "SoftmaxSGM(alpha=2.0)")


@pytest.mark.parametrize("methods", [[], {}, [RULES["sharp"], RULES["sharp"]]])
def test_empty_or_repeated_methods_are_rejected(clients, methods):
    with pytest.raises(ValueError, match="methods must hold at least one method, and none twice"):
        flat.sweep(PROBLEM, clients, methods, **OPTIONS)


def test_error_in_run_is_raised(monkeypatch, clients):
    def broken(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(sys.modules["softswitch.engine.sweep"], "run", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        flat.sweep(PROBLEM, clients, RULES, seeds=2, vectorize=False, **OPTIONS)


def test_runs_use_settings_of_calling_thread(x64):
    data, owner = regression()
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(4, jnp.float64))
    clients = client_data(data, owner)
    runs = flat.sweep(problem, clients, RULES, seeds=1, vectorize=False, **OPTIONS)
    single = flat.solve(problem, clients, RULES["sharp"], **OPTIONS)
    assert runs["sharp"][0].params.dtype == jnp.float64
    np.testing.assert_array_equal(runs["sharp"][0].params, single.params)


def test_invalid_sweeps_are_rejected(clients):
    with pytest.raises(TypeError, match="methods must be a list of methods or a dict"):
        flat.sweep(PROBLEM, clients, RULES["sharp"])
    with pytest.raises(TypeError, match="but is 3"):
        flat.sweep(PROBLEM, clients, [3])
    with pytest.raises(ValueError, match="seeds must hold at least one seed"):
        flat.sweep(PROBLEM, clients, RULES, seeds=[])
    assert "a [/b]" in str(flat.sweep(PROBLEM, clients, {"a [/b]": RULES["sharp"]}, seeds=np.arange(1), **OPTIONS))


@pytest.mark.parametrize("vectorize", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_data_for_each_seed(clients, vectorize):
    """Two data sets, one for each seed, give the results of two separate sweeps."""
    second_clients = client_data(*regression(seed=5))
    runs = flat.sweep(
        PROBLEM, [clients, second_clients], RULES, seeds=[3, 8], held_out=clients, vectorize=vectorize, **OPTIONS
    )
    for label, results in runs:
        for data, seed, result in zip((clients, second_clients), (3, 8), results, strict=True):
            single = flat.solve(PROBLEM, data, RULES[label], seed=seed, held_out=clients, **OPTIONS)
            np.testing.assert_allclose(result.params, single.params, rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(result.history.held_out.objective, single.history.held_out.objective, rtol=1e-3)
    assert np.abs(runs["sharp"][0].params - runs["sharp"][1].params).max() > 1e-2
    with pytest.raises(ValueError, match=r"clients must be one for all seeds or a list of 3, but is a list of 2"):
        flat.sweep(PROBLEM, [clients, second_clients], RULES, seeds=3, **OPTIONS)


def test_problem_for_each_seed(clients):
    """Two starts, one for each seed, with few rounds so that the results still differ."""
    problems = [ss.Problem(least_squares, softplus_level, jnp.full(4, start)) for start in (0.0, 1.0)]
    runs = flat.sweep(problems, clients, RULES, seeds=[3, 8], rounds=5, batch_size=8)
    for label, results in runs:
        for problem, seed, result in zip(problems, (3, 8), results, strict=True):
            single = flat.solve(problem, clients, RULES[label], seed=seed, rounds=5, batch_size=8)
            np.testing.assert_array_equal(result.last, single.last)
    with pytest.raises(ValueError, match="problem must be one for all seeds or a list of 1, but is a list of 2"):
        flat.sweep(problems, clients, RULES, seeds=1)
