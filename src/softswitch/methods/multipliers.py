"""One decision for both: every client descends on its share of the objective and its share of the constraints."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from array_api_compat import array_namespace
from jaxtyping import Array, Float

from softswitch.methods.base import Method
from softswitch.methods.messages import Decision, LocalLoss, Reports
from softswitch.methods.weighting import equal_weights, softmax_weights


def shared_out(method: Method, reports: Reports, criterion: Array, objective: Array, constraint: Array) -> Decision:
    """The round that goes along Σ_i P_i u_i(f_i) + Σ_ic Q_ic u_i(g_ic).

    r_i = (P_i + Σ_c Q_ic)/T with T the sum of all;  local loss (P_i/r_i)·f_i + Σ_c (Q_ic/r_i)·g_ic.

    Args:
        method: the rule, for its λ and ε.
        reports: the round's reports.
        criterion: what tells whether the round is feasible.
        objective: P >= 0, one a client.
        constraint: Q >= 0, one a pair (client, constraint).
    """
    xp = array_namespace(reports.objective)
    shares = objective + xp.sum(constraint, axis=1)
    total = xp.sum(shares)
    weights = shares / xp.where(total > 0, total, xp.ones_like(total))
    own = xp.where(weights > 0, weights, xp.ones_like(weights))
    return Decision(
        criterion=criterion,
        feasible=method.passes(criterion, reports),
        weights=weights,
        local_loss=LocalLoss(objective / own, constraint / own[:, None], 0.0, method.tolerance),
    )


def softly(
    method: Method, slope: Any, reports: Reports, criterion: Array, objective_weights: Array, pair_weights: Array
) -> Decision:
    """The soft switch: the share s of the round is the constraint's, the rest the objective's.

    s = min(1, max(0, 1 + β (G_k − λ))): all of it from λ on, nothing from 1/β below it down.

    Args:
        method: the rule, for its λ and ε.
        slope: β.
        reports: the round's reports.
        criterion: G_k.
        objective_weights: p, one weight a client.
        pair_weights: q, one weight a pair (client, constraint).
    """
    xp = array_namespace(criterion)
    share = 1 + slope * (criterion - method.switch_at)
    share = xp.where(share < 0, xp.zeros_like(share), xp.where(share > 1, xp.ones_like(share), share))
    return shared_out(method, reports, criterion, (1 - share) * objective_weights, share * pair_weights)


def leaning(values: Array, alpha: Any, mask: Array, stand_for: Array | None = None) -> Array:
    """Weights that lean to the largest values by a softmax; equal ones where there is no α."""
    return equal_weights(values, mask, stand_for) if alpha is None else softmax_weights(values, alpha, mask)


def above(method: Method, reports: Reports) -> Float[Array, "m c"]:
    """g_ic − ε of those who reported; 0 of the others."""
    return jnp.where(reports.has_constraint, reports.constraint - method.tolerance, 0)


def put(every: Float[Array, "n c"], reports: Reports, new: Float[Array, "m c"]) -> Float[Array, "n c"]:
    """All clients' numbers with new ones for those pairs that reported."""
    own = jnp.where(reports.has_constraint, new, every[reports.clients])
    return every.at[reports.clients].set(own.astype(every.dtype))


def on_lagrangian(
    method: Method, alpha: Any, reports: Reports, multipliers: Float[Array, "m c"], clients: int
) -> Decision:
    """A round that descends on Σ_i p_i f_i + Σ_ic μ_ic g_ic, those who take part standing for all n.

    Args:
        method: the method.
        alpha: of p = softmax(α f); None: all alike.
        reports: the round's reports.
        multipliers: of the participants' constraints.
        clients: n.
    """
    objective = leaning(reports.objective, alpha, reports.has_objective, reports.stand_for)
    here = jnp.maximum(reports.mask.sum(), 1).astype(objective.dtype)
    constraint = jnp.where(reports.has_constraint, multipliers, 0) * (clients / here)
    return shared_out(method, reports, method.measure(reports), objective, constraint.astype(objective.dtype))
