"""``softswitch init``: proposals, questions on a terminal, errors, and the settings that it writes."""

import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from softswitch.cli import app
from softswitch.cli.init import describe_proposal
from softswitch.tables import training
from softswitch.tables.bounds import BoundEstimate
from softswitch.tables.labels import BinaryLabel
from softswitch.tables.settings import read_config
from softswitch.tables.table import read_table


def invoke(*words, code=0, answers=None, **options):
    done = CliRunner().invoke(app, [str(word) for word in words], input=answers, **options)
    assert done.exit_code == code, done.output
    return re.sub(r"[\s│╭╮╰╯─]+", " ", done.output)


def shipments(rows=400):
    """Return a table with an identifier, dates, empty cells, words among numbers, a copy of the label and codes."""
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
            "depot_id": 0,
            "type_id": draws.integers(1, 6, rows).astype(float),
            "days_late": np.where(late, draws.integers(1, 9, rows), 0),
            "delivery": np.where(late, "late", "on time"),
        }
    )
    table["depot_id"] = table["depot"].map({"Köln": 17, "Wien": 5, "Genève": 30})
    table.loc[::10, "score"] = None
    table.loc[[3, 5], "delivery"] = None
    return table


@pytest.fixture
def folder(tmp_path, monkeypatch):
    shipments().to_csv(tmp_path / "shipments.csv", index=False, sep=";", encoding="cp1252")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_proposals_and_settings(folder):
    """The settings can be prepared for training without a change."""
    output = invoke("init", "shipments.csv", "--label", "delivery")
    for words in (
        "shipments.csv: 400 rows, 10 columns (separator ';', decimal sign ',', cp1252)",
        "order_id identifier 400 ignored: a row counter",
        "depot_id category code 3 ignored: a code of the client: the same at all rows of a client",
        "type_id category code 5 feature",
        "days_late whole number 9 feature: predicts the label almost alone (AUC 1.000) delivery",
        "sent date or time",
        "score number 10% ",
        "Label: delivery. Client: depot.",
        "late rather than on time. To change it: --positive 'on time'",
        "To keep an ignored column: --keep COLUMN",
        "- days_late predicts the label almost alone (AUC 1.000); is it known when a prediction is needed? To drop it: "
        "--ignore days_late",
        "2 of 400 rows have no label (delivery) and are dropped",
        "sent: read with the day first",
        "cells among numbers or dates that count as empty: unknown",
        "Wrote shipments.toml. Next: softswitch train shipments.toml",
    ):
        assert words in output
    config = read_config(folder / "shipments.toml")
    data = config.data
    assert (data.file, data.label, data.client, data.positive) == ("shipments.csv", "delivery", "depot", "late")
    assert (data.ignore, data.categories) == (("order_id", "depot_id"), ("type_id",))
    assert (data.separator, data.decimal, data.encoding) == (";", ",", "cp1252")
    assert data.empty == ("unknown",)
    assert config.task.kind == "miss-rate"
    ready = training.prepare_table(config, folder)
    assert ready.dropped == 2
    assert ready.label == BinaryLabel("on time", "late")
    names = ready.encoding.features
    for name in (
        "sent day",
        "sent season sin",
        "score",
        "score is empty",
        "weight",
        "stops",
        "stops is empty",
        "type_id=2",
    ):
        assert name in names
    assert [column.kind for column in ready.encoding.columns] == [
        "date",
        "number",
        "number",
        "number",
        "words",
        "number",
    ]


def test_predict_a_table_in_another_format(folder):
    invoke("init", "shipments.csv", "--label", "delivery", "--bound", 0.9, "--ignore", "days_late")
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
    np.testing.assert_array_equal(first["delivery_probability_of_late"], second["delivery_probability_of_late"])
    assert first["delivery_probability_of_late"].std() > 0.01
    written = pd.read_csv("shipments-predicted.csv", dtype=str, keep_default_na=False)
    before = pd.read_csv("shipments.csv", sep=";", encoding="cp1252", dtype=str, keep_default_na=False)
    assert written[before.columns].equals(before)


