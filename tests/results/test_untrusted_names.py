"""Names that come from clients and users are shown, and do nothing: neither in a spreadsheet nor on a page."""

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
from softswitch.results.report import write_report
from softswitch.tables.cells import parse_cells
from softswitch.tables.table import read_table, write_table

NAMES = [
    "javascript:alert(1)",
    "<a href='https://example.org'>x</a>",
    "<script>alert(1)</script>",
    '=HYPERLINK("https://example.org","x")',
]
LIKELY = st.lists(st.sampled_from(["'", "=", "-", "@", "\t", "\r", "\n", '"', ",", "1", "a"]), max_size=6).map("".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("names"))


@given(st.lists(LIKELY | st.text(st.characters(codec="utf-8")), min_size=1, max_size=5))
def test_names_of_clients_come_back_from_the_table(tmp_path_factory, names):
    many = len(names)
    values = {"client_loss": -np.ones(many), "client_optimum": None, "client_constraint": -np.ones((many, 1))}
    told = SimpleNamespace(names=names, state=SimpleNamespace(parts={}), privacy=None, **values)
    content = _clients_csv(told, {})
    home = tmp_path_factory.mktemp("run")
    (home / CLIENTS).write_bytes(content)
    assert Run(home, {}).clients == {"client": names, "objective": [-1.0] * many, "constraint": [-1.0] * many}
    for row in csv.reader(io.StringIO(content.decode(), newline="")):
        assert not row[0].startswith(("=", "@", "\t", "\r"))
        assert row[1] in ("objective", "-1.0")  # numbers stay numbers


@given(st.lists(LIKELY.filter(str.strip), min_size=2, max_size=5))
def test_words_of_a_table_come_back(tmp_path_factory, words):
    file = tmp_path_factory.mktemp("t") / "t.csv"
    written = pd.DataFrame({"=name": [*words, "word"], "n": [-1.5] * (len(words) + 1)})
    write_table(written, file)
    found, wanted = read_table(file, separator=",", decimal="."), parse_cells(written["=name"])
    assert list(found.columns) == ["=name", "n"]
    assert found["=name"].isna().tolist() == wanted.isna().tolist()
    assert found["=name"].dropna().tolist() == wanted.dropna().tolist()
    assert (found["n"] == -1.5).all()


def test_predict_gives_back_no_formula(folder, tmp_path):
    cases = table().head(5).assign(note=["=1+1", "-5", "'=x", "plain", "@SUM(A1)"], **{"+more": "-2+3"})
    cases.to_csv(tmp_path / "new.csv", index=False)
    done = CliRunner().invoke(app, ["predict", str(folder), str(tmp_path / "new.csv")])
    assert done.exit_code == 0, done.output
    with (tmp_path / "new-predicted.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    # A note that begins with an apostrophe and a sign is read as what was defused, and written alike.
    assert [row["note"] for row in rows] == ["'=1+1", "-5", "'=x", "plain", "'@SUM(A1)"]
    assert [row["'+more"] for row in rows] == ["'-2+3"] * 5
    assert [row["a"] for row in rows] == [str(value) for value in cases["a"]]


class Elements(HTMLParser):
    """All elements of a page, and its text outside of scripts and styles."""

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


def test_names_on_the_page_are_text(folder, tmp_path):
    plain = Elements()
    plain.feed(write_report([folder], tmp_path / "plain.html").read_text(encoding="utf-8"))
    copied = tmp_path / "run"
    shutil.copytree(folder, copied)
    rename_clients(copied, NAMES)
    seen = Elements()
    seen.feed(write_report([copied], tmp_path / "named.html").read_text(encoding="utf-8"))
    for name in NAMES:
        assert any(name in text for text in seen.text), name
    # The same elements as with harmless names, so none that a name has brought along.
    assert [tag for tag, _ in seen.found if tag in ("a", "script", "iframe", "img", "object", "form")] == [
        tag for tag, _ in plain.found if tag in ("a", "script", "iframe", "img", "object", "form")
    ]
    for tag, attributes in seen.found:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("href", "xlink:href", "src", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png", "data:,")), (tag, attributes)
