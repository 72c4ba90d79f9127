"""Forecasts of whether a candidate model would be certified, from rows other than the calibration split.

A forecast only serves to choose between models; the certificate does not depend on it. Training rows count less than
validation rows, because a model fits them better than new data.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from softswitch.certification.binomial import binomial_cdf
from softswitch.certification.intervals import ErrorLevels
from softswitch.certification.row_values import RowValues
from softswitch.data.client_data import ClientData
from softswitch.problem.ranges import Range, endpoints, has_two_values

TRAINING_WEIGHT = 0.5
"""Weight of a training row relative to a validation row."""


class CandidateForecast(NamedTuple):
    """Forecast for a candidate model.

    Attributes:
        objective: F, the worst client's objective on the validation split.
        constraint: G, the largest constraint on the validation split.
        train_constraint: G on training rows.
        pass_probability: Probability that the certificate finds that every client meets the tolerance.
        objective_increase: Relative increase of the mean client's objective from training to validation rows.
    """

    objective: float
    constraint: float
    train_constraint: float
    pass_probability: float
    objective_increase: float = 0.0


class EvaluatedRows(NamedTuple):
    """Rows of clients, and the values of a problem's functions on them."""

    data: ClientData
    values: RowValues

    @property
    def positions(self) -> dict[str, int]:
        """The index of each client by its name."""
        return {str(name): i for i, name in enumerate(self.data.names)}


def forecast_candidate(
    validation: EvaluatedRows,
    training: EvaluatedRows,
    calibration_sizes: Mapping[str, int],
    levels: ErrorLevels,
    ranges: Sequence[Range | None],
) -> CandidateForecast:
    """Forecast how a model performs on the calibration split.

    Args:
        validation: The validation split.
        training: Training rows, or a sample of them.
        calibration_sizes: Number of calibration rows by client name.
        levels: Error probabilities of the certificate, and the tolerance.
        ranges: Ranges of f and then g on a single row.
    """
    probability = 1.0
    sources = [(TRAINING_WEIGHT, training, training.positions), (1.0, validation, validation.positions)]
    for name, size in calibration_sizes.items():
        known = [(weight, source, positions[name]) for weight, source, positions in sources if name in positions]
        if known:
            rows = sum(int(source.data.sizes[client]) for _, source, client in known)
            probability *= min(
                _pass_probability(known, j, size / rows, levels, ranges[j]) for j in range(1, len(ranges))
            )
    values, train_values = validation.values.values, training.values.values
    mean, train_mean = _finite_mean(values[:, 0]), _finite_mean(train_values[:, 0])
    return CandidateForecast(
        float(values[:, 0].max()),
        float(values[:, 1:].max()),
        float(train_values[:, 1:].max()),
        probability,
        (mean - train_mean) / max(abs(train_mean), sys.float_info.min),
    )


def _finite_mean(values: np.ndarray) -> float:
    return float(values[np.isfinite(values)].mean())


ClientRows = Sequence[tuple[float, EvaluatedRows, int]]
"""One client's rows from several sources: their weight, the source, and the client's index in it."""


def _pass_probability(
    known: ClientRows, function: int, ratio: float, levels: ErrorLevels, bounds: Range | None
) -> float:
    """Return the probability that one client is found to meet one constraint, with ``ratio`` times as many rows."""
    _, last, client = known[-1]
    value = float(last.values.values[client, function])
    if math.isnan(value):
        return 0.0
    if function in last.values.gaps and bounds is not None:
        pairs = [(weight, rows.values.gaps[function][i]) for weight, rows, i in known if function in rows.values.gaps]
        groups = [_Moments.of([(weight, pair[g]) for weight, pair in pairs], bounds) for g in (0, 1)]
        if not all(group.rows for group in groups):
            return 1.0
        error = math.sqrt(sum(group.variance / group.weight for group in groups))
        new_error = math.sqrt(sum(group.variance / (ratio * group.rows) for group in groups))
        gap = abs(groups[0].mean - groups[1].mean)
        return _normal_probability(gap, error, new_error, levels, -math.sqrt(2 * math.log(1 / levels.marginal)))
    if not last.values.means[function]:
        interval = last.values.interval(client, function, levels, None)
        error = interval.deviation / math.sqrt(max(interval.rows, 1))
        return _normal_probability(value, error, error, levels, float(ndtri(levels.marginal)))
    moments = _Moments.of([(weight, rows.values.rows(i, function)) for weight, rows, i in known], bounds)
    if not moments.rows:
        return 1.0  # no applicable row
    new_rows = max(1, round(ratio * moments.rows))
    if bounds is not None and has_two_values(bounds):
        return _rate_probability(moments, new_rows, levels, bounds)
    factor = float(ndtri(levels.marginal)) if bounds is None else -math.sqrt(2 * math.log(1 / levels.marginal))
    error, new_error = (math.sqrt(moments.variance / count) for count in (moments.weight, new_rows))
    return _normal_probability(moments.mean, error, new_error, levels, factor)


class _Moments(NamedTuple):
    """Weighted moments of rows from several sources."""

    rows: int
    weight: float
    mean: float
    variance: float

    @classmethod
    def of(cls, parts: Sequence[tuple[float, np.ndarray]], bounds: Range | None) -> _Moments:
        """Combine the parts. With a known range the variance is positive even if all rows are equal."""
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
    """Return the probability for a rate: the new error count is beta-binomial, with Jeffreys' prior."""
    low, high = endpoints(bounds)
    allowed = _allowed_errors(new_rows, (levels.tolerance - low) / (high - low), levels.marginal)
    if allowed < 0:
        return 0.0
    from scipy.stats import betabinom  # takes half a second to import

    errors = moments.weight * (moments.mean - low) / (high - low)
    return float(betabinom.cdf(allowed, new_rows, errors + 0.5, moments.weight - errors + 0.5))


def _allowed_errors(rows: int, bound: float, error: float) -> int:
    """Return the largest number of errors with which a rate is certified; −1 if not even 0 is."""
    low, high = -1, max(0, int(bound * rows)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if binomial_cdf(middle, rows, bound) <= error else (low, middle)
    return low


def _normal_probability(value: float, error: float, new_error: float, levels: ErrorLevels, factor: float) -> float:
    """Return the probability for a mean, which passes if it is ``factor`` new standard errors from the tolerance."""
    if not 0 < error < math.inf:
        return float(value <= levels.tolerance)
    return float(ndtr((levels.tolerance + factor * new_error - value) / math.hypot(error, new_error)))
