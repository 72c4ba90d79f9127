"""What the columns of a table are, by looking at them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from softswitch.tables.cells import (
    detect_date_order,
    has_ambiguous_order,
    holds_datetimes,
    is_text,
    parse_datetimes,
    tidy,
)
from softswitch.tables.features import MOST_LEVELS, ROWS_OF_A_LEVEL, Levels, column_kind, to_categories


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NAMES_OF_IDENTIFIERS = _words("id ids uuid guid key ssn identifier caseid recordid rowid serial")
NAMES_OF_COUNTS = _words("index idx rowname rownames rownum rownumber row nr no num number obs obsnumber")
"""Names of identifiers too, where nearly all values differ; else of amounts."""
NAMES_OF_NAMES = _words("id name code abbr no nr num number key flag")
"""What a column's name may end in behind its noun."""
NAMES_OF_LABELS = (
    _words("label labels target y outcome class classes response diagnosis"),
    _words(
        "default defaulted churn churned attrition survived died death dead mortality fraud spam approved denied late "
        "delayed cancelled readmitted malignant disease relapse event status result passed failed grade quality score "
        "price income salary wage sales cost amount rating species"
    ),
)
"""Words in the names of columns to predict: those that say so, and those that often are."""
NAMES_OF_CLIENTS = (
    _words(
        "client clients site hospital clinic center centre branch store shop school bank carrier airline plant factory "
        "station provider practice ward device machine institution"
    ),
    _words(
        "region country state province county city town district municipality village community college university "
        "department dept office agency company firm team household family subject patient participant user customer "
        "account farm field plot batch lab court judge origin airport zip zipcode area location neighborhood "
        "neighbourhood dealer seller vendor supplier doctor physician hub depot warehouse operator sector industry "
        "occupation cluster player reader animal litter"
    ),
)
"""Words in the names of columns that say whose row it is: those that say so, and those that often do."""
POSITIVE = _words(
    "1 true yes y t ja oui si sí positive pos present malignant late delayed default defaulted bad fail failed failure "
    "dead died death churn churned fraud spam sick ill disease diseased case event abnormal defective cancelled "
    "canceled relapse readmitted attrition left denied rejected + on"
)
NEGATIVE = _words(
    "0 false no n f nein non negative neg absent benign good ok pass passed normal healthy control alive paid none "
    "nondefault ham stayed approved accepted survived - off"
) | {"on time", "-1"}


NUMBER, WHOLE, WORDS, YES_NO = "number", "whole number", "category", "two values"
DATE, TIME, DATE_AND_TIME = "date", "time of day", "date and time"
IDENTIFIER, CONSTANT, FREE_TEXT, EMPTY = "identifier", "constant", "free text", "empty"
UNUSABLE = (IDENTIFIER, CONSTANT, FREE_TEXT, EMPTY)
"""What is proposed to be left out."""
MOMENTS = (DATE, TIME, DATE_AND_TIME)
NEARLY_ALL = 0.95
"""The share of different values from which on words are names, not levels."""
LONG_TEXT = 30
"""Characters of a cell, on the average, from which on it is a text."""
NEARLY_EMPTY = 0.995
ENOUGH = 20
"""Rows, fewer of which tell nothing of what a column is."""
NEARLY_NUMBERS = 0.9
"""The share of numbers from which on a column of words looks like one of numbers with some cells that are none,"""
MOST_ODD = 3
"""where these are so few different ones at most."""


@dataclass(frozen=True)
class ColumnSummary:
    """What a column is.

    Attributes:
        name: its name.
        what: the kind of values that it holds.
        empty: the share of empty cells.
        values: how many different values it has.
        reason: why it should be left out; None where it should not.
        remark: what else is to be said; None where there is nothing.
    """

    name: str
    what: str
    empty: float
    values: int
    reason: str | None = None
    remark: str | None = None


def split_name(name: str) -> list[str]:
    """The words in a column's name: storeId and store_id are store and id."""
    apart = re.sub(r"([a-z])([A-Z])", r"\1 \2", str(name))
    return [word.lower() for word in re.split(r"[\W_]+", apart) if word]


def inspect_column(values: pd.Series) -> ColumnSummary:
    """What a column is, by its values and its name."""
    name, filled = str(values.name), values.dropna()
    empty, many = float(values.isna().mean()) if len(values) else 1.0, int(filled.nunique())
    if filled.empty:
        return ColumnSummary(name, EMPTY, empty, many, "empty in every row")
    if many == 1 and empty == 0:
        return ColumnSummary(name, CONSTANT, empty, many, f"{plain(filled.iloc[0])!r} in every row")
    what, remark = _kind(values, filled, many)
    if empty > NEARLY_EMPTY:
        return ColumnSummary(name, what, empty, many, f"empty in {empty:.1%} of the rows")
    reason = _names_rows(name, filled, many, what)
    if reason is not None:
        return ColumnSummary(name, FREE_TEXT if reason.startswith("text") else IDENTIFIER, empty, many, reason)
    return ColumnSummary(name, what, empty, many, None, remark)


