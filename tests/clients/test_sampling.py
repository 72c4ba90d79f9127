"""Draws: uniform, without replacement where asked, by strata with weights that keep means unbiased."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import softswitch as ss
from softswitch.clients.sampling import batching, below, choose_clients, subset, words_to_choose
from softswitch.clients.taking_part import TakingPart, gradient_oracle


def bits(seed, shape):
    return jax.random.bits(jax.random.key(seed), shape, jnp.uint32)


@pytest.mark.parametrize("count", [1, 2, 7, 22, 65_535, 65_536, 1_000_003, 2**31 - 1])
def test_below_is_the_exact_product(count):
    words = np.concatenate([np.asarray(bits(0, (1000,))), [0, 1, 2**32 - 1]]).astype(np.uint32)
    expected = [int(word) * count >> 32 for word in words]
    np.testing.assert_array_equal(below(jnp.asarray(words), jnp.int32(count)), expected)


def test_subsets_are_uniform():
    """All C(6, 3) = 20 subsets equally often, by a chi-square test."""
    drawn = np.sort(jax.vmap(lambda words: subset(words, jnp.int32(6)))(bits(1, (20_000, 3))), axis=1)
    assert (np.diff(drawn, axis=1) > 0).all()
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 20
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(("n", "m"), [(20, 20), (20, 10), (20, 1), (9000, 5000)])
def test_clients_are_drawn_without_replacement(n, m):
    chosen = np.asarray(choose_clients(bits(0, (words_to_choose(n, m),)), n, m))
    assert len(set(chosen.tolist())) == m
    assert chosen.min() >= 0
    assert chosen.max() < n


def test_every_client_is_drawn_equally_often():
    chosen = jax.vmap(lambda words: choose_clients(words, 20, 5))(bits(3, (4000, 5)))
    counts = np.bincount(np.asarray(chosen).ravel(), minlength=20)
    assert stats.chisquare(counts).pvalue > 1e-3


def data(strata=None):
    owner = np.repeat([0, 1, 2], [3, 8, 5])
    label = np.array([0, 0, 1] + [0] * 6 + [1] * 2 + [0] * 5)
    return ss.ClientData.from_arrays({"x": np.arange(16.0)}, client=owner, strata=None if strata is None else label)


def drawn(clients, how, times):
    """Row indices, times × clients × width, and their weights, clients × width."""
    everyone = jnp.arange(len(clients))
    words = bits(5, (how.words(len(clients), times),))
    draws = how.draw(words, clients.rows, everyone, times)
    each = jax.vmap(lambda i, rows: how.batch(clients.rows, i, rows, jnp.float32))
    indices, weights = jax.vmap(each, in_axes=(None, 0))(everyone, draws)
    return np.asarray(indices), np.asarray(weights)[0]


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("strata", [None, "y"])
def test_rows_are_the_clients_own_and_uniform(replace, strata):
    clients = data(strata)
    how = batching(2, replace, clients.stratum_sizes)
    rows, _ = drawn(clients, how, 6000)
    ends = np.cumsum(clients.sizes)
    for i in range(3):
        mine = rows[:, i]
        assert mine.min() >= ends[i] - clients.sizes[i]
        assert mine.max() < ends[i]
        if not replace and strata is None:
            assert (mine[:, 0] != mine[:, 1]).all()
    counts = np.bincount(rows[:, 1].ravel(), minlength=16)[3:11]
    shares = np.full(8, 1 / 8) if strata is None else np.r_[np.full(6, 1 / 12), np.full(2, 1 / 4)]
    assert stats.chisquare(counts, shares * counts.sum()).pvalue > 1e-3


@pytest.mark.parametrize("batch_size", [2, 5, None])
@pytest.mark.parametrize("strata", [None, "y"])
def test_weighted_means_are_unbiased(batch_size, strata):
    """Σ weight·x over many draws is the client's own mean, also where a stratum is missing."""
    clients = data(strata)
    how = batching(batch_size, True, clients.stratum_sizes)
    times = 1 if batch_size is None else 20_000
    rows, weights = drawn(clients, how, times)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    estimates = (np.asarray(clients.rows.columns["x"])[rows] * weights).sum(axis=2)
    error = estimates.std(axis=0) / np.sqrt(times)
    expected = [1.0, 6.5, 13.0]
    np.testing.assert_array_less(np.abs(estimates.mean(axis=0) - expected), 4 * error + 1e-5)


def test_every_batch_has_every_stratum_its_client_has():
    clients = data("y")
    how = batching(5, True, clients.stratum_sizes)
    assert how.draws == (3, 2)
    rows, weights = drawn(clients, how, 500)
    label = np.array([0, 0, 1] + [0] * 6 + [1] * 2 + [0] * 5)
    assert (label[rows[:, 0]] == [0, 0, 0, 1, 1]).all()
    assert (label[rows[:, 1]] == [0, 0, 0, 1, 1]).all()
    np.testing.assert_allclose(weights[0], [2 / 9] * 3 + [1 / 6] * 2, rtol=1e-6)
    np.testing.assert_allclose(weights[2], [1 / 3] * 3 + [0] * 2, rtol=1e-6, err_msg="client 2 has no class 1")


def test_a_round_draws_the_same_whatever_the_chunk():
    clients = data()
    problem = ss.Problem(lambda w, b: w * b["x"].mean(), lambda w, b: -1.0 + 0 * w, 0.0)
    how = TakingPart(local_steps=3, participation=0.6, batch_size=2, value_batch_size=4)
    oracle = gradient_oracle(problem, clients, how)
    key = jax.random.key(0)
    together = jax.vmap(lambda k: oracle.draw(jax.random.fold_in(key, k)))(jnp.arange(9))
    alone = oracle.draw(jax.random.fold_in(key, 7))
    for bulk, single in zip(together[:3], alone[:3], strict=True):
        np.testing.assert_array_equal(bulk[7], single)
    assert alone.report_rows.shape == (2, 4)
    assert alone.update_rows.shape == (3, 2, 2)
