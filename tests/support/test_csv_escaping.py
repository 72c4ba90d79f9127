"""Cells that begin as formulas are defused, and read back as they were."""

import csv
import io

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from softswitch.support.text import escape_cell, escape_row, unescape_cell

BEGINS = ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"]  # OWASP's list
LIKELY = st.lists(st.sampled_from(["'", *BEGINS, "a", "1", ".", "e", " ", "%"]), max_size=8).map("".join)


@given(LIKELY | st.text())
@example("'=1")
@example("''=1")
@example("'tis")
@example("-5")
@example("'-5")
def test_what_is_defused_can_be_restored(text):
    assert unescape_cell(escape_cell(text)) == text


@given(st.sampled_from(BEGINS), st.text())
def test_no_cell_begins_as_a_formula_but_numbers(first, rest):
    cell = escape_cell(first + rest)
    if cell.startswith(tuple(BEGINS)):
        assert not set(cell) & set("()|!@=/*")
        assert "+" not in cell[1:].replace("e+", "").replace("E+", "").lstrip("+")
    else:
        assert cell == f"'{first}{rest}"


@pytest.mark.parametrize(
    "cell",
    ["-5", "+5", "-1,234.5", "-1e-7", "-5 %", "-€5", "-3.50 EUR", "-", "--", "-.5", "-nan", "-inf", "x", "", "5"],
)
def test_numbers_and_plain_words_stay(cell):
    assert escape_cell(cell) == cell


@pytest.mark.parametrize(
    "cell", ["=1+1", "-1+1", "+1-1", "-2+3+cmd|' /C calc'!A0", "@SUM(A1)", "-A1", "-5/2", "\t=1", "\r=1", "-(1)", "+a"]
)
def test_formulas_do_not(cell):
    assert escape_cell(cell) == f"'{cell}"


def test_numbers_are_not_touched():
    assert escape_row([-1, -1.5, None, float("-inf")]) == [-1, -1.5, None, float("-inf")]


@given(st.lists(LIKELY, min_size=1, max_size=4))
def test_through_a_file(cells):
    stream = io.StringIO(newline="")
    csv.writer(stream).writerow(escape_row(cells))
    (row,) = csv.reader(io.StringIO(stream.getvalue(), newline=""))
    assert [unescape_cell(cell) for cell in row] == cells
