"""Extreme values compared with closed forms, tables and simulation."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from softswitch.theory.theorems import heterogeneity

# The largest of n standard normals, on average: Harter's tables of order statistics.
NORMAL_MAXIMA = {2: 0.56419, 3: 0.84628, 5: 1.16296, 10: 1.53875, 20: 1.86748, 100: 2.50759}


def expected_gap(noise, n):
    """E[F − f_i] = E[max_j e_j] − E[e_i] over n clients: ∫(Φ(x) − Φ(x)ⁿ)dx, with the noise's distribution Φ."""

    def integrand(x):
        above = float(noise.sf(x))
        return float(noise.cdf(x)) - (math.exp(n * math.log1p(-above)) if above < 1 else 0.0)

    # Φⁿ rises within a few 1/n of 1, so the quadrature intervals end there.
    levels = (1 - 1e-15, 0.5, *(c / n for c in (100, 10, 1, 0.1, 0.01, 1e-15) if c / n < 0.5))
    pieces = itertools.pairwise(float(noise.isf(level)) for level in levels)
    return sum(integrate.quad(integrand, low, high, limit=200)[0] for low, high in pieces if low < high)


@pytest.mark.parametrize("n", NORMAL_MAXIMA)
def test_gap_of_normal_noise_matches_tables(n):
    assert expected_gap(stats.norm(), n) == pytest.approx(NORMAL_MAXIMA[n], abs=1e-5)


def test_normal_gaps_grow_below_bound():
    """E[F − f_i]/(σ√(2 ln n)) → 1 from below, slowly."""
    ratios = [expected_gap(stats.norm(), n) / math.sqrt(2 * math.log(n)) for n in (20, 10**3, 10**6, 10**9)]
    assert ratios == sorted(ratios)
    assert ratios[0] == pytest.approx(1 / 1.31, abs=0.005)
    assert ratios[2] == pytest.approx(1 / 1.08, abs=0.005)
    assert 0.94 < ratios[3] < 1
    bounded = [expected_gap(stats.beta(2, 2), n) for n in (20, 10**3, 10**6)]
    assert bounded == sorted(bounded)
    assert bounded[-1] < 0.5, "at most M minus the mean, for every n"


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
    """4000 maxima over 50,000 clients each, sampled directly as Q(V^(1/n)) with V uniform."""
    n, draws = 50_000, 4000
    location, scale, limit = extreme_value_limit(noise, n)
    largest = noise.isf(-np.expm1(np.log(np.random.default_rng(7).uniform(size=draws)) / n))
    distance = stats.kstest((largest - location) / scale, limit.cdf).statistic
    # Normal maxima converge like 1/ln n; all others have converged.
    is_normal = noise.dist.name == "norm"
    assert distance < (0.06 if is_normal else 1.63 / math.sqrt(draws))
    misscaled = (largest - location) / (1.3 * scale)
    assert stats.kstest(misscaled, limit.cdf).statistic > (0.03 if is_normal else 1.63 / math.sqrt(draws))


def test_bounded_noise_is_dominated_by_one_gap():
    """e = 0.7·beta(2, 3): F − f_i is at most 0.7·(1 − e_i), which is beta(3, 2) times 0.7."""
    generator = np.random.default_rng(3)
    for n in (2, 10, 500):
        noise = 0.7 * generator.beta(2, 3, size=(40_000 // n, n))
        gaps = (noise.max(axis=1, keepdims=True) - noise).ravel()
        for t in np.linspace(0.05, 0.65, 7):
            dominating = stats.beta(3, 2).sf(t / 0.7)
            assert np.mean(gaps >= t) <= dominating + 4 * math.sqrt(dominating * (1 - dominating) / len(gaps))
    values = 0.7 * generator.beta(2, 3, size=20_000)
    assert heterogeneity(values, stats.beta(3, 2)) == pytest.approx(0.7, rel=0.05)
    assert heterogeneity(values) > 0.8, "a uniform gap needs a larger value"


def test_geometric_noise_has_no_limit():
    """A limit needs P(e > x)/P(e >= x) → 1; for geometric noise it is 1 − p at every x, and maxima do not converge."""
    geometric = stats.geom(0.5)
    x = np.arange(1, 40)
    np.testing.assert_allclose(geometric.sf(x) / geometric.sf(x - 1), 0.5)
    # The probability that the maximum is the 1 − 1/n quantile oscillates with n.
    chances = [geometric.cdf(k) ** n - geometric.cdf(k - 1) ** n for n in (2**20, 2**20.5) for k in [20]]
    assert abs(chances[0] - chances[1]) > 0.01
