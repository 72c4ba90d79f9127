"""Splits of every client's rows: disjoint, complete, and stratified by labels and groups."""

import numpy as np
import pytest

from softswitch.data import row_order
from softswitch.data.splits import DataSplit, split_masks


def make_rows(seed=0, count=600):
    draws = np.random.default_rng(seed)
    client = draws.choice(["a", "b", "c"], count, p=[0.6, 0.3, 0.1])
    y = (draws.random(count) < 0.3).astype(np.int32)
    return client, {"x": draws.normal(size=(count, 2)), "y": y, "row": np.arange(count, dtype=np.int32)}


def test_parts_are_disjoint_and_stratified():
    client, data = make_rows()
    parts = DataSplit.from_arrays(data, client, stratify=("y",), validation=0.2, calibration=0.3, strata="y", seed=1)
    all_indices = np.concatenate([np.asarray(part.rows.columns["row"]) for part in parts])
    np.testing.assert_array_equal(np.sort(all_indices), np.arange(len(client)))
    for name in "abc":
        # Twice the share for the smallest client, and as many rows as at a client of 200 rows for the others below it.
        share = np.clip(0.3 * 200 / (client == name).sum(), 0.3, 0.6)
        for label in (0, 1):
            size = ((client == name) & (data["y"] == label)).sum()
            held_out_count = np.floor(share * size)
            for part, expected in zip(
                (parts.calibration, parts.validation),
                (held_out_count, np.floor(0.2 / 0.7 * (size - held_out_count))),
                strict=True,
            ):
                i = part.names.index(name)
                assert part.stratum_sizes[i, label] == expected


@pytest.mark.parametrize(
    ("sizes", "share", "expected"),
    [
        ((400, 400), 0.25, (100, 100)),
        ((700, 100), 0.25, (175, 50)),
        ((700, 100), 0.6, (420, 80)),
        ((90, 60), 0.2, (18, 15)),
    ],
)
def test_small_clients_give_more_calibration_rows(sizes, share, expected):
    client = np.repeat(["a", "b"], sizes)
    calibration = split_masks(client, validation=0.15, calibration=share)[2]
    assert (calibration[client == "a"].sum(), calibration[client == "b"].sum()) == expected


def test_calibration_rows_do_not_depend_on_validation():
    """The same seed gives the same calibration rows, with and without a validation part."""
    client, data = make_rows()
    without_validation, with_validation = (
        split_masks(client, data["y"], validation=share, calibration=0.25, seed=3) for share in (0.0, 0.2)
    )
    np.testing.assert_array_equal(without_validation[2], with_validation[2])
    assert not without_validation[1].any()


@pytest.mark.parametrize(
    ("shares", "message"), [((0.5, 0.5), "sum to 1"), ((-0.1, 0.2), "validation"), ((0.1, 1.0), "calibration")]
)
def test_invalid_shares_are_rejected(shares, message):
    with pytest.raises(ValueError, match=message):
        split_masks(["a", "b"], validation=shares[0], calibration=shares[1])


def test_empty_part_is_named():
    with pytest.raises(ValueError, match="validation split"):
        DataSplit.from_arrays({"x": np.zeros(4)}, ["a", "a", "b", "b"], validation=0.1, calibration=0.5)


@pytest.mark.parametrize("dtype", [None, str])
def test_label_encoding(dtype, monkeypatch):
    labels = np.array(["b", "a", "é", "b", ""] if dtype is None else [2, "2", 0.5, "b", None], object)
    expected = row_order.unique(labels, dtype)
    monkeypatch.setattr(row_order, "MANY_LABELS", 1)
    for actual, reference in zip(row_order.unique(labels, dtype), expected, strict=True):
        np.testing.assert_array_equal(actual, reference)
