"""Agnostic and distributionally robust averaging: weights of clients that climb with their losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from optax.projections import projection_simplex

from softswitch.methods.base import Method
from softswitch.methods.fed_avg import on_objective
from softswitch.methods.messages import Decision, Reports
from softswitch.support import checks


@dataclass(frozen=True, kw_only=True)
class Agnostic(Method):
    """AFL (Mohri et al., arXiv 1902.00146) and, with clients drawn by their weights, DRFA (arXiv 2102.12660).

        λ ← Π_Δ(λ + γ_d v),   v_i = (n/m) f_i at w_k for those who report, else 0
        w_{k+1} = w_k − η Σ_i λ_i u_i(f_i)                           AFL
        w_{k+1} = w_k − η (1/m) Σ_j u_{i_j}(f_{i_j}),  i_j ~ λ       DRFA

    DRFA looks at the losses at one of the round's local iterates, drawn at random; here it is the first, w_k. There is
    no constraint.

    Attributes:
        dual_step_size: γ_d > 0.
        draws: draw the clients of the second exchange by λ, with replacement, whoever reported; else those who reported
            are weighed by it.
    """

    dual_step_size: float
    draws: bool = False
    aims_at: ClassVar[str] = "max"
    goes_on: ClassVar[bool] = True
    switches: ClassVar[bool] = False
    knows_clients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("dual_step_size", checks.real_number("dual_step_size", self.dual_step_size, above=0))
        if not isinstance(self.draws, bool):
            raise TypeError(f"draws must be True or False, but is {self.draws!r}")

    @property
    def draws_clients(self) -> bool:  # type: ignore[override]
        """Whether it is DRFA."""
        return self.draws

    def begin(self, clients: int, constraints: int) -> Float[Array, " n"]:
        """All alike."""
        return jnp.full(clients, 1 / clients, jnp.result_type(float))

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Weigh by λ, or draw by it; then let λ climb."""
        n, m = len(state), reports.objective.shape[0]
        here = jnp.maximum(reports.has_objective.sum(), 1)
        heights = jnp.where(reports.has_objective, reports.objective, 0) * (n / here)
        after = projection_simplex(state.at[reports.clients].add(self.dual_step_size * heights.astype(state.dtype)))
        if self.draws:
            drawn = jax.random.choice(reports.key, n, (m,), p=state).astype(jnp.int32)
            decision = on_objective(self, reports, jnp.full(m, 1 / m, reports.objective.dtype))
            return decision._replace(clients=drawn), after
        own = jnp.where(reports.has_objective, state[reports.clients], 0).astype(reports.objective.dtype)
        total = own.sum()
        even = reports.has_objective / here.astype(own.dtype)
        return on_objective(self, reports, jnp.where(total > 0, own / jnp.where(total > 0, total, 1), even)), after
