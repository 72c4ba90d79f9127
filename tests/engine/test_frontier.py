"""What the constraint costs: models along several bounds, certified in a fixed order."""

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


def moved(w, scale, offset):
    return scale * w + offset * jnp.zeros_like(w).at[-1].set(1.0)


RATE = miss_rate(score)
PROBLEM = ss.Problem(
    false_alarms,
    RATE.constraint,
    jnp.zeros(3),
    domain=ss.Ball(20.0),  # so that no smaller ones are tried, each a program of its own
    constraint_surrogate=RATE.surrogate,
    constraint_range=ZERO_ONE,
)


def three_parts(rows=900, clients=2, seed=0):
    generator = np.random.default_rng(seed)
    y = generator.integers(0, 2, rows)
    x = generator.normal(size=(rows, 2)) + 1.1 * (2 * y[:, None] - 1) * np.array([1.0, 0.3])
    return DataSplit.from_arrays(
        {"x": x.astype(np.float32), "y": y}, np.arange(rows) % clients, stratify=("y",), strata="y"
    )


@pytest.fixture(scope="module")
def parts():
    return three_parts()


@pytest.fixture(scope="module")
def found(parts):
    share = {
        "decided positive": lambda w, data: float((np.asarray(data.rows.columns["x"]) @ w[:-1] + w[-1] > 0).mean())
    }
    return flat.frontier(PROBLEM, parts, BOUNDS, move=moved, measures=share, rounds=ROUNDS, progress=False)


def test_from_the_loosest_on_a_tighter_bound_costs_more(found, parts):
    assert [point.bound for point in found.points] == [0.4, 0.2, 0.05]
    costs = [point.objective for point in found.points]
    assert costs == sorted(costs)
    assert costs[-1] > costs[0] + 0.05
    for point in found.points:
        assert point.constraint <= point.bound
        # What is told of the model is what it does.
        objective, _ = ss.evaluate(PROBLEM, parts.validation, point.result.params)
        assert point.other_objective == pytest.approx(objective.max())
        assert 0 < point.measures["decided positive"] < 1
        assert point.constant == pytest.approx(math.log(2), rel=1e-2)  # all decided positive, by a hair
    assert found.shares
    assert not found.approximate


def test_those_certified_are_and_the_first_look_is_theirs(found, parts):
    outcomes = [point.outcome for point in found.points]
    assert outcomes[0] is BoundOutcome.CERTIFIED
    assert outcomes[-1] is BoundOutcome.TOO_FEW  # 59 positives a client would be needed, without a miss
    assert certifiability(PROBLEM, parts.calibration, 0.05).uncertifiable
    for point in found.points:
        if point.outcome is BoundOutcome.CERTIFIED:
            seen = certify(point.result, PROBLEM, parts.calibration, 0.95, tolerance=point.bound)
            assert seen.verdict is Verdict.MEETS
            assert point.certificate.verdict is Verdict.MEETS
    assert found.smallest_certified == min(point.bound for point in found.certified)


def candidate(objective, chance, bound=0.1):
    foreseen = CandidateForecast(objective, 0.0, 0.0, chance)
    return Candidate(jnp.full(3, objective), None, Variant(), 1.0, 0.0, foreseen, bound)


def trained(bound, path, best, result=None):
    """A bound with models as (objective, chance), the best choice among them by its place."""
    models = [candidate(objective, chance, bound) for objective, chance in path]
    return engine._Trained(bound, SimpleNamespace(path=models, first=result, kinds=()), models[best])


def test_claims_from_the_likeliest_on():
    loose = trained(0.4, [(0.6, 0.95), (0.5, 0.9), (0.3, 0.5), (0.1, 0.4)], best=1)
    tight = trained(0.1, [(0.7, 0.6), (0.4, 0.2)], best=0)
    hopeless = trained(0.05, [(0.7, 0.0), (0.4, 0.0)], best=1)
    claims = engine._order_claims([loose, tight, hopeless])
    assert [(one.bound, model.forecast.objective) for one, model in claims] == [
        (0.4, 0.6),
        (0.4, 0.5),
        (0.1, 0.7),
        (0.4, 0.3),
        (0.4, 0.1),
        (0.1, 0.4),
        (0.05, 0.4),  # where nothing looks likely, the best choice alone
    ]


