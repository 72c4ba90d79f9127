"""Federated averaging: equal weights and no constraint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from array_api_compat import array_namespace

from softswitch.methods.base import Method
from softswitch.methods.messages import Decision, LocalLoss, Reports
from softswitch.methods.weighting import equal_weights


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Federated averaging (McMahan et al., 2017): minimise the clients' mean objective.

        w_{k+1} = w_k − η (1/m) Σ_i u_i(f_i)

    The constraint is evaluated but not enforced.
    """

    switches: ClassVar[bool] = False

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Weight all clients equally."""
        weights = equal_weights(reports.objective, reports.has_objective, reports.stand_for)
        return on_objective(self, reports, weights), state


def on_objective(method: Method, reports: Reports, weights: Any) -> Decision:
    """Return the decision to descend on the objective, regardless of the constraint."""
    criterion = method.measure(reports)
    none = array_namespace(reports.constraint).zeros_like(reports.constraint)
    return Decision(
        criterion=criterion,
        feasible=method.passes(criterion, reports),
        weights=weights,
        local_loss=LocalLoss(1.0, none, 0.0, method.tolerance),
    )
