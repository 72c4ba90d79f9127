"""Out-of-core runs: the same draws and results as in memory, bit for bit, with rows read ahead of rounds."""

import time
import tracemalloc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from problems import least_squares, mean, regression, two_constraints
from softswitch.certification.optimality import with_lower_bound
from softswitch.engine import compiled
from softswitch.engine import out_of_core as streamed_rounds
from softswitch.oracles import out_of_core as block_values
from softswitch.oracles.gradient import make_federation, make_gradient_oracle
from softswitch.oracles.options import Sampling
from softswitch.oracles.out_of_core import OutOfCoreOracle, RowFeed
from softswitch_experiments.theory.pilot import estimate_constants

RULE = ss.SoftmaxSGM(alpha=20, step_size=0.05, tolerance=0.2)
SMALL = 60_000
"""A buffer for few rounds, so that runs are split into many stretches."""


def problem(objective=least_squares, constraint=two_constraints):
    return ss.Problem(objective, constraint, jnp.zeros(4, jnp.float32))


def make_data(buffer_bytes=SMALL, strata=None, **options):
    """The same rows in random order, in memory and streamed."""
    data, owner = regression(**({"clients": 8, "sizes": (15, 40)} | options))
    data["kind"] = np.arange(len(owner)) % 3
    order = np.random.default_rng(1).permutation(len(owner))
    data, owner = {key: column[order] for key, column in data.items()}, owner[order]
    in_memory = ss.ClientData.from_arrays(data, owner, strata=strata)
    return in_memory, ss.StreamedData.from_arrays(data, owner, strata=strata, buffer_bytes=buffer_bytes)