def test_flags(folder):
    invoke(
        *("init", "shipments.csv", "--label", "delivery", "--client", "depot", "--positive", "on time"),
        *("--keep", "depot_id", "--ignore", "weight", "--kind", "decision-parity", "--bound", 0.2),
        *("--category", "stops"),
        *("--sensitive", "depot", "--protected", "Wien", "--out", "sub.toml"),
    )
    config = read_config(folder / "sub.toml")
    assert config.data.positive == "on time"
    assert config.data.ignore == ("weight", "order_id")
    assert config.data.categories == ("depot_id", "type_id", "stops")
    assert (config.task.kind, config.task.bound) == ("decision-parity", 0.2)
    assert (config.task.sensitive, config.task.protected) == ("depot", "Wien")


def test_file_is_relative_to_the_settings(folder):
    (folder / "sub").mkdir()
    invoke("init", "shipments.csv", "--label", "delivery", "--out", "sub/s.toml")
    assert read_config(folder / "sub" / "s.toml").data.file == "../shipments.csv"


@pytest.mark.parametrize(
    ("words", "messages"),
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
def test_errors_are_listed_and_nothing_is_written(folder, words, messages):
    if words == ("shipments.csv",):
        shipments().rename(columns={"depot": "x"}).assign(z=1).to_csv("shipments.csv", index=False)
    (folder / "pair.csv").write_text("a,b\n1,2\n")
    output = invoke("init", *words, code=2)
    for message in messages:
        assert message in output
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
def test_default_kinds_and_bounds(folder, label, kind, expected, bound):
    """The default bound of an error depends on the spread of the label."""
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


def test_existing_file_is_kept(folder):
    (folder / "shipments.toml").write_text("mine")
    assert "already exists" in invoke("init", "shipments.csv", "--label", "delivery", code=2)
    assert (folder / "shipments.toml").read_text() == "mine"
    invoke("init", "shipments.csv", "--label", "delivery", "--force")
    assert read_config(folder / "shipments.toml").data.label == "delivery"


def test_train_lists_all_wrong_settings(folder):
    invoke("init", "shipments.csv", "--label", "delivery")
    text = (folder / "shipments.toml").read_text(encoding="utf-8")
    text = text.replace('label = "delivery"', 'label = "delivry"').replace('"order_id"', '"order"')
    text = text.replace('client = "depot"', 'client = "depots"').replace("confidence = 0.95", "confidence = 2.0")
    (folder / "bad.toml").write_text(text, encoding="utf-8")
    output = invoke("train", "bad.toml", code=2)
    for words in ("but is 'delivry'", "but is 'depots'", "'order' is not one", "run.confidence must be"):
        assert words in output
    (folder / "bad.toml").write_text('[data]\nfile = "a.csv"\nlable = "x"\n[run]\nrounds = "many"\n')
    output = invoke("train", "bad.toml", code=2)
    for words in ("did you mean data.label", "data.client is missing", "run.rounds must be"):
        assert words in output


@pytest.mark.parametrize("width", [80, 120])
def test_overview_fits_the_terminal(folder, width):
    command = ["init", "shipments.csv", "--label", "delivery", "--bound", "0.3"]
    lines = CliRunner().invoke(app, command, env={"COLUMNS": str(width)}).output.splitlines()
    assert max(map(len, lines)) <= width
    overview = lines[next(i for i, line in enumerate(lines) if line.startswith("column")) :]
    named = [line.split()[0] for line in overview if line and not line.startswith(" ")]
    assert named[1 : 1 + len(shipments().columns)] == list(shipments().columns)


def test_two_and_two_point_zero_are_the_same_value(folder):
    table = shipments().assign(delivery=lambda table: np.where(table["delivery"] == "late", 2.0, 1.0))
    table["type_id"] = table["type_id"].fillna(0).astype(int) % 2 + 1
    table.to_csv("numbers.csv", index=False)
    roles = ("--label", "delivery", "--client", "depot", "--kind", "decision-parity", "--bound", 0.2)
    for positive, protected in (("2", "2"), ("2.0", "2.0")):
        values = ("--positive", positive, "--sensitive", "type_id", "--protected", protected)
        invoke("init", "numbers.csv", *roles, *values, "--force")
        config = read_config(folder / "numbers.toml")
        assert (config.data.positive, config.task.protected) == (2, 2)
    text = (folder / "numbers.toml").read_text(encoding="utf-8")
    prepared = training.prepare_table(config, folder)
    text = text.replace("positive = 2", 'positive = "2.0"').replace("protected = 2", 'protected = "2.0"')
    (folder / "numbers.toml").write_text(text, encoding="utf-8")
    same = training.prepare_table(read_config(folder / "numbers.toml"), folder)
    for name in ("y", "group"):
        np.testing.assert_array_equal(prepared.train.rows.columns[name], same.train.rows.columns[name])


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr("softswitch.cli.init.is_interactive", lambda: True)


def unclear():
    """Return a table whose label, client and positive class are not clear."""
    draws = np.random.default_rng(1)
    risk = draws.normal(size=900)
    return pd.DataFrame(
        {
            "risk": risk,
            "place": draws.choice(["x", "y", "z"], 900),
            "shade": draws.choice(["p", "q", "r"], 900),
            "form": np.where(risk + draws.normal(size=900) > 0.5, "A", "B"),
            "size": draws.choice(["large", "small"], 900),
        }
    )


def test_questions_on_a_terminal(folder, terminal):
    unclear().to_csv("unclear.csv", index=False)
    output = invoke("init", "unclear.csv", answers="colour\nform\nplace\n\n\n30%\n")
    for words in (
        "The label (column to predict) is not clear. Candidates:",
        "Error: label must name a column of the table, but is 'colour'",
        "The client (column that identifies the client) is not clear. Candidates:",
        "Positive class, 'A'",
        "Kind of constraint (miss-rate, ",
        "bound certifiable at false alarms, worst client mean client",
        "Bound [",
    ):
        assert words in output
    config = read_config(folder / "unclear.toml")
    assert (config.data.label, config.data.client, config.data.positive) == ("form", "place", "A")
    assert (config.task.kind, config.task.bound) == ("miss-rate", 0.3)


def test_only_what_is_not_clear_is_asked(folder, terminal):
    flags = ("--label", "delivery", "--kind", "miss-rate", "--bound", 0.4)
    output = invoke("init", "shipments.csv", *flags, answers="\n\n\n")
    assert "Positive class" not in output
    assert "not clear" not in output
    assert read_config(folder / "shipments.toml").task.bound == 0.4
    output = invoke("init", "shipments.csv", *flags[:4], "--force", answers="0\n120%\n0.35\n")
    assert output.count("Error: the bound must be a finite number and > 0 and < 1") == 2
    assert read_config(folder / "shipments.toml").task.bound == 0.35


def test_no_questions_with_yes_or_on_a_pipe(folder, monkeypatch):
    unclear().to_csv("unclear.csv", index=False)
    assert "--label is needed" in invoke("init", "unclear.csv", code=2)
    invoke("init", "shipments.csv", "--label", "delivery", "--out", "pipe.toml")
    monkeypatch.setattr("softswitch.cli.init.is_interactive", lambda: True)
    assert "--label is needed" in invoke("init", "unclear.csv", "--yes", code=2)
    invoke("init", "shipments.csv", "--label", "delivery", "--yes", "--out", "yes.toml")
    assert (folder / "yes.toml").read_text() == (folder / "pipe.toml").read_text()


def test_proposed_bound(folder):
    output = invoke("init", "shipments.csv", "--label", "delivery", "--ignore", "days_late")
    assert "5% 0 of 3 clients unknown unknown" in output
    assert "30% 2 of 3 clients 59%" in output
    assert "Proposed bound: 50%, the smallest useful one that all clients can certify." in output
    assert read_config(folder / "shipments.toml").task.bound == 0.5


def test_no_useful_bound(folder):
    table = shipments()
    table["score"] = table["days_late"] = 1
    table.to_csv("useless.csv", index=False)
    output = invoke("init", "useless.csv", "--label", "delivery")
    assert "No bound is both certifiable and useful" in output
    assert read_config(folder / "useless.toml").task.bound == 0.5
    table.iloc[:24].to_csv("small.csv", index=False)
    output = invoke("init", "small.csv", "--label", "delivery", "--client", "depot")
    assert "No bound up to 50% can be certified at any client: too few certification rows." in output
    assert read_config(folder / "small.toml").task.bound == 0.05


def test_describe_proposal():
    text = describe_proposal(BoundEstimate(0.1, tuple("abc"), ("a",), 0.6, 0.5), "misses")
    assert text.startswith("Proposed bound: 10%, the smallest useful one that 1 of 3 clients can certify.")
    assert text.endswith("Too few certification rows: b, c.")
    unknown = BoundEstimate(0.2, tuple("abc"), ("a", "b"), float("nan"), float("nan"))
    assert "The misses cannot be estimated: too few rows." in describe_proposal(unknown, "misses")
