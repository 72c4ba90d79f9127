"""Private runs: noisy reports, rejected options, privacy accounting and displayed results."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from softswitch.certification.private import count_applicable_rows
from softswitch.engine import private
from softswitch.engine.private import make_plan
from softswitch.engine.request import RunOptions
from softswitch.oracles import evaluation
from softswitch.oracles.base import HostDraws
from softswitch.oracles.gradient import make_gradient_oracle
from softswitch.oracles.options import Sampling
from softswitch.privacy import noise as private_noise
from softswitch.privacy.accounting import compute_epsilon
from softswitch.privacy.ledger import LEDGER, ReleaseLedger
from softswitch.privacy.oracle import PrivateOracle
from softswitch.problem.fairness import demographic_parity, gap_sides, signed_gaps
from softswitch.results.folder import open_run, write_result
from softswitch.results.report.page import write_report
from softswitch_experiments.tasks.neyman_pearson import class_loss, neyman_pearson

RULE = ss.Automatic(tolerance=0.4)
PRIVACY = ss.RecordPrivacy(epsilon=4, delta=1e-4)


def make_rows(sizes=(300, 200, 250), seed=0):
    generator = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    y = generator.integers(2, size=len(owner))
    x = generator.normal(size=(len(owner), 4)) + 1.5 * (2 * y - 1)[:, None] * np.array([1, 0.5, 0, 0])
    return ss.ClientData.from_arrays({"x": x.astype(np.float32), "y": y}, client=owner)


PROBLEM, CLIENTS = neyman_pearson(4), make_rows()


@pytest.fixture(scope="module")
def result():
    return flat.solve(PROBLEM, CLIENTS, RULE, privacy=PRIVACY, rounds=30, progress=False)


def make_oracle(privacy, rounds=10, local_steps=1, data=CLIENTS):
    plan = make_plan(privacy, RunOptions(rounds=rounds, sampling=Sampling(local_steps=local_steps)))
    counts = count_applicable_rows(PROBLEM, data)
    return PrivateOracle(PROBLEM, data, privacy, plan.levels, counts, participants=len(data), local_steps=local_steps)


def make_decision(oracle, feasible):
    from softswitch.methods.messages import Decision, LocalLoss

    m = oracle.participants
    objective_share = jnp.float32(feasible)
    loss = LocalLoss(objective_share, jnp.full((m, 1), 1 - objective_share), 0.0, 0.0)
    return Decision(jnp.float32(0), jnp.bool_(feasible), jnp.arange(1.0, m + 1) / 6, loss)


@pytest.mark.parametrize("local_steps", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_matches_gradient_oracle_without_noise_and_clipping(local_steps):
    privacy = ss.RecordPrivacy(noise=1e-9, clip_value=100, clip_gradient=100)
    oracle = make_oracle(privacy, local_steps=local_steps)
    reference = make_gradient_oracle(PROBLEM, CLIENTS, Sampling(batch_size=None, local_steps=local_steps))
    w, key = jnp.array([0.5, -0.2, 0.1, 0.3]), jax.random.key(0)
    (actual_reports, state), (expected_reports, _) = (
        oracle.report(w, oracle.draw(key)),
        reference.report(w, reference.draw(key)),
    )
    np.testing.assert_allclose(actual_reports.objective, expected_reports.objective, rtol=1e-5)
    np.testing.assert_allclose(actual_reports.constraint, expected_reports.constraint, rtol=1e-5)
    for feasible in (True, False):
        step_decision = make_decision(oracle, feasible)
        direction_actual = oracle.direction(w, oracle.draw(key), state, step_decision, True, 0.5)
        direction_expected = reference.direction(w, reference.draw(key), None, step_decision, True, 0.5)
        np.testing.assert_allclose(direction_actual, direction_expected, rtol=1e-4, atol=1e-6)
        directions = oracle.directions(w, oracle.draw(key), state, step_decision, True, 0.5)
        np.testing.assert_allclose(step_decision.weights @ directions, direction_expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"rate": 0.3}])
def test_reports_and_directions_have_accounted_noise(settings):
    """All rows are equal, so reports and gradients vary by the noise and the number of drawn rows only."""
    privacy = ss.RecordPrivacy(noise=20.0, clip_value=0.5, clip_gradient=1e-3, **settings)
    oracle = make_oracle(privacy)
    w, times = jnp.zeros(4), 300  # every row's loss is ln 2, clipped to 0.5, and its gradient clipped to 1e-3
    draws = HostDraws(np.arange(3), 0)
    reports, directions = [], []
    for _ in range(times):
        report, kept = oracle.report(w, draws)
        reports.append(report.constraint[:, 0])
        directions.append(oracle.directions(w, draws, kept, make_decision(oracle, False), True, 0.1))
    counts = count_applicable_rows(PROBLEM, CLIENTS)[:, 1]
    rate = settings.get("rate", 1.0)
    noise_std = oracle.report_deviations[:, 1]
    subsampling_std = 0.5 * np.sqrt((1 - rate) / rate / counts)  # from the number of drawn rows
    expected = np.sqrt(noise_std**2 + subsampling_std**2)
    np.testing.assert_allclose(np.std(reports, axis=0), expected, rtol=0.18)
    np.testing.assert_allclose(np.mean(reports, axis=0), 0.5, atol=5 * expected.max() / np.sqrt(times))
    np.testing.assert_allclose(np.std(directions, axis=0).mean(axis=1), 20 * 1e-3 / (rate * counts), rtol=0.15)


def test_run_stays_within_budget(result):
    account = result.privacy
    assert account.releases == ((30, 30, 1),) * 3
    assert account.epsilon == (compute_epsilon(account.releases[0], account.noise, 1.0, 1e-4),) * 3
    assert 3.95 < account.worst_epsilon <= 4
    assert "ε = " in result.explain()
    assert "deviation" in result.status.message


def test_final_evaluation_is_noisy(result):
    objective, constraint = ss.evaluate(PROBLEM, CLIENTS, result.params)
    deviations = np.array(result.privacy.deviations)
    errors = np.abs(np.column_stack([result.client_objective - objective, result.client_constraint - constraint]))
    assert (errors > 1e-7).all()
    assert (errors < 6 * deviations).all()
    assert constraint.max() <= 0.42


def test_rows_are_evaluated_once(monkeypatch):
    """There is one final evaluation, and no other access to rows."""
    evaluations, accesses = [], []
    evaluate_params = PrivateOracle.evaluate_params
    monkeypatch.setattr(
        PrivateOracle, "evaluate_params", lambda self, params: evaluations.append(1) or evaluate_params(self, params)
    )
    for name in ("compiled_values", "pool_statistics", "client_values"):
        monkeypatch.setattr(evaluation, name, lambda *args, **kwargs: accesses.append(1))
    impossible = ss.Automatic(tolerance=1e-4)
    monkeypatch.setattr(
        "softswitch.engine.private.count_applicable_rows", lambda problem, clients: np.full((3, 2), 100)
    )
    second = flat.solve(PROBLEM, CLIENTS, impossible, privacy=PRIVACY, rounds=5, progress=False)
    assert second.status.code is ss.StatusCode.NO_FEASIBLE_ROUND
    assert (evaluations, accesses) == ([1], [])
    assert second.lower_bound is None
    assert second.baselines == ()
    assert len(second.history.full_rounds) == 0


class Killed(BaseException):
    pass


def run_with_checkpoints(folder, *callbacks, **changes):
    options = {"privacy": PRIVACY, "rounds": 30, "progress": False, **changes}
    return flat.solve(PROBLEM, CLIENTS, RULE, checkpoints=ss.Checkpoints(folder), callbacks=callbacks, **options)


def test_stopped_run_resumes_and_is_evaluated_once(tmp_path, monkeypatch):
    draws = []
    draw = private_noise.discrete_gaussian
    monkeypatch.setattr(private_noise, "discrete_gaussian", lambda *given: draws.append(given) or draw(*given))
    stopped = run_with_checkpoints(tmp_path, lambda chunk: chunk.round == 10)
    assert stopped.status.code is ss.StatusCode.STOPPED
    assert np.isnan(stopped.client_constraint).all()
    assert stopped.privacy.releases == ((10, 10, 0),) * 3
    resumed = run_with_checkpoints(tmp_path)
    assert resumed.privacy.releases == ((30, 30, 1),) * 3
    np.testing.assert_array_equal(resumed.history.criterion[:10], stopped.history.criterion)
    count = len(draws)
    again = run_with_checkpoints(tmp_path)  # no rounds are left, and the evaluation is saved
    np.testing.assert_array_equal(again.client_constraint, resumed.client_constraint)
    np.testing.assert_array_equal(again.params, resumed.params)
    assert len(draws) == count + 2  # the shapes of a record are found by a round that is not released
    for changes in ({"rounds": 40}, {"privacy": dataclasses.replace(PRIVACY, epsilon=5)}):
        with pytest.raises(ValueError, match=r"releases of RecordPrivacy.*for 30 rounds of 1 steps, not"):
            run_with_checkpoints(tmp_path, **changes)


def test_interrupted_chunk_stays_spent(tmp_path, monkeypatch):
    """A process that dies in the second chunk of ten rounds has spent them: ten rounds less are played."""
    played = []
    report = PrivateOracle.report

    def die(self, params, draws):
        played.append(1)
        if len(played) == 14:
            raise Killed
        return report(self, params, draws)

    monkeypatch.setattr(PrivateOracle, "report", die)
    with pytest.raises(Killed):
        run_with_checkpoints(tmp_path)
    resumed = run_with_checkpoints(tmp_path)
    assert len(resumed.history.criterion) == 20
    assert resumed.privacy.releases == ((30, 30, 1),) * 3
    assert resumed.privacy.worst_epsilon <= 4


def test_resume_needs_the_count_of_rounds(tmp_path):
    run_with_checkpoints(tmp_path, lambda chunk: chunk.round == 10)
    (tmp_path / LEDGER).unlink()
    with pytest.raises(ValueError, match="no count of the rounds"):
        run_with_checkpoints(tmp_path)


def test_checkpoint_has_no_digest_of_the_rows(tmp_path):
    """Whoever has a checkpoint and all rows but one could test guesses of that row against such a digest."""
    columns = {name: np.array(column) for name, column in CLIENTS.rows.columns.items()}
    columns["x"][0] += 1
    owner = np.repeat(CLIENTS.names, CLIENTS.sizes)
    changed = ss.ClientData.from_arrays(columns, client=owner)
    identities = []
    for i, clients in enumerate((CLIENTS, changed)):
        saved = ss.Checkpoints(tmp_path / str(i))
        flat.solve(PROBLEM, clients, RULE, privacy=PRIVACY, rounds=10, checkpoints=saved, progress=False)
        names = ("clients", "program", "start", "numbers", "method", "noise", "privacy")
        identities.append({name: saved.saved_identity(name) for name in names})
    assert None not in identities[0].values()
    assert identities[0] == identities[1]


def test_budget_spent_before_the_first_checkpoint(tmp_path):
    run_with_checkpoints(tmp_path, lambda chunk: chunk.round == 10)
    ReleaseLedger(tmp_path).begin_rounds(20)
    for file in tmp_path.glob("round-*"):
        file.unlink()
    with pytest.raises(ValueError, match="privacy budget"):
        run_with_checkpoints(tmp_path)


def test_counts_belong_to_the_settings_of_the_noise(tmp_path):
    """Rounds with little noise do not count as rounds with much noise, also if the checkpoints were deleted."""
    run_with_checkpoints(tmp_path, lambda chunk: chunk.round == 10, privacy=ss.RecordPrivacy(epsilon=100, delta=1e-4))
    for file in tmp_path.glob("round-*"):
        file.unlink()
    with pytest.raises(ValueError, match=r"releases of RecordPrivacy\(epsilon=100"):
        run_with_checkpoints(tmp_path)


def test_process_that_started_before_another_ended_spends_nothing_twice(tmp_path, monkeypatch):
    """The counts are read when a folder's lock is held: a process may have waited while another one ran to its end."""
    prepare, others = private.prepare_federation, []

    def prepare_slowly(*given):
        request = prepare(*given)
        if not others:
            others.append(None)
            others.append(run_with_checkpoints(tmp_path))
        return request

    monkeypatch.setattr(private, "prepare_federation", prepare_slowly)
    late = run_with_checkpoints(tmp_path)
    np.testing.assert_array_equal(late.client_constraint, others[1].client_constraint)
    assert late.privacy.releases == others[1].privacy.releases
    with pytest.raises(ValueError, match="30 are spent"):
        ReleaseLedger(tmp_path, planned=30).begin_rounds(1)


