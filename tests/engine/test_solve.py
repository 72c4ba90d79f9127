"""solve(): contents of results, compilation caching, and independence of chunk and batch sizes."""

import signal
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from compilations import COMPILATIONS
from problems import client_data, least_squares, mean, regression, softplus_level, two_constraints
from softswitch.engine import compiled as engine
from softswitch.engine.request import RunOptions, prepare_run
from softswitch.methods import Decision, LocalLoss
from softswitch.oracles import evaluation as slices
from softswitch.oracles.gradient import make_gradient_oracle
from softswitch.oracles.options import Sampling

RULE = ss.SoftmaxSGM(alpha=20.0, step_size=0.2, tolerance=0.05)
PROBLEM = ss.Problem(least_squares, softplus_level, jnp.zeros(4))


@pytest.fixture(scope="module")
def clients():
    return client_data(*regression())


def solve(clients, method=RULE, problem=PROBLEM, **options):
    return flat.solve(problem, clients, method, **{"rounds": 120, "batch_size": 8} | options)


def same_params(actual, expected):
    np.testing.assert_array_equal(actual.params, expected.params)
    np.testing.assert_array_equal(actual.last, expected.last)


def test_last_chunk_has_remaining_rounds_only(clients):
    """The loop of a chunk has the number of remaining rounds, without a branch that skips rounds."""
    options = RunOptions(rounds=3, sampling=Sampling(batch_size=8), logging=ss.Logging(eval_every=0))
    prepared_request = prepare_run(PROBLEM, clients, (RULE,), options)
    parts, program, state = (
        prepared_request.setup(RULE),
        prepared_request.program(250),
        prepared_request.first_state(RULE),
    )
    arguments = (parts, prepared_request.span(0), jax.random.key(0), state)
    traced = jax.make_jaxpr(lambda parts, *rest: engine.run_rounds(parts, program, *rest))(*arguments)
    (loop,) = [e for e in traced.jaxpr.eqns if e.primitive.name == "while"]
    leaves = len(jax.tree.leaves(state))
    branches = [e for e in loop.params["body_jaxpr"].eqns if e.primitive.name == "cond"]
    assert branches
    assert all(len(branch.outvars) < leaves for branch in branches)


def test_round_is_traced_once(clients):
    calls = []

    @dataclass(frozen=True, kw_only=True)
    class Counted(ss.SoftmaxSGM):
        def decide(self, state, reports):
            calls.append(reports)
            return super().decide(state, reports)

    solve(clients, Counted(alpha=20.0, step_size=0.2, tolerance=0.05))
    assert len(calls) == 1


def test_changed_settings_do_not_recompile(clients):
    solve(clients)
    solve(clients, ss.SoftmaxSGM(alpha=3, step_size=0.1, tolerance=0.2, slack=10))
    compiled_before = COMPILATIONS.count
    assert compiled_before > 0, "the counter must be active"
    solve(clients, ss.SoftmaxSGM(alpha=3, step_size=0.1, tolerance=0.2), seed=9)
    solve(clients, ss.SoftmaxSGM(alpha=50.0, step_size=0.3, tolerance=0.01, slack=2), rounds=77, average_last=0.5)
    assert COMPILATIONS.count == compiled_before
    solve(clients, local_steps=2)
    assert COMPILATIONS.count > compiled_before


def test_result_depends_on_seed_only(clients):
    result, repeated, reseeded = solve(clients, seed=5), solve(clients, seed=5), solve(clients, seed=6)
    same_params(result, repeated)
    np.testing.assert_array_equal(result.history.criterion, repeated.history.criterion)
    assert (np.asarray(result.params) != np.asarray(reseeded.params)).any()


@pytest.mark.parametrize("length", [7, 500, *(pytest.param(length, marks=pytest.mark.slow) for length in (1, 120))])
def test_result_is_independent_of_chunk_size(monkeypatch, clients, length):
    reference = solve(clients, participation=0.5, record_clients=True)
    monkeypatch.setattr(engine, "CHUNK_ROUNDS", length)
    cut = solve(clients, participation=0.5, record_clients=True)
    same_params(reference, cut)
    np.testing.assert_array_equal(reference.history.per_client.constraint, cut.history.per_client.constraint)
    np.testing.assert_array_equal(reference.history.full_rounds, cut.history.full_rounds)


