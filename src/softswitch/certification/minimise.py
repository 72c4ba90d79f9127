"""Minimum of a Lagrangian, and a lower bound on it.

A ball is a constraint with a multiplier, and a box is a bound constraint. Any other domain is ignored: the minimum over
a larger set is smaller, and still gives a valid lower bound.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg

from softswitch.certification.lagrangian import Lagrangian, RowBudgetExceeded, WeightedSum, Weights
from softswitch.certification.lbfgs import UNBOUNDED_FACTOR, lbfgs
from softswitch.problem.domains import Ball, Box

MAX_DENSE_SIZE = 500  # largest number of parameters for which the Hessian is computed
FIRST_ITERATIONS, MAX_ITERATIONS, NEWTON_STEPS = 40, 300, 12


class _UnboundedError(Exception):
    """The function has no minimum."""


class Floor(NamedTuple):
    """A lower bound on a function's minimum, and what it assumes besides convexity.

    ``shift`` is the curvature δ added to the Hessian; None if the bound uses a domain or the distance R instead.
    """

    value: float
    shift: float | None = None
    assumed: str = ""


class Minimum:
    """The minimum of a Lagrangian over the box, or without constraints, by Newton's method if d is small and by L-BFGS.

    ``point`` is the best point found by value; near the minimum, by the norm of the gradient. ``value`` is a sum of
    terms whose absolute values add up to ``size``. ``hessian`` and ``inverse``, the estimate of its inverse by L-BFGS,
    are None unless computed. ``bounded`` is False if there is no minimum. ``floor`` is set by the caller.

    The search starts at ``start`` and ends within the share ``accuracy`` of the minimum. ``scale`` and ``radius`` are
    typical sizes of values and parameters, and ``noise`` bounds a gradient's error. With ``steps`` = 0 the start is
    evaluated only.
    """

    def __init__(
        self,
        lagrangian: Lagrangian,
        weights: Weights,
        start: np.ndarray,
        scale: float,
        radius: float,
        accuracy: float = 0.0,
        noise: float = 0.0,
        *,
        steps: int = NEWTON_STEPS,
    ) -> None:
        self.lagrangian, self.weights, self.noise = lagrangian, weights, noise
        self._box = lagrangian.domain if isinstance(lagrangian.domain, Box) else None
        self._scale, self._radius, self._initial_size = scale, radius, math.inf
        self._target_gain = scale * max(1e-13, 1e-3 * lagrangian.eps, accuracy)
        self.point = self.gradient = np.empty(0)
        self.value, self.size, self._first = math.inf, 0.0, math.nan
        self.hessian: np.ndarray | None = None
        self.inverse: Any = None
        self.floor = Floor(-np.inf)
        self.bounded, is_dense = True, lagrangian.size <= MAX_DENSE_SIZE
        try:
            self._evaluate(self.project(start))
            if not steps:
                if is_dense:
                    self._compute_hessian()
            elif not (is_dense and self._run_newton(steps)):
                self._run_lbfgs(FIRST_ITERATIONS if is_dense else MAX_ITERATIONS)
                if is_dense:
                    self._run_newton(steps)
        except RowBudgetExceeded:
            if not self.point.size:
                raise
        except _UnboundedError:
            self.bounded = False
            if not self.point.size:
                self.point, self.gradient, self.value = start, start, -math.inf

    def solve_hessian(self, columns: np.ndarray) -> np.ndarray:
        """Return the inverse Hessian times the columns, restricted to entries that the box does not hold."""
        solution, free = np.zeros_like(columns), self._free(self.point, self.gradient)
        if self.hessian is not None:
            inner = self.hessian[np.ix_(free, free)]
            if len(inner):
                solution[free] = linalg.cho_solve(_factorise(inner), columns[free])
            return solution
        if self.inverse is None:
            return columns
        solution[free] = np.asarray(self.inverse @ columns)[free]
        return solution

    def project(self, point: np.ndarray) -> np.ndarray:
        """Return the nearest point of the box."""
        return point if self._box is None else np.clip(point, self._box.lower, self._box.upper)

    def _evaluate(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Return value and gradient, and keep the point if it is better."""
        if not np.isfinite(point).all():
            raise _UnboundedError
        point = self.lagrangian.round_point(point)
        total = self.lagrangian.weighted_sum(point, self.weights)
        value, gradient, _ = total
        if not self.point.size:
            self._first, self._initial_size = value, self._scale + total.size
            self._keep(point, total)
        diverges = self._box is None and float(np.linalg.norm(point)) > UNBOUNDED_FACTOR * self._radius
        if diverges or value < self._first - UNBOUNDED_FACTOR * self._initial_size:
            raise _UnboundedError
        is_close = abs(value - self.value) <= 4 * self.lagrangian.eps * (abs(value) + self._scale)
        is_flatter = self._free_norm(point, gradient) < self._free_norm(self.point, self.gradient)
        if is_flatter if is_close else value < self.value:
            self._keep(point, total)
        return value, gradient

    def _keep(self, point: np.ndarray, total: WeightedSum) -> None:
        self.point, self.hessian = point, None
        self.value, self.gradient, self.size = total

    def _free(self, point: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the entries that the box does not hold against the gradient."""
        if self._box is None:
            return np.ones(len(point), bool)
        return ~(((point <= self._box.lower) & (gradient > 0)) | ((point >= self._box.upper) & (gradient < 0)))

    def _free_norm(self, point: np.ndarray, gradient: np.ndarray) -> float:
        return float(np.linalg.norm(gradient[self._free(point, gradient)]))

    def _run_lbfgs(self, iterations: int) -> None:
        box = None if self._box is None else (self._box.lower, self._box.upper)
        options = {"maxiter": iterations, "maxfun": 2 * iterations, "ftol": 1e-15, "gtol": 1e-10 * self._scale}
        self.inverse = lbfgs(self._evaluate, self.point, box, **options).hess_inv

    def _run_newton(self, steps: int) -> bool:
        """Run a damped Newton method, and return whether it converged."""
        for _ in range(steps):
            start, gradient = self.point, self.gradient
            self._compute_hessian()
            if self.hessian is None:
                return False
            step = -self.solve_hessian(gradient)
            gain = float(-gradient @ step)
            if not math.isfinite(gain) or gain < 0:
                return False
            if gain <= self._target_gain:
                return True
            length = 1.0
            while self._evaluate(self.project(start + length * step)) and self.point is start:
                length /= 4
                if length < 1e-3:
                    return gain <= self._scale * 1e2 * self.lagrangian.eps
        return False

    def _compute_hessian(self) -> None:
        if self.hessian is None:
            hessian = self.lagrangian.hessian(self.point, self.weights)
            self.hessian = hessian if np.isfinite(hessian).all() else None


def _factorise(matrix: np.ndarray) -> Any:
    """Return a Cholesky factor, after the smallest addition to the diagonal that makes the matrix positive definite."""
    size = float(np.abs(np.diag(matrix)).max()) or 1.0
    for share in (0.0, 1e-14, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2):
        try:
            return linalg.cho_factor(matrix + share * size * np.eye(len(matrix)))
        except linalg.LinAlgError:
            continue
    return linalg.cho_factor(size * np.eye(len(matrix)))


def bound_minimum(minimum: Minimum, radius: float) -> Floor:
    """Return a lower bound over the domain; without one the optimum is assumed within R = ``radius`` of the minimum."""
    if not minimum.bounded or not np.isfinite(minimum.gradient).all():
        return Floor(-np.inf)
    point, value, gradient, noise = minimum.point, minimum.value, minimum.gradient, minimum.noise
    domain = minimum.lagrangian.domain
    if isinstance(domain, Box):
        down, up = point - domain.lower, point - domain.upper
        decrease = np.maximum(gradient * down, gradient * up).sum() + noise * np.linalg.norm(np.maximum(down, -up))
        return Floor(value - float(decrease))
    if isinstance(domain, Ball):
        norm = float(np.linalg.norm(gradient)) + noise
        floors, multiplier = [value - _decrease_in_ball(point, gradient, domain.radius, noise)], minimum.weights.ball
        if multiplier > 0:
            remainder = _decrease_in_ball(point, gradient - multiplier * point, domain.radius, noise)
            excess = minimum.lagrangian.ball_excess(point)
            floors += [value - norm**2 / (2 * multiplier), value - multiplier * excess - remainder]
        return Floor(max(floors))
    by_distance, by_curvature = _bound_by_distance(minimum, radius), _bound_by_curvature(minimum, radius)
    return by_distance if by_distance.value >= by_curvature.value else by_curvature


def bound_minimum_checked(minimum: Minimum, radius: float) -> Floor:
    """Return ``bound_minimum`` after a check of the curvature on which it relies; δ grows until the check passes."""
    floor, by_distance = bound_minimum(minimum, radius), _bound_by_distance(minimum, radius)
    while floor.shift is not None and floor.value > by_distance.value:
        try:
            if _keeps_curvature(minimum, floor.shift):
                return floor
        except RowBudgetExceeded:
            break
        assert minimum.hessian is not None
        smallest = max(10 * floor.shift, 1e-6 * float(np.abs(minimum.hessian).max()))
        floor = _bound_by_curvature(minimum, radius, smallest)
    return floor if floor.shift is None else by_distance


def has_negative_curvature(minimum: Minimum) -> bool:
    """Return whether the Hessian at the minimum has a negative eigenvalue beyond rounding."""
    if minimum.hessian is None:
        return False
    eigenvalues = np.linalg.eigvalsh(minimum.hessian)
    return bool(eigenvalues[0] < -100 * minimum.lagrangian.rounding * np.abs(eigenvalues).max())


def _decrease_in_ball(point: np.ndarray, gradient: np.ndarray, radius: float, noise: float) -> float:
    """Return max over s in the ball of <gradient, point − s>; the point may lie outside."""
    norm = float(np.linalg.norm(gradient))
    return float(gradient @ point) + radius * norm + noise * (radius + float(np.linalg.norm(point)))


def _bound_by_distance(minimum: Minimum, radius: float) -> Floor:
    norm = float(np.linalg.norm(minimum.gradient)) + minimum.noise
    return Floor(minimum.value - norm * radius, None, _describe_distance(radius))


def _describe_distance(radius: float) -> str:
    return f"the best parameters lie within {radius:.3g} of the Lagrangian's minimum"


def _bound_by_curvature(minimum: Minimum, radius: float, smallest: float = 0.0) -> Floor:
    """Return the bound with the best δ >= ``smallest``; −∞ without a Hessian."""
    best_shift, best_decrease = 0.0, np.inf
    if minimum.hessian is not None and np.isfinite(minimum.hessian).all():
        eigenvalues, directions = np.linalg.eigh(minimum.hessian)
        largest = float(np.abs(eigenvalues).max())
        rounding = 10 * minimum.lagrangian.rounding * largest
        components = directions.T @ minimum.gradient
        shifts = rounding * np.geomspace(1, max(10.0, 1e4 * largest / rounding), 60) if largest > 0 else np.empty(0)
        if eigenvalues[0] > rounding:
            shifts = np.r_[0.0, shifts]
        for shift in shifts[shifts >= smallest]:
            # Rounding may have increased the Hessian by ``rounding``.
            offset = -rounding if shift == 0 else 0
            curvature = np.maximum(eigenvalues + offset, 0) + (2 * shift - (rounding if shift > 0 else 0))
            if curvature[0] <= 0:
                continue
            decrement = np.sqrt((components**2 / curvature).sum()) + minimum.noise / np.sqrt(curvature[0])
            decrease = float(decrement**2 + shift * radius**2 / 2)
            if decrease < best_decrease:
                best_shift, best_decrease = float(shift), decrease
    text = "the Lagrangian's curvature does not halve near its minimum"
    assumed = text if best_shift == 0 else f"{text}, and {_describe_distance(radius)}"
    return Floor(minimum.value - best_decrease, best_shift, assumed)


def _keeps_curvature(minimum: Minimum, shift: float) -> bool:
    """Return whether the Hessian stays above half its value along Newton's and the flattest direction."""
    assert minimum.hessian is not None
    lagrangian, identity = minimum.lagrangian, np.eye(len(minimum.point))
    eigenvalues, directions = np.linalg.eigh(minimum.hessian + 2 * shift * identity)
    root = directions / np.sqrt(np.maximum(eigenvalues, 1e-300))
    components = root.T @ minimum.gradient
    decrement = float(np.linalg.norm(components))
    size = float(np.linalg.norm(minimum.point)) + 1e-3
    for direction in (-(root @ components) / max(decrement, 1e-300), root[:, 0], -root[:, 0]):
        step = 4 * decrement * direction
        if np.linalg.norm(step) <= 1e-6 * size:
            continue  # the curvature does not change within a millionth of the parameters' norm
        test_point = lagrangian.round_point(minimum.point + step)
        hessian = lagrangian.hessian(test_point, minimum.weights) + shift * identity
        curvature = root.T @ hessian @ root
        if not np.isfinite(curvature).all() or np.linalg.eigvalsh(curvature)[0] < 0.5:
            return False
    return True
