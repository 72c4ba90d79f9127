"""StreamedData: clients whose rows lie outside of memory, and are read as they are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from softswitch.data.client_data import ClientData, Rows, check_columns
from softswitch.data.parquet import ParquetColumns, converted
from softswitch.data.row_reader import RowReader, RowShape, by_sizes, combined, labelled, row_order
from softswitch.data.row_sources import ArrayRows, DatasetRows, FunctionRows, RowFunction, RowSource
from softswitch.problem.parameters import WEIGHT
from softswitch.support import checks
from softswitch.support.arrays import fingerprint

BUFFER_BYTES = 256 * 2**20
"""What the rows of two stretches of rounds may take together, unless told otherwise."""
FINGERPRINT_ROWS = 1024
"""Data are told from other data by so many of their rows."""


class StreamedData:
    """The data of n clients that need not fit in memory: rows are read when a round has drawn them.

    ``solve`` takes it in place of ``ClientData``, and draws the same rows. While some rounds are computed, the rows of
    the next ones are read. Make one with ``from_arrays``, ``from_parquet``, ``from_datasets`` or ``from_function``.

    Args:
        source: what rows are read from. All clients' rows are counted one client after the other, stratum by stratum.
        sizes: how many rows each client has; with strata clients × strata.
        names: the clients' labels; None: 0, 1, 2, …
        strata: the strata's labels; None: 0, 1, 2, …
        buffer_bytes: what the rows of two stretches of rounds may take together, those computed with and those on their
            way; and how many rows of all are looked at side by side.
        max_evaluation_rows: Maximum number of rows of a client that evaluations use, spread over all rows and always
            the same. F, G and the answer's values are then estimates. Default: no limit.

    Attributes:
        names: the clients' labels, in the order of their indices.
        strata: the strata's labels; one stratum where none were asked for.
        sizes: how many rows each client has.
        stratum_sizes: how many of each stratum; clients × strata.
        evaluation_sizes: how many rows of each client are looked at where that is to be all of them.
        columns: the shape and the type of a row, by column.
        buffer_bytes: as given.
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
        counts = _checked_sizes(sizes)
        clients, groups = counts.shape
        self.names: tuple[Any, ...] = tuple(range(clients) if names is None else names)
        if len(self.names) != clients or len(set(self.names)) < clients:
            raise ValueError(f"names must have a label of its own for each of {clients} clients, but is {names!r}")
        self.strata: tuple[Any, ...] = tuple(range(groups) if strata is None else strata)
        if len(self.strata) != groups:
            raise ValueError(f"strata must have one label for each of {groups} strata, but has {len(self.strata)}")
        self.stratum_sizes = counts
        self.sizes: np.ndarray = counts.sum(axis=1)
        self.offsets: np.ndarray = np.cumsum(counts).reshape(counts.shape) - counts
        self.buffer_bytes = checks.check_integer("buffer_bytes", buffer_bytes, minimum=1)
        if max_evaluation_rows is not None:
            checks.check_integer("max_evaluation_rows", max_evaluation_rows, minimum=1)
        self._judge_rows = max_evaluation_rows
        self.evaluation_sizes: np.ndarray = (
            self.sizes if max_evaluation_rows is None else np.minimum(self.sizes, max_evaluation_rows)
        )
        self._reader = RowReader(source, self.names, self.sizes)
        self.columns: dict[str, RowShape] = self._reader.columns

    @classmethod
    def from_arrays(
        cls,
        data: Mapping[str, Any],
        client: ArrayLike | str | Path | None = None,
        *,
        sizes: ArrayLike | None = None,
        names: Sequence[Any] | None = None,
        strata: ArrayLike | str | tuple[str, ...] | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        max_evaluation_rows: int | None = None,
    ) -> StreamedData:
        """Clients from arrays in files: memory-mapped ones, or the paths of .npy files, which are then mapped.

        Where rows are not sorted by client (and stratum), where each lies is kept in memory: four bytes a row.

        Args:
            data: the columns, each an array whose first axis counts the samples, or the path of one.
            client: one label a sample, or the path of such an array; clients are ordered by label.
            sizes: in place of ``client``: how many rows each client has, where they are sorted by client.
            names: with ``sizes`` the clients' labels; None: 0, 1, 2, …
            strata: a column (its name, or one label a sample) whose every value gets a fixed number of draws in each
                batch; a tuple of names draws by all combinations of their values.
            buffer_bytes: what the rows of two stretches of rounds may take together.
            max_evaluation_rows: look at so many rows of a client where all of them would be looked at; None: at all.
        """
        checked = check_columns({key: _mapped(column) for key, column in _named(data).items()})
        columns = {key: np.asarray(column) for key, column in checked.items()}
        total = len(next(iter(columns.values())))
        if (client is None) == (sizes is None):
            raise ValueError("either client or sizes must be given: whose every row is, or how many each client has")
        if sizes is not None:
            counts = np.asarray(sizes)
            if counts.ndim != 1 or counts.sum() != total:
                raise ValueError(f"sizes must be one number a client that sum to {total} rows, but is {sizes!r}")
            counts = _checked_sizes(counts)[:, 0]
            labels: Sequence[Any] = range(len(counts)) if names is None else names
            clients = labels, by_sizes(counts)
        else:
            if names is not None:
                raise ValueError("names must be left out where client is given, which has the labels")
            clients = labelled("client", _mapped(client), total)
        found = row_order(total, clients, _strata(columns, strata, total))
        return cls(
            ArrayRows(columns, found.order),
            found.sizes,
            names=found.names,
            strata=found.strata,
            buffer_bytes=buffer_bytes,
            max_evaluation_rows=max_evaluation_rows,
        )

    @classmethod
    def from_parquet(
        cls,
        path: str | Path | Sequence[str | Path],
        client: str,
        *,
        cache: str | Path,
        columns: Mapping[str, str | Sequence[str]] | None = None,
        strata: str | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        max_evaluation_rows: int | None = None,
    ) -> StreamedData:
        """Clients from a Parquet file or several, with a column that says whose row it is.

        Single rows cannot be read from Parquet: its columns are written once, batch by batch and sorted by client, into
        memory-mapped files in ``cache``, about as large as the data unpacked. They are used again for the same files.
        Needs pyarrow (``pip install softswitch[parquet]``).

        Args:
            path: the file, or several whose rows follow one another.
            client: the name of the column of labels.
            cache: a folder for the columns; it is made, and holds nothing else.
            columns: what batches have: by name one column, or a list of columns side by side as one matrix. None: every
                column of numbers by itself, but for the client's.
            strata: the name of a column of the file to draw by, as in ``from_arrays``.
            buffer_bytes: what the rows of two stretches of rounds may take together.
            max_evaluation_rows: look at so many rows of a client where all of them would be looked at; None: at all.
        """
        paths = [path] if isinstance(path, str | Path) else list(path)
        made = converted([Path(one) for one in paths], ParquetColumns(client, strata, columns), Path(cache))
        return cls(
            ArrayRows(made.arrays),
            made.sizes,
            names=made.names,
            strata=made.strata,
            buffer_bytes=buffer_bytes,
            max_evaluation_rows=max_evaluation_rows,
        )

    @classmethod
    def from_datasets(
        cls,
        datasets: Sequence[Any],
        *,
        names: Sequence[Any] | None = None,
        columns: Sequence[str] = ("x", "y"),
        buffer_bytes: int = BUFFER_BYTES,
        max_evaluation_rows: int | None = None,
    ) -> StreamedData:
        """Clients from data sets with a length and items by number, one a client: PyTorch's map-style ``Dataset``.

        Items are read one by one, or by ``__getitems__`` where there is one, in a thread beside the rounds. The same
        number must always give the same item: random augmentation belongs into the functions, by their key.

        Args:
            datasets: one a client; an item is a dict of arrays or a tuple.
            names: the clients' labels; None: 0, 1, 2, …
            columns: the names of an item's entries, where it is a tuple.
            buffer_bytes: what the rows of two stretches of rounds may take together.
            max_evaluation_rows: look at so many rows of a client where all of them would be looked at; None: at all.
        """
        datasets = list(datasets)
        for one in datasets:
            if not (hasattr(one, "__len__") and hasattr(one, "__getitem__")):
                raise TypeError(f"datasets must have a length and items by number, but one is {one!r}")
        sizes = np.asarray([len(one) for one in datasets], np.int64)
        labels = tuple(range(len(datasets)) if names is None else names)
        if len(labels) != len(datasets):
            raise ValueError(f"names must have one label for each of {len(datasets)} clients, but has {len(labels)}")
        source = DatasetRows(datasets, labels, columns)
        return cls(source, sizes, names=labels, buffer_bytes=buffer_bytes, max_evaluation_rows=max_evaluation_rows)

    @classmethod
    def from_function(
        cls,
        function: RowFunction,
        sizes: ArrayLike,
        *,
        names: Sequence[Any] | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        max_evaluation_rows: int | None = None,
    ) -> StreamedData:
        """Clients whose rows a function gives by their numbers: a database, a file format of one's own, a generator.

        Args:
            function: called with two arrays, whose rows and which of their rows (both from 0 on), one entry a row; it
                gives a dict of arrays, one row each. The same numbers must always give the same rows.
            sizes: how many rows each client has; clients × strata where a client's rows come stratum by stratum.
            names: the clients' labels; None: 0, 1, 2, …
            buffer_bytes: what the rows of two stretches of rounds may take together.
            max_evaluation_rows: look at so many rows of a client where all of them would be looked at; None: at all.
        """
        checks.check_callable("function", function, "(clients, rows) -> dict of arrays")
        counts = _checked_sizes(sizes)
        source = FunctionRows(function, counts.sum(axis=1))
        return cls(source, counts, names=names, buffer_bytes=buffer_bytes, max_evaluation_rows=max_evaluation_rows)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        columns = ", ".join(f"{key}: {row.dtype}{list(row.shape)}" for key, row in self.columns.items())
        strata = f", {len(self.strata)} strata" if len(self.strata) > 1 else ""
        return (
            f"StreamedData({len(self)} clients, {self.sizes.sum()} rows, "
            f"{self.sizes.min()} to {self.sizes.max()} a client{strata}; {columns})"
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all columns."""
        return sum(int(np.prod(row.shape, dtype=np.int64)) * row.dtype.itemsize for row in self.columns.values())

    def load_client(self, index: int) -> ClientData:
        """One client's rows, all of them, in memory.

        Args:
            index: which one.
        """
        first = int(self.offsets[index, 0])
        store = self.store(int(self.sizes[index]))
        self.read(np.arange(first, first + int(self.sizes[index])), store, 0)
        stratum = np.repeat(np.arange(len(self.strata)), self.stratum_sizes[index])
        return ClientData(store, np.zeros(len(stratum), int), stratum, [self.names[index]])

    def store(self, rows: int) -> dict[str, np.ndarray]:
        """Columns of so many rows, all zeros, that JAX can take over as they are.

        Args:
            rows: how many.
        """
        return self._reader.store(rows)

    def read(self, rows: np.ndarray, store: Mapping[str, np.ndarray], first: int) -> None:
        """Read these rows into the columns of a store; raise where they are not what they should be.

        Args:
            rows: their numbers.
            store: the columns to fill.
            first: where in it the first of them goes.
        """
        self._reader.read(rows, store, first)

    def fingerprint(self) -> str:
        """A digest of the clients' names and sizes, and of some of their rows, spread over all: not of every row."""
        total = int(self.sizes.sum())
        rows = np.unique(np.linspace(0, total - 1, min(total, FINGERPRINT_ROWS)).astype(np.int64))
        store = self.store(len(rows))
        self.read(rows, store, 0)
        return fingerprint(store, self.stratum_sizes, {"names": np.frombuffer(repr(self.names).encode(), np.uint8)})

    def evaluation_rows(self, clients: np.ndarray, piece: tuple[int, int] | None = None) -> np.ndarray:
        """The rows of these clients to look at, in their order: all, or some spread over all.

        Args:
            clients: whose.
            piece: of a single client only those from the first number on and before the second; None: all.
        """
        many = self.evaluation_sizes[clients]
        before = np.cumsum(many) - many
        position = np.arange(int(many.sum())) if piece is None else np.arange(*piece)
        own = np.repeat(np.arange(len(clients)), many) if piece is None else np.zeros(len(position), int)
        position -= before[own]
        if self._judge_rows is not None:
            # One in every stretch of a client's rows, at a random place in it: nothing that comes in turns is missed.
            sizes = self.sizes[clients]
            shift = np.random.default_rng(0).random(int(many.max()))[position]
            spread = np.floor((position + shift) * (sizes / many)[own]).astype(np.int64)
            position = np.where((many < sizes)[own], np.minimum(spread, sizes[own] - 1), position)
        return self.offsets[clients, 0][own] + position


def _checked_sizes(sizes: ArrayLike) -> np.ndarray:
    """How many rows every client has, by strata: whole numbers, none of them negative, no client without any."""
    counts = np.asarray(sizes)
    if counts.ndim not in (1, 2) or counts.size == 0 or counts.dtype.kind not in "iu" or counts.min() < 0:
        raise ValueError(f"sizes must be whole numbers >= 0, one a client or clients × strata, but is {sizes!r}")
    counts = counts.astype(np.int64).reshape(len(counts), -1)
    none = np.flatnonzero(counts.sum(axis=1) == 0)
    if len(none):
        raise ValueError(f"sizes must give every client a row, but client {none[0]} has none; leave it out")
    if counts.sum() > np.iinfo(np.int32).max:
        raise ValueError(f"there must be fewer than 2**31 rows, but sizes sum to {counts.sum()}")
    return counts


def _named(data: Any) -> Mapping[str, Any]:
    if not isinstance(data, Mapping) or not data:
        raise TypeError(f"data must be a dict of arrays with at least one column, but is {data!r}")
    if WEIGHT in data:
        raise ValueError(f"data must not have a column {WEIGHT!r}: batches carry their row weights there; rename it")
    return data


def _mapped(column: Any) -> np.ndarray:
    """A column as an array; one in a .npy file is mapped, not read."""
    if isinstance(column, str | Path):
        return np.asarray(np.load(column, mmap_mode="r", allow_pickle=False))
    return np.asarray(column)


def _strata(columns: Mapping[str, np.ndarray], strata: Any, total: int) -> Any:
    """The strata's labels and every row's own, of a column, several, or labels; None where there are none."""
    if strata is None:
        return None
    names = (strata,) if isinstance(strata, str) else strata
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        return labelled("strata", strata, total)
    for name in names:
        if name not in columns:
            raise ValueError(f"strata must name a column of data ({', '.join(map(repr, columns))}), but is {strata!r}")
    if len(names) == 1:
        return labelled("strata", columns[names[0]], total)
    return combined([columns[name] for name in names], total)


class DataOutline(ClientData):
    """The clients' names, sizes and columns without their rows: what is needed to draw, and to know shapes.

    Args:
        data: whose outline.
        sizes: of clients × strata in place of the data's own; None: those.
    """

    def __init__(self, data: StreamedData, sizes: np.ndarray | None = None) -> None:
        self.names, self.strata = data.names, data.strata
        self.stratum_sizes = data.stratum_sizes if sizes is None else sizes
        self.sizes = self.stratum_sizes.sum(axis=1)
        offsets = np.cumsum(self.stratum_sizes).reshape(self.stratum_sizes.shape) - self.stratum_sizes
        self.rows = Rows(
            {key: jnp.zeros((1, *row.shape), row.dtype) for key, row in data.columns.items()},
            jnp.asarray(offsets.astype(np.int32)),
            jnp.asarray(self.stratum_sizes.astype(np.int32)),
        )
