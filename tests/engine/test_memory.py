"""Client memory: the switch uses values of every client, although only few participate in a round."""

import logging
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
import softswitch as ss
import softswitch.flower as fl
from benchmarks import flat
from flower_clients import FaultyGrid, quadratics, zeros
from problems import NumpyTwin, client_data, least_squares, record_iterates, regression, softplus_level, two_constraints
from softswitch.flower import messages as wire
from softswitch.methods import Reports
from softswitch.methods.client_selection import (
    clients_in_turn,
    order_of_pass,
    represented_clients,
    rounds_per_pass,
    select_clients,
)
from softswitch.methods.memory import ClientMemory, Places, Remembered
from softswitch.oracles.gradient import make_gradient_oracle
from softswitch.oracles.options import Sampling
from softswitch_experiments.tasks.neyman_pearson import breast_cancer

RULE = ss.SoftmaxSGM(alpha=20.0, step_size=0.2, tolerance=0.05)
PROBLEM = ss.Problem(least_squares, softplus_level, jnp.zeros(4))


def make_reports(f, g, mask=None):
    f, g = jnp.asarray(f, float), jnp.asarray(g, float)
    return Reports(
        f, g[:, None] if g.ndim == 1 else g, None, jnp.ones(len(f), bool) if mask is None else jnp.asarray(mask)
    )


def make_memory(f, g, reported_at=None):
    empty = Remembered.empty(len(f), 1, None, jnp.float32)
    clients = jnp.arange(len(f), dtype=jnp.int32)
    memory = empty.hear(0.0, jnp.int32(0), clients, make_reports(f, g))
    if reported_at is None:
        return memory
    rounds = jnp.asarray(reported_at, jnp.int32)
    return memory._replace(reported_at=rounds, selected_at=rounds)


def decide(method, state, remembered, clients, reports, pooled):
    wrapped = ClientMemory(ss.Memory()).wrap(method.decide, remembered, clients)
    return wrapped(state, reports)


