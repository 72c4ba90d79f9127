"""Scores: scikit-learn models of the label whose outputs are compared with a threshold.

Outputs are log odds of two classes, log probabilities of several, or predictions of a number. This module does not
import JAX, because ``softswitch init`` uses it.
"""

from __future__ import annotations

import importlib
import io
import itertools
import json
import os
import sys
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from softswitch.problem.choices import BINARY, NUMBER
from softswitch.support.files import MAX_ARCHIVE_BYTES, check_archive, read_bytes, write_atomically

FOLDS = 4  # of the cross-validation
BOOSTING_STEPS = (20, 100)  # smallest and largest number of steps of gradient boosting
MAX_BOOSTING_CELLS = 250_000_000  # largest number of steps × trees × rows × features with more than 20 steps
MIN_SCALE = 1e-3  # scale of outputs that do not increase with the probability of the positive class
SCORE_FILE = "score.skops"  # in a run folder
TRUSTED = ("sklearn.ensemble._hist_gradient_boosting.", "sklearn._loss.", "_loss.")  # types that skops does not know
TYPES = (  # beginnings of the names of all types that a score consists of
    *(*TRUSTED, "builtins.", "numpy.", "sklearn.preprocessing._label.LabelEncoder"),
    *("sklearn.linear_model._logistic.LogisticRegression", "sklearn.linear_model._base.LinearRegression"),
)


def make_estimators(score: Any, label_type: str, quantile: float = 0.5, *, cells: int = 0) -> tuple[Any, ...]:
    """Return the scikit-learn estimators of a score, whose outputs are averaged.

    ``score`` is "auto" (a linear model and gradient boosting), one of the two, or an estimator. ``cells`` is the number
    of rows × features × trees of a step; boosting takes fewer and larger steps if it is large.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LinearRegression, LogisticRegression

    if not isinstance(score, str):
        return (score,)
    steps = int(np.clip(MAX_BOOSTING_CELLS // max(1, cells), *BOOSTING_STEPS))
    boosting: dict[str, Any] = {"max_iter": steps, "learning_rate": 6 / steps, "max_leaf_nodes": 6}
    boosting |= {"min_samples_leaf": 40}
    boosting |= {"l2_regularization": 5.0, "early_stopping": False, "random_state": 0}
    if label_type == NUMBER:
        boosting |= {"loss": "quantile", "quantile": quantile}
        pair = (LinearRegression(), HistGradientBoostingRegressor(**boosting))
    else:
        pair = (LogisticRegression(max_iter=1000), HistGradientBoostingClassifier(**boosting))
    return {"auto": pair, "linear": pair[:1], "boosting": pair[1:]}[score]


@dataclass(frozen=True, eq=False)
class Score:
    """Fitted estimators of a label; the outputs of the score are the mean of theirs."""

    estimators: tuple[Any, ...]
    label_type: str  # "binary", "multiclass" or "number"
    classes: int = 0  # number of classes, with y of 0, 1, …; 0 for a number

    @classmethod
    def fit(
        cls, estimators: Sequence[Any], x: np.ndarray, y: np.ndarray, weights: np.ndarray, label_type: str, classes: int
    ) -> Score:
        """Fit copies of the estimators; ``weights`` are passed to those that accept sample weights."""
        from sklearn.base import clone
        from sklearn.utils.validation import has_fit_parameter

        fitted = []
        for estimator in map(clone, estimators):
            options = {"sample_weight": weights} if has_fit_parameter(estimator, "sample_weight") else {}
            with threadpool_limits(1):
                fitted.append(estimator.fit(x, y, **options))
        return cls(tuple(fitted), label_type, classes)

    def outputs(self, x: np.ndarray) -> np.ndarray:
        """Return log odds (rows × 1), log probabilities of the classes (rows × classes) or predictions (rows × 1)."""
        with threadpool_limits(1):
            total: np.ndarray = np.mean([self._outputs_of(estimator, x) for estimator in self.estimators], axis=0)
        return total.astype(np.float32)

    def _outputs_of(self, estimator: Any, x: np.ndarray) -> np.ndarray:
        if self.label_type == NUMBER:
            return np.asarray(estimator.predict(x), float)[:, None]
        if self.label_type == BINARY and hasattr(estimator, "decision_function"):
            return np.asarray(estimator.decision_function(x), float)[:, None]
        shares = np.full((len(x), self.classes), 0.0)
        shares[:, np.asarray(estimator.classes_, int)] = estimator.predict_proba(x)
        logs = np.log(np.clip(shares, 1e-12, 1.0))
        return logs[:, 1:] - logs[:, :1] if self.label_type == BINARY else logs

    def save(self, folder: Path) -> None:
        """Write the estimators to a run folder."""
        skops = _import_skops()
        write_atomically(folder / SCORE_FILE, skops.dumps(list(self.estimators)), durable=False)

    @classmethod
    def load(cls, folder: Path, label_type: str, classes: int) -> Score:
        """Read the estimators of a run folder, without pickle; raise ValueError for other types than expected.

        skops itself accepts all of scikit-learn, parts of which read any memory if their arrays are wrong.
        """
        skops = _import_skops()
        content = read_bytes(file := folder / SCORE_FILE, MAX_ARCHIVE_BYTES)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            check_archive(file, archive.infolist())
            names: list[str] = []
            json.loads(archive.read("schema.json"), object_hook=lambda node: names.append(_type_name(node)))
        unknown = skops.get_untrusted_types(data=content)
        refused = [name for name in unknown if not name.startswith(TRUSTED)]
        if refused := refused + [name for name in names if name and not name.startswith(TYPES)]:
            raise ValueError(f"it contains {', '.join(refused[:3])}, which scores do not have")
        estimators = tuple(skops.loads(content, trusted=unknown))
        for estimator in estimators:
            if hasattr(estimator, "_predictors"):
                _check_trees(estimator)
        return cls(estimators, label_type, classes)


def _type_name(node: dict[str, Any]) -> str:
    """Return the name of the type that a node of skops's schema.json describes; an empty string if it has none."""
    return f"{node['__module__']}.{node['__class__']}" if "__class__" in node else ""


