"""Conversion of Parquet files, whose single rows are slow to read, to memory-mapped columns sorted by client."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from softswitch.data.row_order import RowOrder, order_rows

ABOUT = "about.json"  # describes the source of the columns; written last, so that a partial conversion is not used
BATCH_ROWS = 1 << 16  # rows that are converted at a time

Columns = Mapping[str, str | Sequence[str]]  # batch column -> column of the files, or several that form a matrix


def convert_parquet(
    paths: Sequence[Path], client: str, strata: str | None, columns: Columns | None, cache: Path
) -> tuple[dict[str, np.ndarray], RowOrder]:
    """Return the sorted, memory-mapped columns of Parquet files, and their order; reuse ``cache`` if it is valid."""
    files = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]
    wanted = None if columns is None else list(columns.items())
    source = json.loads(json.dumps([files, client, strata, wanted], default=list))
    about = cache / ABOUT
    content: dict[str, Any] = json.loads(about.read_text(encoding="utf-8")) if about.exists() else {}
    if content.get("made_of") != source:
        about.unlink(missing_ok=True)
        cache.mkdir(parents=True, exist_ok=True)
        content = {"made_of": source, **_write_columns(paths, client, strata, columns, cache)}
        about.write_text(json.dumps(content), encoding="utf-8")
    arrays = {key: np.asarray(np.load(cache / file, mmap_mode="r")) for key, file in content["arrays"].items()}
    return arrays, RowOrder(tuple(content["names"]), tuple(content["strata"]), np.load(cache / "sizes.npy"), None)


def _write_columns(
    paths: Sequence[Path], client: str, strata: str | None, columns: Columns | None, cache: Path
) -> dict[str, Any]:
    """Write the columns, sorted by client, as .npy files to ``cache``; return the content of ``ABOUT``."""
    try:
        import pyarrow.dataset
    except ImportError as error:
        raise ImportError("Parquet needs pyarrow: pip install softswitch[parquet]") from error
    dataset = pyarrow.dataset.dataset([str(path) for path in paths], format="parquet")
    types = pyarrow.types
    if columns is None:
        numeric = (types.is_integer, types.is_floating, types.is_boolean)
        is_used = {field.name: field.name != client and any(t(field.type) for t in numeric) for field in dataset.schema}
        columns = {name: name for name, used in is_used.items() if used}
    joined = {key: [parts] if isinstance(parts, str) else list(parts) for key, parts in columns.items()}
    needed = sorted({name for names in joined.values() for name in names})
    for name in (client, *([] if strata is None else [strata]), *needed):
        if name not in dataset.schema.names:
            raise ValueError(f"there is no column {name!r} in {paths[0]}, but {', '.join(dataset.schema.names)}")
    total, groups = dataset.count_rows(), None if strata is None else _read_labels(dataset, strata)
    order = order_rows(total, _read_labels(dataset, client), groups, {})
    places = np.arange(total)
    if order.order is not None:
        places[order.order] = np.arange(total)
    arrays, first = dict[str, np.ndarray](), 0
    for batch in dataset.to_batches(columns=needed, batch_size=BATCH_ROWS):
        rows, first = places[first : first + len(batch)], first + len(batch)
        for i, (key, names) in enumerate(joined.items()):
            parts = [_to_numbers(name, batch.column(name)) for name in names]
            part = parts[0] if isinstance(columns[key], str) else np.stack(parts, axis=1)
            if key not in arrays:
                file, shape = cache / f"column{i}.npy", (total, *part.shape[1:])
                file.unlink(missing_ok=True)  # data that has mapped the old file keeps it
                arrays[key] = np.lib.format.open_memmap(file, mode="w+", dtype=part.dtype, shape=shape)
            arrays[key][rows] = part
    for array in arrays.values():
        array.flush()  # type: ignore[attr-defined]
    np.save(cache / "sizes.npy", order.sizes)
    files = {key: f"column{i}.npy" for i, key in enumerate(joined)}
    return {"arrays": files, "names": order.names, "strata": order.strata}


def _read_labels(dataset: Any, name: str) -> np.ndarray:
    """Return a column of labels as numbers, booleans or text; raise ValueError if labels are missing."""
    column = dataset.to_table(columns=[name]).column(0)
    if column.null_count:
        raise ValueError(f"column {name!r} must have a label for every row, but {column.null_count} are missing")
    labels = np.asarray(column.to_numpy())
    return labels.astype(str) if labels.dtype.kind in "OM" else labels


def _to_numbers(name: str, column: Any) -> np.ndarray:
    if column.null_count:
        raise ValueError(f"column {name!r} must have a number in every row, but {column.null_count} are missing")
    numbers = np.asarray(column.to_numpy(zero_copy_only=False))
    if numbers.dtype.kind not in "fiub":
        raise TypeError(f"column {name!r} must hold numbers, but holds {column.type}; encode it first")
    return numbers
