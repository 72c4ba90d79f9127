"""Direction estimators of the server, with separate states for objective and constraint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

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

    looks_back: ClassVar[bool] = False
    """Whether it needs the direction at an earlier iterate too, on the same rows, at twice the gradients."""

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

    def back_to(self, state: Any) -> Params:
        """Return the earlier iterate at which it needs the direction.

        Args:
            state: Current state.
        """
        raise NotImplementedError(f"{type(self).__name__} has looks_back=True, but does not implement back_to")

    def rows(self, drawn: float, held: float) -> float:
        """Return the average number of rows per round on which gradients are computed.

        Args:
            drawn: Rows drawn for gradients in a plain round.
            held: All rows of the participants, times the number of local steps.
        """
        return 2 * drawn if self.looks_back else drawn

    def anchors(self, state: Any) -> Bool[Array, ""] | None:
        """Return whether a round's direction uses all rows of its clients instead of a batch; None means never.

        Args:
            state: Current state.
        """
        return None

    @abstractmethod
    def made(self, state: Any, params: Params, now: Params, back: Params | None) -> tuple[Params, Any]:
        """Return the direction to take, and the new state.

        Args:
            state: Current state.
            params: w_k.
            now: u_k.
            back: The same clients' direction at the earlier iterate, if ``looks_back``.
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

    def made(self, state: Any, params: Params, now: Params, back: Params | None) -> tuple[Params, Any]:
        """Return the extrapolated direction."""
        begun, last = state
        carry = jnp.where(begun, self.carry, 0)
        extrapolated = jax.tree.map(lambda new, old: (new + carry * (new - old)).astype(new.dtype), now, last)
        return extrapolated, (jnp.ones((), bool), now)


@dataclass(frozen=True, kw_only=True)
class Spider(Direction):
    """SPIDER (Fang et al., 2018): d_k = u_k in every q-th round of a kind, else d_j + u_k − u_k(w_j), j the last round.

    Between anchors both directions are computed on the same batches of the same clients.

    Attributes:
        every: q >= 1, the number of rounds of a kind between anchors.
        anchor: Rows of an anchor: ``"all"`` rows of the participants, as published, or a ``"batch"`` as in any round.
    """

    every: int = 10
    anchor: str = "all"
    looks_back: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.check_choice("anchor", self.anchor, ("all", "batch"))
        if not checks.is_array(self.every):  # a traced value was checked before
            object.__setattr__(self, "every", checks.check_integer("every", self.every, minimum=1))

    def init(self, params: Params) -> Any:
        """Return the state without a direction."""
        return jnp.int32(0), jax.tree.map(jnp.zeros_like, params), params

    def back_to(self, state: Any) -> Params:
        """Return w_j."""
        earlier: Params = state[2]
        return earlier

    def rows(self, drawn: float, held: float) -> float:
        """Return the average of anchor rounds and rounds with two batches."""
        share = 1 / self.every
        return share * (held if self.anchor == "all" else 2 * drawn) + (1 - share) * 2 * drawn

    def anchors(self, state: Any) -> Bool[Array, ""] | None:
        """Return whether this round is an anchor on all rows; None means never."""
        return state[0] % self.every == 0 if self.anchor == "all" else None

    def made(self, state: Any, params: Params, now: Params, back: Params | None) -> tuple[Params, Any]:
        """Return the anchor, or the updated estimate."""
        rounds, last, _ = state
        is_anchor = rounds % self.every == 0
        estimate = jax.tree.map(lambda new, old, then: jnp.where(is_anchor, new, old + new - then), now, last, back)
        return estimate, (rounds + 1, estimate, params)
