"""Baselines of a result: models without the constraint, and constant predictions."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import softswitch as ss
from benchmarks import flat
from problems import client_data, least_squares, regression, softplus_level
from softswitch.engine.baselines import best_constant
from softswitch.oracles.base import Evaluation
from softswitch.problem.networks import constant_network, init_network, scores
from softswitch.results.baseline import CONSTANT, START, UNCONSTRAINED_WORST
from softswitch.tables.constraints import build_problem


def three_clients(centres=(1.0, 1.0, -1.0)):
    return ss.ClientData.from_arrays({"c": np.array(centres, np.float32)}, client=["a", "b", "c"])


def baselines_by_name(result):
    return {baseline.name: baseline for baseline in result.baselines}


def test_baseline_without_constraint():
    """f = (w − c)² for c = 1, 1, −1 and w ≥ 2: F = 9 at 2; 1 at 0 without the constraint."""
    problem = ss.Problem(lambda w, b: (w - b["c"][0]) ** 2, lambda w, b: 2 - w + 0 * b["c"][0], jnp.float32(3.0))
    result = ss.solve(problem, three_clients(), tolerance=0.0)
    with_baselines = ss.add_baselines(result, problem, three_clients())
    assert [baseline.name for baseline in with_baselines.baselines] == [START, UNCONSTRAINED_WORST]
    worst = baselines_by_name(with_baselines)[UNCONSTRAINED_WORST]
    assert worst.objective == pytest.approx(1.0, abs=0.01)
    assert worst.constraint == pytest.approx(2.0, abs=0.01)
    assert (worst.violating, worst.feasible) == (3, False)
    assert with_baselines.price == pytest.approx(result.worst_objective - 1, abs=0.01)
    assert f"The constraint costs the worst client {with_baselines.price:.4g}." in with_baselines.explain()
    repeated = ss.add_baselines(with_baselines, problem, three_clients())
    assert [baseline.name for baseline in repeated.baselines] == [
        baseline.name for baseline in with_baselines.baselines
    ]
    assert repeated.diagnostics == with_baselines.diagnostics


def test_first_order_run_has_no_model_without_constraint():
    clients = client_data(*regression())
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(4))
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.05, tolerance=0.2)
    result = flat.solve(problem, clients, method, rounds=10, batch_size=2)
    assert ss.add_baselines(result, problem, clients).baselines == result.baselines


def test_constant_network_has_equal_scores():
    params = init_network(5, (4, 3), seed=1)
    constant_params = constant_network(params, 0.7)
    np.testing.assert_allclose(scores(constant_params, np.random.default_rng(0).normal(size=(6, 5))), 0.7, rtol=1e-6)
    assert [layer["w"].shape for layer in constant_params] == [layer["w"].shape for layer in params]


def make_labelled(rates, count=200):
    """Clients with these shares of positive rows, split equally between two groups."""
    y = np.concatenate([np.arange(count) < share * count for share in rates]).astype(np.int32)
    generator = np.random.default_rng(0)
    data = {"x": generator.normal(size=(len(y), 3)).astype(np.float32), "y": y}
    data["group"] = (np.arange(len(y)) % 2).astype(np.int32)
    return ss.ClientData.from_arrays(data, client=np.repeat(np.arange(len(rates)), count))


def solve_with_constant(kind, clients, tolerance):
    problem = build_problem(kind, 3, (4,)).problem
    result = flat.solve(problem, clients, ss.SoftmaxSGM(alpha=20.0, step_size=0.01, tolerance=tolerance), rounds=5)
    with_baselines = ss.add_baselines(
        result, problem, clients, constants=lambda odds: constant_network(problem.start, odds), unconstrained=False
    )
    return with_baselines, baselines_by_name(with_baselines)[CONSTANT]


@pytest.mark.parametrize("tolerance", [0.05, 0.5, 2.0])
def test_best_constant_for_neyman_pearson(tolerance):
    """Misses cost log(1 + e^−b) <= tolerance, so b = −log(e^tolerance − 1), and false alarms cost log(1 + e^b)."""
    with_baselines, constant = solve_with_constant("neyman-pearson", make_labelled((0.3, 0.6)), tolerance)
    logit = -np.log(np.expm1(tolerance))
    assert constant.feasible
    assert constant.constraint <= tolerance
    assert constant.objective == pytest.approx(np.log1p(np.exp(logit)), rel=1e-3)
    if tolerance == 2.0:  # every iterate is feasible, but five rounds are too few to improve
        assert "no-better-than-constant" in [diagnostic.code for diagnostic in with_baselines.diagnostics]
        assert f"has F = {constant.objective:.4g}" in with_baselines.explain()
        problem = build_problem("neyman-pearson", 3, (4,)).problem
        repeated = ss.add_baselines(with_baselines, problem, make_labelled((0.3, 0.6)), unconstrained=False)
        assert repeated.diagnostics == with_baselines.diagnostics  # diagnostics are not repeated


def test_constant_is_compared_by_cost_rate():
    """Positive rows score just above 0, and half of the negative rows far above it: the loss is larger than a
    constant's, with half as many false alarms."""
    clients = make_labelled((0.5,))
    y = np.asarray(clients.rows.columns["y"])
    x = np.zeros((len(y), 3), np.float32)
    x[:, 0] = np.where(y == 1, 0.1, np.where(np.arange(len(y)) % 2, 3.0, -0.1))
    data = ss.ClientData.from_arrays({"x": x, "y": y}, np.zeros(len(y), int))
    built = build_problem("miss-rate", 3)
    method = ss.SoftmaxSGM(alpha=20.0, step_size=1e-9, tolerance=0.05)
    start = [{"w": jnp.array([[1.0], [0.0], [0.0]]), "b": jnp.zeros(1)}]
    result = flat.solve(replace(built.problem, start=start), data, method, rounds=1)
    results = [
        ss.add_baselines(
            result,
            built.problem,
            data,
            constants=lambda odds: constant_network(start, odds),
            unconstrained=False,
            cost=cost,
        )
        for cost in (None, built.cost)
    ]
    assert result.worst_objective > np.log(2)
    codes = [[diagnostic.code for diagnostic in item.diagnostics] for item in results]
    assert ["no-better-than-constant" in item for item in codes] == [True, False]


def test_best_constant_for_parity():
    """Every constant has parity, so the best one minimises the worst cross-entropy."""
    rates = (0.1, 0.25, 0.6)
    _, constant = solve_with_constant("demographic-parity", make_labelled(rates), 0.01)
    worst = optimize.minimize_scalar(lambda b: max(np.logaddexp(0, b) - p * b for p in rates), bracket=(-3, 3))
    assert constant.feasible
    assert constant.objective == pytest.approx(worst.fun, rel=1e-4)


def test_no_feasible_constant():
    _, constant = solve_with_constant("group-loss", make_labelled((0.3, 0.6)), 0.2)
    assert not constant.feasible
    assert constant.violating == 2


def test_best_constant_is_trimmed_as_method_is_robust():
    """One client of three violates the tolerance at any constant, and has the largest objective."""

    def evaluate(odds):
        distance = (odds - 1.0) ** 2
        return Evaluation(np.array([distance, distance, 1e3]), np.array([[0.0], [0.0], [5.0]]))

    method = ss.SoftmaxSGM(alpha=10.0, step_size=0.1, tolerance=0.1, robust=1)
    odds, evaluation = best_constant(evaluate, lambda odds: odds, method)
    assert odds == pytest.approx(1.0, abs=0.01)
    assert evaluation.is_feasible(method)
