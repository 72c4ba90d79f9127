"""Stretches of rounds as one program each, on the rows that they draw; the next stretch's are read meanwhile.

It has the functions of ``compiled.py`` that a run calls, for a ``OutOfCoreOracle``. Round k's draws depend on the seed
and k alone, so they are known before the round is. Only a server that asks clients by what it remembers of them cannot
be foreseen: its rows are read round by round.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from softswitch.engine import compiled
from softswitch.engine.compiled import Pieces, Program, Span, apart
from softswitch.engine.server_round import asked, believed_overview
from softswitch.methods import round
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory, Places
from softswitch.methods.weighting import maximum
from softswitch.oracles.base import Oracle
from softswitch.oracles.evaluation import ClientSummary
from softswitch.oracles.gradient import GradientOracle, RowDraws
from softswitch.oracles.out_of_core import OutOfCoreOracle
from softswitch.oracles.row_feed import PendingRows, RoundRows
from softswitch.problem.parameters import Params
from softswitch.results.history import Record

__all__ = [
    "apart",
    "chunk_length",
    "depends_on",
    "direction_size",
    "like_records",
    "report",
    "run_chunk",
    "scatter",
    "start",
]
REPORTS_TO_SCATTER = 32
OVERWRITES = True
"""Whether ``run_chunk`` overwrites the state that it is given."""


class _Reader:
    """Asks for rows ahead: those of one stretch are on their way at a time."""

    def __init__(self, oracle: OutOfCoreOracle, program: Program, length: int, key: Array) -> None:
        self._oracle, self._key, self._length = oracle, key, length
        self._name = np.asarray(jax.random.key_data(key)).tobytes()
        self._remembers = program.places is not None

    def ask(self, first: int, count: int) -> None:
        """Ask for the rows of these rounds, unless they are on their way.

        The draws are handed to the device from this thread, before the rounds that come before them: so they do not
        wait for those.
        """
        coming = self._oracle.feed.pending
        if coming is None or coming[:3] != (self._name, first, count):
            draws = _draws(self._oracle.drawing, self._key, jnp.int32(first), self._length, self._remembers)
            self._oracle.feed.pending = PendingRows(self._name, first, count, self._oracle.feed.submit(draws, count))

    def wait(self) -> RoundRows:
        """The rows that were asked for last."""
        coming = self._oracle.feed.pending
        assert coming is not None
        self._oracle.feed.pending = None
        return coming.rows.result()


def run_chunk(
    parts: Pieces, program: Program, span: Span, key: Array, state: round.State
) -> tuple[round.State, Record]:
    """Up to so many rounds from ``span.first`` on, but none from ``span.last`` on, nor after one that diverged."""
    oracle = _clients(parts.oracle)
    by_need = program.places is not None and program.places.all < oracle.client_count
    length = 1 if by_need else min(oracle.feed.rounds, program.length)
    alone = program._replace(length=length, looks=False)
    reader = _Reader(oracle, program, length, key)
    first, last = int(span.first), int(span.last)
    end, records, k = min(first + program.length, last), [], first
    while k < end:
        count = _rounds_together(program, span, length, k, end)
        if not by_need:
            reader.ask(k, count)
        seen = _look_at_all(oracle, parts.method, program, span, state.params, k)
        if by_need:
            assert program.places is not None
            stretch = _read_by_need(parts, program.places, key, state, k)
        else:
            stretch = reader.wait()
            after = k + count
            further = end if after < end else min(end + program.length, last)
            if after < further:
                reader.ask(after, _rounds_together(program, span, length, after, further))
        of_stretch = span._replace(first=k, last=k + count)
        with_rows = parts._replace(oracle=oracle.with_rows(stretch))
        state, record = _play(with_rows, alone, of_stretch, key, state, stretch.draws)
        records.append(_with_views(_waited(record, count), oracle, program.looks, seen, count))
        del stretch, with_rows  # their memory is needed for the rows of later rounds
        k += count
        if int(state.diverged_at) >= 0:
            break
    return state, jax.tree.map(lambda *rows: np.concatenate(rows), *records)


_play = partial(jax.jit, static_argnames="program", donate_argnames="state")(compiled.chunk)


def _rounds_together(program: Program, span: Span, length: int, k: int, end: int) -> int:
    """How many rounds from round k on go together: a round that looks at all data begins a stretch."""
    count = min(length, end - k)
    if not program.looks:
        return count
    every = int(span.eval_every)
    return min(count, every - k % every)


def _waited(record: Record, count: int) -> Record:
    """A stretch's records, once they are there: of the rounds that were played."""
    found: Record = jax.tree.map(lambda rows: np.asarray(rows)[:count], record)
    return found


@partial(jax.jit, static_argnames=("length", "remembers"))
def _draws(oracle: GradientOracle, key: Array, first: Array, length: int, remembers: bool) -> RowDraws:
    """The draws of so many rounds, as ``compiled.chunk`` makes them."""

    def one(k: Array) -> RowDraws:
        own = jax.random.fold_in(key, k)
        if not remembers:
            return oracle.draw(own)
        return oracle.draw_for(jnp.arange(oracle.client_count, dtype=jnp.int32), oracle.draw_randomness(own))

    return jax.vmap(one)(first + jnp.arange(length, dtype=jnp.int32))


