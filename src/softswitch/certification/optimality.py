"""A lower bound on the optimal objective by Lagrange duality.

For weights p >= 0 with Σp = 1 and multipliers μ >= 0, every w within the tolerance ε has

    F(w) >= Σ_i p_i f_i(w) + Σ_ic μ_ic (g_ic(w) − ε) >= min over all parameters of that sum.

The minimum is therefore a lower bound on F*. For convex f and g, ``minimise.py`` finds it and bounds the error of the
minimisation.

The search is for weights whose bound is close to F*. At the optimum Σ p_i ∇f_i + Σ μ_ic ∇g_ic = 0 over the active
functions. The first weights bring that sum nearest to 0 over the functions that are nearly active at the solution. At
a minimiser of the Lagrangian, the dual is about cᵀy − ½ yᵀAH⁻¹Aᵀy, with the values c and gradients A of the relevant
functions. The next weights maximise it, with a damping term. Both are non-negative least-squares problems.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import linalg, optimize

from softswitch.certification import minimise
from softswitch.certification.lagrangian import Lagrangian, PointValues, RowBudgetExceeded, Weights
from softswitch.certification.minimise import Minimum
from softswitch.data.client_data import ClientData
from softswitch.oracles.regret import to_regret_task
from softswitch.problem.parameters import Params, check_params
from softswitch.problem.problem import Problem
from softswitch.results.baseline import LowerBound
from softswitch.results.result import Result
from softswitch.support import checks

RANDOM_SEGMENTS = 6  # through the solution, on which convexity is tested
ACTIVE_SHARES = (1e-2, 1e-1, math.inf)  # a nearly active function lies less than this share below the largest
MAX_LINEARISED_STEPS, MAX_DUAL_STEPS = 30, 40
DEFAULT_PASSES, MIN_ROW_BUDGET = 300, 20_000_000  # default row budget: passes over all rows, or the minimum
RESERVED_SHARE = 0.2  # of the row budget, for the final checks
POOR_GAP = 1e-3  # relative gap above which the search continues from the best weights found
TARGET_GAP = 1e-7  # default relative gap at which the search stops
MINIMUM_ACCURACY = 1e-2  # of minima, as a share of the target gap
MAX_FUNCTIONS, MAX_GRADIENT_ENTRIES = 400, 1 << 25  # functions considered together, and their gradients' entries
SUM_WEIGHT = 1e3  # of the equation Σp = 1 relative to the remaining equations


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # divergence is detected from the values
def lower_bound(
    problem: Problem,
    clients: ClientData,
    params: Params,
    tolerance: float,
    *,
    pooled: bool = False,
    budget_rows: int | None = None,
    enough: float = TARGET_GAP,
) -> LowerBound:
    """Return a lower bound on the objective of any parameters within the tolerance, on all training data.

    The bound is certified if the problem is declared convex (``Problem(…, convex=True)``) and no check refutes it.
    Otherwise it is an estimate. Without a ball or a box as the domain, the bound also relies on the assumptions in
    ``LowerBound.assumptions``. There is no bound for a constraint with a surrogate; ``LowerBound.reason`` says why.

    Args:
        problem: Objective, constraint and optional domain.
        clients: Training rows.
        params: The solution.
        tolerance: ε, the tolerance at which F* is defined.
        pooled: Whether the constraint is evaluated on all clients' data together, as with ``criterion="pooled"``.
        budget_rows: Maximum number of rows to evaluate; a Hessian counts as d evaluations. Default: 300 times all rows,
            at least 20 million.
        enough: Relative gap at which the search stops.
    """
    checks.check_instance("problem", problem, Problem)
    checks.check_instance("clients", clients, ClientData)
    params = check_params("params", params)
    limit = checks.check_real("tolerance", tolerance)
    default = max(MIN_ROW_BUDGET, DEFAULT_PASSES * int(clients.sizes.sum()))
    budget = checks.check_integer("budget_rows", default if budget_rows is None else budget_rows, minimum=1)
    search_budget = int((1 - RESERVED_SHARE) * budget)
    lagrangian = Lagrangian(problem, clients, params, limit, pooled=pooled, row_budget=search_budget)
    projected = params if problem.domain is None else problem.domain.project(params)
    trees = (params, problem.start, projected)
    solution, start, inside = (np.asarray(ravel_pytree(tree)[0], float) for tree in trees)
    is_inside = np.linalg.norm(inside - solution) <= 1e-6 * (1e-3 + np.linalg.norm(solution))  # up to rounding
    objective, meets = math.nan, True
    no_weights = Weights(np.zeros(len(clients)), np.zeros(lagrangian.shape))

    def report(
        reason: str,
        value: float = -math.inf,
        certified: bool = False,
        assumed: str = "",
        weights: Weights = no_weights,
        subtracted: float = 0.0,
    ) -> LowerBound:
        p, mu, rows = weights.objective, weights.constraint, lagrangian.rows
        return LowerBound(value, objective, limit, meets, certified, reason, assumed, p, mu, subtracted, rows)

    try:
        values = lagrangian.values(solution)
    except RowBudgetExceeded:
        return report("budget_rows is smaller than the number of rows")
    objective, meets = values.worst, not values.excess > 0 and bool(is_inside)
    if not math.isfinite(objective) or np.isnan(values.constraint).any():
        return report("the values at the solution are not finite")
    if problem.constraint_surrogate is not None:
        return report("the constraint is not continuous (it has a surrogate), so the Lagrangian cannot be minimised")
    search = _DualSearch(lagrangian, solution, start, values, meets, enough)
    search.run()
    lagrangian.row_budget = budget
    if search.best is None:
        return report("no weights for the clients were found")
    minimum = search.best
    if not math.isfinite(minimum.floor.value):
        return report("the Lagrangian has no minimum for any of the weights tried; add a domain (Ball, Box)")
    floor = minimise.bound_minimum_checked(minimum, search.radius(minimum))
    value = floor.value - lagrangian.rounding * minimum.size
    refutation = refute_convexity(lagrangian, solution, (start, minimum.point), clients.names)
    if refutation is None and minimise.has_negative_curvature(minimum):
        refutation = "the Lagrangian has negative curvature at its minimum"
    if meets and value > objective + max(1e-9, 100 * lagrangian.rounding) * search.scale:
        return report(f"the problem is not convex: {refutation or 'the solution lies below the bound'}")
    value = min(value, objective) if meets else value
    if refutation is not None:
        why = f"the problem is {'declared convex, but is ' if problem.convex else ''}not convex: {refutation}"
    elif problem.convex:
        why = "the problem is convex"
    else:
        why = "convexity is not known" if problem.convex is None else "the problem is declared not convex"
    certified = refutation is None and bool(problem.convex)
    return report(why, value, certified, floor.assumed, minimum.weights, minimum.value - value)


def with_lower_bound(
    result: Result, problem: Problem, clients: ClientData, *, budget_rows: int | None = None, enough: float = TARGET_GAP
) -> Result:
    """Return the result with a lower bound on the optimum at its method's tolerance; see ``lower_bound``.

    If the run minimised regrets, the bound is on the largest regret.

    Args:
        result: Result of ``solve``.
        problem: The problem that was solved.
        clients: Training rows.
        budget_rows: Maximum number of rows to evaluate.
        enough: Relative gap at which the search stops.
    """
    if result.client_optimum is not None:
        problem, clients, _ = to_regret_task(problem, clients, result.client_optimum)
    tolerance, pooled = float(result.method.tolerance), result.method.switches_on == "pooled"
    bound = lower_bound(
        problem, clients, result.params, tolerance, pooled=pooled, budget_rows=budget_rows, enough=enough
    )
    return replace(result, lower_bound=bound)


def refute_convexity(
    lagrangian: Lagrangian, solution: np.ndarray, ends: Sequence[np.ndarray], names: Sequence[object]
) -> str | None:
    """Return a description of a function that lies above a chord through the solution; None if none was found."""
    generator = np.random.default_rng(0)
    steps = [end - solution for end in ends if np.linalg.norm(end - solution) > 0]
    length = max((float(np.linalg.norm(step)) for step in steps), default=1.0)
    segments = [(solution, solution + step) for step in steps]
    for i in range(RANDOM_SEGMENTS):
        direction = generator.normal(size=lagrangian.size)
        step = length * (0.1, 1.0)[i % 2] * direction / np.linalg.norm(direction)
        segments.append((solution - step, solution + step))
    try:
        for start, stop in segments:
            at_ends = [lagrangian.values(point) for point in (start, stop)]
            between = lagrangian.values(lagrangian.round_point((start + stop) / 2))
            for name, middle, first, last in zip(("objective", "constraint"), between, *at_ends, strict=True):
                largest = np.maximum.reduce([np.abs(value) for value in (middle, first, last)])
                slack = 64 * lagrangian.rounding * (largest + abs(lagrangian.tolerance))
                with np.errstate(invalid="ignore"):
                    above = middle - (first + last) / 2 > slack
                above &= np.isfinite(first) & np.isfinite(last)
                if above.any():
                    is_pooled = len(middle) != len(names)
                    owner = "all clients together" if is_pooled else f"client {names[np.argwhere(above)[0][0]]!r}"
                    return f"the {name} of {owner} lies above a chord"
    except RowBudgetExceeded:
        pass
    return None


class _Proposal(NamedTuple):
    """Weights to try, an estimate of their Lagrangian's minimiser, and the sum of the weighted gradients' norms."""

    weights: Weights
    point: np.ndarray
    gradient_size: float


class _DualSearch:
    """Search for weights with a large lower bound; ``best`` is the minimum with the best bound so far."""

    def __init__(
        self,
        lagrangian: Lagrangian,
        solution: np.ndarray,
        start: np.ndarray,
        values: PointValues,
        meets: bool,
        enough: float,
    ) -> None:
        self.lagrangian, self.solution, self.values = lagrangian, solution, values
        finite = values.objective[np.isfinite(values.objective)]
        self.scale = max(abs(values.worst), float(finite.std())) or 1.0
        known = np.abs(values.constraint[np.isfinite(values.constraint)])
        self.constraint_scale = max(abs(lagrangian.tolerance), float(known.min()) if known.size else 0.0)
        self.length = 10 * max(1.0, float(np.linalg.norm(solution)), float(np.linalg.norm(solution - start)))
        self.upper, self.enough = values.worst if meets else math.inf, enough
        self.best: Minimum | None = None

    def radius(self, minimum: Minimum) -> float:
        """Return R: at least 10, and ten times the solution's distance from the origin, the start and the minimum."""
        return max(self.length, 10 * float(np.linalg.norm(minimum.point - self.solution)))

    def run(self) -> None:
        """Try weights from the gradients at the solution, then take steps on the dual."""
        try:
            tried: list[np.ndarray] = []
            for share in ACTIVE_SHARES:
                proposal = self._initial_weights(share)
                if proposal is None:
                    continue
                vector = np.r_[proposal.weights.objective, proposal.weights.constraint.ravel(), proposal.weights.ball]
                if any(np.allclose(vector, other, rtol=1e-3, atol=1e-6) for other in tried):
                    continue
                tried.append(vector)
                self._try(proposal)
                if self._has_converged(self.enough):
                    return
            minimum = self._solve_linearised()
            self._ascend(minimum)
            if self.best is not minimum and not self._has_converged(max(POOR_GAP, self.enough)):
                self._ascend(self.best)
        except RowBudgetExceeded:
            return

    def _solve_linearised(self) -> Minimum | None:
        """Take steps on the linearised problem, for a solution far from the optimum, and try the final weights."""
        lagrangian, point, values = self.lagrangian, self.solution, self.values
        objective, constraint = (np.isfinite(value).astype(float) for value in values)
        weights = Weights(objective / objective.sum(), constraint / max(1.0, constraint.sum()))
        proposal, penalty = None, 0.0
        for _ in range(MAX_LINEARISED_STEPS):
            minimum = Minimum(lagrangian, weights, point, self.scale, self.length, steps=0)
            proposal = _next_weights(minimum, values, 1e-6)
            if proposal is None:
                return None
            weights, step = proposal.weights, proposal.point - point
            penalty = max(penalty, 2 * float(weights.constraint.sum()), 2 * weights.ball)
            step = step * min(1.0, self.length / max(float(np.linalg.norm(step)), 1e-300))
            merit = self._merit(point, values, penalty)
            for share in (1.0, 0.25, 0.05):
                new_point = minimum.project(point + share * step)
                new_values = lagrangian.values(new_point)
                if self._merit(new_point, new_values, penalty) < merit:
                    break
            else:
                break
            distance = float(np.linalg.norm(new_point - point))
            point, values = new_point, new_values
            if distance <= 1e-6 * self.length:
                break
        return None if proposal is None else self._try(proposal._replace(point=point))

    def _merit(self, point: np.ndarray, values: PointValues, penalty: float) -> float:
        """Return F plus a penalty on the constraint violation and the distance outside the ball."""
        return values.worst + penalty * (max(values.excess, 0.0) + max(self.lagrangian.ball_excess(point), 0.0))

    def _ascend(self, minimum: Minimum | None) -> None:
        """Take steps on the dual, each damped until the bound increases."""
        damping = 1e-8
        for _ in range(MAX_DUAL_STEPS):
            if minimum is None or not minimum.bounded:
                return
            values = self.lagrangian.values(minimum.point)
            slack = max(TARGET_GAP, 8 * self.lagrangian.rounding)
            excess = self.lagrangian.ball_excess(minimum.point)
            is_inside = excess <= slack * (self.lagrangian.radius or 0.0) ** 2
            if values.excess <= slack * self.constraint_scale and is_inside:
                self.upper = min(self.upper, values.worst)
            if self._has_converged(self.enough):
                return
            while damping < 1e4:
                proposal = _next_weights(minimum, values, damping)
                new = None if proposal is None else self._try(proposal)
                if new is not None and new.floor.value > minimum.floor.value:
                    break
                damping *= 30
            else:
                return
            minimum, damping = new, max(1e-10, damping / 30)

    def _try(self, proposal: _Proposal) -> Minimum:
        """Minimise the Lagrangian with the proposed weights, and keep the minimum if its bound is the best so far."""
        weights, noise = proposal.weights, self.lagrangian.rounding * proposal.gradient_size
        sizes = self.scale, self.length, MINIMUM_ACCURACY * self.enough, noise
        minimum = Minimum(self.lagrangian, weights, proposal.point, *sizes)
        radius = self.lagrangian.radius
        while not minimum.bounded and radius is not None and weights.ball < 1e6 * self.scale:
            multiplier = float(np.linalg.norm(minimum.gradient)) / radius
            weights = weights._replace(ball=max(multiplier, 10 * weights.ball, 1e-6 * self.scale))
            minimum = Minimum(self.lagrangian, weights, self.solution, *sizes)
        minimum.floor = minimise.bound_minimum(minimum, self.radius(minimum))
        if self.best is None or minimum.floor.value > self.best.floor.value:
            self.best = minimum
        return minimum

    def _has_converged(self, share: float) -> bool:
        """Return whether the bound is close to the smallest known F of a feasible point."""
        share = max(share, 8 * self.lagrangian.rounding)
        return self.best is not None and self.upper - self.best.floor.value <= share * self.scale

    def _initial_weights(self, share: float) -> _Proposal | None:
        """Return the weights that bring the gradients' sum nearest to 0 over the nearly active functions."""
        lagrangian, point, values = self.lagrangian, self.solution, self.values
        active = (
            values.objective >= values.worst - share * self.scale,
            values.constraint >= -share * self.constraint_scale,
        )
        chosen = _choose_functions(lagrangian, values, active)
        gradients = lagrangian.gradients(point, chosen)
        inner = (1 - min(share, 0.5)) * (lagrangian.radius or 0.0)
        ball = lagrangian.radius is not None and float(np.linalg.norm(point)) >= inner
        if ball:
            gradients = np.concatenate([gradients, point[None]])
        if not np.isfinite(gradients).all():
            return None
        matrix: np.ndarray = gradients.T
        if lagrangian.size > len(gradients):
            matrix = np.asarray(np.linalg.qr(matrix, mode="r"))
        return _propose(matrix, np.zeros(len(matrix)), chosen, gradients, point, ball=ball)


