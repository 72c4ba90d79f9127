"""One cycle of a run whose settings choose themselves: what was chosen for it, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from softswitch.support.text import in_words


@dataclass(frozen=True)
class Restart:
    """A stretch of rounds over which the step falls to 0, from the best answer so far.

    Attributes:
        begin: its first round.
        end: the round after its last.
        step_size: the step it began with.
        momentum: of the server optimiser.
        threshold: λ of the switch.
        objective: F of the best answer after it, on all training data; NaN where no client told.
        constraint: G of that answer.
        answer: which iterate that is, in words.
        better: whether this cycle found it.
        diverged: whether something was not finite in its last round.
        aim: what the rule makes small, of that answer: F, or the clients' mean.
        judged: how many answers were judged at its end.
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
        """For JSON: what is not finite is None there."""
        told = asdict(self)
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in told.items()
        }

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Restart:
        """What ``to_dict`` made; what was not finite is NaN."""
        known: dict[str, Any] = {name: math.nan if value is None else value for name, value in told.items()}
        return cls(**known)

    def __str__(self) -> str:
        step, level = f"{self.step_size:.3g}", in_words(self.threshold)
        how = f"rounds {self.begin} to {self.end - 1}, step {step} falling to 0, λ = {level}"
        if self.diverged:
            return f"{how}: not finite"
        gained = "" if self.better else ", nothing gained"
        return f"{how}: F {in_words(self.objective)}, G {in_words(self.constraint)}{gained}"
