"""The trade-off curve: models for several bounds, each certified with a share of the error probability."""

import json
import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import softswitch as ss
from benchmarks import flat
from softswitch.certification.certifiability import certifiability
from softswitch.certification.certify import certify
from softswitch.data.splits import DataSplit
from softswitch.engine.certified import Certified
from softswitch.engine.frontier import build_frontier
from softswitch.problem.ranges import ZERO_ONE
from softswitch.problem.rates import miss_rate
from softswitch.results.certificate import Outcome, Verdict
from softswitch.results.frontier import Frontier, FrontierPoint

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
    assert outcomes[0] is Outcome.CERTIFIED
    assert outcomes[-1] is Outcome.TOO_FEW_ROWS  # needs 59 positives per client without a miss
    assert certifiability(PROBLEM, split.calibration, 0.05).uncertifiable
    for point in curve.points:
        assert point.certificate.tolerance == point.bound
        assert point.certificate.confidence == pytest.approx(1 - 0.05 / 3)
        if point.outcome is Outcome.CERTIFIED:
            certificate = certify(point.result, PROBLEM, split.calibration, 0.95, tolerance=point.bound)
            assert certificate.verdict is Verdict.MEETS
            assert point.certificate.verdict is Verdict.MEETS
    assert curve.smallest_certified == min(point.bound for point in curve.certified)


@pytest.mark.parametrize("domain", [ss.Ball(20.0), ss.Ball(1.5)])
def test_domain_contains_every_start(domain, split):
    problem = replace(PROBLEM, domain=domain)
    found = flat.frontier(problem, split, [0.4, 0.3], move=move, rounds=ROUNDS, progress=False)
    assert [point.bound for point in found.points] == [0.4, 0.3]


def make_certified(curve, bound, objective, *, is_certified, first=None):
    """Return a model that predicts with the given offset, and whose certificate passes or fails."""
    point = curve.points[0]
    w = jnp.array([1.0, 0.3, objective])
    verdict = Verdict.MEETS if is_certified else Verdict.UNDECIDED
    clients = tuple(replace(client, verdict=verdict) for client in point.certificate.clients)
    certificate = replace(point.certificate, tolerance=bound, clients=clients)
    limits = certifiability(PROBLEM, make_split().calibration, bound)
    result = replace(point.result, params=w, method=replace(point.result.method, tolerance=bound))
    return Certified(result, certificate, limits, 1, int(is_certified), f"offset {objective}", first)


def test_certificates_of_tighter_bounds_serve_looser_ones(curve, split):
    """F grows with the offset: among models certified for a bound or a tighter one, the smallest F is selected."""
    outcomes = {0.4: (0.9, True), 0.3: (0.1, False), 0.2: (0.5, True), 0.1: (0.7, True)}
    calls = []

    def train(bound, confidence):
        calls.append((bound, confidence))
        objective, is_certified = outcomes[bound]
        return make_certified(curve, bound, objective, is_certified=is_certified)

    found = build_frontier(PROBLEM, split, list(outcomes), train, confidence=0.9)
    assert calls == [(bound, pytest.approx(0.975)) for bound in (0.4, 0.3, 0.2, 0.1)]
    assert [point.model for point in found.points] == ["offset 0.5", "offset 0.5", "offset 0.5", "offset 0.7"]
    assert all(point.outcome is Outcome.CERTIFIED for point in found.points)
    assert [point.certificate.tolerance for point in found.points] == [0.4, 0.3, 0.2, 0.1]
    assert [point.result.method.tolerance for point in found.points] == [0.4, 0.3, 0.2, 0.1]
    assert all(point.certified.result is point.result for point in found.points)
    outcomes[0.2] = outcomes[0.1] = (0.5, False)
    found = build_frontier(PROBLEM, split, list(outcomes), train, confidence=0.9)
    assert [point.model for point in found.points] == ["offset 0.9", "offset 0.1", "offset 0.5", "offset 0.5"]
    assert [point.outcome.is_certified for point in found.points] == [True, False, False, False]
    assert found.points[1].failing_clients == ("0", "1")
    assert found.smallest_certified == 0.4


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
    assert (point.bound, point.outcome) == (0.4, Outcome.CERTIFIED)


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
        make_point(0.2, 0.1, Outcome.CERTIFIED, measures={"accuracy": 0.95}),
        make_point(0.1, 0.2, Outcome.CERTIFIED, measures={"accuracy": 0.9}),
        make_point(0.05, 0.45, Outcome.VIOLATES, failing_clients=("north",)),
        make_point(0.02, 0.6, Outcome.TOO_FEW_ROWS),
        make_point(0.001, 0.9, Outcome.TOO_FEW_ROWS, constraint=0.01),
    )
    frontier = Frontier(points, 0.95, 4, shares=True)
    assert frontier.summary == [
        "The smallest certified bound is 10%, jointly with the one looser before it, with 95% confidence, at all 4 "
        "clients.",
        "5% is not certified. Failing clients: north.",
    ]
    assert frontier.columns["least F"] == [
        "0.1000",
        "0.2000",
        "0.4500",
        "0.6000",
        "–",
    ]  # no model meets the last bound
    none = replace(frontier, points=points[2:3])
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
    points = (make_point(0.2, 0.1, Outcome.CERTIFIED), make_point(0.1, 0.2, Outcome.VIOLATES))
    assert points[0] != points[1]
    (axes,) = Frontier(points, 0.95, 4).figure().axes
    filled = next(line for line in axes.lines if line.get_linestyle() == "None")
    assert np.isfinite(filled.get_ydata()).tolist() == [True, False]
