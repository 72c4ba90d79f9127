"""Automatic runs: restarts, stopping, and different kinds of problems."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from compilations import COMPILATIONS
from problems import LEVEL, NumpyTwin, client_data, least_squares, mean, regression, softplus_level, two_constraints
from softswitch.engine import compiled, solve
from softswitch.engine.restarts import LocalRestarts, numbers_of, with_numbers
from softswitch.methods import Reports
from softswitch.methods.schedules import FallingStep

BARE = ss.Automatic(tolerance=0.1, method=ss.SoftmaxSGM)
PROBLEM = ss.Problem(least_squares, softplus_level, jnp.zeros(4))
DATA = regression()


@pytest.fixture(scope="module")
def clients():
    return client_data(*DATA)


def solve_automatic(clients, method=BARE, problem=PROBLEM, **options):
    return flat.solve(problem, clients, method, **{"rounds": 100, "eval_every": 0, "lower_bound": False} | options)


def check_restarts(result):
    """Check that restarts are contiguous, that the answer never gets worse, and that the last one is the result."""
    restarts, tolerance = result.restarts, result.method.tolerance
    assert restarts[0].begin == 0
    assert restarts[-1].end == len(result.history)
    for before, after in itertools.pairwise(restarts):
        assert before.end == after.begin
        worse = max(0, after.constraint - tolerance) > max(0, before.constraint - tolerance)
        assert not worse
        if before.constraint <= tolerance:
            assert after.aim <= before.aim
        assert (after.answer == before.answer) == (not after.better)
        factor = after.step_size / before.step_size
        assert min(abs(factor / known - 1) for known in (2, 1, 0.3, 0.1)) < 1e-6
    assert result.selected == restarts[-1].answer
    assert restarts[-1].objective == pytest.approx(result.worst_objective, rel=1e-6)
    assert result.method.step_size == FallingStep(
        first=restarts[-1].step_size, rounds=result.method.step_size.rounds, begin=restarts[-1].begin
    )


def same_bits(one, other):
    np.testing.assert_array_equal(one.params, other.params)
    np.testing.assert_array_equal(one.last, other.last)
    np.testing.assert_array_equal(one.history.criterion, other.history.criterion)
    assert one.restarts == other.restarts


@pytest.mark.parametrize("rounds", [1, 41, *(pytest.param(rounds, marks=pytest.mark.slow) for rounds in (2, 5, 400))])
def test_any_number_of_rounds(clients, rounds):
    result = solve_automatic(clients, rounds=rounds)
    assert len(result.history) == rounds
    check_restarts(result)
    assert result.status.code is ss.StatusCode.FEASIBLE
    objective, constraint = ss.evaluate(PROBLEM, clients, result.params)
    np.testing.assert_array_equal(objective, result.client_objective)
    assert constraint.max() <= 0.1
    start = ss.evaluate(PROBLEM, clients, PROBLEM.start)[0].max()
    assert objective.max() < start, "the start meets the constraint, and some round improves on it"


def test_restarts_grow_and_have_text(clients):
    result = solve_automatic(clients, rounds=400)
    lengths = [restart.end - restart.begin for restart in result.restarts]
    assert lengths[:3] == [40, 57, 80]
    assert len(lengths) > 3
    assert result.restarts[0].step_size == pytest.approx(0.1)
    text = str(result.restarts[0])
    assert text.startswith("rounds 0 to 39, step 0.1 decaying to 0, λ = 0.1: F ")
    unsuccessful = dataclasses.replace(result.restarts[0], better=False)
    assert str(unsuccessful).endswith(", no improvement")
    assert str(dataclasses.replace(result.restarts[0], diverged=True)).endswith("not finite")


def test_same_seed_same_bits(clients):
    options = {"batch_size": 4, "value_batch_size": 4}
    same_bits(solve_automatic(clients, seed=4, **options), solve_automatic(clients, seed=4, **options))


@pytest.mark.slow
@pytest.mark.default_compiler
def test_chunk_size_does_not_change_bits(monkeypatch, clients):
    options = {"batch_size": 4, "value_batch_size": 4}
    one, again = (solve_automatic(clients, seed=4, **options) for _ in range(2))
    same_bits(one, again)
    assert not np.array_equal(one.history.criterion, solve_automatic(clients, seed=5, **options).history.criterion)
    monkeypatch.setattr(compiled, "CHUNK_ROUNDS", 7)
    same_bits(one, solve_automatic(clients, seed=4, **options))


def test_new_settings_do_not_recompile(clients):
    solve_automatic(clients, rounds=100)
    before = COMPILATIONS.count
    assert before > 0, "the counter must count"
    solve_automatic(clients, ss.Automatic(tolerance=0.2, method=ss.SoftmaxSGM), rounds=230, seed=3, average_last=0.3)
    assert COMPILATIONS.count == before


def test_time_limit_of_manual_run(clients):
    """The run ends after the first chunk past the limit, and equals a run with the same number of rounds."""
    method = ss.SoftmaxSGM(alpha=100.0, tolerance=0.1, step_size=0.1)
    options = {"batch_size": 8, "eval_every": 0, "seed": 2}
    timed = flat.solve(PROBLEM, clients, method, seconds=1e-6, **options)
    assert len(timed.history) == compiled.CHUNK_ROUNDS < 1000
    same_bits(timed, flat.solve(PROBLEM, clients, method, rounds=len(timed.history), **options))
    assert timed.status.code is not ss.StatusCode.STOPPED


def test_time_limit_of_automatic_run(clients):
    """The current restart is judged at its end. A callback that stops at the same round gives the same bits."""
    timed = solve_automatic(clients, rounds=20_000, seconds=1e-6)
    rounds = len(timed.history)
    assert rounds == compiled.CHUNK_ROUNDS < timed.method.step_size.rounds, "in the middle of a cycle"
    check_restarts(timed)
    assert timed.status.code is ss.StatusCode.FEASIBLE
    same_bits(timed, solve_automatic(clients, rounds=20_000, callbacks=[lambda chunk: chunk.round >= rounds]))
    enough = solve_automatic(clients, rounds=100, seconds=1e4)
    same_bits(enough, solve_automatic(clients, rounds=100))


def test_callback_stops_within_restart(clients):
    """The answer is evaluated at the stop, and the status is STOPPED."""
    stopped = solve_automatic(clients, rounds=20_000, callbacks=[lambda chunk: True])
    assert stopped.status.code is ss.StatusCode.STOPPED
    assert len(stopped.history) == 250 < stopped.method.step_size.rounds
    check_restarts(stopped)


@pytest.mark.parametrize("when", [1, 2])
def test_ctrl_c_keeps_best_answer(clients, when):
    calls = []

    def interrupt(chunk):
        calls.append(chunk.round)
        if len(calls) == when:
            raise KeyboardInterrupt

    result = solve_automatic(clients, rounds=300, callbacks=[interrupt])
    assert result.status.code is ss.StatusCode.STOPPED
    assert len(result.restarts) == when
    check_restarts(result)
    same_bits(
        result, solve_automatic(clients, rounds=300, callbacks=[lambda chunk: chunk.round == len(result.history)])
    )


def test_partial_participation_uses_client_memory(clients):
    options = {"participation": 0.5, "rounds": 100}
    default = solve_automatic(clients, **options)
    same_bits(default, solve_automatic(clients, memory=ss.Memory(smoothing=0.0), **options))
    assert "memory" in default.state.parts
    assert default.status.code is ss.StatusCode.FEASIBLE
    check_restarts(default)


def test_infeasible_problem_is_diagnosed(clients):
    """If the constraint cannot be met, the answer has the smallest violation and a diagnostic reports it."""
    infeasible = ss.Problem(least_squares, lambda w, b: softplus_level(w, b) + 9, jnp.zeros(4))
    result = solve_automatic(clients, problem=infeasible, rounds=150)
    assert result.status.code is ss.StatusCode.NO_FEASIBLE_ROUND
    assert result.history.feasible_rounds == 0
    assert result.best is None
    check_restarts(result)
    assert [diagnostic.code for diagnostic in result.diagnostics] == ["never-feasible"]
    assert result.status.criterion == pytest.approx(float(result.history.criterion.min()))
    assert result.worst_constraint < ss.evaluate(infeasible, clients, infeasible.start)[1].max()
    assert result.worst_constraint <= result.history.criterion.min() + 1e-5


def test_non_finite_start_is_reported(clients):
    broken = ss.Problem(lambda w, b: jnp.log(-1 - least_squares(w, b)), softplus_level, jnp.zeros(4))
    result = solve_automatic(clients, problem=broken)
    assert (result.status.code, result.status.round) == (ss.StatusCode.DIVERGED, 0)
    assert result.status.client in clients.names
    assert result.restarts == ()
    np.testing.assert_array_equal(result.params, np.zeros(4))


TWO = ss.ClientData.from_arrays({"sign": np.array([1.0, -1.0])}, client=["up", "down"])


def test_diverged_restart_is_recovered():
    """The objective is NaN further than 0.3 from the start: the first step is too large, the next is a tenth of it."""

    def bounded_objective(w, batch):
        return jnp.where(jnp.abs(w - 1) < 0.3, (w - 1.2) ** 2, jnp.nan)

    problem = ss.Problem(bounded_objective, lambda w, b: -1.0 + 0 * w, jnp.float32(1.0))
    result = solve_automatic(TWO, problem=problem, rounds=200)
    assert result.status.code is ss.StatusCode.FEASIBLE
    check_restarts(result)
    first, second = result.restarts[:2]
    assert first.diverged
    assert first.better, "the best iterate before divergence is kept"
    assert first.objective < 0.04
    assert first.answer == f"best feasible iterate by its reports of rounds 0 to {first.end - 1}"
    assert first.end < 40, "it ends at the first round that is not finite"
    assert str(first).endswith("not finite")
    assert second.step_size == pytest.approx(0.1 * first.step_size)
    assert not second.diverged
    assert result.worst_objective < 1e-6
    assert not result.history.feasible[first.end - 1]


def test_repeated_divergence_ends_run():
    def point(w, batch):
        return jnp.where(w == 1, -w, jnp.nan)

    problem = ss.Problem(point, lambda w, b: -1.0 + 0 * w, jnp.float32(1.0))
    result = solve_automatic(TWO, problem=problem, rounds=300)
    assert result.status.code is ss.StatusCode.DIVERGED
    assert len(result.history) == 12, "six restarts of two rounds"
    assert float(result.params) == 1


def pooled_problem():
    def statistics(w, batch):
        weight = batch["weight"]
        return jnp.stack([(weight * jnp.logaddexp(0, batch["c"] @ w)).sum(), weight.sum()])

    constraint = ss.PooledConstraint(statistics, lambda sums: sums[0] / sums[1] - LEVEL)
    return ss.Problem(least_squares, constraint, jnp.zeros(4))


def test_pooled_criterion(clients):
    method = ss.Automatic(tolerance=0.1, criterion="pooled", method=ss.SoftmaxSGM)
    result = solve_automatic(clients, method, pooled_problem())
    assert result.status.code is ss.StatusCode.FEASIBLE
    check_restarts(result)
    assert result.restarts[-1].constraint == pytest.approx(result.pooled_constraint.max(), rel=1e-6)
    assert result.pooled_constraint.max() <= 0.1 < result.worst_constraint
    assert result.worst_objective < solve_automatic(clients).worst_objective, "the pooled constraint is weaker"


def test_several_constraints(clients):
    result = solve_automatic(clients, problem=ss.Problem(least_squares, two_constraints, jnp.zeros(4)))
    assert result.status.code is ss.StatusCode.FEASIBLE
    check_restarts(result)
    assert result.client_constraint.shape == (6, 2)
    assert result.restarts[-1].constraint == pytest.approx(result.client_constraint.max(), rel=1e-6)


def test_clients_without_an_objective():
    """Half of the clients have only a constraint: they count in G and not in F."""
    data, owner = DATA
    some = client_data({**data, "has": (owner % 2).astype(float)}, owner)

    def objective(w, batch):
        return jnp.where(mean(batch["has"], batch) > 0.5, least_squares(w, batch), -jnp.inf)

    result = solve_automatic(some, problem=ss.Problem(objective, softplus_level, jnp.zeros(4)))
    assert result.status.code is ss.StatusCode.FEASIBLE
    check_restarts(result)
    assert np.isneginf(result.client_objective).tolist() == [True, False] * 3
    assert np.isfinite(result.worst_objective)


def test_local_step_size_is_chosen(clients):
    """γ is chosen so that E steps along the first round's direction are as long as one server step."""
    result = solve_automatic(clients, rounds=30, local_steps=3)
    data, owner = DATA
    twin, w = NumpyTwin(data, 1), np.zeros(4)
    rows = [np.flatnonzero(owner == i) for i in range(6)]
    f = np.array([twin.f(w, r) for r in rows])
    alpha = 0.3 / (0.1 * np.ptp(f) + 1e-3 * f.max())
    p = np.exp(alpha * (f - f.max()))
    direction = (p / p.sum()) @ np.array([twin.grad_f(w, r) for r in rows])
    expected = result.method.step_size.first / (3 * np.linalg.norm(direction))
    assert result.method.local_step_size.first == pytest.approx(expected, rel=1e-4)
    assert result.method.local_step_size.rounds == result.method.step_size.rounds
    check_restarts(result)
    assert result.worst_objective < f.max()


