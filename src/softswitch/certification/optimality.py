"""How good an answer is: a lower bound on the best possible by Lagrange duality.

For weights p >= 0 with Σp = 1 and multipliers μ >= 0 every w within the tolerance ε has

    F(w) >= Σ_i p_i f_i(w) + Σ_ic μ_ic (g_ic(w) − ε) >= the smallest value of that sum over all parameters.

So that smallest value is a bound on F*. Where f and g are convex a search finds it, and ``shortfall.py`` says how far
below what was found it may lie. ``multipliers.py`` finds weights for which the bound is near F*.
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
    bends_down,
    checked_floor,
    first_weights,
    floor,
    next_weights,
)
from softswitch.certification.lagrangian import Lagrangian, NoRowsLeft, Weights
from softswitch.certification.minimise import Minimum, smallest
from softswitch.data.client_data import ClientData
from softswitch.oracles.regret import to_regret_task
from softswitch.problem.domains import Ball, Box, Domain
from softswitch.problem.parameters import Params, checked_params
from softswitch.problem.problem import Problem
from softswitch.results.lower_bound import LowerBound
from softswitch.results.result import Result
from softswitch.support import checks

SEGMENTS = 6
"""Random segments through the answer, beside those to the start and to the Lagrangian's minimum."""


def refutation(
    lagrangian: Lagrangian, answer: np.ndarray, others: Sequence[np.ndarray], names: Sequence[object], seed: int = 0
) -> str | None:
    """A client and a function that are not convex between two points, in words; None where none was found.

    Args:
        lagrangian: the functions.
        answer: the point about which it is looked.
        others: ends of segments from the answer.
        names: the clients' labels.
        seed: of the random segments.
    """
    generator = np.random.default_rng(seed)
    away = [other - answer for other in others if np.linalg.norm(other - answer) > 0]
    size = max((float(np.linalg.norm(step)) for step in away), default=1.0)
    ends = [(answer, answer + step) for step in away]
    for i in range(SEGMENTS):
        direction = generator.normal(size=lagrangian.size)
        step = size * (0.1, 1.0)[i % 2] * direction / np.linalg.norm(direction)
        ends.append((answer - step, answer + step))
    try:
        for one, other in ends:
            at_ends = [lagrangian.values(point) for point in (one, other)]
            between = lagrangian.values(lagrangian.rounded((one + other) / 2))
            for name, middle, first, last in zip(("objective", "constraint"), between, *at_ends, strict=True):
                bound = (first + last) / 2
                with np.errstate(invalid="ignore"):
                    above = middle - bound > _slack(lagrangian, middle, first, last)
                above &= np.isfinite(first) & np.isfinite(last)
                if above.any():
                    place = np.argwhere(above)[0]
                    whose = "all clients together" if len(middle) != len(names) else f"client {names[place[0]]!r}"
                    return f"the {name} of {whose} lies above a chord"
    except NoRowsLeft:
        pass
    return None


def _slack(lagrangian: Lagrangian, *values: np.ndarray) -> np.ndarray:
    """What rounding may do: of the values, and of points that are rounded before they are looked at."""
    largest = np.maximum.reduce([np.abs(value) for value in values]) + abs(lagrangian.tolerance)
    return 64 * lagrangian.rounding * largest


