"""Certifiability: the bounds that a calibration split can certify by its size, and forecasts for candidate models.

A forecast uses rows other than the calibration split, and only serves to choose between models; the certificate does
not depend on it. Training rows count less than validation rows, because a model fits them better than new data.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from softswitch.certification.certify import row_ranges
from softswitch.certification.intervals import ErrorLevels, gap_interval, mean_interval
from softswitch.certification.limits import binomial_cdf
from softswitch.certification.row_values import RowValues
from softswitch.data.client_data import ClientData
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import Range, endpoints, has_two_values
from softswitch.support.bisection import smallest_integer
from softswitch.support.text import join_first

MAX_ROWS = 1 << 40  # limit of the search for the number of rows that a certificate needs
TRAINING_WEIGHT = 0.5  # weight of a training row in a forecast; a validation row has weight 1


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
    ranges = list(enumerate(row_ranges(problem, calibration)))[1:]
    values = RowValues(problem, calibration, problem.start)
    counts, bounds = [], []
    for client in range(len(calibration)):
        groups = [values.gaps[j][client] if j in values.gaps else (values.rows(client, j),) for j, _ in ranges]
        sizes = [list(map(len, group)) for group in groups]
        counts.append(min(sum(size) if all(size) else 0 for size in sizes))
        pairs = zip(sizes, ranges, strict=True)
        bounds.append(_largest(_bound_without_errors(size, levels, row_range) for size, (_, row_range) in pairs))
    needed = [_rows_needed(2 if j in values.gaps else 1, levels, row_range) for j, row_range in ranges]
    rows_needed = None if None in needed else max(rows for rows in needed if rows is not None)
    names = tuple(calibration.names)
    return Certifiability(levels.tolerance, confidence, names, tuple(counts), tuple(bounds), rows_needed)


def _largest(bounds: Any) -> float:
    """Return the largest bound; NaN counts as infinite."""
    return max(bounds, key=lambda bound: math.inf if math.isnan(bound) else bound)


def _bound_without_errors(sizes: Sequence[int], levels: ErrorLevels, row_range: Range | None) -> float:
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
        return _bound_without_errors([rows] * groups, levels, row_range) <= levels.tolerance

    size = smallest_integer(is_enough, limit=MAX_ROWS)
    return None if size is None else groups * size


class CandidateForecast(NamedTuple):
    """Values of a candidate model, and the forecast of its certification."""

    objective: float  # F on the validation split
    constraint: float  # G on the validation split
    train_constraint: float  # G on the training split
    pass_probability: float  # estimated probability that the model is certified at every client
    objective_increase: float = 0.0  # relative increase of the mean client's objective from training to validation


class EvaluatedRows(NamedTuple):
    """A split's rows, and the values of a problem's functions on them at one model."""

    data: ClientData
    values: RowValues


def forecast_candidate(
    validation: EvaluatedRows,
    training: EvaluatedRows,
    calibration_sizes: Mapping[str, int],
    levels: ErrorLevels,
    ranges: Sequence[Range | None],
) -> CandidateForecast:
    """Forecast a model's certification from its values on the validation and training rows.

    ``calibration_sizes`` has the number of calibration rows by client name.
    """
    probability = 1.0
    sources = [
        (weight, rows, {str(name): i for i, name in enumerate(rows.data.names)})
        for weight, rows in ((TRAINING_WEIGHT, training), (1.0, validation))
    ]
    for name, size in calibration_sizes.items():
        known = [(weight, rows, positions[name]) for weight, rows, positions in sources if name in positions]
        if known:
            ratio = size / sum(int(rows.data.sizes[client]) for _, rows, client in known)
            functions = range(1, len(ranges))
            probability *= min(_pass_probability(known, j, ratio, levels, ranges[j]) for j in functions)
    values, train_values = validation.values.values, training.values.values
    mean, train_mean = (float(f[np.isfinite(f)].mean()) for f in (values[:, 0], train_values[:, 0]))
    objective, constraint, train_constraint = (
        float(x.max()) for x in (values[:, 0], values[:, 1:], train_values[:, 1:])
    )
    increase = (mean - train_mean) / max(abs(train_mean), sys.float_info.min)
    return CandidateForecast(objective, constraint, train_constraint, probability, increase)


ClientRows = Sequence[tuple[float, EvaluatedRows, int]]  # from several sources: weight, source, client's index in it


def _pass_probability(
    known: ClientRows, function: int, ratio: float, levels: ErrorLevels, bounds: Range | None
) -> float:
    """Return the probability that new rows, ``ratio`` times as many as known, certify one constraint of a client."""
    _, last, client = known[-1]
    value = float(last.values.values[client, function])
    if math.isnan(value):
        return 0.0
    normal, bounded = float(ndtri(levels.marginal)), -math.sqrt(2 * math.log(1 / levels.marginal))
    if function in last.values.gaps and bounds is not None:
        pairs = [(weight, rows.values.gaps[function][i]) for weight, rows, i in known if function in rows.values.gaps]
        groups = [_Moments.of([(weight, pair[g]) for weight, pair in pairs], bounds) for g in (0, 1)]
        if not all(group.rows for group in groups):
            return 1.0
        error = math.sqrt(sum(group.variance / group.weight for group in groups))
        new_error = math.sqrt(sum(group.variance / (ratio * group.rows) for group in groups))
        return _normal_probability(abs(groups[0].mean - groups[1].mean), error, new_error, levels, bounded)
    if not last.values.means[function]:
        interval = last.values.interval(client, function, levels, None)
        error = interval.deviation / math.sqrt(max(interval.rows, 1))
        return _normal_probability(value, error, error, levels, normal)
    moments = _Moments.of([(weight, rows.values.rows(i, function)) for weight, rows, i in known], bounds)
    if not moments.rows:
        return 1.0  # no applicable row
    new_rows = max(1, round(ratio * moments.rows))
    if bounds is not None and has_two_values(bounds):
        return _rate_probability(moments, new_rows, levels, bounds)
    error, new_error = (math.sqrt(moments.variance / count) for count in (moments.weight, new_rows))
    return _normal_probability(moments.mean, error, new_error, levels, normal if bounds is None else bounded)


class _Moments(NamedTuple):
    """Weighted mean and variance of rows from several sources."""

    rows: int  # number of rows
    weight: float  # sum of their weights
    mean: float  # NaN without rows
    variance: float  # NaN without rows

    @classmethod
    def of(cls, parts: Sequence[tuple[float, np.ndarray]], bounds: Range | None) -> _Moments:
        """Combine pairs (weight, rows). With a known range, the variance is positive even if all rows are equal."""
        count = sum(len(rows) for _, rows in parts)
        if not count:
            return cls(0, 0.0, math.nan, math.nan)
        total = sum(weight * len(rows) for weight, rows in parts)
        mean = sum(weight * float(rows.sum()) for weight, rows in parts) / total
        variance = sum(weight * float(np.square(rows - mean).sum()) for weight, rows in parts) / total
        if bounds is not None:
            low, high = endpoints(bounds)
            variance += ((high - low) / (count + 2)) ** 2
        return cls(count, total, mean, variance)


def _rate_probability(moments: _Moments, new_rows: int, levels: ErrorLevels, bounds: Range) -> float:
    """Return the probability that ``new_rows`` rows certify a rate, by a beta-binomial count with Jeffreys' prior."""
    low, high = endpoints(bounds)
    bound = (levels.tolerance - low) / (high - low)
    limit = max(0, int(bound * new_rows)) + 1
    # The first number of errors with which the rate is not certified
    failing = smallest_integer(lambda n: bool(binomial_cdf(n, new_rows, bound) > levels.marginal), -1, limit)
    allowed = (limit if failing is None else failing) - 1
    if allowed < 0:
        return 0.0
    from scipy.stats import betabinom  # takes half a second to import

    errors = moments.weight * (moments.mean - low) / (high - low)
    return float(betabinom.cdf(allowed, new_rows, errors + 0.5, moments.weight - errors + 0.5))


def _normal_probability(value: float, error: float, new_error: float, levels: ErrorLevels, factor: float) -> float:
    """Return the probability that the mean of new rows is at most tolerance + ``factor`` · its standard error."""
    if not 0 < error < math.inf:
        return float(value <= levels.tolerance)
    return float(ndtr((levels.tolerance + factor * new_error - value) / math.hypot(error, new_error)))
