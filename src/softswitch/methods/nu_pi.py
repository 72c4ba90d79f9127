"""Multipliers updated by a PI controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from softswitch.methods.base import Method
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.multipliers import above, on_lagrangian, put
from softswitch.support import checks


class Controlled(NamedTuple):
    """Controller state of every client's constraints.

    Attributes:
        multiplier: μ.
        mean: ξ, a running mean of the errors.
        begun: Whether there was an error before.
    """

    multiplier: Float[Array, "n c"]
    mean: Float[Array, "n c"]
    begun: Bool[Array, "n c"]


@dataclass(frozen=True, kw_only=True)
class NuPI(Method):
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

    multiplier: float = 0.0
    integral: float
    proportional: float = 0.0
    smoothing: float = 0.0
    alpha: float | None = None
    own_criterion: ClassVar[str] = "max"
    goes_on: ClassVar[bool] = True
    switches: ClassVar[bool] = False
    knows_clients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("multiplier", checks.check_real("multiplier", self.multiplier, minimum=0))
        self._set("integral", checks.check_real("integral", self.integral, above=0))
        self._set("proportional", checks.check_real("proportional", self.proportional, minimum=0))
        self._set("smoothing", checks.check_fraction("smoothing", self.smoothing))
        self._check("alpha", minimum=0)

    def begin(self, clients: int, constraints: int) -> Controlled:
        """Return μ_0 for every client."""
        zero = jnp.zeros((clients, constraints), jnp.result_type(float))
        return Controlled(zero + self.multiplier, zero, zero > 0)

    def decide(self, state: Controlled, reports: Reports) -> tuple[Decision, Controlled]:
        """Descend on the Lagrangian, then update the participants' multipliers."""
        error, before = above(self, reports), Controlled(*(part[reports.clients] for part in state))
        decision = on_lagrangian(self, self.alpha, reports, before.multiplier, len(state.multiplier))
        change = jnp.where(before.begun, (1 - self.smoothing) * (error - before.mean), 0)
        updated = jnp.maximum(before.multiplier + self.integral * error + self.proportional * change, 0)
        after = Controlled(
            put(state.multiplier, reports, updated),
            put(state.mean, reports, before.mean + change),
            put(state.begun, reports, jnp.ones_like(before.begun)),
        )
        return decision, after
