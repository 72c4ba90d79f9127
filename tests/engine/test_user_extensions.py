"""User extensions: domains, random functions, models of other libraries, optimizers and warm starts."""

import functools
from dataclasses import dataclass, replace

import equinox
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import softswitch as ss
from benchmarks import flat
from problems import client_data, least_squares, mean, regression, softplus_level
from softswitch.problem.domains import Domain
from softswitch.problem.parameters import takes_key
from softswitch.results.folder import open_run, write_result

RULE = ss.SoftmaxSGM(alpha=20.0, step_size=0.1, tolerance=0.1)
PROBLEM = ss.Problem(least_squares, softplus_level, jnp.zeros(4))


@pytest.fixture(scope="module")
def clients():
    return client_data(*regression())


def solve(clients, method=RULE, problem=PROBLEM, **options):
    return flat.solve(problem, clients, method, **{"rounds": 60, "batch_size": 8, "eval_every": 0} | options)


class Halfspace:
    """A user-defined class that is not a pytree and not hashable by value."""

    def __init__(self, normal, offset):
        self.normal, self.offset = np.asarray(normal, np.float32), offset

    def project(self, w):
        excess = jnp.maximum(self.normal @ w - self.offset, 0)
        return w - excess * self.normal / (self.normal @ self.normal)


@dataclass  # not frozen, so not hashable
class Ceiling:
    most: float

    def project(self, w):
        return jnp.minimum(w, self.most)


def test_custom_domain_needs_project_only(clients):
    def last(domain):
        unbounded = ss.Problem(least_squares, lambda w, b: mean(0 * b["b"], b) - 1.0, jnp.zeros(4), domain)
        return np.asarray(solve(clients, problem=unbounded).last)

    inside = Halfspace([1.0, 1.0, 0.0, 0.0], 0.2)
    assert isinstance(inside, Domain)
    assert last(None)[:2].sum() > 1
    assert last(inside)[:2].sum() == pytest.approx(0.2, abs=1e-5)
    another = Halfspace([1.0, 1.0, 0.0, 0.0], 0.1)
    assert last(another)[:2].sum() == pytest.approx(0.1, abs=1e-5), "instances of a class are distinct domains"
    np.testing.assert_array_equal(last(ss.Box(-9.0, 0.5)), last(Ceiling(0.5)))


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (3.0, "anything with project"),
        (Halfspace, "anything with project"),
        (Halfspace([1.0, 0, 0, 0], -1.0), "start must lie in the domain"),
        (type("Shrinks", (), {"project": lambda self, w: w[:2]})(), "of the start's shapes"),
        (type("NumPys", (), {"project": lambda self, w: np.clip(np.asarray(w), -1, 1)})(), "must compute in JAX"),
    ],
)
def test_invalid_domain_is_rejected(domain, message):
    with pytest.raises((TypeError, ValueError), match=message):
        ss.Problem(least_squares, softplus_level, jnp.zeros(4), domain)


def dropout(w, batch, key=None):
    mask = jnp.ones(4) if key is None else 2 * jax.random.bernoulli(key, 0.5, (4,))
    return mean(0.5 * (batch["a"] @ (mask * w) - batch["b"]) ** 2, batch)


