"""Encoding of table columns as features, and lookup of columns and values."""

import numpy as np
import pandas as pd
import pytest

from softswitch.tables.features import Encoding, mark_categories
from softswitch.tables.labels import fit_binary_label
from softswitch.tables.table import find_column, match_value

TABLE = pd.DataFrame(
    {"age": [20.0, 30.0, None, 50.0], "ward": ["b", "a", "c", None], "flag": [True, False, True, True]}
)


def test_encoding_matches_hand_computation():
    encoding = Encoding.fit(TABLE, ["age", "ward", "flag"])
    assert encoding.features == ("age", "age is empty", "ward=b", "ward=c", "ward is empty", "flag=True")
    deviation = np.std([20, 30, 50])
    expected = [
        [(20 - 100 / 3) / deviation, 0, 1, 0, 0, 1],
        [(30 - 100 / 3) / deviation, 0, 0, 0, 0, 0],
        [0, 1, 0, 1, 0, 1],  # an empty number becomes the mean with an indicator
        [(50 - 100 / 3) / deviation, 0, 0, 0, 1, 1],  # an empty category is a separate level
    ]
    np.testing.assert_allclose(encoding.encode(TABLE), expected, rtol=1e-5, atol=1e-6)
    new = pd.DataFrame({"flag": ["False"], "ward": ["unheard of"], "age": ["40"], "more": [1]})
    np.testing.assert_allclose(
        encoding.encode(new), [[(40 - 100 / 3) / deviation, 0, 0, 0, 0, 0]], rtol=1e-5, atol=1e-6
    )


def test_empty_cells_absent_in_training():
    whole = TABLE.dropna()
    encoding = Encoding.fit(whole, ["age", "ward"])
    assert encoding.features == ("age", "ward=b")
    np.testing.assert_array_equal(encoding.encode(pd.DataFrame({"age": [None], "ward": [None]})), [[0, 0]])


def test_rare_categories_share_one_level():
    words = [f"w{i:03}" for i in range(250) for _ in range(7 if i < 205 else 2)]
    encoding = Encoding.fit(pd.DataFrame({"w": words}), ["w"])
    (column,) = encoding.columns
    assert column.levels == tuple(f"w{i:03}" for i in range(200))
    assert column.features[-1] == "w is another"
    encoded = encoding.encode(pd.DataFrame({"w": ["w001", "w204", "w249", "unheard of", None]}))
    np.testing.assert_array_equal(encoded[:, [0, -1]], [[1, 0], [0, 1], [0, 1], [0, 1], [0, 0]])


def test_constant_column_is_encoded_as_zero():
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [5.0, 5.0]})
    np.testing.assert_allclose(Encoding.fit(table, ["a", "b"]).encode(table), [[-1, 0], [1, 0]])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"id": [f"case {i}" for i in range(300)]},
            "'id' has 300 distinct values, more than 200, none .* data.ignore",
        ),
        ({"a": [1.0, np.inf]}, "'a' must be finite, but holds infinity"),
        ({"a": [np.nan, np.nan]}, "'a' is empty in all training rows"),
        ({"a": pd.Series([None, None], dtype=object)}, "'a' is empty in all training rows"),
        ({"a": ["x", "x"]}, "no features are left"),
    ],
)
def test_invalid_feature_columns(table, message):
    table = pd.DataFrame(table)
    with pytest.raises(ValueError, match=message):
        Encoding.fit(table, list(table.columns))


def test_incompatible_new_rows():
    encoding = Encoding.fit(TABLE, ["age", "ward"])
    with pytest.raises(ValueError, match="lacks columns of the training data: 'ward'"):
        encoding.encode(TABLE[["age"]])
    with pytest.raises(ValueError, match="column 'age' must hold numbers, as in training, but holds 'old'"):
        encoding.encode(pd.DataFrame({"age": ["old"], "ward": ["a"]}))


