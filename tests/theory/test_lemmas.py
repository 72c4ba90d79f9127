"""The paper's lemmas without functions in the code, tested exactly or by simulation."""

from itertools import combinations
from math import comb, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

DRAWS = 4000


def is_compatible(failures, delta):
    """Return whether this number of failures in DRAWS draws is compatible with a probability of at most δ."""
    return failures.mean() <= delta + 3 * np.sqrt(delta / len(failures))


def test_three_points_and_polarization():
    rng = np.random.default_rng(0)
    x, y, z = rng.normal(size=(3, 6))
    for psi, gradient in ((lambda v: v @ v / 2, lambda v: v), (lambda v: np.exp(v).sum(), np.exp)):

        def divergence(a, b, psi=psi, gradient=gradient):
            return psi(a) - psi(b) - gradient(b) @ (a - b)

        left = (gradient(x) - gradient(z)) @ (z - y)
        assert left == pytest.approx(divergence(y, x) - divergence(y, z) - divergence(z, x))
    direction, best, step = rng.normal(size=6), rng.normal(size=6), 0.3
    next_point = x - step * direction
    right = (step**2 * direction @ direction + (x - best) @ (x - best) - (next_point - best) @ (next_point - best)) / (
        2 * step
    )
    assert direction @ (x - best) == pytest.approx(right)


@given(st.integers(0, 1000), st.floats(0, 1))
def test_maximum_of_functions_is_convex_and_lipschitz(seed, share):
    rng = np.random.default_rng(seed)
    slopes, heights, a, b = rng.normal(size=(5, 3)), rng.normal(size=5), *rng.normal(size=(2, 3))
    lipschitz = np.linalg.norm(slopes, axis=1).max()

    def worst(w):
        return (np.abs(slopes @ w) + heights).max()

    assert worst(share * a + (1 - share) * b) <= share * worst(a) + (1 - share) * worst(b) + 1e-12
    assert abs(worst(a) - worst(b)) <= lipschitz * np.linalg.norm(a - b) + 1e-12


@pytest.mark.parametrize("share", [0.5, 0.3, 0.1, 0.01, 1e-4])
def test_exponential_square_bound_implies_subgaussian(share):
    """Two-valued variables with mean 0, as large as E exp(X²) ≤ 2 allows; share ½ is symmetric."""
    probabilities = np.array([share, 1 - share])
    values = np.array([1 - share, -share])
    size = brentq(lambda s: probabilities @ np.exp((s * values) ** 2) - 2, 1e-3, 5 / np.abs(values).max())
    tilts = np.concatenate([-np.geomspace(1e-3, 50, 400), np.geomspace(1e-3, 50, 400)])
    assert max(probabilities @ np.exp(t * size * values - t**2 / 2) for t in tilts) <= 1 + 1e-12


@pytest.mark.parametrize(("steps", "width"), [(1, 1), (4, 1), (4, 3), (30, 3)])
def test_sums_of_subgaussian_vectors(steps, width):
    """Vectors of length √(ln 2) in a random direction have E exp(‖z‖²) = 2; later ones may depend on earlier ones."""
    rng = np.random.default_rng(1)
    total = np.zeros((DRAWS, width))
    for _ in range(steps):
        step_vectors = rng.normal(size=(DRAWS, width))
        parallel = total * np.sign((step_vectors * total).sum(1, keepdims=True))  # ± the sum so far, if it is nonzero
        step_vectors = np.where(np.abs(parallel).sum(1, keepdims=True) > 0, parallel, step_vectors)
        total += step_vectors / np.linalg.norm(step_vectors, axis=1, keepdims=True) * np.sqrt(log(2))
    assert np.exp((total**2).sum(1) / (4 * steps)).mean() <= 2


@pytest.mark.parametrize("threshold", [-np.inf, 1.0, 2.5])
def test_sum_of_largest_noises_over_selected_rounds(threshold):
    """Rounds may be selected by their noise, here those with a maximum above a threshold."""
    rng, rounds, clients, delta = np.random.default_rng(2), 50, 8, 0.1
    largest = np.abs(rng.normal(size=(DRAWS, rounds, clients))).max(axis=2)
    selected = largest > threshold
    bound = np.sqrt(2 * log(2 * rounds * clients / delta)) * selected.sum(1)
    assert is_compatible((largest * selected).sum(1) > bound, delta)


def test_ratios_of_binomials():
    for n in range(1, 15):
        for m in range(n + 1):
            for fewer in range(m, n + 1):
                bound = (1 - m / n) ** (n - fewer) if m < n or fewer < n else 1.0
                assert comb(fewer, m) / comb(n, m) <= bound + 1e-12


@pytest.mark.parametrize("taking_part", range(1, 8))
def test_mean_gap_of_random_subset(taking_part):
    values = np.array([0.0, 0.1, 0.15, 0.4, 0.41, 0.7, 0.9, 1.0])
    n = len(values)
    sigma = max((values[-1] - values[i]) / (1 - i / n) for i in range(n))
    gaps = [values[-1] - values[list(subset)].max() for subset in combinations(range(n), taking_part)]
    bound = sigma / (-log(1 - taking_part / n) * n)
    assert np.mean(gaps) <= bound < sigma / taking_part


@pytest.mark.parametrize("delta", [0.05, 0.3])
@pytest.mark.parametrize("threshold", [0.0, 1.0, 3.0, 6.0])
def test_exponential_tail_sums_over_selected_rounds(threshold, delta):
    """Exponential variables, and the rounds in which they are above a threshold."""
    rng, rounds = np.random.default_rng(3), 60
    values = rng.exponential(size=(DRAWS, rounds))
    selected = values >= threshold
    count, total = selected.sum(1), (values * selected).sum(1)
    positive_counts = np.maximum(count, 1)
    share = positive_counts / rounds
    bounds = (
        log(rounds / delta) * count,
        2 * np.log(2 / (share * delta)) * count,
        2 * (log(1 / delta) + np.log(16 / share) * count),
        2 * log(4 / delta) * (count + rounds),
    )
    for bound in bounds:
        assert is_compatible(total > bound, delta)
