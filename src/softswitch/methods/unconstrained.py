"""Averaging methods that weight the clients by their objectives and ignore the constraint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from optax.projections import projection_simplex

from softswitch.methods.base import ComparisonMethod, descend, of_participants, update_entries
from softswitch.methods.client_state import AtClients, ControlVariates
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.weighting import equal_weights, softmax_weights
from softswitch.support import checks
from softswitch.support.arrays import weighted_sum
from softswitch.support.checks import NONNEGATIVE, POSITIVE

LEAST = 1e-10  # offset added to the losses of ``QFedAvg``, so that powers of 0 are finite
CONTROL_VARIATES = ControlVariates()  # default of ``ScaffPD.at_clients``


@dataclass(frozen=True, kw_only=True)
class FedAvg(ComparisonMethod):
    """Federated averaging (McMahan et al., 2017): minimise the clients' mean objective.

        w_{k+1} = w_k − η (1/m) Σ_i u_i(f_i)

    The constraint is evaluated but not enforced.
    """

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Return the decision to descend on the objective with equal weights, and the unchanged state."""
        weights = equal_weights(reports.objective, reports.has_objective, reports.stand_for)
        return descend(self, reports, weights), state


@dataclass(frozen=True, kw_only=True)
class TERM(ComparisonMethod):
    """Tilted empirical risk minimisation (Li et al., arXiv 2007.01162) over clients.

        w_{k+1} = w_k − η Σ_i p_i u_i(f_i),   p = softmax(t f)

    This is the gradient of (1/t) log (1/m) Σ_i exp(t f_i): ``SoftmaxSGM`` without the switch.

    Attributes:
        tilt: t >= 0, per unit of f; 0 is ``FedAvg``.
    """

    tilt: float = field(metadata=NONNEGATIVE)
    aims_at: ClassVar[str] = "max"

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Return the decision to descend on the objective with weights softmax(t f), and the unchanged state."""
        return descend(self, reports, softmax_weights(reports.objective, self.tilt, reports.has_objective)), state


@dataclass(frozen=True, kw_only=True)
class QFedAvg(FedAvg):
    """q-FedAvg (Li et al., arXiv 1905.10497): minimise the mean of f_i^{q+1}/(q+1), with a curvature-adapted step.

        Δ_i = f_i^q u_i,   h_i = q f_i^{q−1} ‖u_i‖² + L f_i^q,   L = 1/η
        w_{k+1} = w_k − Σ_i Δ_i / Σ_i h_i

    Losses must not be negative. The constraint is ignored.

    Attributes:
        power: Exponent q >= 0. A larger q favours clients with a large loss; 0 is ``FedAvg``.
    """

    power: float = field(metadata=NONNEGATIVE)
    aims_at: ClassVar[str] = "max"
    sees_each: ClassVar[bool] = True

    def combine(self, k: Any, reports: Reports, decision: Decision, directions: Any) -> Any:
        """Return η⁻¹ Σ Δ_i / Σ h_i, the direction along which a server step of size η is that of q-FedAvg."""
        # The regret f − f* on a batch may be negative.
        loss = jnp.maximum(jnp.where(decision.weights > 0, reports.objective, 0), 0) + LEAST
        powers = jnp.power(loss, self.power)
        squares = sum(jnp.square(u.reshape(u.shape[0], -1)).sum(axis=1) for u in jax.tree.leaves(directions))
        inverse = 1 / self.step_size_at(k)
        curvature = self.power * jnp.power(loss, self.power - 1) * squares + inverse * powers
        total = jnp.dot(decision.weights, curvature)
        return weighted_sum(directions, inverse * decision.weights * powers / jnp.where(total > 0, total, 1))


@dataclass(frozen=True, kw_only=True)
class Agnostic(ComparisonMethod):
    """Agnostic federated learning (AFL, arXiv 1902.00146), and with sampled clients DRFA (arXiv 2102.12660).

        λ ← Π_Δ(λ + γ_d v),   v_i = (n/m) f_i(w_k) for reporting clients, else 0
        w_{k+1} = w_k − η Σ_i λ_i u_i(f_i)                           AFL
        w_{k+1} = w_k − η (1/m) Σ_j u_{i_j}(f_{i_j}),  i_j ~ λ       DRFA

    DRFA evaluates the losses at a random local iterate of the round; this implementation uses the first, w_k. The
    constraint is ignored.

    Attributes:
        dual_step_size: γ_d > 0, the step size of the client weights λ.
        draws: Whether the updating clients are sampled by λ, with replacement (DRFA). Otherwise the reporting clients
            are weighted by λ (AFL). Default: False.
    """

    dual_step_size: float = field(metadata=POSITIVE)
    draws: bool = False
    aims_at: ClassVar[str] = "max"
    goes_on: ClassVar[bool] = True
    knows_clients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_instance("draws", self.draws, bool)

    @property
    def draws_clients(self) -> bool:  # type: ignore[override]
        """Whether the method samples the clients that compute updates: ``draws`` (DRFA)."""
        return self.draws

    def init(self, clients: int, constraints: int) -> Float[Array, " n"]:
        """Return λ_i = 1/n for every client."""
        return jnp.full(clients, 1 / clients, jnp.result_type(float))

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Return the decision with clients weighted or sampled by λ, and λ after an ascent step."""
        n, m = len(state), reports.objective.shape[0]
        count = jnp.maximum(reports.has_objective.sum(), 1)
        losses = jnp.where(reports.has_objective, reports.objective, 0) * (n / count)
        after = projection_simplex(state.at[reports.clients].add(self.dual_step_size * losses.astype(state.dtype)))
        if self.draws:
            drawn = jax.random.choice(reports.key, n, (m,), p=state).astype(jnp.int32)
            decision = descend(self, reports, jnp.full(m, 1 / m, reports.objective.dtype))
            return decision._replace(clients=drawn), after
        weights = jnp.where(reports.has_objective, state[reports.clients], 0).astype(reports.objective.dtype)
        total = weights.sum()
        equal = reports.has_objective / count.astype(weights.dtype)
        return descend(self, reports, jnp.where(total > 0, weights / jnp.where(total > 0, total, 1), equal)), after