def _next_weights(minimum: Minimum, values: PointValues, damping: float) -> _Proposal | None:
    """Return the weights after a Newton step on the dual, and an estimate of their Lagrangian's minimiser."""
    lagrangian, weights = minimum.lagrangian, minimum.weights
    positive = weights.objective > 0
    chosen = _choose_functions(lagrangian, values, (positive, weights.constraint > 0), extend=True)
    gradients = lagrangian.gradients(minimum.point, chosen)
    mean = float(weights.objective[positive] @ values.objective[positive])
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
    return _propose(upper, right, chosen, gradients, minimum.point, solution, ball=ball)


def _choose_functions(
    lagrangian: Lagrangian, values: PointValues, wanted: Sequence[np.ndarray], *, extend: bool = False
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


def _propose(
    matrix: np.ndarray,
    right: np.ndarray,
    chosen: Weights,
    gradients: np.ndarray,
    point: np.ndarray,
    solution: np.ndarray | None = None,
    *,
    ball: bool,
) -> _Proposal | None:
    """Minimise ‖matrix·y − right‖ over weights y >= 0 of the chosen functions and the ball."""
    count = int(chosen.objective.sum())
    weight = SUM_WEIGHT * max(float(np.linalg.norm(matrix, axis=0).max()), float(np.abs(right).max()), 1e-300)
    row = np.r_[np.full(count, weight), np.zeros(matrix.shape[1] - count)]
    try:
        entries, _ = optimize.nnls(np.vstack([matrix, row]), np.r_[right, weight])
    except (RuntimeError, ValueError):
        return None
    total = float(entries[:count].sum())
    if not np.isfinite(entries).all() or not total > 0.1:
        return None
    entries = entries / total
    objective, constraint = np.zeros(chosen.objective.shape), np.zeros(chosen.constraint.shape)
    objective[chosen.objective] = entries[:count]
    constraint[chosen.constraint] = entries[count : len(entries) - ball]
    new_point = point if solution is None else point - solution @ entries
    weights = Weights(objective / objective.sum(), constraint, float(entries[-1]) if ball else 0.0)
    return _Proposal(weights, new_point, float(entries @ np.linalg.norm(gradients, axis=1)))
