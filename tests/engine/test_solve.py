"""solve(): what a result says, what a second call costs, and that nothing depends on how the work is cut."""

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
from softswitch.engine.request import RunOptions, request
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


def same_params(one, other):
    np.testing.assert_array_equal(one.params, other.params)
    np.testing.assert_array_equal(one.last, other.last)


def test_rounds_beyond_the_last_are_not_in_the_program(clients):
    """A chunk is a loop of as many rounds as are left: no branch passes the state through for the others."""
    options = RunOptions(rounds=3, sampling=Sampling(batch_size=8), logging=ss.Logging(eval_every=0))
    asked = request(PROBLEM, clients, (RULE,), options)
    parts, program, state = asked.setup(RULE), asked.program(250), asked.first_state(RULE)
    arguments = (parts, asked.span(0), jax.random.key(0), state)
    traced = jax.make_jaxpr(lambda parts, *rest: engine.run_rounds(parts, program, *rest))(*arguments)
    (loop,) = [e for e in traced.jaxpr.eqns if e.primitive.name == "while"]
    leaves = len(jax.tree.leaves(state))
    branches = [e for e in loop.params["body_jaxpr"].eqns if e.primitive.name == "cond"]
    assert branches
    assert all(len(branch.outvars) < leaves for branch in branches)


def test_a_round_is_traced_once(clients):
    calls = []

    @dataclass(frozen=True, kw_only=True)
    class Counted(ss.SoftmaxSGM):
        def decide(self, state, reports):
            calls.append(reports)
            return super().decide(state, reports)

    solve(clients, Counted(alpha=20.0, step_size=0.2, tolerance=0.05))
    assert len(calls) == 1


def test_another_setting_compiles_nothing(clients):
    solve(clients)
    solve(clients, ss.SoftmaxSGM(alpha=3, step_size=0.1, tolerance=0.2, slack=10))
    before = COMPILATIONS.count
    assert before > 0, "the counter must count"
    solve(clients, ss.SoftmaxSGM(alpha=3, step_size=0.1, tolerance=0.2), seed=9)
    solve(clients, ss.SoftmaxSGM(alpha=50.0, step_size=0.3, tolerance=0.01, slack=2), rounds=77, average_last=0.5)
    assert COMPILATIONS.count == before
    solve(clients, local_steps=2)
    assert COMPILATIONS.count > before


def test_same_seed_same_bits_other_seed_other_result(clients):
    one, again, other = solve(clients, seed=5), solve(clients, seed=5), solve(clients, seed=6)
    same_params(one, again)
    np.testing.assert_array_equal(one.history.criterion, again.history.criterion)
    assert (np.asarray(one.params) != np.asarray(other.params)).any()


@pytest.mark.parametrize("length", [7, 500, *(pytest.param(length, marks=pytest.mark.slow) for length in (1, 120))])
def test_chunks_do_not_matter(monkeypatch, clients, length):
    whole = solve(clients, participation=0.5, record_clients=True)
    monkeypatch.setattr(engine, "CHUNK_ROUNDS", length)
    cut = solve(clients, participation=0.5, record_clients=True)
    same_params(whole, cut)
    np.testing.assert_array_equal(whole.history.per_client.constraint, cut.history.per_client.constraint)
    np.testing.assert_array_equal(whole.history.full_rounds, cut.history.full_rounds)


@pytest.mark.parametrize(
    ("local_steps", "at_once"),
    [(3, 4), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(1, 1), (1, 4), (3, 1)])],
)
def test_slices_of_clients_do_not_matter(clients, local_steps, at_once):
    """6 clients in slices of 4 (with a rest) or 1 give the same sums up to rounding."""
    whole = solve(clients, local_steps=local_steps, rounds=40)
    sliced = solve(clients, local_steps=local_steps, rounds=40, client_batch_size=at_once)
    np.testing.assert_allclose(sliced.last, whole.last, rtol=1e-4, atol=1e-6)


def test_slices_follow_from_memory(monkeypatch, clients):
    monkeypatch.setattr(slices, "SLICE_BYTES", 3000)
    how = Sampling(local_steps=2, batch_size=8)
    # A row has 13 floats; 4 batches of 8 rows and 3 iterates of 4 floats: 1,712 bytes a client.
    assert make_gradient_oracle(PROBLEM, clients, how).slice_size == 1
    monkeypatch.setattr(slices, "SLICE_BYTES", 8000)
    assert make_gradient_oracle(PROBLEM, clients, how).slice_size == 4


@pytest.mark.parametrize("problem", [PROBLEM, ss.Problem(least_squares, two_constraints, jnp.zeros(4))])
@pytest.mark.parametrize("loss", ["objective_loss", "constraint_loss", "mixed_loss"])
def test_one_backward_pass_equals_the_local_solver_at_one_step(x64, problem, loss):
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