@pytest.mark.parametrize("local_steps", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_functions_can_take_random_key(clients, local_steps):
    """Every gradient receives a new key; reports and evaluations receive none."""
    with_dropout = ss.Problem(dropout, softplus_level, jnp.zeros(4))
    options = {"local_steps": local_steps, "batch_size": None, "rounds": 30}
    result, repeated = (solve(clients, problem=with_dropout, **options) for _ in range(2))
    reference = solve(clients, **options)
    np.testing.assert_array_equal(result.params, repeated.params)
    assert not np.allclose(result.last, reference.last)
    np.testing.assert_array_equal(result.history.objective[:1], reference.history.objective[:1])
    f, _ = ss.evaluate(with_dropout, clients, result.params)
    np.testing.assert_array_equal(f, ss.evaluate(PROBLEM, clients, result.params)[0])
    np.testing.assert_array_equal(result.client_objective, f)


def test_keys_differ_by_client_round_and_local_step():
    """The gradient is a random number drawn from the key, so directions are sums of different numbers."""
    recorded = []

    def number(w, batch, key=None):
        return w * 0.0 if key is None else w * jax.random.uniform(key)

    clients = ss.ClientData.from_arrays({"x": np.zeros(4)}, client=np.arange(4))
    problem = ss.Problem(number, lambda w, batch: -1.0 + 0 * w, jnp.float32(0.0))
    method = ss.AverageSGM(step_size=1.0, tolerance=0.1)
    result = flat.solve(
        problem, clients, method, rounds=300, local_steps=3, batch_size=None, callbacks=[lambda c: recorded.append(c)]
    )
    # 300 rounds of 4 clients and 3 steps: the sum of means of 12 uniform numbers, 300·(1/2 ± √(1/12)/√12 /√300).
    assert float(result.last) == pytest.approx(-150, abs=4 * 300 * np.sqrt(1 / 12 / 12 / 300))
    three_steps = flat.solve(problem, clients, method, rounds=1, local_steps=3, batch_size=None)
    one_step = flat.solve(problem, clients, method, rounds=1, local_steps=1, batch_size=None)
    assert 0.2 < -float(three_steps.last) < 0.8
    assert float(three_steps.last) != float(one_step.last)


def times(w, batch, key=3):
    return key * least_squares(w, batch)


def wrap(function):
    @functools.wraps(function)
    def inner(*arguments):
        return function(*arguments)

    return inner


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (dropout, True),
        (lambda w, batch, *, key: w.sum(), True),
        (lambda w, key: w.sum(), False),
        (times, False),
        (functools.partial(times, key=5), False),
        (functools.partial(dropout, key=None), True),
        (wrap(dropout), False),
        (lambda w, batch, **rest: w.sum(), False),
        (max, False),
    ],
)
def test_key_argument_detection(function, expected):
    assert takes_key(function) is expected


def test_unrelated_key_argument_is_ignored(clients):
    expected = ss.evaluate(PROBLEM, clients, jnp.ones(4))[0]
    for function, factor in ((times, 3), (functools.partial(times, key=5), 5)):
        objective = ss.evaluate(ss.Problem(function, softplus_level, jnp.zeros(4)), clients, jnp.ones(4))[0]
        np.testing.assert_allclose(objective, factor * expected, rtol=1e-6)


def test_pooled_constraint_can_take_key(clients):
    def statistics(w, batch, key=None):
        shift = 0.0 if key is None else jax.random.uniform(key)
        return jnp.stack([(batch["weight"] * (batch["c"] @ w + shift)).sum(), batch["weight"].sum()])

    constraint = ss.PooledConstraint(statistics, lambda sums: sums[0] / sums[1] - 0.1)
    result = solve(clients, problem=ss.Problem(least_squares, constraint, jnp.zeros(4)))
    assert np.isfinite(result.worst_constraint)


@pytest.mark.slow
def test_random_key_over_flower():
    pytest.importorskip("flwr")
    clients = client_data(*regression(clients=3))
    with_dropout = ss.Problem(dropout, softplus_level, jnp.zeros(4))
    result = flat.solve(with_dropout, clients, RULE, rounds=4, batch_size=None, engine="grid")
    reference = flat.solve(PROBLEM, clients, RULE, rounds=4, batch_size=None, engine="grid")
    assert not np.allclose(result.last, reference.last)


def test_equinox_model_as_params(clients, tmp_path):
    model = equinox.nn.MLP(4, "scalar", 8, 1, key=jax.random.key(0))
    start, static = equinox.partition(model, equinox.is_inexact_array)

    def loss(params, batch):
        predicted = jax.vmap(equinox.combine(params, static))(batch["a"])
        return mean(0.5 * (predicted - batch["b"]) ** 2, batch)

    def size(params, batch):
        return sum((leaf**2).mean() for leaf in jax.tree.leaves(params)) - 0.5 + 0 * batch["weight"].sum()

    problem = ss.Problem(loss, size, start)
    initial_objective = ss.evaluate(problem, clients, start)[0].max()
    result = solve(clients, problem=problem, method=ss.SoftmaxSGM(alpha=5.0, step_size=0.05, tolerance=0.1), rounds=200)
    assert result.worst_objective < 0.7 * initial_objective
    trained = equinox.combine(result.params, static)
    assert jnp.shape(trained(jnp.ones(4))) == ()
    write_result(tmp_path, result)
    loaded = open_run(tmp_path).restore_params(start)
    assert equinox.tree_equal(jax.tree.map(jnp.asarray, loaded), result.params)


