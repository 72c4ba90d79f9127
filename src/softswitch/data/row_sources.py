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
        """Return the columns of these rows. Rows are numbered by client, and by stratum within a client."""


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


def dataset_reader(datasets: Sequence[Any], names: Sequence[Any], columns: Sequence[str]) -> RowFunction:
    """Return a function that reads items of data sets, one per client; ``columns`` name the entries of tuples."""

    def read_item(client: int, item: Any) -> dict[str, np.ndarray]:
        if not isinstance(item, Mapping):
            entries = item if isinstance(item, tuple | list) else (item,)
            if len(entries) != len(columns):
                raise ValueError(
                    f"an item of client {names[client]!r} has {len(entries)} entries, but columns names {list(columns)}"
                )
            item = dict(zip(columns, entries, strict=True))
        return {key: np.asarray(part.detach().cpu() if hasattr(part, "detach") else part) for key, part in item.items()}

    def read(clients: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
        items: list[Any] = [None] * len(rows)
        by_client = np.argsort(clients, kind="stable")
        for group in np.split(by_client, np.flatnonzero(np.diff(clients[by_client])) + 1):
            client, indices = int(clients[group[0]]), rows[group].tolist()
            dataset = datasets[client]
            try:
                is_batched = hasattr(dataset, "__getitems__")
                found = dataset.__getitems__(indices) if is_batched else [dataset[i] for i in indices]
            except Exception as error:
                cause = f"{type(error).__name__}: {error}"
                raise RuntimeError(
                    f"the data set of client {names[client]!r} failed for items {indices[:3]}: {cause}"
                ) from error
            for place, item in zip(group.tolist(), found, strict=True):
                items[place] = read_item(client, item)
        return {name: stack(name, clients, items) for name in items[0]}

    def stack(name: str, clients: np.ndarray, items: list[Any]) -> np.ndarray:
        shapes = [item[name].shape if name in item else None for item in items]
        if odd := [i for i, shape in enumerate(shapes) if shape != shapes[0]]:
            raise ValueError(
                f"{name!r} must have one shape in all items, but is of shape {shapes[odd[0]]} in an item of client "
                f"{names[clients[odd[0]]]!r} and of shape {shapes[0]} in an item of client {names[clients[0]]!r}"
            )
        return np.stack([item[name] for item in items])

    return read
