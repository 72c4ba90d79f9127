"""How well scores put one kind of rows above another."""

from __future__ import annotations

import math

import numpy as np


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """The chance that a positive row has a larger score than another, ties count half; NaN without rows of both."""
    many = int(positive.sum())
    others = len(positive) - many
    if not many or not others:
        return math.nan
    from scipy.stats import rankdata  # takes half a second to import

    return float((rankdata(scores)[positive].sum() - many * (many + 1) / 2) / (many * others))
