"""The compiled engine where clients are divided over devices: the same programs, on all of them.

What comes back is brought to the host once a chunk, so that all that happens between chunks sees the arrays of one
device, whichever process it happens in.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from softswitch.engine import compiled
from softswitch.engine.compiled import Pieces, Program, Span, apart, chunk_length, depends_on, like_records
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory
from softswitch.methods.round import State
from softswitch.oracles.base import Oracle
from softswitch.results.history import Record
from softswitch.support.arrays import is_random_key

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
OVERWRITES = False
"""Whether ``run_chunk`` overwrites the state that it is given."""
_run_chunk = partial(jax.jit, static_argnames="program")(compiled.chunk)  # what comes from the host is not overwritten


def run_chunk(parts: Pieces, program: Program, span: Span, key: Array, state: State) -> tuple[State, Record]:
    """A chunk of one run."""
    played: tuple[State, Record] = at_home(_run_chunk(_free_beside_clients(parts), program, span, key, free(state)))
    return played


def start(params: Any, method: Method, oracle: Oracle, memory: Memory | None) -> State:
    """The state before round 0."""
    state: State = at_home(compiled.start(free(params), free(method), oracle, memory))
    return state


def report(oracle: Oracle, params: Any, key: Array, k: Array) -> tuple[Array, Any]:
    """The participants of round k and what they report at the given parameters."""
    told: tuple[Array, Any] = at_home(compiled.report(oracle, free(params), key, k))
    return told


def direction_size(parts: Pieces, key: Array, k: Array, state: State) -> Float[Array, ""]:
    """The length of round k's direction at a state, were clients to stay where they are."""
    size: Array = at_home(compiled.direction_size(_free_beside_clients(parts), key, k, free(state)))
    return size


def scatter(oracle: Oracle, params: Any, key: Array, first: Array) -> Float[Array, ""]:
    """How much the sampled G differs between reports at the same parameters."""
    spread: Array = at_home(compiled.scatter(oracle, free(params), key, first))
    return spread


def at_home(tree: Any) -> Any:
    """Arrays that every device has, as arrays of this process that go wherever they are needed."""
    return jax.tree.map(_copied, tree)


def free(tree: Any) -> Any:
    """The same with arrays set free that are bound to one device."""
    return jax.tree.map(lambda leaf: _copied(leaf) if _bound(leaf) else leaf, tree)


def _free_beside_clients(parts: Pieces) -> Pieces:
    bound: Pieces = free(parts._replace(oracle=None))  # type: ignore[arg-type]
    return bound._replace(oracle=parts.oracle)


def _bound(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and leaf.committed and len(leaf.sharding.device_set) == 1


def _copied(leaf: Any) -> Any:
    if isinstance(leaf, jax.core.Tracer):
        return leaf  # only its shape is asked for
    if is_random_key(leaf):
        data = jnp.asarray(np.asarray(jax.random.key_data(leaf)))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    return jnp.asarray(np.asarray(leaf))