@dataclass(frozen=True, kw_only=True)
class ScaffPD(ComparisonMethod):
    """Scaff-PD (Yu, Karimireddy, Ma, Jordan; openreview mxJEX6w5uN) for the worst client, with an entropic dual step.

        s_i = f_i + θ (f_i − f_i of its last report);   λ_i ← λ_i exp(σ s_i) / Σ
        w_{k+1} = w_k − η Σ_i λ_i u_i(f_i),   local steps with control variates

    for participating clients. The constraint is ignored.

    Attributes:
        dual_step_size: σ > 0, the step size of the client weights λ.
        carry: θ >= 0, the extrapolation factor of a loss. Default: 1.
        at_clients: State of the local steps. Default: ``ControlVariates()``. None: plain local steps.
    """

    dual_step_size: float = field(metadata=POSITIVE)
    carry: float = field(default=1.0, metadata=NONNEGATIVE)
    at_clients: AtClients | None = CONTROL_VARIATES
    aims_at: ClassVar[str] = "max"
    goes_on: ClassVar[bool] = True
    knows_clients: ClassVar[bool] = True

    def init(self, clients: int, constraints: int) -> Any:
        """Return log λ_i = 0, a last report of 0, and False (no report so far) for every client."""
        zero = jnp.zeros(clients, jnp.result_type(float))
        return zero, zero, zero > 0

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Return the decision with the weights λ after an ascent step, and the new state."""
        (logits, last, begun), has_loss = of_participants(state, reports), reports.has_objective
        losses = jnp.where(has_loss, reports.objective, 0)
        extrapolated = losses + self.carry * jnp.where(begun, losses - last, 0)
        updated = logits + self.dual_step_size * jnp.where(has_loss, extrapolated, 0)
        logits, *reported = update_entries(state, reports, (updated, losses, jnp.ones_like(begun)), has_loss)
        logits = logits - logits.max()
        weights = jax.nn.softmax(jnp.where(has_loss, logits[reports.clients], -jnp.inf)).astype(losses.dtype)
        return descend(self, reports, jnp.where(has_loss.any(), weights, 0)), (logits, *reported)
