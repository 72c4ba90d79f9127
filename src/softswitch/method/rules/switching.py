"""The switch that all switching gradient methods share; they differ in their weights only."""

from __future__ import annotations

from array_api_compat import array_namespace

from softswitch.method.messages import Decision, LocalLoss, Reports
from softswitch.method.rules.base import Rule
from softswitch.method.weighting import Array


def switch(rule: Rule, reports: Reports, criterion: Array, objective_weights: Array, pair_weights: Array) -> Decision:
    """Improve the objective where the criterion is at most λ, else the constraint.

    1_k = [G_k <= λ];  r = p where 1_k, else r_i = Σ_c q_ic;  local loss f_i where 1_k, else Σ_c (q_ic/r_i)·g_ic.

    Args:
        rule: the rule, for its λ and ε.
        reports: the round's reports.
        criterion: G_k.
        objective_weights: p, one weight a client.
        pair_weights: q, one weight a pair (client, constraint); all of them sum to 1.
    """
    xp = array_namespace(reports.objective)
    feasible = rule.passes(criterion, reports)
    constraint_weights = xp.sum(pair_weights, axis=1)
    # A client of weight 0 adds nothing, whatever it minimises: let it be the mean of its constraints.
    counted = constraint_weights[:, None] > 0
    share = xp.where(counted, constraint_weights[:, None], xp.ones_like(pair_weights))
    even = xp.full(pair_weights.shape, 1 / pair_weights.shape[1], dtype=pair_weights.dtype)
    mix = xp.where(counted, pair_weights / share, even)
    bit = xp.astype(feasible, reports.objective.dtype)
    return Decision(
        criterion=criterion,
        feasible=feasible,
        weights=xp.where(feasible, objective_weights, constraint_weights),
        local_loss=LocalLoss(bit, (1 - bit) * mix, 0.0, rule.tolerance),
    )
