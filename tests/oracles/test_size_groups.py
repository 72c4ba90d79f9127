"""Grouping clients by size gives the same values as padding to the largest, up to rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from problems import least_squares, mean, softplus_level, two_constraints
from softswitch.oracles import evaluation
from softswitch.oracles.gradient import make_gradient_oracle

SIZES = (3, 70, 2, 4)
PROBLEM = ss.Problem(least_squares, two_constraints, jnp.zeros(4))


@pytest.fixture(params=[False, True], ids=["plain", "strata"])
def clients(request, monkeypatch):
    """Four clients of very different sizes, not sorted by size, in separate width groups."""
    return unequal_clients(monkeypatch, request.param)


def unequal_clients(monkeypatch, stratified):
    monkeypatch.setattr(evaluation, "FEW_ROWS", 0)
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    draw = np.random.default_rng(0).normal
    a = draw(size=(len(owner), 4))
    data = {
        "a": a,
        "b": a.sum(axis=1) + 0.1 * owner,
        "c": draw(size=a.shape) * 0.5 + 0.4,
        "h": 0.3 * draw(size=a.shape),
    }
    strata = np.arange(len(owner)) % 3 if stratified else None
    return ss.ClientData.from_arrays(data, client=owner, strata=strata)


def make_oracles(clients, problem=PROBLEM, **options):
    sampling = ss.Sampling(**options)
    return [
        make_gradient_oracle(problem, clients, sampling, ss.Compute(group_by_size=group)) for group in (True, False)
    ]


def test_reports_and_directions_are_equal(clients):
    grouped, padded = make_oracles(clients, batch_size=None)
    assert grouped.by_size
    assert not padded.by_size
    assert grouped.evaluation_plan.widths == (4, 70), "clients must be grouped"
    w = jnp.array([0.3, -0.2, 0.5, 0.1])

    @jax.jit
    def one_round(oracle, method):
        draws = oracle.draw(jax.random.key(0))
        reports, state = oracle.report(w, draws)
        decision, _ = method.decide(method.init(3, 2), reports)
        return reports, decision, oracle.direction(w, draws, state, decision, method.switches, 0.0)

    for method, feasible in (
        (ss.SoftmaxSGM(alpha=2.0, step_size=0.1, tolerance=0.1, threshold=9.0), True),
        (ss.SoftmaxSGM(alpha=2.0, step_size=0.1, tolerance=0.1, threshold=-9.0), False),
        (ss.PrimalDual(step_size=0.1, tolerance=0.1, multiplier=0.7, dual_step_size=0.1, threshold=-9.0), False),
    ):
        grouped_round, padded_round = (one_round(oracle, method) for oracle in (grouped, padded))
        assert bool(grouped_round[1].feasible) == feasible
        for a, b in zip(jax.tree.leaves(grouped_round), jax.tree.leaves(padded_round), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
        assert float(jnp.abs(grouped_round[2]).max()) > 0.01


def test_runs_are_equal(monkeypatch):
    clients = unequal_clients(monkeypatch, True)
    method = ss.SoftmaxSGM(alpha=5.0, step_size=0.1, tolerance=0.1)
    logging = ss.Logging(eval_every=0, record_clients=True)
    grouped, padded = (
        ss.solve(PROBLEM, clients, method, rounds=40, compute=ss.Compute(group_by_size=by_size), logging=logging)
        for by_size in (True, False)
    )
    assert 0 < grouped.history.feasible_rounds < 40, "both branches must occur"
    np.testing.assert_array_equal(grouped.history.feasible, padded.history.feasible)
    np.testing.assert_allclose(grouped.last, padded.last, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(grouped.history.per_client.objective, padded.history.per_client.objective, rtol=1e-4)
    np.testing.assert_array_equal(grouped.history.gradient_evaluations, padded.history.gradient_evaluations)
    assert grouped.history.gradient_evaluations[-1] == 40 * sum(SIZES), "padding must not be counted"


def test_sampled_gradients_with_full_reports(monkeypatch):
    """Reports are grouped by size and gradients use sampled rows; both are unchanged."""
    clients = unequal_clients(monkeypatch, True)
    grouped, padded = make_oracles(clients, batch_size=6, value_batch_size=None)
    w, weights = jnp.full(4, 0.2), jnp.array([0.1, 0.2, 0.3, 0.4])
    method = ss.AverageSGM(step_size=0.1, tolerance=9.0)

    @jax.jit
    def direction(oracle):
        draws = oracle.draw(jax.random.key(3))
        reports, state = oracle.report(w, draws)
        decision = method.decide((), reports)[0]._replace(weights=weights)
        return oracle.direction(w, draws, state, decision, True, 0.0)

    grouped_direction, padded_direction = (direction(oracle) for oracle in (grouped, padded))
    np.testing.assert_array_equal(grouped_direction, padded_direction)
    full_direction = direction(make_oracles(clients, batch_size=None)[1])
    assert not np.allclose(grouped_direction, full_direction, rtol=1e-3), "rows must be sampled"


def test_random_functions_are_not_grouped_by_size(monkeypatch):
    clients = unequal_clients(monkeypatch, False)

    def noisy(w, batch, key=None):
        return least_squares(w, batch) + (0.0 if key is None else jax.random.normal(key))

    random = ss.Problem(noisy, softplus_level, jnp.zeros(4))
    assert not make_oracles(clients, random, batch_size=None)[0].by_size
    pooled = ss.PooledConstraint(
        lambda w, b: jnp.stack([mean(b["h"] @ w, b), jnp.ones(())]), lambda sums: sums[0] / sums[1]
    )
    assert not make_oracles(clients, ss.Problem(least_squares, pooled, jnp.zeros(4)), batch_size=None)[0].by_size
