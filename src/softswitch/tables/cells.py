"""Parsing of text cells: empty cells, numbers, dates and times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

EMPTY = (
    *("", "?", "-", "--", "–", "—", ".", "..", "NA", "<NA>", "N/A", "n/a", "N.A.", "n.a.", "#N/A", "#N/A N/A", "#NA"),
    *("#NV", "NULL", "Null", "null", "NaN", "nan", "NaT", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN"),
    *("-1.#QNAN", "\\N"),
)
"""Cells that count as empty."""
NONE = ("None", "none")  # cells that count as empty if all other cells are numbers
SIGNS = "%|‰|€|\\$|£|¥|EUR|USD|GBP|CHF"  # symbols that may precede or follow the numbers of a column
SAMPLE = 50  # number of values to check before a whole column


def is_text(values: pd.Series) -> bool:
    """Return whether a column holds neither numbers nor booleans nor times."""
    types = pd.api.types
    return not (types.is_numeric_dtype(values) or types.is_bool_dtype(values) or types.is_datetime64_any_dtype(values))


def parse_cells(values: pd.Series, decimal: str = ".", empty: Sequence[str] = ()) -> pd.Series:
    """Return a column without surrounding blanks, as numbers if possible; ``empty``: further empty cells."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(values.dtype.categories.dtype)
    if not is_text(values):
        return values
    codes, distinct = pd.factorize(values)
    if len(distinct) and all(isinstance(value, Decimal) for value in distinct):
        return values.astype(float)
    marks = frozenset((*EMPTY, *empty))
    stripped = [_strip(value, marks) for value in distinct]
    if any(after is not before for after, before in zip(stripped, distinct, strict=True)):
        cells = np.array([*stripped, None], dtype=object)[codes]
        values = pd.Series(cells, index=values.index, name=values.name).infer_objects()
    numbers = parse_numbers(values.where(~values.isin(NONE)), decimal)
    return values if numbers is None else numbers


def _strip(value: object, marks: frozenset[str]) -> object:
    if not isinstance(value, str):
        return value
    stripped = value.strip()
    return None if stripped in marks else value if stripped == value else stripped


def parse_numbers(values: pd.Series, decimal: str = ".") -> pd.Series | None:
    """Return the numbers of a text column; None if a cell is not a number.

    Accepted are 1234.5, 1,234.5, 1 234.5 and 1'234.5, and 1.234,5 with a decimal comma, all with the same symbol such
    as % or €. A column may use a different decimal sign than its file, but not both.
    """
    codes, distinct = pd.factorize(values)
    if not len(distinct) or not all(isinstance(value, str) for value in distinct[:SAMPLE]):
        return None
    for sign in (decimal, "," if decimal == "." else "."):
        if (pattern := _number_pattern(distinct[:SAMPLE], sign)) is None:
            continue
        matches = [match for value in distinct if (match := re.fullmatch(pattern, str(value)))]
        if len(matches) < len(distinct) or len({(match["before"], match["behind"]) for match in matches}) != 1:
            continue
        texts = [match["number"].replace("−", "-").translate(_DECIMALS[sign]) for match in matches]
        numbers = np.array([*(float(re.sub(r"[^\d.eE+-]", "", text)) for text in texts), np.nan])[codes]
        return pd.Series(numbers, index=values.index, name=values.name)
    return None


_DECIMALS: dict[str, dict[int, Any]] = {".": str.maketrans({",": None}), ",": str.maketrans({".": None, ",": "."})}


def _number_pattern(values: pd.Index, decimal: str) -> str | None:
    """Return a pattern that all values match: plain numbers, or numbers with a thousands separator."""
    point = re.escape(decimal)
    for gap in ("", r"\." if decimal == "," else ",", "[   ]", "['’]"):
        whole = rf"(\d+|\d{{1,3}}({gap}\d{{3}})+)" if gap else r"\d*"
        number = rf"(?P<number>[-+−]?{whole}({point}\d+)?([eE][-+]?\d+)?)"
        pattern = rf"(?P<before>({SIGNS})?)\s*(?=[-+−]?{point}?\d){number}\s*(?P<behind>({SIGNS})?)"
        if all(re.fullmatch(pattern, str(value)) for value in values):
            return pattern
    return None


MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
FOREIGN_MONTHS = {"mär": 3, "mrz": 3, "mai": 5, "okt": 10, "dez": 12, "fév": 2, "avr": 4, "aoû": 8, "déc": 12}
ORDERS = ("dmy", "mdy")  # orders of day and month in dates such as 05/01/2013
_TIME = re.compile(
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(:(?P<second>\d{2}([.,]\d+)?))?\s*(?P<half>[AaPp])?(?(half)\.?[Mm]\.?)"
    r"\s*(Z|UTC|[-+]\d{2}(:?\d{2})?)?"
)
_DATES = (
    r"(?P<year>\d{4})(?P<apart>[-/.])(?P<month>\d{1,2})((?P=apart)(?P<day>\d{1,2}))?",
    r"(?P<first>\d{1,2})(?P<apart>[-/.])(?P<other>\d{1,2})(?P=apart)(?P<year>\d{4}|\d{2})",
    r"(?P<day>\d{1,2})[\s./-]*(?P<named>[^\W\d_]{3,9})[\s.,/-]*(?P<year>\d{4}|\d{2})",
    r"(?P<named>[^\W\d_]{3,9})[\s.]*(?P<day>\d{1,2}),?\s+(?P<year>\d{4})",
    r"(?P<year>(19|20)\d{2})(?P<month>0[1-9]|1[0-2])(?P<day>[0-3]\d)",
)
_DATE_AND_TIME = re.compile(r"(?P<date>.+?)(T|\s+)(?P<time>\d{1,2}:.+)")


