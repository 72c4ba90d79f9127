"""Scores of the worst client, for scikit-learn's searches and cross-validations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.metrics import get_scorer, make_scorer

from softswitch.tables.estimators.federated_estimator import one_a_row


def worst_client_scorer(metric: str | Callable[..., float] = "accuracy") -> Any:
    """A scorer that is the smallest of all clients' scores: what a search should make large.

        sklearn.set_config(enable_metadata_routing=True)
        model = RateClassifier(at_most=0.1).set_fit_request(clients=True)
        search = GridSearchCV(model, {"at_most": [0.05, 0.1]}, scoring=worst_client_scorer("accuracy"))
        search.fit(X, y, clients=hospital)

    Args:
        metric: the name of a scorer of scikit-learn that compares labels with predictions ("accuracy", "recall",
            "neg_mean_absolute_error", …), or a function ``(y, predicted) -> number``, larger for better.
    """
    if not get_config()["enable_metadata_routing"]:
        raise ValueError(
            "worst_client_scorer must be told whose rows it scores; first: "
            "sklearn.set_config(enable_metadata_routing=True)"
        )
    if isinstance(metric, str):
        known = get_scorer(metric)
        if known._response_method != "predict":
            raise ValueError(f"metric must compare labels with predictions, but {metric!r} needs probabilities")
        function, sign, more = known._score_func, known._sign, known._kwargs
    else:
        function, sign, more = metric, 1, {}

    def worst(y: Any, predicted: Any, *, clients: Any = None) -> float:
        labels, found = np.asarray(y), np.asarray(predicted)
        owner = np.zeros(len(labels)) if clients is None else one_a_row("clients", clients, len(labels))
        own = (owner == name for name in np.unique(owner))
        return min(float(sign * function(labels[rows], found[rows], **more)) for rows in own)

    return make_scorer(worst).set_score_request(clients=True)
