"""The problems with known optima match their collections, and the held-out half is fixed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks.optima.as_clients import as_clients
from benchmarks.optima.epigraph import slsqp, values_and_slopes
from benchmarks.optima.problems import PROBLEMS, half
from benchmarks.optima.scores import CLOSE, TOLERANCE, relaxed_optimum, score

HELD_OUT = """
CB2, Crescent, Davidon 2, EVD61, HS 100, HS 11, HS 12, HS 23, HS 29, HS 31, HS 35, HS 65, HS 76, Hald-Madsen 1, LQ,
MAD2, MAD5, Maxl, Maxquad, Mifflin 2, OET6, Pentagon, Polak 2, QL, Shor, Wong 2, Wong 3
"""
BY_NAME = {problem.name: problem for problem in PROBLEMS}


def parametrize_examples(problems):
    return pytest.mark.parametrize("example", problems, ids=lambda example: example.name)


@parametrize_examples(PROBLEMS)
def test_slsqp_finds_published_optimum(example, x64):
    """SLSQP from the published start reaches the optimum within 1e-6, and all values are finite."""
    objectives, constraints, *slopes = values_and_slopes(example)(example.start)
    assert objectives.ndim == constraints.ndim == 1
    for array in (objectives, constraints, *slopes):
        assert array.dtype == np.float64
        assert np.isfinite(array).all()
    solution = slsqp(example)
    assert abs(solution.worst_objective - example.optimum) <= 1e-6 * max(abs(example.optimum), 1e-2)
    assert solution.worst_constraint <= 1e-7


def violates_convexity(example, first_point, second_point):
    """Return whether a function's value at a midpoint exceeds the mean of the values at both ends."""
    is_violated = False
    for functions in filter(None, (example.objectives, example.constraints)):
        evaluate = jax.jit(jax.vmap(functions))
        chord = (evaluate(first_point) + evaluate(second_point)) / 2
        is_violated |= bool((evaluate((first_point + second_point) / 2) > chord + 1e-9 * (1 + np.abs(chord))).any())
    return is_violated


@parametrize_examples(PROBLEMS)
def test_convexity_flags(example, x64):
    ends = example.start + np.random.default_rng(0).standard_normal((2, 1000, example.variables))
    if example.name in ("HS 100", "Wong 1"):  # not convex near x₆ = x₇ = 0 only, along (2/7, 1)
        offset = 0.3 * np.array([0, 0, 0, 0, 0, 2 / 7, 1])
        centre = example.start * [1, 1, 1, 1, 1, 0, 0]
        ends = np.stack([centre - offset, centre + offset])[:, None]
    assert example.convex != violates_convexity(example, *ends)


def test_every_second_problem_is_held_out():
    assert len(PROBLEMS) >= 28
    assert len(BY_NAME) == len(PROBLEMS)
    assert all(2 <= problem.variables <= 20 and problem.source for problem in PROBLEMS)
    assert [problem.name for problem in half("held-out")] == sorted(HELD_OUT.replace("\n", " ").strip().split(", "))
    assert [problem.name for problem in half("held-out")] == sorted(BY_NAME)[1::2]
    assert {*half("tuned")} == {*PROBLEMS} - {*half("held-out")}
    with pytest.raises(ValueError, match="half must be one of"):
        half("both")


@pytest.mark.parametrize("name", ["CB3", "HS 43", "MAD1"])
def test_clients_have_one_objective_and_all_constraints(name, x64):
    example = BY_NAME[name]
    problem, clients = as_clients(example)
    objective, constraint = ss.evaluate(problem, clients, problem.start)
    np.testing.assert_allclose(objective, example.objectives(jnp.asarray(example.start)), rtol=1e-12)
    expected = [-1.0] if example.constraints is None else example.constraints(jnp.asarray(example.start))
    np.testing.assert_allclose(constraint, np.tile(expected, (len(clients), 1)), rtol=1e-12)


def test_single_precision_is_rejected():
    with pytest.raises(ValueError, match="jax_enable_x64"):
        as_clients(BY_NAME["CB2"])


def test_result_is_compared_with_relaxed_optimum():
    """HS 22 at tolerance ε is the point nearest to (2, 1) with x₁ + x₂ <= 2 + ε, x₂ >= x₁² − ε."""
    example = BY_NAME["HS 22"]
    relaxed = relaxed_optimum(example)
    a = (-1 + np.sqrt(1 + 4 * (2 + 2 * TOLERANCE))) / 2
    corner = np.array([a, a**2 - TOLERANCE])
    assert relaxed == pytest.approx(float(((corner - [2, 1]) ** 2).sum()), abs=1e-9)
    assert relaxed < example.optimum
    assert score(example, relaxed, corner).solved
    too_far = score(example, relaxed, np.array([0.9, 0.9]))
    assert too_far.met
    assert too_far.error > CLOSE
    assert not too_far.solved
    violating = score(example, relaxed, corner + 1e-4)
    assert abs(violating.error) <= CLOSE
    assert not violating.met
    assert not violating.solved
    assert relaxed_optimum(BY_NAME["CB2"]) == BY_NAME["CB2"].optimum
