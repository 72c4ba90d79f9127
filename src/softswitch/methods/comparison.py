"""Methods that do not switch: joint descent on objective and constraint, primal–dual steps, and federated averaging."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax.numpy as jnp
from array_api_compat import array_namespace
from jaxtyping import Array

from softswitch.methods.base import Method
from softswitch.methods.messages import Decision, LocalLoss, Reports
from softswitch.methods.weighting import equal_weights
from softswitch.support.checks import NONNEGATIVE, POSITIVE


@dataclass(frozen=True, kw_only=True)
class ComparisonMethod(Method):
    """Base class of methods that do not switch between objective and constraint."""

    switches: ClassVar[bool] = False


def descend(method: Method, reports: Reports, weights: Array, constraint: Any = None, penalty: Any = 0.0) -> Decision:
    """Return the decision to descend on f_i + <b_i, g_i> + c·Σ max(0, g_i − ε): b = ``constraint``, c = ``penalty``."""
    criterion = method.measure(reports)
    if constraint is None:
        constraint = array_namespace(reports.constraint).zeros_like(reports.constraint)
    loss = LocalLoss(1.0, constraint, penalty, method.tolerance)
    return Decision(criterion, method.passes(criterion, reports), weights, loss)


def descend_on_both(method: Method, reports: Reports, criterion: Any, objective: Array, constraint: Array) -> Decision:
    """Return the decision to descend along Σ_i P_i u_i(f_i) + Σ_ic Q_ic u_i(g_ic), with P and Q >= 0.

    P is ``objective``, one weight per participant; Q is ``constraint`` of shape (participants, constraints).
    r_i = (P_i + Σ_c Q_ic)/T with T the sum of all;  local loss (P_i/r_i)·f_i + Σ_c (Q_ic/r_i)·g_ic.
    """
    xp = array_namespace(reports.objective)
    shares = objective + xp.sum(constraint, axis=1)
    total = xp.sum(shares)
    weights = shares / xp.where(total > 0, total, xp.ones_like(total))
    divisor = xp.where(weights > 0, weights, xp.ones_like(weights))
    loss = LocalLoss(objective / divisor, constraint / divisor[:, None], 0.0, method.tolerance)
    return Decision(criterion, method.passes(criterion, reports), weights, loss)


@dataclass(frozen=True, kw_only=True)
class Penalty(ComparisonMethod):
    """Penalty method: descend on objective and constraint together, averaged over clients.

        w_{k+1} = w_k − η (1/m) Σ_i u_i(f_i + ρ max(0, g_i − ε))

    A missing function (−∞) adds nothing to a client's local loss; the weight stays 1/m. The method does not switch; the
    criterion only determines which rounds count as feasible.

    Attributes:
        penalty: ρ >= 0, the penalty per unit of violation, in units of f per unit of g.
    """

    penalty: float = field(metadata=NONNEGATIVE)

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Return the decision to descend on the mean of the clients' penalised losses, and the unchanged state."""
        weights = equal_weights(reports.objective, reports.mask, reports.stand_for)
        return descend(self, reports, weights, penalty=self.penalty), state


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
class FedAvg(ComparisonMethod):
    """Federated averaging (McMahan et al., 2017): minimise the clients' mean objective.

        w_{k+1} = w_k − η (1/m) Σ_i u_i(f_i)

    The constraint is evaluated but not enforced.
    """

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Return the decision to descend on the objective with equal weights, and the unchanged state."""
        weights = equal_weights(reports.objective, reports.has_objective, reports.stand_for)
        return descend(self, reports, weights), state