@pytest.mark.parametrize(
    ("local_steps", "client_batch_size"),
    [(3, 4), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(1, 1), (1, 4), (3, 1)])],
)
def test_result_is_independent_of_client_batches(clients, local_steps, client_batch_size):
    """6 clients in batches of 4 (with a remainder) or 1 give the same sums up to rounding."""
    reference = solve(clients, local_steps=local_steps, rounds=40)
    sliced = solve(clients, local_steps=local_steps, rounds=40, client_batch_size=client_batch_size)
    np.testing.assert_allclose(sliced.last, reference.last, rtol=1e-4, atol=1e-6)


def test_client_batch_size_depends_on_memory(monkeypatch, clients):
    monkeypatch.setattr(slices, "SLICE_BYTES", 3000)
    sampling = Sampling(local_steps=2, batch_size=8)
    # A row has 13 floats; 4 batches of 8 rows and 3 iterates of 4 floats: 1,712 bytes a client.
    assert make_gradient_oracle(PROBLEM, clients, sampling).slice_size == 1
    monkeypatch.setattr(slices, "SLICE_BYTES", 8000)
    assert make_gradient_oracle(PROBLEM, clients, sampling).slice_size == 4


@pytest.mark.parametrize("problem", [PROBLEM, ss.Problem(least_squares, two_constraints, jnp.zeros(4))])
@pytest.mark.parametrize("loss", ["objective_loss", "constraint_loss", "mixed_loss"])
def test_one_backward_pass_equals_one_local_step(x64, problem, loss):
    """E = 1: ∇(Σ r_i h_i) against Σ r_i u_i, for every kind of local loss."""
    clients = client_data(*regression())
    oracle = make_gradient_oracle(problem, clients, Sampling(batch_size=8))
    draws = oracle.draw(jax.random.key(0))
    generator = np.random.default_rng(0)
    weights = jnp.asarray(generator.dirichlet(np.ones(6)))
    mix = LocalLoss(0.7, jnp.asarray(generator.random((6, oracle.constraints))), 1.3, 0.01)
    params = jnp.asarray(generator.normal(size=4))
    decision = Decision(jnp.zeros(()), jnp.asarray(loss == "objective_loss"), weights, mix)
    update = (params, draws, None, decision, loss != "mixed_loss", 0.1)
    fused, general = oracle.direction(*update), weights @ oracle.directions(*update)
    np.testing.assert_allclose(fused, general, rtol=1e-10)


def test_history_has_every_round(clients):
    result = solve(clients, participation=0.5, local_steps=3, record_clients=True, eval_every=50)
    history = result.history
    assert len(history) == 120
    np.testing.assert_array_equal(history.value_evaluations, 3 * 8 * np.arange(1, 121))
    np.testing.assert_array_equal(history.gradient_evaluations, 3 * 3 * 8 * np.arange(1, 121))
    assert history.full_rounds.tolist() == [0, 50, 100]
    np.testing.assert_array_equal(history.objective, history.per_client.objective.max(axis=1))
    np.testing.assert_array_equal(history.constraint, history.per_client.constraint.max(axis=(1, 2)))
    np.testing.assert_array_equal(history.feasible, history.criterion <= RULE.switch_at)
    assert history.per_client.clients.shape == (120, 3)
    assert all(len(set(row)) == 3 for row in history.per_client.clients.tolist())
    F, G = ss.evaluate(PROBLEM, clients, PROBLEM.start)
    assert history.full.objective[0] == pytest.approx(F.max(), rel=1e-6)
    assert history.full.constraint[0] == pytest.approx(G.max(), rel=1e-6)


def test_held_out_clients_are_evaluated(clients):
    """Values at the start equal evaluate(), and held-out clients do not affect training."""
    held_out_clients = client_data(*regression(seed=9))
    result = solve(clients, eval_every=40, held_out=held_out_clients)
    for data, evaluations in ((clients, result.history.full), (held_out_clients, result.history.held_out)):
        f, g = ss.evaluate(PROBLEM, data, PROBLEM.start)
        first = [values[0] for values in evaluations]
        np.testing.assert_allclose(first, [f.max(), g.max(), f.mean(), g.mean()], rtol=1e-5)
        assert len(evaluations.objective) == len(result.history.full_rounds) == 3
    assert result.history.held_out.objective[1] != result.history.full.objective[1]
    same_params(result, solve(clients, eval_every=40))
    assert solve(clients).history.held_out is None
    with pytest.raises(ValueError, match="held_out is evaluated every eval_every rounds, but eval_every is 0"):
        solve(clients, held_out=held_out_clients, eval_every=0)
    with pytest.raises(ValueError, match="held_out must have the clients' columns"):
        solve(clients, held_out=ss.ClientData.from_arrays({"x": np.zeros((2, 4))}, client=[0, 1]))


