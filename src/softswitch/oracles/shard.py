"""The part of a round that one device computes: sums and stacks over its own clients, zeros for all others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from softswitch.data.client_data import Rows
from softswitch.data.sampling import Batching
from softswitch.methods.messages import Decision
from softswitch.oracles.base import STATIC
from softswitch.oracles.evaluation import EvaluationPlan
from softswitch.oracles.gradient import GradientOracle
from softswitch.oracles.losses import Loss
from softswitch.problem.parameters import Params

MAX_WORDS = 2**32
"""Positions of random words are 32-bit numbers."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviceEvaluationPlan(EvaluationPlan):
    """Evaluation plan of one device. Groups are padded with the dummy client n, whose values are dropped.

    Attributes:
        client_count: Number of clients n on all devices.
    """

    client_count: int = field(default=0, metadata=STATIC)

    def in_order(self, values: Array) -> Array:
        """Put values of the device's clients into the order of all clients, with zeros for clients elsewhere."""
        result = jnp.zeros((self.client_count, *values.shape[1:]), values.dtype)
        return result.at[jnp.concatenate(self.groups)].set(values, mode="drop")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviceOracle(GradientOracle):
    """The clients of one device, by their global indices. Index n is a dummy client.

    Attributes:
        is_local: Mask of the clients on this device.
        members: Indices of the device's clients in ascending order, padded with n.
    """

    is_local: Bool[Array, " n"] = field(kw_only=True)
    members: Int[Array, " own"] = field(kw_only=True)

    def map_participants(self, function: Callable[[Any], Any], participants: Any) -> Any:
        """Apply ``function`` to the device's participants and stack the results, with zeros for all others."""
        m = self.participants

        def compute(positions: Array) -> Any:
            return jax.vmap(function)(_take(participants, positions))

        def put(result: Any, positions: Array, valid: Array) -> Any:
            index = jnp.where(valid, positions, m)
            return jax.tree.map(lambda all_, part: all_.at[index].set(part, mode="drop"), result, compute(positions))

        shapes = jax.eval_shape(compute, jnp.zeros(self.slice_size, jnp.int32))
        zeros = jax.tree.map(lambda leaf: jnp.zeros((m, *leaf.shape[1:]), leaf.dtype), shapes)
        return self._over_slices(participants[0], zeros, put)

    def sum_participants(self, function: Callable[[Any], Any], weights: Float[Array, " m"], participants: Any) -> Any:
        """Sum over the device's participants."""

        def compute(positions: Array, valid: Array) -> Any:
            return function((jnp.where(valid, weights[positions], 0), _take(participants, positions)))

        def add(total: Any, positions: Array, valid: Array) -> Any:
            return jax.tree.map(jnp.add, total, compute(positions, valid))

        positions = jnp.zeros(self.slice_size, jnp.int32)
        shapes = jax.eval_shape(compute, positions, positions.astype(bool))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return self._over_slices(participants[0], zeros, add)

    def fused_by_size(self, loss: Loss, params: Params, decision: Decision) -> Params:
        """Compute the device's part of the fused gradient; the dummy client has weight 0."""
        own = jax.tree.map(lambda leaf: jnp.concatenate([leaf, jnp.zeros_like(leaf[:1])]), decision.local_loss.own)
        extended = decision._replace(
            weights=jnp.append(decision.weights, jnp.zeros_like(decision.weights[:1])),
            local_loss=decision.local_loss.with_own(own),
        )
        return super().fused_by_size(loss, params, extended)

    def _over_slices(self, clients: Int[Array, " m"], initial: Any, step: Callable[[Any, Array, Array], Any]) -> Any:
        """Fold ``step(result, positions, valid)`` over slices of the device's participants.

        With full participation the number of slices is static. Otherwise each device loops over as many as it needs.
        """
        size, m, n = self.slice_size, self.participants, self.is_local.shape[0]
        if m == n:
            at = jnp.zeros(n, jnp.int32).at[clients].set(jnp.arange(n, dtype=jnp.int32))
            own, count = at[jnp.minimum(self.members, n - 1)], (self.members < n).sum()
            slices: Any = -(-len(self.members) // size)
        else:
            local = self.is_local[clients]
            own = jnp.nonzero(local, size=m, fill_value=0)[0].astype(jnp.int32)
            count = local.sum()
            slices = (count + size - 1) // size
        own = jnp.pad(own, (0, size))

        def one(i: Any, result: Any) -> Any:
            valid = i * size + jnp.arange(size) < count
            positions = jnp.where(valid, lax.dynamic_slice(own, (i * size,), (size,)), own[0])
            return step(result, positions, valid)

        if isinstance(slices, int) and slices == 1:
            return one(0, initial)
        return lax.fori_loop(0, slices, one, initial)


def _take(participants: Any, positions: Int[Array, " s"]) -> Any:
    return jax.tree.map(lambda leaf: leaf[positions], participants)


def can_index_words(key: Array, words: int) -> bool:
    """Return whether ``words_at`` is available: it needs JAX's default generator and settings."""
    return (
        str(jax.random.key_impl(key)) == "threefry2x32"
        and bool(jax.config.jax_threefry_partitionable)  # type: ignore[attr-defined]
        and words < MAX_WORDS
    )


def words_at(key: Array, positions: UInt32[Array, " k"]) -> UInt32[Array, " k"]:
    """Return ``jax.random.bits(key, ...)`` at some positions, without computing the rest."""
    if positions.size == 0:
        return positions
    hashed = threefry_2x32(jax.random.key_data(key), jnp.concatenate([jnp.zeros_like(positions), positions]))
    first, second = jnp.split(hashed, 2)
    return first ^ second


class LazyDraws(NamedTuple):
    """The random choices of one round, before rows are drawn.

    Attributes:
        clients: Indices of the participants I_k.
        key: Random key for rows.
        offset: Number of random words already used for the participants.
        keys: Each participant's random key at each local step; None if no function takes one.
    """

    clients: Int[Array, " m"]
    key: Key[Array, ""]
    offset: UInt32[Array, ""]
    keys: Key[Array, "m e"] | None


class LazyRows:
    """Rows of all participants' batches, drawn when they are indexed: ``rows[positions]``.

    Args:
        batching: How a batch is drawn.
        rows: Rows to draw from.
        clients: All participants.
        key: Random key of the round.
        offset: Position of the first random word.
        times: Number of batches of a participant; None for one batch without an axis for it.
    """

    def __init__(
        self, batching: Batching, rows: Rows, clients: Int[Array, " m"], key: Array, offset: Any, times: int | None
    ) -> None:
        self._batching, self._rows, self._clients = batching, rows, clients
        self._key, self._offset, self._times = key, offset, times

    def __getitem__(self, positions: Int[Array, " s"]) -> Int[Array, "..."]:
        m, times = self._clients.shape[0], self._times or 1
        width = 0 if self._batching.draws is None else self._batching.width
        batches = jnp.arange(times, dtype=jnp.uint32)[:, None] * jnp.uint32(m) + positions.astype(jnp.uint32)
        places = self._offset + batches[:, :, None] * jnp.uint32(width) + jnp.arange(width, dtype=jnp.uint32)
        words = words_at(self._key, places.reshape(-1))
        drawn = self._batching.draw(words, self._rows, self._clients[positions], times)
        return drawn[0] if self._times is None else jnp.swapaxes(drawn, 0, 1)


class DeviceDraws(NamedTuple):
    """The random choices of one round on one device, with the fields of ``RowDraws`` that an oracle reads."""

    clients: Int[Array, " m"]
    report_rows: LazyRows
    client_update_rows: LazyRows
    keys: Key[Array, "m e"] | None
