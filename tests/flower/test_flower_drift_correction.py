"""Corrected memory over Flower: agreement with the compiled engine and a reference loop, and faults."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch.utils.data import TensorDataset

import softswitch as ss
import softswitch.flower as fl
from benchmarks import flat
from flower_clients import FEATURES, FaultyGrid, quadratic, quadratics, simulated, zeros
from problems import client_data, least_squares, regression, softplus_level
from softswitch.flower import messages as wire
from softswitch.flower.compression import digest
from softswitch.flower.local_client import Task
from softswitch.methods import Compression, TopK
from softswitch.methods.drift_correction import DECAY_RATES, ERROR_DECAY
from softswitch.results.history import ClientOutcome

pytestmark = pytest.mark.usefixtures("quiet")
CORRECTED = ss.Memory(corrected=True)
RULE = ss.SoftmaxSGM(alpha=5.0, step_size=0.2, tolerance=0.1)
QUICK = {"report_timeout": 0.02, "update_timeout": 0.02, "wait": 0.0}
CLIENTS = 5


def assert_same_run(expected, actual, tolerance):
    """Assert that two runs have the same trajectory and client memory."""
    np.testing.assert_array_equal(actual.history.feasible, expected.history.feasible)
    np.testing.assert_allclose(actual.last, expected.last, atol=tolerance)
    actual_memory, expected_memory = actual.state.parts["memory"], expected.state.parts["memory"]
    np.testing.assert_array_equal(actual_memory.reported_at, expected_memory.reported_at)
    np.testing.assert_allclose(actual_memory.forecasts.estimates, expected_memory.forecasts.estimates, atol=tolerance)
    np.testing.assert_allclose(actual_memory.forecasts.missed, expected_memory.forecasts.missed, atol=tolerance)


@pytest.mark.slow
def test_half_participation_matches_compiled_engine(x64):
    """Clients that were absent also report at the previous iterate, which they receive late."""
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(4))
    clients = client_data(*regression(clients=6))
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.1, tolerance=0.05)
    options = {"rounds": 40, "participation": 0.5, "batch_size": None, "eval_every": 0, "seed": 3}
    compiled, grid = (
        flat.solve(problem, clients, method, memory=CORRECTED, record_clients=True, engine=engine, **options)
        for engine in ("compiled", "grid")
    )
    assert 0 < compiled.history.switch_share < 1
    np.testing.assert_array_equal(grid.history.per_client.clients, compiled.history.per_client.clients)
    np.testing.assert_array_equal(grid.history.value_evaluations, compiled.history.value_evaluations)
    assert_same_run(compiled, grid, 1e-14)
    uncorrected = flat.solve(problem, clients, method, memory=ss.Memory(), **options)
    assert np.abs(uncorrected.last - compiled.last).max() > 1e-3, "the correction must have an effect"


@pytest.mark.parametrize("share", [pytest.param(1.0, marks=pytest.mark.slow), 0.5])
def test_compressed_changes_pass_previous_iterate(x64, share):
    """Compressed changes pass the previous iterate, so the trajectory is the same and nothing is sent twice."""
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(4))
    clients = client_data(*regression(clients=4))
    way = Compression(up=TopK(0.5), down=TopK(0.5, 8))
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.1, tolerance=0.05, at_clients=way)
    options = {"rounds": 25, "participation": share, "batch_size": None, "eval_every": 0, "memory": CORRECTED}
    compiled = flat.solve(problem, clients, method, **options)
    grid = flat.solve(problem, clients, method, engine="grid", **options)
    assert_same_run(compiled, grid, 1e-12)
    if share == 1:
        np.testing.assert_array_equal(grid.history.bytes_down[1:], compiled.history.bytes_down[1:])


class Wiretap(FaultyGrid):
    """A grid that records the requests and replies of the first exchange."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.reports = []

    def deliver(self, message):
        reply = super().deliver(message)
        if message.metadata.message_type == wire.REPORT:
            self.reports.append((message, reply))
        return reply

    @property
    def sent_both(self):
        """Return the rounds and clients to which the previous iterate was sent."""
        return [
            (int(m.metadata.group_id), m.metadata.dst_node_id - 100)
            for m, _ in self.reports
            if wire.PREVIOUS in m.content
        ]


