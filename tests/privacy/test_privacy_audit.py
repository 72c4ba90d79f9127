"""A privacy audit: an attacker who knows all rows except one stays below the stated ε."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import betaincinv

import softswitch as ss
from softswitch.engine.private import make_plan, make_private_oracle
from softswitch.engine.request import RunOptions
from softswitch.methods.messages import Decision, LocalLoss
from softswitch.oracles.options import Sampling
from softswitch.privacy.accounting import compute_epsilon
from softswitch.privacy.oracle import NoiseDeviations, _evaluate
from softswitch.privacy.settings import Releases

DELTA, RUNS, ROWS = 0.05, 2000, 40
SETTINGS = pytest.mark.parametrize(
    ("rate", "noise", "rounds"), [pytest.param(1.0, 4.0, 10, marks=pytest.mark.slow), (0.3, 1.5, 12)]
)


def class_mean(label):
    """Return a linear loss of one class, whose value and gradient are set by the row."""

    def loss(w, batch):
        return ss.mean_over(batch["a"] + batch["x"] @ w, batch["weight"] * (batch["y"] == label))

    return loss


def make_rows(canary):
    """Return forty rows of class 1, and optionally a canary of class 0 with a distinct direction."""
    generator = np.random.default_rng(0)
    x = np.zeros((ROWS + 1, 3), np.float32)
    x[1:, :2] = generator.normal(size=(ROWS, 2))
    x[0, 2], a = 1e4, np.zeros(ROWS + 1, np.float32)
    a[0], y = 1e9, np.ones(ROWS + 1, int)
    y[0] = 0 if canary else 2  # no function applies to a row without a class
    return ss.ClientData.from_arrays({"x": x, "a": a, "y": y}, client=np.zeros(ROWS + 1, int))


def log_likelihood_ratios(canary, settings, rounds, noise_factor):
    """Return the log likelihood ratio of all releases with and without the canary, for every run."""
    privacy = ss.RecordPrivacy(delta=DELTA, **settings)
    problem, data = ss.Problem(class_mean(0), class_mean(1), jnp.zeros(3)), make_rows(canary)
    plan = make_plan(privacy, RunOptions(rounds=rounds))
    oracle = make_private_oracle(problem, data, plan, Sampling(), np.array([[1, ROWS]]), 0)
    oracle = replace(oracle, noise=NoiseDeviations(*(deviation / noise_factor for deviation in oracle.noise)))
    decision = Decision(
        jnp.float32(0), jnp.bool_(True), jnp.ones(1), LocalLoss(jnp.float32(1), jnp.zeros((1, 1)), 0.0, 0.0)
    )
    rate, levels = privacy.rate, plan.levels

    def loss(released, level, rate):
        """Return ln p(with)/p(without) of a sum in units of the clip bound, to which a sampled canary adds one."""
        return jnp.log1p(rate * jnp.expm1((2 * released - 1) / (2 * level**2)))

    def run(key):
        def play_round(w, k):
            draws = oracle.draw(jax.random.fold_in(key, k))
            reports, state = oracle.report(w, draws)
            direction = oracle.direction(w, draws, state, decision, True, 0.1)
            released = reports.objective[0] * rate / privacy.clip_value, direction[2] * rate / privacy.clip_gradient
            return w - 0.1 * direction, loss(released[0], levels.report, rate) + loss(released[1], levels.step, rate)

        w, losses_of_rounds = jax.lax.scan(play_round, jnp.zeros(3), jnp.arange(rounds))
        evaluation = _evaluate(oracle, w, jax.random.fold_in(key, rounds))[0, 0] / privacy.clip_value
        return losses_of_rounds.sum() + loss(evaluation, levels.evaluation, 1.0)

    # Runs with the canary use other keys, so that all runs are independent.
    keys = jax.random.split(jax.random.key(int(canary)), RUNS)
    stated_epsilon = compute_epsilon(Releases(rounds, rounds, 1), levels, privacy.rate, DELTA)
    return np.asarray(jax.jit(lambda keys: jax.lax.map(run, keys, batch_size=250))(keys)), stated_epsilon


def lower_bound(present, absent, delta):
    """Return a lower limit for ε with 95% confidence, from exact limits of both error rates at a fixed threshold.

    (ε, δ)-privacy implies: true alarms <= e^ε · false alarms + δ. The threshold is selected on half of the runs.
    """
    half = len(present) // 2
    thresholds = np.quantile(np.concatenate([present[:half], absent[:half]]), np.linspace(0.01, 0.998, 200))

    def bound(threshold, present_values, absent_values, error):
        true_alarms, false_alarms, count = (
            (present_values > threshold).sum(),
            (absent_values > threshold).sum(),
            len(present_values),
        )
        at_least = float(betaincinv(true_alarms, count - true_alarms + 1, error / 2)) if true_alarms else 0.0
        at_most = (
            float(betaincinv(false_alarms + 1, count - false_alarms, 1 - error / 2)) if false_alarms < count else 1.0
        )
        return math.log(max(at_least - delta, 1e-12) / at_most)

    best = max(thresholds, key=lambda threshold: bound(threshold, present[:half], absent[:half], 0.05))
    return bound(best, present[half:], absent[half:], 0.05)


@SETTINGS
def test_attack_stays_below_stated_epsilon(rate, noise, rounds):
    settings = {"rate": rate, "noise": noise, "clip_value": 0.5, "clip_gradient": 2.0}
    losses = [log_likelihood_ratios(canary, settings, rounds, 1.0) for canary in (True, False)]
    stated_epsilon = losses[0][1]
    attack_epsilon = lower_bound(losses[0][0], losses[1][0], DELTA)
    assert 0.35 * stated_epsilon < attack_epsilon <= stated_epsilon, (
        attack_epsilon,
        stated_epsilon,
    )  # the attack must be effective
    weak = [log_likelihood_ratios(canary, settings, rounds, 2.0)[0] for canary in (True, False)]
    assert lower_bound(*weak, DELTA) > stated_epsilon, lower_bound(*weak, DELTA)  # half the noise must be detected
