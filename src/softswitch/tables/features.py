"""Encoding of a column as features: numbers, categories, or dates and times. Fitted on training rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from softswitch.support.checks import call_all
from softswitch.tables.cells import detect_date_order, holds_datetimes, is_text, parse_datetimes, parse_numbers

MAX_LEVELS = 200  # number of levels that a categorical column keeps; rarer ones are merged
MIN_LEVEL_ROWS = 5  # smallest number of training rows of a kept level, if there are too many levels
MIN_UNKNOWN_ROWS = 10  # number of rows without any known level from which a column is refused
SEASON_DAYS = 90  # span of days from which dates have a season
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def to_categories(values: pd.Series) -> pd.Series:
    """Return the values as text; floats that are integers are written as such."""
    if pd.api.types.is_float_dtype(values):
        return values.map(lambda value: f"{value:.0f}" if float(value).is_integer() else str(value)).astype(object)
    return values.astype(str).astype(object)


@dataclass(frozen=True)
class Numeric:
    """A column of numbers, standardised; an empty cell is the mean, marked if training rows have empty cells."""

    kind: ClassVar[str] = "number"
    name: str
    mean: float
    scale: float
    empty: bool = False

    @classmethod
    def fit(cls, values: pd.Series) -> Numeric:
        """Fit mean and standard deviation."""
        numbers = values.to_numpy(float, na_value=np.nan)
        if np.isinf(numbers).any():
            raise ValueError(f"column {values.name!r} must be finite, but holds infinity")
        if np.isnan(numbers).all():
            raise ValueError(f"column {values.name!r} is empty in all training rows; add it to data.ignore")
        scale = float(np.nanstd(numbers)) or 1.0
        return cls(str(values.name), float(np.nanmean(numbers)), scale, bool(np.isnan(numbers).any()))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features."""
        return (self.name, f"{self.name} is empty") if self.empty else (self.name,)

    def encode(self, values: pd.Series) -> np.ndarray:
        """Return (x − mean)/scale, and whether cells are empty."""
        parsed = parse_numbers(values) if is_text(values) else None
        numbers = pd.to_numeric(values if parsed is None else parsed, errors="coerce").astype(float)
        wrong = values[(numbers.isna() & values.notna()) | np.isinf(numbers)]
        if len(wrong):
            raise _wrong_cell(self.name, "numbers", wrong)
        scaled = ((numbers.fillna(self.mean) - self.mean) / self.scale).to_numpy(np.float32)
        return np.stack([scaled, numbers.isna().to_numpy(np.float32)] if self.empty else [scaled], axis=1)


@dataclass(frozen=True)
class Categorical:
    """A column of categories: one indicator per level but the first.

    An unknown level is one of the merged rare levels if there are any, else none. An empty cell is a level if training
    rows have empty cells, else none.
    """

    kind: ClassVar[str] = "words"
    name: str
    levels: tuple[str, ...]
    others: bool = False
    empty: bool = False

    @classmethod
    def fit(cls, values: pd.Series) -> Categorical:
        """Fit the levels."""
        categories = to_categories(values.dropna())
        if categories.empty:
            raise ValueError(f"column {values.name!r} is empty in all training rows; add it to data.ignore")
        levels, empty = sorted(set(categories)), bool(values.isna().any())
        if len(levels) <= MAX_LEVELS:
            return cls(str(values.name), tuple(levels), empty=empty)
        counts = categories.value_counts()
        counts = counts[counts >= MIN_LEVEL_ROWS]
        levels = sorted(sorted(counts.index, key=lambda level: (-counts[level], level))[:MAX_LEVELS])
        if not levels:
            found = f"{categories.nunique()} distinct values, more than {MAX_LEVELS}, none in {MIN_LEVEL_ROWS} rows"
            raise ValueError(f"column {values.name!r} has {found}; if it is an identifier, add it to data.ignore")
        return cls(str(values.name), tuple(levels), True, empty)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features."""
        more = (f"{self.name} is another",) * self.others + (f"{self.name} is empty",) * self.empty
        return (*(f"{self.name}={level}" for level in self.levels[1:]), *more)

    def encode(self, values: pd.Series) -> np.ndarray:
        """Return indicators of the levels."""
        categories, filled = to_categories(values), values.notna().to_numpy()
        if set(self.levels) <= {"False", "True"}:
            categories = categories.replace({"0": "False", "1": "True"})
        known = categories.isin(self.levels).to_numpy() & filled
        if filled.sum() >= MIN_UNKNOWN_ROWS and not known.any():
            expected, example = ", ".join(self.levels[:5]), categories[filled].iloc[0]
            raise ValueError(f"column {self.name!r} holds none of its values in training, {expected}, but {example!r}")
        levels = np.array(self.levels[1:], dtype=object)[None, :]
        indicators = (categories.to_numpy()[:, None] == levels) & filled[:, None]
        more = [filled & ~known] * self.others + [~filled] * self.empty
        return np.concatenate([indicators, *(column[:, None] for column in more)], axis=1).astype(np.float32)


@dataclass(frozen=True)
class DateParts:
    """A column of dates, of times of day, or of both.

    A date becomes the standardised day, sine and cosine of the day of the year, and the weekday. A time becomes sine
    and cosine of the hour. All features of an empty cell are 0.
    """

    kind: ClassVar[str] = "date"
    name: str
    order: str  # of the numbers in ambiguous dates such as 05/01/2013, "dmy" or "mdy"
    mean: float | None  # None for times of day
    scale: float
    season: bool  # whether the training rows span a season
    weekdays: tuple[int, ...]  # in the training rows; Monday is 0; one feature each but the first
    clock: bool  # whether times of day differ in the training rows
    empty: bool

    @classmethod
    def fit(cls, values: pd.Series, order: str | None = None) -> DateParts:
        """Fit the parts that vary in the training rows; ``order``: of the dates in the whole table, if known."""
        name, order = str(values.name), order or next(iter(detect_date_order(values)), "dmy")
        parsed = parse_datetimes(values, order)
        days = parsed.days[~np.isnan(parsed.days)]
        clock = len(np.unique(parsed.hours[~np.isnan(parsed.hours)])) > 1
        empty = bool(values.isna().any())
        if not len(days):
            return cls(name, order, None, 1.0, False, (), clock, empty)
        weekdays = tuple(sorted({int(day) for day in _weekday(days)}))
        season = float(np.ptp(days)) >= SEASON_DAYS
        return cls(name, order, float(days.mean()), float(days.std()) or 1.0, season, weekdays, clock, empty)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features."""
        day, season = ["day"] * (self.mean is not None), ["season sin", "season cos"] * self.season
        clock, empty = ["hour sin", "hour cos"] * self.clock, ["is empty"] * self.empty
        weekdays = [WEEKDAYS[day] for day in self.weekdays[1:]]
        return tuple(f"{self.name} {part}" for part in (*day, *season, *weekdays, *clock, *empty))

    def encode(self, values: pd.Series) -> np.ndarray:
        """Return day, season, weekday and hour."""
        parsed = parse_datetimes(values, self.order)
        lacks_date = values.notna().to_numpy() & np.isnan(parsed.days) if self.mean is not None else False
        if (wrong := parsed.unread | lacks_date).any():
            raise _wrong_cell(self.name, "times of day" if self.mean is None else "dates", values[wrong])
        parts = [] if self.mean is None else [(parsed.days - self.mean) / self.scale]
        if self.season:
            parts += _circle(_day_of_year(parsed.days) / 365.25)
        parts += [(_weekday(parsed.days) == day).astype(float) for day in self.weekdays[1:]]
        if self.clock:
            parts += _circle(parsed.hours / 24)
        if self.empty:
            parts.append(values.isna().to_numpy(float))
        return np.nan_to_num(np.array(parts).reshape(len(parts), len(values)).T).astype(np.float32)


