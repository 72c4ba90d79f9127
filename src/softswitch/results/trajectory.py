"""What looks wrong with the course of a run: an objective that jumps about, few rounds to average, an early end."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from softswitch.clients.oracle import Judged
from softswitch.results.ending import Ending
from softswitch.results.findings.finding import Finding
from softswitch.results.findings.improvement import improvement
from softswitch.results.history import History
from softswitch.results.one_cycle import Cycle
from softswitch.support.text import in_words

STILL_IMPROVING = "still improving"

FEW = 20
"""Fewer rounds than this say nothing of a course, and make no average,"""
FEW_OF_ALL = 0.05
"""and nor does a smaller share of the rounds that could have joined it."""
LARGEST = 90
"""This percentile of the changes is looked at: the worst of them, but not a single one."""
SMALL = 0.05
"""Changes by less than this share of all that F went through are no matter."""
EVALUATIONS = 4
"""So many evaluations on all data are needed to tell steps from noise."""
LOST = 1 / 3
"""A larger share of rounds in cycles that were not finite is worth a word."""


def objective_jumps(history: History, judged: Judged, step: float) -> Finding | None:
    """In the later half single rounds change F by more than all of F: the answer hangs on when the run ended."""
    half = len(history) // 2
    later = _finite(history.objective[half:])
    reached = _finite(judged.objective)
    if len(later) < FEW or not len(reached):
        return None
    jump = float(np.percentile(np.abs(np.diff(later)), LARGEST))
    worst = float(reached.max())
    scale = max(abs(worst), worst - float(reached.min()), SMALL * float(np.ptp(_finite(history.objective))))
    if jump <= scale:
        return None
    if _noise(history, half) >= 0.5 * jump:
        return None  # reports are noisy, but the iterates are steady
    return Finding(
        "objective jumps about",
        f"one round in ten of the later half changes F by {jump:.3g} or more, and the answer has F = {in_words(worst)}",
        f"Lower step_size (now {step:.3g}), or leave it out: it is then chosen",
    )


def _noise(history: History, first: int) -> float:
    """How far reports are off F on all data, in the rounds from ``first`` on where both are known; 0 if in too few."""
    rounds = history.full_rounds[history.full_rounds >= first]
    on_all = np.asarray(history.full.objective)[history.full_rounds >= first]
    off = _finite(np.abs(history.objective[rounds] - on_all))
    return float(np.percentile(off, LARGEST)) if len(off) >= EVALUATIONS else 0.0


def few_to_average(ending: Ending) -> Finding | None:
    """The answer is an average, but of too few rounds to mean anything."""
    could = len(ending.history) - ending.averaging_from
    own = int(np.sum(ending.history.feasible[ending.averaging_from :]))
    count, stages, way = int(ending.state.average.rounds), ending.state.stages, ending.rule.proximal
    if stages is not None and way is not None:
        own = count = int(stages.joined)
        could = math.ceil(way.average_last * way.rounds)
    if ending.answer != "average" or could < FEW or not own:
        return None
    if count >= FEW and count >= FEW_OF_ALL * could:
        return None
    return Finding(
        "few rounds to average",
        f"the answer is the mean of {count} feasible iterates, of {could} rounds that could have joined it",
        "Run longer, or take the best feasible iterate (answer='best')",
    )


def still_improving(ending: Ending) -> Finding | None:
    """F was still falling when the rounds were over."""
    if ending.stopped or not ending.history.feasible_rounds:
        return None
    seen = improvement(ending.history, ending.cycles, ending.rule.tolerance)
    if seen is None or not seen.going_on:
        return None
    return Finding(
        STILL_IMPROVING,
        str(seen),
        "Run longer: raise rounds, or go on from here with warm_start",
    )


def cycles_lost(cycles: Sequence[Cycle]) -> Finding | None:
    """So many rounds were in cycles that were not finite that the answer has suffered."""
    rounds = sum(cycle.end - cycle.begin for cycle in cycles)
    diverged = [cycle for cycle in cycles if cycle.diverged]
    share = sum(cycle.end - cycle.begin for cycle in diverged) / rounds if rounds else 0.0
    if not diverged or not (cycles[-1].diverged or share > LOST):
        return None
    return Finding(
        "cycles that were not finite",
        f"{len(diverged)} of {len(cycles)} cycles, {share:.0%} of the rounds, ended in a value that was not finite; "
        "the answer comes from the others",
        "Look at objective and constraint for values that overflow, or keep the parameters in a domain (Ball, Box)",
    )


def _finite(values: np.ndarray) -> np.ndarray:
    kept: np.ndarray = values[np.isfinite(values)]
    return kept
