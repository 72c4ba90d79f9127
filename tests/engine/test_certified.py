"""Certified training: the calibration split tests models in a fixed order, and influences no other choice."""

import itertools
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from softswitch.data.splits import DataSplit
from softswitch.engine import certified
from softswitch.engine.certified import MARGINS, MAX_STEPS, _Path
from softswitch.problem.networks import batch_scores, rescale_network
from softswitch.results.certificate import Outcome, Verdict
from softswitch.results.status import DiagnosticCode, StatusCode
from softswitch.tables.constraints import build_problem

MISSES = build_problem("miss-rate", 2).problem
PARITY = build_problem("demographic-parity", 4).problem
METHOD = ss.Automatic(tolerance=0.1)
OPTIONS = {"rounds": 150, "progress": False, "eval_every": 0, "lower_bound": False}


def make_table(rows=900, seed=0):
    """Return two features, of which the first predicts the class, and three clients."""
    generator = np.random.default_rng(seed)
    y = (generator.random(rows) < 0.5).astype(np.int32)
    x = generator.normal(size=(rows, 2)) + np.outer(3 * y - 1.5, [1, 0])
    return {"x": x.astype(np.float32), "y": y}, np.arange(rows) % 3


def make_split(rows=900, seed=0):
    data, client = make_table(rows, seed)
    return DataSplit.from_arrays(data, client, stratify=("y",), validation=0.2, calibration=0.3, strata="y")


def make_groups(sizes, seed=0):
    """Return a split of clients of these sizes, whose first feature is larger in the protected group."""
    generator = np.random.default_rng(seed)
    client = np.repeat(np.arange(len(sizes)), sizes)
    group = generator.integers(0, 2, len(client)).astype(np.int32)
    x = generator.normal(size=(len(client), 4))
    x[:, 0] += 0.5 * group
    y = (generator.random(len(client)) < 1 / (1 + np.exp(2 - x @ [0.8, 1.0, 1.0, -1.0]))).astype(np.int32)
    data = {"x": x.astype(np.float32), "y": y, "group": group}
    return DataSplit.from_arrays(data, client, stratify=("y", "group"), calibration=0.35, strata="group")


@pytest.fixture(scope="module")
def rate_run():
    return flat.solve_certified(MISSES, make_split(), METHOD, move=rescale_network, **OPTIONS)


@pytest.fixture(scope="module")
def groups():
    return make_groups(np.geomspace(5000, 40_000, 12).astype(int))


@pytest.fixture(scope="module")
def gap_run(groups):
    return ss.solve_certified(PARITY, groups, tolerance=0.05)


def test_certified_rate(rate_run):
    assert rate_run.outcome is Outcome.CERTIFIED
    assert rate_run.description.startswith("offset ")
    assert 0 < rate_run.passed <= rate_run.models
    assert rate_run.certificate.tests == rate_run.passed
    assert rate_run.result.method.tolerance == rate_run.certificate.tolerance == 0.1
    data, client = make_table(60_000, seed=1)
    _, constraint = ss.evaluate(MISSES, ss.ClientData.from_arrays(data, client), rate_run.result.params)
    assert constraint.max() <= 0.1
    is_alarm = batch_scores(rate_run.result.params, data) > 0
    assert is_alarm[data["y"] == 0].mean() < 0.6, "far from a constant"


def test_answer_has_its_own_values(rate_run):
    objective, constraint = ss.evaluate(MISSES, make_split().train, rate_run.result.params)
    np.testing.assert_allclose(rate_run.result.client_objective, objective, rtol=1e-6)
    np.testing.assert_allclose(rate_run.result.client_constraint, constraint, rtol=1e-6)
    assert rate_run.result.status.code is StatusCode.FEASIBLE
    assert not np.array_equal(rate_run.first[0]["b"], rate_run.result.params[0]["b"])
    np.testing.assert_array_equal(rate_run.first[0]["w"], rate_run.result.params[0]["w"])


