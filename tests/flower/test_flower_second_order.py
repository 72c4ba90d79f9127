"""SQP over Flower: iterates, lost clients, bad replies, refusals, an attack, resume and fallback."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flwr.app import RecordDict

import softswitch as ss
import softswitch.flower as fl
from benchmarks import flat
from flower_clients import FaultyGrid
from softswitch.flower import messages as wire
from softswitch.oracles.derivatives import UnavailableError
from softswitch.problem.fairness import demographic_parity
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.history import ClientOutcome
from softswitch.results.status import DiagnosticCode, StatusCode

pytestmark = pytest.mark.usefixtures("quiet")
CLIENTS, ROWS, FEATURES = 3, 60, 3
TOLERANCE = 0.35
METHOD = ss.SQP(tolerance=TOLERANCE)
ALLOWED = fl.ClientPolicy(second_order=True)
SIMULATED = dataclasses.replace(fl.ClientPolicy.for_simulations(), second_order=True)


def make_columns(i, rows=ROWS):
    generator = np.random.default_rng(i)
    x = np.c_[generator.normal(size=(rows, FEATURES - 1)), np.ones(rows)]
    y = x[:, 0] - (0.5 + 0.3 * i) * x[:, 1] + generator.logistic(size=rows) > 0
    return {"x": x.astype(np.float32), "y": y.astype(np.float32), "group": (x[:, 1] > 0).astype(np.float32)}


def class_loss(label):
    def loss(params, batch):
        score = batch["x"] @ params["w"]
        weight = batch["weight"] * (batch["y"] == label)
        losses = jnp.logaddexp(0, -score if label else score)
        return jnp.where(weight.sum() > 0, (weight * losses).sum() / jnp.maximum(weight.sum(), 1e-30), -jnp.inf)

    return loss


PROBLEM = ss.Problem(class_loss(0), class_loss(1), {"w": jnp.zeros(FEATURES)}, convex=True)


def make_app(policy=SIMULATED, problem=PROBLEM, **changes):
    def factory(context):
        i = int(context.node_config["partition-id"])
        make_clients, options = (
            make_columns(i),
            {"classes": "y", "batch_size": None, "held_out": make_columns(100 + i), **changes},
        )
        return fl.JaxClient(problem, make_clients, name=f"site {i}", **options)

    return fl.client_app(factory, policy)


def run(grid, method=METHOD, rounds=40, **settings):
    strategy = fl.SwitchingStrategy(method, **{"convex": True, "wait": 0.0, "report_timeout": 0.05, **settings})
    strategy.start(grid, fl.initial_arrays(PROBLEM.start), rounds)
    return strategy


def make_clients():
    tables = [make_columns(i) for i in range(CLIENTS)]
    columns = {key: np.concatenate([columns_of_client[key] for columns_of_client in tables]) for key in tables[0]}
    return ss.ClientData.from_arrays(columns, np.repeat([f"site {i}" for i in range(CLIENTS)], ROWS))


def in_one_process(**options):
    return ss.solve(PROBLEM, make_clients(), ss.SQP(tolerance=TOLERANCE), **options)


@pytest.fixture(scope="module")
def complete_run():
    """A run without faults."""
    return run(FaultyGrid(make_app(), CLIENTS)).result


def probability(params, batch):
    return jax.nn.sigmoid(batch["x"] @ params["w"])


def test_iterates_match_compiled_engine():
    smooth = PROBLEM, TOLERANCE
    parity = ss.Problem(
        lambda p, b: class_loss(0)(p, b) + class_loss(1)(p, b), demographic_parity(probability), PROBLEM.start
    )
    for problem, tolerance in (smooth, (parity, 0.1)):
        method, points = ss.SQP(tolerance=tolerance), {}
        for engine in ("compiled", "grid"):
            recorded = points[engine] = []
            callbacks = [lambda chunk, recorded=recorded: recorded.append(np.asarray(chunk.state.params["w"]))]
            result = flat.solve(problem, make_clients(), method, engine=engine, callbacks=callbacks, batch_size=None)
            assert result.status.ok
            assert result.lower_bound is not None
            points[engine, "values"] = result.history.objective, result.client_constraint, result.lower_bound.value
        for compiled, grid in zip(points["compiled"], points["grid"], strict=True):
            np.testing.assert_allclose(compiled, grid, atol=1e-6)  # float32
        for compiled, grid in zip(points["compiled", "values"], points["grid", "values"], strict=True):
            np.testing.assert_allclose(compiled, grid, atol=1e-9, rtol=0)


def test_result_has_gap_and_exchange_count(complete_run):
    reference = in_one_process(output=ss.Output(lower_bound=False))
    assert complete_run.status.code is StatusCode.FEASIBLE
    assert len(complete_run.history) <= 12
    assert complete_run.worst_objective == pytest.approx(reference.worst_objective, abs=1e-6)
    assert complete_run.lower_bound.certified
    assert 0 <= complete_run.lower_bound.objective - complete_run.lower_bound.value <= 1e-6
    assert (complete_run.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    assert complete_run.auto_settings == {}


def test_params_are_sent_in_order_of_names(x64):
    def objective(params, batch):
        return (batch["weight"] * jnp.exp(batch["x"] @ jnp.stack(params["ws"]) * params["a"][0])).sum()

    start = {"ws": [jnp.asarray(0.1 * i) for i in range(11)], "a": (jnp.ones(1),)}  # "[10]" comes before "[2]"
    rows = {"x": np.random.default_rng(0).normal(size=(20, 11))}
    client = fl.JaxClient(ss.Problem(objective, lambda p, b: objective(p, b) ** 2, start), rows, name="one")
    names = sorted(client.start)
    assert names != list(client.start)
    reply = client.derivatives(client.start, np.array([1.0, 0.5]))

    def of_vector(vector, power):
        arrays = dict(zip(names, vector, strict=True))
        params = {"ws": [arrays[f"['ws'][{i}]"] for i in range(11)], "a": (arrays["['a'][0]"][None],)}
        return objective(params, {"x": jnp.asarray(rows["x"]), "weight": jnp.full(20, 1 / 20)}) ** power

    point = jnp.concatenate([jnp.ravel(client.start[name]) for name in names])
    np.testing.assert_allclose(reply.gradients[0], jax.grad(of_vector)(point, 1), rtol=1e-9)
    expected = jax.hessian(of_vector)(point, 1) + 0.5 * jax.hessian(of_vector)(point, 2)
    np.testing.assert_allclose(reply.hessian, expected, rtol=1e-9)


def make_malformed(reply, fault):
    """Return a reply with this fault."""
    values, arrays = reply[wire.VALUES], dict(wire.from_record(reply[wire.MATRICES]))
    if fault == "NaN":
        arrays["gradients"] = arrays["gradients"] * np.nan
    elif fault == "another size":
        arrays["gradients"] = arrays["gradients"][:, 1:]
    elif fault == "whole matrix":
        arrays["hessian"] = np.eye(FEATURES)
    elif fault == "no matrix":
        del arrays["hessian"]
    elif fault == "float32":
        arrays["gradients"] = arrays["gradients"].astype(np.float32)
    elif fault == "too large":
        arrays["hessian"] = 1e15 * np.ones_like(arrays["hessian"])
    elif fault == "no value":
        values = wire.encode_values(wire.Values(float("nan"), [0.0]))
    return RecordDict({wire.VALUES: values, wire.MATRICES: wire.to_record(arrays)})


class SecondOrderFaults(FaultyGrid):
    """A grid with a fault of site 1 in its second exchange, for some attempts."""

    def __init__(self, *arguments, fault, attempts=1):
        super().__init__(*arguments)
        self.fault, self.left, self.exchanges = fault, attempts, 0

    def deliver(self, message):
        if message.metadata.message_type != wire.DERIVATIVES or message.metadata.dst_node_id != 101:
            return super().deliver(message)
        self.exchanges += 1
        if self.exchanges == 1 or not self.left:
            return super().deliver(message)
        self.left -= 1
        if self.fault in ("silent", "raises", "gone"):
            self.faults[1, wire.DERIVATIVES] = self.fault
            reply = super().deliver(message)
            del self.faults[1, wire.DERIVATIVES]
            return reply
        reply = super().deliver(message)
        reply.content = make_malformed(reply.content, self.fault)
        return reply


BAD = ("NaN", "another size", "whole matrix", "no matrix", "float32", "too large", "no value")


@pytest.mark.parametrize("fault", ["silent", "raises", "gone", *BAD])
def test_evaluation_is_repeated_until_all_clients_reply(complete_run, fault, tmp_path):
    strategy = run(SecondOrderFaults(make_app(), CLIENTS, fault=fault), events=tmp_path / "events.jsonl")
    np.testing.assert_array_equal(strategy.result.last["w"], complete_run.last["w"])
    (event,) = (
        event_record
        for event_record in fl.read_events(tmp_path / "events.jsonl")
        if event_record["what"] in ("lost", "rejected")
    )
    assert (event["client"], event["what"]) == ("site 1", "rejected" if fault in BAD else "lost")


def test_silent_client_stops_run():
    grid = SecondOrderFaults(make_app(), CLIENTS, fault="NaN", attempts=10**6)
    result = run(grid, names=[f"site {i}" for i in range(CLIENTS)], patience=3).result
    assert result.status.code is StatusCode.STOPPED
    assert "no usable reply of 'site 1' in 3 attempts" in result.status.message
    assert len(result.history) == 1
    assert result.lower_bound is None


class LeavingGrid(FaultyGrid):
    """A grid that site 1 leaves after its second exchange, and optionally joins again."""

    def __init__(self, *arguments, back=None):
        super().__init__(*arguments)
        self.seen, self.back, self.weights = 0, back, []

    def deliver(self, message):
        if message.metadata.message_type == wire.DERIVATIVES and message.metadata.dst_node_id == 100:
            self.seen += 1
            self.weights.append(list(message.content[wire.DECISION]["weights"]))
            if self.seen == 3:
                self.connected.discard(101)
            if self.seen == self.back:
                self.connected.add(101)
        return super().deliver(message)


def test_run_continues_without_unlisted_client():
    grid = LeavingGrid(make_app(), CLIENTS)
    result = run(grid).result
    assert (
        grid.weights[0] == grid.weights[3] == [1 / CLIENTS, 0]
    )  # a restart, because replies of different sets of clients are not comparable
    assert [1 / CLIENTS, 0] not in (grid.weights[1], grid.weights[2])
    other_clients = ss.solve(
        PROBLEM,
        ss.ClientData.from_arrays(
            {key: np.concatenate([make_columns(i)[key] for i in (0, 2)]) for key in make_columns(0)},
            np.repeat([0, 2], ROWS),
        ),
        ss.SQP(tolerance=TOLERANCE),
    )
    outcomes = result.history.per_client.outcomes
    assert outcomes[0].tolist() == [1, 1, 1]
    assert outcomes[-1].tolist() == [1, 0, 1]
    np.testing.assert_allclose(result.last["w"], other_clients.last["w"], atol=1e-3)
    assert result.status.code is StatusCode.VIOLATED  # its values are unknown
    assert "nothing is known of 'site 1'" in result.status.message


def test_returning_client_participates_again(complete_run):
    result = run(LeavingGrid(make_app(), CLIENTS, back=6)).result
    assert result.history.per_client.outcomes[:, 1].min() == 0
    assert result.status.ok
    assert result.worst_objective == pytest.approx(complete_run.worst_objective, rel=1e-6)


def test_listed_client_is_not_dropped():
    result = run(LeavingGrid(make_app(), CLIENTS), names=[f"site {i}" for i in range(CLIENTS)], patience=2).result
    assert result.status.code is StatusCode.STOPPED
    assert "'site 1'" in result.status.message


def test_resume_is_exact(complete_run, tmp_path):
    first = run(FaultyGrid(make_app(), CLIENTS), rounds=3, checkpoints=Checkpoints(tmp_path, every=0)).result
    assert len(first.history) == 3
    resumed = run(FaultyGrid(make_app(), CLIENTS), checkpoints=Checkpoints(tmp_path, every=0)).result
    np.testing.assert_array_equal(resumed.last["w"], complete_run.last["w"])
    np.testing.assert_array_equal(resumed.history.objective, complete_run.history.objective)
    resumed_result = run(
        FaultyGrid(make_app(), CLIENTS), checkpoints=Checkpoints(tmp_path, every=0), exclude=["site 0"]
    ).result
    assert resumed_result.names == ("site 1", "site 2")
    assert resumed_result.status.ok
    assert resumed_result.worst_objective < complete_run.worst_objective
    assert DiagnosticCode.EXCLUDED_CLIENTS in {diagnostic.code for diagnostic in resumed_result.diagnostics}
    assert resumed_result.history.per_client.clients.shape[1] == 3


def test_second_order_needs_client_permission():
    with pytest.raises(UnavailableError, match=r"sends no second derivatives \(client policy: second_order\)"):
        run(FaultyGrid(make_app(fl.ClientPolicy()), CLIENTS))
    surrogate = dataclasses.replace(PROBLEM, constraint_surrogate=PROBLEM.constraint, convex=None)
    with pytest.raises(UnavailableError, match="cannot compute second derivatives"):
        run(FaultyGrid(make_app(SIMULATED, surrogate), CLIENTS))


@pytest.mark.parametrize(("minimum", "allowed"), [(None, True), (40, False)])
def test_second_order_needs_enough_rows_in_each_class(minimum, allowed):
    policy = dataclasses.replace(ALLOWED, min_second_order_rows=minimum)
    if allowed:
        assert run(FaultyGrid(make_app(policy), CLIENTS)).result.status.ok
        return
    with pytest.raises(UnavailableError, match="it has a class of fewer than 40 rows"):
        run(FaultyGrid(make_app(policy), CLIENTS))


@pytest.mark.parametrize("regularised", [False, True])
def test_hessian_of_single_row_is_refused(regularised):
    """At large w all rows except one are saturated, and the matrix is the outer product of that row."""

    def loss(label):
        return lambda params, batch: class_loss(label)(params, batch) + 0.1 * regularised * (params["w"] ** 2).sum()

    problem = ss.Problem(loss(0), loss(1), PROBLEM.start)
    x, y = make_columns(0)["x"].astype(float), make_columns(0)["y"]
    target = int(np.flatnonzero(y == 0)[3])
    # A hyperplane through the target: its score is 0, and no other row of the class is close.
    directions = np.random.default_rng(0).normal(size=(2000, FEATURES))
    directions -= np.outer(directions @ x[target], x[target]) / (x[target] @ x[target])
    distances = np.abs(x[(y == 0) & (np.arange(ROWS) != target)] @ directions.T).min(axis=0)
    far = directions[distances.argmax()] * 40 / distances.max()

    def request(policy, point):
        grid = FaultyGrid(make_app(policy, problem), 1)
        content = {wire.PARAMS: wire.to_record({"w": point})}
        content[wire.DECISION] = wire.ConfigRecord({"weights": [1.0, 0.0]})
        return grid.deliver(wire.Message(RecordDict(content), 100, wire.DERIVATIVES, group_id="0"))

    reply = wire.parse_derivatives(request(SIMULATED, far).content, 1, FEATURES, with_hessian=True)
    hessian = reply.hessian - 0.2 * regularised * np.eye(FEATURES)
    row = np.linalg.eigh(hessian)[1][:, -1]
    np.testing.assert_allclose(row / row[-1], x[target] / x[target][-1], rtol=1e-4)  # the attack works
    reason = wire.read_refusal(request(ALLOWED, far).content)
    assert (
        reason
        == "at these parameters fewer than 10 rows make up its second derivatives (client policy: min_class_rows)"
    )
    assert wire.read_refusal(request(ALLOWED, np.zeros(FEATURES)).content) is None


def test_policy_counts_exchanges(tmp_path):
    file = tmp_path / "counted.json"
    policy = dataclasses.replace(ALLOWED, max_rounds=2, counter_file=file)
    result = run(FaultyGrid(make_app(policy), 1)).result
    assert result.status.code is StatusCode.STOPPED
    assert "it has answered 2 reports (client policy: max_rounds)" in result.status.message
    assert json.loads(file.read_text())["reports"] == 2


AUTOMATIC = ss.Automatic(tolerance=TOLERANCE)


def test_automatic_run_uses_second_order_if_allowed(complete_run):
    result = run(FaultyGrid(make_app(), CLIENTS), AUTOMATIC).result
    np.testing.assert_array_equal(result.last["w"], complete_run.last["w"])
    assert result.auto_settings["method"].startswith("SQP, because all clients allow")
    assert isinstance(result.method, ss.SQP)


@pytest.mark.parametrize(
    ("policy", "settings", "reason"),
    [
        (fl.ClientPolicy(), {}, "'site 0', 'site 1', 'site 2' offered no second derivatives"),
        (SIMULATED, {"local_steps": 2}, "local_steps is 2, not 1"),
        (SIMULATED, {"participation": 0.5}, "participation is 0.5, not 1"),
    ],
)
def test_automatic_run_names_reason_for_first_order(policy, settings, reason):
    result = run(FaultyGrid(make_app(policy), CLIENTS), AUTOMATIC, rounds=2, **settings).result
    assert reason in result.auto_settings["method"]
    assert isinstance(result.method, ss.SoftmaxSGM)


def test_incompatible_settings_are_rejected():
    for settings in ({"local_steps": 2}, {"participation": 0.5}, {"clip_norm": 1.0}, {"eval_every": 5}):
        with pytest.raises(ValueError, match="which SQP cannot use over Flower: use Automatic or SoftmaxSGM"):
            run(FaultyGrid(make_app(), CLIENTS), **settings)
    with pytest.raises(ValueError, match="the constraint is pooled"):
        run(FaultyGrid(make_app(), CLIENTS), ss.SQP(tolerance=0.1, criterion="pooled"), pooled=lambda sums: sums[0])


def kinked(params, batch):
    error = batch["x"] @ params["w"] - batch["y"]
    return (batch["weight"] * jnp.where(error > 0, error, -error)).sum()


def infinite(params, batch):
    """A function whose gradient is not finite at the start."""
    return jnp.sqrt((params["w"] ** 2).sum()) + class_loss(0)(params, batch)


@pytest.mark.parametrize(
    ("objective", "rounds", "reason"),
    [(kinked, 80, "did not converge"), (infinite, 10, "no usable reply of 'site 0', 'site 1', 'site 2' in 2 attempts")],
)
def test_automatic_run_falls_back_to_first_order(objective, rounds, reason, tmp_path):
    problem, lengths = ss.Problem(objective, class_loss(1), PROBLEM.start), []
    for text in (reason, "the run has gone on with it before"):  # the second run resumes the first
        grid, checkpoints = FaultyGrid(make_app(problem=problem), CLIENTS), Checkpoints(tmp_path, every=0)
        strategy = run(grid, ss.Automatic(0.5), rounds=rounds, checkpoints=checkpoints, patience=2)
        assert text in strategy.result.auto_settings["method"]
        assert isinstance(strategy.result.method, ss.SoftmaxSGM)
        lengths.append(len(strategy.result.history))
    exchanges = 0
    if objective is kinked:  # it starts from the last iterate of SQP
        second = run(FaultyGrid(make_app(problem=problem), CLIENTS), ss.SQP(tolerance=0.5), rounds=rounds).result
        exchanges = len(second.history)
        assert strategy.result.history.objective[0] == pytest.approx(second.worst_objective, rel=1e-5)
    assert lengths == [rounds - exchanges] * 2


def test_failed_second_order_counts_in_rounds_and_seconds(tmp_path):
    problem = ss.Problem(kinked, class_loss(1), PROBLEM.start)
    seconds, evaluated = [], []

    def run_rounds(rounds):
        strategy = fl.SwitchingStrategy(
            ss.Automatic(0.5),
            wait=0.0,
            report_timeout=0.05,
            checkpoints=Checkpoints(tmp_path, every=0),
            callbacks=[lambda chunk: seconds.append(chunk.seconds)],
        )
        grid = FaultyGrid(make_app(problem=problem), CLIENTS)
        metrics = strategy.start(
            grid, fl.initial_arrays(PROBLEM.start), rounds, evaluate_fn=lambda done, arrays: evaluated.append(done)
        )
        return strategy.result, metrics

    result, metrics = run_rounds(60)
    exchanges = 60 - len(result.history)
    assert exchanges > 1
    assert len(seconds) == 60
    assert seconds == sorted(seconds)
    assert result.seconds >= seconds[-1]
    assert evaluated == [*range(exchanges + 1), *range(exchanges, 61)]
    assert list(metrics.train_metrics_clientapp) == list(range(1, 61))
    extended, _ = run_rounds(70)
    assert len(extended.history) == 70 - exchanges
    assert extended.seconds > result.seconds
    with pytest.raises(ValueError, match=f"num_rounds must be more than {exchanges}"):
        run_rounds(exchanges)


@pytest.mark.parametrize("rounds", [1, 2])
def test_failed_second_order_without_rounds_left_is_the_result(rounds, monkeypatch):
    monkeypatch.setattr("softswitch.flower.strategy.describe_failure", lambda result: "SQP failed")
    result = run(FaultyGrid(make_app(), CLIENTS), AUTOMATIC, rounds=rounds).result
    assert isinstance(result.method, ss.SQP)
    assert len(result.history) == rounds


def test_nonsmooth_functions_have_no_second_derivatives():
    problem = ss.Problem(lambda w, batch: jnp.abs(batch["x"] @ w["w"]).mean(), class_loss(1), PROBLEM.start)
    strategy = run(FaultyGrid(make_app(problem=problem), CLIENTS), AUTOMATIC, rounds=2)
    assert "second derivatives" in strategy.result.auto_settings["method"]


def torch_client(i):
    def loss(label):
        def mean(module, batch):
            x, y = batch
            rows = y == label
            if not rows.any():
                return torch.tensor(-torch.inf)
            score = module(x[rows])[:, 0]
            return torch.nn.functional.softplus(-score if label else score).mean()

        return mean

    module = torch.nn.Linear(FEATURES - 1, 1)
    with torch.no_grad():
        for weight in module.parameters():
            weight.zero_()
    rows = {name: torch.from_numpy(column) for name, column in make_columns(i).items()}
    pairs = torch.utils.data.TensorDataset(rows["x"][:, :-1], rows["y"])
    return fl.TorchClient(module, loss(0), loss(1), pairs, name=f"site {i}", batch_size=None, classes=rows["y"])


def test_torch_client(complete_run):
    make_app = fl.client_app(lambda context: torch_client(int(context.node_config["partition-id"])), ALLOWED)
    strategy = fl.SwitchingStrategy(METHOD, convex=True, wait=0.0)
    strategy.start(FaultyGrid(make_app, CLIENTS), fl.initial_arrays(torch_client(0).start), 40)
    assert strategy.result.status.ok
    assert strategy.result.worst_objective == pytest.approx(complete_run.worst_objective, abs=1e-6)
    assert strategy.result.lower_bound.certified


def test_clients_have_common_curvatures():
    weights, point = np.array([1.0, 2.0]), np.array([0.3, -0.2, 0.1])
    names = {"weight": point[:2][None], "bias": point[2:]}
    jax_client = fl.JaxClient(PROBLEM, make_columns(0), name="site 0")
    by_jax = jax_client.row_curvatures({"w": point}, weights)
    by_torch = torch_client(0).row_curvatures(names, weights)
    np.testing.assert_allclose(by_jax, by_torch, rtol=1e-6)
    x, y = make_columns(0)["x"].astype(float), make_columns(0)["y"]
    p = 1 / (1 + np.exp(-x @ point))
    hessians = (p * (1 - p))[:, None, None] * x[:, :, None] * x[:, None, :]
    of_class = hessians[y == 0]
    common = of_class[np.linalg.norm(of_class, axis=(1, 2)).argmin()]
    expected = np.where(y == 0, np.linalg.norm(hessians - common, axis=(1, 2)), 0.0)
    np.testing.assert_allclose(by_jax[:, 0], expected, rtol=1e-5)
