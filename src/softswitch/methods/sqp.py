"""SQP: sequential quadratic programming over clients, for small smooth models.

In an exchange the server sends parameters and multipliers, and every client returns f_i, g_i, their gradients and the
Hessian of λ_i f_i + <μ_i, g_i>, of which only the sum is used. The server then minimises a quadratic model of the
problem in a trust region,

    min over s, t, v >= 0 of  t + ρ v + ½ sᵀHs   subject to  f_i + <∇f_i, s> <= t,  g_ic + <∇g_ic, s> <= ε + v,

and sends w + s with the multipliers of this program. If the merit function decreases much less than predicted, one
further exchange evaluates a second-order correction of the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy import sparse
from threadpoolctl import ThreadpoolController

from softswitch.methods.base import Method
from softswitch.methods.messages import Decision, Reports
from softswitch.problem.domains import Ball, Box, Domain
from softswitch.support.checks import POSITIVE

MAX_ROWS = 200  # functions with which a quadratic program begins; those that its solution violates are added
MIN_CURVATURE = 1e-9  # smallest eigenvalue of the model's Hessian, as a fraction of the largest
ACCEPT, GOOD, POOR = 0.05, 0.7, 0.25  # actual/predicted decrease to accept a step, and to change the trust region
ONE_THREAD = ThreadpoolController().wrap(limits=1, user_api="blas")  # faster on small matrices
MIN_PENALTY, MAX_PENALTY, MAX_RADIUS = 1e-6, 1e8, 1e10
PENALTY_FACTOR, LOW_VIOLATION = 10.0, 1e-1
STATIONARY_RADIUS, STATIONARY_FACTOR = 1e-3, 1e3  # a solution has at most this decrease, in precisions, in this radius
NEGLIGIBLE_VIOLATION, NEGLIGIBLE_MULTIPLIER = 1e-9, 1e-9


@dataclass(frozen=True, kw_only=True)
class SQP(Method):
    """Sequential quadratic programming: the optimum of a small smooth problem in about ten exchanges.

    For models with up to 500 parameters and twice differentiable functions. All clients and all their rows take part in
    every exchange. Clients return gradients and a matrix of d × d numbers, which reveals more about their rows than the
    reports of other methods.

    Attributes:
        tolerance: ε >= 0, in units of g: the constraint is met if G(w) <= ε.
        step_size: Initial radius > 0 of the trust region, the largest change of a parameter. Default: 1.
        precision: The run ends when the predicted decrease is below this fraction > 0 of max(1, |F|). Default: 1e-8.
    """

    step_size: float = field(default=1.0, metadata=POSITIVE)
    precision: float = field(default=1e-8, metadata=POSITIVE)
    own_criterion: ClassVar[str] = "max"
    aims_at: ClassVar[str] = "max"
    switches: ClassVar[bool] = False
    needs_derivatives: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("threshold", "slack", "local_step_size", "optimizer", "robust", "direction", "at_clients"):
            if (value := getattr(self, name)) is not None:
                raise ValueError(f"{name} must be None for SQP, which has no such part, but is {value!r}")
        if self.criterion not in (None, "max", "pooled"):
            raise ValueError(f"criterion must be 'max' or 'pooled' for SQP, but is {self.criterion!r}")

    def decide(self, state: Any, reports: Reports) -> tuple[Decision, Any]:
        """Raise TypeError: the reports of a round have no derivatives."""
        raise TypeError("SQP needs derivatives of second order, which the clients of this run do not return")


class Query(NamedTuple):
    """Message of the server to the n clients: a point, and the weights of all functions in the Hessian."""

    point: np.ndarray  # parameters w, a vector of length d
    weights: np.ndarray  # λ_i of the objectives, of length n
    multipliers: np.ndarray  # μ_ic of the constraints: clients × constraints, or 1 × constraints if they are pooled


class Derivatives(NamedTuple):
    """Values and derivatives of all clients at a point, in float64. The value of a missing function is −∞."""

    objective: np.ndarray  # f_i, of length n
    constraint: np.ndarray  # g_ic, of the shape of ``Query.multipliers``
    objective_gradient: np.ndarray  # n × d
    constraint_gradient: np.ndarray  # the shape of ``constraint`` × d
    hessian: np.ndarray  # d × d, of Σ λ_i f_i + Σ μ_ic g_ic

    @property
    def worst(self) -> float:
        """Largest objective F = max_i f_i."""
        return float(self.objective.max())

    def violation(self, tolerance: Any) -> float:
        """Return max(0, G − ε) for ε = ``tolerance``, one number or one for each constraint."""
        return max(0.0, float((self.constraint - tolerance).max(initial=-np.inf)))

    @property
    def is_finite(self) -> bool:
        """Whether at least one objective exists, and all values and derivatives of existing functions are finite."""
        values = ((self.objective, self.objective_gradient), (self.constraint, self.constraint_gradient))
        finite = all(np.isfinite(g[~np.isneginf(v)]).all() and (v < np.inf).all() for v, g in values)
        return bool(finite and np.isfinite(self.hessian).all() and np.isfinite(self.worst))


class Phase(IntEnum):
    """Kind of the point in the next exchange (start, step, corrected step), or the reason why the run is over."""

    START = 0
    STEP = 1
    CORRECTION = 2
    CONVERGED = 3
    STALLED = 4
    DIVERGED = 5


class SQPState(NamedTuple):
    """State of the server between two exchanges, of NumPy arrays and scalars only, so that it can be saved."""

    phase: Any  # a ``Phase``, int64
    query: Query  # query of the next exchange; after the last one, the iterate with its multipliers
    point: np.ndarray  # iterate w, of length d
    found: Derivatives  # derivatives at the iterate
    candidate: np.ndarray  # w + s, while its correction is evaluated
    candidate_found: Derivatives  # derivatives at the candidate
    radius: Any  # radius of the trust region, float64
    penalty: Any  # ρ of the merit function F + ρ·max(0, G − ε), float64
    predicted: Any  # decrease of the merit function that the model predicts for the candidate, float64

    @property
    def is_over(self) -> bool:
        """Whether no exchange follows."""
        return int(self.phase) >= Phase.CONVERGED


def start(method: SQP, point: np.ndarray, clients: int, shape: tuple[int, int]) -> SQPState:
    """Return the state before the first exchange, with equal weights; ``shape`` is that of ``Query.multipliers``."""
    size = len(point)
    query = Query(np.array(point, float), np.full(clients, 1 / clients), np.zeros(shape))
    unknown = Derivatives(
        np.zeros(clients), np.zeros(shape), np.zeros((clients, size)), np.zeros((*shape, size)), np.zeros((size, size))
    )
    numbers = (np.float64(method.step_size), np.float64(1.0), np.float64(0.0))
    return SQPState(np.int64(Phase.START), query, query.point, unknown, query.point, unknown, *numbers)


@ONE_THREAD
def advance(method: SQP, tolerance: Any, domain: Domain | None, state: SQPState, reply: Derivatives) -> SQPState:
    """Return the state after a reply. ``tolerance`` is one number, or one for each constraint of each client."""
    predicted, penalty = float(state.predicted), float(state.penalty)

    def gain(found: Derivatives) -> float:
        if not found.is_finite:
            return -np.inf
        return _merit(state.found, tolerance, penalty) - _merit(found, tolerance, penalty)

    phase, point = int(state.phase), state.query.point
    if phase == Phase.START:
        if not reply.is_finite:
            return state._replace(phase=np.int64(Phase.DIVERGED), found=reply)
        return propose(method, tolerance, domain, state._replace(found=reply))
    if phase == Phase.STEP and -np.inf < gain(reply) < 0.1 * predicted:
        corrected = _correct(state, tolerance, domain, reply)
        if corrected is not None:
            query = state.query._replace(point=state.point + corrected)
            return state._replace(phase=np.int64(Phase.CORRECTION), query=query, candidate=point, candidate_found=reply)
    if phase == Phase.CORRECTION and not gain(reply) > max(gain(state.candidate_found), 0.1 * predicted):
        point, reply = state.candidate, state.candidate_found
    ratio, length = gain(reply) / max(predicted, 1e-300), float(np.abs(point - state.point).max())
    radius = float(state.radius)
    if ratio > GOOD and length > 0.99 * radius:
        radius = min(2 * radius, MAX_RADIUS)
    elif ratio < POOR:
        radius = length / 3
    state = state._replace(radius=np.float64(radius))
    if ratio > ACCEPT:
        state = state._replace(point=point, found=reply)
    return propose(method, tolerance, domain, state)


def _merit(found: Derivatives, tolerance: Any, penalty: float) -> float:
    return found.worst + penalty * found.violation(tolerance)


@ONE_THREAD
def propose(method: SQP, tolerance: Any, domain: Domain | None, state: SQPState) -> SQPState:
    """Return the state with the minimum of the model as the next candidate, or with the end of the run."""
    found, radius, penalty = state.found, float(state.radius), float(state.penalty)
    while radius > 1e-14 * max(1.0, float(np.abs(state.point).max())):
        program = _Program(state.point, found, tolerance, domain, radius)
        step = program.solve(penalty)
        if step is None:
            radius /= 10
            continue
        violation = found.violation(tolerance)
        negligible = NEGLIGIBLE_VIOLATION * max(1.0, float(np.max(np.abs(tolerance))))
        if min(violation, step.violation) > max(negligible, NEGLIGIBLE_VIOLATION * program.constraint_change):
            least = program.solve(1.0, objective=False)
            # Raise the penalty only as far as the trust region can use it.
            while (
                least is not None
                and violation - step.violation < 0.5 * (violation - least.violation)
                and penalty < MAX_PENALTY
                and (steeper := program.solve(10 * penalty)) is not None
            ):
                penalty, step = 10 * penalty, steeper
        scale = max(1.0, abs(found.worst))
        if violation > negligible and found.worst - step.model < method.precision * scale:
            penalty = max(penalty, 1.0)  # only the constraint is left to improve
        elif step.violation <= negligible and violation <= LOW_VIOLATION * program.constraint_change:
            # Lower a penalty far above the multipliers, which would reject steps for violations of no importance.
            enough = max(PENALTY_FACTOR * float(step.multipliers.sum()), MIN_PENALTY)
            penalty = min(penalty, max(enough, penalty / PENALTY_FACTOR))
        merit = _merit(found, tolerance, penalty)
        predicted = merit - step.model - penalty * step.violation
        query = Query(state.point + step.step, step.weights, step.multipliers)
        phase = Phase.STEP
        limit = method.precision * scale * (1.0 if violation <= negligible else 1e-3)
        if predicted < limit:
            # A trust region that collapsed at a kink predicts no decrease either: look further.
            wide = max(radius, STATIONARY_RADIUS * max(1.0, float(np.abs(state.point).max())))
            further = _Program(state.point, found, tolerance, domain, wide).solve(penalty) if wide > radius else step
            missed = 0.0 if further is None else merit - further.model - penalty * further.violation
            phase = Phase.CONVERGED if missed < STATIONARY_FACTOR * method.precision * scale else Phase.STALLED
            query = query._replace(point=state.point)
        state = state._replace(radius=np.float64(radius), penalty=np.float64(penalty), predicted=np.float64(predicted))
        return state._replace(phase=np.int64(phase), query=query)
    return state._replace(phase=np.int64(Phase.STALLED), query=state.query._replace(point=state.point))


def _correct(state: SQPState, tolerance: Any, domain: Domain | None, reply: Derivatives) -> np.ndarray | None:
    """Return the second-order correction, the step of the program with constants from the candidate's values."""
    step, found = state.query.point - state.point, state.found
    moved = found._replace(
        objective=reply.objective - found.objective_gradient @ step,
        constraint=reply.constraint - found.constraint_gradient @ step,
    )
    solution = _Program(state.point, moved, tolerance, domain, float(state.radius)).solve(float(state.penalty))
    return None if solution is None else solution.step