def test_nothing_behind_the_first_that_does_not_pass(found, parts, monkeypatch):
    """Whatever the rows would say of it: it is not even asked."""
    own = found.points[0].result
    good = certify(own, PROBLEM, parts.calibration, 0.95, tolerance=0.4)
    assert good.verdict is Verdict.MEETS
    bad = replace(good, clients=(replace(good.clients[0], verdict=Verdict.UNDECIDED), *good.clients[1:]))
    loose = trained(0.4, [(0.6, 0.95), (0.3, 0.7)], best=0, result=own)
    tight = trained(0.2, [(0.5, 0.9), (0.2, 0.8)], best=0, result=own)
    tightest = trained(0.1, [(0.7, 0.75)], best=0, result=own)
    asked = []

    def fake(result, problem, held_out, confidence, *, tolerance, kinds):
        asked.append((tolerance, round(float(result.params[0]), 2), confidence))
        assert held_out is parts.calibration
        return bad if tolerance == failing else good

    monkeypatch.setattr(engine, "certify", fake)
    every = [loose, tight, tightest]
    order = [(0.4, 0.6, 0.9), (0.2, 0.5, 0.9), (0.2, 0.2, 0.9), (0.1, 0.7, 0.9), (0.4, 0.3, 0.9)]  # the full confidence
    failing = 0.1
    tested = engine._run_tests(engine._order_claims(every), PROBLEM, parts, 0.9)
    assert asked == order[:4]
    assert [claim.passed for claim in tested] == [True, True, True, False]
    # The best of what passed for a bound, or for a tighter one; what did not pass serves none.
    chosen = [engine._select_model(one, tested).model.forecast.objective for one in every]
    assert chosen == [0.2, 0.2, 0.7]
    assert engine._select_model(loose, tested).model.tolerance == 0.4
    asked.clear()
    failing = 0.2
    tested = engine._run_tests(engine._order_claims(every), PROBLEM, parts, 0.9)
    assert asked == order[:2]
    assert [engine._select_model(one, tested).model.forecast.objective for one in every] == [0.6, 0.5, 0.7]


def test_outcomes_follow_from_the_tests(found, parts, monkeypatch):
    """On real models: what failed, what was not tested, and whose certificate it is."""
    certified = [point for point in found.points if point.certificate is not None]
    assert all(passed for _, passed in found.tested[:-1])
    for point in certified:
        assert point.certificate.tolerance == point.bound

    def fake(result, problem, held_out, confidence, *, tolerance, kinds):
        seen = certify(result, problem, held_out, confidence, tolerance=tolerance)
        verdict = Verdict.MEETS if tolerance == 0.4 else Verdict.UNDECIDED
        return replace(seen, clients=tuple(replace(one, verdict=verdict) for one in seen.clients))

    monkeypatch.setattr(engine, "certify", fake)
    again = flat.frontier(PROBLEM, parts, [0.4, 0.2, 0.19], move=moved, rounds=ROUNDS, progress=False)
    bounds = [bound for bound, passed in again.tested if not passed]
    assert len(bounds) == 1
    assert again.tested[-1][1] is False
    outcomes = {point.bound: point.outcome for point in again.points}
    assert outcomes.pop(bounds[0]) is BoundOutcome.FAILED
    assert outcomes.pop(0.4) is BoundOutcome.CERTIFIED
    assert list(outcomes.values()) == [BoundOutcome.LATER]
    failed = next(point for point in again.points if point.outcome is BoundOutcome.FAILED)
    assert failed.failing_clients == ("0", "1")


