"""Which client's rows lie on which device: equally many clients on each, and about equally many rows."""

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
from softswitch.oracles.sharded import AXIS, DIVIDED, EVERYWHERE, ShardedOracle
from softswitch.support import checks
from softswitch.support import distributed as processes


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
    client_batch_size: int | None,
) -> ShardedOracle:
    """The same clients divided over devices.

    Args:
        oracle: the clients on one device.
        clients: their data.
        held_out: the rows not trained on, where the oracle has such.
        devices: as a user names them.
        client_batch_size: how many clients a device computes side by side; None: as many as memory allows, and where
            few
            take part so many that all devices have about the same to do.
    """
    chosen = checked_devices(devices, len(clients))
    mesh = Mesh(np.array(chosen), (AXIS,))
    processes.refuse_other("clients", *(data.stratum_sizes for data in (clients, held_out) if data is not None))
    dealt = deal(clients.stratum_sizes, len(chosen))
    rows, way, spare = _placed(clients, oracle.evaluation_plan, dealt, mesh)
    aside = None
    if held_out is not None:
        assert oracle.held_out is not None
        dealt_aside = deal(held_out.stratum_sizes, len(chosen))
        aside = _placed(held_out, oracle.held_out[1], dealt_aside, mesh)
    same = {entry.name: getattr(oracle, entry.name) for entry in fields(GradientOracle) if entry.metadata}
    same["slice_size"] = _slice_size(oracle, len(clients), dealt, client_batch_size)
    return ShardedOracle(
        **same,
        rows=rows,
        evaluation_plan=way,
        held_out=None if aside is None else aside[:2],
        owner=_put(dealt.owner, mesh, EVERYWHERE),
        members=_put(dealt.members.reshape(-1), mesh, DIVIDED),
        spare=spare,
        held_out_spare=None if aside is None else aside[2],
        mesh=mesh,
    )


def _slice_size(oracle: GradientOracle, n: int, dealt: Deal, client_batch_size: int | None) -> int:
    """How many clients a device computes side by side."""
    devices, most = dealt.members.shape
    if oracle.participants == n:
        slices = -(-most // oracle.slice_size)
        return -(-most // slices)  # slices of one size
    if client_batch_size is not None:
        return min(oracle.slice_size, most)
    return min(oracle.slice_size, max(1, -(-oracle.participants // (SLICES * devices))))


def _placed(
    data: ClientData, way: EvaluationPlan | None, dealt: Deal, mesh: Mesh
) -> tuple[Rows, DeviceEvaluationPlan, tuple[jax.Array, jax.Array]]:
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
    own_way = DeviceEvaluationPlan(
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
