"""Certifiability: the bounds that a calibration split can certify by its size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from softswitch.certification.certify import row_ranges
from softswitch.certification.intervals import ErrorLevels, gap_interval, mean_interval
from softswitch.certification.row_values import RowValues
from softswitch.data.client_data import ClientData
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import Range, endpoints
from softswitch.support.bisection import smallest_integer
from softswitch.support.text import join_first

MAX_ROWS = 1 << 40  # limit of the search for the number of rows that a certificate needs


@dataclass(frozen=True)
class Certifiability:
    """The bounds that a calibration split can certify at best: for a model without errors on it.

    Attributes:
        tolerance: Bound to certify.
        confidence: Confidence of the certificate, in (0, 1).
        clients: Names of all clients.
        rows: Number of each client's applicable rows, on which the constraint has a value. With several constraints,
            the smallest number.
        bounds: Smallest bound that each client's rows can certify. It is ∞ without rows, and NaN without a known range.
        rows_needed: Number of applicable rows that each client needs to certify ``tolerance``; None if the range of a
            constraint is unknown or no number suffices.
    """

    tolerance: float
    confidence: float
    clients: tuple[Any, ...]
    rows: tuple[int, ...]
    bounds: tuple[float, ...]
    rows_needed: int | None

    @property
    def uncertifiable(self) -> tuple[Any, ...]:
        """Names of the clients for which no model can be certified at ``tolerance``, the fewest rows first."""
        order = sorted(range(len(self.clients)), key=lambda i: self.rows[i])
        return tuple(self.clients[i] for i in order if self.bounds[i] > self.tolerance)

    @property
    def is_certifiable(self) -> tuple[bool, ...]:
        """Whether each client has applicable rows whose number can certify ``tolerance`` for some model."""
        pairs = zip(self.rows, self.bounds, strict=True)
        return tuple(rows > 0 and not bound > self.tolerance for rows, bound in pairs)

    @property
    def smallest_bound(self) -> float:
        """The smallest bound that can be certified at all clients; ∞ if a client has no rows, NaN without a range."""
        return _largest(self.bounds)

    def __str__(self) -> str:
        if self.rows_needed is None:
            return "The certificate will be approximate: the constraint has no known range (constraint_range)."
        clients, fewest, most = len(self.clients), min(self.rows), max(self.rows)
        text = (
            f"Certifying {self.tolerance:g} at {f'all {clients} clients' if clients > 1 else '1 client'} with "
            f"{self.confidence:.0%} confidence needs {self.rows_needed:,} applicable rows per client, all without "
            f"error. Available: {fewest:,}{'' if fewest == most else f' to {most:,}'}."
        )
        if not self.uncertifiable:
            return f"{text} There are enough rows."
        counts = dict(zip(self.clients, self.rows, strict=True))
        names = join_first([f"{name} ({counts[name]:,})" for name in self.uncertifiable])
        bound = f"{self.smallest_bound:.3g}" if self.smallest_bound < math.inf else "none"
        return (
            f"{text} Too few rows for any model at {len(self.uncertifiable)} of {clients} clients: {names}. "
            f"Smallest bound that these rows can certify: {bound}."
        )


def certifiability(
    problem: Problem, calibration: ClientData, tolerance: float, confidence: float = 0.95
) -> Certifiability:
    """Return the bounds that a calibration split can certify at best, before any training.

    Args:
        problem: Objective and constraint, with the range of a row's values.
        calibration: Rows reserved for the certificate. Only whether a constraint has a value on a row is used.
        tolerance: Bound to certify.
        confidence: Confidence of the certificate, in (0, 1). Default: 0.95.
    """
    levels = ErrorLevels.of(confidence, len(calibration), tolerance)
    ranges, sizes = row_ranges(problem, calibration)[1:], group_sizes(problem, calibration)
    counts = tuple(min(map(count_rows, client)) for client in sizes)
    bounds = tuple(_largest(map(partial(_bound_without_errors, levels), client, ranges)) for client in sizes)
    needed = [_rows_needed(len(size), levels, row_range) for size, row_range in zip(sizes[0], ranges, strict=True)]
    rows_needed = None if None in needed else max(rows for rows in needed if rows is not None)
    return Certifiability(levels.tolerance, confidence, tuple(calibration.names), counts, bounds, rows_needed)


def group_sizes(problem: Problem, data: ClientData) -> list[list[list[int]]]:
    """Return the number of applicable rows for each client and constraint, in each of the two groups of a gap."""
    values = RowValues(problem, data, problem.start)
    constraints = range(1, values.values.shape[1])
    return [
        [list(map(len, values.gaps[j][i])) if j in values.gaps else [len(values.rows(i, j))] for j in constraints]
        for i in range(len(data))
    ]


def count_rows(sizes: Sequence[int]) -> int:
    """Return the number of rows of all groups together; 0 if one has none."""
    return sum(sizes) if all(sizes) else 0


def _largest(bounds: Any) -> float:
    """Return the largest bound; NaN counts as infinite."""
    return max(bounds, key=lambda bound: math.inf if math.isnan(bound) else bound)


def _bound_without_errors(levels: ErrorLevels, sizes: Sequence[int], row_range: Range | None) -> float:
    """Return the bound that rows of the smallest value certify; ∞ without rows, NaN without a range."""
    if row_range is None or not all(sizes):
        return math.nan if all(sizes) else math.inf
    groups = [np.full(size, endpoints(row_range)[0]) for size in sizes]
    if len(groups) == 1:
        return mean_interval(groups[0], levels, row_range).marginal_upper
    return gap_interval(groups[0], groups[1], levels, row_range).marginal_upper


def _rows_needed(groups: int, levels: ErrorLevels, row_range: Range | None) -> int | None:
    """Return the fewest rows, of 1 or 2 groups together, that certify a model without errors; None if unknown."""
    if row_range is None or not levels.tolerance > (0 if groups == 2 else endpoints(row_range)[0]):
        return None

    def is_enough(rows: int) -> bool:
        return _bound_without_errors(levels, [rows] * groups, row_range) <= levels.tolerance

    size = smallest_integer(is_enough, limit=MAX_ROWS)
    return None if size is None else groups * size