@dataclass(frozen=True, eq=False)
class DateTimes:
    """Days since 1 January 1970, hours since midnight (NaN if missing), and which cells could not be read."""

    days: np.ndarray
    hours: np.ndarray
    unread: np.ndarray


def parse_datetimes(values: pd.Series, order: str | None = None) -> DateTimes:
    """Parse a column of local dates and times; ``order`` ("dmy" or "mdy") applies if all dates are ambiguous."""
    if pd.api.types.is_datetime64_any_dtype(values):
        wall = values.dt.tz_localize(None) if values.dt.tz is not None else values
        days = (wall.dt.normalize() - pd.Timestamp(0)) / pd.Timedelta(days=1)
        hours = (wall - wall.dt.normalize()) / pd.Timedelta(hours=1)
        return DateTimes(days.to_numpy(float), hours.to_numpy(float), np.zeros(len(values), bool))
    codes, dates, times = _cells(values)
    order = next(iter(_orders(dates)), None) or order or ORDERS[0]
    parts = pd.DataFrame([_date(text, order) for text in dates], columns=["year", "month", "day"], dtype=float)
    days = ((pd.to_datetime(parts, errors="coerce") - pd.Timestamp(0)) / pd.Timedelta(days=1)).to_numpy(float)
    hours = np.array([_hours(text) for text in times], dtype=float)
    unread = (np.isnan(days) & (dates != "")) | (np.isnan(hours) & (times != ""))
    return DateTimes(np.append(days, np.nan)[codes], np.append(hours, np.nan)[codes], np.append(unread, False)[codes])


def holds_datetimes(values: pd.Series) -> bool:
    """Return whether all filled cells are dates or times of day."""
    if pd.api.types.is_datetime64_any_dtype(values):
        return True
    filled = values.dropna()
    if not is_text(values):  # integers such as 20130105 in a column named as a date
        is_named = re.search(r"date|datum|day", str(values.name), re.IGNORECASE)
        if not (is_named and pd.api.types.is_numeric_dtype(values) and filled.between(19000101, 20991231).all()):
            return False
    if filled.empty:
        return False
    parsed = parse_datetimes(pd.Series(pd.unique(filled)[:SAMPLE], name=values.name))
    if parsed.unread.any() or len(np.unique(np.isnan(parsed.days))) > 1:
        return False
    return len(detect_date_order(values)) < 2 and not parse_datetimes(values).unread.any()


def detect_date_order(values: pd.Series) -> tuple[str, ...]:
    """Return the orders of day and month that unambiguous dates have: none, one, or both."""
    return _orders(_cells(values)[1]) if is_text(values) else ()


def has_ambiguous_order(values: pd.Series) -> bool:
    """Return whether all dates such as 05/01/2013 can be read in both orders."""
    if not is_text(values) or detect_date_order(values):
        return False
    return any("first" in (_match_date(text) or {}) for text in pd.unique(_cells(values)[1]))


def _cells(values: pd.Series) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes of the distinct cells, and the text of their date and of their time of day."""
    codes, distinct = pd.factorize(values)
    dates, times = np.empty(len(distinct), dtype=object), np.empty(len(distinct), dtype=object)
    for i, value in enumerate(distinct):
        text = f"{value:.0f}" if isinstance(value, float | np.floating) else str(value).strip()
        if ":" in text and (match := _DATE_AND_TIME.fullmatch(text)):
            dates[i], times[i] = match["date"], match["time"]
        else:
            dates[i], times[i] = ("", text) if _TIME.fullmatch(text) else (text, "")
    return codes, dates, times


def _orders(dates: np.ndarray) -> tuple[str, ...]:
    parts = [part for text in pd.unique(dates) if (part := _match_date(text)) and "first" in part]
    names = zip(ORDERS, ("first", "other"), strict=True)
    return tuple(order for order, name in names if any(int(part[name]) > 12 for part in parts))


@lru_cache(1 << 16)
def _match_date(text: str) -> dict[str, str] | None:
    return next((match.groupdict() for pattern in _DATES if (match := re.fullmatch(pattern, text))), None)


def _date(text: str, order: str) -> tuple[float, float, float]:
    part = _match_date(text)
    if part is None:
        return (np.nan,) * 3
    year = int(part["year"])
    if len(part["year"]) == 2:
        year += 2000 if year < 69 else 1900
    if "first" in part:
        first, other = int(part["first"]), int(part["other"])
        return (year, other, first) if order == "dmy" else (year, first, other)
    if "named" in part:
        name = part["named"].lower()[:3]
        month = MONTHS.index(name) + 1 if name in MONTHS else FOREIGN_MONTHS.get(name, 0)
        return year, month, int(part["day"])
    return year, int(part["month"]), int(part["day"] or 1)


def _hours(text: str) -> float:
    part = _TIME.fullmatch(text)
    if part is None:
        return np.nan
    hour, half = int(part["hour"]), (part["half"] or "").lower()
    if half:
        hour = hour % 12 + (12 if half == "p" else 0)
    hours = hour + int(part["minute"]) / 60 + float((part["second"] or "0").replace(",", ".")) / 3600
    return hours if hours < 24 else np.nan
