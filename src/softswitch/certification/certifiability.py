"""Certifiability: the bounds that a calibration split can certify by its size, and margins of clients below a bound.

A margin is how far below the bound a client's constraint must be so that its calibration rows certify it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.special import log_ndtr

from softswitch.certification.intervals import ErrorLevels, gap_interval, mean_interval
from softswitch.certification.limits import allowed_errors
from softswitch.certification.row_values import Kind, RowValues, compute_intervals, row_ranges
from softswitch.data.client_data import ClientData
from softswitch.data.splits import DataSplit
from softswitch.problem.parameters import Params
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import Range, endpoints, has_two_values
from softswitch.support.bisection import smallest_integer
from softswitch.support.text import join_first

TRAINING_WEIGHT = 0.5  # weight of a training row in estimates of a constraint; a validation row has weight 1
LARGEST = 0.9  # largest margin, as a share of the distance from the bound to the smallest possible constraint
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


@dataclass(frozen=True, eq=False)
class ClientMargins:
    """The margins m_i = s_i + e_i of the clients, and what validation rows say about passing the tests.

    For a rate, s_i is the bound minus the largest rate that certifies it with the client's number of calibration rows.
    For other functions it is z standard errors of an estimate from that number of rows. There, z is the median over the
    clients of the distance from the estimate on validation rows to its upper confidence limit, in standard errors. The
    standard error e_i is that of the estimate on calibration rows minus that on the other rows. Every client that is
    within the bound by m_i passes with the same probability. The margin is 0 where no model can be certified.
    """

    bound: float  # to certify
    names: tuple[Any, ...]  # of the clients
    is_certifiable: np.ndarray  # whether each client's number of rows can certify the bound for some model
    unit: np.ndarray  # s_i of each client and constraint
    errors: np.ndarray  # standard error of the estimate on calibration rows minus that on other rows
    shares: np.ndarray  # weight of the training rows in the estimate on other rows; the rest are validation rows
    largest: np.ndarray  # largest margin of each constraint; ∞ if its range is unknown

    @classmethod
    def estimate(
        cls, problem: Problem, split: DataSplit, params: Params, limits: Certifiability, kinds: Sequence[Kind]
    ) -> ClientMargins:
        """Compute the margins from the validation rows at a model, and the numbers of calibration rows.

        ``limits`` is what the calibration split can certify by its size.
        """
        names, level, bound = limits.clients, 1 - limits.confidence, limits.tolerance
        levels, ranges = ErrorLevels.of(limits.confidence, len(names), bound), row_ranges(problem, split.calibration)
        counts = np.array([list(map(count_rows, client)) for client in group_sizes(problem, split.calibration)], float)
        intervals = compute_intervals(params, problem, split.validation, levels, ranges, kinds)
        values = [[(g.rows, g.marginal_limit - g.estimate, g.deviation) for g in client[1:]] for client in intervals]
        rows, distances, deviations = np.moveaxis(align(values, split.validation.names, names), 2, 0)
        rows, counts, deviations = np.fmax(rows, 1), np.maximum(counts, 1), _fill_unknown(deviations)
        unit, lowest = np.zeros_like(counts), np.full(counts.shape[1], -math.inf)
        for j, (row_range, kind) in enumerate(zip(ranges[1:], kinds[1:], strict=True)):
            errors = deviations[:, j] / np.sqrt(rows[:, j])
            z = _fill_unknown(distances[:, j] / np.where(errors > 0, errors, math.nan))
            unit[:, j] = np.median(z) * deviations[:, j] / np.sqrt(counts[:, j])
            if row_range is not None:
                lowest[j], high = (0.0, math.inf) if kind is Kind.GAP else endpoints(row_range)
                if is_rate(row_range, kind):
                    unit[:, j] = [bound - largest_rate(int(n), level, bound, row_range) for n in counts[:, j]]
                    deviations[:, j] = math.sqrt(max(bound - lowest[j], 0.0) * max(high - bound, 0.0))
        sizes = [align(data.sizes, data.names, names) for data in (split.train, split.validation)]
        weighted = np.nan_to_num(TRAINING_WEIGHT * sizes[0] / np.fmax(sizes[1], 1))[:, None]  # in validation rows
        certifiable = np.array(limits.is_certifiable)
        return cls(
            bound,
            names,
            certifiable,
            unit=np.where(certifiable[:, None], unit, 0.0),
            errors=deviations * np.sqrt(1 / (rows * (1 + weighted)) + 1 / counts),
            shares=weighted / (1 + weighted),
            largest=np.maximum(LARGEST * (bound - lowest), 0.0),
        )

    def of(self, factor: float, names: Sequence[Any]) -> np.ndarray:
        """Return the margins ``factor`` · m_i of clients by name; 0 for clients where no model can be certified."""
        margins = np.minimum(factor * (self.unit + self.errors) * self.is_certifiable[:, None], self.largest)
        return np.nan_to_num(align(margins, self.names, names))

    def worst(self, constraint: np.ndarray, names: Sequence[Any]) -> float:
        """Return the largest g_i − ε + s_i of any certifiable client, from values of the clients ``names``."""
        excess = (align(constraint, names, self.names) - self.bound + self.unit)[self.is_certifiable]
        return float(np.nan_to_num(excess, nan=-math.inf).max(initial=-math.inf))

    def log_pass_probability(
        self, training: np.ndarray, trained: Sequence[Any], validation: np.ndarray, validated: Sequence[Any]
    ) -> float:
        """Return the log probability that all certifiable clients pass, by a normal approximation.

        ``training`` and ``validation`` have the constraints of the clients ``trained`` and ``validated`` in both
        splits. A client without a value is assumed to pass.
        """
        first, second = align(training, trained, self.names), align(validation, validated, self.names)
        estimate = np.where(np.isfinite(second), self.shares * first + (1 - self.shares) * second, math.nan)
        logs = log_ndtr((self.bound - self.unit - estimate) / np.maximum(self.errors, np.finfo(float).tiny))
        return float(np.nan_to_num(logs[self.is_certifiable], nan=0.0).min(axis=1).sum())


def is_rate(row_range: Range | None, kind: Kind) -> bool:
    """Return whether a function is the mean of row values of which there are two, such as 0 and 1."""
    return kind is Kind.MEAN and has_two_values(row_range)


def largest_rate(rows: int, level: float, bound: float, row_range: Range) -> float:
    """Return the largest rate on ``rows`` rows that certifies the bound by the exact binomial test at ``level``."""
    low, high = endpoints(row_range)
    errors = allowed_errors(rows, (bound - low) / (high - low), level)
    return low + (high - low) * max(errors, 0) / rows


def align(values: Any, names: Sequence[Any], wanted: Sequence[Any]) -> np.ndarray:
    """Return the rows of ``values``, which belong to the clients ``names``, for ``wanted`` clients; NaN if unknown."""
    values, places = np.asarray(values, float), {str(name): i for i, name in enumerate(names)}
    padded = np.concatenate([values, np.full((1, *values.shape[1:]), math.nan)])
    return padded[[places.get(str(name), -1) for name in wanted]]


def _fill_unknown(values: np.ndarray) -> np.ndarray:
    """Return the values with the median of the finite ones in place of others; 0 if none is finite."""
    known = values[np.isfinite(values)]
    return np.where(np.isfinite(values), values, np.median(known) if known.size else 0.0)