class _Step(NamedTuple):
    """Solution of a quadratic program."""

    step: np.ndarray  # s, of length d
    model: float  # t + ½ sᵀHs
    violation: float  # v >= 0
    weights: np.ndarray  # λ_i, as in ``Query``
    multipliers: np.ndarray  # μ_ic, as in ``Query``


class _Program:
    """The quadratic program at an iterate; s, t and v are scaled by the radius, and by changes of f and g within it."""

    def __init__(self, point: np.ndarray, found: Derivatives, tolerance: Any, domain: Any, radius: float) -> None:
        self._point, self._domain, self._radius, self._shape = point, domain, radius, found.constraint.shape
        size = len(point)
        values, vectors = np.linalg.eigh(found.hessian)
        smallest = MIN_CURVATURE * float(np.abs(values).max())
        self._curvature = (vectors * np.maximum(np.abs(values), smallest)) @ vectors.T
        self._worst = found.worst
        self._f, self._df = found.objective, radius * found.objective_gradient
        self._g = (found.constraint - tolerance).ravel()
        self._dg = radius * found.constraint_gradient.reshape(-1, size)
        # Only functions that can become active in the trust region are used.
        change_f, change_g = np.abs(self._df).sum(axis=1), np.abs(self._dg).sum(axis=1)
        known_f, known_g = ~np.isneginf(self._f), ~np.isneginf(self._g)
        least = (self._f - change_f)[known_f].max()
        self._near_f = np.flatnonzero(known_f & (self._f + change_f >= least))
        self._near_g = np.flatnonzero(known_g & (self._g + change_g >= 0))
        tiny = 1e-12 * max(1.0, abs(self._worst))
        self._unit_f = max(change_f[self._near_f].max(initial=0.0), tiny)
        largest = self._g[self._near_g].max(initial=0.0)
        self.constraint_change = max(change_g[self._near_g].max(initial=0.0), largest, tiny)

    def solve(self, penalty: float, *, objective: bool = True) -> _Step | None:
        """Return the solution for a penalty ρ, without the ``objective`` that of smallest v; None if it fails."""
        half = MAX_ROWS // 2
        rows_f = self._near_f[np.argsort(-self._f[self._near_f], kind="stable")[:half]]
        rows_g = self._near_g[np.argsort(-self._g[self._near_g], kind="stable")[:half]]
        while True:
            solution = self._solve_with(rows_f, rows_g, penalty, objective)
            if solution is None:
                return None
            change, t, v, weights, multipliers = solution
            over_f = self._f + self._df @ change - t - 1e-9 * self._unit_f
            over_g = self._g + self._dg @ change - v - 1e-9 * self.constraint_change
            more_f = np.setdiff1d(self._near_f[over_f[self._near_f] > 0], rows_f)
            more_g = np.setdiff1d(self._near_g[over_g[self._near_g] > 0], rows_g)
            if not len(more_f) + len(more_g):
                step = self._radius * change
                model = t + float(step @ self._curvature @ step) / 2
                return _Step(step, model, max(v, 0.0), weights, multipliers.reshape(self._shape))
            rows_f, rows_g = np.r_[rows_f, more_f], np.r_[rows_g, more_g]

    def _solve_with(self, rows_f: np.ndarray, rows_g: np.ndarray, penalty: float, objective: bool) -> Any:
        """Return s/radius, t, v and the multipliers of the program with only these functions; None if it fails."""
        import clarabel  # needed by servers only

        size, nf, ng = len(self._point), len(rows_f), len(rows_g)
        unit_f, unit_g, radius = self._unit_f, self.constraint_change, self._radius
        weight, share = (1.0, penalty * unit_g / unit_f) if objective else (1e-6, unit_g / unit_f)
        quadratic = np.zeros((size + 2, size + 2))
        if objective:
            quadratic[:size, :size] = self._curvature * (radius**2 / unit_f)
        quadratic[range(size + 2), range(size + 2)] += 1e-10
        linear = np.r_[np.zeros(size), weight, share]
        top = max(1.0, weight, share)
        rows = np.zeros((nf + ng + 1 + 2 * size, size + 2))
        limits = np.zeros(len(rows))
        rows[:nf, :size], rows[:nf, size] = self._df[rows_f] / unit_f, -1
        limits[:nf] = (self._worst - self._f[rows_f]) / unit_f
        rows[nf : nf + ng, :size], rows[nf : nf + ng, size + 1] = self._dg[rows_g] / unit_g, -1
        limits[nf : nf + ng] = -self._g[rows_g] / unit_g
        rows[nf + ng, size + 1] = -1
        lower, upper = np.full(size, -1.0), np.full(size, 1.0)
        if isinstance(self._domain, Box):
            lower = np.clip((self._domain.lower - self._point) / radius, -1, 0)
            upper = np.clip((self._domain.upper - self._point) / radius, 0, 1)
        rows[nf + ng + 1 :, :size] = np.vstack([np.eye(size), -np.eye(size)])
        limits[nf + ng + 1 :] = np.r_[upper, -lower]
        cones = [clarabel.NonnegativeConeT(len(rows))]
        if isinstance(self._domain, Ball):  # ‖w + s‖ <= R
            ball = np.zeros((size + 1, size + 2))
            ball[1:, :size] = -np.eye(size)
            rows = np.vstack([rows, ball])
            limits = np.r_[limits, self._domain.radius / radius, self._point / radius]
            cones.append(clarabel.SecondOrderConeT(size + 1))
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-10
        upper_half = sparse.triu(sparse.csc_matrix(quadratic / top)).tocsc()
        solver = clarabel.DefaultSolver(upper_half, linear / top, sparse.csc_matrix(rows), limits, cones, settings)
        solution = solver.solve()
        x, z = np.array(solution.x), np.maximum(np.array(solution.z), 0) * top
        if solution.status not in (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved):
            return None
        z[z < NEGLIGIBLE_MULTIPLIER * z[: nf + ng].max()] = 0  # else every client would compute a Hessian
        weights, multipliers = np.zeros(len(self._f)), np.zeros(len(self._g))
        weights[rows_f] = z[:nf] / max(z[:nf].sum(), 1e-300)
        multipliers[rows_g] = z[nf : nf + ng] * (unit_f / unit_g)
        return x[:size], self._worst + unit_f * x[size], unit_g * x[size + 1], weights, multipliers
