"""A PyTorch module whose clients keep their rows private: the compiled engine's numbers, noise apart."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import softswitch as ss
import softswitch.flower as fl
from benchmarks import flat
from softswitch.engine.private import make_plan
from softswitch.engine.request import RunSettings
from softswitch.engine.torch import make_private_torch_oracle
from softswitch.methods.messages import Decision, LocalLoss
from softswitch.oracles.base import HostDraws
from softswitch.oracles.options import Sampling
from softswitch.oracles.torch_functions import ModuleFunctions, TorchRows
from softswitch_experiments.tasks.neyman_pearson import neyman_pearson

torch.set_num_threads(1)
RULE = ss.SoftmaxSGM(tolerance=0.6, step_size=0.3, alpha=5.0)


def columns(i, many=25):
    generator = np.random.default_rng(i)
    y = generator.integers(2, size=many)
    return {"x": (generator.normal(size=(many, 3)) + y[:, None]).astype(np.float32), "y": y.astype(np.float32)}


def data_sets(count=3):
    return {i: TensorDataset(*(torch.from_numpy(column) for column in columns(i).values())) for i in range(count)}


class Linear(torch.nn.Module):
    def __init__(self, *before):
        super().__init__()
        self.before = torch.nn.Sequential(*before)
        self.w = torch.nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return self.before(x) @ self.w


def class_loss(label):
    def function(module, batch):
        x, y = batch
        own = y == label
        if not own.any():
            return torch.tensor(-torch.inf)
        return torch.nn.functional.binary_cross_entropy_with_logits(module(x)[own], y[own])

    return function


def solve(privacy, module=None, clients=None, **options):
    options = {"rounds": 4, "progress": False, "memory": None, "average_last": 1.0, **options}
    module, clients = module or Linear(), clients or data_sets()
    return flat.solve_torch(module, class_loss(0), class_loss(1), clients, RULE, privacy=privacy, **options)


@pytest.mark.parametrize("clips", [(100.0, 100.0), (0.5, 0.3)])
def test_without_noise_it_is_the_compiled_engine(clips):
    privacy = ss.RecordPrivacy(noise=1e-9, clip_value=clips[0], clip_gradient=clips[1])
    module = Linear()
    found = solve(privacy, module, local_steps=2)
    rows = ss.ClientData.from_list([columns(i) for i in range(3)])
    options = {"rounds": 4, "local_steps": 2, "memory": None, "average_last": 1.0, "progress": False}
    other = flat.solve(neyman_pearson(3), rows, RULE, privacy=privacy, **options)
    np.testing.assert_allclose(found.params["w"], other.params, rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(found.client_constraint, other.client_constraint, rtol=1e-4)
    np.testing.assert_array_equal(module.w.detach(), found.params["w"])
    assert found.privacy.releases == other.privacy.releases
    assert found.privacy.epsilon == other.privacy.epsilon


@pytest.mark.parametrize("settings", [{}, {"rate": 0.4}])
def test_what_is_told_has_the_noise_that_is_counted(settings):
    """Reports and directions at the start, where every row's loss is ln 2, clipped to 0.5, its gradient to 1e-3."""
    privacy = ss.RecordPrivacy(noise=20.0, clip_value=0.5, clip_gradient=1e-3, **settings)
    rows = [TorchRows("clients", own, "cpu") for own in data_sets().values()]
    plan = make_plan(privacy, [25] * 3, RunSettings(rounds=1), 1)
    functions = ModuleFunctions(Linear(), class_loss(0), class_loss(1))
    oracle = make_private_torch_oracle(functions, rows, plan, Sampling(), 0)
    params, turns = {"w": np.zeros(3, np.float32)}, [HostDraws(np.arange(3), seed) for seed in range(60)]
    told = [oracle.report(params, turn) for turn in turns]
    reports = np.array([kept[:, 0] for _, kept in told])
    loss = LocalLoss(0.0, np.ones((3, 1)), 0.0, 0.0)
    decision = Decision(0.0, False, np.ones(3) / 3, loss)
    directions = np.array(
        [
            oracle.directions(params, turn, own[1], decision, True, 0.1)["w"]
            for turn, own in zip(turns, told, strict=True)
        ]
    )
    counts = np.array([columns(i)["y"].sum() for i in range(3)])
    rate = settings.get("rate", 1.0)
    of_noise = plan.levels.report * 0.5 / (rate * counts)
    expected = np.sqrt(of_noise**2 + 0.25 * (1 - rate) / rate / counts)
    np.testing.assert_allclose(reports.std(axis=0).mean(), expected.mean(), rtol=0.2)
    np.testing.assert_allclose(reports.mean(axis=0), 0.5, atol=5 * expected.max() / np.sqrt(60))
    np.testing.assert_allclose(directions.std(axis=0).mean(axis=1), 20 * 1e-3 / (rate * counts), rtol=0.25)


