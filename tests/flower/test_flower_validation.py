"""Validation of reported numbers: rows, ranges, statistics and intervals."""

import math
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import RecordDict

import softswitch as ss
import softswitch.flower as fl
from flower_clients import FEATURES, W, constraint, objective, quadratic, simulated
from member_clients import make_grid, run_strategy
from softswitch.certification.intervals import ErrorLevels, gap_interval, mean_interval, resampled_interval
from softswitch.flower import messages as wire
from softswitch.flower.messages import encode_intervals, read_intervals
from softswitch.results.certificate import Interval, IntervalMethod, Verdict
from softswitch.results.history import ClientOutcome

pytestmark = pytest.mark.usefixtures("quiet")


class PooledClient:
    """A client with the pooled constraint of a rate that is ``share`` on its rows."""

    held_out_rows, value_rows, gradient_rows, constraints, statistics = 0, 5, 5, 1, 2

    def __init__(self, i, share=0.0, rows=50, statistics=None):
        self.name, self.rows, self._told = f"site {i}", rows, statistics or [share, 1.0]

    def report(self, params, task):
        return fl.Values(1.0, [self._told[0]], self._told)

    def update(self, params, task, loss):
        return {"w": W}

    def evaluate(self, params):
        return self.report(params, None)

    def certify(self, params, levels, ranges):
        raise NotImplementedError


POOLED = ss.AverageSGM(step_size=0.1, tolerance=0.2, criterion="pooled")


def share(sums):
    return sums[0] / sums[1]


def run_pooled(byzantine, **settings):
    """Run nine clients with a rate of one half, and a tenth client."""
    app = simulated(
        lambda context: byzantine if context.node_config["i"] == 9 else PooledClient(context.node_config["i"], 0.5)
    )
    return run_strategy(
        make_grid({100 + i: (i, None) for i in range(10)}, app), 2, POOLED, pooled=share, **settings
    ).result


def test_excessive_row_count_is_rejected(caplog):
    result = run_pooled(PooledClient(9, 0.0, rows=2**40))
    assert len(result.names) == 9
    assert result.pooled_constraint == pytest.approx(0.5)
    assert result.status.code is ss.StatusCode.NO_FEASIBLE_ROUND
    assert "its rows must be an integer from 0 to 100,000,000" in caplog.text


def test_majority_decides_number_of_statistics(caplog):
    class ThreeStatistics(PooledClient):
        statistics = 3

    result = run_pooled(ThreeStatistics(9, statistics=[0.5, 1.0, 1.0]))
    assert len(result.names) == 9
    assert "it has 3 statistics, the others 2" in caplog.text

    class Undeclared(PooledClient):
        statistics = 0

    app = simulated(lambda context: Undeclared(context.node_config["i"]))
    with pytest.raises(ValueError, match="an attribute statistics"):
        run_strategy(make_grid({100: (0, None)}, app), 1, POOLED, pooled=share)
    with pytest.raises(ValueError, match="memory must be None with pooled"):
        fl.StrategySettings(pooled=share, memory=ss.Memory())


def test_changed_row_count_is_rejected(caplog):
    registrations = {}

    def factory(context):
        return quadratic(context.node_config["i"], rows=registrations.get(context.node_id, 8))

    app = simulated(factory)
    grid = make_grid({100: (0, None), 101: (1, None), 111: (1, None)}, app)
    grid.connected, registrations[111] = {100, 101}, 80

    def change(chunk):
        grid.connected = {100, 111} if chunk.round == 1 else {100, 101}

    result = run_strategy(grid, rounds=4, callbacks=[change]).result
    assert result.history.per_client.clients.tolist() == [[0, 1], [0, -1], [0, 1], [0, 1]]
    assert "it reports 80 rows and 0 held-out rows, but it reported 8 and 0 before" in caplog.text


def test_reports_outside_their_range_are_rejected(caplog):
    grid = make_grid({100 + i: (i, None) for i in range(3)})
    objectives = run_strategy(grid).result.history.per_client.objective[0]
    worst = int(np.argmax(objectives))
    limit = float(np.sort(objectives)[1]) + 0.01
    result = run_strategy(grid, objective_range=(0.0, limit), constraint_range=(-5.0, 5.0)).result
    assert [outcome == ClientOutcome.BAD_REPORT for outcome in result.history.per_client.outcomes[0]] == [
        i == worst for i in range(3)
    ]
    assert "outside the range" in caplog.text
    assert np.isnan(result.client_objective[worst])  # also in the final evaluation
    with pytest.raises(ValueError, match="objective_range must be"):
        fl.StrategySettings(objective_range=(1.0, 0.0))


