"""Where rows come from that do not lie in memory: arrays in files, or a function of their numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

RowFunction = Callable[[np.ndarray, np.ndarray], Mapping[str, Any]]
"""From whose rows, and which of theirs (both counted from 0, one entry a row), to the columns of these rows."""


class RowSource(Protocol):
    """What ``StreamedData`` reads rows from: one method. It may be called from another thread, one call at a time."""

    def take(self, rows: np.ndarray) -> Mapping[str, Any]:
        """The columns of these rows, by name, in their order.

        Args:
            rows: the rows' numbers: all clients' rows are counted one client after the other, stratum by stratum.
        """


class ArrayRows:
    """Rows of arrays, of memory-mapped ones in particular: only what is asked for is read.

    Args:
        columns: the arrays by name, one row a sample.
        order: where in the arrays each row lies; None: in the order that rows are counted in.
    """

    def __init__(self, columns: Mapping[str, np.ndarray], order: np.ndarray | None = None) -> None:
        self._columns, self._order = dict(columns), order

    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of these rows."""
        if self._order is None and _one_stretch(rows):
            first = int(rows[0])
            return {name: column[first : first + len(rows)] for name, column in self._columns.items()}
        places = rows if self._order is None else self._order[rows]
        return {name: np.take(column, places, axis=0) for name, column in self._columns.items()}


class FunctionRows:
    """Rows that a function makes of their numbers.

    Args:
        function: from whose rows, and which of theirs, to their columns.
        sizes: how many rows each client has.
    """

    def __init__(self, function: RowFunction, sizes: np.ndarray) -> None:
        self._function, self._ends = function, np.cumsum(sizes)
        self._starts = self._ends - sizes

    def take(self, rows: np.ndarray) -> Mapping[str, Any]:
        """The columns of these rows."""
        clients = np.searchsorted(self._ends, rows, side="right")
        return self._function(clients, rows - self._starts[clients])


def _one_stretch(rows: np.ndarray) -> bool:
    """Whether these are rows that lie one after the other."""
    return len(rows) > 0 and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((np.diff(rows) == 1).all())