def test_stopping_ends_with_the_bounds_that_are_trained(parts):
    rounds_seen = []

    def stop(chunk):
        rounds_seen.append(chunk)
        return len(rounds_seen) > most

    options = {"move": moved, "rounds": ROUNDS, "progress": False, "callbacks": [stop]}
    most = 0
    with pytest.raises(ValueError, match="no bound has a model"):
        flat.frontier(PROBLEM, parts, [0.4, 0.2], **options)
    # In a later run, among those for the second bound: the first bound's model is there, and tested.
    most, rounds_seen[:] = 10**9, []
    flat.frontier(PROBLEM, parts, [0.4], **options)
    most, rounds_seen[:] = len(rounds_seen), []
    (only,) = flat.frontier(PROBLEM, parts, [0.4, 0.2], **options).points
    assert (only.bound, only.outcome) == (0.4, BoundOutcome.CERTIFIED)


def test_written_down_and_read_again(found):
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    again = Frontier.from_dict(told)
    assert again.to_dict() == found.to_dict()
    text = str(found)
    for words in ("40%", "certified", "too few rows", found.summary[0]):
        assert words in text


def point(bound, objective, outcome, constraint=None, **more):
    at = bound if constraint is None else constraint
    return FrontierPoint(bound, outcome, objective, at, objective, **more)


def test_in_a_users_words():
    points = (
        point(0.2, 0.1, BoundOutcome.CERTIFIED, measures={"accuracy": 0.95}),
        point(0.1, 0.2, BoundOutcome.CERTIFIED, measures={"accuracy": 0.9}),
        point(0.05, 0.45, BoundOutcome.FAILED, failing_clients=("north",)),
        point(0.03, 0.5, BoundOutcome.LATER),
        point(0.02, 0.6, BoundOutcome.TOO_FEW),
        point(0.001, 0.9, BoundOutcome.NOT_REACHED, constraint=0.01),
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
    assert frontier.columns["least F"] == ["0.1000", "0.2000", "0.4500", "0.5000", "0.6000", "–"]  # none keeps the last
    asked = replace(frontier, requested=0.05, shares=False).summary[0]
    assert "the bound from 0.1 to 0.05 changes the worst client's objective F from 0.2000 to 0.4500" in asked
    none = replace(frontier, points=points[2:3], tested=())
    assert none.smallest_certified is None
    assert none.summary[0] == "No bound is certified with 95% confidence."
    frontier.figure()  # also with a bound that was not reached, and marks of every kind


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ([], "bounds must be one or more numbers"),
        (0.1, "bounds must be one or more numbers"),
        ([0.1, -0.2], "bounds must be a finite number and >= 0, but is -0.2"),
        ([0.1, math.nan], "bounds must be a finite number"),
        ([0.1, 0.2, 0.1], "bounds must not have a number twice"),
    ],
)
def test_bounds_that_are_none(bounds, said, parts):
    with pytest.raises(ValueError, match=said):
        flat.frontier(PROBLEM, parts, bounds)


def test_other_bad_input(parts):
    with pytest.raises(TypeError, match="split must be a DataSplit"):
        flat.frontier(PROBLEM, parts.train, [0.1])
    with pytest.raises(ValueError, match="confidence must be"):
        flat.frontier(PROBLEM, parts, [0.1], confidence=1.0)
    with pytest.raises(TypeError, match=r"measures\['accuracy'\] must be a function"):
        flat.frontier(PROBLEM, parts, [0.1], measures={"accuracy": 0.9})


def test_filled_markers_are_certified():
    points = (point(0.2, 0.1, BoundOutcome.CERTIFIED), point(0.1, 0.2, BoundOutcome.FAILED))
    assert points[0] != points[1]
    (axes,) = Frontier(points, 0.95, 4).figure().axes
    filled = next(line for line in axes.lines if line.get_linestyle() == "None")
    assert np.isfinite(filled.get_ydata()).tolist() == [True, False]
