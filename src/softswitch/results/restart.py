"""The restarts of an auto-tuned run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from softswitch.results.json_numbers import JsonRecord
from softswitch.support.text import format_value


@dataclass(frozen=True)
class Restart(JsonRecord):
    """A stretch of rounds, from ``begin`` to before ``end``, over which the step size decays to 0.

    It starts from the best answer so far. ``objective`` and ``constraint`` are F and G of the best answer after it on
    all training data, and ``aim`` is the value there that the method minimises: F, or the clients' mean. ``better``:
    whether this restart found that answer. ``diverged``: whether a value in the last round was not finite. ``judged``:
    the number of answers evaluated at its end.
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

    def __str__(self) -> str:
        step, level = f"{self.step_size:.3g}", format_value(self.threshold)
        settings = f"rounds {self.begin} to {self.end - 1}, step {step} decaying to 0, λ = {level}"
        if self.diverged:
            return f"{settings}: not finite"
        outcome = f"F {format_value(self.objective)}, G {format_value(self.constraint)}"
        return f"{settings}: {outcome}{'' if self.better else ', no improvement'}"