def turns(key, rounds, n, places):
    """The clients whose turn it is in each round."""
    length = rounds_per_pass(n, places)
    return np.asarray(
        jax.vmap(lambda k: clients_in_turn(order_of_pass(key, k // length, n), k, places))(jnp.arange(rounds))
    )


def test_memory_update_by_hand():
    empty = Remembered.empty(3, 1, None, jnp.float32)
    first = empty.hear(0.75, jnp.int32(4), jnp.array([2, 0]), make_reports([8, 4], [1, 2]))
    np.testing.assert_array_equal(first.objective, [4, -np.inf, 8])
    np.testing.assert_array_equal(first.reported_at, [4, -1, 4])
    second = first.hear(0.75, jnp.int32(6), jnp.array([2, 1]), make_reports([4, 1], [1, -np.inf]))
    np.testing.assert_array_equal(
        second.objective, [4, 1, 7], err_msg="0.75·8 + 0.25·4; a first report is not smoothed"
    )
    np.testing.assert_array_equal(second.constraint[:, 0], [2, -np.inf, 1], err_msg="a client without this constraint")
    np.testing.assert_array_equal(second.reported_at, [4, 6, 6])
    np.testing.assert_array_equal(second.times, [1, 1, 2])
    lost = second.hear(0.75, jnp.int32(7), jnp.array([0, 1]), make_reports([99, 5], [99, 9], [False, True]))
    np.testing.assert_array_equal(lost.objective, [4, 0.75 * 1 + 0.25 * 5, 7], err_msg="a lost client keeps its value")
    assert lost.reported_at.tolist() == [4, 7, 6]
    assert lost.constraint[1, 0] == 9, "a first value is not smoothed"


def test_batch_without_class_keeps_memory():
    memory = make_memory([4, 8], [2, 1])
    updated = memory.hear(0.75, jnp.int32(1), jnp.array([0, 1]), make_reports([-np.inf, 4], [3, -np.inf]))
    np.testing.assert_array_equal(updated.objective, [4, 0.75 * 8 + 0.25 * 4])
    np.testing.assert_array_equal(updated.constraint[:, 0], [0.75 * 2 + 0.25 * 3, 1])
    np.testing.assert_array_equal(updated.reported_at, [1, 1])
    diverged = memory.hear(0.75, jnp.int32(1), jnp.array([0, 1]), make_reports([np.nan, 4], [3, 1]))
    assert np.isnan(diverged.objective[0])


def test_switch_uses_all_clients_and_direction_participants():
    """Client 2 is infeasible and does not participate: the round reduces the constraint of the participants."""
    remembered = make_memory([1.0, 2.0, 3.0], [0.0, 0.02, 0.9])
    participants = jnp.array([0, 1])
    decision, _ = decide(RULE, (), remembered, participants, make_reports([1.0, 2.0], [0.0, 0.02]), None)
    assert not bool(decision.feasible)
    q = reference.softmax(20.0 * np.array([0.0, 0.02, 0.9]))
    np.testing.assert_allclose(decision.criterion, q @ [0.0, 0.02, 0.9], rtol=1e-6)
    np.testing.assert_allclose(decision.weights, reference.softmax(20.0 * np.array([0.0, 0.02])), rtol=1e-5)
    without_memory, _ = RULE.decide((), make_reports([1.0, 2.0], [0.0, 0.02]))
    assert bool(without_memory.feasible), "without memory the same round is feasible"


@settings(max_examples=15)
@given(st.sampled_from([3, 7]), st.data())
def test_selected_clients(n, data):
    """Selected clients are distinct: those with the worst constraint, unheard clients first, and those in turn."""
    m = data.draw(st.integers(1, n))
    places = ss.Memory().places(m)
    assert places.total == m
    assert places.in_turn >= 1
    values = st.lists(st.one_of(st.floats(-5, 5, width=32), st.just(-np.inf)), min_size=n, max_size=n)
    f, g = data.draw(values), data.draw(values)
    reported_at = data.draw(st.lists(st.sampled_from([-1, 3]), min_size=n, max_size=n))
    remembered = make_memory(f, g, reported_at)
    in_turn = jnp.asarray(turns(jax.random.key(0), 3, n, places)[2])
    selected = np.asarray(select_clients(remembered, in_turn, places, jnp.int32(4))).tolist()
    assert len(set(selected)) == m
    urgency = np.where(np.asarray(reported_at) < 0, np.inf, g)
    worst = selected[: places.by_constraint] if m < n else selected
    for i in set(range(n)) - set(worst):
        assert all(urgency[i] <= urgency[j] for j in worst) or m == n
    due = np.asarray(in_turn)[: places.in_turn]
    assert set(due.tolist()) <= set(selected)


def test_resting_and_silent_clients_wait():
    """Of five clients, 4 is the worst and 3 the next. Client 0 was selected and never answered."""
    remembered = make_memory([0.0] * 5, [0.0, 0.1, 0.2, 0.3, 0.4], [-1, 3, 3, 3, 3])
    places, in_turn = Places(1, 0, 1), jnp.array([2, 1])

    def select_worst(selected_at, rest):
        memory = remembered._replace(selected_at=jnp.asarray(selected_at, jnp.int32))
        return int(select_clients(memory, in_turn, places, jnp.int32(10), rest)[0])

    assert select_worst([9, 3, 3, 3, 9], 0) == 4  # the worst client is selected repeatedly
    assert select_worst([9, 3, 3, 3, 9], 1) == 3  # unless it must rest
    assert select_worst([9, 3, 3, 9, 8], 1) == 4
    assert select_worst([9, 3, 3, 3, 8], 2) == 3
    assert select_worst([-1, 3, 3, 3, 9], 0) == 0  # a client that was never selected comes first


@pytest.mark.parametrize(
    "method",
    [
        ss.AverageSGM(step_size=0.2, tolerance=0.05),
        ss.Penalty(penalty=1.0, step_size=0.1, tolerance=0.05),
        ss.PrimalDual(multiplier=1.0, dual_step_size=0.1, step_size=0.1, tolerance=0.05),
    ],
)
def test_mean_weights_are_uniform_over_passes(method):
    """Two of five places always go to the same clients. Over many passes the mean weight of each client is 1/n."""
    n, places = 12, Places(1, 1, 3)
    remembered = make_memory(np.arange(n), -np.arange(n))
    passes = 400
    schedule = turns(jax.random.key(0), passes * rounds_per_pass(n, places), n, places)
    counts = represented_clients(places, n, jnp.float32)
    np.testing.assert_allclose(counts, [1, 1, 10 / 3, 10 / 3, 10 / 3], rtol=1e-6)

    def weights(in_turn):
        asked = select_clients(remembered, in_turn, places, jnp.int32(1))
        reported = make_reports(remembered.objective[asked], remembered.constraint[asked])._replace(stand_for=counts)
        decision, _ = decide(method, method.init(3, 1), remembered, asked, reported, None)
        return jnp.zeros(n).at[asked].set(decision.weights)

    mean = np.asarray(jax.jit(jax.vmap(weights))(schedule)).mean(axis=0)
    np.testing.assert_allclose(mean, 1 / n, rtol=0.06)
    np.testing.assert_allclose(
        mean[[0, n - 1]], 1 / n, rtol=1e-4, err_msg="clients selected by value are selected in every round"
    )
    softmax = ss.SoftmaxSGM(alpha=0.0, step_size=0.1, tolerance=1.0)
    asked = make_reports(np.zeros(5), np.zeros(5))._replace(stand_for=counts)
    decision, _ = decide(softmax, (), remembered, jnp.arange(5), asked, None)
    np.testing.assert_allclose(decision.weights, 0.2, rtol=1e-6, err_msg="the paper's weights are over participants")
    survivors = asked._replace(mask=jnp.array([True, False, True, False, False]), bit=decision.feasible)
    remaining = method.decide(method.init(3, 1), survivors)[0].weights
    np.testing.assert_allclose(
        remaining, np.array([3, 0, 10, 0, 0]) / 13, rtol=1e-5, err_msg="weights of the remaining clients"
    )
    assert represented_clients(Places(1, 1, 1), 3, jnp.float32) is None, "full participation needs no weights"


@pytest.mark.parametrize(("n", "m"), [(20, 3), (47, 5), (7, 7), (30, 1), (9, 8)])
def test_longest_wait_is_respected(n, m):
    memory = ss.Memory()
    places, rounds = memory.places(m), 200
    schedule = turns(jax.random.key(3), rounds, n, places)
    assert all(len(set(row)) == len(row) for row in schedule.tolist())
    limit = memory.longest_wait(n, m)
    for client in range(n):
        rounds_in_turn = (
            [-1, *np.flatnonzero((schedule[:, : places.in_turn] == client).any(axis=1)).tolist()] if m < n else [0, 1]
        )
        assert max(later - earlier for earlier, later in pairwise(rounds_in_turn)) <= limit


MEAN = ss.AverageSGM(step_size=0.2, tolerance=0.05)
DUAL = ss.PrimalDual(multiplier=1.0, dual_step_size=0.1, step_size=0.1, tolerance=0.05)
SLOW = [
    pytest.param(method, options, marks=pytest.mark.slow)
    for method, options in [
        (RULE, {}),
        (RULE, {"batch_size": None}),
        (MEAN, {}),
        (MEAN, {"local_steps": 3}),
        (DUAL, {"local_steps": 3}),
        (DUAL, {"batch_size": None}),
        (DUAL, {}),
    ]
]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (RULE, {"local_steps": 3}),
        (MEAN, {"batch_size": None}),
        *SLOW,
    ],
)
def test_full_participation_matches_plain_method(method, options):
    clients = client_data(*regression())
    options = {"rounds": 60, "batch_size": 8, "eval_every": 0} | options
    plain, remembered = (
        flat.solve(PROBLEM, clients, method, memory=memory, **options) for memory in (None, ss.Memory())
    )
    np.testing.assert_array_equal(plain.history.feasible, remembered.history.feasible)
    np.testing.assert_allclose(
        plain.last, remembered.last, rtol=1e-5, atol=1e-6
    )  # XLA may round two programs differently
    np.testing.assert_allclose(plain.params, remembered.params, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(plain.history.criterion, remembered.history.criterion, rtol=1e-5, atol=1e-6)
    assert remembered.history.unheard.max() == 0


def numpy_loop(twin, method, w, rounds, draws, select, beta, n, E):
    """A server with client memory in plain NumPy: selection, switch and weights; γ = η/E."""
    gamma = 0.2 / E
    f, g = np.full(n, -np.inf), np.full((n, twin.constraints), -np.inf)
    heard = np.zeros(n, bool)
    iterates, criteria = [w.copy()], []
    for k in range(rounds):
        selected = select(k, f, g, heard)
        values, gradients = draws(k, selected)
        for place, i in enumerate(selected):
            new_f, new_g = twin.f(w, values[place]), twin.g(w, values[place])
            f[i] = beta * f[i] + (1 - beta) * new_f if heard[i] else new_f
            g[i] = beta * g[i] + (1 - beta) * new_g if heard[i] else new_g
            heard[i] = True
        q = reference.softmax(method.alpha * g[heard].ravel())
        criterion = q @ g[heard].ravel()
        feasible = criterion <= method.tolerance / 1.1
        weights = reference.softmax(method.alpha * (f[selected] if feasible else g[selected].ravel()))
        weights = weights if feasible else weights.reshape(len(selected), -1)
        u = np.zeros_like(w)
        for place in range(len(selected)):
            rows = gradients[:, place]
            if feasible:
                u += weights[place] * reference.local_solver(w, twin.grad_f, rows, gamma, E)
            else:
                total = weights[place].sum()
                mix = weights[place] / total
                u += total * reference.local_solver(w, lambda v, r, mix=mix: mix @ twin.grad_g(v, r), rows, gamma, E)
        w = w - 0.2 * u
        iterates.append(w.copy())
        criteria.append(criterion)
    return np.array(iterates), np.array(criteria)


@pytest.mark.parametrize(
    ("constraints", "local_steps", "beta"),
    [
        (2, 5, 0.8),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(1, 1, 0.0), (2, 1, 0.0), (1, 5, 0.0), (1, 1, 0.8)]),
    ],
)
def test_iterates_match_numpy_loop(x64, monkeypatch, constraints, local_steps, beta):
    data, owner = regression(clients=9)
    clients = client_data(data, owner)
    problem = ss.Problem(least_squares, two_constraints if constraints == 2 else softplus_level, jnp.zeros(4))
    memory = ss.Memory(smoothing=beta)
    options = {"participation": 4 / 9, "local_steps": local_steps, "batch_size": 8, "replace": True}
    rounds, n = 120, 9
    iterates, result = record_iterates(
        monkeypatch, problem, clients, RULE, rounds=rounds, seed=3, memory=memory, **options
    )
    oracle = make_gradient_oracle(problem, clients, Sampling(**options))
    key, places = jax.random.key(3), memory.places(4)
    assert places == Places(2, 1, 1)
    schedule = turns(key, rounds, n, places)

    def select(k, f, g, heard):
        """The two worst clients by g, the worst remaining one by f, and the next in turn. Unheard clients are worst."""
        by_g = sorted(range(n), key=lambda i: (-(np.inf if not heard[i] else g[i].max()), i))[:2]
        by_f = sorted(set(range(n)) - set(by_g), key=lambda i: (-(np.inf if not heard[i] else f[i]), i))[:1]
        return np.array([*by_g, *by_f, next(i for i in schedule[k] if i not in (*by_g, *by_f))])

    draw = jax.jit(lambda k, selected: oracle.draw_for(selected, oracle.draw_randomness(jax.random.fold_in(key, k))))

    def draws(k, selected):
        drawn = draw(k, jnp.asarray(selected, jnp.int32))
        return np.asarray(drawn.report_rows), np.asarray(drawn.update_rows)

    twin = NumpyTwin({name: np.asarray(column) for name, column in clients.rows.columns.items()}, constraints)
    expected, criteria = numpy_loop(twin, RULE, np.zeros(4), rounds, draws, select, beta, n, local_steps)
    np.testing.assert_allclose(iterates, expected, atol=1e-9)
    np.testing.assert_allclose(result.history.criterion, criteria, atol=1e-9)
    assert 0.1 < result.history.switch_share < 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "share"),
    [
        (ss.SoftmaxSGM(alpha=20.0, step_size=0.5, tolerance=0.2), 0.25),
        (ss.SoftmaxSGM(alpha=20.0, step_size=0.5, tolerance=0.2), 0.5),
        (ss.AverageSGM(step_size=0.5, tolerance=0.2), 0.5),
    ],
)
def test_flower_matches_compiled_engine(method, share):
    data = breast_cancer(12)
    options = {"rounds": 40, "participation": share, "batch_size": None, "eval_every": 0, "seed": 5}
    options |= {"memory": ss.Memory(smoothing=0.3), "local_steps": 2}
    compiled = flat.solve(data.problem, data.train, method, record_clients=True, **options)
    grid = flat.solve(data.problem, data.train, method, engine="grid", **options)
    np.testing.assert_array_equal(compiled.history.per_client.clients, grid.history.per_client.clients)
    np.testing.assert_array_equal(compiled.history.feasible, grid.history.feasible)
    np.testing.assert_allclose(compiled.last, grid.last, atol=1e-6)
    np.testing.assert_array_equal(compiled.history.unheard, grid.history.unheard)
    np.testing.assert_array_equal(compiled.history.oldest, grid.history.oldest)
    np.testing.assert_array_equal(compiled.state.parts["memory"].times, grid.state.parts["memory"].times)


