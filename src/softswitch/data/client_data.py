"""ClientData: all clients' rows in one flat store with offsets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import ArrayLike, DTypeLike

from softswitch.problem.parameters import WEIGHT, Batch
from softswitch.support.arrays import aligned_zeros


class Rows(NamedTuple):
    """The rows as the compiled engine sees them: sorted by client, and by stratum within a client.

    Attributes:
        columns: the data, one row a sample.
        offsets: the first row of each client's stratum; clients × strata.
        counts: how many rows it has.
    """

    columns: dict[str, jax.Array]
    offsets: jax.Array
    counts: jax.Array

    @property
    def sizes(self) -> jax.Array:
        """How many rows each client has."""
        return self.counts.sum(axis=1)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all columns."""
        return sum(column.nbytes // len(column) for column in self.columns.values())

    def batch_shapes(self, width: int, dtype: DTypeLike) -> dict[str, Any]:
        """The shapes of a batch of so many rows whose weights are of this dtype."""
        shapes = {
            key: jax.ShapeDtypeStruct((width, *column.shape[1:]), column.dtype) for key, column in self.columns.items()
        }
        return shapes | {WEIGHT: jax.ShapeDtypeStruct((width,), dtype)}

    def take(self, indices: jax.Array, weights: jax.Array) -> Batch:
        """The batch of these rows, with their weights."""
        columns = {key: gather_rows(column, indices) for key, column in self.columns.items()}
        return {**columns, WEIGHT: weights}


def gather_rows(column: jax.Array, indices: jax.Array) -> jax.Array:
    """Rows that are there, so that nothing is looked for beyond the ends."""
    return column.at[indices].get(mode="promise_in_bounds", wrap_negative_indices=False)


class ClientData:
    """The data of n clients of any sizes, kept flat: no row is padded, none is stored twice.

    Make one with ``from_arrays`` or ``from_list``. Rows keep their dtype as far as JAX does (float64 needs
    ``jax_enable_x64``).

    Args:
        columns: the data by name, one row a sample.
        client: whose row each is.
        strata: by what to draw, one a row; None: all rows alike.
        names: the clients' labels in the order of their indices; None: the sorted values of ``client``.

    Attributes:
        rows: the flat store.
        names: the clients' labels, in the order of their indices.
        strata: the strata's labels; one stratum where none were asked for.
        sizes: how many rows each client has, on the host.
        stratum_sizes: how many of each stratum; clients × strata, on the host.
        client_optimum: f_i* of each client in a problem of regrets; set by ``with_regret``.
    """

    def __init__(
        self,
        columns: Mapping[str, Any],
        client: ArrayLike,
        strata: ArrayLike | None,
        names: Sequence[Any] | None,
    ) -> None:
        columns = check_columns(columns)
        total = len(next(iter(columns.values())))
        labels, owner = _labels("client", client, total)
        groups, stratum = _labels("strata", strata, total) if strata is not None else (np.zeros(1, int), None)
        n, s = len(labels), len(groups)
        if n * s > MAX_STRATA:
            raise ValueError(
                f"strata must have few different values, but has {s:,}: with {n:,} clients that makes {n * s:,} strata "
                f"to keep count of, more than {MAX_STRATA:,}"
            )
        cell = owner if stratum is None else owner * s + stratum
        counts = np.bincount(cell, minlength=n * s)
        ends = np.cumsum(counts)
        order = None if (cell[1:] >= cell[:-1]).all() else np.argsort(cell, kind="stable")
        self.names: tuple[Any, ...] = tuple(labels.tolist() if names is None else names)
        self.strata: tuple[Any, ...] = tuple(groups.tolist())
        self.stratum_sizes: np.ndarray = counts.reshape(n, s)
        self.sizes: np.ndarray = self.stratum_sizes.sum(axis=1)
        self.client_optimum: np.ndarray | None = None
        self.rows = Rows(
            {key: self._stored(key, column, order) for key, column in columns.items()},
            jnp.asarray((ends - counts).reshape(n, s).astype(np.int32)),
            jnp.asarray(self.stratum_sizes.astype(np.int32)),
        )

    @classmethod
    def from_arrays(cls, data: Mapping[str, Any], client: ArrayLike, *, strata: ArrayLike | None = None) -> ClientData:
        """Clients from arrays with one row a sample, and a column that says whose row it is.

        Args:
            data: the columns, each an array whose first axis counts the samples. A JAX array whose rows are in the
                order of their clients is kept as it is; anything else is copied.
            client: one label a sample: a hospital's name, a number. Clients are ordered by label.
            strata: a column (its name, or one label a sample) whose every value gets a fixed number of draws in each
                batch, so that no batch lacks a class or group its client has. Row weights make up for it. A tuple of
                names draws by all combinations of their values.
        """
        return cls(data, client, _named_column(data, strata), None)

    @classmethod
    def from_list(
        cls,
        clients: Sequence[Mapping[str, Any]],
        *,
        names: Sequence[Any] | None = None,
        strata: str | tuple[str, ...] | None = None,
    ) -> ClientData:
        """Clients from a list with one dict of arrays a client.

        Args:
            clients: for each client its columns; all have the same columns.
            names: the clients' labels; by default 0, 1, 2, …
            strata: the name of the column to draw by, as in ``from_arrays``.
        """
        if isinstance(clients, Mapping):
            raise TypeError("clients must be a list with one dict of arrays a client; pass names=list(d) beside it")
        if len(clients) == 0:
            raise ValueError("clients must hold at least one client, but is empty")
        if names is not None and len(names) != len(clients):
            raise ValueError(f"names must have one label for each of {len(clients)} clients, but has {len(names)}")
        if names is not None and len(set(names)) < len(names):
            raise ValueError(f"names must be different for all clients, but is {list(names)!r}")
        keys = list(clients[0])
        sizes = []
        for i, columns in enumerate(clients):
            label = i if names is None else names[i]
            if set(columns) != set(keys):
                raise ValueError(f"client {label!r} has columns {list(columns)}, but the first client has {keys}")
            checked = check_columns(columns, label)
            sizes.append(len(checked[keys[0]]))
            for key in keys:
                shapes = checked[key].shape[1:], np.shape(clients[0][key])[1:]
                if shapes[0] != shapes[1]:
                    raise ValueError(
                        f"{key!r} of client {label!r} has rows of shape {shapes[0]}, the first {shapes[1]}"
                    )
        data = {key: np.concatenate([np.asarray(columns[key]) for columns in clients]) for key in keys}
        owner = np.repeat(np.arange(len(clients)), sizes)
        return cls(data, owner, _named_column(data, strata), names)

    def __len__(self) -> int:
        return len(self.names)

    def batch_shapes(self, width: int, dtype: DTypeLike) -> dict[str, Any]:
        """The shapes of a batch of ``width`` rows whose weights are of this dtype.

        Args:
            width: rows a batch has.
            dtype: of the row weights.
        """
        return self.rows.batch_shapes(width, dtype)

    def __repr__(self) -> str:
        columns = ", ".join(
            f"{key}: {column.dtype}{list(column.shape[1:])}" for key, column in self.rows.columns.items()
        )
        strata = f", {len(self.strata)} strata" if len(self.strata) > 1 else ""
        return (
            f"ClientData({len(self)} clients, {self.sizes.sum()} rows, "
            f"{self.sizes.min()} to {self.sizes.max()} a client{strata}; {columns})"
        )

    def _stored(self, key: str, column: np.ndarray | jax.Array, order: np.ndarray | None) -> jax.Array:
        """The column in the given order, copied once, in blocks; the user's own array is never shared.

        A JAX array in order is kept as it is: nobody can write to it. Otherwise, on a processor JAX takes over a buffer
        of ours that is aligned as it likes; to an accelerator blocks go one by one, so that the host never holds a
        second copy.
        """
        dtype = jax.dtypes.canonicalize_dtype(column.dtype)
        if isinstance(column, jax.Array) and order is None and bool(_all_finite(column)):
            return column
        check_integer_range(key, column, dtype)
        rows = max(1, _BLOCK_BYTES // max(1, dtype.itemsize * math.prod(column.shape[1:])))
        blocks = [slice(start, start + rows) for start in range(0, len(column), rows)]
        into: Any = _HostBuffer if jax.default_backend() == "cpu" else _DeviceBuffer
        buffer, bad = into(column.shape, dtype), []
        for block in blocks:
            part = np.ascontiguousarray(column[block] if order is None else column[order[block]], dtype)
            buffer.put(block.start, part)
            finite = np.isfinite(part)
            if not finite.all():
                bad.append(block.start + np.flatnonzero(~finite.reshape(len(finite), -1).all(axis=1)))
        if bad:
            at = np.concatenate(bad)
            owner = self.names[int(np.searchsorted(np.cumsum(self.sizes), at[0], side="right"))]
            raise ValueError(
                f"data[{key!r}] must be finite, but {len(at)} rows hold NaN or infinity "
                f"(the first at client {owner!r}); fill or drop them"
            )
        stored: jax.Array = buffer.taken()
        return stored


class _HostBuffer:
    """An array that is filled in blocks, and then taken over by JAX as it is."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._buffer = aligned_zeros(shape, dtype)

    def put(self, start: int, block: np.ndarray) -> None:
        """These rows from ``start`` on."""
        self._buffer[start : start + len(block)] = block

    def taken(self) -> jax.Array:
        """The whole, not copied."""
        return jax.device_put(self._buffer, may_alias=True)


class _DeviceBuffer:
    """The same on an accelerator."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._buffer = jnp.zeros(shape, dtype)

    def put(self, start: int, block: np.ndarray) -> None:
        """These rows from ``start`` on."""
        self._buffer = _with_block(self._buffer, block, start)
        self._buffer.block_until_ready()  # else blocks wait on the host for their turn, all of them

    def taken(self) -> jax.Array:
        """The whole."""
        return self._buffer


@jax.jit
def _all_finite(column: jax.Array) -> jax.Array:
    return jnp.isfinite(column).all()


@partial(jax.jit, donate_argnums=0)
def _with_block(buffer: jax.Array, block: jax.Array, start: Any) -> jax.Array:
    return lax.dynamic_update_slice_in_dim(buffer, block, start, 0)


def check_integer_range(key: str, column: np.ndarray | jax.Array, dtype: Any) -> None:
    """Raise where JAX's narrower integers cannot hold a column's values."""
    if not jnp.issubdtype(dtype, jnp.integer) or dtype == column.dtype:
        return
    limits = jnp.iinfo(dtype)
    for value in (column.min(), column.max()):
        if not limits.min <= value <= limits.max:
            raise ValueError(f"data[{key!r}] must fit in {dtype}, but holds {value}; rescale it, or make it floating")


MAX_STRATA = 1 << 26
"""Clients times strata, at most: beyond, their counts alone would take gigabytes."""
_BLOCK_BYTES = 1 << 26


def check_columns(data: Mapping[str, Any], client: Any = None) -> dict[str, np.ndarray | jax.Array]:
    """The columns as arrays of numbers, all with the same number of rows, at least one."""
    where = "" if client is None else f" of client {client!r}"
    if not isinstance(data, Mapping) or not data:
        raise TypeError(f"data{where} must be a dict of arrays with at least one column, but is {data!r}")
    if WEIGHT in data:
        raise ValueError(
            f"data{where} must not have a column {WEIGHT!r}: batches carry their row weights there; rename it"
        )
    columns = {key: column if isinstance(column, jax.Array) else np.asarray(column) for key, column in data.items()}
    lengths = {key: column.shape[0] if column.ndim else None for key, column in columns.items()}
    if len(set(lengths.values())) > 1 or None in lengths.values():
        raise ValueError(f"the columns{where} must all have one entry a sample, but have lengths {lengths}")
    for key, column in columns.items():
        if not isinstance(key, str):
            raise TypeError(f"the columns{where} must have names that are text, but one is {key!r}")
        if not (jnp.issubdtype(column.dtype, jnp.number) or column.dtype == bool):
            raise TypeError(f"data[{key!r}]{where} must hold numbers, but has dtype {column.dtype}; encode it first")
    length = next(iter(lengths.values()))
    if length == 0:
        if client is None:
            raise ValueError("no clients: data must have at least one row, but its columns are empty")
        raise ValueError(f"client {client!r} has no rows; leave it out, or give it data")
    if length is not None and length > np.iinfo(np.int32).max:
        raise ValueError(f"data{where} must have fewer than 2**31 rows, but has {length}")
    return columns


def _labels(name: str, labels: Any, total: int) -> tuple[np.ndarray, np.ndarray]:
    """The distinct labels in order, and for every row the index of its own."""
    labels = np.asarray(labels)
    if labels.shape != (total,):
        raise ValueError(f"{name} must have one label for each of {total} samples, but has shape {labels.shape}")
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise ValueError(f"{name} must have a label for every sample, but {int(np.isnan(labels).sum())} are NaN")
    if labels.dtype.kind in "iu" and labels.min() >= 0 and labels.max() < 2 * total:
        # Small numbers are counted instead of sorted: a third of the time and of the memory.
        present = np.bincount(labels) > 0
        return np.flatnonzero(present), (np.cumsum(present) - 1)[labels]
    try:
        distinct, index = np.unique(labels, return_inverse=True)
    except TypeError as error:
        raise TypeError(f"{name} must hold labels of one kind (all text or all numbers): {error}") from error
    return distinct, index


def _named_column(data: Mapping[str, Any], strata: Any | None) -> Any | None:
    """The column of a name; the numbered combinations of several; or the labels as they are."""
    names = (strata,) if isinstance(strata, str) else strata
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        return strata
    for name in names:
        if name not in data:
            raise ValueError(f"strata must name a column of data ({', '.join(map(repr, data))}), but is {strata!r}")
    if len(names) == 1:
        return data[names[0]]
    combined = np.stack([np.asarray(data[name]) for name in names], axis=1)
    return np.unique(combined, axis=0, return_inverse=True)[1]
