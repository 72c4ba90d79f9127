"""The compiled engine against the plain NumPy loop: the same draws, the same trajectory, every rule."""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import reference
import softswitch as ss
from benchmarks import flat
from problems import NumpyTwin, client_data, least_squares, record_iterates, regression, softplus_level, two_constraints
from softswitch.oracles.gradient import make_gradient_oracle
from softswitch.oracles.options import Sampling

ROUNDS = 150
ETA = 0.2
TOLERANCE = 0.05
LAM = TOLERANCE / (1 + 1 / 10)


def draws_of(problem, clients, seed, rounds=ROUNDS, **options):
    """The engine's own random choices, handed to the reference."""
    oracle = make_gradient_oracle(problem, clients, Sampling(**{"batch_size": 8, "replace": True} | options))
    key = jax.random.key(seed)
    drawn = jax.jit(jax.vmap(lambda k: oracle.draw(jax.random.fold_in(key, k))))(jnp.arange(rounds))
    return [
        reference.Draws(clients, values, gradients)
        for clients, values, gradients in zip(*(np.asarray(x) for x in drawn[:3]), strict=True)
    ]


@cache
def draws_under(scheme, constraints):
    """Those of a scheme with seed 3: they are the same whatever the rule."""
    constraint = softplus_level if constraints == 1 else two_constraints
    problem = ss.Problem(least_squares, constraint, jnp.zeros(4, dtype=jnp.float64))
    return draws_of(problem, client_data(*regression()), seed=3, **SCHEMES[scheme])


def methods():
    common = {"step_size": ETA, "tolerance": TOLERANCE}
    return {
        "softmax": (ss.SoftmaxSGM(alpha=20.0, **common), lambda: reference.SoftmaxSGM(20.0, LAM)),
        "sharp softmax": (ss.SoftmaxSGM(alpha=6400.0, **common), lambda: reference.SoftmaxSGM(6400.0, LAM)),
        "two alphas": (
            ss.SoftmaxSGM(alpha=5.0, constraint_alpha=50.0, **common),
            lambda: reference.SoftmaxSGM(5.0, LAM, 50.0),
        ),
        "softmax per spread": (
            ss.SoftmaxSGM(alpha=6.0, alpha_scale="spread", **common),
            lambda: reference.SoftmaxSGM(6.0, LAM, per_spread=True),
        ),
        "average": (ss.AverageSGM(**common), lambda: reference.AverageSGM(LAM)),
        "hard": (ss.HardSGM(**common), lambda: reference.HardSGM(LAM)),
        "penalty": (ss.Penalty(penalty=2.5, **common), lambda: reference.Penalty(2.5, TOLERANCE, LAM)),
        "primal-dual": (
            ss.PrimalDual(multiplier=0.5, dual_step_size=0.05, **common),
            lambda: reference.PrimalDual(0.5, 0.05, TOLERANCE, LAM),
        ),
    }


SCHEMES = {
    "full participation, E=1": {},
    "full participation, E=5": {"local_steps": 5},
    "half participation, E=5": {"local_steps": 5, "participation": 0.5},
    "half participation, E=1": {"participation": 0.5},
}


def is_quick(name, scheme, constraints):
    """Return whether a case is not slow: softmax in all ways, and every rule in the most general way."""
    return name == "softmax" or (scheme, constraints) == ("half participation, E=5", 2)


CASES = [
    pytest.param(*case, marks=[] if is_quick(*case) else pytest.mark.slow)
    for case in itertools.product(methods(), SCHEMES, (1, 2))
]


