"""Differentially private clients over Flower: accounting of every sent number, in all libraries."""

import itertools
import json
import math
from collections import Counter
from contextlib import nullcontext
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from torch.utils.data import TensorDataset

import softswitch as ss
import softswitch.flower as fl
from softswitch.certification.intervals import ErrorLevels
from softswitch.flower import messages as wire
from softswitch.flower.client import MessageHandlers
from softswitch.flower.remote import PrivacyReport, PrivacyReports
from softswitch.methods.messages import LocalLoss
from softswitch.privacy import noise as private_noise
from softswitch.privacy.accounting import compute_epsilon
from softswitch.privacy.noise import RESOLUTION
from softswitch.privacy.settings import Releases
from softswitch.results.history import ClientOutcome
from softswitch.trackers import PrometheusTracker
from softswitch_experiments.tasks.neyman_pearson import neyman_pearson

pytestmark = pytest.mark.usefixtures("quiet")
TASK = fl.Task(round=0, seed=0, local_steps=1, step_size=0.1, switches=True)
ALL_ROWS = 1.0
START = {"w": np.zeros(3, np.float32)}


def make_rows(i, count=60):
    generator = np.random.default_rng(i)
    y = generator.integers(2, size=count)
    return {"x": (generator.normal(size=(count, 3)) + y[:, None]).astype(np.float32), "y": y.astype(np.float32)}


def class_loss(label):
    """Return the mean logistic loss of one class and its gradient in NumPy."""

    def function(params, batch):
        of_label = batch["y"] == label
        scores = batch["x"] @ params["w"]
        losses = np.logaddexp(0, scores) - batch["y"] * scores
        slopes = (1 / (1 + np.exp(-scores)) - batch["y"])[:, None] * batch["x"]
        if not of_label.any():
            return -np.inf, {"w": np.zeros(3)}
        return losses[of_label].mean(), {"w": slopes[of_label].mean(axis=0)}

    return function


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return x @ self.w


def torch_class_loss(label):
    def function(module, batch):
        x, y = batch
        of_label = y == label
        if not of_label.any():
            return torch.tensor(-torch.inf)
        return torch.nn.functional.binary_cross_entropy_with_logits(module(x)[of_label], y[of_label])

    return function


def numpy_client(i, **changes):
    options = {"name": f"site {i}", "objective_range": (0, 20), "constraint_range": (0, 20), **changes}
    return fl.NumpyClient(class_loss(0), class_loss(1), make_rows(i), START, **options)


def torch_client(i, **changes):
    columns = make_rows(i)
    data = TensorDataset(torch.from_numpy(columns["x"]), torch.from_numpy(columns["y"]))
    return fl.TorchClient(Linear(), torch_class_loss(0), torch_class_loss(1), data, name=f"site {i}", **changes)


def jax_client(i):
    base_problem = neyman_pearson(3)
    problem = ss.Problem(
        lambda p, batch: base_problem.objective(p["w"], batch),
        lambda p, batch: base_problem.constraint(p["w"], batch),
        {"w": jnp.zeros(3)},
    )
    return fl.JaxClient(problem, make_rows(i), name=f"site {i}")


MAKERS = pytest.mark.parametrize("make", [numpy_client, torch_client, jax_client])


@MAKERS
def test_row_values_are_equal_in_all_libraries(make):
    client, columns = make(0), make_rows(0)
    name = next(iter(client.start))
    w = np.array([1.0, -0.5, 0.3], np.float32)
    indices = np.array([3, 7, 20, 41])
    scores = columns["x"][indices] @ w
    losses = np.logaddexp(0, scores) - columns["y"][indices] * scores
    values = client.row_values({name: w}, indices)
    expected = np.where(
        np.column_stack([columns["y"][indices] == 0, columns["y"][indices] == 1]), losses[:, None], -np.inf
    )
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    slopes = (1 / (1 + np.exp(-scores)) - columns["y"][indices])[:, None] * columns["x"][indices]
    slopes *= np.where(columns["y"][indices] == 1, 2.0, 0.5)[:, None]
    slopes *= np.minimum(1, 0.4 / np.linalg.norm(slopes, axis=1))[:, None]
    gradient = client.clipped_gradient({name: w}, indices, np.array([0.5, 2.0]), 0.4)
    assert gradient[name].dtype == np.int64
    np.testing.assert_allclose(gradient[name] * 0.4 / RESOLUTION, slopes.sum(axis=0), rtol=1e-4)
    assert client.row_values({name: w}, indices[:0]).shape == (0, 2)
    np.testing.assert_array_equal(client.clipped_gradient({name: w}, indices[:0], np.ones(2), 1.0)[name], np.zeros(3))