def test_history_accounts_for_every_round(clients):
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


def test_worst_and_mean_client_are_followed_on_held_out_rows_too(clients):
    """By hand, through evaluate(), at the start; the training itself must not notice."""
    apart = client_data(*regression(seed=9))
    result = solve(clients, eval_every=40, held_out=apart)
    for data, seen in ((clients, result.history.full), (apart, result.history.held_out)):
        f, g = ss.evaluate(PROBLEM, data, PROBLEM.start)
        first = [values[0] for values in seen]
        np.testing.assert_allclose(first, [f.max(), g.max(), f.mean(), g.mean()], rtol=1e-5)
        assert len(seen.objective) == len(result.history.full_rounds) == 3
    assert result.history.held_out.objective[1] != result.history.full.objective[1]
    same_params(result, solve(clients, eval_every=40))
    assert solve(clients).history.held_out is None
    with pytest.raises(ValueError, match="held_out is evaluated every eval_every rounds, but eval_every is 0"):
        solve(clients, held_out=apart, eval_every=0)
    with pytest.raises(ValueError, match="held_out must have the clients' columns"):
        solve(clients, held_out=ss.ClientData.from_arrays({"x": np.zeros((2, 4))}, client=[0, 1]))


def test_whole_data_is_counted_in_rows(clients):
    history = solve(clients, batch_size=None, value_batch_size=4, rounds=3).history
    total = int(clients.sizes.sum())
    assert history.value_evaluations.tolist() == [24, 48, 72]
    assert history.gradient_evaluations.tolist() == [total, 2 * total, 3 * total]


def test_evaluation_is_rare_by_default(clients):
    assert len(solve(clients, rounds=200).history.full_rounds) <= 20
    assert len(solve(clients, rounds=200, eval_every=0).history.full_rounds) == 0


def test_result_says_which_iterate_it_is(clients):
    result = solve(clients)
    assert result.selected == f"mean of the {result.history.feasible_rounds} feasible iterates of 120 rounds"
    late = solve(clients, average_last=0.5)
    assert late.selected.endswith("feasible iterates of rounds 60 to 119")
    F, G = ss.evaluate(PROBLEM, clients, late.params)
    np.testing.assert_allclose(late.client_objective, F, rtol=1e-6)
    assert late.worst_constraint == pytest.approx(G.max(), rel=1e-6)


def test_average_of_the_last_half_forgets_a_far_start():
    """min |w| twice over from w = 100 in steps of 0.5: the paper's average is spoilt, the last half's is not."""
    two = ss.ClientData.from_arrays({"sign": np.array([1.0, -1.0])}, client=[0, 1])
    problem = ss.Problem(lambda w, b: b["sign"][0] * w, lambda w, b: 0 * w - 1, jnp.float32(100.0))
    method = ss.SoftmaxSGM(alpha=1.0, step_size=0.5, tolerance=0.1)
    options = {"rounds": 600, "batch_size": None}
    assert abs(float(flat.solve(problem, two, method, **options).params)) > 10
    assert abs(float(flat.solve(problem, two, method, average_last=0.5, **options).params)) < 1e-3


def test_an_average_window_without_feasible_rounds_falls_back():
    """g rises above the threshold for good after the first rounds: the constraint's gradient is 0."""
    one = ss.ClientData.from_arrays({"x": np.zeros(2)}, client=[0, 0])
    problem = ss.Problem(lambda w, b: w, lambda w, b: jnp.where(w > -1, -1.0, 1.0) + 0 * w, jnp.float32(0.0))
    method = ss.AverageSGM(step_size=0.25, tolerance=0.1)
    result = flat.solve(problem, one, method, rounds=20, average_last=0.5, batch_size=None)
    assert result.history.feasible_rounds == 4
    assert result.selected.startswith("best feasible iterate by its reports, from round 3")
    assert float(result.params) == -0.75


def test_divergence_is_caught_with_its_round_and_client():
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


def test_nan_at_the_start_is_reported_with_its_client():
    clients = ss.ClientData.from_arrays({"x": np.array([1.0, -1.0])}, client=["fine", "broken"])
    problem = ss.Problem(lambda w, b: jnp.log(b["x"][0]) + w, lambda w, b: 0 * w - 1, jnp.float32(0.0))
    result = flat.solve(problem, clients, ss.HardSGM(step_size=1.0, tolerance=0.1), rounds=50, batch_size=None)
    assert result.status.code is ss.StatusCode.DIVERGED
    assert (result.status.round, result.status.client) == (0, "broken")
    assert "at the start" in result.status.message
    assert float(result.params) == 0.0


