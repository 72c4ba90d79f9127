"""Assign clients to devices: equally many clients on each, and about equally many rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from softswitch.data.client_data import ClientData, Rows
from softswitch.oracles.evaluation import EvaluationPlan
from softswitch.oracles.gradient import GradientOracle
from softswitch.oracles.sharded import AXIS, REPLICATED, SHARDED, DeviceEvaluationPlan, ShardedOracle, static_settings
from softswitch.support import checks, processes

SLICES = 16
"""Average number of slices of a device with partial participation; the last slice may be mostly empty."""


class Placement(NamedTuple):
    """Clients assigned to devices."""

    owner: np.ndarray  # device index of each client
    offsets: np.ndarray  # first row of each client's stratum among its device's rows; clients × strata
    members: np.ndarray  # clients of each device in ascending order; devices × clients, padded with n
    capacity: int  # number of rows of the device with the most rows

    def device_rows(self, device: int, first_rows: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return the rows of a device's clients as indices into all rows, given each client's first row and size."""
        own = np.flatnonzero(self.owner == device)
        shift = np.repeat(first_rows[own].astype(np.int64) - self.offsets[own, 0], sizes[own])
        return shift + np.arange(len(shift))


def place_clients(stratum_sizes: np.ndarray, devices: int) -> Placement:
    """Assign clients to devices, given the number of rows of each client and stratum.

    Clients are assigned in turns, the largest first. In each turn every device gets one client, and the devices with
    the fewest rows get the largest. Clients of similar size are therefore spread over all devices. Clients of equal
    size are assigned in contiguous blocks.
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
    offsets = (first_rows[:, None] + np.cumsum(stratum_sizes, axis=1) - stratum_sizes).astype(np.int32)
    members = group_by_device(np.arange(n), owner, devices)
    return Placement(owner, offsets, members, max(1, int(np.bincount(owner, sizes, devices).max())))


def group_by_device(clients: np.ndarray, owner: np.ndarray, devices: int) -> np.ndarray:
    """Return some clients as devices × clients, padded with n, with at least one column."""
    groups = [clients[owner[clients] == device] for device in range(devices)]
    padded = np.full((devices, max(1, *map(len, groups))), len(owner), np.int32)
    for row, group in zip(padded, groups, strict=True):
        row[: len(group)] = group
    return padded


def check_devices(devices: Any, clients: int) -> tuple[Any, ...]:
    """Return the given devices; raise if they cannot be used for this number of clients."""
    available, count = jax.devices(), jax.process_count()
    if isinstance(devices, str):
        checks.check_choice("devices", devices, ("all",))
        chosen = tuple(available)
    elif isinstance(devices, Sequence):
        chosen = tuple(devices)
        if not chosen or not all(isinstance(device, jax.Device) for device in chosen):
            raise TypeError(f"devices must be 'all', a number, or some of jax.devices(), but is {devices!r}")
    else:
        chosen = tuple(available[: checks.check_integer("devices", devices, minimum=1)])
        if len(chosen) < devices:
            raise ValueError(f"devices must be at most {len(available)}, the number that JAX has, but is {devices}")
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"devices must be different, but is {devices!r}")
    if len({device.platform for device in chosen}) > 1:
        raise ValueError(f"devices must be of one kind, but is {devices!r}")
    if len(chosen) > clients:
        raise ValueError(f"devices must be at most as many as clients ({clients}), but there are {len(chosen)}")
    if count > 1 and len({device.process_index for device in chosen}) < count:
        raise ValueError(f"devices must include some of each of {count} processes, but is {devices!r}")
    return chosen


def shard_oracle(
    oracle: GradientOracle,
    clients: ClientData,
    held_out: ClientData | None,
    devices: Any,
    client_batch_size: int | None,
) -> ShardedOracle:
    """Return the same clients sharded over devices.

    A device computes ``client_batch_size`` clients together; if None, as many as memory allows, and with partial
    participation so few that the work is balanced.
    """
    chosen = check_devices(devices, len(clients))
    mesh = Mesh(np.array(chosen), (AXIS,))
    processes.check_equal("clients", *(data.stratum_sizes for data in (clients, held_out) if data is not None))
    placement = place_clients(clients.stratum_sizes, len(chosen))
    (plan, rows), dummy = _put_data(clients, oracle.evaluation_plan, placement, mesh)
    held_out_part, held_out_dummy = None, None
    if held_out is not None and oracle.held_out is not None:
        held_out_placement = place_clients(held_out.stratum_sizes, len(chosen))
        held_out_part, held_out_dummy = _put_data(held_out, oracle.held_out[0], held_out_placement, mesh)
    slice_size = _slice_size(oracle, len(clients), placement, client_batch_size)
    return ShardedOracle(
        **static_settings(oracle) | {"slice_size": slice_size},
        rows=rows,
        evaluation_plan=plan,
        held_out=held_out_part,
        owner=_put(placement.owner, mesh, REPLICATED),
        members=_put(placement.members.reshape(-1), mesh, SHARDED),
        dummy=dummy,
        held_out_dummy=held_out_dummy,
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


def _put_data(data: ClientData, plan: EvaluationPlan, placement: Placement, mesh: Mesh) -> tuple[Any, Any]:
    """Put rows and their evaluation plan on the devices, and find rows for each device's dummy client."""
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
    members = (group_by_device(np.asarray(group), placement.owner, devices) for group in plan.groups)
    groups = tuple(_put(group.reshape(-1), mesh, SHARDED) for group in members)
    device_plan = DeviceEvaluationPlan(groups, jnp.zeros(0, jnp.int32), plan.widths, plan.row_bytes, n)
    first = placement.members[:, 0]
    client, has_clients = np.minimum(first, n - 1), (first < n)[:, None]
    one_row = np.arange(data.stratum_sizes.shape[1]) == 0
    offsets = np.where(has_clients, placement.offsets[client], 0)
    counts = np.where(has_clients, data.stratum_sizes[client], one_row)
    return (device_plan, rows), tuple(_put(part.astype(np.int32), mesh, SHARDED) for part in (offsets, counts))


def _put(array: np.ndarray, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    return _put_parts(lambda index: array[index], array.shape, mesh, spec)


def _put_parts(part: Callable[[Any], np.ndarray], shape: tuple[int, ...], mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    """Make a sharded array; each process computes only the parts of its own devices."""
    return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), part)
