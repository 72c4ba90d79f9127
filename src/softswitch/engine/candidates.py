"""Candidate models for certification: trained with several norms and margins, rescaled and shifted.

They are compared on the validation split, by their worst client's objective and the probability of a certificate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import numpy as np

from softswitch.certification.certifiability import CandidateForecast, EvaluatedRows, forecast_candidate
from softswitch.certification.intervals import ErrorLevels
from softswitch.certification.row_values import Kind, RowValues
from softswitch.data.client_data import ClientData
from softswitch.problem.domains import Ball
from softswitch.problem.parameters import Params, count_parameters
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import Range
from softswitch.results.result import Result

Move = Callable[[Params, float, float], Params]  # (params, scale, offset): with scores ``scale`` · score + ``offset``
NORMS = (0.5, 0.25, 0.1)  # largest norms of the parameters, relative to the first model
MARGINS = (0.5, 0.2)  # tolerances in training, relative to the tolerance to certify
LARGE_INCREASE = 0.05  # relative increase of the mean objective on validation rows that indicates overfitting
ENOUGH_ROWS = 1000  # number of training rows per parameter with which overfitting is not expected
LIKELY = 0.9  # probability of a certificate from which a candidate is likely to be certified
OFFSETS = (0.0, *(sign * 0.1 * 2.0**k for k in range(8) for sign in (-1, 1)))  # grid of offsets of scores
CONSTANTS = tuple(sign * size for size in (0.01, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0) for sign in (-1, 1))
SMALLER_SCALES = (0.5, 0.25, 0.1)  # scales of scores that are tried at the best offset
REFINEMENTS = 4  # number of bisections around the best offset


class Variant(NamedTuple):
    """The norm and the tolerance with which a candidate is trained."""

    norm: float = math.inf  # largest norm of the parameters, relative to the first model
    margin: float = 1.0  # tolerance in training, relative to the tolerance to certify

    @property
    def name(self) -> str:
        """Text that identifies the variant, as the suffix of its checkpoint folder."""
        return (f"norm-{self.norm:g}-" if self.norm < math.inf else "") + f"margin-{self.margin:g}"

    def __str__(self) -> str:
        bound = "the bound itself" if self.margin == 1 else f"{self.margin:g} of the bound"
        norm = "" if self.norm == math.inf else f", parameters at most {self.norm:g} of their size"
        return f"trained for {bound}{norm}"

    def problem(self, problem: Problem, first: Result) -> Problem:
        """Return the problem that starts at the first model and, for a finite norm, has a ball as its domain."""
        if self.norm == math.inf:
            return replace(problem, start=first.params)
        ball = Ball(self.norm * norm_of(first.params))
        return replace(problem, start=ball.project(first.params), domain=ball)

    def method(self, method: Any) -> Any:
        """Return the method with the variant's tolerance."""
        return method if self.margin == 1 else with_tolerance(method, self.margin * method.tolerance)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A model that may be certified, its origin, and its forecast from the validation split."""

    params: Params
    result: Result  # the run that the model comes from
    variant: Variant  # the norm and the tolerance of that run
    scale: float  # factor by which the scores of the run's iterate were multiplied
    offset: float  # number that was then added to the scores
    forecast: CandidateForecast
    tolerance: float  # bound on the constraint to certify

    @property
    def is_feasible(self) -> bool:
        """Whether the model meets the tolerance on the training rows."""
        return not self.forecast.train_constraint - self.tolerance > 0

    @property
    def rank(self) -> tuple[float, float, float, float]:
        """Sort key, the best first: feasible on training rows, pass probability, violation and F on validation rows.

        The violation on training rows does not count, because the model with the smallest one is often overfitted.
        """
        forecast = self.forecast
        likely = 1.0 if forecast.pass_probability >= LIKELY else forecast.pass_probability
        violation = 0.0 if likely else max(0.0, forecast.constraint - self.tolerance)
        return float(not self.is_feasible), -likely, violation, forecast.objective

    def __str__(self) -> str:
        offset = f", scores moved by {self.offset:+.3g}" if self.offset else ""
        return f"{self.variant}{offset}" + (f", scaled by {self.scale:g}" if self.scale != 1 else "")


@dataclass(frozen=True, eq=False)
class CandidateGenerator:
    """Generator of candidate models from runs, with forecasts of their certification."""

    problem: Problem
    training: ClientData  # rows of the training split, or a sample
    validation: ClientData  # rows of the validation split, or a sample
    calibration_sizes: dict[str, int]  # number of calibration rows by client name
    levels: ErrorLevels
    ranges: tuple[Range | None, ...]  # of f and then each g on a row; None if unknown
    kinds: tuple[Kind, ...]  # of f and then each g
    move: Move | None  # None if scores cannot be scaled and shifted

    def forecast(self, params: Params) -> CandidateForecast:
        """Forecast the certification of a model from its values on the training and validation rows."""
        validation, training = (
            EvaluatedRows(data, RowValues(self.problem, data, params, kinds=self.kinds))
            for data in (self.validation, self.training)
        )
        return forecast_candidate(validation, training, self.calibration_sizes, self.levels, self.ranges)

    def constant_objective(self, params: Params) -> float:
        """Return the smallest F of a feasible constant prediction on the validation rows; ∞ if there is none."""
        if self.move is None:
            return math.inf
        forecasts = [self.forecast(self.move(params, 0.0, offset)) for offset in CONSTANTS]
        return min((one.objective for one in forecasts if one.constraint <= self.levels.tolerance), default=math.inf)

    def candidates(self, result: Result, variant: Variant) -> Iterator[Candidate]:
        """Yield the candidates of a run: its answer, last and best iterate, with scores scaled and shifted."""
        for params in _distinct([result.params, result.last, result.best]):

            def moved(scale: float, offset: float, params: Params = params) -> Candidate:
                model = params if self.move is None else self.move(params, scale, offset)
                return Candidate(model, result, variant, scale, offset, self.forecast(model), self.levels.tolerance)

            yield from (moved(1.0, 0.0),) if self.move is None else _search(moved)


def _search(moved: Callable[[float, float], Candidate]) -> list[Candidate]:
    """Return the candidates on a grid of offsets, then at smaller scales, then at offsets around the best."""
    candidates = [moved(1.0, offset) for offset in OFFSETS]
    best = best_of(candidates)
    candidates += [moved(scale, scale * best.offset) for scale in SMALLER_SCALES]
    best = best_of(candidates)
    step = max(abs(best.offset) / 2, 0.05 * best.scale)
    for _ in range(REFINEMENTS):
        step /= 2
        closer = [moved(best.scale, best.offset + change) for change in (-step, step)]
        candidates += closer
        best = best_of([best, *closer])
    return candidates


def best_of(candidates: list[Candidate]) -> Candidate:
    """Return the candidate with the smallest rank."""
    return min(candidates, key=attrgetter("rank"))


def _distinct(models: list[Params | None]) -> list[Params]:
    """Return the models that are not None and finite, without duplicates."""
    kept: list[Params] = []
    for params in models:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
        if params is None or not all(np.isfinite(leaf).all() for leaf in leaves):
            continue
        if not any(all(map(np.array_equal, leaves, jax.tree.leaves(other))) for other in kept):
            kept.append(params)
    return kept


def norm_of(params: Params) -> float:
    """Return the Euclidean norm of all parameters."""
    return math.sqrt(sum(float(np.square(np.asarray(leaf, dtype=float)).sum()) for leaf in jax.tree.leaves(params)))


def further_variants(first: Result, problem: Problem, candidates: list[Candidate], rows: int) -> Iterator[Variant]:
    """Yield further variants to train. The caller adds the candidates of each to the list before it asks for the next.

    Smaller norms are tried unless the first model is likely to be certified and not overfitted to its ``rows`` training
    rows. Smaller margins are tried while no candidate is likely to be certified.
    """
    forecast = best_of([one for one in candidates if one.result is first]).forecast
    may_overfit = rows < ENOUGH_ROWS * count_parameters(first.params) or forecast.objective_increase > LARGE_INCREASE
    may_fail = forecast.pass_probability < LIKELY
    if (may_overfit or may_fail) and problem.domain is None and norm_of(first.params) > 0:
        yield from map(Variant, NORMS)
    for margin in MARGINS if first.method.tolerance > 0 else ():
        best = best_of(candidates)
        if best.forecast.pass_probability >= LIKELY:
            return
        yield best.variant._replace(margin=margin)


def with_tolerance(method: Any, tolerance: float) -> Any:
    """Return the method with another tolerance; a threshold that is set is scaled in proportion."""
    threshold = method.threshold
    if threshold is not None and method.tolerance > 0:
        threshold *= tolerance / method.tolerance
    return replace(method, tolerance=tolerance, threshold=threshold)