@pytest.mark.parametrize(
    "method",
    [
        ss.Automatic(tolerance=0.1, method=ss.HardSGM),
        ss.Automatic(tolerance=0.1, method=ss.AverageSGM),
        ss.Automatic(tolerance=0.1, penalty=5.0, method=ss.Penalty),
        ss.Automatic(tolerance=0.1, multiplier=1.0, dual_step_size=0.1, method=ss.PrimalDual),
    ],
    ids=lambda method: type(method.template).__name__,
)
def test_other_methods_without_step_size(clients, method):
    result = solve_automatic(clients, method)
    check_restarts(result)
    method = method.template
    assert type(result.method) is type(method)
    criterion = result.client_constraint.max() if method.switches_on == "max" else result.client_constraint.mean()
    assert result.restarts[-1].constraint == pytest.approx(criterion, rel=1e-5)
    assert criterion <= 0.1, "the method's criterion is met on all data"
    assert result.worst_objective < ss.evaluate(PROBLEM, clients, PROBLEM.start)[0].max()


def test_mean_method_is_judged_by_mean():
    """f = (w − c)² for c = 1, 1, −2 without a constraint that matters: 0 for the mean, −1/2 for the worst client."""
    clients = ss.ClientData.from_arrays({"c": np.array([1.0, 1.0, -2.0], np.float32)}, client=["a", "b", "c"])
    problem = ss.Problem(lambda w, b: (w - b["c"][0]) ** 2, lambda w, b: -1 + 0 * w, jnp.float32(2.0))
    answers = {
        method: float(solve_automatic(clients, ss.Automatic(0.0, method), problem).params)
        for method in (ss.AverageSGM, ss.HardSGM)
    }
    assert answers[ss.AverageSGM] == pytest.approx(0.0, abs=1e-3)
    assert answers[ss.HardSGM] == pytest.approx(-0.5, abs=1e-3)


