"""Private runs: what leaves clients, what is refused, what is counted, and what is shown of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from softswitch.certification.private import count_applicable_rows
from softswitch.engine.private import make_plan, make_private_oracle
from softswitch.engine.request import RunOptions
from softswitch.oracles import evaluation
from softswitch.oracles.gradient import make_gradient_oracle
from softswitch.oracles.options import Sampling
from softswitch.privacy import oracle as private_oracle_module
from softswitch.privacy.accounting import compute_epsilon
from softswitch.privacy.oracle import PrivateOracle
from softswitch.problem.fairness import demographic_parity, gap_sides, signed_gaps
from softswitch.results.folder import open_run, write_result
from softswitch.results.report.page import write_report
from softswitch_experiments.tasks.neyman_pearson import class_loss, neyman_pearson

RULE = ss.Automatic(tolerance=0.4)
PRIVACY = ss.RecordPrivacy(epsilon=4, delta=1e-4)


def rows(sizes=(300, 200, 250), seed=0):
    generator = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    y = generator.integers(2, size=len(owner))
    x = generator.normal(size=(len(owner), 4)) + 1.5 * (2 * y - 1)[:, None] * np.array([1, 0.5, 0, 0])
    return ss.ClientData.from_arrays({"x": x.astype(np.float32), "y": y}, client=owner)


PROBLEM, CLIENTS = neyman_pearson(4), rows()


@pytest.fixture(scope="module")
def result():
    return flat.solve(PROBLEM, CLIENTS, RULE, privacy=PRIVACY, rounds=30, progress=False)


def made(privacy, rounds=10, local_steps=1, participation=1.0, seed=0, data=CLIENTS):
    how = Sampling(local_steps=local_steps, participation=participation)
    plan = make_plan(privacy, RunOptions(rounds=rounds, sampling=how))
    return make_private_oracle(PROBLEM, data, plan, how, count_applicable_rows(PROBLEM, data), seed)


def decision(oracle, feasible):
    from softswitch.methods.messages import Decision, LocalLoss

    m = oracle.participants
    bit = jnp.float32(feasible)
    loss = LocalLoss(bit, jnp.full((m, 1), 1 - bit), 0.0, 0.0)
    return Decision(jnp.float32(0), jnp.bool_(feasible), jnp.arange(1.0, m + 1) / 6, loss)


@pytest.mark.parametrize("local_steps", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_without_noise_and_clipping_it_is_the_plain_oracle(local_steps):
    privacy = ss.RecordPrivacy(noise=1e-9, clip_value=100, clip_gradient=100)
    oracle = made(privacy, local_steps=local_steps)
    plain = make_gradient_oracle(PROBLEM, CLIENTS, Sampling(batch_size=None, local_steps=local_steps))
    w, key = jnp.array([0.5, -0.2, 0.1, 0.3]), jax.random.key(0)
    (own, kept), (theirs, _) = oracle.report(w, oracle.draw(key)), plain.report(w, plain.draw(key))
    np.testing.assert_allclose(own.objective, theirs.objective, rtol=1e-5)
    np.testing.assert_allclose(own.constraint, theirs.constraint, rtol=1e-5)
    for feasible in (True, False):
        told = decision(oracle, feasible)
        found = oracle.direction(w, oracle.draw(key), kept, told, True, 0.5)
        wanted = plain.direction(w, plain.draw(key), None, told, True, 0.5)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
        each = oracle.directions(w, oracle.draw(key), kept, told, True, 0.5)
        np.testing.assert_allclose(told.weights @ each, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"rate": 0.3}])
def test_reports_and_directions_have_the_noise_that_is_counted(settings):
    """The scatter of 600 reports and gradients of rows that all say the same: noise alone, where all rows are taken."""
    privacy = ss.RecordPrivacy(noise=20.0, clip_value=0.5, clip_gradient=1e-3, **settings)
    oracle = made(privacy)
    w = jnp.zeros(4)  # every row's loss is ln 2, clipped to 0.5, and its gradient clipped to 1e-3

    @jax.jit
    @jax.vmap
    def once(key):
        reports, kept = oracle.report(w, oracle.draw(key))
        return reports.constraint[:, 0], oracle.directions(
            w, oracle.draw(key), kept, decision(oracle, False), True, 0.1
        )

    reports, directions = once(jax.random.split(jax.random.key(1), 600))
    counts = count_applicable_rows(PROBLEM, CLIENTS)[:, 1]
    rate = settings.get("rate", 1.0)
    of_noise = float(oracle.noise.report) / (rate * counts)
    of_draws = 0.5 * np.sqrt((1 - rate) / rate / counts)  # of how many rows are drawn; fixed numbers scatter less
    expected = np.sqrt(of_noise**2 + of_draws**2)
    np.testing.assert_allclose(np.std(reports, axis=0), expected, rtol=0.12)
    np.testing.assert_allclose(np.mean(reports, axis=0), 0.5, atol=5 * expected.max() / np.sqrt(600))
    np.testing.assert_allclose(np.std(directions, axis=0).mean(axis=1), 20 * 1e-3 / (rate * counts), rtol=0.1)


def test_a_run_counts_all_that_left_and_keeps_to_its_budget(result):
    account = result.privacy
    assert account.releases == ((30, 30, 1, 0),) * 3
    assert account.epsilon == (compute_epsilon(account.releases[0], account.noise, 1.0, 1e-4),) * 3
    assert 3.95 < account.worst_epsilon <= 4
    assert "ε = " in result.explain()
    assert "deviation" in result.status.message


def test_what_is_said_of_the_answer_is_said_with_noise(result):
    objective, constraint = ss.evaluate(PROBLEM, CLIENTS, result.params)
    deviations = np.array(result.privacy.deviations)
    apart = np.abs(np.column_stack([result.client_objective - objective, result.client_constraint - constraint]))
    assert (apart > 1e-7).all()
    assert (apart < 6 * deviations).all()
    assert constraint.max() <= 0.42


def test_nothing_else_looks_at_rows(monkeypatch):
    """One judging; no evaluation, no start, no scatter, no blocker, no bound from below."""
    judged, looked = [], []
    judge = PrivateOracle.evaluate_params
    monkeypatch.setattr(PrivateOracle, "evaluate_params", lambda self, params: judged.append(1) or judge(self, params))
    for name in ("compiled_values", "pool_statistics", "client_values"):
        monkeypatch.setattr(evaluation, name, lambda *args, **kwargs: looked.append(1))
    impossible = ss.Automatic(tolerance=1e-4)
    monkeypatch.setattr(
        "softswitch.engine.private.count_applicable_rows", lambda problem, clients: np.full((3, 2), 100)
    )
    found = flat.solve(PROBLEM, CLIENTS, impossible, privacy=PRIVACY, rounds=5, progress=False)
    assert found.status.code is ss.StatusCode.NO_FEASIBLE_ROUND
    assert (judged, looked) == ([1], [])
    assert found.lower_bound is None
    assert found.baselines == ()
    assert len(found.history.full_rounds) == 0


def test_a_run_that_was_interrupted_goes_on_to_the_same_bits_and_spends_nothing_twice(result, tmp_path, monkeypatch):
    judged = []
    judge = private_oracle_module._evaluate
    monkeypatch.setattr(private_oracle_module, "_evaluate", lambda *given: judged.append(1) or judge(*given))
    monkeypatch.setattr("softswitch.engine.compiled.CHUNK_ROUNDS", 10)

    class Killed(BaseException):
        pass

    def run(*callbacks, **changes):
        options = {"privacy": PRIVACY, "rounds": 30, "progress": False, **changes}
        kept = ss.Checkpoints(tmp_path / "kept", every=0)
        return flat.solve(PROBLEM, CLIENTS, RULE, checkpoints=kept, callbacks=callbacks, **options)

    stopped = run(lambda chunk: chunk.round == 10)
    assert stopped.status.code is ss.StatusCode.STOPPED
    assert "evaluated once, at the end" in stopped.status.message
    assert np.isnan(stopped.client_constraint).all()
    assert stopped.privacy.releases == ((10, 10, 0, 0),) * 3

    def dies(chunk):
        if chunk.round == 30:
            raise Killed

    with pytest.raises(Killed):
        run(dies)
    assert judged == []
    for _ in range(2):  # the second time there is nothing left to do, and the same judging comes of the same answer
        found = run()
        assert found.privacy == result.privacy
        np.testing.assert_array_equal(found.params, result.params)
        np.testing.assert_array_equal(found.client_constraint, result.client_constraint)
    for changes in ({"rounds": 40}, {"privacy": dataclasses.replace(PRIVACY, epsilon=5)}):
        with pytest.raises(ValueError, match=r"its privacy is RecordPrivacy.*for 30 rounds, not"):
            run(**changes)


def test_clients_that_are_asked_less_often_spend_less():
    """By who took part; and nothing is gained from chance having chosen them."""
    found = flat.solve(PROBLEM, CLIENTS, RULE, privacy=PRIVACY, rounds=12, participation=0.4, progress=False)
    asked = np.bincount(found.history.per_client.clients.ravel(), minlength=3)
    assert asked.sum() == 12
    assert [own.reports for own in found.privacy.releases] == asked.tolist()
    for own, spent in zip(found.privacy.releases, found.privacy.epsilon, strict=True):
        assert spent == compute_epsilon(own, found.privacy.noise, 1.0, 1e-4)
    assert found.privacy.worst_epsilon < 4  # noise is for a client that is asked in every round


def test_sizes_that_are_no_public_matter_are_told_with_noise_and_counted():
    privacy = dataclasses.replace(PRIVACY, public_sizes=False)
    plan = make_plan(privacy, RunOptions(rounds=10))
    truth = count_applicable_rows(PROBLEM, CLIENTS)
    told = np.stack(
        [make_private_oracle(PROBLEM, CLIENTS, plan, Sampling(), truth, seed).counts - truth for seed in range(40)]
    )
    np.testing.assert_allclose(told.std(), plan.levels.sizes * np.sqrt(2), rtol=0.15)
    found = flat.solve(PROBLEM, CLIENTS, RULE, privacy=privacy, rounds=10, progress=False)
    assert found.privacy.releases[0] == (10, 10, 1, 1)
    assert found.privacy.worst_epsilon <= 4
    assert "released with noise" in str(found.privacy)


def test_the_seed_decides_and_other_seeds_have_other_noise(result):
    again, other = (
        flat.solve(PROBLEM, CLIENTS, RULE, privacy=PRIVACY, rounds=30, seed=seed, progress=False) for seed in (0, 1)
    )
    np.testing.assert_array_equal(again.params, result.params)
    assert (np.asarray(other.params) != np.asarray(result.params)).all()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"held_out": CLIENTS}, "held_out must keep its default with privacy"),
        ({"batch_size": 32}, "batch_size must keep its default with privacy"),
        ({"value_batch_size": None}, "value_batch_size must keep its default with privacy"),
        ({"eval_every": 5}, "eval_every must keep its default with privacy"),
        ({"lower_bound": True}, "lower_bound must keep"),
        ({"replace": True}, "replace must keep"),
        ({"seconds": 5.0}, "seconds must keep"),
        ({"engine": "grid"}, "engine must be 'compiled' with privacy, but is 'grid'"),
        ({"devices": 1}, "devices must keep its default with privacy"),
    ],
)
def test_whatever_would_look_at_rows_uncounted_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        flat.solve(PROBLEM, CLIENTS, RULE, privacy=PRIVACY, **settings)


def test_a_warm_start_is_refused(result):
    with pytest.raises(ValueError, match="warm_start must keep its default with privacy"):
        flat.solve(PROBLEM, CLIENTS, RULE, privacy=PRIVACY, warm_start=result)


def test_rows_that_are_not_in_memory_are_refused_with_the_way_out():
    streamed = ss.StreamedData.from_arrays({"x": np.ones((100, 4)), "y": np.arange(100) % 2}, np.repeat([0, 1], 50))
    for run in (lambda: flat.solve(PROBLEM, streamed, RULE, privacy=PRIVACY),):
        with pytest.raises(ValueError, match=r"but are StreamedData.* PrivateClient"):
            run()


def predict(w, batch):
    return jax.nn.sigmoid(batch["x"] @ w)


def grouped(seed=3, lacking=False):
    generator = np.random.default_rng(seed)
    owner = np.repeat([0, 1], [120, 80])
    group = generator.integers(2, size=200)
    if lacking:
        group[owner == 1] = 0
    x = generator.normal(size=(200, 4)).astype(np.float32)
    return {"x": x, "y": generator.integers(2, size=200), "group": group, "side": gap_sides(group, owner)}, owner


def test_functions_that_are_no_means_over_rows_are_refused_with_the_way_out():
    columns, owner = grouped()
    data = ss.ClientData.from_arrays(columns, client=owner)
    gap = ss.Problem(lambda w, b: class_loss(w, b, 0), demographic_parity(predict), jnp.zeros(4))
    with pytest.raises(ValueError, match="signed_gaps and gap_sides"):
        flat.solve(gap, data, RULE, privacy=PRIVACY)
    squared = ss.Problem(lambda w, b: ((b["x"] @ w) @ b["weight"]) ** 2, lambda w, b: class_loss(w, b, 1), jnp.zeros(4))
    with pytest.raises(ValueError, match="the objective is not a mean over rows"):
        flat.solve(squared, data, RULE, privacy=PRIVACY)


def test_two_sides_are_the_gap():
    for lacking in (False, True):
        columns, owner = grouped(lacking=lacking)
        with jax.enable_x64(True):  # gaps are small differences
            data = ss.ClientData.from_arrays(columns, client=owner)
            w = jnp.array([1.0, -0.5, 0.2, 0.4])
            start = jnp.zeros(4)
            plain = ss.Problem(lambda w, b: class_loss(w, b, 0), demographic_parity(predict), start)
            sides = ss.Problem(lambda w, b: class_loss(w, b, 0), signed_gaps(predict), start)
            gap, both = ss.evaluate(plain, data, w)[1][:, 0], ss.evaluate(sides, data, w)[1]
            assert (count_applicable_rows(sides, data)[:, 1] == [120, 0 if lacking else 80]).all()
        np.testing.assert_allclose(both.max(axis=1), gap, rtol=1e-5)


def test_a_clip_below_what_rows_may_tell_is_a_finding():
    wide = dataclasses.replace(PROBLEM, constraint_range=(0.0, 7.0))
    for clip, found in ((3.0, True), (7.0, False)):
        privacy = dataclasses.replace(PRIVACY, clip_value=clip)
        result = flat.solve(wide, CLIENTS, RULE, privacy=privacy, rounds=30, progress=False)
        assert any(one.code == "clipped-rows" for one in result.diagnostics) is found


def test_what_was_spent_is_saved_and_shown(result, tmp_path):
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
def test_rules_of_every_kind_learn_privately(method):
    start = ss.evaluate(PROBLEM, CLIENTS, PROBLEM.start)
    found = flat.solve(PROBLEM, CLIENTS, method, privacy=PRIVACY, rounds=30, progress=False)
    objective, constraint = ss.evaluate(PROBLEM, CLIENTS, found.params)
    assert constraint.max() < 0.9 * start[1].max()
    assert objective.max() < start[0].max() + 0.1
    assert found.privacy.worst_epsilon <= 4


def test_every_private_run_says_what_is_not_known_of_it():
    """No comparison with a constant; and no advice to run longer without what that costs."""
    result = flat.solve(PROBLEM, CLIENTS, ss.Automatic(tolerance=0.01), privacy=PRIVACY, rounds=30, progress=False)
    told = {one.code: one for one in result.diagnostics}
    assert "constant prediction" in told["unknown-benefit"].evidence
    assert told["never-feasible"].advice.endswith("at full ε again")
    assert [one.code for one in result.diagnostics if one.advice.endswith("at full ε again")] == [
        one.code for one in result.diagnostics if one.suggests_more_rounds
    ]
