"""What cells of text say: which of them are empty, and which columns of text are columns of numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

EMPTY = (
    *("", "?", "-", "--", "–", "—", ".", "..", "NA", "<NA>", "N/A", "n/a", "N.A.", "n.a.", "#N/A", "#N/A N/A", "#NA"),
    *("#NV", "NULL", "Null", "null", "NaN", "nan", "NaT", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN"),
    *("-1.#QNAN", "\\N"),
)
"""Cells that count as empty."""
NONE = ("None", "none")
"""Cells that count as empty where all others are numbers; among words they are one."""
SIGNS = "%|‰|€|\\$|£|¥|EUR|USD|GBP|CHF"
"""What may stand before or behind a number, the same in all of a column."""
FEW = 50
"""So many values are looked at before a whole column is."""


def is_text(values: pd.Series) -> bool:
    """Whether a column holds neither numbers nor truth values nor times."""
    kinds = pd.api.types
    return not (kinds.is_numeric_dtype(values) or kinds.is_bool_dtype(values) or kinds.is_datetime64_any_dtype(values))


def parse_cells(values: pd.Series, decimal: str = ".", empty: Sequence[str] = ()) -> pd.Series:
    """A column without blanks around its words, and as numbers where it holds such; ``empty``: more empty cells."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(values.dtype.categories.dtype)
    if not is_text(values):
        return values
    codes, kept = pd.factorize(values)
    if len(kept) and all(isinstance(value, Decimal) for value in kept):
        return values.astype(float)
    marks = frozenset((*EMPTY, *empty))
    instead = [_bare(value, marks) for value in kept]
    if any(one is not other for one, other in zip(instead, kept, strict=True)):
        told = np.array([*instead, None], dtype=object)[codes]
        values = pd.Series(told, index=values.index, name=values.name).infer_objects()
    numbers = parse_numbers(values.where(~values.isin(NONE)), decimal)
    return values if numbers is None else numbers


def _bare(value: object, marks: frozenset[str]) -> object:
    if not isinstance(value, str):
        return value
    bare = value.strip()
    return None if bare in marks else value if bare == value else bare


def parse_numbers(values: pd.Series, decimal: str = ".") -> pd.Series | None:
    """The numbers that a column of text stands for; None where one of its cells is no number.

    Read are 1234.5, 1,234.5, 1 234.5 and 1'234.5, with a comma as decimal sign 1.234,5 as well, all with a sign such as
    % or € that all cells have. A column may use the other decimal sign than its file, but not both.
    """
    codes, kept = pd.factorize(values)
    if not len(kept) or not all(isinstance(value, str) for value in kept[:FEW]):
        return None
    for sign in (decimal, "," if decimal == "." else "."):
        if (pattern := _pattern(kept[:FEW], sign)) is None:
            continue
        found = [re.fullmatch(pattern, str(value)) for value in kept]
        if not all(found) or len({(one["before"], one["behind"]) for one in found if one}) != 1:
            continue
        bare = [
            re.sub(r"[^\d.eE+-]", "", one["number"].replace("−", "-").translate(_READ[sign])) for one in found if one
        ]
        numbers = np.array([*map(float, bare), np.nan])[codes]
        return pd.Series(numbers, index=values.index, name=values.name)
    return None


_READ: dict[str, dict[int, Any]] = {".": str.maketrans({",": None}), ",": str.maketrans({".": None, ",": "."})}


def _pattern(values: pd.Index, decimal: str) -> str | None:
    """The pattern that all of these follow: plain numbers, or those with one sign between thousands."""
    point = re.escape(decimal)
    for gap in ("", r"\." if decimal == "," else ",", "[   ]", "['’]"):
        whole = rf"(\d+|\d{{1,3}}({gap}\d{{3}})+)" if gap else r"\d*"
        number = rf"(?P<number>[-+−]?{whole}({point}\d+)?([eE][-+]?\d+)?)"
        pattern = rf"(?P<before>({SIGNS})?)\s*(?=[-+−]?{point}?\d){number}\s*(?P<behind>({SIGNS})?)"
        if all(re.fullmatch(pattern, str(value)) for value in values):
            return pattern
    return None


MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
IN_OTHER_LANGUAGES = {"mär": 3, "mrz": 3, "mai": 5, "okt": 10, "dez": 12, "fév": 2, "avr": 4, "aoû": 8, "déc": 12}
ORDERS = ("dmy", "mdy")
"""How the first two numbers of 05/01/2013 may be meant."""
_TIME = re.compile(
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(:(?P<second>\d{2}([.,]\d+)?))?\s*(?P<half>[AaPp])?(?(half)\.?[Mm]\.?)"
    r"\s*(Z|UTC|[-+]\d{2}(:?\d{2})?)?"
)
_DATES = tuple(
    map(
        re.compile,
        (
            r"(?P<year>\d{4})(?P<apart>[-/.])(?P<month>\d{1,2})((?P=apart)(?P<day>\d{1,2}))?",
            r"(?P<first>\d{1,2})(?P<apart>[-/.])(?P<other>\d{1,2})(?P=apart)(?P<year>\d{4}|\d{2})",
            r"(?P<day>\d{1,2})[\s./-]*(?P<named>[^\W\d_]{3,9})[\s.,/-]*(?P<year>\d{4}|\d{2})",
            r"(?P<named>[^\W\d_]{3,9})[\s.]*(?P<day>\d{1,2}),?\s+(?P<year>\d{4})",
            r"(?P<year>(19|20)\d{2})(?P<month>0[1-9]|1[0-2])(?P<day>[0-3]\d)",
        ),
    )
)
_APART = re.compile(r"(?P<date>.+?)(T|\s+)(?P<time>\d{1,2}:.+)")


@dataclass(frozen=True, eq=False)
class DateTimes:
    """Days and hours.

    Attributes:
        days: whole days since the beginning of 1970; NaN where there is none.
        hours: since midnight, 0 up to 24; NaN where no time of day is told.
        unread: cells that are neither empty nor a moment.
    """

    days: np.ndarray
    hours: np.ndarray
    unread: np.ndarray


def parse_datetimes(values: pd.Series, order: str | None = None) -> DateTimes:
    """The moments that a column tells, by the clock of wherever they were written down.

    Args:
        values: the column.
        order: whether 05/01/2013 is in January ("dmy") or in May ("mdy"); the column has the last word, where one of
            its dates can only be meant one way.
    """
    if pd.api.types.is_datetime64_any_dtype(values):
        wall = values.dt.tz_localize(None) if values.dt.tz is not None else values
        days = (wall.dt.normalize() - pd.Timestamp(0)) / pd.Timedelta(days=1)
        hours = (wall - wall.dt.normalize()) / pd.Timedelta(hours=1)
        return DateTimes(days.to_numpy(float), hours.to_numpy(float), np.zeros(len(values), bool))
    codes, dates, times = _cells(values)
    told = next(iter(_orders(dates)), None) or order or ORDERS[0]
    days = _once_each(dates, lambda kept: _day_numbers([_date(text, told) for text in kept]))
    hours = _once_each(times, lambda kept: np.array([_hours(text) for text in kept], dtype=float))
    unread = (np.isnan(days) & (dates != "")) | (np.isnan(hours) & (times != ""))
    return DateTimes(np.append(days, np.nan)[codes], np.append(hours, np.nan)[codes], np.append(unread, False)[codes])


def holds_datetimes(values: pd.Series) -> bool:
    """Whether every cell that is not empty is a date or a time of day."""
    if pd.api.types.is_datetime64_any_dtype(values):
        return True
    filled = values.dropna()
    if filled.empty or not (is_text(values) or _could_be_dates(filled)):
        return False
    few = pd.Series(pd.unique(filled)[:FEW], name=values.name)
    moments = parse_datetimes(few)
    if moments.unread.any() or len(np.unique(np.isnan(moments.days))) > 1:
        return False
    return len(detect_date_order(values)) < 2 and not parse_datetimes(values).unread.any()


