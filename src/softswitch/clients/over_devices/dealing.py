"""Which client's rows lie on which device: equally many clients on each, and about equally many rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Deal(NamedTuple):
    """Clients dealt to devices.

    Attributes:
        owner: the device of each client, by its place.
        offsets: the first row of each client's stratum among its device's rows; clients × strata.
        members: each device's clients in ascending order; devices × clients, padded by n.
        room: how many rows the device with the most has; all have room for as many.
    """

    owner: np.ndarray
    offsets: np.ndarray
    members: np.ndarray
    room: int

    def rows_of(self, device: int, first_rows: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """The rows of a device's clients, by their places in a store of all rows.

        Args:
            device: its place.
            first_rows: where each client's rows begin in that store.
            sizes: how many each client has.
        """
        own = np.flatnonzero(self.owner == device)
        shift = np.repeat(first_rows[own].astype(np.int64) - self.offsets[own, 0], sizes[own])
        return shift + np.arange(len(shift))


def deal(stratum_sizes: np.ndarray, devices: int) -> Deal:
    """Deal clients to devices.

    Clients are dealt in rounds, the largest first: in each, every device gets one, and those with the fewest rows so
    far the largest. So clients of similar size, which are computed together, are spread over all devices. Clients of
    one size are dealt in stretches: their rows stay side by side.

    Args:
        stratum_sizes: how many rows a client has of each stratum; clients × strata.
        devices: how many devices; at most as many as clients.
    """
    sizes = stratum_sizes.sum(axis=1)
    n = len(sizes)
    owner = np.empty(n, np.int32)
    if (sizes == sizes[0]).all():
        owner[:] = np.arange(n) * devices // n
    else:
        load = np.zeros(devices, np.int64)
        order = np.argsort(-sizes, kind="stable")
        for dealt in range(0, n, devices):
            some = order[dealt : dealt + devices]
            lightest = np.argsort(load, kind="stable")[: len(some)]
            owner[some] = lightest
            load[lightest] += sizes[some]
    by_device = np.argsort(owner, kind="stable")
    begins = np.searchsorted(owner[by_device], np.arange(devices))
    before = np.concatenate([[0], np.cumsum(sizes[by_device])])
    first = np.empty(n, np.int64)
    first[by_device] = before[:-1] - before[begins][owner[by_device]]
    within = np.cumsum(stratum_sizes, axis=1) - stratum_sizes
    return Deal(
        owner=owner,
        offsets=(first[:, None] + within).astype(np.int32),
        members=padded_by_owner(np.arange(n), owner, devices),
        room=max(1, int(np.bincount(owner, sizes, devices).max())),
    )


def padded_by_owner(clients: np.ndarray, owner: np.ndarray, devices: int) -> np.ndarray:
    """Some clients, those of each device in a row of their own, padded by n; at least one place a row."""
    rows = [clients[owner[clients] == device] for device in range(devices)]
    made = np.full((devices, max(1, *map(len, rows))), len(owner), np.int32)
    for row, own in zip(made, rows, strict=True):
        row[: len(own)] = own
    return made
