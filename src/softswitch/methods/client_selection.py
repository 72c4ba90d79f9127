"""Client selection by a server with a client memory.

Some of the m places of a round go to the clients with the largest remembered values, half of these by ĝ and half by f̂.
At least one place is assigned in turn: every pass through all clients is in a new random order, so a client waits at
most two passes. With Byzantine clients no client is selected by value twice in a row (``rest``).
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from softswitch.methods.memory import Places, Remembered

TURN_STREAM = 0x7FFFFFFF
"""Number folded into a run's key for the order of turns; no round has this number."""


def order_of_pass(key: Array, number: Any, clients: int) -> Int[Array, " n"]:
    """Return the order of all clients in a pass."""
    pass_key = jax.random.fold_in(jax.random.fold_in(key, TURN_STREAM), number)
    return jax.random.permutation(pass_key, clients).astype(jnp.int32)


def clients_in_turn(order: Int[Array, " n"], k: Any, places: Places) -> Int[Array, " window"]:
    """Return the clients whose turn it is in round k, followed by the next ones in case some are selected already.

    A pass takes ⌈n/r⌉ rounds with r clients each, so two turns of a client are less than two passes apart. The list has
    min(n, m) distinct clients.
    """
    clients = order.shape[0]
    first = (k % rounds_per_pass(clients, places)) * places.in_turn
    return order[(first + jnp.arange(min(clients, places.total), dtype=jnp.int32)) % clients]


def rounds_per_pass(clients: int, places: Places) -> int:
    """Return ⌈n/r⌉."""
    return math.ceil(clients / places.in_turn)


def update_turns(remembered: Remembered, key: Array, k: Int[Array, ""], places: Places) -> Remembered:
    """Return the memory with the order of round k's pass, drawn at the beginning of the pass."""
    clients = remembered.order.shape[0]
    number = (k // rounds_per_pass(clients, places)).astype(jnp.int32)
    order = lax.cond(
        number == remembered.pass_number, lambda: remembered.order, lambda: order_of_pass(key, number, clients)
    )
    return remembered._replace(order=order, pass_number=number)


def select_clients(
    remembered: Remembered, in_turn: Int[Array, " window"], places: Places, k: Int[Array, ""], rest: Any = 0
) -> Int[Array, " m"]:
    """Select the clients with the largest ĝ, those with the largest f̂, and those whose turn it is.

    Clients that were never selected come first. A client is not selected by value in ``rest`` rounds after a selection.
    """
    clients = remembered.objective.shape[0]
    if places.total == clients:
        return jnp.arange(clients, dtype=jnp.int32)
    chosen = jnp.zeros(clients, bool)
    new = remembered.awaited & (remembered.selected_at < 0)
    is_resting = (remembered.selected_at >= 0) & (k - remembered.selected_at <= rest)
    selected, worst = [], remembered.constraint.max(axis=1)
    for scores, count in ((worst, places.by_constraint), (remembered.objective, places.by_objective)):
        if count:
            least = jnp.finfo(scores.dtype).min  # unknown and resting clients rank above the selected ones
            known = jnp.where(remembered.known & ~is_resting, jnp.maximum(scores, least), least)
            urgency = jnp.where(chosen, -jnp.inf, jnp.where(new, jnp.inf, known))
            selected.append(lax.top_k(urgency, count)[1].astype(jnp.int32))
            chosen = chosen.at[selected[-1]].set(True)
    # Clients that are not selected already come first, in their order.
    free = jnp.argsort(chosen[in_turn], stable=True)
    return jnp.concatenate([*selected, in_turn[free[: places.in_turn]]])


def represented_clients(places: Places, clients: int, dtype: Any) -> Float[Array, " m"] | None:
    """Return the number of clients that each selected client represents, as ``select_clients`` orders them.

    A client selected by value represents itself, and those selected in turn represent the rest. Their inclusion
    probability is r/(n − m + r), and a mean over all clients weights them by its inverse. None if all are selected.
    """
    if places.total == clients:
        return None
    by_need = places.by_constraint + places.by_objective
    in_turn = (clients - by_need) / places.in_turn
    return jnp.concatenate([jnp.ones(by_need, dtype), jnp.full(places.in_turn, in_turn, dtype)])
