"""Classifiers with scikit-learn's face: fit, predict, predict_proba, and the guarantee as attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from softswitch.support import checks
from softswitch.tables.constraints import GROUPED
from softswitch.tables.estimator import FederatedEstimator, check_row_values
from softswitch.tables.labels import BinaryLabel, Label, fit_multiclass_label
from softswitch.tables.settings import OF_CLASSES, RATES


class FederatedClassifier(ClassifierMixin, FederatedEstimator):
    """What the classifiers share; use one of them."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self._kind in OF_CLASSES
        return tags

    def fit(
        self,
        X: ArrayLike | pd.DataFrame,  # noqa: N803
        y: ArrayLike,
        clients: ArrayLike | None = None,
        sensitive_features: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> FederatedClassifier:
        """Train so that the worst client does as well as possible and every client keeps the bound.

        Args:
            X: features.
            y: labels; of two classes the one that sorts last is the positive one. More than two classes are for error
                rates and class-miss rates.
            clients: whose row it is, one label a row; by default all rows are one client's.
            sensitive_features: for gaps between groups: the group of each row, of two values; the one that sorts last
                is protected.
            sample_weight: how much each row counts, >= 0; by default all alike. Certificates are then approximate.
        """
        X, y = validate_data(self, X, y, dtype=float, ensure_min_samples=2)  # noqa: N806
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        many = len(self.classes_)
        if many != 2 and (many < 2 or self._kind not in OF_CLASSES):
            wanted = "at least 2 classes" if self._kind in OF_CLASSES else "2 classes"
            only = "" if self._kind in OF_CLASSES else "Only binary classification is supported: "
            raise ValueError(f"{only}y must have {wanted}, but has {many} class{'es' * (many != 1)}")
        alike = {"y": codes.astype(np.int32)}
        if self._kind in GROUPED:
            alike["group"] = self._groups(sensitive_features, len(codes))
        self._train(X, codes, clients, sample_weight, alike)
        return self

    def _label(self, y: np.ndarray, learnt_from: np.ndarray) -> Label:
        if len(self.classes_) == 2 and self._kind != "class-miss-rate":
            return BinaryLabel(0, 1)
        return fit_multiclass_label(pd.Series(y), learnt_from)

    def decision_function(self, X: ArrayLike | pd.DataFrame) -> np.ndarray:  # noqa: N803
        """The log-odds of the positive class; of several classes a score each.

        Args:
            X: rows × features, as in ``fit``.
        """
        values = self._outputs(X)
        if values.shape[1] == 1:
            return values[:, 0]
        return values[:, 1] - values[:, 0] if len(self.classes_) == 2 else values

    def predict_proba(self, X: ArrayLike | pd.DataFrame) -> np.ndarray:  # noqa: N803
        """Each row's probability of every class.

        Args:
            X: rows × features, as in ``fit``.
        """
        values = self.decision_function(X)
        if values.ndim == 1:
            values = np.stack([np.zeros_like(values), values], axis=1)
        chances: np.ndarray = softmax(values, axis=1)
        return chances

    def predict(self, X: ArrayLike | pd.DataFrame) -> np.ndarray:  # noqa: N803
        """Each row's class.

        Args:
            X: rows × features, as in ``fit``.
        """
        values = self.decision_function(X)
        places = (values > 0).astype(int) if values.ndim == 1 else values.argmax(axis=1)
        decided: np.ndarray = self.classes_[places]
        return decided

    @property
    def coef_(self) -> np.ndarray:
        """A linear model's weights, for features as they were given: one row, or one a class."""
        weights, _ = self._linear()
        return weights if len(weights) != 2 else weights[1:] - weights[:1]

    @property
    def intercept_(self) -> np.ndarray:
        """Its intercepts."""
        _, own = self._linear()
        return own if len(own) != 2 else own[1:] - own[:1]

    def _groups(self, sensitive_features: Any, rows: int) -> np.ndarray:
        if sensitive_features is None:
            raise ValueError("sensitive_features must be given to fit: the group of each row")
        values, group = np.unique(check_row_values("sensitive_features", sensitive_features, rows), return_inverse=True)
        if len(values) != 2:
            raise ValueError(f"sensitive_features must have two values, but has {len(values)}: {values[:5].tolist()}")
        self.groups_ = values
        return group.astype(np.int32)


class RateClassifier(FederatedClassifier):
    """No client's rate of wrong or unequal decisions above a bound, and otherwise the best for the worst client.

    Parameters:
        kind: which rate: "miss-rate", "false-alarm-rate", "error-rate", every class's "class-miss-rate", or the gap
            between two groups' decisions, "decision-parity", or between their hit rates, "decision-opportunity".
            Labels of several classes are for "error-rate" and "class-miss-rate".
        bound: the largest rate that any client may have: 0.05 is 5%.
        alpha: how sharply weights lean to the worst client; None: chosen.
        step_size: of the server; None: chosen during training. Give it, and whatever else is left out is as in the
            paper.
        rounds: K; None: until nothing more is gained.
        seconds: end after so many; None: never for that.
        local_steps: E.
        participation: the share of clients in a round.
        batch_size: rows a client draws; None: all it has; "auto": chosen.
        hidden: widths of hidden layers; () is a linear model.
        held_out: the share of each client's rows to keep for the certificate; 0: none, and no certificate.
        validation: the share to choose a model by; needs ``held_out``. The model is then trained for the
            certificate, and where there is none, no answer at this confidence, ``predict`` refuses.
        uncertified: predict all the same.
        warm_start: begin at the model of the last fit.
        confidence: of the certificate.
        random_state: of all random choices.

    Attributes:
        groups_: the two groups' values, where there are groups; the second is protected.
        classes_: the classes.
        coef_: a linear model's weights, for features as they were given; ``intercept_`` with them.
        params_: the model's parameters, for standardised features.
        status_: how training ended; ``status_.ok`` where every client keeps the bound on its training rows.
        worst_objective_: the worst client's objective on its training rows: the logistic loss of negative rows for
            misses, of positive rows for false alarms, of all rows for the others.
        worst_constraint_: the worst client's rate.
        certificate_: what held-out rows say; None without any.
        answered_: whether the model is certified; None where that was not asked for.
        result_: all of it.
        n_features_in_: how many features.
        feature_names_in_: their names, where they have any.
    """

    _bound = "bound"

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
        batch_size: int | str | None = "auto",
        hidden: tuple[int, ...] = (),
        held_out: float = 0.0,
        validation: float = 0.0,
        uncertified: bool = False,
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
        self.uncertified = uncertified
        self.warm_start = warm_start
        self.confidence = confidence
        self.random_state = random_state

    @property
    def _kind(self) -> str:  # type: ignore[override]
        checks.one_of("kind", self.kind, RATES)
        return self.kind


class NeymanPearsonClassifier(FederatedClassifier):
    """The fewest false alarms at the worst client, while no client's misses get out of hand.

    Parameters:
        max_miss_loss: the largest mean logistic loss of positive rows that any client may have.
        alpha: how sharply weights lean to the worst client; None: chosen.
        step_size: of the server; None: chosen during training. Give it, and whatever else is left out is as in the
            paper.
        rounds: K; None: until nothing more is gained.
        seconds: end after so many; None: never for that.
        local_steps: E.
        participation: the share of clients in a round.
        batch_size: rows a client draws; None: all it has; "auto": chosen.
        hidden: widths of hidden layers; () is a linear model.
        held_out: the share of each client's rows to keep for the certificate; 0: none, and no certificate.
        validation: the share to choose a model by; needs ``held_out``. The model is then trained for the
            certificate, and where there is none, no answer at this confidence, ``predict`` refuses.
        uncertified: predict all the same.
        warm_start: begin at the model of the last fit.
        confidence: of the certificate.
        random_state: of all random choices.

    Attributes:
        classes_: the classes.
        coef_: a linear model's weights, for features as they were given; ``intercept_`` with them.
        params_: the model's parameters, for standardised features.
        status_: how training ended; ``status_.ok`` where every client keeps the bound on its training rows.
        worst_objective_: the worst client's objective on its training rows.
        worst_constraint_: the worst client's constraint.
        certificate_: what held-out rows say; None without any.
        answered_: whether the model is certified; None where that was not asked for.
        result_: all of it.
        n_features_in_: how many features.
        feature_names_in_: their names, where they have any.
    """

    _kind, _bound = "neyman-pearson", "max_miss_loss"

    def __init__(
        self,
        max_miss_loss: float = 0.1,
        *,
        alpha: float | None = None,
        step_size: float | None = None,
        rounds: int | None = None,
        seconds: float | None = None,
        local_steps: int = 1,
        participation: float = 1.0,
        batch_size: int | str | None = "auto",
        hidden: tuple[int, ...] = (),
        held_out: float = 0.0,
        validation: float = 0.0,
        uncertified: bool = False,
        warm_start: bool = False,
        confidence: float = 0.95,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.max_miss_loss = max_miss_loss
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
        self.uncertified = uncertified
        self.warm_start = warm_start
        self.confidence = confidence
        self.random_state = random_state


class ParityClassifier(FederatedClassifier):
    """The smallest cross-entropy at the worst client, while no client's groups are treated apart.

    Parameters:
        max_gap: the largest gap of mean probabilities between the groups that any client may have.
        alpha: how sharply weights lean to the worst client; None: chosen.
        step_size: of the server; None: chosen during training. Give it, and whatever else is left out is as in the
            paper.
        rounds: K; None: until nothing more is gained.
        seconds: end after so many; None: never for that.
        local_steps: E.
        participation: the share of clients in a round.
        batch_size: rows a client draws; None: all it has; "auto": chosen.
        hidden: widths of hidden layers; () is a linear model.
        held_out: the share of each client's rows to keep for the certificate; 0: none, and no certificate.
        validation: the share to choose a model by; needs ``held_out``. The model is then trained for the
            certificate, and where there is none, no answer at this confidence, ``predict`` refuses.
        uncertified: predict all the same.
        warm_start: begin at the model of the last fit.
        confidence: of the certificate.
        random_state: of all random choices.

    Attributes:
        groups_: the two groups' values; the second is protected.
        classes_: the classes.
        coef_: a linear model's weights, for features as they were given; ``intercept_`` with them.
        params_: the model's parameters, for standardised features.
        status_: how training ended; ``status_.ok`` where every client keeps the bound on its training rows.
        worst_objective_: the worst client's objective on its training rows.
        worst_constraint_: the worst client's constraint.
        certificate_: what held-out rows say; None without any.
        answered_: whether the model is certified; None where that was not asked for.
        result_: all of it.
        n_features_in_: how many features.
        feature_names_in_: their names, where they have any.
    """

    _kind, _bound = "demographic-parity", "max_gap"

    def __init__(
        self,
        max_gap: float = 0.05,
        *,
        alpha: float | None = None,
        step_size: float | None = None,
        rounds: int | None = None,
        seconds: float | None = None,
        local_steps: int = 1,
        participation: float = 1.0,
        batch_size: int | str | None = "auto",
        hidden: tuple[int, ...] = (),
        held_out: float = 0.0,
        validation: float = 0.0,
        uncertified: bool = False,
        warm_start: bool = False,
        confidence: float = 0.95,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.max_gap = max_gap
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
        self.uncertified = uncertified
        self.warm_start = warm_start
        self.confidence = confidence
        self.random_state = random_state