def test_multiplier_persists_across_restarts(clients):
    """The multiplier changes by η_d(mean g − ε) in every round of every restart."""
    method = ss.Automatic(tolerance=0.1, multiplier=1.0, dual_step_size=0.01, method=ss.PrimalDual)
    result = solve_automatic(clients, method, batch_size=None, record_clients=True)
    assert len(result.restarts) > 1
    reported = result.history.per_client.constraint[:, :, 0].mean(axis=1)
    multiplier = 1.0
    for mean_constraint in reported:
        multiplier = max(0.0, multiplier + 0.01 * (mean_constraint - 0.1))
    np.testing.assert_allclose(result.state.method, multiplier, rtol=1e-5)


def test_answer_within_tolerance_is_feasible(clients):
    """The threshold is below the range of g, so that no round is feasible. The answer still meets the tolerance."""
    method = ss.Automatic(tolerance=0.1, threshold=-10.0)
    result = solve_automatic(clients, method)
    assert not result.history.feasible.any()
    assert result.worst_constraint <= 0.1
    assert result.status.ok
    assert "all 6 clients are within the tolerance 0.1" in str(result.status)
    assert str(result.status).endswith("0 of 100 rounds were feasible")


def test_numbers_round_trip_through_json():
    method = ss.SoftmaxSGM(tolerance=0.1, alpha=3.0, step_size=FallingStep(first=np.float32([0.1, 0.2]), rounds=7))
    numbers = json.loads(json.dumps(numbers_of(method)))
    restored = with_numbers(
        dataclasses.replace(method, alpha=1.0, step_size=FallingStep(first=np.zeros(2), rounds=1)), numbers
    )
    np.testing.assert_array_equal(restored.step_size.first, method.step_size.first)
    assert (restored.alpha, restored.step_size.rounds) == (3.0, 7)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Draws:
    clients: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Springs(ss.Oracle):
    """Clients without rows: f_i = |w − c_i|², g_i = w·d_i."""

    centres: jax.Array
    normals: jax.Array

    @property
    def client_count(self):
        return self.centres.shape[0]

    @property
    def participants(self):
        return self.client_count

    def draw(self, key):
        return Draws(jnp.arange(self.client_count, dtype=jnp.int32))

    def evaluate(self, params):
        return jnp.square(params - self.centres).sum(axis=1), (self.normals @ params)[:, None]

    def report(self, params, draws):
        f, g = self.evaluate(params)
        return Reports(f, g, None, jnp.ones(f.shape, bool)), None

    def direction(self, params, draws, kept, decision, switches, step_size):
        loss = decision.local_loss
        return decision.weights @ (loss.objective * 2 * (params - self.centres) + loss.constraint * self.normals)


