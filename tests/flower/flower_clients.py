"""Small clients for the tests of the Flower engine, and a grid that injects faults."""

import io
import pickle

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from softswitch.flower import ClientPolicy, InProcessGrid, NumpyClient, client_app
from softswitch.flower import messages as wire

FEATURES = 3


def centre(i):
    """Return the optimum of client i."""
    return np.random.default_rng(i).normal(size=FEATURES).astype(np.float32)


def objective(params, batch):
    """½‖w − x‖², averaged over the rows."""
    difference = params["w"] - batch["x"]
    return 0.5 * np.square(difference).sum(axis=1).mean(), {"w": difference.mean(axis=0)}


def constraint(params, batch):
    """The sum of w minus 0.2. The unconstrained optimum is infeasible."""
    del batch
    return float(params["w"].sum() - 0.2), {"w": np.ones(FEATURES, np.float32)}


def quadratic(i, rows=8, **changes):
    """Return client i."""
    x = centre(i) + 0.1 * np.random.default_rng(100 + i).normal(size=(rows, FEATURES)).astype(np.float32)
    start = {"w": np.zeros(FEATURES, np.float32)}
    functions = {"objective": objective, "constraint": constraint}
    options = {**functions, "batch_size": None, "name": f"site {i}", **changes}
    return NumpyClient(data={"x": x.astype(np.float32)}, start=start, **options)


def simulated(factory):
    """Return a client app with the policy for simulations."""
    return client_app(factory, ClientPolicy.for_simulations())


def quadratics(clients, **changes):
    """Return an app for this number of clients."""
    return simulated(lambda context: quadratic(int(context.node_config["partition-id"]), **changes))


def zeros():
    """Return the start."""
    return wire.to_record({"w": np.zeros(FEATURES, np.float32)})


def _npy(array, **options):
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def _array_record(array, data=None):
    return ArrayRecord({"w": Array(str(array.dtype), tuple(array.shape), "numpy.ndarray", data or _npy(array))})


def _npy_header(shape):
    """Return an array header without data."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return stream.getvalue()


W = np.zeros(FEATURES, np.float32)
BAD_DIRECTIONS = {
    "NaN": {wire.DIRECTION: _array_record(np.full_like(W, np.nan))},
    "infinity": {wire.DIRECTION: _array_record(np.full_like(W, np.inf))},
    "shape": {wire.DIRECTION: _array_record(np.zeros(FEATURES + 1, np.float32))},
    "dtype": {wire.DIRECTION: _array_record(W.astype(np.float64))},
    "integers": {wire.DIRECTION: _array_record(W.astype(np.int32))},
    "too many values": {wire.DIRECTION: _array_record(np.zeros(10**6, np.float32))},
    "false shape": {wire.DIRECTION: _array_record(W, _npy(np.zeros((FEATURES, 2), np.float32)))},
    "header of a huge array": {wire.DIRECTION: _array_record(W, _npy_header((10**12,)))},
    "truncated data": {wire.DIRECTION: _array_record(W, _npy_header(W.shape))},
    "huge values": {wire.DIRECTION: _array_record(np.full_like(W, 3e38))},
    "a pickle": {wire.DIRECTION: _array_record(W, pickle.dumps(W))},
    "a pickled array": {
        wire.DIRECTION: _array_record(W, _npy(np.array([{"a": 1}, 2, 3], dtype=object), allow_pickle=True))
    },
    "garbage": {wire.DIRECTION: _array_record(W, b"garbage")},
    "other names": {wire.DIRECTION: ArrayRecord({"v": Array(W)})},
    "more arrays": {wire.DIRECTION: ArrayRecord({"w": Array(W), "v": Array(W)})},
    "no arrays": {wire.DIRECTION: MetricRecord({"w": 0.0})},
    "nothing": {},
}
BAD_REPORTS = {
    "NaN": {wire.VALUES: MetricRecord({"objective": float("nan"), "constraint": 0.0})},
    "infinity": {wire.VALUES: MetricRecord({"objective": 0.0, "constraint": float("inf")})},
    "huge value": {wire.VALUES: MetricRecord({"objective": 1e30, "constraint": 0.0})},
    "too many": {wire.VALUES: MetricRecord({"objective": 0.0, "constraint": [0.0, 0.0]})},
    "half": {wire.VALUES: MetricRecord({"objective": 0.0})},
    "text": {wire.VALUES: ConfigRecord({"objective": "small", "constraint": "met"})},
    "nothing": {},
}
LOST = ("silent", "raises", "gone")


class FaultyGrid(InProcessGrid):
    """A grid that injects faults: ``faults`` maps (client index, message type) to the fault."""

    def __init__(self, app, nodes, **options):
        super().__init__(app, nodes, **options)
        self.faults = {}

    def forget(self, node):
        """Clear what a node kept between exchanges, as after a restart."""
        self._contexts[node].state = RecordDict()

    def deliver(self, message):
        kind, node = message.metadata.message_type, message.metadata.dst_node_id
        fault = self.faults.get((node - 100, kind))
        if fault is None:
            return super().deliver(message)
        if fault == "silent":
            return None
        if fault == "raises":
            return Message(Error(2, "Traceback\nValueError: no"), reply_to=message)
        if fault == "gone":  # as Flower reports it: with itself as the source
            reply = Message(Error(5, "Node unavailable"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = 1
            return reply
        if fault == "restarted":
            self.forget(node)
            return super().deliver(message)
        if fault == "refuses":
            return wire.refuse(message, "not today")
        content = {wire.REPORT: BAD_REPORTS, wire.UPDATE: BAD_DIRECTIONS}[kind][fault]
        return Message(RecordDict(content), reply_to=message)
