"""Out-of-core rows from all sources match rows in memory, and invalid sources give clear errors."""

import jax
import numpy as np
import pytest

import softswitch as ss
from softswitch.data import streamed_data
from softswitch.data.streamed_data import DataOutline


def make_shuffled(seed=0, count=500):
    draws = np.random.default_rng(seed)
    client = draws.choice(["north", "south", "west"], count, p=[0.6, 0.3, 0.1])
    data = {
        "x": draws.normal(size=(count, 3)),
        "y": draws.integers(0, 2, count),
        "group": draws.integers(0, 3, count).astype(np.int8),
        "row": np.arange(count, dtype=np.int32),
    }
    return data, client


def all_rows(data):
    store = data.store(int(data.sizes.sum()))
    data.read(np.arange(int(data.sizes.sum())), store, 0)
    return store


def same_rows(streamed, in_memory, columns=None):
    assert streamed.names == in_memory.names
    np.testing.assert_array_equal(streamed.stratum_sizes, in_memory.stratum_sizes)
    for key, column in all_rows(streamed).items():
        expected = np.asarray(in_memory.rows.columns[key])
        assert column.dtype == expected.dtype
        np.testing.assert_array_equal(column, expected)
    assert set(streamed.columns) == set(in_memory.rows.columns)
    np.testing.assert_array_equal(streamed.offsets, in_memory.rows.offsets)


@pytest.mark.parametrize("strata", [None, "y", ("y", "group")])
def test_blocks_match_rows_in_memory(monkeypatch, strata):
    monkeypatch.setattr(streamed_data, "READ_ROWS", 50)
    data, client = make_shuffled()
    streamed = ss.StreamedData.from_arrays(data, client, strata=strata)
    in_memory = ss.ClientData.from_arrays(data, client, strata=strata)
    same_rows(streamed, in_memory)
    assert streamed.strata == in_memory.strata
    outline = DataOutline(streamed)
    assert outline.rows.row_bytes == in_memory.rows.row_bytes == streamed.row_bytes
    assert outline.rows.batch_shapes(7, np.float32) == in_memory.rows.batch_shapes(7, np.float32)


def test_memory_mapped_files_are_read_lazily(tmp_path):
    data, client = make_shuffled()
    order = np.argsort(client, kind="stable")
    for name, column in {**data, "client": client}.items():
        np.save(tmp_path / f"{name}.npy", column[order])
    paths = {name: tmp_path / f"{name}.npy" for name in data}
    in_memory = ss.ClientData.from_arrays(data, client)
    streamed = ss.StreamedData.from_arrays(paths, tmp_path / "client.npy")
    same_rows(streamed, in_memory)
    assert isinstance(streamed.source(np.arange(5))["x"].base.base, np.memmap)  # a view without a copy


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (lambda c, r: {"x": np.where(r == 3, np.nan, r)}, ValueError, r"data\['x'\] must be finite, .*client 'b'"),
        (lambda c, r: {"x": np.zeros((len(r), 1 + (c > 0).any()))}, ValueError, "'x' of client 'b' must have shape"),
        (lambda c, r: {"x": np.zeros(len(r) + (c > 0).any())}, ValueError, "'x' of client 'b' must have shape"),
        (lambda c, r: {"x": r * 1.0} | ({"z": r} if (c > 0).any() else {}), ValueError, "client 'b'.*columns"),
        (lambda c, r: {"x": r if (c == 0).all() else r + 0.5}, TypeError, "'x' of client 'b' must hold int32"),
        (lambda c, r: {"x": r + 2**40 * (c > 0)}, ValueError, "client 'b'.*must fit in int32"),
        (lambda c, r: {"x": 1 / 0 if c[0] else r * 1.0}, RuntimeError, "client 'b'.*ZeroDivisionError"),
        (lambda c, r: [r] if c[0] else {"x": r}, TypeError, "client 'b': rows must come as a dict"),
    ],
)
def test_invalid_source_names_client_and_column(source, error, message):
    if jax.config.jax_enable_x64:
        pytest.skip("integers are wide")
    streamed = ss.StreamedData.from_function(source, [3, 7], names=["a", "b"])
    store = streamed.store(10)
    streamed.read(np.arange(3), store, 0)
    with pytest.raises(error, match=message):
        streamed.read(np.arange(3, 10), store, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ss.StreamedData.from_function(lambda c, r: {"x": r}, [3, 0]), ValueError, "client 1 has none"),
        (lambda: ss.StreamedData.from_function(lambda c, r: {"x": r}, [2**30, 2**30]), ValueError, "2\\*\\*31"),
        (lambda: ss.StreamedData.from_function(lambda c, r: {"weight": r}, [3]), ValueError, "'weight'"),
        (lambda: ss.StreamedData.from_function(lambda c, r: {"x": ["a"] * len(r)}, [3]), TypeError, "hold numbers"),
        (lambda: ss.StreamedData.from_function(lambda c, r: {"x": r}, [3], names=["a", "b"]), ValueError, "names"),
        (
            lambda: ss.StreamedData.from_function(lambda c, r: {"x": r}, [3], max_evaluation_rows=0),
            ValueError,
            "max_evaluation_rows",
        ),
        (
            lambda: ss.StreamedData.from_function(lambda c, r: {"x": [0.0, 0.0]}, [3]),
            ValueError,
            "one row of .x. .* but returns 2",
        ),
        (lambda: ss.StreamedData.from_arrays({"x": np.zeros(4)}, np.zeros(3)), ValueError, "one label for each"),
        (lambda: ss.StreamedData.from_arrays({"x": np.zeros(4)}, [0, 0, 1, np.nan]), ValueError, "NaN"),
        (lambda: ss.StreamedData.from_arrays({"x": np.zeros(4)}, [0] * 4, strata="z"), ValueError, "strata must name"),
    ],
)
def test_invalid_arguments_are_rejected(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_evaluation_rows_are_spread_and_fixed():
    sizes = np.array([1000, 5, 40])
    streamed = ss.StreamedData.from_function(lambda c, r: {"x": r * 1.0}, sizes, max_evaluation_rows=20)
    assert streamed.evaluation_sizes.tolist() == [20, 5, 20]
    rows = streamed.evaluation_rows(np.arange(3))
    client_rows = [rows[:20], rows[20:25] - 1000, rows[25:] - 1005]
    np.testing.assert_array_equal(client_rows[0] // 50, np.arange(20))  # one in every block of 50
    assert len(set(client_rows[0] % 50)) > 10
    np.testing.assert_array_equal(client_rows[1], np.arange(5))
    np.testing.assert_array_equal(client_rows[2] // 2, np.arange(20))
    np.testing.assert_array_equal(rows, streamed.evaluation_rows(np.arange(3)))
    all_evaluated = ss.StreamedData.from_function(lambda c, r: {"x": r * 1.0}, sizes)
    np.testing.assert_array_equal(
        all_evaluated.evaluation_rows(np.array([2, 1])), [*range(1005, 1045), *range(1000, 1005)]
    )


def test_fingerprint_depends_on_data():
    def fingerprint_of(shift, sizes=(30, 40), names="ab"):
        return ss.StreamedData.from_function(lambda c, r: {"x": r + shift}, sizes, names=list(names)).fingerprint()

    assert fingerprint_of(0.0) == fingerprint_of(0.0)
    assert (
        len({fingerprint_of(0.0), fingerprint_of(1.0), fingerprint_of(0.0, (40, 30)), fingerprint_of(0.0, names="ac")})
        == 4
    )
