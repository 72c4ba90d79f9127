"""All problems, and the half of them that nothing is chosen by.

The halves were fixed before any run: in the alphabetical order of names every second problem is held out.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.optima.constrained_minimax import CONSTRAINED_MINIMAX
from benchmarks.optima.fits import FITS
from benchmarks.optima.hock_schittkowski import HOCK_SCHITTKOWSKI
from benchmarks.optima.known import KnownProblem
from benchmarks.optima.minimax import MINIMAX

HALVES = ("tuned", "held-out", "all")


def _halved(problems: tuple[KnownProblem, ...]) -> tuple[KnownProblem, ...]:
    ordered = sorted(problems, key=lambda problem: problem.name)
    return tuple(replace(problem, held_out=index % 2 == 1) for index, problem in enumerate(ordered))


PROBLEMS = _halved((*MINIMAX, *FITS, *CONSTRAINED_MINIMAX, *HOCK_SCHITTKOWSKI))
"""In alphabetical order."""


def half(name: str) -> tuple[KnownProblem, ...]:
    """The problems of a half: "tuned", "held-out", or "all" of them."""
    if name not in HALVES:
        raise ValueError(f"half must be one of {', '.join(HALVES)}, but is {name!r}")
    return tuple(problem for problem in PROBLEMS if name == "all" or problem.held_out == (name == "held-out"))
