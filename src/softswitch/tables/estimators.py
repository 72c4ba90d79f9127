"""Classifiers with scikit-learn's face: fit, predict, predict_proba, and the guarantee as attributes."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data

from softswitch.clients.client_data import ClientData
from softswitch.clients.parts import Parts, part_masks
from softswitch.engines.certified import solve_certified
from softswitch.engines.solve import solve
from softswitch.engines.unconstrained import add_baselines
from softswitch.guarantees.unseen_rows.certify import certify
from softswitch.method.rules import SoftmaxSGM
from softswitch.results.promised import ending, is_answer
from softswitch.results.result import Result
from softswitch.support import checks
from softswitch.tables.kinds import GROUPED, problem_of_kind
from softswitch.tables.settings import RATES
from softswitch.tasks.networks import constant_network, moved_network, scores


class FederatedClassifier(ClassifierMixin, BaseEstimator):
    """What the classifiers share; use one of them.

    A logistic regression, or a network with hidden layers, by Softmax SGM. Features are standardised within.
    """

    _kind: str
    _bound: str

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any, clients: Any = None, sensitive_features: Any = None) -> FederatedClassifier:  # noqa: N803
        """Train so that the worst client does as well as possible and every client keeps the bound.

        Args:
            X: features.
            y: labels of two classes; the one that sorts last is the positive one.
            clients: whose row it is, one label a row; by default all rows are one client's.
            sensitive_features: for gaps between groups: the group of each row, of two values; the one that sorts last
                is protected.
        """
        X, y = validate_data(self, X, y, dtype=float, ensure_min_samples=2)  # noqa: N806
        owner = np.zeros(len(y), int) if clients is None else _one_a_row("clients", clients, len(y))
        columns = {"y": self._labels(y)}
        if self._kind in GROUPED:
            columns["group"] = self._groups(sensitive_features, len(y))
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = int(check_random_state(seed).randint(2**31 - 1))
        made = problem_of_kind(self._kind, X.shape[1], tuple(self.hidden), seed=seed)
        if self.choosing and not self.held_out:
            raise ValueError(f"choosing = {self.choosing!r} needs held_out above 0: rows to certify with")
        masks = part_masks(owner, *columns.values(), choosing=self.choosing, held_out=self.held_out, seed=seed)
        learn, choose, certify_by = masks
        self.mean_, deviation = X[learn].mean(axis=0), X[learn].std(axis=0)
        self.scale_ = np.where(deviation > 0, deviation, 1.0)
        columns["x"] = self._standardised(X)

        def of(part: np.ndarray) -> ClientData:
            chosen = {name: column[part] for name, column in columns.items()}
            return ClientData.from_arrays(chosen, owner[part], strata=made.strata)

        train = of(learn)
        self.certificate_, self.answered_ = None, None
        if choose.any() and certify_by.any():
            parts = Parts(train, of(choose), of(certify_by))
            found = solve_certified(
                made.problem, parts, self._rule(), confidence=self.confidence, move=moved_network, **self._options(seed)
            )
            result, self.certificate_, self.answered_ = found.result, found.certificate, found.answered
        else:
            result = solve(made.problem, train, self._rule(), **self._options(seed))
        constants = partial(constant_network, made.problem.start)
        self._keep(add_baselines(result, made.problem, train, constants=constants, unconstrained=False))
        if certify_by.any() and self.answered_ is None:
            self.certificate_ = certify(self.result_, made.problem, of(certify_by), self.confidence)
            self.answered_ = is_answer(self.certificate_) if self.choosing else None
        return self

    def _labels(self, y: np.ndarray) -> np.ndarray:
        """0 and 1, and ``classes_``."""
        check_classification_targets(y)
        self.classes_, label = np.unique(y, return_inverse=True)
        many = len(self.classes_)
        if many != 2:
            raise ValueError(f"Only binary classification is supported: y must have 2 classes, but has {many}")
        return label.astype(np.int32)

    def _rule(self) -> SoftmaxSGM:
        return SoftmaxSGM(alpha=self.alpha, step_size=self.step_size, tolerance=getattr(self, self._bound))

    def _options(self, seed: int) -> dict[str, Any]:
        names = ("rounds", "seconds", "local_steps", "participation", "batch_size")
        return {name: getattr(self, name) for name in names} | {"eval_every": 0, "seed": seed}

    def _keep(self, result: Result) -> None:
        self.result_ = result
        self.params_ = jax.tree.map(np.asarray, result.params)
        self.status_ = result.status
        self.worst_objective_ = result.worst_objective
        self.worst_constraint_ = result.worst_constraint

    def decision_function(self, X: Any) -> np.ndarray:  # noqa: N803
        """The log-odds of the positive class."""
        check_is_fitted(self)
        if self.answered_ is False and not self.uncertified:
            raise ValueError(f"{ending(self.certificate_)} To predict all the same: uncertified=True")
        X = validate_data(self, X, dtype=float, reset=False)  # noqa: N806
        return np.asarray(scores(self.params_, jnp.asarray(self._standardised(X))), dtype=float)

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Each row's probability of both classes."""
        positive = 1 / (1 + np.exp(-self.decision_function(X)))
        return np.stack([1 - positive, positive], axis=1)

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """Each row's class."""
        positive = self.decision_function(X) > 0
        decided: np.ndarray = self.classes_[positive.astype(int)]
        return decided

    def _standardised(self, X: np.ndarray) -> np.ndarray:  # noqa: N803
        return ((X - self.mean_) / self.scale_).astype(np.float32)

    def _groups(self, sensitive_features: Any, rows: int) -> np.ndarray:
        if sensitive_features is None:
            raise ValueError("sensitive_features must be given to fit: the group of each row")
        values, group = np.unique(_one_a_row("sensitive_features", sensitive_features, rows), return_inverse=True)
        if len(values) != 2:
            raise ValueError(f"sensitive_features must have two values, but has {len(values)}: {values[:5].tolist()}")
        self.groups_ = values
        return group.astype(np.int32)


