"""Scaff-PD: an extrapolated dual step and control variates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from softswitch.methods import comparison
from softswitch.methods.client_state import AtClients, ControlVariates
from softswitch.methods.messages import Decision, Reports

AGAINST_DRIFT = ControlVariates()


@dataclass(frozen=True, kw_only=True)
class ScaffPD(comparison.ComparisonMethod):
    """Scaff-PD (Yu, Karimireddy, Ma, Jordan; openreview mxJEX6w5uN) for the worst client, with an entropic dual step.

        s_i = f_i + θ (f_i − f_i of its last report);   λ_i ← λ_i exp(σ s_i) / Σ
        w_{k+1} = w_k − η Σ_i λ_i u_i(f_i),   local steps with control variates

    for participating clients. The constraint is ignored.

    Attributes:
        dual_step_size: σ > 0.
        carry: θ >= 0, the extrapolation factor of a loss.
        at_clients: The control variates. None: plain local steps.
    """

    dual_step_size: float = field(metadata=comparison.POSITIVE)
    carry: float = field(default=1.0, metadata=comparison.NONNEGATIVE)
    at_clients: AtClients | None = AGAINST_DRIFT
    aims_at: ClassVar[str] = "max"
    goes_on: ClassVar[bool] = True
    knows_clients: ClassVar[bool] = True

    def begin(self, clients: int, constraints: int) -> Any:
        """Return log λ, f_i of the last report, and whether there was one, for every client."""
        zero = jnp.zeros(clients, jnp.result_type(float))
        return zero, zero, zero > 0

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Take an ascent step on the weights, and apply them."""
        (logits, last, begun), has_loss = comparison.of_participants(state, reports), reports.has_objective
        losses = jnp.where(has_loss, reports.objective, 0)
        extrapolated = losses + self.carry * jnp.where(begun, losses - last, 0)
        updated = logits + self.dual_step_size * jnp.where(has_loss, extrapolated, 0)
        after = (updated, losses, jnp.ones_like(begun))
        logits, *reported = comparison.update_entries(state, reports, after, has_loss)
        logits = logits - logits.max()
        weights = jax.nn.softmax(jnp.where(has_loss, logits[reports.clients], -jnp.inf)).astype(losses.dtype)
        return comparison.descend(self, reports, jnp.where(has_loss.any(), weights, 0)), (logits, *reported)
