"""Sampling: uniform draws, sampling without replacement, and unbiased stratified batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import softswitch as ss
from softswitch.data.sampling import (
    client_bit_count,
    draws_needed,
    make_batching,
    sample_clients,
    sample_subset,
    scale_bits,
    take_first_distinct,
)
from softswitch.oracles.gradient import make_gradient_oracle
from softswitch.oracles.options import Sampling


def bits(seed, shape):
    return jax.random.bits(jax.random.key(seed), shape, jnp.uint32)


@pytest.mark.parametrize("count", [1, 2, 7, 22, 65_535, 65_536, 1_000_003, 2**31 - 1])
def test_below_equals_exact_product(count):
    random_words = np.concatenate([np.asarray(bits(0, (1000,))), [0, 1, 2**32 - 1]]).astype(np.uint32)
    expected = [int(random_word) * count >> 32 for random_word in random_words]
    np.testing.assert_array_equal(scale_bits(jnp.asarray(random_words), jnp.int32(count)), expected)


def test_subsets_are_uniform():
    """All C(6, 3) = 20 subsets equally often, by a chi-square test."""
    subsets = np.sort(
        jax.vmap(lambda random_words: sample_subset(random_words, jnp.int32(6)))(bits(1, (20_000, 3))), axis=1
    )
    assert (np.diff(subsets, axis=1) > 0).all()
    _, counts = np.unique(subsets, axis=0, return_counts=True)
    assert len(counts) == 20
    assert stats.chisquare(counts).pvalue > 1e-3


def test_first_distinct_draws_are_uniform():
    random_words = bits(2, (20_000, draws_needed(3, 6)))
    subsets = np.sort(jax.vmap(lambda draws: take_first_distinct(draws, jnp.int32(6), 3))(random_words), axis=1)
    assert (np.diff(subsets, axis=1) > 0).all()
    _, counts = np.unique(subsets, axis=0, return_counts=True)
    assert len(counts) == 20
    assert stats.chisquare(counts).pvalue > 1e-3


def test_first_distinct_keep_draw_order():
    targets = np.array([5, 2, 5, 5, 0, 2, 7, 1], np.uint64)
    random_words = jnp.asarray(((targets * 2**32) // 8 + 1).astype(np.uint32))
    np.testing.assert_array_equal(scale_bits(random_words, jnp.int32(8)), targets)
    np.testing.assert_array_equal(take_first_distinct(random_words, jnp.int32(8), 4), [5, 2, 0, 7])


@pytest.mark.parametrize(("size", "count"), [(5_000, 10_000), (10_000, 100_000), (20_000, 20_000_000)])
def test_number_of_draws_is_sufficient(size, count):
    """The required number of draws is a sum of geometric variables, with known mean and variance."""
    remaining = count - np.arange(size, dtype=float)
    mean, variance = (count / remaining).sum(), (count * (count - remaining) / remaining**2).sum()
    assert mean + 10 * np.sqrt(variance) < draws_needed(size, count) < mean + 13 * np.sqrt(variance) + 30


@pytest.mark.parametrize(("n", "m"), [(20, 20), (20, 10), (20, 1), (9000, 5000), (20_000, 5000), (3_000_000, 4097)])
def test_clients_are_sampled_without_replacement(n, m):
    sampled = np.asarray(sample_clients(bits(0, (client_bit_count(n, m),)), n, m))
    assert len(set(sampled.tolist())) == m
    assert sampled.min() >= 0
    assert sampled.max() < n


def test_clients_are_sampled_uniformly():
    sampled = jax.vmap(lambda random_words: sample_clients(random_words, 20, 5))(bits(3, (4000, 5)))
    counts = np.bincount(np.asarray(sampled).ravel(), minlength=20)
    assert stats.chisquare(counts).pvalue > 1e-3


def make_clients(strata=None):
    owner = np.repeat([0, 1, 2], [3, 8, 5])
    label = np.array([0, 0, 1] + [0] * 6 + [1] * 2 + [0] * 5)
    return ss.ClientData.from_arrays({"x": np.arange(16.0)}, client=owner, strata=None if strata is None else label)


def draw_batches(clients, batching, times):
    """Return row indices, times × clients × width, and their weights, clients × width."""
    all_clients = jnp.arange(len(clients))
    random_words = bits(5, (batching.bit_count(len(clients), times),))
    draws = batching.draw(random_words, clients.rows, all_clients, times)
    draw_for_clients = jax.vmap(lambda i, rows: batching.batch(clients.rows, i, rows, jnp.float32))
    indices, weights = jax.vmap(draw_for_clients, in_axes=(None, 0))(all_clients, draws)
    return np.asarray(indices), np.asarray(weights)[0]


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("strata", [None, "y"])
def test_rows_are_sampled_uniformly_from_client(replace, strata):
    clients = make_clients(strata)
    batching = make_batching(2, replace, clients.stratum_sizes)
    rows, _ = draw_batches(clients, batching, 6000)
    ends = np.cumsum(clients.sizes)
    for i in range(3):
        client_rows = rows[:, i]
        assert client_rows.min() >= ends[i] - clients.sizes[i]
        assert client_rows.max() < ends[i]
        if not replace and strata is None:
            assert (client_rows[:, 0] != client_rows[:, 1]).all()
    counts = np.bincount(rows[:, 1].ravel(), minlength=16)[3:11]
    shares = np.full(8, 1 / 8) if strata is None else np.r_[np.full(6, 1 / 12), np.full(2, 1 / 4)]
    assert stats.chisquare(counts, shares * counts.sum()).pvalue > 1e-3


@pytest.mark.parametrize("batch_size", [2, 5, None])
@pytest.mark.parametrize("strata", [None, "y"])
def test_weighted_means_are_unbiased(batch_size, strata):
    """Σ weight·x over many draws is the client's mean, even if a stratum is missing."""
    clients = make_clients(strata)
    batching = make_batching(batch_size, True, clients.stratum_sizes)
    times = 1 if batch_size is None else 20_000
    rows, weights = draw_batches(clients, batching, times)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    estimates = (np.asarray(clients.rows.columns["x"])[rows] * weights).sum(axis=2)
    error = estimates.std(axis=0) / np.sqrt(times)
    expected = [1.0, 6.5, 13.0]
    np.testing.assert_array_less(np.abs(estimates.mean(axis=0) - expected), 4 * error + 1e-5)


