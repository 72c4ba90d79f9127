"""Batch sizes and row indices of a client that draws its rows itself, with NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from softswitch.support import checks

if TYPE_CHECKING:  # clients that compute with NumPy do not need JAX
    from softswitch.oracles.options import BatchSize, ValueBatchSize

MAX_WORK, GRADIENT_COST = 2**26, 3  # maximum of rows × parameters of a report; cost of a gradient relative to a value
MIN_PARAMETERS, MIN_REPORT_ROWS, MIN_GRADIENT_ROWS = 64, 256, 64  # smallest assumed model, and batches


class Batches(NamedTuple):
    """Numbers of rows that a client draws for a report and for a gradient; None for all rows."""

    report: int | None
    update: int | None


def choose_batches(
    batch_size: BatchSize, value_batch_size: ValueBatchSize, replace: bool | None, rows: int, parameters: int
) -> Batches:
    """Return a client's batch sizes: "auto" is all rows if cheap, "same" is ``batch_size``; None is all rows."""
    affordable = MAX_WORK // max(MIN_PARAMETERS, parameters)

    def choose(name: str, given: BatchSize, automatic: int) -> int | None:
        if given is None:
            return None
        size = automatic if given == "auto" else checks.check_integer(name, given, minimum=1)
        if given != "auto" and replace is False and size > rows:
            raise ValueError(f"{name} = {size} without replacement must be at most the number of rows, {rows}")
        return None if size >= rows and (given == "auto" or not replace) else size

    report_size = batch_size if value_batch_size == "same" else value_batch_size
    report = choose("value_batch_size", report_size, max(MIN_REPORT_ROWS, affordable))
    return Batches(report, choose("batch_size", batch_size, max(MIN_GRADIENT_ROWS, affordable // GRADIENT_COST)))


def draw_rows(generator: np.random.Generator, rows: int, size: int, replace: bool) -> np.ndarray:
    """Return the indices of ``size`` random rows out of ``rows``, drawn with or without replacement."""
    return generator.integers(rows, size=size) if replace else generator.choice(rows, size=size, replace=False)
