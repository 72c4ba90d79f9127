"""A lower bound on the best possible: never above it where the problem is convex, near it, honest about the rest."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from convex_problems import draw
from softswitch.certification.optimality import lower_bound, with_lower_bound
from softswitch.methods.sqp import Query
from softswitch.oracles.derivatives import RowDerivatives
from softswitch.problem.fairness import demographic_parity
from softswitch.problem.networks import init_network, predict_probability
from softswitch.problem.networks import logistic_objective as cross_entropy
from softswitch.tables.constraints import build_problem
from softswitch_experiments.tasks.neyman_pearson import breast_cancer


def at_or_below(bound, drawn, w):
    """F(w) >= value − Σμ·max(0, G(w) − ε) holds for any w of the domain, whether it is feasible or not."""
    w = w if drawn.problem.domain is None else np.asarray(drawn.problem.domain.project(jnp.asarray(w)))
    worst, excess = drawn.worst(w)
    return bound.value <= worst + bound.multipliers.sum() * max(excess, 0) + 1e-11 * (1 + abs(worst))


def check(seeds):
    """Bounds from the optimum and from parameters about 1% off; how far below F* they are, as a share of it."""
    short = []
    for seed in seeds:
        drawn = draw(seed)
        w, (best, excess) = drawn.optimum()
        assert excess <= 1e-9, seed
        off = w + 0.01 * np.random.default_rng(seed).normal(size=len(w)) * (0.1 + np.abs(w))
        bound = lower_bound(drawn.problem, drawn.clients, jnp.asarray(off if seed % 2 else w), drawn.tolerance)
        assert at_or_below(bound, drawn, w), (seed, bound.value, best)
        assert bound.certified, (seed, bound.reason)
        short.append((best - bound.value) / max(abs(best), 1e-2))
    return np.array(short)


def test_it_is_at_or_below_the_optimum_and_near_it(x64):
    assert check(range(6)).max() < 1e-6


@pytest.mark.slow
def test_it_is_so_in_all_of_500_random_problems(x64):
    assert check(range(500)).max() < 1e-6


def test_single_precision_is_allowed_for():
    for seed in range(40, 42):
        drawn = draw(seed)
        w, (best, _) = drawn.optimum()
        bound = lower_bound(drawn.problem, drawn.clients, jnp.asarray(w, jnp.float32), drawn.tolerance)
        assert at_or_below(bound, drawn, w), (seed, bound.value, best)
        assert best - bound.value <= 1e-3 * max(abs(best), 0.1), (seed, bound.value, best)


def logistic(seed, radius=4.0):
    generator = np.random.default_rng(seed)
    owner = np.repeat(np.arange(5), 60)
    x = np.c_[generator.normal(size=(300, 4)) + 0.3 * generator.normal(size=(5, 4))[owner], np.ones(300)]
    y = (x[:, 0] + 0.5 * x[:, 1] + generator.normal(size=300) > 0).astype(int)
    made = breast_cancer(2).problem
    problem = dataclasses.replace(made, start=jnp.zeros(5), domain=None if radius is None else ss.Ball(radius))
    return problem, ss.ClientData.from_arrays({"x": x, "y": y}, client=owner, strata="y")


def test_the_gap_closes_at_the_optimum_of_logistic_problems(x64):
    """The minimum that the bound leads to is feasible to rounding, and its F is the bound: the gap is none."""
    for seed in range(10):
        problem, clients = logistic(seed, None if seed % 2 else 4.0)
        method = ss.SoftmaxSGM(alpha=300.0, step_size=0.3, tolerance=0.45)
        result = flat.solve(problem, clients, method, rounds=400, batch_size=None, eval_every=0)
        rough = with_lower_bound(result, problem, clients).lower_bound
        assert rough.certified
        assert rough.feasible
        assert 0 <= rough.relative_gap < 0.5
        optimum = best_of(problem, clients, method.tolerance, np.asarray(result.params))
        fine = lower_bound(problem, clients, jnp.asarray(optimum), method.tolerance + 1e-9)
        assert fine.feasible
        assert -1e-9 <= fine.relative_gap <= 1e-4, seed


def best_of(problem, clients, tolerance, start):
    """By SLSQP on min t subject to f_i <= t and g_i <= ε."""
    from scipy import optimize

    look, n = RowDerivatives(problem, clients), len(clients)

    def slack(z):
        f, g = look.values(z[:-1])
        room = [] if problem.domain is None else [problem.domain.radius**2 - z[:-1] @ z[:-1]]
        return np.r_[z[-1] - f, tolerance - g.ravel(), room]

    def slope(z):
        found = look.reply(Query(z[:-1], np.zeros(n), np.zeros(look.shape)))
        gradients = np.r_[found.objective_gradient, found.constraint_gradient.reshape(-1, len(z) - 1)]
        lines = np.c_[-gradients, np.r_[np.ones(n), np.zeros(len(gradients) - n)]]
        return lines if problem.domain is None else np.r_[lines, np.r_[-2 * z[:-1], 0.0][None]]

    z = np.r_[start, look.values(start)[0].max()]
    found = optimize.minimize(
        lambda z: z[-1],
        z,
        jac=lambda z: np.r_[np.zeros(len(z) - 1), 1.0],
        constraints={"type": "ineq", "fun": slack, "jac": slope},
        method="SLSQP",
        options={"maxiter": 300, "ftol": 1e-13},
    )
    return found.x[:-1]


ONE = ss.ClientData.from_arrays({"x": np.ones(4, np.float32)}, client=[0, 0, 1, 1])


def mean(batch, value):
    return jnp.average(value * batch["x"], weights=batch["weight"])


def test_that_there_is_no_bound_is_said():
    falling = ss.Problem(
        lambda w, b: mean(b, w[0] + 0 * w[1]), lambda w, b: mean(b, w[1]) - 1.0, jnp.zeros(2), convex=True
    )
    bound = lower_bound(falling, ONE, jnp.zeros(2), 0.1)
    assert bound.value == -math.inf
    assert not bound.certified
    assert str(bound).startswith("no bound: the Lagrangian has no minimum")
    held = dataclasses.replace(falling, domain=ss.Ball(3.0))
    bound = lower_bound(held, ONE, jnp.zeros(2), 0.1)
    np.testing.assert_allclose(bound.value, -3.0, rtol=1e-5)
    assert bound.value <= -3.0
    assert bound.certified
    assert bound.assumptions == ""


def test_a_budget_ends_the_search_for_weights():
    problem, clients = logistic(0)
    free = lower_bound(problem, clients, jnp.zeros(5), 0.45)
    tight = lower_bound(problem, clients, jnp.zeros(5), 0.45, budget_rows=3000)
    assert tight.value < free.value - 1e-4  # a valid bound, by weights that are not the best


def test_what_is_not_known_to_be_convex_is_an_estimate():
    problem, clients = logistic(0)
    unsaid = dataclasses.replace(problem, convex=None)
    for told, why in (
        (unsaid, "convexity is not known"),
        (dataclasses.replace(problem, convex=False), "declared not convex"),
    ):
        bound = lower_bound(told, clients, jnp.zeros(5), 0.8)
        assert not bound.certified
        assert why in str(bound)
        assert "(estimated: " in str(bound)


def test_convexity_that_is_refuted_is_no_promise():
    wavy = ss.Problem(
        lambda w, b: mean(b, jnp.sin(3 * w[0]) + 0.5 * (w**2).sum()),
        lambda w, b: mean(b, w[1]) - 1.0,
        jnp.ones(2),
        convex=True,
    )
    bound = lower_bound(wavy, ONE, jnp.array([-0.45, 0.0]), 0.1)
    assert not bound.certified
    assert "declared convex, but is not convex: the objective of client 0 lies above a chord" in str(bound)


def test_a_network_is_refuted_or_not_known():
    generator = np.random.default_rng(0)
    columns = {
        "x": generator.normal(size=(60, 3)).astype(np.float32),
        "y": np.tile([0, 1], 30),
        "group": np.arange(60) // 30,
    }
    clients = ss.ClientData.from_arrays(columns, client=np.arange(60) % 3)
    problem = ss.Problem(cross_entropy, demographic_parity(predict_probability), init_network(3, (4,)), convex=None)
    bound = lower_bound(problem, clients, problem.start, 0.2, budget_rows=300_000)
    assert not bound.certified


def test_clients_without_an_objective_or_a_constraint_are_left_out(x64):
    task = breast_cancer(20, concentration=0.3)
    problem = dataclasses.replace(task.problem, domain=ss.Ball(3.0))
    objective, constraint = ss.evaluate(problem, task.train, problem.start)
    assert np.isneginf(objective).any() or np.isneginf(constraint).any()
    bound = lower_bound(problem, task.train, jnp.zeros(31), 0.3)
    assert math.isfinite(bound.value)
    assert not bound.weights[np.isneginf(objective)].any()
    assert not bound.multipliers[np.isneginf(constraint)].any()
    optimum = flat.solve(
        problem, task.train, ss.SoftmaxSGM(alpha=300.0, step_size=0.2, tolerance=0.3), rounds=300, batch_size=None
    )
    assert bound.value <= optimum.worst_objective


def ridge_loss(w, batch):
    return jnp.average((batch["x"][:, 0] * w[0] - 1) ** 2 + 0.1 * (w**2).sum(), weights=batch["weight"])


def sums(w, batch):
    value = batch["x"][:, 1] * w[0] + w[1] ** 2
    return jnp.stack([(batch["weight"] * value).sum(), batch["weight"].sum()])


def test_a_constraint_on_all_data_together(x64):
    """The pooled constraint is the mean over all rows; solved beside by SLSQP in two parameters."""
    from scipy import optimize

    generator = np.random.default_rng(1)
    x = generator.uniform(0.5, 2, size=(30, 2))
    owner = np.repeat([0, 1, 2], [5, 10, 15])
    clients = ss.ClientData.from_arrays({"x": x}, client=owner)
    problem = ss.Problem(ridge_loss, ss.PooledConstraint(sums, lambda s: s[0] / s[1]), jnp.zeros(2), convex=True)
    tolerance = 0.4

    def worst(w):
        return max(((x[owner == i, 0] * w[0] - 1) ** 2).mean() + 0.1 * (w**2).sum() for i in range(3))

    room = {"type": "ineq", "fun": lambda w: tolerance - (x[:, 1] * w[0] + w[1] ** 2).mean()}
    best = min(worst(np.array([a, 0.0])) for a in np.linspace(0, tolerance / x[:, 1].mean(), 20001))
    found = optimize.minimize(worst, np.array([0.1, 0.1]), constraints=room, method="SLSQP", options={"ftol": 1e-12})
    assert found.fun >= best - 1e-6
    bound = lower_bound(problem, clients, jnp.array([0.2, 0.0]), tolerance, pooled=True)
    assert best - 1e-4 <= bound.value <= best + 1e-12
    assert bound.multipliers.shape == (1, 1)
    method = ss.SoftmaxSGM(alpha=50.0, step_size=0.05, tolerance=tolerance, criterion="pooled")
    result = with_lower_bound(flat.solve(problem, clients, method, rounds=200, batch_size=None), problem, clients)
    np.testing.assert_allclose(result.lower_bound.value, bound.value, rtol=1e-5)
    each = lower_bound(problem, clients, jnp.array([0.2, 0.0]), tolerance)
    assert each.multipliers.shape == (3, 1)
    assert each.value > bound.value + 1e-3  # every client's own constraint asks for more
    jumping = dataclasses.replace(problem, constraint_surrogate=problem.constraint, convex=None)
    at_limit = jnp.array([tolerance / x[:, 1].mean() - 1e-6, 0.0])
    assert lower_bound(jumping, clients, at_limit, tolerance, pooled=True).feasible
    assert not lower_bound(jumping, clients, at_limit, tolerance).feasible


def test_an_answer_above_the_tolerance_may_lie_below_the_optimum(x64):
    problem, clients = logistic(3)
    bound = lower_bound(problem, clients, jnp.array([0.0, 0.0, 0.0, 0.0, -2.0]), 0.45)
    assert not bound.feasible
    assert bound.gap < 0
    assert "is above the tolerance or outside the domain, and may be below the optimum" in str(bound)


def test_an_answer_outside_the_domain_is_no_feasible_one(x64):
    problem, clients = logistic(3, radius=0.3)
    far = lower_bound(problem, clients, jnp.array([2.0, 1.0, 0.0, 0.0, 0.0]), 0.69)
    assert far.gap < 0
    assert not far.feasible
    assert far.certified


def test_ready_made_problems_say_whether_they_are_convex():
    assert breast_cancer(2).problem.convex is True
    assert build_problem("neyman-pearson", 3).problem.convex is True
    assert build_problem("neyman-pearson", 3, (4,)).problem.convex is None
    assert build_problem("demographic-parity", 3).problem.convex is None
    with pytest.raises(TypeError, match="convex must be True, False or None, but is 'yes'"):
        dataclasses.replace(breast_cancer(2).problem, convex="yes")
