"""solve_certified(): learn on one part of the rows, choose on another, certify on a third that is looked at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from softswitch.certification.certifiability import Certifiability, certifiability
from softswitch.certification.certify import certify, resolve_ranges
from softswitch.certification.client_optimum import make_regret_task
from softswitch.certification.intervals import ErrorLevels
from softswitch.certification.multiple_testing import fixed_sequence_test
from softswitch.certification.row_values import Kind, RowValues
from softswitch.data.client_data import ClientData
from softswitch.data.splits import Parts, sample_of
from softswitch.engine.candidates import Candidate, Chooser, HowTrained, Move, problem_of, rule_of, ways
from softswitch.engine.solve import refuse_regret, solve
from softswitch.methods.base import Method
from softswitch.oracles.evaluation import Evaluator, make_evaluator
from softswitch.oracles.regret import Regret, uses_regret
from softswitch.problem.parameters import float_dtype
from softswitch.problem.problem import Problem
from softswitch.results.byzantine import diagnose_model
from softswitch.results.certificate import Certificate, ending, is_certified
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.diagnostic import DiagnosticCode
from softswitch.results.result import Result
from softswitch.results.status import StatusCode
from softswitch.support import checks

SHORTER = 4
"""Further runs begin at the first one's answer, and have at most one part in so many of its rounds."""
FEWEST_ROUNDS = 200
SAFER = (2 / 3, 1 / 3)
"""How far on the way from the chosen model to the safest like it the models lie that are tested before,"""
RISKIER = (0.75, 0.5, 0.25)
"""and the chances of those that are tested after it, in parts of its own."""
SAMPLE = 1000
"""Models are compared by at most so many rows of a client of each part."""
ENDED = (StatusCode.DIVERGED, StatusCode.STOPPED)


@dataclass(frozen=True, eq=False)
class Certified:
    """What ``solve_certified`` found.

    Attributes:
        result: of the run that the model comes from; its parameters and values at clients are the model's.
        certificate: of the model on rows that were looked at once; None where training was stopped or diverged.
        tested: the models that were tested, in this order, until one did not pass.
        looked_at: how many models the rows to choose by were asked about.
        certifiability: what the rows to certify could show at best.
    """

    result: Result
    certificate: Certificate | None
    tested: tuple[Candidate, ...]
    looked_at: int
    certifiability: Certifiability

    @property
    def answered(self) -> bool:
        """Whether the model is certified; else there is no answer at this confidence."""
        return is_certified(self.certificate)

    @property
    def model(self) -> Candidate | None:
        """How the model came about."""
        return self.tested[-1] if self.tested else None

    def __str__(self) -> str:
        if self.certificate is None:
            return f"{ending(None)} {self.result.status}."
        chosen = f"Of {self.looked_at} models the one chosen is {self.model}." if self.tested else ""
        return "\n".join([ending(self.certificate), chosen, f"{self.result.status}."])


