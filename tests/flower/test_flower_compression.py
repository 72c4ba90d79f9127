"""Compression over Flower: agreement with the simulation, byte counts and faults."""

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
from softswitch.methods import Compression, TopK
from softswitch.results.history import ClientOutcome
from softswitch_experiments.tasks.neyman_pearson import breast_cancer

CLIENTS = 4
SETTINGS = {"alpha": 5.0, "step_size": 0.2, "tolerance": 0.1}
BOTH = Compression(up=TopK(0.34), down=TopK(0.34, 8))  # two numbers of three up and down
pytestmark = pytest.mark.usefixtures("quiet")


class RecordingGrid(FaultyGrid):
    """A grid that records the messages of rounds and can act before a delivery."""

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
        """Return the last content sent to client i in an exchange of round k."""
        contents = [
            m.content
            for m, _ in self.messages
            if m.metadata.message_type == kind and (m.metadata.group_id, m.metadata.dst_node_id) == (str(k), 100 + i)
        ]
        return contents[-1]


def run(grid, way=BOTH, rounds=12, **settings):
    method = ss.SoftmaxSGM(at_clients=way, **SETTINGS)
    strategy = fl.SwitchingStrategy(method, **{"report_timeout": 0.02, "update_timeout": 0.02, "wait": 0.0, **settings})
    strategy.start(grid, zeros(), rounds)
    return strategy.result


def run_recorded(rounds=12, **settings):
    grid = RecordingGrid(quadratics(CLIENTS), CLIENTS)
    return grid, run(grid, rounds=rounds, **settings)


def has_full_parameters(content):
    return wire.PARAMS in content


UP, DOWN = Compression(up=TopK(0.5, 4)), Compression(down=TopK(0.5, 2))


@pytest.mark.parametrize(
    ("way", "share"),
    [
        (BOTH, 1.0),
        (UP, 0.5),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(BOTH, 0.5), (UP, 1.0), (DOWN, 1.0), (DOWN, 0.5)]),
    ],
    ids=str,
)
def test_grid_matches_simulation(way, share):
    data, method = breast_cancer(4), ss.SoftmaxSGM(alpha=20.0, step_size=0.5, tolerance=0.2, at_clients=way)
    request = {"rounds": 25, "participation": share, "batch_size": None, "eval_every": 0, "seed": 5}
    simulated = flat.solve(data.problem, data.train, method, **request)
    grid_result = flat.solve(data.problem, data.train, method, engine="grid", **request)
    assert 0.1 < simulated.history.switch_share < 0.9
    np.testing.assert_allclose(grid_result.last, simulated.last, atol=2e-6)
    np.testing.assert_array_equal(grid_result.history.feasible, simulated.history.feasible)
    if way.up is not None:
        np.testing.assert_array_equal(grid_result.history.bytes_up, simulated.history.bytes_up)
    if way.down is not None and share == 1:  # arrays are sent the first time, with NumPy's header
        np.testing.assert_array_equal(grid_result.history.bytes_down[1:], simulated.history.bytes_down[1:])


def test_void_round_changes_no_parameters():
    data = breast_cancer(6, concentration=0.05)  # some clients have rows of one class only
    way = Compression(up=TopK(0.34), down=TopK(0.1, 8))
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.5, tolerance=0.2, at_clients=way)
    request = {"rounds": 40, "participation": 0.34, "batch_size": None, "eval_every": 0, "seed": 5, "memory": None}
    simulated = flat.solve(data.problem, data.train, method, **request)
    grid_result = flat.solve(data.problem, data.train, method, engine="grid", **request)
    void, clients = grid_result.history.void, grid_result.history.per_client.clients
    everyone_met = next(k for k in range(40) if len(np.unique(clients[:k])) == 6)
    assert void[everyone_met:].sum() >= 5
    np.testing.assert_allclose(grid_result.last, simulated.last, atol=2e-6)
    np.testing.assert_array_equal(simulated.history.bytes_up == 0, void)
    np.testing.assert_array_equal(grid_result.history.bytes_up, simulated.history.bytes_up)
    expected = simulated.history.bytes_down[everyone_met:]
    np.testing.assert_array_equal(grid_result.history.bytes_down[everyone_met:], expected)


