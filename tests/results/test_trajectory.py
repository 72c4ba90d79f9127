"""Diagnostics of a run's trajectory, and whether it was still improving."""

import re
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

import softswitch as ss
from benchmarks import flat
from problems import client_data, least_squares, regression, softplus_level
from softswitch.oracles.evaluation import ClientSummary
from softswitch.results.diagnostics import still_improving
from softswitch.results.folder import open_run, write_result
from softswitch.results.history import History
from softswitch.results.status import Restart
from softswitch_experiments.tasks.neyman_pearson import breast_cancer


def codes(result):
    return [diagnostic.code for diagnostic in result.diagnostics]


def history(objective, full_rounds=(), full=()):
    """Return a history in which only the objective matters."""
    objective = np.asarray(objective, dtype=float)
    zeros, full = np.zeros(len(objective)), np.asarray(full, dtype=float)
    return History(
        objective=objective,
        constraint=zeros,
        criterion=zeros,
        feasible=zeros == 0,
        worst_client=zeros.astype(int),
        value_evaluations=zeros,
        gradient_evaluations=zeros,
        full_rounds=np.asarray(full_rounds, dtype=int),
        full=ClientSummary(full, full, full, full),
        absent=zeros,
    )


def two_clients():
    return ss.ClientData.from_arrays({"sign": np.array([1.0, -1.0], np.float32)}, client=["plus", "minus"])


def run(objective, constraint, start, step_size, **options):
    problem = ss.Problem(objective, constraint, jnp.float32(start))
    method = ss.SoftmaxSGM(alpha=50.0, step_size=step_size, tolerance=0.1)
    return flat.solve(problem, two_clients(), method, **{"rounds": 400, "batch_size": None} | options)


def level(w, b):
    return w + 0 * b["sign"][0]


def test_few_rounds_to_average():
    """From 9.8 down in steps of 0.01: the last 29 of 1,000 rounds are feasible."""
    late = run(lambda w, b: b["sign"][0] * w, level, 9.8, 0.01, rounds=1000)
    assert "few-averaged-rounds" in codes(late)
    assert "the mean of 29 feasible iterates, of 1000 rounds" in late.explain()
    assert "few-averaged-rounds" not in codes(run(lambda w, b: w**2, level, 4.0, 0.01, rounds=1000))
    last = run(lambda w, b: b["sign"][0] * w, level, 9.8, 0.01, rounds=1000, answer="last")
    assert "few-averaged-rounds" not in codes(last)
    short_run = run(lambda w, b: b["sign"][0] * w, level, 0.5, 0.01, rounds=50)
    assert 0 < short_run.history.feasible_rounds < 20
    assert "few-averaged-rounds" in codes(short_run)


def test_still_improving_run_improves_further():
    task, method = breast_cancer(20), ss.SoftmaxSGM(alpha=100.0, step_size=0.5, tolerance=0.1)
    short, long = (
        flat.solve(task.problem, task.train, method, local_steps=5, participation=0.5, rounds=rounds)
        for rounds in (1000, 2000)
    )
    assert codes(short) == ["still-improving"]
    assert "the last 250 rounds brought F from" in short.explain()
    assert long.worst_objective < 0.9 * short.worst_objective
    assert long.status.ok


def test_still_improving_detection():
    rounds = np.arange(0, 1000, 50)

    def diagnose(values):
        return list(still_improving(history(np.ones(1000), rounds, values), (), 0.1))

    assert diagnose(np.linspace(1.0, 0.5, 20))
    assert not diagnose(np.linspace(0.5, 1.0, 20))
    assert not diagnose(1 - 1e-4 * rounds / 1000)
    noise = np.random.default_rng(0).normal(size=(40, 20))
    assert sum(bool(diagnose(1 + value)) for value in noise) <= 2  # about half of such sequences decrease
    converged = np.maximum(1 - rounds / 300, 0.2)  # converged long ago
    assert not diagnose(converged)
    negligible = 1e-12 * np.linspace(1.0, 0.1, 20)  # relative to a negligible value
    assert not diagnose(negligible)
    assert not diagnose(np.linspace(1.0, 0.5, 20)[:5].tolist() + [np.nan] * 15)


