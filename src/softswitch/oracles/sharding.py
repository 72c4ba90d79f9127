"""Assign clients to devices: equally many clients on each, and about equally many rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from softswitch.data.client_data import ClientData, Rows
from softswitch.oracles.evaluation import EvaluationPlan
from softswitch.oracles.gradient import GradientOracle
from softswitch.oracles.shard import DeviceEvaluationPlan
from softswitch.oracles.sharded import AXIS, REPLICATED, SHARDED, ShardedOracle
from softswitch.support import checks, processes

SLICES = 16
"""Average number of slices of a device with partial participation; the last slice may be mostly empty."""
Devices = str | int | Sequence[jax.Device] | None
"""None for the default device; "all"; a number; or the devices themselves."""


class Placement(NamedTuple):
    """Clients assigned to devices.

    Attributes:
        owner: Device index of each client.
        offsets: First row of each client's stratum among its device's rows; clients × strata.
        members: Clients of each device in ascending order; devices × clients, padded with n.
        capacity: Number of rows of the device with the most rows.
    """

    owner: np.ndarray
    offsets: np.ndarray
    members: np.ndarray
    capacity: int

    def device_rows(self, device: int, first_rows: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return the rows of a device's clients, as indices into all rows.

        Args:
            device: Index of the device.
            first_rows: First row of each client.
            sizes: Number of rows of each client.
        """
        own = np.flatnonzero(self.owner == device)
        shift = np.repeat(first_rows[own].astype(np.int64) - self.offsets[own, 0], sizes[own])
        return shift + np.arange(len(shift))


def place_clients(stratum_sizes: np.ndarray, devices: int) -> Placement:
    """Assign clients to devices.

    Clients are assigned in turns, the largest first. In each turn every device gets one client, and the devices with
    the fewest rows get the largest. Clients of similar size are therefore spread over all devices. Clients of equal
    size are assigned in contiguous blocks.

    Args:
        stratum_sizes: Number of rows of each client and stratum.
        devices: Number of devices, at most that of clients.
    """
    sizes = stratum_sizes.sum(axis=1)
    n = len(sizes)
    owner = np.empty(n, np.int32)
    if (sizes == sizes[0]).all():
        owner[:] = np.arange(n) * devices // n
    else:
        load = np.zeros(devices, np.int64)
        order = np.argsort(-sizes, kind="stable")
        for first in range(0, n, devices):
            clients = order[first : first + devices]
            lightest = np.argsort(load, kind="stable")[: len(clients)]
            owner[clients] = lightest
            load[lightest] += sizes[clients]
    by_device = np.argsort(owner, kind="stable")
    begins = np.searchsorted(owner[by_device], np.arange(devices))
    before = np.concatenate([[0], np.cumsum(sizes[by_device])])
    first_rows = np.empty(n, np.int64)
    first_rows[by_device] = before[:-1] - before[begins][owner[by_device]]
    within = np.cumsum(stratum_sizes, axis=1) - stratum_sizes
    return Placement(
        owner=owner,
        offsets=(first_rows[:, None] + within).astype(np.int32),
        members=group_by_device(np.arange(n), owner, devices),
        capacity=max(1, int(np.bincount(owner, sizes, devices).max())),
    )


def group_by_device(clients: np.ndarray, owner: np.ndarray, devices: int) -> np.ndarray:
    """Return some clients as devices × clients, padded with n, with at least one column."""
    groups = [clients[owner[clients] == device] for device in range(devices)]
    padded = np.full((devices, max(1, *map(len, groups))), len(owner), np.int32)
    for row, group in zip(padded, groups, strict=True):
        row[: len(group)] = group
    return padded


def check_devices(devices: Any, clients: int) -> tuple[Any, ...]:
    """Return the given devices; raise if they cannot be used for this number of clients."""
    available = jax.devices()
    if isinstance(devices, str):
        checks.check_choice("devices", devices, ("all",))
        chosen = tuple(available)
    elif isinstance(devices, Sequence):
        chosen = tuple(devices)
        if not chosen or not all(isinstance(device, jax.Device) for device in chosen):
            raise TypeError(f"devices must be 'all', a number, or some of jax.devices(), but is {devices!r}")
    else:
        count = checks.check_integer("devices", devices, minimum=1)
        if count > len(available):
            raise ValueError(f"devices must be at most {len(available)}, the number that JAX has, but is {count}")
        chosen = tuple(available[:count])
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"devices must be different, but is {devices!r}")
    if len({device.platform for device in chosen}) > 1:
        raise ValueError(f"devices must be of one kind, but is {devices!r}")
    if len(chosen) > clients:
        raise ValueError(f"devices must be at most as many as clients ({clients}), but there are {len(chosen)}")
    if processes.process_count() > 1 and len({device.process_index for device in chosen}) < processes.process_count():
        raise ValueError(
            f"devices must include some of each of {processes.process_count()} processes, but is {devices!r}"
        )
    return chosen