def test_full_batches_count_their_rows(clients):
    history = solve(clients, batch_size=None, value_batch_size=4, rounds=3).history
    total = int(clients.sizes.sum())
    assert history.value_evaluations.tolist() == [24, 48, 72]
    assert history.gradient_evaluations.tolist() == [total, 2 * total, 3 * total]


def test_default_evaluation_interval(clients):
    assert len(solve(clients, rounds=200).history.full_rounds) <= 20
    assert len(solve(clients, rounds=200, eval_every=0).history.full_rounds) == 0


def test_result_names_selected_iterate(clients):
    result = solve(clients)
    assert result.selected == f"mean of the {result.history.feasible_rounds} feasible iterates of 120 rounds"
    late = solve(clients, average_last=0.5)
    assert late.selected.endswith("feasible iterates of rounds 60 to 119")
    F, G = ss.evaluate(PROBLEM, clients, late.params)
    np.testing.assert_allclose(late.client_objective, F, rtol=1e-6)
    assert late.worst_constraint == pytest.approx(G.max(), rel=1e-6)


def test_average_of_last_half_forgets_start():
    """Two clients with f = |w| from w = 100 in steps of 0.5: only the average of the last half is accurate."""
    clients = ss.ClientData.from_arrays({"sign": np.array([1.0, -1.0])}, client=[0, 1])
    problem = ss.Problem(lambda w, b: b["sign"][0] * w, lambda w, b: 0 * w - 1, jnp.float32(100.0))
    method = ss.SoftmaxSGM(alpha=1.0, step_size=0.5, tolerance=0.1)
    options = {"rounds": 600, "batch_size": None}
    assert abs(float(flat.solve(problem, clients, method, **options).params)) > 10
    assert abs(float(flat.solve(problem, clients, method, average_last=0.5, **options).params)) < 1e-3


def test_average_without_feasible_rounds_falls_back():
    """g stays above the threshold after the first rounds, because the constraint's gradient is 0."""
    clients = ss.ClientData.from_arrays({"x": np.zeros(2)}, client=[0, 0])
    problem = ss.Problem(lambda w, b: w, lambda w, b: jnp.where(w > -1, -1.0, 1.0) + 0 * w, jnp.float32(0.0))
    method = ss.AverageSGM(step_size=0.25, tolerance=0.1)
    result = flat.solve(problem, clients, method, rounds=20, average_last=0.5, batch_size=None)
    assert result.history.feasible_rounds == 4
    assert result.selected.startswith("best feasible iterate by its reports, from round 3")
    assert float(result.params) == -0.75


def test_divergence_names_round_and_client():
    clients = ss.ClientData.from_arrays({"blows": np.array([0.0, 1.0])}, client=["calm", "wild"])

    def cubic(w, b):
        return jnp.where(b["blows"][0] > 0, w**4, 0.1 * w)

    problem = ss.Problem(cubic, lambda w, b: 0 * w - 1, jnp.float32(2.0))
    result = flat.solve(problem, clients, ss.HardSGM(step_size=1.0, tolerance=0.1), rounds=500, batch_size=None)
    assert result.status.code is ss.StatusCode.DIVERGED
    assert len(result.history) == result.status.round + 1 < 50
    assert np.isfinite(float(result.last))
    assert np.isfinite(float(result.params))
    assert "round" in str(result.status)


def test_nan_at_start_names_client():
    clients = ss.ClientData.from_arrays({"x": np.array([1.0, -1.0])}, client=["fine", "broken"])
    problem = ss.Problem(lambda w, b: jnp.log(b["x"][0]) + w, lambda w, b: 0 * w - 1, jnp.float32(0.0))
    result = flat.solve(problem, clients, ss.HardSGM(step_size=1.0, tolerance=0.1), rounds=50, batch_size=None)
    assert result.status.code is ss.StatusCode.DIVERGED
    assert (result.status.round, result.status.client) == (0, "broken")
    assert "at the start" in result.status.message
    assert float(result.params) == 0.0


def test_callback_can_stop_run(monkeypatch, clients):
    monkeypatch.setattr(engine, "CHUNK_ROUNDS", 10)
    recorded = []
    result = solve(clients, callbacks=[lambda chunk: recorded.append(chunk.round) or chunk.round >= 30])
    assert recorded == [10, 20, 30]
    assert result.status.code is ss.StatusCode.STOPPED
    assert len(result.history) == 30
    np.testing.assert_array_equal(result.last, solve(clients, rounds=30).last)


def test_interrupted_run_returns_result(monkeypatch, clients):
    monkeypatch.setattr(engine, "CHUNK_ROUNDS", 10)

    def interrupt(chunk):
        if chunk.round == 20:
            raise KeyboardInterrupt

    result = solve(clients, callbacks=[interrupt])
    assert result.status.code is ss.StatusCode.STOPPED
    assert len(result.history) == 20
    assert np.isfinite(result.worst_objective)


