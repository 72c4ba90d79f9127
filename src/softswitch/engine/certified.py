"""Certified training: train on one split of the rows, select a model on a second, and certify it on a third."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from softswitch.certification.certifiability import Certifiability, certifiability
from softswitch.certification.certify import certify, row_ranges
from softswitch.certification.intervals import ErrorLevels
from softswitch.certification.paths import fixed_sequence_test
from softswitch.certification.row_values import Kind, RowValues
from softswitch.data.splits import DataSplit, subsample
from softswitch.engine.candidates import Candidate, CandidateGenerator, Move, Variant, best_of, further_variants
from softswitch.engine.request import RunOptions, resolve_method
from softswitch.engine.solve import solve_problem
from softswitch.methods.automatic import Automatic
from softswitch.methods.base import Method
from softswitch.methods.sqp import SQP
from softswitch.oracles.evaluation import Evaluator, make_evaluator
from softswitch.oracles.options import Compute, Logging, Output, Sampling
from softswitch.problem.problem import Problem
from softswitch.results.certificate import Certificate, describe_certification, is_certified
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.diagnostics import diagnose_model
from softswitch.results.result import Result
from softswitch.results.status import DiagnosticCode, StatusCode
from softswitch.support import checks

SHORTER = 4  # later runs have the rounds of the first run divided by this number
FEWEST_ROUNDS = 200  # smallest number of rounds of later runs, unless the first run has fewer
SAFER = (2 / 3, 1 / 3)  # F of candidates tested before the best, as a position between the best (0) and the safest (1)
RISKIER = (0.75, 0.5, 0.25)  # smallest pass probabilities of those tested after it, relative to the best candidate
MAX_SAMPLE = 1000  # largest number of rows of each client and split by which candidates are compared
INCOMPLETE = (StatusCode.DIVERGED, StatusCode.STOPPED)  # of a first run without candidates
RECOMPUTED = (DiagnosticCode.STILL_IMPROVING, DiagnosticCode.TRIMMED_VIOLATION, DiagnosticCode.OUTLIER_VALUES)


@dataclass(frozen=True, eq=False)
class Certified:
    """Result of ``solve_certified``.

    Attributes:
        result: The run that the selected model comes from, with the model as its answer.
        certificate: Certificate of the model; None if training was stopped or diverged.
        tested: The models that were tested, in order, up to the selected one; empty without a certificate.
        models_compared: Number of models that were compared on the validation split.
        certifiability: The bounds that the calibration split can certify by its size.
    """

    result: Result
    certificate: Certificate | None
    tested: tuple[Candidate, ...]
    models_compared: int
    certifiability: Certifiability

    @property
    def is_certified(self) -> bool:
        """Whether the certificate shows that every client meets the tolerance; False without a certificate."""
        return is_certified(self.certificate)

    @property
    def model(self) -> Candidate | None:
        """The selected model and its origin; None if training was stopped or diverged."""
        return self.tested[-1] if self.tested else None

    def __str__(self) -> str:
        if self.certificate is None:
            return f"{describe_certification(None)} {self.result.status}."
        selected = f"Selected from {self.models_compared} models: {self.model}." if self.tested else ""
        return "\n".join([describe_certification(self.certificate), selected, f"{self.result.status}."])


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
    of parameters, margins below the tolerance. Those that are likely to pass are tested on the calibration split one
    after another, from the safest on, until one fails: the last that passed is the answer. If none passes, the model
    is not certified.

    The probability that a certified model violates the tolerance at any client is at most 1 − confidence (a
    fixed-sequence test: the first false hypothesis would have to pass).

    Args:
        problem: Objective, constraint and start; with ``constraint_range`` the certificate is exact, else approximate.
        split: Every client's rows in three splits.
        method: Method with its settings; its tolerance is certified. Default: ``Automatic(tolerance)``.
        tolerance: Bound ε on the constraint to certify, if ``method`` is not given.
        confidence: Confidence of the certificate, in (0, 1). Default: 0.95.
        move: Function ``(params, scale, offset) -> params`` that scales and shifts the scores of a model, so that
            decision thresholds are selected too. Default: none.
        rounds: Maximum number of rounds of the first run, as for ``solve``; later runs have a quarter of them.
        seconds: Time limit of all runs together, in seconds. Default: no limit.
        seed: Seed of all random choices. Default: 0.
        sampling: Client sampling, local steps and batch sizes, as for ``solve``.
        output: The iterate that is the answer of a run, as for ``solve``.
        compute: Where and how clients compute, as for ``solve``.
        logging: Values to record, callbacks and progress bar, as for ``solve``.
        checkpoints: Folder in which the first run is saved and from which it resumes; later runs use folders next to
            it. Default: none.
    """
    active, seed = resolve_method(method, tolerance), checks.check_seed("seed", seed)
    groups: dict[str, Any] = {"sampling": sampling, "output": output, "compute": compute, "logging": logging}
    options = RunOptions(rounds=rounds, seconds=seconds, seed=seed, **groups)
    prepared = prepare(problem, split, active, options, confidence, move, checkpoints)
    compared, limits = prepared.models_compared, prepared.certifiability
    if not prepared.path:
        return Certified(prepared.first, None, (), compared, limits)
    certificates: list[Certificate] = []

    def passes(candidate: Candidate) -> bool:
        model, bound = replace(prepared.first, params=candidate.params), prepared.tolerance
        certificate = certify(model, problem, split.calibration, confidence, tolerance=bound, kinds=prepared.kinds)
        certificates.append(certificate)
        return is_certified(certificate)

    last = max(sum(fixed_sequence_test(prepared.path, passes)), 1)
    result, certificate = prepared.result_of(prepared.path[last - 1]), certificates[last - 1].after_tests(last)
    return Certified(result, certificate, prepared.path[:last], compared, limits)


