"""Agnostic and distributionally robust averaging: client weights follow gradient ascent on the losses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from optax.projections import projection_simplex

from softswitch.methods.comparison import POSITIVE, ComparisonMethod, descend
from softswitch.methods.messages import Decision, Reports


@dataclass(frozen=True, kw_only=True)
class Agnostic(ComparisonMethod):
    """AFL (Mohri et al., arXiv 1902.00146) and, with clients sampled by their weights, DRFA (arXiv 2102.12660).

        λ ← Π_Δ(λ + γ_d v),   v_i = (n/m) f_i(w_k) for reporting clients, else 0
        w_{k+1} = w_k − η Σ_i λ_i u_i(f_i)                           AFL
        w_{k+1} = w_k − η (1/m) Σ_j u_{i_j}(f_{i_j}),  i_j ~ λ       DRFA

    DRFA evaluates the losses at a random local iterate of the round; this implementation uses the first, w_k. The
    constraint is ignored.

    Attributes:
        dual_step_size: γ_d > 0.
        draws: Whether the updating clients are sampled by λ, with replacement (DRFA). Otherwise the reporting clients
            are weighted by λ (AFL).
    """

    dual_step_size: float = field(metadata=POSITIVE)
    draws: bool = False
    aims_at: ClassVar[str] = "max"
    goes_on: ClassVar[bool] = True
    knows_clients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.draws, bool):
            raise TypeError(f"draws must be True or False, but is {self.draws!r}")

    @property
    def draws_clients(self) -> bool:  # type: ignore[override]
        """Whether the method samples the updating clients (DRFA)."""
        return self.draws

    def begin(self, clients: int, constraints: int) -> Float[Array, " n"]:
        """Return equal weights."""
        return jnp.full(clients, 1 / clients, jnp.result_type(float))

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Weight or sample clients by λ, then take an ascent step on λ."""
        n, m = len(state), reports.objective.shape[0]
        count = jnp.maximum(reports.has_objective.sum(), 1)
        losses = jnp.where(reports.has_objective, reports.objective, 0) * (n / count)
        after = projection_simplex(state.at[reports.clients].add(self.dual_step_size * losses.astype(state.dtype)))
        if self.draws:
            drawn = jax.random.choice(reports.key, n, (m,), p=state).astype(jnp.int32)
            decision = descend(self, reports, jnp.full(m, 1 / m, reports.objective.dtype))
            return decision._replace(clients=drawn), after
        weights = jnp.where(reports.has_objective, state[reports.clients], 0).astype(reports.objective.dtype)
        total = weights.sum()
        equal = reports.has_objective / count.astype(weights.dtype)
        return descend(self, reports, jnp.where(total > 0, weights / jnp.where(total > 0, total, 1), equal)), after
