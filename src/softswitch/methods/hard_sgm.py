"""Hard switching gradient method: the worst client only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from softswitch.methods.base import Method, switch
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.weighting import hardmax_weights, maximum


@dataclass(frozen=True, kw_only=True)
class HardSGM(Method):
    """Hard Switching Gradient Method: SoftmaxSGM as α → ∞.

        G_k = max_i g_i
        w_{k+1} = w_k − η u_i(f_i),  i = argmax f   if G_k <= λ
        w_{k+1} = w_k − η u_i(g_i),  i = argmax g   otherwise

    Tied clients share the weight equally, as in the limit.
    """

    own_criterion: ClassVar[str] = "max"
    aims_at: ClassVar[str] = "max"

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Give all weight to the worst client, and switch on the criterion."""
        objective_weights = hardmax_weights(reports.objective, reports.has_objective)
        pair_weights = hardmax_weights(reports.constraint, reports.has_constraint)
        # The limit of the softmax mean is the maximum.
        criterion = maximum(*reports.pairs) if self.criterion == "softmax" else self.measure(reports)
        return switch(self, reports, criterion, objective_weights, pair_weights), state
