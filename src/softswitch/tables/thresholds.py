"""Thresholds of scores: models for bounds on rates of decisions.

The outputs of a score are the features of the final model, which only shifts them: by a decision threshold, by an
offset of the prediction, or by the weights of the classes. The shifts form a path from the safest model to the least
safe one. ``certify_path`` tests them in this order. Training rows have cross-validated outputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit
from scipy.stats import binom

from softswitch.certification.certifiability import Certifiability, align, certifiability, largest_rate
from softswitch.certification.certify import certify, certify_path
from softswitch.certification.row_values import Kind, row_ranges
from softswitch.data.client_data import ClientData
from softswitch.engine.baselines import best_constant
from softswitch.engine.certified import Certified
from softswitch.methods.base import Method
from softswitch.methods.state import first_state
from softswitch.oracles.base import Evaluation
from softswitch.oracles.evaluation import ClientSummary, make_evaluator
from softswitch.problem.choices import BINARY, MULTICLASS, NUMBER
from softswitch.problem.parameters import Params
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import ZERO_ONE
from softswitch.results.baseline import CONSTANT, UNCONSTRAINED_WORST, Baseline
from softswitch.results.history import History
from softswitch.results.result import Result
from softswitch.results.status import model_status
from softswitch.tables.constraints import KINDS, build_problem
from softswitch.tables.labels import Label, predict_codes
from softswitch.tables.scores import Score, calibrate, cross_validate, make_estimators, row_weights

PATH_LENGTH = 250  # number of shifts of each kind on a path
PRIOR_STEPS = np.linspace(-0.5, 1.5, 21)  # powers of the class shares on the path of several classes
FARTHEST = 35.0  # log odds of the safest threshold: the model then predicts one class for every row
TAIL_ROWS = 5.0  # rows below a client's threshold at which it is halfway between the shared one and the client's own
PRIOR_ROWS = 20.0  # rows of the pooled rate that a client's estimated rate is shrunk by
EVIDENCE = 0.001  # joint p-value with which training rows show that clients with too few certification rows violate


@dataclass(frozen=True, kw_only=True)
class ThresholdPath(Method):
    """Method of a result whose model is a scikit-learn score with a threshold: it runs no rounds."""

    step_size: float = field(default=1.0, init=False, repr=False)  # no step is taken
    score: str = "auto"  # name of the score
    thresholds: str = "shared"  # whether clients have a "shared" threshold or one each, "per-client"

    def decide(self, state: Any, reports: Any) -> Any:
        """Raise TypeError: there are no rounds."""
        raise TypeError("a score with a threshold has no rounds")


class Rows(NamedTuple):
    """The rows of all clients as NumPy arrays, sorted by client."""

    x: np.ndarray  # features, rows × features
    y: np.ndarray
    owner: np.ndarray  # index of each row's client

    @classmethod
    def of(cls, data: ClientData) -> Rows:
        """Return the rows of client data."""
        columns = data.rows.columns
        x, y = (np.asarray(columns[name]) for name in "xy")
        return cls(x, y, np.repeat(np.arange(len(data)), data.sizes))


@dataclass(frozen=True, eq=False)
class Task:
    """What a path of shifts is built from: cross-validated outputs, and the rates that certification allows."""

    outputs: np.ndarray  # calibrated, rows × outputs
    rows: Rows
    label: Label
    bound: float  # of every client's rate
    allowed: np.ndarray  # largest rate at each client with which it can be certified; NaN if its rows are too few
    clients: int  # number of clients with a threshold of their own: all or 0

    def count(self, chosen: np.ndarray) -> np.ndarray:
        """Return each client's number of rows that a mask selects."""
        return np.bincount(self.rows.owner[chosen], minlength=len(self.allowed))


class Shifts(NamedTuple):
    """Models with the same score and other shifts, ordered from the safest to the least safe."""

    biases: np.ndarray  # added to the outputs, models × outputs
    own: np.ndarray  # further number that is added at each client with a threshold of its own, models × clients
    preferred: int  # index of the model with the best chance to hold the bound, by cross-validation
    feasible: int  # index of the last model within the bound at every client in cross-validation; 0 if there is none
    is_monotone: bool  # whether the rate increases along the path on any rows


