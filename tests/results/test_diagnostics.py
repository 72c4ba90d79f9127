"""Each diagnostic occurs in a run with the problem, and in no healthy run."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import softswitch as ss
from benchmarks import flat
from problems import client_data, least_squares, regression, softplus_level
from softswitch_experiments.tasks.neyman_pearson import breast_cancer


def codes(result):
    return [diagnostic.code for diagnostic in result.diagnostics]


def two_clients(data=(1.0, -1.0)):
    return ss.ClientData.from_arrays({"sign": np.array(data, dtype=np.float32)}, client=["plus", "minus"])


def run(objective, constraint, start, method, clients=None, **options):
    problem = ss.Problem(objective, constraint, jnp.float32(start))
    return flat.solve(problem, clients or two_clients(), method, **{"rounds": 400, "batch_size": None} | options)


def signed(w, b):
    return b["sign"][0] * w


def infeasible(w, b):
    return -1.0 + 0 * w


def sgm(alpha=50.0, step_size=0.01, tolerance=0.1, **options):
    return ss.SoftmaxSGM(alpha=alpha, step_size=step_size, tolerance=tolerance, **options)


def test_incompatible_constraints():
    result = run(lambda w, b: w**2, lambda w, b: 1 + b["sign"][0] * w, 0.5, sgm())
    assert codes(result)[0] == "never-feasible"
    assert "2 of 2 clients are above the tolerance 0.1" in result.explain()


def test_infeasible_client():
    clients = ss.ClientData.from_arrays({"shift": np.array([-5.0, 0.5], np.float32)}, client=["Earth", "Mars"])
    result = run(lambda w, b: w, lambda w, b: w**2 + b["shift"][0], 1.0, sgm(), clients)
    assert codes(result)[0] == "never-feasible"
    assert "1 of 2 clients are above the tolerance 0.1 at best: 'Mars' (0.5)" in result.explain()


@pytest.mark.parametrize(("start", "step"), [(30.0, 0.01), (10.0, 0.001), (3.0, optax.exponential_decay(0.1, 10, 0.5))])
def test_short_run_names_no_client(start, step):
    result = run(lambda w, b: w**2, lambda w, b: w + 0 * b["sign"][0], start, sgm(step_size=step), rounds=200)
    assert result.status.code is ss.StatusCode.NO_FEASIBLE_ROUND
    assert codes(result)[0] == "never-feasible"
    assert "longer" in result.diagnostics[0].advice


def test_noise_hides_feasibility():
    """Every client is within the tolerance on all its data, but the largest noisy report is always above λ."""
    generator = np.random.default_rng(0)
    rows = np.repeat(generator.choice([0.0, 1.0], size=(79, 40)).cumsum(axis=0)[:1], 79, axis=0)
    noise = np.tile(np.repeat([0.0, 1.0], 20), (79, 1))
    clients = ss.ClientData.from_arrays({"x": noise.ravel()}, client=np.repeat(np.arange(79), rows.shape[1]))
    problem = ss.Problem(
        lambda w, b: w**2 + 0 * b["x"][0], lambda w, b: jnp.average(b["x"], weights=b["weight"]) + 0 * w, jnp.float32(1)
    )
    result = flat.solve(problem, clients, sgm(alpha=1e4, tolerance=0.5), rounds=40, batch_size=4)
    assert result.status.code is ss.StatusCode.NO_FEASIBLE_ROUND
    assert result.violating == ()
    assert "all 79 clients are within the tolerance 0.5" in result.status.message
    assert codes(result)[0] == "switch-never-passes"
    assert not any("0 of 79" in str(diagnostic) for diagnostic in result.diagnostics)
    assert "value_batch_size" in result.diagnostics[0].advice


def test_run_ends_before_average_begins():
    callbacks = [lambda chunk: chunk.round >= 250]
    options = {"rounds": 1000, "average_last": 0.5, "callbacks": callbacks}
    result = run(lambda w, b: w**2, lambda w, b: w - 5 + 0 * b["sign"][0], 1.0, sgm(), **options)
    assert len(result.history) == 250
    assert result.selected.endswith("the average begins with round 500, and the run ended before it")
    assert "no feasible round from 500 on" not in result.explain()


def test_zero_tolerance_has_no_diagnostics():
    method = sgm(alpha=10.0, step_size=1e-3, tolerance=0.0)
    result = run(signed, lambda w, b: 0.5 - w, 0.6, method, rounds=1000)
    assert codes(result) == [], result.explain()


def test_other_methods_and_several_constraints():
    vector = lambda w, b: jnp.stack([0.5 - w, w - 3])  # noqa: E731
    common = {"step_size": 0.05, "tolerance": 0.1}
    methods = (
        ss.Penalty(penalty=5.0, **common),
        ss.PrimalDual(multiplier=1.0, dual_step_size=0.1, **common),
        ss.HardSGM(step_size=0.05, tolerance=0.1, threshold=-0.05),
    )
    for method in methods:
        result = run(signed, vector, 2.0, method, rounds=200)
        assert isinstance(result.explain(), str)


def test_rarely_feasible():
    """From 10 down to 0.1 in steps of 0.01·(gradient 1): only the last of 1,000 rounds are feasible."""
    result = run(signed, lambda w, b: w + 0 * b["sign"][0], 10.0, sgm(), rounds=1000)
    assert "few-averaged-rounds" in codes(result)


def test_inactive_constraint():
    assert codes(run(signed, infeasible, 1.0, sgm())) == ["inactive-constraint"]


def test_mean_masks_worst_client():
    """g = ±w at α = 0.01: their softmax mean w·tanh(αw) is 0.04 at w = 2, so every round is feasible."""
    for method in (sgm(alpha=0.01), ss.AverageSGM(step_size=0.01, tolerance=0.1)):
        result = run(lambda w, b: (w - 2) ** 2, signed, 2.0, method)
        assert "masked-worst-client" in codes(result)
    diagnostic = next(f for f in result.diagnostics if f.code == "masked-worst-client")
    assert "constraint_alpha" in diagnostic.advice
    for method in (sgm(alpha=0.01, alpha_scale="spread"), sgm(alpha_scale="spread", criterion="mean")):
        assert "masked-worst-client" in codes(run(lambda w, b: (w - 2) ** 2, signed, 2.0, method))


def test_step_size_too_large():
    """Each step moves the constraint by 2, with a tolerance of 0.1."""
    result = run(lambda w, b: -w, lambda w, b: jnp.abs(w) - 0.5, 0.3, sgm(step_size=2.0))
    assert "step-size-too-large" in codes(result)
    assert "Lower step_size (now 2)" in result.explain()


def test_divergence():
    result = run(lambda w, b: w**4, infeasible, 3.0, sgm(step_size=1.0))
    assert codes(result)[0] == "diverged"


def test_batch_too_small_for_threshold():
    """Rows of ±5 around a mean of 0: batches of 2 scatter by 3.5, with a threshold of 0.09."""
    generator = np.random.default_rng(0)
    noise = generator.choice([-5.0, 5.0], 4000)
    noise -= noise.reshape(2, 2000).mean(axis=1).repeat(2000)
    clients = ss.ClientData.from_arrays({"z": noise.astype(np.float32)}, client=np.repeat([0, 1], 2000))
    problem = ss.Problem(
        lambda w, b: (w - 1) ** 2 + 0 * b["z"][0],
        lambda w, b: jnp.average(b["z"], weights=b["weight"]) + w,
        jnp.float32(0.5),
    )
    small = flat.solve(problem, clients, sgm(), rounds=400, batch_size=2)
    assert "noisy-switch" in codes(small)
    large = flat.solve(problem, clients, sgm(), rounds=400, batch_size=2, value_batch_size=None)
    assert codes(large) == []


HEALTHY = {
    "Neyman–Pearson": lambda: _healthy_np(),
    "regression": lambda: flat.solve(
        ss.Problem(least_squares, softplus_level, jnp.zeros(4)),
        client_data(*regression(sizes=(40, 80))),
        sgm(alpha=100.0, step_size=0.05, tolerance=0.2),
        batch_size=32,
    ),
    "two clients": lambda: run(signed, lambda w, b: 0.5 - w, 2.0, sgm(alpha=10.0, step_size=0.05), rounds=1000),
}


def _healthy_np(**options):
    task = breast_cancer(20)
    return flat.solve(task.problem, task.train, sgm(alpha=100.0, step_size=0.5), **options)


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_runs_have_no_diagnostics(name):
    result = HEALTHY[name]()
    assert codes(result) == [], result.explain()
    assert "No problems detected." in result.explain()


def test_sweeps_are_diagnosed():
    problem = ss.Problem(lambda w, b: w**2, lambda w, b: 1 + b["sign"][0] * w, jnp.float32(0.5))
    (result,) = flat.sweep(problem, two_clients(), {"one": sgm()}, seeds=1, rounds=100, batch_size=None)["one"]
    assert codes(result) == ["never-feasible"]
