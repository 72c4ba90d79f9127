"""Extreme values against closed forms, tables and simulation."""

import math

import numpy as np
import pytest
from scipy import special, stats

from softswitch import theory
from softswitch.theory.client_gaps import heterogeneity

# The largest of n standard normals, on average: Harter's tables of order statistics.
NORMAL = {2: 0.56419, 3: 0.84628, 5: 1.16296, 10: 1.53875, 20: 1.86748, 100: 2.50759}


@pytest.mark.parametrize("n", NORMAL)
def test_the_gap_of_normal_noise_is_that_of_the_tables(n):
    assert theory.expected_gap("normal", n) == pytest.approx(NORMAL[n], abs=1e-5)
    assert theory.expected_gap("normal", n, scale=3.0) == pytest.approx(3 * NORMAL[n], abs=1e-4)


@pytest.mark.parametrize("n", [1, 2, 7, 1000, 10**6])
def test_gaps_in_closed_form(n):
    """Exponential: 1 + 1/2 + … + 1/n, less the mean 1. Uniform: n/(n + 1) − 1/2. Beta(1, 2): its maximum by hand."""
    assert theory.expected_gap("exponential", n) == pytest.approx(special.digamma(n + 1) + np.euler_gamma - 1, rel=1e-7)
    assert theory.expected_gap("uniform", n) == pytest.approx(n / (n + 1) - 0.5, rel=1e-9)
    # P(e > x) = (1 − x)²: E max = 1 − ∫(1 − (1 − x)²)ⁿ dx = 1 − ½B(½, n + 1), and the mean is 1/3.
    expected = 1 - special.beta(0.5, n + 1) / 2 - 1 / 3
    assert theory.expected_gap("beta", n, shape=(1, 2)) == pytest.approx(expected, rel=1e-7, abs=1e-12)
    assert theory.expected_gap("cauchy", n) == (0 if n == 1 else math.inf)


def test_normal_gaps_grow_without_end_and_below_the_papers_root():
    """E[F − f_i]/(σ√(2 ln n)) → 1 from below, slowly."""
    ratios = [theory.expected_gap("normal", n) / math.sqrt(2 * math.log(n)) for n in (20, 10**3, 10**6, 10**9)]
    assert ratios == sorted(ratios)
    assert ratios[0] == pytest.approx(1 / 1.31, abs=0.005)
    assert ratios[2] == pytest.approx(1 / 1.08, abs=0.005)
    assert 0.94 < ratios[3] < 1
    bounded = [theory.expected_gap("beta", n, shape=(2, 2)) for n in (20, 10**3, 10**6)]
    assert bounded == sorted(bounded)
    assert bounded[-1] < 0.5, "M less the mean, for every n"


def extreme_value_limit(noise, n):
    """b_n, a_n and the limit of (max_j e_j − b_n)/a_n: Gumbel, Fréchet or Weibull, by Fisher, Tippett and Gnedenko."""
    high = float(noise.isf(1 / n))
    if noise.dist.name == "cauchy":
        return 0.0, high, stats.invweibull(1.0)
    if noise.support()[1] == 1:
        a, b = noise.args or (1.0, 1.0)
        return 1.0, float(special.betaincinv(b, a, 1 / n)), stats.weibull_max(b)
    return high, 1 / (n * float(noise.pdf(high))), stats.gumbel_r()


@pytest.mark.parametrize(
    "noise",
    [stats.norm(), stats.expon(), stats.cauchy(), stats.uniform(), stats.beta(2.0, 3.0)],
    ids=lambda d: d.dist.name,
)
def test_maxima_in_simulation(noise):
    """4000 maxima over 50,000 clients each: drawn at once, as Q(V^(1/n)) with V uniform."""
    n, draws = 50_000, 4000
    location, scale, limit = extreme_value_limit(noise, n)
    largest = noise.isf(-np.expm1(np.log(np.random.default_rng(7).uniform(size=draws)) / n))
    distance = stats.kstest((largest - location) / scale, limit.cdf).statistic
    # Normal maxima converge like 1/ln n; all others are there.
    is_normal = noise.dist.name == "norm"
    assert distance < (0.06 if is_normal else 1.63 / math.sqrt(draws))
    wrong = (largest - location) / (1.3 * scale)
    assert stats.kstest(wrong, limit.cdf).statistic > (0.03 if is_normal else 1.63 / math.sqrt(draws))


def test_bounded_noise_is_dominated_by_one_gap_for_every_number_of_clients():
    """e = 0.7·beta(2, 3): F − f_i is at most 0.7·(1 − e_i), beta(3, 2) times 0.7, drawn clients all together."""
    generator = np.random.default_rng(3)
    for n in (2, 10, 500):
        noise = 0.7 * generator.beta(2, 3, size=(40_000 // n, n))
        gaps = (noise.max(axis=1, keepdims=True) - noise).ravel()
        for t in np.linspace(0.05, 0.65, 7):
            dominating = stats.beta(3, 2).sf(t / 0.7)
            assert np.mean(gaps >= t) <= dominating + 4 * math.sqrt(dominating * (1 - dominating) / len(gaps))
    many = 0.7 * generator.beta(2, 3, size=20_000)
    assert heterogeneity(many, "beta", (3, 2)) == pytest.approx(0.7, rel=0.05)
    assert heterogeneity(many) > 0.8, "a uniform gap needs more"


def test_geometric_noise_has_no_limit():
    """A limit needs P(e > x)/P(e >= x) → 1; for geometric noise it is 1 − p at every x, and maxima never settle."""
    geometric = stats.geom(0.5)
    x = np.arange(1, 40)
    np.testing.assert_allclose(geometric.sf(x) / geometric.sf(x - 1), 0.5)
    # The chance that the maximum is just the 1 − 1/n quantile goes up and down with n for ever.
    chances = [geometric.cdf(k) ** n - geometric.cdf(k - 1) ** n for n in (2**20, 2**20.5) for k in [20]]
    assert abs(chances[0] - chances[1]) > 0.01


def test_bad_noise():
    with pytest.raises(ValueError, match="noise must be one of 'normal'"):
        theory.expected_gap("half-normal", 5)
    with pytest.raises(ValueError, match="shape must have 2 positive numbers for noise='beta'"):
        theory.expected_gap("beta", 5)
