"""How one column becomes features: of numbers, of words, or of dates and times. Learnt once, and applied alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from softswitch.tables.cells import detect_date_order, holds_datetimes, is_text, parse_datetimes, parse_numbers

MOST_LEVELS = 200
"""Of a column of words with more levels the most frequent are kept;"""
ROWS_OF_A_LEVEL = 5
"""each with so many training rows at least. The others are one level."""
ENOUGH_TO_DOUBT = 10
"""So many rows, and none with a level that is known: the column has been read otherwise than in training."""
A_SEASON = 90
"""Dates that span so many days have a season; fewer have only a course."""


def to_categories(values: pd.Series) -> pd.Series:
    """The values as text; whole numbers that a file's gaps have made real ones are whole again."""
    if pd.api.types.is_float_dtype(values):
        return values.map(lambda value: f"{value:.0f}" if float(value).is_integer() else str(value)).astype(object)
    return values.astype(str).astype(object)


@dataclass(frozen=True)
class Numeric:
    """A column of numbers: standardised; an empty cell is the mean, and told where training rows had empty cells."""

    kind: ClassVar[str] = "number"
    name: str
    mean: float
    scale: float
    empty: bool = False

    @classmethod
    def fit(cls, values: pd.Series) -> Numeric:
        """Mean and deviation of training rows."""
        numbers = values.to_numpy(float, na_value=np.nan)
        if np.isinf(numbers).any():
            raise ValueError(f"column {values.name!r} must be finite, but holds infinity")
        if np.isnan(numbers).all():
            raise ValueError(f"column {values.name!r} is empty in all training rows; ignore it")
        deviation = float(np.nanstd(numbers))
        mean, scale = float(np.nanmean(numbers)), deviation if deviation > 0 else 1.0
        return cls(str(values.name), mean, scale, bool(np.isnan(numbers).any()))

    @property
    def features(self) -> tuple[str, ...]:
        """The name, and where cells may be empty that they are."""
        return (self.name, f"{self.name} is empty") if self.empty else (self.name,)

    def encode(self, values: pd.Series) -> np.ndarray:
        """(x − mean)/deviation."""
        read = parse_numbers(values) if is_text(values) else None
        numbers = pd.to_numeric(values if read is None else read, errors="coerce").astype(float)
        broken = values[(numbers.isna() & values.notna()) | np.isinf(numbers)]
        if len(broken):
            raise ValueError(f"column {self.name!r} must hold numbers, as in training, but holds {broken.iloc[0]!r}")
        filled = ((numbers.fillna(self.mean) - self.mean) / self.scale).to_numpy(np.float32)
        gaps = numbers.isna().to_numpy(np.float32)
        return np.stack([filled, gaps] if self.empty else [filled], axis=1)


@dataclass(frozen=True)
class Levels:
    """A column of words: one feature a level, but for the first.

    An unknown level is one of the others, where training had some that were too rare, else none; an empty cell is a
    level of its own where training rows had empty cells, else none.
    """

    kind: ClassVar[str] = "words"
    name: str
    levels: tuple[str, ...]
    others: bool = False
    empty: bool = False

    @classmethod
    def fit(cls, values: pd.Series) -> Levels:
        """The levels of training rows."""
        words = to_categories(values.dropna())
        if words.empty:
            raise ValueError(f"column {values.name!r} is empty in all training rows; ignore it")
        levels = sorted(set(words))
        if not (many := len(levels) > MOST_LEVELS):
            return cls(str(values.name), tuple(levels), empty=bool(values.isna().any()))
        counts = words.value_counts()
        counts = counts[counts >= ROWS_OF_A_LEVEL]
        levels = sorted(sorted(counts.index, key=lambda level: (-counts[level], level))[:MOST_LEVELS])
        if not levels:
            raise ValueError(
                f"column {values.name!r} has {words.nunique()} different values, more than {MOST_LEVELS} and none of "
                f"them in {ROWS_OF_A_LEVEL} training rows; if it is a name or a number of a case, put it into "
                "data.ignore"
            )
        return cls(str(values.name), tuple(levels), many, bool(values.isna().any()))

    @property
    def features(self) -> tuple[str, ...]:
        """One name a feature."""
        more = (f"{self.name} is another",) * self.others + (f"{self.name} is empty",) * self.empty
        return (*(f"{self.name}={level}" for level in self.levels[1:]), *more)

    def encode(self, values: pd.Series) -> np.ndarray:
        """0 or 1."""
        told, filled = to_categories(values), values.notna().to_numpy()
        if set(self.levels) <= {"False", "True"}:
            told = told.replace({"0": "False", "1": "True"})
        known = told.isin(self.levels).to_numpy() & filled
        if filled.sum() >= ENOUGH_TO_DOUBT and not known.any():
            raise ValueError(
                f"column {self.name!r} holds none of the values it had in training, {', '.join(self.levels[:5])}, but "
                f"{told[filled].iloc[0]!r}"
            )
        shown = (told.to_numpy()[:, None] == np.array(self.levels[1:], dtype=object)[None, :]) & filled[:, None]
        more = [filled & ~known] * self.others + [~filled] * self.empty
        return np.concatenate([shown, *(one[:, None] for one in more)], axis=1).astype(np.float32)


