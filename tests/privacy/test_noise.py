"""Noise on integer sums: its distribution, the sensitivity to a row, and an attack on low bits of released floats."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import chisquare

import softswitch as ss
import softswitch.flower as fl
from softswitch.privacy import noise
from softswitch.privacy.noise import RESOLUTION, add_noise, discrete_gaussian, quantize_rows, sensitivity

ROWS, FEATURES = 400, 3


@pytest.mark.parametrize("scale", [0.7, 3.0])
def test_noise_has_the_discrete_gaussian_distribution(scale):
    drawn, values = discrete_gaussian(20_000, scale), np.arange(-math.ceil(3 * scale), math.ceil(3 * scale) + 1)
    density = np.exp(-(np.arange(-200, 201) ** 2) / (2 * scale**2))
    expected = 20_000 * np.exp(-(values**2) / (2 * scale**2)) / density.sum()
    counts = np.array([(drawn == value).sum() for value in values])
    rest = 20_000 - counts.sum(), 20_000 - expected.sum()
    assert chisquare([*counts, rest[0]], [*expected, rest[1]]).pvalue > 1e-5


@settings(max_examples=200, deadline=None)
@given(
    arrays(float, (3, 5), elements=st.floats(allow_nan=True, allow_infinity=True, width=64)),
    st.floats(1e-30, 1e30),
)
def test_contribution_of_a_row_is_bounded(rows, clip):
    quantized = quantize_rows(rows, clip)
    assert quantized.dtype == np.int64
    squares = [sum(int(entry) ** 2 for entry in row) for row in quantized]
    assert max(squares) <= sensitivity(5) ** 2


def test_unclipped_rows_are_rounded_to_the_grid():
    rows = np.array([[0.3, -0.4], [3.0, 4.0], [np.nan, 1.0], [np.inf, 0.0], [-np.inf, 0.25]])
    expected = np.array([[0.3, -0.4], [0.6, 0.8], [0, 1], [1, 0], [0, 0.25]])
    np.testing.assert_array_equal(quantize_rows(rows, 1.0), np.rint(expected * RESOLUTION))


def test_sums_must_be_integers():
    with pytest.raises(TypeError, match="int64"):
        add_noise(np.ones((1, 2)), 1.0)


def miss_rate(params, batch):
    positive = batch["y"] == 1
    if not positive.any():
        return -np.inf, {"w": np.zeros(FEATURES)}
    return (batch["x"] @ params["w"] < 0)[positive].mean(), {"w": np.zeros(FEATURES)}


def negative_loss(params, batch):
    negative = batch["y"] == 0
    if not negative.any():
        return -np.inf, {"w": np.zeros(FEATURES)}
    scores = batch["x"] @ params["w"]
    slopes = (1 / (1 + np.exp(-scores)))[:, None] * batch["x"]
    return np.logaddexp(0, scores)[negative].mean(), {"w": slopes[negative].mean(axis=0)}


def private_client(folder, misses):
    """Return a client whose number of misses at w = (1, 0, 0) is known."""
    y = np.arange(ROWS) % 2
    x = np.ones((ROWS, FEATURES), np.float32)
    x[np.flatnonzero(y == 1)[:misses]] = -1
    client = fl.NumpyClient(
        negative_loss,
        miss_rate,
        {"x": x, "y": y},
        {"w": np.zeros(FEATURES, np.float32)},
        name="a",
        constraint_surrogate=negative_loss,
        constraint_range={0, 1},
    )
    folder.mkdir()
    privacy = ss.RecordPrivacy(epsilon=3, delta=1e-5)
    return fl.PrivateClient(client, privacy, budget_file=folder / "spent.json", rounds=100)


def test_low_bits_of_reports_do_not_exclude_counts(tmp_path):
    """Every report is a grid point, and the grid is the same for all counts.

    With noise in floating point, a float excluded most counts but the true one.
    """
    w = {"w": np.array([1.0, 0, 0], np.float32)}
    task = fl.Task(round=0, seed=0, local_steps=1, step_size=0.1, switches=True)
    clip, positives = ss.RecordPrivacy(epsilon=3).clip_value, ROWS // 2
    for misses in (40, 41):
        client = private_client(tmp_path / str(misses), misses)
        for _ in range(10):
            steps = client.report(w, task).constraint[0] * positives / clip * RESOLUTION
            nearest = round(steps)
            assert nearest / RESOLUTION * clip / positives == pytest.approx(steps / RESOLUTION * clip / positives)
            assert abs(steps - nearest) <= 4 * math.ulp(abs(steps))
            # A neighbouring count moves the sum by a whole number of grid intervals, so it is as possible.
            assert float(quantize_rows(np.array([[0.0, 1.0]]), clip)[0, 1]).is_integer()


def test_noise_and_draws_do_not_repeat(tmp_path):
    client = private_client(tmp_path / "a", 40)
    w = {"w": np.array([1.0, 0, 0], np.float32)}
    task = fl.Task(round=0, seed=0, local_steps=1, step_size=0.1, switches=True)
    assert client.report(w, task) != client.report(w, task)
    assert set(map(len, (noise.secret_draw(1000, 0.5) for _ in range(20)))) != {500}


def test_dtype_of_the_server_does_not_matter(tmp_path):
    """Directions have the dtype of the client's parameters, whatever the server sends."""
    from softswitch.methods.messages import LocalLoss

    client = private_client(tmp_path / "a", 40)
    task = fl.Task(round=0, seed=0, local_steps=1, step_size=0.1, switches=True)
    for dtype in (np.float16, np.float64):
        direction = client.update({"w": np.ones(FEATURES, dtype)}, task, LocalLoss(1.0, np.zeros(1), 0.0, 0.0))["w"]
        assert direction.dtype == np.float32
    assert json.loads((tmp_path / "a" / "spent.json").read_text())["releases"] == [0, 2, 0]


def test_noise_that_does_not_fit_is_refused():
    """OpenDP saturates at 64 bits. The sum of saturated noise and a constant would be that constant, shifted."""
    assert len(np.unique(add_noise(np.full((50, 1), 7), 1e10))) > 1
    with pytest.raises(ValueError, match="noise must be at most"):
        add_noise(np.full((50, 1), 7), 1e13)
