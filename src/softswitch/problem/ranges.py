"""Ranges of a function on a single row. Certificates use them to bound its mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Range = tuple[float, float] | frozenset[float]
"""(low, high) if every row's value lies between them; a set {low, high} if every row has one of the two values."""
ZERO_ONE: Range = frozenset((0.0, 1.0))
"""The range of a rate."""


def endpoints(bounds: Range) -> tuple[float, float]:
    """Return the smallest and the largest value."""
    return min(bounds), max(bounds)


def has_two_values(bounds: Range | None) -> bool:
    """Return whether every row has one of two values."""
    return isinstance(bounds, frozenset)


def check_range(name: str, bounds: Any) -> Range | None:
    """Return a range with float endpoints, or None; raise ValueError if ``bounds`` is neither."""
    if bounds is None:
        return None
    if isinstance(bounds, set | frozenset):
        if len(bounds) != 2 or not np.isfinite(list(bounds)).all():
            raise ValueError(f"{name} as a set must have two finite numbers, such as {{0, 1}}, but is {set(bounds)!r}")
        return frozenset(map(float, bounds))
    if np.shape(bounds) != (2,) or not bounds[0] < bounds[1] or not np.isfinite(list(bounds)).all():
        raise ValueError(f"{name} must be (low, high) with low < high, but is {bounds!r}")
    return float(bounds[0]), float(bounds[1])


def expand_ranges(bounds: Any, count: int, name: str = "constraint_range") -> list[Range | None]:
    """Return one range per constraint, from a single range or one for each."""
    if _is_single(bounds):
        return [check_range(name, bounds)] * count
    if len(bounds) != count:
        counted = name.removesuffix("_range") + ("s" if name == "constraint_range" else "")
        raise ValueError(f"{name} must be one range, or one for each of {count} {counted}, but is {bounds!r}")
    return [check_range(name, each) for each in bounds]


def function_ranges(objective: Any, constraint: Any, constraints: int) -> list[Range | None]:
    """Return the row ranges of the objective and of each constraint, in this order."""
    return [check_range("objective_range", objective), *expand_ranges(constraint, constraints)]


def check_ranges(bounds: Any, name: str = "constraint_range") -> Range | tuple[Range | None, ...] | None:
    """Return a single range, a tuple of ranges or None, as given; raise ValueError if invalid."""
    return check_range(name, bounds) if _is_single(bounds) else tuple(expand_ranges(bounds, len(bounds), name))


def _is_single(bounds: Any) -> bool:
    if bounds is None or isinstance(bounds, set | frozenset):
        return True
    if not isinstance(bounds, Sequence | np.ndarray) or len(bounds) != 2:
        return False
    return not any(end is None or isinstance(end, set | frozenset) or np.ndim(end) for end in bounds)
