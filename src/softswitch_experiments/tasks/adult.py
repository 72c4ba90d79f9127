"""The Adult data set, which comes with the package: census rows, labelled by an income above 50,000 dollars.

Becker and Kohavi (1996), Adult, UCI Machine Learning Repository, https://doi.org/10.24432/C5XW20, CC BY 4.0.
"""

from __future__ import annotations

import csv
import hashlib
import io
import lzma
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources

import numpy as np

SHA256 = "d99d5b2c07ff6c7e09b6e0cefe115f6835d5c7b6efebdb9276238f1243c6369b"
"""Digest of the decompressed file."""
NUMERIC = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
CATEGORICAL = (
    "workclass",
    "education",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "native-country",
)
LABEL, POSITIVE = "income", ">50K"

Columns = Mapping[str, np.ndarray]


@lru_cache(maxsize=1)
def columns() -> Columns:
    """Return all 48,842 rows as one array per column, numeric or text. ``?`` is a level.

    The columns ``income`` and ``split`` are the label and UCI's split into ``train`` and ``test``.
    """
    packed = resources.files("softswitch_experiments").joinpath("tasks", "data", "adult.csv.xz").read_bytes()
    content = lzma.decompress(packed)
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHA256:
        raise ValueError(f"the Adult data are damaged: SHA-256 {digest} instead of {SHA256}; install softswitch again")
    header, *rows = csv.reader(io.StringIO(content.decode("utf-8")))
    table = dict(zip(header, map(np.array, zip(*rows, strict=True)), strict=True))
    return {name: column.astype(float) if name in NUMERIC else column for name, column in table.items()}


def labels(table: Columns) -> np.ndarray:
    """Return 1 for an income above 50,000 dollars, otherwise 0."""
    return (table[LABEL] == POSITIVE).astype(np.int32)


def features(table: Columns, fit_on: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return 100 features and their names: standardised numbers, and one-hot levels without the first.

    Args:
        table: The columns.
        fit_on: Rows whose mean and standard deviation are used. Levels are those of all rows.
    """
    parts, names = [], list(NUMERIC)
    for name in NUMERIC:
        fitted = table[name][fit_on]
        parts.append((table[name] - fitted.mean()) / fitted.std())
    for name in CATEGORICAL:
        for level in np.unique(table[name])[1:]:
            parts.append(table[name] == level)
            names.append(f"{name}={level}")
    return np.stack(parts, axis=1).astype(np.float32), tuple(names)
