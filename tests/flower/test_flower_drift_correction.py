"""A corrected memory over Flower: the compiled engine's course, a plain loop's estimates, and whatever goes wrong."""

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
MANY = 5


def same(wanted, found, tolerance):
    """Two runs took the same course, and remember the same."""
    np.testing.assert_array_equal(found.history.feasible, wanted.history.feasible)
    np.testing.assert_allclose(found.last, wanted.last, atol=tolerance)
    ours, theirs = found.state.parts["memory"], wanted.state.parts["memory"]
    np.testing.assert_array_equal(ours.reported_at, theirs.reported_at)
    np.testing.assert_allclose(ours.forecasts.estimates, theirs.forecasts.estimates, atol=tolerance)
    np.testing.assert_allclose(ours.forecasts.missed, theirs.forecasts.missed, atol=tolerance)


@pytest.mark.slow
def test_half_of_the_clients_take_the_compiled_engines_course(x64):
    """Whoever was away reports at the iterate before as well, which it was never sent in its time."""
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
    same(compiled, grid, 1e-14)
    plain = flat.solve(problem, clients, method, memory=ss.Memory(), **options)
    assert np.abs(plain.last - compiled.last).max() > 1e-3, "otherwise nothing is compared"


@pytest.mark.parametrize("share", [pytest.param(1.0, marks=pytest.mark.slow), 0.5])
def test_compressed_changes_lead_by_the_iterate_before(x64, share):
    """A client that is sent changes comes by it on its way to the present one: the same course, nothing sent twice."""
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(4))
    clients = client_data(*regression(clients=4))
    way = Compression(up=TopK(0.5), down=TopK(0.5, 8))
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.1, tolerance=0.05, at_clients=way)
    options = {"rounds": 25, "participation": share, "batch_size": None, "eval_every": 0, "memory": CORRECTED}
    compiled = flat.solve(problem, clients, method, **options)
    grid = flat.solve(problem, clients, method, engine="grid", **options)
    same(compiled, grid, 1e-12)
    if share == 1:
        np.testing.assert_array_equal(grid.history.bytes_down[1:], compiled.history.bytes_down[1:])


