"""Whether a run was still improving when it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from softswitch.results.history import History
from softswitch.results.restart import Restart
from softswitch.support.text import in_words

MUCH, MUCH_OF_FIRST = 0.01, 1e-4
"""A gain of more than these shares of F at the end and of F at first is worth going on for."""
FEWEST_EVALUATIONS = 9
"""Fewer evaluations of F say nothing of a course,"""
CLEAR = 3.0
"""and nor does a fall of less than so many times its standard error."""


class Improvement(NamedTuple):
    """How F came down at the end of a run.

    Attributes:
        before: F at the beginning of the last part,
        after: and at its end.
        first: F at the beginning of the run.
        clear: whether the difference is more than what F goes up and down by.
        over: which part of the run that is, in words.
    """

    before: float
    after: float
    first: float
    clear: bool
    over: str

    @property
    def gained(self) -> bool:
        """Whether F came down at all."""
        return self.clear and self.after < self.before

    @property
    def going_on(self) -> bool:
        """Whether more rounds would probably gain more that counts."""
        counts = MUCH * abs(self.after) + MUCH_OF_FIRST * abs(self.first)
        return self.clear and self.before - self.after > counts

    def __str__(self) -> str:
        return f"{self.over} brought F from {in_words(self.before)} to {in_words(self.after)}"


def improvement(history: History, cycles: Sequence[Restart], tolerance: float) -> Improvement | None:
    """What the end of a run gained; None where that cannot be told.

    Args:
        history: of the run.
        cycles: its cycles, where it has any: the last is compared with the one before.
        tolerance: what G may be; while it is not met, gains are in G and not in F.
    """
    reported = history.objective[np.isfinite(history.objective)]
    first = float(reported[0]) if len(reported) else 0.0
    if cycles:
        if len(cycles) < 2 or cycles[-2].constraint > tolerance:
            return None
        before, last = cycles[-2:]
        over = f"the last cycle, of {last.end - last.begin:,} rounds,"
        return Improvement(before.objective, last.objective, first, True, over)
    values = np.asarray(history.full.objective, dtype=float)
    known = np.flatnonzero(np.isfinite(values))
    if len(known) < FEWEST_EVALUATIONS:
        return None
    last_third = known[-max(len(known) // 3, FEWEST_EVALUATIONS // 2) :]
    return _fitted(history.full_rounds[last_third].astype(float), values[last_third], first)


def _fitted(rounds: np.ndarray, values: np.ndarray, first: float) -> Improvement:
    """By a straight line through evaluations of F."""
    centred = rounds - rounds.mean()
    slope = float(centred @ values / (centred @ centred))
    left = values - values.mean() - slope * centred
    error = float(np.sqrt(left @ left / (len(values) - 2) / (centred @ centred)))
    begin, end = (float(values.mean()) + slope * float(centred[i]) for i in (0, -1))
    return Improvement(begin, end, first, -slope > CLEAR * error, f"the last {int(rounds[-1] - rounds[0]):,} rounds")


def quality(history: History, cycles: Sequence[Restart], tolerance: float) -> str:
    """A sentence on how good an answer is beyond feasibility, as far as the run itself can tell."""
    seen = improvement(history, cycles, tolerance)
    if seen is None:
        return "Whether the run was still improving cannot be told from it"
    if not seen.gained:
        return f"The run was no longer improving: {seen.over.rstrip(',')} did not lower F"
    return f"The run was {'still' if seen.going_on else 'hardly'} improving when it ended: {seen}"
