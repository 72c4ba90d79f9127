"""Clients in slices: as many side by side as memory allows, the slices one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

SLICE_BYTES = 256 * 2**20
"""How much the clients of one slice may hold together: batches, activations' share, local iterates;"""
SLICE_SHARE = 8
"""on an accelerator this part of its memory, if that is more."""

CACHE_BYTES = 8 * 2**20
"""The same where whole data are gone through on a processor: what its cache holds is not fetched from memory twice."""


def slice_size(clients: int, bytes_a_client: int) -> int:
    """How many clients fit side by side."""
    return max(1, min(clients, _slice_bytes() // max(1, bytes_a_client)))


def _slice_bytes() -> int:
    """How much a slice may hold, by the memory of the device."""
    if jax.default_backend() == "cpu":
        return SLICE_BYTES
    told = jax.local_devices()[0].memory_stats() or {}
    return max(SLICE_BYTES, told.get("bytes_limit", 0) // SLICE_SHARE)


def slice_of_whole_data(clients: int, bytes_a_client: int) -> int:
    """How many clients' whole data go side by side."""
    at_most = min(SLICE_BYTES, CACHE_BYTES) if jax.default_backend() == "cpu" else _slice_bytes()
    return max(1, min(clients, at_most // max(1, bytes_a_client)))


def map_slices(function: Callable[[Any], Any], clients: Any, size: int) -> Any:
    """``function`` of every client, stacked; ``clients`` is a pytree whose arrays have the client axis first."""
    if size >= _count(clients):
        return jax.vmap(function)(clients)
    if size == 1:
        return lax.map(function, clients)  # without a client axis, loops and branches stay each client's own
    return lax.map(function, clients, batch_size=size)


def sum_slices(function: Callable[[Any], Any], clients: Any, size: int) -> Any:
    """The sum of ``function(slice)`` over slices, where a slice's value is already a sum over its clients."""
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