def numpy_clients(i):
    return quadratic(i, batch_size=2)


def jax_clients(i):
    problem = ss.Problem(
        lambda w, batch: ss.mean_over(0.5 * jnp.square(w["w"] - batch["x"]).sum(axis=1), batch["weight"]),
        lambda w, batch: w["w"].sum() - 0.2,
        {"w": jnp.zeros(FEATURES)},
    )
    return fl.JaxClient(problem, quadratic(i)._data, name=f"site {i}", batch_size=2)


def torch_clients(i):
    module = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.zeros(FEATURES))})
    data = TensorDataset(torch.from_numpy(quadratic(i)._data["x"]))
    return fl.TorchClient(
        module,
        lambda module, batch: 0.5 * (module["w"] - batch[0]).square().sum(dim=1).mean(),
        lambda module, batch: module["w"].sum() - 0.2,
        data,
        name=f"site {i}",
        batch_size=2,
    )


@pytest.mark.parametrize("make", [numpy_clients, jax_clients, torch_clients])
def test_memory_matches_reference_loop(make):
    """Batches of two rows, three of five clients per round, lost clients, a restarted client and a void round."""
    rounds = 6 if make is torch_clients else 14
    app = simulated(lambda context: make(int(context.node_config["partition-id"])))
    grid = Wiretap(app, CLIENTS)
    clients = [make(i) for i in range(CLIENTS)]
    name = next(iter(clients[0].start))
    estimates = np.full((CLIENTS, len(DECAY_RATES), 2), -np.inf)
    mean_errors, last_report, restarted = np.zeros((len(DECAY_RATES), 2)), np.full(CLIENTS, -1), set()
    iterates = [{name: np.zeros(FEATURES, np.float32)}] * 2  # w_{k−1} and w_k

    def report_values(i, k, params):
        values = clients[i].report(params, Task(k, 7, 1, 0.2, True))
        return np.array([values.objective, *values.constraint])

    def check_round(chunk):
        nonlocal mean_errors, iterates
        k, history, memory = chunk.round - 1, chunk.history, chunk.state.parts["memory"]
        if not history.void[0]:
            new_errors = ERROR_DECAY * mean_errors
            for i, outcome in zip(history.per_client.clients[0], history.per_client.outcomes[0], strict=True):
                if outcome == ClientOutcome.NO_REPORT:
                    continue
                current, previous = report_values(i, k, iterates[1]), report_values(i, k, iterates[0])
                miss = np.zeros_like(estimates[i])
                if last_report[i] >= 0 and i not in restarted:
                    miss = previous - estimates[i]
                    new_errors += (1 - ERROR_DECAY) * miss**2 * (k - last_report[i] == 1)
                estimates[i] = current - (np.asarray(DECAY_RATES)[:, None] ** (k - last_report[i])) * miss
                last_report[i] = k
            mean_errors = new_errors
            iterates = [iterates[1], {name: np.asarray(chunk.state.params[name])}]
        known_clients = len(memory.reported_at)
        np.testing.assert_array_equal(memory.reported_at, last_report[:known_clients])
        np.testing.assert_allclose(memory.forecasts.estimates, estimates[:known_clients], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(memory.forecasts.missed, mean_errors, rtol=1e-4, atol=1e-5)
        best = mean_errors.argmin(axis=0)
        np.testing.assert_allclose(memory.objective, estimates[:known_clients, best[0], 0], rtol=1e-5, atol=1e-5)
        grid.faults.clear()
        restarted.clear()
        if chunk.round == 3:
            grid.faults.update({(i, wire.REPORT): "gone" for i in range(0, CLIENTS, 2)})
        if chunk.round == 4:
            grid.faults.update({(i, wire.UPDATE): "raises" for i in range(CLIENTS)})  # the round is void
        if chunk.round == 6:  # before the next round every client loses its parameters, unknown to the server
            restarted.update(i for i in range(CLIENTS) if last_report[i] == 5)
            grid.faults.update({(i, wire.REPORT): "restarted" for i in restarted})

    strategy = fl.SwitchingStrategy(
        RULE, participation=0.6, memory=CORRECTED, callbacks=[check_round], seed=7, patience=99, **QUICK
    )
    strategy.start(grid, wire.to_record(clients[0].start), rounds)
    assert strategy.result.history.void.sum() == 1
    absent = {(k, i) for k, i in grid.sent_both if k < 4}
    participants = [set(row.tolist()) for row in strategy.result.history.per_client.clients]
    assert absent == {(k, i) for k in range(1, 4) for i in participants[k] - participants[k - 1]}, (
        "only clients that were absent receive it"
    )


def test_full_participation_and_resume(tmp_path):
    """Resuming is exact. The new server sends the previous iterate once to every client."""

    def run(**options):
        grid = Wiretap(quadratics(CLIENTS, batch_size=2), CLIENTS)
        strategy = fl.SwitchingStrategy(RULE, memory=CORRECTED, **QUICK, **options)
        strategy.start(grid, zeros(), 12)
        return grid, strategy.result

    grid, uninterrupted = run()
    assert grid.sent_both == []
    assert uninterrupted.history.value_evaluations[-1] == 12 * CLIENTS * 2 * 2

    def die(chunk):
        if chunk.round == 5:
            raise RuntimeError("the server dies")

    with pytest.raises(RuntimeError, match="dies"):
        run(checkpoints=ss.Checkpoints(tmp_path, every=0), callbacks=[die])
    grid, resumed = run(checkpoints=ss.Checkpoints(tmp_path, every=0))
    first = 12 - len(grid.reports) // CLIENTS
    assert grid.sent_both == [(first, i) for i in range(CLIENTS)]
    np.testing.assert_array_equal(resumed.params["w"], uninterrupted.params["w"])
    np.testing.assert_array_equal(
        resumed.state.parts["memory"].forecasts.estimates, uninterrupted.state.parts["memory"].forecasts.estimates
    )


def test_reports_at_previous_iterate_are_validated(caplog):
    """NaN, huge, extra or out-of-range values: the report is rejected and not stored in memory."""
    bad = [
        MetricRecord({"objective": float("nan"), "constraint": 0.0}),
        MetricRecord({"objective": 1e30, "constraint": 0.0}),
        MetricRecord({"objective": 0.0, "constraint": [0.0, 0.0]}),
        MetricRecord({"objective": 90.0, "constraint": 0.0}),
        ConfigRecord({"objective": "small"}),
    ]

    class Liar(Wiretap):
        def deliver(self, message):
            reply = super().deliver(message)
            k = int(message.metadata.group_id or 0) if message.metadata.message_type == wire.REPORT else 0
            if 0 < k <= len(bad) and message.metadata.dst_node_id == 100:
                reply.content[wire.PREVIOUS_VALUES] = bad[k - 1]
            return reply

    strategy = fl.SwitchingStrategy(RULE, memory=CORRECTED, objective_range=(0.0, 50.0), **QUICK)
    strategy.start(Liar(quadratics(3, batch_size=2), 3), zeros(), len(bad) + 2)
    per_client = strategy.result.history.per_client
    liar = [per_client.outcomes[k][per_client.clients[k].tolist().index(0)] for k in range(len(bad) + 2)]
    assert liar == [ClientOutcome.COUNTED, *[ClientOutcome.BAD_REPORT] * len(bad), ClientOutcome.COUNTED]
    assert caplog.text.count("client 'site 0' is rejected") == len(bad)
    assert np.isfinite(strategy.result.state.parts["memory"].forecasts.estimates).all()
    assert strategy.result.state.parts["memory"].times.tolist() == [2, len(bad) + 2, len(bad) + 2]


class SingleReportClient:
    """A custom client without support for reports at two iterates."""

    def __init__(self, i):
        self._client = quadratic(i, batch_size=2)
        for name in ("name", "rows", "held_out_rows", "value_rows", "gradient_rows", "constraints"):
            setattr(self, name, getattr(self._client, name))
        for name in ("report", "update", "evaluate", "certify"):
            setattr(self, name, getattr(self._client, name))


def test_client_with_single_report(tmp_path):
    def private(i):
        settings = ss.RecordPrivacy(epsilon=50, delta=1e-3)
        return fl.PrivateClient(quadratic(i), settings, budget_file=tmp_path / f"{i}.json", rounds=9)

    for make in (SingleReportClient, private):
        grid = fl.InProcessGrid(simulated(lambda context, make=make: make(int(context.node_config["partition-id"]))), 2)
        with pytest.raises(ValueError, match=r"report at one iterate only, as .*site 0.*smoothing"):
            fl.SwitchingStrategy(RULE, memory=CORRECTED, **QUICK).start(grid, zeros(), 2)
    with_batch_norm = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    data = TensorDataset(torch.ones(4, 3))
    client = fl.TorchClient(
        with_batch_norm, lambda m, b: m(b[0]).mean(), lambda m, b: m(b[0]).mean(), data, name="one", batch_size=2
    )
    assert not client.can_repeat_reports
    factories = {0: quadratic, 1: quadratic, 2: SingleReportClient}
    grid = Wiretap(
        simulated(lambda context: (lambda i: factories[i](i) if i == 2 else factories[i](i, batch_size=2))(
            int(context.node_config["partition-id"])
        )),
        3,
    )  # fmt: skip
    grid.connected.discard(102)

    def join(chunk):
        if chunk.round == 3:
            grid.connected.add(102)

    strategy = fl.SwitchingStrategy(RULE, memory=CORRECTED, callbacks=[join], **QUICK)
    strategy.start(grid, zeros(), 8)
    replies_of_new_client = [reply for message, reply in grid.reports if message.metadata.dst_node_id == 102]
    assert len(replies_of_new_client) == 5
    assert not any(wire.PREVIOUS_VALUES in reply.content for reply in replies_of_new_client)
    per_client = strategy.result.history.per_client
    last = per_client.objective[-1][per_client.clients[-1].tolist().index(2)]
    np.testing.assert_array_equal(strategy.result.state.parts["memory"].forecasts.estimates[2, :, 0], last)


def test_server_without_digest_is_rejected():
    app = quadratics(1, batch_size=2)
    settings = ConfigRecord(
        {"round": 0, "seed": 0, "local_steps": 1, "step_size": 0.1, "switches": True, wire.PREVIOUS: "w"}
    )
    fl.InProcessGrid(app, 1)  # sets the source of messages
    message = Message(RecordDict({wire.PARAMS: zeros(), wire.SETTINGS: settings}), 100, wire.REPORT)
    context = Context(10**6, 100, {"partition-id": 0}, RecordDict(), {})
    assert "must be a digest" in wire.read_refusal(app(message, context).content)
    settings[wire.PREVIOUS] = digest({"w": np.ones(FEATURES, np.float32)})
    for _ in range(2):  # it has no parameters first and other parameters then, and does not reply
        reply = app(message, context)
        assert wire.VALUES in reply.content
        assert wire.PREVIOUS_VALUES not in reply.content


@pytest.mark.parametrize(("changes", "corrected"), [({}, True), ({"batch_size": None}, False)])
def test_automatic_run_corrects_sampled_reports(tmp_path, changes, corrected):
    """As in the compiled engine, unless the method is robust. A resumed run keeps its memory settings."""
    app = quadratics(CLIENTS, **{"batch_size": 2, **changes})

    def run(rounds, method=ss.Automatic(tolerance=0.1), **options):  # noqa: B008 (frozen)
        strategy = fl.SwitchingStrategy(method, **QUICK, **options)
        strategy.start(fl.InProcessGrid(app, CLIENTS), zeros(), rounds)
        return strategy.result

    result = run(60, checkpoints=ss.Checkpoints(tmp_path, every=0))
    assert ("memory" in result.state.parts) == corrected
    if corrected:
        assert result.state.parts["memory"].forecasts is not None
        assert "memory" not in run(2, ss.Automatic(tolerance=0.1, robust=1), simulation=True).state.parts
        app = quadratics(CLIENTS, batch_size=None)
        assert run(70, checkpoints=ss.Checkpoints(tmp_path, every=0)).state.parts["memory"].forecasts is not None
