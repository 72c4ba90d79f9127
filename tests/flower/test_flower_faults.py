"""Client faults: the run completes, the model stays finite and the history covers every client."""

import logging

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

import softswitch as ss
import softswitch.flower as fl
from flower_clients import BAD_DIRECTIONS, BAD_REPORTS, LOST, FaultyGrid, W, quadratic, quadratics, simulated, zeros
from softswitch.flower import messages as wire
from softswitch.flower import remote
from softswitch.flower.messages import read_intervals
from softswitch.results.history import ClientOutcome

RULE = ss.SoftmaxSGM(alpha=5.0, step_size=0.2, tolerance=0.1)
CLIENTS = 4
pytestmark = pytest.mark.usefixtures("quiet")
IN_REPORT = {
    **dict.fromkeys(LOST, ClientOutcome.NO_REPORT),
    **dict.fromkeys(BAD_REPORTS, ClientOutcome.BAD_REPORT),
    "refuses": ClientOutcome.REFUSED,
}
IN_UPDATE = {
    **dict.fromkeys(LOST, ClientOutcome.NO_UPDATE),
    **dict.fromkeys(BAD_DIRECTIONS, ClientOutcome.BAD_UPDATE),
    "refuses": ClientOutcome.REFUSED,
}


REASONS = {
    "NaN": "contains NaN",
    "too many values": "4,000,128 bytes",
    "silent": "no reply within 0.02 s",
    "gone": "error 5",
}


def run(grid, rounds=1, method=RULE, **settings):
    strategy = fl.SwitchingStrategy(
        method, **{"report_timeout": 0.02, "update_timeout": 0.02, "wait": 0.0, "patience": 10**6, **settings}
    )
    strategy.start(grid, zeros(), rounds)
    return strategy.result


def step_by_hand(reporting, updating=None):
    """Return w_1 if these clients report and those of ``updating`` return a direction. w_0 = 0 is feasible."""
    f = np.array([0.5 * np.square(client_rows(i)).sum(axis=1).mean() for i in reporting])
    p = np.exp(5.0 * (f - f.max()))
    keep = np.isin(reporting, reporting if updating is None else updating)
    p = np.where(keep, p, 0) / p[keep].sum()
    return 0.2 * sum(weight * client_rows(i).mean(axis=0) for weight, i in zip(p, reporting, strict=True))


def client_rows(i):
    return quadratic(i)._data["x"].astype(float)


@pytest.mark.parametrize("fault", IN_REPORT)
def test_failed_report_excludes_client_from_round(fault, caplog):
    grid = FaultyGrid(quadratics(CLIENTS), CLIENTS)
    grid.faults[1, wire.REPORT] = fault
    with caplog.at_level(logging.WARNING):
        result = run(grid)
    assert result.history.per_client.outcomes.tolist() == [[1, IN_REPORT[fault], 1, 1]]
    assert "'site 1'" in caplog.text
    assert np.isnan(result.history.per_client.objective[0, 1])
    np.testing.assert_allclose(result.last["w"], step_by_hand([0, 2, 3]), atol=1e-6)


@pytest.mark.parametrize("fault", IN_UPDATE)
def test_failed_update_renormalises_weights(fault, caplog):
    worst = int(
        np.argmax([np.square(client_rows(i)).sum(axis=1).mean() for i in range(CLIENTS)])
    )  # it has the largest weight
    other_clients = [i for i in range(CLIENTS) if i != worst]
    grid = FaultyGrid(quadratics(CLIENTS), CLIENTS)
    grid.faults[worst, wire.UPDATE] = fault
    with caplog.at_level(logging.WARNING):
        result = run(grid)
    assert result.history.per_client.outcomes[0, worst] == IN_UPDATE[fault]
    assert (result.history.per_client.outcomes[0, other_clients] == ClientOutcome.COUNTED).all()
    assert f"'site {worst}'" in caplog.text
    assert REASONS.get(fault, "") in caplog.text
    assert np.isfinite(result.history.per_client.objective).all()  # its report counted
    np.testing.assert_allclose(result.last["w"], step_by_hand([0, 1, 2, 3], updating=other_clients), atol=1e-6)


