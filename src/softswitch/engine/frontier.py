"""frontier(): what the constraint costs. A model for each of several bounds, and how far down they are certified."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from softswitch.certification.certify import certify, fixed_sequence_test, resolve_ranges
from softswitch.data.client_data import ClientData
from softswitch.data.splits import DataSplit
from softswitch.engine.baselines import best_constant
from softswitch.engine.candidates import Candidate, Move, at_tolerance
from softswitch.engine.certified import Prepared, prepare
from softswitch.engine.defaults import resolve_sampling
from softswitch.engine.request import RunSettings
from softswitch.engine.solve import solve_rows
from softswitch.methods.automatic import Automatic, resolve_method
from softswitch.methods.base import Method
from softswitch.oracles.base import Evaluation
from softswitch.oracles.evaluation import Evaluator, make_evaluator
from softswitch.oracles.options import Compute, Logging, Output, Sampling
from softswitch.problem.parameters import Params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import endpoints
from softswitch.results.certificate import Certificate, Verdict, is_certified
from softswitch.results.frontier import BoundOutcome, Frontier, FrontierPoint, SmallestConstraint
from softswitch.results.status import StatusCode
from softswitch.support import checks

Measure = Callable[[Params, ClientData], float]
"""From parameters and clients' rows to a number: an accuracy, say."""


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
    """What the constraint costs: train models for each of several bounds, and certify them in a fixed order.

    Each bound's models are trained on the rows to learn from, beginning at those of the bound before, and compared by
    the rows to choose by. Several of them are claims to be tested, "this model keeps this bound at every client": the
    best choice, more careful ones and bolder ones. Only when all of that is settled are the rows that certify looked
    at: one claim after the other, from the likeliest on, each at the full confidence, until one does not pass. A
    bound's model is then the one with the smallest F on the rows to choose by, among those that passed for it or for a
    tighter one.

    **What is promised.** Let δ = 1 − confidence. The models, their bounds and the order do not depend on the rows that
    certify, and a model whose constraint is above its bound at any client passes with a chance of at most δ. So the
    chance that any of the models called certified is above its bound at any client is at most δ, however many bounds
    and models there are: the first such in the order would have to pass, and before any later one is tested it must.

    A bound that no model keeps on the rows learnt from, or that so few rows can certify for no model, is known for that
    without a look at what models say of these rows; it is left out of the order. So is one whose training diverged, and
    those that were not yet trained when training was stopped (Ctrl-C): they have no point.

    Args:
        problem: objective, constraint, start; with ``constraint_range`` for a promise instead of an approximation.
        split: every client's rows in three splits: ``DataSplit.from_arrays``.
        bounds: what the constraint may be at most; in any order.
        method: The method; its tolerance is each bound in turn. Default: ``Automatic``.
        confidence: of all certificates together.
        move: as for ``solve_certified``. Constant predictions are put beside the models too then.
        measures: by name what else to measure of every model, on the rows to choose by.
        watch: called with each bound's point as soon as its model is trained; none is tested then.
        rounds: As for ``solve``, for every run.
        seed: Seed of all random choices.
        sampling: As for ``solve``.
        output: As for ``solve``.
        compute: As for ``solve``.
        logging: As for ``solve``.
    """
    checks.check_instance("problem", problem, Problem)
    checks.check_instance("split", split, DataSplit)
    ordered = checked_bounds("bounds", bounds)
    checks.check_probability("confidence", confidence)
    rule_at = partial(_rule_at, None if method is None else resolve_method(method))
    options: dict[str, Any] = {"output": output, "compute": compute, "logging": logging}
    methods = [rule_at(bound) for bound in ordered]
    look = _Look(problem, split, move, measures or {})
    trained: list[_Trained] = []
    for own in methods:
        warm = replace(problem, start=trained[-1].ready.first.params) if trained else problem
        ready = prepare(
            warm, split, own, confidence=confidence, move=move, rounds=rounds, seed=seed, sampling=sampling, **options
        )
        if ready.best is None:
            if ready.first.status.code is StatusCode.DIVERGED:
                continue
            break  # stopped: what there is so far is what is tested
        trained.append(_Trained(float(own.tolerance), ready, ready.best))
        look.at(ready.first.params, *(model.params for model in ready.path))
        if watch is not None:
            watch(look.point(trained[-1], own))
    if not trained:
        raise ValueError("no bound has a model: training diverged or was stopped before there was one")
    smallest_method = rule_at(0.0)
    batches = resolve_sampling(sampling, smallest_method)
    options["output"] = replace(output, diagnose_infeasible=False)
    settings = RunSettings.from_options(rounds, None, batches, options["output"], logging)
    smallest = look.smallest(smallest_method, trained[-1].ready.first.params, settings, seed, batches, options)
    points = [look.point(one, rule_at(one.bound)) for one in trained]
    testable = [one for one, point in zip(trained, points, strict=True) if point.outcome is BoundOutcome.LATER]
    claims = _claims(testable)
    tested = _tested(claims, problem, split, confidence)
    points = [
        look.point(_settled(one, tested), rule_at(one.bound), tested) if one in testable else point
        for one, point in zip(trained, points, strict=True)
    ]
    return Frontier(
        points=tuple(points),
        smallest=smallest,
        confidence=confidence,
        clients=len(split.train),
        shares=all(of_row is not None and endpoints(of_row) == (0.0, 1.0) for of_row in look.ranges),
        approximate=any(of_row is None for of_row in look.ranges),
        certifiability=str(trained[-1].ready.certifiability),
        planned_tests=len(claims),
        tested=tuple((claim.bound, claim.passed) for claim in tested),
    )


