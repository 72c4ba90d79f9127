"""Statements of the paper that only its experiments use."""

import math

import numpy as np
import pytest
from scipy import stats

from softswitch.theory.theorems import heterogeneity
from softswitch_experiments.theory.statements import alpha_window, limit_cycle, tail_bound


@pytest.mark.parametrize("n", [5, 20, 60])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8, 1.0])
def test_tail_bound_against_exact_probabilities(n, share):
    """#far clients at gap >= t: no near one is drawn with hypergeometric probability; P(U < t) is the near share."""
    m = max(1, round(share * n))
    for near_clients in range(n + 1):
        exact = stats.hypergeom(n, near_clients, m).pmf(0)
        assert exact <= tail_bound(n, m, near_clients / n) + 1e-12
    assert tail_bound(n, m, 0.0) == 1


def test_tail_bound_with_uniform_gap():
    """Random vectors of clients: all gaps, t at and between them, and U uniform on [0, σ] with their σ."""
    generator = np.random.default_rng(0)
    for _ in range(20):
        x = generator.exponential(size=12)
        sigma = heterogeneity(x)
        for m in (2, 5, 11):
            for t in np.concatenate([x.max() - x, generator.uniform(0, sigma, 5)]):
                near_clients = int((x.max() - x < t).sum())
                exact = stats.hypergeom(12, near_clients, m).pmf(0)
                assert exact <= tail_bound(12, m, min(1.0, t / sigma)) + 1e-12


def test_alpha_window_and_limit_cycle():
    window = alpha_window(0.1)
    assert (window.adaptive_from, window.smooth_to, window.stable_to) == pytest.approx((3.4657359, 10, 20))
    assert limit_cycle(alpha=20, step_size=0.1) == 0
    for excess in np.logspace(-15, 0, 60):
        assert 0 <= limit_cycle(alpha=2 + excess, step_size=1.0) <= 0.5
    x = 0.3
    for _ in range(2000):
        x -= 0.1 * math.tanh(30 * x)
    assert limit_cycle(alpha=30, step_size=0.1) == pytest.approx(abs(x), rel=1e-9)


@pytest.mark.parametrize("start", [0.36, 0.39, 0.49])
def test_large_product_stays_within_one_step(start):
    """αη = 3200: tanh is ±1 to machine precision, so the run alternates between w and w − η instead of ±η/2."""
    alpha, eta, x = 6400.0, 0.5, start
    iterates = []
    for _ in range(5000):
        x -= eta * math.tanh(alpha * x)
        iterates.append(x)
    assert max(map(abs, iterates[-2:])) == pytest.approx(start, abs=1e-9)
    assert max(map(abs, iterates[-2:])) > 1.4 * limit_cycle(alpha, eta), "the final distance must exceed half a step"
    assert max(map(abs, iterates[-2:])) < eta
    assert abs(np.mean(iterates)) == pytest.approx(abs(start - eta / 2), abs=1e-3)
