"""What rows can certify at best, before anything is trained: by how many there are, whatever a model does on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from softswitch.certification.certify import resolve_ranges
from softswitch.certification.intervals import ErrorLevels, gap_interval, mean_interval
from softswitch.certification.row_values import RowValues
from softswitch.data.client_data import ClientData
from softswitch.problem.parameters import float_dtype
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import Range, ends
from softswitch.support import checks
from softswitch.support.text import few_of

MOST_ROWS = 1 << 40


@dataclass(frozen=True)
class Certifiability:
    """What the rows that are kept for the certificate could show at best: of a model without a single error on them.

    Attributes:
        tolerance: what is to be certified.
        confidence: with which.
        clients: all of their labels.
        rows: how many rows each has that count, the fewest of its constraints'.
        bounds: the smallest bound that each could be shown to keep; ∞ without rows, NaN where no range is known and
            nothing can be said.
        needed: how many rows that count each client must have; None where no range is known.
    """

    tolerance: float
    confidence: float
    clients: tuple[Any, ...]
    rows: tuple[int, ...]
    bounds: tuple[float, ...]
    needed: int | None

    @property
    def uncertifiable(self) -> tuple[Any, ...]:
        """The clients that no model could be certified for, those with the fewest rows first."""
        order = sorted(range(len(self.clients)), key=lambda i: self.rows[i])
        return tuple(self.clients[i] for i in order if self.bounds[i] > self.tolerance)

    @property
    def smallest_bound(self) -> float:
        """The smallest bound that all clients' rows could certify; NaN where that cannot be said."""
        return max(self.bounds, key=lambda bound: math.inf if math.isnan(bound) else bound)

    def __str__(self) -> str:
        """In words."""
        if self.needed is None:
            return "No range of the constraint is known: the certificate will be approximate."
        many, fewest, most = len(self.clients), min(self.rows), max(self.rows)
        there = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
        takes = (
            f"To certify {self.tolerance:g} at {'all ' if many > 1 else ''}{many} client{'s' * (many > 1)} with "
            f"{self.confidence:.0%} confidence takes {self.needed:,} rows that count at each, with no error on any of "
            f"them; kept for it are {there}."
        )
        small = self.uncertifiable
        if not small:
            return f"{takes} That can be done."
        counts = dict(zip(self.clients, self.rows, strict=True))
        named = few_of([f"{name} ({counts[name]:,})" for name in small])
        could = f"{self.smallest_bound:.3g}" if self.smallest_bound < math.inf else "none"
        return (
            f"{takes} {len(small)} of {many} clients have too few, whatever the model is: {named}. The smallest bound "
            f"that all of these rows could certify: {could}."
        )


def certifiability(problem: Problem, kept: ClientData, tolerance: float, confidence: float = 0.95) -> Certifiability:
    """What rows could certify at best, by their number alone.

    Args:
        problem: objective and constraint, with the range of a row's values.
        kept: the rows that are to certify. What is read of them is which rows a function concerns (those of a class or
            group), and nothing that a model says of them.
        tolerance: what is to be certified.
        confidence: with which.
    """
    error = 1 - checks.probability("confidence", confidence)
    levels = ErrorLevels(error / len(kept), error, checks.real_number("tolerance", tolerance))
    many = problem.trace(kept.batch_shapes(1, float_dtype(problem.start))).constraints
    ranges = resolve_ranges(problem, None, None, many)[1:]
    values = RowValues(problem, kept, problem.start)
    counts, bounds = [], []
    for client in range(len(kept)):
        told = [_at_best(values, client, j, levels, of_row) for j, of_row in enumerate(ranges, 1)]
        counts.append(min(rows for rows, _ in told))
        bounds.append(max((bound for _, bound in told), key=lambda bound: math.inf if math.isnan(bound) else bound))
    needed = [_rows_needed(j in values.gaps, levels, of_row) for j, of_row in enumerate(ranges, 1)]
    wanted = [rows for rows in needed if rows is not None]
    return Certifiability(
        levels.tolerance,
        confidence,
        tuple(kept.names),
        tuple(counts),
        tuple(bounds),
        max(wanted) if len(wanted) == len(needed) else None,
    )


def _at_best(
    values: RowValues, client: int, function: int, levels: ErrorLevels, bounds: Range | None
) -> tuple[int, float]:
    """How many rows count, and the smallest bound that they could show."""
    if function in values.gaps:
        first, second = (len(own) for own in values.gaps[function][client])
        if not first or not second:
            return 0, math.inf
        return first + second, math.nan if bounds is None else _faultless_gap(first, second, levels, bounds)
    rows = len(values.rows(client, function))
    if not rows:
        return 0, math.inf
    return rows, math.nan if bounds is None else _faultless_mean(rows, levels, bounds)


def _faultless_mean(rows: int, levels: ErrorLevels, bounds: Range) -> float:
    return mean_interval(np.full(rows, ends(bounds)[0]), levels, bounds).marginal_upper


def _faultless_gap(first: int, second: int, levels: ErrorLevels, bounds: Range) -> float:
    low = ends(bounds)[0]
    return gap_interval(np.full(first, low), np.full(second, low), levels, bounds).marginal_upper


def _rows_needed(is_gap: bool, levels: ErrorLevels, bounds: Range | None) -> int | None:
    """The fewest rows, of both groups together for a gap, with which a faultless model could be certified."""
    if bounds is None or not levels.tolerance > (0 if is_gap else ends(bounds)[0]):
        return None
    if is_gap:
        half = _fewest(lambda rows: _faultless_gap(rows, rows, levels, bounds) <= levels.tolerance)
        return None if half is None else 2 * half
    return _fewest(lambda rows: _faultless_mean(rows, levels, bounds) <= levels.tolerance)


def _fewest(enough: Callable[[int], bool]) -> int | None:
    low, high = 0, 1
    while not enough(high):
        low, high = high, 2 * high
        if high > MOST_ROWS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
