"""Learn, choose, certify: the rows that certify are looked at once, in a fixed order, and decide nothing else."""

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


def table(rows=900, seed=0):
    """Two features of which one tells the class; three sites."""
    draws = np.random.default_rng(seed)
    y = (draws.random(rows) < 0.5).astype(np.int32)
    x = draws.normal(size=(rows, 2)) + np.outer(3 * y - 1.5, [1, 0])
    return {"x": x.astype(np.float32), "y": y}, np.arange(rows) % 3


def parts(rows=900, seed=0):
    data, site = table(rows, seed)
    return DataSplit.from_arrays(data, site, stratify=("y",), validation=0.2, calibration=0.3, strata="y")


@pytest.fixture(scope="module")
def found():
    return flat.solve_certified(PROBLEM, parts(), RULE, move=rescale_network, **RUN)


def test_a_model_is_certified_and_keeps_the_bound(found):
    assert found.is_certified
    assert str(found).startswith(
        "Certified: with 95% confidence, the constraint is at most 0.1 at each of the 3 clients"
    )
    assert found.result.status.ok
    assert found.result.worst_constraint <= 0.1
    assert found.result.selected.startswith("model selected for new data")
    population, site = table(60_000, seed=1)
    _, constraint = ss.evaluate(PROBLEM, ss.ClientData.from_arrays(population, site), found.result.params)
    assert constraint.max() <= 0.1


def test_models_over_flower_have_the_default_rounds_of_solve(monkeypatch):
    monkeypatch.setattr("softswitch.engine.solve.FLOWER_ROUNDS", 6)
    options = {name: value for name, value in RUN.items() if name != "rounds"}
    prepared = prepare(PROBLEM, parts(120), RULE, engine="grid", **options)
    assert len(prepared.first.history) == 6


def test_limits_of_a_model_that_was_picked_are_the_bound_itself(found):
    if len(found.tested) > 1:
        assert found.certificate.tests == len(found.tested)
        assert {client.constraints[0].upper for client in found.certificate.clients} == {0.1}


def test_whether_it_was_still_improving_is_told_of_the_models_own_run(found):
    """All else that looks wrong is told of the first run."""
    of_first, of_both = (
        Diagnostic("noise", "seen", "change"),
        Diagnostic(DiagnosticCode.STILL_IMPROVING, "first", "run longer"),
    )
    own = Diagnostic(DiagnosticCode.STILL_IMPROVING, "own", "run longer")
    first = replace(found.result, diagnostics=(of_first, of_both))
    for mine, told in (((), (of_first,)), ((own, Diagnostic("else", "seen", "change")), (of_first, own))):
        model = replace(found.model, result=replace(found.model.result, diagnostics=mine))
        ready = certified.Prepared(
            first, (model,), model, 1, found.certifiability, make_evaluator(PROBLEM, parts().train)
        )
        assert ready.result_of(model).diagnostics == told


@pytest.mark.parametrize("above", [0, 1])
def test_who_is_set_aside_is_told_of_the_model_chosen(found, above):
    """The first run's answer may have another client above the tolerance, or none."""
    first = replace(
        found.result, diagnostics=(Diagnostic(DiagnosticCode.TRIMMED_VIOLATION, "of another model", "change"),)
    )
    method = replace(found.model.result.method, robust=1)
    model = replace(found.model, result=replace(found.model.result, method=method, diagnostics=()))
    judged = Evaluation(np.zeros(3), np.array([[0.0], [0.0], [0.9 * above]]))
    ready = certified.Prepared(first, (model,), model, 1, found.certifiability, lambda params: judged)
    told = [finding.evidence for finding in ready.result_of(model).diagnostics]
    others = "all remaining clients are within it, and robust=1 trims as many"
    assert told == [f"2 (0.9) is above the tolerance {model.tolerance:g}; {others}"] * above


def test_the_rows_that_certify_choose_nothing():
    """With other labels in the last part, the same models are prepared in the same order."""
    own = parts()
    flipped = {key: np.asarray(column) for key, column in own.calibration.rows.columns.items()}
    flipped["x"] = -flipped["x"]
    other = own._replace(
        calibration=ss.ClientData.from_arrays(
            flipped, np.repeat(own.calibration.names, own.calibration.sizes), strata="y"
        )
    )
    one, two = (prepare(PROBLEM, each, RULE, move=rescale_network, **RUN) for each in (own, other))
    assert len(one.path) == len(two.path)
    for a, b in zip(one.path, two.path, strict=True):
        np.testing.assert_array_equal(a.params[0]["w"], b.params[0]["w"])
        assert (a.scale, a.offset) == (b.scale, b.offset)
    last = flat.solve_certified(PROBLEM, other, RULE, move=rescale_network, **RUN)
    assert last.certificate.verdict is Verdict.VIOLATES
    assert not last.is_certified
    assert len(last.tested) == 1, "the first that fails ends it"


