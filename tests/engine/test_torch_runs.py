"""PyTorch modules in one process: agreement with the compiled engine, stateful layers and resumed runs."""

import os
import signal
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import softswitch as ss
from benchmarks import flat

torch.set_num_threads(1)  # small problems run faster on one thread
NAMES = ("centre", "east", "north", "south", "west")
FEATURES = 4


def make_rows(dtype=np.float64, seed=0):
    """Five clients of different sizes, and labels that a line separates differently at each."""
    generator = np.random.default_rng(seed)
    x = [generator.normal(size=(24 + 5 * i, FEATURES)).astype(dtype) + 0.1 * i for i in range(len(NAMES))]
    y = [
        (client_x.sum(axis=1) + generator.normal(size=len(client_x)) > 0.3 * i).astype(dtype)
        for i, client_x in enumerate(x)
    ]
    return x, y


def to_client_data(x, y):
    return ss.ClientData.from_arrays(
        {"x": np.concatenate(x), "y": np.concatenate(y)}, np.repeat(NAMES, [len(client_x) for client_x in x])
    )


def to_datasets(x, y):
    return {
        name: TensorDataset(torch.from_numpy(a), torch.from_numpy(b)) for name, a, b in zip(NAMES, x, y, strict=True)
    }


def class_loss(sign, label, params, batch):
    score = sign * (batch["x"] @ params["weight"][0])
    return ss.mean_over(jax.nn.softplus(score), batch["weight"] * (batch["y"] == label))


jax_objective = partial(class_loss, 1, 0)
jax_misses = partial(class_loss, -1, 1)


def jax_constraints(params, batch):
    return jnp.stack([jax_misses(params, batch), (params["weight"] ** 2).sum() / 10])


def objective(module, batch):
    x, y = batch
    return torch.nn.functional.softplus(module(x)[y == 0, 0]).mean()


def misses(module, batch):
    x, y = batch
    return torch.nn.functional.softplus(-module(x)[y == 1, 0]).mean()


def constraints(module, batch):
    return torch.stack([misses(module, batch), (module.weight**2).sum() / 10])


def linear_module(dtype=torch.float64):
    module = torch.nn.Linear(FEATURES, 1, bias=False).to(dtype)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(START["weight"]))
    return module


START = {
    "weight": np.linspace(-0.4, 0.5, FEATURES)[None]
}  # at 0 all clients are equal, and rounding errors would decide
RUNS = {
    "one step": (ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45), jax_constraints, constraints, {}),
    "five steps": (
        ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45),
        jax_constraints,
        constraints,
        {"local_steps": 5},
    ),
    "memory": (
        ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45),
        jax_constraints,
        constraints,
        {"memory": ss.Memory(smoothing=0.3), "participation": 0.6, "local_steps": 5},
    ),
    "corrected": (
        ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45),
        jax_constraints,
        constraints,
        {"memory": ss.Memory(corrected=True), "participation": 0.6},
    ),
    "few": (ss.HardSGM(step_size=0.2, tolerance=0.45), jax_misses, misses, {"participation": 0.6}),
    "mixed": (ss.Penalty(penalty=3.0, step_size=0.1, tolerance=0.45), jax_constraints, constraints, {"local_steps": 2}),
}


