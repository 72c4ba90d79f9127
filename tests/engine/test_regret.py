"""Regrets as objectives: analytical values, the optimum by CVXPY, and all entry points."""

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import softswitch as ss
from benchmarks import flat
from softswitch.certification.client_optimum import client_optimum
from softswitch.data.splits import DataSplit
from softswitch.engine.baselines import add_baselines
from softswitch.methods import QFedAvg
from softswitch.oracles.client_shifts import CLIENT_OPTIMUM, to_regret_task
from softswitch.results.folder import open_run, write_result

N, ROWS = 4, 30
RULE = ss.SoftmaxSGM(alpha=50.0, step_size=0.02, tolerance=0.05)


def squares(w, b):
    return jnp.average((b["x"] @ w - b["y"]) ** 2, weights=b["weight"])


def level(w, b):
    return jnp.average(b["x"] @ w, weights=b["weight"]) + w.sum() - 1.0


@pytest.fixture(scope="module")
def rows():
    """Three similar clients, and one whose labels are mostly noise."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(N, ROWS, 2))
    coefficients = np.array([[1.0, 0.2], [1.2, 0.4], [0.8, 0.3], [-1.0, 1.0]])
    noise = np.array([0.1, 0.1, 0.1, 3.0])[:, None]
    return x, (x * coefficients[:, None]).sum(axis=2) + noise * generator.normal(size=(N, ROWS))


@pytest.fixture
def case(x64, rows):
    x, y = rows
    data = {"x": x.reshape(-1, 2), "y": y.ravel()}
    clients = ss.ClientData.from_arrays(data, client=np.repeat(list("abcd"), ROWS))
    return ss.Problem(squares, level, jnp.zeros(2), convex=True), clients


@pytest.fixture(scope="module")
def client_optima(rows):
    """f_i* by least squares."""
    return np.array([np.linalg.lstsq(x, y)[1][0] / ROWS for x, y in zip(*rows, strict=True)])


def solve_minimax(rows, optima, tolerance):
    x, y = rows
    w, t = cp.Variable(2), cp.Variable()
    constraints = [cp.sum_squares(x[i] @ w - y[i]) / ROWS - optima[i] <= t for i in range(N)]
    constraints += [x[i].mean(axis=0) @ w + cp.sum(w) - 1.0 <= tolerance for i in range(N)]
    cp.Problem(cp.Minimize(t), constraints).solve()
    return w.value, t.value


def test_client_optimum_is_least_squares(case, client_optima):
    np.testing.assert_allclose(client_optimum(*case), client_optima, rtol=1e-9)


def test_client_optimum_in_ball_without_weights(x64):
    """The minimum of ‖w − x‖² over the unit ball with x = (3, 4) is at x/5, at distance 4."""
    clients = ss.ClientData.from_list([{"x": np.array([[3.0, 4.0]])}, {"x": np.array([[0.3, 0.4]])}])
    problem = ss.Problem(
        lambda w, b: ((w - b["x"]) ** 2).sum(axis=1).mean(), lambda w, b: w[0] - 9.0, jnp.array([0.5, 0.1]), ss.Ball(1)
    )
    np.testing.assert_allclose(client_optimum(problem, clients), [16.0, 0.0], atol=1e-6)
    regret = flat.solve(problem, clients, RULE, rounds=3, batch_size=None, regret=True)
    reference = flat.solve(problem, clients, RULE, rounds=3, batch_size=None)
    np.testing.assert_allclose(regret.history.objective[0], reference.history.objective[0] - 16.0, rtol=1e-6)


@pytest.mark.parametrize(
    "domain",
    [ss.Box(-0.5, 0.5), ss.Ball(0.7), *(pytest.param(one, marks=pytest.mark.slow) for one in (ss.Ball(50.0), None))],
)
def test_client_optimum_in_domain_matches_solver(domain):
    """Single precision, a start at 0, where projection has no gradient; optima inside, outside and on an edge."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(6, 20, 5)).astype(np.float32)
    y = ((x @ generator.normal(size=5)) * [[0.1], [0.3], [1.0], [3.0], [0.01], [10.0]]).astype(np.float32)
    y += generator.normal(size=y.shape).astype(np.float32)
    clients = ss.ClientData.from_list([{"x": a, "y": b} for a, b in zip(x, y, strict=True)])
    optima = client_optimum(ss.Problem(squares, level, jnp.zeros(5), domain), clients)
    for optimum_value, a, b in zip(optima, x, y, strict=True):
        w = cp.Variable(5)
        constraints = [] if domain is None else [cp.norm(w) <= domain.radius] if isinstance(domain, ss.Ball) else []
        constraints += [w >= -0.5, w <= 0.5] if isinstance(domain, ss.Box) else []
        best = cp.Problem(cp.Minimize(cp.sum_squares(a @ w - b) / 20), constraints).solve()
        assert optimum_value == pytest.approx(best, rel=1e-5, abs=1e-6)


