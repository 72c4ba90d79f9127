"""What all estimators with scikit-learn's face share: from arrays and whose rows they are to a trained network."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn import get_config
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import get_scorer, make_scorer
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, check_random_state, validate_data

from softswitch.certification.certify import certify
from softswitch.data.client_data import ClientData
from softswitch.data.splits import DataSplit, part_masks
from softswitch.engine.baselines import add_baselines
from softswitch.engine.certified import solve_certified
from softswitch.engine.solve import solve
from softswitch.methods.automatic import as_method
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.oracles.options import Logging, Sampling
from softswitch.problem.networks import Network, moved_network, outputs
from softswitch.problem.parameters import WEIGHT, Batch, Params
from softswitch.problem.problem import Problem
from softswitch.results.certificate import ending, is_certified
from softswitch.results.diagnostic import DiagnosticCode
from softswitch.results.report.page import report
from softswitch.results.result import Result
from softswitch.tables.constraints import Loss, build_problem
from softswitch.tables.labels import Label, NumberLabel

SAMPLE_WEIGHT = "sample_weight"
"""The column that says how much a row counts."""


def weighted(problem: Problem) -> Problem:
    """The same problem, with means over rows that count as the column ``sample_weight`` says.

    Its certificates are approximate: weighted means are no means over rows.
    """
    stand_in = problem.constraint_surrogate
    return replace(
        problem,
        objective=weight_rows(problem.objective),
        constraint=weight_rows(problem.constraint),
        constraint_surrogate=None if stand_in is None else weight_rows(stand_in),
    )


def weight_rows(function: Any) -> Any:
    """The same function, of rows that count as the column ``sample_weight`` says; or one made of several functions."""
    if is_dataclass(function) and not isinstance(function, type):
        own = {entry.name: getattr(function, entry.name) for entry in fields(function)}
        of_batches = {name: _of_batches(own[name]) for name in ("statistics", "exact") if name in own}
        return replace(function, **of_batches)
    return _of_batches(function)


def _of_batches(function: Callable[[Params, Batch], Any]) -> Callable[[Params, Batch], Any]:
    def own(params: Params, batch: Batch) -> Any:
        return function(params, {**batch, WEIGHT: batch[WEIGHT] * batch[SAMPLE_WEIGHT]})

    return own


class FederatedEstimator(BaseEstimator):
    """What the estimators share; use one of them.

    A linear model, or a network with hidden layers, by Softmax SGM. Features are standardised within.
    """

    _kind: str
    _bound: str

    @abstractmethod
    def _label(self, y: np.ndarray, learnt_from: np.ndarray) -> Label:
        """What y is; ``learnt_from``: which rows may be looked at for means and shares."""

    def _loss(self) -> Loss:
        """Of predictions of a number."""
        return Loss()

    def _train(
        self,
        X: np.ndarray,  # noqa: N803
        y: np.ndarray,
        clients: Any,
        sample_weight: Any,
        alike: dict[str, np.ndarray],
    ) -> None:
        """Train, and keep what came of it; ``alike``: columns of which all parts of the rows have the same shares."""
        owner = np.zeros(len(y), int) if clients is None else check_row_values("clients", clients, len(y))
        columns = dict(alike)
        if sample_weight is not None:
            given = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
            counts = given > 0
            X, y, owner = X[counts], y[counts], owner[counts]  # noqa: N806
            columns = {name: column[counts] for name, column in columns.items()}
            alike = dict(columns)
            columns[SAMPLE_WEIGHT] = (given[counts] / given[counts].mean()).astype(np.float32)
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = int(check_random_state(seed).randint(2**31 - 1))
        if self.validation and not self.held_out:
            raise ValueError(f"validation = {self.validation!r} needs held_out above 0: rows to certify with")
        masks = part_masks(owner, *alike.values(), choosing=self.validation, held_out=self.held_out, seed=seed)
        learn, choose, certify_by = masks
        before = self.__dict__.get("_fitted") if self.warm_start else None
        label = self._label(y, learn)
        self._standardise(X[learn], columns.get(SAMPLE_WEIGHT, np.ones(len(y)))[learn])
        columns |= {"y": label.encode(y), "x": self._standardised(X)}
        bound = getattr(self, self._bound)
        made = build_problem(
            self._kind, X.shape[1], tuple(self.hidden), seed=seed, label=label, loss=self._loss(), bound=bound
        )
        problem, cost = made.problem, made.cost
        if SAMPLE_WEIGHT in columns:
            problem, cost = weighted(problem), None if cost is None else weight_rows(cost)
        if before is not None:
            problem = self._from_before(problem, before, label)

        def of(part: np.ndarray) -> ClientData:
            chosen = {name: column[part] for name, column in columns.items()}
            return ClientData.from_arrays(chosen, owner[part], strata=made.strata)

        train = of(learn)
        method = as_method(SoftmaxSGM(alpha=self.alpha, step_size=self.step_size, tolerance=bound))
        automatic = self.step_size is None
        options: dict[str, Any] = {
            "rounds": self.rounds,
            "seconds": self.seconds,
            "seed": seed,
            "sampling": Sampling(
                local_steps=self.local_steps,
                participation=self.participation,
                batch_size=None if self.batch_size == "auto" and not automatic else self.batch_size,
                value_batch_size="auto" if automatic else "same",
            ),
            "logging": Logging(eval_every=0),
        }
        self.certificate_, self.answered_ = None, None
        if choose.any() and certify_by.any():
            parts = DataSplit(train, of(choose), of(certify_by))
            found = solve_certified(problem, parts, method, confidence=self.confidence, move=label.move, **options)
            result, self.certificate_, self.answered_ = found.result, found.certificate, found.answered
        else:
            result = solve(problem, train, method, **options)
        constants = partial(label.constant, problem.start)
        beside: dict[str, Any] = {"constants": constants, "unconstrained": False, "cost": cost}
        self._keep(add_baselines(result, problem, train, **beside), label, train)
        if certify_by.any() and self.answered_ is None:
            self.certificate_ = certify(self.result_, problem, of(certify_by), self.confidence)
            self.answered_ = is_certified(self.certificate_) if self.validation else None

    def _standardise(self, X: np.ndarray, weights: np.ndarray) -> None:  # noqa: N803
        self.mean_ = np.average(X, axis=0, weights=weights)
        deviation = np.sqrt(np.average((X - self.mean_) ** 2, axis=0, weights=weights))
        self.scale_ = np.where(deviation > 0, deviation, 1.0)

    def _standardised(self, X: np.ndarray) -> np.ndarray:  # noqa: N803
        return ((X - self.mean_) / self.scale_).astype(np.float32)

    def _keep(self, result: Result, label: Label, train: ClientData) -> None:
        self.result_ = result
        self.params_ = jax.tree.map(np.asarray, result.params)
        self.status_ = result.status
        self.worst_objective_ = result.worst_objective
        self.worst_constraint_ = result.worst_constraint
        self._fitted = {"label": label, "params": self.params_, "mean": self.mean_, "scale": self.scale_}
        self._client_rows = train.sizes.tolist()
        limited = self.rounds is not None or self.seconds is not None
        improving = [found for found in result.diagnostics if limited and found.code == DiagnosticCode.STILL_IMPROVING]
        if not result.status.ok or improving:
            said = str(improving[0]) if improving else str(result.status)
            warnings.warn(said, ConvergenceWarning, stacklevel=4)

    def _from_before(self, problem: Problem, before: dict[str, Any], label: Label) -> Problem:
        """The problem that begins at the model of the last fit: the same predictions, features standardised anew."""
        shapes = [jax.tree.map(np.shape, network) for network in (problem.start, before["params"])]
        if shapes[0] != shapes[1]:
            raise ValueError("warm_start needs the features, classes and hidden layers of the last fit")
        first, *rest = before["params"]
        moved = (self.mean_ - before["mean"]) / before["scale"]
        start: Network = [
            {"w": first["w"] * (self.scale_ / before["scale"])[:, None], "b": first["b"] + moved @ first["w"]},
            *rest,
        ]
        was = before["label"]
        if isinstance(label, NumberLabel):
            start = moved_network(start, was.scale / label.scale, (was.mean - label.mean) / label.scale)
        like = problem.start
        return replace(problem, start=jax.tree.map(lambda value, leaf: jnp.asarray(value, leaf.dtype), start, like))

    def _outputs(self, X: Any) -> np.ndarray:  # noqa: N803
        """What the network gives for each row."""
        check_is_fitted(self)
        if self.answered_ is False and not self.uncertified:
            raise ValueError(f"{ending(self.certificate_)} To predict all the same: uncertified=True")
        X = validate_data(self, X, dtype=float, reset=False)  # noqa: N806
        return np.asarray(outputs(self.params_, jnp.asarray(self._standardised(X))), dtype=float)

    def _linear(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights and intercepts of a linear model, for features as they were given; one row an output."""
        check_is_fitted(self)
        if len(self.params_) > 1:
            raise AttributeError("coef_ and intercept_ are there for linear models only, with hidden=()")
        weights = np.asarray(self.params_[0]["w"], dtype=float) / self.scale_[:, None]
        return weights.T, np.asarray(self.params_[0]["b"], dtype=float) - self.mean_ @ weights

    def report(self, out: str | Path = "report.html") -> Path:
        """Write the report of the fit as one HTML file: verdict, every client, what looks wrong.

        Args:
            out: the HTML file to write.
        """
        check_is_fitted(self)
        return report(
            self.result_, out, certificate=self.certificate_, rows=self._client_rows, title=type(self).__name__
        )


