"""Tables: reading them from files, and turning their columns into features, alike for training and prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

MOST_LEVELS = 200
"""A column of text with more levels is most likely a name or a number of a case."""
ENOUGH_TO_DOUBT = 10
"""So many rows, and none with a level that is known: the column has been read otherwise than in training."""


def read_table(file: str | Path, *, as_text: bool = False) -> pd.DataFrame:
    """Read a CSV (also compressed) or Parquet file; ``as_text``: a CSV's cells as they stand there."""
    path = Path(file)
    if not path.exists():
        raise ValueError(f"file must be a table that is there, but {str(path)!r} does not exist")
    if path.suffix in (".parquet", ".pq"):
        try:
            return pd.read_parquet(path)
        except ImportError as error:
            raise ValueError(f"{path} is Parquet, which needs pyarrow: pip install 'softswitch[parquet]'") from error
    if ".csv" not in path.suffixes:
        raise ValueError(f"file must end in .csv (or .csv.gz, .csv.xz, …) or .parquet, but is {str(path)!r}")
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False) if as_text else pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} could not be read as CSV: {error}") from error


def column(table: pd.DataFrame, name: str, setting: str) -> pd.Series:
    """A column of the table, or raise with the setting that names it."""
    if name not in table.columns:
        known = ", ".join(map(repr, table.columns))
        raise ValueError(f"{setting} must name a column of the table, but is {name!r}; there are {known}")
    found: pd.Series = table[name]
    if found.isna().any():
        raise ValueError(f"{setting} names column {name!r}, which has {int(found.isna().sum())} empty cells")
    return found


def is_value(values: pd.Series, wanted: Any, setting: str) -> np.ndarray:
    """Which rows hold a value; compared as they are or as text, since a file knows no types."""
    chosen = values == wanted
    if not chosen.any():
        chosen = values.astype(str) == str(wanted)
    if not chosen.any() or chosen.all():
        few = ", ".join(map(repr, pd.unique(values)[:8].tolist()))
        share = "no" if not chosen.any() else "every"
        raise ValueError(
            f"{setting} must single out some rows by column {values.name!r}, but {wanted!r} is the value of {share} "
            f"row; values are {few}"
        )
    return chosen.to_numpy()


def words(values: pd.Series) -> pd.Series:
    """The values as text; whole numbers that a file's gaps have made real ones are whole again."""
    if pd.api.types.is_float_dtype(values):
        return values.map(lambda value: f"{value:.0f}" if float(value).is_integer() else str(value)).astype(object)
    return values.astype(str).astype(object)


@dataclass(frozen=True)
class Numeric:
    """A column of numbers: standardised; an empty cell is the mean."""

    name: str
    mean: float
    scale: float

    @property
    def features(self) -> tuple[str, ...]:
        """The name."""
        return (self.name,)

    def encode(self, values: pd.Series) -> np.ndarray:
        """(x − mean)/deviation."""
        numbers = pd.to_numeric(values, errors="coerce").astype(float)
        broken = values[(numbers.isna() & values.notna()) | np.isinf(numbers)]
        if len(broken):
            raise ValueError(f"column {self.name!r} must hold numbers, as in training, but holds {broken.iloc[0]!r}")
        filled: np.ndarray = ((numbers.fillna(self.mean) - self.mean) / self.scale).to_numpy(np.float32)
        return filled[:, None]


@dataclass(frozen=True)
class Levels:
    """A column of words: one feature a level, but for the first. An unknown level, or an empty cell, is none."""

    name: str
    levels: tuple[str, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """One name a feature."""
        return tuple(f"{self.name}={level}" for level in self.levels[1:])

    def encode(self, values: pd.Series) -> np.ndarray:
        """0 or 1."""
        told = words(values)
        if set(self.levels) <= {"False", "True"}:
            told = told.replace({"0": "False", "1": "True"})
        known = told.isin(self.levels)
        if values.notna().sum() >= ENOUGH_TO_DOUBT and not known.any():
            raise ValueError(
                f"column {self.name!r} holds none of the values it had in training, {', '.join(self.levels[:5])}, but "
                f"{told[values.notna()].iloc[0]!r}"
            )
        shown: np.ndarray = (told.to_numpy()[:, None] == np.array(self.levels[1:], dtype=object)[None, :]).astype(
            np.float32
        )
        return shown


Column = Numeric | Levels


@dataclass(frozen=True)
class Encoding:
    """How a table's columns become features."""

    columns: tuple[Column, ...]

    @classmethod
    def fit(cls, table: pd.DataFrame, names: Sequence[str]) -> Encoding:
        """Learn means, deviations and levels from training rows."""
        found: list[Column] = []
        for name in names:
            values = table[name]
            if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
                numbers = values.to_numpy(float)
                if np.isinf(numbers).any():
                    raise ValueError(f"column {name!r} must be finite, but holds infinity")
                if np.isnan(numbers).all():
                    raise ValueError(f"column {name!r} is empty in all training rows; ignore it")
                deviation = float(np.nanstd(numbers))
                found.append(Numeric(name, float(np.nanmean(numbers)), deviation if deviation > 0 else 1.0))
                continue
            levels = sorted(set(words(values.dropna())))
            if len(levels) > MOST_LEVELS:
                raise ValueError(
                    f"column {name!r} has {len(levels)} different values, more than {MOST_LEVELS}; if it is a name or "
                    "a number of a case, put it into data.ignore"
                )
            found.append(Levels(name, tuple(levels)))
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
        return [
            {"name": one.name, "mean": one.mean, "scale": one.scale}
            if isinstance(one, Numeric)
            else {"name": one.name, "levels": list(one.levels)}
            for one in self.columns
        ]

    @classmethod
    def from_dict(cls, told: Sequence[dict[str, Any]]) -> Encoding:
        """From JSON."""
        return cls(
            tuple(
                Levels(one["name"], tuple(one["levels"]))
                if "levels" in one
                else Numeric(one["name"], one["mean"], one["scale"])
                for one in told
            )
        )