def test_unsampled_rounds_cost_nothing():
    """The budget depends on the realized participation, without amplification by client sampling."""
    second = flat.solve(PROBLEM, CLIENTS, RULE, privacy=PRIVACY, rounds=12, participation=0.4, progress=False)
    participations = np.bincount(second.history.per_client.clients.ravel(), minlength=3)
    assert participations.sum() == 12
    assert [release.reports for release in second.privacy.releases] == participations.tolist()
    for release, spent in zip(second.privacy.releases, second.privacy.epsilon, strict=True):
        assert spent == compute_epsilon(release, second.privacy.noise, 1.0, 1e-4)
    assert second.privacy.worst_epsilon < 4  # the noise is calibrated for a client that participates in every round


def test_noise_does_not_depend_on_seed(result):
    repeated = flat.solve(PROBLEM, CLIENTS, RULE, privacy=PRIVACY, rounds=30, progress=False)
    assert (np.asarray(repeated.params) != np.asarray(result.params)).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"held_out": CLIENTS}, "held_out must keep its default with privacy"),
        ({"batch_size": 32}, "batch_size must keep its default with privacy"),
        ({"value_batch_size": None}, "value_batch_size must keep its default with privacy"),
        ({"eval_every": 5}, "eval_every must keep its default with privacy"),
        ({"lower_bound": True}, "lower_bound must keep"),
        ({"replace": True}, "replace must keep"),
        ({"seconds": 5.0}, "seconds must keep"),
        ({"devices": 1}, "devices must keep its default with privacy"),
    ],
)
def test_unaccounted_row_access_is_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        flat.solve(PROBLEM, CLIENTS, RULE, privacy=PRIVACY, **settings)


