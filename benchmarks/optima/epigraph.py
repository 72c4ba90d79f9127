"""SciPy's SLSQP on the same problem: minimise t over (w, t), subject to f_i(w) <= t and g_j(w) <= tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

from benchmarks.optima.known import Functions, KnownProblem


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
    objectives, slopes = _with_jacobian(problem.objectives)
    inequalities = [
        {
            "type": "ineq",
            "fun": lambda v: v[-1] - objectives(v[:-1]),
            "jac": lambda v: np.pad(-slopes(v[:-1]), ((0, 0), (0, 1)), constant_values=1.0),
        }
    ]
    if problem.constraints is not None:
        constraints, tilts = _with_jacobian(problem.constraints)
        inequalities.append(
            {
                "type": "ineq",
                "fun": lambda v: tolerance - constraints(v[:-1]),
                "jac": lambda v: np.pad(-tilts(v[:-1]), ((0, 0), (0, 1))),
            }
        )
    up = np.eye(len(start) + 1)[-1]
    found = optimize.minimize(
        lambda v: v[-1],
        np.append(start, objectives(start).max()),
        jac=lambda v: up,
        method="SLSQP",
        constraints=inequalities,
        options={"maxiter": 2000, "ftol": 1e-14},
    )
    w = found.x[:-1]
    worst = -np.inf if problem.constraints is None else float(constraints(w).max())
    return Minimum(w, float(objectives(w).max()), worst, bool(found.success))


def _with_jacobian(function: Functions) -> tuple[Any, Any]:
    compiled, jacobian = jax.jit(function), jax.jit(jax.jacobian(function))
    return (lambda w: np.asarray(compiled(jnp.asarray(w)))), (lambda w: np.asarray(jacobian(jnp.asarray(w))))


def starts(problem: KnownProblem, number: int) -> list[np.ndarray]:
    """The published start, and others around it, the same every time."""
    generator = np.random.default_rng(0)
    width = np.maximum(1, np.abs(problem.start))
    others = [problem.start + 0.5 * width * generator.standard_normal(problem.variables) for _ in range(number - 1)]
    return [problem.start, *others]


def smallest(problem: KnownProblem, tolerance: float = 0.0, number: int = 5, within: float = 1e-7) -> Minimum | None:
    """The best that SLSQP finds from several starts with G(w) <= tolerance + within; None where there is none."""
    found = [slsqp(problem, start, tolerance) for start in starts(problem, number)]
    met = [one for one in found if one.worst_constraint <= tolerance + within and np.isfinite(one.worst_objective)]
    return min(met, key=lambda one: one.worst_objective, default=None)