def test_without_compression_no_settings_are_sent():
    plain_grid = RecordingGrid(quadratics(CLIENTS), CLIENTS)
    reference = run(plain_grid, None)
    assert reference.history.bytes_up is None
    assert set(plain_grid.sent(3, 0)[wire.SETTINGS]) == {"round", "seed", "local_steps", "step_size", "switches"}
    assert isinstance(plain_grid.messages[-1][1].content[wire.DIRECTION], ArrayRecord)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_history_counts_sent_bytes(share):
    grid, result = run_recorded(participation=share)
    up, down = np.zeros(12, int), np.zeros(12, int)
    for message, reply in grid.messages:
        k = int(message.metadata.group_id)
        if message.metadata.message_type == wire.UPDATE:
            up[k] += len(reply.content[wire.DIRECTION]["code"])
        elif has_full_parameters(message.content):
            down[k] += len(message.content[wire.PARAMS]["w"].data)
        else:
            down[k] += sum(map(len, message.content["change"]["codes"]))
    np.testing.assert_array_equal(result.history.bytes_up, up)
    np.testing.assert_array_equal(result.history.bytes_down, down)
    assert (up == round(share * CLIENTS) * (1 + 2 * 4)).all()  # three bits, and two float32
    assert down[-1] < down[0] / 10


def test_request_for_full_parameters_is_not_a_round(tmp_path):
    """The client loses its parameters before round 3, and its report still counts once."""
    reference, file = quadratics(CLIENTS), tmp_path / "counts.json"
    policy = fl.ClientPolicy(min_rows=1, min_class_rows=1, max_rounds=6, counter_file=file)
    counting = fl.client_app(lambda context: quadratic(2), policy)
    grid = RecordingGrid(
        lambda message, context: (counting if context.node_id == 102 else reference)(message, context), CLIENTS
    )

    def restart(message):
        metadata = message.metadata
        if (metadata.group_id, metadata.dst_node_id, metadata.message_type) == ("3", 102, wire.REPORT):
            grid.before = lambda message: None
            grid.forget(102)

    grid.before = restart
    result = run(grid, rounds=6)
    requests = [m for m, _ in grid.messages if m.metadata.dst_node_id == 102 and m.metadata.message_type == wire.REPORT]
    assert len(requests) == 7
    assert json.loads(file.read_text()) == {"reports": 6, "updates": 6, "evaluations": 1}
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()


def test_only_new_clients_receive_full_parameters():
    grid, _ = run_recorded()
    assert all(has_full_parameters(grid.sent(k, i)) == (k == 0) for k in range(12) for i in range(CLIENTS))


@pytest.mark.parametrize("kind", [wire.REPORT, wire.UPDATE])
def test_restarted_client_loses_no_round(kind):
    grid = RecordingGrid(quadratics(CLIENTS), CLIENTS)

    def restart(message):
        metadata = message.metadata
        if (metadata.group_id, metadata.dst_node_id, metadata.message_type) == ("5", 102, kind):
            grid.before = lambda message: None
            grid.forget(102)

    grid.before = restart
    result = run(grid)
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    assert has_full_parameters(grid.sent(5, 2, kind))
    assert not has_full_parameters(grid.sent(6, 2))
    other_rounds = [k for k in range(12) if k != 5]
    assert len(set(result.history.bytes_down[other_rounds[1:]])) == 1
    assert result.history.bytes_down[5] > result.history.bytes_down[6]


