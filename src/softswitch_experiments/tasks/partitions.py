"""Partitions of a data set over simulated clients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from softswitch.data.splits import shuffle_by
from softswitch.support import checks


def _check_labels(labels: Any, clients: Any) -> tuple[np.ndarray, int]:
    labels, clients = np.asarray(labels), checks.check_integer("clients", clients, minimum=1)
    if labels.ndim != 1 or len(labels) < clients:
        raise ValueError(f"labels must be a vector of at least clients = {clients} rows, but has shape {labels.shape}")
    return labels, clients


def split_iid(labels: ArrayLike, clients: int, *, seed: int = 0) -> np.ndarray:
    """Return a random client index for each row: all clients have the same size and class proportions, up to one row.

    Args:
        labels: Class of each row, a vector.
        clients: Number of clients.
        seed: Random seed. Default: 0.
    """
    labels, clients = _check_labels(labels, clients)
    client = np.empty(len(labels), dtype=int)
    client[shuffle_by(labels, seed)] = np.arange(len(labels)) % clients
    return client


def split_dirichlet(
    labels: ArrayLike, clients: int, *, concentration: float = 0.5, min_rows: int = 1, seed: int = 0
) -> np.ndarray:
    """Return a client index for each row; the rows of each class are divided by proportions from a Dirichlet law.

    Args:
        labels: Class of each row, a vector.
        clients: Number of clients.
        concentration: Concentration > 0 of the Dirichlet distribution; small values give skewed clients. Default: 0.5.
        min_rows: Minimum number of rows of a client. Proportions are redrawn up to 1,000 times to satisfy it; then
            ValueError is raised. Default: 1.
        seed: Random seed. Default: 0.
    """
    labels, clients = _check_labels(labels, clients)
    concentration = checks.check_real("concentration", concentration, above=0)
    min_rows = checks.check_integer("min_rows", min_rows, minimum=1)
    generator = np.random.default_rng(seed)
    for _ in range(1000):
        client = np.empty(len(labels), dtype=int)
        for label in np.unique(labels):
            rows = generator.permutation(np.flatnonzero(labels == label))
            shares = generator.dirichlet(np.full(clients, concentration))
            ends = np.round(np.cumsum(shares) * len(rows)).astype(int)
            client[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right").clip(max=clients - 1)
        if np.bincount(client, minlength=clients).min() >= min_rows:
            return client
    wanted = f"gave each of {clients} clients min_rows = {min_rows} rows in 1,000 tries"
    advice = f"raise concentration (now {concentration:g}), or lower clients or min_rows"
    raise ValueError(f"no split of {len(labels)} rows {wanted}; {advice}")


def split_by_column(column: ArrayLike, *, min_rows: int = 1) -> np.ndarray:
    """Return a client label for each row: the value of a column, as text if rare values are merged.

    Args:
        column: One value per row.
        min_rows: Values with fewer rows are merged into one client, "other". Default: 1, no merging.
    """
    column = np.asarray(column)
    if column.ndim != 1 or len(column) == 0:
        raise ValueError(f"column must be a vector with at least one row, but has shape {column.shape}")
    min_rows = checks.check_integer("min_rows", min_rows, minimum=1)
    _, index, counts = np.unique(column, return_inverse=True, return_counts=True)
    rare = counts[index] < min_rows
    return np.where(rare, "other", column.astype(str)) if rare.any() else column
