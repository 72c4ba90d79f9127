"""Random draws: the clients that participate in a round, and the rows of a client's batch.

Draws are made in bulk for many rounds, from one key per round. The draws of round k depend on the seed and k only, not
on how many rounds are computed together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import threefry_2x32
from jaxtyping import Array, Float, Int, Integer, UInt32

from softswitch.data.client_data import Rows

_FLOYD_LIMIT = 4096  # largest subset drawn by Floyd's algorithm; sorting is cheaper for larger ones


def can_index_words(key: Array, words: int) -> bool:
    """Return whether ``words_at`` works: it needs JAX's default generator and settings, and fewer than 2³² words."""
    partitionable = bool(jax.config.jax_threefry_partitionable)  # type: ignore[attr-defined]
    return str(jax.random.key_impl(key)) == "threefry2x32" and partitionable and words < 2**32


def words_at(key_data: UInt32[Array, " 2"], first: UInt32[Array, ""], count: int) -> UInt32[Array, " count"]:
    """Return ``jax.random.bits(key, ...)[first : first + count]`` without computing the rest."""
    positions = first + jnp.arange(count, dtype=jnp.uint32)
    hashed = threefry_2x32(key_data, jnp.concatenate([jnp.zeros_like(positions), positions]))
    return hashed[:count] ^ hashed[count:]


def scale_bits(bits: UInt32[Array, "..."], count: Int[Array, "..."]) -> Int[Array, "..."]:
    """Return floor(bits · count / 2³²) in 32-bit arithmetic: integers in [0, count), uniform up to count/2³²."""
    count = count.astype(jnp.uint32)
    high, low = bits >> 16, bits & 0xFFFF
    count_high, count_low = count >> 16, count & 0xFFFF
    middle = high * count_low + ((low * count_low) >> 16)
    carry = ((middle & 0xFFFF) + low * count_high) >> 16
    return (high * count_high + (middle >> 16) + carry).astype(jnp.int32)


def sample_subset(bits: UInt32[Array, " size"], count: Int[Array, ""]) -> Int[Array, " size"]:
    """Return a uniformly random subset of [0, count), of ``size`` <= count numbers, by Floyd's algorithm."""
    size = bits.shape[0]

    def take(taken: Array, step: tuple[Array, Array]) -> tuple[Array, None]:
        i, word = step
        j = count - size + i
        t = scale_bits(word, j + 1)
        return taken.at[i].set(jnp.where((taken == t).any(), j, t)), None

    taken = jnp.full((size,), -1, jnp.int32)
    return lax.scan(take, taken, (jnp.arange(size, dtype=jnp.int32), bits))[0]


def take_first_distinct(bits: UInt32[Array, " words"], count: Int[Array, ""], size: int) -> Int[Array, " size"]:
    """Return a uniformly random subset of [0, count): the first ``size`` distinct numbers of ``draws_needed`` words."""
    drawn = scale_bits(bits, count)
    order = jnp.argsort(drawn)  # stable: the first of equal draws comes first
    ranked = drawn[order]
    is_repeated = jnp.zeros(drawn.shape, bool).at[order[1:]].set(ranked[1:] == ranked[:-1])
    place = jnp.where(is_repeated, size, jnp.cumsum(~is_repeated) - 1)
    return jnp.zeros((size,), jnp.int32).at[place].set(drawn, mode="drop")


def draws_needed(size: int, count: int) -> int:
    """Return a number of draws from ``count`` numbers that gives fewer than ``size`` distinct ones with p < 10⁻³⁰."""
    share = size / count
    mean = -count * math.log1p(-share)
    variance = count * (share / (1 - share) + math.log1p(-share))
    return math.ceil(mean + 12 * math.sqrt(variance) + 20)  # with fewer distinct draws, 0 would be repeated


def client_bit_count(clients: int, size: int) -> int:
    """Return the number of random words that ``sample_clients`` needs."""
    if size == clients or size <= _FLOYD_LIMIT:
        return 0 if size == clients else size
    return draws_needed(size, clients) if 2 * size <= clients else clients


def sample_clients(bits: UInt32[Array, " words"], clients: int, size: int) -> Int[Array, " size"]:
    """Return ``size`` client indices, drawn uniformly without replacement; all in order if ``size == clients``."""
    if size == clients:
        return jnp.arange(clients, dtype=jnp.int32)
    if size <= _FLOYD_LIMIT:
        return sample_subset(bits, jnp.int32(clients))
    if 2 * size <= clients:
        return take_first_distinct(bits, jnp.int32(clients), size)
    return jnp.argsort(bits)[:size].astype(jnp.int32)