def test_batches_have_all_strata_of_client():
    clients = make_clients("y")
    batching = make_batching(5, True, clients.stratum_sizes)
    assert batching.draws == (3, 2)
    rows, weights = draw_batches(clients, batching, 500)
    label = np.array([0, 0, 1] + [0] * 6 + [1] * 2 + [0] * 5)
    assert (label[rows[:, 0]] == [0, 0, 0, 1, 1]).all()
    assert (label[rows[:, 1]] == [0, 0, 0, 1, 1]).all()
    np.testing.assert_allclose(weights[0], [2 / 9] * 3 + [1 / 6] * 2, rtol=1e-6)
    np.testing.assert_allclose(weights[2], [1 / 3] * 3 + [0] * 2, rtol=1e-6, err_msg="client 2 has no class 1")


def test_draws_are_independent_of_chunk():
    clients = make_clients()
    problem = ss.Problem(lambda w, b: w * b["x"].mean(), lambda w, b: -1.0 + 0 * w, 0.0)
    sampling = Sampling(local_steps=3, participation=0.6, batch_size=2, value_batch_size=4)
    oracle = make_gradient_oracle(problem, clients, sampling)
    key = jax.random.key(0)
    chunk_draws = jax.vmap(lambda k: oracle.draw(jax.random.fold_in(key, k)))(jnp.arange(9))
    single_draw = oracle.draw(jax.random.fold_in(key, 7))
    for bulk, single in zip(chunk_draws[:3], single_draw[:3], strict=True):
        np.testing.assert_array_equal(bulk[7], single)
    assert single_draw.report_rows.shape == (2, 4)
    assert single_draw.update_rows.shape == (3, 2, 2)


SIZES = (1, 3, 5, 8, 40)
"""Rows of five clients. Clients 0, 1 and 3 have no row of the last stratum."""


