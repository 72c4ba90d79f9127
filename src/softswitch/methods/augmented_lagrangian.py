"""The augmented Lagrangian, with a multiplier update in every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from softswitch.methods.base import Method
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.multipliers import above, on_lagrangian, put
from softswitch.support import checks


@dataclass(frozen=True, kw_only=True)
class AugmentedLagrangian(Method):
    """Stochastic augmented Lagrangian, one multiplier per client and constraint.

        w_{k+1} = w_k − η (Σ_i p_i u_i(f_i) + Σ_i [μ_i + ρ(g_i − ε)]₊ u_i(g_i))
        μ_i ← max(0, μ_i + η_d (g_i − ε))   for participating clients

    This is the gradient of f + (1/2ρ) Σ_i ([μ_i + ρ(g_i − ε)]₊² − μ_i²), with g_i fixed at the round's reports during
    the local steps.

    Attributes:
        penalty: ρ >= 0; 0 gives gradient ascent on the multipliers.
        dual_step_size: η_d > 0.
        multiplier: μ_0 >= 0.
        alpha: α of p = softmax(α f), which targets the worst client. None: the clients' mean.
    """

    penalty: float
    dual_step_size: float
    multiplier: float = 0.0
    alpha: float | None = None
    own_criterion: ClassVar[str] = "max"
    goes_on: ClassVar[bool] = True
    switches: ClassVar[bool] = False
    knows_clients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("penalty", checks.check_real("penalty", self.penalty, minimum=0))
        self._set("dual_step_size", checks.check_real("dual_step_size", self.dual_step_size, above=0))
        self._set("multiplier", checks.check_real("multiplier", self.multiplier, minimum=0))
        self._check("alpha", minimum=0)

    def begin(self, clients: int, constraints: int) -> Float[Array, "n c"]:
        """Return μ_0 for every client."""
        return jnp.full((clients, constraints), self.multiplier, jnp.result_type(float))

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Descend on the augmented Lagrangian, then update the participants' multipliers."""
        error, multipliers = above(self, reports), state[reports.clients]
        penalised = jnp.maximum(multipliers + self.penalty * error, 0)
        decision = on_lagrangian(self, self.alpha, reports, penalised, len(state))
        return decision, put(state, reports, jnp.maximum(multipliers + self.dual_step_size * error, 0))
