"""Compression over Flower: the course of the simulation, bytes as counted on the wire, and whatever goes wrong."""

import json

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from torch.utils.data import TensorDataset

import softswitch as ss
import softswitch.flower as fl
from benchmarks import flat
from flower_clients import FEATURES, FaultyGrid, quadratic, quadratics, simulated, zeros
from softswitch.flower import compression as codes
from softswitch.flower import messages as wire
from softswitch.methods import Compression, Quantised, TopK
from softswitch.results.history import ClientOutcome
from softswitch_experiments.tasks.neyman_pearson import breast_cancer

MANY = 4
SETTINGS = {"alpha": 5.0, "step_size": 0.2, "tolerance": 0.1}
BOTH = Compression(up=TopK(0.34), down=TopK(0.34, 8))  # two numbers of three up and down
pytestmark = pytest.mark.usefixtures("quiet")


class WatchedGrid(FaultyGrid):
    """A grid that keeps the rounds' messages, and can do something before one is delivered."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.messages, self.before = [], lambda message: None

    def deliver(self, message):
        self.before(message)
        reply = super().deliver(message)
        if message.metadata.message_type in (wire.REPORT, wire.UPDATE):
            self.messages.append((message, reply))
        return reply

    def sent(self, k, i, kind=wire.REPORT):
        """What client i was sent in one of round k's exchanges, the last time."""
        found = [
            m.content
            for m, _ in self.messages
            if m.metadata.message_type == kind and (m.metadata.group_id, m.metadata.dst_node_id) == (str(k), 100 + i)
        ]
        return found[-1]


def run(grid, way=BOTH, rounds=12, **settings):
    method = ss.SoftmaxSGM(at_clients=way, **SETTINGS)
    strategy = fl.SwitchingStrategy(method, **{"report_timeout": 0.02, "update_timeout": 0.02, "wait": 0.0, **settings})
    strategy.start(grid, zeros(), rounds)
    return strategy.result


def watched(rounds=12, **settings):
    grid = WatchedGrid(quadratics(MANY), MANY)
    return grid, run(grid, rounds=rounds, **settings)


def whole(content):
    return wire.PARAMS in content


UP, DOWN = Compression(up=Quantised(4), apart=False), Compression(down=Quantised(2, 16))


@pytest.mark.parametrize(
    ("way", "share"),
    [
        (BOTH, 1.0),
        (UP, 0.5),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(BOTH, 0.5), (UP, 1.0), (DOWN, 1.0), (DOWN, 0.5)]),
    ],
    ids=str,
)
def test_the_grid_takes_the_course_of_the_simulation(way, share):
    data, method = breast_cancer(4), ss.SoftmaxSGM(alpha=20.0, step_size=0.5, tolerance=0.2, at_clients=way)
    request = {"rounds": 25, "participation": share, "batch_size": None, "eval_every": 0, "seed": 5}
    simulated = flat.solve(data.problem, data.train, method, **request)
    real = flat.solve(data.problem, data.train, method, engine="grid", **request)
    assert 0.1 < simulated.history.switch_share < 0.9
    np.testing.assert_allclose(real.last, simulated.last, atol=2e-6)
    np.testing.assert_array_equal(real.history.feasible, simulated.history.feasible)
    if way.up is not None:
        np.testing.assert_array_equal(real.history.bytes_up, simulated.history.bytes_up)
    if way.down is not None and share == 1:  # the first time arrays are sent, with NumPy's own description of them
        np.testing.assert_array_equal(real.history.bytes_down[1:], simulated.history.bytes_down[1:])


def test_a_void_round_changes_no_parameters_and_sends_no_directions():
    data = breast_cancer(6, concentration=0.05)  # some clients have rows of one class only
    way = Compression(up=TopK(0.34), down=TopK(0.1, 8))
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.5, tolerance=0.2, at_clients=way)
    request = {"rounds": 40, "participation": 0.34, "batch_size": None, "eval_every": 0, "seed": 5, "memory": None}
    simulated = flat.solve(data.problem, data.train, method, **request)
    real = flat.solve(data.problem, data.train, method, engine="grid", **request)
    void, clients = real.history.void, real.history.per_client.clients
    everyone_met = next(k for k in range(40) if len(np.unique(clients[:k])) == 6)
    assert void[everyone_met:].sum() >= 5
    np.testing.assert_allclose(real.last, simulated.last, atol=2e-6)
    np.testing.assert_array_equal(simulated.history.bytes_up == 0, void)
    np.testing.assert_array_equal(real.history.bytes_up, simulated.history.bytes_up)
    expected = simulated.history.bytes_down[everyone_met:]
    np.testing.assert_array_equal(real.history.bytes_down[everyone_met:], expected)


