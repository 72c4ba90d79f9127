"""Partitions of a data set over clients, and train/validation/calibration splits of every client's rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from softswitch.data.row_order import unique
from softswitch.support import checks

if TYPE_CHECKING:  # imports JAX, which softswitch init does not need
    import pandas as pd

    from softswitch.data.client_data import ClientData


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
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    client[shuffled[np.argsort(labels[shuffled], kind="stable")]] = np.arange(len(labels)) % clients
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


def row_keys(columns: Mapping[str, Any] | pd.DataFrame, seed: int) -> np.ndarray:
    """Return a random uint64 for each row that depends on its values and the seed, and on no other row.

    If rows are divided by these numbers, most rows stay where they are when others are added or removed.
    """
    from pandas.util import hash_array  # softswitch --help does not need pandas

    keys: Any = np.uint64(seed)
    for _, column in columns.items():  # noqa: PERF102 (a DataFrame's values are not columns)
        table = np.asarray(column)
        for values in table.reshape(len(table), -1).T:
            is_number = values.dtype.kind in "biuf"
            hashed = hash_array(values.astype(float) if is_number else values.astype(str).astype(object))
            keys = (keys ^ hashed) * np.uint64(0x9E3779B97F4A7C15)
            keys = keys ^ (keys >> np.uint64(29))
    return np.asarray(keys)


def hold_out(client: Any, *columns: Any, share: float | np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return a mask of a fraction of each client's rows, rounded down, with the proportions of ``columns``.

    ``share`` is the fraction in [0, 1), for all clients or for the client of each row. The rows with the smallest
    ``keys`` are held out.
    """
    _, cell = unique(np.asarray(client), str)
    for column in columns:
        values, codes = unique(np.asarray(column))
        cell = cell * len(values) + codes
    _, cell, size = np.unique(cell, return_inverse=True, return_counts=True)
    place = np.empty(len(cell), int)
    place[np.lexsort((keys, cell))] = np.arange(len(cell)) - np.repeat(np.cumsum(size) - size, size)
    return np.asarray(place < np.floor(share * size[cell]))


class DataSplit(NamedTuple):
    """A three-way split of every client's rows.

    Attributes:
        train: Rows to train models on.
        validation: Rows to select a model on.
        calibration: Rows to certify the selected model on. They are used once, for that model.
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
        stratify: tuple[str, ...] = (),
        validation: float = 0.15,
        calibration: float = 0.25,
        strata: ArrayLike | None = None,
        seed: int = 0,
    ) -> DataSplit:
        """Split arrays with one row per sample; raise ValueError if a split would be empty.

        The other clients outweigh the training rows of a client with few rows, but nothing replaces its calibration
        rows. So a client with fewer rows than the average gives a larger fraction for calibration: as many rows as a
        client of average size, but at most twice the fraction, and at most half of its other rows in addition.

        Args:
            data: Arrays by column name.
            client: Client label of each sample.
            stratify: Names of columns with few values (labels, groups) whose proportions each split preserves.
            validation: Fraction of each client's rows for validation, in [0, 1). Default: 0.15.
            calibration: Fraction of each client's rows for calibration, in [0, 1); larger for small clients.
                Default: 0.25.
            strata: Strata of the batches, as for ``ClientData.from_arrays``: a column name, or a tuple of names.
            seed: Random seed. With the same seed, most rows stay in their split when others are added. Default: 0.
        """
        from softswitch.data.client_data import ClientData

        columns = [data[name] for name in stratify]
        shares: dict[str, Any] = {"validation": validation, "calibration": calibration}
        masks = split_masks(client, *columns, **shares, keys=row_keys(data, checks.check_seed("seed", seed)))
        owner, parts = np.asarray(client), []
        for name, mask in zip(cls._fields, masks, strict=True):
            if not mask.any():
                raise ValueError(f"no client has enough rows for the {name} split; increase its share")
            part = {key: np.asarray(column)[mask] for key, column in data.items()}
            parts.append(ClientData.from_arrays(part, owner[mask], strata=strata))
        return cls(*parts)


def split_masks(
    client: Any,
    *columns: Any,
    validation: float,
    calibration: float,
    keys: np.ndarray,
    independent: bool = False,
    names: Any = DataSplit._fields[1:],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return train, validation and calibration masks with the proportions of ``columns``; ``names`` are for errors.

    ``keys`` are those of ``row_keys``. If ``independent``, no other row has an influence on where a row goes, as
    differential privacy requires; then the proportions hold on average only.
    """
    for name, share in zip(names, (validation, calibration), strict=True):
        checks.check_fraction(name, share)
    if not validation + calibration < 1:
        raise ValueError(f"{' and '.join(names)} must leave rows to train on, but sum to {validation + calibration:g}")
    if independent:
        uniform = keys / 2.0**64
        calibration_mask = uniform < calibration
        validation_mask = ~calibration_mask & (uniform < calibration + validation)
        return ~(calibration_mask | validation_mask), validation_mask, calibration_mask
    owner = np.asarray(client)
    _, index = unique(owner, str)
    rows = np.bincount(index)
    shares = np.clip(calibration * rows.mean() / rows, calibration, min(2 * calibration, (1 + calibration) / 2))
    calibration_mask = hold_out(owner, *columns, share=shares[index], keys=keys)
    rest = np.flatnonzero(~calibration_mask)
    remaining = [np.asarray(column)[rest] for column in columns]
    validation_mask = np.zeros_like(calibration_mask)
    validation_mask[rest] = hold_out(owner[rest], *remaining, share=validation / (1 - calibration), keys=keys[rest])
    return ~(calibration_mask | validation_mask), validation_mask, calibration_mask
