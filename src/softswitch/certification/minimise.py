"""Where a Lagrangian is smallest: Newton's method where the parameters are few, and L-BFGS.

A ball is one more constraint, with a multiplier of its own, and a box is held to. Any other domain is left out: over
more points a minimum is smaller, and as good for a lower bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg, optimize

from softswitch.certification.lagrangian import Lagrangian, Looked, NoRowsLeft, Weights
from softswitch.problem.domains import Box, Domain

MOST_DENSE = 500
"""Up to so many parameters all second derivatives are computed."""
FIRST_STEPS, MOST_STEPS, NEWTON_STEPS = 40, 300, 12
FAR = 1e6
"""A function that falls by so many times what its values are, or by going so many times as far, has no minimum."""


class _NoMinimum(Exception):  # noqa: N818
    """The function falls on and on."""


@dataclass(frozen=True, eq=False)
class Minimum:
    """Where a Lagrangian is smallest, as far as was found.

    Attributes:
        point: of the box, where there is one.
        value: there,
        gradient: and there.
        size: of what the value consists, without signs.
        hessian: and there; None where it was not computed.
        inverse: an estimate of the Hessian's inverse for where it was not; None where there is no such either.
        free: the entries that are not held by the box.
        bounded: whether there is a minimum at all.
    """

    point: np.ndarray
    value: float
    gradient: np.ndarray
    size: float
    hessian: np.ndarray | None
    inverse: Any
    free: np.ndarray
    bounded: bool = True

    def give(self, columns: np.ndarray) -> np.ndarray:
        """The Hessian's inverse times columns, within the box: how far the minimum moves when it is pulled so."""
        pulled = np.zeros_like(columns)
        if self.hessian is not None:
            inner = self.hessian[np.ix_(self.free, self.free)]
            if len(inner):
                pulled[self.free] = linalg.cho_solve(_factor(inner), columns[self.free])
            return pulled
        if self.inverse is not None:
            pulled[self.free] = np.asarray(self.inverse @ columns)[self.free]
            return pulled
        return columns


def smallest(
    lagrangian: Lagrangian,
    weights: Weights,
    domain: Domain | None,
    start: np.ndarray,
    scale: float,
    reach: float,
    *,
    steps: int = NEWTON_STEPS,
    near: float = 0.0,
) -> Minimum:
    """Minimise the Lagrangian of these weights over the box, or over everything.

    Args:
        lagrangian: what is minimised.
        weights: of its parts.
        domain: Θ, which matters if it is a box.
        start: where to begin.
        scale: how large values are that matter,
        reach: and how large parameters.
        steps: of Newton's method at a time; with 0 it is only looked at the start.
        near: what is above the minimum by less than this share of the scale will do.
    """
    search = _Search(lagrangian, weights, domain if isinstance(domain, Box) else None, scale, reach, near)
    try:
        search.look(search.inside(start))
        if not steps:
            if search.dense:
                search.curve()
        elif not (search.dense and search.newton(steps)):
            search.descend()
            if search.dense:
                search.newton(steps)
    except NoRowsLeft:
        if not search.point.size:
            raise
    except _NoMinimum:
        if not search.point.size:
            return Minimum(start, -math.inf, start, 0.0, None, None, np.ones(len(start), bool), bounded=False)
        return search.found(bounded=False)
    return search.found()


class _Search:
    """A search under way; ``point`` is the best that it has looked at, by the value and near the minimum the slope."""

    def __init__(
        self, lagrangian: Lagrangian, weights: Weights, box: Box | None, scale: float, reach: float, near: float
    ) -> None:
        self.lagrangian, self.weights, self.box, self.scale = lagrangian, weights, box, scale
        self.enough = scale * max(1e-13, 1e-3 * lagrangian.eps, near)
        self.dense = lagrangian.size <= MOST_DENSE
        self.point = self.gradient = np.empty(0)
        self.value, self.size, self.first = math.inf, 0.0, math.nan
        self.reach, self.large = reach, math.inf
        self.hessian: np.ndarray | None = None
        self.inverse: Any = None

    def inside(self, point: np.ndarray) -> np.ndarray:
        return point if self.box is None else np.clip(point, self.box.lower, self.box.upper)

    def look(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient at a point; it is kept if it is better."""
        if not np.isfinite(point).all():
            raise _NoMinimum
        point = self.lagrangian.rounded(point)
        looked = self.lagrangian.weighted(point, self.weights)
        value, gradient, _ = looked
        if not self.point.size:
            self.first, self.large = value, self.scale + looked.size
            self._keep(point, looked)
        away = self.box is None and float(np.linalg.norm(point)) > FAR * self.reach
        if away or value < self.first - FAR * self.large:
            raise _NoMinimum
        near = abs(value - self.value) <= 4 * self.lagrangian.eps * (abs(value) + self.scale)
        flatter = self._slope(point, gradient) < self._slope(self.point, self.gradient)
        if flatter if near else value < self.value:
            self._keep(point, looked)
        return value, gradient

    def _keep(self, point: np.ndarray, looked: Looked) -> None:
        self.point, self.hessian = point, None
        self.value, self.gradient, self.size = looked

    def free(self, point: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """The entries that the box does not hold against the gradient."""
        if self.box is None:
            return np.ones(len(point), bool)
        return ~(((point <= self.box.lower) & (gradient > 0)) | ((point >= self.box.upper) & (gradient < 0)))

    def _slope(self, point: np.ndarray, gradient: np.ndarray) -> float:
        return float(np.linalg.norm(gradient[self.free(point, gradient)]))

    def descend(self) -> None:
        """L-BFGS."""
        steps = FIRST_STEPS if self.dense else MOST_STEPS
        bounds = None if self.box is None else [(self.box.lower, self.box.upper)] * self.lagrangian.size
        options = {"maxiter": steps, "maxfun": 2 * steps, "maxcor": 20, "ftol": 1e-15, "gtol": 1e-10 * self.scale}
        found = optimize.minimize(self.look, self.point, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        self.inverse = found.hess_inv

    def newton(self, steps: int) -> bool:
        """Newton's method, damped; whether it came to an end at the minimum."""
        for _ in range(steps):
            here, gradient = self.point, self.gradient
            self.curve()
            if self.hessian is None:
                return False
            step = -self.found().give(gradient)
            gain = float(-gradient @ step)
            if not math.isfinite(gain) or gain < 0:
                return False
            if gain <= self.enough:
                return True
            length = 1.0
            while self.look(self.inside(here + length * step)) and self.point is here:
                length /= 4
                if length < 1e-3:
                    return gain <= self.scale * 1e2 * self.lagrangian.eps
        return False

    def curve(self) -> None:
        """Compute the second derivatives at the point, if they are not known."""
        if self.hessian is None:
            found = self.lagrangian.hessian(self.point, self.weights)
            self.hessian = found if np.isfinite(found).all() else None

    def found(self, *, bounded: bool = True) -> Minimum:
        free = self.free(self.point, self.gradient)
        return Minimum(self.point, self.value, self.gradient, self.size, self.hessian, self.inverse, free, bounded)


def _factor(matrix: np.ndarray) -> Any:
    """A Cholesky factor; where there is none, of the matrix with as little added to its diagonal as makes one."""
    size = float(np.abs(np.diag(matrix)).max()) or 1.0
    for share in (0.0, 1e-14, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2):
        try:
            return linalg.cho_factor(matrix + share * size * np.eye(len(matrix)))
        except linalg.LinAlgError:
            continue
    return linalg.cho_factor(size * np.eye(len(matrix)))
