"""The paper's lemmas that no function carries, tried on numbers: exactly where that can be done, or by many draws."""

from itertools import combinations
from math import comb, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

DRAWS = 4000


def within(failures, delta):
    """Whether so many failures in DRAWS draws are compatible with a probability of at most δ."""
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
    after = x - step * direction
    right = (step**2 * direction @ direction + (x - best) @ (x - best) - (after - best) @ (after - best)) / (2 * step)
    assert direction @ (x - best) == pytest.approx(right)


@given(st.integers(0, 1000), st.floats(0, 1))
def test_the_worst_of_convex_and_lipschitz_functions_is_both(seed, share):
    rng = np.random.default_rng(seed)
    slopes, heights, a, b = rng.normal(size=(5, 3)), rng.normal(size=5), *rng.normal(size=(2, 3))
    lipschitz = np.linalg.norm(slopes, axis=1).max()

    def worst(w):
        return (np.abs(slopes @ w) + heights).max()

    assert worst(share * a + (1 - share) * b) <= share * worst(a) + (1 - share) * worst(b) + 1e-12
    assert abs(worst(a) - worst(b)) <= lipschitz * np.linalg.norm(a - b) + 1e-12


@pytest.mark.parametrize("share", [0.5, 0.3, 0.1, 0.01, 1e-4])
def test_small_exponential_squares_make_subgaussian(share):
    """Variables of two values and mean 0, as large as E exp(X²) ≤ 2 allows; share ½ is the symmetric one."""
    odds = np.array([share, 1 - share])
    unit = np.array([1 - share, -share])
    size = brentq(lambda s: odds @ np.exp((s * unit) ** 2) - 2, 1e-3, 5 / np.abs(unit).max())
    tilts = np.concatenate([-np.geomspace(1e-3, 50, 400), np.geomspace(1e-3, 50, 400)])
    assert max(odds @ np.exp(t * size * unit - t**2 / 2) for t in tilts) <= 1 + 1e-12


@pytest.mark.parametrize(("steps", "width"), [(1, 1), (4, 1), (4, 3), (30, 3)])
def test_sums_of_subgaussian_vectors(steps, width):
    """Vectors of length √(ln 2) in a random direction have E exp(‖z‖²) = 2; later ones may depend on earlier ones."""
    rng = np.random.default_rng(1)
    total = np.zeros((DRAWS, width))
    for _ in range(steps):
        one = rng.normal(size=(DRAWS, width))
        along = total * np.sign((one * total).sum(1, keepdims=True))  # ± the sum so far, as long as there is one
        one = np.where(np.abs(along).sum(1, keepdims=True) > 0, along, one)
        total += one / np.linalg.norm(one, axis=1, keepdims=True) * np.sqrt(log(2))
    assert np.exp((total**2).sum(1) / (4 * steps)).mean() <= 2


@pytest.mark.parametrize("above", [-np.inf, 1.0, 2.5])
def test_the_largest_noises_summed_over_chosen_rounds(above):
    """Rounds may be chosen by their noise; here those whose largest is above a level."""
    rng, rounds, clients, delta = np.random.default_rng(2), 50, 8, 0.1
    largest = np.abs(rng.normal(size=(DRAWS, rounds, clients))).max(axis=2)
    chosen = largest > above
    bound = np.sqrt(2 * log(2 * rounds * clients / delta)) * chosen.sum(1)
    assert within((largest * chosen).sum(1) > bound, delta)


def test_ratios_of_binomials():
    for n in range(1, 15):
        for m in range(n + 1):
            for fewer in range(m, n + 1):
                bound = (1 - m / n) ** (n - fewer) if m < n or fewer < n else 1.0
                assert comb(fewer, m) / comb(n, m) <= bound + 1e-12


@pytest.mark.parametrize("taking_part", range(1, 8))
def test_what_the_worst_of_a_random_subset_misses_on_average(taking_part):
    values = np.array([0.0, 0.1, 0.15, 0.4, 0.41, 0.7, 0.9, 1.0])
    n = len(values)
    sigma = max((values[-1] - values[i]) / (1 - i / n) for i in range(n))
    missed = [values[-1] - values[list(chosen)].max() for chosen in combinations(range(n), taking_part)]
    bound = sigma / (-log(1 - taking_part / n) * n)
    assert np.mean(missed) <= bound < sigma / taking_part


@pytest.mark.parametrize("delta", [0.05, 0.3])
@pytest.mark.parametrize("above", [0.0, 1.0, 3.0, 6.0])
def test_sums_with_exponential_tails_over_chosen_rounds(above, delta):
    """Exponential variables, and the rounds in which they are above a level."""
    rng, rounds = np.random.default_rng(3), 60
    values = rng.exponential(size=(DRAWS, rounds))
    chosen = values >= above
    count, total = chosen.sum(1), (values * chosen).sum(1)
    some = np.maximum(count, 1)
    share = some / rounds
    bounds = (
        log(rounds / delta) * count,
        2 * np.log(2 / (share * delta)) * count,
        2 * (log(1 / delta) + np.log(16 / share) * count),
        2 * log(4 / delta) * (count + rounds),
    )
    for bound in bounds:
        assert within(total > bound, delta)
