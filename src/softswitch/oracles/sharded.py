"""Clients of the paper, sharded over devices.

Each device holds the rows of its clients. In both exchanges of a round, devices add up arrays that are zero for
clients elsewhere. The server's part of a round is computed on every device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from softswitch.data.client_data import Rows
from softswitch.methods.messages import Decision
from softswitch.oracles.base import STATIC, Evaluation
from softswitch.oracles.evaluation import EvaluationPlan, Loss, client_statistics
from softswitch.oracles.gradient import GradientOracle
from softswitch.problem.parameters import Params

AXIS = "clients"
"""Name of the mesh axis."""
SHARDED, REPLICATED = PartitionSpec(AXIS), PartitionSpec()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviceEvaluationPlan(EvaluationPlan):
    """Evaluation plan of one device. Groups are padded with the dummy client n, which is dropped."""

    client_count: int = field(default=0, metadata=STATIC)

    def in_order(self, values: Array) -> Array:
        """Put values of the device's clients into the order of all clients, with zeros for clients elsewhere."""
        result = jnp.zeros((self.client_count, *values.shape[1:]), values.dtype)
        return result.at[jnp.concatenate(self.groups)].set(values, mode="drop")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviceOracle(GradientOracle):
    """The clients of one device, by their global indices. Index n is a dummy client."""

    is_local: Bool[Array, " n"] = field(kw_only=True)  # mask of the clients on this device
    members: Int[Array, " own"] = field(kw_only=True)  # their indices in ascending order, padded with n

    def map_participants(self, function: Callable[[Any], Any], participants: Any) -> Any:
        """Apply ``function`` to the device's participants and stack the results, with zeros for all others."""
        m = self.participants

        def compute(positions: Array, valid: Array) -> Any:
            return jax.vmap(function)(_take(participants, positions))

        def put(result: Array, part: Array, positions: Array, valid: Array) -> Array:
            return result.at[jnp.where(valid, positions, m)].set(part, mode="drop")

        return self._fold(participants[0], compute, put, lambda shape: (m, *shape[1:]))

    def sum_participants(self, function: Callable[[Any], Any], weights: Float[Array, " m"], participants: Any) -> Any:
        """Sum over the device's participants."""

        def compute(positions: Array, valid: Array) -> Any:
            return function((jnp.where(valid, weights[positions], 0), _take(participants, positions)))

        return self._fold(participants[0], compute, lambda total, part, **_: total + part, lambda shape: shape)

    def fused_by_size(self, loss: Loss, params: Params, decision: Decision) -> Params:
        """Compute the device's part of the fused gradient; the dummy client has weight 0."""
        own, weights = jax.tree.map(
            lambda leaf: jnp.concatenate([leaf, jnp.zeros_like(leaf[:1])]), (decision.local_loss.own, decision.weights)
        )
        extended = decision._replace(weights=weights, local_loss=decision.local_loss.with_own(own))
        return super().fused_by_size(loss, params, extended)

    def _fold(self, clients: Int[Array, " m"], compute: Any, combine: Callable[..., Array], result_shape: Any) -> Any:
        """Combine ``compute(positions, valid)`` over slices of the device's participants, starting with zeros.

        With full participation the number of slices is static. Otherwise each device loops over as many as it needs.
        """
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
    """Return the settings of an oracle that are not arrays."""
    return {entry.name: getattr(oracle, entry.name) for entry in fields(GradientOracle) if entry.metadata}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ShardedOracle(GradientOracle):
    """Clients sharded over devices. Draws and results are those of a ``GradientOracle``, up to rounding.

    The columns of ``rows``, the members and the dummies are sharded; offsets count from a device's first row.
    """

    owner: Int[Array, " n"] = field(kw_only=True)  # device index of each client
    members: Int[Array, " places"] = field(kw_only=True)  # clients of each device, padded with n
    dummy: tuple[Array, Array] = field(kw_only=True)  # offsets and counts of each device's dummy client
    held_out_dummy: tuple[Array, Array] | None = field(kw_only=True)
    mesh: Mesh = field(kw_only=True, metadata=STATIC)
    is_sharded: ClassVar[bool] = True
    processes = property(lambda self: len({device.process_index for device in self.mesh.devices.flat}))

    def report_values(self, params: Params, draws: Any) -> tuple[Array, Array, Array | None]:
        """Compute f_i, g_i and statistics of every participant."""
        return self._sum_devices(DeviceOracle.report_values, params, draws)

    def update(
        self, params: Params, draws: Any, decision: Decision, step_size: Any, switches: bool, stack: bool
    ) -> Params:
        """Compute the directions u_i, stacked or as a weighted sum, as sums over devices."""

        def on_device(oracle: DeviceOracle, params: Params, draws: Any, decision: Decision, step_size: Any) -> Params:
            return oracle.update(params, draws, decision, step_size, switches, stack)

        return self._sum_devices(on_device, params, draws, decision, step_size)

    def evaluate(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]]:
        """Compute f_i and g_i of every client on all of its rows."""
        return self._sum_devices(DeviceOracle.evaluate, params)

    def evaluate_held_out(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]] | None:
        """Compute f_i and g_i on held-out rows; None if there are none."""
        return None if self.held_out is None else self._sum_devices(DeviceOracle.evaluate_held_out, params)

    def evaluate_params(self, params: Params) -> Evaluation:
        """Evaluate parameters on all rows of every client."""
        return jax.tree.map(np.asarray, Evaluation(*_evaluate(self, params)))

    def _sum_devices(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Sum ``function(device_oracle, *arguments)`` over the devices. They communicate only at the end."""
        stores = [(self.evaluation_plan, self.rows, self.dummy)]
        if self.held_out is not None:
            stores.append((*self.held_out, self.held_out_dummy))  # type: ignore[arg-type]
        shards = [(rows.columns, () if plan is None else plan.groups, dummy) for plan, rows, dummy in stores]
        counts = [(rows.offsets, rows.counts) for _, rows, _ in stores]

        def on_device(sharded: Any, replicated: Any, arguments: Any) -> Any:
            (shards, members), (counts, owner) = sharded, replicated
            parts = []
            for (columns, groups, dummy), counted, (plan, _, _) in zip(shards, counts, stores, strict=True):
                rows = Rows(columns, *(jnp.concatenate(pair) for pair in zip(counted, dummy, strict=True)))
                order = jnp.zeros(0, jnp.int32)
                parts.append((None if plan is None else replace(plan, groups=groups, order=order), rows))
            (plan, rows), *held_out = parts
            clients = {"is_local": owner == lax.axis_index(AXIS), "members": members, **static_settings(self)}
            oracle = DeviceOracle(rows, plan, held_out=held_out[0] if held_out else None, **clients)
            return lax.psum(function(oracle, *arguments), AXIS)

        specs = (SHARDED, REPLICATED, REPLICATED)
        # Without check_vma, a gradient inside is that of one device, and is not summed over devices.
        run = jax.shard_map(on_device, mesh=self.mesh, in_specs=specs, out_specs=REPLICATED, check_vma=False)
        return run((shards, self.members), (counts, self.owner), arguments)


@jax.jit
def _evaluate(oracle: ShardedOracle, params: Params) -> tuple[Array, Array, Array | None]:
    objective, constraint = oracle.evaluate(params)
    if not oracle.has_pooled_constraint:
        return objective, constraint, None

    def statistics_on_device(oracle: DeviceOracle, params: Params) -> Array:
        return client_statistics(oracle.evaluation_plan, oracle.rows, params, oracle.losses)

    statistics = oracle._sum_devices(statistics_on_device, params)
    sums = jnp.tensordot(oracle.rows.sizes.astype(statistics.dtype), statistics, axes=1)
    return objective, constraint, oracle.losses.pool(sums)