def solve_certified(
    problem: Problem,
    parts: Parts,
    method: Method,
    *,
    confidence: float = 0.95,
    move: Move | None = None,
    rounds: int | None = None,
    seconds: float | None = None,
    checkpoints: Path | None = None,
    regret: Regret = None,
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
        method: such as ``SoftmaxSGM(tolerance=0.05)``: the tolerance is what is certified.
        confidence: with which.
        move: ``(params, scale, offset) -> params`` whose scores are scaled and moved, where a model has such:
            decision thresholds are then chosen too.
        rounds: of the first run, as for ``solve``; others have a quarter of them.
        seconds: for all runs together.
        checkpoints: a folder to keep the runs' standings in, and to go on from; several are made beside it.
        regret: train and choose by regrets f_i − f_i*, as for ``solve``; f_i* is found on the rows to learn from.
        options: more for ``solve``.
    """
    if uses_regret(regret):
        checks.expect("parts", parts, Parts)
        refuse_regret(parts.learn)
        task = make_regret_task(problem, parts.learn, regret)
        others = [cast(ClientData, task.add_optimum(part)) for part in (parts.choose, parts.certify)]
        how: dict[str, Any] = {"confidence": confidence, "move": move, "rounds": rounds, "seconds": seconds}
        options["held_out"] = task.add_optimum(options.get("held_out"))
        found = solve_certified(
            task.problem, Parts(task.clients, *others), method, checkpoints=checkpoints, **how, **options
        )
        return replace(found, result=replace(found.result, client_optimum=task.client_optimum))
    ready = prepare(
        problem,
        parts,
        method,
        confidence=confidence,
        move=move,
        rounds=rounds,
        seconds=seconds,
        checkpoints=checkpoints,
        **options,
    )
    if not ready.path:
        return Certified(ready.first, None, (), ready.looked_at, ready.certifiability)
    seen: list[Certificate] = []

    def passes(candidate: Candidate) -> bool:
        model = replace(ready.first, params=candidate.params)
        told = certify(model, problem, parts.certify, confidence, tolerance=method.tolerance, kinds=ready.kinds)
        seen.append(told)
        return is_certified(seen[-1])

    last = max(sum(fixed_sequence_test(ready.path, passes)), 1)
    return Certified(
        ready.result_of(ready.path[last - 1]),
        seen[last - 1].after_tests(last),
        ready.path[:last],
        ready.looked_at,
        ready.certifiability,
    )


@dataclass(frozen=True, eq=False)
class Prepared:
    """Models trained and compared, before any row that certifies is looked at.

    Attributes:
        first: the first run.
        path: what to test, from the safest on; empty where training was stopped or diverged.
        best: the model of the path that is the best choice by itself.
        looked_at: how many models were compared.
        certifiability: what the rows to certify could show at best.
        learnt_from: judges by all rows that were learnt from.
        kinds: what objective and constraints are.
    """

    first: Result
    path: tuple[Candidate, ...]
    best: Candidate | None
    looked_at: int
    certifiability: Certifiability
    learnt_from: Evaluator
    kinds: tuple[Kind, ...] = ()

    def result_of(self, model: Candidate) -> Result:
        """The result of the model's run with the model as its answer, judged by the tolerance asked for.

        What looks wrong is told of the first run: another was perhaps trained for a part of the tolerance, and what it
        says of that part would be said of the whole. Whether a run was still improving is told of the model's own; who
        may have lied, of the model itself.
        """
        own = replace(model.result.method, tolerance=model.tolerance)
        judged, anew = (
            self.learnt_from(model.params),
            (DiagnosticCode.STILL_IMPROVING, DiagnosticCode.TRIMMED_VIOLATION, DiagnosticCode.OUTLIER_VALUES),
        )
        looks_wrong = diagnose_model(self.first.names, own, judged)
        looks_wrong += [found for found in self.first.diagnostics if found.code not in anew]
        looks_wrong += [found for found in model.result.diagnostics if found.code == DiagnosticCode.STILL_IMPROVING]
        run = replace(model.result, method=own, diagnostics=tuple(looks_wrong))
        said = f"model chosen for unseen rows ({model})"
        return replace(run.with_model(model.params, said, judged), baselines=self.first.baselines)


def prepare(
    problem: Problem,
    parts: Parts,
    method: Method,
    *,
    confidence: float = 0.95,
    move: Move | None = None,
    rounds: int | None = None,
    seconds: float | None = None,
    checkpoints: Path | None = None,
    **options: Any,
) -> Prepared:
    """Train models on the rows to learn from, and compare them by those to choose by; as ``solve_certified``."""
    checks.expect("parts", parts, Parts)
    if uses_regret(options.get("regret")):
        raise ValueError("regret must be left out where bounds are compared: it goes with solve and solve_certified")
    if options.get("privacy") is not None:
        raise ValueError(
            "privacy must be left out where models are chosen by rows: that is not counted. Train with "
            "solve(…, privacy=…), and certify(…, privacy=…) by other rows"
        )
    said = certifiability(problem, parts.certify, method.tolerance, confidence)
    judge = make_evaluator(problem, parts.learn)

    def run(way: HowTrained, of: Problem, own_rounds: int | None, own_seconds: float | None, **more: Any) -> Result:
        told = options | more
        if checkpoints is not None:
            first_way = way == HowTrained()
            beside = checkpoints if first_way else checkpoints.with_name(f"{checkpoints.name}-{way.name}")
            told["checkpoints"] = Checkpoints(beside)
        return solve(of, parts.learn, rule_of(way, method), rounds=own_rounds, seconds=own_seconds, **told)

    first = run(HowTrained(), problem, rounds, seconds)
    if first.status.code in ENDED:
        return Prepared(first, (), None, 0, said, judge)
    chooser = _chooser(problem, parts, method.tolerance, confidence, move)
    kinds = RowValues(problem, parts.choose, first.params).kinds
    found = list(chooser.of(first, HowTrained(), kinds))
    shorter = max(min(FEWEST_ROUNDS, len(first.history)), len(first.history) // SHORTER)
    left = None if seconds is None else seconds - first.seconds
    for way in ways(first, problem, found, int(parts.learn.sizes.sum())):
        if left is not None and left <= 0:
            break
        other = run(way, problem_of(way, problem, first), shorter, left, lower_bound=False)
        left = None if left is None else left - other.seconds
        if other.status.code is StatusCode.STOPPED:
            return Prepared(first, (), None, len(found), said, judge)
        if other.status.code is not StatusCode.DIVERGED:
            found += chooser.of(other, way, kinds)
    path, best = _in_order(found, _trivial(chooser, first, kinds))
    keeping = [one for one in path if judge(one.params).constraint.max() <= method.tolerance] or path
    return Prepared(first, tuple(keeping), best, len(found), said, judge, kinds)


def _chooser(problem: Problem, parts: Parts, tolerance: float, confidence: float, move: Move | None) -> Chooser:
    error = 1 - confidence
    levels = ErrorLevels(error / len(parts.certify), error, tolerance)
    shapes = parts.certify.batch_shapes(1, float_dtype(problem.start))
    ranges = resolve_ranges(problem, None, None, problem.trace(shapes).constraints)
    kept = {str(name): int(size) for name, size in zip(parts.certify.names, parts.certify.sizes, strict=True)}
    return Chooser(
        problem, sample_of(parts.learn, SAMPLE), sample_of(parts.choose, SAMPLE), kept, levels, tuple(ranges), move
    )


def _trivial(chooser: Chooser, first: Result, kinds: tuple[Kind, ...]) -> float:
    """The smallest objective of a constant prediction that keeps the bound on the rows to choose by; ∞ without one."""
    if chooser.move is None:
        return np.inf
    tolerance = chooser.levels.tolerance
    constants = chooser.constants(first, kinds)
    return min((told.objective for told in constants if told.constraint <= tolerance), default=np.inf)


def _in_order(found: list[Candidate], trivial: float) -> tuple[list[Candidate], Candidate]:
    """What to test, from the safest on: models better than a constant, about the best of them; and that one."""
    keeping = [candidate for candidate in found if not candidate.above] or found
    useful = [candidate for candidate in keeping if candidate.forecast.objective < trivial] or keeping
    best = min(useful, key=lambda candidate: candidate.rank)
    alike = [
        one
        for one in useful
        if (one.way, one.scale) == (best.way, best.scale)
        and one.forecast.pass_probability >= best.forecast.pass_probability
        and one.forecast.constraint <= best.forecast.constraint
        and one.forecast.objective > best.forecast.objective
    ]
    alike.sort(key=lambda one: one.forecast.objective)
    path = []
    if alike:
        low, high = best.forecast.objective, alike[-1].forecast.objective
        path = [_nearest(alike, low + part * (high - low)) for part in SAFER]
    path.append(best)
    for least in RISKIER:
        last = path[-1].forecast
        enough = least * best.forecast.pass_probability
        bolder = [
            one for one in useful if one.forecast.pass_probability >= enough and one.forecast.objective < last.objective
        ]
        if bolder:
            path.append(min(bolder, key=lambda one: one.forecast.objective))
    return list(dict.fromkeys(path)), best


def _nearest(found: list[Candidate], objective: float) -> Candidate:
    return min(found, key=lambda one: abs(one.forecast.objective - objective))
