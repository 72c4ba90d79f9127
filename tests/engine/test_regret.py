"""Regrets in place of objectives: hand values, CVXPY's optimum, and every way to run."""

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
from softswitch.oracles.regret import CLIENT_OPTIMUM, to_regret_task
from softswitch.results.folder import open_run, write_result

N, ROWS = 4, 30
RULE = ss.SoftmaxSGM(alpha=50.0, step_size=0.02, tolerance=0.05)


def squares(w, b):
    return jnp.average((b["x"] @ w - b["y"]) ** 2, weights=b["weight"])


def level(w, b):
    return jnp.average(b["x"] @ w, weights=b["weight"]) + w.sum() - 1.0


@pytest.fixture(scope="module")
def rows():
    """Three clients who agree, nearly, and one whose labels are mostly noise."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(N, ROWS, 2))
    true = np.array([[1.0, 0.2], [1.2, 0.4], [0.8, 0.3], [-1.0, 1.0]])
    noise = np.array([0.1, 0.1, 0.1, 3.0])[:, None]
    return x, (x * true[:, None]).sum(axis=2) + noise * generator.normal(size=(N, ROWS))


@pytest.fixture
def case(x64, rows):
    x, y = rows
    data = {"x": x.reshape(-1, 2), "y": y.ravel()}
    clients = ss.ClientData.from_arrays(data, client=np.repeat(list("abcd"), ROWS))
    return ss.Problem(squares, level, jnp.zeros(2), convex=True), clients


@pytest.fixture(scope="module")
def least(rows):
    """f_i* by least squares."""
    return np.array([np.linalg.lstsq(x, y)[1][0] / ROWS for x, y in zip(*rows, strict=True)])


def optimum(rows, less, tolerance):
    x, y = rows
    w, t = cp.Variable(2), cp.Variable()
    within = [cp.sum_squares(x[i] @ w - y[i]) / ROWS - less[i] <= t for i in range(N)]
    within += [x[i].mean(axis=0) @ w + cp.sum(w) - 1.0 <= tolerance for i in range(N)]
    cp.Problem(cp.Minimize(t), within).solve()
    return w.value, t.value


def test_client_optimum_is_least_squares(case, least):
    np.testing.assert_allclose(client_optimum(*case), least, rtol=1e-9)


def test_client_optimum_within_a_domain_and_of_functions_that_read_no_weights(x64):
    """Of ‖w − x‖² over the ball of radius 1 with x = (3, 4): the nearest point is x/5, at distance 4."""
    near = ss.ClientData.from_list([{"x": np.array([[3.0, 4.0]])}, {"x": np.array([[0.3, 0.4]])}])
    problem = ss.Problem(
        lambda w, b: ((w - b["x"]) ** 2).sum(axis=1).mean(), lambda w, b: w[0] - 9.0, jnp.array([0.5, 0.1]), ss.Ball(1)
    )
    np.testing.assert_allclose(client_optimum(problem, near), [16.0, 0.0], atol=1e-6)
    regret = flat.solve(problem, near, RULE, rounds=3, batch_size=None, regret=True)
    plain = flat.solve(problem, near, RULE, rounds=3, batch_size=None)
    np.testing.assert_allclose(regret.history.objective[0], plain.history.objective[0] - 16.0, rtol=1e-6)


@pytest.mark.parametrize(
    "domain",
    [ss.Box(-0.5, 0.5), ss.Ball(0.7), *(pytest.param(one, marks=pytest.mark.slow) for one in (ss.Ball(50.0), None))],
)
def test_client_optimum_within_a_domain_is_a_solvers(domain):
    """In single precision, from 0, where a projection has no slope, and of optima inside, outside and on an edge."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(6, 20, 5)).astype(np.float32)
    y = ((x @ generator.normal(size=5)) * [[0.1], [0.3], [1.0], [3.0], [0.01], [10.0]]).astype(np.float32)
    y += generator.normal(size=y.shape).astype(np.float32)
    clients = ss.ClientData.from_list([{"x": a, "y": b} for a, b in zip(x, y, strict=True)])
    found = client_optimum(ss.Problem(squares, level, jnp.zeros(5), domain), clients)
    for own, a, b in zip(found, x, y, strict=True):
        w = cp.Variable(5)
        within = [] if domain is None else [cp.norm(w) <= domain.radius] if isinstance(domain, ss.Ball) else []
        within += [w >= -0.5, w <= 0.5] if isinstance(domain, ss.Box) else []
        best = cp.Problem(cp.Minimize(cp.sum_squares(a @ w - b) / 20), within).solve()
        assert own == pytest.approx(best, rel=1e-5, abs=1e-6)


