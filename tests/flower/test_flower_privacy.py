"""Clients over Flower that keep their rows private: what goes over the wire is counted, whatever they compute with."""

import itertools
import json
import math
from collections import Counter

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from torch.utils.data import TensorDataset

import softswitch as ss
import softswitch.flower as fl
from softswitch.certification.intervals import ErrorLevels
from softswitch.flower import messages as wire
from softswitch.flower import private_client
from softswitch.flower.remote import PrivacyReports
from softswitch.methods.messages import LocalLoss
from softswitch.privacy.accounting import compute_epsilon
from softswitch.privacy.clipping import sum_clipped_values
from softswitch.privacy.settings import Releases
from softswitch.results.history import ClientOutcome
from softswitch.trackers import PrometheusTracker
from softswitch_experiments.tasks.neyman_pearson import neyman_pearson

pytestmark = pytest.mark.usefixtures("quiet")
TASK = fl.Task(round=0, seed=0, local_steps=1, step_size=0.1, switches=True)
ALL_ROWS = 1.0
START = {"w": np.zeros(3, np.float32)}


def rows(i, many=60):
    generator = np.random.default_rng(i)
    y = generator.integers(2, size=many)
    return {"x": (generator.normal(size=(many, 3)) + y[:, None]).astype(np.float32), "y": y.astype(np.float32)}


def class_loss(label):
    """The mean logistic loss of one class and its gradient, in NumPy."""

    def function(params, batch):
        own = batch["y"] == label
        scores = batch["x"] @ params["w"]
        losses = np.logaddexp(0, scores) - batch["y"] * scores
        slopes = (1 / (1 + np.exp(-scores)) - batch["y"])[:, None] * batch["x"]
        if not own.any():
            return -np.inf, {"w": np.zeros(3)}
        return losses[own].mean(), {"w": slopes[own].mean(axis=0)}

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
        own = y == label
        if not own.any():
            return torch.tensor(-torch.inf)
        return torch.nn.functional.binary_cross_entropy_with_logits(module(x)[own], y[own])

    return function


def numpy_client(i, **changes):
    options = {"name": f"site {i}", "objective_range": (0, 20), "constraint_range": (0, 20), **changes}
    return fl.NumpyClient(class_loss(0), class_loss(1), rows(i), START, **options)


def torch_client(i, **changes):
    own = rows(i)
    data = TensorDataset(torch.from_numpy(own["x"]), torch.from_numpy(own["y"]))
    return fl.TorchClient(Linear(), torch_class_loss(0), torch_class_loss(1), data, name=f"site {i}", **changes)


def jax_client(i):
    plain = neyman_pearson(3)
    problem = ss.Problem(
        lambda p, batch: plain.objective(p["w"], batch),
        lambda p, batch: plain.constraint(p["w"], batch),
        {"w": jnp.zeros(3)},
    )
    return fl.JaxClient(problem, rows(i), name=f"site {i}")


KINDS = pytest.mark.parametrize("make", [numpy_client, torch_client, jax_client])


@KINDS
def test_rows_tell_the_same_whatever_computes(make):
    client, own = make(0), rows(0)
    name = next(iter(client.start))
    w = np.array([1.0, -0.5, 0.3], np.float32)
    picked = np.array([3, 7, 20, 41])
    scores = own["x"][picked] @ w
    losses = np.logaddexp(0, scores) - own["y"][picked] * scores
    told = client.row_values({name: w}, picked)
    wanted = np.where(np.column_stack([own["y"][picked] == 0, own["y"][picked] == 1]), losses[:, None], -np.inf)
    np.testing.assert_allclose(told, wanted, rtol=1e-5)
    slopes = (1 / (1 + np.exp(-scores)) - own["y"][picked])[:, None] * own["x"][picked]
    slopes *= np.where(own["y"][picked] == 1, 2.0, 0.5)[:, None]
    slopes *= np.minimum(1, 0.4 / np.linalg.norm(slopes, axis=1))[:, None]
    found = client.clipped_gradient({name: w}, picked, np.array([0.5, 2.0]), 0.4)
    np.testing.assert_allclose(found[name], slopes.sum(axis=0), rtol=1e-4)
    assert client.row_values({name: w}, picked[:0]).shape == (0, 2)
    np.testing.assert_array_equal(client.clipped_gradient({name: w}, picked[:0], np.ones(2), 1.0)[name], np.zeros(3))


