"""A lower bound on the optimal objective by Lagrange duality.

For weights p >= 0 with Σp = 1 and multipliers μ >= 0, every w within the tolerance ε has

    F(w) >= Σ_i p_i f_i(w) + Σ_ic μ_ic (g_ic(w) − ε) >= min over all parameters of that sum.

The minimum is therefore a lower bound on F*. ``SQP`` finds the weights, and minimises the sum for them. For convex f
and g the error of that minimisation is bounded and subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np

from softswitch.data.client_data import ClientData
from softswitch.methods import sqp
from softswitch.methods.sqp import SQP, Derivatives, Query
from softswitch.oracles.client_shifts import to_regret_task
from softswitch.oracles.derivatives import MAX_PARAMETERS, DerivativeOracle, RowDerivatives
from softswitch.oracles.evaluation import make_evaluator
from softswitch.problem.domains import Ball, Box
from softswitch.problem.parameters import Params, check_params, count_parameters, float_dtype, to_vector
from softswitch.problem.problem import Problem
from softswitch.results.baseline import LowerBound
from softswitch.results.result import Result
from softswitch.support import checks

RANDOM_SEGMENTS = 6  # through the solution, on which convexity is tested
MAX_SEARCH, MAX_MINIMISATION = 80, 40  # exchanges for the weights, and for the minimum of their Lagrangian
UNBOUNDED_FACTOR = 1e6  # a function has no minimum if it or its argument grows by this multiple of its size
MINIMUM_PRECISION = 1e-14  # relative, of the minimum


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # divergence is detected from the values
def lower_bound(
    problem: Problem,
    clients: ClientData,
    params: Params,
    tolerance: float,
    *,
    pooled: bool = False,
    budget_rows: int | None = None,
) -> LowerBound:
    """Return a lower bound on the objective of any parameters within the tolerance, on all training data.

    The bound is certified if the problem is declared convex (``Problem(…, convex=True)``) and no check refutes it.
    Otherwise it is an estimate. Without a ball or a box as the domain, the bound also relies on the assumptions in
    ``LowerBound.assumptions``. There is no bound for a constraint with a surrogate, or for more than 500 parameters;
    ``LowerBound.reason`` says why.

    Args:
        problem: Objective, constraint and optional domain.
        clients: Training rows.
        params: The solution.
        tolerance: ε, the tolerance at which F* is defined.
        pooled: Whether the constraint is evaluated on all clients' data together, as with ``criterion="pooled"``.
        budget_rows: Number of evaluated rows after which the search for weights ends; a Hessian counts as d
            evaluations. Default: none.
    """
    checks.check_instance("problem", problem, Problem)
    checks.check_instance("clients", clients, ClientData)
    params, limit = check_params("params", params), checks.check_real("tolerance", tolerance)
    budget = math.inf if budget_rows is None else checks.check_integer("budget_rows", budget_rows, minimum=1)
    reason = f"the model has more than {MAX_PARAMETERS} parameters" if count_parameters(params) > MAX_PARAMETERS else ""
    if problem.constraint_surrogate is not None:
        reason = "the constraint is not continuous (it has a surrogate), so the Lagrangian cannot be minimised"
    if reason:
        values = make_evaluator(problem, clients, params)(params)
        worst = float(values.objective.max())
        levels: Any = values.pooled if pooled else values.constraint
        meets = bool(levels.max() <= limit)
        none, rows = (np.zeros(len(clients)), np.zeros(values.constraint.shape)), int(clients.sizes.sum())
        return LowerBound(-math.inf, worst, limit, meets, False, reason, "", *none, 0.0, rows)
    derivatives = RowDerivatives(problem, clients, pooled=pooled)
    projected = params if problem.domain is None else problem.domain.project(params)
    solution, inside = to_vector(params), to_vector(projected)
    first, weights = _search(derivatives, inside, limit, budget)
    if not np.array_equal(inside, solution):
        first = derivatives.reply(Query(solution, 0 * weights.weights, 0 * weights.multipliers))
    is_inside = np.linalg.norm(inside - solution) <= 1e-6 * (1e-3 + np.linalg.norm(solution))  # up to rounding
    eps = float(np.finfo(np.dtype(float_dtype(params))).eps)
    meets = bool(is_inside) and float((first.constraint - limit).max(initial=-math.inf)) <= 8 * eps * (abs(limit) + 1)
    return bound_by_weights(derivatives, solution, first, limit, weights, meets=meets)


def bound_by_weights(
    derivatives: DerivativeOracle,
    solution: np.ndarray,
    found: Derivatives,
    tolerance: float,
    weights: Query,
    *,
    meets: bool,
) -> LowerBound:
    """Return the lower bound for given weights of the Lagrangian, by minimising it from ``weights.point`` on.

    ``solution`` is the answer as a vector, with the values ``found``; ``meets`` is True if it is within the domain and
    the tolerance.
    """
    dtype = np.dtype(float_dtype(derivatives.start))
    start, eps = to_vector(derivatives.start), float(np.finfo(dtype).eps)

    def report(
        reason: str, value: float = -math.inf, certified: bool = False, assumed: str = "", subtracted: float = 0.0
    ) -> LowerBound:
        kept = 1 if math.isfinite(value) else 0
        pair = kept * weights.weights, kept * weights.multipliers
        rows = derivatives.rows
        return LowerBound(value, found.worst, tolerance, meets, certified, reason, assumed, *pair, subtracted, rows)

    if not found.is_finite:
        return report("the values at the solution are not finite")
    lagrangian = _Lagrangian(derivatives, tolerance, weights)
    minimum = lagrangian.minimise(weights.point, UNBOUNDED_FACTOR * max(1.0, float(np.linalg.norm(solution))))
    if minimum is None:
        return report("the Lagrangian has no minimum for the weights found; add a domain (Ball, Box)")
    length = 10 * max(1.0, float(np.linalg.norm(solution)), float(np.linalg.norm(solution - start)))
    radius = max(length, 10 * float(np.linalg.norm(minimum.point - solution)))
    value, assumed = _bound_minimum(lagrangian, minimum, radius)
    if not math.isfinite(value):
        return report("the Lagrangian's curvature is not finite")
    scale = max(abs(found.worst), float(found.objective[np.isfinite(found.objective)].std())) or 1.0
    refutation, eigenvalues = None, np.linalg.eigvalsh(minimum.hessian)
    if derivatives.can_test_convexity:
        refutation = _refute_convexity(derivatives, solution, (start, minimum.point), tolerance)
    if refutation is None and eigenvalues[0] < -100 * derivatives.rounding * np.abs(eigenvalues).max():
        refutation = "the Lagrangian has negative curvature at its minimum"
    if meets and value > found.worst + max(1e-9, 100 * eps) * scale:
        return report(f"the problem is not convex: {refutation or 'the solution lies below the bound'}")
    value = min(value, found.worst) if meets else value
    if refutation is not None:
        why = f"the problem is {'declared convex, but is ' if derivatives.convex else ''}not convex: {refutation}"
    elif derivatives.convex:
        why = "the problem is convex"
    else:
        why = "convexity is not known" if derivatives.convex is None else "the problem is declared not convex"
    certified = refutation is None and bool(derivatives.convex)
    return report(why, value, certified, assumed, minimum.value - value)


def with_lower_bound(
    result: Result, problem: Problem, clients: ClientData, *, budget_rows: int | None = None
) -> Result:
    """Return the result with a lower bound on the optimum at its method's tolerance; see ``lower_bound``.

    If the run minimised regrets, the bound is on the largest regret.

    Args:
        result: Result of ``solve``.
        problem: The problem that was solved.
        clients: Training rows.
        budget_rows: Number of evaluated rows after which the search for weights ends.
    """
    if result.client_optimum is not None:
        problem, clients, _ = to_regret_task(problem, clients, result.client_optimum)
    tolerance, pooled = float(result.method.tolerance), result.method.switches_on == "pooled"
    bound = lower_bound(problem, clients, result.params, tolerance, pooled=pooled, budget_rows=budget_rows)
    return replace(result, lower_bound=bound)


def prove_infeasible(derivatives: DerivativeOracle, tolerance: float, multipliers: Query) -> tuple[float, str] | None:
    """Return a positive lower bound on min over w of Σ μ (g − ε), with Σμ = 1, and what it assumes; None without one.

    If it is positive, no parameters meet the tolerance. It is rigorous for convex constraints; others give None.
    """
    total = float(multipliers.multipliers.sum())
    if not derivatives.convex or total <= 0:
        return None
    weights = multipliers._replace(weights=0 * multipliers.weights, multipliers=multipliers.multipliers / total)
    lagrangian = _Lagrangian(derivatives, tolerance, weights)
    norm = float(np.linalg.norm(multipliers.point))
    minimum = lagrangian.minimise(multipliers.point, UNBOUNDED_FACTOR * max(1.0, norm))
    if minimum is None:
        return None
    least, assumed = _bound_minimum(lagrangian, minimum, 10 * max(1.0, norm))
    return (least, assumed) if least > 0 else None


def _search(
    derivatives: DerivativeOracle, start: np.ndarray, tolerance: float, budget: float
) -> tuple[Derivatives, Query]:
    """Run ``SQP``, and return the derivatives at the start, and the multipliers of the last quadratic program."""
    method = SQP(tolerance=max(0.0, tolerance))
    state = sqp.start(method, start, len(derivatives.names), derivatives.shape)
    reply = first = derivatives.reply(state.query)
    limit = UNBOUNDED_FACTOR * max(1.0, float(np.linalg.norm(start)))
    for _ in range(MAX_SEARCH):
        state = sqp.advance(method, tolerance, derivatives.domain, state, reply)
        if state.is_over or derivatives.rows > budget or np.linalg.norm(state.point) > limit:
            break
        reply = derivatives.reply(state.query)
    return first, state.query._replace(point=state.point)


@dataclass(frozen=True)
class _Minimum:
    """A minimum of the Lagrangian."""

    point: np.ndarray
    value: float
    gradient: np.ndarray
    hessian: np.ndarray
    size: float  # sum of the absolute values of its terms
    noise: float  # bound on the error of the gradient


class _Lagrangian:
    """Σ p_i f_i + Σ μ_ic (g_ic − ε) for fixed weights."""

    def __init__(self, derivatives: DerivativeOracle, tolerance: float, weights: Query) -> None:
        # Another domain is ignored: the minimum over a larger set is smaller, and still gives a valid bound.
        self.domain = derivatives.domain if isinstance(derivatives.domain, Ball | Box) else None
        self._derivatives, self._tolerance, self._weights = derivatives, tolerance, weights
        self._needed = (weights.weights > 0) | (weights.multipliers > 0).any(axis=1)
        self.rounding = derivatives.rounding

    def evaluate(self, point: np.ndarray) -> _Minimum:
        """Return value, gradient and Hessian at a point."""
        p, mu = self._weights.weights, self._weights.multipliers
        found = self._derivatives.reply(self._weights._replace(point=point), self._needed)
        terms = np.r_[
            p[p > 0] * found.objective[p > 0], mu[mu > 0] * found.constraint[mu > 0], -self._tolerance * mu[mu > 0]
        ]
        gradients = np.vstack([found.objective_gradient[p > 0], found.constraint_gradient[mu > 0]])
        entries = np.r_[p[p > 0], mu[mu > 0]]
        noise = self.rounding * float(entries @ np.linalg.norm(gradients, axis=1))
        size = float(np.abs(terms).sum())
        return _Minimum(point, float(terms.sum()), entries @ gradients, found.hessian, size, noise)

    def minimise(self, start: np.ndarray, limit: float) -> _Minimum | None:
        """Return the minimum over the domain; None if there is none with a norm below ``limit``."""
        method = SQP(tolerance=0.0, precision=MINIMUM_PRECISION)
        state, found = sqp.start(method, start, 1, (1, 0)), self.evaluate(start)
        best, first = found, found
        for _ in range(MAX_MINIMISATION):
            values, none = (np.array([found.value]), np.zeros((1, 0))), np.zeros((1, 0, len(start)))
            reply = Derivatives(*values, found.gradient[None], none, found.hessian)
            state = sqp.advance(method, 0.0, self.domain, state, reply)
            far = float(np.linalg.norm(best.point)) > limit
            if far or best.value < first.value - UNBOUNDED_FACTOR * (1 + first.size):
                return None
            if state.is_over:
                break
            found = self.evaluate(state.query.point)
            best = found if found.value < best.value else best
        is_finite = np.isfinite(best.value) and np.isfinite(best.gradient).all() and np.isfinite(best.hessian).all()
        return best if is_finite else None


def _bound_minimum(lagrangian: _Lagrangian, minimum: _Minimum, radius: float) -> tuple[float, str]:
    """Return a lower bound on the minimum over the domain, else within ``radius``, and what it assumes."""
    point, gradient, noise = minimum.point, minimum.gradient, minimum.noise
    value = minimum.value - lagrangian.rounding * minimum.size
    if isinstance(domain := lagrangian.domain, Box):
        down, up = point - domain.lower, point - domain.upper
        decrease = np.maximum(gradient * down, gradient * up).sum() + noise * np.linalg.norm(np.maximum(down, -up))
        return value - float(decrease), ""
    if isinstance(domain, Ball):  # the largest <gradient, point − s> over s in the ball
        decrease = gradient @ point + domain.radius * np.linalg.norm(gradient)
        return value - float(decrease) - noise * (domain.radius + float(np.linalg.norm(point))), ""
    distance = f"the best parameters lie within {radius:.3g} of the Lagrangian's minimum"
    floor, smallest = value - (float(np.linalg.norm(gradient)) + noise) * radius, 0.0
    while (by_curvature := _bound_by_curvature(minimum, radius, smallest, lagrangian.rounding)) is not None:
        shift, decrease = by_curvature
        if value - decrease <= floor:
            break
        if _keeps_curvature(lagrangian, minimum, shift):
            assumed = "the Lagrangian's curvature does not halve near its minimum"
            return value - decrease, assumed if shift == 0 else f"{assumed}, and {distance}"
        smallest = max(10 * shift, 1e-6 * float(np.abs(minimum.hessian).max()))
    return floor, distance


def _bound_by_curvature(
    minimum: _Minimum, radius: float, smallest: float, rounding: float
) -> tuple[float, float] | None:
    """Return the best curvature δ >= ``smallest`` to add to the Hessian, and how far the minimum may lie below."""
    eigenvalues, directions = np.linalg.eigh(minimum.hessian)
    largest = float(np.abs(eigenvalues).max())
    if largest == 0:
        return None
    error = 10 * rounding * largest
    components = directions.T @ minimum.gradient
    shifts = error * np.geomspace(1, max(10.0, 1e4 * largest / error), 60)
    if eigenvalues[0] > error:
        shifts = np.r_[0.0, shifts]
    candidates = list[tuple[float, float]]()
    for shift in shifts[shifts >= smallest]:
        # Rounding may have increased the Hessian by ``error``.
        curvature = np.maximum(eigenvalues - (error if shift == 0 else 0), 0) + max(2 * shift - error, 0.0)
        if curvature[0] <= 0:
            continue
        decrement = np.sqrt((components**2 / curvature).sum()) + minimum.noise / np.sqrt(curvature[0])
        candidates.append((float(shift), float(decrement**2 + shift * radius**2 / 2)))
    return min(candidates, key=itemgetter(1), default=None)


def _keeps_curvature(lagrangian: _Lagrangian, minimum: _Minimum, shift: float) -> bool:
    """Return whether the Hessian stays above half its value along Newton's and the flattest direction."""
    identity = np.eye(len(minimum.point))
    eigenvalues, directions = np.linalg.eigh(minimum.hessian + 2 * shift * identity)
    root = directions / np.sqrt(np.maximum(eigenvalues, 1e-300))
    components = root.T @ minimum.gradient
    decrement = float(np.linalg.norm(components))
    size = float(np.linalg.norm(minimum.point)) + 1e-3
    for direction in (-(root @ components) / max(decrement, 1e-300), root[:, 0], -root[:, 0]):
        step = 4 * decrement * direction
        if np.linalg.norm(step) <= 1e-6 * size:
            continue  # the curvature does not change within a millionth of the parameters' norm
        hessian = lagrangian.evaluate(minimum.point + step).hessian + shift * identity
        curvature = root.T @ hessian @ root
        if not np.isfinite(curvature).all() or np.linalg.eigvalsh(curvature)[0] < 0.5:
            return False
    return True