def test_client_optimum_where_only_the_domain_keeps_it_from_falling(x64):
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


def test_the_answer_is_the_minimax_regret_optimum(case, rows, least):
    """Without regret the noisy client rules; with it the others are given up no longer."""
    problem, clients = case
    plain, regret = (flat.solve(problem, clients, ss.Automatic(tolerance=0.05), regret=how) for how in (None, True))
    for found, less in ((plain, 0 * least), (regret, least)):
        w, best = optimum(rows, less, 0.05)
        assert found.worst_objective == pytest.approx(best, rel=2e-3)
        np.testing.assert_allclose(found.params, w, atol=0.02)
        assert found.lower_bound.certified
        assert found.lower_bound.value == pytest.approx(best, rel=2e-3)
    np.testing.assert_allclose(regret.client_optimum, least, rtol=1e-9)
    np.testing.assert_allclose(regret.client_loss, regret.client_objective + least)
    assert regret.client_loss[:3].max() < 0.7 * plain.client_loss[:3].max(), "the others must gain"
    assert regret.worst_loss == pytest.approx(regret.client_loss.max())
    assert "f is largest at client 'd'" in regret.explain()
    assert "worst regret" in repr(regret)
    beside = add_baselines(regret, problem, clients)
    free = {one.name: one for one in beside.baselines}["no constraint, worst client"]
    assert free.objective == pytest.approx(optimum(rows, least, 1e3)[1], rel=2e-2), "others are told by regrets too"


def test_numbers_that_are_given_shift_reports_and_nothing_else(case):
    """One client's constant is taken off its f: by hand, in reports, in the judging and in what is held out."""
    problem, clients = case
    how = {"rounds": 20, "batch_size": 8, "seed": 1, "held_out": clients, "eval_every": 5, "record_clients": True}
    plain = flat.solve(problem, clients, RULE, **how)
    same = flat.solve(problem, clients, RULE, regret=[0.7] * N, **how)
    np.testing.assert_allclose(same.params, plain.params, rtol=1e-9, err_msg="a shift of all changes no weight")
    for one, other in ((same.history.full, plain.history.full), (same.history.held_out, plain.history.held_out)):
        np.testing.assert_allclose(one.objective, other.objective - 0.7, rtol=1e-9)
    less = np.array([0.1, 0.0, -0.2, 5.0])
    named = flat.solve(problem, clients, RULE, regret=dict(zip("abcd", less, strict=True)), **how)
    first = named.history.per_client
    expected = plain.history.per_client.objective[0] - less[first.clients[0]]
    np.testing.assert_allclose(first.objective[0], expected, rtol=1e-9)
    assert not np.allclose(named.params, plain.params)
    off = flat.solve(problem, clients, RULE, regret=False, **how)
    np.testing.assert_array_equal(off.params, plain.params)
    assert off.client_optimum is None


def test_a_batch_without_a_stratum_has_the_clients_own_number(x64):
    """Client 0 has no row of the last stratum, client 2 none of the first: what stands there must be their own."""
    data = {"x": np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), "s": np.array([0, 0, 0, 1, 1, 1])}
    clients = ss.ClientData.from_arrays(data, client=[0, 0, 1, 1, 2, 2], strata="s")
    problem = ss.Problem(
        lambda w, b: jnp.average(w + 0 * b["x"], weights=b["weight"]), lambda w, b: w - 9.0, jnp.float64(1.0)
    )
    how = {"rounds": 1, "batch_size": 4, "regret": [10.0, 20.0, 30.0], "record_clients": True}
    for replace in (True, None):
        told = flat.solve(problem, clients, RULE, replace=replace, **how).history.per_client
        np.testing.assert_allclose(told.objective[0][np.argsort(told.clients[0])], [-9.0, -19.0, -29.0])


