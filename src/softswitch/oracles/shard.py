"""What one of many devices does of a round: the share of its own clients, zeros in the places of all others."""

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


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviceEvaluationPlan(EvaluationPlan):
    """A way through a device's own data. Groups are padded by n, a client that stands in; what it gives is dropped.

    Attributes:
        client_count: n, of all devices.
    """

    client_count: int = field(default=0, metadata=STATIC)

    def in_order(self, values: Array) -> Array:
        """Values of the device's own clients in the order of all; zeros for the others."""
        everyone = jnp.zeros((self.client_count, *values.shape[1:]), values.dtype)
        return everyone.at[jnp.concatenate(self.groups)].set(values, mode="drop")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviceOracle(GradientOracle):
    """The clients of one device, by the indices that they have among all. Client n stands in where there is none.

    Sums and stacks over participants are those of its own; added up over the devices they are those of all.

    Attributes:
        mine: which of all clients it has.
        members: its clients in ascending order, padded by n.
    """

    mine: Bool[Array, " n"] = field(kw_only=True)
    members: Int[Array, " own"] = field(kw_only=True)

    def of_each(self, function: Callable[[Any], Any], everyone: Any) -> Any:
        """``function`` of its own participants, each in its place; zeros for the others."""
        m = self.participants

        def some(positions: Array) -> Any:
            return jax.vmap(function)(_picked(everyone, positions))

        def put(found: Any, positions: Array, valid: Array) -> Any:
            at = jnp.where(valid, positions, m)
            return jax.tree.map(lambda all_, own: all_.at[at].set(own, mode="drop"), found, some(positions))

        shapes = jax.eval_shape(some, jnp.zeros(self.slice_size, jnp.int32))
        nothing = jax.tree.map(lambda leaf: jnp.zeros((m, *leaf.shape[1:]), leaf.dtype), shapes)
        return self._over_slices(everyone[0], nothing, put)

    def summed(self, function: Callable[[Any], Any], weights: Float[Array, " m"], everyone: Any) -> Any:
        """The sum over its own participants."""

        def part(positions: Array, valid: Array) -> Any:
            return function((jnp.where(valid, weights[positions], 0), _picked(everyone, positions)))

        def add(total: Any, positions: Array, valid: Array) -> Any:
            return jax.tree.map(jnp.add, total, part(positions, valid))

        none = jnp.zeros(self.slice_size, jnp.int32)
        shapes = jax.eval_shape(part, none, none.astype(bool))
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return self._over_slices(everyone[0], nothing, add)

    def by_sizes(self, loss: Loss, params: Params, decision: Decision) -> Params:
        """All of its clients with all of their rows; the one that stands in weighs nothing."""
        own = jax.tree.map(lambda leaf: jnp.concatenate([leaf, jnp.zeros_like(leaf[:1])]), decision.local_loss.own)
        extended = decision._replace(
            weights=jnp.append(decision.weights, jnp.zeros_like(decision.weights[:1])),
            local_loss=decision.local_loss.with_own(own),
        )
        return super().by_sizes(loss, params, extended)

    def _over_slices(self, clients: Int[Array, " m"], nothing: Any, step: Callable[[Any, Array, Array], Any]) -> Any:
        """``step`` for every slice of its own participants: their positions, and which of these are theirs.

        Where all clients take part the number of slices is known before; else devices go through as many as they have
        participants for.
        """
        size, m, n = self.slice_size, self.participants, self.mine.shape[0]
        if m == n:
            at = jnp.zeros(n, jnp.int32).at[clients].set(jnp.arange(n, dtype=jnp.int32))
            own, count = at[jnp.minimum(self.members, n - 1)], (self.members < n).sum()
            slices: Any = -(-len(self.members) // size)
        else:
            taking_part = self.mine[clients]
            own = jnp.nonzero(taking_part, size=m, fill_value=0)[0].astype(jnp.int32)
            count = taking_part.sum()
            slices = (count + size - 1) // size
        own = jnp.pad(own, (0, size))

        def one(i: Any, so_far: Any) -> Any:
            valid = i * size + jnp.arange(size) < count
            positions = jnp.where(valid, lax.dynamic_slice(own, (i * size,), (size,)), own[0])
            return step(so_far, positions, valid)

        if isinstance(slices, int) and slices == 1:
            return one(0, nothing)
        return lax.fori_loop(0, slices, one, nothing)


def _picked(everyone: Any, positions: Int[Array, " s"]) -> Any:
    """What belongs to the participants at these positions."""
    return jax.tree.map(lambda leaf: leaf[positions], everyone)


MOST_WORDS = 2**32
"""Places in a stretch are counted in 32 bits."""


def can_count(key: Array, words: int) -> bool:
    """Whether words of a stretch can be made one by one: JAX's usual generator, as it is set unless told otherwise."""
    return (
        str(jax.random.key_impl(key)) == "threefry2x32"
        and bool(jax.config.jax_threefry_partitionable)  # type: ignore[attr-defined]
        and words < MOST_WORDS
    )


def words_at(key: Array, places: UInt32[Array, " k"]) -> UInt32[Array, " k"]:
    """The words that ``jax.random.bits`` has at these places of a long stretch."""
    if places.size == 0:
        return places
    hashed = threefry_2x32(jax.random.key_data(key), jnp.concatenate([jnp.zeros_like(places), places]))
    first, second = jnp.split(hashed, 2)
    return first ^ second


class UndrawnRows(NamedTuple):
    """The random choices of one round, before rows are drawn.

    Attributes:
        clients: I_k, the participants.
        key: what rows are drawn by.
        before: how many words of the stretch were used for the participants themselves.
        keys: each participant's key at each local step, for functions that take one; else None.
    """

    clients: Int[Array, " m"]
    key: Key[Array, ""]
    before: UInt32[Array, ""]
    keys: Key[Array, "m e"] | None


class RowsWhenAsked:
    """The rows of all participants' batches, drawn for those who are asked for: ``rows[positions]``.

    Args:
        batching: how a batch is drawn.
        rows: what is drawn from.
        clients: all participants.
        key: of the round.
        before: how many words of the stretch come before these.
        times: batches a participant; None: one, without an axis for it.
    """

    def __init__(
        self, batching: Batching, rows: Rows, clients: Int[Array, " m"], key: Array, before: Any, times: int | None
    ) -> None:
        self._batching, self._rows, self._clients = batching, rows, clients
        self._key, self._before, self._times = key, before, times

    def __getitem__(self, positions: Int[Array, " s"]) -> Int[Array, "..."]:
        m, times = self._clients.shape[0], self._times or 1
        width = 0 if self._batching.draws is None else self._batching.width
        batches = jnp.arange(times, dtype=jnp.uint32)[:, None] * jnp.uint32(m) + positions.astype(jnp.uint32)
        places = self._before + batches[:, :, None] * jnp.uint32(width) + jnp.arange(width, dtype=jnp.uint32)
        words = words_at(self._key, places.reshape(-1))
        drawn = self._batching.draw(words, self._rows, self._clients[positions], times)
        return drawn[0] if self._times is None else jnp.swapaxes(drawn, 0, 1)


class OwnDraws(NamedTuple):
    """A round's random choices as a device takes them: rows are drawn when they are asked for.

    Attributes:
        clients: I_k.
        report_rows: rows of the value batches.
        update_rows_of_each: rows of the gradient batches, with the participants as the first axis.
        keys: each participant's key at each local step; or None.
    """

    clients: Int[Array, " m"]
    report_rows: RowsWhenAsked
    update_rows_of_each: RowsWhenAsked
    keys: Key[Array, "m e"] | None
