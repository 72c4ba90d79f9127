"""Column inspection, proposed roles of columns, and columns that leak the label."""

import numpy as np
import pandas as pd
import pytest

from softswitch.tables.inspection import (
    clear_choice,
    client_candidates,
    infer_label_type,
    inspect_column,
    label_association,
    label_candidates,
    non_numeric_cells,
    parse_value,
    positive_class,
    reasons_to_ignore,
    remarks,
    split_name,
)

ROWS = 400
DRAWS = np.random.default_rng(0)


def inspect_values(values, name="x"):
    return inspect_column(pd.Series(values, name=name))


@pytest.mark.parametrize(
    ("values", "name", "content", "reason"),
    [
        (DRAWS.normal(size=ROWS), "x", "number", None),
        (DRAWS.integers(0, 50, ROWS), "x", "whole number", None),
        (DRAWS.integers(0, 50, ROWS).astype(float), "x", "whole number", None),
        (DRAWS.choice(["a", "b", "c"], ROWS), "x", "category", None),
        (DRAWS.choice(["yes", "no"], ROWS), "x", "two values", None),
        (DRAWS.choice([True, False], ROWS), "x", "two values", None),
        ([f"2013-{i % 12 + 1:02}-05" for i in range(ROWS)], "x", "date or time", None),
        ([f"2013-01-05 {i % 24}:00" for i in range(ROWS)], "x", "date or time", None),
        ([f"{i % 24}:30" for i in range(ROWS)], "x", "date or time", None),
        (range(ROWS), "x", "identifier", "a row counter"),
        (DRAWS.permutation(ROWS) + 7, "x", "identifier", "a row counter"),
        ([f"case {i}" for i in range(ROWS)], "x", "identifier", "100% of its values are distinct"),
        (DRAWS.integers(0, 10**6, ROWS), "patient_id", "identifier", "named as an identifier"),
        (DRAWS.integers(0, 10**6, ROWS), "amount", "whole number", None),
        (DRAWS.integers(0, 16, ROWS), "education-num", "whole number", None),
        ([5] * ROWS, "x", "constant", "5 in every row"),
        ([None] * ROWS, "x", "empty", "empty in every row"),
        (
            [f"on day {i} the patient said that it hurt less" for i in range(ROWS)],
            "x",
            "identifier",
            "100% of its values",
        ),
    ],
)
def test_column_content(values, name, content, reason):
    column = inspect_values(values, name)
    assert column.content == content
    assert (column.reason is None) == (reason is None)
    assert reason is None or reason in column.reason


def test_date_order_remarks():
    assert "could also have the month first" in inspect_values(["05/01/2013", "06/02/2013"]).remark
    assert inspect_values(["13/01/2013", "06/02/2013"]).remark == "read with the day first"


def test_non_numeric_cells():
    """A few words among numbers or dates are returned, but not among codes, nor if there are many words."""
    numbers = [str(i / 4) for i in range(97)]
    assert non_numeric_cells(pd.Series([*numbers, "unknown", "unknown", "n. k."])) == ["unknown", "n. k."]
    assert non_numeric_cells(pd.Series(["2013-01-05"] * 30 + ["soon"])) == ["soon"]
    assert non_numeric_cells(pd.Series([*numbers, "a", "b", "c", "d"])) == []
    assert non_numeric_cells(pd.Series([*numbers[:30], *["none"] * 10])) == []
    assert non_numeric_cells(pd.Series(["12-34-5"] * 30 + ["x"])) == []
    assert non_numeric_cells(pd.Series(range(30))) == []


def test_split_name():
    assert split_name("storeId") == split_name("store_id") == split_name("Store.ID") == ["store", "id"]


@pytest.mark.parametrize(
    ("values", "label_type"),
    [
        ([0, 1, 1], "binary"),
        (["a", "b", None], "binary"),
        (["a", "b", "c"], "multiclass"),
        ([3, 4, 5, 5, 6], "multiclass"),
        ([1, 2, 1000], "number"),
        (range(11), "number"),
        ([1.5, 2.5, 3.0], "number"),
    ],
)
def test_infer_label_type(values, label_type):
    assert infer_label_type(pd.Series(values)) == label_type


@pytest.mark.parametrize(
    ("values", "positive", "guess"),
    [
        ([1, 0, 1, 1], 1, False),
        ([1.0, 0.0, None], 1, False),
        ([True, False, True], True, False),
        (["yes", "no", "yes"], "yes", False),
        (["N", "Y", "Y"], "Y", False),
        (["on time", "late", "late"], "late", False),
        (["benign", "malignant", "malignant"], "malignant", False),
        (["on time", "overdue", "overdue"], "overdue", False),
        (["ham", "spam", "spam"], "spam", False),
        (["A", "D", "D"], "A", True),
        ([2, 1, 1], 2, True),
        (["F", "M", "F"], "M", True),
        ([0, 5, 5], 5, False),
    ],
)
def test_positive_class(values, positive, guess):
    inferred = positive_class(pd.Series(values))
    assert inferred.value == positive
    assert type(inferred.value) is type(positive)
    assert ("guess" in inferred.why) == guess
    assert inferred.share == pytest.approx(pd.Series(values).dropna().eq(positive).mean())