@pytest.mark.parametrize("fault", ["silent", "raises", "gone"])
@pytest.mark.parametrize("kind", [wire.REPORT, wire.UPDATE])
def test_error_feedback_after_lost_messages(fault, kind):
    """A lost direction leaves the error unchanged, and w_k stays the same at all clients."""
    grid, errors = RecordingGrid(quadratics(CLIENTS), CLIENTS), {}

    def interrupt(message):
        k, metadata = int(message.metadata.group_id) if message.metadata.group_id.isdigit() else -1, message.metadata
        grid.faults = {(1, kind): fault} if k == 4 else {}
        if metadata.message_type == wire.UPDATE and metadata.dst_node_id == 101:
            errors[k] = wire.from_record(grid._contexts[101].state["errors"])

    grid.before = interrupt
    result = run(grid)
    assert (result.history.per_client.outcomes != ClientOutcome.COUNTED).sum() == 1
    if kind == wire.UPDATE:  # the truncated part of round 4 is not sent later
        assert errors[4].keys() == errors[5].keys()
        for branch, error in errors[4].items():
            np.testing.assert_array_equal(errors[5][branch], error)
    assert has_full_parameters(grid.sent(5, 1)) == (kind == wire.REPORT)
    for i in range(CLIENTS):
        np.testing.assert_array_equal(
            wire.from_record(grid._contexts[100 + i].state[wire.PARAMS])["w"], parameters_of_last_round(grid)
        )


def parameters_of_last_round(grid):
    """Return the w of the last round at an unaffected client."""
    return wire.from_record(grid._contexts[100].state[wire.PARAMS])["w"]


def test_repeated_message_changes_nothing():
    reference = run_recorded()[1]
    grid = RecordingGrid(quadratics(CLIENTS), CLIENTS)
    deliver = grid.deliver

    def repeat(message):
        deliver(message)
        return deliver(message)

    grid.deliver = repeat
    np.testing.assert_array_equal(run(grid).last["w"], reference.last["w"])


def test_clients_have_parameters_of_server():
    """The parameters of the last round are the sum of all sent changes."""
    grid, result = run_recorded()
    recorded = []
    for k in range(1, 12):
        (code,) = grid.sent(k, 0)["change"]["codes"]
        recorded.append(BOTH.down.decode(code, FEATURES, np.dtype(np.float32)))
    w = np.zeros(FEATURES, np.float32)
    for change in recorded:
        w = w + change
    np.testing.assert_array_equal(w, parameters_of_last_round(grid))
    assert np.isfinite(result.last["w"]).all()


