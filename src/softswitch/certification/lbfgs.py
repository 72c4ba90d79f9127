"""The smallest value of one function, by L-BFGS; without JAX, for clients that have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import optimize

MOST_LOOKS = 500
"""A search looks at most so often."""
FAR = 1e6
"""A function that falls by so many times what its value was has no minimum."""
STEEPEST, FLATTEST = 1e12, 1e-12
"""Between these multipliers of a ball is looked for, in units of the slope at the start."""

Look = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""Value and gradient at a point."""


class _Found(NamedTuple):
    value: float
    point: np.ndarray


def find_minimum(look: Look, start: np.ndarray, box: tuple[float, float] | None = None) -> float:
    """The smallest value found by L-BFGS; −∞ where there is none at the start, NaN where it falls without end.

    Args:
        look: value and gradient at a point.
        start: where to begin.
        box: within which all entries stay; None: anywhere.
    """
    return _searched(look, start, box).value


def minimum_in_ball(look: Look, start: np.ndarray, radius: float) -> float:
    """The smallest value within ‖w‖ <= r, of a convex function; −∞ and NaN as for ``lowest``.

    Where the smallest value of all lies outside, it is on the sphere, and minimises h(w) + (μ/2)‖w‖² for the μ at which
    that minimum has length r: the longer it is, the smaller μ. What is told is the value at length r, so that an error
    in μ counts squared.

    Args:
        look: value and gradient at a point.
        start: where to begin.
        radius: r > 0.
    """
    free = _searched(look, start)
    if free.value == -np.inf or (np.isfinite(free.value) and float(np.linalg.norm(free.point)) <= radius):
        return free.value
    unit = float(np.linalg.norm(look(start)[1])) / radius or 1.0
    near = start

    def pulled(power: float) -> _Found:
        weight = unit * 10.0**power

        def with_pull(point: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = look(point)
            return value + weight / 2 * float(point @ point), slope + weight * point

        return _searched(with_pull, near)

    def too_long(power: float) -> float:
        nonlocal near
        near = pulled(power).point
        return float(np.linalg.norm(near)) - radius

    low, high = np.log10(FLATTEST), np.log10(STEEPEST)
    if too_long(low) <= 0:  # no pull to speak of: the minimum of all, but for rounding
        return look(near)[0]
    power = float(optimize.brentq(too_long, low, high, xtol=1e-5))
    point = pulled(power).point
    return look(point * (radius / float(np.linalg.norm(point))))[0]


def _searched(look: Look, start: np.ndarray, box: tuple[float, float] | None = None) -> _Found:
    values: list[float] = []
    best = _Found(np.inf, start)

    def watched(point: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best
        value, slope = look(point)
        values.append(value)
        if value < best.value:
            best = _Found(value, point.copy())
        return value, slope

    first = look(start)[0]
    if first == -np.inf:
        return _Found(-np.inf, start)
    options = {"maxfun": MOST_LOOKS, "maxiter": MOST_LOOKS, "maxcor": 20, "ftol": 1e-13, "gtol": 1e-9}
    bounds = None if box is None else [box] * len(start)
    optimize.minimize(watched, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    falls_on = best.value < first - FAR * (1 + abs(first))
    return best._replace(value=float("nan")) if falls_on or not np.isfinite(values).all() else best
