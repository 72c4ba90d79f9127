"""Names and units of a run's constraint and objective, as its folder stores them, for the report and the CLI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ConstraintDescription:
    """Names and units of a constraint and its objective. The names are column headings."""

    constraint: str = "constraint"
    objective: str = "objective"
    is_share: bool = False  # whether values of the constraint are shares, written in percent
    is_nonnegative: bool = False  # whether the constraint is never below 0
    cost: str | None = None  # the client metric that a tighter bound makes worse, such as "false_alarm_rate"

    def write(self, value: float | None) -> str:
        """Return a value of the constraint as text."""
        from softswitch.support.text import format_number, format_percent  # NumPy would slow down the command line

        return format_percent(value) if self.is_share else format_number(value)


def read_description(about: Mapping[str, Any]) -> ConstraintDescription:
    """Return the description that a run folder stores, or a generic one."""
    return ConstraintDescription(**about.get("description", {}))
