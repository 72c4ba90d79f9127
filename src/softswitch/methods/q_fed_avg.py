"""q-FedAvg: clients weighted by a power of their loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from softswitch.methods.comparison import NONNEGATIVE
from softswitch.methods.fed_avg import FedAvg
from softswitch.methods.messages import Decision, Reports
from softswitch.support.arrays import weighted_sum

LEAST = 1e-10
"""Offset of the losses that makes their powers differentiable."""


@dataclass(frozen=True, kw_only=True)
class QFedAvg(FedAvg):
    """q-FedAvg (Li et al., arXiv 1905.10497): minimise the mean of f_i^{q+1}/(q+1), with a curvature-adapted step.

        Δ_i = f_i^q u_i,   h_i = q f_i^{q−1} ‖u_i‖² + L f_i^q,   L = 1/η
        w_{k+1} = w_k − Σ_i Δ_i / Σ_i h_i

    Losses must not be negative. The constraint is ignored. With q = 0 it is ``FedAvg``.

    Attributes:
        power: q >= 0.
    """

    power: float = field(metadata=NONNEGATIVE)
    aims_at: ClassVar[str] = "max"
    sees_each: ClassVar[bool] = True

    def combine(self, k: Any, reports: Reports, decision: Decision, directions: Any) -> Any:
        """Return η⁻¹ Σ Δ_i / Σ h_i, along which a step of η is the method's step."""
        # The regret f − f* on a batch may be negative.
        loss = jnp.maximum(jnp.where(decision.weights > 0, reports.objective, 0), 0) + LEAST
        powers = jnp.power(loss, self.power)
        squares = sum(jnp.square(u.reshape(u.shape[0], -1)).sum(axis=1) for u in jax.tree.leaves(directions))
        inverse = 1 / self.step_size_at(k)
        curvature = self.power * jnp.power(loss, self.power - 1) * squares + inverse * powers
        total = jnp.dot(decision.weights, curvature)
        return weighted_sum(directions, inverse * decision.weights * powers / jnp.where(total > 0, total, 1))