@pytest.mark.parametrize(
    ("verdicts", "answer"), [("++-+", 1), ("-+++", 0), ("+", 0), ("+++", 2)], ids=["some", "none", "one", "all"]
)
def test_models_are_tested_in_order_until_one_fails(monkeypatch, found, verdicts, answer):
    """The last that passed before the first failure is the answer, whatever comes after it."""
    path = tuple(replace(found.model, offset=float(i)) for i in range(len(verdicts)))
    ready = certified.Prepared(found.result, path, path[0], len(path), found.certifiability, lambda params: None)
    monkeypatch.setattr(certified.Prepared, "result_of", lambda self, model: found.result)
    monkeypatch.setattr(certified, "prepare", lambda *_, **__: ready)
    asked = []

    def certify(*_, **__):
        asked.append(verdicts[len(asked)])
        verdict = Verdict.MEETS if asked[-1] == "+" else Verdict.UNDECIDED
        return SimpleNamespace(verdict=verdict, after_tests=lambda many: (verdict, many))

    monkeypatch.setattr(certified, "certify", certify)
    told = flat.solve_certified(PROBLEM, parts(), RULE)
    assert told.model.offset == answer
    assert "".join(asked) == verdicts[: verdicts.index("-") + 1] if "-" in verdicts else verdicts
    assert told.certificate[1] == len(told.tested) == answer + 1


def test_where_nothing_can_be_certified_it_is_said_and_the_model_still_keeps_the_bound():
    told = flat.solve_certified(PROBLEM, parts(120), RULE, move=rescale_network, **RUN)
    assert sorted(told.certifiability.uncertifiable) == [0, 1, 2]
    assert not told.is_certified
    words = str(told)
    assert words.startswith("Not certified: there is no 95% confidence")
    assert "3 have too few rows:" in words
    assert "The smallest bound that these rows certify for this model is" in words
    assert told.result.worst_constraint <= 0.1


def test_a_run_that_is_stopped_looks_at_no_row_that_certifies(monkeypatch):
    def never(*_, **__):
        raise AssertionError

    monkeypatch.setattr(certified, "certify", never)
    told = flat.solve_certified(PROBLEM, parts(), RULE, callbacks=[lambda chunk: True], **RUN)
    assert told.certificate is None
    assert not told.is_certified
    assert "training did not complete" in str(told)


def test_a_lost_margin_is_found_again():
    """Few rows with many features: the first model keeps the bound on its own rows only, and another is chosen."""
    draws = np.random.default_rng(0)
    rows, features = 1200, 60
    y = (draws.random(rows) < 0.5).astype(np.int32)
    x = (draws.normal(size=(rows, features)) + np.outer(2 * y - 1, np.eye(features)[0])).astype(np.float32)
    problem = build_problem("miss-rate", features).problem
    own = DataSplit.from_arrays(
        {"x": x, "y": y}, np.arange(rows) % 2, stratify=("y",), validation=0.2, calibration=0.4, strata="y"
    )
    told = prepare(problem, own, ss.Automatic(tolerance=0.15), move=rescale_network, **RUN)
    _, first = ss.evaluate(problem, own.calibration, told.first.params)
    _, chosen = ss.evaluate(problem, own.calibration, told.best.params)
    assert first.max() > 0.15, "on the rows that it learnt from it is within"
    assert chosen.max() < first.max()
    assert chosen.mean() <= 0.15
    assert told.best.forecast.objective < np.log(2), "better than a constant"


def test_without_a_move_models_are_chosen_among_iterates():
    told = flat.solve_certified(PROBLEM, parts(), RULE, **RUN)
    assert all((one.scale, one.offset) == (1.0, 0.0) for one in told.tested)


def test_parts_are_wanted():
    with pytest.raises(TypeError, match="split"):
        flat.solve_certified(PROBLEM, ss.ClientData.from_list([{"x": jnp.zeros(3)}]), RULE)


def test_where_nothing_keeps_the_bound_other_rows_decide():
    """The nearest to the bound on the rows learnt from may have learnt them by heart."""

    def model(learnt, other, objective):
        return Candidate(None, None, Variant(), 1.0, 0.0, CandidateForecast(objective, other, learnt, 0.0), 0.1)

    by_heart, honest, better = model(0.12, 0.9, 8.0), model(0.3, 0.4, 2.0), model(0.5, 0.4, 1.0)
    assert min([by_heart, honest, better], key=lambda one: one.rank) is better
    keeping = model(0.1, 0.9, 9.0)
    assert min([by_heart, honest, keeping], key=lambda one: one.rank) is keeping


@pytest.mark.parametrize(
    ("rows", "worse", "chance", "tried"),
    [(5000, 0.0, 1.0, True), (50_000, 0.0, 1.0, False), (50_000, 0.1, 1.0, True), (50_000, 0.0, 0.5, True)],
)
def test_smaller_parameters_are_tried_unless_rows_are_plenty(rows, worse, chance, tried):
    """Twenty parameters. Without them on small tables four in thirty draws had an answer, and with them fifteen."""
    first = SimpleNamespace(params=jnp.ones(20), method=SimpleNamespace(tolerance=0.0))
    foreseen = CandidateForecast(0.5, 0.1, 0.1, chance, worse)
    found = [Candidate(first.params, first, Variant(), 1.0, 0.0, foreseen, 0.1)]
    assert any(way.norm < np.inf for way in further_variants(first, PROBLEM, found, rows)) is tried
