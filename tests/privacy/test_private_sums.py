"""Clipped sums and draws of private clients, against plain loops, and what a single row can change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from softswitch.methods.messages import LocalLoss
from softswitch.oracles.evaluation import Losses
from softswitch.privacy.clipping import mix_row_losses
from softswitch.privacy.jax_rows import (
    draw_poisson_sample,
    poisson_capacity,
    sum_clipped_gradients,
    sum_clipped_values,
)
from softswitch_experiments.tasks.neyman_pearson import constraint, objective

CLIP, SLOPE = 1.5, 2.0
LOSSES = Losses(objective, constraint)


def rows(count=40, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, 3)).astype(np.float32)
    return x, generator.integers(2, size=count), generator.random(count) < 0.7


def by_hand(w, x, y, counted):
    """Sums of clipped values and of clipped gradients of f + 2 g, row by row in NumPy."""
    values, slopes = np.zeros(2), np.zeros(3)
    for row, label, counts in zip(x.astype(float), y, counted, strict=True):
        if not counts:
            continue
        score = row @ w
        loss = np.log1p(np.exp(score)) - label * score
        told = np.array([loss, 0.0]) if label == 0 else np.array([0.0, loss])
        values += told * min(1, CLIP / np.linalg.norm(told))
        slope = (1 if label == 0 else 2) * (1 / (1 + np.exp(-score)) - label) * row
        slopes += slope * min(1, SLOPE / np.linalg.norm(slope))
    return values, slopes


def test_sums_are_those_of_a_plain_loop():
    x, y, counted = rows()
    w = np.array([2.0, -1.0, 0.5])
    batch = {"x": jnp.asarray(x), "y": jnp.asarray(y), "weight": jnp.zeros(len(x))}
    values = sum_clipped_values(LOSSES, jnp.asarray(w), batch, jnp.asarray(counted), CLIP)
    slopes = sum_clipped_gradients(LOSSES, jnp.asarray(w), batch, jnp.asarray(counted), jnp.array([1.0, 2.0]), SLOPE)
    for found, wanted in zip((values, slopes), by_hand(w, x, y, counted), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("row", [1e30, -1e30, 3e38, 0.0, 1e3])
def test_no_row_changes_a_sum_by_more_than_the_clip(row):
    x, y, _ = rows()
    x[0] = row
    w = jnp.array([2.0, -1.0, 0.5])
    for label in (0, 1):
        y[0] = label
        batch = {"x": jnp.asarray(x), "y": jnp.asarray(y), "weight": jnp.zeros(len(x))}
        both = [jnp.ones(len(x), bool).at[0].set(there) for there in (True, False)]
        with_row, without = (sum_clipped_values(LOSSES, w, batch, counted, CLIP) for counted in both)
        assert np.linalg.norm(with_row - without) <= CLIP * (1 + 1e-5)
        mix = jnp.array([1.0, 2.0])
        with_row, without = (sum_clipped_gradients(LOSSES, w, batch, counted, mix, SLOPE) for counted in both)
        assert np.linalg.norm(with_row - without) <= SLOPE * (1 + 1e-5)


def test_a_mixture_of_functions_is_the_local_loss():
    """Σ m_j h_j with means over different rows is a sum over rows times one number."""
    loss = LocalLoss(0.5, jnp.array([2.0, 0.0]), 3.0, 0.1)
    counts = jnp.array([10.0, 4.0, 0.0])
    mix, scale = mix_row_losses(
        loss, jnp.array([0.2, 0.5]), counts
    )  # the first g is above the tolerance, the second absent
    np.testing.assert_allclose(mix * scale, [0.5 / 10, (2 + 3) / 4, 0], rtol=1e-6)
    assert mix_row_losses(loss._replace(objective=0.0), jnp.array([0.0, 0.5]), jnp.array([10.0, 0.0, 0.0]))[1] == 0


def store(sizes=(50, 20)):
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return ss.ClientData.from_arrays({"a": np.arange(len(owner))}, client=owner).rows


def test_rows_are_drawn_each_by_itself_with_the_rate():
    """Every row as often as the rate says, pairs as often as independent ones, none of another client."""
    data, rate, times = store(), 0.3, 8000
    capacity = poisson_capacity(rate, 50)
    draw = jax.vmap(lambda key: draw_poisson_sample(data, jnp.int32(1), 50, capacity, key, rate))
    drawn = draw(jax.random.split(jax.random.key(0), times))
    places = np.where(drawn.counted, drawn.indices, -1)
    there = np.stack([(places == row).any(axis=1) for row in range(70)], axis=1)
    assert not there[:, :50].any()
    own = there[:, 50:]
    assert (drawn.counted.sum(axis=1) == own.sum(axis=1)).all()  # nobody is drawn twice, and none is lost
    deviation = np.sqrt(rate * (1 - rate) / times)
    assert np.abs(own.mean(axis=0) - rate).max() < 5 * deviation
    pairs = (own[:, :, None] & own[:, None, :]).mean(axis=0)[np.triu_indices(20, 1)]
    assert np.abs(pairs - rate**2).max() < 5 * np.sqrt(rate**2 * (1 - rate**2) / times)
    assert abs(own.sum(axis=1).var() - 20 * rate * (1 - rate)) < 0.3


def test_more_rows_than_there_is_room_for_are_practically_never_drawn():
    from scipy.stats import binom

    for rate, width in ((0.001, 1000), (0.1, 1000), (0.5, 100), (0.01, 100_000)):
        assert binom.sf(poisson_capacity(rate, width), width, rate) < 1e-20
    assert poisson_capacity(0.9, 50) == 50
