"""How many rows a client takes for itself, where it draws them by itself: for a report, and for a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from softswitch.support import checks

if TYPE_CHECKING:  # clients that compute with NumPy need no JAX
    from softswitch.oracles.federation import BatchSize, ValueBatchSize

LOCAL_WORK, GRADIENT = 2**26, 3
"""Rows × parameters of a report that a client chooses for itself, at most; a gradient costs three values."""
LEAST_PARAMETERS, FEWEST_REPORTED, FEWEST_ROWS = 64, 256, 64
"""A row of fewer parameters costs as much as one of so many; and so many rows a report and a gradient are never too
many."""


class Batches(NamedTuple):
    """How many rows a client takes for a report, and for a gradient; None: all of its rows, each once."""

    report: int | None
    update: int | None


def batches_of(
    batch_size: BatchSize, value_batch_size: ValueBatchSize, replace: bool | None, rows: int, parameters: int
) -> Batches:
    """What a client's settings come to.

    Args:
        batch_size: rows for a gradient; "auto": all of them where that is cheap.
        value_batch_size: rows for a report; "same": as ``batch_size``, or where that is "auto" by its own cost.
        replace: True: a batch is drawn with replacement, however few rows there are. Otherwise a client that has no
            more rows than a batch takes each of them once.
        rows: how many it has.
        parameters: how many numbers the model is.
    """
    value_batch_size = batch_size if value_batch_size == "same" else value_batch_size
    affordable = LOCAL_WORK // max(LEAST_PARAMETERS, parameters)
    chosen = {
        "value_batch_size": max(FEWEST_REPORTED, affordable),
        "batch_size": max(FEWEST_ROWS, affordable // GRADIENT),
    }
    found: list[int | None] = []
    for name, told in (("value_batch_size", value_batch_size), ("batch_size", batch_size)):
        size = None if told is None else chosen[name] if told == "auto" else checks.whole_number(name, told, at_least=1)
        own_choice = told == "auto" or not replace
        if replace is False and told != "auto" and size is not None and size > rows:
            raise ValueError(f"{name} = {size} without replacement must be at most {rows}, the rows there are")
        found.append(None if size is not None and size >= rows and own_choice else size)
    return Batches(*found)


def drawn(generator: np.random.Generator, rows: int, size: int, replace: bool) -> np.ndarray:
    """The indices of so many rows, drawn with replacement or without."""
    return generator.integers(rows, size=size) if replace else generator.choice(rows, size=size, replace=False)
