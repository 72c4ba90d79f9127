"""solve_certified(): learn on one part of the rows, choose on another, certify on a third that is looked at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from softswitch.clients.evaluation import judge_of
from softswitch.clients.parts import Parts
from softswitch.engines.candidates import Candidate, Chooser, Move, Way, problem_of, rule_of, ways
from softswitch.engines.solve import solve
from softswitch.guarantees.unseen_rows.beforehand import Reach, reach
from softswitch.guarantees.unseen_rows.certify import certify, known_ranges
from softswitch.guarantees.unseen_rows.intervals import ErrorLevels
from softswitch.guarantees.unseen_rows.row_values import RowValues
from softswitch.method.rules import Rule
from softswitch.problem.parameters import float_dtype
from softswitch.problem.problem import Problem
from softswitch.results.certificate import Certificate
from softswitch.results.promised import ending, is_answer
from softswitch.results.result import Result
from softswitch.results.status import StatusCode
from softswitch.runs.checkpoints import Checkpoints
from softswitch.support import checks

SHORTER = 4
"""Further runs begin at the first one's answer, and have at most one part in so many of its rounds."""
FEWEST_ROUNDS = 200
SAFER = (2 / 3, 1 / 3)
"""How far on the way from the chosen model to the safest like it the models lie that are tested before,"""
RISKIER = (0.6, 0.3)
"""and the chances of those that are tested after it."""
ENDED = (StatusCode.DIVERGED, StatusCode.STOPPED)


@dataclass(frozen=True, eq=False)
class Certified:
    """What ``solve_certified`` found.

    Attributes:
        result: of the run that the model comes from; its parameters and values at clients are the model's.
        certificate: of the model on rows that were looked at once; None where training was stopped or diverged.
        tested: the models that were tested, in this order, until one did not pass.
        looked_at: how many models the rows to choose by were asked about.
        reach: what the rows to certify could show at best.
    """

    result: Result
    certificate: Certificate | None
    tested: tuple[Candidate, ...]
    looked_at: int
    reach: Reach

    @property
    def answered(self) -> bool:
        """Whether the model is certified; else there is no answer at this confidence."""
        return is_answer(self.certificate)

    @property
    def model(self) -> Candidate | None:
        """How the model came about."""
        return self.tested[-1] if self.tested else None

    def __str__(self) -> str:
        if self.certificate is None:
            return f"{self.result.status}. Nothing was certified: training did not come to its end."
        chosen = f"Of {self.looked_at} models the one chosen is {self.model}." if self.tested else ""
        return "\n".join([ending(self.certificate), chosen, f"{self.result.status}."])


