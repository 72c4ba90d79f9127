"""ε compared with closed forms, integrals and simulated privacy losses."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from softswitch.privacy.accounting import calibrate_noise, compute_epsilon
from softswitch.privacy.settings import NoiseLevels, RecordPrivacy, Releases

ALL_ROWS = 1.0


def gaussian_epsilon(releases, levels, delta, sensitivity=1.0):
    """Balle and Wang (2018): δ(ε) of Gaussian noise is known exactly, and releases compose as the sum of 1/σ²."""
    mean = sensitivity * math.sqrt(sum(times / noise**2 for times, noise in zip(releases, levels, strict=True)))

    def excess(epsilon):
        log_tail = norm.logcdf(-mean / 2 - epsilon / mean) + epsilon
        return norm.cdf(mean / 2 - epsilon / mean) - math.exp(log_tail) - delta

    return brentq(excess, 0, 500)


@pytest.mark.parametrize("rounds", [1, 30, 1000])
@pytest.mark.parametrize("noise", [1.0, 8.0, 60.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_full_batches_match_closed_form(rounds, noise, delta):
    releases = Releases(rounds, 2 * rounds, 1)
    levels = NoiseLevels(2 * noise, noise * math.sqrt(rounds), 5.0)
    actual, exact = compute_epsilon(releases, levels, ALL_ROWS, delta), gaussian_epsilon(releases, levels, delta)
    precision = sum(times / level**2 for times, level in zip(releases, levels, strict=True))
    # The divergence of order a is a·precision/2; this is the best conversion to (ε, δ) over a fine grid of orders.
    orders = 1 + np.geomspace(1e-6, 1e4, 20_000)
    converted = orders * precision / 2 + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    assert exact <= actual
    assert max(converted.min(), 0) - 1e-9 <= actual <= converted.min() * 1.02 + 0.02


@pytest.mark.parametrize(("epsilon", "factor"), [(1.0, 6), (3.0, 6), (8.0, 8)])
def test_group_of_five_rows_has_more_than_fivefold_epsilon(epsilon, factor):
    """Five rows change a sum by five clip bounds, like a fifth of the noise. The documentation has rounded values."""
    privacy, planned = RecordPrivacy(epsilon=epsilon), Releases(100, 100, 1)
    levels = calibrate_noise(privacy, planned)
    group_epsilon = gaussian_epsilon(planned, levels, privacy.delta, sensitivity=5.0)
    assert group_epsilon > 5 * epsilon
    assert round(group_epsilon / epsilon) == factor


def simulated_losses(rate, noise, times, count, generator):
    """Return simulated privacy losses of a present row against an absent one, and vice versa."""

    def ratio(x):
        return np.log1p(rate * np.expm1((2 * x - 1) / (2 * noise**2)))

    shape = (count, times)
    absent = noise * generator.normal(size=shape)
    present = noise * generator.normal(size=shape) + (generator.random(shape) < rate)
    return ratio(present).sum(axis=1), -ratio(absent).sum(axis=1)


def delta_at(epsilon, losses):
    """δ(ε) = E[1 − e^(ε − L)]₊ over losses L, and its standard error."""
    excess = np.maximum(0, -np.expm1(epsilon - losses))
    return excess.mean(), excess.std() / math.sqrt(len(excess))


@pytest.mark.parametrize(("rate", "noise", "times"), [(0.1, 1.0, 20), (0.3, 2.0, 50), (0.02, 0.8, 60), (0.5, 4.0, 30)])
def test_subsampling_matches_simulated_losses(rate, noise, times):
    delta, generator = 0.02, np.random.default_rng(0)
    epsilon = compute_epsilon(Releases(steps=times), NoiseLevels(1, noise, 1), rate, delta)
    deltas = [delta_at(epsilon, losses) for losses in simulated_losses(rate, noise, times, 60_000, generator)]
    worst, error = max(deltas)
    assert worst < delta + 4 * error
    tighter = max(
        delta_at(0.4 * epsilon, losses)[0] for losses in simulated_losses(rate, noise, times, 60_000, generator)
    )
    assert tighter > delta  # the stated ε is not far too large


@pytest.mark.parametrize(("rate", "noise"), [(0.1, 1.0), (0.3, 2.0), (0.01, 0.5)])
def test_one_draw_matches_integral(rate, noise):
    x = np.linspace(-40 * noise, 40 * noise, 400_001)
    absent = norm.pdf(x, 0, noise)
    present = (1 - rate) * absent + rate * norm.pdf(x, 1, noise)
    for delta in (1e-3, 1e-5):
        epsilon = compute_epsilon(Releases(reports=1), NoiseLevels(noise, 1, 1), rate, delta)
        excess = [
            np.trapezoid(np.maximum(0, p - math.exp(epsilon) * q), x) for p, q in ((present, absent), (absent, present))
        ]
        assert max(excess) <= delta
        lower = [
            np.trapezoid(np.maximum(0, p - math.exp(0.4 * epsilon) * q), x)
            for p, q in ((present, absent), (absent, present))
        ]
        assert rate < 0.1 or max(lower) > delta  # the stated ε is not far too large


@pytest.mark.parametrize("settings", [{}, {"rate": 0.05}])
def test_calibrated_noise_spends_budget_exactly(settings):
    privacy = RecordPrivacy(epsilon=2.0, delta=1e-4, **settings)
    planned = Releases(40, 80, 1)
    levels = calibrate_noise(privacy, planned)
    assert 1.98 < compute_epsilon(planned, levels, privacy.rate, 1e-4) <= 2.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "RecordPrivacy needs epsilon"),
        ({"epsilon": 1, "noise": 5}, "RecordPrivacy needs epsilon"),
        ({"epsilon": 0}, "epsilon must be"),
        ({"epsilon": 1e-200}, "epsilon must be"),
        ({"noise": 1e-160}, "noise must be"),  # the accountant overflows here
        ({"epsilon": 1, "delta": 1}, "delta must be"),
        ({"epsilon": 1, "rate": 0}, "rate must be"),
        ({"epsilon": 1, "report_share": 0.7, "evaluation_share": 0.4}, "report_share and evaluation_share"),
    ],
)
def test_invalid_settings_are_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        RecordPrivacy(**settings)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_small_noise_has_large_epsilon(rate):
    """ε grows as 1/noise² without overflow."""
    epsilons = [
        compute_epsilon(Releases(1, 1, 1), NoiseLevels(*[noise] * 3), rate, 1e-5) for noise in (1e-9, 1e-6, 1e-3)
    ]
    assert epsilons[0] > 1e5 * epsilons[1] > 1e10 * epsilons[2] > 1e15