@pytest.mark.parametrize(("name", "scheme", "constraints"), CASES)
def test_engine_follows_the_reference_loop(monkeypatch, x64, name, scheme, constraints):
    data, owner = regression()
    clients = client_data(data, owner)
    constraint = softplus_level if constraints == 1 else two_constraints
    problem = ss.Problem(least_squares, constraint, jnp.zeros(4, dtype=jnp.float64))
    method, make_reference = methods()[name]
    draws = draws_under(scheme, constraints)
    E = SCHEMES[scheme].get("local_steps", 1)
    # A rule that is given no γ has η/E.
    expected = reference.run(NumpyTwin(data, constraints), make_reference(), np.zeros(4), draws, ETA, ETA / E, E)
    options = {"rounds": ROUNDS, "batch_size": 8, "replace": True, "seed": 3}
    iterates, result = record_iterates(monkeypatch, problem, clients, method, **options, **SCHEMES[scheme])

    np.testing.assert_allclose(iterates, expected.iterates, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(result.history.feasible, expected.feasible)
    np.testing.assert_allclose(result.history.criterion, expected.criteria, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.params, expected.average, rtol=1e-9)
    if method.switches:
        assert 20 < sum(expected.feasible) < ROUNDS - 20, "both branches must occur for the comparison to count"


def test_local_step_size_of_its_own_and_projection(monkeypatch, x64):
    data, owner = regression()
    clients = client_data(data, owner)
    problem = ss.Problem(least_squares, softplus_level, jnp.full(4, 0.4, dtype=jnp.float64), ss.Ball(0.9))
    method = ss.SoftmaxSGM(alpha=30.0, step_size=ETA, local_step_size=0.03, tolerance=TOLERANCE)
    draws = draws_of(problem, clients, seed=1, rounds=300, local_steps=5)
    expected = reference.run(
        NumpyTwin(data, 1), reference.SoftmaxSGM(30.0, LAM), np.full(4, 0.4), draws, ETA, 0.03, 5, radius=0.9
    )
    options = {"rounds": 300, "batch_size": 8, "replace": True, "seed": 1, "local_steps": 5}
    iterates, _ = record_iterates(monkeypatch, problem, clients, method, **options)
    np.testing.assert_allclose(iterates, expected.iterates, rtol=1e-9, atol=1e-12)
    assert np.isclose(np.linalg.norm(iterates, axis=1), 0.9).any(), "the projection must have acted"


def test_whole_local_data_of_ragged_clients(monkeypatch, x64):
    data, owner = regression()
    clients = client_data(data, owner)
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(4, dtype=jnp.float64))
    method = ss.SoftmaxSGM(alpha=20.0, step_size=ETA, tolerance=TOLERANCE)
    rows = [np.flatnonzero(owner == i) for i in range(len(clients))]
    whole = reference.Draws(np.arange(len(clients)), rows, _PerStep(rows))
    expected = reference.run(
        NumpyTwin(data, 1), reference.SoftmaxSGM(20.0, LAM), np.zeros(4), [whole] * ROUNDS, ETA, ETA, 1
    )
    iterates, _ = record_iterates(monkeypatch, problem, clients, method, rounds=ROUNDS, batch_size=None)
    np.testing.assert_allclose(iterates, expected.iterates, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "scheme", ["half participation, E=5", pytest.param("full participation, E=1", marks=pytest.mark.slow)]
)
def test_a_batch_larger_than_a_client_is_each_of_its_rows_once(monkeypatch, x64, scheme):
    """Left to themselves, clients of at most eight rows take all of them; the reference is handed each row once."""
    data, owner = regression()
    clients = client_data(data, owner)
    assert (clients.sizes <= 8).any()
    assert (clients.sizes > 8).any()
    problem = ss.Problem(least_squares, two_constraints, jnp.zeros(4, dtype=jnp.float64))
    rows = [np.flatnonzero(owner == i) for i in range(len(clients))]

    def taken(i, drawn):
        return rows[i] if len(rows[i]) <= 8 else drawn

    draws = []
    for told in draws_of(problem, clients, seed=4, replace=None, **SCHEMES[scheme]):
        values = [taken(i, own) for i, own in zip(told.clients, told.value_rows, strict=True)]
        steps = [[taken(i, own) for own in told.gradient_rows[:, j]] for j, i in enumerate(told.clients)]
        draws.append(reference.Draws(told.clients, values, _OfPlace(steps)))
    method, E = ss.SoftmaxSGM(alpha=20.0, step_size=ETA, tolerance=TOLERANCE), SCHEMES[scheme].get("local_steps", 1)
    expected = reference.run(NumpyTwin(data, 2), reference.SoftmaxSGM(20.0, LAM), np.zeros(4), draws, ETA, ETA / E, E)
    options = {"rounds": ROUNDS, "batch_size": 8, "seed": 4, **SCHEMES[scheme]}
    iterates, result = record_iterates(monkeypatch, problem, clients, method, **options)
    np.testing.assert_allclose(iterates, expected.iterates, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(result.history.feasible, expected.feasible)


class _OfPlace:
    """gradient_rows[:, j] where batches differ in size."""

    def __init__(self, steps):
        self.steps = steps

    def __getitem__(self, index):
        return self.steps[index[1]]


class _PerStep:
    """gradient_rows[:, j] for a single step over ragged clients."""

    def __init__(self, rows):
        self.rows = rows

    def __getitem__(self, index):
        return [self.rows[index[1]]]


def test_step_size_schedule_equals_steps_by_hand(x64):
    """f = w, never infeasible: w_K = w_0 − Σ η_k."""
    clients = ss.ClientData.from_arrays({"x": np.zeros(4)}, client=[0, 0, 1, 1])
    problem = ss.Problem(lambda w, b: w + 0 * b["x"].sum(), lambda w, b: 0 * w - 1, jnp.float64(5.0))
    schedule = optax.linear_schedule(1.0, 0.0, 10)
    method = ss.SoftmaxSGM(alpha=1.0, step_size=schedule, tolerance=0.1)
    result = flat.solve(problem, clients, method, rounds=10, batch_size=2)
    # optax computes schedules in float32
    assert float(result.last) == pytest.approx(5.0 - sum(1 - k / 10 for k in range(10)), abs=1e-6)


def test_server_adam_follows_optax(x64):
    """One client, deterministic: the direction is the plain gradient, so the run is optax's own Adam."""
    generator = np.random.default_rng(0)
    data = {"a": generator.normal(size=(20, 3)), "b": generator.normal(size=20)}
    clients = ss.ClientData.from_arrays(data, client=np.zeros(20, int))
    problem = ss.Problem(least_squares, lambda w, b: -1.0 + 0 * w[0], jnp.zeros(3, dtype=jnp.float64))
    method = ss.AverageSGM(step_size=0.05, tolerance=0.1, optimizer=optax.adam)
    result = flat.solve(problem, clients, method, rounds=50, batch_size=None)

    w, optimizer = np.zeros(3), optax.adam(0.05)
    state = optimizer.init(w)
    for _ in range(50):
        gradient = data["a"].T @ (data["a"] @ w - data["b"]) / 20
        updates, state = optimizer.update(gradient, state)
        w = optax.apply_updates(w, updates)
    np.testing.assert_allclose(result.last, w, rtol=1e-10)


@pytest.mark.parametrize(
    "scheme", ["half participation, E=5", pytest.param("full participation, E=1", marks=pytest.mark.slow)]
)
def test_limits_of_alpha_are_rules_of_their_own(monkeypatch, x64, scheme):
    """Whole runs: AverageSGM is α = 0, HardSGM is what large α tends to."""
    clients = client_data(*regression())
    problem = ss.Problem(least_squares, two_constraints, jnp.zeros(4, dtype=jnp.float64))

    def iterates(method):
        return record_iterates(monkeypatch, problem, clients, method, rounds=100, batch_size=8, **SCHEMES[scheme])[0]

    common = {"step_size": ETA, "tolerance": TOLERANCE}
    np.testing.assert_allclose(
        iterates(ss.AverageSGM(**common)), iterates(ss.SoftmaxSGM(alpha=0.0, **common)), rtol=1e-12, atol=1e-14
    )
    hard = iterates(ss.HardSGM(**common))
    far, near = (np.abs(iterates(ss.SoftmaxSGM(alpha=a, **common)) - hard).max() for a in (10.0, 1e8))
    assert near < 1e-9 < far