def test_off_nothing_is_told():
    plain_grid = WatchedGrid(quadratics(MANY), MANY)
    plain = run(plain_grid, None)
    assert plain.history.bytes_up is None
    assert set(plain_grid.sent(3, 0)[wire.SETTINGS]) == {"round", "seed", "local_steps", "step_size", "switches"}
    assert isinstance(plain_grid.messages[-1][1].content[wire.DIRECTION], ArrayRecord)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_history_counts_the_bytes_that_were_sent(share):
    grid, result = watched(participation=share)
    up, down = np.zeros(12, int), np.zeros(12, int)
    for message, reply in grid.messages:
        k = int(message.metadata.group_id)
        if message.metadata.message_type == wire.UPDATE:
            up[k] += len(reply.content[wire.DIRECTION]["code"])
        elif whole(message.content):
            down[k] += len(message.content[wire.PARAMS]["w"].data)
        else:
            down[k] += sum(map(len, message.content["change"]["codes"]))
    np.testing.assert_array_equal(result.history.bytes_up, up)
    np.testing.assert_array_equal(result.history.bytes_down, down)
    assert (up == round(share * MANY) * (1 + 2 * 4)).all()  # three bits, and two float32
    assert down[-1] < down[0] / 10


def test_a_request_for_whole_parameters_does_not_count_as_a_round(tmp_path):
    """The client loses its parameters before round 3; the report that it then makes counts once."""
    plain, file = quadratics(MANY), tmp_path / "counts.json"
    policy = fl.ClientPolicy(min_rows=1, min_class_rows=1, max_rounds=6, counter_file=file)
    counting = fl.client_app(lambda context: quadratic(2), policy)
    grid = WatchedGrid(lambda message, context: (counting if context.node_id == 102 else plain)(message, context), MANY)

    def restart(message):
        about = message.metadata
        if (about.group_id, about.dst_node_id, about.message_type) == ("3", 102, wire.REPORT):
            grid.before = lambda message: None
            grid.forget(102)

    grid.before = restart
    result = run(grid, rounds=6)
    asked = [m for m, _ in grid.messages if m.metadata.dst_node_id == 102 and m.metadata.message_type == wire.REPORT]
    assert len(asked) == 7
    assert json.loads(file.read_text()) == {"reports": 6, "updates": 6}
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()


def test_only_the_new_are_sent_whole_parameters():
    grid, _ = watched()
    assert all(whole(grid.sent(k, i)) == (k == 0) for k in range(12) for i in range(MANY))


@pytest.mark.parametrize("kind", [wire.REPORT, wire.UPDATE])
def test_a_client_that_was_restarted_loses_no_round(kind):
    grid = WatchedGrid(quadratics(MANY), MANY)

    def restart(message):
        about = message.metadata
        if (about.group_id, about.dst_node_id, about.message_type) == ("5", 102, kind):
            grid.before = lambda message: None
            grid.forget(102)

    grid.before = restart
    result = run(grid)
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    assert whole(grid.sent(5, 2, kind))
    assert not whole(grid.sent(6, 2))
    others = [k for k in range(12) if k != 5]
    assert len(set(result.history.bytes_down[others[1:]])) == 1
    assert result.history.bytes_down[5] > result.history.bytes_down[6]