def test_a_budget_is_kept_and_a_run_goes_on_to_the_same_bits(tmp_path):
    privacy = ss.RecordPrivacy(epsilon=3, delta=1e-3, rate=0.5)
    whole = solve(privacy, rounds=12)
    assert 2.9 < whole.privacy.worst_epsilon <= 3

    def run(**options):
        return solve(privacy, rounds=12, checkpoints=ss.Checkpoints(tmp_path / "kept", every=0), **options)

    stopped = run(callbacks=[lambda chunk: chunk.round == 10])
    assert np.isnan(stopped.client_constraint).all()
    found = run()
    np.testing.assert_array_equal(found.params["w"], whole.params["w"])
    np.testing.assert_array_equal(found.client_constraint, whole.client_constraint)
    assert found.privacy == whole.privacy


@pytest.mark.parametrize("layer", [torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3, track_running_stats=False)])
def test_layers_that_mix_rows_are_refused(layer, tmp_path):
    """Also over Flower: a row would change what others tell, by more than any clip."""
    privacy = ss.RecordPrivacy(epsilon=3)
    with pytest.raises(ValueError, match=r"must not mix rows with privacy, but 'before\.0' is BatchNorm1d"):
        solve(privacy, Linear(layer))
    if not layer.track_running_stats:  # no client at all: it wants more than one row
        return
    client = fl.TorchClient(Linear(layer), class_loss(0), class_loss(1), data_sets(1)[0], name="a")
    with pytest.raises(ValueError, match="must not mix rows"):
        fl.PrivateClient(client, privacy, budget_file=tmp_path / "spent.json", rounds=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optimizer": torch.optim.Adam}, "optimizer must be None with privacy"),
        ({"batch_size": 4}, "batch_size must keep its default with privacy"),
        ({"held_out": data_sets()}, "held_out must keep its default with privacy"),
        ({"eval_every": 2}, "eval_every must keep its default with privacy"),
        ({"clients": {0: DataLoader(data_sets(1)[0])}}, "must be Datasets with privacy"),
    ],
)
def test_what_is_not_counted_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        solve(ss.RecordPrivacy(epsilon=3), **options)


def test_functions_that_are_no_means_are_refused():
    def squared(module, batch):
        return class_loss(0)(module, batch) ** 2

    with pytest.raises(ValueError, match="means over rows"):
        flat.solve_torch(Linear(), squared, class_loss(1), data_sets(), RULE, privacy=ss.RecordPrivacy(epsilon=3))


class Scaled(torch.nn.Module):
    """A module that remembers the largest value of each feature that it was trained on."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(3))
        self.register_buffer("largest", torch.ones(3))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.largest.copy_(torch.maximum(self.largest, x.abs().amax(dim=0)))
        return (x / self.largest) @ self.w


def test_buffers_tell_no_row_to_the_next_nor_to_who_gets_the_module(tmp_path):
    """One loud row: it stays in no buffer, and changes sums by its own clipped part at most."""
    rows = columns(0)
    rows["x"][7] = (7.25, -99.5, 3.0)
    own = TensorDataset(*(torch.from_numpy(column) for column in rows.values()))
    module = Scaled()
    solve(ss.RecordPrivacy(epsilon=1), module, {0: own, **{i: one for i, one in data_sets().items() if i}})
    np.testing.assert_array_equal(module.largest, np.ones(3))
    client = fl.TorchClient(Scaled(), class_loss(0), class_loss(1), own, name="a")
    fl.PrivateClient(client, ss.RecordPrivacy(noise=1.0), budget_file=tmp_path / "spent.json", rounds=2)
    w = {"w": np.array([1.0, -2.0, 0.5], np.float32)}
    mix, others = np.array([0.5, 0.5]), np.delete(np.arange(25), 7)
    with_it, without = (client.clipped_gradient(w, which, mix, 0.5)["w"] for which in (np.arange(25), others))
    assert np.linalg.norm(with_it - without) <= 0.5 * (1 + 1e-6)
    np.testing.assert_array_equal(client.row_values(w, np.arange(25))[others], client.row_values(w, others))
