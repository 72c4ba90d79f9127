"""Encoding of columns as features: numbers, categories, or dates and times. Encodings are fitted to training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import pandas as pd

from softswitch.support.checks import call_all
from softswitch.tables.cells import is_text, parse_datetimes, parse_numbers

MAX_LEVELS = 200  # largest number of levels of a categorical column; rarer ones are merged
MIN_LEVEL_ROWS = 5  # smallest number of training rows of a level, if there are too many levels
MIN_UNKNOWN_ROWS = 10  # smallest number of rows of which at least one must have a known level
SEASON_DAYS = 90  # smallest span of dates, in days, whose season is a feature
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def to_categories(values: pd.Series) -> pd.Series:
    """Return the values as text; floats without a fractional part are written as integers."""
    if pd.api.types.is_float_dtype(values):
        return values.map(lambda value: f"{value:.0f}" if float(value).is_integer() else str(value)).astype(object)
    return values.astype(str).astype(object)


def mark_categories(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return the table with these columns as text of dtype "category", which ``fit_column`` encodes as categories."""
    if unknown := [repr(name) for name in names if name not in table.columns]:
        raise ValueError(f"data.categories must name columns of the table, but {', '.join(unknown)} is not one")
    columns = {name: to_categories(table[name]).where(table[name].notna()).astype("category") for name in names}
    return table.assign(**columns)


