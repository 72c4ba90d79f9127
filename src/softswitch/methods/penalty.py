"""The penalty method."""

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
    """Penalty method: descend on objective and constraint together, averaged over clients.

        w_{k+1} = w_k − η (1/m) Σ_i u_i(f_i + ρ max(0, g_i − ε))

    A missing function (−∞) adds nothing to a client's local loss; the weight stays 1/m. The method does not switch; the
    criterion only determines which rounds count as feasible.

    Attributes:
        penalty: ρ >= 0, the price of a unit of violation, in units of f per unit of g.
    """

    penalty: float
    switches: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("penalty", checks.check_real("penalty", self.penalty, minimum=0))

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