QUICK = ("five steps", "corrected", "few")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in RUNS])
def test_pytorch_matches_compiled_engine(x64, name):
    method, jax_constraint, constraint, options = RUNS[name]
    x, y = make_rows()
    options = {"rounds": 200, "batch_size": None, "value_batch_size": None, "eval_every": 50} | options
    problem = ss.Problem(jax_objective, jax_constraint, START)
    expected = flat.solve(problem, to_client_data(x, y), method, record_clients=True, **options)
    module = linear_module()
    result = flat.solve_torch(module, objective, constraint, to_datasets(x, y), method, record_clients=True, **options)
    if method.switches:
        assert 0 < expected.history.feasible.sum() < 200  # both kinds of rounds
    assert np.array_equal(result.history.feasible, expected.history.feasible)
    assert np.array_equal(result.history.per_client.clients, expected.history.per_client.clients)
    np.testing.assert_allclose(result.history.per_client.constraint, expected.history.per_client.constraint, atol=1e-9)
    for actual, reference in ((result.params, expected.params), (result.last, expected.last)):
        np.testing.assert_allclose(actual["weight"], reference["weight"], atol=1e-9)
    np.testing.assert_allclose(result.history.full.objective, expected.history.full.objective, atol=1e-9)
    np.testing.assert_array_equal(result.history.value_evaluations, expected.history.value_evaluations)
    np.testing.assert_array_equal(result.history.gradient_evaluations, expected.history.gradient_evaluations)
    assert result.status.code == expected.status.code
    np.testing.assert_array_equal(module.weight.detach().numpy(), np.asarray(result.params["weight"]))
    assert not module.training


def test_pooled_constraint_is_rejected():
    x, y = make_rows()
    pooled = ss.PooledConstraint(lambda module, batch: batch[0].mean(axis=0), lambda sums: sums[0])
    with pytest.raises(TypeError, match="constraint must be a function of module and batch, not a PooledConstraint"):
        flat.solve_torch(
            linear_module(), objective, pooled, to_datasets(x, y), ss.SoftmaxSGM(alpha=1, step_size=0.2, tolerance=0.1)
        )


FIRST_ORDER = ss.Automatic(tolerance=0.5, method=ss.SoftmaxSGM)


def test_automatic_run_matches_jax():
    x, y = make_rows(np.float32)
    result = flat.solve_torch(
        linear_module(torch.float32),
        objective,
        misses,
        to_datasets(x, y),
        ss.Automatic(tolerance=0.5, method=ss.SoftmaxSGM),
        rounds=400,
    )
    expected = flat.solve(
        ss.Problem(jax_objective, jax_misses, {"weight": START["weight"].astype(np.float32)}),
        to_client_data(x, y),
        ss.Automatic(tolerance=0.5),
        lower_bound=True,
    )
    assert result.restarts
    assert result.worst_constraint <= 0.5
    assert result.worst_objective <= expected.worst_objective * 1.01
    assert result.worst_objective >= expected.lower_bound.value - 1e-4