SHARES = (1e-2, 1e-1, math.inf)
"""What is nearly active at the answer: less than this share below the largest."""
APPROACHES = 30
"""Steps on the linearised problem,"""
ASCENTS = 40
"""and on the dual, at most."""
PASSES, FEWEST_ROWS = 300, 20_000_000
"""By default all data are gone through so often at most, and that many rows at least are allowed."""
KEPT = 0.2
"""This share of the rows is kept for the checks at the end."""
POOR = 1e-3
"""One that is a larger share is tried to be made smaller from other weights too."""
ENOUGH = 1e-7
"""A gap that is a smaller share of F than this is not made smaller,"""
NEAR_MINIMUM = 1e-2
"""and minima are found to this part of such a gap."""


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # what runs away is seen by its values
def lower_bound(
    problem: Problem,
    clients: ClientData,
    params: Params,
    tolerance: float,
    *,
    pooled: bool = False,
    budget_rows: int | None = None,
    enough: float = ENOUGH,
) -> LowerBound:
    """Bound from below what any parameters within the tolerance can reach, on all training data.

    It is a promise where the problem is said to be convex (``Problem(…, convex=True)``) and nothing speaks against it;
    else an estimate. Without a ball or a box as the domain it also takes for granted what ``assumed`` says. Where the
    constraint has a stand-in there is no bound, and ``why`` says so.

    Args:
        problem: objective, constraint, perhaps a domain.
        clients: the rows trained on.
        params: the answer.
        tolerance: ε; F* is meant at it.
        pooled: whether the constraint is one on all clients' data together, as with ``criterion="pooled"``.
        budget_rows: how many rows may be looked at; a Hessian counts as d looks. By default 300 times all rows, or 20
            million if that is more.
        enough: a gap that is a smaller share of F than this is not made smaller.
    """
    checks.expect("problem", problem, Problem)
    checks.expect("clients", clients, ClientData)
    params = checked_params("params", params)
    limit = checks.real_number("tolerance", tolerance)
    allowed = max(FEWEST_ROWS, PASSES * int(clients.sizes.sum())) if budget_rows is None else budget_rows
    allowed = checks.whole_number("budget_rows", allowed, at_least=1)
    lagrangian = Lagrangian(problem, clients, params, limit, pooled=pooled, allowed=int((1 - KEPT) * allowed))
    answer = np.asarray(ravel_pytree(params)[0], float)
    start = np.asarray(ravel_pytree(problem.start)[0], float)
    try:
        values = PointValues(*lagrangian.values(answer))
    except NoRowsLeft:
        return _nothing(lagrangian, clients, math.nan, True, "the rows allowed are fewer than there are")
    meets = not values.excess > 0 and _lies_in(problem.domain, params)
    if not math.isfinite(values.worst) or np.isnan(values.constraint).any():
        return _nothing(lagrangian, clients, values.worst, meets, "the answer's values are not finite")
    if problem.constraint_surrogate is not None:
        why = "the constraint moves in jumps (it has a stand-in), and the smallest Lagrangian cannot be searched for"
        return _nothing(lagrangian, clients, values.worst, meets, why)
    search = _Ascent(lagrangian, problem, answer, start, values, meets=meets, enough=enough)
    search.run()
    lagrangian.allowed = allowed
    found = search.best
    if found is None:
        return _nothing(lagrangian, clients, values.worst, meets, "no weights for the clients could be found")
    if not math.isfinite(found.floor.value):
        why = "the Lagrangian has no minimum for any weights that were tried; a domain (Ball, Box) would give it one"
        return _nothing(lagrangian, clients, values.worst, meets, why)
    last = checked_floor(lagrangian, found.minimum, found.weights, problem.domain, found.noise, search.reach(found))
    value = last.value - found.rounding
    against = refutation(lagrangian, answer, (start, found.minimum.point), clients.names)
    if against is None and bends_down(lagrangian, found.minimum):
        against = "the Lagrangian bends down where it should be smallest"
    if meets and value > values.worst + max(1e-9, 100 * lagrangian.rounding) * search.scale:
        against = against or "the answer lies below the bound"
        return _nothing(lagrangian, clients, values.worst, meets, f"the problem is not convex: {against}")
    value = min(value, values.worst) if meets else value
    if against is not None:
        said = "although it is said to be, the problem is not convex" if problem.convex else "the problem is not convex"
        certified, why = False, f"{said}: {against}"
    elif problem.convex:
        certified, why = True, "the problem is convex"
    else:
        said = "convexity is not known" if problem.convex is None else "the problem is said not to be convex"
        certified, why = False, said
    return LowerBound(
        value=value,
        objective=values.worst,
        tolerance=limit,
        meets=meets,
        certified=certified,
        why=why,
        assumed=last.assumed,
        weights=found.weights.objective,
        multipliers=found.weights.constraint,
        subtracted=found.minimum.value - value,
        rows=lagrangian.rows,
    )


