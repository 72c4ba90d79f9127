"""The Flower engine: trajectories, methods and run folders match the compiled engine."""

import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy
from torch.utils.data import DataLoader, Dataset, TensorDataset

import softswitch as ss
import softswitch.flower as fl
from benchmarks import flat
from flower_clients import FEATURES, quadratics, simulated, zeros
from softswitch.certification.intervals import ErrorLevels, mean_interval
from softswitch.flower import messages as wire
from softswitch.flower.jax_client import flatten_params, unflatten_params
from softswitch.methods import LocalLoss
from softswitch.results.folder import find_runs, open_run, write_result
from softswitch.results.history import ClientOutcome
from softswitch.results.report.page import write_report
from softswitch.support.files import write_json
from softswitch_experiments.tasks.neyman_pearson import breast_cancer

RULE = ss.SoftmaxSGM(alpha=20.0, step_size=0.5, tolerance=0.2)


@pytest.fixture(scope="module")
def cancer():
    return breast_cancer(4)


def assert_same_run(a, b, tolerance):
    """Assert that two runs have the same trajectory."""
    for name in ("objective", "constraint", "criterion"):
        np.testing.assert_allclose(getattr(b.history, name), getattr(a.history, name), atol=tolerance)
    np.testing.assert_array_equal(b.history.feasible, a.history.feasible)
    np.testing.assert_array_equal(b.history.per_client.clients, a.history.per_client.clients)
    np.testing.assert_allclose(b.history.per_client.constraint, a.history.per_client.constraint, atol=tolerance)
    np.testing.assert_array_equal(b.history.value_evaluations, a.history.value_evaluations)
    np.testing.assert_array_equal(b.history.gradient_evaluations, a.history.gradient_evaluations)
    np.testing.assert_allclose(b.history.full.constraint, a.history.full.constraint, atol=tolerance)
    for name in ("params", "last", "best"):
        np.testing.assert_allclose(getattr(b, name), getattr(a, name), atol=tolerance)
    np.testing.assert_allclose(b.client_constraint, a.client_constraint, atol=tolerance)
    assert (b.status.code, b.status.round) == (a.status.code, a.status.round)
    assert b.selected == a.selected
    assert b.names == a.names


SETTINGS = ((1, 1.0), (5, 0.5))
"""One local step with all clients, and five with half of the clients."""


def check_same_trajectory(data, engine, local_steps, share):
    """Compare fifty rounds that include both branches."""
    request = {
        "rounds": 50,
        "local_steps": local_steps,
        "participation": share,
        "batch_size": None,
        "eval_every": 10,
        "seed": 5,
    }
    compiled = flat.solve(data.problem, data.train, RULE, record_clients=True, **request)
    assert 0.1 < compiled.history.switch_share < 0.9
    assert_same_run(compiled, flat.solve(data.problem, data.train, RULE, engine=engine, **request), 1e-6)


@pytest.mark.parametrize(("local_steps", "share"), [pytest.param(*SETTINGS[0], marks=pytest.mark.slow), *SETTINGS[1:]])
def test_in_process_grid_matches_compiled_engine(cancer, local_steps, share):
    check_same_trajectory(cancer, "grid", local_steps, share)


@pytest.mark.parametrize(
    "method",
    [
        *(
            pytest.param(method, marks=pytest.mark.slow)
            for method in (
                ss.Penalty(penalty=2.0, step_size=0.5, tolerance=0.2, optimizer=optax.adam),
                ss.PrimalDual(multiplier=0.5, dual_step_size=0.1, step_size=0.5, tolerance=0.2),
                ss.HardSGM(step_size=0.3, tolerance=0.2, criterion="max"),
            )
        ),
        ss.AverageSGM(step_size=optax.linear_schedule(0.5, 0.1, 10), tolerance=0.2),
    ],
    ids=lambda method: type(method).__name__,
)
def test_all_methods_run_over_flower(cancer, method):
    request = {"rounds": 12, "local_steps": 2, "batch_size": None, "eval_every": 6}
    compiled = flat.solve(cancer.problem, cancer.train, method, record_clients=True, **request)
    assert_same_run(compiled, flat.solve(cancer.problem, cancer.train, method, engine="grid", **request), 2e-6)