def detect_date_order(values: pd.Series) -> tuple[str, ...]:
    """How dates such as 05/01/2013 must be meant: one way, not told (none), or, by different cells, both."""
    return _orders(_cells(values)[1]) if is_text(values) else ()


def has_ambiguous_order(values: pd.Series) -> bool:
    """Whether dates such as 05/01/2013 could all be meant either way."""
    if not is_text(values) or detect_date_order(values):
        return False
    return any("first" in (_read_date(text) or {}) for text in pd.unique(_cells(values)[1]))


def _cells(values: pd.Series) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which of the column's different cells each cell is, and the texts of their date and of their time of day."""
    codes, kept = pd.factorize(values)
    dates, times = np.empty(len(kept), dtype=object), np.empty(len(kept), dtype=object)
    for i, value in enumerate(kept):
        text = _as_text(value)
        both = _APART.fullmatch(text) if ":" in text else None
        if both is not None:
            dates[i], times[i] = both["date"], both["time"]
        else:
            dates[i], times[i] = ("", text) if _TIME.fullmatch(text) else (text, "")
    return codes, dates, times


def _once_each(texts: np.ndarray, read: Callable[[list[str]], np.ndarray]) -> np.ndarray:
    """What each text says, read once where it is there several times: days and hours are far fewer than moments."""
    codes, kept = pd.factorize(texts)
    return read([str(text) for text in kept])[codes] if len(kept) else np.zeros(0)


def _orders(dates: np.ndarray) -> tuple[str, ...]:
    numbers: dict[str, int] = dict.fromkeys(ORDERS, 0)
    for text in pd.unique(dates):
        part = _read_date(text)
        if part and "first" in part:
            for order, name in zip(ORDERS, ("first", "other"), strict=True):
                numbers[order] = max(numbers[order], int(part[name]))
    return tuple(order for order, largest in numbers.items() if largest > 12)


def _as_text(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, float | np.floating) else str(value).strip()


def _could_be_dates(values: pd.Series) -> bool:
    """Whole numbers of a column that is named as a date, such as 20130105."""
    named = re.search(r"date|datum|day", str(values.name), re.IGNORECASE) is not None
    return named and pd.api.types.is_numeric_dtype(values) and bool(values.between(19000101, 20991231).all())


def _read_date(text: str) -> dict[str, str] | None:
    for pattern in _DATES:
        if (found := pattern.fullmatch(text)) is not None:
            return found.groupdict()
    return None


def _date(text: str, order: str) -> tuple[float, float, float]:
    part = _read_date(text)
    if part is None:
        return np.nan, np.nan, np.nan
    year = int(part["year"])
    if len(part["year"]) == 2:
        year += 2000 if year < 69 else 1900
    if "first" in part:
        day, month = (int(part[name]) for name in (("first", "other") if order == "dmy" else ("other", "first")))
        return year, month, day
    if "named" in part:
        named = part["named"].lower()[:3]
        known = MONTHS.index(named) + 1 if named in MONTHS else IN_OTHER_LANGUAGES.get(named, 0)
        return year, known, int(part["day"])
    return year, int(part["month"]), int(part["day"] or 1)


def _day_numbers(dates: list[tuple[float, float, float]]) -> np.ndarray:
    """Days since the beginning of 1970; NaN of dates that there are not."""
    table = pd.DataFrame(dates, columns=["year", "month", "day"], dtype=float)
    days = pd.to_datetime(table, errors="coerce")
    return ((days - pd.Timestamp(0)) / pd.Timedelta(days=1)).to_numpy(float)


def _hours(text: str) -> float:
    part = _TIME.fullmatch(text)
    if part is None:
        return np.nan
    hour, half = int(part["hour"]), (part["half"] or "").lower()
    if half:
        hour = hour % 12 + (12 if half == "p" else 0)
    found = hour + int(part["minute"]) / 60 + float((part["second"] or "0").replace(",", ".")) / 3600
    return found if found < 24 else np.nan
