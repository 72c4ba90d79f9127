"""The penalty method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from softswitch.methods.comparison import NONNEGATIVE, ComparisonMethod, descend
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.weighting import equal_weights


@dataclass(frozen=True, kw_only=True)
class Penalty(ComparisonMethod):
    """Penalty method: descend on objective and constraint together, averaged over clients.

        w_{k+1} = w_k − η (1/m) Σ_i u_i(f_i + ρ max(0, g_i − ε))

    A missing function (−∞) adds nothing to a client's local loss; the weight stays 1/m. The method does not switch; the
    criterion only determines which rounds count as feasible.

    Attributes:
        penalty: ρ >= 0, the price of a unit of violation, in units of f per unit of g.
    """

    penalty: float = field(metadata=NONNEGATIVE)

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Average the clients' penalised losses."""
        weights = equal_weights(reports.objective, reports.mask, reports.stand_for)
        return descend(self, reports, weights, penalty=self.penalty), state
