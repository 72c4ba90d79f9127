"""Primal-dual methods: descent on the Lagrangian, and updates of its multipliers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax.numpy as jnp
from array_api_compat import array_namespace
from jaxtyping import Array, Float

from softswitch.methods.base import ComparisonMethod, Method, descend, descend_on_both, of_participants, update_entries
from softswitch.methods.client_state import AtClients, Consensus
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.weighting import equal_weights, softmax_or_equal
from softswitch.support import checks
from softswitch.support.checks import NONNEGATIVE, POSITIVE, limits

CONSENSUS = Consensus()  # default of ``ProxAL.at_clients``


@dataclass(frozen=True, kw_only=True)
class PrimalDual(ComparisonMethod):
    """Primal-dual method: descent on the averaged Lagrangian, ascent on its multipliers.

        w_{k+1} = w_k − η (1/m) Σ_i u_i(f_i + μ_k (g_i − ε))
        μ_{k+1} = max(0, μ_k + η_d (mean_i g_i − ε)),   one μ per constraint; the mean is over clients with a value

    A missing function (−∞) adds nothing to a client's local loss; the weight stays 1/m. The method does not switch; the
    criterion only determines which rounds count as feasible.

    Attributes:
        multiplier: μ_0 >= 0, the initial multiplier (the paper's λ_0), in units of f per unit of g.
        dual_step_size: η_d > 0, the step size of the multipliers.
    """

    multiplier: float = field(metadata=NONNEGATIVE)
    dual_step_size: float = field(metadata=POSITIVE)
    goes_on: ClassVar[bool] = True

    def init(self, clients: int, constraints: int) -> Any:
        """Return the initial multipliers, μ_0 for each constraint."""
        return jnp.full((constraints,), self.multiplier, dtype=jnp.result_type(float))

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Return the decision to descend on the mean of the clients' Lagrangians, and the updated multipliers."""
        xp, values, known = array_namespace(reports.constraint), reports.constraint, reports.has_constraint
        count = xp.sum(xp.astype(known, values.dtype), axis=0)
        total = xp.sum(xp.where(known, values, xp.zeros_like(values)), axis=0)
        mean = total / xp.where(count > 0, count, xp.ones_like(count))
        ascent = state + self.dual_step_size * (mean - self.tolerance)
        ascent = xp.where(ascent > 0, ascent, xp.zeros_like(ascent))
        weights = equal_weights(reports.objective, reports.mask, reports.stand_for)
        # μ·(g − ε) and μ·g have the same gradient, so the constant is omitted.
        decision = descend(self, reports, weights, constraint=xp.zeros_like(values) + state)
        return decision, xp.where(count > 0, ascent, state)


@dataclass(frozen=True, kw_only=True)
class MultiplierMethod(ComparisonMethod):
    """Base class of methods with a multiplier, initially ``multiplier`` >= 0, for every client and constraint."""

    multiplier: float = field(default=0.0, metadata=NONNEGATIVE)
    own_criterion: ClassVar[str] = "max"
    goes_on: ClassVar[bool] = True
    knows_clients: ClassVar[bool] = True

    def init(self, clients: int, constraints: int) -> Any:
        """Return the initial multipliers, μ_0 for every client and constraint."""
        return jnp.full((clients, constraints), self.multiplier, jnp.result_type(float))


def excess(method: Method, reports: Reports) -> Float[Array, "m c"]:
    """Return g_ic − ε, or 0 if client i did not report constraint c."""
    return jnp.where(reports.has_constraint, reports.constraint - method.tolerance, 0)


def descend_on_lagrangian(method: Any, reports: Reports, multipliers: Float[Array, "m c"], clients: int) -> Decision:
    """Return the decision to descend on Σ_i p_i f_i + Σ_ic μ_ic g_ic, an estimate of the sum over all n clients.

    p = softmax(α f), or equal weights if the method's α is None. ``multipliers`` are those of the m participants.
    """
    objective = softmax_or_equal(reports.objective, method.alpha, reports.has_objective, reports.stand_for)
    count = jnp.maximum(reports.mask.sum(), 1).astype(objective.dtype)
    constraint = jnp.where(reports.has_constraint, multipliers, 0) * (clients / count)
    return descend_on_both(method, reports, method.measure(reports), objective, constraint.astype(objective.dtype))


@dataclass(frozen=True, kw_only=True)
class AugmentedLagrangian(MultiplierMethod):
    """Stochastic augmented Lagrangian, one multiplier per client and constraint.

        w_{k+1} = w_k − η (Σ_i p_i u_i(f_i) + Σ_i [μ_i + ρ(g_i − ε)]₊ u_i(g_i))
        μ_i ← max(0, μ_i + η_d (g_i − ε))   for participating clients

    This is the gradient of f + (1/2ρ) Σ_i ([μ_i + ρ(g_i − ε)]₊² − μ_i²), with g_i fixed at the round's reports during
    the local steps.

    Attributes:
        penalty: ρ >= 0, the weight of the quadratic term; 0 gives gradient descent and ascent on the Lagrangian.
        dual_step_size: η_d > 0, the step size of the multipliers.
        multiplier: μ_0 >= 0, the initial multiplier. Default: 0.
        alpha: α >= 0 of p = softmax(α f), which targets the worst client. Default: None, the clients' mean.
    """

    penalty: float = field(metadata=NONNEGATIVE)
    dual_step_size: float = field(metadata=POSITIVE)
    alpha: float | None = field(default=None, metadata=NONNEGATIVE)

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Return the decision to descend on the augmented Lagrangian, and the participants' updated multipliers."""
        error, multipliers = excess(self, reports), state[reports.clients]
        penalised = jnp.maximum(multipliers + self.penalty * error, 0)
        decision = descend_on_lagrangian(self, reports, penalised, len(state))
        updated = jnp.maximum(multipliers + self.dual_step_size * error, 0)
        return decision, update_entries(state, reports, updated, reports.has_constraint)


@dataclass(frozen=True, kw_only=True)
class NuPI(MultiplierMethod):
    """Primal–dual with the νPI controller (Sohrabi et al., arXiv 2406.04558), one multiplier per client and constraint.

        w_{k+1} = w_k − η (Σ_i p_i u_i(f_i) + Σ_i μ_i u_i(g_i))
        e_i = g_i − ε;   μ_i ← max(0, μ_i + κ_i e_i + κ_p (1 − ν)(e_i − ξ_i));   ξ_i ← ν ξ_i + (1 − ν) e_i

    for participating clients. The first error changes μ_i by κ_i e_i only and leaves ξ_i at 0. Apart from the max, μ_i
    is then μ_0 + κ_i Σ e_i + κ_p ξ_i, a PI controller. With κ_p = 0 it is gradient ascent.

    Attributes:
        multiplier: μ_0 >= 0, the initial multiplier. Default: 0.
        integral: κ_i > 0, the integral gain: the step size of the multipliers.
        proportional: κ_p >= 0, the proportional gain, which damps oscillation. Default: 0.
        smoothing: ν in [0, 1), the decay rate of the running mean ξ of errors. Default: 0.
        alpha: α >= 0 of p = softmax(α f), which targets the worst client. Default: None, the clients' mean, as
            published.
    """

    integral: float = field(metadata=POSITIVE)
    proportional: float = field(default=0.0, metadata=NONNEGATIVE)
    smoothing: float = field(default=0.0, metadata=limits(minimum=0, below=1))
    alpha: float | None = field(default=None, metadata=NONNEGATIVE)

    def init(self, clients: int, constraints: int) -> Any:
        """Return μ_0, ξ = 0, and False (no error so far) for every client and constraint."""
        multiplier = super().init(clients, constraints)
        zero = jnp.zeros_like(multiplier)
        return multiplier, zero, zero > 0

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Return the decision to descend on the Lagrangian, and the state with updated multipliers."""
        error, (multiplier, mean, begun) = excess(self, reports), of_participants(state, reports)
        decision = descend_on_lagrangian(self, reports, multiplier, len(state[0]))
        change = jnp.where(begun, (1 - self.smoothing) * (error - mean), 0)
        updated = jnp.maximum(multiplier + self.integral * error + self.proportional * change, 0)
        after = (updated, mean + change, jnp.ones_like(begun))
        return decision, update_entries(state, reports, after, reports.has_constraint)


@dataclass(frozen=True, kw_only=True)
class ProxAL(MultiplierMethod):
    """Federated proximal augmented Lagrangian method, after He, Peng and Sun (arXiv 2310.10117).

        inner rounds:   h_i = f_i + [μ_i + β(g_i − ε)]₊ g_i at every client, one ADMM consensus iteration per round
        every T rounds: μ_i ← max(0, μ_i + β (g_i − ε))

    g_i is fixed at its report during the local steps. The inner loop has a fixed length instead of a tolerance. ADMM's
    quadratic term replaces the proximal term of the outer loop. Plain server steps with η = 1 give the ADMM iterate.

    Attributes:
        penalty: β > 0, the weight of the quadratic term and the step size of the multipliers.
        inner: T >= 1, the number of rounds per inner loop. Default: 10.
        multiplier: μ_0 >= 0, the initial multiplier. Default: 0.
        at_clients: The ADMM iteration at the clients. Default: ``Consensus()``.
    """

    penalty: float = field(metadata=POSITIVE)
    inner: int = 10
    at_clients: AtClients | None = CONSENSUS

    def __post_init__(self) -> None:
        super().__post_init__()
        if not checks.is_array(self.inner):  # a traced value was checked before
            object.__setattr__(self, "inner", checks.check_integer("inner", self.inner, minimum=1))

    def init(self, clients: int, constraints: int) -> Any:
        """Return μ_0 for every client and constraint, and 0 as the number of rounds so far."""
        return super().init(clients, constraints), jnp.int32(0)

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Return the decision to descend on the augmented Lagrangians; update μ at the end of an inner loop."""
        every, rounds = state
        multipliers = every[reports.clients]
        penalised = jnp.maximum(multipliers + self.penalty * excess(self, reports), 0)
        mix = jnp.where(reports.has_constraint, penalised, 0).astype(reports.constraint.dtype)
        weights = equal_weights(reports.objective, reports.mask, reports.stand_for)
        updated = jnp.where((rounds + 1) % self.inner == 0, penalised, multipliers)
        after = update_entries(every, reports, updated, reports.has_constraint)
        return descend(self, reports, weights, mix), (after, rounds + 1)
