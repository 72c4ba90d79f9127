"""Decisions that descend on weighted objectives and constraints together."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from array_api_compat import array_namespace
from jaxtyping import Array, Float

from softswitch.methods.base import Method
from softswitch.methods.messages import Decision, LocalLoss, Reports
from softswitch.methods.weighting import equal_weights, softmax_weights


def shared_out(method: Method, reports: Reports, criterion: Array, objective: Array, constraint: Array) -> Decision:
    """Return the decision to descend along Σ_i P_i u_i(f_i) + Σ_ic Q_ic u_i(g_ic).

    r_i = (P_i + Σ_c Q_ic)/T with T the sum of all;  local loss (P_i/r_i)·f_i + Σ_c (Q_ic/r_i)·g_ic.

    Args:
        method: The method, for its λ and ε.
        reports: Reports of the round.
        criterion: Value that determines whether the round is feasible.
        objective: P >= 0, one per client.
        constraint: Q >= 0, one per client and constraint.
    """
    xp = array_namespace(reports.objective)
    shares = objective + xp.sum(constraint, axis=1)
    total = xp.sum(shares)
    weights = shares / xp.where(total > 0, total, xp.ones_like(total))
    divisor = xp.where(weights > 0, weights, xp.ones_like(weights))
    return Decision(
        criterion=criterion,
        feasible=method.passes(criterion, reports),
        weights=weights,
        local_loss=LocalLoss(objective / divisor, constraint / divisor[:, None], 0.0, method.tolerance),
    )


def softly(
    method: Method, slope: Any, reports: Reports, criterion: Array, objective_weights: Array, pair_weights: Array
) -> Decision:
    """Return the decision of the soft switch: a share s of the constraint, and 1 − s of the objective.

    s = min(1, max(0, 1 + β (G_k − λ))): it is 1 from λ on, and 0 below λ − 1/β.

    Args:
        method: The method, for its λ and ε.
        slope: β.
        reports: Reports of the round.
        criterion: G_k.
        objective_weights: p, one per client.
        pair_weights: q, one per client and constraint.
    """
    xp = array_namespace(criterion)
    share = 1 + slope * (criterion - method.switch_at)
    share = xp.where(share < 0, xp.zeros_like(share), xp.where(share > 1, xp.ones_like(share), share))
    return shared_out(method, reports, criterion, (1 - share) * objective_weights, share * pair_weights)


def leaning(values: Array, alpha: Any, mask: Array, stand_for: Array | None = None) -> Array:
    """Return softmax weights; equal weights if α is None."""
    return equal_weights(values, mask, stand_for) if alpha is None else softmax_weights(values, alpha, mask)


def above(method: Method, reports: Reports) -> Float[Array, "m c"]:
    """Return g_ic − ε of reporting clients, and 0 elsewhere."""
    return jnp.where(reports.has_constraint, reports.constraint - method.tolerance, 0)


def put(every: Float[Array, "n c"], reports: Reports, new: Float[Array, "m c"]) -> Float[Array, "n c"]:
    """Return all clients' entries with new ones for the pairs that reported."""
    updated = jnp.where(reports.has_constraint, new, every[reports.clients])
    return every.at[reports.clients].set(updated.astype(every.dtype))


def on_lagrangian(
    method: Method, alpha: Any, reports: Reports, multipliers: Float[Array, "m c"], clients: int
) -> Decision:
    """Return the decision to descend on Σ_i p_i f_i + Σ_ic μ_ic g_ic, with the participants as a sample of all n.

    Args:
        method: The method.
        alpha: α of p = softmax(α f). None: equal weights.
        reports: Reports of the round.
        multipliers: μ of the participants' constraints.
        clients: n.
    """
    objective = leaning(reports.objective, alpha, reports.has_objective, reports.stand_for)
    count = jnp.maximum(reports.mask.sum(), 1).astype(objective.dtype)
    constraint = jnp.where(reports.has_constraint, multipliers, 0) * (clients / count)
    return shared_out(method, reports, method.measure(reports), objective, constraint.astype(objective.dtype))
