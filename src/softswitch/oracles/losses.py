"""The functions of a problem as clients use them: what they report, and what they minimise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from softswitch.methods.messages import LocalLoss
from softswitch.problem.parameters import Batch, Params, call_with_key, takes_key
from softswitch.problem.problem import PooledConstraint, Problem
from softswitch.support.function_equality import ComparableFunction

Loss = Callable[[Params, Batch, LocalLoss, Any], Array]
"""Local loss of one client, with a random key or None; its ``LocalLoss`` holds that client's row of the mix."""


@dataclass(frozen=True, eq=False)
class Losses:
    """Objective, constraint and surrogate of a problem. Equal functions compare equal, and are compiled once."""

    objective_function: Callable[..., Any]
    constraint_function: Callable[..., Any]
    surrogate_function: Callable[..., Any] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Losses) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @cached_property
    def _key(self) -> tuple[ComparableFunction, ...]:
        return tuple(map(ComparableFunction, self._functions))

    @property
    def _functions(self) -> tuple[Any, ...]:
        return self.objective_function, self.constraint_function, self.surrogate_function

    @classmethod
    def of(cls, problem: Problem) -> Losses:
        """Return the functions of a problem."""
        return cls(problem.objective, problem.constraint, problem.constraint_surrogate)

    @property
    def is_random(self) -> bool:
        """Whether any function takes a random key."""
        functions = filter(None, self._functions)
        return any(f.random if isinstance(f, PooledConstraint) else takes_key(f) for f in functions)

    @property
    def has_pooled_constraint(self) -> bool:
        """Whether the constraint is a function of additive statistics."""
        return isinstance(self.constraint_function, PooledConstraint)

    @property
    def has_surrogate(self) -> bool:
        """Whether a differentiable surrogate replaces the constraint in gradients."""
        return self.surrogate_function is not None

    def objective(self, params: Params, batch: Batch, key: Any = None) -> Float[Array, ""]:
        """Return f."""
        return call_with_key(self.objective_function, params, batch, key)

    def constraints(self, params: Params, batch: Batch, key: Any = None) -> Float[Array, " c"]:
        """Return g as a vector."""
        return jnp.atleast_1d(call_with_key(self.constraint_function, params, batch, key))

    def differentiable_constraints(self, params: Params, batch: Batch, key: Any = None) -> Float[Array, " c"]:
        """Return the surrogate of g if there is one, else g."""
        return jnp.atleast_1d(call_with_key(self.surrogate_function or self.constraint_function, params, batch, key))

    def values(self, params: Params, batch: Batch) -> Float[Array, " functions"]:
        """Return f followed by g."""
        return jnp.concatenate([self.objective(params, batch)[None], self.constraints(params, batch)])

    def statistics(self, params: Params, batch: Batch) -> Array | None:
        """Return the additive statistics of a pooled constraint; None for a plain one."""
        if not isinstance(self.constraint_function, PooledConstraint):
            return None
        return call_with_key(self.constraint_function.statistics, params, batch, None)

    def pool(self, sums: Float[Array, " s"]) -> Float[Array, " c"]:
        """Compute a pooled constraint from summed statistics, each times its client's number of rows."""
        assert isinstance(self.constraint_function, PooledConstraint)
        return jnp.atleast_1d(self.constraint_function.value(sums))

    def objective_loss(self, params: Params, batch: Batch, mix: LocalLoss, key: Any) -> Array:
        """Return f_i, the local loss of a switching method in feasible rounds."""
        return self.objective(params, batch, key)

    def constraint_loss(self, params: Params, batch: Batch, mix: LocalLoss, key: Any) -> Array:
        """Return <b_i, g_i>, or <b_i, s_i> with a surrogate s_i, the local loss in infeasible rounds."""
        return jnp.dot(mix.constraint, self.differentiable_constraints(params, batch, key))

    def mixed_loss(self, params: Params, batch: Batch, mix: LocalLoss, key: Any) -> Array:
        """Return a·f_i + <b_i, g_i> + c·Σ max(0, g_i − ε).

        With a surrogate s_i it is a·f_i + <b_i, s_i> + c·Σ s_i, the last sum over the constraints with g_i > ε.
        """
        objective = mix.objective * self.objective(params, batch, key)
        constraints = self.differentiable_constraints(params, batch, key)
        if self.has_surrogate:
            excess = jnp.where(self.constraints(params, batch) > mix.tolerance, constraints, 0).sum()
        else:
            excess = jnp.maximum(constraints - mix.tolerance, 0).sum()
        return objective + jnp.dot(mix.constraint, constraints) + mix.penalty * excess
