"""Ranges of a function's values on a single row. Certificates use them to bound its mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Range = tuple[float, float] | frozenset[float]
"""(low, high) if every row's value lies between them; a set {low, high} if every row's value is one of the two."""
ZERO_ONE: Range = frozenset((0.0, 1.0))
"""The range of an event rate, whose value on a row is 0 or 1."""


def endpoints(bounds: Range) -> tuple[float, float]:
    """Return the smallest and the largest value of a range."""
    return min(bounds), max(bounds)


def has_two_values(bounds: Range | None) -> bool:
    """Return whether a range is a set of two values; False for an interval and for None."""
    return isinstance(bounds, frozenset)


def check_range(name: str, bounds: Any) -> Range | None:
    """Return ``bounds`` as a range of floats, or None if it is None; raise ValueError if it is invalid."""
    if bounds is None:
        return None
    if isinstance(bounds, set | frozenset):
        if len(bounds) != 2 or not is_interval(*sorted(map(float, bounds))):
            raise ValueError(f"{name} as a set must have two finite numbers, such as {{0, 1}}, but is {set(bounds)!r}")
        return frozenset(map(float, bounds))
    if np.shape(bounds) != (2,) or not is_interval(*map(float, bounds)):
        raise ValueError(f"{name} must be (low, high) with low < high and a finite length, but is {bounds!r}")
    return float(bounds[0]), float(bounds[1])


def is_interval(low: float, high: float) -> bool:
    """Return whether low < high and the length is a finite number."""
    return 0 < high - low < math.inf


def expand_ranges(bounds: Any, count: int) -> list[Range | None]:
    """Return the ranges of ``count`` constraints from one for all or one for each; None is an unknown range."""
    if _is_single(bounds):
        return [check_range("constraint_range", bounds)] * count
    if len(bounds) != count:
        accepted = f"one range, or one for each of {count} constraints"
        raise ValueError(f"constraint_range must be {accepted}, but is {bounds!r}")
    return [check_range("constraint_range", each) for each in bounds]


def function_ranges(objective: Any, constraint: Any, constraints: int) -> list[Range | None]:
    """Return the range of the objective, then that of each of ``constraints`` constraints; None: unknown."""
    return [check_range("objective_range", objective), *expand_ranges(constraint, constraints)]


def check_ranges(bounds: Any) -> Range | tuple[Range | None, ...] | None:
    """Return ``bounds``, one range or a sequence of them, with float endpoints; raise ValueError if it is invalid."""
    return check_range("constraint_range", bounds) if _is_single(bounds) else tuple(expand_ranges(bounds, len(bounds)))


def _is_single(bounds: Any) -> bool:
    if bounds is None or isinstance(bounds, set | frozenset):
        return True
    if not isinstance(bounds, Sequence | np.ndarray) or len(bounds) != 2:
        return False
    return not any(end is None or isinstance(end, set | frozenset) or np.ndim(end) for end in bounds)
