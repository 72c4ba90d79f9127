"""solve_certified(): learn on one part of the rows, choose on another, certify on a third that is looked at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from softswitch.certification.certifiability import Certifiability, certifiability
from softswitch.certification.certify import certify, fixed_sequence_test, resolve_ranges
from softswitch.certification.intervals import ErrorLevels
from softswitch.certification.row_values import Kind, RowValues
from softswitch.data.splits import DataSplit, subsample
from softswitch.engine.candidates import Candidate, Chooser, HowTrained, Move, problem_of, rule_of, ways
from softswitch.engine.defaults import resolve_sampling
from softswitch.engine.request import RunSettings
from softswitch.engine.solve import solve_rows
from softswitch.methods.automatic import Automatic, resolve_method
from softswitch.methods.base import Method
from softswitch.oracles.evaluation import Evaluator, make_evaluator
from softswitch.oracles.options import Compute, Logging, Output, Sampling
from softswitch.problem.parameters import float_dtype
from softswitch.problem.problem import Problem
from softswitch.results.byzantine import diagnose_model
from softswitch.results.certificate import Certificate, describe_certification, is_certified
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.result import Result
from softswitch.results.status import DiagnosticCode, StatusCode
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
        """Whether the model is certified."""
        return is_certified(self.certificate)

    @property
    def model(self) -> Candidate | None:
        """How the model came about."""
        return self.tested[-1] if self.tested else None

    def __str__(self) -> str:
        if self.certificate is None:
            return f"{describe_certification(None)} {self.result.status}."
        chosen = f"Of {self.looked_at} models the one chosen is {self.model}." if self.tested else ""
        return "\n".join([describe_certification(self.certificate), chosen, f"{self.result.status}."])


def solve_certified(
    problem: Problem,
    split: DataSplit,
    method: Method | Automatic | None = None,
    *,
    tolerance: float | None = None,
    confidence: float = 0.95,
    move: Move | None = None,
    rounds: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    sampling: Sampling | None = None,
    output: Output = Output(),  # noqa: B008 (frozen)
    compute: Compute = Compute(),  # noqa: B008
    logging: Logging = Logging(),  # noqa: B008
    checkpoints: Path | None = None,
) -> Certified:
    """Train a model, and certify that every client's constraint holds on new data.

    Models are trained on the training split and compared on the validation split: iterates, decision thresholds, sizes
    of parameters, margins below the tolerance. Those that look certifiable are tested on the calibration split one
    after another, from the safest on, until one fails: the last that passed is the answer. If none passes, the model
    is not certified.

    The probability that a certified model violates the tolerance at any client is at most 1 − confidence (a
    fixed-sequence test: the first false hypothesis would have to pass).

    Args:
        problem: Objective, constraint and start; with ``constraint_range`` the certificate is exact, else approximate.
        split: Every client's rows in three splits.
        method: Method with its settings; its tolerance is what is certified. Or give a ``tolerance``.
        tolerance: ε of automatic runs.
        confidence: Confidence of the certificate.
        move: ``(params, scale, offset) -> params`` that scales and shifts the scores of a model: decision thresholds
            are then selected too.
        rounds: Maximum number of rounds of the first run, as for ``solve``; later runs have a quarter of them.
        seconds: Time limit of all runs together.
        seed: Seed of all random choices.
        sampling: As for ``solve``.
        output: As for ``solve``.
        compute: As for ``solve``.
        logging: As for ``solve``.
        checkpoints: Folder in which the runs are saved and from which they resume; later runs use folders next to it.
    """
    ready = prepare(
        problem,
        split,
        resolve_method(method, tolerance),
        confidence=confidence,
        move=move,
        rounds=rounds,
        seconds=seconds,
        seed=seed,
        sampling=sampling,
        output=output,
        compute=compute,
        logging=logging,
        checkpoints=checkpoints,
    )
    if not ready.path:
        return Certified(ready.first, None, (), ready.looked_at, ready.certifiability)
    seen: list[Certificate] = []

    def passes(candidate: Candidate) -> bool:
        model = replace(ready.first, params=candidate.params)
        told = certify(model, problem, split.calibration, confidence, tolerance=ready.tolerance, kinds=ready.kinds)
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
        tolerance: what is certified.
    """

    first: Result
    path: tuple[Candidate, ...]
    best: Candidate | None
    looked_at: int
    certifiability: Certifiability
    learnt_from: Evaluator
    kinds: tuple[Kind, ...] = ()
    tolerance: float = 0.0

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
    split: DataSplit,
    method: Method,
    *,
    confidence: float = 0.95,
    move: Move | None = None,
    rounds: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    sampling: Sampling | None = None,
    output: Output = Output(),  # noqa: B008 (frozen)
    compute: Compute = Compute(),  # noqa: B008
    logging: Logging = Logging(),  # noqa: B008
    checkpoints: Path | None = None,
) -> Prepared:
    """Train models on the training split, and compare them on the validation split; as ``solve_certified``."""
    checks.check_instance("split", split, DataSplit)
    said = certifiability(problem, split.calibration, method.tolerance, confidence)
    judge = make_evaluator(problem, split.train)
    sampling, seed = resolve_sampling(sampling, method), checks.check_seed("seed", seed)

    def run(
        way: HowTrained, of: Problem, own_rounds: int | None, own_seconds: float | None, output: Output = output
    ) -> Result:
        folder = None
        if checkpoints is not None:
            first_way = way == HowTrained()
            folder = Checkpoints(checkpoints if first_way else checkpoints.with_name(f"{checkpoints.name}-{way.name}"))
        settings = RunSettings.from_options(own_rounds, own_seconds, sampling, output, logging)
        options: dict[str, Any] = {"output": output, "compute": compute, "logging": logging, "checkpoints": folder}
        return solve_rows(of, split.train, rule_of(way, method), settings, seed, sampling, **options)

    first = run(HowTrained(), problem, rounds, seconds)
    if first.status.code in ENDED:
        return Prepared(first, (), None, 0, said, judge, tolerance=method.tolerance)
    chooser = _chooser(problem, split, method.tolerance, confidence, move)
    kinds = RowValues(problem, split.validation, first.params).kinds
    found = list(chooser.of(first, HowTrained(), kinds))
    shorter = max(min(FEWEST_ROUNDS, len(first.history)), len(first.history) // SHORTER)
    left = None if seconds is None else seconds - first.seconds
    for way in ways(first, problem, found, int(split.train.sizes.sum())):
        if left is not None and left <= 0:
            break
        other = run(way, problem_of(way, problem, first), shorter, left, replace(output, lower_bound=False))
        left = None if left is None else left - other.seconds
        if other.status.code is StatusCode.STOPPED:
            return Prepared(first, (), None, len(found), said, judge, tolerance=method.tolerance)
        if other.status.code is not StatusCode.DIVERGED:
            found += chooser.of(other, way, kinds)
    path, best = _in_order(found, _trivial(chooser, first, kinds))
    keeping = [one for one in path if judge(one.params).constraint.max() <= method.tolerance] or path
    return Prepared(first, tuple(keeping), best, len(found), said, judge, kinds, method.tolerance)


def _chooser(problem: Problem, split: DataSplit, tolerance: float, confidence: float, move: Move | None) -> Chooser:
    error = 1 - confidence
    levels = ErrorLevels(error / len(split.calibration), error, tolerance)
    shapes = split.calibration.batch_shapes(1, float_dtype(problem.start))
    ranges = resolve_ranges(problem, None, None, problem.trace(shapes).constraints)
    kept = {str(name): int(size) for name, size in zip(split.calibration.names, split.calibration.sizes, strict=True)}
    return Chooser(
        problem, subsample(split.train, SAMPLE), subsample(split.validation, SAMPLE), kept, levels, tuple(ranges), move
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
