"""SciPy's SLSQP on the same problem: minimise t over (w, t), subject to f_i(w) <= t and g_j(w) <= tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

from benchmarks.optima.known import KnownProblem


@dataclass(frozen=True, eq=False)
class Minimum:
    """What SLSQP found.

    Attributes:
        params: w.
        worst_objective: F(w), the largest f_i.
        worst_constraint: G(w), the largest g_j; −∞ where there are no constraints.
        success: whether SLSQP says that it converged.
    """

    params: np.ndarray
    worst_objective: float
    worst_constraint: float
    success: bool


def slsqp(problem: KnownProblem, start: np.ndarray | None = None, tolerance: float = 0.0) -> Minimum:
    """Run SLSQP in float64 from a start, by default the published one."""
    with jax.enable_x64(True):
        return _slsqp(problem, problem.start if start is None else start, tolerance)


def _slsqp(problem: KnownProblem, start: np.ndarray, tolerance: float) -> Minimum:
    compiled = values_and_slopes(problem)

    @lru_cache(maxsize=2)
    def at(raw: bytes) -> tuple[np.ndarray, ...]:
        return tuple(np.asarray(part) for part in compiled(np.frombuffer(raw)))

    def room(v: np.ndarray) -> np.ndarray:
        objectives, constraints, *_ = at(v[:-1].tobytes())
        return np.concatenate([v[-1] - objectives, tolerance - constraints])

    def slopes(v: np.ndarray) -> np.ndarray:
        *_, objectives, constraints = at(v[:-1].tobytes())
        by_t = np.repeat([1.0, 0.0], [len(objectives), len(constraints)])
        return np.column_stack([-np.concatenate([objectives, constraints]), by_t])

    up = np.eye(len(start) + 1)[-1]
    found = optimize.minimize(
        lambda v: v[-1],
        np.append(start, at(start.tobytes())[0].max()),
        jac=lambda v: up,
        method="SLSQP",
        constraints={"type": "ineq", "fun": room, "jac": slopes},
        options={"maxiter": 500, "ftol": 1e-12},
    )
    w = found.x[:-1]
    objectives, constraints, *_ = at(w.tobytes())
    return Minimum(w, float(objectives.max()), float(constraints.max(initial=-np.inf)), bool(found.success))


@lru_cache
def values_and_slopes(problem: KnownProblem) -> Any:
    """A compiled function from w to all f_i, all g_j, and their Jacobians."""

    def values(w: Any) -> Any:
        return problem.objectives(w), jnp.zeros(0) if problem.constraints is None else problem.constraints(w)

    def both(w: Any) -> Any:
        return *values(w), *jax.jacfwd(values)(w)

    return jax.jit(both)


def starts(problem: KnownProblem, number: int) -> list[np.ndarray]:
    """The published start, and others around it, the same every time."""
    generator = np.random.default_rng(0)
    width = np.maximum(1, np.abs(problem.start))
    others = [problem.start + 0.5 * width * generator.standard_normal(problem.variables) for _ in range(number - 1)]
    return [problem.start, *others]
