"""Rounds one by one, for clients that compute with something else than JAX; the server's parts are compiled.

It has the functions of ``compiled.py`` that a run calls, for an ``Oracle`` that is a ``HostOracle``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from softswitch.engine.compiled import Pieces, Program, Span
from softswitch.engine.server_round import (
    Decided,
    Pointed,
    RoundView,
    applied,
    asked,
    believed_overview,
    decided,
    informed,
)
from softswitch.methods import robust, round
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory, Places, nothing_remembered
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.weighting import maximum
from softswitch.oracles.evaluation import ClientSummary
from softswitch.oracles.host import HostOracle
from softswitch.problem.parameters import Params, float_dtype
from softswitch.results.history import Record

CHUNK_ROUNDS = 10
"""Rounds from one look at the clock, at callbacks and checkpoints to the next."""
REPORTS_TO_SCATTER = 32
OVERWRITES = False
"""Whether ``run_chunk`` overwrites the state that it is given."""


def run_chunk(
    parts: Pieces, program: Program, span: Span, key: Array, state: round.State
) -> tuple[round.State, Record]:
    """Up to so many rounds from ``span.first`` on, but none from ``span.last`` on, nor after one that diverged."""
    oracle = _clients(parts.oracle)
    oracle.load_buffers(state.params, state.buffers)
    records = []
    for k in range(int(span.first), min(int(span.first) + program.length, int(span.last))):
        state, record = _play(oracle, parts, program, span, key, state, k)
        records.append(jax.tree.map(np.asarray, record))
        if int(state.diverged_at) >= 0:
            break
    return state._replace(buffers=oracle.buffers()), jax.tree.map(lambda *rows: np.stack(rows), *records)


def apart(state: round.State) -> round.State:
    """The state itself: here nothing is overwritten."""
    return jax.tree.map(jnp.asarray, state)


def _play(
    oracle: HostOracle, parts: Pieces, program: Program, span: Span, key: Array, state: round.State, k: int
) -> tuple[round.State, Record]:
    """One round: report, decide, update, apply."""
    method, number, key_of_round = parts.method, jnp.int32(k), _key_of_round(key, k)
    if program.places is None:
        draws = oracle.draw(key_of_round)
    else:
        assert parts.memory is not None
        state, clients = _asked(state, key, number, program.places, parts.memory.rest_for(method))
        draws = oracle.draw_for(clients, oracle.draw_randomness(key_of_round))
    reports, kept = oracle.report(state.params, draws)
    who: Any = draws.clients
    reports = informed(method, state, key, number, who, reports, lambda there: oracle.report(there, draws)[0])
    if (
        parts.memory is not None and oracle.has_pooled_constraint
    ):  # what is pooled is the client's own function: nothing to compile
        clients, told = _arrays((draws.clients, reports))
        by = decided(method, parts.memory, program.places, state, number, clients, told, oracle.pool)
    else:
        by = _decided(method, parts.memory, program.places, state, number, draws.clients, reports)
    step_size = float(method.local_step_size_at(number, oracle.local_steps))
    update = (state.params, draws, kept, _numbers(by.decision), method.switches, step_size)
    if method.robust is None:
        pointed = Pointed(oracle.direction(*update))
    else:
        directions = oracle.directions(*update)
        pointed = Pointed(_combined(directions, by.decision.weights), directions)
    full, held_out = ClientSummary.missing(), None
    if program.looks:
        full, held_out = _look_at_all(oracle, method, state.params, reports, looks=k % int(span.eval_every) == 0)
    rows = oracle.count_rows(draws)
    twice = None if reports.earlier is None else np.int32(2 * oracle.cost(rows)[0])
    seen = RoundView(full, held_out, rows, twice)
    return _applied(method, parts.domain, span.averaging_from, state, number, by, pointed, seen, program.record_clients)


@partial(jax.jit, static_argnums=2)
def _decided(
    method: Method,
    memory: Memory | None,
    places: Places | None,
    state: round.State,
    k: Array,
    clients: Any,
    reports: Reports,
) -> Decided:
    return decided(method, memory, places, state, k, clients, reports, _nothing_to_pool)


_applied = partial(jax.jit, static_argnums=8)(applied)
_combined = jax.jit(robust.combined)
_asked = partial(jax.jit, static_argnums=3)(asked)
_key_of_round = jax.jit(jax.random.fold_in)


def _nothing_to_pool(sums: Array) -> Array:
    raise AssertionError("only a pooled constraint has statistics")


def _numbers(decision: Decision) -> Decision:
    """A decision as NumPy's numbers."""
    told: Decision = jax.tree.map(np.asarray, decision)
    return told