def test_warm_start_is_rejected(result):
    with pytest.raises(ValueError, match="warm_start must keep its default with privacy"):
        flat.solve(PROBLEM, CLIENTS, RULE, privacy=PRIVACY, warm_start=result)


def test_streamed_data_is_rejected_with_alternative():
    streamed = ss.StreamedData.from_arrays({"x": np.ones((100, 4)), "y": np.arange(100) % 2}, np.repeat([0, 1], 50))
    for run in (lambda: flat.solve(PROBLEM, streamed, RULE, privacy=PRIVACY),):
        with pytest.raises(ValueError, match=r"but are StreamedData.* PrivateClient"):
            run()


def predict(w, batch):
    return jax.nn.sigmoid(batch["x"] @ w)


def make_groups(seed=3, lacking=False):
    generator = np.random.default_rng(seed)
    owner = np.repeat([0, 1], [120, 80])
    group = generator.integers(2, size=200)
    if lacking:
        group[owner == 1] = 0
    x = generator.normal(size=(200, 4)).astype(np.float32)
    return {"x": x, "y": generator.integers(2, size=200), "group": group, "side": gap_sides(group, owner)}, owner


def test_non_mean_functions_are_rejected_with_alternative():
    columns, owner = make_groups()
    data = ss.ClientData.from_arrays(columns, client=owner)
    gap = ss.Problem(lambda w, b: class_loss(w, b, 0), demographic_parity(predict), jnp.zeros(4))
    with pytest.raises(ValueError, match="signed_gaps and gap_sides"):
        flat.solve(gap, data, RULE, privacy=PRIVACY)
    squared = ss.Problem(lambda w, b: ((b["x"] @ w) @ b["weight"]) ** 2, lambda w, b: class_loss(w, b, 1), jnp.zeros(4))
    with pytest.raises(ValueError, match="the objective is not a mean over rows"):
        flat.solve(squared, data, RULE, privacy=PRIVACY)