def make_unequal_clients(stratified):
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    first = np.concatenate([np.arange(size) for size in SIZES])
    label = np.where((first < 2) & np.isin(owner, [2, 4]), "late", "early")
    x = np.random.default_rng(0).normal(size=len(owner))
    clients = ss.ClientData.from_arrays({"x": x}, client=owner, strata=label if stratified else None)
    return clients, x, owner, label


def test_batch_larger_than_client_uses_each_row_once():
    """By default a client with at most as many rows as a batch uses each once with equal weight; others sample."""
    clients, _, owner, _ = make_unequal_clients(False)
    batching = make_batching(5, None, clients.stratum_sizes)
    assert batching.draws == (5,)
    rows, weights = draw_batches(clients, batching, 300)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    assert (owner[rows] == np.arange(5)[:, None]).all(), "rows must belong to their client"
    begins = np.concatenate([[0], np.cumsum(SIZES)[:-1]])
    for i, size in enumerate(SIZES[:3]):
        has_weight = weights[i] > 0
        assert has_weight.sum() == size
        np.testing.assert_allclose(weights[i][has_weight], 1 / size, rtol=1e-6)
        expected = np.broadcast_to(begins[i] + np.arange(size), (300, size))
        np.testing.assert_array_equal(np.sort(rows[:, i][:, has_weight], axis=1), expected)
    for i, size in ((3, 8), (4, 40)):
        np.testing.assert_allclose(weights[i], 1 / 5, rtol=1e-6)
        assert len(np.unique(rows[:, i])) == size, "every row must be drawn sometimes"
        assert stats.chisquare(np.bincount(rows[:, i].ravel() - begins[i], minlength=size)).pvalue > 1e-3
        assert (np.sort(rows[:, i], axis=1)[:, 1:] == np.sort(rows[:, i], axis=1)[:, :-1]).any(), (
            "draws must be with replacement"
        )


def test_batch_larger_than_stratum_uses_its_rows_once():
    """This holds in each stratum, which has the weight of its share of the client's rows."""
    clients, _, owner, label = make_unequal_clients(True)
    assert clients.stratum_sizes.tolist() == [[1, 0], [3, 0], [3, 2], [8, 0], [38, 2]]
    batching = make_batching(7, None, clients.stratum_sizes)
    assert batching.draws == (4, 3)
    rows, weights = draw_batches(clients, batching, 50)
    make_clients = np.asarray(clients.rows.columns["x"])
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)

    def check_distinct(share, count, places):
        return [share / count] * count + [0.0] * (places - count)

    np.testing.assert_allclose(weights[0], check_distinct(1, 1, 4) + [0.0] * 3, rtol=1e-6)
    np.testing.assert_allclose(weights[1], check_distinct(1, 3, 4) + [0.0] * 3, rtol=1e-6)
    np.testing.assert_allclose(weights[2], check_distinct(3 / 5, 3, 4) + check_distinct(2 / 5, 2, 3), rtol=1e-6)
    np.testing.assert_allclose(weights[3], [1 / 4] * 4 + [0.0] * 3, rtol=1e-6)
    np.testing.assert_allclose(weights[4], [38 / 40 / 4] * 4 + check_distinct(2 / 40, 2, 3), rtol=1e-6)
    _, x, _, _ = make_unequal_clients(True)
    means = (make_clients[rows] * weights).sum(axis=2)
    for i in (0, 1, 2):
        np.testing.assert_allclose(
            means[:, i], x[owner == i].mean(), rtol=1e-5, err_msg="exact, because each row is used once"
        )
    rare_rows = x[(owner == 4) & (label == "late")]
    rare_sum = (make_clients[rows[:, 4, 4:]] * weights[4, 4:]).sum(axis=1)
    np.testing.assert_allclose(
        rare_sum, rare_rows.sum() / 40, rtol=1e-5, err_msg="each row of the rare stratum is used once"
    )


@pytest.mark.parametrize(("stratified", "batch_size"), [(False, 40), (False, 99), (True, 76), (True, 99)])
def test_batch_larger_than_all_clients_uses_all_rows(stratified, batch_size):
    clients, x, owner, _ = make_unequal_clients(stratified)
    batching = make_batching(batch_size, None, clients.stratum_sizes)
    assert batching == make_batching(None, None, clients.stratum_sizes)
    assert batching.bit_count(5, 10) == 0, "nothing must be drawn"
    rows, weights = draw_batches(clients, batching, 1)
    means = (np.asarray(clients.rows.columns["x"])[rows[0]] * weights).sum(axis=1)
    np.testing.assert_allclose(means, [x[owner == i].mean() for i in range(5)], rtol=1e-5)