def check_row_values(name: str, values: Any, rows: int) -> np.ndarray:
    """An array with one value a row, or raise."""
    array = np.asarray(values)
    if array.shape != (rows,):
        raise ValueError(f"{name} must have one value for each of {rows} rows, but has shape {array.shape}")
    return array


def worst_client_scorer(metric: str | Callable[..., float] = "accuracy") -> Any:
    """A scorer that is the smallest of all clients' scores: what a search should make large.

        sklearn.set_config(enable_metadata_routing=True)
        model = RateClassifier(bound=0.1).set_fit_request(clients=True)
        search = GridSearchCV(model, {"bound": [0.05, 0.1]}, scoring=worst_client_scorer("accuracy"))
        search.fit(X, y, clients=hospital)

    Args:
        metric: the name of a scorer of scikit-learn that compares labels with predictions ("accuracy", "recall",
            "neg_mean_absolute_error", …), or a function ``(y, predicted) -> number``, larger for better.
    """
    if not get_config()["enable_metadata_routing"]:
        raise ValueError(
            "worst_client_scorer must be told whose rows it scores; first: "
            "sklearn.set_config(enable_metadata_routing=True)"
        )
    if isinstance(metric, str):
        known = get_scorer(metric)
        if known._response_method != "predict":
            raise ValueError(f"metric must compare labels with predictions, but {metric!r} needs probabilities")
        function, sign, more = known._score_func, known._sign, known._kwargs
    else:
        function, sign, more = metric, 1, {}

    def worst(y: Any, predicted: Any, *, clients: Any = None) -> float:
        labels, found = np.asarray(y), np.asarray(predicted)
        owner = np.zeros(len(labels)) if clients is None else check_row_values("clients", clients, len(labels))
        own = (owner == name for name in np.unique(owner))
        return min(float(sign * function(labels[rows], found[rows], **more)) for rows in own)

    return make_scorer(worst).set_score_request(clients=True)