def test_rounds_with_unheard_clients_are_not_averaged():
    clients = client_data(*regression(clients=9))
    loose = ss.SoftmaxSGM(alpha=20.0, step_size=0.01, tolerance=9.0)
    result = flat.solve(PROBLEM, clients, loose, rounds=30, participation=2 / 9, memory=ss.Memory(), eval_every=0)
    unheard = result.history.unheard
    assert unheard[0] == 7
    assert (np.diff(unheard) <= 0).all()
    assert unheard[-1] == 0
    assert result.history.feasible.all()
    assert int(result.state.average.rounds) == int((unheard == 0).sum())
    assert result.history.oldest.max() <= ss.Memory().longest_wait(9, 2)


TASKS = ((0, None), (1, 0.5))


@pytest.mark.parametrize("tasks", [TASKS[:1], pytest.param(TASKS, marks=pytest.mark.slow)], ids=["one", "both"])
def test_three_of_twenty_clients_suffice(tasks):
    """Neyman–Pearson, full local data, last iterate: all clients are feasible, and F is near full participation's."""
    rounds = 3000
    schedule = optax.cosine_decay_schedule(0.05, rounds)
    method = ss.SoftmaxSGM(alpha=6400.0, step_size=schedule, tolerance=0.1, optimizer=optax.adam)
    options = {"rounds": rounds, "batch_size": None, "answer": "last", "eval_every": 0}
    ratios = []
    for seed, concentration in tasks:
        task = breast_cancer(20, seed=seed, concentration=concentration)
        full = flat.solve(task.problem, task.train, method, **options)
        partial = flat.solve(
            task.problem, task.train, method, participation=3 / 20, memory=ss.Memory(), seed=seed, **options
        )
        assert partial.violating == ()
        ratios.append(partial.worst_objective / full.worst_objective)
    assert np.mean(ratios) <= 1.1, ratios


