"""An answer against the published optimum, and against the optimum at the tolerance."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.optima.epigraph import slsqp, starts
from benchmarks.optima.known import KnownProblem

TOLERANCE = 1e-3
"""How far a constraint may be above 0, in its units."""
CLOSE = 1e-3
"""How far an answer's F may be from the optimum, in units of max(1, |F*|)."""
ROUNDING = 1e-9
"""How far above the tolerance a constraint still counts as on it."""


@dataclass(frozen=True)
class Score:
    """What an answer reached.

    Attributes:
        objective: F, the largest f_i there.
        constraint: G, the largest g_j; −∞ without constraints.
        error: (F − F*)/max(1, |F*|), where F* is the optimum at the tolerance.
        published_error: the same with the published optimum, at tolerance 0.
    """

    objective: float
    constraint: float
    error: float
    published_error: float

    @property
    def met(self) -> bool:
        """Whether the constraints are met within the tolerance."""
        return self.constraint <= TOLERANCE + ROUNDING

    @property
    def solved(self) -> bool:
        """Whether moreover F is close to the optimum at the tolerance."""
        return self.met and abs(self.error) <= CLOSE


def score(known: KnownProblem, relaxed: float, params: np.ndarray) -> Score:
    """Judge an answer; ``relaxed`` is the optimum at the tolerance."""
    with jax.enable_x64(True):
        w = jnp.asarray(params)
        objective = float(known.objectives(w).max())
        constraint = -np.inf if known.constraints is None else float(known.constraints(w).max())
    scale = max(1.0, abs(known.optimum))
    return Score(objective, constraint, (objective - relaxed) / scale, (objective - known.optimum) / scale)


def relaxed_optimum(known: KnownProblem, tolerance: float = TOLERANCE) -> float:
    """The optimum where constraints may be above 0 by the tolerance, by SLSQP from the published optimum's solution."""
    if known.constraints is None:
        return known.optimum
    return slsqp(known, published_solution(known), tolerance).worst_objective


def published_solution(known: KnownProblem, within: float = 1e-5, number: int = 6) -> np.ndarray:
    """A w that attains the published optimum: what SLSQP finds from the start, or else from one around it."""
    for start in starts(known, number):
        found = slsqp(known, start)
        close = abs(found.worst_objective - known.optimum) <= within * max(1, abs(known.optimum))
        if close and found.worst_constraint <= 1e-7:
            return found.params
    raise RuntimeError(f"SLSQP does not find the published optimum of {known.name}")