def test_categories_read_as_numbers():
    """Level 1 still matches if empty cells turn the column into floats, and booleans may be 0 or 1."""
    encoding = Encoding.fit(pd.DataFrame({"ward": ["1", "2", "A"], "flag": [True, False, True]}), ["ward", "flag"])
    new = pd.DataFrame({"ward": [2.0, None, 1.0], "flag": [1, 0, 1]})
    np.testing.assert_array_equal(encoding.encode(new), [[1, 0, 1], [0, 0, 0], [0, 0, 1]])
    with pytest.raises(ValueError, match=r"'ward' holds none of its values in training, 1, 2, A, but '7'"):
        encoding.encode(pd.DataFrame({"ward": [7] * 10, "flag": [1] * 10}))
    assert not encoding.encode(pd.DataFrame({"ward": [7], "flag": [0]})).any()  # a single unknown value is accepted


def test_missing_integers_and_infinity():
    encoding = Encoding.fit(pd.DataFrame({"n": pd.array([1, 3, None], dtype="Int64")}), ["n"])
    np.testing.assert_allclose(
        encoding.encode(pd.DataFrame({"n": pd.array([1, 3, None], dtype="Int64")})), [[-1, 0], [1, 0], [0, 1]]
    )
    with pytest.raises(ValueError, match=r"'n' must hold numbers, as in training, but holds .*inf"):
        encoding.encode(pd.DataFrame({"n": [np.inf]}))


def test_find_column_and_match_value():
    with pytest.raises(ValueError, match=r"data.label must name a column of the table, but is 'sex'; there are 'age'"):
        find_column(TABLE, "sex", "data.label")
    values = pd.Series([1, 0, 1], name="y")
    np.testing.assert_array_equal(match_value(values, "1", "data.positive"), [True, False, True])
    with pytest.raises(ValueError, match=r"data.positive must be .* 7 is the value of no row; values are 1, 0"):
        match_value(values, 7, "data.positive")


def test_marked_categories():
    """Codes are categories in training, and in tables where they are read as integers, floats or text."""
    table = pd.DataFrame({"code": [3.0, 7.0, 20.0, None, 7.0], "x": [1.0, 2, 3, 4, 5]})
    marked = mark_categories(table, ["code"])
    assert mark_categories(table, []).equals(table)
    encoding = Encoding.fit(marked, ["code", "x"], marked)
    assert encoding.features == ("code=3", "code=7", "code is empty", "x")
    expected = [[0, 0, 0], [0, 1, 0], [0, 0, 0], [1, 0, 0]]
    for values in ([20, 7, 99, 3], [20.0, 7.0, 99.0, 3.0], ["20", "7", "99", "3"]):
        encoded = encoding.encode(pd.DataFrame({"code": values, "x": 1.0}))
        np.testing.assert_array_equal(encoded[:, :3], expected)
    with pytest.raises(ValueError, match=r"data\.categories must name columns of the table, but 'b' is not one"):
        mark_categories(table, ["b"])
    dates = mark_categories(pd.DataFrame({"code": [20130101, 20140101] * 5}), ["code"])
    assert Encoding.fit(dates, ["code"]).columns[0].kind == "words"


@pytest.mark.parametrize("values", [[1, 2, 3], [1.0, 2.0, None], ["1", "2", "x"], ["1.0", "2.0", "x"]])
@pytest.mark.parametrize("value", [2, 2.0, "2", "2.0"])
def test_match_value(values, value):
    column = pd.Series(values, name="y")
    assert match_value(column, value, "task.protected").tolist() == [False, True, False]
    assert match_value(column.astype("category"), value, "task.protected").tolist() == [False, True, False]


def test_booleans_do_not_match_numbers_as_text():
    for values, value in (([True, False], "1"), (["True", "False"], 1), (["yes", "no"], "Yes")):
        with pytest.raises(ValueError, match="must be the value of some rows"):
            match_value(pd.Series(values, name="y"), value, "task.protected")


@pytest.mark.parametrize("positive", [2, 2.0, "2", "2.0"])
def test_positive_value(positive):
    for values in ([1, 2, 1], [1.0, 2.0, 1.0], ["1", "2", "1"]):
        label = fit_binary_label(pd.Series(values, name="y"), positive)
        assert label.positive == values[1]
