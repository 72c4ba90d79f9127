"""``softswitch init`` looks at the table: what it proposes, what it refuses."""

import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from softswitch.cli import app
from softswitch.tables import training
from softswitch.tables.labels import BinaryLabel
from softswitch.tables.settings import read_config
from softswitch.tables.table import read_table


def invoke(*words, code=0, answers=None):
    done = CliRunner().invoke(app, [str(word) for word in words], input=answers)
    assert done.exit_code == code, done.output
    return re.sub(r"[\s│╭╮╰╯─]+", " ", done.output)


def shipments(rows=400):
    """An identifier, a date, empty cells, a copy of the label, words among numbers, rows without a label."""
    draws = np.random.default_rng(0)
    score = draws.normal(size=rows)
    late = score + draws.normal(size=rows) > 1
    table = pd.DataFrame(
        {
            "order_id": range(1000, 1000 + rows),
            "depot": draws.choice(["Köln", "Wien", "Genève"], rows),
            "sent": (pd.Timestamp("2013-01-01") + pd.to_timedelta(draws.integers(0, 700, rows), "D")).strftime(
                "%d.%m.%Y"
            ),
            "score": [f"{value:.3f}".replace(".", ",") for value in score],
            "weight": [f"{value:,.2f}".translate(str.maketrans(",.", ".,")) for value in draws.uniform(1, 9999, rows)],
            "stops": np.where(draws.random(rows) < 0.03, "unknown", draws.integers(1, 40, rows).astype(str)),
            "days_late": np.where(late, draws.integers(1, 9, rows), 0),
            "delivery": np.where(late, "late", "on time"),
        }
    )
    table.loc[::10, "score"] = None
    table.loc[[3, 5], "delivery"] = None
    return table


@pytest.fixture
def folder(tmp_path, monkeypatch):
    shipments().to_csv(tmp_path / "shipments.csv", index=False, sep=";", encoding="cp1252")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_nothing_but_the_table_is_needed_where_it_is_clear(folder):
    """And train reads what was written: no line of the settings is to be edited."""
    said = invoke("init", "shipments.csv", "--label", "delivery")
    for words in (
        "shipments.csv: 400 rows, 8 columns (separator ';', decimal sign ',', cp1252)",
        "order_id identifier 400 ignored",
        "sent date or time",
        "score number 10% ",
        "Label: delivery. Client: depot.",
        "late rather than on time. To change it: --positive 'on time'",
        "- order_id: a row counter",
        "- days_late: a near copy of delivery (AUC 1.000); is it known when a prediction is needed?",
        "2 of 400 rows have no label (delivery) and are dropped",
        "sent: read with the day first",
        "cells among numbers or dates that count as empty: unknown",
        "Wrote shipments.toml. Next: softswitch train shipments.toml",
    ):
        assert words in said
    config = read_config(folder / "shipments.toml")
    data = config.data
    assert (data.file, data.label, data.client, data.positive) == ("shipments.csv", "delivery", "depot", "late")
    assert data.ignore == ("order_id", "days_late")
    assert (data.separator, data.decimal, data.encoding) == (";", ",", "cp1252")
    assert data.empty == ("unknown",)
    assert (config.task.kind, config.task.bound) == ("miss-rate", 0.05)
    ready = training.prepare_table(config, folder)
    assert ready.dropped == 2
    assert ready.label == BinaryLabel("on time", "late")
    names = ready.encoding.features
    for name in ("sent day", "sent season sin", "score", "score is empty", "weight", "stops", "stops is empty"):
        assert name in names
    assert [column.kind for column in ready.encoding.columns] == ["date", "number", "number", "number"]


def test_a_table_to_predict_may_be_written_otherwise_and_comes_back_as_it_was(folder):
    invoke("init", "shipments.csv", "--label", "delivery", "--bound", 0.9)
    text = (folder / "shipments.toml").read_text(encoding="utf-8")
    text = text.replace('rounds = "auto"', "rounds = 20").replace('aim = "certified"', 'aim = "bare"')
    (folder / "shipments.toml").write_text(text, encoding="utf-8")
    assert "2 rows dropped: their label, client or group is empty" in invoke("train", "shipments.toml")
    (run,) = (folder / "runs").iterdir()
    table = shipments()
    point = table.assign(
        sent=pd.to_datetime(table["sent"], format="%d.%m.%Y").dt.strftime("%Y-%m-%d"),
        score=table["score"].str.replace(",", "."),
        weight=table["weight"].str.translate(str.maketrans(".,", ",.")),
    )
    point.to_csv("point.csv", index=False)
    for name in ("shipments.csv", "point.csv"):
        assert "Predicted 400 rows" in invoke("predict", run, name)
    first = pd.read_csv("shipments-predicted.csv")
    second = pd.read_csv("point-predicted.csv")
    np.testing.assert_array_equal(first["delivery_probability"], second["delivery_probability"])
    assert first["delivery_probability"].std() > 0.01
    written = pd.read_csv("shipments-predicted.csv", dtype=str, keep_default_na=False)
    before = pd.read_csv("shipments.csv", sep=";", encoding="cp1252", dtype=str, keep_default_na=False)
    assert written[before.columns].equals(before)


