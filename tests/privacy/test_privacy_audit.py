"""An attack on private runs by someone who knows everything but one row: what it finds stays below the stated ε."""

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

DELTA, RUNS, OTHERS = 0.05, 2000, 40
SETTINGS = pytest.mark.parametrize(
    ("rate", "noise", "rounds"), [pytest.param(1.0, 4.0, 10, marks=pytest.mark.slow), (0.3, 1.5, 12)]
)


def class_mean(label):
    """A linear loss of one class: what a row tells, and its slope, are as large as the row says."""

    def loss(w, batch):
        return ss.mean_over(batch["a"] + batch["x"] @ w, batch["weight"] * (batch["y"] == label))

    return loss


def rows_with(canary):
    """Forty rows of class 1; and one of class 0, alone in its class and in its direction, or nothing in its place."""
    generator = np.random.default_rng(0)
    x = np.zeros((OTHERS + 1, 3), np.float32)
    x[1:, :2] = generator.normal(size=(OTHERS, 2))
    x[0, 2], a = 1e4, np.zeros(OTHERS + 1, np.float32)
    a[0], y = 1e9, np.ones(OTHERS + 1, int)
    y[0] = 0 if canary else 2  # a row of no class concerns no function
    return ss.ClientData.from_arrays({"x": x, "a": a, "y": y}, client=np.zeros(OTHERS + 1, int))


def found_in(canary, settings, rounds, weaken):
    """How much more likely all that left is with the canary than without it, in every run."""
    privacy = ss.RecordPrivacy(delta=DELTA, **settings)
    problem, data = ss.Problem(class_mean(0), class_mean(1), jnp.zeros(3)), rows_with(canary)
    plan = make_plan(privacy, RunOptions(rounds=rounds))
    oracle = make_private_oracle(problem, data, plan, Sampling(), np.array([[1, OTHERS]]), 0)
    oracle = replace(oracle, noise=NoiseDeviations(*(deviation / weaken for deviation in oracle.noise)))
    decision = Decision(
        jnp.float32(0), jnp.bool_(True), jnp.ones(1), LocalLoss(jnp.float32(1), jnp.zeros((1, 1)), 0.0, 0.0)
    )
    rate, levels = privacy.rate, plan.levels

    def loss(told, level, rate):
        """ln p(with)/p(without) of a sum, told in clips, to which the canary adds one clip where it is drawn."""
        return jnp.log1p(rate * jnp.expm1((2 * told - 1) / (2 * level**2)))

    def run(key):
        def one(w, k):
            draws = oracle.draw(jax.random.fold_in(key, k))
            reports, kept = oracle.report(w, draws)
            direction = oracle.direction(w, draws, kept, decision, True, 0.1)
            told = reports.objective[0] * rate / privacy.clip_value, direction[2] * rate / privacy.clip_gradient
            return w - 0.1 * direction, loss(told[0], levels.report, rate) + loss(told[1], levels.step, rate)

        w, found = jax.lax.scan(one, jnp.zeros(3), jnp.arange(rounds))
        judged = _evaluate(oracle, w, jax.random.fold_in(key, rounds))[0, 0] / privacy.clip_value
        return found.sum() + loss(judged, levels.evaluation, 1.0)

    # With other keys for the runs with it: all runs are independent.
    keys = jax.random.split(jax.random.key(int(canary)), RUNS)
    stated = compute_epsilon(Releases.planned(privacy, rounds, 1), levels, privacy.rate, DELTA)
    return np.asarray(jax.jit(lambda keys: jax.lax.map(run, keys, batch_size=250))(keys)), stated


def lower_bound(with_it, without, delta):
    """ε is at least this, but for a chance of 5%: by exact limits of both error rates at a threshold chosen before.

    Whatever is (ε, δ)-private has: true alarms <= e^ε · false alarms + δ. The threshold is chosen on half of the runs.
    """
    half = len(with_it) // 2
    thresholds = np.quantile(np.concatenate([with_it[:half], without[:half]]), np.linspace(0.01, 0.998, 200))

    def bound(threshold, inside, outside, error):
        true, false, many = (inside > threshold).sum(), (outside > threshold).sum(), len(inside)
        at_least = float(betaincinv(true, many - true + 1, error / 2)) if true else 0.0
        at_most = float(betaincinv(false + 1, many - false, 1 - error / 2)) if false < many else 1.0
        return math.log(max(at_least - delta, 1e-12) / at_most)

    best = max(thresholds, key=lambda threshold: bound(threshold, with_it[:half], without[:half], 0.05))
    return bound(best, with_it[half:], without[half:], 0.05)


@SETTINGS
def test_an_attack_with_all_but_one_row_finds_no_more_than_is_stated(rate, noise, rounds):
    settings = {"rate": rate, "noise": noise, "clip_value": 0.5, "clip_gradient": 2.0}
    losses = [found_in(canary, settings, rounds, 1.0) for canary in (True, False)]
    stated = losses[0][1]
    found = lower_bound(losses[0][0], losses[1][0], DELTA)
    assert 0.35 * stated < found <= stated, (found, stated)  # the attack is worth its name
    weak = [found_in(canary, settings, rounds, 2.0)[0] for canary in (True, False)]
    assert lower_bound(*weak, DELTA) > stated, lower_bound(*weak, DELTA)  # half the noise: it would be caught
