"""What all such methods share: what they are told of a round, and how large they may be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from softswitch.problem.parameters import Params
from softswitch.support import checks
from softswitch.support.arrays import beside, weighted_sum
from softswitch.support.traced_settings import traced_settings

MOST_BYTES = 4 * 2**30
"""How much all clients may keep together."""


class RoundAtClients(NamedTuple):
    """What clients know of a round when they are asked for their directions.

    Attributes:
        params: w_k.
        feasible: the switch bit: what they descend on.
        weights: r, of the participants.
        local_steps: E.
        step_size: γ, of their local steps.
        server_step: η, of the server's.
        changes: Number of parameter changes sent so far, if these are compressed.
    """

    params: Params
    feasible: Bool[Array, ""]
    weights: Float[Array, " m"]
    local_steps: int
    step_size: Any
    server_step: Any
    changes: Any = 0


@dataclass(frozen=True, kw_only=True)
class AtClients(ABC):
    """What every client keeps and how it changes its local steps by it; for ``Rule.at_clients``.

    Its local step goes along ∇h_i(w) + shift_i + pull·(w − w_k), with h_i what the rule tells it to minimise. All that
    is kept has the clients as its first axis. A way of your own is a subclass, a frozen dataclass.
    """

    pull: ClassVar[float | None] = None
    """How strongly local steps are drawn back to w_k; a subclass may have it as a setting. None: not at all."""

    def __init_subclass__(cls) -> None:
        """Its numbers are traced, the rest is compiled in."""
        super().__init_subclass__()
        traced_settings(cls)

    @abstractmethod
    def init(self, params: Params, clients: int, switches: bool) -> Any:
        """What is kept before the first round, one entry a client.

        Args:
            params: w_0, for its shapes.
            clients: n.
            switches: whether the rule descends on one of two things in a round, or always on the same.
        """

    def shift(self, own: Any, asked: RoundAtClients) -> Params | None:
        """What each participant adds to every gradient; None: nothing.

        Args:
            own: what the participants keep.
            asked: what they know of the round.
        """
        return None

    @abstractmethod
    def after(self, own: Any, asked: RoundAtClients, shift: Params | None, directions: Params) -> tuple[Params, Any]:
        """What the participants send for their directions, and what they keep after it.

        Args:
            own: what they kept.
            asked: what they know of the round.
            shift: what each has added.
            directions: the means of the vectors they stepped along.
        """

    def after_void(self, before: Any, after: Any) -> Any:
        """Return what all clients keep after a void round. Default: what they kept before it.

        Args:
            before: What they kept before the round.
            after: What they would keep if it counted.
        """
        return before


def check_size(way: AtClients, params: Params, clients: int, switches: bool) -> None:
    """Raise where clients would have to keep too much together.

    Args:
        way: how.
        params: w_0.
        clients: n.
        switches: whether the rule switches.
    """
    kept = jax.eval_shape(lambda: way.init(params, clients, switches))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))
    if size > MOST_BYTES:
        raise ValueError(
            f"at_clients={type(way).__name__}(…) keeps {size / 2**30:.1f} GiB for {clients:,} clients, more than "
            f"{MOST_BYTES / 2**30:g}: it takes a model of fewer parameters, or fewer clients"
        )


@dataclass(frozen=True, kw_only=True)
class Consensus(AtClients):
    """One inexact iteration of consensus ADMM a round; κ_i is the price of client i's model u_i.

        u_i ≈ argmin h_i(u) + <κ_i, u − w_k> + (π/2) ‖u − w_k‖²,   by the local steps, from w_k
        κ_i ← κ_i + π (u_i − w_k);    it sends u_i + κ_i/π, whose weighted mean w_{k+1} is

    where the server takes plain steps.

    Attributes:
        pull: π > 0, in units of h per unit of w².
    """

    pull: float = 1.0  # type: ignore[misc]

    def __post_init__(self) -> None:
        object.__setattr__(self, "pull", checks.real_number("pull", self.pull, above=0))

    def init(self, params: Params, clients: int, switches: bool) -> Any:
        """No price."""
        return jax.tree.map(lambda leaf: jnp.zeros((clients, *leaf.shape), leaf.dtype), params)

    def shift(self, own: Any, asked: RoundAtClients) -> Params:
        """κ_i."""
        price: Params = own
        return price

    def after(self, own: Any, asked: RoundAtClients, shift: Params | None, directions: Params) -> tuple[Params, Any]:
        """How far w_k is from what it sends, per step of the server; and its new price."""
        length = asked.step_size * asked.local_steps
        away = jax.tree.map(lambda u: -length * u, directions)  # u_i − w_k
        price = jax.tree.map(lambda old, gone: old + self.pull * gone, own, away)
        sent = jax.tree.map(lambda gone, new: -(gone + new / self.pull) / asked.server_step, away, price)
        return sent, price


class Variates(NamedTuple):
    """Of each client, for one of the things a rule descends on.

    Attributes:
        known: whether it has one.
        mean: c_i, the mean of the gradients of its last local steps.
    """

    known: Bool[Array, " n"]
    mean: Params


@dataclass(frozen=True, kw_only=True)
class ControlVariates(AtClients):
    """SCAFFOLD's correction (Karimireddy et al., 2020), with the round's weights in place of equal ones.

        local step along ∇h_i(w) − c_i + Σ_j r_j c_j;   c_i ← the mean of its gradients ∇h_i of this round

    So all participants step along the weighted direction, whatever their own is, and several local steps do not drift
    apart. A switching rule has one c_i for the objective and one for the constraint. Who has none yet steps plainly,
    and the sum is over those who have. With E = 1 it changes nothing.
    """

    def init(self, params: Params, clients: int, switches: bool) -> Any:
        """Nobody has one."""
        none = Variates(
            jnp.zeros(clients, bool), jax.tree.map(lambda leaf: jnp.zeros((clients, *leaf.shape), leaf.dtype), params)
        )
        return (none, none) if switches else (none,)

    def shift(self, own: Any, asked: RoundAtClients) -> Params:
        """−c_i + Σ_j r_j c_j."""
        known, mean = _chosen(own, asked.feasible)
        weights = jnp.where(known, asked.weights, 0)
        total = weights.sum()
        together = weighted_sum(mean, weights / jnp.where(total > 0, total, 1))
        return jax.tree.map(lambda c, all_: jnp.where(beside(known, c), all_ - c, 0), mean, together)

    def after(self, own: Any, asked: RoundAtClients, shift: Params | None, directions: Params) -> tuple[Params, Any]:
        """The directions as they are; c_i is what they are without what was added."""
        new = Variates(
            jnp.ones(asked.weights.shape, bool), jax.tree.map(lambda u, s: u - s.astype(u.dtype), directions, shift)
        )
        if len(own) == 1:
            return directions, (new,)
        bits = (asked.feasible, ~asked.feasible)
        kept = tuple(
            jax.tree.map(lambda one, other, bit=bit: jnp.where(bit, one, other), new, old)
            for bit, old in zip(bits, own, strict=True)
        )
        return directions, kept


def _chosen(own: Any, feasible: Bool[Array, ""]) -> Variates:
    """Those for what the round descends on."""
    if len(own) == 1:
        only: Variates = own[0]
        return only
    chosen: Variates = jax.tree.map(lambda one, other: jnp.where(feasible, one, other), *own)
    return chosen
