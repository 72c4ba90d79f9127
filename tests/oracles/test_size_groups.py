"""Clients of similar size computed together: the same numbers as all padded to the largest, to rounding."""

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
    """Four clients of very different sizes, in an order that is not that of their sizes; widths of their own."""
    return unequal(monkeypatch, request.param)


def unequal(monkeypatch, stratified):
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


def oracles(clients, problem=PROBLEM, **options):
    sampling = ss.Sampling(**options)
    return [make_gradient_oracle(problem, clients, sampling, ss.Compute(group_by_size=by)) for by in (True, False)]


def test_reports_and_directions_are_the_same(clients):
    by_size, padded = oracles(clients, batch_size=None)
    assert by_size.by_size
    assert not padded.by_size
    assert by_size.evaluation_plan.widths == (4, 70), "there are groups"
    w = jnp.array([0.3, -0.2, 0.5, 0.1])

    @jax.jit
    def one_round(oracle, method):
        draws = oracle.draw(jax.random.key(0))
        reports, kept = oracle.report(w, draws)
        decision, _ = method.decide(method.init(3, 2), reports)
        return reports, decision, oracle.direction(w, draws, kept, decision, method.switches, 0.0)

    for method, feasible in (
        (ss.SoftmaxSGM(alpha=2.0, step_size=0.1, tolerance=0.1, threshold=9.0), True),
        (ss.SoftmaxSGM(alpha=2.0, step_size=0.1, tolerance=0.1, threshold=-9.0), False),
        (ss.PrimalDual(step_size=0.1, tolerance=0.1, multiplier=0.7, dual_step_size=0.1, threshold=-9.0), False),
    ):
        one, other = (one_round(oracle, method) for oracle in (by_size, padded))
        assert bool(one[1].feasible) == feasible
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
        assert float(jnp.abs(one[2]).max()) > 0.01


def test_runs_are_the_same(monkeypatch):
    clients = unequal(monkeypatch, True)
    method = ss.SoftmaxSGM(alpha=5.0, step_size=0.1, tolerance=0.1)
    logging = ss.Logging(eval_every=0, record_clients=True)
    one, other = (
        ss.solve(PROBLEM, clients, method, rounds=40, compute=ss.Compute(group_by_size=by_size), logging=logging)
        for by_size in (True, False)
    )
    assert 0 < one.history.feasible_rounds < 40, "both branches"
    np.testing.assert_array_equal(one.history.feasible, other.history.feasible)
    np.testing.assert_allclose(one.last, other.last, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(one.history.per_client.objective, other.history.per_client.objective, rtol=1e-4)
    np.testing.assert_array_equal(one.history.gradient_evaluations, other.history.gradient_evaluations)
    assert one.history.gradient_evaluations[-1] == 40 * sum(SIZES), "pads are not counted"


def test_gradients_of_batches_beside_reports_of_all_rows(monkeypatch):
    """Reports go by size, gradients by the rows drawn: the very same as without."""
    clients = unequal(monkeypatch, True)
    by_size, padded = oracles(clients, batch_size=6, value_batch_size=None)
    w, weights = jnp.full(4, 0.2), jnp.array([0.1, 0.2, 0.3, 0.4])
    method = ss.AverageSGM(step_size=0.1, tolerance=9.0)

    @jax.jit
    def direction(oracle):
        draws = oracle.draw(jax.random.key(3))
        reports, kept = oracle.report(w, draws)
        decision = method.decide((), reports)[0]._replace(weights=weights)
        return oracle.direction(w, draws, kept, decision, True, 0.0)

    one, other = (direction(oracle) for oracle in (by_size, padded))
    np.testing.assert_array_equal(one, other)
    whole = direction(oracles(clients, batch_size=None)[1])
    assert not np.allclose(one, whole, rtol=1e-3), "rows were drawn"


def test_functions_that_need_their_own_rows_do_not_go_by_size(monkeypatch):
    clients = unequal(monkeypatch, False)

    def noisy(w, batch, key=None):
        return least_squares(w, batch) + (0.0 if key is None else jax.random.normal(key))

    random = ss.Problem(noisy, softplus_level, jnp.zeros(4))
    assert not oracles(clients, random, batch_size=None)[0].by_size
    pooled = ss.PooledConstraint(
        lambda w, b: jnp.stack([mean(b["h"] @ w, b), jnp.ones(())]), lambda sums: sums[0] / sums[1]
    )
    assert not oracles(clients, ss.Problem(least_squares, pooled, jnp.zeros(4)), batch_size=None)[0].by_size