def _arrays(numbers: Any) -> Any:
    """Numbers as JAX's arrays."""
    return jax.tree.map(jnp.asarray, numbers)


def _look_at_all(
    oracle: HostOracle, method: Method, params: Params, reports: Reports, *, looks: bool
) -> tuple[ClientSummary, ClientSummary | None]:
    """The worst and the mean client on all training and held-out data; NaN in a round that does not look."""
    if not looks:
        nothing = ClientSummary(*[jnp.full((), jnp.nan, reports.objective.dtype)] * len(ClientSummary._fields))
        return nothing, nothing if oracle.has_held_out else None
    of_all = (reports.objective, reports.constraint) if oracle.reports_full_data else oracle.evaluate(params)
    held_out = oracle.evaluate_held_out(params)
    return _overview(method, *of_all), None if held_out is None else _overview(method, *held_out)


_overview = jax.jit(believed_overview)


def chunk_length(oracle: HostOracle) -> int:
    """How many rounds go by from one look at callbacks and checkpoints to the next."""
    return CHUNK_ROUNDS


def start(params: Params, method: Method, oracle: HostOracle, memory: Memory | None) -> round.State:
    """The state before round 0."""
    if memory is None:
        return round.start(params, method, oracle.constraints, clients=oracle.client_count)
    nothing = nothing_remembered(
        oracle.client_count, oracle.constraints, oracle.statistics, float_dtype(params), corrected=memory.corrected
    )
    return round.start(params, method, oracle.constraints, nothing, clients=oracle.client_count)


def report(oracle: HostOracle, params: Params, key: Array, k: Any) -> tuple[np.ndarray, Reports]:
    """The participants of round k and what they report at the given parameters."""
    draws = oracle.draw(_key_of_round(key, k))
    return draws.clients, oracle.report(params, draws)[0]


def direction_size(parts: Pieces, key: Array, k: Any, state: round.State) -> float:
    """The length of round k's direction at a state, were clients to stay where they are."""
    oracle, method = _clients(parts.oracle), parts.method
    oracle.load_buffers(state.params, state.buffers)
    draws = oracle.draw(_key_of_round(key, k))
    reports, kept = oracle.report(state.params, draws)
    decision, _ = robust.decide(method, state.method, _arrays(reports))
    return float(optax.tree.norm(oracle.direction(state.params, draws, kept, _numbers(decision), method.switches, 0.0)))


def scatter(oracle: HostOracle, params: Params, key: Array, first: Any) -> float:
    """How much the sampled G differs between 32 reports at the same parameters: its standard deviation."""
    sampled = np.empty(REPORTS_TO_SCATTER)
    for i in range(REPORTS_TO_SCATTER):
        reports = report(oracle, params, key, int(first) + i)[1]
        sampled[i] = maximum(jnp.asarray(reports.constraint), jnp.asarray(reports.mask)[:, None])
    return float(sampled[~np.isneginf(sampled)].std())


def like_records(parts: Pieces, program: Program, span: Span, key: Array, state: round.State) -> tuple[Any, Any]:
    """A state and a record of the shapes that a run has: those of its first round, which is played for it."""
    return run_chunk(parts, program._replace(length=1), span, key, state)


def depends_on(
    oracle: HostOracle, parts: Pieces, program: Program, span: Span, key: Array, state: round.State
) -> dict[str, str]:
    """What the clients of a run compute and on which data, as text by name."""
    return oracle.digest()


def _clients(oracle: Any) -> HostOracle:
    assert isinstance(oracle, HostOracle)
    return oracle
