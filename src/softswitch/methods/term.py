"""Tilted empirical risk: softmax weights on the objective, no constraint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from softswitch.methods.comparison import NONNEGATIVE, ComparisonMethod, descend
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.weighting import softmax_weights


@dataclass(frozen=True, kw_only=True)
class TERM(ComparisonMethod):
    """Tilted empirical risk minimisation (Li et al., arXiv 2007.01162) over clients.

        w_{k+1} = w_k − η Σ_i p_i u_i(f_i),   p = softmax(t f)

    This is the gradient of (1/t) log (1/m) Σ_i exp(t f_i): ``SoftmaxSGM`` without the switch.

    Attributes:
        tilt: t >= 0, per unit of f; 0 is ``FedAvg``.
    """

    tilt: float = field(metadata=NONNEGATIVE)
    aims_at: ClassVar[str] = "max"

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Weight by the softmax of the objectives."""
        return descend(self, reports, softmax_weights(reports.objective, self.tilt, reports.has_objective)), state