def test_client_optimum_of_unbounded_objective_in_domain(x64):
    falls = ss.Problem(lambda w, b: jnp.average(b["x"] @ w, weights=b["weight"]), level, jnp.zeros(2), ss.Ball(2.0))
    clients = ss.ClientData.from_list([{"x": np.array([[3.0, 4.0]])}])
    np.testing.assert_allclose(client_optimum(falls, clients), [-10.0], rtol=1e-6)

    class Half:
        def project(self, params):
            return jnp.maximum(params, 0)

        def diameter(self, params):
            return 1.0

    with pytest.raises(ValueError, match="domain is Half"):
        client_optimum(ss.Problem(squares, level, jnp.zeros(2), Half()), clients)


def test_result_is_minimax_regret_optimum(case, rows, client_optima):
    """Without regret the noisy client dominates. With regret the other clients improve."""
    problem, clients = case
    standard, regret = (
        flat.solve(problem, clients, ss.Automatic(tolerance=0.05), regret=setting) for setting in (None, True)
    )
    for result, optima in ((standard, 0 * client_optima), (regret, client_optima)):
        w, best = solve_minimax(rows, optima, 0.05)
        assert result.worst_objective == pytest.approx(best, rel=2e-3)
        np.testing.assert_allclose(result.params, w, atol=0.02)
        assert result.lower_bound.certified
        assert result.lower_bound.value == pytest.approx(best, rel=2e-3)
    np.testing.assert_allclose(regret.client_optimum, client_optima, rtol=1e-9)
    np.testing.assert_allclose(regret.client_loss, regret.client_objective + client_optima)
    assert regret.client_loss[:3].max() < 0.7 * standard.client_loss[:3].max(), "the other clients must improve"
    assert regret.worst_loss == pytest.approx(regret.client_loss.max())
    assert "f is largest at client 'd'" in regret.explain()
    assert "worst regret" in repr(regret)
    with_baselines = add_baselines(regret, problem, clients)
    unconstrained = {baseline.name: baseline for baseline in with_baselines.baselines}["no constraint, worst client"]
    assert unconstrained.objective == pytest.approx(solve_minimax(rows, client_optima, 1e3)[1], rel=2e-2), (
        "baselines report regrets too"
    )


def test_given_optima_shift_reports_only(case):
    """Each client's constant is subtracted from f in reports, in evaluations and on held-out data."""
    problem, clients = case
    options = {"rounds": 20, "batch_size": 8, "seed": 1, "held_out": clients, "eval_every": 5, "record_clients": True}
    reference = flat.solve(problem, clients, RULE, **options)
    constant_shift = flat.solve(problem, clients, RULE, regret=[0.7] * N, **options)
    np.testing.assert_allclose(
        constant_shift.params, reference.params, rtol=1e-9, err_msg="an equal shift of all clients changes no weight"
    )
    for actual, unshifted in (
        (constant_shift.history.full, reference.history.full),
        (constant_shift.history.held_out, reference.history.held_out),
    ):
        np.testing.assert_allclose(actual.objective, unshifted.objective - 0.7, rtol=1e-9)
    shifts = np.array([0.1, 0.0, -0.2, 5.0])
    client_shifts = flat.solve(problem, clients, RULE, regret=dict(zip("abcd", shifts, strict=True)), **options)
    first = client_shifts.history.per_client
    expected = reference.history.per_client.objective[0] - shifts[first.clients[0]]
    np.testing.assert_allclose(first.objective[0], expected, rtol=1e-9)
    assert not np.allclose(client_shifts.params, reference.params)
    disabled = flat.solve(problem, clients, RULE, regret=False, **options)
    np.testing.assert_array_equal(disabled.params, reference.params)
    assert disabled.client_optimum is None


