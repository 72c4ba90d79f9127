"""Metrics by group, through Fairlearn: ``pip install 'softswitch[fairness]'``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from softswitch.clients.client_data import ClientData
from softswitch.tasks.networks import Network, scores


def by_group(params: Network, data: ClientData, **labels: Any) -> list[dict[str, Any]]:
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
