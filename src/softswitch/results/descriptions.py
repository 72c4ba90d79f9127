"""Names and units of a run's constraint and objective, as stored in run.json for the report and the CLI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ConstraintDescription:
    """Names and units of a constraint and its objective."""

    constraint: str = "constraint"  # column heading
    objective: str = "objective"  # column heading
    is_share: bool = False  # whether the constraint is a rate or a difference of rates, written in percent
    is_nonnegative: bool = False  # whether the constraint is never below 0
    cost: str | None = None  # the client metric that a tighter bound makes worse, such as "false_alarm_rate"

    def write(self, value: float | None) -> str:
        """Format a value of the constraint: in percent if it is a share; None as a missing value."""
        from softswitch.support.text import format_number, format_percent  # NumPy would slow down the command line

        return format_percent(value) if self.is_share else format_number(value)


def read_description(about: Mapping[str, Any]) -> ConstraintDescription:
    """Return the description in the content of run.json; a generic one if there is none."""
    return ConstraintDescription(**about.get("description", {}))