def test_gap_at_many_clients_costs_little(groups, gap_run):
    """Twelve clients of unequal size are certified within 8% of the optimum without a certificate."""
    optimum = ss.solve(PARITY, groups.train, tolerance=0.05)
    assert gap_run.outcome is Outcome.CERTIFIED
    assert gap_run.description.startswith("margin ")
    assert gap_run.result.worst_objective < 1.08 * optimum.worst_objective
    assert gap_run.result.worst_constraint < 0.05
    assert gap_run.result.lower_bound.gap > 0


def test_averages_lie_between_trained_models(monkeypatch):
    """Between two trained models there are averages of their parameters, unless they are less safe than both."""
    tested = []
    certify_path = certified.certify_path
    monkeypatch.setattr(
        certified, "certify_path", lambda models, *a, **o: tested.append(models) or certify_path(models, *a, **o)
    )
    split = make_groups([3000] * 3)
    found = ss.solve_certified(PARITY, split, tolerance=0.05)
    (models,) = tested
    assert 1 + len(MARGINS) < found.models == len(models) <= 1 + MAX_STEPS * len(MARGINS)
    weights = np.array([np.asarray(model[0]["w"])[:, 0] for model in models])
    steps = np.diff(weights, axis=0)
    equal = [np.allclose(first, second, rtol=1e-3, atol=1e-6) for first, second in itertools.pairwise(steps)]
    assert sum(equal) >= found.models - 2 * len(MARGINS), "the averages between two models are at equal distances"


def test_resume_reproduces_the_result(groups, gap_run, tmp_path):
    folder = ss.Checkpoints(tmp_path / "checkpoints")
    for _ in range(2):
        again = ss.solve_certified(PARITY, groups, tolerance=0.05, checkpoints=folder)
        np.testing.assert_array_equal(again.result.params[0]["w"], gap_run.result.params[0]["w"])
        assert (again.models, again.passed, again.description) == (gap_run.models, gap_run.passed, gap_run.description)
    margins = [one.name for one in tmp_path.iterdir() if "margin" in one.name]
    assert MAX_STEPS * len(margins) >= gap_run.models - 1


def test_calibration_rows_only_decide_the_tests(groups, gap_run, rate_run):
    """With other calibration rows, the first model and the number of models are the same."""
    split = make_split()
    columns = {key: np.asarray(values) for key, values in split.calibration.rows.columns.items()}
    columns["x"] = -columns["x"]
    client = np.repeat(split.calibration.names, split.calibration.sizes)
    negated = split._replace(calibration=ss.ClientData.from_arrays(columns, client, strata="y"))
    run = flat.solve_certified(MISSES, negated, METHOD, move=rescale_network, **OPTIONS)
    assert run.models == rate_run.models
    np.testing.assert_array_equal(run.first[0]["w"], rate_run.first[0]["w"])
    assert run.certificate.verdict is Verdict.MEETS
    assert run.passed < rate_run.passed, "only models that predict nearly every row positive"
    columns = {key: np.asarray(values) for key, values in groups.calibration.rows.columns.items()}
    columns["group"] = np.asarray(columns["x"][:, 1] > 0.2).astype(np.int32)
    client = np.repeat(groups.calibration.names, groups.calibration.sizes)
    unfair = ss.solve_certified(
        PARITY, groups._replace(calibration=ss.ClientData.from_arrays(columns, client)), tolerance=0.05
    )
    assert (unfair.outcome, unfair.passed, unfair.models) == (Outcome.VIOLATES, 0, gap_run.models)
    assert unfair.result.worst_constraint < 0.05, "the safest model is the answer"


def test_models_worse_than_a_constant_are_not_tested(groups, gap_run, monkeypatch):
    monkeypatch.setattr(_Path, "constant_objective", 0.0)
    run = ss.solve_certified(PARITY, groups, tolerance=0.05)
    assert gap_run.models > 1
    assert (run.models, run.description) == (1, "margin 0")


def test_loss_without_move():
    """A loss of one class, whose range is unknown, has an approximate certificate."""
    problem = build_problem("neyman-pearson", 2).problem
    run = ss.solve_certified(problem, make_split(3000), tolerance=0.3)
    assert run.is_certified
    assert run.certificate.approximate
    assert 0.15 < run.result.worst_constraint < 0.3


def test_rate_without_move_is_trained_with_margins():
    run = flat.solve_certified(MISSES, make_split(3000), METHOD, **OPTIONS | {"rounds": 300})
    assert run.is_certified
    assert run.description.startswith("margin ")
    assert run.result.worst_constraint < 0.1


