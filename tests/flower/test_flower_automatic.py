"""Automatic settings over Flower: agreement with the compiled engine, checkpoints and lost messages."""

import functools
import logging
import math

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from torch.utils.data import DataLoader, TensorDataset

import softswitch as ss
import softswitch.flower as fl
from benchmarks import flat
from flower_clients import FEATURES, FaultyGrid, centre, quadratic, quadratics, simulated, zeros
from softswitch.flower import messages as wire
from softswitch.methods import LocalLoss
from softswitch.oracles.batch_sizes import MAX_WORK, choose_batches
from softswitch.results.folder import find_runs, open_run, write_result
from softswitch_experiments.tasks.neyman_pearson import breast_cancer

RULE = ss.Automatic(tolerance=0.1)
CLIENTS = 4
pytestmark = pytest.mark.usefixtures("quiet")


def run(grid, rounds=100, method=RULE, **settings):
    strategy = fl.SwitchingStrategy(method, **{"report_timeout": 0.02, "update_timeout": 0.02, "wait": 0.0, **settings})
    strategy.start(grid, zeros(), rounds)
    return strategy.result


def test_grid_matches_compiled_automatic_run():
    data = breast_cancer(20)
    method = ss.Automatic(tolerance=0.05, method=ss.SoftmaxSGM)
    both = [
        flat.solve(data.problem, data.train, method, rounds=200, engine=engine, lower_bound=False, eval_every=0)
        for engine in ("compiled", "grid")
    ]
    for result in both:
        assert result.status.ok, result.status
    compiled, grid = both
    assert grid.worst_objective <= 1.05 * compiled.worst_objective
    assert [(cycle.begin, cycle.end) for cycle in grid.restarts] == [(c.begin, c.end) for c in compiled.restarts]
    assert len(grid.restarts) == 3
    assert grid.selected == grid.restarts[-1].answer
    assert grid.method.step_size.begin == grid.restarts[-1].begin
    assert grid.params.shape == data.problem.start.shape


@functools.cache
def smallest_worst(limit):
    """Return the minimum of F over w with a sum of at most ``limit``, by many small steps."""
    x = np.stack([quadratic(i)._data["x"] for i in range(CLIENTS)]).astype(float)
    noise = np.square(x - x.mean(axis=1, keepdims=True)).sum(axis=2).mean(axis=1) / 2
    w, best = np.zeros(FEATURES), math.inf
    for k in range(20_000):
        f = np.square(w - x.mean(axis=1)).sum(axis=1) / 2 + noise
        best = min(best, f.max())
        w = w - 0.5 / (k + 10) * (w - x.mean(axis=1)[np.argmax(f)])
        w = w - max(0.0, w.sum() - limit) / FEATURES
    return best