def test_pooled_constraint_memory_stores_sums():
    problem, clients = pooled_task()
    options = {"rounds": 20, "batch_size": None, "eval_every": 0}
    partial = flat.solve(problem, clients, POOLED, memory=ss.Memory(), participation=0.5, **options)
    assert partial.state.parts["memory"].sums.shape == (6, 2)
    plain, remembered = (flat.solve(problem, clients, POOLED, memory=m, **options) for m in (None, ss.Memory()))
    np.testing.assert_allclose(plain.history.criterion, remembered.history.criterion, rtol=1e-5)


def pooled_task(clients=6):
    """A bound on the mean over all rows, for heterogeneous clients of two sizes."""
    generator = np.random.default_rng(0)
    owner = np.repeat(np.arange(clients), np.where(np.arange(clients) % 2, 5, 12))
    x = generator.normal(size=(len(owner), 2)) + np.linspace(-1, 2, clients)[owner, None]

    def objective(params, batch):
        return jnp.average(((batch["x"] - params["a"]) ** 2).sum(axis=1), weights=batch["weight"])

    def statistics(params, batch):
        return jnp.stack([(batch["weight"] * (batch["x"] @ params["a"])).sum(), batch["weight"].sum()])

    problem = ss.Problem(
        objective, ss.PooledConstraint(statistics, lambda sums: sums[0] / sums[1] - 0.3), {"a": jnp.ones(2)}
    )
    return problem, ss.ClientData.from_arrays({"x": x.astype(np.float32)}, owner)