@pytest.mark.parametrize("alpha", [100.0, 6400.0])
def test_lost_worst_client_at_large_alpha(alpha):
    """The worst client has all the weight. Without it the others are reweighted, and no round is void."""
    worst = int(np.argmax([np.square(client_rows(i)).sum(axis=1).mean() for i in range(CLIENTS)]))
    grid = FaultyGrid(quadratics(CLIENTS), CLIENTS)
    grid.faults[worst, wire.UPDATE] = "gone"
    result = run(grid, rounds=5, method=ss.SoftmaxSGM(alpha=alpha, step_size=0.2, tolerance=0.1))
    assert not result.history.void.any()
    f = np.array([0.5 * np.square(client_rows(i)).sum(axis=1).mean() for i in range(CLIENTS)])
    second = int(np.argsort(f)[-2])
    grid = FaultyGrid(quadratics(CLIENTS), CLIENTS)
    grid.faults[worst, wire.UPDATE] = "gone"
    single = run(grid, method=ss.SoftmaxSGM(alpha=6400.0, step_size=0.2, tolerance=0.1))
    np.testing.assert_allclose(single.last["w"], 0.2 * client_rows(second).mean(axis=0), atol=1e-6)


def test_restarted_client_receives_parameters_again():
    grid = FaultyGrid(quadratics(CLIENTS), CLIENTS)
    grid.faults[2, wire.UPDATE] = "restarted"
    result = run(grid)
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    np.testing.assert_allclose(result.last["w"], step_by_hand([0, 1, 2, 3]), atol=1e-6)


@pytest.mark.parametrize("kind", [wire.REPORT, wire.UPDATE])
def test_round_with_too_few_clients_is_void(kind):
    grid = FaultyGrid(quadratics(CLIENTS), CLIENTS)
    for i in (0, 1):
        grid.faults[i, kind] = "silent"
    result = run(grid, rounds=3, min_clients=3)
    assert result.history.void.all()
    lost = ClientOutcome.NO_REPORT if kind == wire.REPORT else ClientOutcome.NO_UPDATE
    assert result.history.per_client.outcomes.tolist() == [[lost, lost, ClientOutcome.VOID, ClientOutcome.VOID]] * 3
    assert not result.last["w"].any()
    assert result.status.code is ss.StatusCode.NO_FEASIBLE_ROUND
    assert "50% of the participants were lost" in result.status.message
    assert result.diagnostics[0].code == "client-dropout"
    assert "site 0" in result.diagnostics[0].evidence


def test_run_stops_after_void_rounds_and_can_resume(tmp_path):
    grid = FaultyGrid(quadratics(CLIENTS), CLIENTS)
    settings = {"patience": 3, "checkpoints": ss.Checkpoints(tmp_path, every=0)}

    def set_faults(chunk):
        if chunk.round == 4:
            grid.connected.clear()

    result = run(grid, rounds=20, callbacks=[set_faults], **settings)
    assert len(result.history) == 7
    assert result.history.void.tolist() == [False] * 4 + [True] * 3
    assert result.status.code is ss.StatusCode.STOPPED
    assert np.isnan(result.client_constraint).all()  # no client evaluated the result
    grid.connected = {100 + i for i in range(CLIENTS)}
    result = run(grid, rounds=20, **settings)
    assert len(result.history) == 20
    assert result.history.void.sum() == 3
    assert result.names == tuple(f"site {i}" for i in range(CLIENTS))


def test_nodes_join_leave_and_return():
    """A client is its name, not its node."""
    numbers = {100: 0, 101: 1, 102: 2, 103: 1, 104: 10}
    grid = fl.InProcessGrid(
        simulated(lambda context: quadratic(context.node_config["i"])), {n: {"i": i} for n, i in numbers.items()}
    )
    grid.connected = {100, 101}

    def change(chunk):
        grid.connected = {1: {100, 101, 102, 104}, 2: {100, 102}, 3: {100, 102, 103}}[min(chunk.round, 3)]

    result = run(grid, rounds=5, callbacks=[change])
    assert result.names == ("site 0", "site 1", "site 2", "site 10")
    assert result.history.per_client.clients.tolist() == [
        [0, 1, -1, -1],
        [0, 1, 2, 3],
        [0, 2, -1, -1],
        [0, 1, 2, -1],
        [0, 1, 2, -1],
    ]
    assert (result.history.per_client.outcomes > 0).sum(axis=1).tolist() == [2, 4, 2, 3, 3]
    assert np.isnan(result.client_constraint[:, 0]).tolist() == [False, False, False, True]
    assert "nothing is known of 'site 10'" in result.status.message


