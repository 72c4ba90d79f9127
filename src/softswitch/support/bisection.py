"""Search for the smallest integer that satisfies a monotone condition."""

from __future__ import annotations

from collections.abc import Callable


def smallest_integer(
    holds: Callable[[int], bool], above: int = 0, limit: int | None = None, growth: float = 2.0
) -> int | None:
    """Return the smallest integer greater than ``above`` for which ``holds`` is true.

    The upper end grows geometrically until the condition holds, then the interval is bisected.

    Args:
        holds: Condition that stays true once it is true.
        above: Lower end, excluded.
        limit: Largest integer to test. Default: no limit.
        growth: Factor between successive upper ends.

    Returns:
        The integer, or None if the condition is false at ``limit``.
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
