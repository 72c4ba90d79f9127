"""How likely a model would be certified, judged by other rows than those that will certify it.

It only serves to choose between models, and promises nothing: the promise is the certificate's. Rows that were learnt
from count too, for less: a model does better on them than it will, but they tell much where others are few.
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
from softswitch.problem.ranges import Range, ends, has_two_values

LEARNT = 0.5
"""What a row counts that was learnt from."""


class CandidateForecast(NamedTuple):
    """What rows say of a model.

    Attributes:
        objective: F, the worst client's objective on the rows to choose by.
        constraint: G, the largest constraint there,
        learnt: and on the rows that were learnt from.
        chance: that every client would be said to meet the tolerance.
        worse: by which part of itself the mean client's objective is larger on the rows to choose by than on rows that
            were learnt from; the mean, since the largest of many clients' is larger on few rows by chance alone.
    """

    objective: float
    constraint: float
    train_constraint: float
    pass_probability: float
    objective_increase: float = 0.0


class EvaluatedRows(NamedTuple):
    """Rows of clients, and what a problem's functions are on them."""

    data: ClientData
    values: RowValues

    @property
    def places(self) -> dict[str, int]:
        """Where each client is, by its label."""
        return {str(name): i for i, name in enumerate(self.data.names)}


def forecast_candidate(
    chosen_by: EvaluatedRows,
    learnt_from: EvaluatedRows,
    wanted: Mapping[str, int],
    levels: ErrorLevels,
    ranges: Sequence[Range | None],
) -> CandidateForecast:
    """What rows say of a model that is to be certified by others.

    Args:
        chosen_by: the rows to choose by.
        learnt_from: rows that it learnt from, or a sample of them.
        wanted: by client's label how many rows will be there to certify.
        levels: of the certificate.
        ranges: of f and then g on a single row.
    """
    chance = 1.0
    places = [(LEARNT, learnt_from, learnt_from.places), (1.0, chosen_by, chosen_by.places)]
    for name, later in wanted.items():
        known = [(weight, seen, where[name]) for weight, seen, where in places if name in where]
        if known:
            rows = sum(int(seen.data.sizes[client]) for _, seen, client in known)
            chance *= min(_chance(known, j, later / rows, levels, ranges[j]) for j in range(1, len(ranges)))
    values, learnt = chosen_by.values.values, learnt_from.values.values
    here, before = _mean(values[:, 0]), _mean(learnt[:, 0])
    return CandidateForecast(
        float(values[:, 0].max()),
        float(values[:, 1:].max()),
        float(learnt[:, 1:].max()),
        chance,
        (here - before) / max(abs(before), sys.float_info.min),
    )


def _mean(values: np.ndarray) -> float:
    """Of the clients that have any."""
    return float(values[np.isfinite(values)].mean())


Known = Sequence[tuple[float, EvaluatedRows, int]]
"""A client's rows of several kinds: what one counts, the rows, and where the client is among them."""


def _chance(known: Known, function: int, ratio: float, levels: ErrorLevels, bounds: Range | None) -> float:
    """That one client is said to meet one constraint, by ``ratio`` times as many rows as are at hand."""
    _, last, client = known[-1]
    value = float(last.values.values[client, function])
    if math.isnan(value):
        return 0.0
    if function in last.values.gaps and bounds is not None:
        told = [(weight, seen.values.gaps[function][i]) for weight, seen, i in known if function in seen.values.gaps]
        groups = [_Rows.of([(weight, pair[g]) for weight, pair in told], bounds) for g in (0, 1)]
        if not all(group.rows for group in groups):
            return 1.0
        error = math.sqrt(sum(group.variance / group.weight for group in groups))
        later = math.sqrt(sum(group.variance / (ratio * group.rows) for group in groups))
        gap = abs(groups[0].mean - groups[1].mean)
        return _by_normal(gap, error, later, levels, -math.sqrt(2 * math.log(1 / levels.marginal)))
    if not last.values.means[function]:
        interval = last.values.interval(client, function, levels, None)
        error = interval.deviation / math.sqrt(max(interval.rows, 1))
        return _by_normal(value, error, error, levels, float(ndtri(levels.marginal)))
    own = _Rows.of([(weight, seen.values.rows(i, function)) for weight, seen, i in known], bounds)
    if not own.rows:
        return 1.0  # nothing to measure
    many = max(1, round(ratio * own.rows))
    if bounds is not None and has_two_values(bounds):
        return _by_counts(own, many, levels, bounds)
    factor = float(ndtri(levels.marginal)) if bounds is None else -math.sqrt(2 * math.log(1 / levels.marginal))
    return _by_normal(own.mean, math.sqrt(own.variance / own.weight), math.sqrt(own.variance / many), levels, factor)


class _Rows(NamedTuple):
    """Rows that count differently, put together."""

    rows: int
    weight: float
    mean: float
    variance: float

    @classmethod
    def of(cls, parts: Sequence[tuple[float, np.ndarray]], bounds: Range | None) -> _Rows:
        """Their variance is never 0 where a range is known, since few rows that agree say little."""
        many = sum(len(own) for _, own in parts)
        weight = sum(counts * len(own) for counts, own in parts)
        if not many:
            return cls(0, 0.0, math.nan, math.nan)
        mean = sum(counts * float(own.sum()) for counts, own in parts) / weight
        variance = sum(counts * float(np.square(own - mean).sum()) for counts, own in parts) / weight
        if bounds is not None:
            low, high = ends(bounds)
            variance += ((high - low) / (many + 2)) ** 2
        return cls(many, weight, mean, variance)


def _by_counts(own: _Rows, later: int, levels: ErrorLevels, bounds: Range) -> float:
    """Of a rate: its error count among the later rows is beta-binomial, by Jeffreys' prior and the rows at hand."""
    low, high = ends(bounds)
    most = _most_errors(later, (levels.tolerance - low) / (high - low), levels.marginal)
    wrong = own.weight * (own.mean - low) / (high - low)
    if most < 0:
        return 0.0
    from scipy.stats import betabinom  # takes half a second to import

    return float(betabinom.cdf(most, later, wrong + 0.5, own.weight - wrong + 0.5))


def _most_errors(rows: int, bound: float, error: float) -> int:
    """How many of so many rows may be wrong for the rate to be said to be within the bound; −1: not even none."""
    low, high = -1, max(0, int(bound * rows)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if binomial_cdf(middle, rows, bound) <= error else (low, middle)
    return low


def _by_normal(value: float, error: float, later: float, levels: ErrorLevels, factor: float) -> float:
    """Of a mean, by its standard error and what that will be later; it passes at ``factor`` of that from the bound."""
    if not 0 < error < math.inf:
        return float(value <= levels.tolerance)
    return float(ndtr((levels.tolerance + factor * later - value) / math.hypot(error, later)))
