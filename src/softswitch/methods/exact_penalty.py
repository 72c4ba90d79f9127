"""An exact penalty on the worst constraint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from array_api_compat import array_namespace

from softswitch.methods.base import Method
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.multipliers import leaning, shared_out
from softswitch.support import checks


@dataclass(frozen=True, kw_only=True)
class ExactPenalty(Method):
    """Exact penalty F(w) + ρ max(0, G(w) − ε) on the worst constraint.

        w_{k+1} = w_k − η (Σ_i p_i u_i(f_i) + ρ 1[G_k > ε] Σ_i q_i u_i(g_i))

    Attributes:
        penalty: ρ >= 0, in units of f per unit of g.
        alpha: α of p = softmax(α f) and q = softmax(α g). None: equal weights, so F and G are the clients' means.
    """

    penalty: float
    alpha: float | None = None
    own_criterion: ClassVar[str] = "softmax"
    switches: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("penalty", checks.check_real("penalty", self.penalty, minimum=0))
        self._check("alpha", minimum=0)

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Weight the objective and, if the constraint is violated, the penalty."""
        xp = array_namespace(reports.objective)
        criterion = self.measure(reports, 0.0 if self.alpha is None else self.alpha)
        objective = leaning(reports.objective, self.alpha, reports.has_objective, reports.stand_for)
        constraint = leaning(reports.constraint, self.alpha, reports.has_constraint, reports.stand_for)
        price = xp.where(criterion > self.tolerance, self.penalty, 0.0)
        return shared_out(self, reports, criterion, objective, xp.astype(price, constraint.dtype) * constraint), state
