"""The compiled engine: a chunk of rounds is one JAX program, without Python between rounds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int

from softswitch.engine.server_step import Evaluated, Setup, decide, evaluate_all, run_round, select_by_memory
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory
from softswitch.methods.messages import Reports
from softswitch.methods.state import State, active_parts, first_state
from softswitch.oracles.base import Oracle
from softswitch.oracles.evaluation import ClientSummary
from softswitch.results.history import Record
from softswitch.support.arrays import fingerprint, is_random_key
from softswitch.support.tracing import program_digest

CHUNK_ROUNDS = 250  # maximum number of rounds in a chunk
CHUNK_WORDS = 2**21  # maximum number of 32-bit random words drawn at once on a CPU, which fit into its cache
FAST_CHUNK_WORDS = 2**28  # maximum number of 32-bit random words drawn at once on an accelerator


class Span(NamedTuple):
    """The rounds of a chunk. All numbers are traced, so that another value does not compile another program."""

    first: Int[Array, ""] | int  # index of the chunk's first round
    last: Int[Array, ""] | int  # index after the run's last round
    averaging_from: Int[Array, ""] | int  # index of the first round that may join the average
    eval_every: Int[Array, ""] | int  # number of rounds between evaluations on all data, if ``Program.evaluates``


class Program(NamedTuple):
    """Static settings of a chunk: another value compiles another program."""

    length: int  # maximum number of rounds of the chunk
    record_clients: bool  # whether every participant's report is recorded
    evaluates: bool  # whether w_k is evaluated on all data in some rounds


def run_rounds(
    setup: Setup, program: Program, span: Span, key: Array, state: State, drawn: Any = None
) -> tuple[State, Record]:
    """Run up to ``program.length`` rounds from ``span.first`` to before ``span.last``; return the state and the record.

    The random numbers of round k depend on the run's key and k. Those of all rounds are drawn at once if they are few,
    which is far cheaper. ``drawn`` has the draws of all rounds if they were made before, to read their rows.
    """
    oracle: Any = setup.oracle
    places = setup.places
    rounds = span.first + jnp.arange(program.length, dtype=jnp.int32)
    draw = oracle.draw if places is None else oracle.draw_randomness
    at_once = drawn is not None or program.length * _count_words(oracle) <= CHUNK_WORDS
    randomness: Any = drawn
    if drawn is None and at_once:
        keys = jax.vmap(lambda k: jax.random.fold_in(key, k))(rounds)
        randomness = jax.vmap(draw)(keys)
    some = partial(_evaluate_some, oracle, setup.method, span.eval_every)
    evaluate: Any = some if program.evaluates else lambda *arguments: Evaluated(ClientSummary.missing())
    one_round = jax.jit(
        partial(run_round, setup, span.averaging_from, program.record_clients, evaluate, key), inline=True
    )

    def prepare(state: State, i: Any) -> tuple[State, Array, Any]:
        k, chosen = jax.tree.map(lambda leaf: leaf[i], (rounds, randomness))
        chosen = chosen if at_once else draw(jax.random.fold_in(key, k))
        if places is not None:
            state, clients = select_by_memory(state, key, k, places, setup.method.rest)
            chosen = oracle.draw_for(clients, chosen) if drawn is None else chosen
        return state, k, chosen

    def step(i: Any, carry: tuple[State, Record]) -> tuple[State, Record]:
        state, records = carry
        state, record = one_round(*prepare(state, i))
        return state, jax.tree.map(lambda every, this: every.at[i].set(this), records, record)

    shapes = one_round.eval_shape(*jax.eval_shape(prepare, state, jnp.int32(0)))[1]
    records = jax.tree.map(lambda leaf: jnp.zeros((program.length, *leaf.shape), leaf.dtype), shapes)
    # The number of rounds is traced: rounds beyond the last are not computed, and another number compiles nothing.
    count = jnp.minimum(program.length, span.last - span.first).astype(jnp.int32)
    played: tuple[State, Record] = lax.fori_loop(jnp.int32(0), count, step, (state, records))
    return played


def _evaluate_some(oracle: Any, method: Method, eval_every: Any, params: Any, k: Array, reports: Reports) -> Evaluated:
    """Summarise the clients on all training and held-out data in every ``eval_every``-th round; NaN in others."""
    evaluate = jax.jit(partial(evaluate_all, oracle, method, params, reports), inline=True)
    shapes = evaluate.eval_shape()
    missing = jax.tree.map(lambda leaf: jnp.full((), jnp.nan, leaf.dtype), shapes)
    evaluated: Evaluated = lax.cond(k % eval_every == 0, evaluate, lambda: missing)
    return evaluated


@partial(jax.jit, static_argnames="program")
def run_many(setup: Setup, program: Program, span: Span, keys: Array, states: State) -> tuple[State, Record]:
    """Run a chunk of several runs, seeds × methods; the numbers of the methods are stacked in ``setup.method``.

    States and records have the axes seeds and methods first. Methods are the inner axis: they share a seed's draws.
    """

    def one(method: Method, key: Array, state: State) -> tuple[State, Record]:
        return run_rounds(setup._replace(method=method), program, span, key, state)

    over_methods = jax.vmap(one, in_axes=(0, None, 0))
    return jax.vmap(over_methods, in_axes=(None, 0, 0))(setup.method, keys, states)


def chunk_length(oracle: Oracle, seeds: int = 1) -> int:
    """Return the number of rounds of a chunk: at most ``CHUNK_ROUNDS``, fewer if a round draws many random words."""
    limit = CHUNK_WORDS if jax.default_backend() == "cpu" else FAST_CHUNK_WORDS
    return max(1, min(CHUNK_ROUNDS, limit // max(1, seeds * _count_words(oracle))))


def _count_words(oracle: Oracle) -> int:
    """Return the number of 32-bit random words that a round draws."""
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(oracle.draw, jax.random.key(0))))


@jax.jit
def _start(params: Any, method: Method, oracle: Oracle, memory: Memory | None) -> State:
    sums = None
    if memory is not None:
        sums = jax.eval_shape(lambda: oracle.report(params, oracle.draw(jax.random.key(0)))[0]).sums
    statistics = None if sums is None else sums.shape[1]
    parts = active_parts(method, memory)
    state = first_state(params, method, parts, oracle.client_count, oracle.constraints, statistics)
    return jax.tree.map(jnp.copy, state)


@jax.jit
def _draw(oracle: Oracle, key: Array, k: Array) -> Any:
    return oracle.draw(jax.random.fold_in(key, k))


@jax.jit
def _report(oracle: Oracle, params: Any, draws: Any) -> Reports:
    return oracle.report(params, draws)[0]


@jax.jit
def _direction_norm(setup: Setup, state: State, draws: Any) -> Float[Array, ""]:
    oracle: Any = setup.oracle
    reports, kept = oracle.report(state.params, draws)
    decision = decide(setup._replace(memory=None), state, jnp.int32(0), draws.clients, reports).decision
    return optax.tree.norm(oracle.direction(state.params, draws, kept, decision, setup.method.switches, 0.0))


_copy_arrays = jax.jit(partial(jax.tree.map, jnp.copy))


class CompiledEngine:
    """The engine of compiled chunks of rounds on one device, and the interface of the other engines.

    Engines move data through the rounds. The computations of a round are in ``server_step``.
    """

    completes_chunks = (
        True  # whether interrupts wait for the end of a chunk, which overwrites its state or releases data
    )
    run_chunk = staticmethod(partial(jax.jit, static_argnames="program", donate_argnames="state")(run_rounds))

    def call(self, function: Any, *arguments: Any) -> Any:
        """Call a compiled function."""
        return function(*arguments)

    def start(self, params: Any, method: Method, oracle: Any, memory: Memory | None) -> State:
        """Return the state before round 0; no two of its arrays share memory."""
        state: State = self.call(_start, params, method, oracle, memory)
        return state

    def copy_state(self, state: State) -> State:
        """Return a copy of the state that ``run_chunk`` may overwrite: no two of its arrays share memory."""
        return _copy_arrays(state)

    def draw(self, oracle: Any, key: Array, k: Any) -> tuple[Any, Any]:
        """Return the clients with the rows of round k, and the draws of the round."""
        return oracle, self.call(_draw, oracle, key, k)

    def report(self, oracle: Any, params: Any, key: Array, k: Any) -> tuple[Any, Reports]:
        """Return the indices of the participants of round k, and their reports at ``params``."""
        clients, draws = self.draw(oracle, key, k)
        return draws.clients, self.call(_report, clients, params, draws)

    def direction_norm(self, setup: Setup, key: Array, k: Any, state: State) -> Any:
        """Return the Euclidean norm of round k's weighted direction Σ r_i u_i, with local steps of size 0."""
        clients, draws = self.draw(setup.oracle, key, k)
        return self.call(_direction_norm, setup._replace(oracle=clients), state, draws)

    def chunk_length(self, oracle: Any) -> int:
        """Return the number of rounds of a chunk, after which callbacks are called."""
        return chunk_length(oracle)

    def shapes(self, setup: Setup, program: Program, span: Span, key: Array, state: State) -> tuple[Any, Any]:
        """Return a state and a record with the shapes of a chunk; nothing is computed."""
        return state, jax.eval_shape(lambda: run_rounds(setup, program, span, key, state))[1]

    def identity(
        self, oracle: Any, setup: Setup, program: Program, span: Span, key: Array, state: State
    ) -> dict[str, str]:
        """Return digests of the clients' data ("clients") and of the traced chunk ("program")."""

        def one_chunk(setup: Setup, *arguments: Any) -> Any:
            return run_rounds(setup, program, *arguments)

        clients: Any = setup.oracle
        if hasattr(clients, "slice_size"):  # depends on the device's memory; a checkpoint may move to another device
            setup = setup._replace(oracle=replace(clients, slice_size=clients.participants))
        return {"clients": fingerprint(oracle), "program": program_digest(one_chunk, setup, span, key, state)}


