"""Heavy-ball momentum, kept apart for objective and constraint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from softswitch.method.directions.branches import Direction
from softswitch.problem.parameters import Params
from softswitch.support import checks


@dataclass(frozen=True, kw_only=True)
class Momentum(Direction):
    """A running mean of directions: d_k = β d_{k−1} + (1 − β) u_k, from d_0 = u_0.

    An optimiser's own momentum mixes objective and constraint rounds; this does not. With β = 0 it is the plain
    direction.

    Attributes:
        share: β in [0, 1).
    """

    share: float = 0.9

    def __post_init__(self) -> None:
        object.__setattr__(self, "share", checks.share_below_one("share", self.share))

    def init(self, params: Params) -> Any:
        """No direction yet."""
        return jnp.zeros((), bool), jax.tree.map(jnp.zeros_like, params)

    def made(self, state: Any, params: Params, now: Params, back: Params | None) -> tuple[Params, Any]:
        """Most of what was, and a little of what is."""
        begun, mean = state
        share = jnp.where(begun, self.share, 0)
        mean = jax.tree.map(lambda old, new: (share * old + (1 - share) * new).astype(new.dtype), mean, now)
        return mean, (jnp.ones((), bool), mean)
