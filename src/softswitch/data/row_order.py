"""Sorting of rows by client, and by stratum within a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

MANY_LABELS = 100_000  # number of objects that are hashed, which is faster than sorting them
MAX_STRATA = 1 << 26  # maximum of clients times strata; more counts would take gigabytes


class RowOrder(NamedTuple):
    """The labels and sizes of clients and strata, and the order of their rows."""

    names: tuple[Any, ...]  # client labels, sorted
    strata: tuple[Any, ...]  # stratum labels, sorted; (0,) without strata
    sizes: np.ndarray  # number of rows, clients × strata
    order: np.ndarray | None  # original index of each sorted row; None if the rows are sorted already


def order_rows(total: int, client: Any, strata: Any, columns: Mapping[str, Any]) -> RowOrder:
    """Return the order of rows by client and stratum; ``strata`` are labels, column name(s) of ``columns``, or None."""
    names, cell = _encode_labels("client", client, total)
    groups: Sequence[Any] = (0,)
    if strata is not None:
        groups, codes = _encode_strata(strata, columns, total)
        if len(names) * len(groups) > MAX_STRATA:
            many = f"makes {len(names) * len(groups):,} strata to keep count of, more than {MAX_STRATA:,}"
            given = f"{len(groups):,}: with {len(names):,} clients that {many}"
            raise ValueError(f"strata must have few different values, but has {given}")
        cell = cell * len(groups) + codes
    sizes = np.bincount(cell, minlength=len(names) * len(groups)).reshape(len(names), len(groups))
    is_sorted = bool((cell[1:] >= cell[:-1]).all())
    order = None if is_sorted else np.argsort(cell, kind="stable").astype(np.int32)
    return RowOrder(tuple(names), tuple(groups), sizes, order)


def unique(labels: np.ndarray, dtype: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct labels, cast to ``dtype`` and sorted, and the index of each label among them."""
    if labels.dtype == object and len(labels) >= MANY_LABELS:
        from pandas import factorize  # not imported for small data

        codes, found = factorize(labels)
        if codes.min() >= 0:
            distinct, rank = np.unique(found if dtype is None else found.astype(dtype), return_inverse=True)
            return distinct, rank[codes]
    return np.unique(labels if dtype is None else labels.astype(dtype), return_inverse=True)


def _encode_labels(name: str, labels: Any, total: int) -> tuple[Sequence[Any], np.ndarray]:
    """Return the distinct labels, sorted, and the index of each row's label among them."""
    labels = np.asarray(labels)
    if labels.shape != (total,):
        raise ValueError(f"{name} must have one label for each of {total} samples, but has shape {labels.shape}")
    if labels.dtype.kind in "iu" and labels.min() >= 0 and labels.max() < min(2 * total, MAX_STRATA):
        present = np.zeros(int(labels.max()) + 1, bool)  # small numbers need not be sorted
        present[labels] = True
        return np.flatnonzero(present).tolist(), (np.cumsum(present) - 1)[labels]
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise ValueError(f"{name} must have a label for every sample, but some are NaN")
    try:
        distinct, codes = unique(labels)
    except TypeError as error:
        raise TypeError(f"{name} must hold labels of one kind (all text or all numbers): {error}") from error
    return distinct.tolist(), codes


def _encode_strata(strata: Any, columns: Mapping[str, Any], total: int) -> tuple[Sequence[Any], np.ndarray]:
    """Return the labels of the strata (numbers for combinations of columns), and each row's index among them."""
    names = (strata,) if isinstance(strata, str) else strata
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        return _encode_labels("strata", strata, total)
    for name in names:
        if name not in columns:
            raise ValueError(f"strata must name a column of data ({', '.join(map(repr, columns))}), but is {strata!r}")
    encoded = [_encode_labels("strata", columns[name], total) for name in names]
    if len(encoded) == 1:
        return encoded[0]
    combined = np.ravel_multi_index([codes for _, codes in encoded], [len(labels) for labels, _ in encoded])
    present, codes = np.unique(combined, return_inverse=True)
    return range(len(present)), codes
