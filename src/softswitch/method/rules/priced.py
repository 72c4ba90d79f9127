"""What methods with a multiplier for every client's constraint share."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from softswitch.method.messages import Decision, Reports
from softswitch.method.rules.base import Rule
from softswitch.method.rules.sharing import leaning, shared_out


def above(rule: Rule, reports: Reports) -> Float[Array, "m c"]:
    """g_ic − ε of those who reported; 0 of the others."""
    return jnp.where(reports.has_constraint, reports.constraint - rule.tolerance, 0)


def put(every: Float[Array, "n c"], reports: Reports, new: Float[Array, "m c"]) -> Float[Array, "n c"]:
    """All clients' numbers with new ones for those pairs that reported."""
    own = jnp.where(reports.has_constraint, new, every[reports.clients])
    return every.at[reports.clients].set(own.astype(every.dtype))


def on_lagrangian(rule: Rule, alpha: Any, reports: Reports, multipliers: Float[Array, "m c"], clients: int) -> Decision:
    """A round that descends on Σ_i p_i f_i + Σ_ic μ_ic g_ic, those who take part standing for all n.

    Args:
        rule: the method.
        alpha: of p = softmax(α f); None: all alike.
        reports: the round's reports.
        multipliers: of the participants' constraints.
        clients: n.
    """
    objective = leaning(reports.objective, alpha, reports.has_objective, reports.stand_for)
    here = jnp.maximum(reports.mask.sum(), 1).astype(objective.dtype)
    constraint = jnp.where(reports.has_constraint, multipliers, 0) * (clients / here)
    return shared_out(rule, reports, rule.measure(reports), objective, constraint.astype(objective.dtype))
