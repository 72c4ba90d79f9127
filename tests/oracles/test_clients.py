"""ClientData: flat storage, unequal sizes, order and strata."""

import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from softswitch.data import client_data
from softswitch_experiments.tasks.partitions import split_by_column, split_dirichlet, split_iid


def ragged():
    owner = np.array(["b", "a", "c", "a", "b", "b"])
    return {"x": np.arange(12.0).reshape(6, 2), "y": np.array([0, 1, 0, 1, 1, 0])}, owner


def test_rows_are_stored_by_client_without_padding():
    data, owner = ragged()
    clients = ss.ClientData.from_arrays(data, client=owner)
    assert clients.names == ("a", "b", "c")
    assert clients.sizes.tolist() == [2, 3, 1]
    assert clients.rows.offsets.ravel().tolist() == [0, 2, 5]
    np.testing.assert_array_equal(clients.rows.columns["x"][:, 0], [2, 6, 0, 8, 10, 4])
    np.testing.assert_array_equal(clients.rows.columns["y"], [1, 1, 0, 1, 0, 0])


def test_list_and_arrays_agree():
    data, owner = ragged()
    parts = [{key: column[owner == name] for key, column in data.items()} for name in "abc"]
    from_list = ss.ClientData.from_list(parts, names=["a", "b", "c"], strata="y")
    flat = ss.ClientData.from_arrays(data, client=owner, strata="y")
    assert from_list.names == flat.names
    np.testing.assert_array_equal(from_list.stratum_sizes, flat.stratum_sizes)
    for key in data:
        np.testing.assert_array_equal(from_list.rows.columns[key], flat.rows.columns[key])


def test_strata_are_counted_and_can_be_missing():
    data, owner = ragged()
    clients = ss.ClientData.from_arrays(data, client=owner, strata="y")
    assert clients.strata == (0, 1)
    assert clients.stratum_sizes.tolist() == [[0, 2], [2, 1], [1, 0]]
    assert clients.rows.offsets.tolist() == [[0, 0], [2, 4], [5, 6]]
    column = ss.ClientData.from_arrays(data, client=owner, strata=data["y"])
    np.testing.assert_array_equal(column.stratum_sizes, clients.stratum_sizes)


def test_too_many_strata_are_rejected_before_counting():
    """10,000 clients and 10,000 values would need 10⁸ almost empty cells."""
    values = np.arange(10_000)
    with pytest.raises(ValueError, match=r"strata must have few different values, but has 10,000: with 10,000 clients"):
        ss.ClientData.from_arrays({"x": np.zeros(10_000)}, client=values, strata=values)


@pytest.mark.parametrize("labels", [[7, 2, 7, 0], [-7, -2, -7, -9], [10**9, 5, 10**9, 1], [2.5, 1.5, 2.5, 0.5]])
def test_numeric_labels_keep_order(labels):
    clients = ss.ClientData.from_arrays({"x": np.arange(4.0)}, client=labels)
    assert clients.names == tuple(sorted(set(labels)))
    order = np.argsort(labels, kind="stable")
    np.testing.assert_array_equal(clients.rows.columns["x"], order)
    assert clients.sizes.sum() == 4


def test_input_arrays_are_copied():
    data, owner = ragged()
    clients = ss.ClientData.from_arrays(data, client=np.sort(owner))
    original = np.asarray(clients.rows.columns["x"]).copy()
    data["x"][:] = -1
    np.testing.assert_array_equal(clients.rows.columns["x"], original)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, bool, np.uint8])
def test_dtypes_are_preserved(dtype):
    clients = ss.ClientData.from_arrays({"x": np.ones(5, dtype)}, client=np.zeros(5))
    assert clients.rows.columns["x"].dtype == jnp.dtype(dtype)


def test_repr():
    data, owner = ragged()
    assert repr(ss.ClientData.from_arrays(data, client=owner)).startswith(
        "ClientData(3 clients, 6 rows, 1 to 3 a client;"
    )


def test_iid_split_has_equal_sizes_and_classes():
    labels = np.random.default_rng(0).random(455) < 0.37
    client = split_iid(labels, 20, seed=1)
    assert set(np.bincount(client)) == {22, 23}
    assert np.ptp(np.bincount(client[labels])) <= 1
    assert (client != split_iid(labels, 20, seed=2)).any()
    np.testing.assert_array_equal(client, split_iid(labels, 20, seed=1))


def test_dirichlet_split_is_skewed_and_respects_minimum():
    labels = np.repeat([0, 1], 500)
    skewed = split_dirichlet(labels, 10, concentration=0.3, min_rows=5, seed=0)
    even = split_dirichlet(labels, 10, concentration=1e4, seed=0)
    assert np.bincount(skewed, minlength=10).min() >= 5

    def spread(client):
        return np.ptp([labels[client == i].mean() for i in range(10)])

    assert spread(skewed) > 0.5
    assert spread(even) < 0.1
    with pytest.raises(ValueError, match="min_rows = 200"):
        split_dirichlet(labels, 10, min_rows=200)


def test_split_by_column_gathers_rare_values():
    column = np.array(["nurse"] * 5 + ["clerk"] * 4 + ["pilot", "diver"])
    np.testing.assert_array_equal(split_by_column(column), column)
    assert np.unique(split_by_column(column, min_rows=3)).tolist() == ["clerk", "nurse", "other"]


def test_strata_by_combinations_of_columns():
    data = {"x": np.arange(8.0), "group": [0, 0, 1, 1, 0, 0, 1, 1], "y": [0, 1, 0, 1, 0, 1, 1, 1]}
    clients = ss.ClientData.from_arrays(data, client=[0] * 4 + [1] * 4, strata=("group", "y"))
    np.testing.assert_array_equal(clients.stratum_sizes, [[1, 1, 1, 1], [1, 1, 0, 2]])
    single_column = ss.ClientData.from_arrays(data, client=[0] * 4 + [1] * 4, strata=("group",))
    np.testing.assert_array_equal(single_column.stratum_sizes, [[2, 2], [2, 2]])
    with pytest.raises(ValueError, match="strata must name a column of data"):
        ss.ClientData.from_arrays(data, client=[0] * 8, strata=("group", "sex"))


def test_read_only_arrays_are_not_copied():
    x = jnp.arange(12.0).reshape(6, 2)
    clients = ss.ClientData.from_arrays({"x": x}, client=[0, 0, 1, 1, 1, 2])
    assert clients.rows.columns["x"] is x
    mixed = ss.ClientData.from_arrays({"x": x}, client=[1, 0, 1, 0, 1, 2])
    np.testing.assert_array_equal(mixed.rows.columns["x"], np.asarray(x)[[1, 3, 0, 2, 4, 5]])
    with pytest.raises(ValueError, match=r"data\['x'\] must be finite, but 1 rows hold NaN .*client 2"):
        ss.ClientData.from_arrays({"x": x.at[5, 0].set(jnp.nan)}, client=[0, 0, 1, 1, 1, 2])


@pytest.mark.parametrize("order", [[0, 0, 1, 1, 1, 2, 2], [2, 0, 1, 1, 0, 2, 1]])
def test_rows_are_read_in_blocks(monkeypatch, order):
    monkeypatch.setattr(client_data, "_BLOCK_ROWS", 3)
    x = np.arange(14, dtype=np.float32).reshape(7, 2)
    clients = ss.ClientData.from_arrays({"x": x}, client=order)
    np.testing.assert_array_equal(clients.rows.columns["x"], x[np.argsort(order, kind="stable")])
    x[:] = 0
    assert np.asarray(clients.rows.columns["x"]).any(), "the user's array must not be shared"
