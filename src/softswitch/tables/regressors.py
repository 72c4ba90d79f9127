"""Regression with scikit-learn's face: predictions of a number, with a bound that every client keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from softswitch.support import checks
from softswitch.tables.constraints import Loss
from softswitch.tables.estimator import FederatedEstimator
from softswitch.tables.labels import Label, NumberLabel, fit_number_label
from softswitch.tables.settings import OF_AMOUNTS


class BoundedRegressor(RegressorMixin, FederatedEstimator):
    """No client's predictions wrong beyond a bound, and otherwise the smallest loss for the worst client.

    Parameters:
        kind: what is bounded: "coverage": the share of rows whose label is above the prediction, which is then an upper
            limit; "mean-error": how far predictions are too high or too low on average; "absolute-error": the mean
            absolute error. Errors are in the label's unit.
        bound: the bound, at every client: 0.1 is 10% for coverage.
        loss: what is to be small: the "squared", "absolute" or "quantile" loss; None: squared, but quantile for
            coverage.
        quantile: of the quantile loss; None: 1 − ``bound`` for coverage, else 0.5.
        label_range: the smallest and the largest value that a label can have, where they are known; certificates of
            errors are then promises, and predictions stay between both.
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
        coef_: a linear model's weights, for features as they were given; ``intercept_`` with them.
        params_: the model's parameters, for standardised features and labels.
        status_: how training ended; ``status_.ok`` where every client keeps the bound on its training rows.
        worst_objective_: the worst client's loss on its training rows, in the label's unit (squared: in its square).
        worst_constraint_: the worst client's error, or share of rows that are not covered.
        certificate_: what held-out rows say; None without any.
        answered_: whether the model is certified; None where that was not asked for.
        result_: all of it.
        n_features_in_: how many features.
        feature_names_in_: their names, where they have any.
    """

    _bound = "bound"

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
        self.loss = loss
        self.quantile = quantile
        self.label_range = label_range
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
        checks.one_of("kind", self.kind, OF_AMOUNTS)
        return self.kind

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = self.kind == "coverage"  # an upper limit is no prediction of the mean
        return tags

    def _loss(self) -> Loss:
        return Loss(self.loss, self.quantile)

    def fit(
        self,
        X: ArrayLike | pd.DataFrame,  # noqa: N803
        y: ArrayLike,
        clients: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> BoundedRegressor:
        """Train so that the worst client does as well as possible and every client keeps the bound.

        Args:
            X: features.
            y: labels, numbers.
            clients: whose row it is, one label a row; by default all rows are one client's.
            sample_weight: how much each row counts, >= 0; by default all alike. Certificates are then approximate.
        """
        X, y = validate_data(self, X, y, dtype=float, y_numeric=True, ensure_min_samples=2)  # noqa: N806
        self._train(X, np.asarray(y, dtype=float), clients, sample_weight, {})
        return self

    def _label(self, y: np.ndarray, learnt_from: np.ndarray) -> Label:
        return fit_number_label(pd.Series(y, name="y"), learnt_from, tuple(self.label_range or ()))

    def predict(self, X: ArrayLike | pd.DataFrame) -> np.ndarray:  # noqa: N803
        """Each row's number; for coverage its upper limit.

        Args:
            X: rows × features, as in ``fit``.
        """
        values = self._outputs(X)
        found: np.ndarray = self._amount.predicted(values)
        return found

    @property
    def _amount(self) -> NumberLabel:
        label: NumberLabel = self._fitted["label"]
        return label

    @property
    def coef_(self) -> np.ndarray:
        """A linear model's weights, for features as they were given, in the label's unit."""
        weights: np.ndarray = self._linear()[0][0] * self._amount.scale
        return weights

    @property
    def intercept_(self) -> float:
        """Its intercept."""
        return float(self._linear()[1][0] * self._amount.scale + self._amount.mean)
