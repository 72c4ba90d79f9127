"""Label types: fitting, encoding and decoding."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from softswitch.tables.labels import (
    BinaryLabel,
    MulticlassLabel,
    describe_label,
    fit_binary_label,
    fit_label,
    fit_multiclass_label,
    fit_number_label,
)

ALL = np.ones(4, bool)


def test_binary_label():
    label = fit_binary_label(pd.Series(["late", "on time", "late", "late"]), "late")
    assert label == BinaryLabel("on time", "late")
    np.testing.assert_array_equal(label.encode(pd.Series(["late", "on time"])), [1, 0])
    scores = jnp.array([[0.1], [0.0], [-3.0]])
    assert label.decode(scores).tolist() == ["late", "on time", "on time"]
    probabilities = label.probabilities(scores)["probability_of_late"]
    np.testing.assert_allclose(probabilities, [0.525, 0.5, 0.0474], atol=1e-3)
    assert "positive: 'late', 75.0%" in describe_label(label, np.array([1, 0, 1, 1]))


def test_multiclass_label():
    label = fit_multiclass_label(pd.Series([3, 1, 2, 3]), np.array([True, True, False, True]))
    assert label == MulticlassLabel((1, 2, 3), (1 / 3, 0.0, 2 / 3))
    np.testing.assert_array_equal(label.encode(pd.Series(["2", "3"])), [1, 2])  # text files do not store types
    scores = jnp.array([[0.0, 1.0, 0.5], [2.0, 1.0, 0.0]])
    assert label.decode(scores).tolist() == [2, 1]
    assert list(label.probabilities(scores)) == ["probability_1", "probability_2", "probability_3"]
    assert sum(chances[0] for chances in label.probabilities(scores).values()) == pytest.approx(1)
    assert np.isfinite(label.constant([{"w": jnp.zeros((1, 3)), "b": jnp.zeros(3)}], 1.0)[0]["b"]).all()


def test_number_label():
    label = fit_number_label(pd.Series([0.0, 10.0, 20.0, 1000.0]), np.array([True, True, True, False]))
    assert label.mean == 10
    assert label.scale == pytest.approx(np.std([0, 10, 20]))
    np.testing.assert_allclose(label.decode(jnp.asarray(label.encode([5.0, 17.0]))[:, None]), [5.0, 17.0], rtol=1e-5)
    within = fit_number_label(pd.Series([0.0, 10.0, 20.0, 5.0]), ALL, (0.0, 20.0))
    np.testing.assert_allclose(within.decode(jnp.array([[9.0], [-9.0]])), [20.0, 0.0], atol=1e-4)
    assert within.unit.max_error == pytest.approx(20.0)
    assert fit_number_label(pd.Series([7.0] * 4), ALL).scale == 1


@pytest.mark.parametrize(
    ("values", "supported", "expected"),
    [
        (["a", "b"], ("binary", "multiclass"), "binary"),
        ([0, 1, 0], ("number",), "number"),
        ([0, 1, 0], ("multiclass",), "multiclass"),
        ([1, 2, 3], ("binary", "multiclass"), "multiclass"),
    ],
)
def test_fit_label_selects_type(values, supported, expected):
    assert fit_label(pd.Series(values), np.ones(len(values), bool), supported).type == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit_binary_label(pd.Series([1, 2, 3])), "must be a column of two values, .* has 3: .*class-miss-rate"),
        (lambda: fit_binary_label(pd.Series(["a", "b"]), "c"), "data.positive must be one of the label's values"),
        (
            lambda: fit_multiclass_label(pd.Series(range(101)), np.ones(101, bool)),
            "2 to 100 classes, but .* has 101 values",
        ),
        (
            lambda: fit_number_label(pd.Series(["1", "x", "2", "3"]), ALL),
            "must be a column of numbers, but .* holds 'x'",
        ),
        (
            lambda: fit_number_label(pd.Series([1.0, 2, 3, 4]), ALL, (2.0, 1.0)),
            r"low < high, or empty, but is \[2.0, 1.0\]",
        ),
        (
            lambda: fit_number_label(pd.Series([1.0, 2, 3, 9]), ALL, (0.0, 5.0)),
            "must contain all labels, .* from 1 to 9",
        ),
        (lambda: BinaryLabel("a", "b").encode(["a", "c"]), r"the label must be one of \['a', 'b'\], but is 'c'"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
