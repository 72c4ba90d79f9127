"""A constraint with a stand-in: the switch, weights and verdicts read the one, directions follow the other."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
import softswitch as ss
import softswitch.flower as fl
from benchmarks import flat
from problems import NumpyTwin, client_data, least_squares, mean, record_iterates, regression
from softswitch.certification.optimality import lower_bound
from softswitch.engine.auto_tuning import JUMP_FACTOR
from softswitch.engine.restarts import LocalRestarts
from softswitch.methods.messages import LocalLoss
from softswitch.oracles.gradient import make_gradient_oracle
from softswitch.oracles.options import Sampling
from softswitch_experiments.theory.pilot import estimate_constants

ROUNDS, ETA, TOLERANCE = 60, 0.2, 0.7
LAM = TOLERANCE / (1 + 1 / 10)
BOUNDS = (0.2, 0.1)


def rates(w, batch):
    """The shares of rows above two bounds."""
    return jnp.stack(
        [ss.event_rate(batch[name] @ w > bound, batch["weight"]) for name, bound in zip("ch", BOUNDS, strict=True)]
    )


def smooth(w, batch):
    above = [jax.nn.sigmoid(batch[name] @ w - bound) for name, bound in zip("ch", BOUNDS, strict=True)]
    return 4 * jnp.stack([mean(one, batch) for one in above])


class RateTwin(NumpyTwin):
    """The same in NumPy: g is the rates, the "gradient of g" that of the stand-in."""

    def g(self, w, rows):
        return np.array([np.mean(self.data[name][rows] @ w > bound) for name, bound in zip("ch", BOUNDS, strict=True)])

    def grad_g(self, w, rows):
        found = []
        for name, bound in zip("ch", BOUNDS, strict=True):
            x = self.data[name][rows]
            chance = 1 / (1 + np.exp(-(x @ w - bound)))
            found.append(((chance * (1 - chance))[:, None] * x).mean(axis=0))
        return 4 * np.array(found)


PROBLEM = ss.Problem(least_squares, rates, jnp.zeros(4), constraint_surrogate=smooth)
COMMON = {"step_size": ETA, "tolerance": TOLERANCE}
CASES = {
    "softmax": (ss.SoftmaxSGM(alpha=20.0, **COMMON), lambda: reference.SoftmaxSGM(20.0, LAM), 1),
    "softmax, three local steps": (ss.SoftmaxSGM(alpha=20.0, **COMMON), lambda: reference.SoftmaxSGM(20.0, LAM), 3),
    "penalty": (ss.Penalty(penalty=2.5, **COMMON), lambda: reference.Penalty(2.5, TOLERANCE, LAM), 1),
}


@pytest.fixture(scope="module")
def clients():
    return client_data(*regression())


@pytest.mark.parametrize("name", [pytest.param("softmax", marks=pytest.mark.slow), *list(CASES)[1:]])
def test_the_same_course_as_a_numpy_loop(name, x64, monkeypatch):
    method, theirs, local_steps = CASES[name]
    problem = ss.Problem(least_squares, rates, jnp.zeros(4), constraint_surrogate=smooth)
    data, owner = regression()
    clients = client_data(data, owner)
    how = {"batch_size": 8, "local_steps": local_steps, "replace": True}
    oracle = make_gradient_oracle(problem, clients, Sampling(**how))
    key = jax.random.key(3)
    drawn = jax.vmap(lambda k: oracle.draw(jax.random.fold_in(key, k)))(jnp.arange(ROUNDS))
    draws = [reference.Draws(*(np.asarray(x) for x in one)) for one in zip(*drawn[:3], strict=True)]
    expected = reference.run(RateTwin(data, 2), theirs(), np.zeros(4), draws, ETA, ETA / local_steps, local_steps)
    iterates, result = record_iterates(monkeypatch, problem, clients, method, rounds=ROUNDS, seed=3, **how)
    np.testing.assert_allclose(iterates, expected.iterates, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(result.history.feasible, expected.feasible)
    assert 2 < sum(expected.feasible) < ROUNDS - 2, "both kinds of rounds must have been taken"


def test_the_grid_takes_the_same_course(clients):
    method = ss.SoftmaxSGM(alpha=20.0, **COMMON)
    own, theirs = (
        flat.solve(PROBLEM, clients, method, rounds=12, batch_size=None, engine=engine)
        for engine in ("compiled", "grid")
    )
    np.testing.assert_allclose(theirs.last, own.last, atol=1e-6)
    np.testing.assert_allclose(theirs.client_constraint, own.client_constraint, atol=1e-7)
    np.testing.assert_array_equal(theirs.history.feasible, own.history.feasible)
    assert 0 < own.history.feasible_rounds < 12


def numpy_client(**options):
    data = {name: column[:9] for name, column in regression()[0].items()}
    twin = RateTwin(data, 2)

    def objective(params, batch):
        rows = np.arange(len(batch["b"]))
        return twin.f(params["w"], rows), {"w": twin.grad_f(params["w"], rows)}

    def constraint(params, batch):
        return twin.g(params["w"], np.arange(len(batch["b"]))), None

    def stand_in(params, batch):
        return np.zeros(2), {"w": twin.grad_g(params["w"], np.arange(len(batch["b"])))}

    options = {"constraint_surrogate": stand_in} | options
    return fl.NumpyClient(objective, constraint, data, {"w": np.zeros(4)}, name="a", batch_size=None, **options), data


def torch_client(**options):
    torch = pytest.importorskip("torch")
    data = {name: column[:9] for name, column in regression()[0].items()}
    module = torch.nn.Linear(4, 1, bias=False, dtype=torch.float64)
    names = ("a", "b", "c", "h")

    def objective(module, batch):
        return 0.5 * ((module(batch[0])[:, 0] - batch[1]) ** 2).mean()

    def constraint(module, batch):
        above = [module(batch[place])[:, 0] > bound for place, bound in zip((2, 3), BOUNDS, strict=True)]
        return torch.stack([one.double().mean() for one in above])

    def stand_in(module, batch):
        scores = [module(batch[place])[:, 0] - bound for place, bound in zip((2, 3), BOUNDS, strict=True)]
        return 4 * torch.stack([torch.sigmoid(score).mean() for score in scores])

    rows = torch.utils.data.TensorDataset(*(torch.from_numpy(data[name]) for name in names))
    options = {"constraint_surrogate": stand_in} | options
    return fl.TorchClient(module, objective, constraint, rows, name="a", batch_size=None, **options), data


@pytest.mark.parametrize(("make", "name", "shape"), [(numpy_client, "w", (4,)), (torch_client, "weight", (1, 4))])
def test_clients_of_other_kinds_follow_their_stand_in(make, name, shape):
    client, data = make()
    assert client.has_surrogate
    assert client.constraints == 2
    w, twin, rows = np.array([0.5, -0.2, 0.3, 0.4]), RateTwin(data, 2), np.arange(9)
    params = {name: w.reshape(shape)}
    from softswitch.flower.local_client import Task

    task = Task(round=0, seed=0, local_steps=1, step_size=0.1, switches=False)
    assert client.evaluate(params).constraint == pytest.approx(twin.g(w, rows))
    limit = float(twin.g(w, rows).mean())  # one constraint is above, the other is not
    loss = LocalLoss(0.7, np.array([0.2, 0.3]), 1.5, limit)
    above = twin.g(w, rows) > limit
    assert above.sum() == 1
    expected = 0.7 * twin.grad_f(w, rows) + (np.array([0.2, 0.3]) + 1.5 * above) @ twin.grad_g(w, rows)
    np.testing.assert_allclose(client.update(params, task, loss)[name].ravel(), expected, rtol=1e-6)


def test_a_stand_in_of_another_number_of_constraints(clients):
    problem = ss.Problem(least_squares, rates, jnp.zeros(4), constraint_surrogate=lambda w, b: smooth(w, b)[0])
    with pytest.raises(ValueError, match=r"constraint_surrogate must .* 2, but returns 1"):
        flat.solve(problem, clients, ss.Automatic(tolerance=0.5, method=ss.SoftmaxSGM))
    with pytest.raises(ValueError, match="one value for each"):
        numpy_client(constraint_surrogate=lambda params, batch: (0.0, {"w": np.zeros(4)}))
    with pytest.raises(ValueError, match="one value for each"):
        torch_client(constraint_surrogate=lambda module, batch: module(batch[0]).mean())
    with pytest.raises(TypeError, match="constraint_surrogate must be a function"):
        ss.Problem(least_squares, rates, jnp.zeros(4), constraint_surrogate=0.5)
    with pytest.raises(ValueError, match="convex must be None"):
        ss.Problem(least_squares, rates, jnp.zeros(4), convex=True, constraint_surrogate=smooth)


def test_there_is_no_bound_and_it_says_why(clients):
    found = lower_bound(PROBLEM, clients, PROBLEM.start, TOLERANCE)
    assert found.value == -np.inf
    assert "surrogate" in str(found)
    with pytest.raises(ValueError, match="constraint_surrogate"):
        estimate_constants(replace(PROBLEM, domain=ss.Ball(1.0)), clients)


def test_a_run_that_chooses_for_itself(clients):
    result = flat.solve(PROBLEM, clients, ss.Automatic(tolerance=0.5, method=ss.SoftmaxSGM), rounds=300)
    assert result.gap is None
    assert result.status.ok
    rate = ss.evaluate(PROBLEM, clients, result.params)[1].max()
    assert result.worst_constraint == rate <= 0.5
    start = ss.evaluate(PROBLEM, clients, PROBLEM.start)[0].max()
    assert result.worst_objective < 0.95 * start


def test_another_stand_in_is_another_run(clients, tmp_path):
    method, options = ss.SoftmaxSGM(alpha=20.0, **COMMON), {"rounds": 4, "batch_size": 8}
    flat.solve(PROBLEM, clients, method, checkpoints=ss.Checkpoints(tmp_path), **options)
    other = ss.Problem(least_squares, rates, jnp.zeros(4), constraint_surrogate=lambda w, b: 2 * smooth(w, b))
    with pytest.raises(ValueError, match="is a checkpoint of another run"):
        flat.solve(other, clients, method, checkpoints=ss.Checkpoints(tmp_path), **options)


def test_the_threshold_of_jumps_is_the_tolerance_itself(clients):
    problems = (PROBLEM, ss.Problem(PROBLEM.objective, smooth, PROBLEM.start))
    jumps, smoothly = (
        flat.solve(one, clients, ss.Automatic(tolerance=TOLERANCE, method=ss.SoftmaxSGM), rounds=10) for one in problems
    )
    assert jumps.restarts[0].threshold == pytest.approx(TOLERANCE, abs=1e-7)
    assert smoothly.restarts[0].threshold < TOLERANCE - 1e-6


SEEDED = {"rounds": 40, "batch_size": 8, "participation": 0.5}
RULES = {
    "softmax": ss.SoftmaxSGM(alpha=20.0, **COMMON),
    "penalty": ss.Penalty(penalty=2.5, **COMMON),
}


def test_a_sweep_is_solve_bit_for_bit(clients):
    """One by one, and where the settings choose themselves; side by side up to rounding, decisions included."""
    for together in (False, True):
        table = flat.sweep(PROBLEM, clients, RULES, seeds=[3, 8], vectorize=together, **SEEDED)
        for label, results in table:
            for seed, result in zip((3, 8), results, strict=True):
                alone = flat.solve(PROBLEM, clients, RULES[label], seed=seed, **SEEDED)
                assert 0 < alone.history.feasible_rounds < 40
                if not together:
                    np.testing.assert_array_equal(result.params, alone.params)
                    np.testing.assert_array_equal(result.history.criterion, alone.history.criterion)
                np.testing.assert_allclose(result.params, alone.params, rtol=1e-3, atol=1e-5)
                np.testing.assert_array_equal(result.client_constraint, alone.client_constraint)


def test_a_sweep_of_runs_that_choose_for_themselves(clients):
    methods = {str(tolerance): ss.Automatic(tolerance=tolerance, method=ss.SoftmaxSGM) for tolerance in (0.5, 0.7)}
    for label, (result,) in flat.sweep(PROBLEM, clients, methods, seeds=[4], rounds=90):
        alone = flat.solve(PROBLEM, clients, methods[label], seed=4, rounds=90)
        np.testing.assert_array_equal(result.params, alone.params)
        assert [str(cycle) for cycle in result.restarts] == [str(cycle) for cycle in alone.restarts]


def test_a_server_that_remembers_switches_by_the_true_rate(clients):
    """With everyone and all rows memory changes nothing; with a third the switch sees every client's last rate."""
    method, rounds = ss.SoftmaxSGM(alpha=20.0, criterion="max", **COMMON), {"rounds": 40, "batch_size": None}
    own, same = (flat.solve(PROBLEM, clients, method, memory=memory, **rounds) for memory in (None, ss.Memory()))
    np.testing.assert_allclose(same.last, own.last, atol=1e-6)
    np.testing.assert_array_equal(same.history.feasible, own.history.feasible)
    few = flat.solve(PROBLEM, clients, method, memory=ss.Memory(), participation=0.34, record_clients=True, **rounds)
    heard = np.full((len(clients), 2), -np.inf)
    told = few.history.per_client
    for k, (who, rate) in enumerate(zip(told.clients, told.constraint, strict=True)):
        heard[who] = rate
        assert few.history.criterion[k] == pytest.approx(heard.max(), abs=1e-6)
    assert 0 < few.history.feasible_rounds < 40


