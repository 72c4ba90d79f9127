"""q-FedAvg: clients weigh by a power of their loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from softswitch.methods.base import Method
from softswitch.methods.fed_avg import on_objective
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.weighting import equal_weights
from softswitch.support import checks
from softswitch.support.arrays import weighted_sum

LEAST = 1e-10
"""Losses are raised by this, so that their powers have derivatives."""


@dataclass(frozen=True, kw_only=True)
class QFedAvg(Method):
    """q-FedAvg (Li et al., arXiv 1905.10497): the mean of f_i^{q+1}/(q+1), with a step that adapts to its curvature.

        Δ_i = f_i^q u_i,   h_i = q f_i^{q−1} ‖u_i‖² + L f_i^q,   L = 1/η
        w_{k+1} = w_k − Σ_i Δ_i / Σ_i h_i

    Losses must not be negative. There is no constraint. With q = 0 it is ``FedAvg``.

    Attributes:
        power: q >= 0.
    """

    power: float
    switches: ClassVar[bool] = False
    aims_at: ClassVar[str] = "max"
    sees_each: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("power", checks.real_number("power", self.power, at_least=0))

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """All alike, until the directions are there."""
        weights = equal_weights(reports.objective, reports.has_objective, reports.stand_for)
        return on_objective(self, reports, weights), state

    def combine(self, k: Any, reports: Reports, decision: Decision, directions: Any) -> Any:
        """η⁻¹ Σ Δ_i / Σ h_i, so that a step of η along it is the method's."""
        # A batch's regret f − f* may be below 0, which has no power.
        loss = jnp.maximum(jnp.where(decision.weights > 0, reports.objective, 0), 0) + LEAST
        curved = jnp.power(loss, self.power)
        squares = sum(jnp.square(u.reshape(u.shape[0], -1)).sum(axis=1) for u in jax.tree.leaves(directions))
        inverse = 1 / self.step_size_at(k)
        steep = self.power * jnp.power(loss, self.power - 1) * squares + inverse * curved
        total = jnp.dot(decision.weights, steep)
        return weighted_sum(directions, inverse * decision.weights * curved / jnp.where(total > 0, total, 1))