@pytest.mark.parametrize("fault", ["silent", "raises", "gone"])
@pytest.mark.parametrize("kind", [wire.REPORT, wire.UPDATE])
def test_whoever_was_lost_is_right_again_and_owes_only_what_did_not_count(fault, kind):
    """A direction that does not arrive leaves the error as it was; w_k stays the same at all clients."""
    grid, errors = WatchedGrid(quadratics(MANY), MANY), {}

    def before(message):
        k, about = int(message.metadata.group_id) if message.metadata.group_id.isdigit() else -1, message.metadata
        grid.faults = {(1, kind): fault} if k == 4 else {}
        if about.message_type == wire.UPDATE and about.dst_node_id == 101:
            errors[k] = wire.from_record(grid._contexts[101].state["errors"])

    grid.before = before
    result = run(grid)
    assert (result.history.per_client.outcomes != ClientOutcome.COUNTED).sum() == 1
    if kind == wire.UPDATE:  # what round 4 left out is not owed
        assert errors[4].keys() == errors[5].keys()
        for branch, error in errors[4].items():
            np.testing.assert_array_equal(errors[5][branch], error)
    assert whole(grid.sent(5, 1)) == (kind == wire.REPORT)
    for i in range(MANY):
        np.testing.assert_array_equal(
            wire.from_record(grid._contexts[100 + i].state[wire.PARAMS])["w"], last_but_one(grid)
        )


def last_but_one(grid):
    """w at which the last round was played, at the client that nothing happened to."""
    return wire.from_record(grid._contexts[100].state[wire.PARAMS])["w"]


def test_a_message_that_comes_twice_changes_nothing():
    once = watched()[1]
    grid = WatchedGrid(quadratics(MANY), MANY)
    deliver = grid.deliver

    def twice(message):
        deliver(message)
        return deliver(message)

    grid.deliver = twice
    np.testing.assert_array_equal(run(grid).last["w"], once.last["w"])


def test_all_clients_have_the_servers_parameters():
    """Those of the last round by hand: the sum of all that was sent."""
    grid, result = watched()
    seen = []
    for k in range(1, 12):
        (code,) = grid.sent(k, 0)["change"]["codes"]
        seen.append(BOTH.down.decode(code, FEATURES, np.dtype(np.float32)))
    w = np.zeros(FEATURES, np.float32)
    for change in seen:
        w = w + change
    np.testing.assert_array_equal(w, last_but_one(grid))
    assert np.isfinite(result.last["w"]).all()


