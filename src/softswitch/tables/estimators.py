"""scikit-learn estimators that keep a constraint within a bound at every client."""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import logit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data

from softswitch.certification.certify import certify
from softswitch.data.client_data import ClientData
from softswitch.data.splits import DataSplit, split_masks
from softswitch.engine.baselines import add_baselines
from softswitch.engine.certified import solve_certified
from softswitch.engine.solve import solve
from softswitch.methods.automatic import Automatic
from softswitch.methods.base import Method
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.oracles.options import Compute, Logging, Output, Sampling
from softswitch.problem.choices import BINARY, MULTICLASS, NUMBER
from softswitch.problem.networks import apply_network
from softswitch.problem.problem import Problem
from softswitch.results.certificate import describe_certification, is_certified
from softswitch.results.result import Result
from softswitch.results.status import DiagnosticCode
from softswitch.support import checks
from softswitch.tables.constraints import KINDS, build_problem, kind_names
from softswitch.tables.labels import fit_label, predict_codes
from softswitch.tables.metrics import diagnose_answer, judge_usefulness
from softswitch.tables.preparation import fill_alpha
from softswitch.tables.settings import TaskSection
from softswitch.tables.thresholds import train_score

OPTIONS = ("rounds", "seconds", "sampling", "output", "compute", "logging")  # parameters that are passed to ``solve``
Features: TypeAlias = ArrayLike | pd.DataFrame