@pytest.mark.slow
def test_several_and_pooled_constraints_over_flower():
    rows = {"x": np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)}
    clients = ss.ClientData.from_arrays(rows, np.arange(40) % 4)

    def objective(params, batch):
        return jnp.average(((batch["x"] - params["a"]) ** 2).sum(axis=1), weights=batch["weight"])

    def constraints(params, batch):
        return jnp.stack([params["a"].sum() - 0.2, jnp.average(batch["x"][:, 0], weights=batch["weight"]) - 0.1])

    problem = ss.Problem(objective, constraints, {"a": jnp.ones(2)}, ss.Ball(3.0))
    method = ss.SoftmaxSGM(alpha=5.0, step_size=0.1, tolerance=0.1)
    request = {"rounds": 15, "batch_size": None, "eval_every": 5}
    a, b = (
        flat.solve(problem, clients, method, record_clients=True, engine=e, **request) for e in ("compiled", "grid")
    )
    np.testing.assert_allclose(b.last["a"], a.last["a"], atol=1e-6)
    assert not a.history.feasible.all()

    def statistics(params, batch):
        return jnp.stack([(batch["weight"] * (batch["x"] @ params["a"])).sum(), batch["weight"].sum()])

    pooled = ss.PooledConstraint(statistics, lambda sums: sums[0] / sums[1])
    problem = ss.Problem(objective, pooled, {"a": jnp.ones(2)})
    method = ss.SoftmaxSGM(alpha=5.0, step_size=0.1, tolerance=0.05, criterion="pooled")
    a, b = (
        flat.solve(problem, clients, method, record_clients=True, engine=e, **request) for e in ("compiled", "grid")
    )
    np.testing.assert_allclose(b.history.criterion, a.history.criterion, atol=1e-6)
    np.testing.assert_allclose(b.last["a"], a.last["a"], atol=1e-6)
    np.testing.assert_allclose(b.pooled_constraint, a.pooled_constraint, atol=1e-6)


def class_loss(module, batch, label):
    x, y = batch
    rows = y == label
    score = module(x[rows])[:, 0]
    return torch.nn.functional.softplus(-score if label else score).mean()


def torch_clients(data, **options):
    """Clients of the Neyman–Pearson problem in PyTorch, with a linear module."""
    ends = np.cumsum(data.sizes)
    columns = {key: np.array(column) for key, column in data.rows.columns.items()}

    def factory(make_context):
        i = int(make_context.node_config["partition-id"])
        rows = slice(ends[i] - data.sizes[i], ends[i])
        x, y = (torch.from_numpy(columns[key][rows]) for key in ("x", "y"))
        module = torch.nn.Linear(x.shape[1], 1, bias=False)
        return fl.TorchClient(
            module,
            lambda m, b: class_loss(m, b, 0),
            lambda m, b: class_loss(m, b, 1),
            TensorDataset(x, y),
            name=str(i),
            **{"batch_size": None, **options},
        )

    return simulated(factory)


