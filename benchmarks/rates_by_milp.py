"""The fewest false alarms there can be while no client misses too many, by mixed-integer programming (HiGHS)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import block_diag, coo_array, hstack

SEPARATION = 1e-3
"""A row counts as decided positive from this score on, where no weight is above 1 and no feature beyond ±1."""


class Fewest(NamedTuple):
    """What a mixed-integer program found.

    Attributes:
        rate: the smallest largest false-alarm rate at a client that it found,
        bound: and what it cannot be below. They are equal where it was solved to the end.
    """

    rate: float
    bound: float


def fewest_false_alarms(x: np.ndarray, y: np.ndarray, client: np.ndarray, tolerance: float, seconds: float) -> Fewest:
    """Minimise the worst client's false-alarm rate over all linear scores with a threshold, misses bounded at each.

    Unknown are the weights, the threshold, one 0 or 1 for each row (wrong or right) and the largest rate.
    """
    x = x / np.abs(x).max(axis=0)
    rows, features = x.shape
    largest = features + 1.0
    big = features + largest + SEPARATION  # no score is larger
    sign = np.where(y == 1, 1.0, -1.0)
    need = np.where(y == 1, SEPARATION, 0.0)
    # sign·(w·x + b) + big·wrong >= need
    scores = hstack([coo_array(sign[:, None] * np.column_stack([x, np.ones(rows)])), big * _identity(rows)])
    names = np.unique(client)
    missed, alarms, allowed = [], [], []
    for one in names:
        positive, negative = ((client == one) & (y == label) for label in (1, 0))
        if positive.any():
            missed.append(positive.astype(float))
            allowed.append(np.floor(tolerance * positive.sum() + 1e-9))
        if negative.any():
            alarms.append(negative / negative.sum())
    width = features + 1
    constraints = [
        LinearConstraint(_padded(scores, 0, 1), need, np.inf),
        LinearConstraint(_padded(coo_array(np.array(missed)), width, 1), -np.inf, np.array(allowed)),
        # each client's false-alarm rate is at most the last unknown
        LinearConstraint(
            hstack([_padded(coo_array(np.array(alarms)), width, 0), coo_array(-np.ones((len(alarms), 1)))]),
            -np.inf,
            0.0,
        ),
    ]
    unknowns = width + rows + 1
    cost = np.zeros(unknowns)
    cost[-1] = 1
    low, high = np.zeros(unknowns), np.ones(unknowns)
    low[:features], low[features], high[features] = -1, -largest, largest
    whole = np.zeros(unknowns)
    whole[width:-1] = 1
    found = milp(
        cost, constraints=constraints, integrality=whole, bounds=Bounds(low, high), options={"time_limit": seconds}
    )
    rate = np.inf if found.x is None else float(found.fun)
    return Fewest(rate, float(found.mip_dual_bound))


def _identity(size: int) -> coo_array:
    return block_diag([np.eye(1)] * size)


def _padded(part: coo_array, before: int, after: int) -> coo_array:
    """With so many columns of zeros before and after."""
    rows = part.shape[0]
    return hstack([coo_array((rows, before)), part, coo_array((rows, after))])