def test_two_sided_constraint_equals_gap():
    for lacking in (False, True):
        columns, owner = make_groups(lacking=lacking)
        with jax.enable_x64(True):  # gaps are small differences
            data = ss.ClientData.from_arrays(columns, client=owner)
            w = jnp.array([1.0, -0.5, 0.2, 0.4])
            start = jnp.zeros(4)
            gap_problem = ss.Problem(lambda w, b: class_loss(w, b, 0), demographic_parity(predict), start)
            sides = ss.Problem(lambda w, b: class_loss(w, b, 0), signed_gaps(predict), start)
            gap, both = ss.evaluate(gap_problem, data, w)[1][:, 0], ss.evaluate(sides, data, w)[1]
            assert (count_applicable_rows(sides, data)[:, 1] == [120, 0 if lacking else 80]).all()
        np.testing.assert_allclose(both.max(axis=1), gap, rtol=1e-5)


def test_low_clip_bound_is_diagnosed():
    wide = dataclasses.replace(PROBLEM, constraint_range=(0.0, 7.0))
    for clip, expected in ((3.0, True), (7.0, False)):
        privacy = dataclasses.replace(PRIVACY, clip_value=clip)
        result = flat.solve(wide, CLIENTS, RULE, privacy=privacy, rounds=30, progress=False)
        assert any(diagnostic.code == "clipped-rows" for diagnostic in result.diagnostics) is expected


