"""The proximal centre: against a plain loop, and on problems that are not convex against SciPy's solver."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from scipy import optimize
from test_methods import COMMON, LAM, D, N, drawn
from torch.utils.data import TensorDataset

import reference_methods as loops
import softswitch as ss
from benchmarks import flat
from problems import LEVEL, OFFSET, NumpyTwin, client_data, least_squares, regression, two_constraints
from softswitch import methods as methods
from softswitch.engine import compiled as engine
from softswitch.methods import round as rounds
from softswitch.methods.messages import Reports
from softswitch.results.saving import describe_method, restore_method

ETA = COMMON["step_size"]
ABOUT = methods.Proximal(strength=2.0, rounds=20)
RULE = ss.SoftmaxSGM(alpha=20.0, proximal=ABOUT, **COMMON)


@pytest.fixture
def case(x64):
    data, owner = regression()
    problem = ss.Problem(least_squares, two_constraints, jnp.zeros(D, dtype=jnp.float64))
    return data, client_data(data, owner), problem


@pytest.fixture
def looped(case):
    """The loop after 70 rounds: three stages and a half."""
    data, clients, problem = case
    draws = drawn(problem, clients, 3, 70, batch_size=8)
    loop = loops.Proximal(20.0, LAM, 2.0, 20, 0.5, D)
    loops.run(NumpyTwin(data, 2), loop, np.zeros(D), draws, ETA, ETA, 1, N)
    assert all(0 < count < 10 for count in loop.means), "stages must have had both kinds of rounds"
    return loop


def test_centre_and_measures_are_those_of_a_plain_loop(case, looped):
    _, clients, problem = case
    result = flat.solve(problem, clients, RULE, rounds=70, batch_size=8, replace=True, seed=3, memory=None)
    np.testing.assert_allclose(result.history.stages, looped.measures, rtol=1e-9)
    assert np.flatnonzero(~np.isnan(result.history.stationarity)).tolist() == [19, 39, 59]
    np.testing.assert_allclose(result.params, looped.centre, rtol=1e-9)
    assert result.selected == f"proximal centre after stage 3: the mean of {looped.means[-1]} feasible iterates of it"
    assert result.stationarity == pytest.approx(looped.measures[-1], rel=1e-9)
    assert "in the last of 3 stages" in result.explain()


def test_it_comes_back_from_a_folder_and_from_a_checkpoint(case, tmp_path):
    _, clients, problem = case
    how = {"batch_size": 8, "seed": 3}
    whole = flat.solve(problem, clients, RULE, rounds=70, **how)
    whole.save(tmp_path / "run")
    again = ss.Result.load(tmp_path / "run")
    assert again.method == RULE
    np.testing.assert_array_equal(again.history.stages, whole.history.stages)
    np.testing.assert_array_equal(again.state.stages.centre, whole.state.stages.centre)
    kept = ss.Checkpoints(tmp_path / "kept", every=0)
    flat.solve(problem, clients, RULE, rounds=30, checkpoints=kept, **how)
    longer = flat.solve(problem, clients, RULE, rounds=70, checkpoints=kept, **how)
    np.testing.assert_array_equal(longer.params, whole.params)
    np.testing.assert_array_equal(longer.history.stages, whole.history.stages)
    assert restore_method(describe_method(RULE)) == RULE


def test_a_warm_start_is_the_first_centre(case):
    _, clients, problem = case
    first = flat.solve(problem, clients, RULE, rounds=25, batch_size=None)
    second = flat.solve(problem, clients, RULE, rounds=20, batch_size=None, warm_start=first)
    mean = second.params
    assert second.stationarity == pytest.approx(2.0 * np.linalg.norm(mean - first.last))


@pytest.mark.parametrize("memory", [None, ss.Memory()])
def test_over_flower_it_is_the_same_run(case, memory):
    _, clients, problem = case
    how = {"rounds": 45, "batch_size": None, "participation": 0.5, "seed": 1, "memory": memory}
    here = flat.solve(problem, clients, RULE, **how)
    there = flat.solve(problem, clients, RULE, engine="grid", **how)
    np.testing.assert_array_equal(there.history.feasible, here.history.feasible)
    np.testing.assert_allclose(there.history.stages, here.history.stages, rtol=1e-8)
    np.testing.assert_allclose(there.params, here.params, rtol=1e-8)
    assert len(here.history.stages) == 2


def test_devices_streams_and_modules_have_the_same_stages(case):
    data, clients, problem = case
    how = {"rounds": 45, "batch_size": None, "seed": 1, "eval_every": 0}
    here = flat.solve(problem, clients, RULE, **how)
    owner = np.repeat(np.arange(N), clients.sizes)
    columns = {name: torch.tensor(column) for name, column in data.items()}
    sets = {i: TensorDataset(*(column[owner == i] for column in columns.values())) for i in range(N)}
    module = torch.nn.Linear(D, 1, bias=False).double()
    torch.nn.init.zeros_(module.weight)

    def squares(module, batch):
        return 0.5 * ((module(batch[0])[:, 0] - batch[1]) ** 2).mean()

    def bounded(module, batch):
        level = torch.nn.functional.softplus(module(batch[2])).mean() - LEVEL
        return torch.stack([level, module(batch[3]).mean() - OFFSET])

    others = [
        flat.solve(problem, clients, RULE, devices=1, **how),
        flat.solve(problem, ss.StreamedData.from_arrays(data, owner), RULE, **how),
        flat.solve_torch(module, squares, bounded, sets, RULE, **how),
    ]
    for other in others:
        np.testing.assert_allclose(other.history.stages, here.history.stages, rtol=1e-8)
        np.testing.assert_allclose(np.ravel(jax.tree.leaves(other.params)[0]), here.params, rtol=1e-8)


def test_rows_kept_private_may_be_about_a_centre(case):
    """The pull is made of what is told already: it costs nothing more."""
    _, clients, problem = case
    how = {"rounds": 20, "privacy": ss.RecordPrivacy(epsilon=5.0), "progress": False}
    plain, about = (
        flat.solve(problem, clients, method, **how) for method in (ss.SoftmaxSGM(alpha=20.0, **COMMON), RULE)
    )
    assert about.privacy.epsilon == plain.privacy.epsilon
    assert len(about.history.stages) == 1


def test_a_stage_without_a_feasible_round(x64, monkeypatch):
    """g = 1 everywhere: the centre goes on to the last iterate, nothing is measured, and the answer is no centre."""
    clients = ss.ClientData.from_arrays({"x": np.zeros(2)}, client=[0, 1])
    problem = ss.Problem(lambda w, b: w + 0 * b["x"].sum(), lambda w, b: 1.0 + 0 * w, jnp.float64(3.0))
    method = ss.SoftmaxSGM(alpha=1.0, step_size=0.1, tolerance=0.1, proximal=methods.Proximal(strength=1.0, rounds=5))
    result = flat.solve(problem, clients, method, rounds=10, batch_size=None)
    assert result.history.stages.tolist() == [np.inf, np.inf]
    assert "∞ (no feasible round) in the last of 2 stages" in result.explain()
    assert float(result.state.stages.centre) == 3.0
    assert result.status.code == "no-feasible-round"
    stop = [lambda chunk: True]
    monkeypatch.setattr(engine, "CHUNK_ROUNDS", 4)
    short = flat.solve(problem, clients, method, rounds=10, batch_size=None, callbacks=stop)
    assert np.isnan(short.stationarity), "it was stopped after four rounds"
    with pytest.raises(ValueError, match="rounds must be at least 5"):
        flat.solve(problem, clients, method, rounds=4)


def test_polyak_steps_know_of_the_pull(x64):
    """f = w, c = 0, ρ = 1: the value descended on at w = 1 is 1.5 and the slope 2, so the step is 2·1.5/2²."""
    method = ss.SoftmaxSGM(
        alpha=1.0,
        step_size=1.0,
        tolerance=0.1,
        optimizer=lambda step: optax.polyak_sgd(max_learning_rate=9.0),
        proximal=methods.Proximal(strength=1.0, rounds=5),
    )
    state = rounds.start(jnp.float64(0.0), method, 1)._replace(params=jnp.float64(1.0))
    told = Reports(jnp.array([1.0]), jnp.array([[-9.0]]), None, jnp.array([True]))
    reports = rounds.with_extra(state, method, told)
    decision, memory = method.decide((), reports)
    assert float(decision.criterion) == -8.5
    after = rounds.advance(state, method, None, jnp.int32(0), 0, reports, decision, memory, jnp.float64(1.0))
    assert float(after.params) == pytest.approx(1.0 - 2.0 * 1.5 / 4.0, abs=1e-6)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="needs a step_size"):
        ss.Automatic(tolerance=0.1, proximal=ABOUT)
    with pytest.raises(TypeError, match="proximal"):
        ss.SoftmaxSGM(alpha=1.0, proximal=2.0, **COMMON)


# Problems that are not convex. Clients' functions in NumPy, for SciPy.


def folded(w, x, y):
    """Phase retrieval: the mean of |(x'w)² − y²|, weakly convex with modulus at most 2·mean‖x‖²."""
    return np.mean(np.abs((x @ w) ** 2 - y**2))


def bumpy(w):
    """Not convex either: a ring around (1, 0) must not be entered."""
    return 0.25 - (w[0] - 1.0) ** 2 - w[1] ** 2


@pytest.fixture(scope="module")
def phases():
    generator = np.random.default_rng(4)
    x = generator.normal(size=(3, 20, 2))
    y = np.abs(x @ np.array([1.1, 0.2])) + 0.05 * generator.normal(size=(3, 20))
    return x, y


def solved(start, level, phases, rho=0.0, centre=0.0):
    """min t subject to f_i + (ρ/2)‖w − c‖² <= t and g + (ρ/2)‖w − c‖² <= level, by SLSQP from near the start."""
    x, y = phases

    def extra(w):
        return rho / 2 * (w - centre) @ (w - centre)

    inequalities = [
        {"type": "ineq", "fun": lambda v, i=i: v[2] - folded(v[:2], x[i], y[i]) - extra(v[:2])} for i in range(3)
    ]
    inequalities.append({"type": "ineq", "fun": lambda v: level - bumpy(v[:2]) - extra(v[:2])})
    best = None
    for shift in ([0, 0], [0.05, 0.02], [-0.05, 0.02], [0.02, -0.05]):  # the kinks can stop it short
        begin, options = np.append(start + shift, 5.0), {"maxiter": 300, "ftol": 1e-12}
        found = optimize.minimize(lambda v: v[2], begin, method="SLSQP", constraints=inequalities, options=options)
        feasible = min(one["fun"](found.x) for one in inequalities) > -1e-6
        if feasible and (best is None or found.x[2] < best[2]):
            best = found.x
    return best[:2], best[2]


def test_on_a_weakly_convex_problem_the_measure_is_the_solvers_and_falls(x64, phases):
    """Every stage's move is that of the solver for its problem; at the end it is small, at a point to stay at."""
    x, y = phases
    data = {"x": x.reshape(60, 2), "y": y.reshape(60)}
    clients = ss.ClientData.from_arrays(data, client=np.repeat(np.arange(3), 20))
    problem = ss.Problem(
        lambda w, b: jnp.average(jnp.abs((b["x"] @ w) ** 2 - b["y"] ** 2), weights=b["weight"]),
        lambda w, b: 0.25 - (w[0] - 1.0) ** 2 - w[1] ** 2 + 0 * b["x"].sum(),
        jnp.array([0.3, 0.6]),
    )
    rho, many = 10.0, engine.CHUNK_ROUNDS  # a chunk is a stage, and its centre is seen
    method = ss.SoftmaxSGM(
        alpha=2000.0,
        step_size=lambda k: 0.05 / (1 + (k % many) / 10),  # falls within each stage
        tolerance=0.01,
        threshold=0.005,
        proximal=methods.Proximal(strength=rho, rounds=many),
    )
    centres = [np.asarray(problem.start)]
    watch = [lambda chunk: centres.append(np.asarray(chunk.state.stages.centre))]
    run = flat.solve(problem, clients, method, rounds=40 * many, batch_size=None, eval_every=0, callbacks=watch)
    assert len(centres) == 41
    by_solver = [rho * np.linalg.norm(solved(c, 0.005, phases, rho, c)[0] - c) for c in centres[:-1:3]]
    np.testing.assert_allclose(run.history.stages[::3], by_solver, rtol=0.05, atol=0.02)
    assert run.stationarity < 0.02 < 0.1 < run.history.stages.max()
    stays, worst = solved(centres[-1], 0.005, phases)
    np.testing.assert_allclose(run.params, stays, atol=0.01)
    assert run.worst_objective == pytest.approx(worst, abs=0.01)
    assert run.worst_constraint == pytest.approx(0.005, abs=0.005), "the constraint must bind"