@dataclass(frozen=True)
class DateParts:
    """A column of dates, of times of day, or of both.

    A date is its course (the standardised number of its day), its season (sine and cosine of the day of the year) and
    its weekday; a time is sine and cosine of the hour. An empty cell is 0 in all of these.

    Attributes:
        name: the column's.
        order: how 05/01/2013 is meant, "dmy" or "mdy", where a column does not tell.
        mean: of the days; None for times of day alone,
        scale: and their deviation.
        season: whether training rows span a season.
        weekdays: those that they have, Monday is 0; one feature each but for the first.
        clock: whether they differ in the time of day.
        empty: whether they have empty cells.
    """

    kind: ClassVar[str] = "date"
    name: str
    order: str
    mean: float | None
    scale: float
    season: bool
    weekdays: tuple[int, ...]
    clock: bool
    empty: bool

    @classmethod
    def fit(cls, values: pd.Series, order: str | None = None) -> DateParts:
        """What training rows have of all that; ``order`` where all rows of the table tell it."""
        told = order or next(iter(detect_date_order(values)), "dmy")
        moments = parse_datetimes(values, told)
        days = moments.days[~np.isnan(moments.days)]
        clock = len(np.unique(moments.hours[~np.isnan(moments.hours)])) > 1
        empty = bool(values.isna().any())
        if not len(days):
            return cls(str(values.name), told, None, 1.0, False, (), clock, empty)
        scale = float(days.std()) or 1.0
        weekdays = tuple(sorted({int(day) for day in _weekday(days)}))
        span = float(np.ptp(days)) >= A_SEASON
        return cls(str(values.name), told, float(days.mean()), scale, span, weekdays, clock, empty)

    @property
    def features(self) -> tuple[str, ...]:
        """One name a feature."""
        course = (f"{self.name} day",) if self.mean is not None else ()
        season = (f"{self.name} season sin", f"{self.name} season cos") if self.season else ()
        weekdays = tuple(f"{self.name} {WEEKDAYS[day]}" for day in self.weekdays[1:])
        clock = (f"{self.name} hour sin", f"{self.name} hour cos") if self.clock else ()
        return (*course, *season, *weekdays, *clock, *((f"{self.name} is empty",) if self.empty else ()))

    def encode(self, values: pd.Series) -> np.ndarray:
        """Course, season, weekday and hour."""
        moments = parse_datetimes(values, self.order)
        dateless = values.notna().to_numpy() & np.isnan(moments.days) if self.mean is not None else False
        if (wrong := moments.unread | dateless).any():
            what = "times of day" if self.mean is None else "dates"
            raise ValueError(
                f"column {self.name!r} must hold {what}, as in training, but holds {values[wrong].iloc[0]!r}"
            )
        parts = []
        if self.mean is not None:
            parts.append((moments.days - self.mean) / self.scale)
        if self.season:
            parts += _circle(_day_of_year(moments.days) / 365.25)
        weekday = _weekday(moments.days)
        parts += [(weekday == day).astype(float) for day in self.weekdays[1:]]
        if self.clock:
            parts += _circle(moments.hours / 24)
        if self.empty:
            parts.append(values.isna().to_numpy(float))
        if not parts:
            return np.zeros((len(values), 0), np.float32)
        return np.nan_to_num(np.stack(parts, axis=1)).astype(np.float32)


WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _weekday(days: np.ndarray) -> np.ndarray:
    """Monday is 0; the first of January 1970 was a Thursday."""
    return (days + 3) % 7


def _day_of_year(days: np.ndarray) -> np.ndarray:
    known = np.where(np.isnan(days), 0, days).astype(int).astype("datetime64[D]")
    since = (known - known.astype("datetime64[Y]").astype("datetime64[D]")).astype(float)
    return np.where(np.isnan(days), np.nan, since)


def _circle(turns: np.ndarray) -> list[np.ndarray]:
    return [np.sin(2 * np.pi * turns), np.cos(2 * np.pi * turns)]


Column = Numeric | Levels | DateParts
KINDS: dict[str, type[Column]] = {kind.kind: kind for kind in (Numeric, Levels, DateParts)}


def column_kind(values: pd.Series) -> str:
    """What a column becomes: "number", "words" or "date"."""
    if holds_datetimes(values):
        return DateParts.kind
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
        return Numeric.kind
    return Levels.kind


def to_dict(column: Column) -> dict[str, Any]:
    """For JSON."""
    told = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(column).items()}
    return {"kind": column.kind, **told}


def from_dict(told: dict[str, Any]) -> Column:
    """From JSON; what was written before kinds were told has levels or has none."""
    kind = told.get("kind", Levels.kind if "levels" in told else Numeric.kind)
    if kind not in KINDS:
        raise ValueError(f"column {told.get('name')!r} is of the kind {kind!r}, which this version does not know")
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in told.items() if name != "kind"
    }
    return KINDS[kind](**fields)


@dataclass(frozen=True)
class Encoding:
    """How a table's columns become features."""

    columns: tuple[Column, ...]

    @classmethod
    def fit(cls, table: pd.DataFrame, names: Sequence[str], whole: pd.DataFrame | None = None) -> Encoding:
        """Learn means, deviations and levels from training rows.

        Args:
            table: the training rows.
            names: the columns to learn from.
            whole: all rows of the table, by which it is told what a column holds (numbers, words, dates) and how its
                dates are written, nothing else; by default the training rows.
        """
        everything = table if whole is None else whole
        found: list[Column] = []
        complaints = []
        for name in names:
            values, kind = table[name], column_kind(everything[name])
            try:
                if kind == DateParts.kind and values.notna().any():
                    found.append(DateParts.fit(values, next(iter(detect_date_order(everything[name])), None)))
                else:
                    found.append(Numeric.fit(values) if kind == Numeric.kind else Levels.fit(values))
            except ValueError as error:
                complaints.append(str(error))
        if complaints:
            raise ValueError("\n".join(complaints))
        if not sum(len(one.features) for one in found):
            raise ValueError("no features are left: every column is the label, the client, ignored, or constant")
        return cls(tuple(found))

    @property
    def features(self) -> tuple[str, ...]:
        """The features' names."""
        return tuple(name for one in self.columns for name in one.features)

    def encode(self, table: pd.DataFrame) -> np.ndarray:
        """Features, one row a row."""
        missing = [one.name for one in self.columns if one.name not in table.columns]
        if missing:
            raise ValueError(f"the table lacks columns of the training data: {', '.join(map(repr, missing))}")
        return np.concatenate([one.encode(table[one.name]) for one in self.columns], axis=1)

    def to_dict(self) -> list[dict[str, Any]]:
        """For JSON."""
        return [to_dict(one) for one in self.columns]

    @classmethod
    def from_dict(cls, told: Sequence[dict[str, Any]]) -> Encoding:
        """From JSON, also that of before columns told their kind."""
        return cls(tuple(map(from_dict, told)))