@KINDS
def test_without_noise_and_clipping_a_private_client_is_the_client(make, tmp_path):
    plain = make(1)
    privacy = ss.RecordPrivacy(noise=1e-9, clip_value=100, clip_gradient=100)
    private = fl.PrivateClient(make(1), privacy, budget_file=tmp_path / "spent.json", rounds=5, local_steps=3)
    params = {next(iter(plain.start)): np.array([1.0, -0.5, 0.3], np.float32)}
    whole, told = plain.evaluate(params), private.report(params, TASK)
    np.testing.assert_allclose([told.objective, *told.constraint], [whole.objective, *whole.constraint], rtol=1e-5)
    task = TASK._replace(local_steps=3)
    for loss in (LocalLoss(1.0, np.zeros(1), 0.0, 0.0), LocalLoss(0.0, np.ones(1), 0.0, 0.0)):
        found, wanted = private.update(params, task, loss), plain.update(params, task, loss)
        for name in wanted:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-4, atol=1e-6)
            assert found[name].dtype == np.float32


def test_a_sum_is_that_of_the_compiled_engine():
    values = np.array([[1.0, -np.inf], [-np.inf, 3.0], [3.0, 4.0], [np.nan, 1e308], [np.inf, 0.0]])
    shortened = np.array([[1.0, 0], [0, 2], [2 * 0.6, 2 * 0.8], [0, 2], [2, 0]])
    np.testing.assert_allclose(sum_clipped_values(values, 2.0, 2), shortened.sum(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(sum_clipped_values(np.zeros((0, 2)), 2.0, 2), np.zeros(2))


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_a_row_counts_for_the_functions_that_concern_it_whatever_the_others_say():
    """A mean over no rows is NaN in NumPy, and so is its gradient: the row still tells of its own class."""

    def of_each_class(params, batch):
        classes = [batch["x"][batch["y"] == label] for label in (0, 1)]
        values = np.array([(own @ params["w"]).mean() for own in classes])
        return values, {"w": np.array([own.mean(axis=0) for own in classes])}

    own = rows(0)
    client = fl.NumpyClient(class_loss(0), of_each_class, own, START, name="a")
    for mix in (np.array([0.0, 1.0, 0.0]), np.array([0.0, 0.5, 2.0])):
        found = client.clipped_gradient(START, np.arange(60), mix, 100.0)["w"]
        wanted = (mix[1:][own["y"].astype(int)][:, None] * own["x"]).sum(axis=0)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


class Wiretap(fl.InProcessGrid):
    """Keeps all that leaves clients."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.heard = []

    def deliver(self, message):
        reply = super().deliver(message)
        self.heard.append((message.metadata.message_type, message.metadata.dst_node_id, reply))
        return reply


def numbers_in(content):
    """Every number of a message, by the record it is in."""
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            for array in wire.from_record(record).values():
                yield from ((name, float(value)) for value in array.ravel())
            continue
        for value in record.values():
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, int | float) and not isinstance(one, bool):
                    yield name, float(one)


def test_every_number_on_the_wire_was_counted(tmp_path, monkeypatch):
    """What leaves: sums to which noise was just added, each counted before; declared sizes; and what was spent."""
    noised = set()
    normals = private_client.secret_normals

    def noted(function):
        def told(self, *arguments, **options):
            found = function(self, *arguments, **options)
            parts = [found.objective, *found.constraint] if isinstance(found, wire.Values) else found["w"].ravel()
            noised.update(float(value) for value in parts)
            return found

        return told

    drawn = []
    monkeypatch.setattr(private_client, "secret_normals", lambda *shape: drawn.append(shape) or normals(*shape))
    for name in ("report", "update", "evaluate"):
        monkeypatch.setattr(fl.PrivateClient, name, noted(getattr(fl.PrivateClient, name)))
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
    assert len(drawn) == 39  # noise was drawn for each of them
    for kind, _, reply in grid.heard:
        for record, value in numbers_in(reply.content):
            if record in (wire.REGISTRATION, wire.PRIVACY):
                continue
            assert value in noised, (kind, record, value)
    for i in range(3):
        counted = Releases(*json.loads((tmp_path / f"{i}.json").read_text())["releases"])
        assert counted == (6, 6, 1, 0)
    account = strategy.result.privacy
    levels = json.loads((tmp_path / "0.json").read_text())["levels"]
    assert account.epsilon == pytest.approx([compute_epsilon(counted, tuple(levels), 1.0, 1e-3)] * 3)
    assert account.worst_epsilon <= 5
    assert "ε = " in strategy.result.explain()
    # How much noise is on what they tell of the answer, by public numbers: as in a compiled run.
    sizes = np.array([[(rows(i)["y"] == label).sum() for label in (0, 1)] for i in range(3)])
    np.testing.assert_allclose(account.deviations, levels[2] * privacy.clip_value / sizes)
    largest = levels[2] * privacy.clip_value / sizes[:, 1].min()
    noise = (
        f"values of clients are computed on clipped rows, with noise with a standard deviation of up to {largest:.2g}"
    )
    assert strategy.result.status.message.endswith(f"; {noise}")
    # By each client's own word, after every round.
    by_round = [compute_epsilon(Releases(k, k), tuple(levels), 1.0, 1e-3) for k in range(1, 7)]
    np.testing.assert_allclose(strategy.result.history.per_client.epsilon, np.outer(by_round, np.ones(3)))
    # Twice the same question: two answers, both counted.
    client = factory(Context(1, 100, {"partition-id": 0}, RecordDict(), {}))
    with pytest.raises(fl.RefusalError, match="privacy budget of 5 does not allow"):
        client.report(START, TASK)


def test_a_spent_budget_ends_participation_and_a_restart_does_not_renew_it(tmp_path):
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
    told = client().privacy_report
    assert 2 < told["epsilon"] <= 3
    assert 2 < answers < 200
    with pytest.raises(fl.RefusalError, match="budget"):
        client().update(START, TASK, loss)
    with pytest.raises(ValueError, match="created with other settings"):
        fl.PrivateClient(numpy_client(0), privacy, budget_file=tmp_path / "spent.json", rounds=51)
    (tmp_path / "spent.json").write_text("{")
    with pytest.raises(fl.RefusalError, match="cannot be read"):
        client()


def test_a_run_goes_on_without_those_whose_budget_is_spent(tmp_path):
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
    spent = strategy.result.history.per_client.epsilon
    assert np.isfinite(spent[:2, 0]).all()
    assert np.isnan(spent[2:, 0]).all()  # it refuses, and says nothing
    assert np.isnan(spent[:, 1]).all()
    assert "1 of 2 clients are not private" in str(strategy.result.privacy)
    assert "; values of private clients are computed on clipped rows" in strategy.result.status.message
    assert strategy.result.privacy.deviations[1] == (None, None)


def test_a_resumed_run_goes_on_by_the_clients_own_counts(tmp_path):
    """A server that is killed in its fourth round asks for that one again: told twice, and counted twice."""

    class Killed(BaseException):
        pass

    def factory(context):
        i = int(context.node_config["partition-id"])
        privacy = ss.RecordPrivacy(epsilon=5, delta=1e-3)
        return fl.PrivateClient(numpy_client(i), privacy, budget_file=tmp_path / f"{i}.json", rounds=7, evaluations=1)

    def run(*callbacks):
        method = ss.SoftmaxSGM(tolerance=0.7, step_size=0.3, alpha=5.0)
        kept = ss.Checkpoints(tmp_path / "kept", every=0)
        strategy = fl.SwitchingStrategy(method, eval_every=0, checkpoints=kept, callbacks=callbacks)
        strategy.start(fl.InProcessGrid(fl.client_app(factory), 2), wire.to_record(START), 6)
        return strategy.result

    def dies(chunk):
        if chunk.round == 4:
            raise Killed

    with pytest.raises(Killed):
        run(dies)
    numbers = tmp_path / "run.prom"
    result = run(PrometheusTracker(numbers))
    files = [json.loads((tmp_path / f"{i}.json").read_text()) for i in range(2)]
    assert [file["releases"] for file in files] == [[7, 7, 1, 0]] * 2
    levels = tuple(files[0]["levels"])
    counted = [compute_epsilon(Releases(k, k), levels, 1.0, 1e-3) for k in (1, 2, 3, 5, 6, 7)]
    np.testing.assert_allclose(result.history.per_client.epsilon, np.outer(counted, np.ones(2)))
    assert result.privacy.epsilon == pytest.approx([compute_epsilon(Releases(7, 7, 1), levels, ALL_ROWS, 1e-3)] * 2)
    assert f'softswitch_epsilon{{run="softswitch"}} {counted[-1]!r}' in numbers.read_text()
    # All is spent: a third run learns nothing new, but what was spent is still known.
    again = run()
    assert again.privacy.epsilon == pytest.approx([counted[-1]] * 2)
    assert again.privacy.deviations == result.privacy.deviations
    assert np.isnan(again.client_objective).all()
    assert "noise" not in again.status.message


def test_what_clients_say_of_their_noise_is_looked_at():
    def told(*deviations):
        spent, said = PrivacyReports(2), {"epsilon": 1.0, "delta": 1e-3, "neighbours": "a row is there or is not"}
        said["deviations"] = list(deviations)
        spent.read("a", RecordDict({wire.PRIVACY: ConfigRecord(said)}))
        return spent

    again = PrivacyReports(2)
    again.restore(json.loads(json.dumps(told(0.5, math.inf).reports)))
    assert again.account(["a", "b"]).deviations == ((0.5, None), (None, None))
    for wrong in ((), (0.5,), (0.5, -1.0), (0.5, math.nan)):
        with pytest.raises(wire.InvalidMessageError, match="it must report 2 deviations of its noise"):
            told(*wrong)


def test_a_row_that_fails_counts_for_nothing_and_its_error_stays_at_home(tmp_path, caplog):
    """Whether an answer comes depends on no row: the server could find each of them by parameters of its choice."""

    def loud(params, batch):
        for x in batch["x"]:
            math.exp(float(x @ params["w"]))  # OverflowError above 709
        return class_loss(0)(params, batch)

    own = rows(0)
    own["x"][7] = (100.0, 0.0, 0.0)
    own["y"][7] = 0
    client = fl.NumpyClient(loud, class_loss(1), own, START, name="a", held_out=own, objective_range=(0, 20))
    client.ranges[1] = (0, 20)
    privacy = ss.RecordPrivacy(noise=1e-9, clip_value=1000, clip_gradient=1000)
    private = fl.PrivateClient(client, privacy, budget_file=tmp_path / "a", rounds=5)
    params = {"w": np.array([8.0, 0.0, 0.0], np.float32)}
    others = (own["y"] == 0) & (np.arange(60) != 7)
    count, scores = (own["y"] == 0).sum(), own["x"][others] @ params["w"]
    told = private.report(params, TASK)
    assert told.objective == pytest.approx(np.logaddexp(0, scores).sum() / count, rel=1e-5)
    assert told.constraint[0] == pytest.approx(class_loss(1)(params, own)[0], rel=1e-5)
    slopes = (1 / (1 + np.exp(-scores)))[:, None] * own["x"][others]
    found = private.update(params, TASK, LocalLoss(1.0, np.zeros(1), 0.0, 0.0))["w"]
    np.testing.assert_allclose(found, slopes.sum(axis=0) / count, rtol=1e-4)
    assert [one.rows for one in private.certify(params, ErrorLevels(0.05, 0.05, math.nan), [None, None])] == [
        count,
        60 - count,
    ]
    assert "math range error" in caplog.text
    with pytest.raises(fl.RefusalError, match="shapes"):
        private.report({"w": np.zeros((2, 3), np.float32)}, TASK)


def test_an_error_at_the_start_stays_at_home(tmp_path):
    client = numpy_client(0)

    def failing(*arguments):
        raise ValueError("row 17 is 42.5")

    client.row_values = failing
    with pytest.raises(fl.RefusalError) as refused:
        fl.PrivateClient(client, ss.RecordPrivacy(noise=5.0), budget_file=tmp_path / "spent.json", rounds=5)
    assert "42.5" not in str(refused.value)
    with pytest.raises(fl.RefusalError) as at_once:  # Flower tells the server an error's text
        fl.PrivateClient(client, ss.RecordPrivacy(noise=5.0), budget_file=tmp_path / "spent.json", rounds=5)
    assert "42.5" not in str(at_once.value)
    assert at_once.value.__cause__ is None


def test_a_certificate_rests_on_as_many_rows_whatever_the_model(tmp_path):
    """Parameters so large that rows are not a number must not tell how many are: that would be told without noise."""
    held_out = rows(7, 300)
    client = numpy_client(0, held_out=held_out)
    private = fl.PrivateClient(
        client, ss.RecordPrivacy(noise=1e-9), budget_file=tmp_path / "a", rounds=5, evaluations=3
    )
    huge = {"w": np.array([1e38, -1e38, 1e38], np.float32)}
    values = client.held_out_values(huge, np.arange(300))
    classes = [int((held_out["y"] == label).sum()) for label in (0, 1)]
    assert np.isnan(values[:, 1]).any()
    intervals = private.certify(huge, ErrorLevels(0.05, 0.05, math.nan), [None, None])
    assert [one.rows for one in intervals] == classes
    counted = np.nan_to_num(values[held_out["y"] == 1, 1], nan=20.0).clip(0, 20)  # the worst that it may be
    assert intervals[1].estimate == pytest.approx(counted.mean())


def test_on_how_many_rows_is_no_matter_of_what_a_module_was_given_before(tmp_path):
    own = rows(0)
    own["x"][:5] *= 1e6

    def loud(module, batch):
        return torch.where(module(batch[0]).abs() > 1e5, torch.nan, 1.0).mean()

    data = TensorDataset(torch.from_numpy(own["x"]))
    options = {"objective_range": (0, 2), "constraint_range": (0, 2), "held_out": data, "name": "a"}
    client = fl.TorchClient(Linear(), loud, loud, TensorDataset(torch.zeros(60, 3)), **options)
    private = fl.PrivateClient(client, ss.RecordPrivacy(noise=1e-9), budget_file=tmp_path / "a", rounds=5)
    before = [one.rows for one in private.certify(client.start, ErrorLevels(0.05, 0.05, math.nan), [None, None])]
    private.report({"w": np.full(3, 1e-9, np.float32)}, TASK)
    assert [one.rows for one in private.certify(START, ErrorLevels(0.05, 0.05, math.nan), [None, None])] == before
    assert before[0] < 60


def test_sizes_that_are_no_public_matter_are_told_once_with_noise(tmp_path):
    privacy = ss.RecordPrivacy(epsilon=3, delta=1e-3, public_sizes=False)

    def client(file):
        return fl.PrivateClient(numpy_client(0), privacy, budget_file=tmp_path / file, rounds=5)

    assert client("a").rows == client("a").rows
    assert json.loads((tmp_path / "a").read_text())["releases"] == [0, 0, 0, 1]
    assert len({client(f"{i}").rows for i in range(8)}) > 1
    assert client("a").held_out_rows == 0


def test_a_private_certificate_includes_the_noise(tmp_path):
    held_out = rows(7, 3000)
    privacy = ss.RecordPrivacy(epsilon=1, delta=1e-3)

    def client(file, **changes):
        own = numpy_client(0, held_out=held_out, **changes)
        return fl.PrivateClient(own, privacy, budget_file=tmp_path / file, rounds=5, evaluations=2)

    private, plain = client("a"), numpy_client(0, held_out=held_out)
    params = {"w": np.array([0.2, 0.1, 0.3], np.float32)}
    error = 1e-6  # its noise has no seed, and at 0.05 the test itself would be wrong in 3 of 100 runs
    noised, exact = (
        private.certify(params, ErrorLevels(error, error, math.nan), [None, None]),
        plain.certify(params, ErrorLevels(error, error, math.nan), [None, None]),
    )
    for own, other in zip(noised, exact, strict=True):
        assert own.lower < other.estimate < own.upper
        assert own.upper - own.lower > other.upper - other.lower
        assert own.estimate != other.estimate
    assert json.loads((tmp_path / "a").read_text())["releases"] == [0, 0, 1, 0]
    with pytest.raises(fl.RefusalError, match="ranges"):
        client("b", constraint_range=None).certify(params, ErrorLevels(0.05, 0.05, math.nan), [None, None])


def test_a_model_cannot_be_made_up_to_count_rows(tmp_path):
    """Parameters at which a chosen row's loss is not a number: how many rows there are is told as it was before."""
    held_out = rows(7, 40)
    own = numpy_client(0, held_out=held_out)
    private = fl.PrivateClient(
        own, ss.RecordPrivacy(noise=5.0), budget_file=tmp_path / "spent.json", rounds=1, evaluations=2
    )
    positive = held_out["x"][held_out["y"] == 1]
    loud = {"w": np.array([3e38, 0, 0], np.float32)}
    assert np.isnan(own.held_out_values(loud, np.arange(40))[held_out["y"] == 1, 1]).any()
    for params in (START, loud):
        assert [one.rows for one in private.certify(params, ErrorLevels(0.05, 0.05, math.nan), [None, None])] == [
            40 - len(positive),
            len(positive),
        ]


def test_layers_that_mix_rows_are_refused(tmp_path):
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(3), Linear())
    data = TensorDataset(torch.from_numpy(rows(0)["x"]), torch.from_numpy(rows(0)["y"]))
    client = fl.TorchClient(module, torch_class_loss(0), torch_class_loss(1), data, name="a")
    with pytest.raises(ValueError, match="must not mix rows with privacy, but '0' is BatchNorm1d"):
        fl.PrivateClient(client, ss.RecordPrivacy(noise=1.0), budget_file=tmp_path / "spent.json", rounds=1)
    assert not (tmp_path / "spent.json").exists()


def test_an_optimizer_of_local_steps_is_refused(tmp_path):
    client = torch_client(0, optimizer=torch.optim.Adam)
    with pytest.raises(ValueError, match="optimizer must be None with privacy"):
        fl.PrivateClient(client, ss.RecordPrivacy(noise=1.0), budget_file=tmp_path / "spent.json", rounds=1)


def test_a_process_that_starts_anew_asks_rows_once_where_functions_are_known_to_be_means(tmp_path):
    asked = []

    def started():
        client = numpy_client(0)
        by_row = client.row_values
        client.row_values = lambda params, rows: asked.append(params["w"]) or by_row(params, rows)
        return fl.PrivateClient(client, ss.RecordPrivacy(noise=1.0), budget_file=tmp_path / "spent.json", rounds=1)

    before, again = started(), started()
    assert len(asked) == 3 + 1
    np.testing.assert_array_equal(asked[-1], asked[-2])  # rows are counted at the same parameters
    np.testing.assert_array_equal(before._counts, again._counts)


def test_functions_that_are_no_means_are_refused(tmp_path):
    def squared(params, batch):
        value, gradient = class_loss(0)(params, batch)
        return value**2, gradient

    client = fl.NumpyClient(squared, class_loss(1), rows(0), START, name="a")
    with pytest.raises(ValueError, match="signed_gaps"):
        fl.PrivateClient(client, ss.RecordPrivacy(noise=1.0), budget_file=tmp_path / "spent.json", rounds=1)
    assert not (tmp_path / "spent.json").exists()  # else a second start would try them less
    client.statistics = 4
    with pytest.raises(ValueError, match="a PooledConstraint is none"):
        fl.PrivateClient(client, ss.RecordPrivacy(noise=1.0), budget_file=tmp_path / "spent.json", rounds=1)
    with pytest.raises(TypeError, match="PerRowOracle"):
        fl.PrivateClient(object(), ss.RecordPrivacy(noise=1.0), budget_file=tmp_path / "spent.json", rounds=1)


def test_the_noise_is_proportional_to_the_clip(monkeypatch, tmp_path):
    def noise(clip):
        values = []
        for normals in (np.ones, np.zeros):
            monkeypatch.setattr(private_client, "secret_normals", lambda *shape, normals=normals: normals(shape))
            privacy = ss.RecordPrivacy(noise=5.0, clip_value=clip, clip_gradient=clip)
            file = tmp_path / f"{clip} {normals.__name__}.json"
            private = fl.PrivateClient(numpy_client(0), privacy, budget_file=file, rounds=5)
            report = private.report(START, TASK)
            direction = private.update(START, TASK, LocalLoss(1.0, np.zeros(1), 0.0, 0.0))
            values.append(np.array([report.objective, *report.constraint, *direction["w"]]))
        return values[0] - values[1]

    np.testing.assert_allclose(noise(3.0), 3 * noise(1.0), rtol=1e-4)
    assert (noise(1.0) > 0).all()
