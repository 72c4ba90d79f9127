"""How a table's columns become features, alike for training and prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

MOST_LEVELS = 200
"""A column of text with more levels is most likely a name or a number of a case."""
ENOUGH_TO_DOUBT = 10
"""So many rows, and none with a level that is known: the column has been read otherwise than in training."""


def as_words(values: pd.Series) -> pd.Series:
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
        told = as_words(values)
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
            levels = sorted(set(as_words(values.dropna())))
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
