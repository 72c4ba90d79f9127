"""Which client and stratum every row belongs to, found block by block: nothing as long as the data but one array."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.data.client_data import MAX_STRATA, check_columns, check_integer_range
from softswitch.data.row_sources import RowSource
from softswitch.support.arrays import aligned_zeros

BLOCK_ROWS = 1 << 20


class RowOrder(NamedTuple):
    """How rows are counted: one client after the other, stratum by stratum.

    Attributes:
        names: the clients' labels, in order.
        strata: the strata's labels, in order.
        sizes: how many rows of each; clients × strata.
        order: where each row lies in the arrays it comes from; None: they are in order.
    """

    names: tuple[Any, ...]
    strata: tuple[Any, ...]
    sizes: np.ndarray
    order: np.ndarray | None


Codes = Callable[[slice], np.ndarray]
"""From a block of rows to the number of each one's label."""


def row_order(total: int, clients: tuple[Sequence[Any], Codes], strata: tuple[Sequence[Any], Codes] | None) -> RowOrder:
    """The order of so many rows, by the labels of clients and of strata, each with the rows' numbers of them."""
    names, owner = clients
    groups: Sequence[Any] = (0,) if strata is None else strata[0]
    n, s = len(names), len(groups)
    if n * s > MAX_STRATA:
        raise ValueError(
            f"strata must have few different values, but has {s:,}: with {n:,} clients that makes {n * s:,} strata to "
            f"keep count of, more than {MAX_STRATA:,}"
        )

    def cells() -> Iterator[np.ndarray]:
        for block in blocks(total):
            yield owner(block) if strata is None else owner(block) * s + strata[1](block)

    counts, last, in_order = np.zeros(n * s, np.int64), -1, True
    for cell in cells():
        counts += np.bincount(cell, minlength=n * s)
        in_order = in_order and int(cell[0]) >= last and bool((cell[1:] >= cell[:-1]).all())
        last = int(cell[-1])
    sizes = counts.reshape(n, s)
    if in_order:
        return RowOrder(tuple(names), tuple(groups), sizes, None)
    # Every cell's rows are put where that cell's next ones go: a stable sort, with a block's memory beside the result.
    order, free, first = np.empty(total, np.int32), np.cumsum(counts) - counts, 0
    for cell in cells():
        places = places_of(cell, free)
        order[places] = np.arange(first, first + len(cell), dtype=np.int32)
        first += len(cell)
    return RowOrder(tuple(names), tuple(groups), sizes, order)


