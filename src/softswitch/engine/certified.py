"""Certified training: train on one split of the rows, order models by a second, and certify one on a third."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax

from softswitch.certification.certifiability import Certifiability, ClientMargins, certifiability, is_rate
from softswitch.certification.certify import certify_path
from softswitch.certification.row_values import RowValues, row_ranges
from softswitch.data.splits import DataSplit
from softswitch.engine.baselines import best_constant
from softswitch.engine.request import RunOptions, resolve_method
from softswitch.engine.solve import solve_problem
from softswitch.methods.automatic import Automatic, to_first_order
from softswitch.methods.base import Method
from softswitch.methods.sqp import SQP
from softswitch.oracles.base import Evaluation
from softswitch.oracles.client_shifts import with_margins
from softswitch.oracles.evaluation import make_evaluator
from softswitch.oracles.options import Compute, Logging, Output, Sampling
from softswitch.problem.parameters import Move, Params
from softswitch.problem.problem import Problem
from softswitch.results.certificate import Certificate, Outcome, describe_certification, judge_certificate
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.diagnostics import diagnose_model
from softswitch.results.result import Result
from softswitch.results.status import DiagnosticCode, StatusCode
from softswitch.support import checks
from softswitch.support.arrays import fingerprint

MARGINS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # multiples c of the clients' margins in training
FINE, MAX_STEPS = 0.005, 10  # relative change of F in a step between averages of two models, and number of steps
LIKELY = math.log(0.9)  # log probability of passing at all clients from which c is not increased
SHORTER = 4  # first-order runs with margins have the rounds of the first run divided by this number
FEWEST_ROUNDS = 200  # smallest number of rounds of these runs, unless the first run has fewer
OFFSETS = (0.0, *(sign * 0.05 * 2.0**k for k in range(9) for sign in (-1, 1)))  # first grid of offsets of scores
MAX_OFFSETS = 50  # number of offsets after refinement
FLAT = 0.1  # weight of the distance between two offsets without a change of the constraint, in refinement
INCOMPLETE = (StatusCode.DIVERGED, StatusCode.STOPPED)  # a first run with this status is not certified
RECOMPUTED = (DiagnosticCode.STILL_IMPROVING, DiagnosticCode.TRIMMED_VIOLATION, DiagnosticCode.OUTLIER_VALUES)


@dataclass(frozen=True, eq=False)
class Certified:
    """Result of ``solve_certified``.

    Attributes:
        result: The run for the bound itself, with the selected model as its answer.
        certificate: Certificate of the selected model; None if training was stopped or diverged.
        certifiability: The bounds that the calibration split can certify by its size; None without one.
        models: Number of models whose order of tests was fixed. Default: 0.
        passed: Number of models that passed. Default: 0, not certified.
        description: What distinguishes the selected model, such as "margin 1.5" or "offset −0.31".
        first: The model that was trained for the bound itself; the parameters of ``result`` by default.
    """

    result: Result
    certificate: Certificate | None
    certifiability: Certifiability | None
    models: int = 0
    passed: int = 0
    description: str = ""
    first: Params | None = None

    @property
    def outcome(self) -> Outcome:
        """The outcome of certification."""
        return judge_certificate(self.certificate)

    @property
    def is_certified(self) -> bool:
        """Whether every client with enough rows is certified, and there is at least one. Others do not count."""
        return self.outcome.is_certified

    def __str__(self) -> str:
        if self.certificate is None:
            return f"{describe_certification(None)} {self.result.status}."
        selected = [f"Selected from {self.models} models: {self.description}."] if self.models > 1 else []
        return "\n".join([describe_certification(self.certificate), *selected, f"{self.result.status}."])


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
    checkpoints: Checkpoints | None = None,
) -> Certified:
    """Train a model, and certify that every client's constraint holds on new data.

    A first model is trained on the training split for the bound ε itself. If no client has enough calibration rows to
    certify any model, it is the answer. Otherwise, further models follow from it:

    - For a rate with ``move``, the model with its scores shifted by offsets, from the safest offset on the validation
      split towards offsets with a smaller F.
    - For other constraints, models trained with the tolerance ε − c·m_i at client i, for increasing c until all clients
      are likely to pass together, or the tolerances are infeasible. The margin m_i depends on the client's numbers of
      rows (``ClientMargins``). Between two of these models there are averages of their parameters. The order of
      tests is from the largest c to 0, without models with a margin that have a larger F on the validation split than
      the best constant prediction.

    Those that are feasible on the training split are tested on the calibration split in this order, until a client
    fails (``certify_path``). The last model that passed is the answer. The probability that it violates ε at any client
    with enough rows is at most 1 − confidence. If none passes, the answer is the safest of them that has a smaller F on
    the validation split than the best constant prediction or, if there is none, the last.

    Args:
        problem: Objective, constraint and start; with ``constraint_range`` the certificate is exact, else approximate.
        split: Every client's rows in three splits.
        method: Method with its settings; its tolerance is certified. Default: ``Automatic(tolerance)``.
        tolerance: Bound ε on the constraint to certify, if ``method`` is not given.
        confidence: Confidence of the certificate, in (0, 1). Default: 0.95.
        move: Function ``(params, scale, offset) -> params`` that scales and shifts the scores of a model. If the
            constraint is a rate, offsets are tested in place of margins. Constant predictions, which have scale 0, are
            the standard that an answer without a certificate should beat. Default: none.
        rounds: Maximum number of rounds of the first run, as for ``solve``; first-order runs with margins have a
            quarter of them.
        seconds: Time limit of all runs together, in seconds. Default: no limit.
        seed: Seed of all random choices. Default: 0.
        sampling: Client sampling, local steps and batch sizes, as for ``solve``.
        output: The iterate that is the answer of a run, as for ``solve``.
        compute: Where and how clients compute, as for ``solve``.
        logging: Values to record, callbacks and progress bar, as for ``solve``.
        checkpoints: Folder in which the first run is saved and from which it resumes; runs with margins use folders
            next to it, as often. Default: none.
    """
    active, seed = resolve_method(method, tolerance), checks.check_seed("seed", seed)
    checks.check_instance("split", split, DataSplit)
    groups: dict[str, Any] = {"sampling": sampling, "output": output, "compute": compute, "logging": logging}
    options = RunOptions(rounds=rounds, seconds=seconds, seed=seed, checkpoints=checkpoints, **groups)
    limits = certifiability(problem, split.calibration, active.tolerance, confidence)
    first = solve_problem(problem, split.train, active, options)
    if first.status.code in INCOMPLETE:
        return Certified(first, None, limits, first=first.params)
    path = _Path(problem, split, active, options, first, limits, move)
    built = path.build()
    if built is None:
        return Certified(first, None, limits, first=first.params)
    models = [model for model in built if model.training.constraint.max() <= active.tolerance] or built
    constant = path.constant_objective
    preferred = next((i for i, model in enumerate(models) if model.objective < constant), len(models) - 1)
    params, calibration = [model.params for model in models], split.calibration
    selection: dict[str, Any] = {"tolerance": active.tolerance, "preferred": preferred, "kinds": path.kinds}
    test = certify_path(params, problem, calibration, confidence, names=split.train.names, **selection)
    model = models[test.answer]
    result = path.result_of(model)
    return Certified(result, test.certificate, limits, len(models), test.passed, model.description, first.params)


class _Model(NamedTuple):
    """A model that may be tested."""

    params: Params
    description: str
    training: Evaluation
    validation: Evaluation
    run: Result  # the run that trained it

    @property
    def objective(self) -> float:
        """F on the validation split."""
        return float(self.validation.objective.max())


@dataclass(eq=False)
class _Path:
    """The models to test and their order, from the training and validation rows and the first run only."""

    problem: Problem
    split: DataSplit
    method: Method
    options: RunOptions
    first: Result
    limits: Certifiability
    move: Move | None

    def __post_init__(self) -> None:
        data = self.split.train, self.split.validation
        self._train, self._validate = (make_evaluator(self.problem, part) for part in data)
        self.kinds = RowValues(self.problem, self.split.validation, self.first.params).kinds
        self.seconds = self.first.seconds

    def build(self) -> list[_Model] | None:
        """Return the models in the order of their tests; None if training was stopped."""
        first = self._model(self.first.params, "margin 0", self.first)
        if not any(self.limits.is_certifiable) or self.method.switches_on == "pooled":
            return [first]
        margins = ClientMargins.estimate(self.problem, self.split, first.params, self.limits, self.kinds)
        ranges = row_ranges(self.problem, self.split.calibration)
        if self.move is not None and all(map(is_rate, ranges[1:], self.kinds[1:])):
            return self._shift(first, self.move, margins)
        return self._train_with_margins(first, margins)

    @cached_property
    def constant_objective(self) -> float:
        """The smallest F on the validation rows of a constant prediction within the bound; ∞ if none is."""
        if self.move is None:
            return math.inf
        constants = partial(self.move, self.first.params, 0.0)
        values = best_constant(self._validate, constants, self.method)[1]
        return float(values.objective.max()) if values.constraint.max() <= self.method.tolerance else math.inf

    def result_of(self, model: _Model) -> Result:
        """Return the first run with another model as its answer, and with the diagnostics that concern the model."""
        first = self.first
        diagnostics = diagnose_model(first.names, first.method, model.training)
        diagnostics += [one for one in first.diagnostics if one.code not in RECOMPUTED]
        diagnostics += [one for one in model.run.diagnostics if one.code == DiagnosticCode.STILL_IMPROVING]
        run = replace(first, diagnostics=tuple(diagnostics), seconds=self.seconds)
        return run.with_model(model.params, f"model selected for new data ({model.description})", model.training)

    def _model(self, params: Params, description: str, run: Result) -> _Model:
        return _Model(params, description, self._train(params), self._validate(params), run)

    def _train_with_margins(self, first: _Model, margins: ClientMargins) -> list[_Model] | None:
        """Train models with increasing margins, and return them from the largest to 0; None if a run was stopped.

        Models with a margin that are no better than a constant prediction are left out.
        """
        path, below, options, (train, validation, _) = [first], 0.0, self.options, self.split
        method, rounds = self.method, None  # second-order runs are short
        if not isinstance(self.first.method, SQP):
            done = len(self.first.history)
            method, rounds = to_first_order(method), max(min(FEWEST_ROUNDS, done), done // SHORTER)
        logging = replace(options.logging, held_out=None, record_clients=False)
        options = replace(options, rounds=rounds, output=replace(options.output, lower_bound=False), logging=logging)
        for factor in MARGINS:
            left = None if options.seconds is None else options.seconds - self.seconds
            values = path[-1].training.constraint, train.names, path[-1].validation.constraint, validation.names
            if margins.log_pass_probability(*values) >= LIKELY or (left is not None and left <= 0):
                break
            problem = replace(self.problem, start=project(self.problem, path[-1].params))
            task = with_margins(problem, train, margins.of(factor, train.names))
            saved = options.checkpoints
            if saved is not None:  # named by its start too: it differs if the first run was extended
                name = f"{Path(saved.folder).name}-margin-{factor:g}-{fingerprint(problem.start)[:8]}"
                saved = replace(saved, folder=Path(saved.folder).with_name(name))
            run = solve_problem(*task, method, replace(options, seconds=left, checkpoints=saved))
            self.seconds += run.seconds
            if run.status.code is StatusCode.STOPPED:
                return None
            if not run.status.ok:
                break
            last, new = path[-1], self._model(run.params, f"margin {factor:g}", run)
            before, after = (float(one.training.objective.max()) for one in (last, new))
            steps = math.ceil(np.clip(abs(after - before) / max(FINE * abs(before), 1e-300), 1, MAX_STEPS))
            for share in np.arange(1, steps) / steps:
                params = project(self.problem, optax.incremental_update(new.params, last.params, share))
                average = self._model(params, f"margin {below + share * (factor - below):.3g}", run)
                levels = [margins.worst(one.training.constraint, train.names) for one in (average, last, new)]
                path += [average] if levels[0] <= max(levels[1:]) else []
            path, below = [*path, new], factor
        return [model for model in path[:0:-1] if model.objective < self.constant_objective] + path[:1]

    def _shift(self, first: _Model, move: Move, margins: ClientMargins) -> list[_Model]:
        """Return the model with its scores shifted, from the safest offset towards smaller F, without dominated ones.

        Offsets are added between those that are far apart or differ in the constraint on the training rows.
        """
        bound, models = self.method.tolerance, dict[float, _Model]()

        def add(offset: float) -> None:
            text = f"offset {offset:+.3g}".replace("-", "−")
            models[offset] = self._model(move(first.params, 1.0, offset), text, first.run)

        def weight(pair: tuple[float, float]) -> float:
            excess = [float(models[offset].training.constraint.max()) - bound for offset in pair]
            if min(excess) > spread:
                return 0.0  # neither is near the bound
            return (FLAT + abs(min(excess[1], spread) - min(excess[0], spread)) / spread) * (pair[1] - pair[0])

        for offset in OFFSETS:
            add(offset)
        spread = max(float(margins.unit.max()), np.finfo(float).tiny)
        while len(models) < MAX_OFFSETS:
            below, above = max(itertools.pairwise(sorted(models)), key=weight)
            add((below + above) / 2)
        levels = {
            offset: margins.worst(model.validation.constraint, self.split.validation.names)
            for offset, model in models.items()
        }
        ordered = sorted(models, key=lambda offset: (levels[offset], -models[offset].objective))
        target = min(models, key=lambda offset: models[offset].objective)
        low, high = sorted((ordered[0], target))
        path: list[_Model] = []
        for offset in ordered:
            if low <= offset <= high and (not path or models[offset].objective < path[-1].objective):
                path.append(models[offset])
        return path


def project(problem: Problem, params: Params) -> Params:
    """Return the parameters projected onto the problem's domain."""
    return params if problem.domain is None else problem.domain.project(params)
