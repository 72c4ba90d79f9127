"""A lower bound on the optimal objective by Lagrange duality.

For weights p >= 0 with Σp = 1 and multipliers μ >= 0, every w within the tolerance ε has

    F(w) >= Σ_i p_i f_i(w) + Σ_ic μ_ic (g_ic(w) − ε) >= min over all parameters of that sum.

The minimum is therefore a lower bound on F*. For convex f and g, ``minimise.py`` finds it. ``duality.py`` bounds the
error of the minimisation, and searches for weights whose bound is close to F*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jax.flatten_util import ravel_pytree

from softswitch.certification.duality import (
    NO_FLOOR,
    Floor,
    PointValues,
    Proposal,
    bound_minimum,
    bound_minimum_checked,
    has_negative_curvature,
    initial_weights,
    next_weights,
)
from softswitch.certification.lagrangian import Lagrangian, RowBudgetExceeded, Weights
from softswitch.certification.minimise import Minimum, minimise_lagrangian
from softswitch.data.client_data import ClientData
from softswitch.oracles.regret import to_regret_task
from softswitch.problem.domains import Ball, Box, Domain
from softswitch.problem.parameters import Params, check_params
from softswitch.problem.problem import Problem
from softswitch.results.lower_bound import LowerBound
from softswitch.results.result import Result
from softswitch.support import checks

RANDOM_SEGMENTS = 6
"""Number of random segments through the solution on which convexity is tested."""
ACTIVE_SHARES = (1e-2, 1e-1, math.inf)
"""A function is nearly active if it lies less than this share below the largest."""
MAX_LINEARISED_STEPS = 30
"""Maximum number of steps on the linearised problem."""
MAX_DUAL_STEPS = 40
"""Maximum number of steps on the dual."""
DEFAULT_PASSES, MIN_ROW_BUDGET = 300, 20_000_000
"""Default row budget: this many passes over all rows, or the minimum if that is larger."""
RESERVED_SHARE = 0.2
"""Share of the row budget that is reserved for the final checks."""
POOR_GAP = 1e-3
"""Relative gap above which the search continues from the best weights found."""
TARGET_GAP = 1e-7
"""Default relative gap at which the search stops."""
MINIMUM_ACCURACY = 1e-2
"""Accuracy of minima, as a share of the target gap."""


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
    ``LowerBound.assumed``. There is no bound for a constraint with a surrogate; ``LowerBound.why`` states the reason.

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
    solution, start = (np.asarray(ravel_pytree(tree)[0], float) for tree in (params, problem.start))
    try:
        values = PointValues(*lagrangian.values(solution))
    except RowBudgetExceeded:
        return _no_bound(lagrangian, clients, math.nan, True, "budget_rows is smaller than the number of rows")
    meets = not values.excess > 0 and _is_in_domain(problem.domain, params)
    if not math.isfinite(values.worst) or np.isnan(values.constraint).any():
        return _no_bound(lagrangian, clients, values.worst, meets, "the values at the solution are not finite")
    if problem.constraint_surrogate is not None:
        why = "the constraint is not continuous (it has a surrogate), so the Lagrangian cannot be minimised"
        return _no_bound(lagrangian, clients, values.worst, meets, why)
    search = _DualSearch(lagrangian, problem, solution, start, values, meets=meets, enough=enough)
    search.run()
    lagrangian.row_budget = budget
    best = search.best
    if best is None:
        return _no_bound(lagrangian, clients, values.worst, meets, "no weights for the clients were found")
    if not math.isfinite(best.floor.value):
        why = "the Lagrangian has no minimum for any of the weights tried; add a domain (Ball, Box)"
        return _no_bound(lagrangian, clients, values.worst, meets, why)
    floor = bound_minimum_checked(
        lagrangian, best.minimum, best.weights, problem.domain, best.noise, search.radius(best)
    )
    value = floor.value - best.rounding
    refutation = refute_convexity(lagrangian, solution, (start, best.minimum.point), clients.names)
    if refutation is None and has_negative_curvature(lagrangian, best.minimum):
        refutation = "the Lagrangian has negative curvature at its minimum"
    if meets and value > values.worst + max(1e-9, 100 * lagrangian.rounding) * search.scale:
        refutation = refutation or "the solution lies below the bound"
        return _no_bound(lagrangian, clients, values.worst, meets, f"the problem is not convex: {refutation}")
    value = min(value, values.worst) if meets else value
    if refutation is not None:
        why = f"the problem is {'declared convex, but is ' if problem.convex else ''}not convex: {refutation}"
    elif problem.convex:
        why = "the problem is convex"
    else:
        why = "convexity is not known" if problem.convex is None else "the problem is declared not convex"
    return LowerBound(
        value=value,
        objective=values.worst,
        tolerance=limit,
        feasible=meets,
        certified=refutation is None and bool(problem.convex),
        reason=why,
        assumptions=floor.assumed,
        weights=best.weights.objective,
        multipliers=best.weights.constraint,
        subtracted=best.minimum.value - value,
        rows=lagrangian.rows,
    )


def with_lower_bound(
    result: Result,
    problem: Problem,
    clients: ClientData,
    *,
    budget_rows: int | None = None,
    enough: float = TARGET_GAP,
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
    pooled = result.method.switches_on == "pooled"
    tolerance = float(result.method.tolerance)
    bound = lower_bound(
        problem, clients, result.params, tolerance, pooled=pooled, budget_rows=budget_rows, enough=enough
    )
    return replace(result, lower_bound=bound)


def refute_convexity(
    lagrangian: Lagrangian, solution: np.ndarray, ends: Sequence[np.ndarray], names: Sequence[object], seed: int = 0
) -> str | None:
    """Return a description of a function that lies above a chord; None if none was found.

    Args:
        lagrangian: The functions.
        solution: Point through which the segments pass.
        ends: Ends of segments from the solution.
        names: Names of the clients.
        seed: Seed of the random segments.
    """
    generator = np.random.default_rng(seed)
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
                    client = names[np.argwhere(above)[0][0]] if len(middle) == len(names) else None
                    owner = "all clients together" if len(middle) != len(names) else f"client {client!r}"
                    return f"the {name} of {owner} lies above a chord"
    except RowBudgetExceeded:
        pass
    return None


@dataclass(frozen=True, eq=False)
class _Trial:
    """Weights, the minimum of their Lagrangian, and a lower bound on it."""

    weights: Weights
    minimum: Minimum
    floor: Floor = NO_FLOOR
    noise: float = 0.0
    rounding: float = 0.0


class _DualSearch:
    """Search for weights with a large lower bound; ``best`` is the best trial so far."""

    def __init__(
        self,
        lagrangian: Lagrangian,
        problem: Problem,
        solution: np.ndarray,
        start: np.ndarray,
        values: PointValues,
        *,
        meets: bool,
        enough: float,
    ) -> None:
        self.enough = enough
        self.lagrangian, self.domain, self.solution, self.values = lagrangian, problem.domain, solution, values
        finite = values.objective[np.isfinite(values.objective)]
        self.scale = max(abs(values.worst), float(finite.std())) or 1.0
        known = np.abs(values.constraint[np.isfinite(values.constraint)])
        self.scales = self.scale, max(abs(lagrangian.tolerance), float(known.min()) if known.size else 0.0)
        self.length = 10 * max(1.0, float(np.linalg.norm(solution)), float(np.linalg.norm(solution - start)))
        self.upper = values.worst if meets else math.inf
        self.best: _Trial | None = None

    def radius(self, trial: _Trial) -> float:
        """Return R: at least 10, and ten times the solution's distance from the origin, the start and the minimum."""
        return max(self.length, 10 * float(np.linalg.norm(trial.minimum.point - self.solution)))

    def run(self) -> None:
        """Try weights from the gradients at the solution, then take steps on the dual."""
        try:
            tried: list[Weights] = []
            for share in ACTIVE_SHARES:
                proposal = initial_weights(self.lagrangian, self.solution, self.values, share, self.scales)
                if proposal is None or any(_are_close(proposal.weights, weights) for weights in tried):
                    continue
                tried.append(proposal.weights)
                self._keep_better(self._try(proposal))
                if self._has_converged(self.enough):
                    return
            trial = self._solve_linearised()
            self._ascend(trial)
            if self.best is not trial and not self._has_converged(max(POOR_GAP, self.enough)):
                self._ascend(self.best)
        except RowBudgetExceeded:
            return

    def _solve_linearised(self) -> _Trial | None:
        """Take steps on the linearised problem from the solution, and try the weights at their end.

        If the solution is far from the optimum, the Lagrangian's minimum for its weights may be too far away to help.
        """
        lagrangian, point, values = self.lagrangian, self.solution, self.values
        objective, constraint = (np.isfinite(value).astype(float) for value in values)
        weights = Weights(objective / objective.sum(), constraint / max(1.0, constraint.sum()))
        proposal, penalty = None, 0.0
        for _ in range(MAX_LINEARISED_STEPS):
            minimum = minimise_lagrangian(lagrangian, weights, self.domain, point, self.scale, self.length, steps=0)
            proposal = next_weights(lagrangian, minimum, values, weights, 1e-6)
            if proposal is None:
                return None
            weights, step = proposal.weights, proposal.point - point
            penalty = max(penalty, 2 * float(weights.constraint.sum()), 2 * weights.ball)
            step = step * min(1.0, self.length / max(float(np.linalg.norm(step)), 1e-300))
            merit = self._merit(point, values, penalty)
            for share in (1.0, 0.25, 0.05):
                new_point = _clip(point + share * step, self.domain)
                new_values = PointValues(*lagrangian.values(new_point))
                if self._merit(new_point, new_values, penalty) < merit:
                    break
            else:
                break
            distance = float(np.linalg.norm(new_point - point))
            point, values = new_point, new_values
            if distance <= 1e-6 * self.length:
                break
        if proposal is None:
            return None
        trial = self._try(proposal._replace(point=point))
        self._keep_better(trial)
        return trial

    def _merit(self, point: np.ndarray, values: PointValues, penalty: float) -> float:
        """Return F plus a penalty on the constraint violation and the distance outside the ball."""
        return values.worst + penalty * (max(values.excess, 0.0) + max(self.lagrangian.ball_excess(point), 0.0))

    def _ascend(self, trial: _Trial | None) -> None:
        """Take steps on the dual, each damped until the bound increases."""
        damping = 1e-8
        for _ in range(MAX_DUAL_STEPS):
            if trial is None or not trial.minimum.bounded:
                return
            values = PointValues(*self.lagrangian.values(trial.minimum.point))
            slack = max(TARGET_GAP, 8 * self.lagrangian.rounding)
            excess = self.lagrangian.ball_excess(trial.minimum.point)
            is_inside = excess <= slack * (self.lagrangian.radius or 0.0) ** 2
            if values.excess <= slack * self.scales[1] and is_inside:
                self.upper = min(self.upper, values.worst)
            if self._has_converged(self.enough):
                return
            while damping < 1e4:
                proposal = next_weights(self.lagrangian, trial.minimum, values, trial.weights, damping)
                new_trial = None if proposal is None else self._try(proposal)
                if new_trial is not None and new_trial.floor.value > trial.floor.value:
                    break
                damping *= 30
            else:
                return
            assert new_trial is not None
            self._keep_better(new_trial)
            trial, damping = new_trial, max(1e-10, damping / 30)

    def _try(self, proposal: Proposal) -> _Trial:
        lagrangian, weights, start = self.lagrangian, proposal.weights, proposal.point

        def minimise(weights: Weights, start: np.ndarray) -> Minimum:
            accuracy = MINIMUM_ACCURACY * self.enough
            return minimise_lagrangian(
                lagrangian, weights, self.domain, start, self.scale, self.length, accuracy=accuracy
            )

        minimum = minimise(weights, start)
        while not minimum.bounded and isinstance(self.domain, Ball) and weights.ball < 1e6 * self.scale:
            multiplier = float(np.linalg.norm(minimum.gradient)) / self.domain.radius
            weights = weights._replace(ball=max(multiplier, 10 * weights.ball, 1e-6 * self.scale))
            minimum = minimise(weights, self.solution)
        noise = lagrangian.rounding * proposal.gradient_size
        trial = _Trial(weights, minimum, noise=noise, rounding=lagrangian.rounding * minimum.size)
        floor = bound_minimum(lagrangian, minimum, weights, self.domain, noise, self.radius(trial))
        return replace(trial, floor=floor)

    def _keep_better(self, trial: _Trial) -> None:
        if self.best is None or trial.floor.value > self.best.floor.value:
            self.best = trial

    def _has_converged(self, share: float) -> bool:
        """Return whether the bound is close to the smallest known F of a feasible point."""
        share = max(share, 8 * self.lagrangian.rounding)
        return self.best is not None and self.upper - self.best.floor.value <= share * self.scale


def _is_in_domain(domain: Domain | None, params: Params) -> bool:
    """Return whether the parameters are in the domain, up to rounding."""
    if domain is None:
        return True
    point, projected = (np.asarray(ravel_pytree(tree)[0], float) for tree in (params, domain.project(params)))
    return bool(np.linalg.norm(projected - point) <= 1e-6 * (1e-3 + np.linalg.norm(point)))


def _clip(point: np.ndarray, domain: Domain | None) -> np.ndarray:
    return np.clip(point, domain.lower, domain.upper) if isinstance(domain, Box) else point


def _are_close(one: Weights, other: Weights) -> bool:
    first, second = (np.r_[weights.objective, weights.constraint.ravel(), weights.ball] for weights in (one, other))
    return np.allclose(first, second, rtol=1e-3, atol=1e-6)


def _no_bound(lagrangian: Lagrangian, clients: ClientData, objective: float, meets: bool, why: str) -> LowerBound:
    weights, multipliers = np.zeros(len(clients)), np.zeros(lagrangian.shape)
    return LowerBound(
        -math.inf, objective, lagrangian.tolerance, meets, False, why, "", weights, multipliers, 0.0, lagrangian.rows
    )