def test_too_few_rows():
    """No client can be certified: the answer is the first model, and no other is trained."""
    split = make_split(150)
    columns = {key: np.array(values) for key, values in split.calibration.rows.columns.items()}
    columns["x"] *= 3  # no misses
    client = np.repeat(split.calibration.names, split.calibration.sizes)
    split = split._replace(calibration=ss.ClientData.from_arrays(columns, client, strata="y"))
    run = flat.solve_certified(MISSES, split, METHOD, move=rescale_network, **OPTIONS)
    assert sorted(run.certifiability.uncertifiable) == [0, 1, 2]
    assert (run.outcome, run.models, run.passed) == (Outcome.TOO_FEW_ROWS, 1, 0)
    assert {client.verdict for client in run.certificate.clients} == {Verdict.TOO_FEW}
    np.testing.assert_array_equal(run.first[0]["w"], run.result.params[0]["w"])


def test_one_client_with_too_few_rows():
    data, client = make_table(3000)
    client = np.where(np.arange(3000) < 40, "small", client.astype(str))
    split = DataSplit.from_arrays(data, client, stratify=("y",), strata="y")
    run = flat.solve_certified(MISSES, split, METHOD, move=rescale_network, **OPTIONS)
    assert run.outcome is Outcome.PARTLY
    assert run.certifiability.uncertifiable == ("small",)


def test_stopped_run_has_no_certificate():
    run = flat.solve_certified(MISSES, make_split(), METHOD, callbacks=[lambda chunk: True], **OPTIONS)
    assert (run.certificate, run.outcome, run.is_certified) == (None, Outcome.INCOMPLETE, False)
    assert "training did not complete" in str(run)


def test_stopping_a_later_run_leaves_no_certificate(groups):
    exchanges = []

    def stop(chunk):
        exchanges.append(chunk.round)
        return exchanges.count(1) > 1

    run = ss.solve_certified(PARITY, groups, tolerance=0.05, logging=ss.Logging(callbacks=[stop]))
    assert run.outcome is Outcome.INCOMPLETE
    assert run.result.status.ok


def test_time_limit_ends_training_of_further_models(groups):
    run = ss.solve_certified(PARITY, groups, tolerance=0.05, seconds=1e-6)
    assert run.models == 1


def test_pooled_criterion_has_no_margins(groups):
    method = ss.Automatic(0.05, criterion="pooled")
    assert ss.solve_certified(PARITY, groups, method).models == 1


def test_answer_stays_in_the_domain(groups):
    problem = replace(PARITY, domain=ss.Ball(0.5))
    run = ss.solve_certified(problem, groups, tolerance=0.05)
    norm = sum(float(jnp.square(leaf).sum()) for leaf in run.result.params[0].values()) ** 0.5
    assert norm <= 0.5 + 1e-5


def test_diagnostics_concern_the_answer():
    """One of five clients always exceeds the bound and is trimmed, unless the answer has no such client."""
    data, client = make_table(6000)
    client = np.arange(6000) % 5
    data["y"] = np.where(client == 4, 1 - data["y"], data["y"])
    split = DataSplit.from_arrays(data, client, stratify=("y",), strata="y")
    method = ss.Automatic(0.1, ss.SoftmaxSGM, robust=1)
    run = flat.solve_certified(MISSES, split, method, move=rescale_network, **OPTIONS)
    codes = [diagnostic.code for diagnostic in run.result.diagnostics]
    exceeds = run.result.client_constraint.max() > 0.1 >= run.result.worst_constraint
    assert (DiagnosticCode.TRIMMED_VIOLATION in codes) == exceeds


def test_checkpoints_are_those_of_solve(groups, tmp_path):
    with pytest.raises(TypeError, match="checkpoints must be"):
        ss.solve_certified(PARITY, groups, tolerance=0.05, checkpoints=tmp_path)


def test_client_data_without_split_is_rejected():
    with pytest.raises(TypeError, match="split"):
        flat.solve_certified(MISSES, ss.ClientData.from_list([{"x": jnp.zeros(3)}]), METHOD)