@pytest.mark.parametrize(
    "options",
    [
        {"memory": ss.Memory(corrected=True), "batch_size": 8, "participation": 0.5},
        pytest.param({"devices": 1, "batch_size": None}, marks=pytest.mark.slow),
    ],
    ids=["a corrected memory", "devices"],
)
def test_other_ways_to_run(case, least, options):
    problem, clients = case
    found = flat.solve(problem, clients, RULE, rounds=60, regret=least, seed=2, **options)
    judged, _ = ss.evaluate(problem, clients, found.params)
    np.testing.assert_allclose(found.client_loss, judged, rtol=1e-9)


def test_over_flower_and_in_sweeps_it_is_the_same_run(case, least):
    problem, clients = case
    how = {"rounds": 25, "batch_size": None}
    here = flat.solve(problem, clients, RULE, regret=True, **how)
    there = flat.solve(problem, clients, RULE, regret=True, engine="grid", **how)
    np.testing.assert_allclose(there.client_objective, here.client_objective, rtol=1e-8)
    np.testing.assert_allclose(there.client_loss, here.client_loss, rtol=1e-8)
    task = ss.with_regret(problem, clients)
    swept = flat.sweep(task.problem, task.clients, [RULE], seeds=1, **how)
    (result,) = next(iter(swept))[1]
    np.testing.assert_array_equal(result.params, here.params)
    np.testing.assert_allclose(result.client_optimum, least, rtol=1e-9)


def test_it_comes_back_from_a_folder_and_a_checkpoint(case, tmp_path):
    problem, clients = case
    how = {"batch_size": 8, "regret": True}
    whole = flat.solve(problem, clients, RULE, rounds=40, **how)
    write_result(tmp_path / "run", whole)
    np.testing.assert_array_equal(open_run(tmp_path / "run").clients["objective"], whole.client_loss)
    kept = ss.Checkpoints(tmp_path / "kept", every=0)
    flat.solve(problem, clients, RULE, rounds=20, checkpoints=kept, **how)
    np.testing.assert_array_equal(
        flat.solve(problem, clients, RULE, rounds=40, checkpoints=kept, **how).params, whole.params
    )
    with pytest.raises(ValueError, match="differs"):
        flat.solve(problem, clients, RULE, rounds=40, checkpoints=kept, batch_size=8, regret=[0.0, 0.0, 0.0, 1.0])


def test_certified_models_are_chosen_by_regrets(case, least):
    problem, clients = case
    found = flat.solve_certified(
        problem, DataSplit(clients, clients, clients), RULE, rounds=200, batch_size=None, regret=True
    )
    np.testing.assert_allclose(found.result.client_optimum, least, rtol=1e-9)
    judged, _ = ss.evaluate(problem, clients, found.result.params)
    np.testing.assert_allclose(found.result.client_loss, judged, rtol=1e-9)


def test_with_a_module_of_torch(x64, case, rows, least):
    problem, clients = case
    module = torch.nn.Linear(2, 1, bias=False).double()
    torch.nn.init.zeros_(module.weight)
    sets = {name: TensorDataset(torch.tensor(x), torch.tensor(y)) for name, x, y in zip("abcd", *rows, strict=True)}
    functions = (
        lambda module, b: ((module(b[0])[:, 0] - b[1]) ** 2).mean(),
        lambda module, b: module(b[0]).mean() + module.weight.sum() - 1.0,
    )
    how = {"rounds": 25, "batch_size": None, "regret": True}
    there = flat.solve_torch(module, *functions, sets, RULE, **how)
    here = flat.solve(problem, clients, RULE, **how)
    np.testing.assert_allclose(there.client_optimum, least, rtol=1e-9)
    np.testing.assert_allclose(there.params["weight"][0], here.params, rtol=1e-8)
    np.testing.assert_allclose(there.client_loss, here.client_loss, rtol=1e-8)
    torch.nn.init.zeros_(module.weight)
    task = ss.with_regret(ss.Problem(*functions, module), ss.TorchData(sets))
    sampling = ss.Sampling(batch_size=None)
    ((_, (swept,)),) = ss.sweep(task.problem, task.clients, [RULE], seeds=1, rounds=25, sampling=sampling)
    np.testing.assert_allclose(swept.client_optimum, least, rtol=1e-9)
    np.testing.assert_allclose(swept.client_loss, here.client_loss, rtol=1e-8)