@MAKERS
def test_private_client_without_noise_and_clipping(make, tmp_path):
    client = make(1)
    privacy = ss.RecordPrivacy(noise=1e-9, clip_value=100, clip_gradient=100)
    private = fl.PrivateClient(make(1), privacy, budget_file=tmp_path / "spent.json", rounds=5, local_steps=3)
    params = {next(iter(client.start)): np.array([1.0, -0.5, 0.3], np.float32)}
    evaluation, report = client.evaluate(params), private.report(params, TASK)
    np.testing.assert_allclose(
        [report.objective, *report.constraint], [evaluation.objective, *evaluation.constraint], rtol=1e-5
    )
    task = TASK._replace(local_steps=3)
    for loss in (LocalLoss(1.0, np.zeros(1), 0.0, 0.0), LocalLoss(0.0, np.ones(1), 0.0, 0.0)):
        actual, expected = private.update(params, task, loss), client.update(params, task, loss)
        for name in expected:
            np.testing.assert_allclose(actual[name], expected[name], rtol=1e-4, atol=1e-6)
            assert actual[name].dtype == np.float32


@pytest.mark.parametrize(
    ("privacy", "rare", "classes", "refusal"),
    [
        ({"epsilon": 8}, 1, "y", None),
        ({"epsilon": 10}, 1, None, None),
        ({"epsilon": 1000}, 1, "y", "a class of fewer than 10 rows"),
        ({"epsilon": 1000}, 1, None, "its classes are not declared"),
        ({"epsilon": 1000, "rate": 0.5}, 12, "y", "its batches have 6 rows of its rarest class"),
        ({"epsilon": 1000}, 12, "y", None),
        ({"epsilon": 1, "delta": 0.5}, 1, "y", "a class of fewer than 10 rows"),
        ({"noise": 1e-9}, 1, "y", "a class of fewer than 10 rows"),
    ],
)
def test_policy_on_small_classes_applies_to_negligible_noise(privacy, rare, classes, refusal, tmp_path):
    """Otherwise the noise of ε = 1000 would release the only row of a class."""
    columns = make_rows(1) | {"y": (np.arange(60) < rare).astype(np.float32)}
    client = fl.NumpyClient(class_loss(0), class_loss(1), columns, START, name="a", classes=classes)
    private = fl.PrivateClient(client, ss.RecordPrivacy(**privacy), budget_file=tmp_path / "spent.json", rounds=5)
    handlers = MessageHandlers(fl.ClientPolicy())
    if refusal is None:
        handlers.check(private, wire.REPORT)
    else:
        with pytest.raises(fl.RefusalError, match=refusal):
            handlers.check(private, wire.REPORT)


def test_policy_on_held_out_classes_applies_to_negligible_noise(tmp_path):
    held_out = make_rows(2, 20) | {"y": (np.arange(20) < 3).astype(np.float32)}
    client = numpy_client(0, classes="y", held_out=held_out)
    for epsilon in (8, 1000):
        file = tmp_path / f"spent-{epsilon}.json"
        private = fl.PrivateClient(client, ss.RecordPrivacy(epsilon=epsilon), budget_file=file, rounds=5)
        with nullcontext() if epsilon == 8 else pytest.raises(fl.RefusalError, match="a held-out class of fewer"):
            MessageHandlers(fl.ClientPolicy()).check(private, wire.CERTIFY)


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_row_counts_for_applicable_functions_only():
    """In NumPy a mean over no rows and its gradient are NaN, but the row still counts for its own class."""

    def class_means(params, batch):
        classes = [batch["x"][batch["y"] == label] for label in (0, 1)]
        values = np.array([(rows @ params["w"]).mean() for rows in classes])
        return values, {"w": np.array([rows.mean(axis=0) for rows in classes])}

    columns = make_rows(0)
    client = fl.NumpyClient(class_loss(0), class_means, columns, START, name="a")
    for mix in (np.array([0.0, 1.0, 0.0]), np.array([0.0, 0.5, 2.0])):
        gradient = client.clipped_gradient(START, np.arange(60), mix, 100.0)["w"]
        expected = (mix[1:][columns["y"].astype(int)][:, None] * columns["x"]).sum(axis=0)
        np.testing.assert_allclose(gradient * 100 / RESOLUTION, expected, rtol=1e-5)


