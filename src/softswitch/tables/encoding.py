"""How a table's columns become features, alike for training and prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from softswitch.tables.features import Column, DateParts, Levels, Numeric, column_kind, from_dict, to_dict
from softswitch.tables.moments import order_of


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
                    found.append(DateParts.fit(values, next(iter(order_of(everything[name])), None)))
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
