"""Arbitrary messages: the server continues without the client, and a client refuses the request."""

import hypothesis.strategies as st
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given

import softswitch as ss
import softswitch.flower as fl
from flower_clients import FEATURES, quadratic, simulated, zeros
from fuzzing import broken_bytes, cases
from softswitch.flower import messages as wire
from softswitch.flower.membership import get_version
from softswitch.results.history import ClientOutcome

NODE, CLIENTS = 101, 4
pytestmark = pytest.mark.usefixtures("quiet")
W = np.zeros(FEATURES, np.float32)
NPY = Array(W).data
NAMES = ("name", "rows", "constraints", "statistics", "held_out_rows", "value_rows", "gradient_rows", "protocol", "why")
REPLY_FIELDS = (
    "objective",
    "constraint",
    "statistics",
    "estimate",
    "lower",
    "upper",
    "rows",
    "deviation",
    "meets_at",
    "method",
)
REQUEST_FIELDS = (
    "round",
    "seed",
    "local_steps",
    "step_size",
    "switches",
    "feasible",
    "penalty",
    "tolerance",
    "error",
    "marginal",
)
KEYS = st.sampled_from([*NAMES, *REPLY_FIELDS, *REQUEST_FIELDS, "low", "high", "two_values", "clip_norm", "x"])
integers = st.integers(-(2**62), 2**62)
floats = st.floats()
numbers = st.one_of(integers, floats, st.lists(integers, max_size=4), st.lists(floats, max_size=4))
values = st.one_of(numbers, st.booleans(), st.text(max_size=20), st.binary(max_size=20), st.lists(st.text(max_size=5)))
metrics = st.dictionaries(KEYS, numbers, max_size=8).map(MetricRecord)
configs = st.dictionaries(KEYS, values, max_size=8).map(ConfigRecord)


@st.composite
def arrays(draw):
    content = draw(st.one_of(st.just(NPY), broken_bytes(NPY), st.binary(max_size=60)))
    name = draw(st.sampled_from(["w", "w", "v", ""]))
    return ArrayRecord({name: Array("float32", (FEATURES,), "numpy.ndarray", bytes(content))})


def contents(*names):
    """Return records of any kind, under the names of this message type and under other names."""
    return st.dictionaries(st.sampled_from([*names, "x"]), st.one_of(metrics, configs, arrays()), max_size=4)


class FuzzedGrid(fl.InProcessGrid):
    """A grid with a node that sends arbitrary replies to one message type."""

    kind, content = "", {}

    def deliver(self, message):
        if message.metadata.dst_node_id == NODE and message.metadata.message_type == self.kind:
            return Message(RecordDict(dict(self.content)), reply_to=message)
        return super().deliver(message)


def app():
    held_out = {"x": np.ones((5, FEATURES), np.float32)}
    return simulated(lambda context: quadratic(int(context.node_config["partition-id"]), held_out=held_out))


APP = app()
REPLY_RECORDS = {
    wire.REGISTER: (wire.REGISTRATION, wire.REFUSAL),
    wire.REPORT: (wire.VALUES, wire.REFUSAL),
    wire.UPDATE: (wire.DIRECTION, wire.REFUSAL),
    wire.EVALUATE: (wire.VALUES, wire.REFUSAL),
    wire.CERTIFY: (wire.INTERVALS, wire.REFUSAL),
}


