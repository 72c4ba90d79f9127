"""The stepwise engine, for clients that do not compute with JAX. Only the server's part of a round is compiled."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from softswitch.engine.compiled import CompiledEngine, Program, Span
from softswitch.engine.server_step import (
    Evaluated,
    Setup,
    apply,
    collect_updates,
    complete_reports,
    count_rows,
    decide,
    evaluate_all,
    select_by_memory,
)
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory
from softswitch.methods.messages import Reports
from softswitch.methods.state import State, active_parts, first_state
from softswitch.oracles.evaluation import ClientSummary
from softswitch.problem.parameters import Params
from softswitch.results.history import Record

CHUNK_ROUNDS = 10  # number of rounds of a chunk, after which callbacks are called

_decide = jax.jit(decide)
_apply = partial(jax.jit, static_argnames="record_clients")(apply)
_select_by_memory = partial(jax.jit, static_argnames="places")(select_by_memory)
_round_key = jax.jit(jax.random.fold_in)


class StepwiseEngine(CompiledEngine):
    """The engine of rounds that run one by one from Python, for a ``HostOracle``."""

    completes_chunks = False

    def chunk_length(self, oracle: Any) -> int:
        """Return the number of rounds of a chunk."""
        return CHUNK_ROUNDS

    def start(self, params: Params, method: Method, oracle: Any, memory: Memory | None) -> State:
        """Return the state before round 0."""
        parts = active_parts(method, memory)
        return first_state(params, method, parts, oracle.client_count, oracle.constraints, oracle.statistics)

    def copy_state(self, state: State) -> State:
        """Return the state as JAX arrays, without a copy: nothing is overwritten."""
        return jax.tree.map(jnp.asarray, state)

    def run_chunk(self, setup: Setup, program: Program, span: Span, key: Array, state: State) -> tuple[State, Record]:
        """Run the rounds of a chunk; stop after a round that diverged."""
        oracle: Any = setup.oracle
        oracle.load_buffers(state.params, state.parts.get("buffers"))
        state = state._replace(parts={name: part for name, part in state.parts.items() if name != "buffers"})
        records = []
        for k in range(int(span.first), min(int(span.first) + program.length, int(span.last))):
            state, record = self._run_round(setup, program, span, key, state, k)
            records.append(jax.tree.map(np.asarray, record))
            if int(state.diverged_at) >= 0:
                break
        buffers = oracle.buffers()
        state = state if buffers is None else state.with_part("buffers", buffers)
        return state, jax.tree.map(lambda *rows: np.stack(rows), *records)

    def _run_round(
        self, setup: Setup, program: Program, span: Span, key: Array, state: State, k: int
    ) -> tuple[State, Record]:
        """Run round k: report, decide, update, apply. Return the next state and the round's record."""
        oracle: Any = setup.oracle
        method, number, round_key = setup.method, jnp.int32(k), _round_key(key, k)
        server = setup._replace(oracle=None)
        if setup.places is None:
            draws = oracle.draw(round_key)
        else:
            state, clients = _select_by_memory(state, key, number, places=setup.places, rest=method.rest)
            draws = oracle.draw_for(clients, oracle.draw_randomness(round_key))
        reports, kept = oracle.report(state.params, draws)
        reports = complete_reports(setup, key, state, number, draws, reports)
        if setup.memory is not None and oracle.has_pooled_constraint:  # a function of the client, not compiled
            arrays = jax.tree.map(jnp.asarray, (draws.clients, reports))
            played = decide(setup, state, number, *arrays)
        else:
            played = _decide(server, state, number, draws.clients, reports)
        played = played._replace(decision=jax.tree.map(np.asarray, played.decision))
        update = collect_updates(oracle, method, state, key, draws, kept, played)
        missing = ClientSummary.missing(reports.objective.dtype)
        evaluated = Evaluated(missing, missing if program.evaluates and oracle.has_held_out else None)
        if program.evaluates and k % int(span.eval_every) == 0:
            evaluated = evaluate_all(oracle, method, state.params, reports)
        record = (played, update, evaluated, count_rows(oracle, draws, reports))
        return _apply(server, span.averaging_from, state, *record, record_clients=program.record_clients)

    def report(self, oracle: Any, params: Params, key: Array, k: Any) -> tuple[np.ndarray, Reports]:
        """Return the indices of the participants of round k, and their reports at ``params``."""
        draws = oracle.draw(_round_key(key, k))
        return draws.clients, oracle.report(params, draws)[0]

    def direction_norm(self, setup: Setup, key: Array, k: Any, state: State) -> float:
        """Return the Euclidean norm of round k's weighted direction, with local steps of size 0."""
        oracle: Any = setup.oracle
        method = setup.method
        oracle.load_buffers(state.params, state.parts.get("buffers"))
        draws = oracle.draw(_round_key(key, k))
        reports, kept = oracle.report(state.params, draws)
        server = setup._replace(oracle=None, memory=None)
        decision = jax.tree.map(np.asarray, _decide(server, state, jnp.int32(k), draws.clients, reports).decision)
        return float(optax.tree.norm(oracle.direction(state.params, draws, kept, decision, method.switches, 0.0)))

    def shapes(self, setup: Setup, program: Program, span: Span, key: Array, state: State) -> tuple[Any, Any]:
        """Return a state and a record with the shapes of a chunk, by running one round."""
        return self.run_chunk(setup, program._replace(length=1), span, key, state)

    def identity(
        self, oracle: Any, setup: Setup, program: Program, span: Span, key: Array, state: State
    ) -> dict[str, str]:
        """Return ``oracle.digest()``, which identifies the clients' data and computations."""
        return oracle.digest()


class PrivateEngine(StepwiseEngine):
    """The engine of rounds of a ``PrivateOracle``, which counts the rounds of a chunk before it plays them."""

    completes_chunks = True

    def run_chunk(self, setup: Setup, program: Program, span: Span, key: Array, state: State) -> tuple[State, Record]:
        """Count the rounds of a chunk, then run them."""
        oracle: Any = setup.oracle
        oracle.ledger.begin_rounds(min(program.length, int(span.last) - int(span.first)))
        return super().run_chunk(setup, program, span, key, state)

    def shapes(self, setup: Setup, program: Program, span: Span, key: Array, state: State) -> tuple[Any, Any]:
        """Return a state and a record with the shapes of a chunk. Its round is not released, and not counted."""
        return super().run_chunk(setup, program._replace(length=1), span, key, state)
