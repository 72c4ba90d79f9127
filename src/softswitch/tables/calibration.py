"""Calibration of predicted probabilities: logistic recalibration and reliability curves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import expit

from softswitch.certification.limits import clopper_pearson_upper

MIN_EVENTS = 10  # fewest rows of either class for a recalibration
MIN_BIN_ROWS, MAX_BINS = 10, 10  # of a reliability curve
MAX_STEPS, TOLERANCE = 100, 1e-10  # of Newton's method
MAX_SLOPE = 1e3  # a larger slope means that the log odds separate the classes


def fit_recalibration(y: np.ndarray, log_odds: np.ndarray) -> tuple[float, float]:
    """Return intercept and slope of the logistic regression of y on the predicted log odds.

    A calibrated model has intercept 0 and slope 1; a slope below 1 means that predictions are too extreme. Both are
    NaN with fewer than ``MIN_EVENTS`` rows of either class, or if there is no finite estimate.
    """
    positive, x = np.asarray(y) == 1, np.asarray(log_odds, dtype=float)
    count, spread = int(positive.sum()), float(x.std()) if len(x) else 0.0
    if min(count, len(x) - count) < MIN_EVENTS or not 0 < spread < math.inf:
        return math.nan, math.nan
    design = np.stack([np.ones(len(x)), (x - x.mean()) / spread], axis=1)
    sign = np.where(positive, 1.0, -1.0)
    weights, loss = np.zeros(2), math.inf
    for _ in range(MAX_STEPS):
        probability = expit(design @ weights)
        gradient = design.T @ (probability - positive)
        hessian = design.T @ (design * (probability * (1 - probability))[:, None])
        if np.linalg.cond(hessian) > 1 / TOLERANCE:
            return math.nan, math.nan
        step = np.linalg.solve(hessian, gradient)
        loss = float(np.logaddexp(0, -sign * (design @ weights)).sum())
        size = 1.0
        while size > TOLERANCE and np.logaddexp(0, -sign * (design @ (weights - size * step))).sum() > loss:
            size /= 2
        weights = weights - size * step
        if np.abs(step).max() < TOLERANCE:
            break
    slope = float(weights[1] / spread)
    if abs(weights[1]) > MAX_SLOPE:
        return math.nan, math.nan
    return float(weights[0] - slope * x.mean()), slope


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