def _read_by_need(parts: Pieces, places: Places, key: Array, state: round.State, k: int) -> RoundRows:
    """The rows of one round whose clients the server chooses by what it remembers."""
    oracle = _clients(parts.oracle)
    assert parts.memory is not None
    draws = _draws_for_asked(oracle.drawing, places, key, jnp.int32(k), state, parts.memory.rest_for(parts.method))
    return oracle.feed.read(draws, 1)


@partial(jax.jit, static_argnames="places")
def _draws_for_asked(
    oracle: GradientOracle, places: Places, key: Array, k: Array, state: round.State, rest: Any
) -> RowDraws:
    _, clients = asked(state, key, k, places, rest)
    draws = oracle.draw_for(clients, oracle.draw_randomness(jax.random.fold_in(key, k)))
    return jax.tree.map(lambda part: part[None], draws)


def _look_at_all(
    oracle: OutOfCoreOracle, method: Method, program: Program, span: Span, params: Params, k: int
) -> tuple[ClientSummary | None, ClientSummary | None] | None:
    """The worst and the mean client on all training and held-out data before round k; None where it does not look."""
    if not program.looks or k % int(span.eval_every):
        return None
    held_out = oracle.evaluate_held_out(params)
    return (
        _overview(method, *oracle.evaluate(params)),
        None if held_out is None else _overview(method, *held_out),
    )


_overview = jax.jit(believed_overview)


def _with_views(record: Record, oracle: OutOfCoreOracle, looks: bool, seen: Any, count: int) -> Record:
    """A stretch's records with what its first round saw of all data; NaN in the others."""
    if not looks:
        return record
    dtype = record.objective.dtype

    def view(first: ClientSummary | None) -> ClientSummary:
        every = np.full((len(ClientSummary._fields), count), np.nan, dtype)
        if first is not None:
            every[:, 0] = [np.asarray(one) for one in first]
        return ClientSummary(*every)

    full, held_out = (None, None) if seen is None else seen
    return record._replace(full=view(full), held_out=view(held_out) if oracle.has_held_out else None)


def chunk_length(oracle: OutOfCoreOracle) -> int:
    """How many rounds go by from one look at callbacks and checkpoints to the next: whole stretches."""
    length = compiled.chunk_length(oracle.drawing)
    return length // min(length, oracle.feed.rounds) * min(length, oracle.feed.rounds)


def start(params: Params, method: Method, oracle: OutOfCoreOracle, memory: Memory | None) -> round.State:
    """The state before round 0."""
    fresh: round.State = compiled.start(params, method, oracle.drawing, memory)
    return fresh


def report(oracle: OutOfCoreOracle, params: Params, key: Array, k: Any) -> tuple[Array, Any]:
    """The participants of round k and what they report at the given parameters."""
    stretch = oracle.feed.read(_draws(oracle.drawing, key, jnp.int32(k), 1, False), 1)
    return stretch.draws.clients[0], _report(oracle.with_rows(stretch), params, _of_first_round(stretch.draws))


@jax.jit
def _report(oracle: GradientOracle, params: Params, draws: RowDraws) -> Any:
    return oracle.report(params, draws)[0]


def direction_size(parts: Pieces, key: Array, k: Any, state: round.State) -> Any:
    """The length of round k's direction at a state, were clients to stay where they are."""
    oracle = _clients(parts.oracle)
    stretch = oracle.feed.read(_draws(oracle.drawing, key, jnp.int32(k), 1, False), 1)
    return _direction_size(parts._replace(oracle=oracle.with_rows(stretch)), state, _of_first_round(stretch.draws))


_direction_size = jax.jit(compiled.direction_size_of)


def scatter(oracle: OutOfCoreOracle, params: Params, key: Array, first: Any) -> float:
    """How much the sampled G differs between 32 reports at the same parameters: its standard deviation."""
    sampled = np.empty(REPORTS_TO_SCATTER)
    for i in range(REPORTS_TO_SCATTER):
        reports = report(oracle, params, key, int(first) + i)[1]
        sampled[i] = maximum(reports.constraint, reports.mask[:, None])
    return float(sampled[~np.isneginf(sampled)].std())


def like_records(parts: Pieces, program: Program, span: Span, key: Array, state: round.State) -> tuple[Any, Any]:
    """A state and a record of the shapes that a run has; nothing is computed."""
    oracle = _clients(parts.oracle)
    alone = program._replace(looks=False)
    state, record = compiled.like_records(parts._replace(oracle=oracle.drawing), alone, span, key, state)
    return state, _with_views(record, oracle, program.looks, None, program.length)


def depends_on(
    oracle: Oracle, parts: Pieces, program: Program, span: Span, key: Array, state: round.State
) -> dict[str, str]:
    """What the clients of a run compute and on which data, as text by name: digests of data and of one round."""
    streamed = _clients(oracle)
    drawing = streamed.drawing
    known = compiled.depends_on(drawing, parts._replace(oracle=drawing), program, span, key, state)
    return known | {"clients": streamed.fingerprint()}


def _of_first_round(draws: RowDraws) -> RowDraws:
    found: RowDraws = jax.tree.map(lambda part: part[0], draws)
    return found


def _clients(oracle: Any) -> OutOfCoreOracle:
    assert isinstance(oracle, OutOfCoreOracle)
    return oracle