def hospitals():
    rows = 600
    late = DRAWS.random(rows) < 0.3
    return pd.DataFrame(
        {
            "id": range(rows),
            "hospital": DRAWS.choice(["north", "south", "west"], rows),
            "age": DRAWS.normal(50, 10, rows),
            "colour": DRAWS.choice(["red", "green", "blue"], rows),
            "outcome": np.where(late, "late", "on time"),
        }
    )


def roles(table, label=None):
    survey = [inspect_column(table[name]) for name in table]
    labels = label_candidates(survey)
    return clear_choice(labels), clear_choice(client_candidates(survey, len(table), label or labels[0].name))


def test_roles_are_inferred_from_names():
    table = hospitals()
    assert roles(table) == ("outcome", "hospital")
    assert roles(table.rename(columns={"hospital": "addr_state"})) == ("outcome", "addr_state")
    assert (
        roles(table.rename(columns={"outcome": "is_late"}))[0] == "is_late"
    )  # the last column, and the only binary one


def test_ambiguous_roles_are_not_guessed():
    table = hospitals()
    assert roles(table.rename(columns={"hospital": "shade"})) == ("outcome", None)
    assert roles(table.assign(clinic=table["hospital"]))[1] is None
    unnamed = table.rename(columns={"outcome": "a"}).assign(b=DRAWS.choice([0, 1], len(table)), c=table["age"])
    assert roles(unnamed)[0] is None
    assert roles(table.rename(columns={"colour": "device_protection"}))[1] == "hospital"


def reasons(table, label_type="binary"):
    survey = [inspect_column(table[name]) for name in table]
    return reasons_to_ignore(table, survey, "outcome", "hospital", label_type)


def test_label_copies_are_detected():
    """Copies as words, numbers, missing values or bins are detected, but not merely predictive columns."""
    table = hospitals()
    late = (table["outcome"] == "late").to_numpy()
    noise = DRAWS.normal(size=len(table))
    table["code"] = np.where(late, "L", DRAWS.choice(["P", "Q"], len(table)))
    table["delay"] = np.where(late, 30, 0) + np.abs(noise)
    table["reason"] = np.where(late, noise, np.nan)
    table["middle"] = np.where(late, 0, np.sign(noise) * 9) + noise
    table["helps"] = 2.5 * late + noise
    table["date"] = np.where(late, "2014-01-01", "2013-01-01")
    ignored = reasons(table)
    assert set(ignored) == {"id", "code", "delay", "reason", "middle", "date"}
    assert "a near copy of outcome (AUC 1.000); is it known when a prediction is needed?" in ignored["code"]
    noisy_copy = pd.Series(np.where(DRAWS.random(len(table)) < 0.004, ~late, late))
    assert label_association(noisy_copy, table["outcome"], "binary") > 0.99
    words = pd.Series([f"w{i}" for i in DRAWS.integers(0, 500, len(table))])
    assert label_association(words, table["outcome"], "binary") < 0.7  # fitted and evaluated on different rows
    assert label_association(table["helps"], table["outcome"], "binary") < 0.98


def test_multiclass_and_numeric_label_copies():
    label = pd.Series(DRAWS.choice(["a", "b", "c"], ROWS, p=[0.9, 0.05, 0.05]))
    assert label_association(label.map({"a": 1, "b": 2, "c": 3}), label, "multiclass") == 1
    assert label_association(pd.Series(["x"] * ROWS), label, "multiclass") == pytest.approx(1 / 3)
    price = pd.Series(np.exp(DRAWS.normal(size=ROWS)))
    assert label_association(-np.log(price), price, "number") > 0.99
    assert label_association(price + DRAWS.normal(size=ROWS), price, "number") < 0.95


def test_table_remarks():
    table = hospitals()
    table.loc[:4, "outcome"] = None
    table.loc[5:7, "hospital"] = ["tiny", "tiny", "small"]
    table.loc[10, "hospital"] = None
    table = pd.concat([table, table.iloc[20:27]], ignore_index=True)
    survey = [inspect_column(table[name]) for name in table]
    text = "\n".join(remarks(table, survey, "outcome", "hospital", ["id"]))
    for remark in (
        "5 of 607 rows have no label (outcome) and are dropped",
        "1 of 607 rows have no client",
        "7 of 607 rows duplicate another",
    ):
        assert remark in text
    clean = hospitals()
    assert remarks(clean, [inspect_column(clean[name]) for name in clean], "outcome", "hospital", ["id"]) == []


def test_parse_value():
    assert parse_value(pd.Series([1.0, 0.0, None]), "1", "--positive") == 1
    assert parse_value(pd.Series([True, False]), "True", "--positive") is True
    with pytest.raises(ValueError, match="--positive, a value of 'y', must be one of 'a', 'b', but is 'x'"):
        parse_value(pd.Series(["a", "b"], name="y"), "x", "--positive")
