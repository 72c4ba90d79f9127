"""Metrics of a model at each client on held-out rows, as functions of (y, score).

They are estimates without a guarantee; the certificate has one. The rate of a client without such rows is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array

from softswitch.data.client_data import ClientData
from softswitch.problem.choices import BINARY, MULTICLASS, NUMBER
from softswitch.problem.networks import Network, apply_network, scores
from softswitch.results.baseline import CONSTANT, UNCONSTRAINED_WORST, find_baseline
from softswitch.results.result import Result
from softswitch.tables.labels import Label, MulticlassLabel, NumberLabel
from softswitch.tables.preparation import PreparedTable

Metric = Callable[[np.ndarray, np.ndarray], float]


def auc(y: np.ndarray, score: np.ndarray) -> float:
    """Return the area under the ROC curve; NaN without rows of both classes."""
    positive = y == 1
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return math.nan
    ranks = pd.Series(score).rank().to_numpy()
    return float((ranks[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def worst_class_recall(y: np.ndarray, score: np.ndarray) -> float:
    """Return the smallest recall of the classes that have rows; ``score`` has one column per class."""
    correct = score.argmax(axis=1) == y
    return min((_mean(correct[y == label]) for label in np.unique(y)), default=math.nan)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


METRICS: dict[str, dict[str, Metric]] = {
    BINARY: {
        "miss_rate": lambda y, score: _mean(score[y == 1] <= 0),
        "false_alarm_rate": lambda y, score: _mean(score[y != 1] > 0),
        "auc": auc,
    },
    NUMBER: {"mean_absolute_error": lambda y, score: _mean(np.abs(score - y))},
    MULTICLASS: {
        "error_rate": lambda y, score: _mean(score.argmax(axis=1) != y),
        "worst_class_recall": worst_class_recall,
    },
}
"""Metrics by label type."""
BASELINES = {"constant": CONSTANT, "unconstrained": UNCONSTRAINED_WORST}
"""Baselines that are measured too, by the prefix of their columns."""


def measure_clients(
    label_type: str, data: ClientData, scores: Mapping[str, np.ndarray], names: tuple[object, ...], scale: float = 1.0
) -> dict[str, list[float]]:
    """Return a column ``{model}_{metric}`` for every model and metric, with one entry per client.

    A client without rows gets NaN; ``scale`` converts standardised values to the unit of a number.
    """
    y, ends = np.asarray(data.rows.columns["y"]) * scale, np.cumsum(data.sizes)
    parts = {name: slice(end - size, end) for name, size, end in zip(data.names, data.sizes, ends, strict=True)}
    return {
        f"{model}_{metric}": [
            function(y[parts[name]], score[parts[name]] * scale) if name in parts else math.nan for name in names
        ]
        for model, score in scores.items()
        for metric, function in METRICS[label_type].items()
    }


def client_metrics(table: PreparedTable, result: Result) -> dict[str, list[float]]:
    """Return further columns of a run's client table: numbers of rows, and metrics on held-out rows."""
    names = table.train.names
    columns: dict[str, list[float]] = {"rows": table.train.sizes.tolist()}
    for name, part in (("rows_to_choose_by", table.validation), ("rows_held_out", table.held_out)):
        if part is not None:
            sizes = dict(zip(part.names, part.sizes.tolist(), strict=True))
            columns[name] = [sizes.get(client, 0) for client in names]
    if table.held_out is None:
        return columns
    baselines = {prefix: find_baseline(name, result.baselines) for prefix, name in BASELINES.items()}
    models = {"held_out": result.params} | {key: one.params for key, one in baselines.items() if one is not None}
    label, x = table.label, table.held_out.rows.columns["x"]
    scores = {
        model: _label_scores(label, apply_network(params, x)) for model, params in models.items() if params is not None
    }
    scale = label.scale if isinstance(label, NumberLabel) else 1
    return columns | measure_clients(label.type, table.held_out, scores, names, scale)


def _label_scores(label: Label, values: Array) -> np.ndarray:
    if isinstance(label, NumberLabel):
        return np.asarray(label.unit.clip(values[:, 0]))
    return np.asarray(values if isinstance(label, MulticlassLabel) else values[:, 0])


def group_metrics(params: Network, data: ClientData, **labels: Any) -> list[dict[str, Any]]:
    """Return accuracy, selection rate, true and false positive rate and size of both groups over all clients.

    Rows are classified at a probability of one half. There is one entry per group, which begins with ``labels``.
    """
    y, group = (np.asarray(data.rows.columns[name]) for name in ("y", "group"))
    predicted = np.asarray(scores(params, jnp.asarray(data.rows.columns["x"])) >= 0)
    entries = []
    for name, rows in (("others", group == 0), ("protected", group == 1)):
        values = {
            "accuracy": (predicted == y)[rows],
            "selection_rate": predicted[rows],
            "true_positive_rate": predicted[rows & (y == 1)],
            "false_positive_rate": predicted[rows & (y == 0)],
        }
        rates = {metric: float(one.mean()) if len(one) else 0.0 for metric, one in values.items()}
        entries.append({**labels, "group": name, **rates, "rows": float(rows.sum())})
    return entries