@pytest.mark.parametrize("local_steps", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_pytorch_clients_match_jax_clients(cancer, local_steps):
    request = {"rounds": 50, "local_steps": local_steps, "batch_size": None, "eval_every": 0}
    jax_result = flat.solve(cancer.problem, cancer.train, RULE, record_clients=True, **request)
    strategy = fl.SwitchingStrategy(RULE, local_steps=local_steps)
    features = cancer.problem.start.shape[0]
    start = wire.to_record({"weight": np.zeros((1, features), np.float32)})
    strategy.start(fl.InProcessGrid(torch_clients(cancer.train), 4), start, 50)
    torch_result = strategy.result
    assert 0.1 < jax_result.history.switch_share < 0.9
    np.testing.assert_array_equal(torch_result.history.feasible, jax_result.history.feasible)
    np.testing.assert_allclose(torch_result.history.criterion, jax_result.history.criterion, atol=1e-5)
    np.testing.assert_allclose(np.asarray(torch_result.last["weight"])[0], jax_result.last, atol=1e-5)


def test_torch_optimizer_loader_and_dataset(cancer):
    """SGD as the optimizer gives the default direction, and batches depend on the seed only."""
    features = cancer.problem.start.shape[0]
    start = wire.to_record({"weight": np.zeros((1, features), np.float32)})

    def final_weight(**options):
        strategy = fl.SwitchingStrategy(RULE, local_steps=3, seed=7)
        strategy.start(fl.InProcessGrid(torch_clients(cancer.train, **options), 4), start, 5)
        return np.asarray(strategy.result.last["weight"])

    reference = final_weight(batch_size=64)
    np.testing.assert_allclose(final_weight(batch_size=64, optimizer=torch.optim.SGD), reference, atol=1e-5)
    torch.manual_seed(1)
    np.testing.assert_array_equal(final_weight(batch_size=64), reference)
    assert np.abs(final_weight(batch_size=64, optimizer=torch.optim.Adam) - reference).max() > 1e-3

    class Rows(Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, i):
            return {"x": torch.full((2,), float(i)), "y": i % 2}

    def value(module, batch):
        return (module(batch["x"]).mean() - batch["y"].float().mean()) ** 2

    task = fl.Task(round=3, seed=0, local_steps=7, step_size=0.01, switches=True)
    for data in (Rows(), DataLoader(Rows(), batch_size=4, shuffle=True)):
        client = fl.TorchClient(torch.nn.Linear(2, 1), value, value, data, name="rows", batch_size=4)
        params = fl.parameters(torch.nn.Linear(2, 1))
        state = torch.get_rng_state()
        first, repeated = (client.report(params, task) for _ in range(2))
        assert first == repeated
        assert client.report(params, task._replace(round=4)) != first
        loss = LocalLoss(1.0, np.zeros(1), 0.0, 0.0)
        a, b = (client.update(params, task, loss) for _ in range(2))
        np.testing.assert_array_equal(a["weight"], b["weight"])
        assert torch.equal(torch.get_rng_state(), state)  # the user's generator is unchanged


def test_dropout_frozen_weights_and_missing_classes():
    module = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    module[0].weight.requires_grad_(False)
    assert set(fl.parameters(module)) == {"0.bias", "2.weight", "2.bias"}

    def nothing(module, batch):
        return torch.tensor(-torch.inf)

    rows = TensorDataset(torch.ones(5, 2))
    client = fl.TorchClient(module, lambda m, b: m(b[0]).mean(), nothing, rows, name="a", batch_size=None)
    params = fl.parameters(module)
    task = fl.Task(0, 0, 2, 0.1, True)
    assert client.report(params, task) == client.report(params, task)  # no dropout in values
    assert client.report(params, task).constraint == [-math.inf]
    of_nothing = client.update(params, task, LocalLoss(0.0, np.ones(1), 0.0, 0.0))
    assert not any(array.any() for array in of_nothing.values())
    with pytest.raises(ValueError, match="the module's are"):
        client.report({"other": np.zeros(1)}, task)


def test_scalar_params_and_batch_sizes_over_flower():
    rows = {"x": np.arange(24, dtype=np.float32)}
    clients = ss.ClientData.from_arrays(rows, np.arange(24) % 3)

    def objective(params, batch):
        return jnp.average((batch["x"] - params["b"]) ** 2, weights=batch["weight"])

    problem = ss.Problem(objective, lambda params, batch: params["b"] - 5, {"b": jnp.zeros(())})
    method = ss.SoftmaxSGM(alpha=0.1, step_size=0.1, tolerance=0.1)
    request = {"rounds": 5, "batch_size": 4, "value_batch_size": 2, "local_steps": 3}
    a, b = (
        flat.solve(problem, clients, method, record_clients=True, engine=e, **request) for e in ("compiled", "grid")
    )
    assert b.params["b"].shape == ()
    np.testing.assert_array_equal(b.history.value_evaluations, a.history.value_evaluations)
    np.testing.assert_array_equal(b.history.gradient_evaluations, a.history.gradient_evaluations)


def test_batches_depend_on_seed_name_and_round_only(cancer):
    rows = {key: np.array(column)[:50] for key, column in cancer.train.rows.columns.items()}
    params = flatten_params(cancer.problem.start + 0.1)
    first = fl.Task(0, 0, 1, 0.1, True)

    def report(name, task):
        return fl.JaxClient(cancer.problem, rows, name=name, batch_size=8).report(params, task).objective

    assert report("a", first) == report("a", first)
    other_requests = [("b", first), ("a", first._replace(round=1)), ("a", first._replace(seed=1))]
    assert len({report("a", first), *(report(*request) for request in other_requests)}) == 4


def test_pytrees_are_sent_by_name():
    nested = {"a": [jnp.ones(2), {"b": jnp.zeros((1, 3))}]}
    restored = unflatten_params(wire.from_record(wire.to_record(flatten_params(nested))), nested)
    np.testing.assert_array_equal(restored["a"][1]["b"], nested["a"][1]["b"])
    assert set(flatten_params({"0.weight": np.ones(2)})) == {"0.weight"}
    assert flatten_params(jnp.ones(2)).keys() == {""}


def test_message_contents(cancer):
    messages = []

    class Watching(fl.InProcessGrid):
        def deliver(self, message):
            reply = super().deliver(message)
            messages.append((message, reply))
            return reply

    strategy = fl.SwitchingStrategy(RULE)
    strategy.start(Watching(quadratics(3), 3), zeros(), 2)
    by_kind = {m.metadata.message_type: (m.content, r.content) for m, r in messages}
    requests, replies = by_kind[wire.REPORT]
    assert list(requests[wire.PARAMS]) == ["w"]
    assert dict(replies[wire.VALUES]).keys() == {"objective", "constraint"}
    assert all(isinstance(value, float) for value in replies[wire.VALUES].values())
    requests, replies = by_kind[wire.UPDATE]
    assert list(requests) == [wire.DECISION]
    assert list(requests[wire.DECISION]) == ["feasible"]
    assert isinstance(requests[wire.DECISION]["feasible"], bool)
    assert list(replies) == [wire.DIRECTION]
    assert replies[wire.DIRECTION]["w"].shape == (FEATURES,)


def test_strategy_implements_flower_interface():
    strategy, iterates = fl.SwitchingStrategy(RULE), {}

    def evaluate(k, arrays):
        iterates[k] = arrays["w"].numpy()
        return MetricRecord({"size": float(np.linalg.norm(iterates[k]))}) if k else None

    assert isinstance(strategy, Strategy)
    finished = strategy.start(
        grid=fl.InProcessGrid(quadratics(3), 3),
        initial_arrays=zeros(),
        num_rounds=4,
        timeout=60.0,
        train_config=wire.ConfigRecord(),
        evaluate_config=None,
        evaluate_fn=evaluate,
    )
    assert list(iterates) == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(iterates[4], strategy.result.last["w"])
    assert list(finished.evaluate_metrics_serverapp) == list(finished.train_metrics_clientapp) == [1, 2, 3, 4]
    assert strategy.clients.settings.report_timeout == strategy.clients.settings.update_timeout == 60
    for hook in (strategy.configure_train, strategy.aggregate_train, strategy.aggregate_evaluate):
        with pytest.raises(NotImplementedError, match="call start"):
            hook(1, [])


def test_start_returns_average_of_feasible_iterates():
    iterates = [np.zeros(FEATURES)]
    record = lambda chunk: iterates.append(np.asarray(chunk.state.params["w"]))  # noqa: E731
    strategy = fl.SwitchingStrategy(ss.SoftmaxSGM(alpha=5.0, step_size=0.2, tolerance=0.1), callbacks=[record])
    finished = strategy.start(fl.InProcessGrid(quadratics(3), 3), zeros(), 30)
    iterates_before_step = np.stack(iterates[:-1])  # w_0 to w_29
    feasible = strategy.result.history.feasible
    assert 0 < feasible.sum() < 30
    np.testing.assert_allclose(strategy.result.params["w"], iterates_before_step[feasible].mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(finished.arrays["w"].numpy(), strategy.result.params["w"])
    assert len(finished.train_metrics_clientapp) == 30


def test_client_sampling_is_seeded():
    def sampled_clients(seed):
        strategy = fl.SwitchingStrategy(RULE, participation=0.4, seed=seed)
        strategy.start(fl.InProcessGrid(quadratics(10), 10), zeros(), 8)
        return strategy.result.history.per_client.clients

    np.random.seed(0)  # noqa: NPY002 (the global generator must have no effect)
    first, second = sampled_clients(0), sampled_clients(0)
    np.testing.assert_array_equal(first, second)
    assert (sampled_clients(1) != first).any()
    assert first.shape == (8, 4)
    assert all(len(set(row)) == 4 for row in first.tolist())


def test_directions_are_clipped_by_client_and_server(monkeypatch):
    def run():
        strategy = fl.SwitchingStrategy(
            ss.SoftmaxSGM(alpha=5.0, step_size=1.0, tolerance=100.0), clip_norm=0.01, average_last=0.1
        )
        strategy.start(fl.InProcessGrid(quadratics(3), 3), zeros(), 4)
        return np.linalg.norm(strategy.result.last["w"])

    assert 0.02 < run() <= 0.04 + 1e-6
    monkeypatch.setattr(
        "softswitch.flower.client.clip_direction", lambda direction, limit: direction
    )  # clients that do not clip
    assert run() <= 0.04 + 1e-6


def test_resume_is_exact(tmp_path):
    def run(checkpoints=None, callbacks=(), grid=None):
        strategy = fl.SwitchingStrategy(
            RULE, participation=0.5, checkpoints=checkpoints, callbacks=callbacks, local_steps=2, seed=3
        )
        strategy.start(grid or fl.InProcessGrid(quadratics(6, batch_size=4), 6), zeros(), 20)
        return strategy.result

    uninterrupted = run()
    rounds = []

    def die(chunk):
        rounds.append(chunk.round)
        if chunk.round == 9:
            raise RuntimeError("the server dies")

    with pytest.raises(RuntimeError, match="dies"):
        run(ss.Checkpoints(tmp_path, every=0), [die])
    grid = fl.InProcessGrid(quadratics(6, batch_size=4), 6)
    resumed = run(ss.Checkpoints(tmp_path, every=0), [lambda chunk: rounds.append(chunk.round)], grid)
    assert rounds[9] == 9  # at most one lost round: round 9 was not saved yet
    np.testing.assert_array_equal(resumed.params["w"], uninterrupted.params["w"])
    np.testing.assert_array_equal(resumed.history.criterion, uninterrupted.history.criterion)
    np.testing.assert_array_equal(resumed.history.per_client.outcomes, uninterrupted.history.per_client.outcomes)
    assert resumed.names == uninterrupted.names
    other_seed = fl.SwitchingStrategy(RULE, seed=4, checkpoints=ss.Checkpoints(tmp_path))
    with pytest.raises(ValueError, match="another run: its seed is 3, not 4"):
        other_seed.start(grid, zeros(), 20)


def make_context(**config):
    return Context(1, 0, {}, RecordDict(), config)


def test_server_app_writes_run_folder(tmp_path, capsys):
    held_out = {"x": np.random.default_rng(3).normal(size=(200, FEATURES)).astype(np.float32)}
    app = fl.server_app(RULE, {"w": np.zeros(FEATURES, np.float32)}, rounds=6, name="quadratics", eval_every=2)
    app(fl.InProcessGrid(quadratics(3, held_out=held_out), 3), make_context(out=str(tmp_path), rounds=8))
    (run,) = find_runs(tmp_path)
    assert run.name.startswith("quadratics-")
    assert run.about["rounds"] == 8
    assert len(run.history) == 8
    assert (run.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    np.testing.assert_array_equal(run.history.full_rounds, [0, 2, 4, 6])
    assert run.clients["client"] == ["site 0", "site 1", "site 2"]
    assert run.clients["rows"] == [8, 8, 8]
    assert [client["client"] for client in run.certificate["clients"]] == ["site 0", "site 1", "site 2"]
    difference = np.asarray(run.params["['w']"]) - held_out["x"]
    expected = mean_interval(
        0.5 * np.square(difference).sum(axis=1), ErrorLevels(0.05 / 3, 0.05, 0.0), None
    )  # three sites
    interval = run.certificate["clients"][0]["objective"]
    assert interval["rows"] == 200
    np.testing.assert_allclose([interval["lower"], interval["upper"]], [expected.lower, expected.upper], rtol=1e-5)
    assert run.params["['w']"].shape == (FEATURES,)
    assert run.settings["run.rounds"] == 8
    assert run.settings["strategy.eval_every"] == 2
    page = write_report([run.folder]).read_text(encoding="utf-8")
    assert "<td>site 2</td>" in page
    assert page.count("<svg") == 2
    assert "Run folder" in capsys.readouterr().err


def test_server_app_resumes_unfinished_run(tmp_path):
    class Dies(fl.InProcessGrid):
        def push_messages(self, messages):
            messages = list(messages)
            if any(message.metadata.group_id == "4" for message in messages):
                raise OSError("the server has failed")
            return super().push_messages(messages)

    start = {"w": np.zeros(FEATURES, np.float32)}
    with pytest.raises(ValueError, match="there is none"):
        fl.server_app(RULE, start)(fl.InProcessGrid(quadratics(3), 3), make_context(out=str(tmp_path), resume=True))
    with pytest.raises(OSError, match="the server has failed"):
        fl.server_app(RULE, start, rounds=8)(Dies(quadratics(3), 3), make_context(out=str(tmp_path)))
    (run,) = find_runs(tmp_path)
    assert not run.finished
    assert "token" not in (run.folder / "run.json").read_text()
    older_folder = tmp_path / "federated-19990101-000000"
    older_folder.mkdir()
    write_json(older_folder / "run.json", run.about | {"started": "1999-01-01T00:00:00+00:00"})
    # The rounds of the resumed run apply, not the requested rounds.
    fl.server_app(RULE, start, rounds=9)(
        fl.InProcessGrid(quadratics(3), 3), make_context(out=str(tmp_path), resume=True)
    )
    run = open_run(run.folder)
    assert run.about["rounds"] == 8
    assert not open_run(older_folder).finished
    fl.server_app(RULE, start, rounds=8)(fl.InProcessGrid(quadratics(3), 3), make_context(out=str(tmp_path / "whole")))
    (uninterrupted,) = find_runs(tmp_path / "whole")
    np.testing.assert_array_equal(run.params["['w']"], uninterrupted.params["['w']"])
    assert open_run(run.folder).finished


def test_client_certificates_match_certify(cancer):
    """The intervals of NumPy and PyTorch clients match those of certify for the same rows."""
    sizes = np.cumsum(cancer.test.sizes)
    rows = [
        {key: np.array(column)[end - size : end] for key, column in cancer.test.rows.columns.items()}
        for end, size in zip(sizes, cancer.test.sizes, strict=True)
    ]
    params = cancer.problem.start + 0.1
    for name, client_rows in zip(cancer.test.names, rows, strict=True):
        single_client = ss.ClientData.from_list([client_rows], names=[name])
        problem = replace(cancer.problem, constraint_range=(0.0, 50.0))
        expected = ss.certify(params, problem, single_client, 0.9, tolerance=0.3).clients[0]
        client = fl.JaxClient(cancer.problem, client_rows, name=str(name), batch_size=None, held_out=client_rows)
        error = 0.1
        intervals = client.certify(flatten_params(params), ErrorLevels(error, error, math.nan), [None, (0.0, 50.0)])
        np.testing.assert_allclose(intervals[1].upper, expected.constraints[0].upper, rtol=1e-6)
        x, y = (torch.from_numpy(client_rows[key]) for key in ("x", "y"))

        def loss(module, batch, label):
            rows = batch[1] == label
            if not rows.any():
                return torch.tensor(-torch.inf)
            return class_loss(module, batch, label)

        torch_client = fl.TorchClient(
            torch.nn.Linear(x.shape[1], 1, bias=False),
            lambda m, b, loss=loss: loss(m, b, 0),
            lambda m, b, loss=loss: loss(m, b, 1),
            TensorDataset(x, y),
            name=str(name),
            held_out=TensorDataset(x, y),
        )
        torch_intervals = torch_client.certify(
            {"weight": np.asarray(params)[None]}, ErrorLevels(error, error, math.nan), [None, (0.0, 50.0)]
        )
        for actual, reference in zip(torch_intervals, intervals, strict=True):
            np.testing.assert_allclose(actual.upper, reference.upper, rtol=1e-4)
            assert actual.rows == reference.rows
            assert actual.approximate == reference.approximate


def test_numpy_client_direction_by_hand():
    def f(params, batch):
        return float((params["w"] ** 2).sum()), {"w": 2 * params["w"]}

    def g(params, batch):
        return np.array([params["w"][0] - 1, 2 * params["w"][1]]), {"w": np.array([[1.0, 0.0], [0.0, 2.0]])}

    start = {"w": np.array([2.0, 3.0])}
    client = fl.NumpyClient(f, g, {"x": np.zeros(5)}, start, name="a")
    assert client.constraints == 2
    task = fl.Task(0, 0, 2, 0.1, False)
    loss = LocalLoss(1.0, np.array([0.5, 0.0]), 3.0, 0.5)
    # First step: 2w + ½∇g₀ + 3(∇g₀ + ∇g₁), since g = (1, 6) > ½; then from w − 0.1 times that, with g₀ = ¼ satisfied.
    first = np.array([4 + 0.5 + 3, 6 + 6])
    second_iterate = start["w"] - 0.1 * first
    second = np.array([2 * second_iterate[0] + 0.5, 2 * second_iterate[1] + 6])
    np.testing.assert_allclose(client.update(start, task, loss)["w"], (first + second) / 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"participation": 0.0}, "participation must be a finite number and > 0"),
        ({"min_clients": 0}, "min_clients must be an integer >= 1"),
        ({"report_timeout": -1}, "report_timeout must be a finite number and > 0"),
        ({"clip_norm": float("nan")}, "clip_norm must be a finite number and > 0"),
        ({"answer": "mean"}, "answer must be one of 'auto', 'average', 'last', 'best'"),
        ({"callbacks": print}, "callbacks must be a list"),
    ],
)
def test_bad_settings_are_rejected_before_sending(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        fl.SwitchingStrategy(RULE, **settings)
    with pytest.raises((ValueError, TypeError), match=message):
        fl.server_app(RULE, {"w": np.zeros(1)}, **settings)


def test_other_bad_input_is_rejected(cancer):
    grid = fl.InProcessGrid(quadratics(2), 2)
    for name in ("train_config", "evaluate_config"):
        with pytest.raises(ValueError, match=f"{name} must be empty"):
            fl.SwitchingStrategy(RULE).start(grid, zeros(), 2, **{name: wire.ConfigRecord({"lr": 0.1})})
    with pytest.raises(ValueError, match="timeout"):
        fl.SwitchingStrategy(RULE).start(grid, zeros(), 2, timeout=0)
    with pytest.raises(ValueError, match="'w' is float64"):
        fl.SwitchingStrategy(RULE).start(grid, ArrayRecord({"w": wire.Array(np.zeros(FEATURES))}), 2)
    with pytest.raises(ValueError, match="needs pooled"):
        fl.SwitchingStrategy(ss.AverageSGM(step_size=1.0, tolerance=0.1, criterion="pooled"))
    grid.connected.clear()
    with pytest.raises(TimeoutError, match=r"no client connected within wait=0\.1 s"):
        fl.SwitchingStrategy(RULE, wait=0.1).start(grid, zeros(), 2)


def test_flower_result_can_be_saved_and_continued(tmp_path):
    """The server's state with nested parameters and Adam's moments is restored in the problem's structure."""
    data = breast_cancer(3)
    start = {"layers": [jnp.zeros(31)], "shift": (jnp.float32(0.0),)}

    def shifted(function):
        return lambda w, batch: function(w["layers"][0] + w["shift"][0], batch)

    problem = ss.Problem(shifted(data.problem.objective), shifted(data.problem.constraint), start)
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.05, tolerance=0.2, optimizer=optax.adam)
    options = {"rounds": 6, "batch_size": None, "eval_every": 0}
    grid = flat.solve(problem, data.train, method, engine="grid", **options)
    write_result(tmp_path, grid)
    np.testing.assert_array_equal(open_run(tmp_path).restore_params(start)["layers"][0], grid.params["layers"][0])
    compiled = flat.solve(problem, data.train, method, **options)
    continued = [
        flat.solve(problem, data.train, method, warm_start=result, **options).last for result in (grid, compiled)
    ]
    for last in continued:
        np.testing.assert_allclose(last["layers"][0], continued[-1]["layers"][0], atol=1e-5)
        np.testing.assert_allclose(last["shift"][0], continued[-1]["shift"][0], atol=1e-5)


def test_column_names_are_unrestricted():
    """Columns can have the names of arguments of the functions that write rows for the workers."""
    clients = ss.ClientData.from_arrays({"file": np.ones(2), "allow_pickle": np.zeros(2)}, client=["a", "b"])
    problem = ss.Problem(lambda w, b: (w - b["file"][0]) ** 2, lambda w, b: b["allow_pickle"][0] - 1 + 0 * w, 0.0)
    options = {"rounds": 2, "batch_size": None}
    compiled, grid = (flat.solve(problem, clients, RULE, engine=engine, **options) for engine in ("compiled", "grid"))
    np.testing.assert_allclose(grid.params, compiled.params, rtol=1e-6)
