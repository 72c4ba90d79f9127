"""CVXPY with Clarabel, an interior-point method: for the convex cases only."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
from scipy import sparse

from models_noted import CaseFile, Trace, solve


def method(case: CaseFile, trace: Trace) -> None:
    """The epigraph form; what comes back is the only model to note."""
    trace.begin("")
    x, y = case.x.astype(float), case.y.astype(float)
    w, top = cp.Variable(x.shape[1]), cp.Variable()
    score = x @ w
    loss = cp.logistic(score) - cp.multiply(y, score)
    f_weights, g_weights = (
        sparse.csr_matrix((weight, (mean, row)), shape=(mean.max() + 1, len(y)))
        for mean, row, weight in (case.objectives, case.constraints)
    )
    problem = cp.Problem(cp.Minimize(top), [f_weights @ loss <= top, g_weights @ loss <= case.tolerance - 1e-7])
    problem.solve(solver=cp.CLARABEL)
    trace.note(lambda: np.asarray(w.value))


if __name__ == "__main__":
    solve(method)
