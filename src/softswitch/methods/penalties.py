"""Penalty methods: descent on the objective plus a penalty on violations of the constraint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax.numpy as jnp
from array_api_compat import array_namespace

from softswitch.methods.base import ComparisonMethod, descend, descend_on_both, of_participants, update_entries
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.weighting import equal_weights, softmax_or_equal
from softswitch.support.checks import NONNEGATIVE, limits


@dataclass(frozen=True, kw_only=True)
class Penalty(ComparisonMethod):
    """Penalty method: descend on objective and constraint together, averaged over clients.

        w_{k+1} = w_k − η (1/m) Σ_i u_i(f_i + ρ max(0, g_i − ε))

    A missing function (−∞) adds nothing to a client's local loss; the weight stays 1/m. The method does not switch; the
    criterion only determines which rounds count as feasible.

    Attributes:
        penalty: ρ >= 0, the penalty per unit of violation, in units of f per unit of g.
    """

    penalty: float = field(metadata=NONNEGATIVE)

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Return the decision to descend on the mean of the clients' penalised losses, and the unchanged state."""
        weights = equal_weights(reports.objective, reports.mask, reports.stand_for)
        return descend(self, reports, weights, penalty=self.penalty), state


@dataclass(frozen=True, kw_only=True)
class ExactPenalty(ComparisonMethod):
    """Exact penalty F(w) + ρ max(0, G(w) − ε) on the worst constraint.

        w_{k+1} = w_k − η (Σ_i p_i u_i(f_i) + ρ 1[G_k > ε] Σ_i q_i u_i(g_i))

    Attributes:
        penalty: ρ >= 0, in units of f per unit of g.
        alpha: α >= 0 of p = softmax(α f) and q = softmax(α g). Default: None, equal weights, so that F and G are the
            clients' means.
    """

    penalty: float = field(metadata=NONNEGATIVE)
    alpha: float | None = field(default=None, metadata=NONNEGATIVE)
    own_criterion: ClassVar[str] = "softmax"

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Return the decision to descend on the objective, plus the penalty if G_k > ε, and the unchanged state."""
        xp = array_namespace(reports.objective)
        criterion = self.measure(reports, 0.0 if self.alpha is None else self.alpha)
        objective = softmax_or_equal(reports.objective, self.alpha, reports.has_objective, reports.stand_for)
        pairs = softmax_or_equal(reports.constraint, self.alpha, reports.has_constraint, reports.stand_for)
        price = xp.astype(xp.where(criterion > self.tolerance, self.penalty, 0.0), pairs.dtype)
        return descend_on_both(self, reports, criterion, objective, price * pairs), state


@dataclass(frozen=True, kw_only=True)
class HingePenalty(ComparisonMethod):
    """Single-loop penalty with a running estimate of each constraint (after arXiv 2504.15243, from its abstract).

        ĝ_i ← g_i(w_k) + (1 − γ)(ĝ_i − g_i(w_{k−1}))   for participating clients, on the same batch
        w_{k+1} = w_k − η (Σ_i p_i u_i(f_i) + ρ Σ_i q_i 1[ĝ_i > ε] u_i(g_i)),   q equal weights

    The estimate's error shrinks with the step size, so it detects violations better than a single batch. Each report
    costs two evaluations.

    Attributes:
        penalty: ρ >= 0, in units of f per unit of g.
        share: γ in (0, 1], the weight of the new report; 1 uses the report itself. Default: 0.1.
        alpha: α >= 0 of p = softmax(α f) and q = softmax(α ĝ), which targets the worst client. Default: None, equal
            weights, as published.
    """

    penalty: float = field(metadata=NONNEGATIVE)
    share: float = field(default=0.1, metadata=limits(above=0, maximum=1))
    alpha: float | None = field(default=None, metadata=NONNEGATIVE)
    own_criterion: ClassVar[str] = "max"
    knows_clients: ClassVar[bool] = True
    compares: ClassVar[bool] = True

    def init(self, clients: int, constraints: int) -> Any:
        """Return ĝ = 0 and False (no estimate so far) for every client and constraint."""
        zero = jnp.zeros((clients, constraints), jnp.result_type(float))
        return zero, zero > 0

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Update ĝ, and return the decision to descend on the objective and the penalties of violated constraints."""
        assert reports.earlier is not None
        (estimate, begun), earlier = of_participants(state, reports), reports.earlier[1]
        known = begun & reports.has_constraint & jnp.isfinite(earlier)
        change = jnp.where(known, estimate - earlier, 0)
        now = jnp.where(reports.has_constraint, reports.constraint, 0) + (1 - self.share) * change
        objective = softmax_or_equal(reports.objective, self.alpha, reports.has_objective, reports.stand_for)
        pairs = softmax_or_equal(now, self.alpha, reports.has_constraint, reports.stand_for)
        violated = reports.has_constraint & (now > self.tolerance)
        price = (self.penalty * jnp.where(violated, pairs, 0)).astype(objective.dtype)
        decision = descend_on_both(self, reports, self.measure(reports), objective, price)
        return decision, update_entries(state, reports, (now, jnp.ones_like(begun)), reports.has_constraint)
