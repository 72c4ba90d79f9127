"""Which of its rows a private client draws, in a compiled program: exactly as the analysis has it."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from softswitch.data.client_data import Rows


class PrivateChance(NamedTuple):
    """What the participants of one round draw by, whoever they are.

    Attributes:
        report_noise: of deviation 1, on what each tells of f and each g.
        row_keys: for the rows of each one's report and of its local steps; None where all rows are taken.
        noise_keys: for the noise on each one's gradients, one a local step.
    """

    report_noise: Float[Array, "m functions"]
    row_keys: Key[Array, "m steps_and_report"] | None
    noise_keys: Key[Array, "m steps"]


class PrivateDraws(NamedTuple):
    """The random choices of one round.

    Attributes:
        clients: I_k, the participants.
        chance: what they draw by.
    """

    clients: Int[Array, " m"]
    chance: PrivateChance


class DrawnRows(NamedTuple):
    """Rows of one client.

    Attributes:
        indices: where they are in the store; some may not count.
        counted: which count.
    """

    indices: Int[Array, " capacity"]
    counted: Bool[Array, " capacity"]


def all_rows(rows: Rows, client: Int[Array, ""], width: int) -> DrawnRows:
    """Every row of a client.

    Args:
        rows: all clients'.
        client: whose.
        width: how many rows the largest client has.
    """
    return _at(rows, client, jnp.arange(width, dtype=jnp.int32))


def each_by_itself(rows: Rows, client: Int[Array, ""], width: int, capacity: int, key: Array, rate: float) -> DrawnRows:
    """Every row with the same probability, independently of all others: at most the rate, by less than 2⁻³².

    Args:
        rows: all clients'.
        client: whose.
        width: how many rows the largest client has.
        capacity: how many are taken at most; see ``capacity_for``.
        key: for the choice.
        rate: the probability, below 1.
    """
    words = jax.random.bits(key, (width,), jnp.uint32)
    drawn = (words < jnp.uint32(math.floor(rate * 2**32))) & (jnp.arange(width) < rows.counts[client].sum())
    return _at(rows, client, jnp.nonzero(drawn, size=capacity, fill_value=width)[0].astype(jnp.int32))


def so_many(
    rows: Rows, client: Int[Array, ""], width: int, capacity: int, key: Array, taken: Int[Array, ""]
) -> DrawnRows:
    """A uniformly random set of so many rows.

    Args:
        rows: all clients'.
        client: whose.
        width: how many rows the largest client has.
        capacity: the largest number taken at any client.
        key: for the choice.
        taken: how many.
    """
    words = jax.random.bits(key, (width,), jnp.uint32)
    there = jnp.arange(width) < rows.counts[client].sum()
    order = jnp.lexsort((words, ~there))[:capacity].astype(jnp.int32)  # those that are not there come last
    found = _at(rows, client, order)
    return found._replace(counted=found.counted & (jnp.arange(capacity) < taken))


def capacity_for(rate: float, width: int) -> int:
    """How many rows are drawn at most, of so many: that there are more has a probability below 10⁻²⁵.

    Bernstein's inequality at 12 standard deviations and 40 more than the mean: exp(−t²/(2(σ² + t/3))), largest near
    σ = 0, where it is exp(−60).
    """
    mean = rate * width
    return min(width, math.ceil(mean + 12 * math.sqrt(mean * (1 - rate)) + 40))


def _at(rows: Rows, client: Array, places: Array) -> DrawnRows:
    """The client's rows in these places; a place beyond its rows does not count."""
    size = rows.counts[client].sum()
    return DrawnRows(rows.offsets[client, 0] + jnp.minimum(places, size - 1), places < size)
