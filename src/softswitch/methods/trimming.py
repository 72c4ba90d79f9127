"""The worst client, where some are set aside because they may lie."""

from __future__ import annotations

from typing import Any

import numpy as np


def worst_but(values: np.ndarray, liars: Any) -> float:
    """The largest of the clients' values once the b largest are set aside. One that is not known counts as the largest.

    Args:
        values: one a client, or one a client and constraint: a client counts by its largest, so that b clients are set
            aside, and not b for each constraint.
        liars: b; None: nobody is set aside.
    """
    of_each = np.asarray(values, float).reshape(len(values), -1).max(axis=1)
    place = min(int(liars or 0), len(of_each) - 1)
    found = np.sort(np.where(np.isnan(of_each), np.inf, of_each))[-1 - place]
    lost = np.isnan(of_each).any() and found == np.inf
    return float("nan") if lost else float(found)


def mean_within(values: np.ndarray, liars: Any) -> float:
    """The mean of the clients' values, each moved within what the others say; −∞, what a client does not have, is out.

    Args:
        values: one a client, or one a client and constraint.
        liars: b; None: all are taken as they are.
    """
    columns = np.asarray(values).reshape(len(values), -1)
    kept = []
    for column in columns.T:
        known = column[~np.isneginf(column)]
        place = min(int(liars or 0), (len(known) - 1) // 2)
        if place > 0 and not np.isnan(known).any():
            ordered = np.sort(known)
            known = np.clip(known, ordered[place], ordered[-1 - place])
        kept.append(known)
    return float(np.mean(np.concatenate(kept)))


def largest_few(values: np.ndarray, liars: Any) -> list[int]:
    """The b clients with the largest values, largest first; those that are not known first of all."""
    known = np.where(np.isnan(values), np.inf, values)
    return np.argsort(-known, kind="stable")[: int(liars or 0)].tolist()
