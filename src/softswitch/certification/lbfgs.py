"""Minimisation of smooth functions by L-BFGS, with NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import optimize

MAX_EVALUATIONS = 500  # largest number of function evaluations in find_minimum
UNBOUNDED_FACTOR = 1e6  # a function is unbounded if it falls by this many times 1 + |initial value|
LOG_MULTIPLIERS = (-12.0, 12.0)  # log10 of the searched multipliers of a ball, relative to initial gradient / radius

ValueAndGradient = Callable[[np.ndarray], tuple[float, np.ndarray]]


def minimum_in_ball(function: ValueAndGradient, start: np.ndarray, radius: float) -> float:
    """Return the smallest value of a convex function in ‖w‖ <= radius; −∞ and NaN as in ``find_minimum``.

    If the unconstrained minimum lies outside the ball, the constrained one minimises h(w) + (μ/2)‖w‖² for the μ at
    which that minimum has norm ``radius``. The value is taken at a point scaled to that norm.
    """
    value, free = find_minimum(function, start)
    if value == -np.inf or (np.isfinite(value) and float(np.linalg.norm(free)) <= radius):
        return value
    unit = float(np.linalg.norm(function(start)[1])) / radius or 1.0
    nearby = start

    def minimise_penalised(log_multiplier: float) -> np.ndarray:
        multiplier = unit * 10.0**log_multiplier

        def penalised(point: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = function(point)
            return value + multiplier / 2 * float(point @ point), gradient + multiplier * point

        return find_minimum(penalised, nearby)[1]

    def excess_norm(log_multiplier: float) -> float:
        nonlocal nearby
        nearby = minimise_penalised(log_multiplier)
        return float(np.linalg.norm(nearby)) - radius

    low, high = LOG_MULTIPLIERS
    if excess_norm(low) <= 0:  # the unconstrained minimum, up to rounding
        return function(nearby)[0]
    point = minimise_penalised(float(optimize.brentq(excess_norm, low, high, xtol=1e-5)))
    return function(point * (radius / float(np.linalg.norm(point))))[0]


def find_minimum(
    function: ValueAndGradient, start: np.ndarray, box: tuple[float, float] | None = None
) -> tuple[float, np.ndarray]:
    """Return the smallest value found and its point; −∞ if the start has that value, NaN if unbounded or not finite.

    ``box`` is the range of all entries.
    """
    best, best_point, is_finite = np.inf, start, True

    def tracked(point: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best, best_point, is_finite
        value, gradient = function(point)
        is_finite = is_finite and bool(np.isfinite(value))
        if value < best:
            best, best_point = value, point.copy()
        return value, gradient

    first = function(start)[0]
    if first == -np.inf:
        return -np.inf, start
    bounds = None if box is None else [box] * len(start)
    options = {"maxcor": 20, "maxiter": MAX_EVALUATIONS, "maxfun": MAX_EVALUATIONS, "ftol": 1e-13, "gtol": 1e-9}
    optimize.minimize(tracked, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    unbounded = best < first - UNBOUNDED_FACTOR * (1 + abs(first))
    return np.nan if unbounded or not is_finite else best, best_point
