"""Estimates of reports that go along with the server's steps, against a plain loop and against the truth."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import softswitch as ss
from benchmarks import flat
from problems import client_data, least_squares, regression, softplus_level
from softswitch.methods.drift_correction import DECAY_RATES, ERROR_DECAY, Forecasts
from softswitch.oracles.gradient import make_gradient_oracle
from softswitch.oracles.options import Sampling

RULE = ss.SoftmaxSGM(alpha=20.0, step_size=0.2, tolerance=0.05)
PROBLEM = ss.Problem(least_squares, softplus_level, jnp.zeros(4))
CLIENTS = client_data(*regression(clients=4, sizes=(60, 90)))


def test_estimates_are_those_of_a_plain_loop():
    """Three clients with two values each, two of them asked a round, one lost in round 4, one without its second."""
    rng = np.random.default_rng(0)
    n, v = 3, 2
    ours = Forecasts.empty(n, v, jnp.float32)
    plain, missed, heard = np.full((n, len(DECAY_RATES), v), -np.inf), np.zeros((len(DECAY_RATES), v)), np.full(n, -1)
    for k in range(12):
        asked = np.array([k % 3, (k + 1) % 3])
        told, earlier = rng.normal(size=(2, 2, v))
        told[asked == 2, 1] = earlier[asked == 2, 1] = -np.inf
        if k > 8:  # a batch that lacks what client 0 had before
            told[asked == 0, 0] = earlier[asked == 0, 0] = -np.inf
        mask = np.array([True, k != 4])
        ages = k - heard[asked]
        ours, believed = ours.correct(*(jnp.asarray(x) for x in (asked, mask, ages, told, earlier)))
        new_missed = ERROR_DECAY * missed
        for place, client in enumerate(asked):
            if not mask[place]:
                continue
            for j, share in enumerate(DECAY_RATES):
                for column in range(v):
                    old, now, then = plain[client, j, column], told[place, column], earlier[place, column]
                    if np.isfinite([old, now, then]).all():
                        if ages[place] == 1:
                            new_missed[j, column] += (1 - ERROR_DECAY) * (then - old) ** 2
                        plain[client, j, column] = now + share ** ages[place] * (old - then)
                    elif not (np.isfinite(old) and np.isneginf(now)):
                        plain[client, j, column] = now
            heard[client] = k
        missed = new_missed
        np.testing.assert_allclose(ours.estimates, plain, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(ours.missed, missed, rtol=2e-5, atol=1e-6)
        best = missed.argmin(axis=0)
        np.testing.assert_allclose(believed, plain[:, best, np.arange(v)], rtol=2e-5, atol=1e-6)


def test_the_share_that_foresees_best_is_believed():
    """Without noise and with large steps all shares agree; with noise and no steps the largest wins, and otherwise
    the smallest, where every step's change is told wrongly."""
    rng = np.random.default_rng(1)
    everyone, mask, ages = jnp.arange(4), jnp.ones(4, bool), jnp.ones(4, jnp.int32)

    def best(value_noise, change_noise):
        state, truth = Forecasts.empty(4, 1, jnp.float32).with_values(jnp.zeros((4, 1)), mask), np.zeros((4, 1))
        for _ in range(150):
            then = truth + value_noise * rng.normal(size=(4, 1))
            now = then + change_noise * rng.normal(size=(4, 1))
            state, believed = state.correct(everyone, mask, ages, jnp.asarray(now), jnp.asarray(then))
        return int(state.missed[:, 0].argmin()), np.abs(np.asarray(believed)).mean()

    still, error = best(1.0, 0.0)
    assert still == 0
    assert error < 0.3, "a running mean of some fifty reports"
    assert best(0.05, 1.0)[0] == len(DECAY_RATES) - 1


def run(memory, method=RULE, **more):
    return flat.solve(
        PROBLEM, CLIENTS, method, **{"rounds": 60, "batch_size": None, "memory": memory, "progress": False, **more}
    )


def test_reports_without_noise_are_left_as_they_are():
    """Everyone tells of all rows: what is foreseen is what is told, and the run is that of a plain memory."""
    plain, foreseen = run(ss.Memory()), run(ss.Memory(corrected=True))
    np.testing.assert_allclose(foreseen.params, plain.params, rtol=1e-4)
    np.testing.assert_array_equal(foreseen.history.feasible, plain.history.feasible)
    assert foreseen.history.value_evaluations[-1] == 2 * plain.history.value_evaluations[-1]
    assert foreseen.history.gradient_evaluations[-1] == plain.history.gradient_evaluations[-1]


def test_noisy_reports_are_foreseen_better_than_by_running_means():
    """How far what is remembered is from the truth at the last iterate, over five seeds, where steps fall."""
    judge = make_gradient_oracle(PROBLEM, CLIENTS, Sampling(batch_size=32)).evaluate_params
    falling = ss.SoftmaxSGM(alpha=20.0, step_size=optax.cosine_decay_schedule(0.2, 200), tolerance=0.05)

    def error(memory):
        squares = []
        for seed in range(5):
            result = run(memory, falling, rounds=200, batch_size=4, seed=seed)
            squares.append(np.square(result.state.parts["memory"].objective - judge(result.last).objective).mean())
        return np.sqrt(np.mean(squares))

    foreseen = error(ss.Memory(corrected=True))
    for smoothing in (0.0, 0.5, 0.8):
        assert foreseen < 0.7 * error(ss.Memory(smoothing=smoothing)), smoothing


def test_few_clients_a_round_and_a_resumed_run(tmp_path):
    """The estimates are part of a checkpoint: a run that goes on takes the same course to the last bit."""
    options = {"participation": 0.5, "batch_size": 4, "memory": ss.Memory(corrected=True)}
    whole = run(**options)
    run(**options, rounds=25, checkpoints=ss.Checkpoints(tmp_path))
    on = run(**options, checkpoints=ss.Checkpoints(tmp_path))
    np.testing.assert_array_equal(on.params, whole.params)
    np.testing.assert_array_equal(
        on.state.parts["memory"].forecasts.estimates, whole.state.parts["memory"].forecasts.estimates
    )
    assert np.isfinite(whole.state.parts["memory"].objective).all()


def test_what_does_not_go_with_it_is_refused():
    with pytest.raises(ValueError, match=r"smoothing must be 0 for a corrected memory.*0\.5"):
        ss.Memory(corrected=True, smoothing=0.5)
    with pytest.raises(TypeError, match="corrected"):
        ss.Memory(corrected="yes")
