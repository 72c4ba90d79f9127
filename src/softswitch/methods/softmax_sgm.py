"""Softmax-Weighted Switching Gradient: the paper's method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import jax.numpy as jnp
from array_api_compat import array_namespace

from softswitch.methods.base import Method, switch
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.weighting import maximum, softmax_weights, spread
from softswitch.problem.choices import ALPHA_SCALES
from softswitch.support import checks

KEPT = 0.9
"""The share of the running mean that is kept from round to round."""
FIRST_SPREAD, FIRST_VALUE = 0.1, 1e-3
"""Before there is any change to see: these shares of the values' spread and of the largest one."""


class Change(NamedTuple):
    """A running mean of the change of the largest value.

    Attributes:
        largest: the largest value in the round before; NaN before the first.
        mean: the running mean; NaN before the first.
    """

    largest: Any
    mean: Any

    def size(self, values: Any, mask: Any) -> Any:
        """The change that is expected, before this round's values are counted."""
        xp = array_namespace(values)
        first = FIRST_SPREAD * spread(values, mask) + FIRST_VALUE * xp.abs(maximum(values, mask))
        known = xp.asarray(self.mean, dtype=values.dtype)
        return xp.where(xp.isnan(known), first, known)

    def after(self, values: Any, mask: Any) -> Change:
        """The running mean with this round's values."""
        xp = array_namespace(values)
        largest, before = maximum(values, mask), xp.asarray(self.largest, dtype=values.dtype)
        expected = self.size(values, mask)
        blended = KEPT * expected + (1 - KEPT) * xp.abs(largest - before)
        mean = xp.where(xp.isfinite(blended), blended, expected)
        dtype = self.mean.dtype
        return Change(xp.astype(largest, dtype), xp.astype(mean, dtype))


def no_change() -> Change:
    """Before the first round."""
    unknown = jnp.full((), jnp.nan, dtype=jnp.result_type(float))
    return Change(unknown, unknown)


MOST_ALPHA = 1e30  # still finite in float32; for the limit there is HardSGM


class Planned(Protocol):
    """What ``plan`` returns, as far as a rule is concerned."""

    def method_settings(self) -> dict[str, Any]:
        """The settings of the rule it asks for."""
        ...


@dataclass(frozen=True, kw_only=True)
class SoftmaxSGM(Method):
    """Softmax-Weighted Switching Gradient Method.

        p = softmax(α f),  q = softmax(α g),  G_k = <q, g>
        w_{k+1} = w_k − η Σ_i p_i u_i(f_i)   if G_k <= λ
        w_{k+1} = w_k − η Σ_i q_i u_i(g_i)   otherwise

    over the sampled clients only. With several constraints a client, q is a softmax over all pairs.

    Attributes:
        alpha: α >= 0, how sharply the weights lean to the worst client, per unit of f and g. 0 is the plain mean; the
            softmax mean is at most ln(m)/α below the maximum. Chosen where it is left out.
        constraint_alpha: another α for the constraint's softmax, where f and g have different units.
        alpha_scale: what α is measured in. ``"raw"``, the paper's: per unit of f and g, so that it means something else
            in every task. ``"spread"``: α is divided by the spread of the round's reports, their largest minus their
            smallest, of f for p and of g for q. The worst client then weighs e^α times as much as the best, whatever
            the units; the softmax mean is at most spread·ln(m)/α below the maximum. ``"change"``: α is divided by how
            much the largest report changes from one round to the next, a running mean: as sharp as the steps allow
            without jumping between clients, and sharper as they fall. The theorems speak of the first.
    """

    alpha: float | None
    constraint_alpha: float | None = None
    alpha_scale: str = "raw"
    own_criterion: ClassVar[str] = "softmax"
    aims_at: ClassVar[str] = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("alpha", minimum=0, maximum=MOST_ALPHA)
        if self.constraint_alpha is not None:
            alpha = checks.check_real("constraint_alpha", self.constraint_alpha, minimum=0, maximum=MOST_ALPHA)
            self._set("constraint_alpha", alpha)
        checks.check_choice("alpha_scale", self.alpha_scale, ALPHA_SCALES)

    @classmethod
    def from_plan(cls, plan: Planned, **changes: Any) -> SoftmaxSGM:
        """The rule a plan asks for: its η, γ, ε, λ = ε/2 and its smallest α; ``changes`` override single settings.

        Args:
            plan: what ``plan`` found.
            changes: settings that are to be others than the plan's, by name.
        """
        return cls(**plan.method_settings() | changes)

    def init(self, constraints: int) -> Any:
        """Nothing, or how much the largest f and the largest g change from round to round."""
        return (no_change(), no_change()) if self.alpha_scale == "change" else ()

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Weigh clients by the softmax of what they reported, and switch on the criterion."""
        if self.alpha is None:
            raise ValueError("alpha must be given where it is not chosen during a run")
        alpha = self.alpha if self.constraint_alpha is None else self.constraint_alpha
        f, g = (reports.objective, reports.has_objective), (reports.constraint, reports.has_constraint)
        for_objective, for_constraint, after = self.alpha, alpha, state
        if self.alpha_scale == "spread":
            for_objective, for_constraint = _per(self.alpha, spread(*f)), _per(alpha, spread(*g))
        elif self.alpha_scale == "change":
            for_objective, for_constraint = _per(self.alpha, state[0].size(*f)), _per(alpha, state[1].size(*g))
            after = (state[0].after(*f), state[1].after(*g))
        objective_weights = softmax_weights(*f[:1], for_objective, *f[1:])
        pair_weights = softmax_weights(*g[:1], for_constraint, *g[1:])
        criterion = self.measure(reports, for_constraint)
        return switch(self, reports, criterion, objective_weights, pair_weights), after


def _per(alpha: Any, width: Any) -> Any:
    """α per so much; 0 where that is 0: all are equal then, and it does not matter."""
    xp = array_namespace(width)
    apart = width > 0
    scaled = xp.where(apart, alpha / xp.where(apart, width, xp.ones_like(width)), xp.zeros_like(width))
    return xp.where(scaled < MOST_ALPHA, scaled, xp.full_like(scaled, MOST_ALPHA))
