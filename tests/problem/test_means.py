"""Means over applicable rows, and clients without any."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from softswitch.results.certificate import Verdict
from softswitch_experiments.tasks.neyman_pearson import neyman_pearson
from softswitch_experiments.theory.pilot import estimate_constants

RULE = ss.SoftmaxSGM(alpha=50.0, step_size=0.3, tolerance=0.3)


def make_hospitals(seed=0, without=(0, 2)):
    """Five clients with one feature and a constant. Some have no rows of class 1, and client 4 has no others."""
    generator = np.random.default_rng(seed)
    y = np.concatenate(
        [np.zeros(20) if i in without else np.arange(20) % 2 if i < 4 else np.ones(20) for i in range(5)]
    )
    x = np.column_stack([2 * y - 1 + generator.normal(size=100), np.ones(100)]).astype(np.float32)
    return ss.ClientData.from_arrays({"x": x, "y": y.astype(int)}, client=np.repeat(np.arange(5), 20), strata="y")


def test_mean_and_gradient():
    values, weights = jnp.array([1.0, 4.0, 100.0]), jnp.array([0.2, 0.1, 0.0])
    assert ss.mean_over(values, weights) == pytest.approx(2.0)
    assert ss.mean_over(values, jnp.zeros(3)) == -jnp.inf
    np.testing.assert_array_equal(jax.grad(ss.mean_over)(values, jnp.zeros(3)), [0, 0, 0])
    np.testing.assert_allclose(jax.grad(ss.mean_over)(values, weights), [2 / 3, 1 / 3, 0], rtol=1e-6)


@pytest.mark.parametrize("local_steps", [1, 3])
@pytest.mark.parametrize("batch_size", [64, None])
def test_training_with_clients_without_class(local_steps, batch_size):
    """They have no constraint, and the result is finite and meets the constraint of other clients."""
    result = flat.solve(
        neyman_pearson(2),
        make_hospitals(),
        RULE,
        rounds=300,
        local_steps=local_steps,
        batch_size=batch_size,
        eval_every=50,
    )
    assert result.status.ok, result.status
    np.testing.assert_array_equal(np.isneginf(result.client_constraint[:, 0]), [True, False, True, False, False])
    np.testing.assert_array_equal(np.isneginf(result.client_objective), [False, False, False, False, True])
    assert np.isfinite(result.worst_objective)
    assert 0 < result.worst_constraint <= 0.3
    with_constraint = np.isfinite(result.client_constraint[:, 0])
    # The last evaluation uses another iterate, so only the set of clients in the means is compared.
    assert np.isfinite(result.history.full.mean_constraint).all()
    _, constraint = ss.evaluate(neyman_pearson(2), make_hospitals(), jnp.zeros(2))
    assert result.history.full.mean_constraint[0] == pytest.approx(constraint[with_constraint, 0].mean(), rel=1e-6)


def test_clients_without_constraint_do_not_affect_direction():
    """With full batches, removing a client without a constraint does not change constraint rounds."""
    data = make_hospitals(without=(0,))
    columns = {key: np.asarray(column) for key, column in data.rows.columns.items()}
    remaining_clients = ss.ClientData.from_arrays(
        {k: v[20:] for k, v in columns.items()}, client=np.repeat([1, 2, 3, 4], 20)
    )
    method = ss.AverageSGM(step_size=0.3, tolerance=1e-9)  # never feasible: every round descends on the constraint
    results = [flat.solve(neyman_pearson(2), d, method, rounds=20, batch_size=None) for d in (data, remaining_clients)]
    np.testing.assert_allclose(results[0].last, results[1].last, rtol=1e-5)


def test_rounds_without_values_are_void():
    """With one participant per round, clients with a single class give void rounds."""
    result = flat.solve(neyman_pearson(2), make_hospitals(), RULE, rounds=200, participation=0.2)
    assert result.status.code is not ss.StatusCode.DIVERGED
    void = result.history.void
    assert 0.4 < void.mean() < 0.8, "three of five clients lack a class"
    assert not result.history.feasible[void].any()
    np.testing.assert_array_equal(np.isneginf(result.history.constraint), np.isneginf(result.history.constraint) & void)


def test_void_rounds_are_diagnosed_and_not_counted():
    result = flat.solve(neyman_pearson(2), make_hospitals(), RULE, rounds=200, participation=0.2)
    history = result.history
    assert history.switch_share == history.feasible.sum() / (~history.void).sum()
    assert any(diagnostic.code == "void-rounds" for diagnostic in result.diagnostics)
    assert "Raise participation (now 1 of 5 clients)" in result.explain()


def test_run_of_void_rounds_only():
    x = np.ones((8, 2), np.float32)
    clients = ss.ClientData.from_arrays({"x": x, "y": [0] * 4 + [1] * 4}, client=[0] * 4 + [1] * 4, strata="y")
    result = flat.solve(neyman_pearson(2), clients, RULE, rounds=50, participation=0.5)
    assert result.status.code is ss.StatusCode.NO_FEASIBLE_ROUND
    assert "Raise participation" in result.status.message
    assert "inf" not in result.status.message


def test_no_client_has_constraint():
    clients = ss.ClientData.from_arrays({"x": np.ones((8, 2), np.float32), "y": [0] * 8}, client=[0] * 4 + [1] * 4)
    result = flat.solve(neyman_pearson(2), clients, RULE, rounds=50)
    assert result.status.code is ss.StatusCode.DIVERGED
    assert result.status.round == 0
    assert [diagnostic.code for diagnostic in result.diagnostics] == ["no-values"]


def test_batches_without_class_are_diagnosed():
    """With one positive row in forty and batches of four, most batches have no positive row without strata."""
    generator = np.random.default_rng(0)
    y = np.tile((np.arange(40) == 0).astype(int), 3)
    x = np.column_stack([2 * y - 1 + generator.normal(size=120), np.ones(120)]).astype(np.float32)
    codes = {}
    for strata in (None, "y"):
        clients = ss.ClientData.from_arrays({"x": x, "y": y}, client=np.repeat(np.arange(3), 40), strata=strata)
        result = flat.solve(neyman_pearson(2), clients, RULE, rounds=100, batch_size=4)
        codes[strata] = {diagnostic.code for diagnostic in result.diagnostics}
    assert "missing-strata" in codes[None]
    assert "void-rounds" in codes[None]
    assert "missing-strata" not in codes["y"]


def test_noise_estimate_excludes_missing_constraints():
    """With noisy batches and half of the clients without the class, noise is diagnosed and the small step is not."""
    method = ss.SoftmaxSGM(alpha=50.0, step_size=0.01, tolerance=0.05)
    result = flat.solve(neyman_pearson(2), make_hospitals(), method, rounds=200, participation=0.4, batch_size=2)
    assert not any(diagnostic.code == "step-size-too-large" for diagnostic in result.diagnostics), result.explain()


def unbounded_below(w, batch):
    return -(batch["weight"].sum() * w["at"] ** 3)


def always_feasible(w, batch):
    return -batch["weight"].sum() + 0 * w["at"]


def test_objective_at_minus_infinity_is_divergence():
    """If the objectives of all clients are −∞ on all data, the run has diverged."""
    problem = ss.Problem(unbounded_below, always_feasible, {"at": jnp.array(10.0)})
    clients = ss.ClientData.from_arrays({"x": np.zeros(6)}, client=[0, 0, 1, 1, 2, 2])
    result = flat.solve(problem, clients, ss.SoftmaxSGM(alpha=1.0, step_size=0.5, tolerance=0.1), rounds=60)
    assert result.status.code is ss.StatusCode.DIVERGED, result.status
    assert "−∞" in result.status.message
    assert 0 < result.status.round < 20


def test_missing_constraint_is_not_certified():
    task, data = neyman_pearson(2), make_hospitals()
    certificate = ss.certify(jnp.array([3.0, 1.0]), task, data, tolerance=0.3)
    verdicts = {client.client: client.verdict for client in certificate.clients}
    assert verdicts[0] == verdicts[2] == certificate.verdict == Verdict.UNKNOWN
    assert certificate.clients[0].constraints[0].rows == 0
    assert certificate.worst_constraint == np.inf


def test_constants_can_be_estimated():
    constants = estimate_constants(replace(neyman_pearson(2), domain=ss.Ball(1.0)), make_hospitals(), points=3)
    assert np.isfinite(
        [constants.lipschitz, constants.gradient_noise, constants.value_noise, constants.heterogeneity]
    ).all()
