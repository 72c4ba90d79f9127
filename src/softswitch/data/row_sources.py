"""Sources of out-of-core rows: arrays in files, data sets, or a function of row numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

RowFunction = Callable[[np.ndarray, np.ndarray], Mapping[str, Any]]
"""Maps client indices and row numbers within the clients (both from 0, one entry per row) to the rows' columns."""


class RowSource(Protocol):
    """A source of rows for ``StreamedData``. It may be called from another thread, one call at a time."""

    def take(self, rows: np.ndarray) -> Mapping[str, Any]:
        """Return the columns of these rows, by name, in the given order.

        Args:
            rows: Row numbers. Rows are numbered client by client, and stratum by stratum within a client.
        """


class ArrayRows:
    """Rows of arrays, usually memory-mapped; ``order`` is the position of each row, None if they are sorted."""

    def __init__(self, columns: Mapping[str, np.ndarray], order: np.ndarray | None = None) -> None:
        self._columns, self._order = dict(columns), order

    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns of these rows."""
        if self._order is None and len(rows) > 0 and bool((np.diff(rows) == 1).all()):
            first = int(rows[0])
            return {name: column[first : first + len(rows)] for name, column in self._columns.items()}
        places = rows if self._order is None else self._order[rows]
        return {name: np.take(column, places, axis=0) for name, column in self._columns.items()}


class FunctionRows:
    """Rows that a function computes from client indices and row numbers; ``sizes`` are the clients' row counts."""

    def __init__(self, function: RowFunction, sizes: np.ndarray) -> None:
        self._function, self._ends = function, np.cumsum(sizes)
        self._starts = self._ends - sizes

    def take(self, rows: np.ndarray) -> Mapping[str, Any]:
        """Return the columns of these rows."""
        clients = np.searchsorted(self._ends, rows, side="right")
        return self._function(clients, rows - self._starts[clients])


class DatasetRows:
    """Rows of data sets with a length and indexed items, one per client; ``columns`` name the entries of tuples."""

    def __init__(self, datasets: Sequence[Any], names: Sequence[Any], columns: Sequence[str]) -> None:
        self._datasets, self._names, self._columns = list(datasets), list(names), tuple(columns)
        self._ends = np.cumsum([len(dataset) for dataset in datasets])

    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns of these rows."""
        clients = np.searchsorted(self._ends, rows, side="right")
        items: list[Any] = [None] * len(rows)
        by_client = np.argsort(clients, kind="stable")
        for group in np.split(by_client, np.flatnonzero(np.diff(clients[by_client])) + 1):
            client = int(clients[group[0]])
            indices = (rows[group] - (self._ends[client] - len(self._datasets[client]))).tolist()
            for place, item in zip(group.tolist(), self._items(client, indices), strict=True):
                items[place] = item
        columns: dict[str, np.ndarray] = {}
        for name in items[0]:
            try:
                columns[name] = np.stack([item[name] for item in items])
            except (KeyError, ValueError) as error:
                shapes = [f"of shape {item[name].shape}" if name in item else "missing" for item in items]
                odd = next(i for i, shape in enumerate(shapes) if shape != shapes[0])
                raise ValueError(
                    f"{name!r} must have one shape in all items, but is {shapes[odd]} in an item of client "
                    f"{self._names[clients[odd]]!r} and {shapes[0]} in an item of client {self._names[clients[0]]!r}"
                ) from error
        return columns

    def _items(self, client: int, indices: list[int]) -> list[dict[str, np.ndarray]]:
        """Return items of one client, as arrays by name."""
        dataset, name = self._datasets[client], self._names[client]
        try:
            is_batched = hasattr(dataset, "__getitems__")
            items = dataset.__getitems__(indices) if is_batched else [dataset[i] for i in indices]
        except Exception as error:
            raise RuntimeError(
                f"the data set of client {name!r} failed for items {indices[:3]}: {type(error).__name__}: {error}"
            ) from error
        return [self._name_entries(item, name) for item in items]

    def _name_entries(self, item: Any, client: Any) -> dict[str, np.ndarray]:
        if not isinstance(item, Mapping):
            entries = item if isinstance(item, tuple | list) else (item,)
            if len(entries) != len(self._columns):
                raise ValueError(
                    f"an item of client {client!r} has {len(entries)} entries, but columns names {list(self._columns)}"
                )
            item = dict(zip(self._columns, entries, strict=True))
        return {
            key: np.asarray(value.detach().cpu() if hasattr(value, "detach") else value) for key, value in item.items()
        }
