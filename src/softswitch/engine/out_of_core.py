"""The out-of-core engine: compiled rounds on rows that are read from disk ahead of them.

The draws of round k depend on the seed and k alone, so the rows of several rounds, a stretch, are read before they run.
A server that selects clients by its memory does not know them in advance: its rows are read round by round.
"""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from softswitch.engine import compiled
from softswitch.engine.compiled import CompiledEngine, Program, Span
from softswitch.engine.server_step import Evaluated, Setup, evaluate_all, select_by_memory
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory, Places
from softswitch.methods.state import State
from softswitch.oracles.evaluation import ClientSummary
from softswitch.oracles.gradient import GradientOracle, RowDraws
from softswitch.oracles.out_of_core import OutOfCoreOracle
from softswitch.problem.parameters import Params
from softswitch.results.history import Record


class OutOfCoreEngine(CompiledEngine):
    """The engine of compiled rounds for an ``OutOfCoreOracle``."""

    def chunk_length(self, oracle: OutOfCoreOracle) -> int:
        """Return the number of rounds of a chunk, a multiple of the length of a stretch."""
        length = compiled.chunk_length(oracle.drawing)
        stretch = min(length, oracle.feed.rounds)
        return length // stretch * stretch

    def start(self, params: Params, method: Method, oracle: OutOfCoreOracle, memory: Memory | None) -> State:
        """Return the state before round 0."""
        return super().start(params, method, oracle.drawing, memory)

    def run_chunk(self, setup: Setup, program: Program, span: Span, key: Array, state: State) -> tuple[State, Record]:
        """Run the rounds of a chunk, stretch by stretch; stop after a stretch that diverged."""
        oracle: Any = setup.oracle
        places = setup.places
        selects = places is not None and places.total < oracle.client_count
        length = 1 if selects else min(oracle.feed.rounds, program.length)
        alone = program._replace(length=length, evaluates=False)
        run = np.asarray(jax.random.key_data(key)).tobytes()
        first, last = int(span.first), int(span.last)
        end, records, k = min(first + program.length, last), [], first

        def draw(first: int) -> RowDraws:
            return _draw(oracle.drawing, key, jnp.int32(first), length, places, state, setup.method.rest)

        while k < end:
            count = _rounds_of_stretch(program, span, length, k, end)
            if not selects:
                oracle.feed.request((run, k, count), draw)
            evaluated = None
            if program.evaluates and k % int(span.eval_every) == 0:
                evaluated = evaluate_all(oracle, setup.method, state.params)
            if selects:
                stretch = oracle.feed.read(draw(k), 1)
            else:
                stretch = oracle.feed.wait((run, k, count))
                after = k + count
                further = end if after < end else min(end + program.length, last)
                if after < further:
                    following = _rounds_of_stretch(program, span, length, after, further)
                    oracle.feed.request((run, after, following), draw)
            with_rows = setup._replace(oracle=oracle.with_rows(stretch))
            stretch_span = span._replace(first=k, last=k + count)
            state, record = super().run_chunk(with_rows, alone, stretch_span, key, state, stretch.draws)
            record = jax.tree.map(lambda rows, count=count: np.asarray(rows)[:count], record)
            records.append(_add_evaluation(record, oracle, program.evaluates, evaluated, count))
            del stretch, with_rows  # their memory is needed for the rows of later rounds
            k += count
            if int(state.diverged_at) >= 0:
                break
        return state, jax.tree.map(lambda *rows: np.concatenate(rows), *records)

    def draw(self, oracle: OutOfCoreOracle, key: Array, k: Any) -> tuple[GradientOracle, RowDraws]:
        """Return clients with the rows of round k in memory, and the draws of the round."""
        return oracle.read_round(
            jax.tree.map(itemgetter(0), _draw(oracle.drawing, key, jnp.int32(k), 1, None, None, 0))
        )

    def shapes(self, setup: Setup, program: Program, span: Span, key: Array, state: State) -> tuple[Any, Any]:
        """Return a state and a record with the shapes of a chunk; nothing is computed."""
        oracle: Any = setup.oracle
        alone, in_memory = program._replace(evaluates=False), setup._replace(oracle=oracle.drawing)
        state, record = super().shapes(in_memory, alone, span, key, state)
        return state, _add_evaluation(record, oracle, program.evaluates, None, program.length)

    def identity(
        self, oracle: OutOfCoreOracle, setup: Setup, program: Program, span: Span, key: Array, state: State
    ) -> dict[str, str]:
        """Return digests of the clients' files ("clients") and of the traced chunk ("program")."""
        in_memory = setup._replace(oracle=oracle.drawing)
        digests = super().identity(oracle.drawing, in_memory, program, span, key, state)
        return digests | {"clients": oracle.fingerprint()}


def _rounds_of_stretch(program: Program, span: Span, length: int, k: int, end: int) -> int:
    """Return the number of rounds of the stretch from round k on: a round with an evaluation begins a stretch."""
    count = min(length, end - k)
    if not program.evaluates:
        return count
    every = int(span.eval_every)
    return min(count, every - k % every)


@partial(jax.jit, static_argnames=("length", "places"))
def _draw(
    oracle: GradientOracle, key: Array, first: Array, length: int, places: Places | None, state: Any, rest: Any
) -> RowDraws:
    """Return the draws of ``length`` rounds from ``first`` on, the same as those of ``run_rounds``.

    If the server selects some of the clients by its memory, which is part of ``state``, there is only one round.
    """

    def one(k: Array) -> RowDraws:
        round_key = jax.random.fold_in(key, k)
        if places is None:
            return oracle.draw(round_key)
        _, clients = select_by_memory(state, key, k, places, rest)
        return oracle.draw_for(clients, oracle.draw_randomness(round_key))

    return jax.vmap(one)(first + jnp.arange(length, dtype=jnp.int32))


def _add_evaluation(
    record: Record, oracle: OutOfCoreOracle, evaluates: bool, evaluated: Evaluated | None, count: int
) -> Record:
    """Return the record of a stretch with the evaluation of its first round, and NaN in its other rounds."""
    if not evaluates:
        return record
    dtype = record.objective.dtype

    def pad(first: ClientSummary | None) -> ClientSummary:
        every = np.full((len(ClientSummary._fields), count), np.nan, dtype)
        if first is not None:
            every[:, 0] = [np.asarray(value) for value in first]
        return ClientSummary(*every)

    full, held_out = (None, None) if evaluated is None else evaluated
    return record._replace(full=pad(full), held_out=pad(held_out) if oracle.has_held_out else None)
