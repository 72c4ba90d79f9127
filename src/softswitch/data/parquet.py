"""Parquet files as memory-mapped columns sorted by client: single rows of Parquet cannot be read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from softswitch.data.row_reader import distinct_of, places_of

ABOUT = "about.json"
"""The file that says what a folder of columns was made of; written last, so that half a folder is not taken for one."""
BATCH_ROWS = 1 << 16


class ParquetColumns(NamedTuple):
    """What is taken of a file.

    Attributes:
        client: the name of the column of labels.
        strata: the name of the column to draw by; None: none.
        columns: by name one column of the file, or several side by side; None: every column of numbers by itself.
    """

    client: str
    strata: str | None
    columns: Mapping[str, str | Sequence[str]] | None


class SortedColumns(NamedTuple):
    """Memory-mapped columns whose rows are sorted by client, and by stratum within a client.

    Attributes:
        arrays: the columns.
        names: the clients' labels.
        strata: the strata's labels.
        sizes: how many rows of each; clients × strata.
    """

    arrays: dict[str, np.ndarray]
    names: tuple[Any, ...]
    strata: tuple[Any, ...]
    sizes: np.ndarray


def converted(paths: Sequence[Path], wanted: ParquetColumns, cache: Path) -> SortedColumns:
    """The columns of Parquet files in a folder: those that are there if they are of these files, or else new ones."""
    files = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]
    told = None if wanted.columns is None else [[key, one] for key, one in wanted.columns.items()]
    made_of = {"files": files, "client": wanted.client, "strata": wanted.strata, "columns": told}
    made_of = json.loads(json.dumps(made_of, default=list))
    about = cache / ABOUT
    if about.exists():
        known = json.loads(about.read_text(encoding="utf-8"))
        if known["made_of"] == made_of:
            return _opened(cache, known)
        about.unlink()
    cache.mkdir(parents=True, exist_ok=True)
    known = {"made_of": made_of, **_written(paths, wanted, cache)}
    about.write_text(json.dumps(known), encoding="utf-8")
    return _opened(cache, known)


def _opened(cache: Path, known: Mapping[str, Any]) -> SortedColumns:
    arrays = {key: np.asarray(np.load(cache / file, mmap_mode="r")) for key, file in known["arrays"].items()}
    sizes = np.load(cache / "sizes.npy")
    return SortedColumns(arrays, tuple(known["names"]), tuple(known["strata"]), sizes)


def _written(paths: Sequence[Path], wanted: ParquetColumns, cache: Path) -> dict[str, Any]:
    """Write the columns, each row where it belongs: once through the labels, and once through all."""
    taken = _taken(paths, wanted)
    labels = [wanted.client] if wanted.strata is None else [wanted.client, wanted.strata]
    distinct = {
        name: distinct_of(name, (_labels(name, batch[name]) for batch in _batches(paths, [name]))) for name in labels
    }
    groups = 1 if wanted.strata is None else len(distinct[wanted.strata])

    def cells(batch: Mapping[str, Any]) -> np.ndarray:
        code = np.searchsorted(distinct[wanted.client], _labels(wanted.client, batch[wanted.client]))
        if wanted.strata is not None:
            code = code * groups + np.searchsorted(
                distinct[wanted.strata], _labels(wanted.strata, batch[wanted.strata])
            )
        return code

    counts = np.zeros(len(distinct[wanted.client]) * groups, np.int64)
    for batch in _batches(paths, labels):
        counts += np.bincount(cells(batch), minlength=len(counts))
    free, total = np.cumsum(counts) - counts, int(counts.sum())
    every = sorted({*labels, *(name for names in taken.values() for name in names)})
    arrays: dict[str, np.ndarray] = {}
    for batch in _batches(paths, every):
        places = places_of(cells(batch), free)
        for i, (key, names) in enumerate(taken.items()):
            own = _joined(key, [_numbers(name, batch[name]) for name in names], wanted)
            if key not in arrays:
                file = cache / f"column{i}.npy"
                file.unlink(missing_ok=True)  # whoever has the one before mapped keeps it
                arrays[key] = np.lib.format.open_memmap(file, mode="w+", dtype=own.dtype, shape=(total, *own.shape[1:]))
            if own.shape[1:] != arrays[key].shape[1:]:
                raise ValueError(f"{key!r} has rows of shape {own.shape[1:]} and of shape {arrays[key].shape[1:]}")
            if not np.can_cast(own.dtype, arrays[key].dtype, "safe"):
                raise ValueError(
                    f"{key!r} must be of one kind in all files, but is {arrays[key].dtype} first and {own.dtype} "
                    "later; write it as the wider one in all of them"
                )
            arrays[key][places] = own
    for array in arrays.values():
        array.flush()  # type: ignore[attr-defined]
    np.save(cache / "sizes.npy", counts.reshape(-1, groups))
    strata = [0] if wanted.strata is None else distinct[wanted.strata].tolist()
    files = {key: f"column{i}.npy" for i, key in enumerate(taken)}
    return {"arrays": files, "names": distinct[wanted.client].tolist(), "strata": strata}


def _taken(paths: Sequence[Path], wanted: ParquetColumns) -> dict[str, list[str]]:
    """The columns to write, each by the columns of the files that it is made of."""
    pa, parquet = _pyarrow()
    schema = parquet.read_schema(paths[0])
    for name in (wanted.client, wanted.strata):
        if name is not None and name not in schema.names:
            raise ValueError(f"there is no column {name!r} in {paths[0]}, but {', '.join(map(repr, schema.names))}")
    if wanted.columns is not None:
        taken = {key: [one] if isinstance(one, str) else list(one) for key, one in wanted.columns.items()}
    else:
        kinds = pa.types
        taken = {
            field.name: [field.name]
            for field in schema
            if field.name != wanted.client
            and any(is_kind(_inner(field.type)) for is_kind in (kinds.is_integer, kinds.is_floating, kinds.is_boolean))
        }
    missing = sorted({name for names in taken.values() for name in names} - set(schema.names))
    if missing or not taken:
        raise ValueError(f"columns must name columns of {paths[0]} ({schema.names}), but names {missing or 'none'}")
    return taken


def _batches(paths: Sequence[Path], columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """The files' rows in batches, a dict of Arrow's arrays each; never a whole file at once."""
    _, parquet = _pyarrow()
    for path in paths:
        with parquet.ParquetFile(path, memory_map=True) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=list(columns)):
                if len(batch):
                    yield {name: batch.column(name) for name in columns}


def _labels(name: str, column: Any) -> np.ndarray:
    """A column of labels: numbers, truth values or text."""
    if column.null_count:
        raise ValueError(f"column {name!r} must have a label for every row, but {column.null_count} are missing")
    found = column.to_numpy(zero_copy_only=False)
    return found.astype(str) if found.dtype.kind in "OM" else found


def _numbers(name: str, column: Any) -> np.ndarray:
    """A column of numbers, or of lists of numbers that are all of one length."""
    pa, _ = _pyarrow()
    if column.null_count:
        raise ValueError(f"column {name!r} must have a number in every row, but {column.null_count} are missing")
    if pa.types.is_fixed_size_list(column.type) or pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        flat = column.flatten()
        width, rest = divmod(len(flat), len(column))
        if rest or (np.asarray(column.value_lengths()) != width).any():
            raise ValueError(f"column {name!r} must hold lists of one length")
        return _numbers(name, flat).reshape(len(column), width)
    found = np.asarray(column.to_numpy(zero_copy_only=False))
    if found.dtype.kind not in "fiub":
        raise TypeError(f"column {name!r} must hold numbers, but holds {column.type}; encode it first")
    return found


def _joined(key: str, parts: Sequence[np.ndarray], wanted: ParquetColumns) -> np.ndarray:
    """One column as it is, or several side by side."""
    if wanted.columns is None or isinstance(wanted.columns[key], str):
        return parts[0]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def _inner(kind: Any) -> Any:
    """What a list's type is a list of."""
    return getattr(kind, "value_type", kind)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet needs pyarrow: pip install softswitch[parquet]") from error
    return pyarrow, pyarrow.parquet
