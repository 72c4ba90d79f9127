"""The penalty method, a baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from array_api_compat import array_namespace

from softswitch.methods.base import Method
from softswitch.methods.messages import Decision, LocalLoss, Reports
from softswitch.methods.weighting import equal_weights
from softswitch.support import checks


@dataclass(frozen=True, kw_only=True)
class Penalty(Method):
    """Penalty method: every round improves objective and constraint together, clients averaged.

        w_{k+1} = w_k − η (1/m) Σ_i u_i(f_i + ρ max(0, g_i − ε))

    What a client does not have (−∞) adds nothing to its local loss; 1/m stays. The method never switches; its criterion
    only tells which rounds count as feasible.

    Attributes:
        penalty: ρ >= 0, the price of a unit of violation, in units of f per unit of g.
    """

    penalty: float
    switches: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("penalty", checks.real_number("penalty", self.penalty, at_least=0))

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Average the clients' penalised losses."""
        criterion = self.measure(reports)
        no_mix = array_namespace(reports.constraint).zeros_like(reports.constraint)
        decision = Decision(
            criterion=criterion,
            feasible=self.passes(criterion, reports),
            weights=equal_weights(reports.objective, reports.mask, reports.stand_for),
            local_loss=LocalLoss(1.0, no_mix, self.penalty, self.tolerance),
        )
        return decision, state