def test_batch_without_stratum_uses_client_optimum(x64):
    """Client 0 has no row of the last stratum, client 2 none of the first: each must use its own optimum."""
    data = {"x": np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), "s": np.array([0, 0, 0, 1, 1, 1])}
    clients = ss.ClientData.from_arrays(data, client=[0, 0, 1, 1, 2, 2], strata="s")
    problem = ss.Problem(
        lambda w, b: jnp.average(w + 0 * b["x"], weights=b["weight"]), lambda w, b: w - 9.0, jnp.float64(1.0)
    )
    options = {"rounds": 1, "batch_size": 4, "regret": [10.0, 20.0, 30.0], "record_clients": True}
    for replace in (True, None):
        per_client = flat.solve(problem, clients, RULE, replace=replace, **options).history.per_client
        np.testing.assert_allclose(per_client.objective[0][np.argsort(per_client.clients[0])], [-9.0, -19.0, -29.0])


@pytest.mark.parametrize(
    "options",
    [
        {"memory": ss.Memory(corrected=True), "batch_size": 8, "participation": 0.5},
        pytest.param({"devices": 1, "batch_size": None}, marks=pytest.mark.slow),
    ],
    ids=["a corrected memory", "devices"],
)
def test_regret_with_other_options(case, client_optima, options):
    problem, clients = case
    result = flat.solve(problem, clients, RULE, rounds=60, regret=client_optima, seed=2, **options)
    objective, _ = ss.evaluate(problem, clients, result.params)
    np.testing.assert_allclose(result.client_loss, objective, rtol=1e-9)


def test_flower_and_sweep_reproduce_run(case, client_optima):
    problem, clients = case
    options = {"rounds": 25, "batch_size": None}
    local = flat.solve(problem, clients, RULE, regret=True, **options)
    flower = flat.solve(problem, clients, RULE, regret=True, engine="grid", **options)
    np.testing.assert_allclose(flower.client_objective, local.client_objective, rtol=1e-8)
    np.testing.assert_allclose(flower.client_loss, local.client_loss, rtol=1e-8)
    task = ss.with_regret(problem, clients)
    runs = flat.sweep(task.problem, task.clients, [RULE], seeds=1, **options)
    (result,) = next(iter(runs))[1]
    np.testing.assert_array_equal(result.params, local.params)
    np.testing.assert_allclose(result.client_optimum, client_optima, rtol=1e-9)


def test_regret_run_can_be_saved_and_resumed(case, tmp_path):
    problem, clients = case
    options = {"batch_size": 8, "regret": True}
    uninterrupted = flat.solve(problem, clients, RULE, rounds=40, **options)
    write_result(tmp_path / "run", uninterrupted)
    np.testing.assert_array_equal(open_run(tmp_path / "run").clients["objective"], uninterrupted.client_loss)
    checkpoints = ss.Checkpoints(tmp_path / "kept", every=0)
    flat.solve(problem, clients, RULE, rounds=20, checkpoints=checkpoints, **options)
    np.testing.assert_array_equal(
        flat.solve(problem, clients, RULE, rounds=40, checkpoints=checkpoints, **options).params, uninterrupted.params
    )
    with pytest.raises(ValueError, match="differs"):
        flat.solve(
            problem, clients, RULE, rounds=40, checkpoints=checkpoints, batch_size=8, regret=[0.0, 0.0, 0.0, 1.0]
        )


def test_certified_models_are_selected_by_regret(case, client_optima):
    problem, clients = case
    run = flat.solve_certified(
        problem, DataSplit(clients, clients, clients), RULE, rounds=200, batch_size=None, regret=True
    )
    np.testing.assert_allclose(run.result.client_optimum, client_optima, rtol=1e-9)
    objective, _ = ss.evaluate(problem, clients, run.result.params)
    np.testing.assert_allclose(run.result.client_loss, objective, rtol=1e-9)


def test_pytorch_module(x64, case, rows, client_optima):
    problem, clients = case
    module = torch.nn.Linear(2, 1, bias=False).double()
    torch.nn.init.zeros_(module.weight)
    sets = {name: TensorDataset(torch.tensor(x), torch.tensor(y)) for name, x, y in zip("abcd", *rows, strict=True)}
    functions = (
        lambda module, b: ((module(b[0])[:, 0] - b[1]) ** 2).mean(),
        lambda module, b: module(b[0]).mean() + module.weight.sum() - 1.0,
    )
    options = {"rounds": 25, "batch_size": None, "regret": True}
    torch_result = flat.solve_torch(module, *functions, sets, RULE, **options)
    jax_result = flat.solve(problem, clients, RULE, **options)
    np.testing.assert_allclose(torch_result.client_optimum, client_optima, rtol=1e-9)
    np.testing.assert_allclose(torch_result.params["weight"][0], jax_result.params, rtol=1e-8)
    np.testing.assert_allclose(torch_result.client_loss, jax_result.client_loss, rtol=1e-8)
    torch.nn.init.zeros_(module.weight)
    task = ss.with_regret(ss.Problem(*functions, module), ss.TorchData(sets))
    sampling = ss.Sampling(batch_size=None)
    ((_, (sweep_result,)),) = ss.sweep(task.problem, task.clients, [RULE], seeds=1, rounds=25, sampling=sampling)
    np.testing.assert_allclose(sweep_result.client_optimum, client_optima, rtol=1e-9)
    np.testing.assert_allclose(sweep_result.client_loss, jax_result.client_loss, rtol=1e-8)


