"""Drift-corrected estimates of reports, compared with a reference loop and exact values."""

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


def test_estimates_match_reference_loop():
    """Three clients with two values, two sampled per round, one lost in round 4 and one without its second value."""
    rng = np.random.default_rng(0)
    n, v = 3, 2
    forecasts = Forecasts.empty(n, v, jnp.float32)
    reference, mean_errors, last_report = (
        np.full((n, len(DECAY_RATES), v), -np.inf),
        np.zeros((len(DECAY_RATES), v)),
        np.full(n, -1),
    )
    for k in range(12):
        sampled = np.array([k % 3, (k + 1) % 3])
        current, previous = rng.normal(size=(2, 2, v))
        current[sampled == 2, 1] = previous[sampled == 2, 1] = -np.inf
        if k > 8:  # a batch without a value that client 0 had before
            current[sampled == 0, 0] = previous[sampled == 0, 0] = -np.inf
        mask = np.array([True, k != 4])
        ages = k - last_report[sampled]
        forecasts, estimates = forecasts.correct(*(jnp.asarray(x) for x in (sampled, mask, ages, current, previous)))
        new_errors = ERROR_DECAY * mean_errors
        for position, client in enumerate(sampled):
            if not mask[position]:
                continue
            for j, share in enumerate(DECAY_RATES):
                for column in range(v):
                    old_estimate, new_value, previous_value = (
                        reference[client, j, column],
                        current[position, column],
                        previous[position, column],
                    )
                    if np.isfinite([old_estimate, new_value, previous_value]).all():
                        if ages[position] == 1:
                            new_errors[j, column] += (1 - ERROR_DECAY) * (previous_value - old_estimate) ** 2
                        reference[client, j, column] = new_value + share ** ages[position] * (
                            old_estimate - previous_value
                        )
                    elif not (np.isfinite(old_estimate) and np.isneginf(new_value)):
                        reference[client, j, column] = new_value
            last_report[client] = k
        mean_errors = new_errors
        np.testing.assert_allclose(forecasts.estimates, reference, rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(forecasts.missed, mean_errors, rtol=2e-5, atol=1e-6)
        best = mean_errors.argmin(axis=0)
        np.testing.assert_allclose(estimates, reference[:, best, np.arange(v)], rtol=2e-5, atol=1e-6)


def test_decay_rate_with_smallest_error_is_used():
    """Without noise all rates agree. With noise and no drift the largest rate is best, and with noisy changes
    the smallest."""
    rng = np.random.default_rng(1)
    all_clients, mask, ages = jnp.arange(4), jnp.ones(4, bool), jnp.ones(4, jnp.int32)

    def best(value_noise, change_noise):
        state, exact = Forecasts.empty(4, 1, jnp.float32).with_values(jnp.zeros((4, 1)), mask), np.zeros((4, 1))
        for _ in range(150):
            previous = exact + value_noise * rng.normal(size=(4, 1))
            current = previous + change_noise * rng.normal(size=(4, 1))
            state, estimates = state.correct(all_clients, mask, ages, jnp.asarray(current), jnp.asarray(previous))
        return int(state.missed[:, 0].argmin()), np.abs(np.asarray(estimates)).mean()

    still, error = best(1.0, 0.0)
    assert still == 0
    assert error < 0.3, "the accuracy of a running mean of about fifty reports"
    assert best(0.05, 1.0)[0] == len(DECAY_RATES) - 1


def run(memory, method=RULE, **options):
    return flat.solve(
        PROBLEM, CLIENTS, method, **{"rounds": 60, "batch_size": None, "memory": memory, "progress": False, **options}
    )


def test_exact_reports_are_unchanged():
    """With full-batch reports the estimates equal the reports, and the run equals one without correction."""
    uncorrected, corrected = run(ss.Memory()), run(ss.Memory(corrected=True))
    np.testing.assert_allclose(corrected.params, uncorrected.params, rtol=1e-4)
    np.testing.assert_array_equal(corrected.history.feasible, uncorrected.history.feasible)
    assert corrected.history.value_evaluations[-1] == 2 * uncorrected.history.value_evaluations[-1]
    assert corrected.history.gradient_evaluations[-1] == uncorrected.history.gradient_evaluations[-1]


def test_correction_is_more_accurate_than_running_means():
    """Compare the memory's error at the last iterate over five seeds, with falling steps."""
    evaluate_params = make_gradient_oracle(PROBLEM, CLIENTS, Sampling(batch_size=32)).evaluate_params
    falling = ss.SoftmaxSGM(alpha=20.0, step_size=optax.cosine_decay_schedule(0.2, 200), tolerance=0.05)

    def error(memory):
        squares = []
        for seed in range(5):
            result = run(memory, falling, rounds=200, batch_size=4, seed=seed)
            squares.append(
                np.square(result.state.parts["memory"].objective - evaluate_params(result.last).objective).mean()
            )
        return np.sqrt(np.mean(squares))

    corrected_error = error(ss.Memory(corrected=True))
    for smoothing in (0.0, 0.5, 0.8):
        assert corrected_error < 0.7 * error(ss.Memory(smoothing=smoothing)), smoothing


def test_resume_with_few_clients_per_round_is_exact(tmp_path):
    """Checkpoints contain the estimates, so a resumed run is exact."""
    options = {"participation": 0.5, "batch_size": 4, "memory": ss.Memory(corrected=True)}
    uninterrupted = run(**options)
    run(**options, rounds=25, checkpoints=ss.Checkpoints(tmp_path))
    resumed = run(**options, checkpoints=ss.Checkpoints(tmp_path))
    np.testing.assert_array_equal(resumed.params, uninterrupted.params)
    np.testing.assert_array_equal(
        resumed.state.parts["memory"].forecasts.estimates, uninterrupted.state.parts["memory"].forecasts.estimates
    )
    assert np.isfinite(uninterrupted.state.parts["memory"].objective).all()


def test_incompatible_settings_are_rejected():
    with pytest.raises(ValueError, match=r"smoothing must be 0 for a corrected memory.*0\.5"):
        ss.Memory(corrected=True, smoothing=0.5)
    with pytest.raises(TypeError, match="corrected"):
        ss.Memory(corrected="yes")
