"""The augmented Lagrangian, with a multiplier update in every round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from softswitch.methods import comparison
from softswitch.methods.comparison import NONNEGATIVE, POSITIVE
from softswitch.methods.messages import Decision, Reports


@dataclass(frozen=True, kw_only=True)
class AugmentedLagrangian(comparison.MultiplierMethod):
    """Stochastic augmented Lagrangian, one multiplier per client and constraint.

        w_{k+1} = w_k − η (Σ_i p_i u_i(f_i) + Σ_i [μ_i + ρ(g_i − ε)]₊ u_i(g_i))
        μ_i ← max(0, μ_i + η_d (g_i − ε))   for participating clients

    This is the gradient of f + (1/2ρ) Σ_i ([μ_i + ρ(g_i − ε)]₊² − μ_i²), with g_i fixed at the round's reports during
    the local steps.

    Attributes:
        penalty: ρ >= 0; 0 gives gradient ascent on the multipliers.
        dual_step_size: η_d > 0.
        multiplier: μ_0 >= 0.
        alpha: α of p = softmax(α f), which targets the worst client. None: the clients' mean.
    """

    penalty: float = field(metadata=NONNEGATIVE)
    dual_step_size: float = field(metadata=POSITIVE)
    alpha: float | None = field(default=None, metadata=NONNEGATIVE)

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Descend on the augmented Lagrangian, then update the participants' multipliers."""
        error, multipliers = comparison.excess(self, reports), state[reports.clients]
        penalised = jnp.maximum(multipliers + self.penalty * error, 0)
        decision = comparison.descend_on_lagrangian(self, self.alpha, reports, penalised, len(state))
        updated = jnp.maximum(multipliers + self.dual_step_size * error, 0)
        return decision, comparison.update_entries(state, reports, updated, reports.has_constraint)