class Wiretap(FaultyGrid):
    """Keeps what clients are sent in the first exchange, and what they answer."""

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
        """The rounds and clients to which the iterate before was sent."""
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
def test_what_is_remembered_is_what_a_plain_loop_makes_of_both_reports(make):
    """Batches of two rows, three of five clients a round; some are lost, one is restarted, one round is void."""
    rounds = 6 if make is torch_clients else 14
    app = simulated(lambda context: make(int(context.node_config["partition-id"])))
    grid = Wiretap(app, MANY)
    own = [make(i) for i in range(MANY)]
    name = next(iter(own[0].start))
    estimates = np.full((MANY, len(DECAY_RATES), 2), -np.inf)
    missed, heard, restarted = np.zeros((len(DECAY_RATES), 2)), np.full(MANY, -1), set()
    iterates = [{name: np.zeros(FEATURES, np.float32)}] * 2  # w_{k−1} and w_k

    def told(i, k, params):
        values = own[i].report(params, Task(k, 7, 1, 0.2, True))
        return np.array([values.objective, *values.constraint])

    def between(chunk):
        nonlocal missed, iterates
        k, history, kept = chunk.round - 1, chunk.history, chunk.state.parts["memory"]
        if not history.void[0]:
            foreseen = ERROR_DECAY * missed
            for i, fate in zip(history.per_client.clients[0], history.per_client.outcomes[0], strict=True):
                if fate == ClientOutcome.NO_REPORT:
                    continue
                now, then = told(i, k, iterates[1]), told(i, k, iterates[0])
                miss = np.zeros_like(estimates[i])
                if heard[i] >= 0 and i not in restarted:
                    miss = then - estimates[i]
                    foreseen += (1 - ERROR_DECAY) * miss**2 * (k - heard[i] == 1)
                estimates[i] = now - (np.asarray(DECAY_RATES)[:, None] ** (k - heard[i])) * miss
                heard[i] = k
            missed = foreseen
            iterates = [iterates[1], {name: np.asarray(chunk.state.params[name])}]
        met = len(kept.reported_at)
        np.testing.assert_array_equal(kept.reported_at, heard[:met])
        np.testing.assert_allclose(kept.forecasts.estimates, estimates[:met], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(kept.forecasts.missed, missed, rtol=1e-4, atol=1e-5)
        best = missed.argmin(axis=0)
        np.testing.assert_allclose(kept.objective, estimates[:met, best[0], 0], rtol=1e-5, atol=1e-5)
        grid.faults.clear()
        restarted.clear()
        if chunk.round == 3:
            grid.faults.update({(i, wire.REPORT): "gone" for i in range(0, MANY, 2)})
        if chunk.round == 4:
            grid.faults.update({(i, wire.UPDATE): "raises" for i in range(MANY)})  # the round is void
        if chunk.round == 6:  # in the next one everybody has lost what it had, but is thought to have it
            restarted.update(i for i in range(MANY) if heard[i] == 5)
            grid.faults.update({(i, wire.REPORT): "restarted" for i in restarted})

    strategy = fl.SwitchingStrategy(
        RULE, participation=0.6, memory=CORRECTED, callbacks=[between], seed=7, patience=99, **QUICK
    )
    strategy.start(grid, wire.to_record(own[0].start), rounds)
    assert strategy.result.history.void.sum() == 1
    away = {(k, i) for k, i in grid.sent_both if k < 4}
    asked = [set(row.tolist()) for row in strategy.result.history.per_client.clients]
    assert away == {(k, i) for k in range(1, 4) for i in asked[k] - asked[k - 1]}, (
        "only those who were away are sent it"
    )


def test_with_everyone_nothing_more_is_sent_and_a_resumed_run_goes_on(tmp_path):
    """The same bits after a kill; the new server knows of nobody's parameters, and sends the iterate before once."""

    def run(**more):
        grid = Wiretap(quadratics(MANY, batch_size=2), MANY)
        strategy = fl.SwitchingStrategy(RULE, memory=CORRECTED, **QUICK, **more)
        strategy.start(grid, zeros(), 12)
        return grid, strategy.result

    grid, whole = run()
    assert grid.sent_both == []
    assert whole.history.value_evaluations[-1] == 12 * MANY * 2 * 2

    def die(chunk):
        if chunk.round == 5:
            raise RuntimeError("the server dies")

    with pytest.raises(RuntimeError, match="dies"):
        run(checkpoints=ss.Checkpoints(tmp_path, every=0), callbacks=[die])
    grid, again = run(checkpoints=ss.Checkpoints(tmp_path, every=0))
    first = 12 - len(grid.reports) // MANY
    assert grid.sent_both == [(first, i) for i in range(MANY)]
    np.testing.assert_array_equal(again.params["w"], whole.params["w"])
    np.testing.assert_array_equal(
        again.state.parts["memory"].forecasts.estimates, whole.state.parts["memory"].forecasts.estimates
    )


def test_what_is_told_of_the_iterate_before_is_checked_like_all_reports(caplog):
    """NaN, absurd numbers, too many of them or beyond their range: the report is rejected, and nothing remembered."""
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
    told = strategy.result.history.per_client
    liar = [told.outcomes[k][told.clients[k].tolist().index(0)] for k in range(len(bad) + 2)]
    assert liar == [ClientOutcome.COUNTED, *[ClientOutcome.BAD_REPORT] * len(bad), ClientOutcome.COUNTED]
    assert caplog.text.count("client 'site 0' is rejected") == len(bad)
    assert np.isfinite(strategy.result.state.parts["memory"].forecasts.estimates).all()
    assert strategy.result.state.parts["memory"].times.tolist() == [2, len(bad) + 2, len(bad) + 2]


class Once:
    """A client of one's own that says nothing of reporting again."""

    def __init__(self, i):
        self._client = quadratic(i, batch_size=2)
        for name in ("name", "rows", "held_out_rows", "value_rows", "gradient_rows", "constraints"):
            setattr(self, name, getattr(self._client, name))
        for name in ("report", "update", "evaluate", "certify"):
            setattr(self, name, getattr(self._client, name))


def test_who_reports_once_is_refused_at_the_start_and_heard_anew_later(tmp_path):
    def private(i):
        settings = ss.RecordPrivacy(epsilon=50, delta=1e-3)
        return fl.PrivateClient(quadratic(i), settings, budget_file=tmp_path / f"{i}.json", rounds=9)

    for make in (Once, private):
        grid = fl.InProcessGrid(simulated(lambda context, make=make: make(int(context.node_config["partition-id"]))), 2)
        with pytest.raises(ValueError, match=r"report at one iterate only, as .*site 0.*smoothing"):
            fl.SwitchingStrategy(RULE, memory=CORRECTED, **QUICK).start(grid, zeros(), 2)
    with_batch_norm = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    data = TensorDataset(torch.ones(4, 3))
    client = fl.TorchClient(
        with_batch_norm, lambda m, b: m(b[0]).mean(), lambda m, b: m(b[0]).mean(), data, name="one", batch_size=2
    )
    assert not client.can_repeat_reports
    made = {0: quadratic, 1: quadratic, 2: Once}
    grid = Wiretap(
        simulated(lambda context: (lambda i: made[i](i) if i == 2 else made[i](i, batch_size=2))(
            int(context.node_config["partition-id"])
        )),
        3,
    )  # fmt: skip
    grid.connected.discard(102)

    def joins(chunk):
        if chunk.round == 3:
            grid.connected.add(102)

    strategy = fl.SwitchingStrategy(RULE, memory=CORRECTED, callbacks=[joins], **QUICK)
    strategy.start(grid, zeros(), 8)
    newcomer = [reply for message, reply in grid.reports if message.metadata.dst_node_id == 102]
    assert len(newcomer) == 5
    assert not any(wire.PREVIOUS_VALUES in reply.content for reply in newcomer)
    told = strategy.result.history.per_client
    last = told.objective[-1][told.clients[-1].tolist().index(2)]
    np.testing.assert_array_equal(strategy.result.state.parts["memory"].forecasts.estimates[2, :, 0], last)


def test_a_server_that_tells_no_digest_is_refused():
    app = quadratics(1, batch_size=2)
    settings = ConfigRecord(
        {"round": 0, "seed": 0, "local_steps": 1, "step_size": 0.1, "switches": True, wire.PREVIOUS: "w"}
    )
    fl.InProcessGrid(app, 1)  # gives messages somebody to be from
    message = Message(RecordDict({wire.PARAMS: zeros(), wire.SETTINGS: settings}), 100, wire.REPORT)
    context = Context(10**6, 100, {"partition-id": 0}, RecordDict(), {})
    assert "must be a digest" in wire.read_refusal(app(message, context).content)
    settings[wire.PREVIOUS] = digest({"w": np.ones(FEATURES, np.float32)})
    for _ in range(2):  # it has no parameters yet, and then others: it says so by its silence
        reply = app(message, context)
        assert wire.VALUES in reply.content
        assert wire.PREVIOUS_VALUES not in reply.content


@pytest.mark.parametrize(("changes", "corrected"), [({}, True), ({"batch_size": None}, False)])
def test_a_run_that_chooses_for_itself_corrects_where_reports_are_of_some_rows(tmp_path, changes, corrected):
    """As the compiled engine does; but not where clients may lie. A resumed run remembers as it began to."""
    app = quadratics(MANY, **{"batch_size": 2, **changes})

    def run(rounds, method=ss.Automatic(tolerance=0.1), **more):  # noqa: B008 (frozen)
        strategy = fl.SwitchingStrategy(method, **QUICK, **more)
        strategy.start(fl.InProcessGrid(app, MANY), zeros(), rounds)
        return strategy.result

    result = run(60, checkpoints=ss.Checkpoints(tmp_path, every=0))
    assert ("memory" in result.state.parts) == corrected
    if corrected:
        assert result.state.parts["memory"].forecasts is not None
        assert "memory" not in run(2, ss.Automatic(tolerance=0.1, robust=1)).state.parts
        app = quadratics(MANY, batch_size=None)
        assert run(70, checkpoints=ss.Checkpoints(tmp_path, every=0)).state.parts["memory"].forecasts is not None
