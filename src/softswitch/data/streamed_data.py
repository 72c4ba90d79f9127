"""StreamedData: out-of-core client data, whose rows are read when they are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from softswitch.data import client_data
from softswitch.data.client_data import ClientData, Names, Rows, check_columns
from softswitch.data.row_order import order_rows
from softswitch.support import checks
from softswitch.support.arrays import aligned_zeros, fingerprint

BUFFER_BYTES = 256 * 2**20  # default of ``buffer_bytes``
FINGERPRINT_ROWS = 1024  # rows that ``StreamedData.fingerprint`` reads
READ_ROWS = 1 << 16  # rows that are read at a time

RowSource = Callable[[np.ndarray], Mapping[str, Any]]
"""Function from row numbers to arrays by column name. Rows are numbered by client, then by stratum."""
RowFunction = Callable[[np.ndarray, np.ndarray], Mapping[str, Any]]
"""Function from client indices and row numbers within the clients, both from 0, to arrays by column name."""


class BufferOptions(TypedDict, total=False):
    """Keyword options that all constructors of ``StreamedData`` share, explained there."""

    buffer_bytes: int
    max_evaluation_rows: int | None


class StreamedData:
    """The data of n clients that need not fit in memory: rows are read when a round has drawn them.

    ``solve`` accepts it instead of ``ClientData``, and draws the same rows. During the computation of some rounds, the
    rows of the next rounds are read. Create it with ``from_arrays`` or ``from_function``.

    Args:
        source: Function of row numbers that returns the columns of these rows. Rows are numbered client by client, and
            stratum by stratum within a client.
        sizes: Number of rows of each client; with strata clients × strata.
        names: Client labels. Default: 0, 1, 2, …
        strata: Labels of the strata. Default: 0, 1, 2, …
        buffer_bytes: Maximum memory in bytes of the rows in use and the rows being read, together. It also limits how
            many rows are evaluated at a time. Default: 256 MiB.
        max_evaluation_rows: Maximum number of rows of a client that evaluations use, spread over all rows and always
            the same. F, G and the result's values are then estimates. Default: no limit.

    Attributes:
        names: Client labels, in the order of their indices.
        strata: Labels of the strata; ``(0,)`` without strata.
        sizes: Number of rows of each client, a NumPy array.
        stratum_sizes: Number of rows of each client's strata, a NumPy array of clients × strata.
        evaluation_sizes: Number of rows of each client that evaluations use, a NumPy array.
        columns: Shape and dtype of one row, by column name.
    """

    def __init__(
        self,
        source: RowSource,
        sizes: ArrayLike,
        *,
        names: Sequence[Any] | None = None,
        strata: Sequence[Any] | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        max_evaluation_rows: int | None = None,
    ) -> None:
        counts = _check_sizes(sizes)
        clients, groups = counts.shape
        self.names: tuple[Any, ...] = tuple(range(clients) if names is None else names)
        if len(self.names) != clients or len(set(self.names)) < clients:
            raise ValueError(f"names must have a different label for each of {clients} clients, but is {names!r}")
        self.strata: tuple[Any, ...] = tuple(range(groups) if strata is None else strata)
        if len(self.strata) != groups:
            raise ValueError(f"strata must have one label for each of {groups} strata, but has {len(self.strata)}")
        self.source, self._lock = source, Lock()
        self.stratum_sizes, self.offsets = counts, client_data.stratum_offsets(counts)
        self.sizes: np.ndarray = counts.sum(axis=1)
        self.buffer_bytes = checks.check_integer("buffer_bytes", buffer_bytes, minimum=1)
        if max_evaluation_rows is not None:
            checks.check_integer("max_evaluation_rows", max_evaluation_rows, minimum=1)
        self.evaluation_sizes: np.ndarray = np.minimum(self.sizes, max_evaluation_rows or self.sizes)
        self.columns: dict[str, jax.ShapeDtypeStruct] = {}
        first_row = check_columns(self._take(np.zeros(1, np.int64)), self.names[0])
        for key, column in first_row.items():
            if len(column) != 1:
                raise ValueError(f"the source must return one row of {key!r} for one number, but returns {len(column)}")
            self.columns[key] = jax.ShapeDtypeStruct(column.shape[1:], jax.dtypes.canonicalize_dtype(column.dtype))

    @classmethod
    def from_arrays(
        cls,
        data: Mapping[str, Any],
        client: ArrayLike | str | Path,
        *,
        strata: ArrayLike | str | tuple[str, ...] | None = None,
        **options: Unpack[BufferOptions],
    ) -> StreamedData:
        """Create clients from memory-mapped arrays, or from the paths of .npy files.

        If rows are not sorted by client (and stratum), their order needs four bytes of memory per row.

        Args:
            data: Columns by name, each an array whose first axis is the sample, or the path of a .npy file.
            client: Client label of each sample, or the path of a .npy file. Clients are sorted by label.
            strata: Column name, tuple of names, or one label per sample, as for ``ClientData.from_arrays``.
            **options: ``buffer_bytes`` and ``max_evaluation_rows``, as for the class.
        """
        if isinstance(data, Mapping):
            data = {key: _open_array(column) for key, column in data.items()}
        columns = {key: np.asarray(column) for key, column in check_columns(data).items()}
        total = len(next(iter(columns.values())))
        names, groups, sizes, order = order_rows(total, _open_array(client), strata, columns)
        return cls(_array_source(columns, order), sizes, names=names, strata=groups, **options)

    @classmethod
    def from_function(
        cls, function: RowFunction, sizes: ArrayLike, *, names: Names = None, **options: Unpack[BufferOptions]
    ) -> StreamedData:
        """Create clients from a function that returns rows by number, such as a database query or a file reader.

        Args:
            function: Called with client indices and row numbers within the clients, two integer arrays with one entry
                per row. It returns a dict of arrays. The same numbers must always return the same rows.
            sizes: Number of rows of each client; clients × strata if the rows of a client are sorted by stratum.
            names: Client labels. Default: 0, 1, 2, …
            **options: ``buffer_bytes`` and ``max_evaluation_rows``, as for the class.
        """
        checks.check_callable("function", function, "(clients, rows) -> dict of arrays")
        counts = _check_sizes(sizes)
        ends = np.cumsum(counts.sum(axis=1))
        starts = ends - counts.sum(axis=1)

        def take(rows: np.ndarray) -> Mapping[str, Any]:
            clients = np.searchsorted(ends, rows, side="right")
            return function(clients, rows - starts[clients])

        return cls(take, counts, names=names, **options)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return client_data.describe_data(self, {key: (row.dtype, row.shape) for key, row in self.columns.items()})

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all columns."""
        return sum(row.size * row.dtype.itemsize for row in self.columns.values())

    def store(self, rows: int) -> dict[str, np.ndarray]:
        """Return NumPy columns of zeros for ``read``, which JAX can use without a copy.

        Args:
            rows: Number of rows of each column.
        """
        return {key: aligned_zeros((rows, *row.shape), row.dtype) for key, row in self.columns.items()}

    def read(self, rows: np.ndarray, store: Mapping[str, np.ndarray], first: int) -> None:
        """Read rows into the columns of a store; raise if they cannot be read or are not valid.

        Args:
            rows: Numbers of the rows, over all clients.
            store: Columns as returned by ``store``, which are overwritten.
            first: Index in the store at which the first row is written.
        """
        for begin in range(0, len(rows), READ_ROWS):
            some = rows[begin : begin + READ_ROWS].astype(np.int64)
            taken, start = self._take(some), first + begin
            for key in self.columns:
                self._copy(key, np.asarray(taken[key]), store[key][start : start + len(some)], some)

    def _take(self, rows: np.ndarray) -> Mapping[str, Any]:
        """Return the columns of some rows from the source, in one thread at a time; RuntimeError if it fails."""
        try:
            with self._lock:
                columns = self.source(rows)
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            raise RuntimeError(f"{len(rows)} rows from {self._client(rows)} on could not be read: {cause}") from error
        if not isinstance(columns, Mapping):
            raise TypeError(f"{self._client(rows)}: rows must come as a dict of arrays, not {columns!r}")
        if self.columns and set(columns) != set(self.columns):
            given, expected = list(columns), list(self.columns)
            raise ValueError(f"{self._client(rows)}: rows must have the columns {expected}, but have {given}")
        return columns

    def _client(self, rows: np.ndarray) -> str:
        return f"client {client_data.owner_of(self, int(rows[0]))!r}"

    def _copy(self, key: str, column: np.ndarray, place: np.ndarray, rows: np.ndarray) -> None:
        """Copy a column of some rows to ``place``; raise if its shape, dtype or values are not valid."""
        if column.shape != place.shape:
            raise ValueError(f"{key!r} of {self._client(rows)} must have shape {place.shape}, but has {column.shape}")
        is_number = jnp.issubdtype(column.dtype, jnp.number) or column.dtype == bool
        is_inexact = jnp.issubdtype(place.dtype, jnp.inexact)
        if not is_number or (jnp.issubdtype(column.dtype, jnp.inexact) and not is_inexact):
            raise TypeError(f"{key!r} of {self._client(rows)} must hold {place.dtype}, but holds {column.dtype}")
        try:
            client_data.check_integer_range(key, column, place.dtype)
        except ValueError as error:
            raise ValueError(f"{len(rows)} rows from {self._client(rows)} on: {error}") from error
        place[...] = column
        if is_inexact and len(bad := client_data.non_finite_rows(place)):
            given = f"{len(bad)} of {len(rows)} rows hold NaN or infinity (the first at {self._client(rows[bad])})"
            raise ValueError(f"data[{key!r}] must be finite, but {given}; fill or drop them")

    def fingerprint(self) -> str:
        """Return a SHA-256 digest of the clients' names and sizes, and of up to 1,024 evenly spaced rows."""
        total = int(self.sizes.sum())
        rows = np.unique(np.linspace(0, total - 1, min(total, FINGERPRINT_ROWS)).astype(np.int64))
        store = self.store(len(rows))
        self.read(rows, store, 0)
        return fingerprint(store, self.stratum_sizes, {"names": np.frombuffer(repr(self.names).encode(), np.uint8)})

    def evaluation_rows(self, clients: np.ndarray) -> np.ndarray:
        """Return the numbers of the rows of some clients that evaluations use, client by client.

        Args:
            clients: Indices of the clients.
        """
        counts, sizes = self.evaluation_sizes[clients], self.sizes[clients]
        owner = np.repeat(np.arange(len(clients)), counts)
        position = np.arange(int(counts.sum())) - (np.cumsum(counts) - counts)[owner]
        if (counts < sizes).any():
            # One row of every interval of a client's rows, at a random place, so that no periodic pattern is missed.
            shift = np.random.default_rng(0).random(int(counts.max()))[position]
            spread = np.floor((position + shift) * (sizes / counts)[owner]).astype(np.int64)
            position = np.where((counts < sizes)[owner], np.minimum(spread, sizes[owner] - 1), position)
        return self.offsets[clients, 0][owner] + position


