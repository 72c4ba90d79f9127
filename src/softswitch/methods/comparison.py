"""Shared functions of methods that do not switch: joint descent on objective and constraint, and per-client states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from array_api_compat import array_namespace
from jaxtyping import Array

from softswitch.methods.base import Method
from softswitch.methods.messages import Decision, LocalLoss, Reports


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


def of_participants(state: Any, reports: Reports) -> Any:
    """Return the rows of the participants from arrays with one row per client."""
    return jax.tree.map(lambda every: every[reports.clients], state)


def update_entries(state: Any, reports: Reports, new: Any, mask: Array) -> Any:
    """Return the arrays of all clients with the rows of the participants replaced by ``new`` where ``mask`` is True."""

    def update(every: Array, new: Array) -> Array:
        updated = jnp.where(mask, new, every[reports.clients])
        return every.at[reports.clients].set(updated.astype(every.dtype))

    return jax.tree.map(update, state, new)
