"""The primal-dual method, a baseline."""

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
    """Primal-dual method: a descent step on the Lagrangian, an ascent step on its multiplier, clients averaged.

        w_{k+1} = w_k − η (1/m) Σ_i u_i(f_i + μ_k (g_i − ε))
        μ_{k+1} = max(0, μ_k + η_d (mean_i g_i − ε)),   one μ a constraint; the mean is over the clients that have it

    What a client does not have (−∞) adds nothing to its local loss; 1/m stays. The method never switches; its criterion
    only tells which rounds count as feasible.

    Attributes:
        multiplier: μ_0 >= 0, the multiplier at the start (the paper's λ_0).
        dual_step_size: η_d > 0.
    """

    multiplier: float
    dual_step_size: float
    goes_on: ClassVar[bool] = True
    switches: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("multiplier", checks.real_number("multiplier", self.multiplier, at_least=0))
        step = checks.real_number("dual_step_size", self.dual_step_size, above=0)
        self._set("dual_step_size", step)

    def init(self, constraints: int) -> Any:
        """μ_0 for each constraint."""
        return jnp.full((constraints,), self.multiplier, dtype=jnp.result_type(float))

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Average the clients' Lagrangians, then move the multipliers."""
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
            # μ·(g − ε) and μ·g have the same gradient: the constant is left out.
            local_loss=LocalLoss(1.0, xp.zeros_like(reports.constraint) + state, 0.0, self.tolerance),
        )
        ascent = xp.where(ascent > 0, ascent, xp.zeros_like(ascent))
        return decision, xp.where(count > 0, ascent, state)