@dataclass(eq=False, repr=False)
class FederatedEstimator(BaseEstimator):
    """Base class of the estimators, which standardise the features.

    Parameters:
        kind: Kind of constraint. Default: "miss-rate".
        bound: Largest value of the constraint that any client may have. Default: 0.05.
        alpha: Sharpness of the softmax weights of the clients. Default: chosen during training.
        step_size: Step size of the server. Default: chosen during training. If set, all other defaults are as
            published.
        rounds: Maximum number of rounds. Default: stop when progress stalls.
        seconds: Time limit of training in rounds, in seconds. Default: no limit.
        sampling, output, compute: Options as for ``solve``.
        logging: What is recorded and shown, as for ``solve``. Default: ``Logging(eval_every=0)``.
        hidden: Widths of the hidden layers. Default: (), no network.
        estimator: Model whose outputs are compared with a threshold, for a bounded rate: "linear", "boosting", "auto"
            for the mean of both, or any classifier or regressor of scikit-learn. The threshold keeps the bound, and
            values on training rows are cross-validated. With ``hidden``, ``alpha``, ``step_size``, ``rounds`` or
            ``sampling``, and for other kinds, a model is trained with the constraint instead. Only such a model
            accepts ``seconds``, ``output``, ``compute`` and ``logging``. Default: "auto".
        held_out: Share, in [0, 1), of each client's rows for the certificate, up to twice that at small clients.
            Default: 0, no certificate.
        validation: Share, in [0, 1), of each client's rows to select a certifiable model with; needs ``held_out``. If
            the model is then not certified, ``predict`` raises an error. Default: 0, no selection.
        allow_uncertified: Whether to predict even if certification failed. Default: False.
        confidence: Confidence level of the certificate, in (0, 1). Default: 0.95.
        random_state: Seed of all random choices, or a ``RandomState``. Default: 0.

    Attributes:
        coef_: Weights of a linear model for the original features, with ``intercept_``.
        score_: The fitted ``Score``; None if the model was trained with the constraint.
        threshold_: Probability above which a row is predicted positive; None if the label is not of two values.
        params_: Parameters of the model for standardised features (and a standardised label if it is a number).
        status_: How training ended; ``status_.ok`` if every client keeps the bound on its training rows.
        worst_objective_: Objective of the worst client on its training rows; in the label's unit if it is a number.
        worst_constraint_: Constraint of the worst client on its training rows.
        certificate_: Certificate on the held-out rows; None if ``held_out`` is 0.
        certified_: Whether the model is certified; None if ``validation`` is 0.
        result_: The ``Result`` of training.
        n_features_in_: Number of features.
        feature_names_in_: Names of the features, if they have names.
    """

    kind: str = "miss-rate"
    bound: float = 0.05
    _: KW_ONLY
    alpha: float | None = None
    step_size: float | None = None
    rounds: int | None = None
    seconds: float | None = None
    sampling: Sampling | None = None
    output: Output | None = None
    compute: Compute | None = None
    logging: Logging | None = None
    hidden: tuple[int, ...] = ()
    estimator: str | BaseEstimator = "auto"
    held_out: float = 0.0
    validation: float = 0.0
    allow_uncertified: bool = False
    confidence: float = 0.95
    random_state: int | np.random.RandomState | None = 0

    def _train(
        self, x: np.ndarray, y: np.ndarray, clients: Any, stratified: dict[str, Any], limits: Any = None, **loss: Any
    ) -> None:
        """Train, certify and set the fitted attributes; ``limits`` is the range of a number, if known."""
        owner = np.zeros(len(y), int) if clients is None else check_row_values("clients", clients, len(y))
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = int(check_random_state(seed).randint(2**31 - 1))
        if self.validation and not self.held_out:
            raise ValueError(f"validation = {self.validation!r} needs held_out above 0: rows for the certificate")
        shares: dict[str, Any] = {"validation": self.validation, "calibration": self.held_out}
        names = ("validation", "held_out")
        learn, choose, keep = split_masks(owner, *stratified.values(), **shares, seed=seed, names=names)
        label = fit_label(pd.Series(y, name="y"), learn, KINDS[self.kind].label_types, limits=tuple(limits or ()))
        self._scaler = StandardScaler().fit(x[learn])
        columns = stratified | {"y": label.encode(y), "x": np.asarray(self._scaler.transform(x), np.float32)}
        options: dict[str, Any] = {"seed": seed, "bound": self.bound, **loss}
        built = build_problem(self.kind, x.shape[1], tuple(self.hidden), label=label, **options)
        problem = built.problem

        def select(part: np.ndarray) -> ClientData:
            selected = {name: column[part] for name, column in columns.items()}
            return ClientData.from_arrays(selected, owner[part], strata=built.strata)

        self.certificate_, self.certified_, self.score_ = None, None, None
        self.threshold_ = 0.5 if label.type == BINARY else None
        if self._uses_score():
            held_out = select(keep) if keep.any() else None
            options |= {"score": self.estimator, "confidence": self.confidence, "select": bool(self.validation)}
            scored = train_score(self.kind, label, select(~keep), held_out, **options)
            result, self.certificate_, self.score_ = scored.result, scored.certificate, scored.score
            task = TaskSection(self.kind, self.bound, **loss)
            judged: dict[str, Any] = {"name": "y", "is_held_out": scored.calibration is not None}
            rows = scored.calibration or scored.learning
            usefulness = judge_usefulness(task, label, result, rows, **judged)
            diagnostics = diagnose_answer(task, result, scored.certificate, usefulness)
            result = replace(result, diagnostics=tuple(diagnostics))
            self.threshold_ = scored.probability
        else:
            result = self._train_in_rounds(problem, select, (learn, choose, keep), label, seed)
            constants = partial(label.constant, problem.start)
            train = select(learn)
            result = add_baselines(result, problem, train, constants=constants, unconstrained=False, cost=built.cost)
            if keep.any() and self.certificate_ is None:
                self.certificate_ = certify(result, problem, select(keep), self.confidence)
        self.certified_ = is_certified(self.certificate_) if self.validation else None
        self.result_, self.status_, self.params_ = result, result.status, jax.tree.map(np.asarray, result.params)
        self.worst_objective_, self.worst_constraint_ = result.worst_objective, result.worst_constraint
        self._label: Any = label
        is_limited = self.rounds is not None or self.seconds is not None
        improving = [one for one in result.diagnostics if is_limited and one.code == DiagnosticCode.STILL_IMPROVING]
        if not result.status.ok or improving:
            warnings.warn(str([*improving, result.status][0]), ConvergenceWarning, stacklevel=3)

    def _uses_score(self) -> bool:
        """Return whether the model is a score with a threshold, rather than trained with the constraint."""
        given = (self.alpha, self.step_size, self.rounds, self.sampling)
        if KINDS[self.kind].path is None or self.hidden or any(one is not None for one in given):
            return False
        if unused := [name for name in OPTIONS if getattr(self, name) is not None]:
            problem = "has no effect on a score with a threshold, which is not trained in rounds"
            raise ValueError(f"{unused[0]} {problem}; remove it, or set rounds or hidden to train in rounds")
        return True

    def _train_in_rounds(self, problem: Problem, select: Any, masks: Any, label: Any, seed: int) -> Result:
        """Return the result of a model that is trained with the constraint, and set its certificate if requested."""
        learn, choose, keep = masks
        train = select(learn)
        fixed: dict[str, Any] = {} if self.alpha is None else {"alpha": self.alpha}
        active: Method | Automatic = Automatic(self.bound, **fixed)
        if self.step_size is not None:
            method = SoftmaxSGM(alpha=self.alpha, step_size=self.step_size, tolerance=self.bound)
            active = fill_alpha(method, len(train))
        options = {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}
        run: dict[str, Any] = {"seed": seed, "logging": Logging(eval_every=0), **options}
        if not (choose.any() and keep.any()):
            return solve(problem, train, active, **run)
        split = DataSplit(train, select(choose), select(keep))
        certified = solve_certified(problem, split, active, confidence=self.confidence, move=label.move, **run)
        self.certificate_ = certified.certificate
        return certified.result

    def _outputs(self, X: Any) -> np.ndarray:  # noqa: N803
        """Return the network's outputs, rows × outputs; raise ValueError if the model is not certified but must be."""
        check_is_fitted(self)
        if self.certified_ is False and not self.allow_uncertified:
            verdict = describe_certification(self.certificate_)
            raise ValueError(f"{verdict} To predict anyway, set allow_uncertified=True")
        x = self._scaler.transform(validate_data(self, X, dtype=float, reset=False))
        x = x if self.score_ is None else self.score_.outputs(x)
        return np.asarray(apply_network(self.params_, jnp.asarray(x, jnp.float32)), dtype=float)

    def _linear(self) -> tuple[np.ndarray, np.ndarray]:
        """Return weights (outputs × features) and intercepts (outputs) of a linear model for the original features."""
        check_is_fitted(self)
        linear = () if self.score_ is None else self.score_.estimators
        if len(self.params_) > 1 or any(not hasattr(one, "coef_") for one in linear) or len(linear) > 1:
            raise AttributeError("coef_ and intercept_ exist for linear models only: hidden=() and estimator='linear'")
        weights, intercepts = (np.asarray(self.params_[0][name], dtype=float) for name in "wb")
        for one in linear:
            coefficients = np.atleast_2d(one.coef_)
            weights, intercepts = coefficients.T @ weights, np.atleast_1d(one.intercept_) @ weights + intercepts
        weights = weights / self._scaler.scale_[:, None]
        return weights.T, intercepts - self._scaler.mean_ @ weights