def places_of(cell: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Where rows of these cells go, each after those before it; ``free``, the next place of every cell, moves on."""
    by_cell = np.argsort(cell, kind="stable")
    in_row = cell[by_cell]
    begins = np.concatenate([[True], in_row[1:] != in_row[:-1]])
    first = np.maximum.accumulate(np.where(begins, np.arange(len(cell)), 0))
    places = np.empty(len(cell), np.int64)
    places[by_cell] = free[in_row] + np.arange(len(cell)) - first
    free += np.bincount(cell, minlength=len(free))
    return places


def blocks(total: int) -> Iterator[slice]:
    """So many rows, block by block."""
    for first in range(0, total, BLOCK_ROWS):
        yield slice(first, min(total, first + BLOCK_ROWS))


def labelled(name: str, labels: Any, total: int) -> tuple[Sequence[Any], Codes]:
    """The distinct labels of a column in order, and the number of every row's own."""
    labels = np.asarray(labels)
    if labels.shape != (total,):
        raise ValueError(f"{name} must have one label for each of {total} samples, but has shape {labels.shape}")
    distinct = distinct_of(name, (labels[block] for block in blocks(total)))
    return distinct.tolist(), lambda block: np.searchsorted(distinct, labels[block])


def distinct_of(name: str, parts: Iterator[np.ndarray]) -> np.ndarray:
    """The distinct labels of a column that comes in parts, in order."""
    found: np.ndarray | None = None
    for part in parts:
        if part.dtype.kind == "f" and np.isnan(part).any():
            raise ValueError(f"{name} must have a label for every sample, but some are NaN")
        try:
            found = np.unique(part) if found is None else np.union1d(found, part)
        except TypeError as error:
            raise TypeError(f"{name} must hold labels of one kind (all text or all numbers): {error}") from error
    assert found is not None
    return found


def combined(columns: Sequence[np.ndarray], total: int) -> tuple[Sequence[Any], Codes]:
    """The combinations of several columns' values that there are, numbered in order, and every row's own."""
    every = [labelled("strata", column, total) for column in columns]

    def mixed(block: slice) -> np.ndarray:
        code = np.zeros(block.stop - block.start, np.int64)
        for labels, codes in every:
            code = code * len(labels) + codes(block)
        return code

    present = distinct_of("strata", (mixed(block) for block in blocks(total)))
    return range(len(present)), lambda block: np.searchsorted(present, mixed(block))


def by_sizes(sizes: np.ndarray) -> Codes:
    """Whose every row is, where all of a client's rows lie together."""
    ends = np.cumsum(sizes)
    return lambda block: np.searchsorted(ends, np.arange(block.start, block.stop), side="right")


READ_ROWS = 1 << 16
"""A source is asked for at most so many rows at a time."""


class RowShape(NamedTuple):
    """What one row of a column is: its shape, and its type as JAX has it."""

    shape: tuple[int, ...]
    dtype: Any


class RowReader:
    """Reads rows of a source, and raises where they are not of the kind that its first row is.

    Args:
        source: what rows are read from.
        names: the clients' labels, for what is said of bad rows.
        sizes: how many rows each client has.

    Attributes:
        source: as given.
        columns: the shape and the type of a row, by column.
    """

    def __init__(self, source: RowSource, names: Sequence[Any], sizes: np.ndarray) -> None:
        self.source, self._lock, self._names, self._sizes = source, Lock(), names, sizes
        self.columns: dict[str, RowShape] = {}
        first = check_columns(self._asked(np.zeros(1, np.int64)), names[0])
        if {len(column) for column in first.values()} != {1}:
            raise ValueError(
                f"client {names[0]!r}: one row was asked for, but the source gave "
                f"{ {key: len(column) for key, column in first.items()} }"
            )
        for key, column in first.items():
            self.columns[key] = RowShape(column.shape[1:], jax.dtypes.canonicalize_dtype(column.dtype))

    def store(self, rows: int) -> dict[str, np.ndarray]:
        """Columns of so many rows, all zeros, that JAX can take over as they are.

        Args:
            rows: how many.
        """
        return {key: aligned_zeros((rows, *row.shape), row.dtype) for key, row in self.columns.items()}

    def read(self, rows: np.ndarray, store: Mapping[str, np.ndarray], first: int) -> None:
        """Read these rows into the columns of a store; raise where they are not what they should be.

        Args:
            rows: their numbers.
            store: the columns to fill.
            first: where in it the first of them goes.
        """
        for begin in range(0, len(rows), READ_ROWS):
            some = rows[begin : begin + READ_ROWS].astype(np.int64)
            given = self._asked(some)
            for key in self.columns:
                place = store[key][first + begin : first + begin + len(some)]
                self._put(key, self._checked(key, given, some), place, some)

    def _owner(self, row: int) -> Any:
        """The label of the client whose row this is."""
        return self._names[int(np.searchsorted(np.cumsum(self._sizes), row, side="right"))]

    def _asked(self, rows: np.ndarray) -> Mapping[str, Any]:
        """What the source gives for these rows; it is asked by one thread at a time."""
        try:
            with self._lock:
                given = self.source.take(rows)
        except Exception as error:
            raise RuntimeError(
                f"the rows of client {self._owner(int(rows[0]))!r} could not be read "
                f"({len(rows)} rows were asked for, of it and perhaps of others): {type(error).__name__}: {error}"
            ) from error
        if not isinstance(given, Mapping):
            raise TypeError(f"client {self._owner(int(rows[0]))!r}: rows must come as a dict of arrays, not {given!r}")
        if self.columns and set(given) != set(self.columns):
            raise ValueError(
                f"client {self._owner(int(rows[0]))!r}: rows must have the columns {list(self.columns)}, but have "
                f"{list(given)}"
            )
        return given

    def _checked(self, key: str, given: Mapping[str, Any], rows: np.ndarray) -> np.ndarray:
        """One column of some rows, of the shape and the type that it had at first."""
        column, row = np.asarray(given[key]), self.columns[key]
        wanted = (len(rows), *row.shape)
        if column.shape != wanted:
            raise ValueError(
                f"{key!r} of client {self._owner(int(rows[0]))!r} must have shape {wanted} for {len(rows)} rows, but "
                f"has {column.shape}"
            )
        dtype = jnp.dtype(row.dtype)
        if not (jnp.issubdtype(column.dtype, jnp.number) or column.dtype == bool) or (
            jnp.issubdtype(column.dtype, jnp.inexact) and not jnp.issubdtype(dtype, jnp.inexact)
        ):
            raise TypeError(
                f"{key!r} of client {self._owner(int(rows[0]))!r} must hold {dtype} as its first row does, but holds "
                f"{column.dtype}"
            )
        if len(column):
            try:
                check_integer_range(key, column, dtype)
            except ValueError as error:
                raise ValueError(f"client {self._owner(int(rows[0]))!r} or one read with it: {error}") from error
        return column

    def _put(self, key: str, column: np.ndarray, place: np.ndarray, rows: np.ndarray) -> None:
        place[...] = column
        if not jnp.issubdtype(place.dtype, jnp.inexact):
            return
        finite = np.isfinite(place)
        if not finite.all():
            bad = np.flatnonzero(~finite.reshape(len(finite), -1).all(axis=1))
            raise ValueError(
                f"data[{key!r}] must be finite, but {len(bad)} of the {len(rows)} rows just read hold NaN or infinity "
                f"(the first at client {self._owner(int(rows[bad[0]]))!r}); fill or drop them"
            )