def make_restart(begin, end, objective):
    return Restart(begin, end, 0.1, 0.9, 0.1, objective, 0.0, "last iterate", True)


def test_restarts_that_still_improve():
    improving = (make_restart(0, 100, 1.0), make_restart(100, 240, 0.5))
    rounds = history(np.full(240, 2.0))
    (diagnostic,) = still_improving(rounds, improving, 0.1)
    assert "the last restart brought F from 1 to 0.5" in diagnostic.evidence
    for restarts in (
        (improving[0], make_restart(100, 240, 0.995)),
        improving[:1],
        (replace(improving[0], constraint=0.3), improving[1]),
    ):
        assert not list(still_improving(rounds, restarts, 0.1))


def test_auto_settings_are_explained_and_saved(tmp_path):
    clients = client_data(*regression(sizes=(40, 80)))
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(4))
    result = flat.solve(problem, clients, ss.Automatic(tolerance=0.2, method=ss.SoftmaxSGM), rounds=1500)
    assert codes(result) == [], result.explain()
    assert result.auto_settings["rounds"] == "1,500"
    assert result.auto_settings["rows for a gradient"] == "all of a client's"
    assert result.auto_settings["reports"] == "exact"
    explanation = result.explain()
    assert "Automatic settings: rounds: 1,500; rows for a gradient: all of a client's" in explanation
    assert explanation.count("  Restart ") == len(result.restarts) > 1
    write_result(tmp_path / "it", result)
    assert open_run(tmp_path / "it").about["auto_settings"] == result.auto_settings
    sampled = flat.solve(
        problem,
        clients,
        ss.Automatic(tolerance=0.2, method=ss.SoftmaxSGM),
        rounds=200,
        batch_size=16,
        value_batch_size=8,
    )
    assert sampled.auto_settings["rows for a gradient"] == "16 of each client's"
    assert sampled.auto_settings["rows for a report"] == "8 of each client's"
    by_hand = ss.SoftmaxSGM(alpha=10.0, step_size=0.1, tolerance=0.2)
    assert flat.solve(problem, clients, by_hand, rounds=20).auto_settings == {}


def test_automatic_run_with_few_rounds_is_still_improving():
    task = breast_cancer(20)
    result = flat.solve(task.problem, task.train, ss.Automatic(tolerance=0.1, method=ss.SoftmaxSGM), rounds=300)
    assert codes(result) == ["still-improving"]


def test_advised_batch_size_removes_noise():
    """With rows of ±5 around 0, the advised number of rows removes the diagnostic."""
    noise = np.random.default_rng(0).choice([-5.0, 5.0], 20_000)
    noise -= noise.reshape(2, 10_000).mean(axis=1).repeat(10_000)
    clients = ss.ClientData.from_arrays({"z": noise.astype(np.float32)}, client=np.repeat([0, 1], 10_000))
    problem = ss.Problem(
        lambda w, b: (w - 1) ** 2 + 0 * b["z"][0],
        lambda w, b: jnp.average(b["z"], weights=b["weight"]) + w,
        jnp.float32(0.5),
    )
    method = ss.SoftmaxSGM(alpha=50.0, step_size=0.01, tolerance=0.1)
    small = flat.solve(problem, clients, method, rounds=400, batch_size=2)
    diagnostic = next(item for item in small.diagnostics if item.code == "noisy-switch")
    rows = int(re.search(r"value_batch_size from 2 to about ([\d,]+)", diagnostic.advice)[1].replace(",", ""))
    assert 500 < rows < 10_000
    sufficient, insufficient = (
        flat.solve(problem, clients, method, rounds=400, batch_size=2, value_batch_size=size)
        for size in (rows, rows // 40)
    )
    assert "noisy-switch" not in codes(sufficient)
    assert "noisy-switch" in codes(insufficient)
