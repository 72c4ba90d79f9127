"""What all ways share: a memory for each of the two things that a switching rule descends on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from softswitch.problem.parameters import Params
from softswitch.support import checks
from softswitch.support.traced_settings import traced_settings


@dataclass(frozen=True, kw_only=True)
class Direction(ABC):
    """What the server makes of a round's direction u_k = Σ r_i u_i; for ``Rule.direction``.

    A switching rule goes along two vector fields, the objective's and the constraint's: each has a memory of its own,
    and a round changes only the memory of what it descends on. A way of your own is a subclass, a frozen dataclass.
    """

    looks_back: ClassVar[bool] = False
    """Whether it also wants the direction at an earlier iterate, of the same clients and rows: twice the gradients."""

    def __init_subclass__(cls) -> None:
        """Its numbers are traced, the rest is compiled in."""
        super().__init_subclass__()
        traced_settings(cls)

    @abstractmethod
    def init(self, params: Params) -> Any:
        """What is remembered before the first round.

        Args:
            params: w_0, for its shapes.
        """

    def back_to(self, state: Any) -> Params:
        """At which earlier iterate it wants the direction too.

        Args:
            state: what is remembered.
        """
        raise NotImplementedError(f"{type(self).__name__} looks back, but does not say where to")

    def rows(self, drawn: float, held: float) -> float:
        """On how many rows a round takes gradients, on average.

        Args:
            drawn: rows that clients draw for them in a plain round.
            held: all rows of those who take part, as often as they take a step.
        """
        return 2 * drawn if self.looks_back else drawn

    def anchors(self, state: Any) -> Bool[Array, ""] | None:
        """Whether a round's direction is to be of all rows of its clients, instead of a batch; None: never.

        Args:
            state: what is remembered.
        """
        return None

    @abstractmethod
    def made(self, state: Any, params: Params, now: Params, back: Params | None) -> tuple[Params, Any]:
        """The direction to take, and what is remembered after it.

        Args:
            state: what is remembered.
            params: w_k.
            now: u_k.
            back: the same clients' direction at the iterate that it looks back to; None where it does not.
        """


class Branches(NamedTuple):
    """What a way remembers of each of the two.

    Attributes:
        objective: of rounds that descend on the objective; of all rounds, where a rule does not switch.
        constraint: of those that descend on the constraint; None where a rule does not switch.
    """

    objective: Any
    constraint: Any

    @classmethod
    def begun(cls, way: Direction | None, params: Params, switches: bool) -> Branches | None:
        """Before the first round; None where there is nothing to remember."""
        if way is None:
            return None
        return cls(way.init(params), way.init(params) if switches else None)

    def of(self, feasible: Bool[Array, ""]) -> Any:
        """What is remembered of what a round descends on."""
        if self.constraint is None:
            return self.objective
        return jax.tree.map(lambda one, other: jnp.where(feasible, one, other), self.objective, self.constraint)

    def after(self, feasible: Bool[Array, ""], state: Any) -> Branches:
        """The same, after a round that descended on one of the two."""
        if self.constraint is None:
            return Branches(state, None)

        def chosen(takes: Array, old: Any) -> Any:
            return jax.tree.map(lambda new, kept: jnp.where(takes, new, kept).astype(kept.dtype), state, old)

        return Branches(chosen(feasible, self.objective), chosen(~feasible, self.constraint))


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
