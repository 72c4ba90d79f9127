"""Joint descent on the objective and the constraint, and the soft switch of FedSGM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from array_api_compat import array_namespace
from jaxtyping import Array

from softswitch.methods.base import Method
from softswitch.methods.messages import Decision, LocalLoss, Reports
from softswitch.methods.softmax_sgm import AverageSGM
from softswitch.methods.weighting import equal_weights
from softswitch.support.checks import POSITIVE


def descend_on_both(method: Method, reports: Reports, criterion: Any, objective: Array, constraint: Array) -> Decision:
    """Return the decision to descend along Σ_i P_i u_i(f_i) + Σ_ic Q_ic u_i(g_ic), with P and Q >= 0.

    P is ``objective``, one weight per participant; Q is ``constraint`` of shape (participants, constraints).
    r_i = (P_i + Σ_c Q_ic)/T with T the sum of all;  local loss (P_i/r_i)·f_i + Σ_c (Q_ic/r_i)·g_ic.
    """
    xp = array_namespace(reports.objective)
    shares = objective + xp.sum(constraint, axis=1)
    total = xp.sum(shares)
    weights = shares / xp.where(total > 0, total, xp.ones_like(total))
    divisor = xp.where(weights > 0, weights, xp.ones_like(weights))
    loss = LocalLoss(objective / divisor, constraint / divisor[:, None], 0.0, method.tolerance)
    return Decision(criterion, method.passes(criterion, reports), weights, loss)


@dataclass(frozen=True, kw_only=True)
class SoftSwitchSGM(AverageSGM):
    """FedSGM with a soft switch (arXiv 2601.16897), which mixes both directions near the threshold.

        G_k = (1/m) Σ_i g_i
        w_{k+1} = w_k − η (1/m) Σ_i ((1 − s) u_i(f_i) + s u_i(g_i)),   s = min(1, max(0, 1 + β (G_k − λ)))

    Attributes:
        soft: β > 0, per unit of g: directions are mixed if G_k is between λ − 1/β and λ. ``AverageSGM`` is the limit
            β → ∞.
    """

    soft: float = field(metadata=POSITIVE)
    switches: ClassVar[bool] = False

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Return the decision with equal weights, and the unchanged state."""
        objective_weights = equal_weights(reports.objective, reports.has_objective, reports.stand_for)
        pair_weights = equal_weights(reports.constraint, reports.has_constraint, reports.stand_for)
        criterion = self.measure(reports)
        xp = array_namespace(criterion)
        share = 1 + self.soft * (criterion - self.switch_at)
        share = xp.where(share < 0, xp.zeros_like(share), xp.where(share > 1, xp.ones_like(share), share))
        return descend_on_both(self, reports, criterion, (1 - share) * objective_weights, share * pair_weights), state
