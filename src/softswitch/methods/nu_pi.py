"""Multipliers updated by a PI controller."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from softswitch.methods import comparison
from softswitch.methods.comparison import NONNEGATIVE, POSITIVE
from softswitch.methods.messages import Decision, Reports
from softswitch.support import checks


@dataclass(frozen=True, kw_only=True)
class NuPI(comparison.MultiplierMethod):
    """Primal–dual with the νPI controller (Sohrabi et al., arXiv 2406.04558), one multiplier per client and constraint.

        w_{k+1} = w_k − η (Σ_i p_i u_i(f_i) + Σ_i μ_i u_i(g_i))
        e_i = g_i − ε;   μ_i ← max(0, μ_i + κ_i e_i + κ_p (1 − ν)(e_i − ξ_i));   ξ_i ← ν ξ_i + (1 − ν) e_i

    for participating clients. The first error changes μ_i by κ_i e_i only and leaves ξ_i at 0. Apart from the max, μ_i
    is then μ_0 + κ_i Σ e_i + κ_p ξ_i, a PI controller. With κ_p = 0 it is gradient ascent.

    Attributes:
        multiplier: μ_0 >= 0.
        integral: κ_i > 0, the dual step.
        proportional: κ_p >= 0, the damping weight of the current error.
        smoothing: ν in [0, 1).
        alpha: α of p = softmax(α f), which targets the worst client. None: the clients' mean, as published.
    """

    integral: float = field(metadata=POSITIVE)
    proportional: float = field(default=0.0, metadata=NONNEGATIVE)
    smoothing: float = 0.0
    alpha: float | None = field(default=None, metadata=NONNEGATIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "smoothing", checks.check_fraction("smoothing", self.smoothing))

    def begin(self, clients: int, constraints: int) -> Any:
        """Return μ, ξ, and whether there was an error, for every client and constraint."""
        multiplier = super().begin(clients, constraints)
        zero = jnp.zeros_like(multiplier)
        return multiplier, zero, zero > 0

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Descend on the Lagrangian, then update the participants' multipliers."""
        error, (multiplier, mean, begun) = comparison.excess(self, reports), comparison.of_participants(state, reports)
        decision = comparison.descend_on_lagrangian(self, self.alpha, reports, multiplier, len(state[0]))
        change = jnp.where(begun, (1 - self.smoothing) * (error - mean), 0)
        updated = jnp.maximum(multiplier + self.integral * error + self.proportional * change, 0)
        after = (updated, mean + change, jnp.ones_like(begun))
        return decision, comparison.update_entries(state, reports, after, reports.has_constraint)
