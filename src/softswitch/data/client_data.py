"""ClientData: the rows of all clients in memory, as flat columns with offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from softswitch.data.row_order import order_rows
from softswitch.problem.parameters import WEIGHT, Batch
from softswitch.support.arrays import aligned_zeros

_BLOCK_ROWS = 1 << 16  # copied at a time
Names = Sequence[Any] | None  # client labels; None: see the argument's default


class Rows(NamedTuple):
    """Rows of all clients, sorted by client, and by stratum within a client; a pytree for compiled programs."""

    columns: dict[str, jax.Array]  # by name; the first axis is the rows of all clients
    offsets: jax.Array  # index of the first row of each client's stratum; int32, clients × strata
    counts: jax.Array  # number of rows of each client's stratum; int32, clients × strata

    @classmethod
    def of(cls, columns: dict[str, jax.Array], counts: np.ndarray) -> Rows:
        """Return sorted columns with ``counts``, the number of rows of each client's stratum, clients × strata."""
        return cls(columns, *(jnp.asarray(part.astype(np.int32)) for part in (stratum_offsets(counts), counts)))

    @property
    def sizes(self) -> jax.Array:
        """Number of rows of each client, an int32 vector."""
        return self.counts.sum(axis=1)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all columns."""
        return sum(column.nbytes // len(column) for column in self.columns.values())

    def batch_shapes(self, width: int, dtype: DTypeLike) -> dict[str, Any]:
        """Return a batch of ``width`` rows as ``jax.ShapeDtypeStruct``s; the row weights have ``dtype``."""
        columns = self.columns.items()
        shapes = {key: jax.ShapeDtypeStruct((width, *column.shape[1:]), column.dtype) for key, column in columns}
        return shapes | {WEIGHT: jax.ShapeDtypeStruct((width,), dtype)}

    def take(self, indices: jax.Array, weights: jax.Array) -> Batch:
        """Return the batch of the rows ``indices``, which must be valid, with the given row weights."""
        taken = {
            key: column.at[indices].get(mode="promise_in_bounds", wrap_negative_indices=False)
            for key, column in self.columns.items()
        }
        return {**taken, WEIGHT: weights}


class ClientData:
    """The data of n clients of any sizes, stored flat: no row is padded, and none is stored twice.

    Create it with ``from_arrays`` or ``from_list``. Rows keep their dtype as far as JAX does (float64 needs
    ``jax_enable_x64``).

    Args:
        columns: Arrays by name, one row per sample.
        client: Client label of each row.
        strata: Column name, tuple of names, or one label per row, as for ``from_arrays``. None: no strata.
        names: Client labels in the order of their indices. None: the sorted values of ``client``.

    Attributes:
        rows: The rows of all clients, as JAX arrays.
        names: Client labels, in the order of their indices.
        strata: Labels of the strata; ``(0,)`` without strata.
        sizes: Number of rows of each client, a NumPy array.
        stratum_sizes: Number of rows of each client's strata, a NumPy array of clients × strata.
        client_optimum: Minimal objective f_i* of each client, set by ``with_regret``; None without regrets.
    """

    def __init__(self, columns: Mapping[str, Any], client: ArrayLike, strata: ArrayLike | None, names: Names) -> None:
        columns = check_columns(columns)
        total = len(next(iter(columns.values())))
        found = order_rows(total, client, strata, columns)
        self.names: tuple[Any, ...] = found.names if names is None else tuple(names)
        self.strata: tuple[Any, ...] = found.strata
        self.stratum_sizes: np.ndarray = found.sizes
        self.sizes: np.ndarray = found.sizes.sum(axis=1)
        self.client_optimum: np.ndarray | None = None
        stored = {key: self._store(key, column, found.order) for key, column in columns.items()}
        self.rows = Rows.of(stored, found.sizes)

    @classmethod
    def from_arrays(cls, data: Mapping[str, Any], client: ArrayLike, *, strata: ArrayLike | None = None) -> ClientData:
        """Create clients from arrays with one row per sample, and a client label for each row.

        Args:
            data: Columns by name; the first axis of each array is the sample. A JAX array whose rows are sorted by
                client is used without a copy; other arrays are copied.
            client: Client label of each sample, such as a name or a number. Clients are sorted by label.
            strata: Column name, or one label per sample. Every value gets a fixed number of draws in each batch, so
                that no batch lacks a class or group that its client has. Row weights correct for it. A tuple of names
                stratifies by all combinations of their values. Default: None, no strata.
        """
        return cls(data, client, strata, None)

    @classmethod
    def from_list(
        cls, clients: Sequence[Mapping[str, Any]], *, names: Names = None, strata: str | tuple[str, ...] | None = None
    ) -> ClientData:
        """Create clients from a list with one dict of arrays per client.

        Args:
            clients: For each client a dict of arrays, one row per sample. All clients must have the same columns.
            names: Client labels. Default: 0, 1, 2, …
            strata: Column name, or a tuple of names, as in ``from_arrays``. Default: None, no strata.
        """
        if isinstance(clients, Mapping):
            raise TypeError("clients must be a list with one dict of arrays per client; pass names=list(d) with it")
        if len(clients) == 0:
            raise ValueError("clients must hold at least one client, but is empty")
        if names is not None and len(names) != len(clients):
            raise ValueError(f"names must have one label for each of {len(clients)} clients, but has {len(names)}")
        if names is not None and len(set(names)) < len(names):
            raise ValueError(f"names must be different for all clients, but is {list(names)!r}")
        labels = range(len(clients)) if names is None else names
        checked = [check_columns(columns, label) for label, columns in zip(labels, clients, strict=True)]
        shapes = [{key: column.shape[1:] for key, column in columns.items()} for columns in checked]
        for label, shape in zip(labels, shapes, strict=True):
            if shape != shapes[0]:
                raise ValueError(f"client {label!r} has rows of shapes {shape}, but the first client has {shapes[0]}")
        data = {key: np.concatenate([np.asarray(columns[key]) for columns in checked]) for key in checked[0]}
        sizes = [len(next(iter(columns.values()))) for columns in checked]
        return cls(data, np.repeat(np.arange(len(clients)), sizes), strata, names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        columns = self.rows.columns.items()
        return describe_data(self, {key: (column.dtype, column.shape[1:]) for key, column in columns})

    def _store(self, key: str, column: np.ndarray | jax.Array, order: np.ndarray | None) -> jax.Array:
        """Return a finite column, sorted by ``order``, as a JAX array that shares no memory with a writable one."""
        if isinstance(column, jax.Array) and order is None and bool(jnp.isfinite(column).all()):
            return column
        dtype = jax.dtypes.canonicalize_dtype(column.dtype)
        check_integer_range(key, column, dtype)
        column, buffer = np.asarray(column), aligned_zeros(column.shape, dtype)
        for start in range(0, len(column), _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            buffer[block] = column[block] if order is None else column[order[block]]
        bad = non_finite_rows(buffer)
        if len(bad):
            given = f"{len(bad)} rows hold NaN or infinity (the first at client {owner_of(self, bad[0])!r})"
            raise ValueError(f"data[{key!r}] must be finite, but {given}; fill or drop them")
        return jax.device_put(buffer, may_alias=True)


def stratum_offsets(sizes: np.ndarray) -> np.ndarray:
    """Return the index of the first row of each stratum from the sizes, both clients × strata."""
    return np.cumsum(sizes).reshape(sizes.shape) - sizes


def owner_of(data: Any, row: int) -> Any:
    """Return the label of the client that row number ``row`` of the data belongs to."""
    return data.names[int(np.searchsorted(np.cumsum(data.sizes), row, side="right"))]


def non_finite_rows(part: np.ndarray) -> np.ndarray:
    """Return the indices of the rows of ``part`` with NaN or infinity."""
    finite = np.isfinite(part)
    return np.flatnonzero(np.zeros(0) if finite.all() else ~finite.reshape(len(finite), -1).all(axis=1))


def describe_data(data: Any, columns: Mapping[str, tuple[Any, Sequence[int]]]) -> str:
    """Return the repr of client data; ``columns`` maps a name to the dtype and the shape of one row."""
    described = ", ".join(f"{key}: {dtype}{list(shape)}" for key, (dtype, shape) in columns.items())
    strata = f", {len(data.strata)} strata" if len(data.strata) > 1 else ""
    return (
        f"{type(data).__name__}({len(data)} clients, {data.sizes.sum()} rows, "
        f"{data.sizes.min()} to {data.sizes.max()} a client{strata}; {described})"
    )


def check_integer_range(key: str, column: np.ndarray | jax.Array, dtype: Any) -> None:
    """Raise ValueError if ``dtype`` is a narrower integer type that cannot hold the column's values."""
    if not jnp.issubdtype(dtype, jnp.integer) or dtype == column.dtype:
        return
    limits = jnp.iinfo(dtype)
    for value in (column.min(), column.max()):
        if not limits.min <= value <= limits.max:
            raise ValueError(f"data[{key!r}] must fit in {dtype}, but holds {value}; rescale it, or make it floating")


