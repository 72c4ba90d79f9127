"""scikit-learn estimators that keep a bound at every client."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import softmax
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import get_scorer, make_scorer
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, check_random_state, validate_data

from softswitch.certification.certify import certify
from softswitch.data.client_data import ClientData
from softswitch.data.splits import DataSplit, split_masks
from softswitch.engine.baselines import add_baselines
from softswitch.engine.certified import solve_certified
from softswitch.engine.solve import solve
from softswitch.methods.automatic import as_method
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.oracles.options import Logging, Sampling
from softswitch.problem.choices import BINARY, MULTICLASS
from softswitch.problem.networks import Network, apply_network, rescale_network
from softswitch.problem.parameters import WEIGHT, Batch, Params
from softswitch.problem.problem import Problem
from softswitch.results.certificate import describe_certification, is_certified
from softswitch.results.report.page import report
from softswitch.results.result import Result
from softswitch.results.status import DiagnosticCode
from softswitch.support import checks
from softswitch.tables.constraints import KINDS, build_problem, kind_names
from softswitch.tables.labels import BinaryLabel, Label, NumberLabel, fit_multiclass_label, fit_number_label
from softswitch.tables.preparation import fill_alpha

SAMPLE_WEIGHT = "sample_weight"
"""Column with the weight of a row."""


def weight_problem(problem: Problem) -> Problem:
    """Return the problem with rows weighted by the column ``sample_weight``; its certificates are approximate."""
    surrogate = problem.constraint_surrogate
    return replace(
        problem,
        objective=weight_rows(problem.objective),
        constraint=weight_rows(problem.constraint),
        constraint_surrogate=None if surrogate is None else weight_rows(surrogate),
    )


def weight_rows(function: Any) -> Any:
    """Return the function with rows weighted by the column ``sample_weight``."""
    if is_dataclass(function) and not isinstance(function, type):  # a constraint made of several functions
        names = [name for name in ("statistics", "exact") if hasattr(function, name)]
        return replace(function, **{name: weight_rows(getattr(function, name)) for name in names})

    def weighted(params: Params, batch: Batch) -> Any:
        return function(params, {**batch, WEIGHT: batch[WEIGHT] * batch[SAMPLE_WEIGHT]})

    return weighted


class FederatedEstimator(BaseEstimator):
    """Base class of the estimators: a linear model or a network, trained by Softmax SGM on standardised features."""

    def __init__(
        self,
        kind: str = "miss-rate",
        bound: float = 0.05,
        *,
        alpha: float | None = None,
        step_size: float | None = None,
        rounds: int | None = None,
        seconds: float | None = None,
        local_steps: int = 1,
        participation: float = 1.0,
        batch_size: int | Literal["auto"] | None = "auto",
        hidden: tuple[int, ...] = (),
        held_out: float = 0.0,
        validation: float = 0.0,
        allow_uncertified: bool = False,
        warm_start: bool = False,
        confidence: float = 0.95,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.kind = kind
        self.bound = bound
        self.alpha = alpha
        self.step_size = step_size
        self.rounds = rounds
        self.seconds = seconds
        self.local_steps = local_steps
        self.participation = participation
        self.batch_size = batch_size
        self.hidden = hidden
        self.held_out = held_out
        self.validation = validation
        self.allow_uncertified = allow_uncertified
        self.warm_start = warm_start
        self.confidence = confidence
        self.random_state = random_state

    @abstractmethod
    def _fit_label(self, y: np.ndarray, is_training: np.ndarray) -> Label:
        """Fit the label with statistics of the training rows."""

    def _problem_options(self) -> dict[str, Any]:
        return {}

    def _check_kind(self) -> None:
        checks.check_choice("kind", self.kind, kind_names(estimator=type(self).__name__))

    def _train(
        self,
        X: np.ndarray,  # noqa: N803
        y: np.ndarray,
        clients: Any,
        sample_weight: Any,
        stratified: dict[str, np.ndarray],
    ) -> None:
        """Train and certify; ``stratified``: columns that all splits have in equal shares."""
        owner = np.zeros(len(y), int) if clients is None else check_row_values("clients", clients, len(y))
        columns = dict(stratified)
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
            counts = weights > 0
            X, y, owner = X[counts], y[counts], owner[counts]  # noqa: N806
            stratified = {name: column[counts] for name, column in stratified.items()}
            columns = stratified | {SAMPLE_WEIGHT: (weights[counts] / weights[counts].mean()).astype(np.float32)}
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = int(check_random_state(seed).randint(2**31 - 1))
        if self.validation and not self.held_out:
            raise ValueError(f"validation = {self.validation!r} needs held_out above 0: rows for the certificate")
        masks = split_masks(
            owner,
            *stratified.values(),
            validation=self.validation,
            calibration=self.held_out,
            seed=seed,
            names=("validation", "held_out"),
        )
        learn, choose, keep = masks
        previous = self.__dict__.get("_fitted") if self.warm_start else None
        label = self._fit_label(y, learn)
        self._fit_scaler(X[learn], columns.get(SAMPLE_WEIGHT, np.ones(len(y)))[learn])
        columns |= {"y": label.encode(y), "x": self._standardise(X)}
        built = build_problem(
            self.kind,
            X.shape[1],
            tuple(self.hidden),
            seed=seed,
            label=label,
            bound=self.bound,
            **self._problem_options(),
        )
        problem, cost = built.problem, built.cost
        if SAMPLE_WEIGHT in columns:
            problem, cost = weight_problem(problem), None if cost is None else weight_rows(cost)
        if previous is not None:
            problem = self._warm_start(problem, previous, label)

        def select(part: np.ndarray) -> ClientData:
            selected = {name: column[part] for name, column in columns.items()}
            return ClientData.from_arrays(selected, owner[part], strata=built.strata)

        train, automatic = select(learn), self.step_size is None
        method = SoftmaxSGM(alpha=self.alpha, step_size=self.step_size, tolerance=self.bound)
        active = as_method(fill_alpha(method, len(train)))
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
        self.certificate_, self.certified_ = None, None
        if choose.any() and keep.any():
            split = DataSplit(train, select(choose), select(keep))
            certified = solve_certified(problem, split, active, confidence=self.confidence, move=label.move, **options)
            result, self.certificate_, self.certified_ = certified.result, certified.certificate, certified.answered
        else:
            result = solve(problem, train, active, **options)
        constants = partial(label.constant, problem.start)
        baselines: dict[str, Any] = {"constants": constants, "unconstrained": False, "cost": cost}
        self._store(add_baselines(result, problem, train, **baselines), label, train)
        if keep.any() and self.certified_ is None:
            self.certificate_ = certify(self.result_, problem, select(keep), self.confidence)
            self.certified_ = is_certified(self.certificate_) if self.validation else None

    def _fit_scaler(self, X: np.ndarray, weights: np.ndarray) -> None:  # noqa: N803
        self.mean_ = np.average(X, axis=0, weights=weights)
        deviation = np.sqrt(np.average((X - self.mean_) ** 2, axis=0, weights=weights))
        self.scale_ = np.where(deviation > 0, deviation, 1.0)

    def _standardise(self, X: np.ndarray) -> np.ndarray:  # noqa: N803
        return ((X - self.mean_) / self.scale_).astype(np.float32)

    def _store(self, result: Result, label: Label, train: ClientData) -> None:
        self.result_ = result
        self.params_ = jax.tree.map(np.asarray, result.params)
        self.status_ = result.status
        self.worst_objective_ = result.worst_objective
        self.worst_constraint_ = result.worst_constraint
        self._fitted = {"label": label, "params": self.params_, "mean": self.mean_, "scale": self.scale_}
        self._client_rows = train.sizes.tolist()
        improving = []
        if self.rounds is not None or self.seconds is not None:
            improving = [one for one in result.diagnostics if one.code == DiagnosticCode.STILL_IMPROVING]
        if not result.status.ok or improving:
            message = str(improving[0]) if improving else str(result.status)
            warnings.warn(message, ConvergenceWarning, stacklevel=4)

    def _warm_start(self, problem: Problem, previous: dict[str, Any], label: Label) -> Problem:
        """Return the problem that starts at the model of the last fit, adapted to the new standardisation."""
        shapes = [jax.tree.map(np.shape, network) for network in (problem.start, previous["params"])]
        if shapes[0] != shapes[1]:
            raise ValueError("warm_start needs the features, classes and hidden layers of the last fit")
        first, *rest = previous["params"]
        shift = (self.mean_ - previous["mean"]) / previous["scale"]
        start: Network = [
            {"w": first["w"] * (self.scale_ / previous["scale"])[:, None], "b": first["b"] + shift @ first["w"]},
            *rest,
        ]
        last = previous["label"]
        if isinstance(label, NumberLabel):
            start = rescale_network(start, last.scale / label.scale, (last.mean - label.mean) / label.scale)
        like = problem.start
        return replace(problem, start=jax.tree.map(lambda value, leaf: jnp.asarray(value, leaf.dtype), start, like))

    def _outputs(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the network's outputs for each row."""
        check_is_fitted(self)
        if self.certified_ is False and not self.allow_uncertified:
            raise ValueError(
                f"{describe_certification(self.certificate_)} To predict anyway, set allow_uncertified=True"
            )
        X = validate_data(self, X, dtype=float, reset=False)  # noqa: N806
        return np.asarray(apply_network(self.params_, jnp.asarray(self._standardise(X))), dtype=float)

    def _linear(self) -> tuple[np.ndarray, np.ndarray]:
        """Return weights and intercepts of a linear model for the original features, one row per output."""
        check_is_fitted(self)
        if len(self.params_) > 1:
            raise AttributeError("coef_ and intercept_ exist for linear models only, with hidden=()")
        weights = np.asarray(self.params_[0]["w"], dtype=float) / self.scale_[:, None]
        return weights.T, np.asarray(self.params_[0]["b"], dtype=float) - self.mean_ @ weights

    def report(self, out: str | Path = "report.html") -> Path:
        """Write a report of the fit with verdict, clients and diagnostics.

        Args:
            out: The HTML file to write.
        """
        check_is_fitted(self)
        return report(
            self.result_, out, certificate=self.certificate_, rows=self._client_rows, title=type(self).__name__
        )


