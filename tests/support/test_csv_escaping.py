"""Cells that start like formulas are escaped, and restored when read."""

import csv
import io

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from softswitch.support.text import escape_cell, escape_row, unescape_cell

FORMULA_PREFIXES = ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"]  # OWASP's list
RISKY_TEXT = st.lists(st.sampled_from(["'", *FORMULA_PREFIXES, "a", "1", ".", "e", " ", "%"]), max_size=8).map("".join)


@given(RISKY_TEXT | st.text())
@example("'=1")
@example("''=1")
@example("'tis")
@example("-5")
@example("'-5")
def test_escaping_round_trip(text):
    assert unescape_cell(escape_cell(text)) == text


@given(st.sampled_from(FORMULA_PREFIXES), st.text())
def test_escaped_cells_are_not_formulas(first, rest):
    cell = escape_cell(first + rest)
    if cell.startswith(tuple(FORMULA_PREFIXES)):
        assert not set(cell) & set("()|!@=/*")
        assert "+" not in cell[1:].replace("e+", "").replace("E+", "").lstrip("+")
    else:
        assert cell == f"'{first}{rest}"


@pytest.mark.parametrize(
    "cell",
    ["-5", "+5", "-1,234.5", "-1e-7", "-5 %", "-€5", "-3.50 EUR", "-", "--", "-.5", "-nan", "-inf", "x", "", "5"],
)
def test_numbers_and_plain_text_are_unchanged(cell):
    assert escape_cell(cell) == cell


@pytest.mark.parametrize(
    "cell", ["=1+1", "-1+1", "+1-1", "-2+3+cmd|' /C calc'!A0", "@SUM(A1)", "-A1", "-5/2", "\t=1", "\r=1", "-(1)", "+a"]
)
def test_formulas_are_escaped(cell):
    assert escape_cell(cell) == f"'{cell}"


def test_numeric_values_are_unchanged():
    assert escape_row([-1, -1.5, None, float("-inf")]) == [-1, -1.5, None, float("-inf")]


@given(st.lists(RISKY_TEXT, min_size=1, max_size=4))
def test_file_round_trip(cells):
    stream = io.StringIO(newline="")
    csv.writer(stream).writerow(escape_row(cells))
    (row,) = csv.reader(io.StringIO(stream.getvalue(), newline=""))
    assert [unescape_cell(cell) for cell in row] == cells
