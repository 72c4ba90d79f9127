"""The federated proximal augmented Lagrangian, with consensus by ADMM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from softswitch.methods.base import Method
from softswitch.methods.client_state import AtClients, Consensus
from softswitch.methods.messages import Decision, LocalLoss, Reports
from softswitch.methods.multipliers import above, put
from softswitch.methods.weighting import equal_weights
from softswitch.support import checks

CONSENSUS = Consensus()


class Outer(NamedTuple):
    """State of the outer loop.

    Attributes:
        multiplier: μ of every client's constraints.
        rounds: Number of rounds so far.
    """

    multiplier: Float[Array, "n c"]
    rounds: Int[Array, ""]


@dataclass(frozen=True, kw_only=True)
class ProxAL(Method):
    """Federated proximal augmented Lagrangian method, after He, Peng and Sun (arXiv 2310.10117).

        inner rounds:   h_i = f_i + [μ_i + β(g_i − ε)]₊ g_i at every client, one ADMM consensus iteration per round
        every T rounds: μ_i ← max(0, μ_i + β (g_i − ε))

    g_i is fixed at its report during the local steps. The inner loop has a fixed length instead of a tolerance. ADMM's
    quadratic term replaces the proximal term of the outer loop. Plain server steps with η = 1 give the ADMM iterate.

    Attributes:
        penalty: β > 0.
        inner: T >= 1, the number of rounds per inner loop.
        multiplier: μ_0 >= 0.
        at_clients: The consensus step.
    """

    penalty: float
    inner: int = 10
    multiplier: float = 0.0
    at_clients: AtClients | None = CONSENSUS
    own_criterion: ClassVar[str] = "max"
    goes_on: ClassVar[bool] = True
    switches: ClassVar[bool] = False
    knows_clients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("penalty", checks.check_real("penalty", self.penalty, above=0))
        self._set("multiplier", checks.check_real("multiplier", self.multiplier, minimum=0))
        if not checks.is_array(self.inner):  # a traced value was checked before
            object.__setattr__(self, "inner", checks.check_integer("inner", self.inner, minimum=1))

    def begin(self, clients: int, constraints: int) -> Outer:
        """Return μ_0 for every client."""
        start = jnp.full((clients, constraints), self.multiplier, jnp.result_type(float))
        return Outer(start, jnp.int32(0))

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Assign every client its augmented Lagrangian; update multipliers at the end of an inner loop."""
        multipliers = state.multiplier[reports.clients]
        penalised = jnp.maximum(multipliers + self.penalty * above(self, reports), 0)
        criterion = self.measure(reports)
        mix = jnp.where(reports.has_constraint, penalised, 0).astype(reports.constraint.dtype)
        decision = Decision(
            criterion=criterion,
            feasible=self.passes(criterion, reports),
            weights=equal_weights(reports.objective, reports.mask, reports.stand_for),
            local_loss=LocalLoss(1.0, mix, 0.0, self.tolerance),
        )
        ends = (state.rounds + 1) % self.inner == 0
        updated = jnp.where(ends, penalised, multipliers)
        return decision, Outer(put(state.multiplier, reports, updated), state.rounds + 1)
