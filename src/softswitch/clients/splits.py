"""Ways to split one data set over clients: each gives a client label for every row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from softswitch.support import checks


def _checked(labels: Any, clients: Any) -> tuple[np.ndarray, int]:
    labels = np.asarray(labels)
    clients = checks.whole_number("clients", clients, at_least=1)
    if labels.ndim != 1 or len(labels) < clients:
        raise ValueError(
            f"labels must be a vector with at least clients = {clients} rows, but has shape {labels.shape}"
        )
    return labels, clients


def split_iid(labels: ArrayLike, clients: int, *, seed: int = 0) -> np.ndarray:
    """Deal rows at random so that all clients have the same size and the same class mix, to within one row.

    Args:
        labels: the class of each row.
        clients: how many clients.
        seed: of the shuffle.
    """
    labels, clients = _checked(labels, clients)
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    client = np.empty(len(labels), dtype=int)
    # One round of dealing goes through all classes, each taking up where the one before it stopped.
    client[by_class] = np.arange(len(labels)) % clients
    return client


def split_dirichlet(
    labels: ArrayLike, clients: int, *, concentration: float = 0.5, min_rows: int = 1, seed: int = 0
) -> np.ndarray:
    """Deal each class over the clients in Dirichlet-distributed shares: label skew and ragged sizes.

    Args:
        labels: the class of each row.
        clients: how many clients.
        concentration: of the Dirichlet; small is skewed, large is IID.
        min_rows: every client has at least this many rows: shares are drawn anew until it holds (up to 1,000 times).
        seed: of the shares and the shuffle.
    """
    labels, clients = _checked(labels, clients)
    concentration = checks.real_number("concentration", concentration, above=0)
    min_rows = checks.whole_number("min_rows", min_rows, at_least=1)
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
    raise ValueError(
        f"no split of {len(labels)} rows gave each of {clients} clients min_rows = {min_rows} rows in 1,000 tries; "
        f"raise concentration (now {concentration:g}), or lower clients or min_rows"
    )


def split_by_column(column: ArrayLike, *, min_rows: int = 1, rest: str | float = "other") -> np.ndarray:
    """One client a distinct value of a column; values rarer than ``min_rows`` are put together.

    Args:
        column: one value a row.
        min_rows: a value with fewer rows does not make a client of its own.
        rest: the label of the client that the rare values make together.
    """
    column = np.asarray(column)
    if column.ndim != 1 or len(column) == 0:
        raise ValueError(f"column must be a vector with at least one row, but has shape {column.shape}")
    min_rows = checks.whole_number("min_rows", min_rows, at_least=1)
    _, index, counts = np.unique(column, return_inverse=True, return_counts=True)
    rare = counts[index] < min_rows
    if not rare.any():
        return column
    return np.where(rare, str(rest), column.astype(str))


def hold_out(client: Any, *columns: Any, share: float, seed: int = 0) -> np.ndarray:
    """Which rows to keep apart: that share of each client's rows of each class and group, rounded down, at random.

    Args:
        client: whose row it is.
        columns: what else to keep the proportions of: labels, groups.
        share: in [0, 1).
        seed: of the choice.
    """
    if not 0 <= share < 1:
        raise ValueError(f"held_out must be a share >= 0 and < 1, but is {share!r}")
    _, cell = np.unique(np.asarray(client).astype(str), return_inverse=True)
    for column in columns:
        values, codes = np.unique(np.asarray(column), return_inverse=True)
        cell = cell * len(values) + codes
    _, cell, size = np.unique(cell, return_inverse=True, return_counts=True)
    shuffled = np.random.default_rng(seed).permutation(len(cell))
    by_cell = shuffled[np.argsort(cell[shuffled], kind="stable")]
    place = np.empty(len(cell), int)
    place[by_cell] = np.arange(len(cell)) - np.repeat(np.cumsum(size) - size, size)
    apart: np.ndarray = place < np.floor(share * size[cell])
    return apart
