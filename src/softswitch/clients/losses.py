"""A problem's functions as its clients use them: what they report, and what they descend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from softswitch.method.messages import LocalLoss
from softswitch.problem.problem import Batch, Params, PooledConstraint

Loss = Callable[[Params, Batch, LocalLoss], Array]
"""A local loss of one client; its ``LocalLoss`` holds that client's row of the constraint mix."""


@dataclass(frozen=True)
class Losses:
    """The objective and the constraint of a problem. Equal, and compiled once, for the same two functions."""

    objective: Callable[[Params, Batch], Any]
    constraint: Callable[[Params, Batch], Any]

    def constraints(self, params: Params, batch: Batch) -> Float[Array, " c"]:
        """g as a vector, also where the user's function gives a scalar."""
        return jnp.atleast_1d(self.constraint(params, batch))

    def both(self, params: Params, batch: Batch) -> Float[Array, " functions"]:
        """f and then g, side by side."""
        return jnp.concatenate([self.objective(params, batch)[None], self.constraints(params, batch)])

    def statistics(self, params: Params, batch: Batch) -> Array | None:
        """The additive statistics of a pooled constraint; None for a plain one."""
        if not isinstance(self.constraint, PooledConstraint):
            return None
        return self.constraint.statistics(params, batch)

    def pool(self, statistics: Array | None, sizes: Array) -> Float[Array, " c"] | None:
        """The constraint of all given clients' data put together: each client's means count by its rows."""
        if not isinstance(self.constraint, PooledConstraint) or statistics is None:
            return None
        return jnp.atleast_1d(self.constraint.value(jnp.tensordot(sizes.astype(statistics.dtype), statistics, axes=1)))

    def objective_loss(self, params: Params, batch: Batch, mix: LocalLoss) -> Array:
        """f_i: what a switching rule's clients descend on in a feasible round."""
        del mix
        return self.objective(params, batch)

    def constraint_loss(self, params: Params, batch: Batch, mix: LocalLoss) -> Array:
        """<b_i, g_i>: what they descend on otherwise."""
        return jnp.dot(mix.constraint, self.constraints(params, batch))

    def mixed_loss(self, params: Params, batch: Batch, mix: LocalLoss) -> Array:
        """a·f_i + <b_i, g_i> + c·Σ max(0, g_i − ε)."""
        violation = self.constraints(params, batch)
        excess = jnp.maximum(violation - mix.tolerance, 0).sum()
        objective = mix.objective * self.objective(params, batch)
        return objective + jnp.dot(mix.constraint, violation) + mix.penalty * excess