class Wiretap(fl.InProcessGrid):
    """A grid that records every message from clients."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.heard = []

    def deliver(self, message):
        reply = super().deliver(message)
        self.heard.append((message.metadata.message_type, message.metadata.dst_node_id, reply))
        return reply


def find_numbers(content):
    """Yield every number of a message with its record."""
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            for array in wire.from_record(record).values():
                yield from ((name, float(value)) for value in array.ravel())
            continue
        for value in record.values():
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, int | float) and not isinstance(number, bool):
                    yield name, float(number)


def test_every_sent_number_is_accounted(tmp_path, monkeypatch):
    """Clients send noisy sums that were accounted before, declared sizes and the spent budget only."""
    noisy_values = set()
    draw = private_noise.discrete_gaussian

    def recorded(function):
        def wrapper(self, *arguments, **options):
            noisy = function(self, *arguments, **options)
            parts = [noisy.objective, *noisy.constraint] if isinstance(noisy, wire.Values) else noisy["w"].ravel()
            noisy_values.update(float(value) for value in parts)
            return noisy

        return wrapper

    noises = []
    monkeypatch.setattr(private_noise, "discrete_gaussian", lambda *given: noises.append(given) or draw(*given))
    for name in ("report", "update", "evaluate"):
        monkeypatch.setattr(fl.PrivateClient, name, recorded(getattr(fl.PrivateClient, name)))
    privacy = ss.RecordPrivacy(epsilon=5, delta=1e-3)

    def factory(context):
        i = int(context.node_config["partition-id"])
        return fl.PrivateClient(numpy_client(i), privacy, budget_file=tmp_path / f"{i}.json", rounds=6, evaluations=1)

    grid = Wiretap(fl.client_app(factory), 3)
    method = ss.SoftmaxSGM(tolerance=0.7, step_size=0.3, alpha=5.0)
    strategy = fl.SwitchingStrategy(method, eval_every=0)
    strategy.start(grid, wire.to_record(START), 6)
    kinds = Counter(kind for kind, _, _ in grid.heard)
    assert (kinds[wire.REPORT], kinds[wire.UPDATE], kinds[wire.EVALUATE]) == (18, 18, 3)
    assert len(noises) == 39  # each has its own noise
    for kind, _, reply in grid.heard:
        for record, value in find_numbers(reply.content):
            if record in (wire.REGISTRATION, wire.PRIVACY):
                continue
            assert value in noisy_values, (kind, record, value)
    for i in range(3):
        releases = Releases(*json.loads((tmp_path / f"{i}.json").read_text())["releases"])
        assert releases == (6, 6, 1)
    account = strategy.result.privacy
    levels = json.loads((tmp_path / "0.json").read_text())["levels"]
    assert account.epsilon == pytest.approx([compute_epsilon(releases, tuple(levels), 1.0, 1e-3)] * 3)
    assert account.worst_epsilon <= 5
    assert "ε = " in strategy.result.explain()
    # The noise of the final evaluation, from public numbers, as in a compiled run.
    sizes = np.array([[(make_rows(i)["y"] == label).sum() for label in (0, 1)] for i in range(3)])
    np.testing.assert_allclose(account.deviations, levels[2] * privacy.clip_value / sizes)
    std = levels[2] * privacy.clip_value / sizes[:, 1].min()
    noise = f"values of clients are computed on clipped rows, with noise with a standard deviation of up to {std:.2g}"
    assert strategy.result.status.message.endswith(f"; {noise}")
    # As reported by each client after every round.
    by_round = [compute_epsilon(Releases(k, k), tuple(levels), 1.0, 1e-3) for k in range(1, 7)]
    np.testing.assert_allclose(strategy.result.history.per_client.epsilon, np.outer(by_round, np.ones(3)))
    # A repeated request gets two replies, and both are accounted.
    client = factory(Context(1, 100, {"partition-id": 0}, RecordDict(), {}))
    with pytest.raises(fl.RefusalError, match="privacy budget of 5 does not allow"):
        client.report(START, TASK)


def test_spent_budget_ends_participation(tmp_path):
    privacy = ss.RecordPrivacy(epsilon=3, delta=1e-3)

    def client():
        return fl.PrivateClient(numpy_client(0), privacy, budget_file=tmp_path / "spent.json", rounds=50)

    loss = LocalLoss(1.0, np.zeros(1), 0.0, 0.0)

    def answered():
        try:
            client().report(START, TASK)
        except fl.RefusalError:
            return False
        client().update(START, TASK, loss)
        return True

    answers = sum(itertools.takewhile(bool, (answered() for _ in range(200))))
    privacy_report = client().privacy_report
    assert 2 < privacy_report["epsilon"] <= 3
    assert 2 < answers < 200
    with pytest.raises(fl.RefusalError, match="budget"):
        client().update(START, TASK, loss)
    with pytest.raises(ValueError, match="created with other settings"):
        fl.PrivateClient(numpy_client(0), privacy, budget_file=tmp_path / "spent.json", rounds=51)
    (tmp_path / "spent.json").write_text("{")
    with pytest.raises(fl.RefusalError, match="cannot be read"):
        client()


def test_run_continues_without_clients_with_spent_budget(tmp_path):
    def factory(context):
        i = int(context.node_config["partition-id"])
        if i:
            return numpy_client(i)
        privacy = ss.RecordPrivacy(epsilon=50, delta=1e-3)
        return fl.PrivateClient(numpy_client(i), privacy, budget_file=tmp_path / "spent.json", rounds=2)

    strategy = fl.SwitchingStrategy(ss.SoftmaxSGM(tolerance=0.7, step_size=0.3, alpha=5.0), eval_every=0)
    app = fl.client_app(factory, fl.ClientPolicy.for_simulations())
    strategy.start(fl.InProcessGrid(app, 2), wire.to_record(START), 4)
    outcomes = strategy.result.history.per_client.outcomes
    assert outcomes[:, 0].tolist() == [ClientOutcome.COUNTED] * 2 + [ClientOutcome.REFUSED] * 2
    assert (outcomes[:, 1] == ClientOutcome.COUNTED).all()
    assert strategy.result.privacy.epsilon[1] is None
    epsilons = strategy.result.history.per_client.epsilon
    assert np.isfinite(epsilons[:2, 0]).all()
    assert np.isnan(epsilons[2:, 0]).all()  # it refuses and reports nothing
    assert np.isnan(epsilons[:, 1]).all()
    assert "1 of 2 clients are not private" in str(strategy.result.privacy)
    assert "; values of private clients are computed on clipped rows" in strategy.result.status.message
    assert strategy.result.privacy.deviations[1] == (None, None)


def test_resume_uses_client_accounting(tmp_path):
    """A server killed in round 4 repeats it, so its releases are accounted twice."""

    class Killed(BaseException):
        pass

    def factory(context):
        i = int(context.node_config["partition-id"])
        privacy = ss.RecordPrivacy(epsilon=5, delta=1e-3)
        return fl.PrivateClient(numpy_client(i), privacy, budget_file=tmp_path / f"{i}.json", rounds=7, evaluations=1)

    def run(*callbacks):
        method = ss.SoftmaxSGM(tolerance=0.7, step_size=0.3, alpha=5.0)
        checkpoints = ss.Checkpoints(tmp_path / "kept", every=0)
        strategy = fl.SwitchingStrategy(method, eval_every=0, checkpoints=checkpoints, callbacks=callbacks)
        strategy.start(fl.InProcessGrid(fl.client_app(factory), 2), wire.to_record(START), 6)
        return strategy.result

    def kill(chunk):
        if chunk.round == 4:
            raise Killed

    with pytest.raises(Killed):
        run(kill)
    numbers = tmp_path / "run.prom"
    result = run(PrometheusTracker(numbers))
    files = [json.loads((tmp_path / f"{i}.json").read_text()) for i in range(2)]
    assert [file["releases"] for file in files] == [[7, 7, 1]] * 2
    levels = tuple(files[0]["levels"])
    expected = [compute_epsilon(Releases(k, k), levels, 1.0, 1e-3) for k in (1, 2, 3, 5, 6, 7)]
    np.testing.assert_allclose(result.history.per_client.epsilon, np.outer(expected, np.ones(2)))
    assert result.privacy.epsilon == pytest.approx([compute_epsilon(Releases(7, 7, 1), levels, ALL_ROWS, 1e-3)] * 2)
    assert f'softswitch_epsilon{{run="softswitch"}} {expected[-1]!r}' in numbers.read_text()
    # The budget is spent: a third run has no new values, but the spent budget is still known.
    third = run()
    assert third.privacy.epsilon == pytest.approx([expected[-1]] * 2)
    assert third.privacy.deviations == result.privacy.deviations
    assert np.isnan(third.client_objective).all()
    assert "noise" not in third.status.message


def test_reported_noise_is_validated():
    def make_report(*deviations):
        reports, fields = PrivacyReports(2), {"epsilon": 1.0, "delta": 1e-3, "neighbours": "a row is there or is not"}
        fields["deviations"] = list(deviations)
        reports.read("a", RecordDict({wire.PRIVACY: ConfigRecord(fields)}))
        return reports

    other_reports = PrivacyReports(2)
    saved = json.loads(json.dumps(make_report(0.5, math.inf).reports))
    other_reports.reports = {name: PrivacyReport(*report) for name, report in saved.items()}
    assert other_reports.account(["a", "b"]).deviations == ((0.5, None), (None, None))
    for invalid in ((), (0.5,), (0.5, -1.0), (0.5, math.nan)):
        with pytest.raises(wire.InvalidMessageError, match="it must report 2 deviations of its noise"):
            make_report(*invalid)


def test_failing_row_is_ignored_without_error(tmp_path, caplog):
    """Replies must not depend on single rows: the server could detect a row with crafted parameters."""

    def failing_loss(params, batch):
        for x in batch["x"]:
            math.exp(float(x @ params["w"]))  # OverflowError above 709
        return class_loss(0)(params, batch)

    columns = make_rows(0)
    columns["x"][7] = (100.0, 0.0, 0.0)
    columns["y"][7] = 0
    client = fl.NumpyClient(
        failing_loss, class_loss(1), columns, START, name="a", held_out=columns, objective_range=(0, 20)
    )
    client.ranges[1] = (0, 20)
    privacy = ss.RecordPrivacy(noise=1e-9, clip_value=1000, clip_gradient=1000)
    private = fl.PrivateClient(client, privacy, budget_file=tmp_path / "a", rounds=5)
    params = {"w": np.array([8.0, 0.0, 0.0], np.float32)}
    remaining = (columns["y"] == 0) & (np.arange(60) != 7)
    count, scores = (columns["y"] == 0).sum(), columns["x"][remaining] @ params["w"]
    report = private.report(params, TASK)
    assert report.objective == pytest.approx(np.logaddexp(0, scores).sum() / count, rel=1e-5)
    assert report.constraint[0] == pytest.approx(class_loss(1)(params, columns)[0], rel=1e-5)
    slopes = (1 / (1 + np.exp(-scores)))[:, None] * columns["x"][remaining]
    direction = private.update(params, TASK, LocalLoss(1.0, np.zeros(1), 0.0, 0.0))["w"]
    np.testing.assert_allclose(direction, slopes.sum(axis=0) / count, rtol=1e-4)
    assert [interval.rows for interval in private.certify(params, ErrorLevels(0.05, 0.05, math.nan), [None, None])] == [
        count,
        60 - count,
    ]
    assert "math range error" in caplog.text
    with pytest.raises(fl.RefusalError, match="shapes"):
        private.report({"w": np.zeros((2, 3), np.float32)}, TASK)


def test_error_at_start_is_not_sent(tmp_path):
    client = numpy_client(0)

    def failing(*arguments):
        raise ValueError("row 17 is 42.5")

    client.row_values = failing
    with pytest.raises(fl.RefusalError) as refusal:
        fl.PrivateClient(client, ss.RecordPrivacy(noise=5.0), budget_file=tmp_path / "spent.json", rounds=5)
    assert "42.5" not in str(refusal.value)
    with pytest.raises(fl.RefusalError) as immediate:  # Flower sends the text of errors to the server
        fl.PrivateClient(client, ss.RecordPrivacy(noise=5.0), budget_file=tmp_path / "spent.json", rounds=5)
    assert "42.5" not in str(immediate.value)
    assert immediate.value.__cause__ is None


def test_certificate_row_count_is_independent_of_model(tmp_path):
    """Parameters that give NaN for some rows must not reveal their number without noise."""
    held_out = make_rows(7, 300)
    client = numpy_client(0, held_out=held_out)
    private = fl.PrivateClient(
        client, ss.RecordPrivacy(noise=1e-9), budget_file=tmp_path / "a", rounds=5, evaluations=3
    )
    params = {"w": np.array([1e38, -1e38, 1e38], np.float32)}
    values = client.held_out_values(params, np.arange(300))
    classes = [int((held_out["y"] == label).sum()) for label in (0, 1)]
    assert np.isnan(values[:, 1]).any()
    intervals = private.certify(params, ErrorLevels(0.05, 0.05, math.nan), [None, None])
    assert [interval.rows for interval in intervals] == classes
    bounded = np.nan_to_num(values[held_out["y"] == 1, 1], nan=20.0).clip(0, 20)  # the upper clip bound
    assert intervals[1].estimate == pytest.approx(bounded.mean())


def test_row_count_is_independent_of_earlier_params(tmp_path):
    columns = make_rows(0)
    columns["x"][:5] *= 1e6

    def failing_loss(module, batch):
        return torch.where(module(batch[0]).abs() > 1e5, torch.nan, 1.0).mean()

    data = TensorDataset(torch.from_numpy(columns["x"]))
    options = {"objective_range": (0, 2), "constraint_range": (0, 2), "held_out": data, "name": "a"}
    client = fl.TorchClient(Linear(), failing_loss, failing_loss, TensorDataset(torch.zeros(60, 3)), **options)
    private = fl.PrivateClient(client, ss.RecordPrivacy(noise=1e-9), budget_file=tmp_path / "a", rounds=5)
    rows_before = [
        interval.rows for interval in private.certify(client.start, ErrorLevels(0.05, 0.05, math.nan), [None, None])
    ]
    private.report({"w": np.full(3, 1e-9, np.float32)}, TASK)
    assert [
        interval.rows for interval in private.certify(START, ErrorLevels(0.05, 0.05, math.nan), [None, None])
    ] == rows_before
    assert rows_before[0] < 60


def test_private_certificate_includes_noise(tmp_path):
    held_out = make_rows(7, 3000)
    privacy = ss.RecordPrivacy(epsilon=1, delta=1e-3)

    def client(file, **changes):
        client_without_privacy = numpy_client(0, held_out=held_out, **changes)
        return fl.PrivateClient(client_without_privacy, privacy, budget_file=tmp_path / file, rounds=5, evaluations=2)

    private, exact_client = client("a"), numpy_client(0, held_out=held_out)
    params = {"w": np.array([0.2, 0.1, 0.3], np.float32)}
    error = 1e-6  # the noise has no seed, and at 0.05 the test would fail in 3 of 100 runs
    noisy_intervals, exact_intervals = (
        private.certify(params, ErrorLevels(error, error, math.nan), [None, None]),
        exact_client.certify(params, ErrorLevels(error, error, math.nan), [None, None]),
    )
    for client_without_privacy, exact_interval in zip(noisy_intervals, exact_intervals, strict=True):
        assert client_without_privacy.lower < exact_interval.estimate < client_without_privacy.upper
        assert client_without_privacy.upper - client_without_privacy.lower > exact_interval.upper - exact_interval.lower
        assert client_without_privacy.estimate != exact_interval.estimate
    assert json.loads((tmp_path / "a").read_text())["releases"] == [0, 0, 1]
    with pytest.raises(fl.RefusalError, match="ranges"):
        client("b", constraint_range=None).certify(params, ErrorLevels(0.05, 0.05, math.nan), [None, None])


def test_crafted_model_cannot_count_rows(tmp_path):
    """Parameters that give NaN for one row do not change the reported number of rows."""
    held_out = make_rows(7, 40)
    client = numpy_client(0, held_out=held_out)
    private = fl.PrivateClient(
        client, ss.RecordPrivacy(noise=5.0), budget_file=tmp_path / "spent.json", rounds=1, evaluations=2
    )
    positive = held_out["x"][held_out["y"] == 1]
    crafted = {"w": np.array([3e38, 0, 0], np.float32)}
    assert np.isnan(client.held_out_values(crafted, np.arange(40))[held_out["y"] == 1, 1]).any()
    for params in (START, crafted):
        assert [
            interval.rows for interval in private.certify(params, ErrorLevels(0.05, 0.05, math.nan), [None, None])
        ] == [
            40 - len(positive),
            len(positive),
        ]


def ask_for_certificate(held_out, params, low, high, folder):
    """Return the records of the reply of a private client to a server that chooses the ranges."""
    client = numpy_client(0, held_out=held_out)
    private = fl.PrivateClient(client, ss.RecordPrivacy(epsilon=0.1), budget_file=folder / "spent.json", rounds=5)
    grid = fl.InProcessGrid(fl.client_app(lambda context: private), 1)
    levels = {"joint": 0.05, "marginal": 0.05, "tolerance": 0.1}
    settings = ConfigRecord({**levels, "low": [low] * 2, "high": [high] * 2, "two_values": [0.0, 0.0]})
    content = RecordDict({wire.PARAMS: wire.to_record(params), wire.SETTINGS: settings})
    (reply,) = grid.send_and_receive([Message(content, 100, wire.CERTIFY, group_id="0")])
    return "error" if reply.has_error() else sorted(reply.content)


@pytest.mark.parametrize(("low", "high"), [(-1.7e308, 1.7e308), (-1e308, 0.7e308), (0.0, 20.0)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_ranges_of_the_server_do_not_reveal_a_row(low, high, tmp_path):
    """A range of infinite length made NaN of one row, and an error. Replies have the same form for all rows."""
    params, replies = {"w": np.array([0, 0, -3.4e38 / 4.25], np.float32)}, []
    for has_target in (True, False):
        held_out = make_rows(7, 60)
        held_out["x"] = held_out["x"].clip(-4, 4)
        held_out["x"][7], held_out["y"][7] = 0, 1
        held_out["x"][7, 2] = 4.5 if has_target else 0.0  # overflows in float32
        folder = tmp_path / str(has_target)
        folder.mkdir()
        replies.append(ask_for_certificate(held_out, params, low, high, folder))
    assert replies[0] == replies[1] != "error"
    assert (wire.REFUSAL in replies[0]) == (high > 1e308)


def test_layers_that_mix_rows_are_rejected(tmp_path):
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(3), Linear())
    data = TensorDataset(torch.from_numpy(make_rows(0)["x"]), torch.from_numpy(make_rows(0)["y"]))
    client = fl.TorchClient(module, torch_class_loss(0), torch_class_loss(1), data, name="a")
    with pytest.raises(ValueError, match="must not mix rows with privacy, but '0' is BatchNorm1d"):
        fl.PrivateClient(client, ss.RecordPrivacy(noise=1.0), budget_file=tmp_path / "spent.json", rounds=1)
    assert not (tmp_path / "spent.json").exists()


def test_local_optimizer_is_rejected(tmp_path):
    client = torch_client(0, optimizer=torch.optim.Adam)
    with pytest.raises(ValueError, match="optimizer must be None with privacy"):
        fl.PrivateClient(client, ss.RecordPrivacy(noise=1.0), budget_file=tmp_path / "spent.json", rounds=1)


def test_restart_checks_means_once(tmp_path):
    evaluated_params = []

    def start_client():
        client = numpy_client(0)
        by_row = client.row_values
        client.row_values = lambda params, make_rows: evaluated_params.append(params["w"]) or by_row(params, make_rows)
        return fl.PrivateClient(client, ss.RecordPrivacy(noise=1.0), budget_file=tmp_path / "spent.json", rounds=1)

    first_calls, second_calls = start_client(), start_client()
    assert len(evaluated_params) == 3 + 1
    np.testing.assert_array_equal(evaluated_params[-1], evaluated_params[-2])  # rows are counted at equal parameters
    np.testing.assert_array_equal(first_calls._counts, second_calls._counts)


def test_non_mean_functions_are_rejected(tmp_path):
    def squared(params, batch):
        value, gradient = class_loss(0)(params, batch)
        return value**2, gradient

    client = fl.NumpyClient(squared, class_loss(1), make_rows(0), START, name="a")
    with pytest.raises(ValueError, match="signed_gaps"):
        fl.PrivateClient(client, ss.RecordPrivacy(noise=1.0), budget_file=tmp_path / "spent.json", rounds=1)
    assert not (tmp_path / "spent.json").exists()  # otherwise a second start would test them less
    client.statistics = 4
    with pytest.raises(ValueError, match="a PooledConstraint is none"):
        fl.PrivateClient(client, ss.RecordPrivacy(noise=1.0), budget_file=tmp_path / "spent.json", rounds=1)
    with pytest.raises(TypeError, match="PerRowOracle"):
        fl.PrivateClient(object(), ss.RecordPrivacy(noise=1.0), budget_file=tmp_path / "spent.json", rounds=1)


def make_constant(deviations, count, scale):
    """Return noise of this many standard deviations in every entry."""
    return np.full(count, round(deviations * scale))


def test_noise_is_proportional_to_clip(monkeypatch, tmp_path):
    def noise(clip):
        values = []
        for deviations in (1, 0):
            constant = partial(make_constant, deviations)
            monkeypatch.setattr(private_noise, "discrete_gaussian", constant)
            privacy = ss.RecordPrivacy(noise=5.0, clip_value=clip, clip_gradient=clip)
            file = tmp_path / f"{clip} {deviations}.json"
            private = fl.PrivateClient(numpy_client(0), privacy, budget_file=file, rounds=5)
            report = private.report(START, TASK)
            direction = private.update(START, TASK, LocalLoss(1.0, np.zeros(1), 0.0, 0.0))
            values.append(np.array([report.objective, *report.constraint, *direction["w"]]))
        return values[0] - values[1]

    np.testing.assert_allclose(noise(3.0), 3 * noise(1.0), rtol=1e-4)
    assert (noise(1.0) > 0).all()


def mapped_class_loss(label):
    def loss(module, batch):
        x, y = batch
        losses = torch.nn.functional.binary_cross_entropy_with_logits(module(x), y, reduction="none")
        chosen = (y == label).to(losses)
        total = chosen.sum()
        return torch.where(total > 0, (losses * chosen).sum() / total.clamp(min=1), -torch.inf)

    return loss


def test_gradients_of_rows_by_vmap_equal_those_one_by_one():
    separate = torch_client(0)
    data = separate._data._rows
    mapped = fl.TorchClient(Linear(), mapped_class_loss(0), mapped_class_loss(1), data, name="mapped")
    assert mapped._row_functions._joint.vmap_error is None
    assert separate._row_functions._joint.vmap_error is not None
    params, rows = {"w": np.array([0.3, -0.2, 0.1], np.float32)}, np.arange(len(data))
    gradients = [client.clipped_gradient(params, rows, np.array([0.7, 0.3]), 0.5)["w"] for client in (mapped, separate)]
    np.testing.assert_allclose(*gradients, rtol=1e-5)
    values = [client._by_rows(params, client._data, rows) for client in (mapped, separate)]
    known = np.isfinite(values[1])
    np.testing.assert_allclose(values[0][known], values[1][known], rtol=1e-5)
