"""Parsing of text cells: empty cells, numbers, dates and times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pandas as pd

EMPTY = (  # texts of cells that count as empty
    *("", "?", "-", "--", "–", "—", ".", "..", "NA", "<NA>", "N/A", "n/a", "N.A.", "n.a.", "#N/A", "#N/A N/A", "#NA"),
    *("#NV", "NULL", "Null", "null", "NaN", "nan", "NaT", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN"),
    *("-1.#QNAN", "\\N"),
)
NONE = ("None", "none")  # texts that count as empty if all other cells of the column are numbers
SYMBOLS = r"(?:%|‰|€|\$|£|¥|EUR|USD|GBP|CHF)?"  # symbols that may precede or follow the numbers of a column
SAMPLE = 50  # number of distinct values that are tried before a whole column is parsed


def is_text(values: pd.Series) -> bool:
    """Return whether the dtype of a column is neither numeric nor boolean nor datetime."""
    types = pd.api.types
    return not (types.is_numeric_dtype(values) or types.is_bool_dtype(values) or types.is_datetime64_any_dtype(values))


def same_value(one: object, other: object) -> bool:
    """Return whether two values are equal as text or as numbers, such as 2, 2.0 and "2.0"; booleans are not numbers."""
    if str(one) == str(other):
        return True
    try:
        numbers = [float(value) for value in (one, other) if isinstance(value, str | int | float | np.number)]
    except (ValueError, OverflowError):
        return False
    has_flags = isinstance(one, bool | np.bool_) or isinstance(other, bool | np.bool_)
    return len(numbers) == 2 and numbers[0] == numbers[1] and not has_flags


def parse_cells(values: pd.Series, decimal: str = ".", empty: Sequence[str] = ()) -> pd.Series:
    """Return a column as floats if all cells are numbers, else as text without surrounding blanks; empty cells are NA.

    ``decimal`` is the decimal sign of the file. ``empty`` has further texts that count as empty.
    """
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(values.dtype.categories.dtype)
    if not is_text(values):
        return values
    codes, distinct = pd.factorize(values)
    if len(distinct) and all(isinstance(value, Decimal) for value in distinct):
        return values.astype(float)
    stripped = [value.strip() if isinstance(value, str) else value for value in distinct]
    cells = np.array([*(None if cell in (*EMPTY, *empty) else cell for cell in stripped), None], dtype=object)[codes]
    texts = pd.Series(cells, index=values.index, name=values.name).infer_objects()
    numbers = parse_numbers(texts.where(~texts.isin(NONE)), decimal)
    return texts if numbers is None else numbers


def parse_each(values: pd.Series, decimal: str = ".", empty: Sequence[str] = ()) -> pd.Series:
    """Return a column with each cell parsed by itself, whatever other cells hold: a number, text, or NA if empty."""

    def parse(cell: object) -> object:
        if isinstance(cell, str):
            text = cell.strip()
            numbers = _match_numbers([text], decimal)
            cell = None if text in (*EMPTY, *empty) else float(numbers[0]) if numbers else text
        return int(cell) if isinstance(cell, float) and cell.is_integer() else cell

    if not is_text(values):
        return values
    codes, distinct = pd.factorize(values)
    cells = np.array([*map(parse, distinct), None], dtype=object)[codes]
    return pd.Series(cells, index=values.index, name=values.name).infer_objects()


def parse_numbers(values: pd.Series, decimal: str = ".") -> pd.Series | None:
    """Return a text column as floats, with NaN for empty cells; None if a cell is not a number.

    Accepted are 1234.5, 1,234.5, 1 234.5 and 1'234.5, and 1.234,5 with a decimal comma, all with the same symbol such
    as % or €. The decimal sign of a column may differ from ``decimal``, that of its file.
    """
    codes, distinct = pd.factorize(values)
    if not len(distinct) or not all(isinstance(value, str) for value in distinct):
        return None
    for sign in (decimal, "," if decimal == "." else "."):
        if _match_numbers(distinct[:SAMPLE], sign) and (texts := _match_numbers(distinct, sign)):
            numbers = np.array([*map(float, texts), np.nan])[codes]
            return pd.Series(numbers, index=values.index, name=values.name)
    return None


def _match_numbers(texts: Sequence[str], decimal: str) -> list[str]:
    """Return the cells in Python's notation of numbers; an empty list if one is not a number, or symbols differ."""
    point, gaps = re.escape(decimal), rf"[{'.' if decimal == ',' else ','}\u0020\u00a0\u202f'’]"
    whole = rf"(?:\d{{1,3}}(?P<gap>{gaps})\d{{3}}(?:(?P=gap)\d{{3}})*|\d*)"
    number = rf"(?P<number>[-+−]?{whole}(?:{point}\d+)?(?:[eE][-+]?\d+)?)"
    pattern = re.compile(rf"(?P<before>{SYMBOLS})\s*(?=[-+−]?{point}?\d){number}\s*(?P<behind>{SYMBOLS})")
    matches = [match for text in texts if (match := pattern.fullmatch(text))]
    symbols = {(match["before"], match["behind"]) for match in matches}
    thousands = {match["gap"] for match in matches if match["gap"]}
    if len(matches) < len(texts) or len(symbols) > 1 or len(thousands) > 1:
        return []
    plain = (re.sub(gaps, "", match["number"]) for match in matches)
    return [number.replace("−", "-").replace(decimal, ".") for number in plain]