def test_custom_oracle_without_rows():
    """Two springs pull w to (1, 1) and (−1, 1), and linear constraints limit it."""
    oracle = Springs(jnp.array([[1.0, 1.0], [-1.0, 1.0]]), jnp.array([[0.0, 1.0], [1.0, 0.0]]))
    federation = ss.Federation(oracle, jnp.array([2.0, -1.0]), ("right", "left"))
    result = flat.solve_federation(federation, ss.Automatic(tolerance=0.25, method=ss.SoftmaxSGM), eval_every=0)
    # F = (1 + |w₀|)² + (1 − w₁)², w₀ <= 0.25, w₁ <= 0.25: at best w = (0, 0.25).
    np.testing.assert_allclose(result.params, [0, 0.25], atol=0.01)
    assert result.status.code is ss.StatusCode.FEASIBLE
    check_restarts(result)
    runs = flat.sweep_federation(
        federation, {"chosen": ss.Automatic(tolerance=0.25, method=ss.SoftmaxSGM)}, seeds=1, eval_every=0
    )
    same_bits(runs["chosen"][0], result)


def test_warm_start_continues_from_answer(clients):
    first = solve_automatic(clients, rounds=100)
    warm = solve_automatic(clients, rounds=100, warm_start=first)
    check_restarts(warm)
    averaged = solve_automatic(clients, rounds=40, warm_start=first, answer="average").restarts[0]
    assert averaged.answer == "the start" or averaged.answer.endswith(" on and of the previous run")
    assert warm.worst_objective <= first.worst_objective
    assert warm.worst_constraint <= 0.1
    paper = flat.solve(
        PROBLEM,
        clients,
        ss.SoftmaxSGM(alpha=100.0, tolerance=0.1, step_size=0.1),
        rounds=50,
        batch_size=None,
        eval_every=0,
    )
    with pytest.raises(ValueError, match="warm_start must come from a run with the same class of method and optimizer"):
        solve_automatic(clients, warm_start=paper)