def solve_certified(
    problem: Problem,
    parts: Parts,
    rule: Rule,
    *,
    confidence: float = 0.95,
    move: Move | None = None,
    rounds: int | None = None,
    checkpoints: Path | None = None,
    **options: Any,
) -> Certified:
    """Train a model for rows that nobody has seen, and say whether every client's constraint holds on them.

    Models are trained on the first part of the rows and judged by the second: iterates, decision thresholds, sizes of
    parameters, margins below the tolerance. Those that look certifiable are tested on the third part one after the
    other, from the safest on, until one does not pass: the last that passed is the answer. If none does, there is no
    answer at this confidence.

    The chance that an answer is given whose constraint is above the tolerance at any client is at most 1 − confidence
    (a test of hypotheses in a fixed order: the first wrong one would have to be passed).

    Args:
        problem: objective, constraint, start; with ``constraint_range`` for a promise instead of an approximation.
        parts: every client's rows, in three parts.
        rule: such as ``SoftmaxSGM(tolerance=0.05)``: the tolerance is what is certified.
        confidence: with which.
        move: ``(params, scale, offset) -> params`` whose scores are scaled and moved, where a model has such:
            decision thresholds are then chosen too.
        rounds: as for ``solve``.
        checkpoints: a folder to keep the runs' standings in, and to go on from; several are made beside it.
        options: more for ``solve``.
    """
    checks.expect("parts", parts, Parts)
    said = reach(problem, parts.certify, rule.tolerance, confidence)

    def run(way: Way, of: Problem, own_rounds: int | None) -> Result:
        kept = checkpoints if way == Way() or checkpoints is None else checkpoints.with_name(_beside(checkpoints, way))
        told = options | {"checkpoints": None if kept is None else Checkpoints(kept)}
        return solve(of, parts.learn, rule_of(way, rule), rounds=own_rounds, **told)

    first = run(Way(), problem, rounds)
    if first.status.code in ENDED:
        return Certified(first, None, (), 0, said)
    chooser = _chooser(problem, parts, rule.tolerance, confidence, move)
    kinds = tuple(map(bool, RowValues(problem, parts.choose, first.params).means))
    found = list(chooser.of(first, Way(), kinds))
    shorter = max(FEWEST_ROUNDS, len(first.history) // SHORTER) if rounds is None else rounds
    for way in ways(first, problem, found):
        other = run(way, problem_of(way, problem, first), shorter)
        if other.status.code is StatusCode.STOPPED:
            return Certified(first, None, (), len(found), said)
        if other.status.code is not StatusCode.DIVERGED:
            found += chooser.of(other, way, kinds)
    path = _in_order(found, _trivial(chooser, first, kinds))
    tested: list[tuple[Candidate, Certificate]] = []
    for candidate in path:
        of_model = replace(first, params=candidate.params)
        seen = certify(of_model, problem, parts.certify, confidence, tolerance=rule.tolerance)
        if not is_answer(seen) and tested:
            break
        tested.append((candidate, seen))
        if not is_answer(seen):
            break
    model, certificate = tested[-1]
    certificate = certificate.after_tests(len(tested))
    result = _with_model(model, problem, parts, rule)
    return Certified(result, certificate, tuple(candidate for candidate, _ in tested), len(found), said)


def _beside(folder: Path, way: Way) -> str:
    return f"{folder.name}-{way.name}"


def _chooser(problem: Problem, parts: Parts, tolerance: float, confidence: float, move: Move | None) -> Chooser:
    error = 1 - confidence
    levels = ErrorLevels(error / len(parts.certify), error, tolerance)
    shapes = parts.certify.batch_shapes(1, float_dtype(problem.start))
    ranges = known_ranges(problem, None, None, problem.trace(shapes).constraints)
    kept = {str(name): int(size) for name, size in zip(parts.certify.names, parts.certify.sizes, strict=True)}
    return Chooser(problem, parts.choose, kept, levels, tuple(ranges), move)


def _trivial(chooser: Chooser, first: Result, kinds: tuple[bool, ...]) -> float:
    """The smallest objective of a constant prediction that keeps the bound on the rows to choose by; ∞ without one."""
    if chooser.move is None:
        return np.inf
    tolerance = chooser.levels.tolerance
    constants = chooser.constants(first, kinds)
    return min((told.objective for told in constants if told.constraint <= tolerance), default=np.inf)


def _in_order(found: list[Candidate], trivial: float) -> list[Candidate]:
    """What to test, from the safest on: models better than a constant, about the best of them."""
    useful = [candidate for candidate in found if candidate.foreseen.objective < trivial] or found
    best = min(useful, key=lambda candidate: candidate.rank)
    alike = [
        one
        for one in useful
        if (one.way, one.scale) == (best.way, best.scale)
        and one.foreseen.chance >= best.foreseen.chance
        and one.foreseen.constraint <= best.foreseen.constraint
        and one.foreseen.objective > best.foreseen.objective
    ]
    alike.sort(key=lambda one: one.foreseen.objective)
    path = []
    if alike:
        low, high = best.foreseen.objective, alike[-1].foreseen.objective
        path = [_nearest(alike, low + part * (high - low)) for part in SAFER]
    path.append(best)
    for least in RISKIER:
        last = path[-1].foreseen
        bolder = [one for one in useful if one.foreseen.chance >= least and one.foreseen.objective < last.objective]
        if bolder:
            path.append(min(bolder, key=lambda one: one.foreseen.objective))
    return list(dict.fromkeys(path))


def _nearest(found: list[Candidate], objective: float) -> Candidate:
    return min(found, key=lambda one: abs(one.foreseen.objective - objective))


def _with_model(model: Candidate, problem: Problem, parts: Parts, rule: Rule) -> Result:
    """The run's result, with the model's parameters and its values on the rows that were learnt from."""
    result = replace(model.result, rule=replace(model.result.rule, tolerance=rule.tolerance))
    judged = judge_of(problem, parts.learn)(model.params)
    return result.with_model(model.params, f"model chosen for unseen rows ({model})", judged)
