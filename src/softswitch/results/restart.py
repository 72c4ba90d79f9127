"""One restart of an auto-tuned run: its settings and its outcome."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from softswitch.results.json_numbers import nan_if_none, replace_non_finite
from softswitch.support.text import format_value


@dataclass(frozen=True)
class Restart:
    """A stretch of rounds over which the step size decays to 0, from the best answer so far.

    Attributes:
        begin: The first round.
        end: The round after the last.
        step_size: The first step size.
        momentum: The momentum of the server optimiser.
        threshold: λ of the switch.
        objective: F of the best answer so far on all training data; NaN if no client reported it.
        constraint: G of that answer.
        answer: Which iterate that answer is.
        better: Whether this restart found it.
        diverged: Whether a value in the last round was not finite.
        aim: The value that the method minimises at that answer: F, or the clients' mean.
        judged: The number of answers evaluated at the end of the restart.
    """

    begin: int
    end: int
    step_size: float
    momentum: float
    threshold: float
    objective: float
    constraint: float
    answer: str
    better: bool
    diverged: bool = False
    aim: float = math.nan
    judged: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, with None for numbers that are not finite."""
        plain: dict[str, Any] = replace_non_finite(asdict(self))
        return plain

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Restart:
        """Restore a restart from ``to_dict``, with NaN for None."""
        return cls(**{name: nan_if_none(value) for name, value in fields.items()})

    def __str__(self) -> str:
        step, level = f"{self.step_size:.3g}", format_value(self.threshold)
        settings = f"rounds {self.begin} to {self.end - 1}, step {step} decaying to 0, λ = {level}"
        if self.diverged:
            return f"{settings}: not finite"
        outcome = f"F {format_value(self.objective)}, G {format_value(self.constraint)}"
        return f"{settings}: {outcome}{'' if self.better else ', no improvement'}"