@jax.tree_util.register_static
@dataclass(frozen=True)
class Batching:
    """Sampling of a client's rows. If ``replace`` is None, clients with no more rows than draws take each row once."""

    draws: tuple[int, ...] | None  # number of rows from each stratum; None for all local rows
    replace: bool | None  # whether rows are drawn with replacement
    width: int  # number of rows of a batch; for all local rows the size of the largest client
    equal: bool  # whether all rows of a batch always weigh the same

    def bit_count(self, clients: int, times: int) -> int:
        """Return the number of random words that ``draw`` needs for ``times`` batches of each client."""
        return 0 if self.draws is None else times * clients * self.width

    def draw(self, bits: Array, rows: Rows, clients: Int[Array, " m"], times: int) -> Int[Array, "times m drawn"]:
        """Return the row indices of ``times`` batches for each client; of length 0 if batches have all local rows."""
        m = clients.shape[0]
        if self.draws is None:
            return jnp.zeros((times, m, 0), jnp.int32)
        bits = bits.reshape(times, m, self.width)
        parts, start = [], 0
        for stratum, size in enumerate(self.draws):
            count = rows.counts[clients, stratum]
            # A client without this stratum draws its first row instead, with weight 0.
            first = jnp.where(count > 0, rows.offsets[clients, stratum], rows.offsets[clients, 0])
            part = bits[..., start : start + size]
            if self.replace is None:
                in_order = jnp.minimum(jnp.arange(size, dtype=jnp.int32), jnp.maximum(count[:, None] - 1, 0))
                chosen = jnp.where(count[:, None] <= size, in_order, scale_bits(part, count[:, None]))
            elif self.replace:
                chosen = scale_bits(part, count[:, None])
            else:
                chosen = jax.vmap(jax.vmap(sample_subset), in_axes=(0, None))(part, jnp.maximum(count, size))
                chosen = jnp.minimum(chosen, jnp.maximum(count[:, None] - 1, 0))
            parts.append(first[:, None] + chosen)
            start += size
        return jnp.concatenate(parts, axis=-1)

    def locate_words(self, key: Array, first: int, clients: int, times: int) -> Integer[Array, "times m location"]:
        """Return (key, position of the first word) of each batch, for ``draw_located``; empty for all local rows."""
        if self.draws is None:
            return jnp.zeros((times, clients, 0), jnp.int32)
        batches = jnp.arange(times * clients, dtype=jnp.uint32).reshape(times, clients, 1)
        key_data = jnp.broadcast_to(jax.random.key_data(key), (times, clients, 2))
        return jnp.concatenate([key_data, jnp.uint32(first) + batches * jnp.uint32(self.width)], axis=-1)

    def draw_located(self, location: UInt32[Array, " 3"], rows: Rows, client: Int[Array, ""]) -> Int[Array, " drawn"]:
        """Return the row indices that ``draw`` returns for one client's batch, from its entry of ``locate_words``."""
        words = words_at(location[:2], location[2], self.width)
        return self.draw(words, rows, client[None], 1)[0, 0]

    def batch(
        self, rows: Rows, client: Int[Array, ""], drawn: Int[Array, " drawn"], dtype: Any
    ) -> tuple[Int[Array, " width"], Float[Array, " width"]]:
        """Return the rows of a client's batch and weights: fraction of the stratum / draws from it; 0 for padding."""
        if self.draws is None:
            return all_rows(rows, client, self.width, dtype)
        if self.equal:
            return drawn, jnp.full((self.width,), 1 / self.width, dtype)
        counts = rows.counts[client]
        share = counts.astype(dtype) / counts.sum().astype(dtype)
        if self.replace is None:
            taken = [(jnp.arange(b) < counts[s]) / jnp.clip(counts[s], 1, b) for s, b in enumerate(self.draws)]
            return drawn, jnp.concatenate([part.astype(dtype) * share[s] for s, part in enumerate(taken)])
        return drawn, jnp.concatenate([jnp.full((b,), 1 / b, dtype) * share[s] for s, b in enumerate(self.draws)])


def all_rows(rows: Rows, client: Array, width: int, dtype: Any) -> tuple[Int[Array, " width"], Float[Array, " width"]]:
    """Return the indices and weights of all rows of a client, padded to ``width`` by its last row with weight 0."""
    size = rows.counts[client].sum()
    position = jnp.arange(width, dtype=jnp.int32)
    return rows.offsets[client, 0] + jnp.minimum(position, size - 1), (position < size) / size.astype(dtype)


def make_batching(batch_size: int | None, replace: bool | None, stratum_sizes: np.ndarray) -> Batching:
    """Return the sampling of ``batch_size`` rows (None: all); raise ValueError if it is too small or too large."""
    sizes, strata = stratum_sizes.sum(axis=1), stratum_sizes.shape[1]
    whole = Batching(None, replace, int(sizes.max()), equal=bool(sizes.min() == sizes.max()))
    if batch_size is None:
        return whole
    if batch_size < strata:
        raise ValueError(f"batch_size must be at least the number of strata ({strata}), but is {batch_size}")
    draws = tuple(batch_size // strata + (s < batch_size % strata) for s in range(strata))
    if replace is None:
        few = stratum_sizes <= np.asarray(draws)
        if few.all():
            return whole
        if not (few & (stratum_sizes > 0)).any():
            replace = True
    if replace is False:
        fewest = np.where(stratum_sizes > 0, stratum_sizes, np.iinfo(np.int64).max).min(axis=0)
        for s in np.flatnonzero(np.asarray(draws) > fewest)[:1]:
            owner = "a client" if strata == 1 else f"stratum {s} of a client"
            advice = "lower batch_size, or set replace=True, or batch_size=None for all rows"
            needed = f"batch_size = {batch_size} without replacement needs {draws[s]} rows"
            raise ValueError(f"{needed}, but {owner} has only {fewest[s]}; {advice}")
    return Batching(draws, replace, batch_size, equal=strata == 1 and replace is not None)