@dataclass(frozen=True, eq=False)
class Prepared:
    """Models that are trained and compared, before any calibration row is read."""

    first: Result  # the first run
    path: tuple[Candidate, ...]  # candidates to test, the safest first; empty if training was stopped or diverged
    best: Candidate | None  # the best candidate; None if training was stopped or diverged
    models_compared: int  # number of candidates
    certifiability: Certifiability
    evaluate: Evaluator  # evaluates parameters on the training split
    kinds: tuple[Kind, ...] = ()  # of f and then each g
    tolerance: float = 0.0  # bound to certify

    def result_of(self, model: Candidate) -> Result:
        """Return the run that a model comes from, with the model as its answer and the tolerance to certify.

        The diagnostics are those of the first run, because a later one may have a smaller tolerance. Byzantine clients
        are diagnosed for the model, and progress for its run.
        """
        method = replace(model.result.method, tolerance=model.tolerance)
        evaluation = self.evaluate(model.params)
        diagnostics = diagnose_model(self.first.names, method, evaluation)
        diagnostics += [one for one in self.first.diagnostics if one.code not in RECOMPUTED]
        diagnostics += [one for one in model.result.diagnostics if one.code == DiagnosticCode.STILL_IMPROVING]
        run = replace(model.result, method=method, diagnostics=tuple(diagnostics))
        selected = f"model selected for new data ({model})"
        return replace(run.with_model(model.params, selected, evaluation), baselines=self.first.baselines)


def prepare(
    problem: Problem,
    split: DataSplit,
    method: Method,
    options: RunOptions,
    confidence: float = 0.95,
    move: Move | None = None,
    checkpoints: Path | None = None,
) -> Prepared:
    """Train models on the training split and compare them on the validation split; arguments as ``solve_certified``."""
    checks.check_instance("split", split, DataSplit)
    tolerance, seconds = method.tolerance, options.seconds
    limits = certifiability(problem, split.calibration, tolerance, confidence)
    evaluate = make_evaluator(problem, split.train)

    def train(variant: Variant, problem: Problem, options: RunOptions) -> Result:
        if checkpoints is not None:
            other = checkpoints.with_name(f"{checkpoints.name}-{variant.name}")
            options = replace(options, checkpoints=Checkpoints(checkpoints if variant == Variant() else other))
        return solve_problem(problem, split.train, variant.method(method), options)

    first = train(Variant(), problem, options)
    if first.status.code in INCOMPLETE:
        return Prepared(first, (), None, 0, limits, evaluate, tolerance=tolerance)
    calibration = split.calibration
    generator = CandidateGenerator(
        problem=problem,
        training=subsample(split.train, MAX_SAMPLE),
        validation=subsample(split.validation, MAX_SAMPLE),
        calibration_sizes={str(name): int(n) for name, n in zip(calibration.names, calibration.sizes, strict=True)},
        levels=ErrorLevels.of(confidence, len(calibration), tolerance),
        ranges=tuple(row_ranges(problem, calibration)),
        kinds=RowValues(problem, split.validation, first.params).kinds,
        move=move,
    )
    candidates = list(generator.candidates(first, Variant()))
    shorter = None  # second-order runs are short
    if not isinstance(first.method, SQP):
        shorter = max(min(FEWEST_ROUNDS, len(first.history)), len(first.history) // SHORTER)
    options = replace(options, rounds=shorter, output=replace(options.output, lower_bound=False))
    left = None if seconds is None else seconds - first.seconds
    for variant in further_variants(first, problem, candidates, int(split.train.sizes.sum())):
        if left is not None and left <= 0:
            break
        further = train(variant, variant.problem(problem, first), replace(options, seconds=left))
        left = None if left is None else left - further.seconds
        if further.status.code is StatusCode.STOPPED:
            return Prepared(first, (), None, len(candidates), limits, evaluate, tolerance=tolerance)
        if further.status.code is not StatusCode.DIVERGED:
            candidates += generator.candidates(further, variant)
    path, best = _test_order(candidates, generator.constant_objective(first.params))
    feasible = [one for one in path if evaluate(one.params).constraint.max() <= tolerance] or path
    return Prepared(first, tuple(feasible), best, len(candidates), limits, evaluate, generator.kinds, tolerance)


def _test_order(candidates: list[Candidate], constant: float) -> tuple[list[Candidate], Candidate]:
    """Return the candidates to test, the safest first, and the best one; ``constant`` is F of a constant prediction."""
    feasible = [one for one in candidates if one.is_feasible] or candidates
    useful = [one for one in feasible if one.forecast.objective < constant] or feasible
    best = best_of(useful)
    low, probability = best.forecast.objective, best.forecast.pass_probability
    alike = [one for one in useful if (one.variant, one.scale) == (best.variant, best.scale) and _objective(one) > low]
    alike = [one for one in alike if one.forecast.constraint <= best.forecast.constraint]
    safer = sorted((one for one in alike if one.forecast.pass_probability >= probability), key=_objective)
    targets = [low + position * (_objective(safer[-1]) - low) for position in SAFER] if safer else []
    path = [_nearest(safer, target) for target in targets]
    path.append(best)
    for share in RISKIER:
        likely = [one for one in useful if one.forecast.pass_probability >= share * probability]
        riskier = [one for one in likely if _objective(one) < _objective(path[-1])]
        if riskier:
            path.append(min(riskier, key=_objective))
    return list(dict.fromkeys(path)), best


def _nearest(candidates: list[Candidate], objective: float) -> Candidate:
    return min(candidates, key=lambda one: abs(_objective(one) - objective))


def _objective(candidate: Candidate) -> float:
    return candidate.forecast.objective
