"""The second exchange of a round with clients in this process."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from softswitch.methods.base import Method
from softswitch.methods.client_state import RoundAtClients
from softswitch.methods.compression import CompressedSteps, Compression, check_compression
from softswitch.methods.compressors import in_two_parts
from softswitch.methods.memory import Memory
from softswitch.methods.parts import Round, Update
from softswitch.methods.robust import combine
from softswitch.methods.state import State
from softswitch.oracles.base import Oracle
from softswitch.problem.domains import Domain
from softswitch.support.arrays import take_clients, weighted_sum

UPDATE_STREAM = 2
"""Folded into a round's key for the rows of clients that are drawn for the second exchange only."""


def collect_updates(
    oracle: Oracle, method: Method, state: State, key: Array, draws: Any, kept: Any, played: Round
) -> Update:
    """Return Σ r_i u_i, or another combination of the directions that the method asks for."""
    decision, clients, k = played.decision, played.clients, played.k
    if decision.clients is not None:
        clients = decision.clients
        randomness = oracle.draw_randomness(jax.random.fold_in(jax.random.fold_in(key, k), UPDATE_STREAM))
        draws = oracle.draw_for(clients, randomness)
    arguments = (draws, kept, decision, method.switches, method.local_step_size_at(k, oracle.local_steps))
    if method.at_clients is not None:
        return _update_client_states(oracle, method, state, clients, arguments, played)
    if method.robust is not None:
        directions = oracle.directions(state.params, *arguments)
        return Update(combine(directions, decision.weights), directions)
    if method.sees_each:
        directions = oracle.directions(state.params, *arguments)
        return Update(method.combine(k, played.trusted, decision, directions))
    return Update(oracle.direction(state.params, *arguments))


def _update_client_states(
    oracle: Oracle, method: Method, state: State, clients: Array, arguments: tuple[Any, ...], played: Round
) -> Update:
    way, (draws, kept, decision, switches, step_size) = method.at_clients, arguments
    assert way is not None
    changes = state.optimizer.changes if isinstance(state.optimizer, CompressedSteps) else 0
    server_step = method.step_size_at(played.k)
    at_clients = RoundAtClients(
        state.params, decision.feasible, decision.weights, oracle.local_steps, step_size, server_step, changes
    )
    every = state.parts["at_clients"]
    before, traffic = take_clients(every, clients), None

    def put(after: Any) -> Any:
        return jax.tree.map(lambda old, new: old.at[clients].set(new.astype(old.dtype)), every, after)

    if isinstance(way, Compression):
        count = clients.shape[0]
        up, down = way.bytes_up(state.params, count), way.bytes_down(state.params, before, changes, count)
        up = jnp.where(played.reports.void, 0, up)
        traffic = jnp.stack([jnp.stack(in_two_parts(each)) for each in (up, down)])
        if way.up_exactly:  # bit for bit as without compression
            direction = oracle.direction(state.params, *arguments)
            return Update(direction, at_clients=put(way.after(before, at_clients, None, direction)[1]), traffic=traffic)
    shift = way.shift(before, at_clients)
    shifted = decision._replace(local_loss=decision.local_loss._replace(linear=shift, pull=way.pull))
    directions = oracle.directions(state.params, draws, kept, shifted, switches, step_size)
    sent, after = way.after(before, at_clients, shift, directions)
    return Update(weighted_sum(sent, decision.weights), at_clients=put(after), traffic=traffic)


def check_exchanges(method: Method, oracle: Oracle, *, memory: Memory | None, domain: Domain | None = None) -> None:
    """Raise an error if the method needs more than these clients can do, or incompatible options.

    Args:
        method: The method.
        oracle: The clients.
        memory: How the server remembers reports; None for no memory.
        domain: Θ, or None.
    """
    check_compression(method.at_clients, domain, method.robust)
    name, kind = type(method).__name__, type(oracle).__name__
    needs = {
        "robust": method.robust is not None,
        "at_clients": method.at_clients is not None,
        "a combination of its own": method.sees_each,
    }
    several = [need for need, given in needs.items() if given]
    if len(several) > 1:
        raise ValueError(f"{' and '.join(several)} cannot be combined, but {name} has both")
    if method.at_clients is not None and not oracle.can_repeat_updates:
        raise ValueError(f"{name} with at_clients needs clients with a state, but {kind} has none")
    if (method.draws_clients or method.compares) and not oracle.can_repeat_updates:
        raise ValueError(f"{name} needs reports or clients that {kind} does not support")
    if (method.draws_clients or method.compares) and memory is not None:
        raise ValueError(f"memory must be None with {name}, which has a state of each client, but is {memory}")
    if memory is not None and memory.corrected and not oracle.can_repeat_reports:
        raise ValueError(
            f"memory must not be corrected with {kind}, whose clients cannot report at two iterates on the same data, "
            f"but is {memory}; use Memory(smoothing=...)"
        )
