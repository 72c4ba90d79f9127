"""Draws: uniform, without replacement where asked, by strata with weights that keep means unbiased."""

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
def test_below_is_the_exact_product(count):
    words = np.concatenate([np.asarray(bits(0, (1000,))), [0, 1, 2**32 - 1]]).astype(np.uint32)
    expected = [int(word) * count >> 32 for word in words]
    np.testing.assert_array_equal(scale_bits(jnp.asarray(words), jnp.int32(count)), expected)


def test_subsets_are_uniform():
    """All C(6, 3) = 20 subsets equally often, by a chi-square test."""
    drawn = np.sort(jax.vmap(lambda words: sample_subset(words, jnp.int32(6)))(bits(1, (20_000, 3))), axis=1)
    assert (np.diff(drawn, axis=1) > 0).all()
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 20
    assert stats.chisquare(counts).pvalue > 1e-3


def test_first_distinct_draws_are_uniform_too():
    words = bits(2, (20_000, draws_needed(3, 6)))
    drawn = np.sort(jax.vmap(lambda some: take_first_distinct(some, jnp.int32(6), 3))(words), axis=1)
    assert (np.diff(drawn, axis=1) > 0).all()
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 20
    assert stats.chisquare(counts).pvalue > 1e-3


def test_first_distinct_are_the_first_in_the_order_drawn():
    wanted = np.array([5, 2, 5, 5, 0, 2, 7, 1], np.uint64)
    words = jnp.asarray(((wanted * 2**32) // 8 + 1).astype(np.uint32))
    np.testing.assert_array_equal(scale_bits(words, jnp.int32(8)), wanted)
    np.testing.assert_array_equal(take_first_distinct(words, jnp.int32(8), 4), [5, 2, 0, 7])


@pytest.mark.parametrize(("size", "count"), [(5_000, 10_000), (10_000, 100_000), (20_000, 20_000_000)])
def test_so_many_draws_are_enough_and_few_too_many(size, count):
    """How many it takes is a sum of geometric numbers: mean and variance summed one by one."""
    left = count - np.arange(size, dtype=float)
    mean, variance = (count / left).sum(), (count * (count - left) / left**2).sum()
    assert mean + 10 * np.sqrt(variance) < draws_needed(size, count) < mean + 13 * np.sqrt(variance) + 30


@pytest.mark.parametrize(("n", "m"), [(20, 20), (20, 10), (20, 1), (9000, 5000), (20_000, 5000), (3_000_000, 4097)])
def test_clients_are_drawn_without_replacement(n, m):
    chosen = np.asarray(sample_clients(bits(0, (client_bit_count(n, m),)), n, m))
    assert len(set(chosen.tolist())) == m
    assert chosen.min() >= 0
    assert chosen.max() < n


def test_every_client_is_drawn_equally_often():
    chosen = jax.vmap(lambda words: sample_clients(words, 20, 5))(bits(3, (4000, 5)))
    counts = np.bincount(np.asarray(chosen).ravel(), minlength=20)
    assert stats.chisquare(counts).pvalue > 1e-3


def data(strata=None):
    owner = np.repeat([0, 1, 2], [3, 8, 5])
    label = np.array([0, 0, 1] + [0] * 6 + [1] * 2 + [0] * 5)
    return ss.ClientData.from_arrays({"x": np.arange(16.0)}, client=owner, strata=None if strata is None else label)


def drawn(clients, how, times):
    """Row indices, times × clients × width, and their weights, clients × width."""
    everyone = jnp.arange(len(clients))
    words = bits(5, (how.bit_count(len(clients), times),))
    draws = how.draw(words, clients.rows, everyone, times)
    each = jax.vmap(lambda i, rows: how.batch(clients.rows, i, rows, jnp.float32))
    indices, weights = jax.vmap(each, in_axes=(None, 0))(everyone, draws)
    return np.asarray(indices), np.asarray(weights)[0]


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("strata", [None, "y"])
def test_rows_are_the_clients_own_and_uniform(replace, strata):
    clients = data(strata)
    how = make_batching(2, replace, clients.stratum_sizes)
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
    how = make_batching(batch_size, True, clients.stratum_sizes)
    times = 1 if batch_size is None else 20_000
    rows, weights = drawn(clients, how, times)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    estimates = (np.asarray(clients.rows.columns["x"])[rows] * weights).sum(axis=2)
    error = estimates.std(axis=0) / np.sqrt(times)
    expected = [1.0, 6.5, 13.0]
    np.testing.assert_array_less(np.abs(estimates.mean(axis=0) - expected), 4 * error + 1e-5)


def test_every_batch_has_every_stratum_its_client_has():
    clients = data("y")
    how = make_batching(5, True, clients.stratum_sizes)
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
    how = Sampling(local_steps=3, participation=0.6, batch_size=2, value_batch_size=4)
    oracle = make_gradient_oracle(problem, clients, how)
    key = jax.random.key(0)
    together = jax.vmap(lambda k: oracle.draw(jax.random.fold_in(key, k)))(jnp.arange(9))
    alone = oracle.draw(jax.random.fold_in(key, 7))
    for bulk, single in zip(together[:3], alone[:3], strict=True):
        np.testing.assert_array_equal(bulk[7], single)
    assert alone.report_rows.shape == (2, 4)
    assert alone.update_rows.shape == (3, 2, 2)


SIZES = (1, 3, 5, 8, 40)
"""Rows of five clients; of the last stratum the first two and the fourth have none."""


def many_sizes(stratified):
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    first = np.concatenate([np.arange(size) for size in SIZES])
    label = np.where((first < 2) & np.isin(owner, [2, 4]), "late", "early")
    x = np.random.default_rng(0).normal(size=len(owner))
    clients = ss.ClientData.from_arrays({"x": x}, client=owner, strata=label if stratified else None)
    return clients, x, owner, label


def test_a_batch_larger_than_a_client_takes_each_row_once():
    """Left to itself, a client with no more rows than a batch takes each once, at equal weight; others draw."""
    clients, _, owner, _ = many_sizes(False)
    how = make_batching(5, None, clients.stratum_sizes)
    assert how.draws == (5,)
    rows, weights = drawn(clients, how, 300)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    assert (owner[rows] == np.arange(5)[:, None]).all(), "each client's rows are its own"
    begins = np.concatenate([[0], np.cumsum(SIZES)[:-1]])
    for i, size in enumerate(SIZES[:3]):
        counted = weights[i] > 0
        assert counted.sum() == size
        np.testing.assert_allclose(weights[i][counted], 1 / size, rtol=1e-6)
        expected = np.broadcast_to(begins[i] + np.arange(size), (300, size))
        np.testing.assert_array_equal(np.sort(rows[:, i][:, counted], axis=1), expected)
    for i, size in ((3, 8), (4, 40)):
        np.testing.assert_allclose(weights[i], 1 / 5, rtol=1e-6)
        assert len(np.unique(rows[:, i])) == size, "every row is drawn now and then"
        assert stats.chisquare(np.bincount(rows[:, i].ravel() - begins[i], minlength=size)).pvalue > 1e-3
        assert (np.sort(rows[:, i], axis=1)[:, 1:] == np.sort(rows[:, i], axis=1)[:, :-1]).any(), "with replacement"


def test_a_batch_larger_than_a_stratum_takes_its_rows_once():
    """The same stratum by stratum, and each stratum weighs its share of the client's rows."""
    clients, _, owner, label = many_sizes(True)
    assert clients.stratum_sizes.tolist() == [[1, 0], [3, 0], [3, 2], [8, 0], [38, 2]]
    how = make_batching(7, None, clients.stratum_sizes)
    assert how.draws == (4, 3)
    rows, weights = drawn(clients, how, 50)
    data = np.asarray(clients.rows.columns["x"])
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)

    def once(share, many, places):
        return [share / many] * many + [0.0] * (places - many)

    np.testing.assert_allclose(weights[0], once(1, 1, 4) + [0.0] * 3, rtol=1e-6)
    np.testing.assert_allclose(weights[1], once(1, 3, 4) + [0.0] * 3, rtol=1e-6)
    np.testing.assert_allclose(weights[2], once(3 / 5, 3, 4) + once(2 / 5, 2, 3), rtol=1e-6)
    np.testing.assert_allclose(weights[3], [1 / 4] * 4 + [0.0] * 3, rtol=1e-6)
    np.testing.assert_allclose(weights[4], [38 / 40 / 4] * 4 + once(2 / 40, 2, 3), rtol=1e-6)
    _, x, _, _ = many_sizes(True)
    means = (data[rows] * weights).sum(axis=2)
    for i in (0, 1, 2):
        np.testing.assert_allclose(means[:, i], x[owner == i].mean(), rtol=1e-5, err_msg="exact: each row counts once")
    late = x[(owner == 4) & (label == "late")]
    part = (data[rows[:, 4, 4:]] * weights[4, 4:]).sum(axis=1)
    np.testing.assert_allclose(part, late.sum() / 40, rtol=1e-5, err_msg="of the rare stratum each row, once")


@pytest.mark.parametrize(("stratified", "batch_size"), [(False, 40), (False, 99), (True, 76), (True, 99)])
def test_a_batch_as_large_as_every_client_is_all_of_its_rows(stratified, batch_size):
    clients, x, owner, _ = many_sizes(stratified)
    how = make_batching(batch_size, None, clients.stratum_sizes)
    assert how == make_batching(None, None, clients.stratum_sizes)
    assert how.bit_count(5, 10) == 0, "nothing is drawn"
    rows, weights = drawn(clients, how, 1)
    means = (np.asarray(clients.rows.columns["x"])[rows[0]] * weights).sum(axis=1)
    np.testing.assert_allclose(means, [x[owner == i].mean() for i in range(5)], rtol=1e-5)


def test_asked_to_draw_with_replacement_it_does_so_also_from_few_rows():
    clients, _, _, _ = many_sizes(False)
    how = make_batching(5, True, clients.stratum_sizes)
    rows, weights = drawn(clients, how, 200)
    np.testing.assert_allclose(weights, 1 / 5, rtol=1e-6)
    missing = [len(np.unique(batch)) < 3 for batch in rows[:, 1]]
    assert any(missing), "of three rows five draws leave one out now and then"
    small = make_batching(1, None, clients.stratum_sizes[1:])
    assert small == make_batching(1, True, clients.stratum_sizes[1:]), "where all have more rows, nothing is different"


def test_functions_that_ignore_weights_draw_with_replacement():
    """Rows at weight 0 would count for them: they are given as many rows as a batch has, each at the same weight."""
    clients, _, _, _ = many_sizes(False)
    ignoring = ss.Problem(lambda w, b: w * b["x"].mean(), lambda w, b: w * b["x"].mean(), 0.0)
    how = Sampling(batch_size=5)
    assert make_gradient_oracle(ignoring, clients, how).update_batching == make_batching(5, True, clients.stratum_sizes)
    heeding = ss.Problem(
        lambda w, b: w * jnp.average(b["x"], weights=b["weight"]),
        lambda w, b: w * jnp.average(b["x"], weights=b["weight"]),
        0.0,
    )
    assert make_gradient_oracle(heeding, clients, how).update_batching == make_batching(5, None, clients.stratum_sizes)


@pytest.mark.parametrize("stratified", [False, True])
def test_a_round_of_large_batches_by_hand(stratified):
    """Reports and directions of clients whose batch is larger than their data: of all their rows, in NumPy."""
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
    assert oracle.update_batching.draws is not None, "the third client draws"
    method = ss.SoftmaxSGM(alpha=2.0, step_size=0.1, tolerance=0.1)

    @jax.jit
    def one_round(key):
        draws = oracle.draw(key)
        reports, kept = oracle.report(jnp.float32(0.5), draws)
        decision = method.decide((), reports)[0]._replace(weights=jnp.array([0.25, 0.75, 0.0]))
        return reports, decision, oracle.direction(jnp.float32(0.5), draws, kept, decision, True, 0.1)

    thirds = []
    for seed in range(3):
        reports, decision, direction = one_round(jax.random.key(seed))
        own = [x[owner == i] for i in range(3)]
        np.testing.assert_allclose(reports.objective[:2], [((0.5 - v) ** 2).mean() for v in own[:2]], rtol=1e-5)
        np.testing.assert_allclose(reports.constraint[:2, 0], [0.5 * v.mean() - 1 for v in own[:2]], rtol=1e-5)
        thirds.append(float(reports.objective[2]))
        assert bool(decision.feasible)
        # Two steps of 0.1 on (w − x)²: gradients 2(w − x̄) and, after the first, 0.8 of that.
        gradients = np.array([(1 + 0.8) / 2 * 2 * (0.5 - v.mean()) for v in own[:2]])
        np.testing.assert_allclose(direction, [0.25, 0.75] @ gradients, rtol=1e-5)
    assert len(set(thirds)) == 3, "the third client's batches differ"