class ConvNet(torch.nn.Module):
    """A small network for images, with layers that have a state or draw."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3),
            torch.nn.BatchNorm2d(4),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.2),
            torch.nn.Flatten(),
            torch.nn.Linear(4 * 16, 1),
        )

    def forward(self, x):
        return self.layers(x)


def make_images(seed=0, clients=3, rows_per_client=40):
    """Square images with one bright side, brighter at some clients."""
    generator = torch.Generator().manual_seed(seed)
    datasets = {}
    for i in range(clients):
        y = (torch.rand(rows_per_client, generator=generator) < 0.5).float()
        x = torch.randn(rows_per_client, 1, 6, 6, generator=generator) + i
        x[:, :, :, 3:] += 1.5 * (2 * y - 1)[:, None, None, None]
        datasets[f"camera {i}"] = TensorDataset(x, y)
    return datasets


def make_network(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ConvNet()


IMAGES = {
    "method": ss.SoftmaxSGM(alpha=10, step_size=0.3, tolerance=0.4),
    "rounds": 60,
    "local_steps": 2,
    "batch_size": 16,
    "seed": 3,
}


def test_batch_norm_and_dropout_train():
    module, data = make_network(), make_images()
    initial_mean = module.state_dict()["layers.1.running_mean"].clone()
    torch.manual_seed(11)
    own_generator = torch.get_rng_state()
    result = flat.solve_torch(module, objective, misses, data, **IMAGES)
    assert torch.equal(torch.get_rng_state(), own_generator)  # the user's generator is unchanged
    assert result.status.code == "feasible"
    assert result.worst_constraint <= 0.4
    assert result.worst_objective < 0.5 * result.baselines[0].objective
    assert not torch.equal(module.state_dict()["layers.1.running_mean"], initial_mean)
    with torch.no_grad():  # the module holds the evaluated parameters
        objectives = [float(objective(module, data[name].tensors)) for name in result.names]
    np.testing.assert_allclose(objectives, result.client_objective, rtol=1e-5)
    repeated = flat.solve_torch(make_network(), objective, misses, make_images(), **IMAGES)
    np.testing.assert_array_equal(repeated.params["layers.0.weight"], result.params["layers.0.weight"])


def test_corrected_memory_is_default_for_small_batches():
    """The default is more accurate than running means, for data sets and loaders, and needs twice the values.

    It is rejected for networks with running means, whose values at the same iterate change between rounds.
    """
    x, y = make_rows(np.float32)

    def loss(module, batch):  # defined for every batch, even with one class
        return torch.nn.functional.softplus((1 - 2 * batch[1]) * module(batch[0])[:, 0]).mean()

    def level(module, batch):
        return torch.sigmoid(module(batch[0])[:, 0]).mean() - 0.6

    options = {"rounds": 120, "batch_size": 4, "eval_every": 0, "seed": 100}
    falling = ss.SoftmaxSGM(alpha=20, step_size=lambda k: 0.2 * 0.5 * (1 + jnp.cos(jnp.pi * k / 120)), tolerance=0.05)

    def error(memory):
        module = linear_module(torch.float32)
        result = flat.solve_torch(module, loss, level, to_datasets(x, y), falling, memory=memory, **options)
        with torch.no_grad():
            module.weight.copy_(torch.from_numpy(np.array(result.last["weight"])))
            exact = [float(loss(module, dataset.tensors)) for dataset in to_datasets(x, y).values()]
        return np.sqrt(np.mean((result.state.parts["memory"].objective - np.asarray(exact)) ** 2)), result

    (corrected, corrected_values), (mean, mean_values) = (
        error(ss.Memory(corrected=True)),
        error(ss.Memory(smoothing=0.8)),
    )
    assert corrected < 0.6 * mean
    assert corrected_values.history.value_evaluations[-1] == 2 * mean_values.history.value_evaluations[-1]
    small_batches = {"batch_size": 4, "value_batch_size": 4}
    automatic = ss.Automatic(tolerance=0.05)
    loaders = {name: DataLoader(dataset, batch_size=4, shuffle=True) for name, dataset in to_datasets(x, y).items()}
    for clients, extra_options in ((to_datasets(x, y), small_batches), (loaders, {})):
        result = flat.solve_torch(
            linear_module(torch.float32), loss, level, clients, automatic, rounds=2, **extra_options
        )
        assert result.state.parts["memory"].forecasts is not None
        federation = flat.torch_federation(linear_module(torch.float32), loss, level, clients, **extra_options)
        draws = federation.oracle.draw(jax.random.key(1))
        first, repeated = (federation.oracle.report(federation.start, draws)[0].objective for _ in range(2))
        np.testing.assert_array_equal(first, repeated)
    with pytest.raises(ValueError, match=r"memory must not be corrected"):
        flat.solve_torch(
            make_network(), objective, misses, make_images(), **IMAGES | {"memory": ss.Memory(corrected=True)}
        )
    robust = ss.Automatic(tolerance=0.05, robust=1)
    with_robust_method = flat.solve_torch(
        linear_module(torch.float32), loss, level, to_datasets(x, y), robust, rounds=2, **small_batches
    )
    assert with_robust_method.state.parts["memory"].forecasts is None


def test_checkpoint_restores_running_means(tmp_path):
    uninterrupted = flat.solve_torch(make_network(), objective, misses, make_images(), **IMAGES)
    ends_at = {"callbacks": [lambda chunk: chunk.round >= 20], "checkpoints": ss.Checkpoints(tmp_path, every=0)}
    interrupted = flat.solve_torch(make_network(), objective, misses, make_images(), **IMAGES, **ends_at)
    assert interrupted.status.code == "stopped"
    resumed = flat.solve_torch(
        make_network(), objective, misses, make_images(), **IMAGES, checkpoints=ss.Checkpoints(tmp_path)
    )
    for name, weight in uninterrupted.params.items():
        np.testing.assert_array_equal(resumed.params[name], weight)
    np.testing.assert_array_equal(resumed.history.constraint, uninterrupted.history.constraint)
    with pytest.raises(ValueError, match="the clients' data differs"):
        flat.solve_torch(
            make_network(), objective, misses, make_images(seed=1), **IMAGES, checkpoints=ss.Checkpoints(tmp_path)
        )

    def other_objective(module, batch):
        return misses(module, batch) + 0.01

    with pytest.raises(ValueError, match=r"the computation .* differs"):
        flat.solve_torch(
            make_network(), objective, other_objective, make_images(), **IMAGES, checkpoints=ss.Checkpoints(tmp_path)
        )


@pytest.mark.slow
def test_resume_after_sigkill_is_exact(tmp_path):
    """A process is killed during its run, and another resumes from its checkpoints."""
    program = tmp_path / "train.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import os, signal, sys
            sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[2])!r}]
            import numpy as np, softswitch as ss
            from benchmarks import flat
            from test_torch_runs import IMAGES, make_images, make_network, misses, objective

            def kill(chunk):
                if chunk.round >= 30:
                    os.kill(os.getpid(), signal.SIGKILL)

            checkpoints = ss.Checkpoints(sys.argv[1], every=0)
            callbacks = [kill] if sys.argv[2] == "kill" else []
            result = flat.solve_torch(
                make_network(), objective, misses, make_images(), **IMAGES,
                checkpoints=checkpoints, callbacks=callbacks
            )
            np.save(sys.argv[3], np.concatenate([np.ravel(w) for w in result.params.values()]))
            """
        ),
        encoding="utf-8",
    )

    def run(folder, mode, file):
        command = [sys.executable, str(program), str(tmp_path / folder), mode, str(tmp_path / file)]
        return subprocess.run(command, env=os.environ, check=False).returncode

    assert run("killed", "kill", "none.npy") == -signal.SIGKILL
    assert list((tmp_path / "killed").glob("*.safetensors"))
    assert run("killed", "lives", "on.npy") == 0
    uninterrupted = flat.solve_torch(make_network(), objective, misses, make_images(), **IMAGES)
    expected = np.concatenate([np.ravel(w) for w in uninterrupted.params.values()])
    np.testing.assert_array_equal(np.load(tmp_path / "on.npy"), expected)


