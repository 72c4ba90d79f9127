"""Train/validation/calibration splits of every client's rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from softswitch.data.row_order import unique
from softswitch.support import checks

if TYPE_CHECKING:  # imports JAX, which softswitch init does not need
    from softswitch.data.client_data import ClientData


def shuffle_by(groups: np.ndarray, seed: int) -> np.ndarray:
    """Return the row indices sorted by group, in random order within a group."""
    shuffled = np.random.default_rng(seed).permutation(len(groups))
    return shuffled[np.argsort(groups[shuffled], kind="stable")]


def hold_out(client: Any, *columns: Any, share: float | np.ndarray, seed: int = 0) -> np.ndarray:
    """Return a mask of a random fraction of each client's rows, rounded down, with the proportions of ``columns``.

    ``share`` is the fraction in [0, 1), for all clients or for the client of each row.
    """
    _, cell = unique(np.asarray(client), str)
    for column in columns:
        values, codes = unique(np.asarray(column))
        cell = cell * len(values) + codes
    _, cell, size = np.unique(cell, return_inverse=True, return_counts=True)
    place = np.empty(len(cell), int)
    place[shuffle_by(cell, seed)] = np.arange(len(cell)) - np.repeat(np.cumsum(size) - size, size)
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
            seed: Random seed. Default: 0.
        """
        from softswitch.data.client_data import ClientData

        columns = [data[name] for name in stratify]
        masks = split_masks(client, *columns, validation=validation, calibration=calibration, seed=seed)
        owner, parts = np.asarray(client), []
        for name, mask in zip(cls._fields, masks, strict=True):
            if not mask.any():
                raise ValueError(f"no client has enough rows for the {name} split; increase its share")
            part = {key: np.asarray(column)[mask] for key, column in data.items()}
            parts.append(ClientData.from_arrays(part, owner[mask], strata=strata))
        return cls(*parts)


def split_masks(
    client: Any, *columns: Any, validation: float, calibration: float, seed: int = 0, names: Any = DataSplit._fields[1:]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return train, validation and calibration masks with the proportions of ``columns``; ``names`` are for errors."""
    for name, share in zip(names, (validation, calibration), strict=True):
        checks.check_fraction(name, share)
    if not validation + calibration < 1:
        raise ValueError(f"{' and '.join(names)} must leave rows to train on, but sum to {validation + calibration:g}")
    owner = np.asarray(client)
    _, index = unique(owner, str)
    rows = np.bincount(index)
    shares = np.clip(calibration * rows.mean() / rows, calibration, min(2 * calibration, (1 + calibration) / 2))
    calibration_mask = hold_out(owner, *columns, share=shares[index], seed=seed)
    rest = np.flatnonzero(~calibration_mask)
    remaining = [np.asarray(column)[rest] for column in columns]
    validation_mask = np.zeros_like(calibration_mask)
    validation_mask[rest] = hold_out(owner[rest], *remaining, share=validation / (1 - calibration), seed=seed)
    return ~(calibration_mask | validation_mask), validation_mask, calibration_mask
