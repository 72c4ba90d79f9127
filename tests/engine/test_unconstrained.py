"""Models beside an answer: without the constraint, and constant predictions."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import softswitch as ss
from benchmarks import flat
from problems import client_data, least_squares, regression, softplus_level
from softswitch.engine import baselines as unconstrained
from softswitch.engine.compiled import CompiledEngine
from softswitch.problem.networks import constant_network, init_network, scores
from softswitch.results.baseline import CONSTANT, START, UNCONSTRAINED_WORST
from softswitch.tables.constraints import build_problem


def three(centres=(1.0, 1.0, -1.0)):
    return ss.ClientData.from_arrays({"c": np.array(centres, np.float32)}, client=["a", "b", "c"])


def named(result):
    return {one.name: one for one in result.baselines}


@pytest.mark.parametrize(
    ("method", "rounds"),
    [(ss.Automatic(tolerance=0.0), 4000), (ss.SoftmaxSGM(alpha=50.0, step_size=0.02, tolerance=0.1), 4000)],
)
def test_without_the_constraint(method, rounds):
    """f = (w − c)² for c = 1, 1, −1 and w ≥ 2: F = 9 at 2; 1 at 0 without the constraint."""
    problem = ss.Problem(lambda w, b: (w - b["c"][0]) ** 2, lambda w, b: 2 - w + 0 * b["c"][0], jnp.float32(3.0))
    result = flat.solve(problem, three(), method, rounds=rounds, batch_size=None)
    told = ss.add_baselines(result, problem, three())
    assert [one.name for one in told.baselines] == [START, UNCONSTRAINED_WORST]
    worst = named(told)[UNCONSTRAINED_WORST]
    assert worst.objective == pytest.approx(1.0, abs=0.01)
    assert worst.constraint == pytest.approx(2.0, abs=0.01)
    assert (worst.violating, worst.feasible) == (3, False)
    assert told.price == pytest.approx(result.worst_objective - 1, abs=0.01)
    assert f"The constraint costs the worst client {told.price:.4g}." in told.explain()
    again = ss.add_baselines(told, problem, three())
    assert [one.name for one in again.baselines] == [one.name for one in told.baselines]
    assert again.diagnostics == told.diagnostics


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"rounds": 800, "batch_size": None}, (5, 30)),
        ({"rounds": 600, "batch_size": 16}, (40, 80)),
        ({"rounds": 200, "batch_size": 8, "participation": 0.34}, (40, 80)),
    ],
)
def test_it_takes_at_most_an_eighth_of_the_work(options, sizes, monkeypatch):
    clients = client_data(*regression(sizes=sizes))
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(4))
    result = flat.solve(problem, clients, ss.SoftmaxSGM(alpha=20.0, step_size=0.05, tolerance=0.2), **options)
    work, plain = [], unconstrained.run

    def counting(*given, **settings):
        found = plain(*given, **settings)
        work.append(rows(found))
        return found

    monkeypatch.setattr(unconstrained, "run", counting)
    told = ss.add_baselines(result, problem, clients)
    assert len(work) == 1
    assert 0.05 * rows(result) < sum(work) <= 0.125 * rows(result)
    assert named(told)[UNCONSTRAINED_WORST].objective <= result.worst_objective


def test_a_run_that_chose_for_itself_compiles_nothing_more_for_them():
    """The program of its rounds serves the model: they differ in numbers only."""
    clients = client_data(*regression(sizes=(400, 900)))
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(4))
    kept = {"held_out": clients, "record_clients": True}
    result = flat.solve(problem, clients, ss.Automatic(tolerance=0.2), rounds=300, **kept)
    before = CompiledEngine.run_chunk._cache_size()
    told = ss.add_baselines(result, problem, clients, held_out=clients)
    assert CompiledEngine.run_chunk._cache_size() == before
    assert named(told)[UNCONSTRAINED_WORST].objective < result.worst_objective


def rows(result):
    return result.history.value_evaluations[-1] + 3 * result.history.gradient_evaluations[-1]


def test_too_short_a_run_is_not_looked_at():
    clients = client_data(*regression())
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(4))
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.05, tolerance=0.2)
    result = flat.solve(problem, clients, method, rounds=10, batch_size=2)
    assert ss.add_baselines(result, problem, clients).baselines == result.baselines


def test_a_constant_network_gives_every_row_the_same():
    like = init_network(5, (4, 3), seed=1)
    made = constant_network(like, 0.7)
    np.testing.assert_allclose(scores(made, np.random.default_rng(0).normal(size=(6, 5))), 0.7, rtol=1e-6)
    assert [layer["w"].shape for layer in made] == [layer["w"].shape for layer in like]


def labelled(rates, count=200):
    """Clients with these shares of positive rows, half of each in either group."""
    y = np.concatenate([np.arange(count) < share * count for share in rates]).astype(np.int32)
    generator = np.random.default_rng(0)
    data = {"x": generator.normal(size=(len(y), 3)).astype(np.float32), "y": y}
    data["group"] = (np.arange(len(y)) % 2).astype(np.int32)
    return ss.ClientData.from_arrays(data, client=np.repeat(np.arange(len(rates)), count))


def constant(kind, clients, tolerance):
    problem = build_problem(kind, 3, (4,)).problem
    result = flat.solve(problem, clients, ss.SoftmaxSGM(alpha=20.0, step_size=0.01, tolerance=tolerance), rounds=5)
    told = ss.add_baselines(
        result, problem, clients, constants=lambda odds: constant_network(problem.start, odds), unconstrained=False
    )
    return told, named(told)[CONSTANT]


@pytest.mark.parametrize("tolerance", [0.05, 0.5, 2.0])
def test_the_best_constant_for_neyman_pearson(tolerance):
    """Misses cost log(1 + e^−b) <= tolerance, so b = −log(e^tolerance − 1), and false alarms cost log(1 + e^b)."""
    told, found = constant("neyman-pearson", labelled((0.3, 0.6)), tolerance)
    odds = -np.log(np.expm1(tolerance))
    assert found.feasible
    assert found.constraint <= tolerance
    assert found.objective == pytest.approx(np.log1p(np.exp(odds)), rel=1e-3)
    if tolerance == 2.0:  # every answer is feasible, but five rounds are not enough for anything
        assert "no-better-than-constant" in [finding.code for finding in told.diagnostics]
        assert f"has F = {found.objective:.4g}" in told.explain()
        problem = build_problem("neyman-pearson", 3, (4,)).problem
        again = ss.add_baselines(told, problem, labelled((0.3, 0.6)), unconstrained=False)
        assert again.diagnostics == told.diagnostics  # nothing is said twice


def test_decisions_are_compared_by_the_rate_that_the_bound_is_paid_with():
    """Scores just above 0 for positive rows and far above it for half of the others: a larger loss than a constant's,
    and yet half as many false alarms."""
    clients = labelled((0.5,))
    y = np.asarray(clients.rows.columns["y"])
    x = np.zeros((len(y), 3), np.float32)
    x[:, 0] = np.where(y == 1, 0.1, np.where(np.arange(len(y)) % 2, 3.0, -0.1))
    data = ss.ClientData.from_arrays({"x": x, "y": y}, np.zeros(len(y), int))
    made = build_problem("miss-rate", 3)
    method = ss.SoftmaxSGM(alpha=20.0, step_size=1e-9, tolerance=0.05)
    start = [{"w": jnp.array([[1.0], [0.0], [0.0]]), "b": jnp.zeros(1)}]
    result = flat.solve(replace(made.problem, start=start), data, method, rounds=1)
    told = [
        ss.add_baselines(
            result,
            made.problem,
            data,
            constants=lambda odds: constant_network(start, odds),
            unconstrained=False,
            cost=cost,
        )
        for cost in (None, made.cost)
    ]
    assert result.worst_objective > np.log(2)
    seen = [[finding.code for finding in one.diagnostics] for one in told]
    assert ["no-better-than-constant" in one for one in seen] == [True, False]


def test_the_best_constant_for_parity():
    """Any constant treats the groups alike: the smallest worst cross-entropy."""
    rates = (0.1, 0.25, 0.6)
    _, found = constant("demographic-parity", labelled(rates), 0.01)
    worst = optimize.minimize_scalar(lambda b: max(np.logaddexp(0, b) - p * b for p in rates), bracket=(-3, 3))
    assert found.feasible
    assert found.objective == pytest.approx(worst.fun, rel=1e-4)


def test_where_no_constant_is_feasible():
    _, found = constant("group-loss", labelled((0.3, 0.6)), 0.2)
    assert not found.feasible
    assert found.violating == 2
