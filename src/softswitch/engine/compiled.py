"""The compiled engine: whole chunks of rounds as one program, with nothing of Python in between."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int

from softswitch.engine.client_updates import pointing
from softswitch.engine.server_round import RoundView, applied, asked, believed_overview, decided, informed
from softswitch.methods import robust, round
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory, Places, Remembered, nothing_remembered
from softswitch.methods.messages import Reports
from softswitch.methods.weighting import maximum
from softswitch.oracles.base import Oracle
from softswitch.oracles.evaluation import ClientSummary
from softswitch.problem.domains import Domain
from softswitch.problem.parameters import float_dtype
from softswitch.results.history import Record
from softswitch.support.arrays import delay_until, fingerprint
from softswitch.support.tracing import program_digest, trace_once

CHUNK_ROUNDS = 250
"""A chunk is at most so many rounds,"""
CHUNK_WORDS = 2**21
"""and draws at most so many random numbers at once: with more than a cache holds each costs three times as much;"""
FAST_CHUNK_WORDS = 2**28
"""on an accelerator so many, too many at once: there each round of a chunk that large draws its own."""

OVERWRITES = True
"""Whether ``run_chunk`` overwrites the state that it is given."""


class Span(NamedTuple):
    """The numbers of a run beside the rule's. All are traced: another value compiles nothing.

    Attributes:
        first: the chunk's first round.
        last: the round after the run's last.
        averaging_from: the first round that may join the average.
        eval_every: how many rounds from one evaluation on all data to the next, where rounds look at all.
    """

    first: Int[Array, ""] | int
    last: Int[Array, ""] | int
    averaging_from: Int[Array, ""] | int
    eval_every: Int[Array, ""] | int


class Program(NamedTuple):
    """What is compiled into a chunk beside the clients, the rule and the domain.

    Attributes:
        length: how many rounds it is at most.
        record_clients: whether what every participant reported is kept.
        looks: whether some rounds look at all data.
        places: who gets the places of a round, where the server remembers its clients; else None.
    """

    length: int
    record_clients: bool
    looks: bool
    places: Places | None = None


class Pieces(NamedTuple):
    """All that a run asks for, as a compiled program takes it: its arrays are traced.

    Attributes:
        oracle: the clients.
        method: the method.
        domain: Θ, or None.
        memory: how the server remembers; None: not at all.
    """

    oracle: Oracle
    method: Method
    domain: Domain | None
    memory: Memory | None = None


def play(
    parts: Pieces, program: Program, span: Span, key: Array, state: round.State, k: Array, draws: Any
) -> tuple[round.State, Record]:
    """One round: report, decide, update, apply."""
    oracle, method = parts.oracle, parts.method
    reports, kept = oracle.report(state.params, draws)
    told = informed(method, state, key, k, draws.clients, reports, lambda params: oracle.report(params, draws)[0])
    by = decided(method, parts.memory, program.places, state, k, draws.clients, told, oracle.pool)
    pointed = pointing(oracle, method, state, key, k, draws, kept, by)
    full, held_out = ClientSummary.missing(), None
    if program.looks:
        full, held_out = _look_at_all(oracle, method, span, state.params, k, reports)
        state = state._replace(diverged_at=delay_until(state.diverged_at, (full, held_out), state.params))
    rows = oracle.count_rows(draws)
    twice = 2 * jnp.asarray(oracle.cost(rows)[0], jnp.int32) if told.earlier is not None else None
    seen = RoundView(full, held_out, rows, twice)
    return applied(method, parts.domain, span.averaging_from, state, k, by, pointed, seen, program.record_clients)


def _look_at_all(
    oracle: Oracle, method: Method, span: Span, params: Any, k: Array, reports: Reports
) -> tuple[ClientSummary, ClientSummary | None]:
    """The worst and the mean client on all training and held-out data, in the rounds that look; NaN in the others."""

    def look() -> tuple[ClientSummary, ClientSummary | None]:
        held_out = oracle.evaluate_held_out(params)
        of_all = (reports.objective, reports.constraint) if oracle.reports_full_data else oracle.evaluate(params)
        return believed_overview(method, *of_all), None if held_out is None else believed_overview(method, *held_out)

    seen, shapes = trace_once(look)
    return lax.cond(
        k % span.eval_every == 0,
        seen,
        lambda: jax.tree.map(lambda leaf: jnp.full((), jnp.nan, leaf.dtype), shapes),
    )


def chunk(
    parts: Pieces, program: Program, span: Span, key: Array, state: round.State, drawn: Any = None
) -> tuple[round.State, Record]:
    """Up to so many rounds from ``span.first`` on, but none from ``span.last`` on; their records are zeros.

    Round k's random numbers come from the run's key and k, all rounds' at once where they are few: that is far cheaper
    than one by one. Where all rounds were ``drawn`` already, since their rows had to be read first, nothing is drawn.
    """
    oracle, places = parts.oracle, program.places
    rounds = span.first + jnp.arange(program.length, dtype=jnp.int32)
    draw = oracle.draw if places is None else oracle.draw_randomness
    together = drawn is not None or program.length * _words(oracle) <= CHUNK_WORDS
    chances: Any = drawn
    if drawn is None and together:
        keys = jax.vmap(lambda k: jax.random.fold_in(key, k))(rounds)
        chances = oracle.draw_rounds(keys) if places is None else jax.vmap(oracle.draw_randomness)(keys)

    def one(state: round.State, i: Any) -> tuple[round.State, Record]:
        k, chance = jax.tree.map(lambda all_rounds: all_rounds[i], (rounds, chances))
        draws = chance = chance if together else draw(jax.random.fold_in(key, k))
        if places is not None:
            assert parts.memory is not None
            state, clients = asked(state, key, k, places, parts.memory.rest_for(parts.method))
            draws = oracle.draw_for(clients, chance) if drawn is None else chance
        return play(parts, program, span, key, state, k, draws)

    def step(i: Any, so_far: tuple[round.State, Record]) -> tuple[round.State, Record]:
        state, records = so_far
        state, record = play_one(state, i)
        return state, jax.tree.map(lambda all_rounds, this: all_rounds.at[i].set(this), records, record)

    play_one, (_, shapes) = trace_once(one, state, jnp.int32(0))
    records = jax.tree.map(lambda leaf: jnp.zeros((program.length, *leaf.shape), leaf.dtype), shapes)
    # The number of rounds is traced: rounds beyond the last are not computed, and another number compiles nothing.
    to_play = jnp.minimum(program.length, span.last - span.first).astype(jnp.int32)
    played: tuple[round.State, Record] = lax.fori_loop(jnp.int32(0), to_play, step, (state, records))
    return played


run_chunk = partial(jax.jit, static_argnames="program", donate_argnames="state")(chunk)
"""A chunk of one run, compiled. The state is overwritten: whoever wants to keep it gives a copy (``apart``)."""


@jax.jit
def apart(state: round.State) -> round.State:
    """A copy of the state in which no two arrays are the same, compiled."""
    return jax.tree.map(jnp.copy, state)


@partial(jax.jit, static_argnames="program")
def run_chunk_of_many(
    parts: Pieces, program: Program, span: Span, keys: Array, states: round.State
) -> tuple[round.State, Record]:
    """A chunk of many runs at once, compiled: seeds × rules. ``parts.rule`` holds all rules' numbers.

    Rules are the inner axis, so that all rules share a seed's draws.
    """

    def one(method: Method, key: Array, state: round.State) -> tuple[round.State, Record]:
        return chunk(parts._replace(method=method), program, span, key, state)

    over_rules = jax.vmap(one, in_axes=(0, None, 0))
    return jax.vmap(over_rules, in_axes=(None, 0, 0))(parts.method, keys, states)


@jax.jit
def _draw(oracle: Oracle, key: Array) -> Any:
    return oracle.draw(key)


def chunk_length(oracle: Oracle, seeds: int = 1) -> int:
    """How many rounds to compile into one program: fewer where a round is large, so that no chunk takes long."""
    at_most = CHUNK_WORDS if jax.default_backend() == "cpu" else FAST_CHUNK_WORDS
    return max(1, min(CHUNK_ROUNDS, at_most // max(1, seeds * _words(oracle))))


def _words(oracle: Oracle) -> int:
    """How many random numbers a round draws."""
    return sum(leaf.size for leaf in jax.tree.leaves(_draw.eval_shape(oracle, jax.random.key(0))))


@jax.jit
def start(params: Any, method: Method, oracle: Oracle, memory: Memory | None) -> round.State:
    """The state before round 0, compiled; no two of its arrays are the same, nor one of ``params``."""
    nothing = None if memory is None else _nothing_remembered(params, oracle, memory)
    fresh = round.start(params, method, oracle.constraints, nothing, clients=oracle.client_count)
    return jax.tree.map(jnp.copy, fresh)


def _nothing_remembered(params: Any, oracle: Oracle, memory: Memory) -> Remembered:
    sums = jax.eval_shape(lambda: oracle.report(params, oracle.draw(jax.random.key(0)))[0]).sums
    statistics = None if sums is None else sums.shape[1]
    return nothing_remembered(
        oracle.client_count, oracle.constraints, statistics, float_dtype(params), corrected=memory.corrected
    )


@jax.jit
def report(oracle: Oracle, params: Any, key: Array, k: Array) -> tuple[Array, Any]:
    """The participants of round k and what they report at the given parameters, compiled."""
    draws = oracle.draw(jax.random.fold_in(key, k))
    return draws.clients, oracle.report(params, draws)[0]


@jax.jit
def direction_size(parts: Pieces, key: Array, k: Array, state: round.State) -> Float[Array, ""]:
    """The length of round k's direction at a state, were clients to stay where they are, compiled."""
    return direction_size_of(parts, state, parts.oracle.draw(jax.random.fold_in(key, k)))


