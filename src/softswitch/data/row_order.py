"""The order of rows in memory: by client, and by stratum within a client. Labels are read block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

BLOCK_ROWS = 1 << 20
MAX_STRATA = 1 << 26  # clients times strata; the counts of more would take gigabytes

Codes = Callable[[slice], np.ndarray]
"""Maps a block of rows to the indices of their labels."""


class RowOrder(NamedTuple):
    """The labels of clients and strata, and the order of their rows."""

    names: tuple[Any, ...]
    strata: tuple[Any, ...]
    sizes: np.ndarray  # number of rows, clients × strata
    order: np.ndarray | None  # position of each row; None if the rows are sorted


def order_rows(
    total: int, clients: tuple[Sequence[Any], Codes], strata: tuple[Sequence[Any], Codes] | None
) -> RowOrder:
    """Return the order of ``total`` rows by the labels and codes of clients and strata."""
    names, client_codes = clients
    groups, stratum_codes = strata or ((0,), None)
    count, width = len(names) * len(groups), len(groups)
    if count > MAX_STRATA:
        raise ValueError(
            f"strata must have few different values, but has {width:,}: with {len(names):,} clients that makes "
            f"{count:,} strata to keep count of, more than {MAX_STRATA:,}"
        )

    def cells() -> Iterator[np.ndarray]:
        for block in row_blocks(total):
            codes = client_codes(block)
            yield codes if stratum_codes is None else codes * width + stratum_codes(block)

    counts, is_sorted = count_cells(cells(), count)
    order = None if is_sorted else np.empty(total, np.int32)
    if order is not None:  # a stable sort in the memory of the result and one block
        free = np.cumsum(counts) - counts
        for block, cell in zip(row_blocks(total), cells(), strict=True):
            order[next_places(cell, free)] = np.arange(block.start, block.stop, dtype=np.int32)
    return RowOrder(tuple(names), tuple(groups), counts.reshape(-1, width), order)


def count_cells(cells: Iterable[np.ndarray], count: int) -> tuple[np.ndarray, bool]:
    """Return the number of rows in each cell, and whether the rows are sorted by cell."""
    counts, last, is_sorted = np.zeros(count, np.int64), -1, True
    for cell in cells:
        counts += np.bincount(cell, minlength=count)
        is_sorted = is_sorted and int(cell[0]) >= last and bool((cell[1:] >= cell[:-1]).all())
        last = int(cell[-1])
    return counts, is_sorted


def next_places(cell: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Return the places of the next rows by cell; ``free``, the next place of each cell, is advanced."""
    by_cell = np.argsort(cell, kind="stable")
    ordered = cell[by_cell]
    begins = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    first = np.maximum.accumulate(np.where(begins, np.arange(len(cell)), 0))
    places = np.empty(len(cell), np.int64)
    places[by_cell] = free[ordered] + np.arange(len(cell)) - first
    free += np.bincount(cell, minlength=len(free))
    return places


def row_blocks(total: int) -> Iterator[slice]:
    """Yield the blocks of ``total`` rows."""
    for first in range(0, total, BLOCK_ROWS):
        yield slice(first, min(total, first + BLOCK_ROWS))


def label_codes(name: str, labels: Any, total: int) -> tuple[Sequence[Any], Codes]:
    """Return the distinct labels of a column, sorted, and the codes of its rows."""
    labels = np.asarray(labels)
    if labels.shape != (total,):
        raise ValueError(f"{name} must have one label for each of {total} samples, but has shape {labels.shape}")
    if labels.dtype.kind in "iu" and labels.min() >= 0 and labels.max() < min(2 * total, MAX_STRATA):
        # Small numbers are counted instead of sorted: a third of the time and of the memory.
        present = np.zeros(int(labels.max()) + 1, bool)
        for block in row_blocks(total):
            present[labels[block]] = True
        codes = np.cumsum(present) - 1
        return np.flatnonzero(present).tolist(), lambda block: codes[labels[block]]
    distinct = distinct_labels(name, (labels[block] for block in row_blocks(total)))
    return distinct.tolist(), lambda block: np.searchsorted(distinct, labels[block])


def distinct_labels(name: str, parts: Iterable[np.ndarray]) -> np.ndarray:
    """Return the distinct labels of a column that comes in parts, sorted."""
    distinct: np.ndarray | None = None
    for part in parts:
        if part.dtype.kind == "f" and np.isnan(part).any():
            raise ValueError(f"{name} must have a label for every sample, but some are NaN")
        try:
            distinct = np.unique(part) if distinct is None else np.union1d(distinct, part)
        except TypeError as error:
            raise TypeError(f"{name} must hold labels of one kind (all text or all numbers): {error}") from error
    assert distinct is not None
    return distinct


def stratum_codes(columns: Mapping[str, Any], strata: Any, total: int) -> tuple[Sequence[Any], Codes] | None:
    """Return labels and codes of the strata: of a column, of the combinations of several, or of given labels."""
    if strata is None:
        return None
    names = (strata,) if isinstance(strata, str) else strata
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        return label_codes("strata", strata, total)
    for name in names:
        if name not in columns:
            raise ValueError(f"strata must name a column of data ({', '.join(map(repr, columns))}), but is {strata!r}")
    parts = [label_codes("strata", columns[name], total) for name in names]
    if len(parts) == 1:
        return parts[0]

    def combine(block: slice) -> np.ndarray:
        code = np.zeros(block.stop - block.start, np.int64)
        for labels, codes in parts:
            code = code * len(labels) + codes(block)
        return code

    present = distinct_labels("strata", map(combine, row_blocks(total)))
    return range(len(present)), lambda block: np.searchsorted(present, combine(block))


def size_codes(sizes: np.ndarray) -> Codes:
    """Return the codes of rows that are sorted by client, from the clients' row counts."""
    ends = np.cumsum(sizes)
    return lambda block: np.searchsorted(ends, np.arange(block.start, block.stop), side="right")