def test_a_callback_may_stop_the_run(monkeypatch, clients):
    monkeypatch.setattr(engine, "CHUNK_ROUNDS", 10)
    seen = []
    result = solve(clients, callbacks=[lambda chunk: seen.append(chunk.round) or chunk.round >= 30])
    assert seen == [10, 20, 30]
    assert result.status.code is ss.StatusCode.STOPPED
    assert len(result.history) == 30
    np.testing.assert_array_equal(result.last, solve(clients, rounds=30).last)


def test_ctrl_c_leaves_a_usable_result(monkeypatch, clients):
    monkeypatch.setattr(engine, "CHUNK_ROUNDS", 10)

    def interrupt(chunk):
        if chunk.round == 20:
            raise KeyboardInterrupt

    result = solve(clients, callbacks=[interrupt])
    assert result.status.code is ss.StatusCode.STOPPED
    assert len(result.history) == 20
    assert np.isfinite(result.worst_objective)


def test_progress_is_quiet_off_a_terminal_and_speaks_when_asked(capsys, clients):
    solve(clients)
    assert capsys.readouterr() == ("", "")
    solve(clients, progress=True)
    shown = capsys.readouterr().err
    assert "120/120" in shown
    assert all(word in shown for word in ("/s", "F ", "G ", "feasible"))


def statistics(w, batch):
    protected, score = batch["p"], jnp.tanh(batch["x"] * w)
    row = batch["weight"]
    return jnp.stack([(row * protected * score).sum(), (row * protected).sum(), (row * score).sum(), row.sum()])


def gap(total):
    return jnp.abs(total[0] / total[1] - total[2] / total[3])


def test_pooled_criterion_is_the_constraint_of_the_data_put_together():
    """Ragged clients: pooled over all is exactly the value on one client that holds all rows."""
    generator = np.random.default_rng(0)
    owner = np.repeat(np.arange(4), [3, 9, 20, 5])
    data = {"x": generator.normal(size=37), "p": (np.arange(37) % 3 == 0).astype(float)}
    many, one = ss.ClientData.from_arrays(data, client=owner), ss.ClientData.from_arrays(data, client=np.zeros(37))
    problem = ss.Problem(
        lambda w, b: mean((b["x"] - w) ** 2, b), ss.PooledConstraint(statistics, gap), jnp.float32(1.5)
    )
    method = ss.SoftmaxSGM(alpha=10.0, step_size=0.1, tolerance=0.1, criterion="pooled")
    result = flat.solve(problem, many, method, rounds=1, batch_size=None)
    together = ss.evaluate(problem, one, problem.start)[1]
    apart = ss.evaluate(problem, many, problem.start)[1]
    assert result.history.criterion[0] == pytest.approx(together.item(), rel=1e-5)
    assert abs(apart.max() - together.item()) > 0.01


def test_params_may_be_any_pytree(clients):
    def objective(params, batch):
        return mean((batch["a"] @ params["w"] + params["b"] - batch["b"]) ** 2, batch)

    start = {"w": jnp.zeros(4), "b": jnp.float32(0.0)}
    problem = ss.Problem(objective, lambda p, b: softplus_level(p["w"], b), start)
    for local_steps in (1, 2):
        result = solve(clients, problem=problem, local_steps=local_steps)
        assert jax.tree.structure(result.params) == jax.tree.structure(start)
        assert result.worst_objective < result.history.full.objective[0]


def test_a_constraint_that_is_nan_is_never_called_feasible():
    """A client that is not drawn has a NaN constraint at the answer: it violates, and is named first."""
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
def test_large_rounds_draw_as_they_go_and_draw_the_same(monkeypatch, clients, participation):
    options = {"rounds": 20, "participation": participation, "batch_size": 4, "replace": True, "record_clients": True}
    together = solve(clients, **options)
    monkeypatch.setattr(engine, "CHUNK_WORDS", 1)
    monkeypatch.setattr(engine, "chunk_length", lambda oracle: 20)
    apart = solve(clients, **options)
    np.testing.assert_array_equal(apart.history.per_client.clients, together.history.per_client.clients)
    np.testing.assert_allclose(apart.history.objective, together.history.objective, rtol=1e-5)
    np.testing.assert_allclose(apart.params, together.params, rtol=1e-4, atol=1e-6)


def test_a_round_that_fails_is_not_feasible():
    one = ss.ClientData.from_arrays({"x": np.ones(2)}, client=[0, 0])
    problem = ss.Problem(lambda w, b: jnp.log(-b["x"][0]) + w, lambda w, b: 0 * w - 1, jnp.float32(0.0))
    result = flat.solve(problem, one, ss.AverageSGM(step_size=0.1, tolerance=0.1), rounds=10, batch_size=1)
    assert result.history.feasible_rounds == 0
    assert result.best is None