@pytest.mark.parametrize("local_steps", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_tolerance_alone_is_sufficient(local_steps, caplog):
    with caplog.at_level(logging.INFO, "softswitch.flower"):
        result = run(fl.InProcessGrid(quadratics(CLIENTS), CLIENTS), 150, local_steps=local_steps)
    assert result.status.ok, result.status
    assert result.worst_objective <= 1.01 * smallest_worst(0.3)
    assert [cycle.end for cycle in result.restarts] == [40, 150] or [c.end for c in result.restarts] == [40, 97, 150]
    assert result.method.optimizer is not None
    assert f"rounds 0 to 39 use {type(result.method).__name__}" in caplog.text
    assert str(result.restarts[0]) in caplog.text
    assert ("a direction has norm" in caplog.text) == (local_steps > 1)


def test_local_step_adapts_to_gradient_scale():
    """If the objective is scaled by a factor, the clients' step is divided by it."""

    def scaled(factor):
        def f(params, batch):
            value, gradient = quadratic(0)._objective(params, batch)
            return factor * value, {"w": factor * gradient["w"]}

        return simulated(
            lambda context: fl.NumpyClient(
                f,
                quadratic(0)._constraint,
                quadratic(int(context.node_config["partition-id"]))._data,
                {"w": np.zeros(FEATURES, np.float32)},
                name=str(context.node_config["partition-id"]),
            )
        )

    def local(factor):
        method = run(fl.InProcessGrid(scaled(factor), CLIENTS), 30, local_steps=3).method
        return method.local_step_size.first, method.step_size.first

    (path, step), (scaled_path, scaled_step) = local(1.0), local(1000.0)
    assert step == scaled_step
    np.testing.assert_allclose(path / scaled_path, 1000, rtol=0.1)
    farthest = max(np.linalg.norm(centre(i)) for i in range(CLIENTS))
    assert step / 3 / (2 * farthest) < path < step / 3 / (farthest / 4)


def test_given_settings_are_kept():
    method = ss.Automatic(tolerance=0.1, alpha=7.0, local_step_size=0.03, threshold=0.08)
    result = run(fl.InProcessGrid(quadratics(CLIENTS), CLIENTS), 30, method, local_steps=2, answer="last")
    assert (result.method.alpha, result.method.local_step_size, result.method.switch_at) == (7.0, 0.03, 0.08)
    assert result.method.alpha_scale == "raw"
    assert result.selected.startswith("last iterate") or result.selected == "the start"
    assert "memory" not in result.state.parts
    with pytest.raises(ValueError, match="constraint_alpha and alpha_scale need an alpha"):
        fl.SwitchingStrategy(ss.Automatic(tolerance=0.1, constraint_alpha=1.0))


def test_given_step_size_uses_paper_settings():
    result = run(
        fl.InProcessGrid(quadratics(CLIENTS), CLIENTS), 5, ss.SoftmaxSGM(alpha=100.0, tolerance=0.1, step_size=0.2)
    )
    assert result.restarts == ()
    assert result.method.alpha == 100.0
    assert result.method.switch_at == pytest.approx(0.1 / 1.1)
    assert result.selected.startswith("mean of the")


def reporting_once(i):
    """Return client i with small batches, without support for reports at two iterates."""
    client = quadratic(i, batch_size=4)
    client.can_repeat_reports = False
    return client


@pytest.mark.parametrize(
    ("make", "smoothing", "corrected"),
    [(quadratic, 0.0, False), (lambda i: quadratic(i, batch_size=4), 0.0, True), (reporting_once, 0.8, False)],
)
def test_memory_is_default_with_partial_participation(make, smoothing, corrected):
    grid = fl.InProcessGrid(simulated(lambda context: make(int(context.node_config["partition-id"]))), 8)
    strategy = fl.SwitchingStrategy(RULE, participation=0.5)
    strategy.start(grid, zeros(), 60)
    assert strategy._run.server.memory.smoothing == smoothing
    assert (strategy.result.state.parts["memory"].forecasts is not None) == corrected
    assert strategy.result.history.unheard[0] == 0  # all clients reported the start
    assert strategy.result.history.per_client.clients.shape == (60, 4)
    assert "memory" not in run(grid, 10, participation=0.5, memory=None).state.parts


def test_resume_keeps_settings_of_absent_clients(tmp_path):
    """Only site 0 samples rows. Without it, reports would be treated as exact."""

    def factory(context):
        i = int(context.node_config["partition-id"])
        return quadratic(i) if i else reporting_once(i)

    def run_grid(grid, rounds):
        strategy = fl.SwitchingStrategy(RULE, participation=0.5, checkpoints=ss.Checkpoints(tmp_path), wait=0.0)
        strategy.start(grid, zeros(), rounds)
        return strategy._run

    grid = fl.InProcessGrid(simulated(factory), 6)
    assert run_grid(grid, 20).server.memory.smoothing == 0.8
    grid.connected.remove(100)
    resumed = run_grid(grid, 30)
    assert resumed.server.memory.smoothing == 0.8
    assert not resumed.restarts._exact


class FailingGrid(fl.InProcessGrid):
    """A grid whose server fails when it sends the messages of a round."""

    fatal = None

    def push_messages(self, messages):
        messages = list(messages)
        if self.fatal in {message.metadata.group_id for message in messages}:
            raise OSError("the server has failed")
        return super().push_messages(messages)


TWO_RESTARTS = {"local_steps": 2, "participation": 0.5}


def failing_grid():
    return FailingGrid(quadratics(6, batch_size=4), 6)


@pytest.fixture(scope="module")
def uninterrupted():
    """An uninterrupted run."""
    return run(failing_grid(), **TWO_RESTARTS)


@pytest.mark.parametrize(
    "failing_round",
    ["20", "40", *(pytest.param(failing_round, marks=pytest.mark.slow) for failing_round in ("1", "41", "99"))],
)
def test_resume_does_not_repeat_auto_tuning(tmp_path, uninterrupted, failing_round):
    assert len(uninterrupted.restarts) == 2
    first_grid = failing_grid()
    first_grid.fatal = failing_round
    with pytest.raises(OSError, match="the server has failed"):
        run(first_grid, checkpoints=ss.Checkpoints(tmp_path, every=0), **TWO_RESTARTS)
    second_grid = failing_grid()
    evaluation_counts = []
    deliver = second_grid.deliver

    def count_evaluations(message):
        evaluation_counts.append(message.metadata.message_type == wire.EVALUATE)
        return deliver(message)

    second_grid.deliver = count_evaluations
    resumed = run(second_grid, checkpoints=ss.Checkpoints(tmp_path, every=0), **TWO_RESTARTS)
    np.testing.assert_array_equal(resumed.params["w"], uninterrupted.params["w"])
    np.testing.assert_array_equal(resumed.history.criterion, uninterrupted.history.criterion)
    assert resumed.restarts == uninterrupted.restarts
    assert resumed.method == uninterrupted.method
    assert sum(evaluation_counts) == 6 * (
        3 * (1 if int(failing_round) >= 40 else 2) + 1
    )  # the start is not evaluated again


def test_finished_run_can_be_extended(tmp_path):
    def extend(rounds, method=RULE):
        return run(fl.InProcessGrid(quadratics(CLIENTS), CLIENTS), rounds, method, checkpoints=ss.Checkpoints(tmp_path))

    first = extend(50)
    extended = extend(120)
    assert extended.restarts[0] == first.restarts[0]
    assert (extended.restarts[-1].begin, extended.restarts[-1].end) == (50, 120)
    assert extended.worst_objective <= first.worst_objective
    with pytest.raises(ValueError, match="rounds must be at least 120"):
        extend(60)
    with pytest.raises(ValueError, match=r"another run: its method is .*tolerance=0\.1.*, not .*tolerance=0\.2"):
        extend(120, ss.Automatic(tolerance=0.2))


QUICK = [("silent", 1), ("refuses", CLIENTS)]


@pytest.mark.parametrize(
    ("fault", "faulty_clients"),
    [
        pytest.param(fault, faulty_clients, marks=[] if (fault, faulty_clients) in QUICK else pytest.mark.slow)
        for fault in ("silent", "raises", "gone", "refuses")
        for faulty_clients in (1, CLIENTS)
    ],
)
def test_missing_start_evaluations_do_not_stop_run(fault, faulty_clients):
    grid = FaultyGrid(quadratics(CLIENTS), CLIENTS)
    for i in range(faulty_clients):
        grid.faults[i, wire.EVALUATE] = fault

    def recover(chunk):
        grid.faults.clear()

    result = run(grid, 100, callbacks=[recover])
    assert result.status.ok, result.status
    assert len(result.restarts) == 2
    assert result.worst_objective <= 1.02 * smallest_worst(0.3)


def test_run_without_evaluations(tmp_path):
    """The run continues from the best iterate by its reports, and unknown values stay unknown."""
    grid = FaultyGrid(quadratics(CLIENTS), CLIENTS)
    grid.faults = {(i, wire.EVALUATE): "raises" for i in range(CLIENTS)}
    result = run(grid, 100)
    assert all(math.isnan(cycle.objective) for cycle in result.restarts)
    assert "by its reports" in result.selected
    assert not result.status.ok
    f = max(
        0.5 * np.square(np.asarray(result.params["w"]) - quadratic(i)._data["x"]).sum(1).mean() for i in range(CLIENTS)
    )
    assert f <= 1.02 * smallest_worst(0.3)
    write_result(tmp_path, result)
    assert math.isnan(open_run(tmp_path).restarts[0].objective)


@pytest.mark.parametrize(("objective_after", "is_better"), [(0.5, True), (2.0, False)])
def test_absent_client_does_not_improve_evaluation(objective_after, is_better):
    """Site 0 is by far the worst and reports the start only, so iterates are compared at the other sites."""

    class Scripted(fl.InProcessGrid):
        def deliver(self, message):
            if message.metadata.message_type != wire.EVALUATE:
                return super().deliver(message)
            first, worst = not message.content[wire.PARAMS]["w"].numpy().any(), message.metadata.dst_node_id == 100
            if worst and not first:
                return wire.refuse(message, "not today")
            values = wire.Values(5.0 if worst else 1.0 if first else objective_after, [0.0])
            return wire.reply(message, **{wire.VALUES: wire.encode_values(values)})

    result = run(Scripted(quadratics(CLIENTS), CLIENTS), 50)
    assert (result.selected != "the start") == is_better
    assert result.restarts[0].better == is_better
    assert result.restarts[0].objective == (objective_after if is_better else 5.0)


def test_temporary_loss_of_all_clients():
    """Rounds are void and the restart continues. Without any client, the run does not start."""
    grid = FaultyGrid(quadratics(CLIENTS), CLIENTS)
    all_nodes = set(grid.connected)

    def come_and_go(chunk):
        grid.connected = set() if 3 <= chunk.round < 8 or 38 <= chunk.round < 42 else set(all_nodes)

    result = run(grid, 100, callbacks=[come_and_go], patience=10)
    assert result.history.void.sum() == 9
    assert result.status.ok, result.status
    grid.connected = set()
    with pytest.raises(TimeoutError, match="no client connected"):
        run(grid)


def test_folder_records_auto_settings(tmp_path):
    app = fl.server_app(RULE, {"w": np.zeros(FEATURES, np.float32)}, rounds=60, confidence=None)
    app(fl.InProcessGrid(quadratics(3), 3), Context(1, 0, {}, RecordDict(), {"out": str(tmp_path)}))
    (stored_run,) = find_runs(tmp_path)
    assert stored_run.settings["method.method"] == str(RULE.template)
    (cycle,) = stored_run.about["restarts"]
    assert (cycle["begin"], cycle["end"]) == (0, 60)
    assert "NormalizedAdam" in stored_run.about["method"]


def test_client_batch_sizes():
    assert choose_batches("auto", "same", None, 1000, 31) == (None, None)
    assert choose_batches("auto", "same", None, 10**7, 64) == (MAX_WORK // 64, MAX_WORK // 64 // 3)
    assert choose_batches("auto", "same", None, 10**7, 10**9) == (256, 64)
    assert choose_batches(32, "same", None, 100, 1) == (32, 32)
    assert choose_batches(32, "auto", None, 100, 1) == (None, 32)
    assert choose_batches(32, 8, None, 20, 1) == (8, None)
    assert choose_batches(32, "same", True, 20, 1) == (32, 32)
    assert choose_batches(None, "same", True, 20, 1) == (None, None)
    with pytest.raises(ValueError, match="at most the number of rows, 20"):
        choose_batches(32, "same", False, 20, 1)
    with pytest.raises(ValueError, match="batch_size must be an integer >= 1"):
        choose_batches(0, "same", None, 20, 1)


WITHOUT_REPLACEMENT, WITH_REPLACEMENT = [("auto", None, True), (32, None, True)], [(32, True, False)]
BY_KIND = {
    "jax": WITHOUT_REPLACEMENT + WITH_REPLACEMENT,
    "numpy": WITHOUT_REPLACEMENT + WITH_REPLACEMENT,
    "torch": WITHOUT_REPLACEMENT + WITH_REPLACEMENT,
    "loader": WITHOUT_REPLACEMENT,
}
"""A loader samples its batches itself, so replacement cannot be configured."""


@pytest.mark.parametrize(
    ("kind", "batch_size", "replace", "is_full_batch"),
    [(kind, *settings) for kind, hows in BY_KIND.items() for settings in hows],
)
def test_small_client_uses_each_row_once(kind, batch_size, replace, is_full_batch):
    x = np.arange(10, dtype=np.float32)[:, None]
    options = {"name": "a", "batch_size": batch_size, "replace": replace}
    if kind == "jax":
        problem = ss.Problem(
            lambda w, batch: (batch["weight"] * (w * batch["x"])[:, 0]).sum(),
            lambda w, batch: w.sum(),
            np.ones(1, np.float32),
        )
        client, params = fl.JaxClient(problem, {"x": x}, **options), {"": np.ones(1, np.float32)}
    elif kind == "numpy":
        params = {"w": np.ones(1, np.float32)}

        def f(params, batch):
            return (params["w"] * batch["x"]).mean(), {"w": batch["x"].mean(axis=0)}

        client = fl.NumpyClient(f, f, {"x": x}, params, **options)
    else:
        module = torch.nn.Linear(1, 1, bias=False)
        rows = TensorDataset(torch.from_numpy(x))
        if kind == "loader":
            rows = DataLoader(rows, batch_size=32, shuffle=True)
        client = fl.TorchClient(module, lambda m, b: m(b[0]).mean(), lambda m, b: m(b[0]).mean(), rows, **options)
        params = {"weight": np.ones((1, 1), np.float32)}
    tasks = [fl.Task(k, 0, 2, 0.1, True) for k in range(3)]
    objectives = [client.report(params, task).objective for task in tasks]
    steps = [next(iter(client.update(params, task, LocalLoss(1.0, np.zeros(1), 0.0, 0.0)).values())) for task in tasks]
    right = np.allclose(objectives, 4.5) and np.allclose(steps, 4.5)
    assert right == is_full_batch
    assert (client.value_rows, client.gradient_rows) == ((10, 10) if is_full_batch else (32, 32))


def test_rows_without_replacement_are_drawn_once():
    x = np.arange(10, dtype=np.float32)[:, None]

    def several(params, batch):
        assert len(np.unique(batch["x"])) == len(batch["x"])
        return float(params["w"][0]), {"w": np.ones(1, np.float32)}

    start = {"w": np.ones(1, np.float32)}
    client = fl.NumpyClient(
        several, several, {"x": x}, start, name="a", batch_size=9, value_batch_size=8, replace=False
    )
    assert (client.value_rows, client.gradient_rows) == (8, 9)
    for k in range(20):
        client.report(start, fl.Task(k, 0, 1, 0.1, True))
        client.update(start, fl.Task(k, 0, 3, 0.1, True), LocalLoss(1.0, np.zeros(1), 0.0, 0.0))
