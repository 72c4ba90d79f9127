"""An exact penalty on the worst constraint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from array_api_compat import array_namespace

from softswitch.methods.comparison import NONNEGATIVE, ComparisonMethod, descend_on_both, softmax_or_equal
from softswitch.methods.messages import Decision, Reports


@dataclass(frozen=True, kw_only=True)
class ExactPenalty(ComparisonMethod):
    """Exact penalty F(w) + ρ max(0, G(w) − ε) on the worst constraint.

        w_{k+1} = w_k − η (Σ_i p_i u_i(f_i) + ρ 1[G_k > ε] Σ_i q_i u_i(g_i))

    Attributes:
        penalty: ρ >= 0, in units of f per unit of g.
        alpha: α of p = softmax(α f) and q = softmax(α g). None: equal weights, so F and G are the clients' means.
    """

    penalty: float = field(metadata=NONNEGATIVE)
    alpha: float | None = field(default=None, metadata=NONNEGATIVE)
    own_criterion: ClassVar[str] = "softmax"

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Weight the objective and, if the constraint is violated, the penalty."""
        xp = array_namespace(reports.objective)
        criterion = self.measure(reports, 0.0 if self.alpha is None else self.alpha)
        objective = softmax_or_equal(reports.objective, self.alpha, reports.has_objective, reports.stand_for)
        pairs = softmax_or_equal(reports.constraint, self.alpha, reports.has_constraint, reports.stand_for)
        price = xp.astype(xp.where(criterion > self.tolerance, self.penalty, 0.0), pairs.dtype)
        return descend_on_both(self, reports, criterion, objective, price * pairs), state