def test_replacement_applies_to_small_clients():
    clients, _, _, _ = make_unequal_clients(False)
    batching = make_batching(5, True, clients.stratum_sizes)
    rows, weights = draw_batches(clients, batching, 200)
    np.testing.assert_allclose(weights, 1 / 5, rtol=1e-6)
    missing = [len(np.unique(batch)) < 3 for batch in rows[:, 1]]
    assert any(missing), "five draws from three rows must sometimes miss one"
    small = make_batching(1, None, clients.stratum_sizes[1:])
    assert small == make_batching(1, True, clients.stratum_sizes[1:]), (
        "settings must be equal if all clients have more rows"
    )


def test_functions_without_weights_use_replacement():
    """Such functions would count rows of weight 0, so every batch has equally weighted rows."""
    clients, _, _, _ = make_unequal_clients(False)
    unweighted = ss.Problem(lambda w, b: w * b["x"].mean(), lambda w, b: w * b["x"].mean(), 0.0)
    sampling = Sampling(batch_size=5)
    assert make_gradient_oracle(unweighted, clients, sampling).update_batching == make_batching(
        5, True, clients.stratum_sizes
    )
    weighted = ss.Problem(
        lambda w, b: w * jnp.average(b["x"], weights=b["weight"]),
        lambda w, b: w * jnp.average(b["x"], weights=b["weight"]),
        0.0,
    )
    assert make_gradient_oracle(weighted, clients, sampling).update_batching == make_batching(
        5, None, clients.stratum_sizes
    )


@pytest.mark.parametrize("stratified", [False, True])
def test_round_with_large_batches(stratified):
    """If a batch is larger than a client's data, its report and direction use all rows, as in NumPy."""
    owner = np.repeat(np.arange(3), [1, 4, 30])
    label = np.array([0] * 4 + [1] + [0] * 20 + [1] * 10)
    x = np.random.default_rng(1).normal(size=35)
    clients = ss.ClientData.from_arrays({"x": x}, client=owner, strata=label if stratified else None)

    def square(w, batch):
        return jnp.average((w - batch["x"]) ** 2, weights=batch["weight"])

    def level(w, batch):
        return jnp.average(w * batch["x"], weights=batch["weight"]) - 1

    problem = ss.Problem(square, level, jnp.float32(0.5))
    oracle = make_gradient_oracle(problem, clients, Sampling(batch_size=8, local_steps=2))
    assert oracle.update_batching.draws is not None, "the third client must sample"
    method = ss.SoftmaxSGM(alpha=2.0, step_size=0.1, tolerance=0.1)

    @jax.jit
    def one_round(key):
        draws = oracle.draw(key)
        reports, state = oracle.report(jnp.float32(0.5), draws)
        decision = method.decide((), reports)[0]._replace(weights=jnp.array([0.25, 0.75, 0.0]))
        return reports, decision, oracle.direction(jnp.float32(0.5), draws, state, decision, True, 0.1)

    thirds = []
    for seed in range(3):
        reports, decision, direction = one_round(jax.random.key(seed))
        client_rows = [x[owner == i] for i in range(3)]
        np.testing.assert_allclose(reports.objective[:2], [((0.5 - v) ** 2).mean() for v in client_rows[:2]], rtol=1e-5)
        np.testing.assert_allclose(reports.constraint[:2, 0], [0.5 * v.mean() - 1 for v in client_rows[:2]], rtol=1e-5)
        thirds.append(float(reports.objective[2]))
        assert bool(decision.feasible)
        # Two steps of 0.1 on (w − x)²: gradients 2(w − x̄) and, after the first, 0.8 of that.
        gradients = np.array([(1 + 0.8) / 2 * 2 * (0.5 - v.mean()) for v in client_rows[:2]])
        np.testing.assert_allclose(direction, [0.25, 0.75] @ gradients, rtol=1e-5)
    assert len(set(thirds)) == 3, "the third client's batches must differ"