def test_progress_is_shown_on_request(capsys, clients):
    solve(clients)
    assert capsys.readouterr() == ("", "")
    solve(clients, progress=True)
    output = capsys.readouterr().err
    assert "120/120" in output
    assert all(word in output for word in ("/s", "F ", "G ", "feasible"))


def statistics(w, batch):
    protected, score = batch["p"], jnp.tanh(batch["x"] * w)
    row = batch["weight"]
    return jnp.stack([(row * protected * score).sum(), (row * protected).sum(), (row * score).sum(), row.sum()])


def gap(total):
    return jnp.abs(total[0] / total[1] - total[2] / total[3])


def test_pooled_criterion_equals_constraint_of_concatenated_data():
    """With clients of different sizes, the pooled value is exactly that of one client with all rows."""
    generator = np.random.default_rng(0)
    owner = np.repeat(np.arange(4), [3, 9, 20, 5])
    data = {"x": generator.normal(size=37), "p": (np.arange(37) % 3 == 0).astype(float)}
    split, pooled = ss.ClientData.from_arrays(data, client=owner), ss.ClientData.from_arrays(data, client=np.zeros(37))
    problem = ss.Problem(
        lambda w, b: mean((b["x"] - w) ** 2, b), ss.PooledConstraint(statistics, gap), jnp.float32(1.5)
    )
    method = ss.SoftmaxSGM(alpha=10.0, step_size=0.1, tolerance=0.1, criterion="pooled")
    result = flat.solve(problem, split, method, rounds=1, batch_size=None)
    pooled_constraint = ss.evaluate(problem, pooled, problem.start)[1]
    split_constraint = ss.evaluate(problem, split, problem.start)[1]
    assert result.history.criterion[0] == pytest.approx(pooled_constraint.item(), rel=1e-5)
    assert abs(split_constraint.max() - pooled_constraint.item()) > 0.01


def test_params_can_be_any_pytree(clients):
    def objective(params, batch):
        return mean((batch["a"] @ params["w"] + params["b"] - batch["b"]) ** 2, batch)

    start = {"w": jnp.zeros(4), "b": jnp.float32(0.0)}
    problem = ss.Problem(objective, lambda p, b: softplus_level(p["w"], b), start)
    for local_steps in (1, 2):
        result = solve(clients, problem=problem, local_steps=local_steps)
        assert jax.tree.structure(result.params) == jax.tree.structure(start)
        assert result.worst_objective < result.history.full.objective[0]


def test_nan_constraint_is_violated():
    """A client outside the sample has a NaN constraint at the final iterate: it violates and is listed first."""
    data = {"x": np.r_[np.ones(19), 0.0]}
    twenty = ss.ClientData.from_arrays(data, client=np.arange(20))
    problem = ss.Problem(lambda w, b: w**2, lambda w, b: b["x"][0] / b["x"][0] - 2 + 0 * w, jnp.float32(1.0))
    method = ss.AverageSGM(step_size=0.1, tolerance=0.1)
    for seed in range(20):
        result = flat.solve(problem, twenty, method, rounds=1, participation=0.05, batch_size=1, seed=seed)
        if result.status.code is not ss.StatusCode.DIVERGED:
            break
    assert result.status.code is ss.StatusCode.VIOLATED
    assert result.violating == (19,)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_lazy_draws_equal_eager_draws(monkeypatch, clients, participation):
    options = {"rounds": 20, "participation": participation, "batch_size": 4, "replace": True, "record_clients": True}
    eager = solve(clients, **options)
    monkeypatch.setattr(engine, "CHUNK_WORDS", 1)
    monkeypatch.setattr(engine, "chunk_length", lambda oracle: 20)
    lazy = solve(clients, **options)
    np.testing.assert_array_equal(lazy.history.per_client.clients, eager.history.per_client.clients)
    np.testing.assert_allclose(lazy.history.objective, eager.history.objective, rtol=1e-5)
    np.testing.assert_allclose(lazy.params, eager.params, rtol=1e-4, atol=1e-6)


def test_failed_round_is_not_feasible():
    clients = ss.ClientData.from_arrays({"x": np.ones(2)}, client=[0, 0])
    problem = ss.Problem(lambda w, b: jnp.log(-b["x"][0]) + w, lambda w, b: 0 * w - 1, jnp.float32(0.0))
    result = flat.solve(problem, clients, ss.AverageSGM(step_size=0.1, tolerance=0.1), rounds=10, batch_size=1)
    assert result.history.feasible_rounds == 0
    assert result.best is None


