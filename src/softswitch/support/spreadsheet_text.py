"""Text in CSV files that spreadsheets show and do not compute: a cell that begins as a formula gets an apostrophe."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_BEGINS = "=+\\-@\t\r\n＝＋－＠"
_FORMULA = re.compile(f"'*[{_BEGINS}]")
"""Spreadsheets compute what begins so; apostrophes before it are counted in, so that all can be undone."""
_DEFUSED = re.compile(f"'+[{_BEGINS}]")
_SIGN = r"[€$£¥%‰]|EUR|USD|GBP|CHF"
_NUMBER = re.compile(
    rf"[-+]\s?(?:{_SIGN})?\s?(?:\d[\d.,'  ]*|[.,]\d+)(?:[eE][-+]?\d+)?\s?(?:{_SIGN})?"
    r"|[-+]+|[-+]?(?:nan|inf|infinity)|-1\.#(?:IND|QNAN)",
    re.IGNORECASE,
)
"""A number with its sign, or a mark of an empty cell: neither does anything."""


def defused(cell: Any) -> Any:
    """The cell as a CSV file should have it: text that spreadsheets would compute gets an apostrophe before it.

    Numbers stay numbers, also those written as text. ``restored`` undoes it exactly.
    """
    if isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def restored(cell: Any) -> Any:
    """What ``defused`` was given."""
    if isinstance(cell, str) and _DEFUSED.match(cell) and not _NUMBER.fullmatch(cell[1:]):
        return cell[1:]
    return cell


def defused_row(cells: Iterable[Any]) -> list[Any]:
    """A line of a CSV file, cell by cell."""
    return [defused(cell) for cell in cells]
