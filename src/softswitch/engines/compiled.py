"""The compiled engine: whole chunks of rounds as one program, with nothing of Python in between."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from softswitch.clients.evaluation import Overview, overview
from softswitch.clients.oracle import Oracle
from softswitch.method import round
from softswitch.method.rules import Rule
from softswitch.method.weighting import maximum
from softswitch.problem.domains import Domain
from softswitch.results.record import Record, RecordedClients

CHUNK_ROUNDS = 250
"""A chunk is at most so many rounds,"""
CHUNK_WORDS = 2**22
"""and draws at most so many random numbers at once."""


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


def play(
    oracle: Oracle,
    rule: Rule,
    domain: Domain | None,
    span: Span,
    record_clients: bool,
    looks: bool,
    state: round.State,
    k: Array,
    draws: Any,
) -> tuple[round.State, Record]:
    """One round: report, decide, update, apply."""
    reports, kept = oracle.report(state.params, draws)
    decision, rule_state = rule.decide(state.rule, reports)
    step_size = rule.local_step_size_at(k)
    direction = oracle.direction(state.params, draws, kept, decision, rule.switches, step_size)
    after = round.advance(state, rule, domain, k, span.averaging_from, reports, decision, rule_state, direction)
    full, held_out = _look_at_all(oracle, span, state.params, k) if looks else (Overview.nothing(), None)
    told = RecordedClients(draws.clients, reports.objective, reports.constraint, reports.metrics)
    record = Record(
        maximum(reports.objective, reports.mask),
        maximum(reports.constraint, reports.mask[:, None]),
        decision.criterion,
        decision.feasible & round.sound(reports, decision),
        draws.clients[jnp.argmax(jnp.where(reports.mask, reports.objective, -jnp.inf))],
        full,
        held_out,
        (reports.mask & ~(reports.has_objective & reports.has_constraint.all(axis=1))).sum(),
        oracle.rows_held(draws),
        told if record_clients else None,
    )
    return after, record


def _look_at_all(oracle: Oracle, span: Span, params: Any, k: Array) -> tuple[Overview, Overview | None]:
    """The worst and the mean client on all training and held-out data, in the rounds that look; NaN in the others."""

    def look() -> tuple[Overview, Overview | None]:
        held_out = oracle.evaluate_held_out(params)
        return overview(*oracle.evaluate(params)), None if held_out is None else overview(*held_out)

    return lax.cond(
        k % span.eval_every == 0,
        look,
        lambda: jax.tree.map(lambda leaf: jnp.full((), jnp.nan, leaf.dtype), jax.eval_shape(look)),
    )


def chunk(
    oracle: Oracle,
    rule: Rule,
    domain: Domain | None,
    span: Span,
    key: Array,
    state: round.State,
    *,
    length: int,
    record_clients: bool,
    looks: bool,
) -> tuple[round.State, Record]:
    """Up to ``length`` rounds from ``span.first`` on, but none from ``span.last`` on; their records are zeros.

    Round k's random choices come from the run's key and k, all rounds' at once: that is far cheaper than one by one.
    """
    rounds = span.first + jnp.arange(length, dtype=jnp.int32)
    draws = jax.vmap(lambda k: oracle.draw(jax.random.fold_in(key, k)))(rounds)

    def one(state: round.State, i: Any) -> tuple[round.State, Record]:
        k, drawn = jax.tree.map(lambda all_rounds: all_rounds[i], (rounds, draws))
        return play(oracle, rule, domain, span, record_clients, looks, state, k, drawn)

    def step(i: Any, so_far: tuple[round.State, Record]) -> tuple[round.State, Record]:
        state, records = so_far
        state, record = one(state, i)
        return state, jax.tree.map(lambda all_rounds, this: all_rounds.at[i].set(this), records, record)

    shapes = jax.eval_shape(one, state, 0)[1]
    records = jax.tree.map(lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), shapes)
    # The number of rounds is traced: rounds beyond the last are not computed, and another number compiles nothing.
    to_play = jnp.minimum(length, span.last - span.first)
    played: tuple[round.State, Record] = lax.fori_loop(0, to_play, step, (state, records))
    return played


@partial(jax.jit, static_argnames=("length", "record_clients", "looks"))
def run_chunk(
    oracle: Oracle,
    rule: Rule,
    domain: Domain | None,
    span: Span,
    key: Array,
    state: round.State,
    *,
    length: int,
    record_clients: bool,
    looks: bool,
) -> tuple[round.State, Record]:
    """A chunk of one run, compiled."""
    static = {"length": length, "record_clients": record_clients, "looks": looks}
    return chunk(oracle, rule, domain, span, key, state, **static)  # type: ignore[arg-type]


@partial(jax.jit, static_argnames=("length", "record_clients", "looks"))
def run_chunk_of_many(
    oracle: Oracle,
    rules: Rule,
    domain: Domain | None,
    span: Span,
    keys: Array,
    states: round.State,
    *,
    length: int,
    record_clients: bool,
    looks: bool,
) -> tuple[round.State, Record]:
    """A chunk of many runs at once, compiled: seeds × rules.

    Rules are the inner axis, so that all rules share a seed's draws.
    """
    static = {"length": length, "record_clients": record_clients, "looks": looks}

    def one(rule: Rule, key: Array, state: round.State) -> tuple[round.State, Record]:
        return chunk(oracle, rule, domain, span, key, state, **static)  # type: ignore[arg-type]

    over_rules = jax.vmap(one, in_axes=(0, None, 0))
    return jax.vmap(over_rules, in_axes=(None, 0, 0))(rules, keys, states)


@jax.jit
def _draw(oracle: Oracle, key: Array) -> Any:
    return oracle.draw(key)


def chunk_length(oracle: Oracle, seeds: int = 1) -> int:
    """How many rounds to compile into one program: as many as may draw their random numbers together."""
    draws = _draw.eval_shape(oracle, jax.random.key(0))
    words = seeds * sum(leaf.size for leaf in jax.tree.leaves(draws))
    return max(1, min(CHUNK_ROUNDS, CHUNK_WORDS // max(1, words)))


@partial(jax.jit, static_argnames="constraints")
def start(params: Any, rule: Rule, constraints: int) -> round.State:
    """The state before round 0, compiled."""
    return round.start(params, rule, constraints)


@jax.jit
def report(oracle: Oracle, params: Any, key: Array, k: Array) -> tuple[Array, Any]:
    """The participants of round k and what they report at the given parameters, compiled."""
    draws = oracle.draw(jax.random.fold_in(key, k))
    return draws.clients, oracle.report(params, draws)[0]


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
