"""Timeouts and retries of a run, measured by a simulated clock."""

import numpy as np
import pytest

from flower_clients import FaultyGrid, quadratic, quadratics, simulated
from member_clients import Clock, events_of_kind, run_strategy
from softswitch.flower import messages as wire
from softswitch.flower.roster import LONGEST_BACKOFF, Backoff
from softswitch.results.history import ClientOutcome

pytestmark = pytest.mark.usefixtures("quiet")
CLIENTS = 4


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def record_requests(grid, kind, clock=None):
    """Record the node and time of every message of this type."""
    requests, original_deliver = [], grid.deliver

    def record(message):
        if message.metadata.message_type == kind:
            requests.append((message.metadata.dst_node_id, clock and clock.now))
        return original_deliver(message)

    grid.deliver = record
    return requests


def test_silent_client_has_backoff_and_returns(clock, tmp_path):
    grid = FaultyGrid(quadratics(CLIENTS), CLIENTS)
    grid.faults[1, wire.REPORT] = "silent"
    requests = record_requests(grid, wire.REPORT)

    def recover(chunk):
        if chunk.round == 30:
            grid.faults.clear()

    events = tmp_path / "events.jsonl"
    result = run_strategy(grid, rounds=50, report_timeout=600.0, callbacks=[recover], events=events).result
    per_client = result.history.per_client
    rounds = np.flatnonzero((per_client.clients == 1).any(axis=1)).tolist()
    assert rounds == [0, 1, 2, 4, 8, 16, *range(32, 50)]
    assert sum(node == 101 for node, _ in requests) == len(rounds)
    assert (per_client.outcomes[32:] == ClientOutcome.COUNTED).all()
    assert clock.now == pytest.approx(6 * 600, abs=10)
    assert events_of_kind(events, "silent", "back") == [("silent", "site 1")] * 4 + [("back", "site 1")]
    assert result.status.ok  # the final evaluation includes every client


def test_silent_clients_are_sampled_if_others_are_too_few(clock):
    grid = FaultyGrid(quadratics(2), 2)
    grid.faults[1, wire.REPORT] = "silent"
    result = run_strategy(grid, rounds=6, min_clients=2, report_timeout=1.0).result
    assert (result.history.per_client.clients >= 0).all()


def test_backoff_is_limited_and_ends_with_reply():
    backoff = Backoff(tolerated=1)
    delays = [backoff.record_silence(7, 100) for _ in range(9)]
    assert delays == [0, 2, 4, 8, 16, 32, 64, LONGEST_BACKOFF, LONGEST_BACKOFF]
    assert backoff.is_waiting(7, 163)
    assert not backoff.is_waiting(7, 164)
    assert not backoff.is_waiting(8, 0)
    assert backoff.reset(7)
    assert not backoff.is_waiting(7, 0)
    assert not backoff.reset(7)


def test_unregistered_node_delays_start_by_wait_at_most(clock):
    grid = FaultyGrid(quadratics(CLIENTS), CLIENTS)
    grid.faults[3, wire.REGISTER] = "silent"
    requests = record_requests(grid, wire.REGISTER)
    result = run_strategy(grid, rounds=20, wait=30.0, report_timeout=600.0).result
    assert result.names == ("site 0", "site 1", "site 2")
    assert clock.now == pytest.approx(30, abs=1)
    assert sum(node == 103 for node, _ in requests) == 1  # it still has time to reply


def test_only_client_has_full_timeout_to_register(clock):
    """A client's first process may start more slowly than ``wait`` allows for connections."""
    grid = FaultyGrid(quadratics(1), 1)
    deliver, pending = grid.deliver, []
    grid.deliver = lambda message: (
        pending.append(message) if message.metadata.message_type == wire.REGISTER else deliver(message)
    )

    def answer():
        if clock.now > 200 and pending:
            message = pending.pop()
            grid._replies[message.metadata.message_id] = deliver(message)

    clock.on_sleep = answer
    assert run_strategy(grid, rounds=1, wait=30.0, report_timeout=600.0).result.status.ok
    assert 200 < clock.now < 202
    grid.deliver = lambda message: None
    with pytest.raises(TimeoutError, match="no client"):
        run_strategy(grid, rounds=1, wait=30.0, report_timeout=600.0)
    assert clock.now == pytest.approx(801, abs=3)


def test_several_silent_nodes_share_one_timeout(clock):
    grid = FaultyGrid(quadratics(9), 9)
    for i in range(1, 9):
        grid.faults[i, wire.REGISTER] = "silent"
    run_strategy(grid, rounds=3, wait=30.0, report_timeout=5.0)
    assert clock.now <= 31


@pytest.mark.parametrize("silent", [[1], [0, 1, 2]])
def test_evaluation_and_certification_share_timeout(clock, silent):
    held_out = {"x": np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)}
    app = simulated(lambda context: quadratic(int(context.node_config["partition-id"]), held_out=held_out))
    grid = FaultyGrid(app, CLIENTS)
    for i in silent:
        grid.faults[i, wire.EVALUATE] = grid.faults[i, wire.CERTIFY] = "silent"
    strategy = run_strategy(grid, rounds=1, wait=20.0, report_timeout=60.0)
    assert clock.now == pytest.approx(60, abs=1)
    assert np.isnan(strategy.result.client_objective).sum() == len(silent)
    assert strategy.clients.certify(strategy.result.params, 0.1) is not None
    assert clock.now == pytest.approx(120, abs=2)


def test_absent_client_is_awaited_for_evaluation(clock):
    grid = FaultyGrid(quadratics(CLIENTS), CLIENTS)

    def reconnect():
        if clock.now > 10:
            grid.connected.add(102)

    clock.on_sleep = reconnect
    disconnect = lambda chunk: grid.connected.discard(102)  # noqa: E731
    result = run_strategy(grid, rounds=1, wait=20.0, report_timeout=60.0, callbacks=[disconnect]).result
    assert np.isfinite(result.client_objective).all()
    assert 10 < clock.now < 12


def test_unavailable_client_is_retried_before_timeout(clock):
    grid = FaultyGrid(quadratics(2), 2)
    grid.faults[1, wire.EVALUATE] = "gone"
    requests = record_requests(grid, wire.EVALUATE)
    result = run_strategy(grid, rounds=1, report_timeout=60.0).result
    assert sum(node == 101 for node, _ in requests) == 3
    assert np.isnan(result.client_objective).tolist() == [False, True]
    assert clock.now < 1