@dataclass(frozen=True)
class Numeric:
    """A standardised column of numbers. An empty cell is replaced by the mean."""

    name: str  # name of the column
    mean: float  # mean of the training rows
    scale: float  # standard deviation of the training rows
    empty: bool = False  # whether training rows have empty cells; a second feature then marks them
    bounded: bool = False  # whether values are clipped to mean ± scale
    kind: Literal["number"] = "number"

    @classmethod
    def fit(cls, values: pd.Series) -> Numeric:
        """Fit mean and standard deviation to training rows."""
        numbers = values.to_numpy(float, na_value=np.nan)
        if np.isinf(numbers).any():
            raise ValueError(f"column {values.name!r} must be finite, but holds infinity")
        if np.isnan(numbers).all():
            raise ValueError(f"column {values.name!r} is empty in all training rows; add it to data.ignore")
        scale = float(np.nanstd(numbers)) or 1.0
        return cls(str(values.name), float(np.nanmean(numbers)), scale, bool(np.isnan(numbers).any()))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features, in the order of ``encode``."""
        return (self.name, f"{self.name} is empty") if self.empty else (self.name,)

    def encode(self, values: pd.Series) -> np.ndarray:
        """Return the standardised column, and whether a cell is empty if ``empty``: rows × features."""
        parsed = parse_numbers(values) if is_text(values) else None
        numbers = pd.to_numeric(values if parsed is None else parsed, errors="coerce").astype(float)
        wrong = values[(numbers.isna() & values.notna()) | np.isinf(numbers)]
        if len(wrong):
            raise _wrong_cell(self.name, "numbers", wrong.iloc[0])
        scaled = ((numbers.fillna(self.mean) - self.mean) / self.scale).to_numpy(np.float32)
        scaled = scaled.clip(-1, 1) if self.bounded else scaled
        return np.stack([scaled, numbers.isna().to_numpy(np.float32)] if self.empty else [scaled], axis=1)


@dataclass(frozen=True)
class Categorical:
    """A one-hot encoded column of categories, without an indicator of the first level."""

    name: str  # name of the column
    levels: tuple[str, ...]  # levels in sorted order; all indicators of another level are 0 unless ``others``
    others: bool = False  # whether rare levels are merged into a further indicator, which unknown levels have too
    empty: bool = False  # whether training rows have empty cells; a further indicator then marks them
    kind: Literal["words"] = "words"

    @classmethod
    def fit(cls, values: pd.Series) -> Categorical:
        """Fit the levels to training rows."""
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
        """Names of the features, in the order of ``encode``."""
        more = (f"{self.name} is another",) * self.others + (f"{self.name} is empty",) * self.empty
        return (*(f"{self.name}={level}" for level in self.levels[1:]), *more)

    def encode(self, values: pd.Series) -> np.ndarray:
        """Return the indicators, rows × features; raise ValueError if none of 10 or more rows has a known level."""
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

    A date becomes the standardised day, sine and cosine of the day of the year, and indicators of the weekday. A time
    becomes sine and cosine of the hour. Only parts that vary in the training rows are features. An empty cell has 0 in
    all of them.
    """

    name: str  # name of the column
    order: str  # order of the numbers in ambiguous dates such as 05/01/2013: "dmy" or "mdy"
    mean: float  # mean of the training rows, in days since 1970
    scale: float  # standard deviation of the training rows, in days
    parts: tuple[str, ...]  # suffixes of the features, such as "day" and "hour sin"
    kind: Literal["date"] = "date"

    @classmethod
    def fit(cls, values: pd.Series, order: str = "dmy") -> DateParts:
        """Fit the parts that vary in the training rows; ``order`` is that of day and month in the whole table."""
        parsed = parse_datetimes(values, order)
        assert parsed is not None
        days = parsed.days[~np.isnan(parsed.days)]
        parts = ["is empty"] * bool(values.isna().any())
        if len(np.unique(parsed.hours[~np.isnan(parsed.hours)])) > 1:
            parts = ["hour sin", "hour cos", *parts]
        if not len(days):
            return cls(str(values.name), order, 0.0, 1.0, tuple(parts))
        weekdays = sorted(set(pd.to_datetime(days, unit="D").day_of_week))
        season = ["season sin", "season cos"] * bool(np.ptp(days) >= SEASON_DAYS)
        parts = ["day", *season, *(WEEKDAYS[day] for day in weekdays[1:]), *parts]
        return cls(str(values.name), order, float(days.mean()), float(days.std()) or 1.0, tuple(parts))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features, in the order of ``encode``."""
        return tuple(f"{self.name} {part}" for part in self.parts)

    def encode(self, values: pd.Series) -> np.ndarray:
        """Return the values of ``parts``, rows × parts; raise ValueError if the cells are not dates or times."""
        days = hours = np.full(len(values), np.nan)
        if values.notna().any():
            parsed, content = parse_datetimes(values, self.order), "dates" if "day" in self.parts else "times of day"
            if parsed is None or (np.isnan(parsed.days).all() and "day" in self.parts):
                wrong = [cell for cell in values.dropna() if parse_datetimes(pd.Series([cell]), self.order) is None]
                raise _wrong_cell(self.name, content, [*wrong, *values.dropna()][0])
            days, hours = parsed.days, parsed.hours
        dates = pd.to_datetime(pd.Series(days), unit="D").dt
        year, clock = 2 * np.pi * (dates.day_of_year - 1) / 365.25, 2 * np.pi * hours / 24
        parts = {"day": (days - self.mean) / self.scale, "season sin": np.sin(year), "season cos": np.cos(year)}
        parts |= {"hour sin": np.sin(clock), "hour cos": np.cos(clock), "is empty": values.isna().to_numpy()}
        parts |= {name: dates.day_of_week == i for i, name in enumerate(WEEKDAYS)}
        columns = [np.asarray(parts[part], np.float32) for part in self.parts]
        return np.nan_to_num(np.array(columns).reshape(len(columns), len(values)).T)


def _wrong_cell(name: str, content: str, cell: object) -> ValueError:
    return ValueError(f"column {name!r} must hold {content}, as in training, but holds {cell!r}")


Column = Numeric | Categorical | DateParts


def fit_column(values: pd.Series, whole: pd.Series) -> Column:
    """Fit the encoding of a column to the training rows ``values``; all rows, ``whole``, determine its kind."""
    if isinstance(whole.dtype, pd.CategoricalDtype):
        return Categorical.fit(values)
    parsed = parse_datetimes(whole)
    if parsed is not None and values.notna().any():
        return DateParts.fit(values, parsed.order or "dmy")
    if pd.api.types.is_numeric_dtype(whole) and not pd.api.types.is_bool_dtype(whole):
        return Numeric.fit(values)
    return Categorical.fit(values)


@dataclass(frozen=True)
class Encoding:
    """The encoding of a table's columns as features."""

    columns: tuple[Column, ...]

    @classmethod
    def fit(cls, table: pd.DataFrame, names: Sequence[str], whole: pd.DataFrame | None = None) -> Encoding:
        """Fit the encoding of the columns ``names`` to the training rows ``table``.

        ``whole`` has all rows, which determine the kind of each column. Default: the training rows.
        """
        whole = table if whole is None else whole
        encoding = cls(call_all(*(partial(fit_column, table[name], whole[name]) for name in names)))
        if not encoding.features:
            raise ValueError("no features are left: every column is the label, the client, ignored, or constant")
        return encoding

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features, in the order of ``encode``."""
        return tuple(name for column in self.columns for name in column.features)

    def encode(self, table: pd.DataFrame) -> np.ndarray:
        """Return the features of a table, rows × features; raise ValueError if a column is missing."""
        missing = [column.name for column in self.columns if column.name not in table.columns]
        if missing:
            raise ValueError(f"the table lacks columns of the training data: {', '.join(map(repr, missing))}")
        return np.concatenate([column.encode(table[column.name]) for column in self.columns], axis=1)
