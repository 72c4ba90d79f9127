"""Scaff-PD: an extrapolated dual step and control variates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from softswitch.methods.base import Method
from softswitch.methods.client_state import AtClients, ControlVariates
from softswitch.methods.fed_avg import on_objective
from softswitch.methods.messages import Decision, Reports
from softswitch.support import checks

AGAINST_DRIFT = ControlVariates()


class Weighed(NamedTuple):
    """State of every client.

    Attributes:
        logits: log λ.
        last: f_i of its last report.
        begun: Whether it has reported before.
    """

    logits: Float[Array, " n"]
    last: Float[Array, " n"]
    begun: Bool[Array, " n"]


@dataclass(frozen=True, kw_only=True)
class ScaffPD(Method):
    """Scaff-PD (Yu, Karimireddy, Ma, Jordan; openreview mxJEX6w5uN) for the worst client, with an entropic dual step.

        s_i = f_i + θ (f_i − f_i of its last report);   λ_i ← λ_i exp(σ s_i) / Σ
        w_{k+1} = w_k − η Σ_i λ_i u_i(f_i),   local steps with control variates

    for participating clients. The constraint is ignored.

    Attributes:
        dual_step_size: σ > 0.
        carry: θ >= 0, the extrapolation factor of a loss.
        at_clients: The control variates. None: plain local steps.
    """

    dual_step_size: float
    carry: float = 1.0
    at_clients: AtClients | None = AGAINST_DRIFT
    aims_at: ClassVar[str] = "max"
    goes_on: ClassVar[bool] = True
    switches: ClassVar[bool] = False
    knows_clients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("dual_step_size", checks.check_real("dual_step_size", self.dual_step_size, above=0))
        self._set("carry", checks.check_real("carry", self.carry, minimum=0))

    def begin(self, clients: int, constraints: int) -> Weighed:
        """Return equal weights."""
        zero = jnp.zeros(clients, jnp.result_type(float))
        return Weighed(zero, zero, zero > 0)

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Take an ascent step on the weights, and apply them."""
        before, has_loss = Weighed(*(part[reports.clients] for part in state)), reports.has_objective
        losses = jnp.where(has_loss, reports.objective, 0)
        extrapolated = losses + self.carry * jnp.where(before.begun, losses - before.last, 0)
        updated = before.logits + self.dual_step_size * jnp.where(has_loss, extrapolated, 0)
        logits = state.logits.at[reports.clients].set(updated.astype(state.logits.dtype))
        logits = logits - logits.max()
        weights = jax.nn.softmax(jnp.where(has_loss, logits[reports.clients], -jnp.inf)).astype(losses.dtype)
        after = Weighed(
            logits,
            state.last.at[reports.clients].set(jnp.where(has_loss, losses, before.last).astype(state.last.dtype)),
            state.begun.at[reports.clients].set(before.begun | has_loss),
        )
        return on_objective(self, reports, jnp.where(has_loss.any(), weights, 0)), after
