"""Transformations of the server's direction, with separate states for objective and constraint."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
class Direction(TracedSettings, ABC):
    """Transformation of a round's direction u_k = Σ r_i u_i; for ``Method.direction``.

    A switching method follows two vector fields, those of the objective and of the constraint. Each has its own state,
    and a round changes only the state of the function on which it descends. Subclasses are frozen dataclasses.
    """

    @abstractmethod
    def init(self, params: Params) -> Any:
        """Return the state before the first round.

        Args:
            params: w_0, for its shapes.
        """

    @abstractmethod
    def transform(self, state: Any, direction: Params) -> tuple[Params, Any]:
        """Return the direction to take, and the new state.

        Args:
            state: Current state.
            direction: u_k.
        """


@dataclass(frozen=True, kw_only=True)
class Optimistic(Direction):
    """Optimistic gradient: d_k = u_k + s (u_k − u_j), where j is the last round of the same kind.

    With s = 1 it is 2u_k − u_{k−1}. Near a saddle point, and near the switch between objective and constraint, the last
    change predicts the next. The first round of each kind is plain, and so are all rounds with s = 0.

    Attributes:
        carry: s >= 0.
    """

    carry: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "carry", checks.check_real("carry", self.carry, minimum=0))

    def init(self, params: Params) -> Any:
        """Return the state without a direction."""
        return jnp.zeros((), bool), jax.tree.map(jnp.zeros_like, params)

    def transform(self, state: Any, direction: Params) -> tuple[Params, Any]:
        """Return the extrapolated direction."""
        begun, last = state
        carry = jnp.where(begun, self.carry, 0)
        extrapolated = jax.tree.map(lambda new, old: (new + carry * (new - old)).astype(new.dtype), direction, last)
        return extrapolated, (jnp.ones((), bool), direction)


class DirectionPart(Part):
    """A ``Direction`` in the server step; a switching method has one state for each function."""

    name = "direction"
    must_be_finite: ClassVar[bool] = True

    def __init__(self, direction: Direction, switches: bool) -> None:
        self.direction, self.switches = direction, switches

    def init(self, params: Params, clients: int, constraints: int, statistics: int | None) -> Any:
        """Return the state of the objective and, for a switching method, that of the constraint."""
        return tuple(self.direction.init(params) for _ in range(2 if self.switches else 1))

    def redirect(self, state: Any, decision: Decision, direction: Params, update: Update) -> tuple[Params, Any]:
        """Transform the direction with the state of the function on which the round descends."""
        direction, new = self.direction.transform(active_state(state, decision.feasible), direction)
        return direction, replace_active(state, decision.feasible, new)
