"""Row sampling of private clients in a compiled program, exactly as the privacy analysis assumes."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from softswitch.data.client_data import Rows


class PrivateRandomness(NamedTuple):
    """Random numbers of one round, before its participants are known.

    Attributes:
        report_noise: Standard normal noise for each reported f and g.
        row_keys: Keys for the rows of each report and local step; None if all rows are used.
        noise_keys: Keys for the noise on each gradient.
    """

    report_noise: Float[Array, "m functions"]
    row_keys: Key[Array, "m steps_and_report"] | None
    noise_keys: Key[Array, "m steps"]


class PrivateDraws(NamedTuple):
    """The random choices of one round.

    Attributes:
        clients: Indices of the participants I_k.
        randomness: Their random numbers.
    """

    clients: Int[Array, " m"]
    randomness: PrivateRandomness


class DrawnRows(NamedTuple):
    """Rows of one client.

    Attributes:
        indices: Row indices, with padding.
        counted: Mask of the rows that are not padding.
    """

    indices: Int[Array, " capacity"]
    counted: Bool[Array, " capacity"]


def all_rows(rows: Rows, client: Int[Array, ""], width: int) -> DrawnRows:
    """Return every row of a client; ``width`` is the number of rows of the largest client."""
    return _at(rows, client, jnp.arange(width, dtype=jnp.int32))


def draw_poisson_sample(
    rows: Rows, client: Int[Array, ""], width: int, capacity: int, key: Array, rate: float
) -> DrawnRows:
    """Draw every row independently, with a probability of at most ``rate`` and less than 2⁻³² below it.

    Args:
        rows: Rows of all clients.
        client: Index of the client.
        width: Number of rows of the largest client.
        capacity: Maximum number of drawn rows, from ``poisson_capacity``.
        key: Random key.
        rate: Probability, below 1.
    """
    words = jax.random.bits(key, (width,), jnp.uint32)
    drawn = (words < jnp.uint32(math.floor(rate * 2**32))) & (jnp.arange(width) < rows.counts[client].sum())
    return _at(rows, client, jnp.nonzero(drawn, size=capacity, fill_value=width)[0].astype(jnp.int32))


def draw_fixed_sample(
    rows: Rows, client: Int[Array, ""], width: int, capacity: int, key: Array, taken: Int[Array, ""]
) -> DrawnRows:
    """Draw a uniformly random set of ``taken`` rows.

    Args:
        rows: Rows of all clients.
        client: Index of the client.
        width: Number of rows of the largest client.
        capacity: Largest sample of any client.
        key: Random key.
        taken: Number of rows to draw.
    """
    words = jax.random.bits(key, (width,), jnp.uint32)
    exists = jnp.arange(width) < rows.counts[client].sum()
    order = jnp.lexsort((words, ~exists))[:capacity].astype(jnp.int32)  # padding comes last
    drawn = _at(rows, client, order)
    return drawn._replace(counted=drawn.counted & (jnp.arange(capacity) < taken))


def poisson_capacity(rate: float, width: int) -> int:
    """Return a size that a Poisson sample exceeds with a probability below 10⁻²⁵.

    This is Bernstein's inequality exp(−t²/(2(σ² + t/3))) at t = 12σ + 40; it is largest near σ = 0, with exp(−60).
    """
    mean = rate * width
    return min(width, math.ceil(mean + 12 * math.sqrt(mean * (1 - rate)) + 40))


def _at(rows: Rows, client: Array, places: Array) -> DrawnRows:
    size = rows.counts[client].sum()
    return DrawnRows(rows.offsets[client, 0] + jnp.minimum(places, size - 1), places < size)
