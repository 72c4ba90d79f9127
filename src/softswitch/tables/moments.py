"""Dates and times of day, read from columns of text, of whole numbers such as 20130105, or of pandas' own times."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from softswitch.tables.cells import FEW, is_text

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
class Moments:
    """Days and hours.

    Attributes:
        days: whole days since the beginning of 1970; NaN where there is none.
        hours: since midnight, 0 up to 24; NaN where no time of day is told.
        unread: cells that are neither empty nor a moment.
    """

    days: np.ndarray
    hours: np.ndarray
    unread: np.ndarray


def moments_of(values: pd.Series, order: str | None = None) -> Moments:
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
        return Moments(days.to_numpy(float), hours.to_numpy(float), np.zeros(len(values), bool))
    codes, dates, times = _cells(values)
    told = next(iter(_orders(dates)), None) or order or ORDERS[0]
    days = _once_each(dates, lambda kept: _day_numbers([_date(text, told) for text in kept]))
    hours = _once_each(times, lambda kept: np.array([_hours(text) for text in kept], dtype=float))
    unread = (np.isnan(days) & (dates != "")) | (np.isnan(hours) & (times != ""))
    return Moments(np.append(days, np.nan)[codes], np.append(hours, np.nan)[codes], np.append(unread, False)[codes])


def tells_moments(values: pd.Series) -> bool:
    """Whether every cell that is not empty is a date or a time of day."""
    if pd.api.types.is_datetime64_any_dtype(values):
        return True
    filled = values.dropna()
    if filled.empty or not (is_text(values) or _could_be_dates(filled)):
        return False
    few = pd.Series(pd.unique(filled)[:FEW], name=values.name)
    moments = moments_of(few)
    if moments.unread.any() or len(np.unique(np.isnan(moments.days))) > 1:
        return False
    return len(order_of(values)) < 2 and not moments_of(values).unread.any()


def order_of(values: pd.Series) -> tuple[str, ...]:
    """How dates such as 05/01/2013 must be meant: one way, not told (none), or, by different cells, both."""
    return _orders(_cells(values)[1]) if is_text(values) else ()


def has_doubtful_order(values: pd.Series) -> bool:
    """Whether dates such as 05/01/2013 could all be meant either way."""
    if not is_text(values) or order_of(values):
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
