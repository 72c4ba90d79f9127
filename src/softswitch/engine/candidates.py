"""Models to choose between, for rows that nobody has seen: trained in several ways, and moved.

Each is judged by the rows to choose by: its worst client's objective there, and how likely it would be certified. What
is varied, in this order, as far as it is needed:

- which iterate, and where the model can be moved, its decision threshold and the size of its scores;
- how large parameters may become, unless rows are so many that none are learnt by heart, and the first model does as
  well on rows that it was not trained on and is likely to be certified;
- the margin: trained for a part of the tolerance, where no model so far is likely to be certified.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from softswitch.certification.certifiability import CandidateForecast, EvaluatedRows, forecast_candidate
from softswitch.certification.intervals import ErrorLevels
from softswitch.certification.row_values import Kind, RowValues
from softswitch.data.client_data import ClientData
from softswitch.engine.auto_tuning import count_parameters
from softswitch.problem.domains import Ball
from softswitch.problem.parameters import Params
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import Range
from softswitch.results.result import Result

Move = Callable[[Params, float, float], Params]
"""From parameters, a scale and an offset: those whose scores are scaled, and the offset more."""

NORMS = (0.5, 0.25, 0.1)
"""Parameters up to so many times as large as the first answer's,"""
MARGINS = (0.5, 0.2)
"""and training for so much of the tolerance."""
WORSE = 0.05
"""A mean objective that is larger on other rows by such a part speaks for smaller parameters."""
ENOUGH_ROWS = 1000
"""With so many rows a parameter none are learnt by heart."""
LIKELY = 0.9
"""A chance to be certified that is enough."""
OFFSETS = (0.0, *(sign * 0.1 * 2.0**k for k in range(8) for sign in (-1, 1)))
CONSTANTS = tuple(sign * size for size in (0.01, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0) for sign in (-1, 1))
SCALES = (1.0, 0.5, 0.25, 0.1)
FINER = 4
"""Around the best offset so many times a finer one is tried on either side."""


class HowTrained(NamedTuple):
    """How a model was trained.

    Attributes:
        norm: how large its parameters may be, in units of the first answer's; ∞: as they come.
        margin: trained for so much of the tolerance.
    """

    norm: float = math.inf
    margin: float = 1.0

    @property
    def name(self) -> str:
        """For a folder."""
        return "-".join([*(["norm", f"{self.norm:g}"] if self.norm < math.inf else []), "margin", f"{self.margin:g}"])

    def __str__(self) -> str:
        said = "trained for the bound itself" if self.margin == 1 else f"trained for {self.margin:g} of the bound"
        return said if self.norm == math.inf else f"{said}, parameters at most {self.norm:g} of their size"


@dataclass(frozen=True, eq=False)
class Candidate:
    """A model, how it came about, and what the rows to choose by say of it.

    Attributes:
        params: the model.
        result: the run that it comes from.
        way: how that was trained.
        scale: of its scores,
        offset: and what is added to them.
        forecast: certification forecast from the validation split.
        tolerance: what its constraint may be at most.
    """

    params: Params
    result: Result
    way: HowTrained
    scale: float
    offset: float
    forecast: CandidateForecast
    tolerance: float

    @property
    def above(self) -> float:
        """By how much it is above the tolerance on the rows that it learnt from; 0 where it keeps it."""
        return max(0.0, self.forecast.train_constraint - self.tolerance)

    @property
    def rank(self) -> tuple[float, float, float, float]:
        """The smaller, the better.

        Those that keep the tolerance on the rows they learnt from come first; then those that are likely enough, or the
        likelier; where nothing can be certified, those that keep it on the rows to choose by, or are the least above
        it there; then the objective. How far a model is above it on the rows it learnt from does not count: the nearest
        has often learnt them by heart.
        """
        told = self.forecast
        likely = 1.0 if told.pass_probability >= LIKELY else told.pass_probability
        return (
            float(self.above > 0),
            -likely,
            0.0 if likely else max(0.0, told.constraint - self.tolerance),
            told.objective,
        )

    def __str__(self) -> str:
        moved = []
        if self.offset:
            moved.append(f"scores moved by {self.offset:+.3g}")
        if self.scale != 1:
            moved.append(f"scaled by {self.scale:g}")
        return ", ".join([str(self.way), *moved])


