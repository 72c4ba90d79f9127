"""The primal-dual method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax.numpy as jnp
from array_api_compat import array_namespace

from softswitch.methods.comparison import NONNEGATIVE, POSITIVE, ComparisonMethod, descend
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.weighting import equal_weights


@dataclass(frozen=True, kw_only=True)
class PrimalDual(ComparisonMethod):
    """Primal-dual method: descent on the averaged Lagrangian, ascent on its multipliers.

        w_{k+1} = w_k − η (1/m) Σ_i u_i(f_i + μ_k (g_i − ε))
        μ_{k+1} = max(0, μ_k + η_d (mean_i g_i − ε)),   one μ per constraint; the mean is over clients with a value

    A missing function (−∞) adds nothing to a client's local loss; the weight stays 1/m. The method does not switch; the
    criterion only determines which rounds count as feasible.

    Attributes:
        multiplier: μ_0 >= 0, the initial multiplier (the paper's λ_0).
        dual_step_size: η_d > 0.
    """

    multiplier: float = field(metadata=NONNEGATIVE)
    dual_step_size: float = field(metadata=POSITIVE)
    goes_on: ClassVar[bool] = True

    def init(self, constraints: int) -> Any:
        """Return μ_0 for each constraint."""
        return jnp.full((constraints,), self.multiplier, dtype=jnp.result_type(float))

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Average the clients' Lagrangians, then update the multipliers."""
        xp, values, known = array_namespace(reports.constraint), reports.constraint, reports.has_constraint
        count = xp.sum(xp.astype(known, values.dtype), axis=0)
        total = xp.sum(xp.where(known, values, xp.zeros_like(values)), axis=0)
        mean = total / xp.where(count > 0, count, xp.ones_like(count))
        ascent = state + self.dual_step_size * (mean - self.tolerance)
        ascent = xp.where(ascent > 0, ascent, xp.zeros_like(ascent))
        weights = equal_weights(reports.objective, reports.mask, reports.stand_for)
        # μ·(g − ε) and μ·g have the same gradient, so the constant is omitted.
        decision = descend(self, reports, weights, constraint=xp.zeros_like(values) + state)
        return decision, xp.where(count > 0, ascent, state)
