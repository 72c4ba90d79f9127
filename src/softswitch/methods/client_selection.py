"""Client selection by a server with a client memory.

Up to two thirds of the m participants of a round are the clients with the largest remembered values, half of them by
the constraint ĝ and half by the objective f̂. At least one is selected in turn: every pass through all clients is in a
new random order, so a client waits at most two passes. With Byzantine clients no client is selected by value twice in a
row (``rest``).
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from softswitch.methods.memory import Places, Remembered
from softswitch.support.arrays import take_clients

TURN_STREAM = 0x7FFFFFFF  # integer folded into a run's random key for the order of turns; no round has this number


def order_of_pass(key: Array, number: Any, clients: int) -> Int[Array, " n"]:
    """Return the random order of the client indices in pass ``number``; ``key`` is the key of the run."""
    pass_key = jax.random.fold_in(jax.random.fold_in(key, TURN_STREAM), number)
    return jax.random.permutation(pass_key, clients).astype(jnp.int32)


def clients_in_turn(order: Int[Array, " n"], k: Any, places: Places) -> Int[Array, " window"]:
    """Return the r clients whose turn it is in round k, then those that replace ones selected by value; min(n, m)."""
    clients = order.shape[0]
    first = (k % rounds_per_pass(clients, places)) * places.in_turn
    return order[(first + jnp.arange(min(clients, places.total), dtype=jnp.int32)) % clients]


def rounds_per_pass(clients: int, places: Places) -> int:
    """Return ⌈n/r⌉ for n clients, of which r are selected in turn in each round."""
    return math.ceil(clients / places.in_turn)


def update_turns(remembered: Remembered, key: Array, k: Int[Array, ""], places: Places) -> Remembered:
    """Return the memory with the order of the pass that round k belongs to; a new pass draws a new order."""
    clients = remembered.order.shape[0]
    number = (k // rounds_per_pass(clients, places)).astype(jnp.int32)
    is_same = number == remembered.pass_number
    order = lax.cond(is_same, lambda: remembered.order, lambda: order_of_pass(key, number, clients))
    return remembered._replace(order=order, pass_number=number)


def select_clients(
    remembered: Remembered, in_turn: Int[Array, " window"], places: Places, k: Int[Array, ""], rest: Any = 0
) -> Int[Array, " m"]:
    """Return the m clients of round k: new ones, the largest ĝ and f̂ after ``rest`` rounds, and those in turn."""
    clients = remembered.objective.shape[0]
    if places.total == clients:
        return jnp.arange(clients, dtype=jnp.int32)
    chosen = jnp.zeros(clients, bool)
    new = ~remembered.known & (remembered.selected_at < 0)
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


def select_connected(
    key: Array, k: Any, remembered: Remembered, connected: Int[Array, " c"], places: Places, rest: Any
) -> Int[Array, " m"]:
    """Return the m clients of round k out of the ``connected`` ones, whose number may differ between rounds."""
    order = order_of_pass(key, k // rounds_per_pass(len(connected), places), len(connected))
    available = take_clients(remembered._replace(forecasts=None), connected)
    return connected[select_clients(available, clients_in_turn(order, k, places), places, k, rest)]


def represented_clients(places: Places, clients: int, dtype: Any) -> Float[Array, " m"] | None:
    """Return how many clients each selected one represents in a mean: 1 if by value, else an equal part of the rest."""
    if places.total == clients:
        return None
    by_need = places.by_constraint + places.by_objective
    in_turn = (clients - by_need) / places.in_turn
    return jnp.concatenate([jnp.ones(by_need, dtype), jnp.full(places.in_turn, in_turn, dtype)])
