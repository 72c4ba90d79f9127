"""Certificates by rows that stay private: limits that include the noise, by simulation and by closed forms."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import softswitch as ss
from softswitch.certification.intervals import ErrorLevels
from softswitch.certification.limits import NoisyMean, clopper_pearson_upper
from softswitch.certification.private import certificate_noise, noisy_interval
from softswitch.results.certificate import Verdict


@pytest.mark.parametrize("times", [800, pytest.param(4000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(("mean", "noise"), [(0.02, 5.0), (0.3, 30.0), (0.9, 1.0)])
def test_limits_hold_as_often_as_they_say(binary, mean, noise, times):
    generator, rows, error = np.random.default_rng(0), 300, 0.1
    if binary:
        sums = generator.binomial(rows, mean, size=times)
    else:
        spread = min(mean, 1 - mean)
        sums = generator.uniform(mean - spread, mean + spread, size=(times, rows)).sum(axis=1)
    told = sums + noise * generator.normal(size=times)
    limits = np.array([NoisyMean(one, rows, noise, binary).upper(error) for one in told])
    assert (limits < mean).mean() <= error
    assert limits.mean() < 1  # and say something


def test_a_limit_without_noise_is_the_binomial_one_at_half_the_error():
    assert NoisyMean(7.0, 200, 1e-12, True).upper(0.1) == pytest.approx(clopper_pearson_upper(7, 200, 0.05))
    # Chernoff: exp(−n kl(0.1, p)) = e/2 at the limit.
    limit = NoisyMean(20.0, 200, 1e-12, False).upper(0.1)
    divergence = 0.1 * math.log(0.1 / limit) + 0.9 * math.log(0.9 / (1 - limit))
    assert divergence == pytest.approx(math.log(20) / 200, rel=1e-6)


def test_p_values_are_where_limits_meet_the_tolerance():
    levels = ErrorLevels(0.01, 0.05, 0.25)
    found = noisy_interval(100.0, 1000, 10.0, levels, frozenset((0.0, 1.0)))
    assert found.lower < found.estimate == 0.1 < found.marginal_upper < found.upper < 0.25
    assert NoisyMean(100.0, 1000, 10.0, True).upper(found.meets_at) == pytest.approx(0.25, abs=2e-3)
    assert found.violates_at == 1.0
    assert noisy_interval(600.0, 1000, 10.0, levels, (0.0, 1.0)).violates_at < 1e-6


def wrong(w, batch):
    return ss.event_rate((batch["x"] @ w > 0) != (batch["y"] == 1), batch["weight"])


def test_a_certificate_is_made_of_noised_sums_and_says_what_it_cost():
    generator = np.random.default_rng(1)
    x = generator.normal(size=(6000, 2)).astype(np.float32)
    flipped = generator.random(6000) < 0.1
    y = (x[:, 0] > 0) ^ flipped
    data = ss.ClientData.from_arrays({"x": x, "y": y.astype(int)}, client=np.repeat([0, 1, 2], 2000))
    problem = ss.Problem(wrong, wrong, jnp.zeros(2), objective_range={0, 1}, constraint_range={0, 1})
    w, privacy = jnp.array([1.0, 0.0]), ss.RecordPrivacy(epsilon=1, delta=1e-4)
    exact = ss.certify(w, problem, data, tolerance=0.2)
    private, again = (ss.certify(w, problem, data, tolerance=0.2, privacy=privacy) for _ in range(2))
    assert private.verdict is Verdict.MEETS
    assert 0.98 < private.epsilon <= 1
    assert private.delta == 1e-4
    assert "ε = " in str(private)
    assert private.to_dict()["epsilon"] == private.epsilon
    for own, other, plain in zip(private.clients, again.clients, exact.clients, strict=True):
        assert own.constraints[0].upper > plain.constraints[0].upper - 0.01
        assert own.constraints[0].estimate != other.constraints[0].estimate != plain.constraints[0].estimate
    with pytest.raises(ValueError, match="constraint_range"):
        ss.certify(w, ss.Problem(wrong, wrong, jnp.zeros(2)), data, tolerance=0.2, privacy=privacy)


def test_on_how_many_rows_a_certificate_rests_does_not_depend_on_the_model():
    """Rows that are not a number there count as the worst: how many they are would be told without noise."""

    def loss(w, batch):
        scores = batch["x"] @ w
        return ss.mean_over(jnp.where(scores > 100, jnp.nan, scores), batch["weight"] * (batch["y"] == 1))

    x = np.ones((40, 1), np.float32)
    x[3] = 200.0
    data = ss.ClientData.from_arrays({"x": x, "y": np.arange(40) % 2}, client=np.zeros(40, int))
    problem = ss.Problem(loss, loss, jnp.full(1, 0.01), objective_range=(-10, 10), constraint_range=(-10, 10))
    privacy = ss.RecordPrivacy(noise=1e-9)
    (found,) = ss.certify(jnp.ones(1), problem, data, tolerance=1.0, privacy=privacy).clients
    assert found.constraints[0].rows == 20
    assert found.constraints[0].estimate == pytest.approx((19 * 1 + 10) / 20)


def test_the_noise_of_a_certificate_is_that_of_one_release():
    cost = certificate_noise(ss.RecordPrivacy(epsilon=2, delta=1e-5))
    mean = 1 / cost.multiplier
    delta = norm.cdf(mean / 2 - 2 / mean) - math.exp(2) * norm.cdf(-mean / 2 - 2 / mean)
    assert delta <= 1e-5
    smaller = norm.cdf(mean / 2 - 1.76 / mean) - math.exp(1.76) * norm.cdf(-mean / 2 - 1.76 / mean)
    assert smaller > 1e-5  # ε is at most 12% larger than that of continuous Gaussian noise
