"""ε against computations of other kinds: closed forms, integrals and simulated privacy losses."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from softswitch.privacy.accounting import calibrate_noise, compute_epsilon
from softswitch.privacy.settings import NoiseLevels, RecordPrivacy, Releases

ALL_ROWS = 1.0


def gaussian_epsilon(releases, levels, delta, weakened=1.0):
    """Balle and Wang (2018): δ(ε) of Gaussian noise is known exactly, and releases add up as 1/σ²."""
    mean = weakened * math.sqrt(sum(times / noise**2 for times, noise in zip(releases, levels, strict=True)))

    def excess(epsilon):
        log_tail = norm.logcdf(-mean / 2 - epsilon / mean) + epsilon
        return norm.cdf(mean / 2 - epsilon / mean) - math.exp(log_tail) - delta

    return brentq(excess, 0, 500)


@pytest.mark.parametrize("rounds", [1, 30, 1000])
@pytest.mark.parametrize("noise", [1.0, 8.0, 60.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_all_rows_cost_what_the_closed_form_says(rounds, noise, delta):
    releases = Releases(rounds, 2 * rounds, 1, 1)
    levels = NoiseLevels(2 * noise, noise * math.sqrt(rounds), 5.0, 7.0)
    found, wanted = compute_epsilon(releases, levels, ALL_ROWS, delta), gaussian_epsilon(releases, levels, delta)
    assert wanted <= found + 1e-6 <= wanted * 1.002 + 2e-3


@pytest.mark.parametrize(("epsilon", "times"), [(1.0, 6), (3.0, 7), (8.0, 9)])
def test_a_person_of_five_rows_has_more_than_five_times_the_epsilon(epsilon, times):
    """Five rows change a sum by five clips: noise of a fifth. The page says so, rounded."""
    privacy, planned = RecordPrivacy(epsilon=epsilon), Releases(100, 100, 1)
    levels = calibrate_noise(privacy, planned)
    together = gaussian_epsilon(planned, levels, privacy.delta, weakened=5.0)
    assert together > 5 * epsilon
    assert round(together / epsilon) == times


def losses_of_drawn(rate, noise, times, many, generator):
    """Privacy losses of a row that is there against one that is not, and the other way round, simulated."""

    def ratio(x):
        return np.log1p(rate * np.expm1((2 * x - 1) / (2 * noise**2)))

    shape = (many, times)
    without = noise * generator.normal(size=shape)
    there = noise * generator.normal(size=shape) + (generator.random(shape) < rate)
    return ratio(there).sum(axis=1), -ratio(without).sum(axis=1)


def delta_at(epsilon, losses):
    """δ(ε) = E[1 − e^(ε − L)]₊ over losses L, and its standard error."""
    lost = np.maximum(0, -np.expm1(epsilon - losses))
    return lost.mean(), lost.std() / math.sqrt(len(lost))


@pytest.mark.parametrize(("rate", "noise", "times"), [(0.1, 1.0, 20), (0.3, 2.0, 50), (0.02, 0.8, 60), (0.5, 4.0, 30)])
def test_drawn_rows_cost_what_simulated_losses_say(rate, noise, times):
    delta, generator = 0.02, np.random.default_rng(0)
    epsilon = compute_epsilon(Releases(steps=times), NoiseLevels(1, noise, 1, 1), rate, delta)
    found = [delta_at(epsilon, losses) for losses in losses_of_drawn(rate, noise, times, 60_000, generator)]
    worst, error = max(found)
    assert abs(worst - delta) < 4 * error + 2e-4


@pytest.mark.parametrize(("rate", "noise"), [(0.1, 1.0), (0.3, 2.0), (0.01, 0.5)])
def test_one_draw_costs_what_the_integral_says(rate, noise):
    x = np.linspace(-40 * noise, 40 * noise, 400_001)
    without = norm.pdf(x, 0, noise)
    there = (1 - rate) * without + rate * norm.pdf(x, 1, noise)
    for delta in (1e-3, 1e-5):
        epsilon = compute_epsilon(Releases(reports=1), NoiseLevels(noise, 1, 1, 1), rate, delta)
        excess = [
            np.trapezoid(np.maximum(0, p - math.exp(epsilon) * q), x) for p, q in ((there, without), (without, there))
        ]
        assert max(excess) == pytest.approx(delta, rel=2e-2, abs=1e-9)


@pytest.mark.parametrize(
    "settings",
    [{}, {"rate": 0.05}, {"public_sizes": False}],
)
def test_the_noise_found_spends_the_budget_and_not_more(settings):
    privacy = RecordPrivacy(epsilon=2.0, delta=1e-4, **settings)
    planned = Releases.planned(privacy, 40, 2)
    levels = calibrate_noise(privacy, planned)
    assert 1.98 < compute_epsilon(planned, levels, privacy.rate, 1e-4) <= 2.0
    assert planned == (40, 80, 1, 0 if privacy.public_sizes else 1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "RecordPrivacy needs epsilon"),
        ({"epsilon": 1, "noise": 5}, "RecordPrivacy needs epsilon"),
        ({"epsilon": 0}, "epsilon must be"),
        ({"epsilon": 1e-200}, "epsilon must be"),
        ({"noise": 1e-160}, "noise must be"),  # of which the count overflows, and said ε = 0
        ({"epsilon": 1, "delta": 1}, "delta must be"),
        ({"epsilon": 1, "rate": 0}, "rate must be"),
        (
            {"epsilon": 1, "report_share": 0.7, "evaluation_share": 0.4},
            "report_share, evaluation_share and sizes_share",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        RecordPrivacy(**settings)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_hardly_any_noise_is_counted_as_hardly_any(rate):
    """ε grows as 1/noise² there: no overflow makes it small."""
    found = [compute_epsilon(Releases(1, 1, 1), NoiseLevels(*[noise] * 4), rate, 1e-5) for noise in (1e-9, 1e-6, 1e-3)]
    assert found[0] > 1e5 * found[1] > 1e10 * found[2] > 1e15