def test_what_flags_say_holds(folder):
    invoke(
        *("init", "shipments.csv", "--label", "delivery", "--client", "depot", "--positive", "on time"),
        *("--keep", "days_late", "--ignore", "weight", "--kind", "decision-parity", "--bound", 0.2),
        *("--sensitive", "depot", "--protected", "Wien", "--out", "sub.toml"),
    )
    config = read_config(folder / "sub.toml")
    assert config.data.positive == "on time"
    assert config.data.ignore == ("weight", "order_id")
    assert (config.task.kind, config.task.bound) == ("decision-parity", 0.2)
    assert (config.task.sensitive, config.task.protected) == ("depot", "Wien")


def test_a_relative_path_is_one_from_the_folder_of_the_settings(folder):
    (folder / "sub").mkdir()
    invoke("init", "shipments.csv", "--label", "delivery", "--out", "sub/s.toml")
    assert read_config(folder / "sub" / "s.toml").data.file == "../shipments.csv"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), ["Missing argument 'TABLE'"]),
        (("none.csv",), ["'none.csv' does not exist"]),
        (("shipments.csv", "--label", "delivery", "--kind", "fair"), ["--kind must be one of miss-rate"]),
        (
            ("shipments.csv",),
            ["--label is needed (column to predict): candidates are", "delivery: ", "the only column of two"],
        ),
        (
            ("shipments.csv", "--label", "delivry", "--client", "depots", "--ignore", "a", "--keep", "b"),
            [
                "--label must name a column of the table, but is 'delivry'",
                "--client must name a column of the table, but is 'depots'",
                "--ignore must name a column of the table, but is 'a'",
                "--keep must name a column",
            ],
        ),
        (("shipments.csv", "--label", "depot", "--client", "depot"), ["must be two columns, but both are 'depot'"]),
        (
            ("shipments.csv", "--label", "depot", "--client", "stops", "--kind", "miss-rate"),
            ["must be one of error-rate, class-miss-rate, because 'depot' is multiclass (3 values"],
        ),
        (
            ("shipments.csv", "--label", "weight", "--client", "depot", "--kind", "error-rate"),
            ["must be one of mean-error, absolute-error, coverage, because 'weight' is number"],
        ),
        (
            ("shipments.csv", "--label", "delivery", "--positive", "early", "--kind", "group-loss"),
            [
                "--positive, a value of 'delivery', must be one of 'late', 'on time', but is 'early'",
                "needs --sensitive and --protected",
            ],
        ),
        (("pair.csv",), ["must have a label, a client and features", "has 2 columns: 'a', 'b'"]),
    ],
)
def test_complaints_come_all_at_once_and_nothing_is_written(folder, words, said):
    if words == ("shipments.csv",):
        shipments().rename(columns={"depot": "x"}).assign(z=1).to_csv("shipments.csv", index=False)
    (folder / "pair.csv").write_text("a,b\n1,2\n")
    told = invoke("init", *words, code=2)
    for one in said:
        assert one in told
    assert not (folder / "shipments.toml").exists()


@pytest.mark.parametrize(
    ("label", "kind", "expected", "bound"),
    [
        ("depot", None, "class-miss-rate", 0.5),
        ("weight", None, "coverage", 0.1),
        ("weight", "mean-error", "mean-error", None),
        ("weight", "absolute-error", "absolute-error", None),
        ("days_late", "mean-error", "mean-error", None),
    ],
)
def test_labels_of_any_kind(folder, label, kind, expected, bound):
    """Without a bound: one by how far the labels lie apart."""
    client = "stops" if label == "depot" else "depot"
    invoke("init", "shipments.csv", "--label", label, "--client", client, *(["--kind", kind] if kind else []))
    task = read_config(folder / "shipments.toml").task
    assert task.kind == expected
    if bound is None:
        values = read_table(folder / "shipments.csv")[label]
        spread = {"mean-error": values.std() / 10, "absolute-error": 0.75 * (values - values.median()).abs().mean()}
        assert task.bound == pytest.approx(spread[kind], rel=0.06)
    else:
        assert task.bound == bound


def test_a_file_that_is_there_is_not_written_over(folder):
    (folder / "shipments.toml").write_text("mine")
    assert "already exists" in invoke("init", "shipments.csv", "--label", "delivery", code=2)
    assert (folder / "shipments.toml").read_text() == "mine"
    invoke("init", "shipments.csv", "--label", "delivery", "--force")
    assert read_config(folder / "shipments.toml").data.label == "delivery"


def test_train_tells_all_mistakes_at_once(folder):
    invoke("init", "shipments.csv", "--label", "delivery")
    text = (folder / "shipments.toml").read_text(encoding="utf-8")
    text = text.replace('label = "delivery"', 'label = "delivry"').replace('"order_id"', '"order"')
    text = text.replace('client = "depot"', 'client = "depots"').replace("confidence = 0.95", "confidence = 2.0")
    (folder / "bad.toml").write_text(text, encoding="utf-8")
    told = invoke("train", "bad.toml", code=2)
    for words in ("but is 'delivry'", "but is 'depots'", "'order' is not one", "run.confidence must be"):
        assert words in told
    (folder / "bad.toml").write_text('[data]\nfile = "a.csv"\nlable = "x"\n[run]\nrounds = "many"\n')
    told = invoke("train", "bad.toml", code=2)
    for words in ("did you mean data.label", "data.client is missing", "run.rounds must be"):
        assert words in told
