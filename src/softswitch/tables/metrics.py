"""Metrics of a model at each client on held-out rows.

They are plain estimates, without confidence limits. A metric is NaN at a client without rows that it applies to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd

from softswitch.data.client_data import ClientData
from softswitch.problem.choices import BINARY, MULTICLASS, NUMBER
from softswitch.problem.networks import Network, apply_network, scores
from softswitch.problem.rates import is_positive
from softswitch.results.baseline import CONSTANT, UNCONSTRAINED_WORST, find_baseline
from softswitch.results.result import Result
from softswitch.tables.labels import NumberLabel
from softswitch.tables.preparation import PreparedTable

Metric = Callable[[np.ndarray, np.ndarray], float]  # of each row's y and score (rows × classes if several)


def auc(y: np.ndarray, score: np.ndarray) -> float:
    """Return the area under the ROC curve, for y of 0 and 1; NaN without rows of both classes."""
    positive = y == 1
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return math.nan
    ranks = pd.Series(score).rank().to_numpy()
    return float((ranks[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def worst_class_recall(y: np.ndarray, score: np.ndarray) -> float:
    """Return the smallest recall of any class with rows, for scores of rows × classes; NaN without rows."""
    correct = score.argmax(axis=1) == y
    return min((_mean(correct[y == label]) for label in np.unique(y)), default=math.nan)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


METRICS: dict[str, dict[str, Metric]] = {  # by label type and name
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
BASELINES = {"constant": CONSTANT, "unconstrained": UNCONSTRAINED_WORST}  # by the prefix of their metrics' columns


def client_metrics(table: PreparedTable, result: Result) -> dict[str, list[float]]:
    """Return columns of clients.csv by name, one value per client: numbers of rows, and metrics on held-out rows.

    There is a column ``{model}_{metric}`` for every model and metric; a client without held-out rows has NaN.
    """
    names, held_out, label = table.train.names, table.held_out, table.label
    columns: dict[str, list[float]] = {"rows": table.train.sizes.tolist()}
    for name, part in (("rows_to_choose_by", table.validation), ("rows_held_out", held_out)):
        if part is not None:
            sizes = dict(zip(part.names, part.sizes.tolist(), strict=True))
            columns[name] = [sizes.get(client, 0) for client in names]
    if held_out is None:
        return columns
    baselines = {prefix: find_baseline(name, result.baselines) for prefix, name in BASELINES.items()}
    models = {"held_out": result.params} | {key: one.params for key, one in baselines.items() if one is not None}
    y, ends = np.asarray(held_out.rows.columns["y"]), np.cumsum(held_out.sizes)
    y = label.mean + label.scale * y if isinstance(label, NumberLabel) else y
    parts = {name: slice(end - size, end) for name, size, end in zip(held_out.names, held_out.sizes, ends, strict=True)}
    for model, params in models.items():
        if params is None:
            continue
        outputs = apply_network(params, held_out.rows.columns["x"])
        if label.type == NUMBER:
            score = label.decode(outputs)
        else:
            score = np.asarray(outputs[:, 0] if label.type == BINARY else outputs)
        for metric, function in METRICS[label.type].items():
            values = (function(y[parts[name]], score[parts[name]]) if name in parts else math.nan for name in names)
            columns[f"{model}_{metric}"] = list(values)
    return columns


def group_metrics(params: Network, data: ClientData, **labels: Any) -> list[dict[str, Any]]:
    """Return accuracy, selection rate, true and false positive rate and number of rows of both groups.

    Rows of all clients are classified at probability 1/2. Each dict begins with ``labels``. A rate without rows is 0.
    """
    y, group = (np.asarray(data.rows.columns[name]) for name in ("y", "group"))
    predicted = np.asarray(is_positive(scores(params, jnp.asarray(data.rows.columns["x"]))))
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