class BoundedClassifier(ClassifierMixin, FederatedEstimator):
    """Classifier that keeps a bound at every client and minimises the loss of the worst client.

    Parameters:
        kind: Kind of constraint: "miss-rate", "false-alarm-rate", "error-rate", "class-miss-rate" (of each class);
            gaps between two groups' decisions or hit rates, "decision-parity" and "decision-opportunity", or between
            their mean probabilities, "demographic-parity" and "equal-opportunity"; "neyman-pearson" (log loss of
            positive rows), or "group-loss" (log loss of each group). "error-rate" and "class-miss-rate" support
            several classes.
        bound: Largest value of the constraint that any client may have: a rate of 0.05 is 5%.
        alpha: Sharpness of the softmax weights of the clients. Default: chosen during training.
        step_size: Step size of the server. Default: chosen during training. If set, all other defaults are as
            published.
        rounds: Maximum number of rounds. Default: stop when progress stalls.
        seconds: Stop at the first checkpoint after this many seconds. Default: no limit.
        local_steps: Local gradient steps of a client per round.
        participation: Share of clients per round.
        batch_size: Rows per client and gradient; None: all rows; "auto": chosen.
        hidden: Widths of the hidden layers; () is a linear model.
        held_out: Share of each client's rows for the certificate; 0: no certificate.
        validation: Share of each client's rows to select a certifiable model with; needs ``held_out``. If the model
            is then not certified, ``predict`` raises an error.
        allow_uncertified: Predict even if certification failed.
        warm_start: Start at the model of the last fit.
        confidence: Confidence level of the certificate.
        random_state: Seed of all random choices.

    Attributes:
        classes_: The classes.
        groups_: The values of the two groups, if there are groups; the second is protected.
        coef_: Weights of a linear model for the original features, with ``intercept_``.
        params_: Parameters of the model for standardised features.
        status_: How training ended; ``status_.ok`` if every client keeps the bound on its training rows.
        worst_objective_: Objective of the worst client on its training rows.
        worst_constraint_: Constraint of the worst client on its training rows.
        certificate_: Certificate on the held-out rows; None without such rows.
        certified_: Whether the model is certified; None if ``validation`` is 0.
        result_: The full result.
        n_features_in_: Number of features.
        feature_names_in_: Names of the features, if they have names.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self.kind in kind_names(MULTICLASS)
        return tags

    def fit(
        self,
        X: ArrayLike | pd.DataFrame,  # noqa: N803
        y: ArrayLike,
        clients: ArrayLike | None = None,
        sensitive_features: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> BoundedClassifier:
        """Train such that every client keeps the bound and the worst client's loss is minimal.

        Args:
            X: Features.
            y: Labels; of two classes, the one that sorts last is positive.
            clients: Client of each row. Default: one client.
            sensitive_features: Group of each row, of two values, for kinds that compare groups; the value that sorts
                last is protected.
            sample_weight: Weight of each row, >= 0. Default: equal weights. With weights, certificates are
                approximate.
        """
        self._check_kind()
        X, y = validate_data(self, X, y, dtype=float, ensure_min_samples=2)  # noqa: N806
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        count, kind = len(self.classes_), KINDS[self.kind]
        if count < 2 or (count > 2 and MULTICLASS not in kind.label_types):
            is_multiclass = MULTICLASS in kind.label_types
            prefix = "" if is_multiclass else "Only binary classification is supported: "
            expected = "at least 2 classes" if is_multiclass else "2 classes"
            raise ValueError(f"{prefix}y must have {expected}, but has {count} class{'es' * (count != 1)}")
        stratified = {"y": codes.astype(np.int32)}
        if kind.uses_groups:
            stratified["group"] = self._encode_groups(sensitive_features, len(codes))
        self._train(X, codes, clients, sample_weight, stratified)
        return self

    def _fit_label(self, y: np.ndarray, is_training: np.ndarray) -> Label:
        if len(self.classes_) == 2 and BINARY in KINDS[self.kind].label_types:
            return BinaryLabel(0, 1)
        return fit_multiclass_label(pd.Series(y), is_training)

    def _encode_groups(self, sensitive_features: Any, rows: int) -> np.ndarray:
        if sensitive_features is None:
            raise ValueError("sensitive_features must be given to fit: the group of each row")
        values, group = np.unique(check_row_values("sensitive_features", sensitive_features, rows), return_inverse=True)
        if len(values) != 2:
            raise ValueError(f"sensitive_features must have two values, but has {len(values)}: {values[:5].tolist()}")
        self.groups_ = values
        return group.astype(np.int32)

    def decision_function(self, X: ArrayLike | pd.DataFrame) -> np.ndarray:  # noqa: N803
        """Return the log odds of the positive class, or one score per class if there are several.

        Args:
            X: Features, as in ``fit``.
        """
        values = self._outputs(X)
        if values.shape[1] == 1:
            return values[:, 0]
        return values[:, 1] - values[:, 0] if len(self.classes_) == 2 else values

    def predict_proba(self, X: ArrayLike | pd.DataFrame) -> np.ndarray:  # noqa: N803
        """Return the probability of every class.

        Args:
            X: Features, as in ``fit``.
        """
        values = self.decision_function(X)
        if values.ndim == 1:
            values = np.stack([np.zeros_like(values), values], axis=1)
        probabilities: np.ndarray = softmax(values, axis=1)
        return probabilities

    def predict(self, X: ArrayLike | pd.DataFrame) -> np.ndarray:  # noqa: N803
        """Return the class of each row.

        Args:
            X: Features, as in ``fit``.
        """
        values = self.decision_function(X)
        codes = (values > 0).astype(int) if values.ndim == 1 else values.argmax(axis=1)
        predicted: np.ndarray = self.classes_[codes]
        return predicted

    @property
    def coef_(self) -> np.ndarray:
        """Weights of a linear model for the original features: one row, or one per class."""
        weights, _ = self._linear()
        return weights if len(weights) != 2 else weights[1:] - weights[:1]

    @property
    def intercept_(self) -> np.ndarray:
        """Intercepts of a linear model."""
        _, intercepts = self._linear()
        return intercepts if len(intercepts) != 2 else intercepts[1:] - intercepts[:1]


class BoundedRegressor(RegressorMixin, FederatedEstimator):
    """Regressor that keeps a bound at every client and minimises the loss of the worst client.

    Parameters:
        kind: Kind of constraint: "coverage", the share of rows above the prediction, which is then an upper limit;
            "mean-error", the absolute value of the mean error; or "absolute-error", the mean absolute error. Errors
            are in the label's unit.
        bound: Largest value of the constraint that any client may have: 0.1 is 10% for coverage.
        loss: The "squared", "absolute" or "quantile" loss. Default: quantile for coverage, else squared.
        quantile: Quantile of the quantile loss. Default: 1 − ``bound`` for coverage, else 0.5.
        label_range: Smallest and largest possible label, if known. Certificates of errors are then exact, and
            predictions are clipped.
        alpha: Sharpness of the softmax weights of the clients. Default: chosen during training.
        step_size: Step size of the server. Default: chosen during training. If set, all other defaults are as
            published.
        rounds: Maximum number of rounds. Default: stop when progress stalls.
        seconds: Stop at the first checkpoint after this many seconds. Default: no limit.
        local_steps: Local gradient steps of a client per round.
        participation: Share of clients per round.
        batch_size: Rows per client and gradient; None: all rows; "auto": chosen.
        hidden: Widths of the hidden layers; () is a linear model.
        held_out: Share of each client's rows for the certificate; 0: no certificate.
        validation: Share of each client's rows to select a certifiable model with; needs ``held_out``. If the model
            is then not certified, ``predict`` raises an error.
        allow_uncertified: Predict even if certification failed.
        warm_start: Start at the model of the last fit.
        confidence: Confidence level of the certificate.
        random_state: Seed of all random choices.

    Attributes:
        coef_: Weights of a linear model for the original features, with ``intercept_``.
        params_: Parameters of the model for standardised features and labels.
        status_: How training ended; ``status_.ok`` if every client keeps the bound on its training rows.
        worst_objective_: Loss of the worst client on its training rows, in the label's unit (squared: its square).
        worst_constraint_: Constraint of the worst client on its training rows.
        certificate_: Certificate on the held-out rows; None without such rows.
        certified_: Whether the model is certified; None if ``validation`` is 0.
        result_: The full result.
        n_features_in_: Number of features.
        feature_names_in_: Names of the features, if they have names.
    """

    def __init__(
        self,
        kind: str = "coverage",
        bound: float = 0.1,
        *,
        loss: str | None = None,
        quantile: float | None = None,
        label_range: tuple[float, float] | None = None,
        alpha: float | None = None,
        step_size: float | None = None,
        rounds: int | None = None,
        seconds: float | None = None,
        local_steps: int = 1,
        participation: float = 1.0,
        batch_size: int | Literal["auto"] | None = "auto",
        hidden: tuple[int, ...] = (),
        held_out: float = 0.0,
        validation: float = 0.0,
        allow_uncertified: bool = False,
        warm_start: bool = False,
        confidence: float = 0.95,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        super().__init__(
            kind,
            bound,
            alpha=alpha,
            step_size=step_size,
            rounds=rounds,
            seconds=seconds,
            local_steps=local_steps,
            participation=participation,
            batch_size=batch_size,
            hidden=hidden,
            held_out=held_out,
            validation=validation,
            allow_uncertified=allow_uncertified,
            warm_start=warm_start,
            confidence=confidence,
            random_state=random_state,
        )
        self.loss = loss
        self.quantile = quantile
        self.label_range = label_range

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = self.kind == "coverage"  # an upper limit does not predict the mean
        return tags

    def _problem_options(self) -> dict[str, Any]:
        return {"loss": self.loss, "quantile": self.quantile}

    def fit(
        self,
        X: ArrayLike | pd.DataFrame,  # noqa: N803
        y: ArrayLike,
        clients: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> BoundedRegressor:
        """Train such that every client keeps the bound and the worst client's loss is minimal.

        Args:
            X: Features.
            y: Labels.
            clients: Client of each row. Default: one client.
            sample_weight: Weight of each row, >= 0. Default: equal weights. With weights, certificates are
                approximate.
        """
        self._check_kind()
        X, y = validate_data(self, X, y, dtype=float, y_numeric=True, ensure_min_samples=2)  # noqa: N806
        self._train(X, np.asarray(y, dtype=float), clients, sample_weight, {})
        return self

    def _fit_label(self, y: np.ndarray, is_training: np.ndarray) -> Label:
        return fit_number_label(pd.Series(y, name="y"), is_training, tuple(self.label_range or ()))

    def predict(self, X: ArrayLike | pd.DataFrame) -> np.ndarray:  # noqa: N803
        """Return the predicted number of each row; for coverage its upper limit.

        Args:
            X: Features, as in ``fit``.
        """
        values = self._outputs(X)
        predicted: np.ndarray = self._label.decode(values)
        return predicted

    @property
    def _label(self) -> NumberLabel:
        label: NumberLabel = self._fitted["label"]
        return label

    @property
    def coef_(self) -> np.ndarray:
        """Weights of a linear model for the original features, in the label's unit."""
        weights: np.ndarray = self._linear()[0][0] * self._label.scale
        return weights

    @property
    def intercept_(self) -> float:
        """Intercept of a linear model."""
        return float(self._linear()[1][0] * self._label.scale + self._label.mean)