def _prefix(is_fine: Any) -> int:
    """Return the index of the last model such that it and all before it are fine; 0 if the first is not."""
    return max(0, len(is_fine) - 1 if is_fine.all() else int(np.argmin(is_fine)) - 1)


def _shrunk(errors: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return clients' rates (models × clients), shrunk to the rate of all clients together."""
    pooled = errors.sum(axis=1, keepdims=True) / max(1, sizes.sum())
    return np.asarray((errors + PRIOR_ROWS * pooled) / (sizes + PRIOR_ROWS))


def _margin_path(task: Task, margin: np.ndarray, applies: np.ndarray, sign: float, farthest: float) -> Shifts:
    """Return shifts by −``sign``·t for ascending t; a row of ``applies`` is an error if its margin is at most t."""
    owner, margins = task.rows.owner[applies], margin[applies]
    count = len(task.allowed)
    by_client = [np.sort(margins[owner == i]) for i in range(count)]
    sizes = np.array(list(map(len, by_client)))
    low, share = margins.min(), np.linspace(0, 1, PATH_LENGTH)
    grid = [low - (low - farthest) * np.geomspace(1e-3, 1, PATH_LENGTH), np.quantile(margins, share)]
    tested = [one for one, rate in zip(by_client, task.allowed, strict=True) if len(one) and not np.isnan(rate)]
    if tested:  # the worst of them sets the threshold: steps are small where its rate is at most twice the bound
        worst = np.min([np.quantile(one, min(1, 2 * task.bound) * share) for one in tested], axis=0)
        grid += [worst, low + (worst[-1] - low) * share]
    if task.clients:
        steps = np.linspace(0, 2, PATH_LENGTH)[:, None]
        known = np.where(np.isnan(task.allowed), task.bound / 2, np.maximum(task.allowed, task.bound / 10))
        levels = np.clip(steps * known, 0, 1)
        shared = np.quantile(margins, np.clip(steps[:, 0] * known.mean(), 0, 1))
        each = [np.quantile(one, levels[:, i]) if len(one) else shared for i, one in enumerate(by_client)]
        weight = sizes * levels / (sizes * levels + TAIL_ROWS)
        points = weight * np.array(each).T + (1 - weight) * shared[:, None]
        start = np.minimum.outer(grid[0][::-1], points[0])
        points, shared = np.concatenate([start, points]), np.concatenate([start.min(axis=1), shared])
        points = np.maximum.accumulate(points)
    else:
        shared = np.unique(np.concatenate([[farthest], *grid]))
        points = np.repeat(shared[:, None], count, axis=1)
    errors = np.array([np.searchsorted(one, points[:, i], side="right") for i, one in enumerate(by_client)]).T
    too_few = np.isnan(task.allowed)
    evidence = EVIDENCE / max(1, int(too_few.sum()))
    is_plausible = (binom.sf(errors - 1, sizes, task.bound) > evidence) | ~too_few | (sizes == 0)
    last = 1 + _prefix(is_plausible.all(axis=1))
    preferred = _prefix((_shrunk(errors, sizes) <= task.bound).all(axis=1))
    feasible = _prefix((errors <= task.bound * sizes).all(axis=1))
    own = -sign * (points - shared[:, None])[:last, : task.clients]
    biases = -sign * shared[:last, None]
    return Shifts(biases, own, min(preferred, last - 1), min(feasible, last - 1), True)


def _coverage_path(task: Task) -> Shifts:
    margin = task.outputs[:, 0] - task.rows.y
    return _margin_path(task, margin, np.ones(len(margin), bool), 1.0, 2 * float(margin.min()) - float(margin.max()))


def _candidates(task: Task) -> np.ndarray:
    """Return shifts of the decision: thresholds for two classes, else powers of the class shares, models × outputs."""
    if task.label.type == BINARY:
        return -np.quantile(task.outputs, np.linspace(0, 1, PATH_LENGTH), axis=0)
    shares = np.bincount(task.rows.y.astype(int), minlength=task.outputs.shape[1]) + 0.5
    return np.outer(PRIOR_STEPS - 1, np.log(shares / shares.sum()))


def _error_path(task: Task) -> Shifts:
    biases = _candidates(task)
    wrong = np.array([task.count(predict_codes(task.outputs + bias) != task.rows.y) for bias in biases])
    allowed = np.where(np.isnan(task.allowed), task.bound, task.allowed)
    sizes = np.bincount(task.rows.owner, minlength=len(allowed))
    best = int(np.argmin((_shrunk(wrong, sizes) - allowed).max(axis=1)))
    return Shifts(biases[best : best + 1], np.zeros((1, 0)), 0, 0, True)


def _class_miss_path(task: Task) -> Shifts:
    biases, y = _candidates(task), task.rows.y
    decisions, classes = [predict_codes(task.outputs + bias) for bias in biases], np.unique(y)
    missed = np.array([[task.count((one != y) & (y == label)) for label in classes] for one in decisions])
    sizes = np.array([task.count(y == label) for label in classes])
    worst = np.array([_shrunk(missed[:, k], sizes[k]) for k in range(len(classes))]).max(axis=(0, 2))
    strict: Any = (missed <= task.bound * sizes).all(axis=(1, 2))
    errors, safest = np.array([(one != y).mean() for one in decisions]), int(np.argmin(worst))
    towards = np.sign(np.argmin(errors) - safest) or 1
    path = list(range(safest, len(biases) if towards > 0 else -1, towards))
    path = [i for n, i in enumerate(path) if n == 0 or errors[i] < errors[path[:n]].min()]
    preferred, feasible = _prefix(worst[path] <= task.bound), _prefix(strict[path])
    return Shifts(biases[path], np.zeros((len(path), 0)), preferred, feasible, False)


PATHS: dict[str, Callable[[Task], Shifts]] = {
    # Ascending thresholds of the log odds: errors are positive rows at or below the threshold.
    "miss": lambda task: _margin_path(task, task.outputs[:, 0], task.rows.y == 1, 1.0, -FARTHEST),
    # Descending thresholds of the log odds: errors are negative rows above the threshold.
    "false-alarm": lambda task: _margin_path(task, -task.outputs[:, 0], task.rows.y != 1, -1.0, -FARTHEST),
    # Descending offsets of the prediction: errors are rows whose label is above it.
    "coverage": _coverage_path,
    # The one shift whose error rate is the farthest within what certification allows, at the worst client.
    "error": _error_path,
    # From the shift with the smallest rate of misses of any class at any client to more accurate ones.
    "class-miss": _class_miss_path,
}


@dataclass(frozen=True, eq=False, kw_only=True)
class ScoredModel(Certified):
    """A score with a shift, as ``train_score`` returns it. Values on training rows are cross-validated."""

    score: Score
    problem: Problem  # on the outputs of the score
    learning: ClientData  # training rows, with cross-validated outputs as features
    calibration: ClientData | None  # certification rows, with outputs as features
    threshold: float | None  # shared threshold of the log odds; None if the label is not of two values
    clients: tuple[Any, ...]  # clients with a threshold of their own; empty if they share one

    @property
    def probability(self) -> float | None:
        """The shared threshold as a probability of the positive class; None if the label is not of two values."""
        return None if self.threshold is None else float(expit(self.threshold))


@dataclass(frozen=True, eq=False)
class FittedScore:
    """A score that was fitted to training rows, before a shift is chosen."""

    score: Score
    name: str  # name of the score, for results
    label: Label
    learning: ClientData  # training rows
    crossed: np.ndarray  # cross-validated outputs on the training rows, rows × outputs
    scale: float  # ``scale`` · outputs + ``offset`` are log odds, log probabilities or predictions
    offset: np.ndarray
    seed: int  # seed of the cross-validation

    def choose_shift(
        self,
        kind: str,
        bound: float,
        calibration: ClientData | None = None,
        *,
        thresholds: str = "shared",
        confidence: float = 0.95,
        select: bool = True,
        loss: str | None = None,
        quantile: float | None = None,
    ) -> ScoredModel:
        """Certify a shift of the score on the calibration rows; arguments as for ``train_score``."""
        entry, learning = KINDS[kind], self.learning
        assert entry.path is not None
        if thresholds == "per-client" and entry.path not in ("miss", "false-alarm"):
            raise ValueError(f"thresholds must be 'shared' for {kind!r}: only misses and false alarms have others")
        clients = learning.names if thresholds == "per-client" else ()
        count = self.crossed.shape[1]
        features = count + len(clients)
        built = build_problem(kind, features, label=self.label, loss=loss, quantile=quantile, bound=bound)
        problem = built.problem
        if built.cost is not None:
            problem = replace(problem, objective=built.cost, objective_range=ZERO_ONE)
        learned, held_out = _with_outputs(learning, self.crossed, clients, built.strata), None
        if calibration is not None:
            outputs = self.score.outputs(Rows.of(calibration).x)
            held_out = _with_outputs(calibration, outputs, clients, built.strata)
        limits = None if held_out is None else certifiability(problem, held_out, bound, confidence)
        allowed = _allowed_rates(learning.names, limits, bound, confidence)
        outputs = self.scale * self.crossed.astype(float) + self.offset
        shifts = PATHS[entry.path](Task(outputs, Rows.of(learning), self.label, bound, allowed, len(clients)))
        models = list(map(self._network, shifts.biases, shifts.own))
        answer, passed, certificate = shifts.feasible, 0, None
        if held_out is not None and select:
            order: dict[str, Any] = {"preferred": shifts.preferred, "is_monotone": shifts.is_monotone}
            order |= {"kinds": [Kind.MEAN] * len(row_ranges(problem, held_out)), "names": learning.names}
            answer, passed, certificate = certify_path(models, problem, held_out, confidence, tolerance=bound, **order)
        text, threshold = f"score with shift {answer + 1} of {len(models)}", None
        if self.label.type == BINARY:
            threshold = float(-shifts.biases[answer, 0])
            text = f"score with the threshold {expit(threshold):.3g} of the probability"
        method = ThresholdPath(tolerance=bound, score=self.name, thresholds=thresholds)
        unshifted = self._network(np.zeros(count), np.zeros(len(clients)))
        evaluate, constants = make_evaluator(problem, learned), partial(self.label.constant, problem.start)
        odds, values = best_constant(evaluate, constants, method)
        constant = Baseline.of(CONSTANT, values, method, constants(odds))
        plain = Baseline.of(UNCONSTRAINED_WORST, evaluate(unshifted), method, unshifted)
        result = _build_result(evaluate(models[answer]), learned, method, models[answer], text, self.seed)
        result = replace(result, baselines=(constant, plain))
        if held_out is not None and not select:
            certificate = certify(result, problem, held_out, confidence)
        test: dict[str, Any] = {"certifiability": limits, "models": len(models), "passed": passed, "description": text}
        rows: dict[str, Any] = {"problem": problem, "learning": learned, "calibration": held_out}
        shift: dict[str, Any] = {"score": self.score, "threshold": threshold, "clients": tuple(clients)}
        return ScoredModel(result, certificate, first=result.params, **test, **rows, **shift)

    def _network(self, bias: np.ndarray, own: np.ndarray) -> Params:
        """Return the linear model that calibrates the outputs and adds a shift."""
        weights = np.concatenate([self.scale * np.eye(len(bias)), np.repeat(own[:, None], len(bias), axis=1)])
        return [{"w": weights.astype(np.float32), "b": np.asarray(self.offset + bias, np.float32)}]


def fit_score(
    kind: str, label: Label, learning: ClientData, *, bound: float, score: Any = "auto", seed: int = 0
) -> FittedScore:
    """Fit a score for a kind of constraint on the training rows; arguments as for ``train_score``."""
    rows, is_balanced = Rows.of(learning), label.type != NUMBER and KINDS[kind].path != "error"
    cells = rows.x.size * (len(label.classes) if label.type == MULTICLASS else 1)
    estimators = make_estimators(score, label.type, 1 - bound if 0 < bound < 1 else 0.5, cells=cells)
    weights = row_weights(rows.y, rows.owner, balance=is_balanced)
    if label.type != NUMBER:
        counts = np.bincount(rows.y.astype(int), minlength=len(label.classes))
        if counts.min() < 2:
            rare = label.classes[int(counts.argmin())]
            raise ValueError(f"a score needs at least 2 training rows of each class, but {rare!r} has {counts.min()}")
    classes = len(label.classes)
    crossed = cross_validate(estimators, *rows, weights, label.type, classes, seed)
    fitted = Score.fit(estimators, rows.x, rows.y, weights, label.type, classes)
    name = score if isinstance(score, str) else type(score).__name__
    scale, offset = calibrate(crossed, rows.y, label.type, is_balanced=is_balanced)
    return FittedScore(fitted, name, label, learning, crossed, scale, offset, seed)


def train_score(
    kind: str,
    label: Label,
    learning: ClientData,
    calibration: ClientData | None = None,
    *,
    bound: float,
    score: Any = "auto",
    seed: int = 0,
    **options: Any,
) -> ScoredModel:
    """Fit a score on the training rows, and certify a shift of it on the calibration rows.

    ``score`` is as for ``make_estimators``. Without ``calibration`` the shift is chosen by cross-validation.
    ``options`` are ``thresholds``, "shared" (the default) or, for misses and false alarms, "per-client"; ``confidence``
    of the certificate (default: 0.95); ``select``, whether to choose the shift on the calibration rows (default: True)
    rather than by cross-validation; and ``loss`` and ``quantile`` as for ``build_problem``.
    """
    began = time.perf_counter()
    fitted = fit_score(kind, label, learning, bound=bound, score=score, seed=seed)
    model = fitted.choose_shift(kind, bound, calibration, **options)
    return replace(model, result=replace(model.result, seconds=time.perf_counter() - began))


def _with_outputs(data: ClientData, outputs: np.ndarray, clients: Sequence[Any], strata: Any) -> ClientData:
    """Return client data whose features are the outputs of a score and, if given, indicators of the clients."""
    owner = np.repeat(np.arange(len(data)), data.sizes)
    features = add_indicators(outputs, [data.names[i] for i in owner], clients)
    columns = {name: np.asarray(column) for name, column in data.rows.columns.items()} | {"x": features}
    return ClientData(columns, owner, strata, data.names)


def add_indicators(outputs: np.ndarray, owner: Sequence[Any], clients: Sequence[Any]) -> np.ndarray:
    """Return the outputs with one further column per client of ``clients``: 1 at its rows, else 0."""
    if not len(clients):
        return np.asarray(outputs, np.float32)
    place = {str(name): i for i, name in enumerate(clients)}
    columns = np.array([place.get(str(name), len(clients)) for name in owner])
    indicators = np.eye(len(clients) + 1, len(clients), dtype=np.float32)[columns]
    return np.concatenate([outputs, indicators], axis=1).astype(np.float32)


def _allowed_rates(names: Sequence[Any], limits: Certifiability | None, bound: float, confidence: float) -> np.ndarray:
    """Return the largest rate with which each training client can be certified; NaN if its rows are too few."""
    if limits is None:
        return np.full(len(names), bound)
    rows = align(np.multiply(limits.rows, limits.is_certifiable), limits.clients, names)
    return np.array([largest_rate(int(n), 1 - confidence, bound, ZERO_ONE) if n > 0 else np.nan for n in rows])


def _build_result(
    evaluation: Evaluation, clients: ClientData, method: Method, params: Params, selected: str, seed: int
) -> Result:
    """Return a result of one round: the values of a model at all clients."""
    objective, constraint = evaluation.objective, evaluation.constraint
    means = [one[~np.isneginf(one)].mean() for one in (objective, constraint)]
    values = {
        "objective": objective.max(),
        "constraint": constraint.max(),
        "criterion": constraint.max(),
        "feasible": constraint.max() <= method.tolerance,
        "worst_client": np.int32(objective.argmax()),
        "absent": np.int32((np.isneginf(objective) | np.isneginf(constraint).any(axis=1)).sum()),
        "value_evaluations": clients.sizes.sum(),
        "gradient_evaluations": 0,
        "full_rounds": 0,
    }
    summary: Any = [np.array([value]) for value in (objective.max(), constraint.max(), *means)]
    rounds: dict[str, Any] = {name: np.array([value]) for name, value in values.items()}
    history = History(full=ClientSummary(*summary), **rounds)
    status = model_status(clients.names, method, evaluation)
    return Result(
        params=params,
        last=params,
        best=params if status.ok else None,
        selected=selected,
        status=status,
        diagnostics=(),
        history=history,
        client_objective=objective,
        client_constraint=constraint,
        pooled_constraint=evaluation.pooled,
        names=clients.names,
        method=method,
        seed=seed,
        seconds=0.0,
        state=first_state(params, method, (), len(clients), constraint.shape[1]),
    )
