"""Conversion of Parquet files, which have no access to single rows, to memory-mapped columns sorted by client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from softswitch.data.row_order import RowOrder, count_cells, distinct_labels, next_places

ABOUT = "about.json"  # describes the source of the columns; written last, so that a partial conversion is not used
BATCH_ROWS = 1 << 16

Columns = Mapping[str, str | Sequence[str]]
"""By name one column of the files, or several that are joined."""


def convert_parquet(
    paths: Sequence[Path], client: str, strata: str | None, columns: Columns | None, cache: Path
) -> tuple[dict[str, np.ndarray], RowOrder]:
    """Return the sorted columns of Parquet files, from the cache if it was made of the same files."""
    files = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]
    wanted = None if columns is None else [[key, parts] for key, parts in columns.items()]
    source = {"files": files, "client": client, "strata": strata, "columns": wanted}
    source = json.loads(json.dumps(source, default=list))
    about = cache / ABOUT
    content: dict[str, Any] = json.loads(about.read_text(encoding="utf-8")) if about.exists() else {}
    if content.get("made_of") != source:
        about.unlink(missing_ok=True)
        cache.mkdir(parents=True, exist_ok=True)
        content = {"made_of": source, **_write_columns(paths, client, strata, columns, cache)}
        about.write_text(json.dumps(content), encoding="utf-8")
    arrays = {key: np.asarray(np.load(cache / file, mmap_mode="r")) for key, file in content["arrays"].items()}
    sizes = np.load(cache / "sizes.npy")
    return arrays, RowOrder(tuple(content["names"]), tuple(content["strata"]), sizes, None)


def _write_columns(
    paths: Sequence[Path], client: str, strata: str | None, columns: Columns | None, cache: Path
) -> dict[str, Any]:
    """Write each row of the columns to its place: one pass over the labels, and one over all columns."""
    joined = _select_columns(paths, client, strata, columns)
    keys = [client] if strata is None else [client, strata]
    labels = [distinct_labels(key, (_labels(key, batch) for batch in _batches(paths, [key]))) for key in keys]

    def cells(batch: Mapping[str, Any]) -> np.ndarray:
        codes = np.zeros(1, np.int64)
        for key, distinct in zip(keys, labels, strict=True):
            codes = codes * len(distinct) + np.searchsorted(distinct, _labels(key, batch))
        return codes

    groups = 1 if strata is None else len(labels[1])
    counts, _ = count_cells(map(cells, _batches(paths, keys)), len(labels[0]) * groups)
    free, arrays = np.cumsum(counts) - counts, dict[str, np.ndarray]()
    for batch in _batches(paths, sorted({*keys, *(name for names in joined.values() for name in names)})):
        places = next_places(cells(batch), free)
        for i, (key, names) in enumerate(joined.items()):
            parts = [_numbers(name, batch[name]) for name in names]
            is_single = columns is None or isinstance(columns[key], str)
            part = parts[0] if is_single else np.concatenate([one.reshape(len(one), -1) for one in parts], axis=1)
            if key not in arrays:
                file, shape = cache / f"column{i}.npy", (int(counts.sum()), *part.shape[1:])
                file.unlink(missing_ok=True)  # data that has mapped the old file keeps it
                arrays[key] = np.lib.format.open_memmap(file, mode="w+", dtype=part.dtype, shape=shape)
            if part.shape[1:] != arrays[key].shape[1:]:
                raise ValueError(f"{key!r} has rows of shape {part.shape[1:]} and of shape {arrays[key].shape[1:]}")
            if not np.can_cast(part.dtype, arrays[key].dtype, "safe"):
                raise ValueError(
                    f"{key!r} must be of one kind in all files, but is {arrays[key].dtype} first and {part.dtype} "
                    "later; write it as the wider one in all of them"
                )
            arrays[key][places] = part
    for array in arrays.values():
        array.flush()  # type: ignore[attr-defined]
    np.save(cache / "sizes.npy", counts.reshape(-1, groups))
    files = {key: f"column{i}.npy" for i, key in enumerate(joined)}
    return {"arrays": files, "names": labels[0].tolist(), "strata": [0] if strata is None else labels[1].tolist()}


def _select_columns(
    paths: Sequence[Path], client: str, strata: str | None, columns: Columns | None
) -> dict[str, list[str]]:
    """Return the columns to write, each as a list of the file columns to join. Default: all numeric columns."""
    pa, parquet = _pyarrow()
    schema = parquet.read_schema(paths[0])
    for name in (client, strata):
        if name is not None and name not in schema.names:
            raise ValueError(f"there is no column {name!r} in {paths[0]}, but {', '.join(map(repr, schema.names))}")
    if columns is not None:
        joined = {key: [parts] if isinstance(parts, str) else list(parts) for key, parts in columns.items()}
    else:
        is_numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
        kinds = {field.name: getattr(field.type, "value_type", field.type) for field in schema if field.name != client}
        joined = {name: [name] for name, kind in kinds.items() if any(test(kind) for test in is_numeric)}
    missing = sorted({name for names in joined.values() for name in names} - set(schema.names))
    if missing or not joined:
        raise ValueError(f"columns must name columns of {paths[0]} ({schema.names}), but names {missing or 'none'}")
    return joined


def _batches(paths: Sequence[Path], columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of the files in batches of Arrow arrays by column name."""
    for path in paths:
        with _pyarrow()[1].ParquetFile(path, memory_map=True) as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=list(columns)):
                if len(batch):
                    yield {name: batch.column(name) for name in columns}


def _labels(name: str, batch: Mapping[str, Any]) -> np.ndarray:
    """Return a column of labels: numbers, booleans or text."""
    column = batch[name]
    if column.null_count:
        raise ValueError(f"column {name!r} must have a label for every row, but {column.null_count} are missing")
    labels = column.to_numpy(zero_copy_only=False)
    return labels.astype(str) if labels.dtype.kind in "OM" else labels


def _numbers(name: str, column: Any) -> np.ndarray:
    """Return a column of numbers, or of lists of numbers that all have one length."""
    if column.null_count:
        raise ValueError(f"column {name!r} must have a number in every row, but {column.null_count} are missing")
    types = _pyarrow()[0].types
    if any(test(column.type) for test in (types.is_fixed_size_list, types.is_list, types.is_large_list)):
        flat = column.flatten()
        width, rest = divmod(len(flat), len(column))
        if rest or (np.asarray(column.value_lengths()) != width).any():
            raise ValueError(f"column {name!r} must hold lists of one length")
        return _numbers(name, flat).reshape(len(column), width)
    numbers = np.asarray(column.to_numpy(zero_copy_only=False))
    if numbers.dtype.kind not in "fiub":
        raise TypeError(f"column {name!r} must hold numbers, but holds {column.type}; encode it first")
    return numbers


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet needs pyarrow: pip install softswitch[parquet]") from error
    return pyarrow, pyarrow.parquet
