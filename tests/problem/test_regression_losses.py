"""Numeric labels: analytical values, and optima found by solvers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog, minimize

import softswitch as ss
from benchmarks import flat
from softswitch.problem.networks import LabelScale, make_loss, mean_errors, miscoverage_rate, regression_constraint
from softswitch.tables.constraints import build_problem
from softswitch.tables.labels import NumberLabel

PARAMS = [{"w": jnp.array([[2.0]]), "b": jnp.array([1.0])}]
X, Y = jnp.array([[0.0], [1.0], [2.0], [-1.0]]), jnp.array([0.0, 3.5, 5.0, 1.0])
BATCH = {"x": X, "y": Y, "weight": jnp.full(4, 0.25)}  # predictions 1, 3, 5, −1; errors 1, −0.5, 0, −2
SCALE = LabelScale(scale=10.0)


@pytest.mark.parametrize(
    ("name", "quantile", "expected"),
    [
        ("squared", 0.5, 100 * (1 + 0.25 + 4) / 4),
        ("absolute", 0.5, 10 * 3.5 / 4),
        ("quantile", 0.9, 10 * (0.1 * 1 + 0.9 * 0.5 + 0.9 * 2) / 4),
    ],
)
def test_losses(name, quantile, expected):
    assert float(make_loss(name, SCALE, quantile)(PARAMS, BATCH)) == pytest.approx(expected)


def test_constraints():
    np.testing.assert_allclose(mean_errors(SCALE)(PARAMS, BATCH), [-3.75, 3.75])
    assert float(miscoverage_rate(SCALE).constraint(PARAMS, BATCH)) == pytest.approx(0.5)
    clipped_scale = LabelScale(10.0, 0.0, 4.0)  # predictions 1, 3, 4, 0
    np.testing.assert_allclose(mean_errors(clipped_scale)(PARAMS, BATCH), [-3.75, 3.75])
    assert float(make_loss("absolute", clipped_scale)(PARAMS, BATCH)) == pytest.approx(10 * 3.5 / 4)
    assert regression_constraint("mean-error", clipped_scale)[2] == (-40.0, 40.0)
    assert regression_constraint("absolute-error", clipped_scale)[2] == (0.0, 40.0)
    assert regression_constraint("mean-error")[2] is None


def test_weights():
    weights = jnp.array([0.5, 0.5, 0.0, 0.0])
    np.testing.assert_allclose(mean_errors()(PARAMS, BATCH | {"weight": weights}), [0.25, -0.25])
    assert float(miscoverage_rate().constraint(PARAMS, BATCH | {"weight": weights})) == pytest.approx(0.5)
    zero_weights = BATCH | {"weight": jnp.zeros(4)}
    assert np.isneginf(mean_errors()(PARAMS, zero_weights)).all()
    assert np.isneginf(make_loss("squared")(PARAMS, zero_weights))


def test_coverage_surrogate_raises_prediction():
    moves = jax.grad(miscoverage_rate().surrogate)(PARAMS, BATCH)
    assert float(moves[0]["b"][0]) < 0  # a step against the gradient raises it


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_loss("cubic"), "loss must be one of 'squared', 'absolute', 'quantile', but is 'cubic'"),
        (lambda: make_loss("quantile", SCALE, 1.0), "quantile must be above 0 and below 1, but is 1.0"),
        (
            lambda: regression_constraint("bias"),
            "kind must be one of 'mean-error', 'absolute-error', 'coverage', but is 'bias'",
        ),
        (
            lambda: build_problem("miss-rate", 2, label=NumberLabel()),
            "task.kind must be one of mean-error, absolute-error, coverage if the label type is .number.",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.fixture(scope="module")
def make_sites():
    """Three sites with different labels, so that no line has zero mean error at all of them."""
    generator = np.random.default_rng(0)
    owner = np.repeat([0, 1, 2], [60, 40, 50])
    x = generator.normal(size=(150, 2)).astype(np.float32)
    y = (
        x @ [1.0, -0.5]
        + np.array([0.0, 1.0, -0.6])[owner]
        + np.array([0.5, 0.2, 1.0])[owner] * generator.normal(size=150)
    )
    return x, y.astype(np.float32), owner


def solve_bounded(make_sites, kind, bound, name=None):
    x, y, owner = make_sites
    problem = build_problem(kind, 2, label=NumberLabel(), loss=name, bound=bound).problem
    assert problem.convex is (None if kind == "coverage" else True)
    clients = ss.ClientData.from_arrays({"x": x, "y": y}, owner)
    return flat.solve(problem, clients, ss.Automatic(tolerance=bound), rounds=3000)


def test_bounded_mean_error_reaches_optimum(make_sites):
    """Compare with SLSQP: the largest mean squared error of a site, with every mean error within 0.85."""
    x, y, owner = make_sites
    result = solve_bounded(make_sites, "mean-error", 0.85)

    def errors(w):
        return [(x[owner == i] @ w[:2] + w[2] - y[owner == i]).astype(float) for i in range(3)]

    constraints = [
        {"type": "ineq", "fun": lambda w: np.concatenate([w[3] - [np.mean(e**2) for e in errors(w)]])},
        {"type": "ineq", "fun": lambda w: 0.85 - np.abs([e.mean() for e in errors(w)])},
    ]
    best = minimize(lambda w: w[3], np.array([0, 0, 0, 5.0]), constraints=constraints, method="SLSQP")
    assert best.success
    unconstrained = minimize(lambda w: max(np.mean(e**2) for e in errors(w)), best.x[:3], method="Nelder-Mead").fun
    assert best.fun > 1.01 * unconstrained  # the bound is active
    assert result.worst_constraint <= 0.85
    assert result.worst_objective == pytest.approx(best.fun, rel=2e-3)
    assert 0 <= result.gap < 0.01


def test_bounded_absolute_error_reaches_optimum(make_sites):
    """Compare with a linear program for the largest mean absolute error of a site."""
    x, y, owner = make_sites
    n = len(y)  # unknowns: weights, intercept, one error a row, and the largest mean
    features = np.hstack([x, np.ones((n, 1))]).astype(float)
    zero = np.zeros((n, 1))
    rows = np.vstack([np.hstack([features, -np.eye(n), zero]), np.hstack([-features, -np.eye(n), zero])])
    means = np.array([[*np.zeros(3), *(owner == i) / (owner == i).sum(), -1.0] for i in range(3)])
    best = linprog(
        [*np.zeros(3 + n), 1.0],
        A_ub=np.vstack([rows, means]),
        b_ub=[*y.astype(float), *-y.astype(float), *np.zeros(3)],
        bounds=[*[(None, None)] * 3, *[(0, None)] * (n + 1)],
    )
    result = solve_bounded(make_sites, "absolute-error", 5.0, "absolute")
    assert result.worst_objective == pytest.approx(best.fun, rel=2e-3)


def test_coverage_is_met_with_small_loss(make_sites):
    """Compare with the best upper limit that is a shifted least-squares line."""
    x, y, owner = make_sites
    result = solve_bounded(make_sites, "coverage", 0.1)
    assert result.worst_constraint <= 0.1
    features = np.hstack([x, np.ones((len(y), 1))])
    line = features @ np.linalg.lstsq(features, y, rcond=None)[0]

    def worst(prediction):
        error = y - prediction
        pinball = np.maximum(0.9 * error, -0.1 * error)
        return max(pinball[owner == i].mean() for i in range(3)), max((error > 0)[owner == i].mean() for i in range(3))

    moved = [worst(line + offset) for offset in np.linspace(0, 4, 401)]
    assert result.worst_objective <= min(f for f, uncovered_share in moved if uncovered_share <= 0.1) + 1e-3
