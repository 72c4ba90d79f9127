"""The optimum of a case for logistic regression, by SciPy in float64, with exact derivatives and none of our own code.

In epigraph form: minimise t subject to f_i(w) <= t and g_j(w) <= tolerance. Every f_i and g_j is a weighted sum over
rows of a function of the row's score, so values, gradients and Hessians are two sparse matrices and the features.

For the convex kinds a lower bound proves the optimum: the Lagrangian with the multipliers found, minimised over all w.
For the others the best of ten starts is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import optimize, sparse, special

from benchmarks.tables.cases import Case

SAFE = 1e-9
"""Distance from the bound at which the optimum is computed: rounding then does not exceed the bound."""
STARTS = 10
"""For the kinds that are not convex."""


@dataclass(frozen=True, eq=False)
class Means:
    """Weighted means over rows of a function of the row's score.

    Attributes:
        weights: one row a mean, one column a row of the table.
        of_loss: of the logistic loss; else of the probability.
        both_sides: the mean is a difference, and its absolute value is meant.
    """

    weights: sparse.csr_matrix
    of_loss: bool
    both_sides: bool = False

    def _signed(self, values: np.ndarray) -> np.ndarray:
        return np.concatenate([values, -values]) if self.both_sides else values

    def _row_values(self, score: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.logaddexp(0, score) - y * score if self.of_loss else special.expit(score)

    def values(self, score: np.ndarray, y: np.ndarray) -> np.ndarray:
        """One a mean; twice as many where both sides count."""
        return self._signed(self.weights @ self._row_values(score, y))

    def gradients(self, score: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
        """One row a value."""
        chance = special.expit(score)
        slope = chance - y if self.of_loss else chance * (1 - chance)
        return self._signed(self.weights @ (slope[:, None] * x))

    def curvature(self, multipliers: np.ndarray, score: np.ndarray) -> np.ndarray:
        """Every row's share in the Hessian of Σ multipliers·values."""
        if self.both_sides:
            multipliers = multipliers[: len(multipliers) // 2] - multipliers[len(multipliers) // 2 :]
        chance = special.expit(score)
        bend = chance * (1 - chance) * (1 if self.of_loss else 1 - 2 * chance)
        share: np.ndarray = (self.weights.T @ multipliers) * bend
        return share


@dataclass(frozen=True, eq=False)
class Logistic:
    """A case as its rows: the features with a constant, the labels, the clients' objectives and constraints."""

    x: np.ndarray
    y: np.ndarray
    objectives: Means
    constraints: Means

    @classmethod
    def of(cls, case: Case) -> Logistic:
        """The case's rows, encoded as softswitch does."""
        columns, client = case.columns()
        x = np.column_stack([columns["x"].astype(float), np.ones(len(client))])
        y, owner = columns["y"].astype(float), np.unique(client, return_inverse=True)[1]
        everyone = np.ones(len(y), bool)
        if case.kind == "neyman-pearson":
            return cls(x, y, Means(_shares(owner, y == 0), True), Means(_shares(owner, y == 1), True))
        protected = columns["group"] == 1
        objectives = Means(_shares(owner, everyone), True)
        if case.kind == "group-loss":
            both = sparse.vstack([_shares(owner, protected), _shares(owner, ~protected)]).tocsr()
            return cls(x, y, objectives, Means(both, True))
        counted = everyone if case.kind == "demographic-parity" else y == 1
        gaps = _differences(owner, counted & protected, counted & ~protected)
        return cls(x, y, objectives, Means(gaps, False, both_sides=True))

    def worst(self, w: np.ndarray) -> tuple[float, float]:
        """F and G."""
        score = self.x @ w
        return self.objectives.values(score, self.y).max(), self.constraints.values(score, self.y).max()

    @cached_property
    def constant(self) -> Logistic:
        """The same with the constant as the only feature."""
        return Logistic(self.x[:, -1:], self.y, self.objectives, self.constraints)


def _shares(owner: np.ndarray, counted: np.ndarray) -> sparse.csr_matrix:
    """One row a client: the mean over its rows that count. A client without such rows has none."""
    rows = np.flatnonzero(counted)
    having, index = np.unique(owner[rows], return_inverse=True)
    size = np.bincount(index)
    return sparse.csr_matrix((1 / size[index], (index, rows)), shape=(len(having), len(owner)))


def _differences(owner: np.ndarray, one: np.ndarray, other: np.ndarray) -> sparse.csr_matrix:
    """One row a client that has both kinds of rows: the difference of the means."""
    both = np.isin(owner, np.intersect1d(owner[one], owner[other]))
    first: sparse.csr_matrix = _shares(owner, one & both)
    return first - _shares(owner, other & both)


@dataclass(frozen=True, eq=False)
class Optimum:
    """What was found.

    Attributes:
        params: w, the constant last.
        objective: F.
        constraint: G.
        lower: no model has a smaller F: proven by duality; −∞ where the problem is not convex.
        agreeing: how many starts ended within 0.1% of the best.
    """

    params: np.ndarray
    objective: float
    constraint: float
    lower: float = -np.inf
    agreeing: int = 1


def optimum(case: Case, rows: Logistic | None = None) -> Optimum:
    """The smallest F with G <= tolerance."""
    rows = Logistic.of(case) if rows is None else rows
    bound = case.tolerance - SAFE
    d = rows.x.shape[1]
    generator = np.random.default_rng(0)
    starts = [np.zeros(d)]
    if not case.convex:
        starts += [generator.normal(size=d) * scale for scale in np.linspace(0.1, 1.0, STARTS - 1)]
    found = [smallest_objective(rows, start, bound) for start in starts]
    reached = np.array([rows.worst(w) for w in found])
    kept = reached[:, 1] <= case.tolerance
    if not kept.any():
        raise RuntimeError(f"{case.name}: no start led to a feasible model; G was {reached[:, 1].min():.6f}")
    best = int(np.argmin(np.where(kept, reached[:, 0], np.inf)))
    objective, constraint = reached[best].tolist()
    lower = lower_bound(rows, found[best], case.tolerance) if case.convex else -np.inf
    agreeing = int((kept & (reached[:, 0] <= 1.001 * objective)).sum())
    return Optimum(found[best], objective, constraint, lower, agreeing)


def unconstrained(case: Case, rows: Logistic | None = None) -> tuple[float, float]:
    """F and G of the model with the smallest F; for Neyman–Pearson never to raise an alarm: 0 and infinity."""
    rows = Logistic.of(case) if rows is None else rows
    if case.kind == "neyman-pearson":
        return 0.0, np.inf
    return rows.worst(smallest_objective(rows, np.zeros(rows.x.shape[1]), None))


def smallest_constraint(case: Case, rows: Logistic | None = None) -> float:
    """The smallest G of any model: 0 for all kinds but the groups' losses."""
    if case.kind != "group-loss":
        return 0.0
    rows = Logistic.of(case) if rows is None else rows
    turned = Logistic(rows.x, rows.y, rows.constraints, rows.objectives)
    return rows.worst(smallest_objective(turned, np.zeros(rows.x.shape[1]), None))[1]


def best_constant(case: Case, rows: Logistic | None = None) -> float:
    """The smallest F of a constant prediction that is feasible; infinity where none is."""
    rows = (Logistic.of(case) if rows is None else rows).constant
    w = smallest_objective(rows, np.zeros(1), case.tolerance - SAFE)
    objective, constraint = rows.worst(w)
    return objective if constraint <= case.tolerance else np.inf


def smallest_objective(rows: Logistic, start: np.ndarray, bound: float | None) -> np.ndarray:
    """The model with the smallest F and, where a bound is given, G within it; by SLSQP from this start."""
    seen: dict[str, Any] = {}

    def score(v: np.ndarray) -> np.ndarray:
        key = v[:-1].tobytes()
        if seen.get("key") != key:
            seen.update(key=key, score=rows.x @ v[:-1])
        found: np.ndarray = seen["score"]
        return found

    def room(v: np.ndarray) -> np.ndarray:
        """How much room every inequality leaves."""
        parts = [v[-1] - rows.objectives.values(score(v), rows.y)]
        if bound is not None:
            parts.append(bound - rows.constraints.values(score(v), rows.y))
        return np.concatenate(parts)

    def room_gradient(v: np.ndarray) -> np.ndarray:
        slopes = -rows.objectives.gradients(score(v), rows.y, rows.x)
        parts = [np.column_stack([slopes, np.ones(len(slopes))])]
        if bound is not None:
            pulls = -rows.constraints.gradients(score(v), rows.y, rows.x)
            parts.append(np.column_stack([pulls, np.zeros(len(pulls))]))
        return np.concatenate(parts)

    top = np.append(np.zeros(len(start)), 1.0)
    begin = np.append(start, rows.worst(start)[0])
    inequalities: dict[str, str | Callable[..., Any]] = {"type": "ineq", "fun": room, "jac": room_gradient}
    found = optimize.minimize(
        lambda v: v[-1],
        begin,
        jac=lambda v: top,
        method="SLSQP",
        constraints=[inequalities],
        options={"maxiter": 1000, "ftol": 1e-13},
    )
    params: np.ndarray = found.x[:-1]
    return params


def lower_bound(rows: Logistic, w: np.ndarray, tolerance: float) -> float:
    """What duality proves: min over all w of Σ λ f + Σ μ (g − tolerance), with the multipliers that fit best at w.

    The minimum is approached by Newton's steps; what the last one still promises is taken off.
    """
    score = rows.x @ w
    values, bounds = rows.objectives.values(score, rows.y), rows.constraints.values(score, rows.y)
    slopes = rows.objectives.gradients(score, rows.y, rows.x)
    pulls = rows.constraints.gradients(score, rows.y, rows.x)
    near, tight = values >= values.max() - 1e-4, bounds >= tolerance - 1e-4
    matrix = np.concatenate([slopes[near], pulls[tight]]).T
    weight = 1e3  # of Σ λ = 1, which is made exact below
    first = np.concatenate([np.full(near.sum(), weight), np.zeros(tight.sum())])
    solution = optimize.nnls(np.vstack([matrix, first]), np.concatenate([np.zeros(len(w)), [weight]]))[0]
    objective_weights, constraint_weights = np.zeros(len(values)), np.zeros(len(bounds))
    objective_weights[near] = solution[: near.sum()] / solution[: near.sum()].sum()
    constraint_weights[tight] = solution[near.sum() :]

    def lagrangian(v: np.ndarray) -> float:
        score = rows.x @ v
        excess = rows.constraints.values(score, rows.y) - tolerance
        return float(objective_weights @ rows.objectives.values(score, rows.y) + constraint_weights @ excess)

    v, promise = w, np.inf
    for _ in range(50):
        score = rows.x @ v
        slope = objective_weights @ rows.objectives.gradients(score, rows.y, rows.x)
        slope += constraint_weights @ rows.constraints.gradients(score, rows.y, rows.x)
        bend = rows.objectives.curvature(objective_weights, score) + rows.constraints.curvature(
            constraint_weights, score
        )
        hessian = rows.x.T @ (bend[:, None] * rows.x) + 1e-12 * np.eye(len(v))
        step = np.linalg.solve(hessian, slope)
        promise = float(slope @ step)
        if promise < 1e-10:
            break
        length, here = 1.0, lagrangian(v)
        while lagrangian(v - length * step) > here - 0.1 * length * promise and length > 1e-8:
            length /= 2
        v = v - length * step
    return lagrangian(v) - promise