def test_spent_budget_is_saved_and_shown(result, tmp_path):
    write_result(tmp_path / "run", result)
    run = open_run(tmp_path / "run")
    assert run.about["privacy"]["epsilon"] == list(result.privacy.epsilon)
    assert run.clients["epsilon"] == pytest.approx(result.privacy.epsilon)
    text = write_report([tmp_path / "run"]).read_text()
    assert "<h2>Privacy</h2>" in text
    assert "ε spent" in text


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(ss.Penalty(tolerance=0.4, step_size=0.3, penalty=5.0), marks=pytest.mark.slow),
        pytest.param(
            ss.PrimalDual(tolerance=0.4, step_size=0.3, multiplier=1.0, dual_step_size=0.1), marks=pytest.mark.slow
        ),
        pytest.param(ss.Automatic(tolerance=0.4, soft=5.0, method=ss.AverageSGM), marks=pytest.mark.slow),
        ss.Automatic(tolerance=0.4, robust=1),
    ],
)
def test_methods_support_privacy(method):
    start = ss.evaluate(PROBLEM, CLIENTS, PROBLEM.start)
    second = flat.solve(PROBLEM, CLIENTS, method, privacy=PRIVACY, rounds=30, progress=False)
    objective, constraint = ss.evaluate(PROBLEM, CLIENTS, second.params)
    assert constraint.max() < 0.9 * start[1].max()
    assert objective.max() < start[0].max() + 0.1
    assert second.privacy.worst_epsilon <= 4


def test_private_result_lists_unknown_quantities():
    """There is no comparison with a constant, and advice to run longer states its privacy cost."""
    result = flat.solve(PROBLEM, CLIENTS, ss.Automatic(tolerance=0.01), privacy=PRIVACY, rounds=30, progress=False)
    by_code = {diagnostic.code: diagnostic for diagnostic in result.diagnostics}
    assert "constant prediction" in by_code["unknown-benefit"].evidence
    assert by_code["never-feasible"].advice.endswith("at full ε again")
    assert [diagnostic.code for diagnostic in result.diagnostics if diagnostic.advice.endswith("at full ε again")] == [
        diagnostic.code for diagnostic in result.diagnostics if diagnostic.suggests_more_rounds
    ]
