"""A problem whose optimum is published: min over w of max_i f_i(w), subject to g_j(w) <= 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Functions = Callable[[Any], Any]
"""From w, a vector, to a vector of values, in JAX."""


@dataclass(frozen=True, eq=False)
class KnownProblem:
    """One problem of a collection, with its published start and optimum.

    Attributes:
        name: as its collection calls it.
        source: the collection, and the number there.
        objectives: all f_i at once.
        start: the published start, float64; it need not meet the constraints.
        optimum: the published smallest max_i f_i, with the digits given there.
        convex: whether all f_i and g_j are convex, so that there is no other local optimum.
        constraints: all g_j at once, bounds of variables among them; None where there are none.
        held_out: whether it belongs to the half that nothing is chosen by.
    """

    name: str
    source: str
    objectives: Functions
    start: np.ndarray
    optimum: float
    convex: bool
    constraints: Functions | None = None
    held_out: bool = False

    @property
    def variables(self) -> int:
        """How many entries w has."""
        return len(self.start)


def vector(*entries: float) -> np.ndarray:
    """A start, in float64."""
    return np.array(entries, dtype=np.float64)
