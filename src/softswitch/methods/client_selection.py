"""Whom a server asks that remembers its clients.

Of the m places of a round some go to the clients remembered as worst, half of these by ĝ and half by f̂; at least one
goes by turns: every pass through all clients is in a new random order, so that nobody waits longer than two passes.
Whoever claims to be the worst is believed for as long as that; where clients may lie, nobody is asked by need twice in
a row (``rest``), and one that never answers waits for its turn.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from softswitch.methods.memory import Places, Remembered
from softswitch.support.arrays import largest

FOR_TURNS = 0x7FFFFFFF
"""Folded into a run's key for the order of turns: no round has this number."""


def order_of_pass(key: Array, number: Any, clients: int) -> Int[Array, " n"]:
    """In which order a pass goes through all clients, by the run's key and the pass's number."""
    own = jax.random.fold_in(jax.random.fold_in(key, FOR_TURNS), number)
    return jax.random.permutation(own, clients).astype(jnp.int32)


def turn(order: Int[Array, " n"], k: Any, places: Places) -> Int[Array, " window"]:
    """Whose turn it is in round k of a pass, and who comes after them, in case some are asked anyway.

    A pass takes ⌈n/r⌉ rounds, r clients a round, in an order of its own. So two turns of a client lie less than two
    passes apart. The list is as long as the round has places, or as there are clients, and names nobody twice.
    """
    clients = order.shape[0]
    first = (k % rounds_a_pass(clients, places)) * places.by_turns
    return order[(first + jnp.arange(min(clients, places.all), dtype=jnp.int32)) % clients]


def rounds_a_pass(clients: int, places: Places) -> int:
    """⌈n/r⌉."""
    return math.ceil(clients / places.by_turns)


def with_turns(remembered: Remembered, key: Array, k: Int[Array, ""], places: Places) -> Remembered:
    """What is remembered, with the order of round k's pass: drawn where it begins, and kept while it lasts."""
    clients = remembered.order.shape[0]
    number = (k // rounds_a_pass(clients, places)).astype(jnp.int32)
    order = lax.cond(
        number == remembered.pass_number, lambda: remembered.order, lambda: order_of_pass(key, number, clients)
    )
    return remembered._replace(order=order, pass_number=number)


def ask(
    remembered: Remembered, in_turn: Int[Array, " window"], places: Places, k: Int[Array, ""], rest: Any = 0
) -> Int[Array, " m"]:
    """Whom to ask: the worst by ĝ, the worst by f̂, and those whose turn it is. Whoever was never asked comes first.

    Args:
        remembered: what is remembered of every client.
        in_turn: whose turn it is, and who comes after them.
        places: how many are asked for what.
        k: the round.
        rest: how many rounds a client rests from being asked by need.
    """
    clients = remembered.objective.shape[0]
    if places.all == clients:
        return jnp.arange(clients, dtype=jnp.int32)
    chosen = jnp.zeros(clients, bool)
    new = remembered.unheard & (remembered.asked_at < 0)
    rests = (remembered.asked_at >= 0) & (k - remembered.asked_at <= rest)
    found = []
    for scores, many in (
        (_worst_constraint(remembered), places.by_constraint),
        (remembered.objective, places.by_objective),
    ):
        if many:
            least = jnp.finfo(scores.dtype).min  # those who have none, or rest, stay above those chosen
            known = jnp.where(remembered.heard & ~rests, jnp.maximum(scores, least), least)
            urgency = jnp.where(chosen, -jnp.inf, jnp.where(new, jnp.inf, known))
            found.append(largest(urgency, many))
            chosen = chosen.at[found[-1]].set(True)
    # Those of the list that are not asked already keep their order and come first.
    free = jnp.argsort(chosen[in_turn], stable=True)
    return jnp.concatenate([*found, in_turn[free[: places.by_turns]]])


def stand_for(places: Places, clients: int, dtype: Any) -> Float[Array, " m"] | None:
    """For how many clients each of those asked stands, in the order of ``ask``; None where everyone is asked.

    Whoever is asked by need is asked for sure and stands for itself. Those in turn stand for all the others: these have
    the chance r/(n − m + r) each, and a mean over all clients weighs them by the inverse of it.
    """
    if places.all == clients:
        return None
    by_need = places.by_constraint + places.by_objective
    in_turn = (clients - by_need) / places.by_turns
    return jnp.concatenate([jnp.ones(by_need, dtype), jnp.full(places.by_turns, in_turn, dtype)])


def _worst_constraint(remembered: Remembered) -> Float[Array, " n"]:
    values = remembered.constraint
    return values[:, 0] if values.shape[1] == 1 else values.max(axis=1)
