"""What a device draws for its own participants alone: the same numbers that one device would draw for all.

Round k's draws come from one stretch of random words. Each word is a hash of the key and of its place in the stretch,
so a device makes those that it needs and no others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Int, Key, UInt32

from softswitch.clients.client_data import Rows
from softswitch.clients.sampling import Batching

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
