"""Inspection of a table's columns: the type of their content, and whether they should be ignored."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from softswitch.problem.choices import BINARY, MULTICLASS
from softswitch.problem.choices import NUMBER as NUMBER_LABEL
from softswitch.tables.cells import is_text, parse_cells, parse_datetimes
from softswitch.tables.features import MAX_LEVELS, MIN_LEVEL_ROWS, to_categories

_FILE = Path(__file__).with_name("hints.toml")
_HINTS = {name: frozenset(text.split()) for name, text in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()}
IDENTIFIER_HINTS, NAME_SUFFIXES = _HINTS["identifier"], _HINTS["suffix"]
LABEL_HINTS, CLIENT_HINTS = (_HINTS["label"], _HINTS["weak_label"]), (_HINTS["client"], _HINTS["weak_client"])
POSITIVE_VALUES, NEGATIVE_VALUES = _HINTS["positive"], _HINTS["negative"] | {"on time"}
NUMBER, INTEGER, CATEGORY, TWO_VALUES, DATETIME = "number", "whole number", "category", "two values", "date or time"
IDENTIFIER, CONSTANT, EMPTY = "identifier", "constant", "empty"
UNUSABLE = (IDENTIFIER, CONSTANT, EMPTY)  # content types of columns that should be ignored
IDENTIFIER_SHARE = 0.95  # smallest share of distinct values of a text column that is an identifier
MIN_ROWS = 20  # smallest number of non-empty cells from which identifiers and non-numeric cells are detected
NUMBERS_SHARE = 0.9  # smallest share of numbers in a numeric column that was read as text
MAX_NON_NUMERIC = 3  # largest number of distinct non-numeric cells of such a column
MAX_CODES = 10  # largest number of distinct integers that are taken as codes of classes


@dataclass(frozen=True)
class ColumnSummary:
    """Summary of a column's content."""

    name: str
    content: str  # content type, such as NUMBER or IDENTIFIER
    empty: float  # share of empty cells, in [0, 1]
    values: int  # number of distinct values
    reason: str | None = None  # reason to ignore the column; None if there is none
    remark: str | None = None  # how ambiguous dates were read; None for other columns


def split_name(name: str) -> list[str]:
    """Return the words of a column's name in lower case: both "storeId" and "store_id" give ["store", "id"]."""
    separated = re.sub(r"([a-z])([A-Z])", r"\1 \2", str(name))
    return [word.lower() for word in re.split(r"[\W_]+", separated) if word]


def inspect_column(values: pd.Series) -> ColumnSummary:
    """Summarise a column from its values and its name."""
    name, filled = str(values.name), values.dropna()
    empty, distinct = float(values.isna().mean()) if len(values) else 1.0, int(filled.nunique())
    if filled.empty:
        return ColumnSummary(name, EMPTY, empty, distinct, "empty in every row")
    if distinct == 1 and empty == 0:
        return ColumnSummary(name, CONSTANT, empty, distinct, f"{plain_value(filled.iloc[0])!r} in every row")
    content, remark = _content(values, filled, distinct)
    reason = _identifier_reason(name, filled, distinct, content)
    if reason is not None:
        return ColumnSummary(name, IDENTIFIER, empty, distinct, reason)
    return ColumnSummary(name, content, empty, distinct, None, remark)


def _content(values: pd.Series, filled: pd.Series, distinct: int) -> tuple[str, str | None]:
    """Return the content type of a column, and for ambiguous dates a remark on the order of day and month."""
    if (parsed := parse_datetimes(values)) is not None:
        if parsed.order is None:
            return DATETIME, None
        other = parse_datetimes(values, "mdy")
        if other is not None and other.order != parsed.order:
            return DATETIME, "read with the day first, but all of its dates could also have the month first"
        return DATETIME, f"read with the {'day' if parsed.order == 'dmy' else 'month'} first"
    if distinct == 2:
        return TWO_VALUES, None
    if is_text(values):
        return CATEGORY, None
    return INTEGER if (filled % 1 == 0).all() else NUMBER, None


def non_numeric_cells(values: pd.Series) -> list[str]:
    """Return the rare strings in a text column that otherwise holds numbers or dates; an empty list for others."""
    if not is_text(values):
        return []
    filled = values.dropna().astype(str)
    rest = filled[~filled.str.fullmatch(r"[-+€$£]?\d[-\d.,' %€$£eE:/T]*")]
    is_rare = len(rest) <= (1 - NUMBERS_SHARE) * len(filled) and rest.nunique() <= MAX_NON_NUMERIC
    if len(filled) < MIN_ROWS or not is_rare:
        return []
    parsed = parse_cells(values.where(~values.isin(rest)))
    return [] if is_text(parsed) and parse_datetimes(parsed) is None else rest.unique().tolist()


def _identifier_reason(name: str, filled: pd.Series, distinct: int, content: str) -> str | None:
    """Return the reason why a column is an identifier, as text; None if it is not."""
    share = distinct / len(filled)
    is_named = name == "Unnamed: 0" or (split_name(name) or [""])[-1] in IDENTIFIER_HINTS
    named = f"named as an identifier, with {distinct:,} values"
    if content == CATEGORY:
        if len(filled) >= MIN_ROWS and share >= IDENTIFIER_SHARE:
            return f"an identifier of rows: {share:.0%} of its values are distinct"
        if distinct > MAX_LEVELS and to_categories(filled).value_counts().iloc[0] < MIN_LEVEL_ROWS:
            return f"{distinct:,} distinct values, none in {MIN_LEVEL_ROWS} rows"
        return named if is_named and distinct > MAX_LEVELS else None
    if content == INTEGER and len(filled) >= MIN_ROWS:
        if share == 1 and (filled.is_monotonic_increasing or np.ptp(filled.to_numpy(float)) < 1.5 * len(filled)):
            return "a row counter"
        return named if is_named and distinct > MAX_CODES else None
    return None


def infer_label_type(values: pd.Series) -> str:
    """Return the label type of a column: "binary", "multiclass" or "number"."""
    filled = values.dropna()
    distinct = filled.nunique()
    if distinct <= 2:
        return BINARY
    if is_text(filled) or pd.api.types.is_bool_dtype(filled):
        return MULTICLASS
    numbers = filled.astype(float)
    are_codes = (numbers % 1 == 0).all() and distinct <= MAX_CODES and np.ptp(numbers) < 2 * distinct
    return MULTICLASS if are_codes else NUMBER_LABEL


def plain_value(value: Any) -> Any:
    """Return a cell's value as a Python string, integer, float or boolean, for the settings file."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, str | int | float | bool) else str(value)
