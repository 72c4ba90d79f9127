"""SPIDER: recursive differences from an anchor that is taken anew every so often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from softswitch.method.directions.branches import Direction
from softswitch.problem.parameters import Params
from softswitch.support import checks


@dataclass(frozen=True, kw_only=True)
class Spider(Direction):
    """SPIDER: d_k = u_k in every q-th round of a kind, else d_j + u_k − u_k at w_j, j the last round of that kind.

    Between anchors both directions are of the same clients' same batches. (Fang et al., 2018.)

    Attributes:
        every: q >= 1, rounds of a kind from one anchor to the next; 1 has nothing but anchors.
        anchor: what an anchor is computed on: ``"all"`` rows of the participants, as published; or a ``"batch"`` like
            that of any other round, for clients that cannot go through all of their rows.
    """

    every: int = 10
    anchor: str = "all"
    looks_back: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.one_of("anchor", self.anchor, ("all", "batch"))
        if not checks.is_array(self.every):  # an array was checked when it was a number
            object.__setattr__(self, "every", checks.whole_number("every", self.every, at_least=1))

    def init(self, params: Params) -> Any:
        """No direction yet."""
        return jnp.int32(0), jax.tree.map(jnp.zeros_like, params), params

    def back_to(self, state: Any) -> Params:
        """w_j."""
        earlier: Params = state[2]
        return earlier

    def rows(self, drawn: float, held: float) -> float:
        """Anchors of all rows now and then, two batches else."""
        share = 1 / self.every
        return share * (held if self.anchor == "all" else 2 * drawn) + (1 - share) * 2 * drawn

    def anchors(self, state: Any) -> Bool[Array, ""] | None:
        """Whether this round's direction is to be one of all rows; None: never."""
        return state[0] % self.every == 0 if self.anchor == "all" else None

    def made(self, state: Any, params: Params, now: Params, back: Params | None) -> tuple[Params, Any]:
        """An anchor, or what the last one has become since."""
        rounds, last, _ = state
        anew = rounds % self.every == 0
        made = jax.tree.map(lambda new, old, then: jnp.where(anew, new, old + new - then), now, last, back)
        return made, (rounds + 1, made, params)
