"""The sharded engine: the compiled programs, with clients divided over several devices.

Results are copied to the host after each chunk, so that code between chunks sees arrays of one device.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from softswitch.engine import compiled
from softswitch.engine.compiled import CompiledEngine, Program, Span, run_rounds
from softswitch.engine.server_step import Setup
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory
from softswitch.methods.messages import Reports
from softswitch.methods.state import State
from softswitch.results.history import Record
from softswitch.support.arrays import is_random_key

_run_rounds = partial(jax.jit, static_argnames="program")(run_rounds)  # arrays from the host are not overwritten


class ShardedEngine(CompiledEngine):
    """The engine of compiled chunks of rounds on several devices."""

    overwrites_state = False

    def run_chunk(self, setup: Setup, program: Program, span: Span, key: Array, state: State) -> tuple[State, Record]:
        """Run the rounds of a chunk on all devices; return state and record on the host."""
        return _to_host(_run_rounds(_release_setup(setup), program, span, key, release(state)))

    def start(self, params: Any, method: Method, oracle: Any, memory: Memory | None) -> State:
        """Return the state before round 0."""
        return _to_host(compiled.start(release(params), release(method), oracle, memory))

    def report(self, oracle: Any, params: Any, key: Array, k: Any) -> tuple[Any, Reports]:
        """Return the indices of the participants of round k, and their reports at ``params``."""
        return _to_host(compiled.report(oracle, release(params), key, k))

    def direction_norm(self, setup: Setup, key: Array, k: Any, state: State) -> Any:
        """Return the Euclidean norm of round k's weighted direction, with local steps of size 0."""
        return _to_host(compiled.direction_norm(_release_setup(setup), key, k, release(state)))


def release(tree: Any) -> Any:
    """Return the tree with uncommitted copies of arrays that are committed to one device, so that JAX may move them."""
    return jax.tree.map(lambda leaf: _copy(leaf) if _is_committed(leaf) else leaf, tree)


def _to_host(tree: Any) -> Any:
    return jax.tree.map(_copy, tree)


def _release_setup(setup: Setup) -> Setup:
    released: Setup = release(setup._replace(oracle=None))
    return released._replace(oracle=setup.oracle)


def _is_committed(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and leaf.committed and len(leaf.sharding.device_set) == 1


def _copy(leaf: Any) -> Any:
    if isinstance(leaf, jax.core.Tracer):
        return leaf  # only its shape is needed
    if is_random_key(leaf):
        data = jnp.asarray(np.asarray(jax.random.key_data(leaf)))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    return jnp.asarray(np.asarray(leaf))