@pytest.mark.parametrize("kind", [wire.REPORT, wire.UPDATE])
def test_node_that_leaves_between_roster_and_message_is_lost_for_the_round(kind, monkeypatch):
    grid = fl.InProcessGrid(
        simulated(lambda context: quadratic(context.node_config["i"])), {n: {"i": n} for n in range(3)}
    )
    send = remote.RoundExchange._send

    def leave(self, message_kind, contents, timeout):
        if message_kind == kind:
            grid.connected.discard(2)
            self._roster.refresh(0, 0.0)  # as an evaluation in the round does
        return send(self, message_kind, contents, timeout)

    monkeypatch.setattr(remote.RoundExchange, "_send", leave)
    result = run(grid, rounds=1)
    lost = ClientOutcome.NO_REPORT if kind == wire.REPORT else ClientOutcome.NO_UPDATE
    assert result.history.per_client.outcomes[0, 2] == lost


def test_duplicate_and_unknown_nodes_are_rejected(caplog):
    def factory(context):
        i = context.node_config["i"]
        if i == 3:
            return quadratic(0)
        if i == 4:
            return quadratic(4, name="")
        return quadratic(i)

    grid = fl.InProcessGrid(simulated(factory), {100 + i: {"i": i} for i in range(5)})
    with caplog.at_level(logging.WARNING):
        result = run(grid, rounds=3)
    assert result.names == ("site 0", "site 1", "site 2")
    assert caplog.text.count("is connected already") == 1
    assert caplog.text.count("its name must be a text") == 1


def test_failed_final_evaluation_names_client():
    grid = FaultyGrid(quadratics(CLIENTS), CLIENTS)
    grid.faults[1, wire.EVALUATE] = "raises"
    result = run(grid, rounds=2)
    assert np.isnan(result.client_objective).tolist() == [False, True, False, False]
    assert result.status.code is ss.StatusCode.VIOLATED
    assert "nothing is known of 'site 1'" in result.status.message
    assert result.violating == ("site 1",)


