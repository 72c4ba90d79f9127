"""SoftmaxSGM, the Softmax-Weighted Switching Gradient Method of the paper, and its limits HardSGM and AverageSGM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from array_api_compat import array_namespace

from softswitch.methods.base import Method, descend_on_both, switch
from softswitch.methods.messages import Decision, Reports
from softswitch.methods.weighting import equal_weights, hardmax_weights, maximum, softmax_weights, spread
from softswitch.problem.choices import ALPHA_SCALES
from softswitch.support import checks
from softswitch.support.checks import POSITIVE, limits

CHANGE_DECAY = 0.9  # decay rate per round of the running mean of changes
FIRST_SPREAD, FIRST_VALUE = 0.1, 1e-3  # first change: 0.1 · spread of the values + 0.001 · |largest value|
MAX_ALPHA = 1e30  # finite in float32; ``HardSGM`` is the limit
SHARPNESS = limits(minimum=0, maximum=MAX_ALPHA, optional=True)  # field metadata of an α


class Change(NamedTuple):
    """A running mean of the absolute change of the largest client value between rounds."""

    largest: Any  # largest value of the last round, a scalar; NaN before the first
    mean: Any  # running mean of the changes, a scalar; NaN before the first round

    def expected(self, values: Any, mask: Any) -> Any:
        """Return the running mean; before the first round, an estimate from this round's values."""
        xp = array_namespace(values)
        first = FIRST_SPREAD * spread(values, mask) + FIRST_VALUE * xp.abs(maximum(values, mask))
        known = xp.asarray(self.mean, dtype=values.dtype)
        return xp.where(xp.isnan(known), first, known)

    def update(self, values: Any, mask: Any) -> Change:
        """Return the running mean updated with the largest of this round's values."""
        xp = array_namespace(values)
        largest, before = maximum(values, mask), xp.asarray(self.largest, dtype=values.dtype)
        expected = self.expected(values, mask)
        blended = CHANGE_DECAY * expected + (1 - CHANGE_DECAY) * xp.abs(largest - before)
        mean = xp.where(xp.isfinite(blended), blended, expected)
        return Change(xp.astype(largest, self.mean.dtype), xp.astype(mean, self.mean.dtype))


@dataclass(frozen=True, kw_only=True)
class SoftmaxSGM(Method):
    """Softmax-Weighted Switching Gradient Method.

        p = softmax(α f),  q = softmax(α g),  G_k = <q, g>
        w_{k+1} = w_k − η Σ_i p_i u_i(f_i)   if G_k <= λ
        w_{k+1} = w_k − η Σ_i q_i u_i(g_i)   otherwise

    over the participants. With several constraints q is a softmax over all pairs (client, constraint).

    Attributes:
        alpha: α >= 0, the sharpness of the softmax, per unit of f and g. 0 gives the plain mean; the softmax mean is at
            most ln(m)/α below the maximum. None only in ``Automatic``.
        constraint_alpha: α for the constraint, if f and g have different units. Default: ``alpha``.
        alpha_scale: Unit of α. ``"raw"``, as in the paper and its theorems: per unit of f and g. ``"spread"``: α is
            divided by the largest minus the smallest report of the round, so that the worst client has e^α times the
            weight of the best. ``"change"``: α is divided by a running mean of the change of the largest report
            between rounds, so that weights become sharper as steps become smaller. Default: ``"raw"``.
    """

    alpha: float | None = field(metadata=SHARPNESS)
    constraint_alpha: float | None = field(default=None, metadata=SHARPNESS)
    alpha_scale: str = "raw"
    own_criterion: ClassVar[str] = "softmax"
    aims_at: ClassVar[str] = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_choice("alpha_scale", self.alpha_scale, ALPHA_SCALES)

    def init(self, clients: int, constraints: int) -> Any:
        """Return ``()``, or the running changes of the largest f and g for ``alpha_scale="change"``."""
        unknown = jnp.full((), jnp.nan, dtype=jnp.result_type(float))
        return (Change(unknown, unknown),) * 2 if self.alpha_scale == "change" else ()

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Return the decision with softmax weights of the reports, and the updated running changes."""
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


@dataclass(frozen=True, kw_only=True)
class HardSGM(Method):
    """Hard Switching Gradient Method: SoftmaxSGM as α → ∞.

        G_k = max_i g_i
        w_{k+1} = w_k − η u_i(f_i),  i = argmax f   if G_k <= λ
        w_{k+1} = w_k − η u_i(g_i),  i = argmax g   otherwise

    Tied clients share the weight equally, as in the limit.
    """

    own_criterion: ClassVar[str] = "max"
    aims_at: ClassVar[str] = "max"

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Return the decision with all weight on the worst client, and the unchanged state."""
        objective_weights = hardmax_weights(reports.objective, reports.has_objective)
        pair_weights = hardmax_weights(reports.constraint, reports.has_constraint)
        # The limit of the softmax mean is the maximum.
        criterion = maximum(*reports.pairs) if self.criterion == "softmax" else self.measure(reports)
        return switch(self, reports, criterion, objective_weights, pair_weights), state


@dataclass(frozen=True, kw_only=True)
class AverageSGM(Method):
    """Average ("standard") Switching Gradient Method: SoftmaxSGM at α = 0.

        G_k = (1/m) Σ_i g_i
        w_{k+1} = w_k − η (1/m) Σ_i u_i(f_i)   if G_k <= λ
        w_{k+1} = w_k − η (1/m) Σ_i u_i(g_i)   otherwise

    The constraint is met on average; a single client may violate it by any amount. This is FedSGM (arXiv 2601.16897).
    Its soft switch mixes both directions near the threshold, to avoid oscillation:

        w_{k+1} = w_k − η (1/m) Σ_i ((1 − s) u_i(f_i) + s u_i(g_i)),   s = min(1, max(0, 1 + β (G_k − λ)))

    Attributes:
        soft: β > 0 of the soft switch, per unit of g: directions are mixed if G_k is between λ − 1/β and λ. Default:
            None, the hard switch of the theorems, the limit β → ∞.
    """

    soft: float | None = field(default=None, metadata=POSITIVE)

    @property
    def switches(self) -> bool:  # type: ignore[override]
        """Whether every round descends either on the objective or on the constraint: True unless ``soft`` is set."""
        return self.soft is None

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Return the decision with equal weights, and the unchanged state."""
        objective_weights = equal_weights(reports.objective, reports.has_objective, reports.stand_for)
        pair_weights = equal_weights(reports.constraint, reports.has_constraint, reports.stand_for)
        criterion = self.measure(reports)
        if self.soft is None:
            return switch(self, reports, criterion, objective_weights, pair_weights), state
        xp = array_namespace(criterion)
        share = 1 + self.soft * (criterion - self.switch_at)
        share = xp.where(share < 0, xp.zeros_like(share), xp.where(share > 1, xp.ones_like(share), share))
        return descend_on_both(self, reports, criterion, (1 - share) * objective_weights, share * pair_weights), state