@pytest.mark.parametrize("completed_rounds", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_resumed_server_is_exact(tmp_path, completed_rounds):
    whole_run = run_recorded(participation=0.5)[1]
    grid = RecordingGrid(quadratics(CLIENTS), CLIENTS)
    options = {"checkpoints": ss.Checkpoints(tmp_path, every=0), "participation": 0.5}
    run(grid, callbacks=[lambda chunk: chunk.round == completed_rounds], **options)
    grid.messages.clear()
    resumed = run(grid, **options)
    np.testing.assert_array_equal(resumed.last["w"], whole_run.last["w"])
    assert all(
        has_full_parameters(m.content)
        for m, _ in grid.messages
        if m.metadata.message_type == wire.REPORT and int(m.metadata.group_id) == completed_rounds
    )


def test_server_rollback_resets_error_feedback(tmp_path):
    grid = RecordingGrid(quadratics(CLIENTS), CLIENTS)
    run(grid)
    second_run = run(grid)  # another run at the same nodes starts without counted directions
    np.testing.assert_array_equal(second_run.last["w"], run_recorded()[1].last["w"])


def make_code(places, values):
    return {wire.DIRECTION: ConfigRecord({"code": bytes([places]) + np.asarray(values, "<f4").tobytes()})}


BAD_CODES = {
    "nothing": ({}, "no compressed direction"),
    "whole arrays": ({wire.DIRECTION: zeros()}, "no compressed direction"),
    "more than a code": ({wire.DIRECTION: ConfigRecord({"code": b"", "more": 1})}, "no compressed direction"),
    "no bytes": ({wire.DIRECTION: ConfigRecord({"code": "text"})}, "must be bytes"),
    "NaN": (make_code(0b11000000, [np.nan, 0]), "NaN"),
    "NaN values": ({wire.DIRECTION: ConfigRecord({"code": b""})}, "NaN"),
    "absurd numbers": (make_code(0b11000000, [3e38, 0]), "but at most"),
    "too long": (make_code(0b11000000, [0, 0, 0]), "expected 9 bytes, but there are 13"),
    "three positions": (make_code(0b11100000, [0, 0]), "expected 2 positions, but there are 3"),
    "a place beyond": (make_code(0b11010000, [0, 0]), "after the last"),
}


@pytest.mark.parametrize("name", BAD_CODES)
def test_bad_codes_are_rejected(name, caplog):
    content, reason = BAD_CODES[name]
    grid = RecordingGrid(quadratics(CLIENTS), CLIENTS)
    deliver = grid.deliver

    def faulty(message):
        if (message.metadata.message_type, message.metadata.dst_node_id) == (wire.UPDATE, 102):
            return Message(RecordDict(content), reply_to=message)
        return deliver(message)

    grid.deliver = faulty
    result = run(grid, rounds=3)
    assert (result.history.per_client.outcomes == [[1, 1, ClientOutcome.BAD_UPDATE, 1]] * 3).all()
    assert reason in caplog.text


BAD_SERVERS = {
    "unknown compressor": ({"up": '["TopK", {}]'}, wire.UPDATE),
    "invalid share": ({"up": '{"share": 7}'}, wire.UPDATE),
    "no round": ({"last_counted": -7}, wire.REPORT),
}


@pytest.mark.parametrize("name", BAD_SERVERS)
def test_client_rejects_invalid_compression(name):
    changes, kind = BAD_SERVERS[name]
    grid, reasons = RecordingGrid(quadratics(CLIENTS), CLIENTS), []
    deliver = grid.deliver

    def change(message):
        if wire.SETTINGS in message.content and message.metadata.message_type == wire.REPORT:
            settings = dict(message.content[wire.SETTINGS]) | changes
            message.content[wire.SETTINGS] = ConfigRecord(settings)
        reply = deliver(message)
        if message.metadata.message_type == kind and reply is not None:
            reasons.append(wire.read_refusal(reply.content))
        return reply

    grid.deliver = change
    run(grid, rounds=1)
    assert reasons
    assert all("is invalid" in reason for reason in reasons)


def test_unsupported_settings_are_rejected():
    for way, settings, reason in ((BOTH, {"domain": ss.Ball(1.0)}, "domain must be None"),):
        with pytest.raises(ValueError, match=reason):
            run(FaultyGrid(quadratics(CLIENTS), CLIENTS), way, **settings)


def test_pytorch_clients_match_numpy_clients():
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

    numpy_result = run_recorded()[1]
    torch_result = run(FaultyGrid(simulated(factory), CLIENTS), report_timeout=5.0, update_timeout=5.0)
    np.testing.assert_allclose(torch_result.last["w"], numpy_result.last["w"], atol=1e-5)
    np.testing.assert_array_equal(torch_result.history.bytes_up, numpy_result.history.bytes_up)


@pytest.mark.slow
def test_restarts_reset_error_feedback():
    grid = RecordingGrid(quadratics(CLIENTS), CLIENTS)
    method = ss.Automatic(tolerance=0.1, at_clients=BOTH)
    strategy = fl.SwitchingStrategy(method, wait=0.0)
    strategy.start(grid, zeros(), 300)
    result = strategy.result
    assert len(result.restarts) > 1
    for restart in result.restarts:
        sent = grid.sent(restart.begin, 0)
        assert sent[wire.SETTINGS][codes.LAST_COUNTED] == -1
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()


def test_client_with_other_parameters_loses_nothing():
    grid = RecordingGrid(quadratics(CLIENTS), CLIENTS)

    def confuse(message):
        metadata = message.metadata
        if (metadata.group_id, metadata.dst_node_id, metadata.message_type) == ("5", 102, wire.REPORT):
            grid.before = lambda message: None
            grid._contexts[102].state[wire.PARAMS] = wire.to_record({"w": np.ones(FEATURES, np.float32)})

    grid.before = confuse
    result = run(grid)
    assert has_full_parameters(grid.sent(5, 2))
    assert not has_full_parameters(grid.sent(6, 2))
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    np.testing.assert_array_equal(result.last["w"], run_recorded()[1].last["w"])
