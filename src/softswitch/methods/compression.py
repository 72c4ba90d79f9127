"""Compression both ways, with error feedback: what a message leaves out is kept, and sent later."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Int

from softswitch.methods.client_state import AtClients, RoundAtClients
from softswitch.methods.compressors import Compressor
from softswitch.problem.domains import Domain
from softswitch.problem.parameters import Params
from softswitch.support import checks


class Owed(NamedTuple):
    """What is kept of each client.

    Attributes:
        errors: e_i, what it has not sent yet; one for the objective and one for the constraint, where there are two.
        changes: Number of parameter changes that it has; −1 before its first round. None if whole parameters are sent.
    """

    errors: tuple[Params, ...]
    changes: Int[Array, " n"] | None


class Behind(NamedTuple):
    """The server optimiser's state where changes of the parameters are compressed.

    Attributes:
        inner: of the optimiser itself.
        owed: what the clients' parameters lack of the server's.
        sent: the last change that was sent.
        changes: Number of changes so far; a void round makes none.
    """

    inner: Any
    owed: Params
    sent: Params
    changes: Int[Array, ""]


@dataclass(frozen=True, kw_only=True)
class Compression(AtClients):
    """Directions and parameters in few bytes; what is left out is added to what is sent next.

        up:    client i sends C(e_i + u_i) for its direction u_i;   e_i ← e_i + u_i − C(e_i + u_i)
        down:  the server sends C(s_k + e);   w_{k+1} = w_k + C(s_k + e),   e ← s_k + e − C(s_k + e)

    with s_k the step of its optimiser. So w_k is what clients have, and what is reported on, averaged and answered. A
    client that missed rounds is sent all changes since, or whole parameters where those take fewer bytes. Down goes
    without a domain: clients could not project.

    Attributes:
        up: how directions are compressed: ``TopK`` or ``Quantised``; None: not at all.
        down: likewise changes of the parameters.
        apart: a client of a switching rule has one e_i for the objective and another for the constraint, and sends
            nothing of the one in a round of the other.
    """

    up: Compressor | None = None
    down: Compressor | None = None
    apart: bool = True

    def __post_init__(self) -> None:
        for name in ("up", "down"):
            if getattr(self, name) is not None:
                checks.expect(name, getattr(self, name), Compressor)
        if self.up is None and self.down is None:
            raise ValueError("Compression needs up or down, a way to compress such as TopK(share=0.01); both are None")

    @property
    def up_exactly(self) -> bool:
        """Whether directions arrive as they are, so that no client keeps anything of them."""
        return self.up is None or self.up.keeps_all

    @property
    def changes(self) -> Compressor | None:
        """How changes of the parameters are compressed; None where whole parameters are sent in every round."""
        return None if self.down is None or self.down.keeps_all else self.down

    def init(self, params: Params, clients: int, switches: bool) -> Any:
        """Nothing is owed, and nobody has any parameters."""
        nothing = jax.tree.map(lambda leaf: jnp.zeros((clients, *leaf.shape), leaf.dtype), params)
        errors = () if self.up_exactly else (nothing,) * (2 if self.has_two(switches) else 1)
        return Owed(errors, None if self.changes is None else jnp.full(clients, -1, jnp.int32))

    def has_two(self, switches: bool) -> bool:
        """Whether a client has two errors.

        Args:
            switches: whether the rule descends on one of two things in a round.
        """
        return bool(switches) and bool(self.apart)

    def after(self, own: Any, asked: RoundAtClients, shift: Params | None, directions: Params) -> tuple[Params, Any]:
        """C(e_i + u_i), and what it leaves out."""
        changes = None if own.changes is None else jnp.full(own.changes.shape, asked.changes, jnp.int32)
        if self.up_exactly:
            return directions, Owed((), changes)
        assert self.up is not None
        errors = own.errors
        error = errors[0] if len(errors) == 1 else _chosen(asked.feasible, *errors)
        whole = jax.tree.map(lambda e, u: e + u.astype(e.dtype), error, directions)
        sent = jax.vmap(partial(compressed, self.up))(whole)
        left = jax.tree.map(jnp.subtract, whole, sent)
        if len(errors) == 1:
            return sent, Owed((left,), changes)
        kept = _chosen(asked.feasible, left, errors[0]), _chosen(asked.feasible, errors[1], left)
        return sent, Owed(kept, changes)

    def bytes_up(self, params: Params, participants: int) -> Int[Array, " m"]:
        """How many bytes each direction takes.

        Args:
            params: w, for its size.
            participants: m.
        """
        numbers, itemsize = numbers_of(params)
        each = numbers * itemsize if self.up is None else self.up.size(numbers, itemsize)
        return jnp.full(participants, each, jnp.int32)

    def after_void(self, before: Any, after: Any) -> Any:
        """Return what clients keep after a void round: participants have the parameters, and owe what they owed."""
        return before._replace(changes=after.changes)

    def bytes_down(
        self, params: Params, own: Owed, changes: Int[Array, ""] | int, participants: int
    ) -> Int[Array, " m"]:
        """Return the number of bytes that the present parameters take for each participant.

        Args:
            params: w, for its size.
            own: what is kept of the participants.
            changes: Number of parameter changes so far.
            participants: m.
        """
        numbers, itemsize = numbers_of(params)
        whole = jnp.full(participants, numbers * itemsize, jnp.int32)
        if self.changes is None:
            return whole
        assert own.changes is not None
        change = self.changes.size(numbers, itemsize)
        missed = jnp.minimum(changes - own.changes, -(-numbers * itemsize // change))  # more than whole is never sent
        return jnp.where(own.changes < 0, whole, jnp.minimum(whole, missed * change))


def check_compression(way: AtClients | None, domain: Domain | None, robust: int | None) -> None:
    """Raise where messages are to be compressed and something else does not go with it.

    Args:
        way: what clients keep.
        domain: Θ, or None.
        robust: how many clients may lie; None where all are trusted.
    """
    if not isinstance(way, Compression):
        return
    if way.changes is not None and domain is not None:
        raise ValueError(
            f"domain must be None where changes of the parameters are compressed, but is {domain!r}: clients add up "
            "what they are sent, and could not project; leave down out, and only directions are compressed"
        )
    if robust is not None:
        raise ValueError(
            f"robust={robust} compares whole directions, but Compression sends parts of them, and later what was left "
            "out; leave one of the two out"
        )


def numbers_of(params: Params) -> tuple[int, int]:
    """How many numbers there are, and how many bytes each of them takes on its way.

    Args:
        params: arrays.
    """
    vector = jax.eval_shape(lambda: ravel_pytree(params)[0])
    return vector.size, vector.dtype.itemsize


def compressed(by: Compressor, tree: Params) -> Params:
    """What arrives of arrays that are sent together.

    Args:
        by: how.
        tree: the arrays.
    """
    vector, back = ravel_pytree(tree)
    found: Params = back(by(vector))
    return found


def sending_changes(inner: optax.GradientTransformationExtraArgs, by: Compressor) -> Any:
    """An optimiser whose step arrives compressed; what is left out is added to the next.

    Args:
        inner: the optimiser.
        by: how its steps are compressed.
    """

    def init(params: Params) -> Behind:
        nothing = jax.tree.map(jnp.zeros_like, params)
        return Behind(inner.init(params), nothing, nothing, jnp.int32(0))

    def update(direction: Any, state: Behind, params: Any = None, **extra: Any) -> tuple[Params, Behind]:
        step, after = inner.update(direction, state.inner, params, **extra)
        whole = jax.tree.map(lambda e, s: e + s.astype(e.dtype), state.owed, step)
        sent = compressed(by, whole)
        return sent, Behind(after, jax.tree.map(jnp.subtract, whole, sent), sent, state.changes + 1)

    return optax.GradientTransformationExtraArgs(init, update)


def _chosen(condition: Any, one: Params, other: Params) -> Params:
    found: Params = jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)
    return found
