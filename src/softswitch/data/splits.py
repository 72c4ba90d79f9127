"""Ways to split one data set over clients: each gives a client label for every row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from softswitch.data.client_data import ClientData
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


class DataSplit(NamedTuple):
    """Three parts of every client's rows.

    Attributes:
        train: what models are trained on.
        validation: what one of them is chosen by.
        calibration: what is looked at once, at the end, to say what holds on rows that nobody has seen.
    """

    train: ClientData
    validation: ClientData
    calibration: ClientData

    @classmethod
    def from_arrays(
        cls,
        data: Mapping[str, Any],
        client: ArrayLike,
        *,
        alike: tuple[str, ...] = (),
        choosing: float = 0.15,
        held_out: float = 0.25,
        strata: ArrayLike | None = None,
        seed: int = 0,
    ) -> DataSplit:
        """DataSplit of arrays with one row a sample, and a column that says whose row it is.

        Args:
            data: the columns.
            client: one label a sample.
            alike: names of columns with few values (labels, groups) of which every part has the same shares.
            choosing: the share of each client's rows to choose by,
            held_out: and to certify with.
            strata: as for ``ClientData.from_arrays``; a column's name, or several.
            seed: of the choice of rows.
        """
        masks = part_masks(client, *(data[name] for name in alike), choosing=choosing, held_out=held_out, seed=seed)
        owner, found = np.asarray(client), []
        for name, mask in zip(cls._fields, masks, strict=True):
            if not mask.any():
                raise ValueError(f"no client has enough rows for the part {name!r}; give it a larger share")
            part = {key: np.asarray(column)[mask] for key, column in data.items()}
            found.append(ClientData.from_arrays(part, owner[mask], strata=strata))
        return cls(*found)


def part_masks(
    client: Any, *columns: Any, choosing: float, held_out: float, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which rows are to learn from, to choose by and to certify with: shares of each client's rows of each kind.

    Args:
        client: whose row it is.
        columns: what else to keep the proportions of: labels, groups.
        choosing: the share to choose by, 0 or more,
        held_out: and to certify with; together below 1.
        seed: of the choice.
    """
    for name, share in (("choosing", choosing), ("held_out", held_out)):
        if not 0 <= share < 1:
            raise ValueError(f"{name} must be a share >= 0 and < 1, but is {share!r}")
    if not choosing + held_out < 1:
        raise ValueError(
            f"choosing and held_out must leave rows to learn from, but together are {choosing + held_out:g}"
        )
    owner = np.asarray(client)
    last = hold_out(owner, *columns, share=held_out, seed=seed)
    rest = np.flatnonzero(~last)
    chosen = hold_out(
        owner[rest], *(np.asarray(column)[rest] for column in columns), share=choosing / (1 - held_out), seed=seed
    )
    second = np.zeros_like(last)
    second[rest[chosen]] = True
    return ~(last | second), second, last


def sample_of(data: ClientData, most: int, seed: int = 0) -> ClientData:
    """At most so many rows of each client, at random; the data themselves where no client has more."""
    if int(data.sizes.max()) <= most:
        return data
    generator = np.random.default_rng(seed)
    picks = [
        first + np.sort(generator.choice(size, min(size, most), replace=False))
        for first, size in zip(np.cumsum(data.sizes) - data.sizes, data.sizes, strict=True)
    ]
    rows = np.concatenate(picks)
    owner = np.repeat(np.arange(len(picks)), [len(own) for own in picks])
    columns = {key: np.asarray(column)[rows] for key, column in data.rows.columns.items()}
    return ClientData(columns, owner, None, data.names)
