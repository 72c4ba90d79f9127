"""Whatever is in a message: the server goes on without that client, and a client says no."""

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

NODE, MANY = 101, 4
pytestmark = pytest.mark.usefixtures("quiet")
W = np.zeros(FEATURES, np.float32)
NPY = Array(W).data
NAMES = ("name", "rows", "constraints", "statistics", "held_out_rows", "value_rows", "gradient_rows", "protocol", "why")
SENT = (
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
TOLD = (
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
KEYS = st.sampled_from([*NAMES, *SENT, *TOLD, "low", "high", "two_values", "clip_norm", "x"])
whole = st.integers(-(2**62), 2**62)
real = st.floats()
numbers = st.one_of(whole, real, st.lists(whole, max_size=4), st.lists(real, max_size=4))
words = st.one_of(numbers, st.booleans(), st.text(max_size=20), st.binary(max_size=20), st.lists(st.text(max_size=5)))
metrics = st.dictionaries(KEYS, numbers, max_size=8).map(MetricRecord)
configs = st.dictionaries(KEYS, words, max_size=8).map(ConfigRecord)


@st.composite
def arrays(draw):
    content = draw(st.one_of(st.just(NPY), broken_bytes(NPY), st.binary(max_size=60)))
    name = draw(st.sampled_from(["w", "w", "v", ""]))
    return ArrayRecord({name: Array("float32", (FEATURES,), "numpy.ndarray", bytes(content))})


def contents(*names):
    """Records of any kind under the names that a message of its kind has, and under others."""
    return st.dictionaries(st.sampled_from([*names, "x"]), st.one_of(metrics, configs, arrays()), max_size=4)


class FuzzedGrid(fl.InProcessGrid):
    """A grid one of whose nodes answers a kind of message with anything."""

    kind, content = "", {}

    def deliver(self, message):
        if message.metadata.dst_node_id == NODE and message.metadata.message_type == self.kind:
            return Message(RecordDict(dict(self.content)), reply_to=message)
        return super().deliver(message)


def app():
    held_out = {"x": np.ones((5, FEATURES), np.float32)}
    return simulated(lambda context: quadratic(int(context.node_config["partition-id"]), held_out=held_out))


APP = app()
ANSWERS = {
    wire.REGISTER: (wire.REGISTRATION, wire.REFUSAL),
    wire.REPORT: (wire.VALUES, wire.REFUSAL),
    wire.UPDATE: (wire.DIRECTION, wire.REFUSAL),
    wire.EVALUATE: (wire.VALUES, wire.REFUSAL),
    wire.CERTIFY: (wire.INTERVALS, wire.REFUSAL),
}


@pytest.mark.parametrize("kind", ANSWERS)
@cases(4, of_long=0.2)
@given(st.data())
def test_fuzz_whatever_a_client_answers_the_run_goes_on(kind, data):
    grid = FuzzedGrid(APP, MANY)
    grid.kind, grid.content = kind, data.draw(contents(*ANSWERS[kind]))
    strategy = fl.SwitchingStrategy(
        ss.SoftmaxSGM(alpha=5.0, step_size=0.2, tolerance=0.1, robust=1), wait=0.0, report_timeout=5, update_timeout=5
    )
    strategy.start(grid, zeros(), 2)
    certificate = strategy.clients.certify(strategy.result.params, 0.1)
    result = strategy.result
    assert len(result.history) == 2
    assert np.isfinite(result.params["w"]).all()
    honest = [i for i, name in enumerate(result.names) if name in {"site 0", "site 2", "site 3"}]
    assert len(honest) == 3
    told = result.history.per_client
    assert (told.outcomes[np.isin(told.clients, honest)] == ClientOutcome.COUNTED).all()
    assert certificate is not None


ASKED = {
    wire.REGISTER: (wire.SETTINGS,),
    wire.REPORT: (wire.PARAMS, wire.SETTINGS),
    wire.UPDATE: (wire.DECISION, wire.PARAMS, wire.SETTINGS),
    wire.EVALUATE: (wire.PARAMS,),
    wire.CERTIFY: (wire.PARAMS, wire.SETTINGS),
}
PROPER = {
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
    ("name", "value", "why"),
    [
        ("local_steps", 0, "its local_steps must be from 1 to 1,000,000, but is 0"),
        ("step_size", float("nan"), "its step_size must be a finite number"),
        ("switches", 1, "its switches must be True or False"),
    ],
)
def test_what_a_server_cannot_mean_is_refused_with_the_reason(name, value, why):
    settings = ConfigRecord({**PROPER[wire.SETTINGS], name: value})
    content = RecordDict({wire.SETTINGS: settings, wire.PARAMS: PROPER[wire.PARAMS]})
    reply = fl.InProcessGrid(APP, MANY).deliver(Message(content, NODE, wire.REPORT, ttl=5.0, group_id="0"))
    assert why in wire.read_refusal(reply.content)


@pytest.mark.parametrize("kind", ASKED)
@cases(25)
@given(st.data())
def test_fuzz_whatever_a_server_asks_a_client_answers_or_says_no(kind, data):
    grid = fl.InProcessGrid(APP, MANY)
    content = {name: PROPER[name] for name in ASKED[kind]}
    for name in data.draw(st.lists(st.sampled_from(ASKED[kind]), min_size=1, unique=True)):
        how = data.draw(st.sampled_from(["another record", "a few words", "nothing"]))
        if how == "nothing":
            del content[name]
        elif how == "another record" or name == wire.PARAMS:
            content[name] = data.draw(st.one_of(metrics, configs, arrays()))
        else:
            content[name] = ConfigRecord({**content[name], **data.draw(st.dictionaries(KEYS, words, max_size=2))})
    asked = content.get(wire.PARAMS)
    message = Message(RecordDict(content), NODE, kind, ttl=5.0, group_id="0")
    reply = grid.deliver(message)
    if reply.has_error():  # only where the client's own functions were given arrays of another name, shape or size
        assert isinstance(asked, ArrayRecord)
        found = wire.from_record(asked)
        assert (
            set(found) != {"w"}
            or wire.array_specs(found) != wire.array_specs({"w": W})
            or np.abs(found["w"]).max() > 1e6
        )
        return
    expected = {wire.REFUSAL, *ANSWERS[kind]}
    assert set(reply.content) <= expected
    if (why := wire.read_refusal(reply.content)) is not None:
        assert why
