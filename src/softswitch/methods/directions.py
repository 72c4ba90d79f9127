"""Direction estimators of the server, with separate states for objective and constraint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from softswitch.problem.parameters import Params
from softswitch.support import checks
from softswitch.support.function_equality import traced_settings


@dataclass(frozen=True, kw_only=True)
class Direction(ABC):
    """Transformation of a round's direction u_k = Σ r_i u_i; for ``Method.direction``.

    A switching method follows two vector fields, those of the objective and of the constraint. Each has its own state,
    and a round changes only the state of the function on which it descends. Subclasses are frozen dataclasses.
    """

    def __init_subclass__(cls) -> None:
        """Trace numeric settings and compile the rest."""
        super().__init_subclass__()
        traced_settings(cls)

    @abstractmethod
    def init(self, params: Params) -> Any:
        """Return the state before the first round.

        Args:
            params: w_0, for its shapes.
        """

    @abstractmethod
    def made(self, state: Any, params: Params, now: Params) -> tuple[Params, Any]:
        """Return the direction to take, and the new state.

        Args:
            state: Current state.
            params: w_k.
            now: u_k.
        """


class Branches(NamedTuple):
    """States of a direction estimator.

    Attributes:
        objective: State of rounds that descend on the objective; of all rounds if the method does not switch.
        constraint: State of rounds that descend on the constraint; None if the method does not switch.
    """

    objective: Any
    constraint: Any

    @classmethod
    def begun(cls, way: Direction | None, params: Params, switches: bool) -> Branches | None:
        """Return the states before the first round; None without an estimator."""
        if way is None:
            return None
        return cls(way.init(params), way.init(params) if switches else None)

    def of(self, feasible: Bool[Array, ""]) -> Any:
        """Return the state of the function on which a round descends."""
        if self.constraint is None:
            return self.objective
        return jax.tree.map(lambda one, other: jnp.where(feasible, one, other), self.objective, self.constraint)

    def after(self, feasible: Bool[Array, ""], state: Any) -> Branches:
        """Return the states after a round that descended on one of the functions."""
        if self.constraint is None:
            return Branches(state, None)

        def update(changes: Array, old: Any) -> Any:
            return jax.tree.map(lambda new, kept: jnp.where(changes, new, kept).astype(kept.dtype), state, old)

        return Branches(update(feasible, self.objective), update(~feasible, self.constraint))


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

    def made(self, state: Any, params: Params, now: Params) -> tuple[Params, Any]:
        """Return the extrapolated direction."""
        begun, last = state
        carry = jnp.where(begun, self.carry, 0)
        extrapolated = jax.tree.map(lambda new, old: (new + carry * (new - old)).astype(new.dtype), now, last)
        return extrapolated, (jnp.ones((), bool), now)
