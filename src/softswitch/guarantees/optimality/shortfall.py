"""How far below a value that was found the true minimum of a convex function may lie.

With the gradient q at a point ŵ where the function has the value v, and e for how far q may be off by rounding:

    box:     v − max over s in the box of <q, ŵ − s>                                       by convexity alone
    ball:    v − <q, ŵ> − radius·‖q‖, or v − ‖q‖²/(2ν) with a multiplier ν of the ball     by convexity alone
    else:    v − qᵀ(H + 2δI)⁻¹q − δR²/2, for the best δ >= 0, or v − ‖q‖R

In the last line H is the Hessian at ŵ. Where it does not fall below its half inside {u: uᵀ(H + 2δI)u <= 16λ²} about ŵ,
λ² = qᵀ(H + 2δI)⁻¹q, the function plus δ‖w − ŵ‖²/2 is not below v on the rim of that set, so its minimum lies inside,
and is at least v − λ². That is twice what a Newton step gains. It is tried at points of the rim. With δ > 0 the bound
is for parameters within R of ŵ.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from softswitch.guarantees.optimality.lagrangian import Lagrangian, NoRowsLeft, Weights
from softswitch.guarantees.optimality.minimise import Minimum
from softswitch.problem.domains import Ball, Box, Domain


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
