"""The paper's clients on many devices: each holds the rows of its own clients, and does their share of every round.

A round is two exchanges between devices: the participants' numbers are added up, each device having zeros in the places
of the others'; and directions are, each device having the sum of its own clients'. What the server does, every device
does alike.
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
from softswitch.data.sampling import choose_clients, words_to_choose
from softswitch.methods.messages import Decision
from softswitch.oracles.base import STATIC, Evaluation
from softswitch.oracles.evaluation import EvaluationPlan
from softswitch.oracles.gradient import GradientOracle
from softswitch.oracles.shard import (
    DeviceEvaluationPlan,
    DeviceOracle,
    OwnDraws,
    RowsWhenAsked,
    UndrawnRows,
    can_count,
    words_at,
)
from softswitch.problem.parameters import Params, float_dtype

AXIS = "clients"
"""The name of the axis of devices."""
DIVIDED, EVERYWHERE = PartitionSpec(AXIS), PartitionSpec()


class _Divided(NamedTuple):
    """What a device has of a store of rows: the rows of its clients, these by size, and rows for one that stands in."""

    columns: dict[str, Array]
    groups: tuple[Array, ...]
    spare: tuple[Array, Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ShardedOracle(GradientOracle):
    """Clients that are divided over devices. Draws and results are those of a ``GradientOracle``, up to rounding.

    Of ``rows`` the columns are divided; offsets count from the first row of a client's own device.

    Attributes:
        owner: the device of each client, by its place.
        members: each device's clients, padded by n; divided.
        spare: on each device the place of some rows for a client that stands in: offsets and counts, divided.
        held_out_spare: the same of rows not trained on; or None.
        mesh: the devices.
    """

    owner: Int[Array, " n"] = field(kw_only=True)
    members: Int[Array, " places"] = field(kw_only=True)
    spare: tuple[Array, Array] = field(kw_only=True)
    held_out_spare: tuple[Array, Array] | None = field(kw_only=True)
    mesh: Mesh = field(kw_only=True, metadata=STATIC)

    is_sharded: ClassVar[bool] = True

    @property
    def processes(self) -> int:
        """How many processes have these devices."""
        return len({device.process_index for device in self.mesh.devices.flat})

    def draw(self, key: Array) -> Any:
        """Draw I_k; each device draws its own members' rows when it needs them."""
        if not can_count(key, self._words_for_clients + self._words_for_rows):
            return super().draw(key)
        return self._undrawn(self._choose(key), key, self._words_for_clients)

    def draw_rounds(self, keys: Array) -> Any:
        """The same for many rounds, of which each device draws I_k for some."""
        if self._words_for_clients == 0 or not can_count(keys, self._words_for_clients + self._words_for_rows):
            return super().draw_rounds(keys)

        def some_rounds(keys: Array) -> Array:
            return lax.all_gather(jax.vmap(self._choose)(keys), AXIS, tiled=True)

        rounds, devices = len(keys), self.mesh.size
        padded = keys[jnp.minimum(jnp.arange(-(-rounds // devices) * devices), rounds - 1)]
        everyone = jax.shard_map(some_rounds, mesh=self.mesh, in_specs=DIVIDED, out_specs=EVERYWHERE, check_vma=False)(
            padded
        )[:rounds]
        return jax.vmap(lambda clients, key: self._undrawn(clients, key, self._words_for_clients))(everyone, keys)

    @property
    def _words_for_clients(self) -> int:
        return words_to_choose(self.client_count, self.participants)

    def _choose(self, key: Array) -> Int[Array, " m"]:
        who = words_at(key, jnp.arange(self._words_for_clients, dtype=jnp.uint32))
        return choose_clients(who, self.client_count, self.participants)

    def draw_randomness(self, key: Array) -> Any:
        """What rows are drawn by."""
        return key if can_count(key, self._words_for_rows) else super().draw_randomness(key)

    def draw_for(self, clients: Int[Array, " m"], randomness: Any) -> Any:
        """The given participants', likewise."""
        return (
            super().draw_for(clients, randomness)
            if isinstance(randomness, tuple)
            else self._undrawn(clients, randomness, 0)
        )

    def _undrawn(self, clients: Int[Array, " m"], key: Array, before: int) -> UndrawnRows:
        return UndrawnRows(clients, key, jnp.uint32(before), self._keys(key))

    def reported(self, params: Params, draws: Any) -> tuple[Array, Array, Array | None]:
        """Every participant's numbers, each from the device that has it."""

        def share(own: DeviceOracle, params: Params, draws: Any) -> Any:
            return own.reported(params, _own(own, draws))

        found: tuple[Array, Array, Array | None] = self._added_up(share, params, draws)
        return found

    def direction(
        self, params: Params, draws: Any, kept: None, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Σ_i r_i u_i: the sum over devices of what each has of it."""

        def share(own: DeviceOracle, params: Params, draws: Any, decision: Decision, step_size: Any) -> Params:
            return own.direction(params, _own(own, draws), None, decision, switches, step_size)

        return self._added_up(share, params, draws, decision, step_size)

    def directions(
        self, params: Params, draws: Any, kept: None, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Every u_i by itself, on every device."""

        def share(own: DeviceOracle, params: Params, draws: Any, decision: Decision, step_size: Any) -> Params:
            return own.directions(params, _own(own, draws), None, decision, switches, step_size)

        return self._added_up(share, params, draws, decision, step_size)

    def evaluate(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]]:
        """f_i and g_i of every client on all of its rows, each from the device that has it."""
        found: tuple[Array, Array] = self._added_up(DeviceOracle.evaluate, params)
        return found

    def evaluate_held_out(self, params: Params) -> tuple[Float[Array, " n"], Float[Array, "n c"]] | None:
        """The same on rows not trained on, where there are such."""
        return None if self.held_out is None else self._added_up(DeviceOracle.evaluate_held_out, params)

    def evaluate_params(self, params: Params) -> Evaluation:
        """f_i and g_i on all rows, and a pooled constraint on all rows put together; None for a plain one."""
        objective, constraint, pooled = _judged(self, params)
        return Evaluation(np.asarray(objective), np.asarray(constraint), None if pooled is None else np.asarray(pooled))

    def statistics(self, params: Params) -> Float[Array, "n s"]:
        """The additive statistics of every client on all of its rows."""

        def share(own: DeviceOracle, params: Params) -> Any:
            assert own.evaluation_plan is not None
            return own.evaluation_plan.each(
                lambda batch: own.losses.statistics(params, batch), own.rows, float_dtype(params)
            )

        statistics: Array = self._added_up(share, params)
        return statistics

    def _added_up(self, share: Callable[..., Any], *arguments: Any) -> Any:
        """``share(own, *arguments)`` on every device, with its own clients; the sum over the devices, on all of them.

        Nothing is exchanged before the end: within, devices may go different ways.
        """
        stores = (self.rows, self.evaluation_plan, self.spare), (*(self.held_out or (None, None)), self.held_out_spare)
        divided = tuple(
            None if rows is None else _Divided(rows.columns, () if way is None else way.groups, spare)
            for rows, way, spare in stores
        )
        counted = tuple(None if rows is None else (rows.offsets, rows.counts) for rows, _, _ in stores)

        def on_device(divided: Any, everywhere: Any, arguments: Any) -> Any:
            (store, aside), members = divided
            (counted, counted_aside), owner = everywhere
            held_out = None
            if self.held_out is not None:
                held_out = _with_stand_in(aside, counted_aside), _own_way(self.held_out[1], aside)
            own = DeviceOracle(
                **{entry.name: getattr(self, entry.name) for entry in fields(GradientOracle) if entry.metadata},
                rows=_with_stand_in(store, counted),
                evaluation_plan=None if self.evaluation_plan is None else _own_way(self.evaluation_plan, store),
                held_out=held_out,
                mine=owner == lax.axis_index(AXIS),
                members=members,
            )
            return lax.psum(share(own, *arguments), AXIS)

        run = jax.shard_map(
            on_device,
            mesh=self.mesh,
            in_specs=(DIVIDED, EVERYWHERE, EVERYWHERE),
            out_specs=EVERYWHERE,
            check_vma=False,  # a gradient here is of a device's own share, and not to be added up by itself
        )
        return run((divided, self.members), (counted, self.owner), arguments)


def _own(own: DeviceOracle, draws: Any) -> Any:
    """A round's draws as a device takes them."""
    if not isinstance(draws, UndrawnRows):
        return draws
    report, update = own.report_batching, own.update_batching
    for_reports = jnp.uint32(report.words(own.participants, 1))
    return OwnDraws(
        draws.clients,
        RowsWhenAsked(report, own.rows, draws.clients, draws.key, draws.before, None),
        RowsWhenAsked(update, own.rows, draws.clients, draws.key, draws.before + for_reports, own.local_steps),
        draws.keys,
    )


def _with_stand_in(store: _Divided, counted: tuple[Array, Array]) -> Rows:
    """A device's rows, with one client more: the one that stands in where there is none."""
    offsets, counts = (jnp.concatenate([every, more]) for every, more in zip(counted, store.spare, strict=True))
    return Rows(store.columns, offsets, counts)


def _own_way(way: EvaluationPlan, store: _Divided) -> DeviceEvaluationPlan:
    assert isinstance(way, DeviceEvaluationPlan)
    return DeviceEvaluationPlan(store.groups, jnp.zeros(0, jnp.int32), way.widths, way.row_bytes, way.client_count)


@jax.jit
def _judged(oracle: ShardedOracle, params: Params) -> tuple[Array, Array, Array | None]:
    objective, constraint = oracle.evaluate(params)
    if not oracle.has_pooled_constraint:
        return objective, constraint, None
    statistics = oracle.statistics(params)
    sums = jnp.tensordot(oracle.rows.sizes.astype(statistics.dtype), statistics, axes=1)
    return objective, constraint, oracle.losses.pool(sums)
