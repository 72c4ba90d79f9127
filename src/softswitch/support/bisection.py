"""Search for the smallest integer that satisfies a monotone condition."""

from __future__ import annotations

from collections.abc import Callable


def smallest_integer(holds: Callable[[int], bool], above: int = 0, limit: int | None = None) -> int | None:
    """Return the smallest integer in (above, limit] for which a monotone condition holds, by bisection, or None."""
    low, high = above, max(above + 1, 2 * above)
    while not holds(high):
        if limit is not None and high >= limit:
            return None
        low, high = high, max(high + 1, 2 * high)
        high = high if limit is None else min(high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