# ---- intervals

LEVELS = ErrorLevels(0.01, 0.05, 0.2)
RATE, RANGE = frozenset((0.0, 1.0)), (0.0, 1.0)
GENERATOR = np.random.default_rng(5)


def parse(interval, bounds, rows=10_000):
    content = RecordDict({wire.INTERVALS: encode_intervals([interval])})
    return read_intervals(content, rows, [bounds])[0]


def honest_intervals():
    """Yield intervals of honest clients, of every kind and many sizes."""
    for n in (1, 2, 5, 30, 400):
        for mean in (0.0, 0.1, 0.3, 0.9, 1.0):
            indicators = (GENERATOR.random(n) < mean).astype(float)
            losses = GENERATOR.beta(0.5 + mean, 2.0, n)
            for levels in (
                LEVELS,
                ErrorLevels(0.05, 0.05, 0.2),
                ErrorLevels(0.05, 0.05, math.nan),
                ErrorLevels(1e-6, 0.01, 0.5),
            ):
                yield mean_interval(indicators, levels, RATE), RATE
                yield mean_interval(losses, levels, RANGE), RANGE
                yield mean_interval(indicators, levels, RANGE), RANGE
                yield mean_interval(3 + 4 * losses, levels, (3.0, 7.0)), (3.0, 7.0)
                yield mean_interval(losses, levels, None), None
                yield gap_interval(indicators, 1 - indicators, levels, RATE), RATE
                yield gap_interval(3 + losses, 4 - losses, levels, (3.0, 4.0)), (3.0, 4.0)
                resampled = GENERATOR.normal(mean, 0.1, 100)
                yield resampled_interval(resampled, mean, n, levels), None


def test_honest_intervals_are_accepted():
    count = 0
    for interval, bounds in honest_intervals():
        assert parse(interval, bounds, 800).upper == interval.upper
        count += 1
    assert count == 800


def test_extreme_intervals_are_rejected():
    interval = Interval(-1e300, -1e300, -1e300, 2**50, 1e-9, approximate=False, method=IntervalMethod.BETTING)
    for change in ({}, {"rows": 100}):
        with pytest.raises(wire.InvalidMessageError):
            parse(replace(interval, **change), None)


RATE_INTERVAL = mean_interval(np.repeat([1.0, 0.0], [30, 70]), LEVELS, RATE)
LOSS_INTERVAL = mean_interval(GENERATOR.beta(0.5, 4.0, 100), LEVELS, RANGE)
NORMAL_INTERVAL = mean_interval(GENERATOR.beta(0.5, 4.0, 100), LEVELS, None)


@pytest.mark.parametrize(
    ("interval", "bounds", "change", "reason"),
    [
        (RATE_INTERVAL, RATE, {"rows": 20_000}, "10,000 held-out rows"),
        (LOSS_INTERVAL, RANGE, {"estimate": -0.5, "lower": -0.5}, "range"),
        (LOSS_INTERVAL, RANGE, {"upper": 1.5}, "range"),
        (NORMAL_INTERVAL, None, {"estimate": -1e13, "lower": -1e13}, "at most 1e"),
        (
            Interval(math.nan, -math.inf, math.inf, 0, math.inf, approximate=True),
            RATE,
            {"meets_at": 0.0},
            "without an estimate",
        ),
    ],
)
def test_impossible_intervals_are_rejected(interval, bounds, change, reason):
    parse(interval, bounds)
    with pytest.raises(wire.InvalidMessageError, match=reason):
        parse(replace(interval, **change), bounds)


def test_certificate_excludes_client_with_false_row_count(caplog):
    class ByzantineClient(fl.NumpyClient):
        def certify(self, params, levels, ranges):
            interval = Interval(-1e300, -1e300, -1e300, 2**50, 1e-9, approximate=False, meets_at=0.0)
            return [interval] * len(ranges)

    def factory(context):
        i = context.node_config["i"]
        x = {"x": np.zeros((40, FEATURES), np.float32) + np.linspace(-1, 1, 40, dtype=np.float32)[:, None]}
        client_class = ByzantineClient if i == 2 else fl.NumpyClient
        return client_class(objective, constraint, x, {"w": W}, name=f"site {i}", batch_size=None, held_out=x)

    strategy = run_strategy(make_grid({100 + i: (i, None) for i in range(3)}, simulated(factory)))
    certificate = strategy.clients.certify(strategy.result.params, 0.1)
    assert certificate.clients[2].verdict is Verdict.UNKNOWN
    assert certificate.verdict is not Verdict.MEETS
    assert "but it reported 40 held-out rows" in caplog.text