def _check_trees(boosting: Any) -> None:
    """Raise ValueError if gradient boosting would read outside of its arrays, or never end."""
    if boosting._preprocessor is not None or np.any(boosting._bin_mapper.is_categorical_):
        raise ValueError("it has categorical features, which scores do not have")
    for tree in itertools.chain.from_iterable(boosting._predictors):
        nodes, feature = tree.nodes, tree.nodes["feature_idx"]
        is_wrong = (feature < 0) | (feature >= boosting.n_features_in_) | (nodes["is_categorical"] != 0)
        for child in (nodes["left"], nodes["right"]):
            is_wrong |= (child <= np.arange(len(nodes))) | (child >= len(nodes))
        if not len(nodes) or (is_wrong & (nodes["is_leaf"] == 0)).any():
            raise ValueError("a tree has nodes that lead to other nodes or features than there are")


def _import_skops() -> Any:
    """Return ``skops.io``, which imports all of scikit-learn; the part that imports PyTorch, 1 to 3 s, is blocked."""
    blocked = "sklearn.externals.array_api_compat.torch"
    is_absent = blocked not in sys.modules
    if is_absent:
        sys.modules[blocked] = None  # type: ignore[assignment]  # an import of it now fails
    try:
        return importlib.import_module("skops.io")
    finally:
        if is_absent:
            del sys.modules[blocked]


def row_weights(y: np.ndarray, owner: np.ndarray, *, balance: bool) -> np.ndarray:
    """Return weights of 1/√n for the n rows of a client, with mean 1.

    With ``balance``, n counts the rows of a client and class, and all classes have the same total weight. Between equal
    weights of rows and of clients, this is a compromise between noise and the attention to small clients.
    """
    classes = y.astype(int) if balance else np.zeros(len(y), int)
    _, cell, size = np.unique(owner * (classes.max() + 1) + classes, return_inverse=True, return_counts=True)
    weights = 1 / np.sqrt(np.maximum(size[cell], 5))
    for label in np.unique(classes):
        weights[classes == label] /= weights[classes == label].sum()
    return np.asarray(weights * len(y) / weights.sum())


def assign_folds(y: np.ndarray, owner: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """Return a fold of each row, 0, 1, …, with rows of every class and client in all folds as far as possible."""
    order = np.lexsort((np.random.default_rng(seed).permutation(len(y)), owner, y))
    fold = np.empty(len(y), int)
    fold[order] = np.arange(len(y)) % folds
    return fold


def cross_validate(
    estimators: Sequence[Any],
    x: np.ndarray,
    y: np.ndarray,
    owner: np.ndarray,
    weights: np.ndarray,
    label_type: str,
    classes: int = 0,
    seed: int = 0,
) -> np.ndarray:
    """Return the outputs of a score on every row, of models that were fitted without the row's fold.

    ``owner`` is the index of each row's client, and ``classes`` the number of classes; 0 for a number. Every class must
    have at least two rows.
    """
    is_number = label_type == NUMBER
    smallest = len(y) if is_number else int(np.bincount(y.astype(int), minlength=classes).min())
    fold = assign_folds(np.zeros(len(y)) if is_number else y, owner, min(FOLDS, smallest), seed)
    outputs = np.zeros((len(y), classes if classes > 2 else 1), np.float32)

    def predict_fold(k: int) -> None:
        learn, test = fold != k, fold == k
        model = Score.fit(estimators, x[learn], y[learn], weights[learn], label_type, classes)
        outputs[test] = model.outputs(x[test])

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each fit uses one thread: they do not wait for each other
        list(pool.map(predict_fold, np.unique(fold)))
    return outputs


def calibrate(outputs: np.ndarray, y: np.ndarray, label_type: str, *, is_balanced: bool) -> tuple[float, np.ndarray]:
    """Return scale and offset of the outputs, with which they are log odds or log probabilities of the training rows.

    For two classes it is a logistic regression on the output, for several a change of the class shares if the score was
    fitted to balanced classes.
    """
    if label_type == NUMBER or (label_type != BINARY and not is_balanced):
        return 1.0, np.zeros(outputs.shape[1])
    if label_type == BINARY:
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(C=1e6).fit(outputs, y)
        scale = float(model.coef_[0, 0])
        share = np.mean(y == 1)
        return (scale, model.intercept_) if scale > 0 else (MIN_SCALE, np.log([share / (1 - share)]))
    shares = np.bincount(y.astype(int), minlength=outputs.shape[1]) + 0.5
    return 1.0, np.log(shares / shares.sum())
