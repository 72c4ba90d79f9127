"""The trade-off curve: train models for several bounds, and certify them in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from softswitch.certification.certify import certify, row_ranges
from softswitch.certification.paths import fixed_sequence_test
from softswitch.data.client_data import ClientData
from softswitch.data.splits import DataSplit
from softswitch.engine.baselines import best_constant
from softswitch.engine.candidates import Candidate, Move, with_tolerance
from softswitch.engine.certified import Prepared, prepare
from softswitch.engine.request import RunOptions, resolve_method
from softswitch.methods.automatic import Automatic
from softswitch.methods.base import Method
from softswitch.oracles.base import Evaluation
from softswitch.oracles.evaluation import make_evaluator
from softswitch.oracles.options import Compute, Logging, Output, Sampling
from softswitch.problem.parameters import Params
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import endpoints
from softswitch.results.certificate import Certificate, Verdict, is_certified
from softswitch.results.frontier import BoundOutcome, Frontier, FrontierPoint
from softswitch.results.status import StatusCode
from softswitch.support import checks

Measure = Callable[[Params, ClientData], float]  # from parameters and clients' data to a metric, such as the accuracy


def frontier(
    problem: Problem,
    split: DataSplit,
    bounds: Sequence[float],
    method: Method | Automatic | None = None,
    *,
    confidence: float = 0.95,
    move: Move | None = None,
    measures: Mapping[str, Measure] | None = None,
    watch: Callable[[FrontierPoint], None] | None = None,
    rounds: int | None = None,
    seed: int = 0,
    sampling: Sampling | None = None,
    output: Output = Output(),  # noqa: B008 (frozen)
    compute: Compute = Compute(),  # noqa: B008
    logging: Logging = Logging(),  # noqa: B008
) -> Frontier:
    """Train models for each of several bounds, and certify them in a fixed order.

    The models of a bound are trained on the training split, starting at those of the previous bound, and compared on
    the validation split. Several models per bound become claims to test: "this model meets this bound at every client".
    Then the claims are tested on the calibration split, the most likely first, each at the full confidence, until one
    fails. The model of a bound is the one with the smallest F on the validation split among those that passed for it or
    for a tighter bound.

    The probability that any certified model exceeds its bound at any client is at most 1 − confidence, for any number
    of bounds and models (a fixed-sequence test). A bound is not tested if no model meets it on the training split, or
    if the calibration split is too small to certify it. Bounds whose training diverged, or had not started when
    training was stopped (Ctrl-C), have no point.

    Args:
        problem: Objective, constraint and start; with ``constraint_range`` the certificates are exact, else
            approximate.
        split: Every client's rows in three splits: ``DataSplit.from_arrays``.
        bounds: Bounds on the constraint, distinct numbers >= 0 in any order.
        method: The method; its tolerance is each bound in turn. Default: ``Automatic``.
        confidence: Joint confidence of all certificates, in (0, 1). Default: 0.95.
        move: As for ``solve_certified``. Models are then also compared with constant predictions. Default: none.
        measures: Further metrics of every model on the validation split, by name. Default: none.
        watch: Function that is called with the point of each bound when its model is trained, before any test.
        rounds: Maximum number of rounds of every run, as for ``solve``.
        seed: Seed of all random choices. Default: 0.
        sampling: Client sampling, local steps and batch sizes, as for ``solve``.
        output: The iterate that is the answer of a run, as for ``solve``.
        compute: Where and how clients compute, as for ``solve``.
        logging: Values to record, callbacks and progress bar, as for ``solve``.
    """
    checks.check_instance("problem", problem, Problem)
    checks.check_instance("split", split, DataSplit)
    ordered = check_bounds("bounds", bounds)
    checks.check_probability("confidence", confidence)
    template = None if method is None else resolve_method(method)

    def method_for(bound: float) -> Any:
        return Automatic(bound).template if template is None else with_tolerance(template, bound)

    curve = _Curve(problem, split, move, measures or {})
    trained: list[_Trained] = []
    groups: dict[str, Any] = {"sampling": sampling, "output": output, "compute": compute, "logging": logging}
    options = RunOptions(rounds=rounds, seed=checks.check_seed("seed", seed), **groups)
    for bound_method in [method_for(bound) for bound in ordered]:
        warm = replace(problem, start=trained[-1].prepared.first.params) if trained else problem
        prepared = prepare(warm, split, bound_method, options, confidence, move)
        if prepared.best is None:
            if prepared.first.status.code is StatusCode.DIVERGED:
                continue
            break  # stopped: the bounds that are trained are tested
        trained.append(_Trained(float(bound_method.tolerance), prepared, prepared.best))
        curve.record(prepared.first.params, *(model.params for model in prepared.path))
        if watch is not None:
            watch(curve.point(trained[-1], bound_method))
    if not trained:
        raise ValueError("no bound has a model: training diverged or was stopped before there was one")
    points = [curve.point(one, method_for(one.bound)) for one in trained]
    testable = [one for one, point in zip(trained, points, strict=True) if point.outcome is BoundOutcome.LATER]
    tests = _run_tests(_order_claims(testable), problem, split, confidence)
    points = [
        curve.point(_select_model(one, tests), method_for(one.bound), tests) if one in testable else point
        for one, point in zip(trained, points, strict=True)
    ]
    return Frontier(
        points=tuple(points),
        confidence=confidence,
        clients=len(split.train),
        shares=all(bounds is not None and endpoints(bounds) == (0.0, 1.0) for bounds in curve.ranges),
        approximate=any(bounds is None for bounds in curve.ranges),
        certifiability=str(trained[-1].prepared.certifiability),
        tested=tuple((test.bound, test.passed) for test in tests),
    )


def check_bounds(name: str, bounds: Any) -> list[float]:
    """Return the bounds from the largest to the smallest, or raise ValueError unless they are distinct and >= 0."""
    if np.ndim(bounds) != 1 or not len(bounds):
        raise ValueError(f"{name} must be one or more numbers >= 0, but is {bounds!r}")
    ordered = sorted((checks.check_real(name, bound, minimum=0) for bound in bounds), reverse=True)
    if len(set(ordered)) < len(ordered):
        raise ValueError(f"{name} must not have a number twice, but is {list(bounds)!r}")
    return ordered


class _Trained(NamedTuple):
    """A bound and the models that were trained for it."""

    bound: float
    prepared: Prepared
    model: Candidate  # the model selected for the bound


class _Test(NamedTuple):
    """The outcome of a test on the calibration split."""

    bound: float  # bound that was tested
    model: Candidate
    certificate: Certificate  # certificate of the model for the bound

    @property
    def passed(self) -> bool:
        return is_certified(self.certificate)


_Claim = tuple[_Trained, Candidate]


def _order_claims(trained: Sequence[_Trained]) -> list[_Claim]:
    """Return the claims to test, the largest pass probability first; among equals, looser bounds, then safer models."""
    claims = []
    for one in trained:
        likely = [model for model in one.prepared.path if model.forecast.pass_probability > 0] or [one.model]
        claims += [(one, model) for model in likely]
    return sorted(claims, key=lambda claim: -claim[1].forecast.pass_probability)


def _run_tests(claims: Sequence[_Claim], problem: Problem, split: DataSplit, confidence: float) -> list[_Test]:
    """Test the claims in order on the calibration split, up to and including the first that fails."""
    tests: list[_Test] = []

    def passes(claim: _Claim) -> bool:
        (bound, prepared, _), model = claim
        result = replace(prepared.first, params=model.params)
        certificate = certify(result, problem, split.calibration, confidence, tolerance=bound, kinds=prepared.kinds)
        tests.append(_Test(bound, model, certificate.after_tests(1 + len(tests))))
        return tests[-1].passed

    fixed_sequence_test(claims, passes)
    return tests


def _select_model(one: _Trained, tests: Sequence[_Test]) -> _Trained:
    """Return a bound with the model of smallest validation F that passed for it or a tighter one; unchanged if none."""
    passed = [test.model for test in tests if test.passed and test.bound <= one.bound]
    if not passed:
        return one
    best = min(passed, key=lambda model: model.forecast.objective)
    return one._replace(model=replace(best, tolerance=one.bound))


class _Curve:
    """Construction of the points of a curve, from evaluations on the training and validation splits."""

    def __init__(self, problem: Problem, split: DataSplit, move: Move | None, measures: Mapping[str, Measure]) -> None:
        for name, measure in measures.items():
            checks.check_callable(f"measures[{name!r}]", measure, "(params, clients) -> number")
        self._problem, self._split, self._move, self._measures = problem, split, move, measures
        self._on_train, self._on_validation = (
            make_evaluator(problem, data) for data in (split.train, split.validation)
        )
        self.ranges = row_ranges(problem, split.calibration)[1:]
        self._recorded: list[tuple[float, float]] = []

    def record(self, *models: Params) -> None:
        """Record G and F of models on the training split."""
        self._recorded += [_worst_values(self._on_train(params)) for params in models]

    def point(self, one: _Trained, method: Method, tests: Sequence[_Test] = ()) -> FrontierPoint:
        """Return the point of a bound and its selected model, with the outcome by the tests so far."""
        params, split, constant = one.model.params, self._split, math.nan
        if self._move is not None:  # a constant prediction, on the training split
            constants = partial(self._move, self._problem.start, 0.0)
            level, least = _worst_values(best_constant(self._on_train, constants, method)[1])
            constant = least if level <= one.bound else math.nan
        train_constraint, _ = _worst_values(self._on_train(params))
        _, other_objective = _worst_values(self._on_validation(params))
        known = [pair for pair in self._recorded if all(map(math.isfinite, pair))]
        feasible = [pair for pair in known if pair[0] <= one.bound]
        smallest = min(known, default=(math.nan, math.nan))
        constraint, objective = min(feasible, key=lambda pair: pair[1]) if feasible else smallest
        absent = set(map(str, split.train.names)) - set(map(str, split.calibration.names))
        outcome = BoundOutcome.LATER
        if not train_constraint <= one.bound:
            outcome = BoundOutcome.NOT_REACHED
        elif one.prepared.certifiability.uncertifiable or absent:
            outcome = BoundOutcome.TOO_FEW
        point = FrontierPoint(
            bound=one.bound,
            outcome=outcome,
            objective=objective,
            constraint=constraint,
            other_objective=other_objective,
            constant=constant,
            measures={name: float(measure(params, split.validation)) for name, measure in self._measures.items()},
            model=str(one.model),
            result=one.prepared.result_of(one.model),
        )
        for test in tests:
            if test.passed and test.bound <= one.bound and test.model.params is params:
                certificate = replace(test.certificate, tolerance=one.bound)
                return replace(point, outcome=BoundOutcome.CERTIFIED, certificate=certificate)
        if tests and not tests[-1].passed and tests[-1].bound == one.bound:
            certificate = tests[-1].certificate
            failing = tuple(str(client.client) for client in certificate.clients if client.verdict is not Verdict.MEETS)
            return replace(point, outcome=BoundOutcome.FAILED, certificate=certificate, failing_clients=failing)
        return point


def _worst_values(evaluation: Evaluation) -> tuple[float, float]:
    """Return G and F, the worst client's constraint and objective."""
    return float(evaluation.constraint.max()), float(evaluation.objective.max())