def checked_bounds(name: str, bounds: Any) -> list[float]:
    """From the loosest to the tightest, or raise."""
    if np.ndim(bounds) != 1 or not len(bounds):
        raise ValueError(f"{name} must be one or more numbers >= 0, but is {bounds!r}")
    found = sorted((checks.check_real(name, bound, minimum=0) for bound in bounds), reverse=True)
    if len(set(found)) < len(found):
        raise ValueError(f"{name} must not have a number twice, but is {list(bounds)!r}")
    return found


def _rule_at(method: Method | None, bound: float) -> Any:
    """Return the method for a bound."""
    return Automatic(bound).template if method is None else at_tolerance(method, bound)


class _Trained(NamedTuple):
    """A bound, its runs, and the model that is chosen for it."""

    bound: float
    ready: Prepared
    model: Candidate


class _Tested(NamedTuple):
    """A claim, that a model keeps a bound at every client, and what came of its test."""

    bound: float
    model: Candidate
    certificate: Certificate

    @property
    def passed(self) -> bool:
        return is_certified(self.certificate)


def _claims(trained: Sequence[_Trained]) -> list[tuple[_Trained, Candidate]]:
    """What is to be tested, from the likeliest on; of equally likely ones looser bounds and safer models first."""
    found = []
    for one in trained:
        likely = [model for model in one.ready.path if model.forecast.pass_probability > 0] or [one.model]
        found += [(one, model) for model in likely]
    return sorted(found, key=lambda claim: -claim[1].forecast.pass_probability)


def _tested(
    claims: Sequence[tuple[_Trained, Candidate]], problem: Problem, split: DataSplit, confidence: float
) -> list[_Tested]:
    """The only look at the rows that certify: every claim that was tested; all but perhaps the last have passed."""
    found: list[_Tested] = []

    def passes(claim: tuple[_Trained, Candidate]) -> bool:
        one, model = claim
        of_model = replace(one.ready.first, params=model.params)
        seen = certify(of_model, problem, split.calibration, confidence, tolerance=one.bound, kinds=one.ready.kinds)
        found.append(_Tested(one.bound, model, seen.after_tests(1 + len(found))))
        return found[-1].passed

    fixed_sequence_test(claims, passes)
    return found


def _settled(one: _Trained, tested: Sequence[_Tested]) -> _Trained:
    """The bound with the best of the models that passed for it, or for a tighter one and so for it too."""
    passed = [claim.model for claim in tested if claim.passed and claim.bound <= one.bound]
    if not passed:
        return one
    best = min(passed, key=lambda model: model.forecast.objective)
    return one._replace(model=replace(best, tolerance=one.bound))


