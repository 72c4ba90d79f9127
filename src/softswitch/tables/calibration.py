"""Calibration of predicted probabilities: logistic recalibration and reliability curves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softswitch.certification.limits import clopper_pearson_upper

MIN_EVENTS = 10  # fewest rows of either class for a recalibration
MIN_BIN_ROWS, MAX_BINS = 10, 10  # of a reliability curve


def fit_recalibration(y: np.ndarray, log_odds: np.ndarray) -> tuple[float, float]:
    """Return intercept and slope of the logistic regression of y on the predicted log odds.

    A calibrated model has intercept 0 and slope 1; a slope below 1 means that predictions are too extreme. Both are
    NaN with fewer than ``MIN_EVENTS`` rows of either class, or if there is no finite estimate.
    """
    from sklearn.linear_model import LogisticRegression

    positive, x = np.asarray(y) == 1, np.asarray(log_odds, dtype=float)
    events, others = x[positive], x[~positive]
    if min(len(events), len(others)) < MIN_EVENTS or not np.isfinite(x).all():
        return math.nan, math.nan
    if events.min() >= others.max() or others.min() >= events.max():  # separated: the slope is infinite
        return math.nan, math.nan
    center, spread = float(x.mean()), float(x.std())
    model = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000).fit(((x - center) / spread)[:, None], positive)
    slope = float(model.coef_[0, 0]) / spread
    return float(model.intercept_[0]) - slope * center, slope


def reliability_curve(y: np.ndarray, probability: np.ndarray) -> list[dict[str, Any]]:
    """Return up to ``MAX_BINS`` bins of equally many rows, in the order of the predicted probability.

    A bin has the mean predicted probability ("predicted"), the share of positive rows ("observed"), the exact 95%
    limits of that share ("lower", "upper") and the number of rows ("rows").
    """
    order, positive = np.argsort(probability, kind="stable"), np.asarray(y) == 1
    bins = min(MAX_BINS, max(1, len(order) // MIN_BIN_ROWS))
    curve = []
    for rows in np.array_split(order, bins) if len(order) else ():
        count, total = int(positive[rows].sum()), len(rows)
        curve.append(
            {
                "predicted": float(np.mean(probability[rows])),
                "observed": count / total,
                "lower": 1 - clopper_pearson_upper(total - count, total, 0.025),
                "upper": clopper_pearson_upper(count, total, 0.025),
                "rows": total,
            }
        )
    return curve
