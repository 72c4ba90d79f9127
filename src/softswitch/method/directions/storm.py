"""Recursive momentum: variance reduction without large batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from softswitch.method.directions.branches import Direction
from softswitch.problem.parameters import Params
from softswitch.support import checks


@dataclass(frozen=True, kw_only=True)
class Storm(Direction):
    """STORM: d_k = u_k + (1 − a)(d_j − u_k at w_j), j the last round of the same kind.

    Both directions are of the same clients, rows and weights, so that the noise of the second takes most of the first's
    away, and the error of d shrinks as steps do. With a = 1 it is the plain direction. (Cutkosky and Orabona, 2019,
    for one function; here each of the two has its own d and w_j. Local steps are taken from both points.)

    Attributes:
        share: a in (0, 1], the weight of what is new.
    """

    share: float = 0.1
    looks_back: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "share", checks.real_number("share", self.share, above=0, at_most=1))

    def init(self, params: Params) -> Any:
        """No direction yet."""
        return jnp.zeros((), bool), jax.tree.map(jnp.zeros_like, params), params

    def back_to(self, state: Any) -> Params:
        """w_j."""
        earlier: Params = state[2]
        return earlier

    def made(self, state: Any, params: Params, now: Params, back: Params | None) -> tuple[Params, Any]:
        """What is, and what was, corrected by how the same rows' direction has changed since."""
        begun, last, _ = state
        keep = jnp.where(begun, 1 - self.share, 0)
        mean = jax.tree.map(lambda new, old, then: (new + keep * (old - then)).astype(new.dtype), now, last, back)
        return mean, (jnp.ones((), bool), mean, params)