@pytest.mark.slow
def test_flax_model_as_params(clients):
    class Network(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, x, *, train):
            x = flax.linen.relu(flax.linen.Dense(8)(x))
            return flax.linen.Dense(1)(flax.linen.Dropout(0.1, deterministic=not train)(x))[:, 0]

    network = Network()
    start = network.init(jax.random.key(0), jnp.zeros((1, 4)), train=False)

    def loss(params, batch, key=None):
        drops = None if key is None else {"dropout": key}
        predicted = network.apply(params, batch["a"], train=key is not None, rngs=drops)
        return mean(0.5 * (predicted - batch["b"]) ** 2, batch)

    problem = ss.Problem(loss, lambda params, batch: mean(0 * batch["b"], batch) - 1.0, start)
    initial_objective = ss.evaluate(problem, clients, start)[0].max()
    result = solve(clients, problem=problem, method=ss.SoftmaxSGM(alpha=5.0, step_size=0.05, tolerance=0.1), rounds=200)
    assert result.worst_objective < 0.7 * initial_objective


def test_optimizer_with_value_argument(clients):
    """A Polyak step descends to value 0, here on the constraint from an infeasible start."""

    def polyak(step_size):
        return optax.polyak_sgd(max_learning_rate=1.0, scaling=step_size)

    two_clients = ss.ClientData.from_arrays({"sign": np.array([1.0, -1.0])}, client=["up", "down"])
    problem = ss.Problem(lambda w, b: w**2, lambda w, b: 3 * w - 1 + 0 * b["sign"][0], jnp.float32(7.0))
    method = ss.SoftmaxSGM(alpha=1.0, step_size=1.0, tolerance=0.5, threshold=0.5, optimizer=polyak)
    result = flat.solve(problem, two_clients, method, rounds=1, batch_size=None)
    # g − λ = 3·7 − 1 − 0.5 = 19.5 and u = 3: one step of 19.5/9 along 3 lands at g = λ, w = 0.5; but at most 1·3.
    assert float(result.last) == pytest.approx(7.0 - min(19.5 / 9, 1.0) * 3)
    near_problem = ss.Problem(problem.objective, problem.constraint, jnp.float32(1.0))
    assert float(flat.solve(near_problem, two_clients, method, rounds=1, batch_size=None).last) == pytest.approx(0.5)

    def patient(step_size):
        return optax.chain(optax.sgd(step_size), optax.contrib.reduce_on_plateau(patience=2))

    assert np.isfinite(
        solve(clients, method=ss.SoftmaxSGM(alpha=5.0, step_size=0.1, tolerance=1, optimizer=patient)).last
    ).all()


def test_line_search_optimizer_is_rejected(clients):
    def searching(step_size):
        return optax.chain(optax.sgd(step_size), optax.scale_by_backtracking_linesearch(5))

    method = ss.SoftmaxSGM(alpha=1.0, step_size=0.1, tolerance=0.1, optimizer=searching)
    with pytest.raises(ValueError, match="optimizer must need only a direction, the parameters and a value"):
        solve(clients, method=method)


@pytest.mark.parametrize("answer", [True, 1, "enough", np.True_, [0]])
def test_true_callback_value_stops_run(clients, answer):
    result = solve(clients, rounds=600, callbacks=[lambda chunk: answer])
    assert result.status.code is ss.StatusCode.STOPPED
    assert len(result.history) == 250


@pytest.mark.parametrize("answer", [None, False, 0, "", ()])
def test_false_callback_value_does_not_stop_run(clients, answer):
    assert len(solve(clients, rounds=300, callbacks=[lambda chunk: answer]).history) == 300


def test_half_precision_params_are_rejected():
    """In bfloat16 a step of 1e-3 from 1 is lost in rounding, so w would not change."""
    for dtype in (jnp.bfloat16, jnp.float16):
        with pytest.raises(TypeError, match=f"start must be float32 or float64, but has dtype {jnp.dtype(dtype).name}"):
            ss.Problem(least_squares, softplus_level, jnp.ones(4, dtype))
    with pytest.raises(TypeError, match=r"start\['w'\] must be float32"):
        ss.Problem(least_squares, softplus_level, {"w": jnp.ones(4, jnp.bfloat16)})


ADAM = ss.SoftmaxSGM(alpha=20.0, step_size=0.01, tolerance=0.1, optimizer=optax.adam)


def test_warm_start_keeps_optimizer_and_average(clients):
    """With full batches and no schedule, 40 rounds and 40 rounds from a warm start equal one run of 80."""
    options = {"batch_size": None, "rounds": 40}
    first = solve(clients, method=ADAM, **options)
    uninterrupted = solve(clients, method=ADAM, batch_size=None, rounds=80)
    warm = solve(clients, method=ADAM, warm_start=first, **options)
    np.testing.assert_array_equal(warm.last, uninterrupted.last)
    np.testing.assert_array_equal(warm.params, uninterrupted.params)
    cold = solve(clients, method=ADAM, problem=replace(PROBLEM, start=first.last), **options)
    assert not np.array_equal(cold.last, uninterrupted.last), "a cold start resets the moments"


