"""The second exchange of a round, compiled: the clients' directions, and whatever else the rule wants of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from softswitch.engine.server_round import Decided, Pointed
from softswitch.methods import robust
from softswitch.methods.base import Method
from softswitch.methods.client_state import RoundAtClients
from softswitch.methods.compression import Behind, Compression, check_compression
from softswitch.methods.compressors import in_two_parts
from softswitch.methods.memory import Memory
from softswitch.methods.round import State
from softswitch.oracles.base import Oracle
from softswitch.problem.domains import Domain
from softswitch.support.arrays import take_clients, weighted_sum

FOR_DIRECTIONS = 2
"""Folded into a round's key for the rows of clients that are drawn for the second exchange only."""


def pointing(
    oracle: Oracle, method: Method, state: State, key: Array, k: Array, draws: Any, kept: Any, by: Decided
) -> Pointed:
    """Σ r_i u_i, or what else the rule makes of the clients' directions.

    Args:
        oracle: the clients.
        method: the method.
        state: before the round.
        key: the run's random key.
        k: the round.
        draws: the round's random choices.
        kept: what clients keep from their reports.
        by: the round after its first exchange.
    """
    decision, clients = by.decision, by.clients
    if decision.clients is not None:
        clients = decision.clients
        chance = oracle.draw_randomness(jax.random.fold_in(jax.random.fold_in(key, k), FOR_DIRECTIONS))
        draws = oracle.draw_for(clients, chance)
    step_size = method.local_step_size_at(k, oracle.local_steps)
    update = (draws, kept, decision, method.switches, step_size)
    if method.at_clients is not None:
        return _with_what_clients_keep(oracle, method, state, k, clients, update, by)
    if method.robust is not None:
        each = oracle.directions(state.params, *update)
        return Pointed(robust.combined(each, decision.weights), each)
    if method.sees_each:
        return Pointed(method.combine(k, by.reports, decision, oracle.directions(state.params, *update)))
    return Pointed(oracle.direction(state.params, *update))


def _with_what_clients_keep(
    oracle: Oracle, method: Method, state: State, k: Array, clients: Array, update: tuple[Any, ...], by: Decided
) -> Pointed:
    way, (draws, kept, decision, switches, step_size) = method.at_clients, update
    assert way is not None
    changes = 0 if not isinstance(state.optimizer, Behind) else state.optimizer.changes
    asked = RoundAtClients(
        state.params,
        decision.feasible,
        decision.weights,
        oracle.local_steps,
        step_size,
        method.step_size_at(k),
        changes,
    )
    own = take_clients(state.at_clients, clients)
    traffic = None
    if isinstance(way, Compression):
        many = clients.shape[0]
        counts = way.bytes_up(state.params, many), way.bytes_down(state.params, own, changes, many)
        counts = jnp.where(by.reports.void, 0, counts[0]), counts[1]
        traffic = jnp.stack([jnp.stack(in_two_parts(each)) for each in counts])
        if way.up_exactly:  # as without compression, to the bit
            direction = oracle.direction(state.params, *update)
            return Pointed(
                direction, at_clients=_put(state, clients, way.after(own, asked, None, None)[1]), traffic=traffic
            )
    shift = way.shift(own, asked)
    shifted = decision._replace(local_loss=decision.local_loss._replace(linear=shift, pull=way.pull))
    found = oracle.directions(state.params, draws, kept, shifted, switches, step_size)
    sent, own = way.after(own, asked, shift, found)
    return Pointed(weighted_sum(sent, decision.weights), at_clients=_put(state, clients, own), traffic=traffic)


def _put(state: State, clients: Array, own: Any) -> Any:
    """What every client keeps, with what some keep after the round."""
    return jax.tree.map(lambda all_, new: all_.at[clients].set(new.astype(all_.dtype)), state.at_clients, own)


def check_exchanges(method: Method, oracle: Oracle, *, memory: Memory | None, domain: Domain | None = None) -> None:
    """Raise where the rule asks for more than these clients can do, or for what does not go together.

    Args:
        method: the method.
        oracle: the clients.
        memory: how the server remembers its clients' reports; None: not at all.
        domain: Θ, or None.
    """
    check_compression(method.at_clients, domain, method.robust)
    name, kind = type(method).__name__, type(oracle).__name__
    wants = {
        "robust": method.robust is not None,
        "at_clients": method.at_clients is not None,
        "what it makes of each direction": method.sees_each,
    }
    several = [one for one, wanted in wants.items() if wanted]
    if len(several) > 1:
        raise ValueError(f"{' and '.join(several)} do not go together, but {name} has both")
    if several and several != ["robust"] and not method.sees_each and not oracle.can_repeat_updates:
        raise ValueError(
            f"{name} with {several[0]} needs clients that take their local steps by its word, or at another iterate, "
            f"which those of the kind {kind} cannot; Optimistic goes with all"
        )
    if (method.draws_clients or method.compares) and not oracle.can_repeat_updates:
        raise ValueError(f"{name} asks clients for more than those of the kind {kind} can do")
    if (method.draws_clients or method.compares) and memory is not None:
        raise ValueError(f"memory must be None with {name}, which keeps account of its clients itself")
    if memory is not None and memory.corrected and not oracle.can_repeat_reports:
        raise ValueError(
            f"memory must not be corrected with clients of the kind {kind}, which cannot report at two iterates and "
            "nothing else changed (episodes are played anew, a network's running means go on, a second private value "
            f"is a second release), but is {memory}; Memory(smoothing=…) goes with all"
        )