def assert_same(one, other):
    """Assert that history, parameters and evaluation are the same, bit for bit."""
    for name in ("objective", "constraint", "criterion", "feasible", "worst_client", "absent", "full_rounds"):
        np.testing.assert_array_equal(getattr(one.history, name), getattr(other.history, name), err_msg=name)
    for name in ("value_evaluations", "gradient_evaluations"):
        np.testing.assert_array_equal(getattr(one.history, name), getattr(other.history, name), err_msg=name)
    for a, b in zip(one.history.full, other.history.full, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (one.history.held_out is None) == (other.history.held_out is None)
    for a, b in zip(one.history.held_out or (), other.history.held_out or (), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(one.params, other.params)
    np.testing.assert_array_equal(one.client_objective, other.client_objective)
    np.testing.assert_array_equal(one.client_constraint, other.client_constraint)
    assert one.status == other.status
    assert [str(diagnostic) for diagnostic in one.diagnostics] == [str(diagnostic) for diagnostic in other.diagnostics]


SAMPLING = {
    "partial participation": {"batch_size": 8, "participation": 0.5, "local_steps": 2, "record_clients": True},
    "all rows, partial participation": {"batch_size": None, "participation": 0.3},
    "reports from all rows": {"batch_size": 5, "value_batch_size": None, "replace": False, "eval_every": 0},
    "memory, full participation": {"batch_size": 8, "memory": ss.Memory(smoothing=0.5)},
    "memory, partial participation": {"batch_size": 8, "participation": 0.5, "memory": ss.Memory()},
}


QUICK = ("partial participation", "all rows, partial participation", "memory, partial participation")


@pytest.mark.parametrize(
    "sampling",
    [pytest.param(SAMPLING[name], marks=[] if name in QUICK else pytest.mark.slow, id=name) for name in SAMPLING],
)
def test_results_match_in_memory(sampling):
    in_memory, streamed = make_data(strata="kind" if "local_steps" in sampling else None)
    options = {"rounds": 25, "eval_every": 7} | sampling
    result, expected = (flat.solve(problem(), clients, RULE, **options) for clients in (streamed, in_memory))
    assert_same(result, expected)
    if "record_clients" in sampling:
        per_client, expected_per_client = result.history.per_client, expected.history.per_client
        np.testing.assert_array_equal(per_client.clients, expected_per_client.clients)
        np.testing.assert_array_equal(per_client.constraint, expected_per_client.constraint)


@pytest.mark.default_compiler
def test_results_match_with_default_compiler():
    in_memory, streamed = make_data(strata="kind", clients=12)
    options = SAMPLING["partial participation"] | {"rounds": 60}
    assert_same(flat.solve(problem(), streamed, RULE, **options), flat.solve(problem(), in_memory, RULE, **options))


def test_draws_match_in_memory():
    in_memory, streamed = make_data(strata="kind")
    sampling = Sampling(batch_size=9, participation=0.5, local_steps=2)
    oracle, reference = (
        OutOfCoreOracle(problem(), streamed, sampling),
        make_gradient_oracle(problem(), in_memory, sampling),
    )
    for k in range(3):
        key = jax.random.fold_in(jax.random.key(5), k)
        draws = reference.draw(key)
        jax.tree.map(np.testing.assert_array_equal, oracle.draw(key), draws)
        stretch = oracle.feed.read(jax.tree.map(lambda part: part[None], oracle.draw(key)), 1)
        for name in ("report_rows", "update_rows"):
            places, rows = getattr(stretch.draws, name)[0], getattr(draws, name)
            for column, values in in_memory.rows.columns.items():
                np.testing.assert_array_equal(stretch.rows.columns[column][places], values[rows])


def statistics(w, batch):
    return jnp.stack([(batch["weight"] * (batch["c"] @ w) ** 2).sum(), batch["weight"].sum()])


def test_pooled_constraint_and_held_out_rows(monkeypatch):
    monkeypatch.setattr(block_values, "INDEX_ROWS", 130)  # indices of two clients at a time
    in_memory, streamed = make_data()
    held_out, _ = make_data(seed=3)
    pooled = problem(constraint=ss.PooledConstraint(statistics, lambda sums: sums[0] / sums[1] - 0.3))
    method = ss.SoftmaxSGM(alpha=20, step_size=0.05, tolerance=0.2, criterion="pooled")
    options = {"rounds": 12, "batch_size": 8, "eval_every": 5}
    result = flat.solve(pooled, streamed, method, held_out=held_out, **options)
    expected = flat.solve(pooled, in_memory, method, held_out=held_out, **options)
    assert_same(result, expected)
    assert len(result.history.held_out.objective) == 3
    np.testing.assert_array_equal(result.pooled_constraint, expected.pooled_constraint)
    for one, other in zip(
        ss.evaluate(pooled, streamed, result.params), ss.evaluate(pooled, in_memory, result.params), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="held_out must have the clients' columns"):
        flat.solve(pooled, streamed, method, held_out=ss.ClientData.from_list([{"a": np.zeros(3)}]), **options)


@pytest.mark.slow
@pytest.mark.default_compiler
def test_automatic_run_matches_in_memory():
    in_memory, streamed = make_data()
    options = {"rounds": 50, "batch_size": 8, "participation": 0.5}
    method = ss.Automatic(tolerance=0.2)
    assert_same(
        flat.solve(problem(), streamed, method, **options),
        flat.solve(problem(), in_memory, method, lower_bound=False, **options),
    )


def test_resume_and_rejection_of_other_data(tmp_path):
    in_memory, streamed = make_data()
    options = {"batch_size": 8, "eval_every": 7}
    checkpoints = ss.Checkpoints(tmp_path)
    flat.solve(problem(), streamed, RULE, rounds=10, checkpoints=checkpoints, **options)
    resumed = flat.solve(problem(), streamed, RULE, rounds=25, checkpoints=checkpoints, **options)
    assert_same(resumed, flat.solve(problem(), in_memory, RULE, rounds=25, **options))
    with pytest.raises(ValueError, match="clients"):
        flat.solve(problem(), make_data(seed=4)[1], RULE, rounds=25, checkpoints=checkpoints, **options)


def test_sweep_is_sequential():
    in_memory, streamed = make_data()
    methods = {"robust": ss.SoftmaxSGM(alpha=20, step_size=0.05, tolerance=0.2, robust=1)}
    options = {"seeds": 2, "rounds": 12, "batch_size": 8}
    runs, expected_runs = (
        flat.sweep(problem(), streamed, methods, **options),
        flat.sweep(problem(), in_memory, methods, **options),
    )
    for label in methods:
        for one, other in zip(runs[label], expected_runs[label], strict=True):
            assert_same(one, other)
    with pytest.raises(ValueError, match="vectorize"):
        flat.sweep(problem(), streamed, methods, vectorize=True, **options)


def test_infeasible_client_is_diagnosed():
    in_memory, streamed = make_data()
    infeasible = problem(constraint=lambda w, batch: mean((batch["h"] @ w - 1) ** 2, batch) + 1)
    options = {"rounds": 30, "batch_size": 8}
    result = flat.solve(infeasible, streamed, RULE, **options)
    assert_same(result, flat.solve(infeasible, in_memory, RULE, **options))
    assert "by itself" in str(result.diagnostics[0]) or "alone" in str(result.diagnostics[0])


def test_rows_are_prefetched(monkeypatch):
    _, streamed = make_data()
    requests, waits = [], []
    request, add_evaluation = RowFeed.request, streamed_rounds._add_evaluation

    def record_request(self, stretch, draw):
        requests.append(stretch[1:])
        request(self, stretch, draw)

    def record_wait(*arguments):
        waits.append(requests[-1])
        return add_evaluation(*arguments)

    monkeypatch.setattr(compiled, "CHUNK_ROUNDS", 8)  # two stretches per chunk, so that reads also cross chunks
    monkeypatch.setattr(RowFeed, "request", record_request)
    monkeypatch.setattr(streamed_rounds, "_add_evaluation", record_wait)
    flat.solve(problem(), streamed, RULE, rounds=23, batch_size=8, eval_every=5)
    stretches = sorted(set(requests))
    assert [first for first, _ in stretches] == [0, *np.cumsum([count for _, count in stretches])[:-1]]
    assert {0, 5, 10, 15, 20} <= {first for first, _ in stretches}  # rounds that evaluate all rows begin a stretch
    assert len(stretches) > 5
    assert waits == [*stretches[1:], stretches[-1]]


def test_rows_are_read_once():
    _, streamed = make_data()
    row_counts, source = [], streamed.source
    streamed.source = lambda rows: row_counts.append(len(rows)) or source(rows)
    flat.solve(problem(), streamed, RULE, rounds=300, batch_size=8, eval_every=0)  # more than one chunk
    evaluation_rows = 2 * int(streamed.sizes.sum())  # the start and the answer are evaluated
    assert sum(row_counts) == 300 * len(streamed) * 16 + evaluation_rows


def hashed_rows(clients, rows):
    """Pseudorandom numbers in [-1, 1) that depend only on client and row."""
    mixed = (clients.astype(np.uint64) << np.uint64(32)) + rows.astype(np.uint64)
    columns = []
    for salt in (1, 2, 3):
        bits = (mixed + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
        bits ^= bits >> np.uint64(29)
        bits *= np.uint64(0xBF58476D1CE4E5B9)
        columns.append((bits >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - 1)
    return {"x": np.stack(columns[:2], axis=1), "y": columns[2]}


def squares(w, batch):
    return mean((batch["x"] @ w - batch["y"] - 1) ** 2, batch)


def slope(w, batch):
    return mean(batch["x"] @ w, batch)


def test_billion_rows():
    seen = {"first": [], "last": []}

    def rows(clients, rows):
        seen["first"].append(int(rows.min()))
        seen["last"].append((int(clients.max()), int(rows.max())))
        return hashed_rows(clients, rows)

    sizes = np.full(100, 10_000_000)
    sizes[0] = 1  # one client with a single row
    streamed = ss.StreamedData.from_function(rows, sizes, max_evaluation_rows=50, buffer_bytes=2**20)
    big = ss.Problem(squares, slope, jnp.zeros(2))
    flat.solve(
        big, streamed, RULE, rounds=1, batch_size=32, eval_every=4
    )  # compile first, which takes additional memory
    tracemalloc.start()
    try:
        result = flat.solve(big, streamed, RULE, rounds=12, batch_size=32, eval_every=4)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * 2**20  # 12 GB of rows
    assert min(seen["first"]) >= 0
    assert max(seen["last"]) >= (99, 9_990_000)
    assert max(row for _, row in seen["last"]) < 10_000_000
    # The report of the first round equals a NumPy computation at w = 0 on the same draws.
    oracle = OutOfCoreOracle(big, streamed, Sampling(batch_size=32))
    drawn = np.asarray(oracle.draw(jax.random.fold_in(jax.random.key(0), 0)).report_rows).astype(np.int64)
    owner = np.searchsorted(np.cumsum(sizes), drawn, side="right")
    np.testing.assert_array_equal(owner, np.arange(100)[:, None] + np.zeros((1, 32), int))
    y = hashed_rows(owner, drawn - (np.cumsum(sizes) - sizes)[owner])["y"]
    loss = (y.astype(float) + 1) ** 2  # a client with a single row draws it 32 times
    np.testing.assert_allclose(result.history.objective[0], loss.mean(axis=1).max(), rtol=1e-5)
    assert result.history.value_evaluations[-1] == 12 * 32 * 100


def test_clients_larger_than_buffer_are_rejected():
    _, streamed = make_data()
    small = ss.StreamedData(streamed.source, streamed.stratum_sizes, buffer_bytes=2 * 16 * streamed.row_bytes)
    with pytest.raises(ValueError, match=r"rows to evaluate, .*raise buffer_bytes, .*max_evaluation_rows"):
        flat.solve(problem(), small, RULE, rounds=5, batch_size=4, replace=True, participation=0.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"batch_size": None},
            "all rows of every participant, as with batch_size=None.*more than half of buffer_bytes",
        ),
        (
            {"batch_size": 64, "local_steps": 40, "replace": True},
            "one round's rows take up to .* bytes, more than half of buffer_bytes",
        ),
        ({"batch_size": 8, "lower_bound": True}, "lower_bound must be False or None"),
    ],
)
def test_unsupported_settings_are_rejected(options, message):
    _, streamed = make_data(buffer_bytes=20_000)
    with pytest.raises(ValueError, match=message):
        flat.solve(problem(), streamed, RULE, rounds=5, **options)


def test_functions_that_need_in_memory_data():
    _, streamed = make_data()
    result = flat.solve(problem(), streamed, RULE, rounds=2, batch_size=8, eval_every=0)
    for function in (
        lambda: with_lower_bound(result, problem(), streamed),
        lambda: make_federation(problem(), streamed),
        lambda: ss.certify(result, problem(), streamed),
        lambda: ss.add_baselines(result, problem(), streamed),
        lambda: estimate_constants(problem(), streamed),
    ):
        # The tests check annotations of some modules, with another message.
        with pytest.raises(TypeError, match=r"must be a ClientData, but is StreamedData|Expected type: .*ClientData"):
            function()


def test_reader_error_names_client():
    def rows(clients, rows):
        if (rows >= 60).any():
            raise OSError("the disk is gone")
        return hashed_rows(clients, rows)

    streamed = ss.StreamedData.from_function(rows, [50, 50, 100], names=["a", "b", "c"])
    with pytest.raises(RuntimeError, match=r"client 'a'.*OSError: the disk is gone"):
        flat.solve(ss.Problem(squares, slope, jnp.zeros(2)), streamed, RULE, rounds=5, batch_size=8, eval_every=0)

    def rows_with_nan(clients, rows):
        columns = hashed_rows(clients, rows)
        columns["y"] = np.where((clients == 2) & (rows >= 60), np.nan, columns["y"])
        return columns

    streamed = ss.StreamedData.from_function(rows_with_nan, [50, 50, 100], names=["a", "b", "c"])
    with pytest.raises(ValueError, match=r"data\['y'\] must be finite.*client 'c'"):
        flat.solve(ss.Problem(squares, slope, jnp.zeros(2)), streamed, RULE, rounds=5, batch_size=8, eval_every=0)


def test_automatic_batches_fit_buffer():
    _, streamed = make_data(buffer_bytes=20_000, sizes=(60, 90))
    result = flat.solve(problem(), streamed, ss.Automatic(tolerance=0.2, method=ss.SoftmaxSGM), rounds=20)
    assert len(result.history) == 20, "the chosen batches fit"


@pytest.mark.parametrize(
    "sampling",
    [
        {"batch_size": 8},
        {"batch_size": 5, "value_batch_size": None},
        {"batch_size": None, "participation": 0.3},
        {"batch_size": None},
    ],
    ids=str,
)
def test_buffer_size_is_respected(monkeypatch, sampling):
    _, streamed = make_data(buffer_bytes=30_000)
    limit = streamed.buffer_bytes + 64 * 20  # each array is aligned to 64 bytes
    stores, peak = [], []
    make_store = streamed.store

    def live_bytes():
        alive = {id(array): array.nbytes for reference in stores if (array := reference()) is not None}
        return sum(alive.values())

    def store(rows):
        columns = make_store(rows)
        stores.extend(weakref.ref(column.base if column.base is not None else column) for column in columns.values())
        for _ in range(100):  # JAX's threads release memory shortly after a result is available
            if live_bytes() <= limit:
                break
            time.sleep(0.01)
            jax.device_put(np.zeros(()))
        peak.append(live_bytes())
        return columns

    monkeypatch.setattr(streamed, "store", store)
    flat.solve(problem(), streamed, RULE, rounds=40, eval_every=3, **sampling)
    assert len(peak) > 5
    assert max(peak) <= limit
