"""Where rows come from that do not lie in memory: arrays in files, or a function of their numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


class DatasetRows:
    """Rows of data sets with a length and items by number, such as PyTorch's map-style ones.

    Args:
        datasets: one a client.
        names: the clients' labels, for errors.
        columns: the names of an item's entries, where it is a tuple; an item that is a dict has its own.
    """

    def __init__(self, datasets: Sequence[Any], names: Sequence[Any], columns: Sequence[str]) -> None:
        self._datasets, self._names, self._columns = list(datasets), list(names), tuple(columns)
        self._ends = np.cumsum([len(one) for one in datasets])

    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of these rows."""
        clients = np.searchsorted(self._ends, rows, side="right")
        items: list[Any] = [None] * len(rows)
        by_client = np.argsort(clients, kind="stable")
        edges = np.flatnonzero(np.diff(clients[by_client])) + 1
        for group in np.split(by_client, edges):
            client = int(clients[group[0]])
            own = (rows[group] - (self._ends[client] - len(self._datasets[client]))).tolist()
            for place, item in zip(group.tolist(), self._items(client, own), strict=True):
                items[place] = item
        first = items[0]
        made: dict[str, np.ndarray] = {}
        for name in first:
            try:
                made[name] = np.stack([item[name] for item in items])
            except (KeyError, ValueError) as error:
                odd = next(i for i, item in enumerate(items) if _outline(item, name) != _outline(first, name))
                raise ValueError(
                    f"{name!r} of client {self._names[int(clients[odd])]!r} is {_outline(items[odd], name)} in one "
                    f"item, and {_outline(first, name)} in one of client {self._names[int(clients[0])]!r}"
                ) from error
        return made

    def _items(self, client: int, own: list[int]) -> list[dict[str, np.ndarray]]:
        """Some items of one client, as arrays by name."""
        dataset, name = self._datasets[client], self._names[client]
        try:
            found = dataset.__getitems__(own) if hasattr(dataset, "__getitems__") else [dataset[i] for i in own]
        except Exception as error:
            raise RuntimeError(
                f"the data set of client {name!r} gave no items for {own[:3]}: {type(error).__name__}: {error}"
            ) from error
        return [self._named(item, name) for item in found]

    def _named(self, item: Any, client: Any) -> dict[str, np.ndarray]:
        if isinstance(item, Mapping):
            return {key: _array(value) for key, value in item.items()}
        entries = item if isinstance(item, tuple | list) else (item,)
        if len(entries) != len(self._columns):
            raise ValueError(
                f"an item of client {client!r} has {len(entries)} entries, but columns names {list(self._columns)}"
            )
        return {key: _array(value) for key, value in zip(self._columns, entries, strict=True)}


def _array(value: Any) -> np.ndarray:
    """One entry of an item; a tensor that lies on a device or has a gradient comes to the host without it."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _outline(item: Mapping[str, np.ndarray], name: str) -> str:
    return f"of shape {item[name].shape}" if name in item else "missing"
