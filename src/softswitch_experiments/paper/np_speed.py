"""Does a larger share of clients converge sooner? By rounds and by gradients, of the answer as it stands on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from softswitch.results.result import Result
from softswitch_experiments.paper.experiment import Claim, Row, Scale
from softswitch_experiments.paper.np_study import SOFTMAX, STUDY, TOLERANCE
from softswitch_experiments.paper.study import Way, half_interval

ON_THE_WAY = (25, 50, 100, 200, 400)
"""Rounds after which the answer is looked at, before the last: draws depend on seed and round alone, so a shorter run
is the beginning of the longer one."""


@dataclass(frozen=True)
class AnswerCourse:
    """A seed's answer w̄ as it stood after some rounds; infinite where it did not come to something."""

    rounds: np.ndarray
    gradients: np.ndarray
    objective: np.ndarray
    constraint: np.ndarray

    def until_met(self, cost: str = "rounds") -> float:
        """What it took until G(w̄) was within the tolerance, and stayed there; in rounds or gradients."""
        met = self.constraint <= TOLERANCE
        stays = np.logical_and.accumulate(met[::-1])[::-1]
        return float(getattr(self, cost)[np.argmax(stays)]) if stays.any() else float("inf")


def courses(way: Way, scale: Scale, whole: Sequence[Result]) -> list[AnswerCourse]:
    """One a seed: shorter runs, and the whole one at the end."""
    quiet = Scale(scale.seeds, scale.quick, scale.progress)
    runs = [STUDY.runs({"": SOFTMAX}, way, quiet, rounds=rounds)[""] for rounds in ON_THE_WAY]
    return [
        AnswerCourse(
            np.array([len(r.history) for r in seed]),
            np.array([r.history.gradient_evaluations[-1] for r in seed]),
            np.array([r.worst_objective for r in seed]),
            np.array([r.worst_constraint for r in seed]),
        )
        for seed in zip(*runs, whole, strict=True)
    ]


def course_rows(found: Mapping[float, Sequence[AnswerCourse]], symbol: str) -> list[Row]:
    """A row a share of clients, seed and number of rounds."""
    return [
        {symbol: value, "seed": seed, "rounds": k, "gradient_evaluations": spent, "F": f, "G": g}
        for value, own in found.items()
        for seed, course in enumerate(own)
        for k, spent, f, g in zip(course.rounds, course.gradients, course.objective, course.constraint, strict=True)
    ]


def speed_claims(found: Mapping[float, Sequence[AnswerCourse]]) -> list[Claim]:
    """More clients bring the answer to feasibility sooner, in rounds and in gradients; and F at equal rounds."""
    shares = list(found)
    claims = []
    for cost, word in (("rounds", "rounds"), ("gradients", "gradient evaluations")):
        spent = np.array([[course.until_met(cost) for course in own] for own in found.values()])
        sooner = [bool(_not_later(b, a).all()) for a, b in pairwise(spent)]
        strictly = _beyond_interval(spent[0], spent[-1])
        told = ", ".join(f"{_typical(s)} at m/n = {r:g}" for r, s in zip(shares, spent, strict=True))
        claims.append(
            Claim(
                f"higher participation accelerates convergence: fewer {word} until G(w̄) <= {TOLERANCE} for good, "
                "at no seed more with the next larger share",
                all(sooner) and strictly,
                f"median over seeds {told}",
            )
        )
    for at in (100, ON_THE_WAY[-1]):
        objective = np.array([[_at(course, at) for course in own] for own in found.values()])
        lower = objective[0] - objective[-1]
        told = ", ".join(f"{f.mean():.3f} at m/n = {r:g}" for r, f in zip(shares, objective, strict=True))
        claims.append(
            Claim(
                f"higher participation accelerates convergence: a lower F(w̄) after {at} rounds with all clients "
                "than with the fewest",
                bool(lower.mean() > half_interval(lower)),
                f"{told}; lower by {lower.mean():.3f} ± {half_interval(lower):.3f} (95%, paired)",
            )
        )
    return claims


def _at(course: AnswerCourse, rounds: int) -> float:
    return float(course.objective[list(course.rounds).index(rounds)])


def _not_later(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return (first <= second) | (np.isinf(first) & np.isinf(second))


def _beyond_interval(first: np.ndarray, last: np.ndarray) -> bool:
    """Whether the first is larger than the last by more than the paired interval; never met counts as infinite."""
    finite = np.isfinite(first) & np.isfinite(last)
    if not finite.all():
        return bool((first[~finite] > last[~finite]).all() and (first[finite] >= last[finite]).all())
    fall = first - last
    return bool(fall.mean() > half_interval(fall))


def _typical(spent: np.ndarray) -> str:
    middle = float(np.median(spent))
    return "never" if np.isinf(middle) else f"{middle:,.0f}"
