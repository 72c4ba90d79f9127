"""The trade-off curve: models for several bounds, certified in a fixed order."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from softswitch.certification.certifiability import CandidateForecast, certifiability
from softswitch.certification.certify import certify
from softswitch.data.splits import DataSplit
from softswitch.engine import frontier as engine
from softswitch.engine.candidates import Candidate, Variant
from softswitch.problem.ranges import ZERO_ONE
from softswitch.problem.rates import miss_rate
from softswitch.results.certificate import Verdict
from softswitch.results.frontier import BoundOutcome, Frontier, FrontierPoint

BOUNDS = (0.05, 0.4, 0.2)
ROUNDS = 150


def score(w, batch):
    return batch["x"] @ w[:-1] + w[-1]


def false_alarms(w, batch):
    weights = batch["weight"] * (batch["y"] == 0)
    return ss.mean_over(jnp.logaddexp(0, score(w, batch)), weights)


def move(w, scale, offset):
    return scale * w + offset * jnp.zeros_like(w).at[-1].set(1.0)


RATE = miss_rate(score)
PROBLEM = ss.Problem(
    false_alarms,
    RATE.constraint,
    jnp.zeros(3),
    domain=ss.Ball(20.0),  # avoids smaller norms, which compile separately
    constraint_surrogate=RATE.surrogate,
    constraint_range=ZERO_ONE,
)


def make_split(rows=900, clients=2, seed=0):
    generator = np.random.default_rng(seed)
    y = generator.integers(0, 2, rows)
    x = generator.normal(size=(rows, 2)) + 1.1 * (2 * y[:, None] - 1) * np.array([1.0, 0.3])
    return DataSplit.from_arrays(
        {"x": x.astype(np.float32), "y": y}, np.arange(rows) % clients, stratify=("y",), strata="y"
    )


@pytest.fixture(scope="module")
def split():
    return make_split()


@pytest.fixture(scope="module")
def curve(split):
    measures = {
        "decided positive": lambda w, data: float((np.asarray(data.rows.columns["x"]) @ w[:-1] + w[-1] > 0).mean())
    }
    return flat.frontier(PROBLEM, split, BOUNDS, move=move, measures=measures, rounds=ROUNDS, progress=False)


def test_tighter_bounds_cost_more(curve, split):
    assert [point.bound for point in curve.points] == [0.4, 0.2, 0.05]
    costs = [point.objective for point in curve.points]
    assert costs == sorted(costs)
    assert costs[-1] > costs[0] + 0.05
    for point in curve.points:
        assert point.constraint <= point.bound
        # The reported objective is that of the model.
        objective, _ = ss.evaluate(PROBLEM, split.validation, point.result.params)
        assert point.other_objective == pytest.approx(objective.max())
        assert 0 < point.measures["decided positive"] < 1
        assert point.constant == pytest.approx(math.log(2), rel=1e-2)  # all predicted positive, near the threshold
    assert curve.shares
    assert not curve.approximate


def test_certified_points_meet_their_bounds(curve, split):
    outcomes = [point.outcome for point in curve.points]
    assert outcomes[0] is BoundOutcome.CERTIFIED
    assert outcomes[-1] is BoundOutcome.TOO_FEW  # needs 59 positives per client without a miss
    assert certifiability(PROBLEM, split.calibration, 0.05).uncertifiable
    for point in curve.points:
        if point.outcome is BoundOutcome.CERTIFIED:
            certificate = certify(point.result, PROBLEM, split.calibration, 0.95, tolerance=point.bound)
            assert certificate.verdict is Verdict.MEETS
            assert point.certificate.verdict is Verdict.MEETS
    assert curve.smallest_certified == min(point.bound for point in curve.certified)


def make_candidate(objective, chance, bound=0.1):
    forecast = CandidateForecast(objective, 0.0, 0.0, chance)
    return Candidate(jnp.full(3, objective), None, Variant(), 1.0, 0.0, forecast, bound)


def make_trained(bound, path, best, result=None):
    """Return a trained bound. ``path`` lists (objective, chance) for each model; ``best`` is an index."""
    models = [make_candidate(objective, chance, bound) for objective, chance in path]
    return engine._Trained(bound, SimpleNamespace(path=models, first=result, kinds=()), models[best])


def test_claims_are_ordered_by_chance():
    loose = make_trained(0.4, [(0.6, 0.95), (0.5, 0.9), (0.3, 0.5), (0.1, 0.4)], best=1)
    tight = make_trained(0.1, [(0.7, 0.6), (0.4, 0.2)], best=0)
    hopeless = make_trained(0.05, [(0.7, 0.0), (0.4, 0.0)], best=1)
    claims = engine._order_claims([loose, tight, hopeless])
    assert [(entry.bound, model.forecast.objective) for entry, model in claims] == [
        (0.4, 0.6),
        (0.4, 0.5),
        (0.1, 0.7),
        (0.4, 0.3),
        (0.4, 0.1),
        (0.1, 0.4),
        (0.05, 0.4),  # without likely models, only the best one
    ]


def test_claims_after_first_failure_are_not_tested(curve, split, monkeypatch):
    """Claims after the first failure are not tested."""
    reference = curve.points[0].result
    passing = certify(reference, PROBLEM, split.calibration, 0.95, tolerance=0.4)
    assert passing.verdict is Verdict.MEETS
    undecided = replace(passing, clients=(replace(passing.clients[0], verdict=Verdict.UNDECIDED), *passing.clients[1:]))
    loose = make_trained(0.4, [(0.6, 0.95), (0.3, 0.7)], best=0, result=reference)
    tight = make_trained(0.2, [(0.5, 0.9), (0.2, 0.8)], best=0, result=reference)
    tightest = make_trained(0.1, [(0.7, 0.75)], best=0, result=reference)
    calls = []

    def fake(result, problem, held_out, confidence, *, tolerance, kinds):
        calls.append((tolerance, round(float(result.params[0]), 2), confidence))
        assert held_out is split.calibration
        return undecided if tolerance == failing else passing

    monkeypatch.setattr(engine, "certify", fake)
    entries = [loose, tight, tightest]
    order = [(0.4, 0.6, 0.9), (0.2, 0.5, 0.9), (0.2, 0.2, 0.9), (0.1, 0.7, 0.9), (0.4, 0.3, 0.9)]  # the full confidence
    failing = 0.1
    tested = engine._run_tests(engine._order_claims(entries), PROBLEM, split, 0.9)
    assert calls == order[:4]
    assert [claim.passed for claim in tested] == [True, True, True, False]
    # The best model that passed for the same or a tighter bound is selected. Failed models serve no bound.
    objectives = [engine._select_model(entry, tested).model.forecast.objective for entry in entries]
    assert objectives == [0.2, 0.2, 0.7]
    assert engine._select_model(loose, tested).model.tolerance == 0.4
    calls.clear()
    failing = 0.2
    tested = engine._run_tests(engine._order_claims(entries), PROBLEM, split, 0.9)
    assert calls == order[:2]
    assert [engine._select_model(entry, tested).model.forecast.objective for entry in entries] == [0.6, 0.5, 0.7]


def test_outcomes_match_test_results(curve, split, monkeypatch):
    """With trained models, outcomes distinguish failed and untested bounds, and each certificate has its bound."""
    certified = [point for point in curve.points if point.certificate is not None]
    assert all(passed for _, passed in curve.tested[:-1])
    for point in certified:
        assert point.certificate.tolerance == point.bound

    def fake(result, problem, held_out, confidence, *, tolerance, kinds):
        certificate = certify(result, problem, held_out, confidence, tolerance=tolerance)
        verdict = Verdict.MEETS if tolerance == 0.4 else Verdict.UNDECIDED
        return replace(certificate, clients=tuple(replace(client, verdict=verdict) for client in certificate.clients))

    monkeypatch.setattr(engine, "certify", fake)
    again = flat.frontier(PROBLEM, split, [0.4, 0.2, 0.19], move=move, rounds=ROUNDS, progress=False)
    bounds = [bound for bound, passed in again.tested if not passed]
    assert len(bounds) == 1
    assert again.tested[-1][1] is False
    outcomes = {point.bound: point.outcome for point in again.points}
    assert outcomes.pop(bounds[0]) is BoundOutcome.FAILED
    assert outcomes.pop(0.4) is BoundOutcome.CERTIFIED
    assert list(outcomes.values()) == [BoundOutcome.LATER]
    failed = next(point for point in again.points if point.outcome is BoundOutcome.FAILED)
    assert failed.failing_clients == ("0", "1")


def test_stopping_keeps_trained_bounds(split):
    chunks = []

    def stop(chunk):
        chunks.append(chunk)
        return len(chunks) > limit

    options = {"move": move, "rounds": ROUNDS, "progress": False, "callbacks": [stop]}
    limit = 0
    with pytest.raises(ValueError, match="no bound has a model"):
        flat.frontier(PROBLEM, split, [0.4, 0.2], **options)
    # Stopped while the second bound is trained: the model of the first bound exists and is tested.
    limit, chunks[:] = 10**9, []
    flat.frontier(PROBLEM, split, [0.4], **options)
    limit, chunks[:] = len(chunks), []
    (point,) = flat.frontier(PROBLEM, split, [0.4, 0.2], **options).points
    assert (point.bound, point.outcome) == (0.4, BoundOutcome.CERTIFIED)


def test_dict_round_trip(curve):
    data = json.loads(json.dumps(curve.to_dict(), allow_nan=False))
    again = Frontier.from_dict(data)
    assert again.to_dict() == curve.to_dict()
    text = str(curve)
    for phrase in ("40%", "certified", "too few rows", curve.summary[0]):
        assert phrase in text


def make_point(bound, objective, outcome, constraint=None, **fields):
    value = bound if constraint is None else constraint
    return FrontierPoint(bound, outcome, objective, value, objective, **fields)


def test_summary_text():
    points = (
        make_point(0.2, 0.1, BoundOutcome.CERTIFIED, measures={"accuracy": 0.95}),
        make_point(0.1, 0.2, BoundOutcome.CERTIFIED, measures={"accuracy": 0.9}),
        make_point(0.05, 0.45, BoundOutcome.FAILED, failing_clients=("north",)),
        make_point(0.03, 0.5, BoundOutcome.LATER),
        make_point(0.02, 0.6, BoundOutcome.TOO_FEW),
        make_point(0.001, 0.9, BoundOutcome.NOT_REACHED, constraint=0.01),
    )
    tested = ((0.2, True), (0.1, True), (0.05, False))
    frontier = Frontier(points, 0.95, 4, shares=True, tested=tested)
    assert frontier.summary == [
        "Lowering the bound from 20% to 10% changes the worst client's objective F from 0.1000 to 0.2000 on training "
        "rows.",
        "On validation rows: accuracy 0.95 and 0.9.",
        "The smallest certified bound is 10%, jointly with the one looser before it, with 95% confidence, at all 4 "
        "clients.",
        "Models tested, the most promising first: 3; the last, for 5%, did not pass, which ended the tests.",
        "5% is not certified. Failing clients: north.",
    ]
    assert frontier.columns["least F"] == [
        "0.1000",
        "0.2000",
        "0.4500",
        "0.5000",
        "0.6000",
        "–",
    ]  # no model meets the last bound
    requested = replace(frontier, requested=0.05, shares=False).summary[0]
    assert "the bound from 0.1 to 0.05 changes the worst client's objective F from 0.2000 to 0.4500" in requested
    none = replace(frontier, points=points[2:3], tested=())
    assert none.smallest_certified is None
    assert none.summary[0] == "No bound is certified with 95% confidence."
    frontier.figure()  # also with all outcomes, including a bound that was not reached


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ([], "bounds must be one or more numbers"),
        (0.1, "bounds must be one or more numbers"),
        ([0.1, -0.2], "bounds must be a finite number and >= 0, but is -0.2"),
        ([0.1, math.nan], "bounds must be a finite number"),
        ([0.1, 0.2, 0.1], "bounds must not have a number twice"),
    ],
)
def test_invalid_bounds_are_rejected(bounds, message, split):
    with pytest.raises(ValueError, match=message):
        flat.frontier(PROBLEM, split, bounds)


def test_other_invalid_arguments_are_rejected(split):
    with pytest.raises(TypeError, match="split must be a DataSplit"):
        flat.frontier(PROBLEM, split.train, [0.1])
    with pytest.raises(ValueError, match="confidence must be"):
        flat.frontier(PROBLEM, split, [0.1], confidence=1.0)
    with pytest.raises(TypeError, match=r"measures\['accuracy'\] must be a function"):
        flat.frontier(PROBLEM, split, [0.1], measures={"accuracy": 0.9})


def test_filled_markers_are_certified():
    points = (make_point(0.2, 0.1, BoundOutcome.CERTIFIED), make_point(0.1, 0.2, BoundOutcome.FAILED))
    assert points[0] != points[1]
    (axes,) = Frontier(points, 0.95, 4).figure().axes
    filled = next(line for line in axes.lines if line.get_linestyle() == "None")
    assert np.isfinite(filled.get_ydata()).tolist() == [True, False]
