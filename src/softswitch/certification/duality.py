"""Multipliers for the lower bound: from gradients at the solution, then by Newton's method on the dual.

At the optimum Σ p_i ∇f_i + Σ μ_ic ∇g_ic = 0 over the active functions. The first weights bring that sum nearest to 0
over the functions that are nearly active at the solution. At a minimiser of the Lagrangian, the dual is about
cᵀy − ½ yᵀAH⁻¹Aᵀy, with the values c and gradients A of the relevant functions. The next weights maximise it, with a
damping term. Both are non-negative least-squares problems.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import linalg, optimize

from softswitch.certification.lagrangian import Lagrangian, RowBudgetExceeded, Weights
from softswitch.certification.minimise import Minimum
from softswitch.problem.domains import Ball, Box, Domain

MAX_FUNCTIONS = 400
"""Maximum number of objectives, and of constraints, that are considered together."""
MAX_GRADIENT_ENTRIES = 1 << 25
"""Maximum number of entries of their gradients."""
SUM_WEIGHT = 1e3
"""Weight of the equation Σp = 1 relative to the remaining equations."""


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
        weights: The weights.
        point: Estimate of the minimiser of their Lagrangian.
        gradient_size: Sum of the norms of the weighted gradients, which scales the rounding error of a gradient.
    """

    weights: Weights
    point: np.ndarray
    gradient_size: float


def initial_weights(
    lagrangian: Lagrangian, point: np.ndarray, values: PointValues, share: float, scales: tuple[float, float]
) -> Proposal | None:
    """Return the weights that bring the gradients' sum nearest to 0 over the nearly active functions.

    Args:
        lagrangian: The Lagrangian.
        point: The solution.
        values: Values at the solution.
        share: Distance from active, as a share of the scales.
        scales: Typical sizes of objectives and constraints.
    """
    active = PointValues(values.objective >= values.worst - share * scales[0], values.constraint >= -share * scales[1])
    chosen = _choose_functions(lagrangian, values, active)
    gradients = lagrangian.gradients(point, chosen)
    count = int(chosen.objective.sum())
    ball = lagrangian.radius is not None and float(np.linalg.norm(point)) >= (1 - min(share, 0.5)) * lagrangian.radius
    if ball:
        gradients = np.concatenate([gradients, point[None]])
    if not np.isfinite(gradients).all():
        return None
    matrix: np.ndarray = gradients.T
    if lagrangian.size > len(gradients):
        matrix = np.asarray(np.linalg.qr(matrix, mode="r"))
    entries = _solve_weights(matrix, np.zeros(len(matrix)), count)
    if entries is None:
        return None
    weights = _to_weights(lagrangian, chosen, entries, ball=ball)
    return Proposal(weights, point, float(entries @ np.linalg.norm(gradients, axis=1)))


def next_weights(
    lagrangian: Lagrangian, minimum: Minimum, values: PointValues, weights: Weights, damping: float
) -> Proposal | None:
    """Return the weights after a Newton step on the dual, and an estimate of their Lagrangian's minimiser.

    Args:
        lagrangian: The Lagrangian.
        minimum: Minimum for the current weights.
        values: Values at the minimum.
        weights: The current weights.
        damping: Damping of the step.
    """
    positive = PointValues(weights.objective > 0, weights.constraint > 0)
    chosen = _choose_functions(lagrangian, values, positive, extend=True)
    gradients = lagrangian.gradients(minimum.point, chosen)
    count = int(chosen.objective.sum())
    mean = float(weights.objective[weights.objective > 0] @ values.objective[weights.objective > 0])
    slope = np.r_[values.objective[chosen.objective] - mean, values.constraint[chosen.constraint]]
    current = np.r_[weights.objective[chosen.objective], weights.constraint[chosen.constraint]]
    ball = lagrangian.radius is not None
    if ball:
        gradients = np.concatenate([gradients, minimum.point[None]])
        slope, current = np.r_[slope, lagrangian.ball_excess(minimum.point)], np.r_[current, weights.ball]
    solution = minimum.solve_hessian(gradients.T)
    curvature = gradients @ solution
    curvature = (curvature + curvature.T) / 2
    if not np.isfinite(curvature).all():
        return None
    diagonal = damping * max(float(np.diag(curvature).mean()), float(np.abs(slope).max()), 1e-300)
    try:
        upper = linalg.cholesky(curvature + diagonal * np.eye(len(curvature)))
        right = linalg.solve_triangular(upper, slope + diagonal * current, trans="T")
    except linalg.LinAlgError:
        return None
    entries = _solve_weights(upper, right, count)
    if entries is None:
        return None
    proposed = _to_weights(lagrangian, chosen, entries, ball=ball)
    size = float(entries @ np.linalg.norm(gradients, axis=1))
    return Proposal(proposed, minimum.point - solution @ entries, size)


