"""The federated proximal augmented Lagrangian: clients' constraints priced at the clients, consensus by ADMM."""

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
    """Where the outer loop stands.

    Attributes:
        multiplier: μ of every client's constraints.
        rounds: how many there were.
    """

    multiplier: Float[Array, "n c"]
    rounds: Int[Array, ""]


@dataclass(frozen=True, kw_only=True)
class ProxAL(Method):
    """After the federated proximal augmented Lagrangian method of He, Peng and Sun (arXiv 2310.10117).

        inner rounds:   h_i = f_i + [μ_i + β(g_i − ε)]₊ g_i at every client, consensus by one ADMM iteration a round
        every T rounds: μ_i ← max(0, μ_i + β (g_i − ε))

    The reports stand for g_i during a round's local steps; the inner loop has a fixed length in place of a tolerance;
    the proximal term of the outer loop is left out, the pull of ADMM being there. Plain steps of the server, of η = 1,
    take it to where ADMM has it.

    Attributes:
        penalty: β > 0.
        inner: T >= 1, rounds of an inner loop.
        multiplier: μ_0 >= 0.
        at_clients: the consensus, with its pull.
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
        self._set("penalty", checks.real_number("penalty", self.penalty, above=0))
        self._set("multiplier", checks.real_number("multiplier", self.multiplier, at_least=0))
        if not checks.is_array(self.inner):  # an array was checked when it was a number
            object.__setattr__(self, "inner", checks.whole_number("inner", self.inner, at_least=1))

    def begin(self, clients: int, constraints: int) -> Outer:
        """μ_0 for everyone."""
        start = jnp.full((clients, constraints), self.multiplier, jnp.result_type(float))
        return Outer(start, jnp.int32(0))

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Every client its own augmented Lagrangian; multipliers move at the end of an inner loop."""
        own = state.multiplier[reports.clients]
        pressed = jnp.maximum(own + self.penalty * above(self, reports), 0)
        criterion = self.measure(reports)
        mix = jnp.where(reports.has_constraint, pressed, 0).astype(reports.constraint.dtype)
        decision = Decision(
            criterion=criterion,
            feasible=self.passes(criterion, reports),
            weights=equal_weights(reports.objective, reports.mask, reports.stand_for),
            local_loss=LocalLoss(1.0, mix, 0.0, self.tolerance),
        )
        ends = (state.rounds + 1) % self.inner == 0
        moved = jnp.where(ends, pressed, own)
        return decision, Outer(put(state.multiplier, reports, moved), state.rounds + 1)
