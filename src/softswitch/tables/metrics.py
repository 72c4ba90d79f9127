"""What a model does at each client, in numbers that people know: by what the label is, functions of (y, score).

Seen on held-out rows, and no promise: that is the certificate's. A rate of rows that a client does not have is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from softswitch.data.client_data import ClientData
from softswitch.problem.networks import Network, outputs, scores
from softswitch.results.baseline import CONSTANT, UNCONSTRAINED_WORST, find_baseline
from softswitch.results.result import Result
from softswitch.tables.labels import Label, MulticlassLabel, NumberLabel
from softswitch.tables.preparation import PreparedTable


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """The chance that a positive row has a larger score than another, ties count half; NaN without rows of both."""
    many = int(positive.sum())
    others = len(positive) - many
    if not many or not others:
        return math.nan
    from scipy.stats import rankdata  # takes half a second to import

    return float((rankdata(scores)[positive].sum() - many * (many + 1) / 2) / (many * others))


Metric = Callable[[np.ndarray, np.ndarray], float]


def miss_rate(y: np.ndarray, score: np.ndarray) -> float:
    """The share of the positive rows that are decided negative; positive is decided where the score is above 0."""
    return _share(score[y == 1] <= 0)


def false_alarm_rate(y: np.ndarray, score: np.ndarray) -> float:
    """The share of the negative rows that are decided positive."""
    return _share(score[y != 1] > 0)


def auc_of_scores(y: np.ndarray, score: np.ndarray) -> float:
    """How often a positive row has a larger score than a negative one; a tie counts one half."""
    return auc(score, y == 1)


def mean_absolute_error(y: np.ndarray, score: np.ndarray) -> float:
    """How far predictions are off on average, in the label's unit."""
    return float(np.abs(score - y).mean()) if len(y) else math.nan


def class_error_rate(y: np.ndarray, score: np.ndarray) -> float:
    """The share of rows that are decided wrongly; ``score`` is rows × classes, and the largest decides."""
    return _share(score.argmax(axis=1) != y)


def worst_class_recall(y: np.ndarray, score: np.ndarray) -> float:
    """Of the classes that there are rows of: the smallest share of a class's rows that are decided rightly."""
    right = score.argmax(axis=1) == y
    return min((_share(right[y == label]) for label in np.unique(y)), default=math.nan)


METRICS: dict[str, dict[str, Metric]] = {
    "two-classes": {"miss_rate": miss_rate, "false_alarm_rate": false_alarm_rate, "auc": auc_of_scores},
    "number": {"mean_absolute_error": mean_absolute_error},
    "classes": {"error_rate": class_error_rate, "worst_class_recall": worst_class_recall},
}
"""What is measured, by what the label is."""


def measured(
    label: str, data: ClientData, scores: Mapping[str, np.ndarray], names: tuple[object, ...], scale: float = 1.0
) -> dict[str, list[float]]:
    """Columns for the table of clients: every metric of every model, one entry a client.

    Args:
        label: what the label is: a key of ``METRICS``.
        data: the rows looked at, with labels ``y``.
        scores: each model's scores of these rows, in the order in which ``data`` has them; a model's name begins its
            columns' names: "constant" makes "constant_miss_rate".
        names: the clients to tell of; one without rows has NaN.
        scale: what y and the scores are to be multiplied by to be in the label's unit, where it is a number.
    """
    in_unit = scale if label == "number" else 1
    y = np.asarray(data.rows.columns["y"]) * in_unit
    ends = np.cumsum(data.sizes)
    parts = {name: slice(end - size, end) for name, size, end in zip(data.names, data.sizes, ends, strict=True)}
    return {
        f"{model}_{metric}": [
            function(y[parts[name]], score[parts[name]] * in_unit) if name in parts else math.nan for name in names
        ]
        for model, score in scores.items()
        for metric, function in METRICS[label].items()
    }


MODELS = {"constant": CONSTANT, "unconstrained": UNCONSTRAINED_WORST}
"""The models that the answer is shown beside at each client, by the beginning of their columns' names."""


def client_metrics(ready: PreparedTable, result: Result) -> dict[str, list[float]]:
    """What a run's table of clients tells beside objective and constraint: rows, and metrics on those held out.

    Args:
        ready: the table.
        result: the answer, and the models beside it.
    """
    names = ready.train.names
    columns: dict[str, list[float]] = {"rows": ready.train.sizes.tolist()}
    for name, part in (("rows_to_choose_by", ready.validation), ("rows_held_out", ready.held_out)):
        if part is not None:
            many = dict(zip(part.names, part.sizes.tolist(), strict=True))
            columns[name] = [many.get(client, 0) for client in names]
    if ready.held_out is None:
        return columns
    models = {"held_out": result.params}
    for prefix, known in MODELS.items():
        beside = find_baseline(known, result.baselines)
        if beside is not None and beside.params is not None:
            models[prefix] = beside.params
    label, x = ready.label, ready.held_out.rows.columns["x"]
    scores = {model: _scores(label, outputs(params, x)) for model, params in models.items()}
    scale = label.scale if isinstance(label, NumberLabel) else 1.0
    return columns | measured(label.what, ready.held_out, scores, names, scale)


def _scores(label: Label, given: Array) -> np.ndarray:
    """What metrics look at: a score a row, a score a class, or a prediction that a label can have."""
    if isinstance(label, NumberLabel):
        return np.asarray(label.unit.within(given[:, 0]))
    return np.asarray(given if isinstance(label, MulticlassLabel) else given[:, 0])


def _share(events: np.ndarray) -> float:
    return float(events.mean()) if len(events) else math.nan


def group_metrics(params: Network, data: ClientData, **labels: Any) -> list[dict[str, Any]]:
    """Accuracy, selection rate, true and false positive rate and size of both groups, on all clients' rows together.

    Decisions are made at a probability of one half. One row a group; ``labels`` are put in front of each.
    """
    try:
        from fairlearn.metrics import MetricFrame, count, false_positive_rate, selection_rate, true_positive_rate
    except ImportError as error:
        raise ImportError("metrics by group need Fairlearn: pip install 'softswitch[fairness]'") from error
    from sklearn.metrics import accuracy_score

    rows = {key: np.asarray(column) for key, column in data.rows.columns.items()}
    decided = np.asarray(scores(params, jnp.asarray(rows["x"])) >= 0).astype(int)
    metrics = {
        "accuracy": accuracy_score,
        "selection_rate": selection_rate,
        "true_positive_rate": true_positive_rate,
        "false_positive_rate": false_positive_rate,
        "rows": count,
    }
    frame = MetricFrame(metrics=metrics, y_true=rows["y"], y_pred=decided, sensitive_features=rows["group"])
    names = {0: "others", 1: "protected"}
    return [
        {**labels, "group": names[int(group)], **{name: float(value) for name, value in row.items()}}
        for group, row in frame.by_group.iterrows()
    ]