def _choose_functions(
    lagrangian: Lagrangian, values: PointValues, wanted: PointValues, *, extend: bool = False
) -> Weights:
    """Return a mask of the largest wanted functions; with ``extend`` of all wanted and the largest functions."""
    most = max(1, min(MAX_FUNCTIONS, MAX_GRADIENT_ENTRIES // lagrangian.size))
    extension = min(most, 2 * lagrangian.size + 10)
    masks = []
    for value, chosen in zip(values, wanted, strict=True):
        finite = np.isfinite(value)
        order = np.argsort(np.where(finite, -value, np.inf), axis=None, kind="stable")
        rank = np.argsort(order, kind="stable").reshape(value.shape)
        masks.append(finite & (chosen | (rank < extension) if extend else chosen & (rank < most)))
    if not masks[0].any():
        masks[0][np.argmax(values.objective)] = True
    return Weights(*masks)


def _solve_weights(matrix: np.ndarray, right: np.ndarray, count: int) -> np.ndarray | None:
    """Minimise ‖matrix·y − right‖ over y >= 0 whose first ``count`` entries sum to 1."""
    weight = SUM_WEIGHT * max(float(np.linalg.norm(matrix, axis=0).max()), float(np.abs(right).max()), 1e-300)
    row = np.r_[np.full(count, weight), np.zeros(matrix.shape[1] - count)]
    try:
        entries, _ = optimize.nnls(np.vstack([matrix, row]), np.r_[right, weight])
    except (RuntimeError, ValueError):
        return None
    total = float(entries[:count].sum())
    return entries / total if np.isfinite(entries).all() and total > 0.1 else None


def _to_weights(lagrangian: Lagrangian, chosen: Weights, entries: np.ndarray, *, ball: bool) -> Weights:
    """Return the entries as weights of the chosen objectives, the chosen constraints and the ball."""
    objective, constraint = np.zeros(chosen.objective.shape), np.zeros(lagrangian.shape)
    count = int(chosen.objective.sum())
    objective[chosen.objective] = entries[:count]
    constraint[chosen.constraint] = entries[count : len(entries) - ball]
    return Weights(objective / objective.sum(), constraint, float(entries[-1]) if ball else 0.0)


class Floor(NamedTuple):
    """A lower bound on a function's minimum.

    Attributes:
        value: The bound; −∞ if the function has no minimum.
        shift: Curvature δ added to the Hessian; None if the bound uses a domain or the distance R instead.
        assumed: Assumptions besides convexity, as text.
    """

    value: float
    shift: float | None = None
    assumed: str = ""


NO_FLOOR = Floor(-np.inf)


def bound_minimum(
    lagrangian: Lagrangian, minimum: Minimum, weights: Weights, domain: Domain | None, noise: float, radius: float
) -> Floor:
    """Return a lower bound on the Lagrangian over the domain.

    Args:
        lagrangian: The Lagrangian.
        minimum: The best point found.
        weights: Weights of the functions.
        domain: Θ.
        noise: Bound on the error of the gradient.
        radius: R; without a domain the optimum is assumed to lie within this distance of the minimum.
    """
    if not minimum.bounded or not np.isfinite(minimum.gradient).all():
        return NO_FLOOR
    point, value, gradient = minimum.point, minimum.value, minimum.gradient
    if isinstance(domain, Box):
        down, up = point - domain.lower, point - domain.upper
        decrease = np.maximum(gradient * down, gradient * up).sum() + noise * np.linalg.norm(np.maximum(down, -up))
        return Floor(value - float(decrease))
    norm = float(np.linalg.norm(gradient)) + noise
    if isinstance(domain, Ball):
        multiplier = weights.ball
        floors = [value - _decrease_in_ball(point, gradient, domain.radius, noise)]
        if multiplier > 0:
            remainder = _decrease_in_ball(point, gradient - multiplier * point, domain.radius, noise)
            floors += [
                value - norm**2 / (2 * multiplier),
                value - multiplier * lagrangian.ball_excess(point) - remainder,
            ]
        return Floor(max(floors))
    shift, decrease = _decrease_by_curvature(minimum, lagrangian, noise, radius)
    if norm * radius <= decrease:
        return Floor(value - norm * radius, None, _describe_distance(radius))
    return Floor(value - decrease, shift, _describe_curvature(shift, radius))


def bound_minimum_checked(
    lagrangian: Lagrangian, minimum: Minimum, weights: Weights, domain: Domain | None, noise: float, radius: float
) -> Floor:
    """Return ``bound_minimum`` after a check of the curvature on which it relies; δ grows until the check passes."""
    floor = bound_minimum(lagrangian, minimum, weights, domain, noise, radius)
    norm = float(np.linalg.norm(minimum.gradient)) + noise
    while floor.shift is not None and floor.value > minimum.value - norm * radius:
        try:
            if _keeps_curvature(lagrangian, minimum, weights, floor.shift):
                return floor
        except RowBudgetExceeded:
            break
        assert minimum.hessian is not None
        smallest = max(10 * floor.shift, 1e-6 * float(np.abs(minimum.hessian).max()))
        shift, decrease = _decrease_by_curvature(minimum, lagrangian, noise, radius, smallest)
        floor = Floor(minimum.value - decrease, shift, _describe_curvature(shift, radius))
    return floor if floor.shift is None else Floor(minimum.value - norm * radius, None, _describe_distance(radius))


def has_negative_curvature(lagrangian: Lagrangian, minimum: Minimum) -> bool:
    """Return whether the Hessian at the minimum has a negative eigenvalue beyond rounding."""
    if minimum.hessian is None:
        return False
    eigenvalues = np.linalg.eigvalsh(minimum.hessian)
    return bool(eigenvalues[0] < -100 * lagrangian.rounding * np.abs(eigenvalues).max())


def _decrease_in_ball(point: np.ndarray, gradient: np.ndarray, radius: float, noise: float) -> float:
    """Return max over s in the ball of <gradient, point − s>; the point may lie outside."""
    norm = float(np.linalg.norm(gradient))
    return float(gradient @ point) + radius * norm + noise * (radius + float(np.linalg.norm(point)))


def _decrease_by_curvature(
    minimum: Minimum, lagrangian: Lagrangian, noise: float, radius: float, smallest: float = 0.0
) -> tuple[float, float]:
    """Return the best δ >= ``smallest`` and the possible decrease with it; ∞ without a Hessian."""
    if minimum.hessian is None or not np.isfinite(minimum.hessian).all():
        return 0.0, np.inf
    eigenvalues, directions = np.linalg.eigh(minimum.hessian)
    largest = float(np.abs(eigenvalues).max())
    rounding = 10 * lagrangian.rounding * largest
    components = directions.T @ minimum.gradient
    shifts = rounding * np.geomspace(1, max(10.0, 1e4 * largest / rounding), 60) if largest > 0 else np.empty(0)
    if eigenvalues[0] > rounding:
        shifts = np.r_[0.0, shifts]
    best = (0.0, np.inf)
    for shift in shifts[shifts >= smallest]:
        # Rounding may have increased the Hessian by ``rounding``.
        offset = -rounding if shift == 0 else 0
        curvature = np.maximum(eigenvalues + offset, 0) + (2 * shift - (rounding if shift > 0 else 0))
        if curvature[0] <= 0:
            continue
        decrement = np.sqrt((components**2 / curvature).sum()) + noise / np.sqrt(curvature[0])
        decrease = float(decrement**2 + shift * radius**2 / 2)
        if decrease < best[1]:
            best = float(shift), decrease
    return best


def _keeps_curvature(lagrangian: Lagrangian, minimum: Minimum, weights: Weights, shift: float) -> bool:
    """Return whether the Hessian stays above half its value along Newton's and the flattest direction."""
    assert minimum.hessian is not None
    shifted = minimum.hessian + 2 * shift * np.eye(lagrangian.size)
    eigenvalues, directions = np.linalg.eigh(shifted)
    root = directions / np.sqrt(np.maximum(eigenvalues, 1e-300))
    components = root.T @ minimum.gradient
    decrement = float(np.linalg.norm(components))
    size = float(np.linalg.norm(minimum.point)) + 1e-3
    for direction in (-(root @ components) / max(decrement, 1e-300), root[:, 0], -root[:, 0]):
        step = 4 * decrement * direction
        if np.linalg.norm(step) <= 1e-6 * size:
            continue  # the curvature does not change within a millionth of the parameters' norm
        test_point = lagrangian.round_point(minimum.point + step)
        hessian = lagrangian.hessian(test_point, weights) + shift * np.eye(lagrangian.size)
        if not np.isfinite(hessian).all() or np.linalg.eigvalsh(root.T @ hessian @ root)[0] < 0.5:
            return False
    return True


def _describe_distance(radius: float) -> str:
    return f"the best parameters lie within {radius:.3g} of the Lagrangian's minimum"


def _describe_curvature(shift: float, radius: float) -> str:
    text = "the Lagrangian's curvature does not halve near its minimum"
    return text if shift == 0 else f"{text}, and {_describe_distance(radius)}"
