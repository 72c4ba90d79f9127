"""What a client's values can be, by what is known of their ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from softswitch.engines.flower import wire
from softswitch.problem.ranges import Range, each_range, ends, function_ranges

SLACK = 1e-5
"""Rounding at a client: a share of the range, or of its ends."""


def widest(bounds: Range) -> tuple[float, float]:
    """Where the mean of a row's values lies, or the gap between two groups' means; a little more for rounding.

    Args:
        bounds: of a single row.
    """
    low, high = ends(bounds)
    slack = SLACK * max(high - low, abs(low), abs(high))
    return min(low, 0.0) - slack, max(high, high - low) + slack


class ValueLimits:
    """Refuses values that cannot be.

    Args:
        objective_range: of the objective on a single row, where it is known.
        constraint_range: of the constraint; one for all, or one each.
        statistics_range: of a pooled constraint's statistics.
        constraints: how many a client has.
    """

    def __init__(
        self,
        objective_range: Range | None,
        constraint_range: Range | Sequence[Range | None] | None,
        statistics_range: Range | Sequence[Range | None] | None,
        constraints: int,
    ) -> None:
        self._ranges = function_ranges(objective_range, constraint_range, constraints)
        self._of_statistics: Any = statistics_range

    def check(self, values: wire.Values) -> wire.Values:
        """The values, or raise ``Unacceptable``. −∞ is what a client does not have.

        Args:
            values: that a client told.
        """
        for value, bounds in zip((values.objective, *values.constraint), self._ranges, strict=True):
            if bounds is not None and value != -math.inf:
                low, high = widest(bounds)
                if not low <= value <= high:
                    raise wire.Unacceptable(f"it reports {value:g}, where rows lie in the range {ends(bounds)}")
        if values.statistics is not None and self._of_statistics is not None:
            try:
                known = each_range(self._of_statistics, len(values.statistics), "statistics_range")
            except ValueError as error:
                raise wire.Unacceptable(str(error)) from error
            for value, bounds in zip(values.statistics, known, strict=True):
                if bounds is None:
                    continue
                low, high = ends(bounds)
                slack = SLACK * max(high - low, abs(low), abs(high))
                if not low - slack <= value <= high + slack:
                    raise wire.Unacceptable(f"a statistic is {value:g}, where rows lie in the range {(low, high)}")
        return values
