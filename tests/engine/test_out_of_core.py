"""Runs on rows outside of memory: the draws and the numbers of rows in memory, bit for bit, read ahead of rounds."""

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
from softswitch.oracles.out_of_core import OutOfCoreOracle
from softswitch.theory.pilot import estimate_constants

RULE = ss.SoftmaxSGM(alpha=20, step_size=0.05, tolerance=0.2)
SMALL = 60_000
"""A buffer of few rounds: runs go in many stretches."""


def problem(objective=least_squares, constraint=two_constraints):
    return ss.Problem(objective, constraint, jnp.zeros(4, jnp.float32))


def both(buffer_bytes=SMALL, strata=None, **options):
    """The same rows, in no order, in memory and streamed."""
    data, owner = regression(**({"clients": 8, "sizes": (15, 40)} | options))
    data["kind"] = np.arange(len(owner)) % 3
    order = np.random.default_rng(1).permutation(len(owner))
    data, owner = {key: column[order] for key, column in data.items()}, owner[order]
    in_memory = ss.ClientData.from_arrays(data, owner, strata=strata)
    return in_memory, ss.StreamedData.from_arrays(data, owner, strata=strata, buffer_bytes=buffer_bytes)


def same(one, other):
    """The same history, answer and judgement, bit for bit."""
    for name in ("objective", "constraint", "criterion", "feasible", "worst_client", "absent", "full_rounds"):
        np.testing.assert_array_equal(getattr(one.history, name), getattr(other.history, name), err_msg=name)
    for name in ("value_evaluations", "gradient_evaluations"):
        np.testing.assert_array_equal(getattr(one.history, name), getattr(other.history, name), err_msg=name)
    for mine, theirs in zip(one.history.full, other.history.full, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert (one.history.held_out is None) == (other.history.held_out is None)
    for mine, theirs in zip(one.history.held_out or (), other.history.held_out or (), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(one.params, other.params)
    np.testing.assert_array_equal(one.client_objective, other.client_objective)
    np.testing.assert_array_equal(one.client_constraint, other.client_constraint)
    assert one.status == other.status
    assert [str(finding) for finding in one.diagnostics] == [str(finding) for finding in other.diagnostics]


HOW = {
    "few take part": {"batch_size": 8, "participation": 0.5, "local_steps": 2, "record_clients": True},
    "all rows of few": {"batch_size": None, "participation": 0.3},
    "report by all rows": {"batch_size": 5, "value_batch_size": None, "replace": False, "eval_every": 0},
    "all are asked by memory": {"batch_size": 8, "memory": ss.Memory(smoothing=0.5)},
    "asked by need": {"batch_size": 8, "participation": 0.5, "memory": ss.Memory()},
}


QUICK = ("few take part", "all rows of few", "asked by need")


@pytest.mark.parametrize(
    "how", [pytest.param(HOW[name], marks=[] if name in QUICK else pytest.mark.slow, id=name) for name in HOW]
)
def test_results_are_those_of_rows_in_memory(how):
    in_memory, streamed = both(strata="kind" if "local_steps" in how else None)
    asked = {"rounds": 25, "eval_every": 7} | how
    found, wanted = (flat.solve(problem(), clients, RULE, **asked) for clients in (streamed, in_memory))
    same(found, wanted)
    if "record_clients" in how:
        told, uses_regret = found.history.per_client, wanted.history.per_client
        np.testing.assert_array_equal(told.clients, uses_regret.clients)
        np.testing.assert_array_equal(told.constraint, uses_regret.constraint)


@pytest.mark.default_compiler
def test_results_are_the_same_bit_for_bit_as_users_compile():
    in_memory, streamed = both(strata="kind", clients=12)
    asked = HOW["few take part"] | {"rounds": 60}
    same(flat.solve(problem(), streamed, RULE, **asked), flat.solve(problem(), in_memory, RULE, **asked))


def test_draws_are_those_of_rows_in_memory():
    in_memory, streamed = both(strata="kind")
    how = Sampling(batch_size=9, participation=0.5, local_steps=2)
    mine, theirs = OutOfCoreOracle(problem(), streamed, how), make_gradient_oracle(problem(), in_memory, how)
    for k in range(3):
        key = jax.random.fold_in(jax.random.key(5), k)
        draws = theirs.draw(key)
        jax.tree.map(np.testing.assert_array_equal, mine.draw(key), draws)
        stretch = mine.feed.read(jax.tree.map(lambda part: part[None], mine.draw(key)), 1)
        for name in ("report_rows", "update_rows"):
            places, rows = getattr(stretch.draws, name)[0], getattr(draws, name)
            for column, whole in in_memory.rows.columns.items():
                np.testing.assert_array_equal(stretch.rows.columns[column][places], whole[rows])


def statistics(w, batch):
    return jnp.stack([(batch["weight"] * (batch["c"] @ w) ** 2).sum(), batch["weight"].sum()])


def test_pooled_constraint_and_held_out_rows(monkeypatch):
    monkeypatch.setattr(block_values, "INDEX_ROWS", 130)  # two clients' numbers at a time
    in_memory, streamed = both()
    held_out, _ = both(seed=3)
    pooled = problem(constraint=ss.PooledConstraint(statistics, lambda sums: sums[0] / sums[1] - 0.3))
    method = ss.SoftmaxSGM(alpha=20, step_size=0.05, tolerance=0.2, criterion="pooled")
    asked = {"rounds": 12, "batch_size": 8, "eval_every": 5}
    mine = flat.solve(pooled, streamed, method, held_out=held_out, **asked)
    theirs = flat.solve(pooled, in_memory, method, held_out=held_out, **asked)
    same(mine, theirs)
    assert len(mine.history.held_out.objective) == 3
    np.testing.assert_array_equal(mine.pooled_constraint, theirs.pooled_constraint)
    for one, other in zip(
        ss.evaluate(pooled, streamed, mine.params), ss.evaluate(pooled, in_memory, mine.params), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="held_out must have the clients' columns"):
        flat.solve(pooled, streamed, method, held_out=ss.ClientData.from_list([{"a": np.zeros(3)}]), **asked)


@pytest.mark.slow
@pytest.mark.default_compiler
def test_a_run_that_chooses_for_itself():
    in_memory, streamed = both()
    asked = {"rounds": 50, "batch_size": 8, "participation": 0.5}
    method = ss.Automatic(tolerance=0.2)
    same(
        flat.solve(problem(), streamed, method, **asked),
        flat.solve(problem(), in_memory, method, lower_bound=False, **asked),
    )


def test_a_run_goes_on_from_its_checkpoint_and_other_data_are_told_apart(tmp_path):
    in_memory, streamed = both()
    asked = {"batch_size": 8, "eval_every": 7}
    kept = ss.Checkpoints(tmp_path)
    flat.solve(problem(), streamed, RULE, rounds=10, checkpoints=kept, **asked)
    found = flat.solve(problem(), streamed, RULE, rounds=25, checkpoints=kept, **asked)
    same(found, flat.solve(problem(), in_memory, RULE, rounds=25, **asked))
    with pytest.raises(ValueError, match="clients"):
        flat.solve(problem(), both(seed=4)[1], RULE, rounds=25, checkpoints=kept, **asked)


def test_a_sweep_runs_one_by_one():
    in_memory, streamed = both()
    methods = {"robust": ss.SoftmaxSGM(alpha=20, step_size=0.05, tolerance=0.2, robust=1)}
    asked = {"seeds": 2, "rounds": 12, "batch_size": 8}
    mine, theirs = flat.sweep(problem(), streamed, methods, **asked), flat.sweep(problem(), in_memory, methods, **asked)
    for label in methods:
        for one, other in zip(mine[label], theirs[label], strict=True):
            same(one, other)
    with pytest.raises(ValueError, match="vectorize"):
        flat.sweep(problem(), streamed, methods, vectorize=True, **asked)


def test_a_client_that_blocks_is_looked_at_by_itself():
    in_memory, streamed = both()
    never = problem(constraint=lambda w, batch: mean((batch["h"] @ w - 1) ** 2, batch) + 1)
    asked = {"rounds": 30, "batch_size": 8}
    mine = flat.solve(never, streamed, RULE, **asked)
    same(mine, flat.solve(never, in_memory, RULE, **asked))
    assert "by itself" in str(mine.diagnostics[0]) or "alone" in str(mine.diagnostics[0])


def test_the_next_rows_are_asked_for_before_a_result_is_waited_for(monkeypatch):
    _, streamed = both()
    asked, waits = [], []
    request, evaluated = streamed_rounds._Reader.request, streamed_rounds._add_evaluation

    def note(self, first, count):
        asked.append((first, count))
        request(self, first, count)

    def look(*arguments):
        waits.append(asked[-1])
        return evaluated(*arguments)

    monkeypatch.setattr(compiled, "CHUNK_ROUNDS", 8)  # of two stretches: also over the edge of a chunk
    monkeypatch.setattr(streamed_rounds._Reader, "request", note)
    monkeypatch.setattr(streamed_rounds, "_add_evaluation", look)
    flat.solve(problem(), streamed, RULE, rounds=23, batch_size=8, eval_every=5)
    stretches = sorted(set(asked))
    assert [first for first, _ in stretches] == [0, *np.cumsum([count for _, count in stretches])[:-1]]
    assert {0, 5, 10, 15, 20} <= {first for first, _ in stretches}  # rounds that look at all rows begin a stretch
    assert len(stretches) > 5
    assert waits == [*stretches[1:], stretches[-1]]


def test_nothing_is_read_twice_for_the_rounds_of_a_run():
    _, streamed = both()
    taken, take = [], streamed.source
    streamed.source = lambda rows: taken.append(len(rows)) or take(rows)
    flat.solve(problem(), streamed, RULE, rounds=300, batch_size=8, eval_every=0)  # more than one chunk
    judged = 2 * int(streamed.sizes.sum())  # the start and the answer
    assert sum(taken) == 300 * len(streamed) * 16 + judged


def hashed(clients, rows):
    """Numbers in [-1, 1) that depend on client and row alone."""
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


def test_a_thousand_million_rows():
    seen = {"first": [], "last": []}

    def rows(clients, rows):
        seen["first"].append(int(rows.min()))
        seen["last"].append((int(clients.max()), int(rows.max())))
        return hashed(clients, rows)

    sizes = np.full(100, 10_000_000)
    sizes[0] = 1  # and one with a single row
    streamed = ss.StreamedData.from_function(rows, sizes, max_evaluation_rows=50, buffer_bytes=2**20)
    big = ss.Problem(squares, slope, jnp.zeros(2))
    flat.solve(big, streamed, RULE, rounds=1, batch_size=32, eval_every=4)  # to compile takes memory of its own
    tracemalloc.start()
    try:
        found = flat.solve(big, streamed, RULE, rounds=12, batch_size=32, eval_every=4)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * 2**20  # 12 GB of rows
    assert min(seen["first"]) >= 0
    assert max(seen["last"]) >= (99, 9_990_000)
    assert max(row for _, row in seen["last"]) < 10_000_000
    # What a round reports is what its rows say: the first round's, drawn again and computed by NumPy at w = 0.
    oracle = OutOfCoreOracle(big, streamed, Sampling(batch_size=32))
    drawn = np.asarray(oracle.draw(jax.random.fold_in(jax.random.key(0), 0)).report_rows).astype(np.int64)
    owner = np.searchsorted(np.cumsum(sizes), drawn, side="right")
    np.testing.assert_array_equal(owner, np.arange(100)[:, None] + np.zeros((1, 32), int))
    y = hashed(owner, drawn - (np.cumsum(sizes) - sizes)[owner])["y"]
    loss = (y.astype(float) + 1) ** 2  # the rows of a client with a single one are that row, 32 times
    np.testing.assert_allclose(found.history.objective[0], loss.mean(axis=1).max(), rtol=1e-5)
    assert found.history.value_evaluations[-1] == 12 * 32 * 100


def test_clients_that_are_too_large_to_evaluate_are_refused_beforehand():
    _, streamed = both()
    small = ss.StreamedData(streamed.source, streamed.stratum_sizes, buffer_bytes=2 * 16 * streamed.row_bytes)
    with pytest.raises(ValueError, match=r"rows to evaluate, .*raise buffer_bytes, .*max_evaluation_rows"):
        flat.solve(problem(), small, RULE, rounds=5, batch_size=4, replace=True, participation=0.2)


@pytest.mark.parametrize(
    ("asked", "words"),
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
        ({"batch_size": 8, "engine": "grid"}, "engine must be 'compiled'"),
    ],
)
def test_what_cannot_be_done_is_refused_beforehand(asked, words):
    _, streamed = both(buffer_bytes=20_000)
    with pytest.raises(ValueError, match=words):
        flat.solve(problem(), streamed, RULE, rounds=5, **asked)


def test_functions_that_need_rows_in_memory_say_so():
    _, streamed = both()
    found = flat.solve(problem(), streamed, RULE, rounds=2, batch_size=8, eval_every=0)
    for function in (
        lambda: with_lower_bound(found, problem(), streamed),
        lambda: make_federation(problem(), streamed),
        lambda: ss.certify(found, problem(), streamed),
        lambda: ss.add_baselines(found, problem(), streamed),
        lambda: estimate_constants(problem(), streamed),
    ):
        # The tests check annotations of some modules, with another message.
        with pytest.raises(TypeError, match=r"must be a ClientData, but is StreamedData|Expected type: .*ClientData"):
            function()


def test_an_error_in_the_reading_thread_ends_the_run_with_its_client():
    def rows(clients, rows):
        if (rows >= 60).any():
            raise OSError("the disk is gone")
        return hashed(clients, rows)

    streamed = ss.StreamedData.from_function(rows, [50, 50, 100], names=["a", "b", "c"])
    with pytest.raises(RuntimeError, match=r"client 'a'.*OSError: the disk is gone"):
        flat.solve(ss.Problem(squares, slope, jnp.zeros(2)), streamed, RULE, rounds=5, batch_size=8, eval_every=0)

    def holes(clients, rows):
        made = hashed(clients, rows)
        made["y"] = np.where((clients == 2) & (rows >= 60), np.nan, made["y"])
        return made

    streamed = ss.StreamedData.from_function(holes, [50, 50, 100], names=["a", "b", "c"])
    with pytest.raises(ValueError, match=r"data\['y'\] must be finite.*client 'c'"):
        flat.solve(ss.Problem(squares, slope, jnp.zeros(2)), streamed, RULE, rounds=5, batch_size=8, eval_every=0)


def test_nothing_is_chosen_that_does_not_fit_the_buffer():
    _, streamed = both(buffer_bytes=20_000, sizes=(60, 90))
    result = flat.solve(problem(), streamed, ss.Automatic(tolerance=0.2, method=ss.SoftmaxSGM), rounds=20)
    assert len(result.history) == 20, "batches were chosen that fit"


@pytest.mark.parametrize(
    "how",
    [
        {"batch_size": 8},
        {"batch_size": 5, "value_batch_size": None},
        {"batch_size": None, "participation": 0.3},
        {"batch_size": None},
    ],
    ids=str,
)
def test_rows_in_memory_never_exceed_the_buffer(monkeypatch, how):
    _, streamed = both(buffer_bytes=30_000)
    limit = streamed.buffer_bytes + 64 * 20  # each array is aligned to 64 bytes
    stores, peak = [], []
    make_store = streamed.store

    def live_bytes():
        alive = {id(array): array.nbytes for reference in stores if (array := reference()) is not None}
        return sum(alive.values())

    def store(rows):
        made = make_store(rows)
        stores.extend(weakref.ref(column.base if column.base is not None else column) for column in made.values())
        for _ in range(100):  # JAX's own threads release memory a moment after a result is there
            if live_bytes() <= limit:
                break
            time.sleep(0.01)
            jax.device_put(np.zeros(()))
        peak.append(live_bytes())
        return made

    monkeypatch.setattr(streamed, "store", store)
    flat.solve(problem(), streamed, RULE, rounds=40, eval_every=3, **how)
    assert len(peak) > 5
    assert max(peak) <= limit
