"""Algorithm 1 of the paper as a plain NumPy loop, and the baselines in the same form.

Written from the paper's pseudocode alone and in float64: nothing here comes from softswitch. All random choices are
arguments.
"""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Draws:
    """One round's choices: I_k; for each member its value rows; for each step and member its gradient rows."""

    clients: np.ndarray
    value_rows: np.ndarray
    gradient_rows: np.ndarray


@dataclass
class Run:
    iterates: list = field(default_factory=list)  # w_0, w_1, ..., w_K
    criteria: list = field(default_factory=list)
    feasible: list = field(default_factory=list)
    average: np.ndarray | None = None


def softmax(v):
    e = np.exp(v - v.max())
    return e / e.sum()


def local_solver(w, gradient, rows, gamma, E):
    """Function "LocalSolver": E steps, then (w_{k,0} − w_{k,E})/(γE)."""
    local = w.copy()
    for tau in range(E):
        local = local - gamma * gradient(local, rows[tau])
    return (w - local) / (gamma * E)


class SoftmaxSGM:
    def __init__(self, alpha, lam, constraint_alpha=None, per_spread=False):
        self.alpha, self.lam, self.per_spread = alpha, lam, per_spread
        self.constraint_alpha = alpha if constraint_alpha is None else constraint_alpha

    def weights(self, f, g):
        a, b = self.alpha, self.constraint_alpha
        if self.per_spread:
            a, b = a / ((f.max() - f.min()) or 1), b / ((g.max() - g.min()) or 1)
        return softmax(a * f), softmax(b * g.ravel()).reshape(g.shape)

    def round(self, w, f, g, functions, draws, gamma, E):
        p, q = self.weights(f, g)
        criterion = float((q * g).sum())
        feasible = criterion <= self.lam
        u = np.zeros_like(w)
        for j in range(len(draws.clients)):
            rows = draws.gradient_rows[:, j]
            if feasible:
                u += p[j] * local_solver(w, functions.grad_f, rows, gamma, E)
            elif q[j].sum() > 0:
                # q over the pairs (client, constraint): the client descends on its part of the mix.
                mix = q[j] / q[j].sum()
                u += q[j].sum() * local_solver(w, lambda v, r, mix=mix: mix @ functions.grad_g(v, r), rows, gamma, E)
        return criterion, feasible, u


class AverageSGM(SoftmaxSGM):
    def __init__(self, lam):
        super().__init__(0.0, lam)

    def weights(self, f, g):
        return np.full(f.shape, 1 / f.size), np.full(g.shape, 1 / g.size)


class HardSGM(SoftmaxSGM):
    def __init__(self, lam):
        super().__init__(np.inf, lam)

    def weights(self, f, g):
        p, q = (f == f.max()).astype(float), (g == g.max()).astype(float)
        return p / p.sum(), q / q.sum()


class Penalty:
    def __init__(self, rho, eps, lam):
        self.rho, self.eps, self.lam = rho, eps, lam

    def round(self, w, f, g, functions, draws, gamma, E):
        def gradient(v, rows):
            above = (functions.g(v, rows) - self.eps > 0).astype(float)
            return functions.grad_f(v, rows) + self.rho * above @ functions.grad_g(v, rows)

        m = len(draws.clients)
        u = sum(local_solver(w, gradient, draws.gradient_rows[:, j], gamma, E) for j in range(m)) / m
        return g.mean(), g.mean() <= self.lam, u


class PrimalDual:
    def __init__(self, mu, eta_d, eps, lam):
        self.mu, self.eta_d, self.eps, self.lam = mu, eta_d, eps, lam

    def round(self, w, f, g, functions, draws, gamma, E):
        mu = np.broadcast_to(self.mu, g.shape[1:])

        def gradient(v, rows):
            return functions.grad_f(v, rows) + mu @ functions.grad_g(v, rows)

        m = len(draws.clients)
        u = sum(local_solver(w, gradient, draws.gradient_rows[:, j], gamma, E) for j in range(m)) / m
        self.mu = np.maximum(0, mu + self.eta_d * (g.mean(axis=0) - self.eps))
        return g.mean(), g.mean() <= self.lam, u


def run(functions, method, w0, all_draws, eta, gamma, E, radius=None):
    """K rounds of Algorithm 1; an optional projection onto a ball."""
    out = Run(iterates=[w0.copy()])
    w = w0.copy()
    S = []
    for draws in all_draws:
        f = np.array([functions.f(w, rows) for rows in draws.value_rows])
        g = np.array([functions.g(w, rows) for rows in draws.value_rows])
        criterion, feasible, u = method.round(w, f, g, functions, draws, gamma, E)
        if feasible:
            S.append(w.copy())
        w = w - eta * u
        if radius is not None:
            w = w * min(1.0, radius / np.linalg.norm(w))
        out.iterates.append(w.copy())
        out.criteria.append(criterion)
        out.feasible.append(bool(feasible))
    out.average = np.mean(S, axis=0) if S else None
    return out