class _Look:
    """What is told of a model, but for its test."""

    def __init__(self, problem: Problem, split: DataSplit, move: Move | None, measures: Mapping[str, Measure]) -> None:
        for name, measure in measures.items():
            checks.check_callable(f"measures[{name!r}]", measure, "(params, clients) -> number")
        self._problem, self._split, self._move, self._measures = problem, split, move, measures
        self._on_learnt, self._on_others = (
            make_evaluator(problem, split.train),
            make_evaluator(problem, split.validation),
        )
        many = problem.trace(split.calibration.batch_shapes(1, float_dtype(problem.start))).constraints
        self.ranges = resolve_ranges(problem, None, None, many)[1:]
        self._found: list[tuple[float, float]] = []

    def at(self, *models: Params) -> None:
        """Take note of models: G and F of each on the rows learnt from."""
        for params in models:
            self._found.append(_pair(self._on_learnt(params)))

    def least(self, bound: float) -> tuple[float, float]:
        """G and F of the model with the smallest F that keeps the bound; else of the one with the smallest G."""
        known = [one for one in self._found if all(map(math.isfinite, one))]
        keeping = [one for one in known if one[0] <= bound]
        return min(keeping, key=lambda one: one[1]) if keeping else min(known, default=(math.nan, math.nan))

    def point(self, one: _Trained, method: Method, tested: Sequence[_Tested] = ()) -> FrontierPoint:
        """All that is told of a bound and the model that is chosen for it; ``tested``: what came of the tests."""
        params = one.model.params
        learnt, others, constant = self._on_learnt(params), self._on_others(params), self._constant(method)
        keeps = constant is not None and float(constant.constraint.max()) <= one.bound
        constraint, objective = self.least(one.bound)
        told = FrontierPoint(
            bound=one.bound,
            outcome=self._foregone(one, float(learnt.constraint.max())),
            objective=objective,
            constraint=constraint,
            chosen_objective=float(learnt.objective.max()),
            other_objective=float(others.objective.max()),
            other_constraint=float(others.constraint.max()),
            constant=float(constant.objective.max()) if constant is not None and keeps else math.nan,
            measures={name: float(measure(params, self._split.validation)) for name, measure in self._measures.items()},
            model=str(one.model),
            result=one.ready.result_of(one.model),
        )
        for claim in tested:
            if claim.passed and claim.bound <= one.bound and claim.model.params is params:
                certificate = replace(claim.certificate, tolerance=one.bound)
                return replace(told, outcome=BoundOutcome.CERTIFIED, certificate=certificate)
        for claim in tested:
            if not claim.passed and claim.bound == one.bound:
                seen = claim.certificate
                named = tuple(str(own.client) for own in seen.clients if own.verdict is not Verdict.MEETS)
                return replace(told, outcome=BoundOutcome.FAILED, certificate=seen, failing_clients=named)
        return told

    def _foregone(self, one: _Trained, constraint: float) -> BoundOutcome:
        """What can be said before any test: that none would be of use, or none so far."""
        absent = set(map(str, self._split.train.names)) - set(map(str, self._split.calibration.names))
        if not constraint <= one.bound:
            return BoundOutcome.NOT_REACHED
        return BoundOutcome.TOO_FEW if one.ready.certifiability.uncertifiable or absent else BoundOutcome.LATER

    def _constant(self, method: Method) -> Evaluation | None:
        """The constant prediction with the smallest F that keeps the bound; else the nearest to it."""
        move = self._move
        if move is None:
            return None
        judge: Evaluator = self._on_learnt
        return best_constant(judge, lambda odds: move(self._problem.start, 0.0, odds), method)[1]

    def smallest(
        self,
        method: Method,
        start: Params,
        settings: RunSettings,
        seed: int,
        sampling: Sampling,
        options: Mapping[str, Any],
    ) -> SmallestConstraint:
        """The smallest constraint that any model reaches: those at hand, constants, and a run for a bound of 0.

        That run only lowers the constraint until it is 0. Where something at hand has the least there can be, it is
        left out.
        """
        seen, constant = list(self._found), self._constant(method)
        if constant is not None:
            seen.append(_pair(constant))
        floor = max((0.0 if of_row is None else max(0.0, endpoints(of_row)[0]) for of_row in self.ranges), default=0.0)
        if not any(constraint <= floor for constraint, _ in seen):
            warm = replace(self._problem, start=start)
            found = solve_rows(warm, self._split.train, method, settings, seed, sampling, **options)
            self.at(found.params)
            seen.append(self._found[-1])
        constraint, objective = min((one for one in seen if math.isfinite(one[0])), default=(math.nan, math.nan))
        return SmallestConstraint(constraint, objective, math.nan if constant is None else _pair(constant)[0])


def _pair(judged: Evaluation) -> tuple[float, float]:
    """The worst client's constraint and objective."""
    return float(judged.constraint.max()), float(judged.objective.max())
