"""Whether something speaks against a problem's being convex: f at a midpoint above the mean of its ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from softswitch.guarantees.optimality.lagrangian import Lagrangian, NoRowsLeft

SEGMENTS = 6
"""Random segments through the answer, beside those to the start and to the Lagrangian's minimum."""


def refutation(
    lagrangian: Lagrangian, answer: np.ndarray, others: Sequence[np.ndarray], names: Sequence[object], seed: int = 0
) -> str | None:
    """A client and a function that are not convex between two points, in words; None where none was found.

    Args:
        lagrangian: the functions.
        answer: the point about which it is looked.
        others: ends of segments from the answer.
        names: the clients' labels.
        seed: of the random segments.
    """
    generator = np.random.default_rng(seed)
    away = [other - answer for other in others if np.linalg.norm(other - answer) > 0]
    size = max((float(np.linalg.norm(step)) for step in away), default=1.0)
    ends = [(answer, answer + step) for step in away]
    for i in range(SEGMENTS):
        direction = generator.normal(size=lagrangian.size)
        step = size * (0.1, 1.0)[i % 2] * direction / np.linalg.norm(direction)
        ends.append((answer - step, answer + step))
    try:
        for one, other in ends:
            at_ends = [lagrangian.values(point) for point in (one, other)]
            between = lagrangian.values(lagrangian.rounded((one + other) / 2))
            for name, middle, first, last in zip(("objective", "constraint"), between, *at_ends, strict=True):
                bound = (first + last) / 2
                with np.errstate(invalid="ignore"):
                    above = middle - bound > _slack(lagrangian, middle, first, last)
                above &= np.isfinite(first) & np.isfinite(last)
                if above.any():
                    place = np.argwhere(above)[0]
                    whose = "all clients together" if len(middle) != len(names) else f"client {names[place[0]]!r}"
                    return f"the {name} of {whose} lies above a chord"
    except NoRowsLeft:
        pass
    return None


def _slack(lagrangian: Lagrangian, *values: np.ndarray) -> np.ndarray:
    """What rounding may do: of the values, and of points that are rounded before they are looked at."""
    largest = np.maximum.reduce([np.abs(value) for value in values]) + abs(lagrangian.tolerance)
    return 64 * lagrangian.rounding * largest
