"""Average Switching Gradient: plain means over the clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softswitch.method.messages import Decision, Reports
from softswitch.method.rules.base import Rule
from softswitch.method.rules.switching import switch
from softswitch.method.weighting import equal_weights


@dataclass(frozen=True, kw_only=True)
class AverageSGM(Rule):
    """Average ("standard") Switching Gradient Method: SoftmaxSGM at α = 0.

        G_k = (1/m) Σ_i g_i
        w_{k+1} = w_k − η (1/m) Σ_i u_i(f_i)   if G_k <= λ
        w_{k+1} = w_k − η (1/m) Σ_i u_i(g_i)   otherwise

    It meets the constraint on average; a client may violate it by any amount.
    """

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Weigh all clients equally, and switch on the criterion."""
        objective_weights = equal_weights(reports.objective, reports.has_objective, reports.stand_for)
        pair_weights = equal_weights(reports.constraint, reports.has_constraint, reports.stand_for)
        return switch(self, reports, self.measure(reports), objective_weights, pair_weights), state
