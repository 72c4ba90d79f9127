"""Optimistic directions: a guess of the next one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from softswitch.method.directions.branches import Direction
from softswitch.problem.parameters import Params
from softswitch.support import checks


@dataclass(frozen=True, kw_only=True)
class Optimistic(Direction):
    """The direction, carried on by its last change: d_k = u_k + s (u_k − u_j), j the last round of the same kind.

    With s = 1 it is 2u_k − u_{k−1}, the optimistic gradient method: near a saddle point, and near the kink between
    objective and constraint, the last change foretells the next. The first round of each kind is plain, and so are all
    with s = 0.

    Attributes:
        carry: s >= 0.
    """

    carry: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "carry", checks.real_number("carry", self.carry, at_least=0))

    def init(self, params: Params) -> Any:
        """No direction yet."""
        return jnp.zeros((), bool), jax.tree.map(jnp.zeros_like, params)

    def made(self, state: Any, params: Params, now: Params, back: Params | None) -> tuple[Params, Any]:
        """This one, and how it differs from the last."""
        begun, last = state
        carry = jnp.where(begun, self.carry, 0)
        ahead = jax.tree.map(lambda new, old: (new + carry * (new - old)).astype(new.dtype), now, last)
        return ahead, (jnp.ones((), bool), now)
