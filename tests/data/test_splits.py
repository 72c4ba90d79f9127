"""Three parts of every client's rows: apart, whole together, and alike in labels and groups."""

import numpy as np
import pytest

from softswitch.data import row_order
from softswitch.data.splits import DataSplit, split_masks


def rows(seed=0, many=600):
    draws = np.random.default_rng(seed)
    client = draws.choice(["a", "b", "c"], many, p=[0.6, 0.3, 0.1])
    y = (draws.random(many) < 0.3).astype(np.int32)
    return client, {"x": draws.normal(size=(many, 2)), "y": y, "row": np.arange(many, dtype=np.int32)}


def test_every_row_is_in_one_part_and_classes_have_their_shares():
    client, data = rows()
    parts = DataSplit.from_arrays(data, client, stratify=("y",), validation=0.2, calibration=0.3, strata="y", seed=1)
    seen = np.concatenate([np.asarray(part.rows.columns["row"]) for part in parts])
    np.testing.assert_array_equal(np.sort(seen), np.arange(len(client)))
    for name in "abc":
        for label in (0, 1):
            size = ((client == name) & (data["y"] == label)).sum()
            held = np.floor(0.3 * size)
            for part, expected in zip(
                (parts.calibration, parts.validation), (held, np.floor(0.2 / 0.7 * (size - held))), strict=True
            ):
                i = part.names.index(name)
                assert part.stratum_sizes[i, label] == expected


def test_the_rows_to_certify_with_are_those_of_a_plain_split():
    """The same seed holds out the same rows, whether or not some of the others are to choose by."""
    client, data = rows()
    plain, three = (split_masks(client, data["y"], validation=share, calibration=0.25, seed=3) for share in (0.0, 0.2))
    np.testing.assert_array_equal(plain[2], three[2])
    assert not plain[1].any()


@pytest.mark.parametrize(
    ("shares", "named"), [((0.5, 0.5), "sum to 1"), ((-0.1, 0.2), "validation"), ((0.1, 1.0), "calibration")]
)
def test_shares_that_leave_nothing_are_refused(shares, named):
    with pytest.raises(ValueError, match=named):
        split_masks(["a", "b"], validation=shares[0], calibration=shares[1])


def test_a_part_without_rows_is_named():
    with pytest.raises(ValueError, match="validation split"):
        DataSplit.from_arrays({"x": np.zeros(4)}, ["a", "a", "b", "b"], validation=0.1, calibration=0.5)


@pytest.mark.parametrize("dtype", [None, str])
def test_many_labels_are_encoded_as_few(dtype, monkeypatch):
    labels = np.array(["b", "a", "é", "b", ""] if dtype is None else [2, "2", 0.5, "b", None], object)
    expected = row_order.unique(labels, dtype)
    monkeypatch.setattr(row_order, "MANY_LABELS", 1)
    for found, known in zip(row_order.unique(labels, dtype), expected, strict=True):
        np.testing.assert_array_equal(found, known)
