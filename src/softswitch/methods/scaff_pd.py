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
    """Of every client.

    Attributes:
        logits: log λ.
        last: f_i of its last report.
        begun: whether there was one.
    """

    logits: Float[Array, " n"]
    last: Float[Array, " n"]
    begun: Bool[Array, " n"]


@dataclass(frozen=True, kw_only=True)
class ScaffPD(Method):
    """Scaff-PD (Yu, Karimireddy, Ma, Jordan; openreview mxJEX6w5uN) for the worst client, with an entropic dual step.

        s_i = f_i + θ (f_i − f_i of its last report);   λ_i ← λ_i exp(σ s_i) / Σ
        w_{k+1} = w_k − η Σ_i λ_i u_i(f_i),   local steps with control variates

    for those who take part. There is no constraint.

    Attributes:
        dual_step_size: σ > 0.
        carry: θ >= 0, how far the change of a loss is carried on.
        at_clients: the control variates; None: plain local steps.
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
        self._set("dual_step_size", checks.real_number("dual_step_size", self.dual_step_size, above=0))
        self._set("carry", checks.real_number("carry", self.carry, at_least=0))

    def begin(self, clients: int, constraints: int) -> Weighed:
        """All alike."""
        zero = jnp.zeros(clients, jnp.result_type(float))
        return Weighed(zero, zero, zero > 0)

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Let the weights climb, and weigh by them."""
        own, having = Weighed(*(part[reports.clients] for part in state)), reports.has_objective
        told = jnp.where(having, reports.objective, 0)
        ahead = told + self.carry * jnp.where(own.begun, told - own.last, 0)
        climbed = own.logits + self.dual_step_size * jnp.where(having, ahead, 0)
        logits = state.logits.at[reports.clients].set(climbed.astype(state.logits.dtype))
        logits = logits - logits.max()
        weights = jax.nn.softmax(jnp.where(having, logits[reports.clients], -jnp.inf)).astype(told.dtype)
        after = Weighed(
            logits,
            state.last.at[reports.clients].set(jnp.where(having, told, own.last).astype(state.last.dtype)),
            state.begun.at[reports.clients].set(own.begun | having),
        )
        return on_objective(self, reports, jnp.where(having.any(), weights, 0)), after
