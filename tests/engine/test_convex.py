"""Convex problems compared with CVXPY's optimum: the bounds of the theorems hold, and F is not below the optimum."""

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from softswitch_experiments.tasks.neyman_pearson import breast_cancer, class_loss


def settings_of_theorem(D, L, K, E, n):
    """η, γ, ε and the smallest α of the paper's Theorem 1 (E = 1) and 2 (E > 1), full participation, no noise."""
    if E == 1:
        eta, eps = D / (2 * L * np.sqrt(K)), 2 * D * L / np.sqrt(K)
        gamma = eta
    else:
        eta, eps = D / (L * np.sqrt(8 * K)), D * L / np.sqrt(K / 32)
        gamma = eta / E
    return eta, gamma, eps, 2 * np.log(n) / eps


def optimum(objectives, constraints, w, radius, level):
    problem = cp.Problem(
        cp.Minimize(cp.max(cp.hstack(objectives))), [*(g <= level for g in constraints), cp.norm(w) <= radius]
    )
    return problem.solve(solver=cp.CLARABEL)


def check_theorem(result, eps, solve_at):
    """Check F(w̄) − F* <= ε and G(w̄) <= ε, and that F(w̄) is at least the optimum for the same violation."""
    F, G = result.worst_objective, result.worst_constraint
    assert result.status.ok, result.status
    assert eps >= G
    assert F - solve_at(0.0) <= eps
    assert solve_at(max(G, 0.0)) - 1e-6 <= F
    return F - solve_at(0.0)


# --- a constrained minimax quadratic program ---


def quadratic(w, batch):
    return jnp.average(0.5 * (batch["a"] @ w - batch["b"]) ** 2, weights=batch["weight"])


def affine(w, batch):
    return jnp.average(batch["h"] @ w, weights=batch["weight"]) - 0.1


@pytest.mark.parametrize(("E", "K"), [pytest.param(1, 40_000, marks=pytest.mark.slow), (5, 40_000)])
def test_minimax_quadratic_program(x64, E, K):
    generator = np.random.default_rng(4)
    n, d, rows, radius = 5, 3, 12, 1.5
    A = generator.normal(size=(n, rows, d)) / np.sqrt(d)
    B = A @ np.ones(d) + generator.normal(size=(n, rows))
    H = generator.normal(size=(n, rows, d)) * 0.2 + np.array([0.5, 0.3, -0.2])
    clients = ss.ClientData.from_list([{"a": A[i], "b": B[i], "h": H[i]} for i in range(n)])
    problem = ss.Problem(quadratic, affine, jnp.zeros(d, jnp.float64), ss.Ball(radius))
    L = max(
        *(np.linalg.norm(A[i].T @ A[i], 2) * radius + np.linalg.norm(A[i].T @ B[i]) for i in range(n)),
        *(rows * np.linalg.norm(H[i].mean(axis=0)) for i in range(n)),
    )
    L = L / rows
    eta, gamma, eps, alpha = settings_of_theorem(2 * radius, L, K, E, n)
    method = ss.SoftmaxSGM(alpha=alpha, step_size=eta, local_step_size=gamma, tolerance=eps, slack=1)
    result = flat.solve(problem, clients, method, rounds=K, local_steps=E, batch_size=None, eval_every=0)

    w = cp.Variable(d)
    objectives = [0.5 * cp.sum_squares(A[i] @ w - B[i]) / rows for i in range(n)]
    constraints = [H[i].mean(axis=0) @ w - 0.1 for i in range(n)]
    gap = check_theorem(result, eps, lambda level: optimum(objectives, constraints, w, radius, level))
    assert solve_without_constraint(objectives, w, radius) < optimum(objectives, constraints, w, radius, 0.0) - 0.05
    assert eps < 0.25, "the bound must not be vacuous"
    assert abs(gap) < eps


def solve_without_constraint(objectives, w, radius):
    return optimum(objectives, [], w, radius, 0.0)


# --- the Neyman–Pearson task in a ball ---

BOUND = 0.3


def misses(w, batch):
    return class_loss(w, batch, 1) - BOUND


@pytest.mark.slow
def test_neyman_pearson_in_a_ball(optimised):
    task = breast_cancer(20, seed=0, domain=ss.Ball(1.0))
    x, y = (np.asarray(task.train.rows.columns[key]) for key in "xy")
    ends = np.cumsum(task.train.sizes)
    parts = [slice(end - size, end) for end, size in zip(ends, task.train.sizes, strict=True)]
    L = max(np.linalg.norm(x[part][y[part] == c], axis=1).mean() for part in parts for c in (0, 1))
    K = 40_000
    eta, gamma, eps, alpha = settings_of_theorem(2.0, L, K, 1, 20)
    method = ss.SoftmaxSGM(alpha=alpha, step_size=eta, local_step_size=gamma, tolerance=eps, slack=1)
    problem = ss.Problem(task.problem.objective, misses, task.problem.start, task.problem.domain)
    result = flat.solve(problem, task.train, method, rounds=K, batch_size=None, eval_every=0)

    w = cp.Variable(31)

    def loss(part, c):
        scores = x[part][y[part] == c] @ w
        return cp.sum(cp.logistic(scores if c == 0 else -scores)) / (y[part] == c).sum()

    objectives = [loss(part, 0) for part in parts]
    constraints = [loss(part, 1) - BOUND for part in parts]
    solved = {
        level: optimum(objectives, constraints, w, 1.0, level) for level in (0.0, max(result.worst_constraint, 0.0))
    }
    check_theorem(result, eps, solved.__getitem__)


# --- infeasible problems are reported with the client ---


def outside(w, batch):
    return batch["sign"][0] * w + 1.0


def test_incompatible_clients_are_reported():
    """g_1 = 1 − w, g_2 = 1 + w: each is feasible alone, together max g >= 1."""
    clients = ss.ClientData.from_arrays({"sign": np.array([-1.0, 1.0])}, client=["east", "west"])
    problem = ss.Problem(lambda w, b: w**2 + 0 * b["sign"][0], outside, jnp.float32(3.0))
    method = ss.SoftmaxSGM(alpha=50.0, step_size=0.01, tolerance=0.1)
    result = flat.solve(problem, clients, method, rounds=2000, batch_size=None)
    assert result.status.code is ss.StatusCode.NO_FEASIBLE_ROUND
    assert result.status.criterion == pytest.approx(1.0, abs=0.02)
    assert result.status.client in ("east", "west")
    assert repr(result.status.client) in result.status.message
    assert abs(float(result.params)) < 0.05
    assert result.best is None
    assert "smallest criterion" in result.selected


def test_infeasible_client_is_named():
    clients = ss.ClientData.from_arrays({"shift": np.array([-5.0, 0.5, -5.0])}, client=["Earth", "Mars", "Jupiter"])
    problem = ss.Problem(lambda w, b: w, lambda w, b: w**2 + b["shift"][0], jnp.float32(1.0))
    result = flat.solve(problem, clients, ss.HardSGM(step_size=0.05, tolerance=0.1), rounds=500, batch_size=None)
    assert result.status.code is ss.StatusCode.NO_FEASIBLE_ROUND
    assert result.status.client == "Mars"
    assert result.status.criterion == pytest.approx(0.5, abs=1e-3)
    assert not result.status.ok
