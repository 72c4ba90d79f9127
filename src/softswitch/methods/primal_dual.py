"""The primal-dual method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from array_api_compat import array_namespace

from softswitch.methods.base import Method
from softswitch.methods.messages import Decision, LocalLoss, Reports
from softswitch.methods.weighting import equal_weights
from softswitch.support import checks


@dataclass(frozen=True, kw_only=True)
class PrimalDual(Method):
    """Primal-dual method: descent on the averaged Lagrangian, ascent on its multipliers.

        w_{k+1} = w_k − η (1/m) Σ_i u_i(f_i + μ_k (g_i − ε))
        μ_{k+1} = max(0, μ_k + η_d (mean_i g_i − ε)),   one μ per constraint; the mean is over clients with a value

    A missing function (−∞) adds nothing to a client's local loss; the weight stays 1/m. The method does not switch; the
    criterion only determines which rounds count as feasible.

    Attributes:
        multiplier: μ_0 >= 0, the initial multiplier (the paper's λ_0).
        dual_step_size: η_d > 0.
    """

    multiplier: float
    dual_step_size: float
    goes_on: ClassVar[bool] = True
    switches: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("multiplier", checks.check_real("multiplier", self.multiplier, minimum=0))
        self._set("dual_step_size", checks.check_real("dual_step_size", self.dual_step_size, above=0))

    def init(self, constraints: int) -> Any:
        """Return μ_0 for each constraint."""
        return jnp.full((constraints,), self.multiplier, dtype=jnp.result_type(float))

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Average the clients' Lagrangians, then update the multipliers."""
        xp = array_namespace(reports.constraint)
        criterion = self.measure(reports)
        weights = equal_weights(reports.objective, reports.mask, reports.stand_for)
        having = reports.has_constraint
        count = xp.sum(xp.astype(having, reports.constraint.dtype), axis=0)
        total = xp.sum(xp.where(having, reports.constraint, xp.zeros_like(reports.constraint)), axis=0)
        mean = total / xp.where(count > 0, count, xp.ones_like(count))
        ascent = state + self.dual_step_size * (mean - self.tolerance)
        decision = Decision(
            criterion=criterion,
            feasible=self.passes(criterion, reports),
            weights=weights,
            # μ·(g − ε) and μ·g have the same gradient, so the constant is omitted.
            local_loss=LocalLoss(1.0, xp.zeros_like(reports.constraint) + state, 0.0, self.tolerance),
        )
        ascent = xp.where(ascent > 0, ascent, xp.zeros_like(ascent))
        return decision, xp.where(count > 0, ascent, state)
