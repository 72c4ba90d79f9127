"""The restarts of an auto-tuned run, and whether a run was still improving when it ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from softswitch.results.history import History
from softswitch.results.json_numbers import JsonRecord
from softswitch.support.text import format_value

LARGE_GAIN, LARGE_GAIN_OF_FIRST = 0.01, 1e-4  # shares of the last and the first F: a gain above their sum is noticeable
MIN_EVALUATIONS = 9  # fewest evaluations of F for a trend
MIN_STANDARD_ERRORS = 3.0  # a trend is significant if it exceeds this many standard errors


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


class Improvement(NamedTuple):
    """The change of F over the last part of a run; ``first`` is F at the beginning of the run."""

    before: float
    after: float
    first: float
    significant: bool
    period: str

    @property
    def has_gained(self) -> bool:
        """Whether F decreased."""
        return self.significant and self.after < self.before

    @property
    def is_ongoing(self) -> bool:
        """Whether more rounds would probably improve F noticeably."""
        noticeable = LARGE_GAIN * abs(self.after) + LARGE_GAIN_OF_FIRST * abs(self.first)
        return self.significant and self.before - self.after > noticeable

    def __str__(self) -> str:
        return f"{self.period} brought F from {format_value(self.before)} to {format_value(self.after)}"


def measure_improvement(history: History, restarts: Sequence[Restart], tolerance: float) -> Improvement | None:
    """Return the improvement of F at the end of a run; None if there are too few evaluations.

    The last two restarts of an auto-tuned run are compared. While the tolerance is not met, gains are in G, not in F.
    """
    reported = history.objective[np.isfinite(history.objective)]
    first = float(reported[0]) if len(reported) else 0.0
    if restarts:
        if len(restarts) < 2 or restarts[-2].constraint > tolerance:
            return None
        previous, last = restarts[-2:]
        period = f"the last restart, of {last.end - last.begin:,} rounds,"
        return Improvement(previous.objective, last.objective, first, True, period)
    values = np.asarray(history.full.objective, dtype=float)
    known = np.flatnonzero(np.isfinite(values))
    if len(known) < MIN_EVALUATIONS:
        return None
    known = known[-max(len(known) // 3, MIN_EVALUATIONS // 2) :]
    rounds = history.full_rounds[known].astype(float)
    centred = rounds - rounds.mean()
    (slope, mean), covariance = np.polyfit(centred, values[known], 1, cov=True)
    before, after = (float(mean + slope * centred[i]) for i in (0, -1))
    is_significant = bool(-slope > MIN_STANDARD_ERRORS * np.sqrt(covariance[0, 0]))
    return Improvement(before, after, first, is_significant, f"the last {int(rounds[-1] - rounds[0]):,} rounds")


def describe_convergence(history: History, restarts: Sequence[Restart], tolerance: float) -> str:
    """Describe in one sentence whether the run was still improving when it ended."""
    improvement = measure_improvement(history, restarts, tolerance)
    if improvement is None:
        return "There are too few evaluations to judge whether the run was still improving"
    if not improvement.has_gained:
        return f"The run was no longer improving: {improvement.period.rstrip(',')} did not lower F"
    return f"The run was {'still' if improvement.is_ongoing else 'hardly'} improving when it ended: {improvement}"
