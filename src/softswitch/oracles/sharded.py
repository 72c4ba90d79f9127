"""Clients of the paper, sharded over devices.

Each device holds the rows of its clients. In both exchanges of a round, devices add up arrays that are zero for
clients elsewhere. The server's part of a round is computed on every device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from softswitch.data.client_data import Rows
from softswitch.data.sampling import client_bit_count, sample_clients
from softswitch.methods.messages import Decision
from softswitch.oracles.base import STATIC, Evaluation
from softswitch.oracles.evaluation import EvaluationPlan
from softswitch.oracles.gradient import GradientOracle
from softswitch.oracles.shard import (
    DeviceDraws,
    DeviceEvaluationPlan,
    DeviceOracle,
    LazyDraws,
    LazyRows,
    can_index_words,
    words_at,
)
from softswitch.problem.parameters import Params, float_dtype

AXIS = "clients"
"""Name of the mesh axis."""
SHARDED, REPLICATED = PartitionSpec(AXIS), PartitionSpec()


class _Shard(NamedTuple):
    """Columns and client groups of one device, and offsets and counts of its dummy client."""

    columns: dict[str, Array]
    groups: tuple[Array, ...]
    dummy: tuple[Array, Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ShardedOracle(GradientOracle):
    """Clients sharded over devices. Draws and results are those of a ``GradientOracle``, up to rounding.

    The columns of ``rows`` are sharded; offsets count from the first row of a client's device.

    Attributes:
        owner: Device index of each client.
        members: Clients of each device, padded with n; sharded.
        dummy: Offsets and counts of each device's dummy client; sharded.
        held_out_dummy: The same for held-out rows; or None.
        mesh: The devices.
    """

    owner: Int[Array, " n"] = field(kw_only=True)
    members: Int[Array, " places"] = field(kw_only=True)
    dummy: tuple[Array, Array] = field(kw_only=True)
    held_out_dummy: tuple[Array, Array] | None = field(kw_only=True)
    mesh: Mesh = field(kw_only=True, metadata=STATIC)

    is_sharded: ClassVar[bool] = True

    @property
    def processes(self) -> int:
        """Number of processes that hold the devices."""
        return len({device.process_index for device in self.mesh.devices.flat})

    def draw(self, key: Array) -> Any:
        """Draw I_k; each device draws the rows of its own clients when it needs them."""
        if not can_index_words(key, self._client_words + self._row_words):
            return super().draw(key)
        return self._lazy_draws(self._choose(key), key, self._client_words)

    def draw_rounds(self, keys: Array) -> Any:
        """Draw several rounds, with the choice of participants distributed over the devices."""
        if self._client_words == 0 or not can_index_words(keys, self._client_words + self._row_words):
            return super().draw_rounds(keys)

        def on_device(keys: Array) -> Array:
            return lax.all_gather(jax.vmap(self._choose)(keys), AXIS, tiled=True)

        rounds, devices = len(keys), self.mesh.size
        padded = keys[jnp.minimum(jnp.arange(-(-rounds // devices) * devices), rounds - 1)]
        choose = jax.shard_map(on_device, mesh=self.mesh, in_specs=SHARDED, out_specs=REPLICATED, check_vma=False)
        participants = choose(padded)[:rounds]
        return jax.vmap(lambda clients, key: self._lazy_draws(clients, key, self._client_words))(participants, keys)

    @property
    def _client_words(self) -> int:
        return client_bit_count(self.client_count, self.participants)

    def _choose(self, key: Array) -> Int[Array, " m"]:
        words = words_at(key, jnp.arange(self._client_words, dtype=jnp.uint32))
        return sample_clients(words, self.client_count, self.participants)

    def draw_randomness(self, key: Array) -> Any:
        """Return the key for rows, or their random words."""
        return key if can_index_words(key, self._row_words) else super().draw_randomness(key)

    def draw_for(self, clients: Int[Array, " m"], randomness: Any) -> Any:
        """Draw a round for given participants."""
        if isinstance(randomness, tuple):
            return super().draw_for(clients, randomness)
        return self._lazy_draws(clients, randomness, 0)

    def _lazy_draws(self, clients: Int[Array, " m"], key: Array, offset: int) -> LazyDraws:
        return LazyDraws(clients, key, jnp.uint32(offset), self._keys(key))

    def report_values(self, params: Params, draws: Any) -> tuple[Array, Array, Array | None]:
        """Compute f_i, g_i and statistics of every participant."""

        def on_device(oracle: DeviceOracle, params: Params, draws: Any) -> Any:
            return oracle.report_values(params, _device_draws(oracle, draws))

        values: tuple[Array, Array, Array | None] = self._sum_devices(on_device, params, draws)
        return values

    def direction(
        self, params: Params, draws: Any, kept: None, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Compute Σ_i r_i u_i as a sum over devices."""

        def on_device(oracle: DeviceOracle, params: Params, draws: Any, decision: Decision, step_size: Any) -> Params:
            return oracle.direction(params, _device_draws(oracle, draws), None, decision, switches, step_size)

        return self._sum_devices(on_device, params, draws, decision, step_size)

    def directions(
        self, params: Params, draws: Any, kept: None, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Compute every u_i, stacked along the first axis, on every device."""

        def on_device(oracle: DeviceOracle, params: Params, draws: Any, decision: Decision, step_size: Any) -> Params:
            return oracle.directions(params, _device_draws(oracle, draws), None, decision, switches, step_size)

        return self._sum_devices(on_device, params, draws, decision, step_size)

    def evaluate(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]]:
        """Compute f_i and g_i of every client on all of its rows."""
        values: tuple[Array, Array] = self._sum_devices(DeviceOracle.evaluate, params)
        return values

    def evaluate_held_out(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]] | None:
        """Compute f_i and g_i on held-out rows; None if there are none."""
        return None if self.held_out is None else self._sum_devices(DeviceOracle.evaluate_held_out, params)

    def evaluate_params(self, params: Params) -> Evaluation:
        """Evaluate parameters on all rows of every client."""
        objective, constraint, pooled = _evaluate(self, params)
        return Evaluation(np.asarray(objective), np.asarray(constraint), None if pooled is None else np.asarray(pooled))

    def statistics(self, params: Params) -> Float[Array, "n s"]:
        """Compute the additive statistics of every client on all of its rows."""

        def on_device(oracle: DeviceOracle, params: Params) -> Any:
            assert oracle.evaluation_plan is not None
            return oracle.evaluation_plan.map_clients(
                lambda batch: oracle.losses.statistics(params, batch), oracle.rows, float_dtype(params)
            )

        statistics: Array = self._sum_devices(on_device, params)
        return statistics

    def _sum_devices(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Sum ``function(device_oracle, *arguments)`` over the devices. They communicate only at the end."""
        stores = (self.rows, self.evaluation_plan, self.dummy), (*(self.held_out or (None, None)), self.held_out_dummy)
        shards = tuple(
            None if rows is None else _Shard(rows.columns, () if plan is None else plan.groups, dummy)
            for rows, plan, dummy in stores
        )
        offsets_and_counts = tuple(None if rows is None else (rows.offsets, rows.counts) for rows, _, _ in stores)

        def on_device(sharded: Any, replicated: Any, arguments: Any) -> Any:
            (shard, held_out_shard), members = sharded
            (counted, held_out_counted), owner = replicated
            held_out = None
            if self.held_out is not None:
                plan = _device_plan(self.held_out[1], held_out_shard)
                held_out = _device_rows(held_out_shard, held_out_counted), plan
            oracle = DeviceOracle(
                **{entry.name: getattr(self, entry.name) for entry in fields(GradientOracle) if entry.metadata},
                rows=_device_rows(shard, counted),
                evaluation_plan=None if self.evaluation_plan is None else _device_plan(self.evaluation_plan, shard),
                held_out=held_out,
                is_local=owner == lax.axis_index(AXIS),
                members=members,
            )
            return lax.psum(function(oracle, *arguments), AXIS)

        run = jax.shard_map(
            on_device,
            mesh=self.mesh,
            in_specs=(SHARDED, REPLICATED, REPLICATED),
            out_specs=REPLICATED,
            check_vma=False,  # a gradient inside is that of one device, and must not be summed over devices
        )
        return run((shards, self.members), (offsets_and_counts, self.owner), arguments)


def _device_draws(oracle: DeviceOracle, draws: Any) -> Any:
    if not isinstance(draws, LazyDraws):
        return draws
    clients, key, offset, keys = draws
    report, update = oracle.report_batching, oracle.update_batching
    update_offset = offset + jnp.uint32(report.bit_count(oracle.participants, 1))
    return DeviceDraws(
        clients,
        LazyRows(report, oracle.rows, clients, key, offset, None),
        LazyRows(update, oracle.rows, clients, key, update_offset, oracle.local_steps),
        keys,
    )


def _device_rows(shard: _Shard, counted: tuple[Array, Array]) -> Rows:
    """Return a device's rows, with the dummy client after all others."""
    offsets, counts = (jnp.concatenate([every, more]) for every, more in zip(counted, shard.dummy, strict=True))
    return Rows(shard.columns, offsets, counts)


def _device_plan(plan: EvaluationPlan, shard: _Shard) -> DeviceEvaluationPlan:
    assert isinstance(plan, DeviceEvaluationPlan)
    return DeviceEvaluationPlan(shard.groups, jnp.zeros(0, jnp.int32), plan.widths, plan.row_bytes, plan.client_count)


@jax.jit
def _evaluate(oracle: ShardedOracle, params: Params) -> tuple[Array, Array, Array | None]:
    objective, constraint = oracle.evaluate(params)
    if not oracle.has_pooled_constraint:
        return objective, constraint, None
    statistics = oracle.statistics(params)
    sums = jnp.tensordot(oracle.rows.sizes.astype(statistics.dtype), statistics, axes=1)
    return objective, constraint, oracle.losses.pool(sums)