def _kind(values: pd.Series, filled: pd.Series, many: int) -> tuple[str, str | None]:
    if holds_datetimes(values):
        return _moments(values)
    if many == 2:
        return YES_NO, None
    if not is_text(values):
        whole = pd.api.types.is_integer_dtype(values) or bool((filled % 1 == 0).all())
        return WHOLE if whole else NUMBER, None
    if len(detect_date_order(values)) > 1:
        return WORDS, "looks like dates, but some can only have the day first and some only the month"
    return WORDS, _rare_levels(filled, many)


def _moments(values: pd.Series) -> tuple[str, str | None]:
    moments = parse_datetimes(values)
    days, hours = (~np.isnan(part) for part in (moments.days, moments.hours))
    several = len(np.unique(moments.hours[hours])) > 1
    what = TIME if not days.any() else DATE_AND_TIME if several else DATE
    told = {"dmy": "day first", "mdy": "month first"}
    if has_ambiguous_order(values):
        return what, "read with the day first; all of its dates could as well have the month first"
    found = detect_date_order(values)
    return what, f"read with the {told[found[0]]}" if found else None


def non_numeric_cells(values: pd.Series) -> dict[str, float]:
    """Words, each with its share, but for which a column of text is one of numbers or of dates; empty if it is not."""
    if not is_text(values):
        return {}
    filled = values.dropna().astype(str)
    odd = filled[~filled.str.fullmatch(r"[-+€$£]?\d[-\d.,' %€$£eE:/T]*")]
    words = odd.value_counts()
    if len(filled) < ENOUGH or odd.empty or len(odd) > (1 - NEARLY_NUMBERS) * len(filled) or len(words) > MOST_ODD:
        return {}
    rest = tidy(values.where(~values.isin(words.index)))
    return {} if column_kind(rest) == Levels.kind else {str(word): many / len(values) for word, many in words.items()}


def _rare_levels(filled: pd.Series, many: int) -> str | None:
    if many <= MOST_LEVELS:
        return None
    counts = to_categories(filled).value_counts()
    kept = min(MOST_LEVELS, int((counts >= ROWS_OF_A_LEVEL).sum()))
    return f"the {kept} most frequent of its {many:,} values are kept, the others are one" if kept else None


def _names_rows(name: str, filled: pd.Series, many: int, what: str) -> str | None:
    """Why a column names rows instead of telling something about them; None where it does not."""
    if what in MOMENTS or what == NUMBER:
        return None
    different = many / len(filled)
    named = _is_named_as_identifier(name, different)
    if is_text(filled):
        length = float(filled.astype(str).str.len().mean())
        if length > LONG_TEXT and different > 0.8:
            return f"text of {length:.0f} characters on the average, {different:.0%} of it different"
        if len(filled) >= ENOUGH and different >= NEARLY_ALL:
            return f"{different:.0%} of its values are different: a name of each row"
        levels = to_categories(filled).value_counts()
        if many > MOST_LEVELS and levels.iloc[0] < ROWS_OF_A_LEVEL:
            return f"{many:,} different values, none in {ROWS_OF_A_LEVEL} rows"
        return f"named as an identifier, with {many:,} values" if named and many > MOST_LEVELS else None
    if what == WHOLE and len(filled) >= ENOUGH:
        if different == 1 and (filled.is_monotonic_increasing or np.ptp(filled.to_numpy(float)) < 1.5 * len(filled)):
            return "counts the rows"
        if named and many > 10:
            return f"named as an identifier, with {many:,} values"
    return None


def _is_named_as_identifier(name: str, different: float) -> bool:
    last = split_name(name)[-1:]
    counts = different >= NEARLY_ALL and last and last[0] in NAMES_OF_COUNTS
    return bool(counts or (last and last[0] in NAMES_OF_IDENTIFIERS) or name == "Unnamed: 0")


def infer_label_type(values: pd.Series) -> str:
    """What kind of label a column is: "two" classes, several "classes", or a "number"."""
    filled = values.dropna()
    many = filled.nunique()
    if many <= 2:
        return "two"
    if is_text(filled) or pd.api.types.is_bool_dtype(filled):
        return "classes"
    whole = bool((filled.astype(float) % 1 == 0).all())
    return "classes" if whole and many <= MOST_CLASSES and np.ptp(filled.astype(float)) < 2 * many else "number"


MOST_CLASSES = 10
"""Whole numbers of so few values, close to each other, are codes of classes."""


def plain(value: Any) -> Any:
    """A cell's value as a file of settings writes it."""
    bare = value.item() if isinstance(value, np.generic) else value
    if isinstance(bare, float) and bare.is_integer():
        return int(bare)
    return bare if isinstance(bare, str | int | float | bool) else str(bare)
