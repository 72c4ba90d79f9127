"""Search for the smallest integer that satisfies a monotone condition."""

from __future__ import annotations

from collections.abc import Callable


def smallest_integer(
    holds: Callable[[int], bool], above: int = 0, limit: int | None = None, growth: float = 2.0
) -> int | None:
    """Return the smallest integer > ``above`` for which ``holds`` is true, or None if it is false at ``limit``.

    ``holds`` must be monotone: false, then true. The upper end of the interval grows by the factor ``growth`` until the
    condition holds. Then the interval is bisected. Without a ``limit`` the search may not end.
    """
    low, high = above, max(above + 1, int(growth * above))
    while not holds(high):
        if limit is not None and high >= limit:
            return None
        low, high = high, max(high + 1, int(growth * high))
        high = high if limit is None else min(high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