def test_invalid_warm_start_is_rejected(clients):
    first = solve(clients, rounds=5)
    with pytest.raises(TypeError, match="warm_start must be a Result"):
        solve(clients, warm_start=first.params)
    with pytest.raises(ValueError, match="warm_start must come from a run with the same class of method and optimizer"):
        solve(clients, method=ADAM, warm_start=first)
    other_problem = ss.Problem(
        lambda w, b: w["w"][0] ** 2 * mean(b["b"], b), lambda w, b: -1.0 + 0 * w["w"][0], {"w": jnp.zeros(2)}
    )
    with pytest.raises(ValueError, match="parameters of the problem's structure, shapes and dtypes"):
        solve(clients, problem=other_problem, warm_start=first)
    small = ss.Problem(least_squares, softplus_level, jnp.zeros(4), ss.Ball(1e-3))
    with pytest.raises(ValueError, match="must lie in the domain"):
        solve(clients, problem=small, warm_start=first)


def test_warm_start_selection_message(clients, tmp_path):
    first = solve(clients)
    averaged_rounds = int(first.state.average.rounds)
    warm = solve(clients, warm_start=first, rounds=10)
    joined = int(warm.state.average.rounds)
    assert warm.selected == f"mean of the {joined} feasible iterates of 10 rounds and of the previous run"
    assert joined > averaged_rounds
    infeasible_problem = ss.Problem(least_squares, lambda w, b: softplus_level(w, b) + 9, jnp.zeros(4))
    blocked = solve(clients, problem=infeasible_problem, warm_start=first, rounds=10)
    assert blocked.selected.startswith("iterate with the smallest criterion"), (
        "the average of another problem must not be used"
    )
    options = {"warm_start": first, "average_last": 0.5, "batch_size": None}
    solve(clients, rounds=10, checkpoints=ss.Checkpoints(tmp_path), **options)
    longer = solve(clients, rounds=40, checkpoints=ss.Checkpoints(tmp_path), **options)
    np.testing.assert_array_equal(longer.params, solve(clients, rounds=40, **options).params)


@pytest.mark.slow
def test_custom_domain_over_flower_receives_params():
    class Nested:
        def project(self, params):
            return {"inner": [jnp.minimum(params["inner"][0], 0.5)]}

    clients = client_data(*regression(clients=3))
    problem = ss.Problem(
        lambda w, b: least_squares(w["inner"][0], b),
        lambda w, b: mean(0 * b["b"], b) - 1.0,
        {"inner": [jnp.zeros(4)]},
        Nested(),
    )
    options = {"rounds": 12, "batch_size": None, "eval_every": 0}
    compiled, grid = (flat.solve(problem, clients, RULE, engine=engine, **options) for engine in ("compiled", "grid"))
    np.testing.assert_allclose(compiled.last["inner"][0], grid.last["inner"][0], atol=1e-6)
    assert float(compiled.last["inner"][0].max()) == 0.5
    assert grid.status.client in clients.names


def test_method_with_array_setting(clients, tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Weighted(ss.SoftmaxSGM):
        prices: jax.Array

    methods = [Weighted(alpha=20.0, step_size=0.1, tolerance=0.1, prices=jnp.arange(3.0) + i) for i in range(2)]
    assert "prices" in str(methods[0])
    solve(clients, method=methods[0], checkpoints=ss.Checkpoints(tmp_path))
    assert len(flat.sweep(PROBLEM, clients, methods, seeds=1, rounds=10, eval_every=0).labels) == 2


def test_invalid_optimizer_is_rejected(clients):
    with pytest.raises(TypeError, match="to an optax transformation, but returns 5"):
        solve(clients, method=ss.SoftmaxSGM(alpha=1.0, step_size=0.1, tolerance=0.1, optimizer=lambda step: 5))


def test_sweep_has_selected_iterate(clients):
    runs = flat.sweep(PROBLEM, clients, [RULE], seeds=2, rounds=60, answer="last", eval_every=0)
    for result in runs.results[0]:
        np.testing.assert_array_equal(result.params, result.last)
        assert result.selected.startswith("last iterate")
    with pytest.raises(ValueError, match="iterate must be one of"):
        flat.sweep(PROBLEM, clients, [RULE], answer="first")
