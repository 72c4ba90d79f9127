"""Names from clients and users are displayed as text, in spreadsheets and on pages."""

import csv
import io
import shutil
from html.parser import HTMLParser
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from typer.testing import CliRunner

from small_run import rename_clients, small_run, table
from softswitch.cli import app
from softswitch.results.folder import CLIENTS, Run, _clients_csv
from softswitch.results.report.page import write_report
from softswitch.tables.cells import parse_cells
from softswitch.tables.table import read_table, write_table

NAMES = [
    "javascript:alert(1)",
    "<a href='https://example.org'>x</a>",
    "<script>alert(1)</script>",
    '=HYPERLINK("https://example.org","x")',
]
RISKY_TEXT = st.lists(st.sampled_from(["'", "=", "-", "@", "\t", "\r", "\n", '"', ",", "1", "a"]), max_size=6).map(
    "".join
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("names"))


@given(st.lists(RISKY_TEXT | st.text(st.characters(codec="utf-8")), min_size=1, max_size=5))
def test_client_names_round_trip_in_table(tmp_path_factory, names):
    count = len(names)
    values = {"client_loss": -np.ones(count), "client_optimum": None, "client_constraint": -np.ones((count, 1))}
    result = SimpleNamespace(names=names, state=SimpleNamespace(parts={}), privacy=None, **values)
    content = _clients_csv(result, {})
    folder_of_run = tmp_path_factory.mktemp("run")
    (folder_of_run / CLIENTS).write_bytes(content)
    assert Run(folder_of_run, {}).clients == {
        "client": names,
        "objective": [-1.0] * count,
        "constraint": [-1.0] * count,
    }
    for row in csv.reader(io.StringIO(content.decode(), newline="")):
        assert not row[0].startswith(("=", "@", "\t", "\r"))
        assert row[1] in ("objective", "-1.0")  # numbers stay numbers


@given(st.lists(RISKY_TEXT.filter(str.strip), min_size=2, max_size=5))
def test_table_text_round_trip(tmp_path_factory, texts):
    file = tmp_path_factory.mktemp("t") / "t.csv"
    frame = pd.DataFrame({"=name": [*texts, "word"], "n": [-1.5] * (len(texts) + 1)})
    write_table(frame, file)
    loaded, expected = read_table(file, separator=",", decimal="."), parse_cells(frame["=name"])
    assert list(loaded.columns) == ["=name", "n"]
    assert loaded["=name"].isna().tolist() == expected.isna().tolist()
    assert loaded["=name"].dropna().tolist() == expected.dropna().tolist()
    assert (loaded["n"] == -1.5).all()


def test_predictions_contain_no_formulas(folder, tmp_path):
    cases = table().head(5).assign(note=["=1+1", "-5", "'=x", "plain", "@SUM(A1)"], **{"+more": "-2+3"})
    cases.to_csv(tmp_path / "new.csv", index=False)
    invocation = CliRunner().invoke(app, ["predict", str(folder), str(tmp_path / "new.csv")])
    assert invocation.exit_code == 0, invocation.output
    with (tmp_path / "new-predicted.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    # A note that starts with an apostrophe and a sign is read as escaped text, and written unchanged.
    assert [row["note"] for row in rows] == ["'=1+1", "-5", "'=x", "plain", "'@SUM(A1)"]
    assert [row["'+more"] for row in rows] == ["'-2+3"] * 5
    assert [row["a"] for row in rows] == [str(value) for value in cases["a"]]


class PageParser(HTMLParser):
    """Collect the elements of a page, and its text outside scripts and styles."""

    def __init__(self):
        super().__init__()
        self.found, self.text, self.inside = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside not in ("script", "style"):
            self.text.append(data)


def test_names_on_page_are_text(folder, tmp_path):
    harmless = PageParser()
    harmless.feed(write_report([folder], tmp_path / "plain.html").read_text(encoding="utf-8"))
    run_folder = tmp_path / "run"
    shutil.copytree(folder, run_folder)
    rename_clients(run_folder, NAMES)
    parsed = PageParser()
    parsed.feed(write_report([run_folder], tmp_path / "named.html").read_text(encoding="utf-8"))
    for name in NAMES:
        assert any(name in text for text in parsed.text), name
    # The elements are those of the page with harmless names, so no name has added an element.
    assert [tag for tag, _ in parsed.found if tag in ("a", "script", "iframe", "img", "object", "form")] == [
        tag for tag, _ in harmless.found if tag in ("a", "script", "iframe", "img", "object", "form")
    ]
    for tag, attributes in parsed.found:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("href", "xlink:href", "src", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png", "data:,")), (tag, attributes)
