"""What a source of rows gives is checked, and put where JAX can take it over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.clients.client_data import _checked_columns, _refuse_wrapping
from softswitch.clients.streamed.row_sources import RowSource
from softswitch.support.arrays import aligned_zeros

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
        first = _checked_columns(self._asked(np.zeros(1, np.int64)), names[0])
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
                _refuse_wrapping(key, column, dtype)
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
