"""SoftmaxSGM: the Softmax-Weighted Switching Gradient method of the paper."""

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

CHANGE_DECAY = 0.9
"""Decay rate of the running mean of changes."""
FIRST_SPREAD, FIRST_VALUE = 0.1, 1e-3
"""The first change is estimated by these shares of the spread of the values and of the largest one."""
MAX_ALPHA = 1e30  # finite in float32; ``HardSGM`` is the limit


class Change(NamedTuple):
    """A running mean of the change of the largest value between rounds; both are NaN before the first round."""

    largest: Any
    mean: Any

    def expected(self, values: Any, mask: Any) -> Any:
        """Return the expected change, before this round's values."""
        xp = array_namespace(values)
        first = FIRST_SPREAD * spread(values, mask) + FIRST_VALUE * xp.abs(maximum(values, mask))
        known = xp.asarray(self.mean, dtype=values.dtype)
        return xp.where(xp.isnan(known), first, known)

    def update(self, values: Any, mask: Any) -> Change:
        """Return the running mean with this round's values."""
        xp = array_namespace(values)
        largest, before = maximum(values, mask), xp.asarray(self.largest, dtype=values.dtype)
        expected = self.expected(values, mask)
        blended = CHANGE_DECAY * expected + (1 - CHANGE_DECAY) * xp.abs(largest - before)
        mean = xp.where(xp.isfinite(blended), blended, expected)
        return Change(xp.astype(largest, self.mean.dtype), xp.astype(mean, self.mean.dtype))


class Planned(Protocol):
    """What a method needs of a ``Plan``."""

    def method_settings(self) -> dict[str, Any]:
        """Return the settings of the planned method."""
        ...


@dataclass(frozen=True, kw_only=True)
class SoftmaxSGM(Method):
    """Softmax-Weighted Switching Gradient Method.

        p = softmax(α f),  q = softmax(α g),  G_k = <q, g>
        w_{k+1} = w_k − η Σ_i p_i u_i(f_i)   if G_k <= λ
        w_{k+1} = w_k − η Σ_i q_i u_i(g_i)   otherwise

    over the participants. With several constraints q is a softmax over all pairs (client, constraint).

    Attributes:
        alpha: α >= 0, the sharpness of the softmax, per unit of f and g. 0 gives the plain mean; the softmax mean is at
            most ln(m)/α below the maximum.
        constraint_alpha: Another α for the constraint, if f and g have different units.
        alpha_scale: The unit of α. ``"raw"``, as in the paper and its theorems: per unit of f and g. ``"spread"``: α is
            divided by the largest minus the smallest report of the round, so that the worst client has e^α times the
            weight of the best. ``"change"``: α is divided by a running mean of the change of the largest report
            between rounds, so that weights become sharper as steps become smaller.
    """

    alpha: float | None
    constraint_alpha: float | None = None
    alpha_scale: str = "raw"
    own_criterion: ClassVar[str] = "softmax"
    aims_at: ClassVar[str] = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("alpha", minimum=0, maximum=MAX_ALPHA)
        self._check("constraint_alpha", minimum=0, maximum=MAX_ALPHA)
        checks.check_choice("alpha_scale", self.alpha_scale, ALPHA_SCALES)

    @classmethod
    def from_plan(cls, plan: Planned, **changes: Any) -> SoftmaxSGM:
        """Return the method of a plan: its η, γ, ε, λ = ε/2 and its smallest α.

        Args:
            plan: The result of ``plan``.
            changes: Settings that replace the plan's, by name.
        """
        return cls(**plan.method_settings() | changes)

    def init(self, constraints: int) -> Any:
        """Return no state, or the changes of the largest f and g for ``alpha_scale="change"``."""
        unknown = jnp.full((), jnp.nan, dtype=jnp.result_type(float))
        return (Change(unknown, unknown),) * 2 if self.alpha_scale == "change" else ()

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Weight the clients by the softmax of their reports, and switch on the criterion."""
        if self.alpha is None:
            raise ValueError("alpha must be given unless it is chosen during a run")
        alpha, constraint_alpha = self.alpha, self.alpha if self.constraint_alpha is None else self.constraint_alpha
        f, g = (reports.objective, reports.has_objective), (reports.constraint, reports.has_constraint)
        after = state
        if self.alpha_scale == "spread":
            alpha, constraint_alpha = _divide(alpha, spread(*f)), _divide(constraint_alpha, spread(*g))
        elif self.alpha_scale == "change":
            alpha = _divide(alpha, state[0].expected(*f))
            constraint_alpha = _divide(constraint_alpha, state[1].expected(*g))
            after = (state[0].update(*f), state[1].update(*g))
        objective_weights = softmax_weights(reports.objective, alpha, reports.has_objective)
        pair_weights = softmax_weights(reports.constraint, constraint_alpha, reports.has_constraint)
        criterion = self.measure(reports, constraint_alpha)
        return switch(self, reports, criterion, objective_weights, pair_weights), after


def _divide(alpha: Any, width: Any) -> Any:
    """Return α/width, at most ``MAX_ALPHA``; 0 if the width is 0, since all values are then equal."""
    xp = array_namespace(width)
    positive = width > 0
    scaled = xp.where(positive, alpha / xp.where(positive, width, xp.ones_like(width)), xp.zeros_like(width))
    return xp.where(scaled < MAX_ALPHA, scaled, xp.full_like(scaled, MAX_ALPHA))