def _refute_convexity(
    derivatives: DerivativeOracle, solution: np.ndarray, ends: Sequence[np.ndarray], tolerance: float
) -> str | None:
    """Return a description of a function that lies above a chord through the solution; None if none was found."""
    generator = np.random.default_rng(0)
    steps = [end - solution for end in ends if np.linalg.norm(end - solution) > 0]
    length = max((float(np.linalg.norm(step)) for step in steps), default=1.0)
    segments = [(solution, solution + step) for step in steps]
    for i in range(RANDOM_SEGMENTS):
        direction = generator.normal(size=derivatives.size)
        step = length * (0.1, 1.0)[i % 2] * direction / np.linalg.norm(direction)
        segments.append((solution - step, solution + step))
    for start, stop in segments:
        found = [derivatives.values(point) for point in ((start + stop) / 2, start, stop)]
        for name, (middle, first, last) in zip(("objective", "constraint"), zip(*found, strict=True), strict=True):
            largest = np.maximum.reduce([np.abs(value) for value in (middle, first, last)])
            slack = 64 * derivatives.rounding * (largest + abs(tolerance))
            with np.errstate(invalid="ignore"):
                above = middle - (first + last) / 2 > slack
            above &= np.isfinite(first) & np.isfinite(last)
            if above.any():
                first_client = derivatives.names[np.argwhere(above)[0][0]]
                owner = "all clients together" if len(middle) != len(derivatives.names) else f"client {first_client!r}"
                return f"the {name} of {owner} lies above a chord"
    return None