POOLED = ss.SoftmaxSGM(alpha=5.0, step_size=0.05, tolerance=0.05, criterion="pooled")


def test_checkpoints_save_memory(tmp_path):
    clients = client_data(*regression(clients=9))
    options = {"participation": 0.4, "memory": ss.Memory(smoothing=0.5), "batch_size": 8, "eval_every": 0}
    uninterrupted = flat.solve(PROBLEM, clients, RULE, rounds=600, **options)
    flat.solve(PROBLEM, clients, RULE, rounds=300, checkpoints=ss.Checkpoints(tmp_path), **options)
    resumed = flat.solve(PROBLEM, clients, RULE, rounds=600, checkpoints=ss.Checkpoints(tmp_path), **options)
    np.testing.assert_array_equal(resumed.params, uninterrupted.params)
    np.testing.assert_array_equal(
        resumed.state.parts["memory"].objective, uninterrupted.state.parts["memory"].objective
    )
    np.testing.assert_array_equal(resumed.history.oldest, uninterrupted.history.oldest)
    for changed_memory in (ss.Memory(smoothing=0.6), None):
        changed = {**options, "memory": changed_memory}
        with pytest.raises(ValueError, match="its memory is"):
            flat.solve(PROBLEM, clients, RULE, rounds=600, checkpoints=ss.Checkpoints(tmp_path), **changed)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ss.Memory(smoothing=1.0), "smoothing must be a finite number and >= 0 and < 1, but is 1.0"),
        (
            lambda: flat.solve(PROBLEM, client_data(*regression()), RULE, memory=True),
            "memory must be a Memory, but is True",
        ),
    ],
)
def test_invalid_settings_are_rejected(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_staleness_bound_of_feasible_rounds():
    """Full data, plain SGD: G(w_k) <= λ + T·η·L² + ln(n)/α in every feasible round after all clients reported."""
    n, m, eta, alpha, rounds = 30, 4, 0.01, 300.0, 400
    generator = np.random.default_rng(0)
    normals = generator.normal(size=(n, 5))
    normals /= np.linalg.norm(normals, axis=1)[:, None]  # linear functions of Lipschitz constant 1
    goals = generator.normal(size=(n, 5))
    goals /= np.linalg.norm(goals, axis=1)[:, None]
    clients = ss.ClientData.from_arrays(
        {"a": normals, "c": goals, "b": generator.uniform(0, 0.5, n)}, client=np.arange(n)
    )
    problem = ss.Problem(lambda w, d: d["c"][0] @ w, lambda w, d: d["a"][0] @ w - d["b"][0], jnp.ones(5))
    method = ss.SoftmaxSGM(alpha=alpha, step_size=eta, tolerance=0.05)
    memory = ss.Memory()
    options = {"rounds": rounds, "participation": m / n, "batch_size": None, "eval_every": 1, "memory": memory}
    result = flat.solve(problem, clients, method, **options)
    counts = result.history.feasible & (result.history.unheard == 0)
    assert counts.sum() > 20
    limit = method.switch_at + memory.longest_wait(n, m) * eta + np.log(n) / alpha
    assert result.history.full.constraint[counts].max() <= limit + 1e-6
    assert result.history.oldest.max() <= memory.longest_wait(n, m)


def test_folder_and_report_show_memory(tmp_path):
    from softswitch.results.folder import open_run, write_result
    from softswitch.results.report.page import write_report

    clients = client_data(*regression(clients=9))
    result = flat.solve(PROBLEM, clients, RULE, rounds=40, participation=0.4, memory=ss.Memory())
    write_result(tmp_path, result)
    table = open_run(tmp_path).clients
    assert sum(table["times_heard"]) == 40 * round(0.4 * 9)
    assert max(table["last_heard_in_round"]) == 39
    text = write_report([tmp_path]).read_text(encoding="utf-8")
    assert "times heard" in text


@pytest.mark.parametrize("rounds", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_memory_with_unreliable_clients(rounds):
    """Over Flower, clients fail at random before or after their report. Memory holds exactly the accepted reports."""
    grid = FaultyGrid(quadratics(6), 6)
    generator = np.random.default_rng(0)
    names = [f"site {i}" for i in range(6)]
    accepted = {}

    def check_memory(chunk):
        per_client = chunk.history.per_client
        for client, objective in zip(per_client.clients[0], per_client.objective[0], strict=True):
            if np.isfinite(objective):  # also from clients lost after their report; none in a void round
                accepted[int(client)] = float(objective)
        memory = chunk.state.parts["memory"]
        for client, value in accepted.items():
            assert float(memory.objective[client]) == value
        assert np.isfinite(np.asarray(memory.objective)[np.asarray(memory.known)]).all()
        grid.faults.clear()
        for node in range(6):
            if generator.random() < 0.3:
                kind = generator.choice([wire.REPORT, wire.UPDATE])
                grid.faults[node, kind] = generator.choice(["gone", "raises"])

    strategy = fl.SwitchingStrategy(
        ss.SoftmaxSGM(alpha=5.0, step_size=0.02, tolerance=0.1),
        participation=0.5,
        memory=ss.Memory(),
        callbacks=[check_memory],
        names=names,
        report_timeout=0.02,
        update_timeout=0.02,
        wait=0.0,
        patience=10**6,
    )
    level = logging.getLogger("flwr").level
    logging.getLogger("flwr").setLevel(logging.ERROR)
    try:
        strategy.start(grid, zeros(), rounds)
    finally:
        logging.getLogger("flwr").setLevel(level)
    result = strategy.result
    assert np.isfinite(result.last["w"]).all()
    assert (result.state.parts["memory"].times > rounds / 10).all()
    assert result.history.unheard[-1] == 0