class ListRows(Dataset):
    """Rows of lists instead of tensors."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def test_datasets_and_loaders():
    x, y = make_rows(np.float32)
    method = ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45)
    reference = flat.solve_torch(
        linear_module(torch.float32), objective, misses, to_datasets(x, y), method, rounds=5, batch_size=None
    )
    list_rows = {name: ListRows(a, b) for name, a, b in zip(NAMES, x, y, strict=True)}
    result = flat.solve_torch(
        linear_module(torch.float32), objective, misses, list_rows, method, rounds=5, batch_size=None
    )
    np.testing.assert_allclose(result.last["weight"], reference.last["weight"], atol=1e-6)
    full_loaders = {name: DataLoader(data, batch_size=len(data)) for name, data in to_datasets(x, y).items()}
    result = flat.solve_torch(linear_module(torch.float32), objective, misses, full_loaders, method, rounds=5)
    np.testing.assert_allclose(result.last["weight"], reference.last["weight"], atol=1e-6)
    shuffled = {name: DataLoader(data, batch_size=8, shuffle=True) for name, data in list_rows.items()}
    params_by_seed = [
        flat.solve_torch(linear_module(torch.float32), objective, misses, shuffled, method, rounds=5, seed=seed).last[
            "weight"
        ]
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(params_by_seed[0], params_by_seed[1])
    assert np.abs(params_by_seed[0] - params_by_seed[2]).max() > 1e-4


def test_local_optimizers_held_out_data_and_sweeps():
    x, y = make_rows(np.float32)
    data, method = to_datasets(x, y), ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45)
    options = {"rounds": 12, "local_steps": 3, "batch_size": None}
    reference = flat.solve_torch(linear_module(torch.float32), objective, misses, data, method, **options)
    by_sgd = flat.solve_torch(
        linear_module(torch.float32),
        objective,
        misses,
        data,
        method,
        optimizer=torch.optim.SGD,
        held_out=data,
        eval_every=4,
        **options,
    )
    np.testing.assert_allclose(by_sgd.last["weight"], reference.last["weight"], atol=1e-5)
    np.testing.assert_allclose(by_sgd.history.held_out.objective, by_sgd.history.full.objective, rtol=1e-6)
    by_adam = flat.solve_torch(
        linear_module(torch.float32), objective, misses, data, method, optimizer=torch.optim.Adam, **options
    )
    assert np.abs(by_adam.last["weight"] - reference.last["weight"]).max() > 1e-2
    federation = flat.torch_federation(
        linear_module(torch.float32), objective, misses, data, local_steps=3, batch_size=None
    )
    runs = flat.sweep_federation(federation, {"one": method}, seeds=2, rounds=12)
    np.testing.assert_array_equal(runs["one"][0].last["weight"], reference.last["weight"])


def test_module_gradients_and_generators_are_ignored():
    x, y = make_rows(np.float32)
    method, data = ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45), to_datasets(x, y)
    fresh = flat.solve_torch(linear_module(torch.float32), objective, misses, data, method, rounds=3, batch_size=None)
    used = linear_module(torch.float32)
    objective(used, data["west"].tensors).backward()
    result = flat.solve_torch(used, objective, misses, data, method, rounds=3, batch_size=None)
    np.testing.assert_array_equal(result.last["weight"], fresh.last["weight"])
    shared_generator = torch.Generator().manual_seed(5)
    loaders = {
        name: DataLoader(source, batch_size=8, shuffle=True, generator=shared_generator)
        for name, source in data.items()
    }
    modules = [linear_module(torch.float32) for _ in range(2)]
    states = torch.get_rng_state(), shared_generator.get_state()
    results = [
        flat.solve_torch(source, objective, misses, loaders, method, rounds=3).last["weight"] for source in modules
    ]
    np.testing.assert_array_equal(*results)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(shared_generator.get_state(), states[1])


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


def test_batch_structures():
    x, y = make_rows(np.float32)

    def collate(examples):
        return Pair(*map(torch.tensor, zip(*examples, strict=True)))

    nested = {
        name: DataLoader(ListRows(a, b), batch_size=len(a), collate_fn=collate)
        for name, a, b in zip(NAMES, [values.tolist() for values in x], [values.tolist() for values in y], strict=True)
    }
    method = ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45)
    result = flat.solve_torch(linear_module(torch.float32), objective, misses, nested, method, rounds=3)
    reference = flat.solve_torch(
        linear_module(torch.float32), objective, misses, to_datasets(x, y), method, rounds=3, batch_size=None
    )
    np.testing.assert_allclose(result.last["weight"], reference.last["weight"], atol=1e-5)


def test_constraint_only_layers_and_interrupted_running_means():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((1, FEATURES), 0.1))
            self.norm = torch.nn.BatchNorm1d(FEATURES, momentum=0.3)

        def forward(self, x):
            return x @ self.weight.T

    def g(module, batch):
        return module.norm(batch[0]).mean() * module.weight.sum() - 1

    x, y = make_rows(np.float32)
    module, data = Two(), to_datasets(x, y)
    flat.solve_torch(module, objective, g, data, ss.SoftmaxSGM(alpha=5, step_size=0.1, tolerance=0.1), rounds=4)
    expected = np.mean([client_x.mean(axis=0) for client_x in x], axis=0)
    np.testing.assert_allclose(module.norm.running_mean.numpy(), expected, atol=1e-5)

    def interrupted(module, batch):
        if module.norm.momentum is None:
            raise KeyboardInterrupt
        return g(module, batch)

    with pytest.raises(KeyboardInterrupt):
        flat.solve_torch(module, objective, interrupted, data, ss.Automatic(tolerance=0.1), rounds=4)
    assert module.norm.momentum == 0.3


def test_checkpoints_identify_optimizer_and_frozen_weights(tmp_path):
    x, y = make_rows(np.float32)
    data, method = to_datasets(x, y), ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45)

    def run(frozen=1.0, optimizer=None):
        module = torch.nn.Sequential(linear_module(torch.float32), torch.nn.Linear(1, 1, bias=False))
        torch.nn.init.constant_(module[1].weight.requires_grad_(False), frozen)
        options = {"rounds": 3, "local_steps": 2, "batch_size": None, "checkpoints": ss.Checkpoints(tmp_path)}
        return flat.solve_torch(module, objective, misses, data, method, optimizer=optimizer, **options)

    first = run()
    np.testing.assert_array_equal(run().last["0.weight"], first.last["0.weight"])
    for changes in ({"frozen": 2.0}, {"optimizer": torch.optim.Adam}):
        with pytest.raises(ValueError, match="the computation"):
            run(**changes)


def failing_objective(module, batch):
    if module.training and "FAILING_CLIENT" in os.environ:
        raise KeyError("a column")
    return objective(module, batch)


def test_error_of_client_is_kept_when_run_resumes(tmp_path, monkeypatch):
    clients = ss.TorchData(to_datasets(*make_rows(np.float32)))
    method = ss.SoftmaxSGM(alpha=10.0, step_size=0.1, tolerance=100.0)

    def run(rounds):
        problem = ss.Problem(failing_objective, misses, linear_module(torch.float32))
        ss.solve(problem, clients, method, rounds=rounds, checkpoints=ss.Checkpoints(tmp_path))

    run(10)
    monkeypatch.setenv("FAILING_CLIENT", "")
    with pytest.raises(KeyError, match="a column"):
        run(20)


def rate(module, batch):
    x, y = batch
    return (module(x)[y == 1, 0] <= 0).to(x.dtype).mean()


def test_surrogate_rates_and_certificate(x64, tmp_path):
    x, y = make_rows()
    module, data = linear_module(), to_datasets(x, y)
    result = flat.solve_torch(
        module, objective, rate, data, ss.Automatic(tolerance=0.2), constraint_surrogate=misses, rounds=300
    )
    assert result.worst_constraint <= 0.2
    test_rows = make_rows(seed=1)
    certificate = flat.certify_torch(result, module, objective, rate, to_datasets(*test_rows), constraint_range={0, 1})

    def jax_rate(params, batch):
        misses_positive = (batch["x"] @ params["weight"][0] <= 0).astype(batch["x"].dtype)
        return ss.mean_over(misses_positive, batch["weight"] * (batch["y"] == 1))

    problem = ss.Problem(jax_objective, jax_rate, START, constraint_range={0, 1})
    torch_problem = ss.Problem(objective, rate, module, constraint_range={0, 1})
    moved = {"weight": np.asarray(result.params["weight"]) + 1}
    of_moved = ss.certify(moved, torch_problem, to_datasets(*test_rows), tolerance=0.2)
    of_jax = ss.certify(moved, problem, to_client_data(*test_rows), tolerance=0.2)
    assert [one.verdict for one in of_moved.clients] == [one.verdict for one in of_jax.clients]
    with pytest.raises(ValueError, match="tolerance"):
        ss.certify(moved, torch_problem, to_datasets(*test_rows))
    expected = ss.certify(result, problem, to_client_data(*test_rows))
    for actual, reference in zip(certificate.clients, expected.clients, strict=True):
        assert actual.verdict == reference.verdict
        np.testing.assert_allclose(actual.constraints[0].upper, reference.constraints[0].upper, rtol=1e-9)
    np.testing.assert_array_equal(module.weight.detach().numpy(), np.asarray(result.params["weight"]))
    file = ss.report(result, tmp_path / "report.html", certificate=certificate)
    content = file.read_text(encoding="utf-8")
    assert all(name in content for name in NAMES)
    incomplete = {name: dataset for name, dataset in to_datasets(*test_rows).items() if name != "west"}
    assert flat.certify_torch(result, module, objective, rate, incomplete).clients[-1].verdict == "unknown"


def test_bad_input_is_rejected_before_training():
    x, y = make_rows(np.float32)
    data, method = to_datasets(x, y), ss.Automatic(tolerance=0.45)

    def refuses(match, error=ValueError, module=None, clients=data, g=misses, **options):
        with pytest.raises(error, match=match):
            flat.solve_torch(
                linear_module(torch.float32) if module is None else module, objective, g, clients, method, **options
            )

    refuses("start must be a floating array", TypeError, module="no module")
    refuses("datasets must be a mapping from names", clients={})
    refuses(
        r"clients\['empty'\] must be a Dataset with a length of at least 1",
        clients={"empty": TensorDataset(torch.ones(0, 1))},
    )
    refuses("jax_enable_x64", module=linear_module())
    refuses("float32 or float64", TypeError, module=linear_module(torch.bfloat16))
    refuses("requires a gradient", module=torch.nn.ReLU())
    refuses("objective must|constraint must return a scalar or a vector", g=lambda module, batch: torch.ones(2, 2))
    refuses("one value for each constraint", constraint_surrogate=constraints)
    refuses("participation must be", participation=0)
    refuses("batch_size = 30 without replacement must be at most 24", batch_size=30, replace=False)
    mixed = data | {"north": DataLoader(data["north"], batch_size=4)}
    refuses("clients must all be DataLoaders", clients=mixed)
    refuses("optimizer must be", TypeError, optimizer="adam")
    refuses("held_out must have names of clients", held_out={"nowhere": data["north"]})
    with pytest.raises(TypeError, match="method must be"):
        flat.solve_torch(linear_module(torch.float32), objective, misses, data, "no rule")
    federation = flat.torch_federation(linear_module(torch.float32), objective, misses, data)
    with pytest.raises(ValueError, match="vectorize must be"):
        flat.sweep_federation(federation, {"one": method}, seeds=1, rounds=2, vectorize=True)


def test_divergence_is_reported():
    x, y = make_rows(np.float32)

    def wild(module, batch):
        return (module(batch[0]) ** 4).sum() * 1e20

    result = flat.solve_torch(
        torch.nn.Linear(FEATURES, 1),
        wild,
        misses,
        to_datasets(x, y),
        ss.SoftmaxSGM(alpha=1, step_size=1e10, tolerance=1e9),
        rounds=50,
    )
    assert result.status.code == "diverged"
    assert len(result.history) < 50


def test_batch_norm_of_single_row_names_client():
    def f(module, batch):
        return torch.nn.functional.binary_cross_entropy_with_logits(module(batch[0])[:, 0], batch[1])

    def solve(norm, sizes, shape, **options):
        data = {
            f"site {i}": TensorDataset(torch.ones(size, *shape) * torch.arange(size).reshape(-1, *[1] * len(shape)))
            for i, size in enumerate(sizes)
        }
        data = {name: TensorDataset(*dataset.tensors, torch.ones(len(dataset))) for name, dataset in data.items()}
        module = torch.nn.Sequential(norm, torch.nn.Flatten(), torch.nn.Linear(int(np.prod(shape)), 1))
        method = ss.SoftmaxSGM(alpha=5, step_size=0.1, tolerance=10.0)
        return flat.solve_torch(
            module, f, lambda module, batch: f(module, batch) - 9, data, method, rounds=2, **options
        )

    with pytest.raises(ValueError, match=r"'site 1'\] has 1 row, .*at least 2 rows"):
        solve(torch.nn.BatchNorm1d(3), (4, 1), (3,))
    with pytest.raises(ValueError, match=r"'site 0'\] has 4 rows, and a batch of 1"):
        solve(torch.nn.BatchNorm1d(3, track_running_stats=False), (4, 5), (3,), batch_size=1)
