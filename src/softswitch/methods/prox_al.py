"""The federated proximal augmented Lagrangian, with consensus by ADMM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from softswitch.methods import comparison
from softswitch.methods.client_state import AtClients, Consensus
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.weighting import equal_weights
from softswitch.support import checks

CONSENSUS = Consensus()


@dataclass(frozen=True, kw_only=True)
class ProxAL(comparison.MultiplierMethod):
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

    penalty: float = field(metadata=comparison.POSITIVE)
    inner: int = 10
    at_clients: AtClients | None = CONSENSUS

    def __post_init__(self) -> None:
        super().__post_init__()
        if not checks.is_array(self.inner):  # a traced value was checked before
            object.__setattr__(self, "inner", checks.check_integer("inner", self.inner, minimum=1))

    def begin(self, clients: int, constraints: int) -> Any:
        """Return μ for every client and constraint, and the number of rounds so far."""
        return super().begin(clients, constraints), jnp.int32(0)

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Assign every client its augmented Lagrangian; update multipliers at the end of an inner loop."""
        every, rounds = state
        multipliers = every[reports.clients]
        penalised = jnp.maximum(multipliers + self.penalty * comparison.excess(self, reports), 0)
        mix = jnp.where(reports.has_constraint, penalised, 0).astype(reports.constraint.dtype)
        weights = equal_weights(reports.objective, reports.mask, reports.stand_for)
        updated = jnp.where((rounds + 1) % self.inner == 0, penalised, multipliers)
        after = comparison.update_entries(every, reports, updated, reports.has_constraint)
        return comparison.descend(self, reports, weights, mix), (after, rounds + 1)