@pytest.mark.parametrize("rounds", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_faults(rounds):
    generator = np.random.default_rng(0)
    grid = FaultyGrid(quadratics(6), 6)
    all_nodes = set(grid.connected)
    injected = []

    def set_faults(chunk=None):
        grid.faults.clear()
        for i in range(6):
            for kind, faults in ((wire.REPORT, IN_REPORT), (wire.UPDATE, IN_UPDATE)):
                if generator.random() < 0.15:
                    grid.faults[i, kind] = str(generator.choice([*faults]))
        grid.connected = {node for node in all_nodes if generator.random() < 0.95}
        injected.append((dict(grid.faults), set(grid.connected)))
        if len(injected) > rounds:  # all clients evaluate the answer
            grid.faults, grid.connected = {}, all_nodes

    set_faults()
    result = run(
        grid,
        rounds=rounds,
        callbacks=[set_faults],
        participation=0.8,
        min_clients=2,
        report_timeout=0.004,
        update_timeout=0.004,
        names=[f"site {i}" for i in range(6)],
    )
    history = result.history
    assert len(history) == rounds
    assert np.isfinite(np.asarray(result.last["w"])).all()
    assert np.isfinite(np.asarray(result.params["w"])).all()
    participants, outcomes = history.per_client.clients, history.per_client.outcomes
    np.testing.assert_array_equal(participants >= 0, outcomes != ClientOutcome.EMPTY)
    for k, (faults, connected) in enumerate(injected[:rounds]):
        sampled = participants[k][participants[k] >= 0].tolist()
        assert len(sampled) == max(1, round(0.8 * len(connected)))
        assert {100 + i for i in sampled} <= connected
        reported = [i for i in sampled if (i, wire.REPORT) not in faults]
        updated = [i for i in reported if (i, wire.UPDATE) not in faults]
        void = len(reported) < 2 or len(updated) < 2
        assert history.void[k] == void
        for position, i in enumerate(participants[k].tolist()):
            if i < 0:
                continue
            if i not in reported:
                expected = IN_REPORT[faults[i, wire.REPORT]]
            elif len(reported) >= 2 and i not in updated:
                expected = IN_UPDATE[faults[i, wire.UPDATE]]
            else:
                expected = ClientOutcome.VOID if void else ClientOutcome.COUNTED
            assert outcomes[k, position] == expected
    assert 0 < history.void.sum() < 0.3 * rounds
    assert 0.1 < history.switch_share < 0.9
    assert result.worst_constraint <= RULE.switch_at + 1e-6  # the mean of feasible iterates of a linear constraint


def test_client_returns_before_old_node_is_dropped():
    grid = fl.InProcessGrid(
        simulated(lambda context: quadratic(context.node_config["i"])), {n: {"i": n % 10} for n in (100, 101, 111)}
    )
    grid.connected = {100, 101}

    def change(chunk):
        grid.connected = {1: {100, 101, 111}, 2: {100, 111}}.get(chunk.round, grid.connected)

    result = run(grid, rounds=4, callbacks=[change])
    assert result.names == ("site 0", "site 1")
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()


def test_sampling_respects_min_clients():
    result = run(fl.InProcessGrid(quadratics(CLIENTS), CLIENTS), rounds=3, participation=0.5, min_clients=3)
    assert result.history.per_client.clients.shape == (3, 3)
    assert not result.history.void.any()


def test_majority_decides_number_of_constraints(caplog):
    def two_constraints(params, batch):
        return np.zeros(2), {"w": np.zeros((2, 3))}

    def factory(context):
        i = context.node_config["partition-id"]
        client_rows = quadratic(i)
        return (
            fl.NumpyClient(client_rows._objective, two_constraints, client_rows._data, {"w": W}, name="a")
            if i == 0
            else client_rows
        )

    grid = fl.InProcessGrid(simulated(factory), 3)
    assert run(grid).names == ("site 1", "site 2")
    assert "'a' is turned away: it has 2 constraints, the others 1" in caplog.text
    assert run(grid, constraints=2).names == ("a",)


def test_unregistered_client_has_backoff():
    grid = FaultyGrid(quadratics(2), 2)
    grid.faults[1, wire.REGISTER] = "silent"
    requests = []
    deliver = grid.deliver

    def count_requests(message):
        if message.metadata.message_type == wire.REGISTER and message.metadata.dst_node_id == 101:
            requests.append(message)
        return deliver(message)

    grid.deliver = count_requests
    result = run(grid, rounds=40, report_timeout=1e-6)
    assert result.names == ("site 0",)
    assert 3 <= len(requests) <= 8


def test_unreadable_reply_excludes_client(caplog):
    class Unreadable(FaultyGrid):
        def pull_messages(self, ids):
            replies = list(super().pull_messages(ids))
            for reply in replies:
                if reply.metadata.src_node_id == 102 and reply.metadata.message_type == wire.REPORT:
                    for unchanged in replies:
                        self._replies[unchanged.metadata.reply_to_message_id] = unchanged
                    raise ValueError("cannot be inflated")
            return replies

    result = run(Unreadable(quadratics(CLIENTS), CLIENTS))
    assert result.history.per_client.outcomes.tolist() == [[1, 1, ClientOutcome.NO_REPORT, 1]]
    assert "cannot be inflated" in caplog.text


@pytest.mark.parametrize(
    ("reason", "logged"),
    [
        ("<class 'ValueError'>:<'no rows\n'>", "error 2: <class 'ValueError'>:<'no rows '>"),
        ("Traceback\n  File …\nValueError: no rows\n\nFor simplicity, JAX", "error 2: ValueError: no rows"),
        ("\x1b[31mred\x1b[0m" + 10**5 * "x", "error 2: \\x1b[31mred"),
    ],
)
def test_client_error_is_sanitised_for_log(reason, logged, caplog):
    class Wordy(fl.InProcessGrid):
        def deliver(self, message):
            if message.metadata.dst_node_id == 101 and message.metadata.message_type == wire.REPORT:
                return Message(Error(2, reason), reply_to=message)
            return super().deliver(message)

    run(Wordy(quadratics(2), 2))
    line = next(record.getMessage() for record in caplog.records if "'site 1' is lost" in record.getMessage())
    assert logged in line
    assert len(line) < 400
    assert line.isprintable()


def test_invalid_pooled_statistics(caplog):
    class Pools:
        rows, held_out_rows, value_rows, gradient_rows, constraints, statistics = 5, 0, 5, 5, 1, 2

        def __init__(self, i):
            self.name, self.i = f"site {i}", i

        def report(self, params, task):
            return fl.Values(1.0, [0.0], [1.0] * (3 if self.i == 2 else 2))

        def update(self, params, task, loss):
            return {"w": W}

        def evaluate(self, params):
            return fl.Values(1.0, [0.0], [1.0, 1.0])

        def certify(self, params, levels, ranges):
            raise NotImplementedError

    def value(sums):
        if np.ndim(sums) != 1 or len(sums) != 2:
            raise ValueError("two statistics")
        return sums[0] / sums[1]

    app = simulated(lambda context: Pools(context.node_config["partition-id"]))
    grid = FaultyGrid(app, 3)
    result = run(grid, pooled=value)
    assert result.history.per_client.outcomes.tolist() == [[1, 1, ClientOutcome.BAD_REPORT]]
    assert "it reports 3 statistics, but 2 are expected" in caplog.text
    result = run(grid, pooled=lambda sums: np.nan)
    assert result.history.void.all()
    assert int(result.history.per_client.outcomes[0, 0]) == ClientOutcome.VOID
    method = ss.AverageSGM(step_size=0.1, tolerance=2.0, criterion="pooled")
    assert run(grid, method=method, pooled=value).status.ok
    grid.faults[1, wire.EVALUATE] = "silent"  # without it the pooled value is unknown
    result = run(grid, method=method, pooled=value)
    assert result.status.code is ss.StatusCode.VIOLATED
    assert "nothing is known of 'site 1'" in result.status.message


GOOD = {"estimate": [0.1], "lower": [0.0], "upper": [0.2], "rows": [9], "deviation": [0.3], "approximate": [1]}
GOOD |= {"marginal_upper": [0.2], "meets_at": [1.0], "violates_at": [1.0], "method": [0]}


@pytest.mark.parametrize(
    "change",
    [
        {"rows": [float("nan")]},
        {"rows": [float("inf")]},
        {"rows": [0]},
        {"rows": [1.5]},
        {"deviation": [-1.0]},
        {"deviation": [float("nan")]},
        {"lower": [0.3]},
        {"upper": [float("nan")]},
        {"estimate": [0.5]},
        {"rows": [9, 9]},
        {"rows": 9},
        {"meets_at": [1.5]},
        {"violates_at": [float("nan")]},
        {"marginal_upper": [0.3]},
        {"method": [17]},
    ],
)
def test_invalid_intervals_are_rejected(change):
    assert read_intervals(RecordDict({wire.INTERVALS: MetricRecord(GOOD)}), 9, [None])[0].rows == 9
    if change == {"rows": 9}:  # one number is a list of length one
        assert read_intervals(RecordDict({wire.INTERVALS: MetricRecord(GOOD | change)}), 9, [None])[0].rows == 9
        return
    with pytest.raises(wire.InvalidMessageError):
        read_intervals(RecordDict({wire.INTERVALS: MetricRecord(GOOD | change)}), 9, [None])


def test_evaluation_uses_replying_clients():
    grid = FaultyGrid(quadratics(CLIENTS), CLIENTS)
    grid.faults[1, wire.EVALUATE] = "silent"
    result = run(grid, rounds=4, eval_every=2)
    assert result.history.full_rounds.tolist() == [0, 2]
    other_objectives = [np.square(client_rows(i)).sum(axis=1).mean() / 2 for i in (0, 2, 3)]
    np.testing.assert_allclose(result.history.full.objective[0], max(other_objectives), rtol=1e-5)
    np.testing.assert_allclose(result.history.full.mean_objective[0], np.mean(other_objectives), rtol=1e-5)


def test_client_with_parameters_of_other_round_refuses():
    grid = fl.InProcessGrid(quadratics(1), 1)

    def send(kind, round_number, **records):
        message = Message(RecordDict(records), 100, kind, group_id=str(round_number))
        return next(iter(grid.send_and_receive([message]))).content

    settings = {"round": 0, "seed": 0, "local_steps": 1, "step_size": 0.1, "switches": True}
    send(wire.REPORT, 0, params=zeros(), settings=ConfigRecord(settings))
    assert wire.DIRECTION in send(wire.UPDATE, 0, decision=ConfigRecord({"feasible": True}))
    refusal = wire.read_refusal(send(wire.UPDATE, 1, decision=ConfigRecord({"feasible": True})))
    assert refusal == "it has the parameters of round 0, but the request is for round 1"