class EngineArgumentsError(Exception):
    """Carries the arguments of an engine."""


def test_warm_start_state_is_used_by_first_restart_only(clients):
    """Later restarts begin from another answer, to which these moments and this average do not apply."""
    first = solve_automatic(clients, rounds=100)
    assert int(first.state.average.rounds) > 0

    def intercept(request, method, *rest):
        raise EngineArgumentsError(request, method)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solve, "run", intercept)
        with pytest.raises(EngineArgumentsError) as caught:
            solve_automatic(clients, rounds=100, warm_start=first)
    request, method = caught.value.args
    restarts = LocalRestarts(request, method)
    state = restarts.begin()
    for kept, begun in zip(
        jax.tree.leaves((first.state.optimizer, first.state.method, first.state.average)),
        jax.tree.leaves((state.optimizer, state.method, state.average)),
        strict=True,
    ):
        np.testing.assert_array_equal(kept, begun)
    restarts.close(state, [], restarts.end)
    second = restarts.begin()
    assert int(second.average.rounds) == 0
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(second.optimizer))


@pytest.mark.parametrize("answer", ["last", "average", "best"])
def test_requested_answer_is_selected(clients, answer):
    """Only the requested iterate of every restart is evaluated."""
    result = solve_automatic(clients, answer=answer)
    check_restarts(result)
    begins = {"last": "last iterate", "average": "mean of the", "best": "best feasible iterate"}[answer]
    assert result.selected.startswith(begins)


