"""Federated averaging: equal weights and no constraint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softswitch.methods.comparison import ComparisonMethod, descend
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.weighting import equal_weights


@dataclass(frozen=True, kw_only=True)
class FedAvg(ComparisonMethod):
    """Federated averaging (McMahan et al., 2017): minimise the clients' mean objective.

        w_{k+1} = w_k − η (1/m) Σ_i u_i(f_i)

    The constraint is evaluated but not enforced.
    """

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Weight all clients equally."""
        weights = equal_weights(reports.objective, reports.has_objective, reports.stand_for)
        return descend(self, reports, weights), state
