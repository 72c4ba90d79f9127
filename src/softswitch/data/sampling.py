"""Random draws: which clients take part in a round, and which of its rows a client draws.

Draws are made in bulk for many rounds at once, from one key a round; so what round k draws depends on the seed and k
alone, not on how many rounds are computed together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, UInt32

from softswitch.data.client_data import Rows

_FLOYD_LIMIT = 4096  # beyond, sorting is cheaper than comparing all pairs of drawn ones


def below(words: UInt32[Array, "..."], count: Int[Array, "..."]) -> Int[Array, "..."]:
    """Whole numbers in [0, count), uniform to within count/2**32: floor(word · count / 2**32), in 32 bits."""
    count = count.astype(jnp.uint32)
    high, low = words >> 16, words & 0xFFFF
    count_high, count_low = count >> 16, count & 0xFFFF
    middle = high * count_low + ((low * count_low) >> 16)
    carry = ((middle & 0xFFFF) + low * count_high) >> 16
    return (high * count_high + (middle >> 16) + carry).astype(jnp.int32)


def subset(words: UInt32[Array, " size"], count: Int[Array, ""]) -> Int[Array, " size"]:
    """A uniformly random set of ``size`` different numbers from [0, count), by Floyd's algorithm.

    Step j of it draws t from [0, j] and takes t, or j itself where t is taken. Needs size <= count.
    """
    size = words.shape[0]

    def take(taken: Array, step: tuple[Array, Array]) -> tuple[Array, None]:
        i, word = step
        j = count - size + i
        t = below(word, j + 1)
        return taken.at[i].set(jnp.where((taken == t).any(), j, t)), None

    taken = jnp.full((size,), -1, jnp.int32)
    return lax.scan(take, taken, (jnp.arange(size, dtype=jnp.int32), words))[0]


def first_distinct(words: UInt32[Array, " words"], count: Int[Array, ""], size: int) -> Int[Array, " size"]:
    """A uniformly random set of ``size`` different numbers from [0, count): the first different ones of many drawn.

    Needs ``enough_for`` words. All at once, for large sets: one sort of what was drawn, however large ``count`` is.
    """
    drawn = below(words, count)
    order = jnp.argsort(drawn)  # stable: of equal ones the first drawn comes first
    ranked = drawn[order]
    again = jnp.zeros(drawn.shape, bool).at[order[1:]].set(ranked[1:] == ranked[:-1])
    place = jnp.where(again, size, jnp.cumsum(~again) - 1)
    return jnp.zeros((size,), jnp.int32).at[place].set(drawn, mode="drop")


def enough_for(size: int, count: int) -> int:
    """How many draws from ``count`` numbers hold ``size`` different ones: what that takes on average, and far more.

    It is twelve standard deviations more. With a probability below 10⁻³⁰ that is too few; then 0 is among them twice.
    """
    share = size / count
    mean = -count * math.log1p(-share)
    variance = count * (share / (1 - share) + math.log1p(-share))
    return math.ceil(mean + 12 * math.sqrt(variance) + 20)


def words_to_choose(clients: int, size: int) -> int:
    """How many random words ``choose_clients`` uses."""
    if size == clients:
        return 0
    if size <= _FLOYD_LIMIT:
        return size
    return enough_for(size, clients) if 2 * size <= clients else clients


def choose_clients(words: UInt32[Array, " words"], clients: int, size: int) -> Int[Array, " size"]:
    """I_k: ``size`` of the clients, uniformly without replacement. All of them, in order, where that is everyone."""
    if size == clients:
        return jnp.arange(clients, dtype=jnp.int32)
    if size <= _FLOYD_LIMIT:
        return subset(words, jnp.int32(clients))
    if 2 * size <= clients:
        return first_distinct(words, jnp.int32(clients), size)
    return jnp.argsort(words)[:size].astype(jnp.int32)


@jax.tree_util.register_static
@dataclass(frozen=True)
class Batching:
    """How a client draws a batch.

    Attributes:
        draws: how many rows from each stratum; None: the whole local data.
        replace: with replacement or without; None: with, but a client with no more rows than that takes each once.
        width: how many rows a batch has; for the whole local data the size of the largest client.
        equal: whether all rows of a batch always weigh the same.
    """

    draws: tuple[int, ...] | None
    replace: bool | None
    width: int
    equal: bool

    def words(self, clients: int, times: int) -> int:
        """How many random words ``draw`` uses for so many clients."""
        return 0 if self.draws is None else times * clients * self.width

    def draw(
        self, words: UInt32[Array, " words"], rows: Rows, clients: Int[Array, " m"], times: int
    ) -> Int[Array, "times m drawn"]:
        """Row indices of ``times`` batches for each of the given clients; none for the whole local data."""
        m = clients.shape[0]
        if self.draws is None:
            return jnp.zeros((times, m, 0), jnp.int32)
        words = words.reshape(times, m, self.width)
        parts, start = [], 0
        for stratum, size in enumerate(self.draws):
            count = rows.counts[clients, stratum]
            # A client without this stratum draws its own first row instead, at weight 0.
            first = jnp.where(count > 0, rows.offsets[clients, stratum], rows.offsets[clients, 0])
            part = words[..., start : start + size]
            if self.replace is None:
                in_order = jnp.minimum(jnp.arange(size, dtype=jnp.int32), jnp.maximum(count[:, None] - 1, 0))
                chosen = jnp.where(count[:, None] <= size, in_order, below(part, count[:, None]))
            elif self.replace:
                chosen = below(part, count[:, None])
            else:
                enough = jnp.maximum(count, size)
                chosen = jax.vmap(jax.vmap(subset), in_axes=(0, None))(part, enough)
                chosen = jnp.minimum(chosen, jnp.maximum(count[:, None] - 1, 0))
            parts.append(first[:, None] + chosen)
            start += size
        return jnp.concatenate(parts, axis=-1)

    def batch(
        self, rows: Rows, client: Int[Array, ""], drawn: Int[Array, " drawn"], dtype: Any
    ) -> tuple[Int[Array, " width"], Float[Array, " width"]]:
        """The row indices of one client's batch, and their weights, which sum to 1.

        A draw from a stratum weighs (the stratum's share of the client's rows) / (draws from it). Where each row is
        taken once, and for the whole local data, there are further rows of weight 0.
        """
        counts = rows.counts[client]
        if self.draws is None:
            return whole(rows, client, self.width, dtype)
        if self.equal:
            return drawn, jnp.full((self.width,), 1 / self.width, dtype)
        share = counts.astype(dtype) / counts.sum().astype(dtype)
        if self.replace is None:
            taken = [(jnp.arange(b) < counts[s]) / jnp.clip(counts[s], 1, b) for s, b in enumerate(self.draws)]
            return drawn, jnp.concatenate([part.astype(dtype) * share[s] for s, part in enumerate(taken)])
        return drawn, jnp.concatenate([jnp.full((b,), 1 / b, dtype) * share[s] for s, b in enumerate(self.draws)])


def whole(
    rows: Rows, client: Int[Array, ""], width: int, dtype: Any
) -> tuple[Int[Array, " width"], Float[Array, " width"]]:
    """All rows of a client and their weights, padded to ``width`` by its last row at weight 0."""
    size = rows.counts[client].sum()
    position = jnp.arange(width, dtype=jnp.int32)
    return rows.offsets[client, 0] + jnp.minimum(position, size - 1), (position < size) / size.astype(dtype)


def batching(batch_size: int | None, replace: bool | None, stratum_sizes: np.ndarray) -> Batching:
    """Decide how batches are drawn; raise where the data cannot give them.

    Args:
        batch_size: rows a batch, split as evenly as possible over the strata; None: the whole local data.
        replace: with replacement or without; None: with, but where a client has no more rows than that, each once.
        stratum_sizes: how many rows a client has of each stratum; clients × strata.
    """
    sizes = stratum_sizes.sum(axis=1)
    smallest, largest = int(sizes.min()), int(sizes.max())
    if batch_size is None:
        return Batching(None, replace, largest, equal=smallest == largest)
    strata = stratum_sizes.shape[1]
    if batch_size < strata:
        raise ValueError(f"batch_size must be at least the number of strata ({strata}), but is {batch_size}")
    draws = tuple(batch_size // strata + (s < batch_size % strata) for s in range(strata))
    if replace is None:
        present = stratum_sizes > 0
        few = stratum_sizes <= np.asarray(draws)
        if (few | ~present).all():
            return Batching(None, replace, largest, equal=smallest == largest)
        if not (few & present).any():
            replace = True
    if replace is False:
        for s, size in enumerate(draws):
            present = stratum_sizes[:, s][stratum_sizes[:, s] > 0]
            if size > present.min():
                where = "a client" if strata == 1 else f"stratum {s} of a client"
                raise ValueError(
                    f"batch_size = {batch_size} without replacement takes {size} rows where {where} has only "
                    f"{present.min()}; lower batch_size, or set replace=True, or batch_size=None for all rows"
                )
    return Batching(draws, replace, batch_size, equal=strata == 1 and replace is not None)
