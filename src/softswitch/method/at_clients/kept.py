"""What all such methods share: what they are told of a round, and how large they may be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
from jaxtyping import Array, Bool, Float

from softswitch.problem.parameters import Params
from softswitch.support.compiling.traced import traced_settings

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
        round: k.
    """

    params: Params
    feasible: Bool[Array, ""]
    weights: Float[Array, " m"]
    local_steps: int
    step_size: Any
    server_step: Any
    round: Any = 0


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
