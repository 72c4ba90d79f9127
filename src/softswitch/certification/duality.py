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

from softswitch.certification.lagrangian import Lagrangian, NoRowsLeft, Weights
from softswitch.certification.minimise import Minimum
from softswitch.problem.domains import Ball, Box, Domain

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


class Floor(NamedTuple):
    """A value that a function's minimum is not below.

    Attributes:
        value: it; −∞ where there is no minimum.
        added: δ; None where it is the distance R that counts, or a domain.
        assumed: what it takes for granted beside convexity, in words.
    """

    value: float
    added: float | None = None
    assumed: str = ""


NO_FLOOR = Floor(-np.inf)


def floor(
    lagrangian: Lagrangian, minimum: Minimum, weights: Weights, domain: Domain | None, noise: float, reach: float
) -> Floor:
    """What the Lagrangian is not below anywhere in the domain.

    Args:
        lagrangian: the function.
        minimum: as far as it was found.
        weights: of its parts.
        domain: Θ.
        noise: how far the gradient may be off.
        reach: R; parameters farther from the minimum than this are not thought of, where there is no domain.
    """
    if not minimum.bounded or not np.isfinite(minimum.gradient).all():
        return NO_FLOOR
    point, value, gradient = minimum.point, minimum.value, minimum.gradient
    if isinstance(domain, Box):
        down, up = point - domain.lower, point - domain.upper
        lost = np.maximum(gradient * down, gradient * up).sum() + noise * np.linalg.norm(np.maximum(down, -up))
        return Floor(value - float(lost))
    steep = float(np.linalg.norm(gradient)) + noise
    if isinstance(domain, Ball):
        radius, held = domain.radius, weights.ball
        floors = [value - _in_ball(point, gradient, radius, noise)]
        if held > 0:
            alone = gradient - held * point
            floors += [
                value - steep**2 / (2 * held),
                value - held * lagrangian.outside(point) - _in_ball(point, alone, radius, noise),
            ]
        return Floor(max(floors))
    added, lost = _by_curvature(minimum, lagrangian, noise, reach)
    if steep * reach <= lost:
        return Floor(value - steep * reach, None, _near(reach))
    return Floor(value - lost, added, _curved(added, reach))


def checked_floor(
    lagrangian: Lagrangian, minimum: Minimum, weights: Weights, domain: Domain | None, noise: float, reach: float
) -> Floor:
    """The same, with the curvature looked at where it is relied on; where it falls too much, δ is made larger."""
    found = floor(lagrangian, minimum, weights, domain, noise, reach)
    steep = float(np.linalg.norm(minimum.gradient)) + noise
    while found.added is not None and found.value > minimum.value - steep * reach:
        try:
            if _stays_curved(lagrangian, minimum, weights, found.added):
                return found
        except NoRowsLeft:
            break
        assert minimum.hessian is not None
        least = max(10 * found.added, 1e-6 * float(np.abs(minimum.hessian).max()))
        added, lost = _by_curvature(minimum, lagrangian, noise, reach, least)
        found = Floor(minimum.value - lost, added, _curved(added, reach))
    return found if found.added is None else Floor(minimum.value - steep * reach, None, _near(reach))


def bends_down(lagrangian: Lagrangian, minimum: Minimum) -> bool:
    """Whether the Hessian at the minimum has a negative eigenvalue beyond rounding: the function is not convex."""
    if minimum.hessian is None:
        return False
    eigenvalues = np.linalg.eigvalsh(minimum.hessian)
    return bool(eigenvalues[0] < -100 * lagrangian.rounding * np.abs(eigenvalues).max())


def _in_ball(point: np.ndarray, gradient: np.ndarray, radius: float, noise: float) -> float:
    """max over s in the ball of <gradient, point − s>, which holds for a point outside as well."""
    steep = float(np.linalg.norm(gradient))
    return float(gradient @ point) + radius * steep + noise * (radius + float(np.linalg.norm(point)))


def _by_curvature(
    minimum: Minimum, lagrangian: Lagrangian, noise: float, reach: float, least: float = 0.0
) -> tuple[float, float]:
    """The best δ from ``least`` on, and what is lost with it; ∞ where no Hessian is known."""
    if minimum.hessian is None or not np.isfinite(minimum.hessian).all():
        return 0.0, np.inf
    eigenvalues, directions = np.linalg.eigh(minimum.hessian)
    largest = float(np.abs(eigenvalues).max())
    sure = 10 * lagrangian.rounding * largest
    along = directions.T @ minimum.gradient
    choices = sure * np.geomspace(1, max(10.0, 1e4 * largest / sure), 60) if largest > 0 else np.empty(0)
    if eigenvalues[0] > sure:
        choices = np.r_[0.0, choices]
    best = (0.0, np.inf)
    for added in choices[choices >= least]:
        # Rounding may have made a Hessian larger than it is by ``sure``.
        curved = np.maximum(eigenvalues - (sure if added == 0 else 0), 0) + (2 * added - (sure if added > 0 else 0))
        if curved[0] <= 0:
            continue
        decrement = np.sqrt((along**2 / curved).sum()) + noise / np.sqrt(curved[0])
        lost = float(decrement**2 + added * reach**2 / 2)
        if lost < best[1]:
            best = float(added), lost
    return best


def _stays_curved(lagrangian: Lagrangian, minimum: Minimum, weights: Weights, added: float) -> bool:
    """Whether the Hessian is still above its half at points of the rim: on Newton's line, and where it is flattest."""
    assert minimum.hessian is not None
    whole = minimum.hessian + 2 * added * np.eye(lagrangian.size)
    eigenvalues, directions = np.linalg.eigh(whole)
    root = directions / np.sqrt(np.maximum(eigenvalues, 1e-300))
    along = root.T @ minimum.gradient
    decrement = float(np.linalg.norm(along))
    size = float(np.linalg.norm(minimum.point)) + 1e-3
    for direction in (-(root @ along) / max(decrement, 1e-300), root[:, 0], -root[:, 0]):
        away = 4 * decrement * direction
        if np.linalg.norm(away) <= 1e-6 * size:
            continue  # no function that one would train with changes its curvature within a millionth
        there = lagrangian.hessian(lagrangian.rounded(minimum.point + away), weights) + added * np.eye(lagrangian.size)
        if not np.isfinite(there).all() or np.linalg.eigvalsh(root.T @ there @ root)[0] < 0.5:
            return False
    return True


def _near(reach: float) -> str:
    return f"the best parameters lie within {reach:.3g} of where the Lagrangian is smallest"


def _curved(added: float, reach: float) -> str:
    curved = "the Lagrangian's curvature does not fall by half right beside its minimum"
    return curved if added == 0 else f"{curved}, and {_near(reach)}"