DATES = ("%Y/%m/%d", "%Y/%m", "%Y%m%d", "%d/%b/%Y", "%d/%b/%y", "%d/%B/%Y", "%b/%d/%Y", "%B/%d/%Y")
ORDERED_DATES = {"dmy": ("%d/%m/%Y", "%d/%m/%y"), "mdy": ("%m/%d/%Y", "%m/%d/%y")}  # ambiguous: 05/01/2013
TIMES = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M%p", "%I:%M:%S%p")
_DATE_AND_TIME = (
    r"^(?P<date>.*?)(?:(?:^|T|\s)(?P<time>\d{1,2}:[\d:.]+(?:\s*[AaPp][Mm])?)\s*(?:Z|UTC|[-+]\d\d(?::?\d\d)?)?)?$"
)


@dataclass(frozen=True, eq=False)
class DateTimes:
    """A parsed column of dates, of times of day, or of both; one entry per row."""

    days: np.ndarray  # days since 1 January 1970; NaN if the cell has no date
    hours: np.ndarray  # hours since midnight; NaN if the cell has no time
    order: str | None = None  # "dmy" or "mdy" if the format has numbers for day and month with the year last


def parse_datetimes(values: pd.Series, order: str = "dmy") -> DateTimes | None:
    """Parse a column of dates and times that all have one format; None if it holds anything else.

    Time zones are ignored. ``order`` ("dmy" or "mdy") applies if all dates are ambiguous.
    """
    if pd.api.types.is_datetime64_any_dtype(values):
        wall = values.dt.tz_localize(None) if values.dt.tz is not None else values
        return DateTimes(*_split_datetimes(wall))
    if not is_text(values):
        return None
    codes, distinct = pd.factorize(values)
    texts = pd.Series(distinct, dtype=object).astype(str).str.strip()
    if texts.empty or _parse_texts(texts[:SAMPLE], order) is None or (parsed := _parse_texts(texts, order)) is None:
        return None
    return DateTimes(np.append(parsed.days, np.nan)[codes], np.append(parsed.hours, np.nan)[codes], parsed.order)


def _parse_texts(texts: pd.Series, order: str) -> DateTimes | None:
    parts = texts.str.extract(_DATE_AND_TIME)
    dates = parts["date"].str.replace(r"[\s.,/-]+", "/", regex=True)
    times = parts["time"].str.replace(r"\s", "", regex=True)
    days = hours = np.full(len(texts), np.nan)
    has_time, found = times.notna().to_numpy(), None
    if (dates != "").any():
        other = "mdy" if order == "dmy" else "dmy"
        orders = {name: key for key in (order, other) for name in ORDERED_DATES[key]}
        parsed = _parse_format(dates, (*DATES, *orders))
        if parsed is None:
            return None
        days, found = _split_datetimes(parsed[0])[0], orders.get(parsed[1])
    elif not has_time.all():
        return None
    if has_time.any():
        parsed = _parse_format(times[has_time], TIMES)
        if parsed is None:
            return None
        hours = hours.copy()
        hours[has_time] = _split_datetimes(parsed[0])[1]
    return DateTimes(days, hours, found)


def _parse_format(texts: pd.Series, formats: Sequence[str]) -> tuple[pd.Series, str] | None:
    """Return the texts as dates, and the first format that all of them have; None if there is none."""
    for name in formats:
        try:
            return pd.to_datetime(texts, format=name), name
        except ValueError:
            continue
    return None


def _split_datetimes(values: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    midnight = values.dt.normalize()
    days, hours = (midnight - pd.Timestamp(0)) / pd.Timedelta(days=1), (values - midnight) / pd.Timedelta(hours=1)
    return days.to_numpy(float), hours.to_numpy(float)