def with_lower_bound(
    result: Result,
    problem: Problem,
    clients: ClientData,
    *,
    budget_rows: int | None = None,
    enough: float = ENOUGH,
) -> Result:
    """The result with a lower bound on the best possible at its rule's tolerance; see ``lower_bound``.

    Where the run minimised regrets, it is a bound on the largest regret.

    Args:
        result: of ``solve``.
        problem: what was solved,
        clients: and on whose rows.
        budget_rows: how many rows may be looked at.
        enough: a gap that is a smaller share of F than this is not made smaller.
    """
    if result.client_optimum is not None:
        problem, clients, _ = to_regret_task(problem, clients, result.client_optimum)
    pooled = result.method.switches_on == "pooled"
    tolerance = float(result.method.tolerance)
    found = lower_bound(
        problem, clients, result.params, tolerance, pooled=pooled, budget_rows=budget_rows, enough=enough
    )
    return replace(result, lower_bound=found)


@dataclass(frozen=True, eq=False)
class _Tried:
    """Weights, where their Lagrangian is smallest, and what it is not below."""

    weights: Weights
    minimum: Minimum
    floor: Floor = NO_FLOOR
    noise: float = 0.0
    rounding: float = 0.0


class _Ascent:
    """The search for weights whose bound is large; ``best`` are the best so far."""

    def __init__(
        self,
        lagrangian: Lagrangian,
        problem: Problem,
        answer: np.ndarray,
        start: np.ndarray,
        values: PointValues,
        *,
        meets: bool,
        enough: float,
    ) -> None:
        self.enough = enough
        self.lagrangian, self.domain, self.answer, self.values = lagrangian, problem.domain, answer, values
        finite = values.objective[np.isfinite(values.objective)]
        self.scale = max(abs(values.worst), float(finite.std())) or 1.0
        known = np.abs(values.constraint[np.isfinite(values.constraint)])
        self.scales = (
            self.scale,
            max(abs(lagrangian.tolerance), float(known.min(initial=np.inf)) if known.size else 0.0),
        )
        self.length = 10 * max(1.0, float(np.linalg.norm(answer)), float(np.linalg.norm(answer - start)))
        self.reached = values.worst if meets else math.inf
        self.best: _Tried | None = None

    def reach(self, tried: _Tried) -> float:
        """R: ten times as far as the answer is from the origin, the start and the minimum, and 10 at least."""
        return max(self.length, 10 * float(np.linalg.norm(tried.minimum.point - self.answer)))

    def run(self) -> None:
        """First weights from the gradients at the answer, the next by steps on the dual."""
        try:
            seen: list[Weights] = []
            for share in SHARES:
                made = first_weights(self.lagrangian, self.answer, self.values, share, self.scales)
                if made is None or any(_alike(made.weights, other) for other in seen):
                    continue
                seen.append(made.weights)
                self._consider(self._try(made))
                if self._done(self.enough):
                    return
            near = self._approach()
            self._climb(near)
            if self.best is not near and not self._done(max(POOR, self.enough)):
                self._climb(self.best)
        except NoRowsLeft:
            return

    def _approach(self) -> _Tried | None:
        """Weights from where steps on the linearised problem lead, from the answer: good where that is far from best.

        The Lagrangian's minimum for weights from a poor answer may lie very far away, and tells nothing there.
        """
        lagrangian, point, values = self.lagrangian, self.answer, self.values
        objective, constraint = (np.isfinite(known).astype(float) for known in values)
        weights = Weights(objective / objective.sum(), constraint / max(1.0, constraint.sum()))
        made, dear = None, 0.0
        for _ in range(APPROACHES):
            here = smallest(lagrangian, weights, self.domain, point, self.scale, self.length, steps=0)
            made = next_weights(lagrangian, here, values, weights, 1e-6)
            if made is None:
                return None
            weights, step = made.weights, made.point - point
            dear = max(dear, 2 * float(weights.constraint.sum()), 2 * weights.ball)
            step = step * min(1.0, self.length / max(float(np.linalg.norm(step)), 1e-300))
            before = self._merit(point, values, dear)
            for part in (1.0, 0.25, 0.05):
                there = _inside(point + part * step, self.domain)
                reached = PointValues(*lagrangian.values(there))
                if self._merit(there, reached, dear) < before:
                    break
            else:
                break
            moved = float(np.linalg.norm(there - point))
            point, values = there, reached
            if moved <= 1e-6 * self.length:
                break
        if made is None:
            return None
        tried = self._try(made._replace(point=point))
        self._consider(tried)
        return tried

    def _merit(self, point: np.ndarray, values: PointValues, dear: float) -> float:
        """F, and what is above the tolerance or outside the ball, which is dear."""
        return values.worst + dear * (max(values.excess, 0.0) + max(self.lagrangian.outside(point), 0.0))

    def _climb(self, best: _Tried | None) -> None:
        """Steps on the dual, each held back until it leads up."""
        held = 1e-8
        for _ in range(ASCENTS):
            if best is None or not best.minimum.bounded:
                return
            values = PointValues(*self.lagrangian.values(best.minimum.point))
            slack = max(ENOUGH, 8 * self.lagrangian.rounding)
            inside = self.lagrangian.outside(best.minimum.point) <= slack * (self.lagrangian.radius or 0.0) ** 2
            if values.excess <= slack * self.scales[1] and inside:
                self.reached = min(self.reached, values.worst)
            if self._done(self.enough):
                return
            while held < 1e4:
                made = next_weights(self.lagrangian, best.minimum, values, best.weights, held)
                tried = None if made is None else self._try(made)
                if tried is not None and tried.floor.value > best.floor.value:
                    break
                held *= 30
            else:
                return
            assert tried is not None
            self._consider(tried)
            best, held = tried, max(1e-10, held / 30)

    def _try(self, made: Proposal) -> _Tried:
        lagrangian, weights, near = self.lagrangian, made.weights, NEAR_MINIMUM * self.enough
        minimum = smallest(lagrangian, weights, self.domain, made.point, self.scale, self.length, near=near)
        while not minimum.bounded and isinstance(self.domain, Ball) and weights.ball < 1e6 * self.scale:
            pull = float(np.linalg.norm(minimum.gradient)) / self.domain.radius
            weights = weights._replace(ball=max(pull, 10 * weights.ball, 1e-6 * self.scale))
            minimum = smallest(lagrangian, weights, self.domain, self.answer, self.scale, self.length, near=near)
        noise = lagrangian.rounding * made.steepness
        tried = _Tried(weights, minimum, noise=noise, rounding=lagrangian.rounding * minimum.size)
        return replace(tried, floor=floor(lagrangian, minimum, weights, self.domain, noise, self.reach(tried)))

    def _consider(self, tried: _Tried) -> None:
        if self.best is None or tried.floor.value > self.best.floor.value:
            self.best = tried

    def _done(self, share: float) -> bool:
        """Whether the bound is so near to F at the answer, or where a Lagrangian is smallest, that it is about F*."""
        share = max(share, 8 * self.lagrangian.rounding)
        return self.best is not None and self.reached - self.best.floor.value <= share * self.scale


def _lies_in(domain: Domain | None, params: Params) -> bool:
    """Whether parameters are in the domain, as far as rounding tells."""
    if domain is None:
        return True
    here, there = (np.asarray(ravel_pytree(tree)[0], float) for tree in (params, domain.project(params)))
    return bool(np.linalg.norm(there - here) <= 1e-6 * (1e-3 + np.linalg.norm(here)))


def _inside(point: np.ndarray, domain: Domain | None) -> np.ndarray:
    return np.clip(point, domain.lower, domain.upper) if isinstance(domain, Box) else point


def _alike(one: Weights, other: Weights) -> bool:
    """Whether two weights are about the same."""
    first, second = (np.r_[weights.objective, weights.constraint.ravel(), weights.ball] for weights in (one, other))
    return np.allclose(first, second, rtol=1e-3, atol=1e-6)


def _nothing(lagrangian: Lagrangian, clients: ClientData, objective: float, meets: bool, why: str) -> LowerBound:
    """No bound, and why."""
    weights, multipliers = np.zeros(len(clients)), np.zeros(lagrangian.shape)
    return LowerBound(
        -math.inf, objective, lagrangian.tolerance, meets, False, why, "", weights, multipliers, 0.0, lagrangian.rows
    )
