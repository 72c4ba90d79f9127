"""ShardedOracle: a ``GradientOracle`` whose clients are sharded over devices.

Each device holds the rows of its clients. For reports and for directions, devices add up arrays that are zero for
clients on other devices. The server's part of a round is computed on every device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key

from softswitch.data.client_data import ClientData, Rows
from softswitch.data.sampling import Batching, can_index_words, client_bit_count, sample_clients
from softswitch.methods.messages import Decision, LocalLoss
from softswitch.oracles.base import STATIC, Evaluation
from softswitch.oracles.derivatives import Program, RowDerivatives, derive_clients
from softswitch.oracles.evaluation import EvaluationPlan, Loss, compiled_values, to_evaluation
from softswitch.oracles.gradient import GradientOracle, RowDraws, make_gradient_oracle
from softswitch.oracles.options import Sampling
from softswitch.problem.parameters import Batch, Params
from softswitch.problem.problem import Problem
from softswitch.support import checks
from softswitch.support.arrays import is_random_key

AXIS = "clients"  # name of the mesh axis over which clients are sharded
SHARDED, REPLICATED = PartitionSpec(AXIS), PartitionSpec()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviceOracle(GradientOracle):
    """Oracle of the clients of one device, by their global indices. Index n is a dummy client."""

    is_local: Bool[Array, " n"] = field(kw_only=True)  # mask of the clients on this device
    members: Int[Array, " own"] = field(kw_only=True)  # their indices in ascending order, padded with n

    def map_participants(self, function: Callable[[Any], Any], participants: Any) -> Any:
        """Return the stacked results of ``function`` for the device's participants, with zeros for all others."""
        m = self.participants

        def compute(positions: Array, valid: Array) -> Any:
            return jax.vmap(function)(_take(participants, positions))

        def put(result: Array, part: Array, positions: Array, valid: Array) -> Array:
            return result.at[jnp.where(valid, positions, m)].set(part, mode="drop")

        return self._fold(participants[0], compute, put, lambda shape: (m, *shape[1:]))

    def sum_participants(self, function: Callable[[Any], Any], weights: Float[Array, " m"], participants: Any) -> Any:
        """Return the sum of ``function((weights, participants))`` over the device's participants."""

        def compute(positions: Array, valid: Array) -> Any:
            return function((jnp.where(valid, weights[positions], 0), _take(participants, positions)))

        return self._fold(participants[0], compute, lambda total, part, **_: total + part, lambda shape: shape)

    def fused_by_size(self, loss: Loss, params: Params, decision: Decision) -> Params:
        """Return the device's part of Σ_i r_i ∇h_i of the local losses h_i; the dummy client has weight 0."""
        own, weights = jax.tree.map(
            lambda leaf: jnp.concatenate([leaf, jnp.zeros_like(leaf[:1])]), (decision.local_loss.own, decision.weights)
        )
        extended = decision._replace(weights=weights, local_loss=decision.local_loss.with_own(own))
        return super().fused_by_size(loss, params, extended)

    def local_direction(self, loss: Loss, params: Params, mix: LocalLoss, step_size: Any, participant: Any) -> Params:
        """Return u_i of one client after E local steps, whose rows are all drawn first."""
        client, drawn, *rest = participant
        rows = jax.vmap(partial(self._draw_rows, self.update_batching, client))(drawn)
        return super().local_direction(loss, params, mix, step_size, (client, rows, *rest))

    def batch(self, batching: Batching, client: Array, drawn: Array, dtype: Any) -> Batch:
        """Return the batch of one client from its row indices or locations of random words."""
        return super().batch(batching, client, self._draw_rows(batching, client, drawn), dtype)

    def _draw_rows(self, batching: Batching, client: Array, drawn: Array) -> Int[Array, " drawn"]:
        """Return the row indices of a batch: ``drawn``, or those of the random words at that location."""
        return batching.draw_located(drawn, self.rows, client) if drawn.dtype == jnp.uint32 else drawn

    def _fold(self, clients: Int[Array, " m"], compute: Any, combine: Callable[..., Array], result_shape: Any) -> Any:
        """Return ``compute(positions, valid)``, combined over slices of the device's participants, from zeros on."""
        size, m, n = self.slice_size, self.participants, self.is_local.shape[0]
        if m == n:
            at = jnp.zeros(n, jnp.int32).at[clients].set(jnp.arange(n, dtype=jnp.int32))
            own, count = at[jnp.minimum(self.members, n - 1)], (self.members < n).sum()
            slices: Any = -(-len(self.members) // size)
        else:
            local = self.is_local[clients]
            own, count = jnp.nonzero(local, size=m, fill_value=0)[0].astype(jnp.int32), local.sum()
            slices = (count + size - 1) // size
        own = jnp.pad(own, (0, size))

        def one(i: Any, result: Any) -> Any:
            valid = i * size + jnp.arange(size) < count
            positions = jnp.where(valid, lax.dynamic_slice(own, (i * size,), (size,)), own[0])
            combine_one = partial(combine, positions=positions, valid=valid)
            return jax.tree.map(combine_one, result, compute(positions, valid))

        positions = jnp.zeros(size, jnp.int32)
        shapes = jax.eval_shape(compute, positions, positions.astype(bool))
        initial = jax.tree.map(lambda leaf: jnp.zeros(result_shape(leaf.shape), leaf.dtype), shapes)
        if isinstance(slices, int) and slices == 1:
            return one(0, initial)
        return lax.fori_loop(0, slices, one, initial)


def _take(participants: Any, positions: Int[Array, " s"]) -> Any:
    return jax.tree.map(lambda leaf: leaf[positions], participants)


def static_settings(oracle: GradientOracle) -> dict[str, Any]:
    """Return the static fields of an oracle by name."""
    return {entry.name: getattr(oracle, entry.name) for entry in fields(GradientOracle) if entry.metadata}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ShardedOracle(GradientOracle):
    """Oracle of clients sharded over devices, with the draws and, up to rounding, results of a ``GradientOracle``.

    Columns, members and dummies are sharded; offsets count from a device's first row. All devices hold held-out rows.
    """

    owner: Int[Array, " n"] = field(kw_only=True)  # device index of each client
    members: Int[Array, " places"] = field(kw_only=True)  # clients of each device, padded with n
    dummy: tuple[Array, Array] = field(kw_only=True)  # offsets and counts of each device's dummy client
    mesh: Mesh = field(kw_only=True, metadata=STATIC)  # one-dimensional mesh of the devices

    def draw(self, key: Array) -> RowDraws:
        """Return the participants of a round. Each device draws the rows of its participants when it needs them."""
        n, m = self.client_count, self.participants
        client_words = client_bit_count(n, m)
        if not can_index_words(key, client_words + self._row_words):
            return super().draw(key)
        clients = sample_clients(jax.random.bits(key, (client_words,), jnp.uint32), n, m)
        return self._locate_rows(clients, key, client_words, self._keys(key))

    def draw_randomness(self, key: Array) -> tuple[Array, Key[Array, "m e"] | None]:
        """Return the key for rows, or their random words, and the keys for functions that take one (or None)."""
        return (key, self._keys(key)) if can_index_words(key, self._row_words) else super().draw_randomness(key)

    def draw_for(self, clients: Int[Array, " m"], randomness: tuple[Array, Array | None]) -> RowDraws:
        """Return the draws of given participants from the result of ``draw_randomness``."""
        source, keys = randomness
        if not is_random_key(source):
            return super().draw_for(clients, randomness)
        return self._locate_rows(clients, source, 0, keys)

    def _locate_rows(self, clients: Int[Array, " m"], key: Array, first: int, keys: Array | None) -> RowDraws:
        """Return draws with the location of each batch's random words in place of row indices."""
        m = self.participants
        first_update = first + self.report_batching.bit_count(m, 1)
        report = self.report_batching.locate_words(key, first, m, 1)[0]
        update = self.update_batching.locate_words(key, first_update, m, self.local_steps)
        return RowDraws(clients, report, update, keys)

    def report_values(self, params: Params, draws: Any) -> tuple[Array, Array, Array | None]:
        """Return each participant's f_i, g_i and, for a pooled constraint, its statistics, which are None otherwise."""
        return self._sum_devices(DeviceOracle.report_values, params, draws)

    def update(
        self, params: Params, draws: Any, decision: Decision, step_size: Any, switches: bool, stack: bool
    ) -> Params:
        """Return the directions u_i: stacked if ``stack``, else as the weighted sum Σ_i r_i u_i."""

        def on_device(oracle: DeviceOracle, params: Params, draws: Any, decision: Decision, step_size: Any) -> Params:
            return oracle.update(params, draws, decision, step_size, switches, stack)

        return self._sum_devices(on_device, params, draws, decision, step_size)

    def evaluate(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]]:
        """Return f_i and g_i of every client on all of its rows."""
        return self._sum_devices(DeviceOracle.evaluate, params)

    def evaluate_params(self, params: Params) -> Evaluation:
        """Return f_i, g_i and pooled constraints on all rows of every client, as NumPy arrays."""
        return to_evaluation(self.losses, self.rows.sizes, *_sharded_values(self, params))

    def _sum_devices(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the sum of ``function(device_oracle, *arguments)`` over the devices, which then communicate once."""
        plan, rows = self.evaluation_plan, self.rows
        sharded = (rows.columns, () if plan is None else plan.groups, self.members, self.dummy)
        replicated = ((rows.offsets, rows.counts), self.owner)

        def on_device(sharded: Any, replicated: Any, arguments: Any) -> Any:
            (columns, groups, members, dummy), (counts, owner) = sharded, replicated
            rows = Rows(columns, *(jnp.concatenate(pair) for pair in zip(counts, dummy, strict=True)))
            device_plan = None if plan is None else replace(plan, groups=groups)
            clients = {"is_local": owner == lax.axis_index(AXIS), "members": members, **static_settings(self)}
            return lax.psum(function(DeviceOracle(rows, device_plan, **clients), *arguments), AXIS)

        specs = (SHARDED, REPLICATED, REPLICATED)
        # Without check_vma, a gradient inside is that of one device, and is not summed over devices.
        run = jax.shard_map(on_device, mesh=self.mesh, in_specs=specs, out_specs=REPLICATED, check_vma=False)
        return run(sharded, replicated, arguments)


@jax.jit
def _sharded_values(oracle: ShardedOracle, params: Params) -> tuple[Array, Array, Array | None]:
    """Return f_i, g_i and the statistics of a pooled constraint (or None) of every client, on all of its rows."""

    def on_device(oracle: DeviceOracle, params: Params) -> tuple[Array, Array, Array | None]:
        return compiled_values(oracle.evaluation_plan, oracle.rows, params, oracle.losses)

    return oracle._sum_devices(on_device, params)


SLICES = 16  # average number of slices per device with partial participation: a partly empty last one costs little


class Placement(NamedTuple):
    """An assignment of the n clients to devices."""

    owner: np.ndarray  # device index of each client
    offsets: np.ndarray  # first row of each client's stratum among its device's rows; clients × strata
    members: np.ndarray  # clients of each device in ascending order; devices × clients, padded with n
    capacity: int  # number of rows of the device with the most rows

    def device_rows(self, device: int, first_rows: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return the indices of a device's rows among all rows, given each client's first row and number of rows."""
        own = np.flatnonzero(self.owner == device)
        shift = np.repeat(first_rows[own].astype(np.int64) - self.offsets[own, 0], sizes[own])
        return shift + np.arange(len(shift))


def place_clients(stratum_sizes: np.ndarray, devices: int) -> Placement:
    """Return an assignment to devices in turns, the largest client first."""
    sizes = stratum_sizes.sum(axis=1)
    n = len(sizes)
    owner, first_rows = np.empty(n, np.int32), np.empty(n, np.int64)
    owner[np.argsort(-sizes, kind="stable")] = np.arange(n) % devices
    for device in range(devices):
        own = np.flatnonzero(owner == device)
        first_rows[own] = np.cumsum(sizes[own]) - sizes[own]
    offsets = (first_rows[:, None] + np.cumsum(stratum_sizes, axis=1) - stratum_sizes).astype(np.int32)
    members = group_by_device(np.arange(n), owner, devices)
    return Placement(owner, offsets, members, int(np.bincount(owner, sizes, devices).max()))


def group_by_device(clients: np.ndarray, owner: np.ndarray, devices: int) -> np.ndarray:
    """Return the given client indices by device, as an array of devices × clients, padded with n."""
    groups = [clients[owner[clients] == device] for device in range(devices)]
    padded = np.full((devices, max(1, *map(len, groups))), len(owner), np.int32)
    for row, group in zip(padded, groups, strict=True):
        row[: len(group)] = group
    return padded


def check_devices(devices: Any, clients: int) -> tuple[Any, ...]:
    """Return the JAX devices for "all", a number or a sequence; raise if ``clients`` clients cannot use them."""
    if (count := jax.process_count()) > 1:
        raise ValueError(
            f"devices must be None with several JAX processes, but there are {count}; use Flower for hosts"
        )
    available = jax.devices()
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
    return chosen


def shard_oracle(
    oracle: GradientOracle, clients: ClientData, devices: Any, client_batch_size: int | None
) -> ShardedOracle:
    """Return the clients sharded over devices; a device computes ``client_batch_size`` together (None: automatic)."""
    chosen = check_devices(devices, len(clients))
    mesh = Mesh(np.array(chosen), (AXIS,))
    placement = place_clients(clients.stratum_sizes, len(chosen))
    (plan, rows), dummy = _put_data(clients, oracle.evaluation_plan, placement, mesh)
    return ShardedOracle(
        **static_settings(oracle) | {"slice_size": _slice_size(oracle, len(clients), placement, client_batch_size)},
        rows=rows,
        evaluation_plan=plan,
        held_out=jax.tree.map(lambda leaf: _put(np.asarray(leaf), mesh, REPLICATED), oracle.held_out),
        owner=_put(placement.owner, mesh, REPLICATED),
        members=_put(placement.members.reshape(-1), mesh, SHARDED),
        dummy=dummy,
        mesh=mesh,
    )


class ShardedDerivatives(RowDerivatives):
    """Derivative oracle of clients that are sharded over devices; each device computes those of its own clients."""

    def __init__(self, problem: Problem, clients: ClientData, devices: Any, *, pooled: bool, held_out: Any) -> None:
        oracle = make_gradient_oracle(problem, clients, Sampling(), held_out=held_out)
        self._oracle = shard_oracle(oracle, clients, devices, None)
        super().__init__(problem, clients, pooled=pooled)

    def evaluate(self, params: Params) -> Evaluation:
        """Return the values of every client on all of its rows, in the precision of the parameters."""
        return self._oracle.evaluate_params(params)

    def evaluate_held_out(self, params: Params) -> Evaluation | None:
        """Return the values of every client on held-out rows, or None if there are none."""
        values = self._oracle.evaluate_held_out(params)
        return None if values is None else Evaluation(*map(np.asarray, values))

    def compute(self, point: np.ndarray, weights: np.ndarray, needed: np.ndarray) -> Iterator[tuple[np.ndarray, Any]]:
        """Yield (client indices, derivatives) of the clients of one batch width after another, over all devices."""
        oracle, owner = self._oracle, np.asarray(self._oracle.owner)
        # The dummy client n is not needed.
        weights, needed = np.pad(weights, ((0, 1), (0, 0))), np.append(needed, False)
        for group, width in self.groups:
            if needed[group].any():
                clients = group_by_device(group, owner, oracle.mesh.size).reshape(-1)
                sharded = (oracle.rows.columns, clients, weights[clients], needed[clients])
                replicated = point, (oracle.rows.offsets, oracle.rows.counts)
                values, jacobian, total = _derive_sharded(sharded, replicated, oracle.mesh, self.program(width))
                valid = clients < len(owner)
                yield clients[valid], (np.asarray(values)[valid], np.asarray(jacobian)[valid], total)


@partial(jax.jit, static_argnames=("mesh", "program"))
def _derive_sharded(sharded: Any, replicated: Any, mesh: Mesh, program: Program) -> Any:
    """Return the values and gradients of clients in the order of the devices, and the Hessian of their weighted sum."""

    def on_device(sharded: Any, replicated: Any) -> Any:
        (columns, *clients), (point, counts) = sharded, replicated
        values, jacobian, total = derive_clients(point, Rows(columns, *counts), *clients, program)
        return values, jacobian, lax.psum(total, AXIS)

    specs, results = (SHARDED, REPLICATED), (SHARDED, SHARDED, REPLICATED)
    run = jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=results, check_vma=False)
    return run(sharded, replicated)


