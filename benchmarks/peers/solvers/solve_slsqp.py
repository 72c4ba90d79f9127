"""SciPy's SLSQP on the epigraph form, with exact gradients in float64: the method that the reference is found by."""

from __future__ import annotations

import numpy as np
from scipy import optimize, sparse, special

from models_noted import CaseFile, Trace, solve

SAFE = 1e-8


def method(case: CaseFile, trace: Trace) -> None:
    """Minimise t with f_i(w) <= t and g_j(w) <= tolerance, from w = 0."""
    trace.begin("")
    x, y = case.x.astype(float), case.y.astype(float)
    many, width = x.shape
    f_weights, g_weights = (
        sparse.csr_matrix((weight, (mean, row)), shape=(mean.max() + 1, many))
        for mean, row, weight in (case.objectives, case.constraints)
    )

    def constraint_values(score: np.ndarray) -> np.ndarray:
        each = np.logaddexp(0, score) - y * score if case.of_loss else special.expit(score)
        values = g_weights @ each
        return np.concatenate([values, -values]) if case.both_sides else values

    def room(v: np.ndarray) -> np.ndarray:
        score = x @ v[:-1]
        objectives = f_weights @ (np.logaddexp(0, score) - y * score)
        return np.concatenate([v[-1] - objectives, case.tolerance - SAFE - constraint_values(score)])

    def slopes(v: np.ndarray) -> np.ndarray:
        chance = special.expit(x @ v[:-1])
        f_slopes = f_weights @ ((chance - y)[:, None] * x)
        g_slopes = g_weights @ ((chance - y if case.of_loss else chance * (1 - chance))[:, None] * x)
        g_slopes = np.concatenate([g_slopes, -g_slopes]) if case.both_sides else g_slopes
        last = np.concatenate([np.ones(len(f_slopes)), np.zeros(len(g_slopes))])
        return np.column_stack([-np.concatenate([f_slopes, g_slopes]), last])

    top = np.append(np.zeros(width), 1.0)
    found = optimize.minimize(
        lambda v: v[-1],
        np.append(np.zeros(width), np.log(2)),
        jac=lambda v: top,
        method="SLSQP",
        constraints=[{"type": "ineq", "fun": room, "jac": slopes}],
        callback=lambda v: trace.note(lambda: v[:-1].copy()),
        options={"maxiter": 1000, "ftol": 1e-10},
    )
    trace.note(lambda: found.x[:-1])


if __name__ == "__main__":
    solve(method)