@pytest.mark.parametrize("when", [0, 1, 2])
def test_ctrl_c_at_any_moment_is_consistent(monkeypatch, request, clients, when):
    """The interrupt comes while a chunk's history is read, not from a callback: it waits for the chunk's end."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    monkeypatch.setattr(engine, "CHUNK_ROUNDS", 10)
    from softswitch.results.history import History

    plain, calls = History.from_records, []

    def interrupted(*args, **kwargs):
        calls.append(None)
        if len(calls) == when + 1:
            signal.raise_signal(signal.SIGINT)
        return plain(*args, **kwargs)

    monkeypatch.setattr(History, "from_records", interrupted)
    result = solve(clients)
    assert result.status.code == "stopped"
    assert len(result.history) == 10 * (when + 1)
    assert result.selected.startswith(f"mean of the {result.history.feasible_rounds} feasible")


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_functions_that_compute_in_half_precision_do_not_narrow_the_rest(dtype):
    """The parameters are float32: an average of 1,000 iterates of 100 overflows float16, 301 rows lose digits in it."""
    x = np.arange(301, dtype=np.float32)
    many = ss.ClientData.from_arrays({"x": x}, client=np.repeat([0, 1], [1, 300]))
    problem = ss.Problem(
        lambda w, b: mean(b["x"], b) + 0 * w["a"].astype(dtype).sum(),
        lambda w, b: (mean(b["x"], b) * 0 - 1).astype(dtype),
        {"a": jnp.full(2, 100.0), "b": jnp.zeros(2)},
    )
    objective, _ = ss.evaluate(problem, many, problem.start)
    np.testing.assert_allclose(objective, [0, 150.5], rtol=1e-6)
    result = flat.solve(problem, many, ss.AverageSGM(step_size=0.1, tolerance=0.1), rounds=1000, batch_size=None)
    assert result.params["a"].dtype == jnp.float32
    np.testing.assert_allclose(result.params["a"], 100, rtol=2e-7)


def test_functions_of_the_parameters_alone_need_no_weights(clients):
    problem = ss.Problem(least_squares, lambda w, b: (w**2).sum() - 1, jnp.zeros(4))
    assert solve(clients, problem=problem, batch_size=None).status.ok


def test_a_numpy_true_stops_too(monkeypatch, clients):
    monkeypatch.setattr(engine, "CHUNK_ROUNDS", 10)
    result = solve(clients, callbacks=[lambda chunk: chunk.history.objective[-1] < 1e9])
    assert len(result.history) == 10


def test_callbacks_are_told_absolute_rounds(monkeypatch, clients):
    monkeypatch.setattr(engine, "CHUNK_ROUNDS", 50)
    seen = []
    solve(clients, eval_every=40, callbacks=[lambda chunk: seen.extend(chunk.history.full_rounds.tolist())])
    assert seen == [0, 40, 80]


def test_whole_data_makes_no_index_of_everyone_times_the_largest():
    """1,000 clients of one row and one of 10⁶: the draws of a round stay small."""
    sizes = np.r_[np.ones(1000, int), 10**6]
    huge = ss.ClientData.from_arrays({"x": np.zeros(sizes.sum(), np.float32)}, client=np.repeat(np.arange(1001), sizes))
    problem = ss.Problem(lambda w, b: mean(b["x"], b) + w, lambda w, b: mean(b["x"], b) - 1 + 0 * w, jnp.float32(0.0))
    oracle = make_gradient_oracle(problem, huge, Sampling(batch_size=None))
    draws = jax.eval_shape(oracle.draw, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(draws)) == 1001
    assert oracle.slice_size < 50


@pytest.mark.parametrize(("height", "code"), [(0.15, ss.StatusCode.VIOLATED), (0.099, ss.StatusCode.FEASIBLE)])
def test_status_compares_the_answer_with_the_tolerance(height, code):
    """g = ±height: the mean is 0 and every round feasible; the worse client decides the status."""
    two = ss.ClientData.from_arrays({"sign": np.array([1.0, -1.0])}, client=["up", "down"])
    problem = ss.Problem(lambda w, b: w**2, lambda w, b: height * b["sign"][0] + 0 * w, jnp.float32(1.0))
    result = flat.solve(problem, two, ss.AverageSGM(step_size=0.1, tolerance=0.1), rounds=10, batch_size=None)
    assert result.status.code is code
    assert result.violating == (("up",) if code is ss.StatusCode.VIOLATED else ())
    assert result.status.client == "up"
