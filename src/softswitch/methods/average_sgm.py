"""Average switching gradient method: means over the clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

from softswitch.methods.base import Method, switch
from softswitch.methods.comparison import descend_on_both
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.weighting import equal_weights


@dataclass(frozen=True, kw_only=True)
class AverageSGM(Method):
    """Average ("standard") Switching Gradient Method: SoftmaxSGM at α = 0.

        G_k = (1/m) Σ_i g_i
        w_{k+1} = w_k − η (1/m) Σ_i u_i(f_i)   if G_k <= λ
        w_{k+1} = w_k − η (1/m) Σ_i u_i(g_i)   otherwise

    The constraint is met on average; a single client may violate it by any amount. This is FedSGM (arXiv 2601.16897).
    Its soft switch mixes both directions near the threshold, to avoid oscillation:

        w_{k+1} = w_k − η (1/m) Σ_i ((1 − s) u_i(f_i) + s u_i(g_i)),   s = min(1, max(0, 1 + β (G_k − λ)))

    Attributes:
        soft: β > 0 of the soft switch, per unit of g: directions are mixed if G_k is between λ − 1/β and λ. None: the
            hard switch of the theorems, the limit β → ∞.
    """

    soft: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("soft", above=0)

    @property
    def switches(self) -> bool:  # type: ignore[override]
        """Whether every round descends either on the objective or on the constraint."""
        return self.soft is None

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Weight all clients equally, and switch on the criterion."""
        objective_weights = equal_weights(reports.objective, reports.has_objective, reports.stand_for)
        pair_weights = equal_weights(reports.constraint, reports.has_constraint, reports.stand_for)
        criterion = self.measure(reports)
        if self.soft is None:
            return switch(self, reports, criterion, objective_weights, pair_weights), state
        xp = array_namespace(criterion)
        share = 1 + self.soft * (criterion - self.switch_at)
        share = xp.where(share < 0, xp.zeros_like(share), xp.where(share > 1, xp.ones_like(share), share))
        return descend_on_both(self, reports, criterion, (1 - share) * objective_weights, share * pair_weights), state