def check_row_values(name: str, values: Any, rows: int) -> np.ndarray:
    """Return an array with one value per row, or raise."""
    array = np.asarray(values)
    if array.shape != (rows,):
        raise ValueError(f"{name} must have one value for each of {rows} rows, but has shape {array.shape}")
    return array


def worst_client_scorer(metric: str | Callable[..., float] = "accuracy") -> Any:
    """Return a scorer that is the smallest score of any client, for model selection.

        sklearn.set_config(enable_metadata_routing=True)
        model = BoundedClassifier(bound=0.1).set_fit_request(clients=True)
        search = GridSearchCV(model, {"bound": [0.05, 0.1]}, scoring=worst_client_scorer("accuracy"))
        search.fit(X, y, clients=hospital)

    Args:
        metric: Name of a scorer of scikit-learn that compares labels with predictions ("accuracy", "recall",
            "neg_mean_absolute_error", …), or a function ``(y, predicted) -> number``, larger for better.
    """
    if not get_config()["enable_metadata_routing"]:
        raise ValueError(
            "worst_client_scorer needs metadata routing for the clients of the rows; call "
            "sklearn.set_config(enable_metadata_routing=True) first"
        )
    if isinstance(metric, str):
        scorer = get_scorer(metric)
        if scorer._response_method != "predict":
            raise ValueError(f"metric must compare labels with predictions, but {metric!r} needs probabilities")
        function, sign, options = scorer._score_func, scorer._sign, scorer._kwargs
    else:
        function, sign, options = metric, 1, {}

    def worst_score(y: Any, predicted: Any, *, clients: Any = None) -> float:
        y, predicted = np.asarray(y), np.asarray(predicted)
        owner = np.zeros(len(y)) if clients is None else check_row_values("clients", clients, len(y))
        masks = (owner == client for client in np.unique(owner))
        return min(float(sign * function(y[rows], predicted[rows], **options)) for rows in masks)

    return make_scorer(worst_score).set_score_request(clients=True)
