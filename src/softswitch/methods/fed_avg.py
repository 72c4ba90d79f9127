"""Federated averaging: no constraint, and no client's objective above the others'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from array_api_compat import array_namespace

from softswitch.methods.base import Method
from softswitch.methods.messages import Decision, LocalLoss, Reports
from softswitch.methods.weighting import equal_weights


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Federated averaging (McMahan et al., 2017): the clients' mean objective, and nothing else.

        w_{k+1} = w_k − η (1/m) Σ_i u_i(f_i)

    The constraint is looked at and never descended on: what a model has that nobody bounded.
    """

    switches: ClassVar[bool] = False

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Weigh all alike."""
        weights = equal_weights(reports.objective, reports.has_objective, reports.stand_for)
        return on_objective(self, reports, weights), state


def on_objective(method: Method, reports: Reports, weights: Any) -> Decision:
    """A round that descends on the objective whatever the constraint says."""
    criterion = method.measure(reports)
    none = array_namespace(reports.constraint).zeros_like(reports.constraint)
    return Decision(
        criterion=criterion,
        feasible=method.passes(criterion, reports),
        weights=weights,
        local_loss=LocalLoss(1.0, none, 0.0, method.tolerance),
    )