@dataclass(frozen=True, eq=False)
class Chooser:
    """What judges models by the rows to choose by.

    Attributes:
        problem: objective and constraint.
        learnt_from: rows that were learnt from, or a sample.
        rows: to choose by.
        kept: clients' labels, and how many rows each has to certify.
        levels: of the certificate.
        ranges: of f and then g.
        move: how a model's scores are moved, where it can be.
    """

    problem: Problem
    learnt_from: ClientData
    rows: ClientData
    kept: dict[str, int]
    levels: ErrorLevels
    ranges: tuple[Range | None, ...]
    move: Move | None

    def constants(self, like: Result, kinds: tuple[Kind, ...]) -> list[CandidateForecast]:
        """What constant predictions come to: scores scaled to nothing, and moved."""
        move = self.move
        assert move is not None
        return [self._forecast(move(like.params, 0.0, offset), kinds) for offset in CONSTANTS]

    def _forecast(self, params: Params, kinds: tuple[Kind, ...]) -> CandidateForecast:
        chosen_by, learnt_from = (
            EvaluatedRows(data, RowValues(self.problem, data, params, kinds=kinds))
            for data in (self.rows, self.learnt_from)
        )
        return forecast_candidate(chosen_by, learnt_from, self.kept, self.levels, self.ranges)

    def of(self, result: Result, way: HowTrained, kinds: tuple[Kind, ...]) -> Iterator[Candidate]:
        """All models that a run gives; ``kinds``: what the functions are."""
        for params in _different([result.params, result.last, result.best]):

            def moved(scale: float, offset: float, own: Params = params) -> Candidate:
                there = own if self.move is None else self.move(own, scale, offset)
                told = self._forecast(there, kinds)
                return Candidate(there, result, way, scale, offset, told, self.levels.tolerance)

            yield from (moved(1.0, 0.0),) if self.move is None else _around(moved)


def _around(moved: Callable[[float, float], Candidate]) -> Iterator[Candidate]:
    """Offsets on a grid, scales at the best of them, and finer offsets there."""
    found = [moved(1.0, offset) for offset in OFFSETS]
    best = min(found, key=_rank)
    found += [moved(scale, scale * best.offset) for scale in SCALES[1:]]
    best = min(found, key=_rank)
    apart = max(abs(best.offset) / 2, 0.05 * best.scale)
    for _ in range(FINER):
        apart /= 2
        nearer = [moved(best.scale, best.offset + step) for step in (-apart, apart)]
        found += nearer
        best = min([best, *nearer], key=_rank)
    return iter(found)


def _rank(candidate: Candidate) -> tuple[float, ...]:
    return candidate.rank


def _different(models: list[Params | None]) -> list[Params]:
    kept: list[Params] = []
    for params in models:
        if params is not None and _finite(params) and not any(_equal(params, other) for other in kept):
            kept.append(params)
    return kept


def _finite(params: Params) -> bool:
    return all(bool(np.isfinite(np.asarray(leaf)).all()) for leaf in jax.tree.leaves(params))


def _equal(one: Params, other: Params) -> bool:
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in leaves)


def size_of_params(params: Params) -> float:
    """Their Euclidean norm."""
    return math.sqrt(sum(float(np.square(np.asarray(leaf, dtype=float)).sum()) for leaf in jax.tree.leaves(params)))


def ways(first: Result, problem: Problem, found: list[Candidate], rows: int) -> Iterator[HowTrained]:
    """How else to train, judged by what was found so far each time; ``rows``: how many there were to learn from."""
    own = min((c for c in found if c.result is first), key=_rank)
    few = rows < ENOUGH_ROWS * count_parameters(first.params)
    doubtful = few or own.forecast.objective_increase > WORSE or own.forecast.pass_probability < LIKELY
    if doubtful and problem.domain is None and size_of_params(first.params) > 0:
        for norm in NORMS:
            yield HowTrained(norm)
    if first.method.tolerance <= 0:
        return
    for margin in MARGINS:
        best = min(found, key=_rank)
        if best.forecast.pass_probability >= LIKELY:
            return
        yield best.way._replace(margin=margin)


def problem_of(way: HowTrained, problem: Problem, first: Result) -> Problem:
    """The problem that is solved in a way: from the first answer on, within its ball."""
    if way.norm == math.inf:
        return replace(problem, start=first.params)
    ball = Ball(way.norm * size_of_params(first.params))
    return replace(problem, start=ball.project(first.params), domain=ball)


def rule_of(way: HowTrained, method: Any) -> Any:
    """The rule of a way: with its part of the tolerance."""
    return method if way.margin == 1 else at_tolerance(method, way.margin * method.tolerance)


def at_tolerance(method: Any, tolerance: float) -> Any:
    """The rule for another tolerance: its threshold, where one is given, moves along."""
    moved = method.threshold
    if moved is not None and method.tolerance > 0:
        moved *= tolerance / method.tolerance
    return replace(method, tolerance=tolerance, threshold=moved)