def shard_oracle(
    oracle: GradientOracle,
    clients: ClientData,
    held_out: ClientData | None,
    devices: Any,
    client_batch_size: int | None,
) -> ShardedOracle:
    """Return the same clients sharded over devices.

    Args:
        oracle: The clients on one device.
        clients: Their data.
        held_out: The held-out rows of the oracle, if it has any.
        devices: Devices as the user gives them.
        client_batch_size: Number of clients that a device computes together. Default: as many as memory allows, and
            with partial participation so few that the work is balanced.
    """
    chosen = check_devices(devices, len(clients))
    mesh = Mesh(np.array(chosen), (AXIS,))
    processes.check_equal("clients", *(data.stratum_sizes for data in (clients, held_out) if data is not None))
    placement = place_clients(clients.stratum_sizes, len(chosen))
    rows, plan, dummy = _put_data(clients, oracle.evaluation_plan, placement, mesh)
    held_out_shards = None
    if held_out is not None:
        assert oracle.held_out is not None
        held_out_placement = place_clients(held_out.stratum_sizes, len(chosen))
        held_out_shards = _put_data(held_out, oracle.held_out[1], held_out_placement, mesh)
    settings = {entry.name: getattr(oracle, entry.name) for entry in fields(GradientOracle) if entry.metadata}
    settings["slice_size"] = _slice_size(oracle, len(clients), placement, client_batch_size)
    return ShardedOracle(
        **settings,
        rows=rows,
        evaluation_plan=plan,
        held_out=None if held_out_shards is None else held_out_shards[:2],
        owner=_put(placement.owner, mesh, REPLICATED),
        members=_put(placement.members.reshape(-1), mesh, SHARDED),
        dummy=dummy,
        held_out_dummy=None if held_out_shards is None else held_out_shards[2],
        mesh=mesh,
    )


def _slice_size(oracle: GradientOracle, n: int, placement: Placement, client_batch_size: int | None) -> int:
    devices, most = placement.members.shape
    if oracle.participants == n:
        slices = -(-most // oracle.slice_size)
        return -(-most // slices)  # slices of equal size
    if client_batch_size is not None:
        return min(oracle.slice_size, most)
    return min(oracle.slice_size, max(1, -(-oracle.participants // (SLICES * devices))))


def _put_data(
    data: ClientData, plan: EvaluationPlan | None, placement: Placement, mesh: Mesh
) -> tuple[Rows, DeviceEvaluationPlan, tuple[jax.Array, jax.Array]]:
    """Put rows and their evaluation plan on the devices, and find rows for each device's dummy client."""
    assert plan is not None
    devices, n, capacity = len(placement.members), len(data), placement.capacity
    first_rows = np.cumsum(data.sizes) - data.sizes
    device_rows = cache(partial(placement.device_rows, first_rows=first_rows, sizes=data.sizes))

    def put_column(stored: jax.Array) -> jax.Array:
        host = np.asarray(stored)  # no copy if it is on the host

        def one_device(index: tuple[slice, ...]) -> np.ndarray:
            rows = device_rows((index[0].start or 0) // capacity)
            part = np.zeros((capacity, *host.shape[1:]), host.dtype)
            part[: len(rows)] = host[rows]
            return part

        return _put_parts(one_device, (devices * capacity, *host.shape[1:]), mesh, SHARDED)

    rows = Rows(
        {name: put_column(stored) for name, stored in data.rows.columns.items()},
        _put(placement.offsets, mesh, REPLICATED),
        _put(data.stratum_sizes.astype(np.int32), mesh, REPLICATED),
    )
    groups = (group_by_device(np.asarray(group), placement.owner, devices) for group in plan.groups)
    device_plan = DeviceEvaluationPlan(
        groups=tuple(_put(group.reshape(-1), mesh, SHARDED) for group in groups),
        order=jnp.zeros(0, jnp.int32),
        widths=plan.widths,
        row_bytes=plan.row_bytes,
        client_count=n,
    )
    first = placement.members[:, 0]
    client, has_clients = np.minimum(first, n - 1), (first < n)[:, None]
    one_row = (np.arange(data.stratum_sizes.shape[1]) == 0).astype(np.int32)
    dummy = (
        np.where(has_clients, placement.offsets[client], 0),
        np.where(has_clients, data.stratum_sizes[client], one_row),
    )
    offsets, counts = (_put(part.astype(np.int32), mesh, SHARDED) for part in dummy)
    return rows, device_plan, (offsets, counts)


def _put(array: np.ndarray, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    return _put_parts(lambda index: array[index], array.shape, mesh, spec)


def _put_parts(part: Callable[[Any], np.ndarray], shape: tuple[int, ...], mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    """Make a sharded array; each process computes only the parts of its own devices."""
    return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), part)