@pytest.mark.parametrize("after", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_a_resumed_server_goes_on_to_the_same_bits(tmp_path, after):
    whole_run = watched(participation=0.5)[1]
    grid = WatchedGrid(quadratics(MANY), MANY)
    kept = {"checkpoints": ss.Checkpoints(tmp_path, every=0), "participation": 0.5}
    run(grid, callbacks=[lambda chunk: chunk.round == after], **kept)
    grid.messages.clear()
    resumed = run(grid, **kept)
    np.testing.assert_array_equal(resumed.last["w"], whole_run.last["w"])
    assert all(
        whole(m.content)
        for m, _ in grid.messages
        if m.metadata.message_type == wire.REPORT and int(m.metadata.group_id) == after
    )


def test_a_server_that_went_back_makes_clients_owe_nothing(tmp_path):
    grid = WatchedGrid(quadratics(MANY), MANY)
    run(grid)
    again = run(grid)  # another run at the same nodes: its first round knows of no direction that counted
    np.testing.assert_array_equal(again.last["w"], watched()[1].last["w"])


def code_of(places, values):
    return {wire.DIRECTION: ConfigRecord({"code": bytes([places]) + np.asarray(values, "<f4").tobytes()})}


BAD_CODES = {
    "nothing": ({}, "no compressed direction"),
    "whole arrays": ({wire.DIRECTION: zeros()}, "no compressed direction"),
    "more than a code": ({wire.DIRECTION: ConfigRecord({"code": b"", "more": 1})}, "no compressed direction"),
    "no bytes": ({wire.DIRECTION: ConfigRecord({"code": "text"})}, "must be bytes"),
    "NaN": (code_of(0b11000000, [np.nan, 0]), "NaN"),
    "what a client sends that is not finite": ({wire.DIRECTION: ConfigRecord({"code": b""})}, "NaN"),
    "absurd numbers": (code_of(0b11000000, [3e38, 0]), "but at most"),
    "too long": (code_of(0b11000000, [0, 0, 0]), "expected 9 bytes, but there are 13"),
    "three places": (code_of(0b11100000, [0, 0]), "expected 2 positions, but there are 3"),
    "a place beyond": (code_of(0b11010000, [0, 0]), "after the last"),
}


@pytest.mark.parametrize("name", BAD_CODES)
def test_bad_codes_are_rejected(name, caplog):
    content, why = BAD_CODES[name]
    grid = WatchedGrid(quadratics(MANY), MANY)
    deliver = grid.deliver

    def faulty(message):
        if (message.metadata.message_type, message.metadata.dst_node_id) == (wire.UPDATE, 102):
            return Message(RecordDict(content), reply_to=message)
        return deliver(message)

    grid.deliver = faulty
    result = run(grid, rounds=3)
    assert (result.history.per_client.outcomes == [[1, 1, ClientOutcome.BAD_UPDATE, 1]] * 3).all()
    assert why in caplog.text


BAD_SERVERS = {
    "an unknown way": ({"up": '["Magic", {}]'}, wire.UPDATE),
    "an absurd share": ({"up": '["TopK", {"share": 7}]'}, wire.UPDATE),
    "no round": ({"last_counted": -7}, wire.REPORT),
}


@pytest.mark.parametrize("name", BAD_SERVERS)
def test_a_client_refuses_what_it_cannot_use(name):
    changes, kind = BAD_SERVERS[name]
    grid, refused = WatchedGrid(quadratics(MANY), MANY), []
    deliver = grid.deliver

    def other(message):
        if wire.SETTINGS in message.content and message.metadata.message_type == wire.REPORT:
            told = dict(message.content[wire.SETTINGS]) | changes
            message.content[wire.SETTINGS] = ConfigRecord(told)
        reply = deliver(message)
        if message.metadata.message_type == kind and reply is not None:
            refused.append(wire.read_refusal(reply.content))
        return reply

    grid.deliver = other
    run(grid, rounds=1)
    assert refused
    assert all("is invalid" in why for why in refused)


def test_what_cannot_be_sent_is_refused():
    for way, settings, why in ((BOTH, {"domain": ss.Ball(1.0)}, "domain must be None"),):
        with pytest.raises(ValueError, match=why):
            run(FaultyGrid(quadratics(MANY), MANY), way, **settings)


def test_pytorch_clients_take_the_course_of_numpy_clients():
    def factory(context):
        i = int(context.node_config["partition-id"])
        x = torch.from_numpy(quadratic(i)._data["x"])
        module = torch.nn.Module()
        module.w = torch.nn.Parameter(torch.zeros(FEATURES))
        return fl.TorchClient(
            module,
            lambda m, batch: 0.5 * ((m.w - batch[0]) ** 2).sum(dim=1).mean(),
            lambda m, batch: m.w.sum() - 0.2,
            TensorDataset(x),
            name=f"site {i}",
            batch_size=None,
        )

    ours = watched()[1]
    theirs = run(FaultyGrid(simulated(factory), MANY), report_timeout=5.0, update_timeout=5.0)
    np.testing.assert_allclose(theirs.last["w"], ours.last["w"], atol=1e-5)
    np.testing.assert_array_equal(theirs.history.bytes_up, ours.history.bytes_up)


@pytest.mark.slow
def test_a_run_that_chooses_its_steps_begins_every_cycle_with_nothing_owed():
    grid = WatchedGrid(quadratics(MANY), MANY)
    method = ss.Automatic(tolerance=0.1, at_clients=BOTH)
    strategy = fl.SwitchingStrategy(method, wait=0.0)
    strategy.start(grid, zeros(), 300)
    result = strategy.result
    assert len(result.restarts) > 1
    for cycle in result.restarts:
        told = grid.sent(cycle.begin, 0)
        assert told[wire.SETTINGS][codes.LAST_COUNTED] == -1
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()


def test_a_client_that_holds_other_parameters_says_so_and_loses_nothing():
    grid = WatchedGrid(quadratics(MANY), MANY)

    def confuse(message):
        about = message.metadata
        if (about.group_id, about.dst_node_id, about.message_type) == ("5", 102, wire.REPORT):
            grid.before = lambda message: None
            grid._contexts[102].state[wire.PARAMS] = wire.to_record({"w": np.ones(FEATURES, np.float32)})

    grid.before = confuse
    result = run(grid)
    assert whole(grid.sent(5, 2))
    assert not whole(grid.sent(6, 2))
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    np.testing.assert_array_equal(result.last["w"], watched()[1].last["w"])