def test_sweep_of_automatic_runs(clients):
    methods = {"chosen": BARE, "chosen too": ss.Automatic(tolerance=0.2, method=ss.SoftmaxSGM)}
    options = {"rounds": 60, "eval_every": 0}
    runs = flat.sweep(PROBLEM, clients, methods, seeds=2, **options)
    assert runs.labels == tuple(methods)
    for label, method in methods.items():
        for seed in range(2):
            output, logging = ss.Output(lower_bound=False), ss.Logging(eval_every=0)
            single = ss.solve(PROBLEM, clients, method, seed=seed, rounds=60, output=output, logging=logging)
            same_bits(runs[label][seed], single)
            assert single.restarts
    given = ss.SoftmaxSGM(alpha=100.0, tolerance=0.1, step_size=0.1)
    with pytest.raises(ValueError, match="methods must be all automatic or all with given settings"):
        flat.sweep(PROBLEM, clients, {"given": given} | methods, seeds=1, **options)
    with pytest.raises(ValueError, match="vectorize must be False or None"):
        flat.sweep(PROBLEM, clients, methods, seeds=1, vectorize=True, **options)


def test_sweep_over_data_sets_sets_defaults_for_each(clients):
    other = client_data(*regression(clients=3))
    method = ss.SoftmaxSGM(alpha=100.0, tolerance=0.1, step_size=0.1)
    options = {"rounds": 30, "batch_size": None, "eval_every": 0}
    runs = flat.sweep(PROBLEM, [clients, other], {"paper": method}, seeds=2, **options)["paper"]
    for seed, data in enumerate((clients, other)):
        same_bits(runs[seed], flat.solve(PROBLEM, data, method, seed=seed, **options))
