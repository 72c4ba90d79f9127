"""Clipped sums and draws of private clients, compared with loops, and their sensitivity to a row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from softswitch.methods.messages import LocalLoss
from softswitch.oracles.evaluation import Losses
from softswitch.privacy.jax_rows import (
    sum_clipped_gradients,
    sum_clipped_values,
)
from softswitch.privacy.noise import RESOLUTION, secret_draw, sensitivity
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


def sum_exactly(function, *arguments):
    with jax.enable_x64(True):
        return np.asarray(function(LOSSES, *jax.tree.map(jnp.asarray, arguments)))


def test_sums_match_reference_loop():
    x, y, counted = make_rows()
    w = np.array([2.0, -1.0, 0.5])
    batch = {"x": jnp.asarray(x), "y": jnp.asarray(y), "weight": jnp.zeros(len(x))}
    values = sum_exactly(sum_clipped_values, w, batch, counted, CLIP) * CLIP / RESOLUTION
    slopes = sum_exactly(sum_clipped_gradients, w, batch, counted, np.array([1.0, 2.0]), SLOPE) * SLOPE / RESOLUTION
    for actual, expected in zip((values, slopes), expected_sums(w, x, y, counted), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize("row", [1e30, -1e30, 3e38, 0.0, 1e3])
def test_row_changes_sum_by_at_most_sensitivity(row):
    x, y, _ = make_rows()
    x[0] = row
    w = np.array([2.0, -1.0, 0.5])
    for label in (0, 1):
        y[0] = label
        batch = {"x": jnp.asarray(x), "y": jnp.asarray(y), "weight": jnp.zeros(len(x))}
        masks = [np.arange(len(x)) >= first for first in (0, 1)]
        changes = [
            np.subtract(*(sum_exactly(sum_clipped_values, w, batch, mask, CLIP) for mask in masks)),
            np.subtract(*(sum_exactly(sum_clipped_gradients, w, batch, mask, np.ones(2), SLOPE) for mask in masks)),
        ]
        for change in changes:
            assert change.dtype == np.int64
            assert np.linalg.norm(change) <= sensitivity(len(change))


def test_mixture_of_functions_is_local_loss():
    """Σ m_j h_j with means over different rows is a sum over rows times a factor."""
    loss = LocalLoss(0.5, jnp.array([2.0, 0.0]), 3.0, 0.1)
    counts = jnp.array([10.0, 4.0, 0.0])
    mix, scale = mix_row_losses(
        loss, jnp.array([0.2, 0.5]), counts
    )  # the first g is above the tolerance, the second absent
    np.testing.assert_allclose(mix * scale, [0.5 / 10, (2 + 3) / 4, 0], rtol=1e-6)
    assert mix_row_losses(loss._replace(objective=0.0), jnp.array([0.0, 0.5]), jnp.array([10.0, 0.0, 0.0]))[1] == 0


def test_rows_are_sampled_independently():
    """Rows and pairs of rows are drawn at the expected rates."""
    rate, times, rows = 0.3, 8000, 20
    is_drawn = np.zeros((times, rows))
    for drawn in is_drawn:
        drawn[secret_draw(rows, rate)] = 1
    deviation = np.sqrt(rate * (1 - rate) / times)
    assert np.abs(is_drawn.mean(axis=0) - rate).max() < 5.5 * deviation
    pairs = (is_drawn[:, :, None] * is_drawn[:, None, :]).mean(axis=0)[np.triu_indices(rows, 1)]
    assert np.abs(pairs - rate**2).max() < 6 * np.sqrt(rate**2 * (1 - rate**2) / times)
    assert abs(is_drawn.sum(axis=1).var() - rows * rate * (1 - rate)) < 0.4
    np.testing.assert_array_equal(secret_draw(5, 1.0), np.arange(5))
