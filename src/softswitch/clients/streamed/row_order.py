"""Which client and stratum every row belongs to, found block by block: nothing as long as the data but one array."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from softswitch.clients.client_data import MOST_CELLS

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
    if n * s > MOST_CELLS:
        raise ValueError(
            f"strata must have few different values, but has {s:,}: with {n:,} clients that makes {n * s:,} strata to "
            f"keep count of, more than {MOST_CELLS:,}"
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