def direction_size_of(parts: Pieces, state: round.State, draws: Any) -> Float[Array, ""]:
    """The same for a round that was drawn already."""
    oracle, method = parts.oracle, parts.method
    reports, kept = oracle.report(state.params, draws)
    decision, _ = robust.decide(method, state.method, reports)
    return optax.tree.norm(oracle.direction(state.params, draws, kept, decision, method.switches, 0.0))


@jax.jit
def scatter(oracle: Oracle, params: Any, key: Array, first: Array) -> Float[Array, ""]:
    """How much the sampled G differs between 32 reports at the same parameters: its standard deviation, compiled.

    Reports in which nobody has a constraint are left out.
    """

    def once(k: Array) -> Array:
        reports, _ = oracle.report(params, oracle.draw(jax.random.fold_in(key, k)))
        return maximum(reports.constraint, reports.mask[:, None])

    sampled = lax.map(once, first + jnp.arange(32, dtype=jnp.int32))
    return sampled.std(where=~jnp.isneginf(sampled))


def like_records(parts: Pieces, program: Program, span: Span, key: Array, state: round.State) -> tuple[Any, Any]:
    """A state and a record of the shapes that a run has; nothing is computed."""
    return state, jax.eval_shape(lambda: chunk(parts, program, span, key, state))[1]


def depends_on(
    oracle: Oracle, parts: Pieces, program: Program, span: Span, key: Array, state: round.State
) -> dict[str, str]:
    """What the clients of a run compute and on which data, as text by name: digests of data and of one round."""

    def one_round(*arguments: Any) -> Any:
        return chunk(arguments[0], program, *arguments[1:])

    clients: Any = parts.oracle
    if hasattr(clients, "slice_size"):  # depends on the device's memory; a checkpoint may move to another device
        parts = parts._replace(oracle=replace(clients, slice_size=clients.participants))
    return {
        "clients": fingerprint(oracle),
        "program": program_digest(one_round, parts, span, key, state),
    }
