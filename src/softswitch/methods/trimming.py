"""Trimmed statistics of client values, for runs with b Byzantine clients. None: no trimming."""

from __future__ import annotations

from typing import Any

import numpy as np


def worst_but(values: np.ndarray, liars: Any) -> float:
    """Return the largest value after the b clients with the largest values are trimmed; NaN counts as the largest.

    With several constraints, clients × constraints, the largest value of each client counts.
    """
    by_client = np.asarray(values, float).reshape(len(values), -1).max(axis=1)
    place = min(int(liars or 0), len(by_client) - 1)
    worst = np.sort(np.where(np.isnan(by_client), np.inf, by_client))[-1 - place]
    return float("nan") if np.isnan(by_client).any() and worst == np.inf else float(worst)


def mean_within(values: np.ndarray, liars: Any) -> float:
    """Return the winsorised mean of the clients' values, without missing ones (−∞)."""
    kept = []
    for column in np.asarray(values).reshape(len(values), -1).T:
        known = column[~np.isneginf(column)]
        place = min(int(liars or 0), (len(known) - 1) // 2)
        if place > 0 and not np.isnan(known).any():
            ordered = np.sort(known)
            known = np.clip(known, ordered[place], ordered[-1 - place])
        kept.append(known)
    return float(np.mean(np.concatenate(kept)))


def largest_few(values: np.ndarray, liars: Any) -> list[int]:
    """Return the b clients with the largest values in descending order; NaN counts as the largest."""
    known = np.where(np.isnan(values), np.inf, values)
    return np.argsort(-known, kind="stable")[: int(liars or 0)].tolist()