def test_clients_without_an_objective_keep_none(x64):
    clients = ss.ClientData.from_list([{"y": np.array([0.0, 1.0])}, {"y": np.array([0.0, 0.0])}])
    problem = ss.Problem(
        lambda w, b: ss.mean_over((w - b["y"]) ** 2 + 2, b["weight"] * (b["y"] == 1)),
        lambda w, b: w - 9.0,
        jnp.float64(0),
    )
    np.testing.assert_allclose(client_optimum(problem, clients), [2.0, -np.inf])
    found = flat.solve(problem, clients, RULE, rounds=5, batch_size=None, regret=True)
    assert found.client_objective[1] == found.client_loss[1] == -np.inf
    again = flat.solve(problem, clients, RULE, rounds=5, batch_size=None, regret=client_optimum(problem, clients))
    np.testing.assert_array_equal(again.client_loss, found.client_loss)
    assert found.client_loss[0] == pytest.approx(2.0 + found.client_objective[0])


def test_an_objective_with_a_key_is_still_given_one(case):
    problem, clients = case
    asked = []

    def noisy(w, b, key=None):
        asked.append(key is not None)
        return squares(w, b)

    with_key = ss.Problem(noisy, level, problem.start)
    found = flat.solve(with_key, clients, RULE, rounds=5, batch_size=None, regret=[1.0] * N)
    plain = flat.solve(problem, clients, RULE, rounds=5, batch_size=None)
    np.testing.assert_allclose(found.client_loss, plain.client_loss, rtol=1e-9)
    assert any(asked)
    task = to_regret_task(problem, clients, np.ones(N))
    assert to_regret_task(task.problem, task.clients, np.ones(N)).problem is task.problem, "nothing is taken off twice"


@pytest.mark.parametrize(
    ("regret", "said"),
    [
        ([1.0], "one number for each of 4 clients"),
        ([1.0, 2.0, 3.0, np.nan], "one number"),
        ("yes", "optimum must be one number"),
        ({"a": 1.0}, "optimum must be one number .*dict by name.*but is {'a': 1.0}"),
        (dict.fromkeys("abcde", 1.0), "optimum must be one number .*'e': 1.0"),
    ],
)
def test_bad_numbers_are_refused(case, regret, said):
    with pytest.raises(ValueError, match=said):
        flat.solve(*case, RULE, rounds=1, regret=regret)


def test_where_it_cannot_be_it_is_refused(case):
    problem, clients = case
    with pytest.raises(ValueError, match="with privacy"):
        flat.solve(problem, clients, RULE, rounds=1, regret=True, privacy=ss.RecordPrivacy(epsilon=3.0))
    falls = ss.Problem(lambda w, b: squares(w, b) * 0 + w[0], level, problem.start)
    with pytest.raises(ValueError, match="with a minimum"):
        client_optimum(falls, clients)
    taken = ss.ClientData.from_arrays(
        {CLIENT_OPTIMUM: np.zeros(2), "x": np.zeros((2, 2)), "y": np.zeros(2)}, client=[0, 1]
    )
    with pytest.raises(ValueError, match="rename it"):
        flat.solve(problem, taken, RULE, rounds=1, regret=[0.0, 0.0])


def test_held_out_clients_of_which_no_best_is_known_are_refused(case):
    problem, clients = case
    others = ss.ClientData.from_list([{"x": np.ones((3, 2)), "y": np.ones(3)}])
    with pytest.raises(ValueError, match="held_out must contain only training clients"):
        flat.solve(problem, clients, RULE, rounds=2, held_out=others, regret=True)


def test_regrets_of_batches_below_zero_have_no_power(case):
    """f of a batch is often below f*: a negative number to the power of 1.5 would be no number."""
    method = QFedAvg(power=1.5, step_size=0.05, tolerance=0.05)
    found = flat.solve(*case, method, rounds=20, batch_size=4, regret=True, record_clients=True)
    assert (found.history.per_client.objective < 0).any()
    assert found.status.code != "diverged"