def check_columns(data: Mapping[str, Any], client: Any = None) -> dict[str, np.ndarray | jax.Array]:
    """Return the columns as arrays; raise unless they are numeric with equally many rows. ``client`` is for errors."""
    where = "" if client is None else f" of client {client!r}"
    if not isinstance(data, Mapping) or not data:
        raise TypeError(f"data{where} must be a dict of arrays with at least one column, but is {data!r}")
    if WEIGHT in data:
        raise ValueError(f"data{where} must not have a column {WEIGHT!r}, which is the name of row weights; rename it")
    columns = {key: column if isinstance(column, jax.Array) else np.asarray(column) for key, column in data.items()}
    lengths = {key: column.shape[0] if column.ndim else None for key, column in columns.items()}
    length = next(iter(lengths.values()))
    if length is None or len(set(lengths.values())) > 1:
        raise ValueError(f"the columns{where} must all have one entry a sample, but have lengths {lengths}")
    for key, column in columns.items():
        if not isinstance(key, str):
            raise TypeError(f"the columns{where} must have names that are text, but one is {key!r}")
        if not (jnp.issubdtype(column.dtype, jnp.number) or column.dtype == bool):
            raise TypeError(f"data[{key!r}]{where} must hold numbers, but has dtype {column.dtype}; encode it first")
    if length == 0:
        empty = "no clients: data must have at least one row, but its columns are empty"
        raise ValueError(empty if client is None else f"client {client!r} has no rows; remove it, or give it data")
    if length > np.iinfo(np.int32).max:
        raise ValueError(f"data{where} must have fewer than 2**31 rows, but has {length}")
    return columns
