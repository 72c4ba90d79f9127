"""Map a function over clients, as many at a time as memory allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

SLICE_BYTES = 256 * 2**20
"""Memory for the batches, activations and local iterates of the clients that are computed together."""
SLICE_SHARE = 8
"""On an accelerator a slice may use its memory divided by this number, if that is more than ``SLICE_BYTES``."""
CACHE_BYTES = 8 * 2**20
"""Limit for evaluations of all rows on a CPU: data that fits into its cache is not read from memory twice."""


def slice_size(clients: int, bytes_per_client: int) -> int:
    """Return how many clients are computed together."""
    return max(1, min(clients, _slice_bytes() // max(1, bytes_per_client)))


def full_data_slice_size(clients: int, bytes_per_client: int) -> int:
    """Return how many clients are computed together in an evaluation of all rows."""
    limit = min(SLICE_BYTES, CACHE_BYTES) if jax.default_backend() == "cpu" else _slice_bytes()
    return max(1, min(clients, limit // max(1, bytes_per_client)))


def _slice_bytes() -> int:
    if jax.default_backend() == "cpu":
        return SLICE_BYTES
    stats = jax.local_devices()[0].memory_stats() or {}
    return max(SLICE_BYTES, stats.get("bytes_limit", 0) // SLICE_SHARE)


def map_slices(function: Callable[[Any], Any], clients: Any, size: int) -> Any:
    """Apply ``function`` to every client and stack the results; ``clients`` has the client axis first."""
    if size >= _count(clients):
        return jax.vmap(function)(clients)
    if size == 1:
        return lax.map(function, clients)  # without a client axis, each client runs only its own loops and branches
    return lax.map(function, clients, batch_size=size)


def sum_slices(function: Callable[[Any], Any], clients: Any, size: int) -> Any:
    """Sum ``function(slice)`` over slices of the clients, where each value is already a sum over its slice."""
    count = _count(clients)
    if size >= count:
        return function(clients)
    function = jax.jit(function)  # traced once for all whole slices
    whole, rest = divmod(count, size)
    stacked = jax.tree.map(lambda x: x[: whole * size].reshape(whole, size, *x.shape[1:]), clients)

    def add(total: Any, part: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, function(part)), None

    first = function(jax.tree.map(lambda x: x[0], stacked))
    total, _ = lax.scan(add, first, jax.tree.map(lambda x: x[1:], stacked))
    if rest:
        total, _ = add(total, jax.tree.map(lambda x: x[whole * size :], clients))
    return total


def _count(clients: Any) -> int:
    return int(jax.tree.leaves(clients)[0].shape[0])
