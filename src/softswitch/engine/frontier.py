"""The trade-off curve: a model for each of several bounds, each certified with a share of the error probability."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from softswitch.certification.row_values import row_ranges
from softswitch.data.client_data import ClientData
from softswitch.data.splits import DataSplit
from softswitch.engine.baselines import best_constant
from softswitch.engine.certified import Certified, project, solve_certified
from softswitch.engine.request import resolve_method
from softswitch.methods.automatic import Automatic, as_method
from softswitch.methods.base import Method
from softswitch.oracles.base import Evaluation
from softswitch.oracles.evaluation import make_evaluator
from softswitch.oracles.options import Compute, Logging, Output, Sampling
from softswitch.problem.parameters import Move, Params
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import endpoints
from softswitch.results.certificate import Verdict
from softswitch.results.frontier import Frontier, FrontierPoint
from softswitch.results.status import StatusCode
from softswitch.support import checks

Measure = Callable[[Params, ClientData], float]  # from parameters and clients' data to a metric, such as the accuracy
Train = Callable[[float, float], Certified]  # from a bound and a confidence to a model with a certificate


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
    """Train and certify a model for each of several bounds, and choose the best certified model for each.

    Each bound has a run of ``solve_certified``, which starts at the model of the previous bound. Its error probability
    is 1 − confidence divided by the number of bounds, so that all certificates hold jointly with the confidence. A
    certificate for a bound also holds for looser ones: the model of a bound is the one with the smallest F on the
    validation split among those that are certified for it or for a tighter bound, at the most clients. Bounds whose
    training diverged, or was stopped (Ctrl-C), have no point.

    Args:
        problem: Objective, constraint and start; with ``constraint_range`` the certificates are exact, else
            approximate.
        split: Every client's rows in three splits: ``DataSplit.from_arrays``.
        bounds: Bounds on the constraint, distinct numbers >= 0 in any order.
        method: The method; its tolerance is each bound in turn. Default: ``Automatic``.
        confidence: Joint confidence of all certificates, in (0, 1). Default: 0.95.
        move: As for ``solve_certified``. Points then have the F of the best constant prediction. Default: none.
        measures: Further metrics of every model on the validation split, by name. Default: none.
        watch: Function that is called with the point of each bound when its model is trained and tested.
        rounds: Maximum number of rounds of every run, as for ``solve``.
        seed: Seed of all random choices. Default: 0.
        sampling: Client sampling, local steps and batch sizes, as for ``solve``.
        output: The iterate that is the answer of a run, as for ``solve``.
        compute: Where and how clients compute, as for ``solve``.
        logging: Values to record, callbacks and progress bar, as for ``solve``.
    """
    checks.check_instance("problem", problem, Problem)
    template, start = None if method is None else resolve_method(method), problem.start
    groups: dict[str, Any] = {"sampling": sampling, "output": output, "compute": compute, "logging": logging}

    def train(bound: float, confidence: float) -> Certified:
        nonlocal start
        active = Automatic(bound) if template is None else as_method(_with_tolerance(template, bound))
        warm, options = replace(problem, start=start), {"rounds": rounds, "seed": seed, **groups}
        certified = solve_certified(warm, split, active, confidence=confidence, move=move, **options)
        if certified.certificate is not None:
            start = project(problem, certified.first)
        return certified

    options: dict[str, Any] = {"move": move, "measures": measures, "watch": watch}
    return build_frontier(problem, split, bounds, train, confidence=confidence, **options)


def build_frontier(
    problem: Problem,
    split: DataSplit,
    bounds: Sequence[float],
    train: Train,
    *,
    confidence: float = 0.95,
    move: Move | None = None,
    measures: Mapping[str, Measure] | None = None,
    watch: Callable[[FrontierPoint], None] | None = None,
) -> Frontier:
    """Return the frontier of models that ``train`` trains and certifies, from the loosest bound to the tightest.

    ``train`` gets a bound and the confidence of its certificate. The other arguments are those of ``frontier``.
    """
    checks.check_instance("split", split, DataSplit)
    ordered = check_bounds("bounds", bounds)
    level = 1 - (1 - checks.check_probability("confidence", confidence)) / len(ordered)
    curve = _Curve(problem, split, move, measures or {})
    trained: dict[float, Certified] = {}
    for bound in ordered:
        certified = train(bound, level)
        if certified.result.status.code is StatusCode.DIVERGED:
            continue
        if certified.certificate is None:
            break  # stopped: the bounds that are trained have points
        trained[bound] = certified
        curve.record(certified.result.params, *([] if certified.first is None else [certified.first]))
        if watch is not None:
            watch(curve.point(bound, certified))
    if not trained:
        raise ValueError("no bound has a model: training diverged or was stopped before there was one")
    ranges = row_ranges(problem, split.calibration)[1:]
    return Frontier(
        points=tuple(curve.point(bound, curve.select(bound, trained)) for bound in trained),
        confidence=confidence,
        clients=len(split.train),
        shares=all(row_range is not None and endpoints(row_range) == (0.0, 1.0) for row_range in ranges),
        approximate=any(row_range is None for row_range in ranges),
        certifiability=str(trained[min(trained)].certifiability),
    )


def check_bounds(name: str, bounds: Any) -> list[float]:
    """Return the bounds from the largest to the smallest, or raise ValueError unless they are distinct and >= 0."""
    if np.ndim(bounds) != 1 or not len(bounds):
        raise ValueError(f"{name} must be one or more numbers >= 0, but is {bounds!r}")
    ordered = sorted((checks.check_real(name, bound, minimum=0) for bound in bounds), reverse=True)
    if len(set(ordered)) < len(ordered):
        raise ValueError(f"{name} must not have a number twice, but is {list(bounds)!r}")
    return ordered


def _with_tolerance(method: Any, tolerance: float) -> Any:
    """Return the method with another tolerance; a threshold that is set is scaled in proportion."""
    threshold = method.threshold
    if threshold is not None and method.tolerance > 0:
        threshold *= tolerance / method.tolerance
    return replace(method, tolerance=tolerance, threshold=threshold)


class _Curve:
    """Construction of the points of a curve, from evaluations on the training and validation splits."""

    def __init__(self, problem: Problem, split: DataSplit, move: Move | None, measures: Mapping[str, Measure]) -> None:
        for name, measure in measures.items():
            checks.check_callable(f"measures[{name!r}]", measure, "(params, clients) -> number")
        self._problem, self._split, self._move, self._measures = problem, split, move, measures
        self._on_train, self._on_validation = (
            make_evaluator(problem, data) for data in (split.train, split.validation)
        )
        self._recorded: list[tuple[float, float]] = []

    def record(self, *models: Params) -> None:
        """Record G and F of models on the training split."""
        self._recorded += [_worst_values(self._on_train(params)) for params in models]

    def select(self, bound: float, trained: Mapping[float, Certified]) -> Certified:
        """Return the best model that is certified for the bound or a tighter one; without one, the bound's own."""

        def rank(certified: Certified) -> tuple[int, float]:
            clients = () if certified.certificate is None else certified.certificate.clients
            meeting = sum(client.verdict is Verdict.MEETS for client in clients)
            return -meeting, _worst_values(self._on_validation(certified.result.params))[1]

        passed = [one for other, one in trained.items() if other <= bound and one.is_certified]
        if not passed:
            return trained[bound]
        best = min(passed, key=rank)
        assert best.certificate is not None
        method = _with_tolerance(best.result.method, bound)
        result, params = replace(best.result, method=method), best.result.params
        result = result.with_model(params, result.selected, self._on_train(params))
        return replace(best, result=result, certificate=replace(best.certificate, tolerance=bound))

    def point(self, bound: float, certified: Certified) -> FrontierPoint:
        """Return the point of a bound and the model selected for it."""
        result, params, constant = certified.result, certified.result.params, math.nan
        if self._move is not None:  # a constant prediction, on the training split
            constants = partial(self._move, self._problem.start, 0.0)
            level, least = _worst_values(best_constant(self._on_train, constants, result.method)[1])
            constant = least if level <= bound else math.nan
        known = [pair for pair in self._recorded if all(map(math.isfinite, pair))]
        feasible = [pair for pair in known if pair[0] <= bound]
        smallest = min(known, default=(math.nan, math.nan))
        constraint, objective = min(feasible, key=lambda pair: pair[1]) if feasible else smallest
        clients = () if certified.certificate is None else certified.certificate.clients
        failing = [client for client in clients if client.verdict not in (Verdict.MEETS, Verdict.TOO_FEW)]
        return FrontierPoint(
            bound=bound,
            outcome=certified.outcome,
            objective=objective,
            constraint=constraint,
            other_objective=_worst_values(self._on_validation(params))[1],
            constant=constant,
            measures={name: float(measure(params, self._split.validation)) for name, measure in self._measures.items()},
            model=certified.description,
            failing_clients=() if certified.is_certified else tuple(str(client.client) for client in failing),
            result=result,
            certificate=certified.certificate,
            certified=certified,
        )


def _worst_values(evaluation: Evaluation) -> tuple[float, float]:
    """Return G and F, the worst client's constraint and objective."""
    return float(evaluation.constraint.max()), float(evaluation.objective.max())