class RateClassifier(FederatedClassifier):
    """No client's rate of wrong or unequal decisions above a bound, and otherwise the best for the worst client.

    Parameters:
        kind: which rate: "miss-rate", "false-alarm-rate", "error-rate", or the gap between two groups' decisions,
            "decision-parity", or between their hit rates, "decision-opportunity".
        at_most: the largest rate that any client may have: 0.05 is 5%.
        alpha: how sharply weights lean to the worst client; None: chosen.
        step_size: of the server; None: chosen during training. Give it, and whatever else is left out is as in the
            paper.
        rounds: K; None: until nothing more is gained.
        seconds: end after so many; None: never for that.
        local_steps: E.
        participation: the share of clients in a round.
        batch_size: rows a client draws; None: all it has; "auto": chosen.
        hidden: widths of hidden layers; () is logistic regression.
        held_out: the share of each client's rows to keep for the certificate; 0: none, and no certificate.
        choosing: the share to choose a model for unseen rows by; needs ``held_out``. The model is then trained for the
            certificate, and where there is none, no answer at this confidence, ``predict`` refuses.
        uncertified: predict all the same.
        confidence: of the certificate.
        random_state: of all random choices.

    Attributes:
        groups_: the two groups' values, where there are groups; the second is protected.
        classes_: the two classes.
        params_: the model's parameters.
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

    _bound = "at_most"

    def __init__(
        self,
        kind: str = "miss-rate",
        at_most: float = 0.05,
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
        choosing: float = 0.0,
        uncertified: bool = False,
        confidence: float = 0.95,
        random_state: Any = 0,
    ) -> None:
        self.kind = kind
        self.at_most = at_most
        self.alpha = alpha
        self.step_size = step_size
        self.rounds = rounds
        self.seconds = seconds
        self.local_steps = local_steps
        self.participation = participation
        self.batch_size = batch_size
        self.hidden = hidden
        self.held_out = held_out
        self.choosing = choosing
        self.uncertified = uncertified
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
        hidden: widths of hidden layers; () is logistic regression.
        held_out: the share of each client's rows to keep for the certificate; 0: none, and no certificate.
        choosing: the share to choose a model for unseen rows by; needs ``held_out``. The model is then trained for the
            certificate, and where there is none, no answer at this confidence, ``predict`` refuses.
        uncertified: predict all the same.
        confidence: of the certificate.
        random_state: of all random choices.

    Attributes:
        classes_: the two classes.
        params_: the model's parameters.
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
        choosing: float = 0.0,
        uncertified: bool = False,
        confidence: float = 0.95,
        random_state: Any = 0,
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
        self.choosing = choosing
        self.uncertified = uncertified
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
        hidden: widths of hidden layers; () is logistic regression.
        held_out: the share of each client's rows to keep for the certificate; 0: none, and no certificate.
        choosing: the share to choose a model for unseen rows by; needs ``held_out``. The model is then trained for the
            certificate, and where there is none, no answer at this confidence, ``predict`` refuses.
        uncertified: predict all the same.
        confidence: of the certificate.
        random_state: of all random choices.

    Attributes:
        groups_: the two groups' values; the second is protected.
        classes_: the two classes.
        params_: the model's parameters.
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
        choosing: float = 0.0,
        uncertified: bool = False,
        confidence: float = 0.95,
        random_state: Any = 0,
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
        self.choosing = choosing
        self.uncertified = uncertified
        self.confidence = confidence
        self.random_state = random_state


def _one_a_row(name: str, values: Any, rows: int) -> np.ndarray:
    array = np.asarray(values)
    if array.shape != (rows,):
        raise ValueError(f"{name} must have one value for each of {rows} rows, but has shape {array.shape}")
    return array
