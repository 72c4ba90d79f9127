"""The optimistic gradient at the server, with separate states for objective and constraint."""

from __future__ import annotations

from dataclasses import dataclass
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
    """Optimistic gradient: d_k = u_k + s (u_k − u_j), where j is the last round of the same kind.

    With s = 1 it is 2u_k − u_{k−1}. Near a saddle point, and near the switch between objective and constraint, the last
    change predicts the next. The first round of each kind is plain, and so are all rounds with s = 0.

    Attributes:
        carry: s >= 0.
    """

    carry: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "carry", checks.check_real("carry", self.carry, minimum=0))


class OptimisticDirection(Part):
    """``Optimistic`` in the server step; state: whether there was a direction, and the last one.

    A switching method follows two vector fields, those of the objective and of the constraint. Each has its own state,
    and a round changes only the state of the function on which it descends.
    """

    name = "direction"
    must_be_finite: ClassVar[bool] = True

    def __init__(self, optimistic: Optimistic, switches: bool) -> None:
        self.carry, self.switches = optimistic.carry, switches

    def init(self, params: Params, clients: int, constraints: int, statistics: int | None) -> Any:
        """Return the state of the objective and, for a switching method, that of the constraint."""
        return ((jnp.zeros((), bool), jax.tree.map(jnp.zeros_like, params)),) * (2 if self.switches else 1)

    def redirect(self, state: Any, decision: Decision, direction: Params, update: Update) -> tuple[Params, Any]:
        """Return the extrapolated direction."""
        begun, last = active_state(state, decision.feasible)
        carry = jnp.where(begun, self.carry, 0)
        extrapolated = jax.tree.map(lambda new, old: (new + carry * (new - old)).astype(new.dtype), direction, last)
        return extrapolated, replace_active(state, decision.feasible, (jnp.ones((), bool), direction))