@pytest.mark.parametrize("kind", REPLY_RECORDS)
@cases(4, of_long=0.2)
@given(st.data())
def test_fuzz_client_replies(kind, data):
    grid = FuzzedGrid(APP, CLIENTS)
    grid.kind, grid.content = kind, data.draw(contents(*REPLY_RECORDS[kind]))
    method = ss.SoftmaxSGM(alpha=5.0, step_size=0.2, tolerance=0.1, robust=1)
    strategy = fl.SwitchingStrategy(method, wait=0.0, report_timeout=5, update_timeout=5, simulation=True)
    strategy.start(grid, zeros(), 2)
    certificate = strategy.clients.certify(strategy.result.params, 0.1)
    result = strategy.result
    assert len(result.history) == 2
    assert np.isfinite(result.params["w"]).all()
    honest_clients = [i for i, name in enumerate(result.names) if name in {"site 0", "site 2", "site 3"}]
    assert len(honest_clients) == 3
    per_client = result.history.per_client
    assert (per_client.outcomes[np.isin(per_client.clients, honest_clients)] == ClientOutcome.COUNTED).all()
    assert certificate is not None


REQUEST_RECORDS = {
    wire.REGISTER: (wire.SETTINGS,),
    wire.REPORT: (wire.PARAMS, wire.SETTINGS),
    wire.UPDATE: (wire.DECISION, wire.PARAMS, wire.SETTINGS),
    wire.EVALUATE: (wire.PARAMS,),
    wire.CERTIFY: (wire.PARAMS, wire.SETTINGS),
}
VALID_REQUEST = {
    wire.SETTINGS: ConfigRecord(
        {
            "round": 0,
            "seed": 0,
            "local_steps": 1,
            "step_size": 0.1,
            "switches": True,
            "joint": 0.05,
            "marginal": 0.05,
            "tolerance": 0.1,
            "low": [float("nan"), float("nan")],
            "high": [float("nan"), float("nan")],
            "two_values": [0.0, 0.0],
            **get_version(),
        }
    ),
    wire.DECISION: ConfigRecord({"feasible": True}),
    wire.PARAMS: wire.to_record({"w": W}),
}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("local_steps", 0, "its local_steps must be from 1 to 1,000,000, but is 0"),
        ("step_size", float("nan"), "its step_size must be a finite number"),
        ("switches", 1, "its switches must be True or False"),
    ],
)
def test_invalid_request_is_refused_with_reason(name, value, reason):
    settings = ConfigRecord({**VALID_REQUEST[wire.SETTINGS], name: value})
    content = RecordDict({wire.SETTINGS: settings, wire.PARAMS: VALID_REQUEST[wire.PARAMS]})
    reply = fl.InProcessGrid(APP, CLIENTS).deliver(Message(content, NODE, wire.REPORT, ttl=5.0, group_id="0"))
    assert reason in wire.read_refusal(reply.content)


@pytest.mark.parametrize("kind", REQUEST_RECORDS)
@cases(25)
@given(st.data())
def test_fuzz_server_requests(kind, data):
    grid = fl.InProcessGrid(APP, CLIENTS)
    content = {name: VALID_REQUEST[name] for name in REQUEST_RECORDS[kind]}
    for name in data.draw(st.lists(st.sampled_from(REQUEST_RECORDS[kind]), min_size=1, unique=True)):
        change = data.draw(st.sampled_from(["another record", "a few words", "nothing"]))
        if change == "nothing":
            del content[name]
        elif change == "another record" or name == wire.PARAMS:
            content[name] = data.draw(st.one_of(metrics, configs, arrays()))
        else:
            content[name] = ConfigRecord({**content[name], **data.draw(st.dictionaries(KEYS, values, max_size=2))})
    params = content.get(wire.PARAMS)
    message = Message(RecordDict(content), NODE, kind, ttl=5.0, group_id="0")
    reply = grid.deliver(message)
    if reply.has_error():  # only if the client's functions received arrays with other names, shapes or sizes
        assert isinstance(params, ArrayRecord)
        received = wire.from_record(params)
        assert (
            set(received) != {"w"}
            or wire.array_specs(received) != wire.array_specs({"w": W})
            or np.abs(received["w"]).max() > 1e6
        )
        return
    expected = {wire.REFUSAL, *REPLY_RECORDS[kind]}
    assert set(reply.content) <= expected
    if (why := wire.read_refusal(reply.content)) is not None:
        assert why
