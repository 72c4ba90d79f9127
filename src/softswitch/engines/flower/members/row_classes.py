"""Which class or group each row of a client is of, how many rows each has, and which are too few to answer on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Classes = Any
"""A column's name, a tuple of names (all combinations of their values), or one label a row; None: not told."""


class RowClasses:
    """The classes of a client's rows, those to train on and those held out.

    Args:
        own: one label a row; None: not told.
        held_out: likewise of the rows held out.
    """

    def __init__(self, own: np.ndarray | None, held_out: np.ndarray | None) -> None:
        self._own, self._held_out = own, held_out

    @classmethod
    def told(
        cls,
        classes: Classes,
        held_out_classes: Classes,
        columns: Sequence[Mapping[str, Any] | None],
        rows: Sequence[int],
    ) -> RowClasses:
        """What a client's arguments say.

        Args:
            classes: of the rows to train on.
            held_out_classes: of those held out; None: the same columns, where ``classes`` names some.
            columns: those of the rows to train on, and of those held out; None where they have no names.
            rows: how many there are of either.
        """
        if held_out_classes is None and _named(classes):
            held_out_classes = classes
        return cls(
            _labels("classes", classes, columns[0], rows[0]),
            _labels("held_out_classes", held_out_classes, columns[1], rows[1]) if rows[1] else None,
        )

    @property
    def rows(self) -> dict[str, int] | None:
        """How many rows to train on each class has; None: not told."""
        return None if self._own is None else _counted(self._own)

    @property
    def held_out_rows(self) -> dict[str, int] | None:
        """How many rows held out each has; None: not told."""
        return None if self._held_out is None else _counted(self._held_out)

    def kept(self, least: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Which rows are of a class that has enough of them: to train on, and held out, where those are told.

        A class that has too few rows to train on is left out of those held out too.

        Args:
            least: so many rows are enough.
        """
        assert self._own is not None
        small = [name for name, many in _counted(self._own).items() if many < least]
        kept = ~np.isin(self._own, small)
        if self._held_out is None:
            return kept, None
        small += [name for name, many in _counted(self._held_out).items() if many < least]
        return kept, ~np.isin(self._held_out, small)

    def of(self, rows: np.ndarray, held_out: np.ndarray | None) -> dict[str, Any]:
        """A client's arguments about classes for some of its rows.

        Args:
            rows: which of those to train on,
            held_out: and which of those held out; None: all.
        """
        both = {"classes": (self._own, rows), "held_out_classes": (self._held_out, held_out)}
        return {
            name: labels if labels is None or kept is None or not kept.any() else labels[kept]
            for name, (labels, kept) in both.items()
        }


def part_of(columns: Mapping[str, Any] | None, kept: np.ndarray | None) -> Any:
    """Columns of some rows; None where there are none.

    Args:
        columns: of all rows.
        kept: which; None: all.
    """
    if columns is None or kept is None:
        return columns
    return {key: np.asarray(column)[kept] for key, column in columns.items()} if kept.any() else None


def least_in_a_batch(class_rows: Mapping[str, int], batch: int) -> int:
    """How many rows of its rarest class a batch drawn from all rows has, as a rule.

    Args:
        class_rows: how many each class has.
        batch: how many rows are drawn.
    """
    rows = sum(class_rows.values())
    return min(batch, rows) * min(class_rows.values()) // rows


def _named(classes: Classes) -> bool:
    """Whether classes are told by names of columns."""
    names = (classes,) if isinstance(classes, str) else classes
    return isinstance(names, tuple) and bool(names) and all(isinstance(name, str) for name in names)


def _labels(argument: str, given: Classes, columns: Mapping[str, Any] | None, rows: int) -> np.ndarray | None:
    """One text a row that says its class; None where nothing is told."""
    if given is None:
        return None
    parts = [np.asarray(given)] if not _named(given) else []
    for name in ((given,) if isinstance(given, str) else given) if not parts else ():
        if columns is None or name not in columns:
            known = "none by name" if columns is None else ", ".join(columns)
            raise ValueError(f"{argument} names {name!r}, which is no column of the client's; there are {known}")
        parts.append(np.asarray(columns[name]))
    if any(part.shape != (rows,) for part in parts):
        raise ValueError(f"{argument} must have one label for each of {rows} rows, but has shape {parts[0].shape}")
    values, codes = zip(*(np.unique(part, return_inverse=True) for part in parts), strict=True)
    found, which = np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)
    texts = [" × ".join(str(own[code]) for own, code in zip(values, row, strict=True)) for row in found]
    return np.array(texts)[which.reshape(-1)]


def _counted(labels: np.ndarray) -> dict[str, int]:
    """How many rows have which label."""
    found, many = np.unique(labels, return_counts=True)
    return dict(zip(found.tolist(), many.tolist(), strict=True))