class BoundedClassifier(ClassifierMixin, FederatedEstimator):
    """Classifier that keeps a bound at every client and minimises the loss of the worst client.

    Parameters that are not listed here are those of ``FederatedEstimator``.

    Parameters:
        kind: Kind of constraint: "miss-rate", "false-alarm-rate", "error-rate", "class-miss-rate" (of each class);
            gaps between two groups' decisions or hit rates, "decision-parity" and "decision-opportunity", or between
            their mean probabilities, "demographic-parity" and "equal-opportunity"; "neyman-pearson" (log loss of
            positive rows), or "group-loss" (log loss of each group). "error-rate" and "class-miss-rate" support
            several classes.
        bound: Largest value of the constraint that any client may have: a rate of 0.05 is 5%.

    Attributes:
        classes_: The classes in sorted order; of two, the second is positive.
        groups_: The two values of ``sensitive_features``; the second is protected. Only for kinds that compare groups.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self.kind in kind_names(MULTICLASS)
        return tags

    def fit(
        self,
        X: Features,  # noqa: N803
        y: ArrayLike,
        clients: ArrayLike | None = None,
        sensitive_features: ArrayLike | None = None,
    ) -> BoundedClassifier:
        """Train such that every client keeps the bound and the worst client's loss is minimal.

        Args:
            X: Features, shape (rows, features).
            y: Class of each row; of two classes, the one that sorts last is positive.
            clients: Label of the client of each row. Default: one client.
            sensitive_features: Group of each row, one of two values, for kinds that compare groups; the value that
                sorts last is protected. Default: None.
        """
        checks.check_choice("kind", self.kind, kind_names(BINARY, MULTICLASS))
        X, y = validate_data(self, X, y, dtype=float, ensure_min_samples=2)  # noqa: N806
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        count, kind = len(self.classes_), KINDS[self.kind]
        is_multiclass = MULTICLASS in kind.label_types
        if count < 2 or (count > 2 and not is_multiclass):
            prefix = "" if is_multiclass else "Only binary classification is supported: "
            expected = "at least 2 classes" if is_multiclass else "2 classes"
            raise ValueError(f"{prefix}y must have {expected}, but has {count} class{'es' * (count != 1)}")
        stratified = {"y": codes.astype(np.int32)}
        if kind.uses_groups:
            if sensitive_features is None:
                raise ValueError("sensitive_features must be given to fit: the group of each row")
            groups = check_row_values("sensitive_features", sensitive_features, len(codes))
            self.groups_, group = np.unique(groups, return_inverse=True)
            if len(self.groups_) != 2:
                found = f"{len(self.groups_)}: {self.groups_[:5].tolist()}"
                raise ValueError(f"sensitive_features must have two values, but has {found}")
            stratified["group"] = group.astype(np.int32)
        self._train(X, codes, clients, stratified)
        return self

    def decision_function(self, X: Features) -> np.ndarray:  # noqa: N803
        """Return the log odds of the positive class minus those of ``threshold_``; of several classes, rows × classes.

        Args:
            X: Features, as in ``fit``.
        """
        values = self._outputs(X)
        if values.shape[1] == 1:
            return values[:, 0]
        return values[:, 1] - values[:, 0] if len(self.classes_) == 2 else values

    def predict_proba(self, X: Features) -> np.ndarray:  # noqa: N803
        """Return the probability of every class, rows × classes, in the order of ``classes_``.

        Args:
            X: Features, as in ``fit``.
        """
        values = self.decision_function(X)
        if values.ndim == 1:
            odds = values + (0.0 if self.threshold_ is None else logit(self.threshold_))
            values = np.stack([np.zeros_like(odds), odds], axis=1)
        return np.asarray(softmax(values, axis=1))

    def predict(self, X: Features) -> np.ndarray:  # noqa: N803
        """Return the class of each row: of two, the positive one if its probability is above ``threshold_``.

        Args:
            X: Features, as in ``fit``.
        """
        codes = predict_codes(self._outputs(X))  # raises NotFittedError before the classes are read
        return np.asarray(self.classes_[codes])

    @property
    def coef_(self) -> np.ndarray:
        """Weights of a linear model for the original features, classes × features; 1 × features for two classes."""
        weights, _ = self._linear()
        return weights if len(weights) != 2 else weights[1:] - weights[:1]

    @property
    def intercept_(self) -> np.ndarray:
        """Intercepts of a linear model, shape (1,) for two classes, else (classes,)."""
        _, intercepts = self._linear()
        return intercepts if len(intercepts) != 2 else intercepts[1:] - intercepts[:1]


@dataclass(eq=False, repr=False)
class BoundedRegressor(RegressorMixin, FederatedEstimator):
    """Regressor that keeps a bound at every client and minimises the loss of the worst client.

    Parameters that are not listed here are those of ``FederatedEstimator``.

    Parameters:
        kind: Kind of constraint: "coverage", the share of rows above the prediction, which is then an upper limit;
            "mean-error", the absolute value of the mean error; or "absolute-error", the mean absolute error. Errors
            are in the label's unit.
        bound: Largest value of the constraint that any client may have: 0.1 is 10% for coverage.
        loss: The "squared", "absolute" or "quantile" loss. Default: quantile for coverage, else squared.
        quantile: Quantile of the quantile loss, in (0, 1). Default: 1 − ``bound`` for coverage, else 0.5.
        label_range: Smallest and largest possible label. Certificates of errors are then exact, and predictions are
            clipped to it. Default: unknown.
    """

    kind: str = "coverage"
    bound: float = 0.1
    _: KW_ONLY
    loss: str | None = None
    quantile: float | None = None
    label_range: tuple[float, float] | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = self.kind == "coverage"  # an upper limit does not predict the mean
        return tags

    def fit(self, X: Features, y: ArrayLike, clients: ArrayLike | None = None) -> BoundedRegressor:  # noqa: N803
        """Train such that every client keeps the bound and the worst client's loss is minimal.

        Args:
            X: Features, shape (rows, features).
            y: Number of each row.
            clients: Label of the client of each row. Default: one client.
        """
        checks.check_choice("kind", self.kind, kind_names(NUMBER))
        X, y = validate_data(self, X, y, dtype=float, y_numeric=True, ensure_min_samples=2)  # noqa: N806
        numbers = np.asarray(y, dtype=float)
        given = {"loss": self.loss, "quantile": self.quantile}
        loss = {name: value for name, value in given.items() if value is not None}
        self._train(X, numbers, clients, {}, self.label_range, **loss)
        return self

    def predict(self, X: Features) -> np.ndarray:  # noqa: N803
        """Return the predicted number of each row in the label's unit; for coverage, an upper limit of the label.

        Args:
            X: Features, as in ``fit``.
        """
        outputs = self._outputs(X)  # raises NotFittedError before the label is read
        return np.asarray(self._label.decode(outputs))

    @property
    def coef_(self) -> np.ndarray:
        """Weights of a linear model for the original features, in the label's unit, shape (features,)."""
        return np.asarray(self._linear()[0][0] * self._label.scale)

    @property
    def intercept_(self) -> float:
        """Intercept of a linear model, in the label's unit."""
        return float(self._linear()[1][0] * self._label.scale + self._label.mean)


def check_row_values(name: str, values: Any, rows: int) -> np.ndarray:
    """Return the values as an array, or raise ValueError unless there is one for each row."""
    array = np.asarray(values)
    if array.shape != (rows,):
        raise ValueError(f"{name} must have one value for each of {rows} rows, but has shape {array.shape}")
    return array
