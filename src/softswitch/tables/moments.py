"""Dates and times of day, read from columns of text, of whole numbers such as 20130105, or of pandas' own times."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from softswitch.tables.cells import FEW, is_text

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
IN_OTHER_LANGUAGES = {"mär": 3, "mrz": 3, "mai": 5, "okt": 10, "dez": 12, "fév": 2, "avr": 4, "aoû": 8, "déc": 12}
ORDERS = ("dmy", "mdy")
"""How the first two numbers of 05/01/2013 may be meant."""
_TIME = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(:(?P<second>\d{2}([.,]\d+)?))?\s*(?P<half>[AaPp])?(?(half)\.?[Mm]\.?)"
_ZONE = r"\s*(Z|UTC|[-+]\d{2}(:?\d{2})?)?"
_DATES = (
    r"(?P<year>\d{4})(?P<apart>[-/.])(?P<month>\d{1,2})((?P=apart)(?P<day>\d{1,2}))?",
    r"(?P<first>\d{1,2})(?P<apart>[-/.])(?P<other>\d{1,2})(?P=apart)(?P<year>\d{4}|\d{2})",
    r"(?P<day>\d{1,2})[\s./-]*(?P<named>[^\W\d_]{3,9})[\s.,/-]*(?P<year>\d{4}|\d{2})",
    r"(?P<named>[^\W\d_]{3,9})[\s.]*(?P<day>\d{1,2}),?\s+(?P<year>\d{4})",
    r"(?P<year>(19|20)\d{2})(?P<month>0[1-9]|1[0-2])(?P<day>[0-3]\d)",
)
_PATTERNS = (*(re.compile(rf"{date}([T\s]\s*{_TIME}{_ZONE})?") for date in _DATES), re.compile(_TIME))


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
    codes, kept = pd.factorize(values)
    parts = [_read(_as_text(value)) for value in kept]
    told = next(iter(order_of(values)), None) or order or ORDERS[0]
    dates = [_date(part, told) for part in parts]
    hours = [_hours(part) for part in parts]
    days = _day_numbers(dates)
    unread = np.array(
        [part is None or (bool(part.get("year")) and np.isnan(day)) for part, day in zip(parts, days, strict=True)],
        dtype=bool,
    )
    late = np.array(hours, dtype=float)
    unread |= ~(np.isnan(late) | (late < 24))
    return Moments(np.append(days, np.nan)[codes], np.append(late, np.nan)[codes], np.append(unread, False)[codes])


def tells_moments(values: pd.Series) -> bool:
    """Whether every cell that is not empty is a date or a time of day."""
    if pd.api.types.is_datetime64_any_dtype(values):
        return True
    filled = values.dropna()
    if filled.empty or not (is_text(values) or _could_be_dates(filled)):
        return False
    few = [_read(_as_text(value)) for value in pd.unique(filled)[:FEW]]
    if not all(few) or len({part.get("year") is None for part in few if part}) != 1:
        return False
    found = order_of(values)
    return not (len(found) > 1) and not moments_of(values).unread.any()


def order_of(values: pd.Series) -> tuple[str, ...]:
    """How dates such as 05/01/2013 must be meant: one way, not told (none), or, by different cells, both."""
    if not is_text(values):
        return ()
    firsts, others = set(), set()
    for value in pd.unique(values.dropna()):
        part = _read(_as_text(value))
        if part and part.get("first"):
            firsts.add(int(part["first"]))
            others.add(int(part["other"]))
    limits = zip(ORDERS, (firsts, others), strict=True)
    return tuple(order for order, numbers in limits if numbers and max(numbers) > 12)


def has_doubtful_order(values: pd.Series) -> bool:
    """Whether dates such as 05/01/2013 could all be meant either way."""
    if not is_text(values) or order_of(values):
        return False
    return any(bool((_read(_as_text(value)) or {}).get("first")) for value in pd.unique(values.dropna()))


def _as_text(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, float | np.floating) else str(value).strip()


def _could_be_dates(values: pd.Series) -> bool:
    """Whole numbers of a column that is named as a date, such as 20130105."""
    named = re.search(r"date|datum|day", str(values.name), re.IGNORECASE) is not None
    return named and pd.api.types.is_numeric_dtype(values) and bool(values.between(19000101, 20991231).all())


def _read(text: str) -> dict[str, str] | None:
    for pattern in _PATTERNS:
        if (found := pattern.fullmatch(text)) is not None:
            return found.groupdict()
    return None


def _date(part: dict[str, str] | None, order: str) -> tuple[float, float, float]:
    if part is None or not part.get("year"):
        return np.nan, np.nan, np.nan
    year = int(part["year"])
    if len(part["year"]) == 2:
        year += 2000 if year < 69 else 1900
    if part.get("first"):
        day, month = (int(part[name]) for name in (("first", "other") if order == "dmy" else ("other", "first")))
        return year, month, day
    if part.get("named"):
        named = part["named"].lower()[:3]
        known = MONTHS.index(named) + 1 if named in MONTHS else IN_OTHER_LANGUAGES.get(named, 0)
        return year, known, int(part["day"])
    return year, int(part["month"]), int(part.get("day") or 1)


def _day_numbers(dates: list[tuple[float, float, float]]) -> np.ndarray:
    """Days since the beginning of 1970; NaN of dates that there are not."""
    table = pd.DataFrame(dates, columns=["year", "month", "day"], dtype=float)
    days = pd.to_datetime(table, errors="coerce")
    return ((days - pd.Timestamp(0)) / pd.Timedelta(days=1)).to_numpy(float)


def _hours(part: dict[str, str] | None) -> float:
    if part is None or not part.get("hour"):
        return np.nan
    hour, half = int(part["hour"]), (part.get("half") or "").lower()
    if half:
        hour = hour % 12 + (12 if half == "p" else 0)
    return hour + int(part["minute"]) / 60 + float((part.get("second") or "0").replace(",", ".")) / 3600
