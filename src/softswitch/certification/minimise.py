"""Minimisation of a Lagrangian by Newton's method, for few parameters, and by L-BFGS.

A ball is a constraint with a multiplier, and a box is a bound constraint. Any other domain is ignored: the minimum over
a larger set is smaller, and still gives a valid lower bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg

from softswitch.certification.lagrangian import Lagrangian, RowBudgetExceeded, WeightedSum, Weights
from softswitch.certification.lbfgs import UNBOUNDED_FACTOR, lbfgs
from softswitch.problem.domains import Box, Domain

MAX_DENSE_SIZE = 500
"""Maximum number of parameters for which the Hessian is computed."""
FIRST_ITERATIONS, MAX_ITERATIONS, NEWTON_STEPS = 40, 300, 12


class _UnboundedError(Exception):
    """The function has no minimum."""


@dataclass(frozen=True, eq=False)
class Minimum:
    """The best point found in the minimisation of a Lagrangian.

    Attributes:
        point: The point, within the box if there is one.
        value: Value at the point.
        gradient: Gradient at the point.
        size: Sum of the absolute values of the terms.
        hessian: Hessian at the point, if computed.
        inverse: Estimate of the inverse Hessian by L-BFGS, if available.
        free: Entries that are not held at the boundary of the box.
        bounded: Whether the Lagrangian has a minimum.
    """

    point: np.ndarray
    value: float
    gradient: np.ndarray
    size: float
    hessian: np.ndarray | None
    inverse: Any
    free: np.ndarray
    bounded: bool = True

    def solve_hessian(self, columns: np.ndarray) -> np.ndarray:
        """Return the inverse Hessian times the columns, restricted to free entries."""
        solution = np.zeros_like(columns)
        if self.hessian is not None:
            inner = self.hessian[np.ix_(self.free, self.free)]
            if len(inner):
                solution[self.free] = linalg.cho_solve(_factorise(inner), columns[self.free])
            return solution
        if self.inverse is not None:
            solution[self.free] = np.asarray(self.inverse @ columns)[self.free]
            return solution
        return columns


def minimise_lagrangian(
    lagrangian: Lagrangian,
    weights: Weights,
    domain: Domain | None,
    start: np.ndarray,
    scale: float,
    radius: float,
    *,
    steps: int = NEWTON_STEPS,
    accuracy: float = 0.0,
) -> Minimum:
    """Minimise the Lagrangian with these weights over the box, or without constraints.

    Args:
        lagrangian: The Lagrangian.
        weights: Weights of its functions.
        domain: Θ; only a box matters.
        start: Initial point.
        scale: Typical size of values.
        radius: Typical norm of parameters.
        steps: Maximum number of Newton steps; with 0 the start is evaluated only.
        accuracy: Accepted distance from the minimum, as a share of the scale.
    """
    search = _Search(lagrangian, weights, domain if isinstance(domain, Box) else None, scale, radius, accuracy)
    try:
        search.evaluate(search.project(start))
        if not steps:
            if search.dense:
                search.compute_hessian()
        elif not (search.dense and search.run_newton(steps)):
            search.run_lbfgs()
            if search.dense:
                search.run_newton(steps)
    except RowBudgetExceeded:
        if not search.point.size:
            raise
    except _UnboundedError:
        if not search.point.size:
            return Minimum(start, -math.inf, start, 0.0, None, None, np.ones(len(start), bool), bounded=False)
        return search.best(bounded=False)
    return search.best()


class _Search:
    """State of a search. ``point`` is the best point by value; near the minimum, by the norm of the gradient."""

    def __init__(
        self, lagrangian: Lagrangian, weights: Weights, box: Box | None, scale: float, radius: float, accuracy: float
    ) -> None:
        self.lagrangian, self.weights, self.box, self.scale = lagrangian, weights, box, scale
        self.target_gain = scale * max(1e-13, 1e-3 * lagrangian.eps, accuracy)
        self.dense = lagrangian.size <= MAX_DENSE_SIZE
        self.point = self.gradient = np.empty(0)
        self.value, self.size, self.first = math.inf, 0.0, math.nan
        self.radius, self.initial_size = radius, math.inf
        self.hessian: np.ndarray | None = None
        self.inverse: Any = None

    def project(self, point: np.ndarray) -> np.ndarray:
        return point if self.box is None else np.clip(point, self.box.lower, self.box.upper)

    def evaluate(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Return value and gradient, and keep the point if it is better."""
        if not np.isfinite(point).all():
            raise _UnboundedError
        point = self.lagrangian.round_point(point)
        total = self.lagrangian.weighted_sum(point, self.weights)
        value, gradient, _ = total
        if not self.point.size:
            self.first, self.initial_size = value, self.scale + total.size
            self._keep(point, total)
        diverges = self.box is None and float(np.linalg.norm(point)) > UNBOUNDED_FACTOR * self.radius
        if diverges or value < self.first - UNBOUNDED_FACTOR * self.initial_size:
            raise _UnboundedError
        is_close = abs(value - self.value) <= 4 * self.lagrangian.eps * (abs(value) + self.scale)
        is_flatter = self._free_norm(point, gradient) < self._free_norm(self.point, self.gradient)
        if is_flatter if is_close else value < self.value:
            self._keep(point, total)
        return value, gradient

    def _keep(self, point: np.ndarray, total: WeightedSum) -> None:
        self.point, self.hessian = point, None
        self.value, self.gradient, self.size = total

    def _free(self, point: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the entries that the box does not hold against the gradient."""
        if self.box is None:
            return np.ones(len(point), bool)
        return ~(((point <= self.box.lower) & (gradient > 0)) | ((point >= self.box.upper) & (gradient < 0)))

    def _free_norm(self, point: np.ndarray, gradient: np.ndarray) -> float:
        return float(np.linalg.norm(gradient[self._free(point, gradient)]))

    def run_lbfgs(self) -> None:
        iterations = FIRST_ITERATIONS if self.dense else MAX_ITERATIONS
        box = None if self.box is None else (self.box.lower, self.box.upper)
        self.inverse = lbfgs(
            self.evaluate,
            self.point,
            box,
            iterations=iterations,
            evaluations=2 * iterations,
            ftol=1e-15,
            gtol=1e-10 * self.scale,
        ).hess_inv

    def run_newton(self, steps: int) -> bool:
        """Run a damped Newton method, and return whether it converged."""
        for _ in range(steps):
            start, gradient = self.point, self.gradient
            self.compute_hessian()
            if self.hessian is None:
                return False
            step = -self.best().solve_hessian(gradient)
            gain = float(-gradient @ step)
            if not math.isfinite(gain) or gain < 0:
                return False
            if gain <= self.target_gain:
                return True
            length = 1.0
            while self.evaluate(self.project(start + length * step)) and self.point is start:
                length /= 4
                if length < 1e-3:
                    return gain <= self.scale * 1e2 * self.lagrangian.eps
        return False

    def compute_hessian(self) -> None:
        if self.hessian is None:
            hessian = self.lagrangian.hessian(self.point, self.weights)
            self.hessian = hessian if np.isfinite(hessian).all() else None

    def best(self, *, bounded: bool = True) -> Minimum:
        free = self._free(self.point, self.gradient)
        return Minimum(self.point, self.value, self.gradient, self.size, self.hessian, self.inverse, free, bounded)


def _factorise(matrix: np.ndarray) -> Any:
    """Return a Cholesky factor, after the smallest addition to the diagonal that makes the matrix positive definite."""
    size = float(np.abs(np.diag(matrix)).max()) or 1.0
    for share in (0.0, 1e-14, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2):
        try:
            return linalg.cho_factor(matrix + share * size * np.eye(len(matrix)))
        except linalg.LinAlgError:
            continue
    return linalg.cho_factor(size * np.eye(len(matrix)))