def _wrong_cell(name: str, content: str, wrong: pd.Series) -> ValueError:
    return ValueError(f"column {name!r} must hold {content}, as in training, but holds {wrong.iloc[0]!r}")


def _weekday(days: np.ndarray) -> np.ndarray:
    return (days + 3) % 7  # 1 January 1970 was a Thursday


def _day_of_year(days: np.ndarray) -> np.ndarray:
    known = np.where(np.isnan(days), 0, days).astype(int).astype("datetime64[D]")
    since = (known - known.astype("datetime64[Y]").astype("datetime64[D]")).astype(float)
    return np.where(np.isnan(days), np.nan, since)


def _circle(turns: np.ndarray) -> list[np.ndarray]:
    return [np.sin(2 * np.pi * turns), np.cos(2 * np.pi * turns)]


Column = Numeric | Categorical | DateParts
COLUMN_KINDS: dict[str, type[Column]] = {kind.kind: kind for kind in (Numeric, Categorical, DateParts)}


def column_kind(values: pd.Series) -> str:
    """Return the kind of a column: "number", "words" or "date"."""
    if holds_datetimes(values):
        return DateParts.kind
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
        return Numeric.kind
    return Categorical.kind


@dataclass(frozen=True)
class Encoding:
    """The encoding of a table's columns as features."""

    columns: tuple[Column, ...]

    @classmethod
    def fit(cls, table: pd.DataFrame, names: Sequence[str], whole: pd.DataFrame | None = None) -> Encoding:
        """Fit means, deviations and levels of training rows; ``whole`` has all rows, to detect kinds of columns."""
        whole = table if whole is None else whole
        encoding = cls(call_all(*(partial(_fit_column, table[name], whole[name]) for name in names)))
        if not encoding.features:
            raise ValueError("no features are left: every column is the label, the client, ignored, or constant")
        return encoding

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(name for column in self.columns for name in column.features)

    def encode(self, table: pd.DataFrame) -> np.ndarray:
        """Return the features, one row per row of the table."""
        missing = [column.name for column in self.columns if column.name not in table.columns]
        if missing:
            raise ValueError(f"the table lacks columns of the training data: {', '.join(map(repr, missing))}")
        return np.concatenate([column.encode(table[column.name]) for column in self.columns], axis=1)

    def to_dict(self) -> list[dict[str, Any]]:
        """Return the encoding as JSON values."""
        return [{"kind": column.kind} | _swap(asdict(column), tuple, list) for column in self.columns]

    @classmethod
    def from_dict(cls, entries: Sequence[dict[str, Any]]) -> Encoding:
        """Return the encoding that ``to_dict`` wrote."""
        fields = [_swap(entry, list, tuple) for entry in entries]
        return cls(tuple(COLUMN_KINDS[values.pop("kind")](**values) for values in fields))


def _fit_column(values: pd.Series, whole: pd.Series) -> Column:
    kind = column_kind(whole)
    if kind == DateParts.kind and values.notna().any():
        return DateParts.fit(values, next(iter(detect_date_order(whole)), None))
    return Numeric.fit(values) if kind == Numeric.kind else Categorical.fit(values)


def _swap(values: dict[str, Any], old: type, new: Callable[..., Any]) -> dict[str, Any]:
    return {name: new(value) if isinstance(value, old) else value for name, value in values.items()}
