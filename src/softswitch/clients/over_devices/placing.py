"""Clients' rows put on devices: each gets those of its own clients, from where they lie, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from softswitch.clients.client_data import ClientData, Rows
from softswitch.clients.evaluation import WayThrough
from softswitch.clients.gradient_oracle import GradientOracle
from softswitch.clients.over_devices import processes
from softswitch.clients.over_devices.dealing import Deal, deal, padded_by_owner
from softswitch.clients.over_devices.one_device import OwnWay
from softswitch.clients.over_devices.sharded_oracle import AXIS, DIVIDED, EVERYWHERE, ShardedOracle
from softswitch.support import checks

SLICES = 16
"""Where few clients take part a device goes through so many slices on average: what the last one lacks is wasted."""
Devices = str | int | Sequence[jax.Device] | None
"""None: the default device alone; "all"; how many; or the devices themselves."""


def checked_devices(devices: Any, clients: int) -> tuple[Any, ...]:
    """The devices that are meant; raise where they cannot be used for so many clients."""
    there = jax.devices()
    if isinstance(devices, str):
        checks.one_of("devices", devices, ("all",))
        chosen = tuple(there)
    elif isinstance(devices, Sequence):
        chosen = tuple(devices)
        if not chosen or not all(isinstance(device, jax.Device) for device in chosen):
            raise TypeError(f"devices must be 'all', a number, or some of jax.devices(), but is {devices!r}")
    else:
        count = checks.whole_number("devices", devices, at_least=1)
        if count > len(there):
            raise ValueError(f"devices must be at most {len(there)}, which JAX has, but is {count}")
        chosen = tuple(there[:count])
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"devices must be different, but is {devices!r}")
    if len({device.platform for device in chosen}) > 1:
        raise ValueError(f"devices must be of one kind, but is {devices!r}")
    if len(chosen) > clients:
        raise ValueError(f"devices must be at most as many as clients ({clients}), but there are {len(chosen)}")
    if processes.count() > 1 and len({device.process_index for device in chosen}) < processes.count():
        raise ValueError(f"devices must have some of each of the {processes.count()} processes, but is {devices!r}")
    return chosen


def sharded(
    oracle: GradientOracle,
    clients: ClientData,
    held_out: ClientData | None,
    devices: Any,
    clients_at_once: int | None,
) -> ShardedOracle:
    """The same clients divided over devices.

    Args:
        oracle: the clients on one device.
        clients: their data.
        held_out: the rows not trained on, where the oracle has such.
        devices: as a user names them.
        clients_at_once: how many clients a device computes side by side; None: as many as memory allows, and where few
            take part so many that all devices have about the same to do.
    """
    chosen = checked_devices(devices, len(clients))
    mesh = Mesh(np.array(chosen), (AXIS,))
    processes.refuse_other("clients", *(data.stratum_sizes for data in (clients, held_out) if data is not None))
    dealt = deal(clients.stratum_sizes, len(chosen))
    rows, way, spare = _placed(clients, oracle.way, dealt, mesh)
    aside = None
    if held_out is not None:
        assert oracle.held_out is not None
        dealt_aside = deal(held_out.stratum_sizes, len(chosen))
        aside = _placed(held_out, oracle.held_out[1], dealt_aside, mesh)
    same = {entry.name: getattr(oracle, entry.name) for entry in fields(GradientOracle) if entry.metadata}
    same["slice_size"] = _slice_size(oracle, len(clients), dealt, clients_at_once)
    return ShardedOracle(
        **same,
        rows=rows,
        way=way,
        held_out=None if aside is None else aside[:2],
        owner=_put(dealt.owner, mesh, EVERYWHERE),
        members=_put(dealt.members.reshape(-1), mesh, DIVIDED),
        spare=spare,
        held_out_spare=None if aside is None else aside[2],
        mesh=mesh,
    )


def _slice_size(oracle: GradientOracle, n: int, dealt: Deal, clients_at_once: int | None) -> int:
    """How many clients a device computes side by side."""
    devices, most = dealt.members.shape
    if oracle.participants == n:
        slices = -(-most // oracle.slice_size)
        return -(-most // slices)  # slices of one size
    if clients_at_once is not None:
        return min(oracle.slice_size, most)
    return min(oracle.slice_size, max(1, -(-oracle.participants // (SLICES * devices))))


def _placed(
    data: ClientData, way: WayThrough | None, dealt: Deal, mesh: Mesh
) -> tuple[Rows, OwnWay, tuple[jax.Array, jax.Array]]:
    """A store of rows on the devices, the way through it, and where one that stands in finds rows."""
    assert way is not None
    devices, n = len(dealt.members), len(data)
    ends = np.cumsum(data.sizes)
    first_rows = ends - data.sizes
    rows_of = cache(partial(dealt.rows_of, first_rows=first_rows, sizes=data.sizes))

    def column(stored: jax.Array) -> jax.Array:
        host = np.asarray(stored)  # where it lies on the host already, it is not copied

        def of_device(where: tuple[slice, ...]) -> np.ndarray:
            rows = rows_of((where[0].start or 0) // dealt.room)
            made = np.zeros((dealt.room, *host.shape[1:]), host.dtype)
            made[: len(rows)] = host[rows]
            return made

        shape = (devices * dealt.room, *host.shape[1:])
        return _from(of_device, shape, mesh, DIVIDED)

    rows = Rows(
        {name: column(stored) for name, stored in data.rows.columns.items()},
        _put(dealt.offsets, mesh, EVERYWHERE),
        _put(data.stratum_sizes.astype(np.int32), mesh, EVERYWHERE),
    )
    groups = (padded_by_owner(np.asarray(group), dealt.owner, devices) for group in way.groups)
    own_way = OwnWay(
        groups=tuple(_put(group.reshape(-1), mesh, DIVIDED) for group in groups),
        order=jnp.zeros(0, jnp.int32),
        widths=way.widths,
        row_bytes=way.row_bytes,
        client_count=n,
    )
    first = dealt.members[:, 0]
    there, has_some = np.minimum(first, n - 1), (first < n)[:, None]
    one_row = (np.arange(data.stratum_sizes.shape[1]) == 0).astype(np.int32)
    spare = np.where(has_some, dealt.offsets[there], 0), np.where(has_some, data.stratum_sizes[there], one_row)
    offsets, counts = (_put(part.astype(np.int32), mesh, DIVIDED) for part in spare)
    return rows, own_way, (offsets, counts)


def _put(array: np.ndarray, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    return _from(lambda where: array[where], array.shape, mesh, spec)


def _from(part: Callable[[Any], np.ndarray], shape: tuple[int, ...], mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    """An array on the devices, each part made for the device that has it: a process makes those of its own only."""
    return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), part)
