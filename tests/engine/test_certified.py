"""Certified training: the calibration split tests models in a fixed order, and influences no other choice."""

from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from softswitch.certification.certifiability import CandidateForecast
from softswitch.data.splits import DataSplit
from softswitch.engine import certified
from softswitch.engine.candidates import Candidate, Variant, further_variants
from softswitch.engine.certified import prepare as prepare_models
from softswitch.engine.request import RunOptions, resolve_method
from softswitch.oracles.base import Evaluation
from softswitch.oracles.evaluation import make_evaluator
from softswitch.oracles.options import group_options
from softswitch.problem.networks import rescale_network
from softswitch.results.certificate import Verdict
from softswitch.results.status import Diagnostic, DiagnosticCode
from softswitch.tables.constraints import build_problem

PROBLEM = build_problem("miss-rate", 2).problem
RULE = ss.Automatic(tolerance=0.1)


def prepare(problem, split, method, move=None, **options):
    return prepare_models(problem, split, resolve_method(method), RunOptions(**group_options(**options)), move=move)


RUN = {"rounds": 150, "progress": False, "eval_every": 0, "lower_bound": False}


def make_table(rows=900, seed=0):
    """Two features, of which the first predicts the class, and three clients."""
    draws = np.random.default_rng(seed)
    y = (draws.random(rows) < 0.5).astype(np.int32)
    x = draws.normal(size=(rows, 2)) + np.outer(3 * y - 1.5, [1, 0])
    return {"x": x.astype(np.float32), "y": y}, np.arange(rows) % 3


def make_split(rows=900, seed=0):
    data, site = make_table(rows, seed)
    return DataSplit.from_arrays(data, site, stratify=("y",), validation=0.2, calibration=0.3, strata="y")


@pytest.fixture(scope="module")
def certified_run():
    return flat.solve_certified(PROBLEM, make_split(), RULE, move=rescale_network, **RUN)


def test_certified_model_meets_bound(certified_run):
    assert certified_run.is_certified
    assert str(certified_run).startswith(
        "Certified: with 95% confidence, the constraint is at most 0.1 at each of the 3 clients"
    )
    assert certified_run.result.status.ok
    assert certified_run.result.worst_constraint <= 0.1
    assert certified_run.result.selected.startswith("model selected for new data")
    population, site = make_table(60_000, seed=1)
    _, constraint = ss.evaluate(PROBLEM, ss.ClientData.from_arrays(population, site), certified_run.result.params)
    assert constraint.max() <= 0.1


def test_flower_default_rounds(monkeypatch):
    monkeypatch.setattr("softswitch.engine.solve.FLOWER_ROUNDS", 6)
    options = {name: value for name, value in RUN.items() if name != "rounds"}
    prepared = prepare(PROBLEM, make_split(120), RULE, engine="grid", **options)
    assert len(prepared.first.history) == 6


def test_upper_limits_equal_bound_after_selection(certified_run):
    if len(certified_run.tested) > 1:
        assert certified_run.certificate.tests == len(certified_run.tested)
        assert {client.constraints[0].upper for client in certified_run.certificate.clients} == {0.1}


def test_still_improving_comes_from_selected_run(certified_run):
    """All other diagnostics come from the first run."""
    noise, first_improving = (
        Diagnostic("noise", "seen", "change"),
        Diagnostic(DiagnosticCode.STILL_IMPROVING, "first", "run longer"),
    )
    selected_improving = Diagnostic(DiagnosticCode.STILL_IMPROVING, "own", "run longer")
    first = replace(certified_run.result, diagnostics=(noise, first_improving))
    for selected, expected in (
        ((), (noise,)),
        ((selected_improving, Diagnostic("else", "seen", "change")), (noise, selected_improving)),
    ):
        model = replace(certified_run.model, result=replace(certified_run.model.result, diagnostics=selected))
        prepared = certified.Prepared(
            first, (model,), model, 1, certified_run.certifiability, make_evaluator(PROBLEM, make_split().train)
        )
        assert prepared.result_of(model).diagnostics == expected


@pytest.mark.parametrize("above", [0, 1])
def test_trimmed_violation_comes_from_selected_model(certified_run, above):
    """The first run may have a different client above the tolerance, or none."""
    first = replace(
        certified_run.result, diagnostics=(Diagnostic(DiagnosticCode.TRIMMED_VIOLATION, "of another model", "change"),)
    )
    method = replace(certified_run.model.result.method, robust=1)
    model = replace(certified_run.model, result=replace(certified_run.model.result, method=method, diagnostics=()))
    evaluation = Evaluation(np.zeros(3), np.array([[0.0], [0.0], [0.9 * above]]))
    prepared = certified.Prepared(first, (model,), model, 1, certified_run.certifiability, lambda params: evaluation)
    evidence = [diagnostic.evidence for diagnostic in prepared.result_of(model).diagnostics]
    reason = "all remaining clients are within it, and robust=1 trims as many"
    assert evidence == [f"2 (0.9) is above the tolerance {model.tolerance:g}; {reason}"] * above


def test_calibration_split_does_not_affect_selection():
    """With the features of the calibration split negated, the same models are prepared in the same order."""
    split = make_split()
    columns = {key: np.asarray(values) for key, values in split.calibration.rows.columns.items()}
    columns["x"] = -columns["x"]
    flipped_split = split._replace(
        calibration=ss.ClientData.from_arrays(
            columns, np.repeat(split.calibration.names, split.calibration.sizes), strata="y"
        )
    )
    first, second = (prepare(PROBLEM, each, RULE, move=rescale_network, **RUN) for each in (split, flipped_split))
    assert len(first.path) == len(second.path)
    for a, b in zip(first.path, second.path, strict=True):
        np.testing.assert_array_equal(a.params[0]["w"], b.params[0]["w"])
        assert (a.scale, a.offset) == (b.scale, b.offset)
    certified_run = flat.solve_certified(PROBLEM, flipped_split, RULE, move=rescale_network, **RUN)
    assert certified_run.certificate.verdict is Verdict.VIOLATES
    assert not certified_run.is_certified
    assert len(certified_run.tested) == 1, "testing stops at the first failure"