def _slice_size(oracle: GradientOracle, n: int, placement: Placement, client_batch_size: int | None) -> int:
    devices, most = placement.members.shape
    if oracle.participants == n:
        slices = -(-most // oracle.slice_size)
        return -(-most // slices)  # slices of equal size
    if client_batch_size is not None:
        return min(oracle.slice_size, most)
    return min(oracle.slice_size, max(1, -(-oracle.participants // (SLICES * devices))))


def _put_data(data: ClientData, plan: EvaluationPlan, placement: Placement, mesh: Mesh) -> tuple[Any, Any]:
    """Return the evaluation plan and the rows on the devices, and the offsets and counts of the dummy clients."""
    devices, capacity = len(placement.members), placement.capacity
    first_rows = np.cumsum(data.sizes) - data.sizes
    device_rows = cache(partial(placement.device_rows, first_rows=first_rows, sizes=data.sizes))

    def put_column(stored: jax.Array) -> jax.Array:
        host = np.asarray(stored)  # no copy if it is on the host

        def one_device(index: Any) -> np.ndarray:
            rows = device_rows((index[0].start or 0) // capacity)
            part = np.zeros((capacity, *host.shape[1:]), host.dtype)
            part[: len(rows)] = host[rows]
            return part

        shape, sharding = (devices * capacity, *host.shape[1:]), NamedSharding(mesh, SHARDED)
        return jax.make_array_from_callback(shape, sharding, one_device)

    rows = Rows(
        {name: put_column(stored) for name, stored in data.rows.columns.items()},
        _put(placement.offsets, mesh, REPLICATED),
        _put(data.stratum_sizes.astype(np.int32), mesh, REPLICATED),
    )
    members = (group_by_device(np.asarray(group), placement.owner, devices) for group in plan.groups)
    device_plan = replace(plan, groups=tuple(_put(group.reshape(-1), mesh, SHARDED) for group in members))
    first = placement.members[:, 0]
    dummy = placement.offsets[first], data.stratum_sizes[first].astype(np.int32)
    return (device_plan, rows), tuple(_put(part, mesh, SHARDED) for part in dummy)


def _put(array: np.ndarray, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    return jax.device_put(array, NamedSharding(mesh, spec))
