"""The smallest value of one function, by L-BFGS; without JAX, for clients that have none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import optimize

MOST_LOOKS = 500
"""A search looks at most so often."""
FAR = 1e6
"""A function that falls by so many times what its value was has no minimum."""


def lowest(look: Callable[[np.ndarray], tuple[float, np.ndarray]], start: np.ndarray) -> float:
    """The smallest value found by L-BFGS; −∞ where there is none at the start, NaN where it falls without end.

    Args:
        look: value and gradient at a point.
        start: where to begin.
    """
    values: list[float] = []

    def watched(point: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = look(point)
        values.append(value)
        return value, slope

    first = look(start)[0]
    if first == -np.inf:
        return -np.inf
    options = {"maxfun": MOST_LOOKS, "maxiter": MOST_LOOKS, "maxcor": 20, "ftol": 1e-13, "gtol": 1e-9}
    optimize.minimize(watched, start, jac=True, method="L-BFGS-B", options=options)
    falls_on = min(values) < first - FAR * (1 + abs(first))
    return float("nan") if falls_on or not np.isfinite(values).all() else min(values)
