"""Optimistic gradient steps of the server, with separate states for objective and constraint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from softswitch.methods.messages import Decision
from softswitch.methods.parts import Part, Update, active_state, replace_active
from softswitch.problem.parameters import Params
from softswitch.support import checks
from softswitch.support.function_equality import TracedSettings


@dataclass(frozen=True, kw_only=True)
class Optimistic(TracedSettings):
    """Optimistic gradient: the server's direction is u_k + s (u_k − u_j) in round k.

    u_k is the weighted direction of round k, and j the last round on the same function, objective or constraint. Near a
    saddle point, and near the switch, the last change predicts the next. The first round on each function is plain.

    Attributes:
        carry: Extrapolation factor s >= 0. 0 gives plain steps. Default: 1, which gives 2u_k − u_j.
    """

    carry: float = field(default=1.0, metadata=checks.NONNEGATIVE)


class OptimisticDirection(Part):
    """Hooks of the server step for ``Optimistic``. State: (is there a last direction, it), each for f and for g."""

    name = "direction"
    must_be_finite: ClassVar[bool] = True

    def __init__(self, optimistic: Optimistic, switches: bool) -> None:
        self.carry, self.switches = optimistic.carry, switches

    def init(self, params: Params, clients: int, constraints: int, statistics: int | None) -> Any:
        """Return the empty state of the objective and, for a switching method, that of the constraint."""
        return ((jnp.zeros((), bool), jax.tree.map(jnp.zeros_like, params)),) * (2 if self.switches else 1)

    def redirect(self, state: Any, decision: Decision, direction: Params, update: Update) -> tuple[Params, Any]:
        """Return the extrapolated direction, and the state with ``direction`` as the last one."""
        begun, last = active_state(state, decision.feasible)
        carry = jnp.where(begun, self.carry, 0)
        extrapolated = jax.tree.map(lambda new, old: (new + carry * (new - old)).astype(new.dtype), direction, last)
        return extrapolated, replace_active(state, decision.feasible, (jnp.ones((), bool), direction))
