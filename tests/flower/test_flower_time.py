"""How long a run waits for whom. Time is a clock of the test's own: nothing depends on how busy the machine is."""

import numpy as np
import pytest

from flower_clients import FaultyGrid, quadratic, quadratics, simulated
from member_clients import Clock, kinds, start
from softswitch.flower import messages as wire
from softswitch.flower.roster import LONGEST_BACKOFF, Backoff
from softswitch.results.history import ClientOutcome

pytestmark = pytest.mark.usefixtures("quiet")
MANY = 4


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def counting(grid, kind, clock=None):
    """When which node is sent a message of this kind."""
    asked, deliver = [], grid.deliver

    def delivered(message):
        if message.metadata.message_type == kind:
            asked.append((message.metadata.dst_node_id, clock and clock.now))
        return deliver(message)

    grid.deliver = delivered
    return asked


def test_a_client_that_stays_silent_is_asked_ever_more_rarely_and_comes_back(clock, tmp_path):
    grid = FaultyGrid(quadratics(MANY), MANY)
    grid.faults[1, wire.REPORT] = "silent"
    asked = counting(grid, wire.REPORT)

    def recover(chunk):
        if chunk.round == 30:
            grid.faults.clear()

    events = tmp_path / "events.jsonl"
    result = start(grid, rounds=50, report_timeout=600.0, callbacks=[recover], events=events).result
    told = result.history.per_client
    rounds = np.flatnonzero((told.clients == 1).any(axis=1)).tolist()
    assert rounds == [0, 1, 2, 4, 8, 16, *range(32, 50)]
    assert sum(node == 101 for node, _ in asked) == len(rounds)
    assert (told.outcomes[32:] == ClientOutcome.COUNTED).all()
    assert clock.now == pytest.approx(6 * 600, abs=10)
    assert kinds(events, "silent", "back") == [("silent", "site 1")] * 4 + [("back", "site 1")]
    assert result.status.ok  # where the answer is judged, everyone is asked


def test_those_who_stayed_silent_are_asked_where_there_are_too_few_others(clock):
    grid = FaultyGrid(quadratics(2), 2)
    grid.faults[1, wire.REPORT] = "silent"
    result = start(grid, rounds=6, min_clients=2, report_timeout=1.0).result
    assert (result.history.per_client.clients >= 0).all()


def test_the_pauses_grow_up_to_a_limit_and_end_with_an_answer():
    backoff = Backoff(tolerated=1)
    delays = [backoff.record_silence(7, 100) for _ in range(9)]
    assert delays == [0, 2, 4, 8, 16, 32, 64, LONGEST_BACKOFF, LONGEST_BACKOFF]
    assert backoff.is_waiting(7, 163)
    assert not backoff.is_waiting(7, 164)
    assert not backoff.is_waiting(8, 0)
    assert backoff.reset(7)
    assert not backoff.is_waiting(7, 0)
    assert not backoff.reset(7)


def test_a_node_that_never_introduces_itself_holds_nobody_up_for_longer_than_wait(clock):
    grid = FaultyGrid(quadratics(MANY), MANY)
    grid.faults[3, wire.REGISTER] = "silent"
    asked = counting(grid, wire.REGISTER)
    result = start(grid, rounds=20, wait=30.0, report_timeout=600.0).result
    assert result.names == ("site 0", "site 1", "site 2")
    assert clock.now == pytest.approx(30, abs=1)
    assert sum(node == 103 for node, _ in asked) == 1  # it still has time to answer


def test_where_nobody_else_is_there_a_slow_greeting_has_all_the_time_of_an_answer(clock):
    """A client's first process may take longer to start than one wants to wait for clients to connect."""
    grid = FaultyGrid(quadratics(1), 1)
    deliver, held = grid.deliver, []
    grid.deliver = lambda message: (
        held.append(message) if message.metadata.message_type == wire.REGISTER else deliver(message)
    )

    def answer():
        if clock.now > 200 and held:
            message = held.pop()
            grid._replies[message.metadata.message_id] = deliver(message)

    clock.at_every_pause = answer
    assert start(grid, rounds=1, wait=30.0, report_timeout=600.0).result.status.ok
    assert 200 < clock.now < 202
    grid.deliver = lambda message: None
    with pytest.raises(TimeoutError, match="no client"):
        start(grid, rounds=1, wait=30.0, report_timeout=600.0)
    assert clock.now == pytest.approx(801, abs=3)


def test_several_silent_nodes_cost_no_more_than_one(clock):
    grid = FaultyGrid(quadratics(9), 9)
    for i in range(1, 9):
        grid.faults[i, wire.REGISTER] = "silent"
    start(grid, rounds=3, wait=30.0, report_timeout=5.0)
    assert clock.now <= 31


@pytest.mark.parametrize("silent", [[1], [0, 1, 2]])
def test_to_judge_and_to_certify_take_one_time_limit_in_all(clock, silent):
    held_out = {"x": np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)}
    app = simulated(lambda context: quadratic(int(context.node_config["partition-id"]), held_out=held_out))
    grid = FaultyGrid(app, MANY)
    for i in silent:
        grid.faults[i, wire.EVALUATE] = grid.faults[i, wire.CERTIFY] = "silent"
    strategy = start(grid, rounds=1, wait=20.0, report_timeout=60.0)
    assert clock.now == pytest.approx(60, abs=1)
    assert np.isnan(strategy.result.client_objective).sum() == len(silent)
    assert strategy.clients.certify(strategy.result.params, 0.1) is not None
    assert clock.now == pytest.approx(120, abs=2)


def test_a_client_that_is_away_when_the_answer_is_judged_is_waited_for(clock):
    grid = FaultyGrid(quadratics(MANY), MANY)

    def come_back():
        if clock.now > 10:
            grid.connected.add(102)

    clock.at_every_pause = come_back
    leave = lambda chunk: grid.connected.discard(102)  # noqa: E731
    result = start(grid, rounds=1, wait=20.0, report_timeout=60.0, callbacks=[leave]).result
    assert np.isfinite(result.client_objective).all()
    assert 10 < clock.now < 12


def test_a_client_that_is_refused_a_connection_is_asked_again_while_there_is_time(clock):
    grid = FaultyGrid(quadratics(2), 2)
    grid.faults[1, wire.EVALUATE] = "gone"
    asked = counting(grid, wire.EVALUATE)
    result = start(grid, rounds=1, report_timeout=60.0).result
    assert sum(node == 101 for node, _ in asked) == 3
    assert np.isnan(result.client_objective).tolist() == [False, True]
    assert clock.now < 1
