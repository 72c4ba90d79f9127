"""Compression of the clients' directions and of the server's parameter changes, with error feedback."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Int

from softswitch.methods.client_state import AtClients, RoundAtClients, zeros_per_client
from softswitch.methods.compressors import TopK
from softswitch.methods.parts import active_state, replace_active
from softswitch.problem.domains import Domain
from softswitch.problem.parameters import Params


class Owed(NamedTuple):
    """Compression state of all clients."""

    errors: tuple[Params, ...]  # accumulated errors e_i, stacked: one tree, or one each for objective and constraint
    changes: Int[Array, " n"] | None  # number of parameter changes received, −1 if none; None if not compressed


class CompressedSteps(NamedTuple):
    """State of a server optimiser whose parameter changes are compressed (``compress_steps``)."""

    inner: Any  # state of the wrapped optimiser
    owed: Params  # accumulated compression error e
    sent: Params  # last compressed change
    changes: Int[Array, ""]  # number of changes so far; a round without a step makes none


@dataclass(frozen=True, kw_only=True)
class Compression(AtClients):
    """Compression of directions and parameters; the compression error is added to the next message.

        up:    client i sends C(e_i + u_i) for its direction u_i;   e_i ← e_i + u_i − C(e_i + u_i)
        down:  the server sends C(s_k + e);   w_{k+1} = w_k + C(s_k + e),   e ← s_k + e − C(s_k + e)

    with s_k the step of its optimiser. Clients of a switching method keep separate errors e_i for the objective and the
    constraint. w_k is the clients' copy, which is evaluated, averaged and returned. A client that missed rounds
    receives all changes since, or the whole parameters if they take fewer bytes. ``down`` requires a problem without a
    domain, because clients cannot project.

    Attributes:
        up: Compressor of directions. Default: None, no compression.
        down: Compressor of parameter changes. Default: None, no compression.
    """

    up: TopK | None = None
    down: TopK | None = None

    def __post_init__(self) -> None:
        for name in ("up", "down"):
            if not isinstance(compressor := getattr(self, name), TopK | None):
                raise TypeError(f"{name} must be a TopK or None, but is {compressor!r}")
        if self.up is None and self.down is None:
            raise ValueError("up or down must be a compressor such as TopK(share=0.01), but both are None")

    def init(self, params: Params, clients: int, switches: bool) -> Any:
        """Return errors of 0, and −1 as the number of changes that each client has received."""
        errors = () if self.up is None else (zeros_per_client(params, clients),) * (2 if switches else 1)
        return Owed(errors, None if self.down is None else jnp.full(clients, -1, jnp.int32))

    def after(self, state: Any, info: RoundAtClients, shift: Params | None, directions: Params) -> tuple[Params, Any]:
        """Return C(e_i + u_i) and the new state; the directions themselves if ``up`` is None."""
        changes = None if state.changes is None else jnp.full(state.changes.shape, info.changes, jnp.int32)
        if self.up is None:
            return directions, Owed((), changes)
        error = active_state(state.errors, info.feasible)
        message = jax.tree.map(lambda e, u: e + u.astype(e.dtype), error, directions)
        sent = jax.vmap(partial(compressed, self.up))(message)
        left = jax.tree.map(jnp.subtract, message, sent)
        return sent, Owed(replace_active(state.errors, info.feasible, left), changes)

    def after_void(self, before: Any, after: Any) -> Any:
        """Return the state after a round without a step: participants have received w_k, errors are unchanged."""
        return before._replace(changes=after.changes)


def message_sizes(
    way: Compression, params: Params, state: Owed, changes: Int[Array, ""] | int, participants: int
) -> tuple[Int[Array, " m"], Int[Array, " m"]]:
    """Return the bytes that each participant sends and receives after ``changes`` changes; ``state`` is theirs."""
    vector = jax.eval_shape(lambda: ravel_pytree(params)[0])
    numbers, itemsize = vector.size, vector.dtype.itemsize
    whole = numbers * itemsize
    up = jnp.full(participants, whole if way.up is None else way.up.size(numbers, itemsize), jnp.int32)
    down = jnp.full(participants, whole, jnp.int32)
    if way.down is None or state.changes is None:
        return up, down
    change = way.down.size(numbers, itemsize)
    missed = jnp.minimum(changes - state.changes, -(-whole // change))  # at most the whole parameters
    return up, jnp.where(state.changes < 0, down, jnp.minimum(down, missed * change))


def check_compression(way: AtClients | None, domain: Domain | None, robust: int | None) -> None:
    """Raise ValueError if ``Compression`` is combined with ``robust``, or its ``down`` with a domain."""
    if not isinstance(way, Compression):
        return
    if way.down is not None and domain is not None:
        reason = "clients add up the changes and cannot project; omit down to compress directions only"
        raise ValueError(f"domain must be None with compressed parameter changes, but is {domain!r}: {reason}")
    if robust is not None:
        raise ValueError(f"robust={robust} compares whole directions and cannot be combined with Compression; omit one")


def compressed(compressor: TopK, tree: Params) -> Params:
    """Return a tree after lossy compression of all its arrays as one vector: C(v) in the structure of ``tree``."""
    vector, rebuild = ravel_pytree(tree)
    return cast(Params, rebuild(compressor(vector)))


def compress_steps(inner: optax.GradientTransformationExtraArgs, compressor: TopK) -> Any:
    """Return the optimiser ``inner`` with its steps compressed, and the compression error added to the next step."""

    def init(params: Params) -> CompressedSteps:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return CompressedSteps(inner.init(params), zeros, zeros, jnp.int32(0))

    def update(direction: Any, state: CompressedSteps, params: Any = None, **extra: Any) -> tuple[Any, CompressedSteps]:
        step, after = inner.update(direction, state.inner, params, **extra)
        message = jax.tree.map(lambda e, s: e + s.astype(e.dtype), state.owed, step)
        sent = compressed(compressor, message)
        return sent, CompressedSteps(after, jax.tree.map(jnp.subtract, message, sent), sent, state.changes + 1)

    return optax.GradientTransformationExtraArgs(init, update)