_run_on_devices = partial(jax.jit, static_argnames="program")(run_rounds)  # arrays from the host are not overwritten


class ShardedEngine(CompiledEngine):
    """The engine of compiled chunks of rounds on several devices, with clients divided over them.

    Results are copied to the host after each chunk, so that code between chunks sees arrays of one device.
    """

    completes_chunks = False

    def run_chunk(self, setup: Setup, program: Program, span: Span, key: Array, state: State) -> tuple[State, Record]:
        """Run the rounds of a chunk on all devices; return state and record on the host."""
        return self.call(_run_on_devices, setup, program, span, key, state)

    def call(self, function: Any, *arguments: Any) -> Any:
        """Call a compiled function with arrays on any device; return its result on the host."""
        return jax.tree.map(_copy, function(*release(arguments)))


def release(tree: Any) -> Any:
    """Return the tree with uncommitted copies of arrays that are committed to one device, so that JAX may move them.

    Clients in the tree stay on their devices.
    """

    def release_leaf(leaf: Any) -> Any:
        return _copy(leaf) if getattr(leaf, "committed", False) and len(leaf.devices()) == 1 else leaf

    return jax.tree.map(release_leaf, tree, is_leaf=lambda part: isinstance(part, Oracle))


def _copy(leaf: Any) -> Any:
    if isinstance(leaf, jax.core.Tracer):
        return leaf  # only its shape is needed
    if is_random_key(leaf):
        data = jnp.asarray(np.asarray(jax.random.key_data(leaf)))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    return jnp.asarray(np.asarray(leaf))
