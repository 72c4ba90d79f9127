"""Means over some rows, and clients that have none of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from softswitch.results.certificate import Verdict
from softswitch.theory.pilot import estimate_constants
from softswitch_experiments.tasks.neyman_pearson import neyman_pearson

RULE = ss.SoftmaxSGM(alpha=50.0, step_size=0.3, tolerance=0.3)


def hospitals(seed=0, without=(0, 2)):
    """Five clients with one feature and a constant; some have no case of class 1, client 4 has only such."""
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
def test_clients_without_a_class_are_trained_with(local_steps, batch_size):
    """They have no constraint and no say in it; the answer is finite and meets it where there is one."""
    result = flat.solve(
        neyman_pearson(2), hospitals(), RULE, rounds=300, local_steps=local_steps, batch_size=batch_size, eval_every=50
    )
    assert result.status.ok, result.status
    np.testing.assert_array_equal(np.isneginf(result.client_constraint[:, 0]), [True, False, True, False, False])
    np.testing.assert_array_equal(np.isneginf(result.client_objective), [False, False, False, False, True])
    assert np.isfinite(result.worst_objective)
    assert 0 < result.worst_constraint <= 0.3
    having = np.isfinite(result.client_constraint[:, 0])
    # The last evaluation is of another iterate: only that the means leave out who has none is looked at.
    assert np.isfinite(result.history.full.mean_constraint).all()
    _, constraint = ss.evaluate(neyman_pearson(2), hospitals(), jnp.zeros(2))
    assert result.history.full.mean_constraint[0] == pytest.approx(constraint[having, 0].mean(), rel=1e-6)


def test_they_move_the_answer_by_nothing():
    """Full batches: taking away a client that has no constraint leaves every constraint round as it was."""
    data = hospitals(without=(0,))
    columns = {key: np.asarray(column) for key, column in data.rows.columns.items()}
    without = ss.ClientData.from_arrays({k: v[20:] for k, v in columns.items()}, client=np.repeat([1, 2, 3, 4], 20))
    method = ss.AverageSGM(step_size=0.3, tolerance=1e-9)  # never feasible: every round is the constraint's
    results = [flat.solve(neyman_pearson(2), d, method, rounds=20, batch_size=None) for d in (data, without)]
    np.testing.assert_allclose(results[0].last, results[1].last, rtol=1e-5)


def test_rounds_without_evidence_are_void():
    """One participant a round: those who have only one class make void rounds."""
    result = flat.solve(neyman_pearson(2), hospitals(), RULE, rounds=200, participation=0.2)
    assert result.status.code is not ss.StatusCode.DIVERGED
    void = result.history.void
    assert 0.4 < void.mean() < 0.8, "three of five clients lack a class"
    assert not result.history.feasible[void].any()
    np.testing.assert_array_equal(np.isneginf(result.history.constraint), np.isneginf(result.history.constraint) & void)


def test_void_rounds_are_told_and_do_not_count_in_the_share():
    result = flat.solve(neyman_pearson(2), hospitals(), RULE, rounds=200, participation=0.2)
    history = result.history
    assert history.switch_share == history.feasible.sum() / (~history.void).sum()
    assert any(finding.code == "void-rounds" for finding in result.diagnostics)
    assert "Raise participation (now 1 of 5 clients)" in result.explain()


def test_a_run_of_void_rounds_only_says_so():
    x = np.ones((8, 2), np.float32)
    clients = ss.ClientData.from_arrays({"x": x, "y": [0] * 4 + [1] * 4}, client=[0] * 4 + [1] * 4, strata="y")
    result = flat.solve(neyman_pearson(2), clients, RULE, rounds=50, participation=0.5)
    assert result.status.code is ss.StatusCode.NO_FEASIBLE_ROUND
    assert "Raise participation" in result.status.message
    assert "inf" not in result.status.message


def test_nobody_has_a_constraint():
    clients = ss.ClientData.from_arrays({"x": np.ones((8, 2), np.float32), "y": [0] * 8}, client=[0] * 4 + [1] * 4)
    result = flat.solve(neyman_pearson(2), clients, RULE, rounds=50)
    assert result.status.code is ss.StatusCode.DIVERGED
    assert result.status.round == 0
    assert [finding.code for finding in result.diagnostics] == ["no-values"]


def test_batches_that_lack_a_class_by_chance_are_noticed():
    """One positive row in forty, batches of four: without strata its client has no say in most rounds."""
    generator = np.random.default_rng(0)
    y = np.tile((np.arange(40) == 0).astype(int), 3)
    x = np.column_stack([2 * y - 1 + generator.normal(size=120), np.ones(120)]).astype(np.float32)
    found = {}
    for strata in (None, "y"):
        clients = ss.ClientData.from_arrays({"x": x, "y": y}, client=np.repeat(np.arange(3), 40), strata=strata)
        result = flat.solve(neyman_pearson(2), clients, RULE, rounds=100, batch_size=4)
        found[strata] = {finding.code for finding in result.diagnostics}
    assert "missing-strata" in found[None]
    assert "void-rounds" in found[None]
    assert "missing-strata" not in found["y"]


def test_scatter_leaves_out_reports_without_a_constraint():
    """Noisy batches and a client in two without the class: noise is found, and the small step is not blamed."""
    method = ss.SoftmaxSGM(alpha=50.0, step_size=0.01, tolerance=0.05)
    result = flat.solve(neyman_pearson(2), hospitals(), method, rounds=200, participation=0.4, batch_size=2)
    assert not any(finding.code == "step-size-too-large" for finding in result.diagnostics), result.explain()


def falls_forever(w, batch):
    return -(batch["weight"].sum() * w["at"] ** 3)


def always_met(w, batch):
    return -batch["weight"].sum() + 0 * w["at"]


def test_an_objective_that_falls_to_minus_infinity_is_a_divergence():
    """Overflow is not absence: when all clients' objectives are −∞ on all data, the run has diverged."""
    problem = ss.Problem(falls_forever, always_met, {"at": jnp.array(10.0)})
    clients = ss.ClientData.from_arrays({"x": np.zeros(6)}, client=[0, 0, 1, 1, 2, 2])
    result = flat.solve(problem, clients, ss.SoftmaxSGM(alpha=1.0, step_size=0.5, tolerance=0.1), rounds=60)
    assert result.status.code is ss.StatusCode.DIVERGED, result.status
    assert "−∞" in result.status.message
    assert 0 < result.status.round < 20


def test_nothing_is_certified_of_what_is_not_there():
    task, data = neyman_pearson(2), hospitals()
    certificate = ss.certify(jnp.array([3.0, 1.0]), task, data, tolerance=0.3)
    verdicts = {client.client: client.verdict for client in certificate.clients}
    assert verdicts[0] == verdicts[2] == certificate.verdict == Verdict.UNKNOWN
    assert certificate.clients[0].constraints[0].rows == 0
    assert certificate.worst_constraint == np.inf


def test_constants_can_be_measured():
    known = estimate_constants(neyman_pearson(2), hospitals(), ss.Ball(1.0), points=3)
    assert np.isfinite([known.lipschitz, known.gradient_noise, known.value_noise, known.heterogeneity]).all()
