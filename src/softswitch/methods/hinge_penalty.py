"""A hinge penalty on running estimates of the constraints, in a single loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax.numpy as jnp

from softswitch.methods import comparison
from softswitch.methods.comparison import NONNEGATIVE, softmax_or_equal
from softswitch.methods.messages import Decision, Reports


@dataclass(frozen=True, kw_only=True)
class HingePenalty(comparison.ComparisonMethod):
    """Single-loop penalty with a running estimate of each constraint (after arXiv 2504.15243, from its abstract).

        ĝ_i ← g_i(w_k) + (1 − γ)(ĝ_i − g_i(w_{k−1}))   for participating clients, on the same batch
        w_{k+1} = w_k − η (Σ_i p_i u_i(f_i) + ρ Σ_i q_i 1[ĝ_i > ε] u_i(g_i)),   q equal weights

    The estimate's error shrinks with the step size, so it detects violations better than a single batch. Each report
    costs two evaluations.

    Attributes:
        penalty: ρ >= 0, in units of f per unit of g.
        share: γ in (0, 1], the weight of the new report; 1 uses the report itself.
        alpha: α of p = softmax(α f) and q = softmax(α ĝ), which targets the worst client. None: equal weights, as
            published.
    """

    penalty: float = field(metadata=NONNEGATIVE)
    share: float = field(default=0.1, metadata={"above": 0, "maximum": 1})
    alpha: float | None = field(default=None, metadata=NONNEGATIVE)
    own_criterion: ClassVar[str] = "max"
    knows_clients: ClassVar[bool] = True
    compares: ClassVar[bool] = True

    def begin(self, clients: int, constraints: int) -> Any:
        """Return ĝ, and whether there is an estimate, for every client and constraint."""
        zero = jnp.zeros((clients, constraints), jnp.result_type(float))
        return zero, zero > 0

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Update the estimates, then weight the objective and the penalties of violated constraints."""
        assert reports.earlier is not None
        (estimate, begun), earlier = comparison.of_participants(state, reports), reports.earlier[1]
        known = begun & reports.has_constraint & jnp.isfinite(earlier)
        change = jnp.where(known, estimate - earlier, 0)
        now = jnp.where(reports.has_constraint, reports.constraint, 0) + (1 - self.share) * change
        objective = softmax_or_equal(reports.objective, self.alpha, reports.has_objective, reports.stand_for)
        pairs = softmax_or_equal(now, self.alpha, reports.has_constraint, reports.stand_for)
        violated = reports.has_constraint & (now > self.tolerance)
        price = (self.penalty * jnp.where(violated, pairs, 0)).astype(objective.dtype)
        decision = comparison.descend_on_both(self, reports, self.measure(reports), objective, price)
        after = (now, jnp.ones_like(begun))
        return decision, comparison.update_entries(state, reports, after, reports.has_constraint)
