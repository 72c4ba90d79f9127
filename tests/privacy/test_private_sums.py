"""Clipped sums and draws of private clients, compared with loops, and their sensitivity to a row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from softswitch.methods.messages import LocalLoss
from softswitch.oracles.evaluation import Losses
from softswitch.privacy.jax_rows import (
    draw_poisson_sample,
    poisson_capacity,
    sum_clipped_gradients,
    sum_clipped_values,
)
from softswitch.privacy.numpy_rows import mix_row_losses
from softswitch_experiments.tasks.neyman_pearson import constraint, objective

CLIP, SLOPE = 1.5, 2.0
LOSSES = Losses(objective, constraint)


def make_rows(count=40, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, 3)).astype(np.float32)
    return x, generator.integers(2, size=count), generator.random(count) < 0.7


def expected_sums(w, x, y, is_counted):
    """Return sums of clipped values and clipped gradients of f + 2 g, computed row by row in NumPy."""
    values, slopes = np.zeros(2), np.zeros(3)
    for row, label, counts in zip(x.astype(float), y, is_counted, strict=True):
        if not counts:
            continue
        score = row @ w
        loss = np.log1p(np.exp(score)) - label * score
        row_values = np.array([loss, 0.0]) if label == 0 else np.array([0.0, loss])
        values += row_values * min(1, CLIP / np.linalg.norm(row_values))
        slope = (1 if label == 0 else 2) * (1 / (1 + np.exp(-score)) - label) * row
        slopes += slope * min(1, SLOPE / np.linalg.norm(slope))
    return values, slopes


def test_sums_match_reference_loop():
    x, y, counted = make_rows()
    w = np.array([2.0, -1.0, 0.5])
    batch = {"x": jnp.asarray(x), "y": jnp.asarray(y), "weight": jnp.zeros(len(x))}
    values = sum_clipped_values(LOSSES, jnp.asarray(w), batch, jnp.asarray(counted), CLIP)
    slopes = sum_clipped_gradients(LOSSES, jnp.asarray(w), batch, jnp.asarray(counted), jnp.array([1.0, 2.0]), SLOPE)
    for actual, expected in zip((values, slopes), expected_sums(w, x, y, counted), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize("row", [1e30, -1e30, 3e38, 0.0, 1e3])
def test_row_changes_sum_by_at_most_clip_bound(row):
    x, y, _ = make_rows()
    x[0] = row
    w = jnp.array([2.0, -1.0, 0.5])
    for label in (0, 1):
        y[0] = label
        batch = {"x": jnp.asarray(x), "y": jnp.asarray(y), "weight": jnp.zeros(len(x))}
        masks = [jnp.ones(len(x), bool).at[0].set(is_present) for is_present in (True, False)]
        with_row, without_row = (sum_clipped_values(LOSSES, w, batch, counted, CLIP) for counted in masks)
        assert np.linalg.norm(with_row - without_row) <= CLIP * (1 + 1e-5)
        mix = jnp.array([1.0, 2.0])
        with_row, without_row = (sum_clipped_gradients(LOSSES, w, batch, counted, mix, SLOPE) for counted in masks)
        assert np.linalg.norm(with_row - without_row) <= SLOPE * (1 + 1e-5)


def test_mixture_of_functions_is_local_loss():
    """Σ m_j h_j with means over different rows is a sum over rows times a factor."""
    loss = LocalLoss(0.5, jnp.array([2.0, 0.0]), 3.0, 0.1)
    counts = jnp.array([10.0, 4.0, 0.0])
    mix, scale = mix_row_losses(
        loss, jnp.array([0.2, 0.5]), counts
    )  # the first g is above the tolerance, the second absent
    np.testing.assert_allclose(mix * scale, [0.5 / 10, (2 + 3) / 4, 0], rtol=1e-6)
    assert mix_row_losses(loss._replace(objective=0.0), jnp.array([0.0, 0.5]), jnp.array([10.0, 0.0, 0.0]))[1] == 0


def make_store(sizes=(50, 20)):
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return ss.ClientData.from_arrays({"a": np.arange(len(owner))}, client=owner).rows


def test_rows_are_sampled_independently():
    """Rows and pairs of rows are sampled at the expected rates, without rows of other clients."""
    data, rate, times = make_store(), 0.3, 8000
    capacity = poisson_capacity(rate, 50)
    draw = jax.vmap(lambda key: draw_poisson_sample(data, jnp.int32(1), 50, capacity, key, rate))
    draws = draw(jax.random.split(jax.random.key(0), times))
    places = np.where(draws.counted, draws.indices, -1)
    is_drawn = np.stack([(places == row).any(axis=1) for row in range(70)], axis=1)
    assert not is_drawn[:, :50].any()
    is_drawn_second = is_drawn[:, 50:]
    assert (draws.counted.sum(axis=1) == is_drawn_second.sum(axis=1)).all()  # no row is drawn twice or lost
    deviation = np.sqrt(rate * (1 - rate) / times)
    assert np.abs(is_drawn_second.mean(axis=0) - rate).max() < 5 * deviation
    pairs = (is_drawn_second[:, :, None] & is_drawn_second[:, None, :]).mean(axis=0)[np.triu_indices(20, 1)]
    assert np.abs(pairs - rate**2).max() < 5 * np.sqrt(rate**2 * (1 - rate**2) / times)
    assert abs(is_drawn_second.sum(axis=1).var() - 20 * rate * (1 - rate)) < 0.3


def test_capacity_overflow_is_negligible():
    from scipy.stats import binom

    for rate, width in ((0.001, 1000), (0.1, 1000), (0.5, 100), (0.01, 100_000)):
        assert binom.sf(poisson_capacity(rate, width), width, rate) < 1e-20
    assert poisson_capacity(0.9, 50) == 50
