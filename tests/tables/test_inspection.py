"""Column inspection, proposed roles of columns, and columns that leak the label."""

import numpy as np
import pandas as pd
import pytest

from softswitch.tables.inspection import (
    category_columns,
    clear_choice,
    client_candidates,
    infer_label_type,
    inspect_column,
    label_association,
    label_candidates,
    leakage_remarks,
    non_numeric_cells,
    parse_value,
    positive_class,
    reasons_to_ignore,
    remarks,
    split_name,
    unit_columns,
    unit_words,
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
        (DRAWS.integers(1, 9, ROWS), "admission_type_id", "category code", None),
        (DRAWS.integers(1, 22, ROWS).astype(float), "discharge_disposition_id", "category code", None),
        (DRAWS.integers(0, 120, ROWS), "disposition_code", "whole number", None),
        (DRAWS.integers(0, 22, ROWS), "patient_id", "identifier", "named as an identifier, with 22 values"),
        (DRAWS.integers(0, 22, ROWS), "id", "identifier", "named as an identifier, with 22 values"),
        (DRAWS.integers(0, 8, ROWS), "store_id", "category code", None),
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
    ("name", "words"),
    [
        ("hospitalid", ["hospital", "id"]),
        ("hospitals121", ["hospital"]),
        ("region16", ["region"]),
        ("admission_type_id", ["admission", "type", "id"]),
        ("covid", ["covid"]),
        ("x1", ["x1"]),
    ],
)
def test_unit_words(name, words):
    assert unit_words(name) == words


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


def test_client_and_its_code_are_one_candidate():
    table = hospitals()
    for name in ("hospital_id", "hospitalid"):
        table[name] = table["hospital"].map({"north": 11, "south": 12, "west": 19})
    assert roles(table) == ("outcome", "hospital")
    assert roles(table.drop(columns="hospital"))[1] == "hospital_id"


def test_ambiguous_roles_are_not_guessed():
    table = hospitals()
    assert roles(table.rename(columns={"hospital": "shade"})) == ("outcome", None)
    assert roles(table.assign(clinic=table["hospital"]))[1] is None
    unnamed = table.rename(columns={"outcome": "a"}).assign(b=DRAWS.choice([0, 1], len(table)), c=table["age"])
    assert roles(unnamed)[0] is None
    assert roles(table.rename(columns={"colour": "device_protection"}))[1] == "hospital"


def reasons(table):
    summaries = [inspect_column(table[name]) for name in table]
    units = unit_columns(table, summaries, "outcome", "hospital")
    return reasons_to_ignore(summaries, units, "outcome", "hospital")


def test_label_copies_are_flagged():
    """Copies as words, numbers, missing values or bins are flagged, but not merely predictive columns."""
    table = hospitals()
    late = (table["outcome"] == "late").to_numpy()
    noise = DRAWS.normal(size=len(table))
    table["code"] = np.where(late, "L", DRAWS.choice(["P", "Q"], len(table)))
    table["delay"] = np.where(late, 30, 0) + np.abs(noise)
    table["reason"] = np.where(late, noise, np.nan)
    table["middle"] = np.where(late, 0, np.sign(noise) * 9) + noise
    table["helps"] = 2.5 * late + noise
    table["date"] = np.where(late, "2014-01-01", "2013-01-01")
    assert set(reasons(table)) == {"id"}
    names = [name for name in table if name not in ("outcome", "hospital", "id")]
    flagged = leakage_remarks(table, names, "outcome", "binary")
    assert set(flagged) == {"code", "delay", "reason", "middle", "date"}
    assert flagged["code"] == "predicts the label almost alone (AUC 1.000)"
    noisy_copy = pd.Series(np.where(DRAWS.random(len(table)) < 0.004, ~late, late))
    assert label_association(noisy_copy, table["outcome"], "binary") > 0.98
    words = pd.Series([f"w{i}" for i in DRAWS.integers(0, 500, len(table))])
    assert label_association(words, table["outcome"], "binary") < 0.7  # fitted and evaluated on different rows
    assert label_association(table["helps"], table["outcome"], "binary") < 0.98


def trial():
    """Return a table of 12 hospitals in 4 regions with codes and features of the hospitals."""
    rows = 1200
    code = np.arange(rows) % 12
    return pd.DataFrame(
        {
            "hospital": np.array([f"clinic {i}" for i in range(12)])[code],
            "hospitalid": code * 7 + 3,
            "hospitals12": code,
            "number": code + 1,
            "name": np.array([f"St. {i}" for i in range(12)])[code],
            "region4": code % 4,
            "beds": np.array([120, 80, 400, 95, 310, 120, 60, 75, 900, 230, 80, 150])[code],
            "staff": code * 10.5,
            "teaching": code % 2,
            "hospital_type": code % 3 + 1,
            "setting": np.array(["city", "town", "village"])[code % 3],
            "ward9": code * 3 + DRAWS.integers(0, 3, rows),
            "admission_type_id": DRAWS.integers(1, 9, rows),
            "age": DRAWS.integers(20, 90, rows),
            "stage": 1,
            "rare": (np.arange(rows) < 4).astype(int),
            "outcome": DRAWS.choice([0, 1], rows),
        }
    )


def test_codes_of_clients_are_ignored():
    table = trial()
    summaries = [inspect_column(table[name]) for name in table]
    units = unit_columns(table, summaries, "outcome", "hospital")
    ignored = reasons_to_ignore(summaries, units, "outcome", "hospital")
    code, group = "a code of the client: the same at all", "a code of a group of clients: the same at all"
    expected = {
        "hospitalid": code,
        "hospitals12": code,
        "number": code,
        "name": "a name of the client",
        "region4": group,
        "ward9": "a code of units within a client",
        "stage": "1 in every row",
    }
    assert set(ignored) == set(expected)
    assert all(ignored[name].startswith(reason) for name, reason in expected.items())
    kept = {name for name, reason in units.items() if reason is None}
    assert kept == {"beds", "staff", "teaching", "hospital_type", "setting"}


def test_a_few_wrong_cells_do_not_hide_a_code():
    table = trial()
    table.loc[:3, "region4"] = 3
    table.loc[4:9, "region4"] = None
    assert "region4" in reasons(table)
    table.loc[:99, "region4"] = 3
    assert "region4" not in reasons(table)


def test_category_columns():
    table = trial()
    summaries = [inspect_column(table[name]) for name in table]
    ignored = reasons_to_ignore(summaries, unit_columns(table, summaries, "outcome", "hospital"), "outcome", "hospital")
    unused = ["outcome", "hospital", *ignored]
    assert category_columns(table, summaries, ignored, unused) == ["hospital_type", "admission_type_id"]
    unused.remove("hospitals12")  # as with --keep
    expected = ["hospitals12", "hospital_type", "admission_type_id"]
    assert category_columns(table, summaries, ignored, unused) == expected


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
    for values in ([1, 2], [1.0, 2.0, None], ["1", "2"]):
        for text in ("2", "2.0"):
            assert str(parse_value(pd.Series(values), text, "--protected")) == "2"
    assert parse_value(pd.Series([0.5, 2.5]), "2.50", "--protected") == 2.5
    with pytest.raises(ValueError, match=r"--positive, a value of 'y', must be one of 'False', 'True', but is '1\.0'"):
        parse_value(pd.Series([True, False], name="y"), "1.0", "--positive")
    with pytest.raises(ValueError, match="--positive, a value of 'y', must be one of 'a', 'b', but is 'x'"):
        parse_value(pd.Series(["a", "b"], name="y"), "x", "--positive")
