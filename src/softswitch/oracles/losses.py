"""A problem's functions as its clients use them: what they report, and what they descend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from softswitch.methods.messages import LocalLoss
from softswitch.problem.parameters import Batch, Params
from softswitch.problem.pooled import PooledConstraint
from softswitch.problem.problem import Problem
from softswitch.problem.random_keys import call, takes_key
from softswitch.support.function_equality import Alike

Loss = Callable[[Params, Batch, LocalLoss, Any], Array]
"""A local loss of one client, with a random key or None; its ``LocalLoss`` holds that client's row of the mix."""


@dataclass(frozen=True, eq=False)
class Losses:
    """A problem's objective, constraint and its stand-in. Equal, and compiled once, for functions that are alike."""

    objective_function: Callable[..., Any]
    constraint_function: Callable[..., Any]
    stand_in_function: Callable[..., Any] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Losses) and self._alike == other._alike

    def __hash__(self) -> int:
        return hash(self._alike)

    @cached_property
    def _alike(self) -> tuple[Alike, ...]:
        return Alike(self.objective_function), Alike(self.constraint_function), Alike(self.stand_in_function)

    @classmethod
    def of(cls, problem: Problem) -> Losses:
        """Those of a problem."""
        return cls(problem.objective, problem.constraint, problem.constraint_surrogate)

    @property
    def random(self) -> bool:
        """Whether any of them takes a random key."""
        every = (self.objective_function, self.constraint_function, self.stand_in_function)
        return any(_takes_key(function) for function in every if function is not None)

    @property
    def has_pooled_constraint(self) -> bool:
        """Whether the constraint is a function of additive statistics."""
        return isinstance(self.constraint_function, PooledConstraint)

    def objective(self, params: Params, batch: Batch, key: Any = None) -> Float[Array, ""]:
        """f."""
        value: Array = call(self.objective_function, params, batch, key)
        return value

    def constraints(self, params: Params, batch: Batch, key: Any = None) -> Float[Array, " c"]:
        """g as a vector, also where the user's function gives a scalar."""
        return jnp.atleast_1d(call(self.constraint_function, params, batch, key))

    @property
    def has_surrogate(self) -> bool:
        """Whether something else is descended on in place of the constraint, which moves in jumps."""
        return self.stand_in_function is not None

    def descended(self, params: Params, batch: Batch, key: Any = None) -> Float[Array, " c"]:
        """What is descended on where the constraint is to fall: g itself, or its stand-in."""
        if self.stand_in_function is None:
            return self.constraints(params, batch, key)
        return jnp.atleast_1d(call(self.stand_in_function, params, batch, key))

    def both(self, params: Params, batch: Batch) -> Float[Array, " functions"]:
        """f and then g, side by side."""
        return jnp.concatenate([self.objective(params, batch)[None], self.constraints(params, batch)])

    def statistics(self, params: Params, batch: Batch) -> Array | None:
        """The additive statistics of a pooled constraint; None for a plain one."""
        if not isinstance(self.constraint_function, PooledConstraint):
            return None
        statistics: Array = call(self.constraint_function.statistics, params, batch, None)
        return statistics

    def pool(self, sums: Float[Array, " s"]) -> Float[Array, " c"]:
        """A pooled constraint of clients' data put together, by the sums of their statistics times their rows."""
        assert isinstance(self.constraint_function, PooledConstraint)
        return jnp.atleast_1d(self.constraint_function.value(sums))

    def objective_loss(self, params: Params, batch: Batch, mix: LocalLoss, key: Any) -> Array:
        """f_i: what a switching rule's clients descend on in a feasible round."""
        del mix
        return self.objective(params, batch, key)

    def constraint_loss(self, params: Params, batch: Batch, mix: LocalLoss, key: Any) -> Array:
        """<b_i, g_i>: what they descend on otherwise; with a stand-in s_i for the constraint <b_i, s_i>."""
        return jnp.dot(mix.constraint, self.descended(params, batch, key))

    def mixed_loss(self, params: Params, batch: Batch, mix: LocalLoss, key: Any) -> Array:
        """a·f_i + <b_i, g_i> + c·Σ max(0, g_i − ε); with a stand-in s_i for the constraint <b_i, s_i> + c·Σ s_i.

        The last sum is then over the constraints that are above ε by g_i itself.
        """
        objective = mix.objective * self.objective(params, batch, key)
        descended = self.descended(params, batch, key)
        if self.has_surrogate:
            above = self.constraints(params, batch) > mix.tolerance
            excess = jnp.where(above, descended, 0).sum()
        else:
            excess = jnp.maximum(descended - mix.tolerance, 0).sum()
        return objective + jnp.dot(mix.constraint, descended) + mix.penalty * excess


def _takes_key(function: Callable[..., Any]) -> bool:
    return function.random if isinstance(function, PooledConstraint) else takes_key(function)
