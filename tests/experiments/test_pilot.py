"""Estimated constants compared with known ones."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

import softswitch as ss
from benchmarks import flat
from benchmarks.promise import NOISE, constraint, linear_clients, objective, worst_heterogeneity
from softswitch.theory.plan import plan
from softswitch_experiments.theory.pilot import estimate_constants, subgaussian_norm


def test_subgaussian_norm_of_known_distributions():
    """|x| = 1: E exp(1/σ²) = 2 at σ = 1/√(ln 2). Uniform on [−1, 1]: ∫₀¹ exp(x²/σ²)dx = 2."""
    assert subgaussian_norm(np.ones(50)) == pytest.approx(1 / np.sqrt(np.log(2)))
    grid = (np.arange(20_000) + 0.5) / 20_000
    sigma = subgaussian_norm(grid)
    assert integrate.quad(lambda x: np.exp((x / sigma) ** 2), 0, 1)[0] == pytest.approx(2, rel=1e-6)
    assert subgaussian_norm(-3 * grid) == pytest.approx(3 * sigma)
    assert subgaussian_norm(np.zeros(5)) == 0
    assert subgaussian_norm([1.0]) == pytest.approx(1 / np.sqrt(np.log(2)))


def test_constants_of_known_problem():
    c, h, clients = linear_clients(6, 0.1)
    problem = ss.Problem(objective, constraint, jnp.zeros(2))
    estimates = estimate_constants(replace(problem, domain=ss.Ball(1.0)), clients, pilots=256)
    assert estimates.diameter == 2.0
    assert estimates.lipschitz == pytest.approx(
        max(np.linalg.norm(c, axis=1).max(), np.linalg.norm(h, axis=1).max()), rel=1e-4
    )
    # The mean of many noises of length NOISE in the plane is nearly normal, of norm NOISE·√2 for one row.
    assert estimates.gradient_noise == pytest.approx(NOISE * np.sqrt(2), rel=0.2)
    # Along a unit direction its deviation is NOISE/√2, and √(8/3) times that is its sub-Gaussian norm.
    assert estimates.value_noise == pytest.approx(NOISE / np.sqrt(2) * np.sqrt(8 / 3), rel=0.2)
    assert 0.5 * worst_heterogeneity(c, h) < estimates.heterogeneity <= worst_heterogeneity(c, h) * (1 + 1e-4)


def test_estimates_give_plan():
    _, _, clients = linear_clients(6, 0.1)
    problem = ss.Problem(objective, constraint, jnp.zeros(2), ss.Box(-0.7, 0.7))
    constants = estimate_constants(problem, clients)
    assert constants.diameter == pytest.approx(1.4 * np.sqrt(2))
    planned = plan(constants, clients=6, epsilon=0.5)
    result = flat.solve(problem, clients, ss.SoftmaxSGM(**planned.method_settings()), **planned.solve_options())
    assert result.status.ok


def test_unbounded_domain_is_rejected():
    _, _, clients = linear_clients(6, 0.1)
    problem = ss.Problem(objective, constraint, jnp.zeros(2))
    with pytest.raises(ValueError, match=r"domain must be a Ball or a Box.*None"):
        estimate_constants(problem, clients)