@pytest.mark.parametrize("interrupted_call", [0, 1, 2])
def test_interrupt_is_deferred_to_end_of_chunk(monkeypatch, request, clients, interrupted_call):
    """An interrupt while a chunk's history is read, not from a callback, is deferred to the end of the chunk."""
    old_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, old_handler))
    monkeypatch.setattr(engine, "CHUNK_ROUNDS", 10)
    from softswitch.results.history import History

    from_records, calls = History.from_records, []

    def interrupted(*args, **kwargs):
        calls.append(None)
        if len(calls) == interrupted_call + 1:
            signal.raise_signal(signal.SIGINT)
        return from_records(*args, **kwargs)

    monkeypatch.setattr(History, "from_records", interrupted)
    result = solve(clients)
    assert result.status.code == "stopped"
    assert len(result.history) == 10 * (interrupted_call + 1)
    assert result.selected.startswith(f"mean of the {result.history.feasible_rounds} feasible")


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_functions_do_not_reduce_precision(dtype):
    """Parameters are float32: in float16, averaging 1,000 iterates of 100 overflows, and 301 rows lose digits."""
    x = np.arange(301, dtype=np.float32)
    clients = ss.ClientData.from_arrays({"x": x}, client=np.repeat([0, 1], [1, 300]))
    problem = ss.Problem(
        lambda w, b: mean(b["x"], b) + 0 * w["a"].astype(dtype).sum(),
        lambda w, b: (mean(b["x"], b) * 0 - 1).astype(dtype),
        {"a": jnp.full(2, 100.0), "b": jnp.zeros(2)},
    )
    objective, _ = ss.evaluate(problem, clients, problem.start)
    np.testing.assert_allclose(objective, [0, 150.5], rtol=1e-6)
    result = flat.solve(problem, clients, ss.AverageSGM(step_size=0.1, tolerance=0.1), rounds=1000, batch_size=None)
    assert result.params["a"].dtype == jnp.float32
    np.testing.assert_allclose(result.params["a"], 100, rtol=2e-7)


def test_functions_of_params_only_need_no_weights(clients):
    problem = ss.Problem(least_squares, lambda w, b: (w**2).sum() - 1, jnp.zeros(4))
    assert solve(clients, problem=problem, batch_size=None).status.ok


def test_numpy_true_stops_run(monkeypatch, clients):
    monkeypatch.setattr(engine, "CHUNK_ROUNDS", 10)
    result = solve(clients, callbacks=[lambda chunk: chunk.history.objective[-1] < 1e9])
    assert len(result.history) == 10


def test_callbacks_receive_absolute_rounds(monkeypatch, clients):
    monkeypatch.setattr(engine, "CHUNK_ROUNDS", 50)
    recorded = []
    solve(clients, eval_every=40, callbacks=[lambda chunk: recorded.extend(chunk.history.full_rounds.tolist())])
    assert recorded == [0, 40, 80]


def test_full_batches_need_little_index_memory():
    """With 1,000 clients of one row and one of 10⁶ rows, the draws of a round stay small."""
    sizes = np.r_[np.ones(1000, int), 10**6]
    clients = ss.ClientData.from_arrays(
        {"x": np.zeros(sizes.sum(), np.float32)}, client=np.repeat(np.arange(1001), sizes)
    )
    problem = ss.Problem(lambda w, b: mean(b["x"], b) + w, lambda w, b: mean(b["x"], b) - 1 + 0 * w, jnp.float32(0.0))
    oracle = make_gradient_oracle(problem, clients, Sampling(batch_size=None))
    draws = jax.eval_shape(oracle.draw, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(draws)) == 1001
    assert oracle.slice_size < 50


@pytest.mark.parametrize(("height", "code"), [(0.15, ss.StatusCode.VIOLATED), (0.099, ss.StatusCode.FEASIBLE)])
def test_status_compares_constraint_with_tolerance(height, code):
    """g = ±height: the mean is 0 and every round feasible; the worse client decides the status."""
    clients = ss.ClientData.from_arrays({"sign": np.array([1.0, -1.0])}, client=["up", "down"])
    problem = ss.Problem(lambda w, b: w**2, lambda w, b: height * b["sign"][0] + 0 * w, jnp.float32(1.0))
    result = flat.solve(problem, clients, ss.AverageSGM(step_size=0.1, tolerance=0.1), rounds=10, batch_size=None)
    assert result.status.code is code
    assert result.violating == (("up",) if code is ss.StatusCode.VIOLATED else ())
    assert result.status.client == "up"