@pytest.mark.parametrize(
    ("verdicts", "selected"), [("++-+", 1), ("-+++", 0), ("+", 0), ("+++", 2)], ids=["some", "none", "one", "all"]
)
def test_models_are_tested_in_order_until_one_fails(monkeypatch, certified_run, verdicts, selected):
    """The last model that passed before the first failure is selected. Later models are not tested."""
    path = tuple(replace(certified_run.model, offset=float(i)) for i in range(len(verdicts)))
    prepared = certified.Prepared(
        certified_run.result, path, path[0], len(path), certified_run.certifiability, lambda params: None
    )
    monkeypatch.setattr(certified.Prepared, "result_of", lambda self, model: certified_run.result)
    monkeypatch.setattr(certified, "prepare", lambda *_, **__: prepared)
    tested = []

    def certify(*_, **__):
        tested.append(verdicts[len(tested)])
        verdict = Verdict.MEETS if tested[-1] == "+" else Verdict.UNDECIDED
        return SimpleNamespace(verdict=verdict, after_tests=lambda tests: (verdict, tests))

    monkeypatch.setattr(certified, "certify", certify)
    run = flat.solve_certified(PROBLEM, make_split(), RULE)
    assert run.model.offset == selected
    assert "".join(tested) == verdicts[: verdicts.index("-") + 1] if "-" in verdicts else verdicts
    assert run.certificate[1] == len(run.tested) == selected + 1


def test_too_few_rows_are_not_certified():
    run = flat.solve_certified(PROBLEM, make_split(120), RULE, move=rescale_network, **RUN)
    assert sorted(run.certifiability.uncertifiable) == [0, 1, 2]
    assert not run.is_certified
    text = str(run)
    assert text.startswith("Not certified: there is no 95% confidence")
    assert "3 have too few rows:" in text
    assert "The smallest bound that these rows certify for this model is" in text
    assert run.result.worst_constraint <= 0.1


def test_stopped_run_does_not_certify(monkeypatch):
    def fail(*_, **__):
        raise AssertionError

    monkeypatch.setattr(certified, "certify", fail)
    run = flat.solve_certified(PROBLEM, make_split(), RULE, callbacks=[lambda chunk: True], **RUN)
    assert run.certificate is None
    assert not run.is_certified
    assert "training did not complete" in str(run)


def test_selection_corrects_overfitting():
    """Few rows with many features: the first model meets the bound on training rows only, and another is selected."""
    draws = np.random.default_rng(0)
    rows, features = 1200, 60
    y = (draws.random(rows) < 0.5).astype(np.int32)
    x = (draws.normal(size=(rows, features)) + np.outer(2 * y - 1, np.eye(features)[0])).astype(np.float32)
    problem = build_problem("miss-rate", features).problem
    split = DataSplit.from_arrays(
        {"x": x, "y": y}, np.arange(rows) % 2, stratify=("y",), validation=0.2, calibration=0.4, strata="y"
    )
    prepared = prepare(problem, split, ss.Automatic(tolerance=0.15), move=rescale_network, **RUN)
    _, first = ss.evaluate(problem, split.calibration, prepared.first.params)
    _, selected = ss.evaluate(problem, split.calibration, prepared.best.params)
    assert first.max() > 0.15, "it meets the bound on training rows"
    assert selected.max() < first.max()
    assert selected.mean() <= 0.15
    assert prepared.best.forecast.objective < np.log(2), "better than a constant"


def test_without_move_candidates_are_iterates():
    run = flat.solve_certified(PROBLEM, make_split(), RULE, **RUN)
    assert all((model.scale, model.offset) == (1.0, 0.0) for model in run.tested)


def test_client_data_without_split_is_rejected():
    with pytest.raises(TypeError, match="split"):
        flat.solve_certified(PROBLEM, ss.ClientData.from_list([{"x": jnp.zeros(3)}]), RULE)


def test_rank_uses_validation_when_infeasible():
    """The model nearest to the bound on training rows may be overfitted."""

    def model(train, validation, objective):
        return Candidate(None, None, Variant(), 1.0, 0.0, CandidateForecast(objective, validation, train, 0.0), 0.1)

    overfitted, general, better = model(0.12, 0.9, 8.0), model(0.3, 0.4, 2.0), model(0.5, 0.4, 1.0)
    assert min([overfitted, general, better], key=lambda candidate: candidate.rank) is better
    feasible = model(0.1, 0.9, 9.0)
    assert min([overfitted, general, feasible], key=lambda candidate: candidate.rank) is feasible


@pytest.mark.parametrize(
    ("rows", "gap", "chance", "tried"),
    [(5000, 0.0, 1.0, True), (50_000, 0.0, 1.0, False), (50_000, 0.1, 1.0, True), (50_000, 0.0, 0.5, True)],
)
def test_small_norms_are_tried_unless_rows_suffice(rows, gap, chance, tried):
    """The model has twenty parameters."""
    first = SimpleNamespace(params=jnp.ones(20), method=SimpleNamespace(tolerance=0.0))
    forecast = CandidateForecast(0.5, 0.1, 0.1, chance, gap)
    candidates = [Candidate(first.params, first, Variant(), 1.0, 0.0, forecast, 0.1)]
    assert any(variant.norm < np.inf for variant in further_variants(first, PROBLEM, candidates, rows)) is tried
