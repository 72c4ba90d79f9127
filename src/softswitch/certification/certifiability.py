"""The smallest constraint bounds that a calibration split can certify, from its size alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from softswitch.certification.certify import resolve_ranges
from softswitch.certification.intervals import ErrorLevels, gap_interval, mean_interval
from softswitch.certification.row_values import RowValues
from softswitch.data.client_data import ClientData
from softswitch.problem.parameters import float_dtype
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import Range, endpoints
from softswitch.support import checks
from softswitch.support.bisection import smallest_integer
from softswitch.support.text import join_first

MAX_ROWS = 1 << 40


@dataclass(frozen=True)
class Certifiability:
    """What a calibration split can certify for a model without errors on it.

    Attributes:
        tolerance: Bound to certify.
        confidence: Confidence of the certificate.
        clients: Names of all clients.
        rows: Number of applicable rows of each client; with several constraints the smallest number.
        bounds: Smallest bound that each client's rows can certify. It is ∞ without rows, and NaN without a known range.
        rows_needed: Number of applicable rows that each client needs; None without a known range.
    """

    tolerance: float
    confidence: float
    clients: tuple[Any, ...]
    rows: tuple[int, ...]
    bounds: tuple[float, ...]
    rows_needed: int | None

    @property
    def uncertifiable(self) -> tuple[Any, ...]:
        """The clients for which no model can be certified, those with the fewest rows first."""
        order = sorted(range(len(self.clients)), key=lambda i: self.rows[i])
        return tuple(self.clients[i] for i in order if self.bounds[i] > self.tolerance)

    @property
    def smallest_bound(self) -> float:
        """The smallest bound that can be certified at all clients; NaN without a known range."""
        return max(self.bounds, key=_nan_as_infinity)

    def __str__(self) -> str:
        if self.rows_needed is None:
            return "The certificate will be approximate: the constraint has no known range (constraint_range)."
        clients, fewest, most = len(self.clients), min(self.rows), max(self.rows)
        available = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
        needed = (
            f"Certifying {self.tolerance:g} at {f'all {clients} clients' if clients > 1 else '1 client'} with "
            f"{self.confidence:.0%} confidence needs {self.rows_needed:,} applicable rows per client, all without "
            f"error. Available: {available}."
        )
        if not self.uncertifiable:
            return f"{needed} There are enough rows."
        counts = dict(zip(self.clients, self.rows, strict=True))
        names = join_first([f"{name} ({counts[name]:,})" for name in self.uncertifiable])
        bound = f"{self.smallest_bound:.3g}" if self.smallest_bound < math.inf else "none"
        return (
            f"{needed} Too few rows for any model at {len(self.uncertifiable)} of {clients} clients: {names}. "
            f"Smallest bound that these rows can certify: {bound}."
        )


def certifiability(
    problem: Problem, calibration: ClientData, tolerance: float, confidence: float = 0.95
) -> Certifiability:
    """Return what a calibration split can certify at best, before any training.

    Args:
        problem: Objective and constraint, with the range of a row's values.
        calibration: Rows reserved for the certificate. Only the applicability of each function to a row is used.
        tolerance: Bound to certify.
        confidence: Confidence of the certificate.
    """
    error = 1 - checks.check_probability("confidence", confidence)
    levels = ErrorLevels(error / len(calibration), error, checks.check_real("tolerance", tolerance))
    constraints = problem.trace(calibration.batch_shapes(1, float_dtype(problem.start))).constraints
    ranges = resolve_ranges(problem, None, None, constraints)[1:]
    values = RowValues(problem, calibration, problem.start)
    counts, bounds = [], []
    for client in range(len(calibration)):
        best = [_smallest_bound(values, client, j, levels, row_range) for j, row_range in enumerate(ranges, 1)]
        counts.append(min(rows for rows, _ in best))
        bounds.append(max((bound for _, bound in best), key=_nan_as_infinity))
    needed = [_rows_needed(j in values.gaps, levels, row_range) for j, row_range in enumerate(ranges, 1)]
    known = [rows for rows in needed if rows is not None]
    rows_needed = max(known) if len(known) == len(needed) else None
    return Certifiability(
        levels.tolerance, confidence, tuple(calibration.names), tuple(counts), tuple(bounds), rows_needed
    )


def _nan_as_infinity(bound: float) -> float:
    return math.inf if math.isnan(bound) else bound


def _smallest_bound(
    values: RowValues, client: int, function: int, levels: ErrorLevels, row_range: Range | None
) -> tuple[int, float]:
    """Return the number of applicable rows and the smallest bound that they can certify."""
    if function in values.gaps:
        sizes = [len(group) for group in values.gaps[function][client]]
    else:
        sizes = [len(values.rows(client, function))]
    if not all(sizes):
        return 0, math.inf
    return sum(sizes), math.nan if row_range is None else _bound_without_errors(sizes, levels, row_range)


def _bound_without_errors(sizes: list[int], levels: ErrorLevels, row_range: Range) -> float:
    """Return the bound certified by rows that all have the smallest value: one group for a mean, two for a gap."""
    groups = [np.full(size, endpoints(row_range)[0]) for size in sizes]
    if len(groups) == 1:
        return mean_interval(groups[0], levels, row_range).marginal_upper
    return gap_interval(groups[0], groups[1], levels, row_range).marginal_upper


def _rows_needed(is_gap: bool, levels: ErrorLevels, row_range: Range | None) -> int | None:
    """Return the fewest rows, for a gap of both groups together, that certify a model without errors."""
    if row_range is None or not levels.tolerance > (0 if is_gap else endpoints(row_range)[0]):
        return None
    groups = 2 if is_gap else 1
    size = smallest_integer(
        lambda rows: _bound_without_errors([rows] * groups, levels, row_range) <= levels.tolerance, limit=MAX_ROWS
    )
    return None if size is None else groups * size