def test_a_warm_start_goes_on_as_if_there_had_been_no_break(clients):
    method = ss.SoftmaxSGM(alpha=20.0, **COMMON)
    whole = flat.solve(PROBLEM, clients, method, rounds=24, batch_size=None)
    half = flat.solve(PROBLEM, clients, method, rounds=12, batch_size=None)
    rest = flat.solve(PROBLEM, clients, method, rounds=12, batch_size=None, warm_start=half)
    np.testing.assert_array_equal(rest.last, whole.last)
    np.testing.assert_array_equal(rest.history.feasible, whole.history.feasible[12:])
    assert 0 < rest.history.feasible_rounds < 12


def test_a_warm_start_of_a_run_that_chooses_for_itself_stays_where_it_was(clients):
    """Its second cycle does not begin at the start again: that would be another run."""
    method = ss.Automatic(tolerance=0.5, method=ss.SoftmaxSGM)
    first = flat.solve(PROBLEM, clients, method, rounds=300)
    later = flat.solve(PROBLEM, clients, method, rounds=90, warm_start=first)
    assert later.status.ok
    assert later.worst_objective <= first.worst_objective
    steps = [cycle.step_size for cycle in later.restarts[:2]]
    assert steps[1] > steps[0] / JUMP_FACTOR


def test_the_second_cycle_begins_at_the_start_and_the_better_goes_on(clients, monkeypatch):
    begun = []
    plain = LocalRestarts._state_at

    def watching(self, origin, done):
        begun.append(origin.description)
        return plain(self, origin, done)

    monkeypatch.setattr(LocalRestarts, "_state_at", watching)
    result = flat.solve(PROBLEM, clients, ss.Automatic(tolerance=0.5, method=ss.SoftmaxSGM), rounds=300)
    assert begun[:2] == ["the start", "the start"]
    assert begun[2] == result.restarts[1].answer
    steps = [cycle.step_size for cycle in result.restarts[:3]]
    assert steps[1] == pytest.approx(steps[0] / JUMP_FACTOR)
    if not result.restarts[1].better:
        assert steps[2] == pytest.approx(steps[0])
    begun.clear()
    smooth_one = ss.Problem(least_squares, smooth, jnp.zeros(4))
    flat.solve(smooth_one, clients, ss.Automatic(tolerance=0.5, method=ss.SoftmaxSGM), rounds=300, lower_bound=False)
    assert begun[1] != "the start"
