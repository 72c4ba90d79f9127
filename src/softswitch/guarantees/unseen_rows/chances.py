"""How likely a model would be certified, judged by other rows than those that will certify it.

It only serves to choose between models, and promises nothing: the promise is the certificate's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import betabinom

from softswitch.clients.client_data import ClientData
from softswitch.guarantees.unseen_rows.binomial import chance_of_so_few
from softswitch.guarantees.unseen_rows.intervals import ErrorLevels
from softswitch.guarantees.unseen_rows.row_values import RowValues
from softswitch.problem.ranges import Range, ends, has_two_values


class Foreseen(NamedTuple):
    """What some rows say of a model.

    Attributes:
        objective: F, the worst client's objective on them.
        constraint: G, the largest constraint.
        chance: that every client would be said to meet the tolerance.
    """

    objective: float
    constraint: float
    chance: float


def foresee(
    rows: RowValues, seen: ClientData, wanted: dict[str, int], levels: ErrorLevels, ranges: Sequence[Range | None]
) -> Foreseen:
    """What rows say of a model that is to be certified by others.

    Args:
        rows: the functions' values on the rows at hand.
        seen: the clients that have them.
        wanted: by client's label how many rows will be there to certify; clients without any cannot be.
        levels: of the certificate.
        ranges: of f and then g on a single row.
    """
    known = {str(name): i for i, name in enumerate(seen.names)}
    chance = 1.0
    for name, later in wanted.items():
        client = known.get(name)
        if client is None:
            continue  # nothing speaks for or against it
        ratio = later / int(seen.sizes[client])
        chance *= min(_chance(rows, client, j, ratio, levels, ranges[j]) for j in range(1, len(ranges)))
    values = rows.values
    return Foreseen(float(values[:, 0].max()), float(values[:, 1:].max()), chance)


def _chance(
    rows: RowValues, client: int, function: int, ratio: float, levels: ErrorLevels, bounds: Range | None
) -> float:
    """That one client is said to meet one constraint, by ``ratio`` times as many rows as are at hand."""
    value = float(rows.values[client, function])
    if not math.isfinite(value):
        return 0.0 if math.isnan(value) else 1.0
    if function in rows.gaps and bounds is not None:
        groups = rows.gaps[function][client]
        error = math.sqrt(sum(_variance(own, bounds) / len(own) for own in groups))
        return _by_normal(value, error, ratio, levels, -math.sqrt(2 * math.log(1 / levels.alone)))
    own = rows.rows(client, function)
    if not rows.means[function] or not len(own):
        interval = rows.interval(client, function, levels, None)
        error = interval.deviation / math.sqrt(max(interval.rows, 1))
        return _by_normal(value, error, ratio, levels, float(ndtri(levels.alone)))
    if bounds is not None and has_two_values(bounds):
        return _by_counts(own, ratio, levels, bounds)
    factor = float(ndtri(levels.alone)) if bounds is None else -math.sqrt(2 * math.log(1 / levels.alone))
    return _by_normal(value, math.sqrt(_variance(own, bounds) / len(own)), ratio, levels, factor)


def _by_counts(own: np.ndarray, ratio: float, levels: ErrorLevels, bounds: Range) -> float:
    """Of a rate: its error count among the later rows is beta-binomial, by Jeffreys' prior and the rows at hand."""
    low, high = ends(bounds)
    bound = (levels.tolerance - low) / (high - low)
    count, many = round(float(((own - low) / (high - low)).sum())), len(own)
    later = max(1, round(ratio * many))
    most = _most_errors(later, bound, levels.alone)
    return 0.0 if most < 0 else float(betabinom.cdf(most, later, count + 0.5, many - count + 0.5))


def _most_errors(rows: int, bound: float, error: float) -> int:
    """How many of so many rows may be wrong for the rate to be said to be within the bound; −1: not even none."""
    low, high = -1, max(0, int(bound * rows)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if chance_of_so_few(middle, rows, bound) <= error else (low, middle)
    return low


def _by_normal(value: float, error: float, ratio: float, levels: ErrorLevels, factor: float) -> float:
    """Of a mean whose standard error on the rows at hand is known; ``factor`` errors below the tolerance it passes."""
    if not 0 < error < math.inf:
        return float(value <= levels.tolerance)
    later = error / math.sqrt(ratio)
    return float(ndtr((levels.tolerance + factor * later - value) / math.hypot(error, later)))


def _variance(own: np.ndarray, bounds: Range | None) -> float:
    """Of one row; never 0, since few rows that agree say little."""
    scatter = float(own.var(ddof=1)) if len(own) > 1 else 0.0
    if bounds is None:
        return scatter
    low, high = ends(bounds)
    return scatter + ((high - low) / (len(own) + 2)) ** 2