def _check_sizes(sizes: ArrayLike) -> np.ndarray:
    """Return the numbers of rows as int64, clients × strata; raise ValueError unless every client has a row."""
    counts = np.asarray(sizes)
    if counts.ndim not in (1, 2) or counts.size == 0 or counts.dtype.kind not in "iu" or counts.min() < 0:
        raise ValueError(f"sizes must be whole numbers >= 0, one per client or clients × strata, but is {sizes!r}")
    counts = counts.astype(np.int64).reshape(len(counts), -1)
    empty = np.flatnonzero(counts.sum(axis=1) == 0)
    if len(empty):
        raise ValueError(f"sizes must give every client a row, but client {empty[0]} has none; remove it")
    if counts.sum() > np.iinfo(np.int32).max:
        raise ValueError(f"there must be fewer than 2**31 rows, but sizes sum to {counts.sum()}")
    return counts


def _open_array(column: Any) -> np.ndarray:
    """Return a column as an array; a .npy file is memory-mapped."""
    if isinstance(column, str | Path):
        return np.asarray(np.load(column, mmap_mode="r", allow_pickle=False))
    return np.asarray(column)


def _array_source(columns: Mapping[str, np.ndarray], order: np.ndarray | None) -> RowSource:
    """Return a source of array rows; ``order`` has the index of each sorted row, None if the arrays are sorted."""

    def take(rows: np.ndarray) -> dict[str, np.ndarray]:
        places = rows if order is None else order[rows]
        if len(rows) > 0 and bool((np.diff(places) == 1).all()):
            return {name: column[places[0] : places[-1] + 1] for name, column in columns.items()}
        return {name: np.take(column, places, axis=0) for name, column in columns.items()}

    return take


class DataOutline(ClientData):
    """Client data with names, sizes and columns but no rows, to draw row numbers. ``sizes`` default to the data's."""

    def __init__(self, data: StreamedData, sizes: np.ndarray | None = None) -> None:
        self.names, self.strata = data.names, data.strata
        self.stratum_sizes = data.stratum_sizes if sizes is None else sizes
        self.sizes = self.stratum_sizes.sum(axis=1)
        columns = {key: jnp.zeros((1, *row.shape), row.dtype) for key, row in data.columns.items()}
        self.rows = Rows.of(columns, self.stratum_sizes)