def test_clients_without_objective_have_no_regret(x64):
    clients = ss.ClientData.from_list([{"y": np.array([0.0, 1.0])}, {"y": np.array([0.0, 0.0])}])
    problem = ss.Problem(
        lambda w, b: ss.mean_over((w - b["y"]) ** 2 + 2, b["weight"] * (b["y"] == 1)),
        lambda w, b: w - 9.0,
        jnp.float64(0),
    )
    np.testing.assert_allclose(client_optimum(problem, clients), [2.0, -np.inf])
    result = flat.solve(problem, clients, RULE, rounds=5, batch_size=None, regret=True)
    assert result.client_objective[1] == result.client_loss[1] == -np.inf
    repeated = flat.solve(problem, clients, RULE, rounds=5, batch_size=None, regret=client_optimum(problem, clients))
    np.testing.assert_array_equal(repeated.client_loss, result.client_loss)
    assert result.client_loss[0] == pytest.approx(2.0 + result.client_objective[0])


def test_random_objective_receives_key(case):
    problem, clients = case
    keys = []

    def noisy(w, b, key=None):
        keys.append(key is not None)
        return squares(w, b)

    with_key = ss.Problem(noisy, level, problem.start)
    result = flat.solve(with_key, clients, RULE, rounds=5, batch_size=None, regret=[1.0] * N)
    reference = flat.solve(problem, clients, RULE, rounds=5, batch_size=None)
    np.testing.assert_allclose(result.client_loss, reference.client_loss, rtol=1e-9)
    assert any(keys)
    task = to_regret_task(problem, clients, np.ones(N))
    assert to_regret_task(task.problem, task.clients, np.ones(N)).problem is task.problem, (
        "the optimum must not be subtracted twice"
    )


@pytest.mark.parametrize(
    ("regret", "message"),
    [
        ([1.0], "one number for each of 4 clients"),
        ([1.0, 2.0, 3.0, np.nan], "one number"),
        ("yes", "optimum must be one number"),
        ({"a": 1.0}, "optimum must be one number .*dict by name.*but is {'a': 1.0}"),
        (dict.fromkeys("abcde", 1.0), "optimum must be one number .*'e': 1.0"),
    ],
)
def test_invalid_optima_are_rejected(case, regret, message):
    with pytest.raises(ValueError, match=message):
        flat.solve(*case, RULE, rounds=1, regret=regret)


def test_unsupported_options_are_rejected(case):
    problem, clients = case
    with pytest.raises(ValueError, match="with privacy"):
        flat.solve(problem, clients, RULE, rounds=1, regret=True, privacy=ss.RecordPrivacy(epsilon=3.0))
    falls = ss.Problem(lambda w, b: squares(w, b) * 0 + w[0], level, problem.start)
    with pytest.raises(ValueError, match="with a minimum"):
        client_optimum(falls, clients)
    reserved = ss.ClientData.from_arrays(
        {CLIENT_OPTIMUM: np.zeros(2), "x": np.zeros((2, 2)), "y": np.zeros(2)}, client=[0, 1]
    )
    with pytest.raises(ValueError, match="rename it"):
        flat.solve(problem, reserved, RULE, rounds=1, regret=[0.0, 0.0])


def test_held_out_clients_without_optimum_are_rejected(case):
    problem, clients = case
    unknown_clients = ss.ClientData.from_list([{"x": np.ones((3, 2)), "y": np.ones(3)}])
    with pytest.raises(ValueError, match="held_out must contain only training clients"):
        flat.solve(problem, clients, RULE, rounds=2, held_out=unknown_clients, regret=True)


def test_negative_batch_regrets_with_power(case):
    """f of a batch is often below f*: a negative number to the power of 1.5 would be NaN."""
    method = QFedAvg(power=1.5, step_size=0.05, tolerance=0.05)
    result = flat.solve(*case, method, rounds=20, batch_size=4, regret=True, record_clients=True)
    assert (result.history.per_client.objective < 0).any()
    assert result.status.code != "diverged"
