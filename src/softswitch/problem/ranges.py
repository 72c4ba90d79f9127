"""Ranges of a function on a single row: what makes a promise of a bound on its mean possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Range = tuple[float, float] | frozenset[float]
"""(low, high): every row's value lies between them. {low, high}, a set: it is one of the two, wrong or right, say."""
ZERO_ONE: Range = frozenset((0.0, 1.0))
"""Of a rate: every row counts or does not."""


def ends(bounds: Range) -> tuple[float, float]:
    """The smallest and the largest value."""
    return min(bounds), max(bounds)


def has_two_values(bounds: Range | None) -> bool:
    """Whether every row has one of two values."""
    return isinstance(bounds, frozenset)


def checked_range(name: str, bounds: Any) -> Range | None:
    """A range with floats as its ends, or None; raise where it is neither."""
    if bounds is None:
        return None
    if isinstance(bounds, set | frozenset):
        if len(bounds) != 2 or not np.isfinite(list(bounds)).all():
            raise ValueError(f"{name} as a set must have two finite numbers, such as {{0, 1}}, but is {set(bounds)!r}")
        return frozenset(map(float, bounds))
    if np.shape(bounds) != (2,) or not bounds[0] < bounds[1] or not np.isfinite(list(bounds)).all():
        raise ValueError(f"{name} must be (low, high) with low < high, but is {bounds!r}")
    return float(bounds[0]), float(bounds[1])


def each_range(bounds: Any, count: int, name: str = "constraint_range") -> list[Range | None]:
    """One range a constraint, from one for all of them or from one each; ``name``: what they were given as."""
    if _is_one(bounds):
        return [checked_range(name, bounds)] * count
    if len(bounds) != count:
        what = name.removesuffix("_range") + ("s" if name == "constraint_range" else "")
        raise ValueError(f"{name} must be one range, or one for each of {count} {what}, but is {bounds!r}")
    return [checked_range(name, one) for one in bounds]


def function_ranges(objective: Any, constraint: Any, constraints: int) -> list[Range | None]:
    """The ranges of a row's values: the objective's, then each constraint's."""
    return [checked_range("objective_range", objective), *each_range(constraint, constraints)]


def checked_ranges(bounds: Any, name: str = "constraint_range") -> Range | tuple[Range | None, ...] | None:
    """One range, one each or None, as they were given; raise where they are wrong. ``name``: of the argument."""
    if _is_one(bounds):
        return checked_range(name, bounds)
    return tuple(each_range(bounds, len(bounds), name))


def _is_one(bounds: Any) -> bool:
    if bounds is None or isinstance(bounds, set | frozenset):
        return True
    return isinstance(bounds, Sequence | np.ndarray) and len(bounds) == 2 and all(_is_number(end) for end in bounds)


def _is_number(end: Any) -> bool:
    return end is not None and not isinstance(end, set | frozenset) and np.ndim(end) == 0
