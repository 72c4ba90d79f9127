"""Which weights make a good bound: first from gradients at the answer, then by Newton's method on the dual.

At the best answer Σ p_i ∇f_i + Σ μ_ic ∇g_ic = 0 over what is active there. The first weights are those that bring that
sum nearest to 0 over what is nearly active at the answer. Given where the Lagrangian of some weights is smallest, the
dual is about cᵀy − ½ yᵀAH⁻¹Aᵀy there, with the values c and gradients A of the functions that matter: the next weights
maximise it, not too far from the last ones. Both are non-negative least squares.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import linalg, optimize

from softswitch.guarantees.optimality.lagrangian import Lagrangian, Weights
from softswitch.guarantees.optimality.minimise import Minimum

MOST_FUNCTIONS = 400
"""So many objectives, and as many constraints, are looked at together: those that are largest."""
MOST_NUMBERS = 1 << 25
"""Their gradients hold at most so many numbers."""
HEAVY = 1e3
"""What weighs the equation Σp = 1 against the others."""


class PointValues(NamedTuple):
    """f_i and g_ic − ε at a point."""

    objective: np.ndarray
    constraint: np.ndarray

    @property
    def worst(self) -> float:
        """F."""
        return float(self.objective.max())

    @property
    def excess(self) -> float:
        """G − ε."""
        return float(self.constraint.max())


class Proposal(NamedTuple):
    """Weights to try.

    Attributes:
        weights: they.
        point: where their Lagrangian may be smallest.
        steepness: the sum of the weighted gradients' lengths: what a gradient's rounding is a share of.
    """

    weights: Weights
    point: np.ndarray
    steepness: float


def first_weights(
    lagrangian: Lagrangian, point: np.ndarray, values: PointValues, share: float, scales: tuple[float, float]
) -> Proposal | None:
    """The weights that bring the gradients' sum nearest to 0 over what is nearly active.

    Args:
        lagrangian: whose weights.
        point: the answer.
        values: there.
        share: how near, as a share of the scales.
        scales: how large objectives and constraints are.
    """
    near = PointValues(values.objective >= values.worst - share * scales[0], values.constraint >= -share * scales[1])
    chosen = _largest(lagrangian, values, near)
    gradients = lagrangian.gradients(point, chosen)
    count = int(chosen.objective.sum())
    ball = lagrangian.radius is not None and float(np.linalg.norm(point)) >= (1 - min(share, 0.5)) * lagrangian.radius
    if ball:
        gradients = np.concatenate([gradients, point[None]])
    if not np.isfinite(gradients).all():
        return None
    left: np.ndarray = gradients.T
    if lagrangian.size > len(gradients):
        left = np.asarray(np.linalg.qr(left, mode="r"))
    entries = _solved(left, np.zeros(len(left)), count)
    if entries is None:
        return None
    weights = _placed(lagrangian, chosen, entries, ball=ball)
    return Proposal(weights, point, float(entries @ np.linalg.norm(gradients, axis=1)))


def next_weights(
    lagrangian: Lagrangian, minimum: Minimum, values: PointValues, weights: Weights, held: float
) -> Proposal | None:
    """The weights that the dual's Newton step leads to, and where their Lagrangian's minimum is thought to be.

    Args:
        lagrangian: whose weights.
        minimum: for the last weights.
        values: there.
        weights: the last ones.
        held: how much the step is held back.
    """
    chosen = _largest(lagrangian, values, PointValues(weights.objective > 0, weights.constraint > 0), more=True)
    gradients = lagrangian.gradients(minimum.point, chosen)
    count = int(chosen.objective.sum())
    mean = float(weights.objective[weights.objective > 0] @ values.objective[weights.objective > 0])
    worth = np.r_[values.objective[chosen.objective] - mean, values.constraint[chosen.constraint]]
    last = np.r_[weights.objective[chosen.objective], weights.constraint[chosen.constraint]]
    ball = lagrangian.radius is not None
    if ball:
        gradients = np.concatenate([gradients, minimum.point[None]])
        worth, last = np.r_[worth, lagrangian.outside(minimum.point)], np.r_[last, weights.ball]
    given = minimum.give(gradients.T)
    curved = gradients @ given
    curved = (curved + curved.T) / 2
    if not np.isfinite(curved).all():
        return None
    size = max(float(np.diag(curved).mean()), float(np.abs(worth).max()), 1e-300)
    own = held * size
    try:
        upper = linalg.cholesky(curved + own * np.eye(len(curved)))
        right = linalg.solve_triangular(upper, worth + own * last, trans="T")
    except linalg.LinAlgError:
        return None
    entries = _solved(upper, right, count)
    if entries is None:
        return None
    found = _placed(lagrangian, chosen, entries, ball=ball)
    return Proposal(found, minimum.point - given @ entries, float(entries @ np.linalg.norm(gradients, axis=1)))


def _largest(lagrangian: Lagrangian, values: PointValues, wanted: PointValues, *, more: bool = False) -> Weights:
    """Those that are wanted, and with ``more`` others beside; the largest of them, as many as can be looked at."""
    most = max(1, min(MOST_FUNCTIONS, MOST_NUMBERS // lagrangian.size))
    beside = min(most, 2 * lagrangian.size + 10)
    picks = []
    for value, chosen in zip(values, wanted, strict=True):
        finite = np.isfinite(value)
        order = np.argsort(np.where(finite, -value, np.inf), axis=None, kind="stable")
        rank = np.argsort(order, kind="stable").reshape(value.shape)
        if more:
            picks.append(finite & (chosen | (rank < beside)))
        else:
            picks.append(finite & chosen & (rank < most))
    if not picks[0].any():
        picks[0][np.argmax(values.objective)] = True
    return Weights(*picks)


def _solved(left: np.ndarray, right: np.ndarray, count: int) -> np.ndarray | None:
    """min ‖left·y − right‖ over y >= 0 whose first ``count`` entries sum to 1."""
    weight = HEAVY * max(float(np.linalg.norm(left, axis=0).max()), float(np.abs(right).max()), 1e-300)
    row = np.r_[np.full(count, weight), np.zeros(left.shape[1] - count)]
    try:
        entries, _ = optimize.nnls(np.vstack([left, row]), np.r_[right, weight])
    except (RuntimeError, ValueError):
        return None
    total = float(entries[:count].sum())
    return entries / total if np.isfinite(entries).all() and total > 0.1 else None


def _placed(lagrangian: Lagrangian, chosen: Weights, entries: np.ndarray, *, ball: bool) -> Weights:
    """The entries as weights of the functions that were chosen: objectives, constraints, the ball."""
    objective, constraint = np.zeros(chosen.objective.shape), np.zeros(lagrangian.shape)
    count = int(chosen.objective.sum())
    objective[chosen.objective] = entries[:count]
    constraint[chosen.constraint] = entries[count : len(entries) - ball]
    return Weights(objective / objective.sum(), constraint, float(entries[-1]) if ball else 0.0)
