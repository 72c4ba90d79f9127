"""A PyTorch module in one process: the compiled engine's course, layers with a state of their own, and going on."""

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

torch.set_num_threads(1)  # small problems: threads would wait for each other, and longest on a busy machine
NAMES = ("centre", "east", "north", "south", "west")
FEATURES = 4


def rows(dtype=np.float64, seed=0):
    """Five clients of different sizes, and labels that a line separates differently at each."""
    generator = np.random.default_rng(seed)
    x = [generator.normal(size=(24 + 5 * i, FEATURES)).astype(dtype) + 0.1 * i for i in range(len(NAMES))]
    y = [(one.sum(axis=1) + generator.normal(size=len(one)) > 0.3 * i).astype(dtype) for i, one in enumerate(x)]
    return x, y


def for_jax(x, y):
    return ss.ClientData.from_arrays(
        {"x": np.concatenate(x), "y": np.concatenate(y)}, np.repeat(NAMES, [len(one) for one in x])
    )


def for_torch(x, y):
    return {
        name: TensorDataset(torch.from_numpy(a), torch.from_numpy(b)) for name, a, b in zip(NAMES, x, y, strict=True)
    }


def of_class(sign, label, params, batch):
    score = sign * (batch["x"] @ params["weight"][0])
    return ss.mean_over(jax.nn.softplus(score), batch["weight"] * (batch["y"] == label))


jax_objective = partial(of_class, 1, 0)
jax_misses = partial(of_class, -1, 1)


def jax_two(params, batch):
    return jnp.stack([jax_misses(params, batch), (params["weight"] ** 2).sum() / 10])


def objective(module, batch):
    x, y = batch
    return torch.nn.functional.softplus(module(x)[y == 0, 0]).mean()


def misses(module, batch):
    x, y = batch
    return torch.nn.functional.softplus(-module(x)[y == 1, 0]).mean()


def two(module, batch):
    return torch.stack([misses(module, batch), (module.weight**2).sum() / 10])


def line(dtype=torch.float64):
    module = torch.nn.Linear(FEATURES, 1, bias=False).to(dtype)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(START["weight"]))
    return module


START = {"weight": np.linspace(-0.4, 0.5, FEATURES)[None]}  # at 0 all clients are alike, and the last bit decides
COURSES = {
    "one step": (ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45), jax_two, two, {}),
    "five steps": (ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45), jax_two, two, {"local_steps": 5}),
    "memory": (
        ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45),
        jax_two,
        two,
        {"memory": ss.Memory(smoothing=0.3), "participation": 0.6, "local_steps": 5},
    ),
    "corrected": (
        ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45),
        jax_two,
        two,
        {"memory": ss.Memory(corrected=True), "participation": 0.6},
    ),
    "few": (ss.HardSGM(step_size=0.2, tolerance=0.45), jax_misses, misses, {"participation": 0.6}),
    "mixed": (ss.Penalty(penalty=3.0, step_size=0.1, tolerance=0.45), jax_two, two, {"local_steps": 2}),
}


QUICK = ("five steps", "corrected", "few")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in COURSES]
)
def test_pytorch_takes_the_compiled_engines_course(x64, name):
    method, jax_constraint, constraint, options = COURSES[name]
    x, y = rows()
    options = {"rounds": 200, "batch_size": None, "value_batch_size": None, "eval_every": 50} | options
    problem = ss.Problem(jax_objective, jax_constraint, START)
    wanted = flat.solve(problem, for_jax(x, y), method, record_clients=True, **options)
    module = line()
    found = flat.solve_torch(module, objective, constraint, for_torch(x, y), method, record_clients=True, **options)
    if method.switches:
        assert 0 < wanted.history.feasible.sum() < 200  # both kinds of rounds
    assert np.array_equal(found.history.feasible, wanted.history.feasible)
    assert np.array_equal(found.history.per_client.clients, wanted.history.per_client.clients)
    np.testing.assert_allclose(found.history.per_client.constraint, wanted.history.per_client.constraint, atol=1e-9)
    for ours, theirs in ((found.params, wanted.params), (found.last, wanted.last)):
        np.testing.assert_allclose(ours["weight"], theirs["weight"], atol=1e-9)
    np.testing.assert_allclose(found.history.full.objective, wanted.history.full.objective, atol=1e-9)
    np.testing.assert_array_equal(found.history.value_evaluations, wanted.history.value_evaluations)
    np.testing.assert_array_equal(found.history.gradient_evaluations, wanted.history.gradient_evaluations)
    assert found.status.code == wanted.status.code
    np.testing.assert_array_equal(module.weight.detach().numpy(), np.asarray(found.params["weight"]))
    assert not module.training


def test_a_pooled_constraint_is_refused():
    x, y = rows()
    pooled = ss.PooledConstraint(lambda module, batch: batch[0].mean(axis=0), lambda sums: sums[0])
    with pytest.raises(TypeError, match="constraint must be a function of module and batch, not a PooledConstraint"):
        flat.solve_torch(
            line(), objective, pooled, for_torch(x, y), ss.SoftmaxSGM(alpha=1, step_size=0.2, tolerance=0.1)
        )


FIRST_ORDER = ss.Automatic(tolerance=0.5, method=ss.SoftmaxSGM)


def test_a_run_that_chooses_for_itself_finds_the_same_answer():
    x, y = rows(np.float32)
    found = flat.solve_torch(
        line(torch.float32),
        objective,
        misses,
        for_torch(x, y),
        ss.Automatic(tolerance=0.5, method=ss.SoftmaxSGM),
        rounds=400,
    )
    wanted = flat.solve(
        ss.Problem(jax_objective, jax_misses, {"weight": START["weight"].astype(np.float32)}),
        for_jax(x, y),
        ss.Automatic(tolerance=0.5),
        lower_bound=True,
    )
    assert found.restarts
    assert found.worst_constraint <= 0.5
    assert found.worst_objective <= wanted.worst_objective * 1.01
    assert found.worst_objective >= wanted.lower_bound.value - 1e-4


class Net(torch.nn.Module):
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


def images(seed=0, clients=3, each=40):
    """Squares that are bright on one side, brighter at some clients."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for i in range(clients):
        y = (torch.rand(each, generator=generator) < 0.5).float()
        x = torch.randn(each, 1, 6, 6, generator=generator) + i
        x[:, :, :, 3:] += 1.5 * (2 * y - 1)[:, None, None, None]
        made[f"camera {i}"] = TensorDataset(x, y)
    return made


def net(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net()


IMAGES = {
    "method": ss.SoftmaxSGM(alpha=10, step_size=0.3, tolerance=0.4),
    "rounds": 60,
    "local_steps": 2,
    "batch_size": 16,
    "seed": 3,
}


def test_a_network_with_batch_normalisation_and_dropout_trains():
    module, data = net(), images()
    before = module.state_dict()["layers.1.running_mean"].clone()
    torch.manual_seed(11)
    own_generator = torch.get_rng_state()
    result = flat.solve_torch(module, objective, misses, data, **IMAGES)
    assert torch.equal(torch.get_rng_state(), own_generator)  # the user's own generator is left alone
    assert result.status.code == "feasible"
    assert result.worst_constraint <= 0.4
    assert result.worst_objective < 0.5 * result.baselines[0].objective
    assert not torch.equal(module.state_dict()["layers.1.running_mean"], before)
    with torch.no_grad():  # what the module now holds is what was judged
        told = [float(objective(module, data[name].tensors)) for name in result.names]
    np.testing.assert_allclose(told, result.client_objective, rtol=1e-5)
    again = flat.solve_torch(net(), objective, misses, images(), **IMAGES)
    np.testing.assert_array_equal(again.params["layers.0.weight"], result.params["layers.0.weight"])


def test_small_batches_are_remembered_with_the_servers_steps():
    """By default: nearer to the truth than running means are, on rows of a data set or of a loader; twice the values.

    A network with running means reports otherwise at the same iterate a round later: there it is refused.
    """
    x, y = rows(np.float32)

    def loss(module, batch):  # every batch has one, whatever its classes
        return torch.nn.functional.softplus((1 - 2 * batch[1]) * module(batch[0])[:, 0]).mean()

    def level(module, batch):
        return torch.sigmoid(module(batch[0])[:, 0]).mean() - 0.6

    options = {"rounds": 120, "batch_size": 4, "eval_every": 0, "seed": 100}
    falling = ss.SoftmaxSGM(alpha=20, step_size=lambda k: 0.2 * 0.5 * (1 + jnp.cos(jnp.pi * k / 120)), tolerance=0.05)

    def error(memory):
        module = line(torch.float32)
        result = flat.solve_torch(module, loss, level, for_torch(x, y), falling, memory=memory, **options)
        with torch.no_grad():
            module.weight.copy_(torch.from_numpy(np.array(result.last["weight"])))
            truth = [float(loss(module, own.tensors)) for own in for_torch(x, y).values()]
        return np.sqrt(np.mean((result.state.parts["memory"].objective - np.asarray(truth)) ** 2)), result

    (corrected, twice), (mean, once) = error(ss.Memory(corrected=True)), error(ss.Memory(smoothing=0.8))
    assert corrected < 0.6 * mean
    assert twice.history.value_evaluations[-1] == 2 * once.history.value_evaluations[-1]
    few = {"batch_size": 4, "value_batch_size": 4}
    chosen = ss.Automatic(tolerance=0.05)
    loaders = {name: DataLoader(own, batch_size=4, shuffle=True) for name, own in for_torch(x, y).items()}
    for clients, more in ((for_torch(x, y), few), (loaders, {})):
        result = flat.solve_torch(line(torch.float32), loss, level, clients, chosen, rounds=2, **more)
        assert result.state.parts["memory"].forecasts is not None
        federation = flat.torch_federation(line(torch.float32), loss, level, clients, **more)
        draws = federation.oracle.draw(jax.random.key(1))
        first, again = (federation.oracle.report(federation.start, draws)[0].objective for _ in range(2))
        np.testing.assert_array_equal(first, again)
    with pytest.raises(ValueError, match=r"memory must not be corrected"):
        flat.solve_torch(net(), objective, misses, images(), **IMAGES | {"memory": ss.Memory(corrected=True)})
    robust = ss.Automatic(tolerance=0.05, robust=1)
    liars = flat.solve_torch(line(torch.float32), loss, level, for_torch(x, y), robust, rounds=2, **few)
    assert liars.state.parts["memory"].forecasts is None


def test_running_means_go_on_with_a_checkpoint(tmp_path):
    whole = flat.solve_torch(net(), objective, misses, images(), **IMAGES)
    ends_at = {"callbacks": [lambda chunk: chunk.round >= 20], "checkpoints": ss.Checkpoints(tmp_path, every=0)}
    part = flat.solve_torch(net(), objective, misses, images(), **IMAGES, **ends_at)
    assert part.status.code == "stopped"
    on = flat.solve_torch(net(), objective, misses, images(), **IMAGES, checkpoints=ss.Checkpoints(tmp_path))
    for name, weight in whole.params.items():
        np.testing.assert_array_equal(on.params[name], weight)
    np.testing.assert_array_equal(on.history.constraint, whole.history.constraint)
    with pytest.raises(ValueError, match="the clients' data differs"):
        flat.solve_torch(net(), objective, misses, images(seed=1), **IMAGES, checkpoints=ss.Checkpoints(tmp_path))

    def other(module, batch):
        return misses(module, batch) + 0.01

    with pytest.raises(ValueError, match=r"the computation .* differs"):
        flat.solve_torch(net(), objective, other, images(), **IMAGES, checkpoints=ss.Checkpoints(tmp_path))


@pytest.mark.slow
def test_kill_minus_nine_and_going_on_give_the_same_bits(tmp_path):
    """A process that is killed in the middle of its run, and another that goes on from its checkpoints."""
    program = tmp_path / "train.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import os, signal, sys
            sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[2])!r}]
            import numpy as np, softswitch as ss
            from benchmarks import flat
            from test_torch_runs import IMAGES, images, misses, net, objective

            def dies(chunk):
                if chunk.round >= 30:
                    os.kill(os.getpid(), signal.SIGKILL)

            kept = ss.Checkpoints(sys.argv[1], every=0)
            callbacks = [dies] if sys.argv[2] == "dies" else []
            result = flat.solve_torch(
                net(), objective, misses, images(), **IMAGES, checkpoints=kept, callbacks=callbacks
            )
            np.save(sys.argv[3], np.concatenate([np.ravel(w) for w in result.params.values()]))
            """
        ),
        encoding="utf-8",
    )

    def run(folder, how, file):
        command = [sys.executable, str(program), str(tmp_path / folder), how, str(tmp_path / file)]
        return subprocess.run(command, env=os.environ, check=False).returncode

    assert run("killed", "dies", "none.npy") == -signal.SIGKILL
    assert list((tmp_path / "killed").glob("*.safetensors"))
    assert run("killed", "lives", "on.npy") == 0
    whole = flat.solve_torch(net(), objective, misses, images(), **IMAGES)
    wanted = np.concatenate([np.ravel(w) for w in whole.params.values()])
    np.testing.assert_array_equal(np.load(tmp_path / "on.npy"), wanted)


class Words(Dataset):
    """Rows that are no tensors."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def test_data_sets_and_loaders_of_any_kind():
    x, y = rows(np.float32)
    method = ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45)
    plain = flat.solve_torch(line(torch.float32), objective, misses, for_torch(x, y), method, rounds=5, batch_size=None)
    words = {name: Words(a, b) for name, a, b in zip(NAMES, x, y, strict=True)}
    found = flat.solve_torch(line(torch.float32), objective, misses, words, method, rounds=5, batch_size=None)
    np.testing.assert_allclose(found.last["weight"], plain.last["weight"], atol=1e-6)
    whole = {name: DataLoader(data, batch_size=len(data)) for name, data in for_torch(x, y).items()}
    found = flat.solve_torch(line(torch.float32), objective, misses, whole, method, rounds=5)
    np.testing.assert_allclose(found.last["weight"], plain.last["weight"], atol=1e-6)
    shuffled = {name: DataLoader(data, batch_size=8, shuffle=True) for name, data in words.items()}
    drawn = [
        flat.solve_torch(line(torch.float32), objective, misses, shuffled, method, rounds=5, seed=seed).last["weight"]
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert np.abs(drawn[0] - drawn[2]).max() > 1e-4


def test_local_optimisers_and_held_out_rows_and_sweeps():
    x, y = rows(np.float32)
    data, method = for_torch(x, y), ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45)
    options = {"rounds": 12, "local_steps": 3, "batch_size": None}
    plain = flat.solve_torch(line(torch.float32), objective, misses, data, method, **options)
    by_sgd = flat.solve_torch(
        line(torch.float32),
        objective,
        misses,
        data,
        method,
        optimizer=torch.optim.SGD,
        held_out=data,
        eval_every=4,
        **options,
    )
    np.testing.assert_allclose(by_sgd.last["weight"], plain.last["weight"], atol=1e-5)
    np.testing.assert_allclose(by_sgd.history.held_out.objective, by_sgd.history.full.objective, rtol=1e-6)
    by_adam = flat.solve_torch(
        line(torch.float32), objective, misses, data, method, optimizer=torch.optim.Adam, **options
    )
    assert np.abs(by_adam.last["weight"] - plain.last["weight"]).max() > 1e-2
    federation = flat.torch_federation(line(torch.float32), objective, misses, data, local_steps=3, batch_size=None)
    swept = flat.sweep_federation(federation, {"one": method}, seeds=2, rounds=12)
    np.testing.assert_array_equal(swept["one"][0].last["weight"], plain.last["weight"])


def test_what_a_user_left_in_module_and_generators_is_left_out():
    x, y = rows(np.float32)
    method, data = ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45), for_torch(x, y)
    fresh = flat.solve_torch(line(torch.float32), objective, misses, data, method, rounds=3, batch_size=None)
    used = line(torch.float32)
    objective(used, data["west"].tensors).backward()
    found = flat.solve_torch(used, objective, misses, data, method, rounds=3, batch_size=None)
    np.testing.assert_array_equal(found.last["weight"], fresh.last["weight"])
    own = torch.Generator().manual_seed(5)
    loaders = {name: DataLoader(one, batch_size=8, shuffle=True, generator=own) for name, one in data.items()}
    modules = [line(torch.float32) for _ in range(2)]
    states = torch.get_rng_state(), own.get_state()
    drawn = [flat.solve_torch(one, objective, misses, loaders, method, rounds=3).last["weight"] for one in modules]
    np.testing.assert_array_equal(*drawn)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(own.get_state(), states[1])


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


def test_batches_of_any_kind():
    x, y = rows(np.float32)

    def together(some):
        return Pair(*map(torch.tensor, zip(*some, strict=True)))

    named = {
        name: DataLoader(Words(a, b), batch_size=len(a), collate_fn=together)
        for name, a, b in zip(NAMES, [one.tolist() for one in x], [one.tolist() for one in y], strict=True)
    }
    method = ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45)
    found = flat.solve_torch(line(torch.float32), objective, misses, named, method, rounds=3)
    plain = flat.solve_torch(line(torch.float32), objective, misses, for_torch(x, y), method, rounds=3, batch_size=None)
    np.testing.assert_allclose(found.last["weight"], plain.last["weight"], atol=1e-5)


def test_layers_of_the_constraint_alone_and_an_interrupted_search_for_means():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((1, FEATURES), 0.1))
            self.norm = torch.nn.BatchNorm1d(FEATURES, momentum=0.3)

        def forward(self, x):
            return x @ self.weight.T

    def g(module, batch):
        return module.norm(batch[0]).mean() * module.weight.sum() - 1

    x, y = rows(np.float32)
    module, data = Two(), for_torch(x, y)
    flat.solve_torch(module, objective, g, data, ss.SoftmaxSGM(alpha=5, step_size=0.1, tolerance=0.1), rounds=4)
    wanted = np.mean([one.mean(axis=0) for one in x], axis=0)
    np.testing.assert_allclose(module.norm.running_mean.numpy(), wanted, atol=1e-5)

    def interrupted(module, batch):
        if module.norm.momentum is None:
            raise KeyboardInterrupt
        return g(module, batch)

    with pytest.raises(KeyboardInterrupt):
        flat.solve_torch(module, objective, interrupted, data, ss.Automatic(tolerance=0.1), rounds=4)
    assert module.norm.momentum == 0.3


def test_checkpoints_know_the_optimiser_and_frozen_weights(tmp_path):
    x, y = rows(np.float32)
    data, method = for_torch(x, y), ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45)

    def run(frozen=1.0, optimizer=None):
        module = torch.nn.Sequential(line(torch.float32), torch.nn.Linear(1, 1, bias=False))
        torch.nn.init.constant_(module[1].weight.requires_grad_(False), frozen)
        options = {"rounds": 3, "local_steps": 2, "batch_size": None, "checkpoints": ss.Checkpoints(tmp_path)}
        return flat.solve_torch(module, objective, misses, data, method, optimizer=optimizer, **options)

    first = run()
    np.testing.assert_array_equal(run().last["0.weight"], first.last["0.weight"])
    for changed in ({"frozen": 2.0}, {"optimizer": torch.optim.Adam}):
        with pytest.raises(ValueError, match="the computation"):
            run(**changed)


def rate(module, batch):
    x, y = batch
    return (module(x)[y == 1, 0] <= 0).to(x.dtype).mean()


def test_rates_by_a_stand_in_and_their_certificate(x64, tmp_path):
    x, y = rows()
    module, data = line(), for_torch(x, y)
    result = flat.solve_torch(
        module, objective, rate, data, ss.Automatic(tolerance=0.2), constraint_surrogate=misses, rounds=300
    )
    assert result.worst_constraint <= 0.2
    fresh = rows(seed=1)
    found = flat.certify_torch(result, module, objective, rate, for_torch(*fresh), constraint_range={0, 1})

    def jax_rate(params, batch):
        missed = (batch["x"] @ params["weight"][0] <= 0).astype(batch["x"].dtype)
        return ss.mean_over(missed, batch["weight"] * (batch["y"] == 1))

    problem = ss.Problem(jax_objective, jax_rate, START, constraint_range={0, 1})
    wanted = ss.certify(result, problem, for_jax(*fresh))
    for ours, theirs in zip(found.clients, wanted.clients, strict=True):
        assert ours.verdict == theirs.verdict
        np.testing.assert_allclose(ours.constraints[0].upper, theirs.constraints[0].upper, rtol=1e-9)
    np.testing.assert_array_equal(module.weight.detach().numpy(), np.asarray(result.params["weight"]))
    file = ss.report(result, tmp_path / "report.html", certificate=found)
    told = file.read_text(encoding="utf-8")
    assert all(name in told for name in NAMES)
    some = {name: own for name, own in for_torch(*fresh).items() if name != "west"}
    assert flat.certify_torch(result, module, objective, rate, some).clients[-1].verdict == "unknown"


def test_bad_input_is_named_before_any_work():
    x, y = rows(np.float32)
    data, method = for_torch(x, y), ss.Automatic(tolerance=0.45)

    def refuses(match, error=ValueError, module=None, clients=data, g=misses, **options):
        with pytest.raises(error, match=match):
            flat.solve_torch(
                line(torch.float32) if module is None else module, objective, g, clients, method, **options
            )

    refuses("start must be a floating array", TypeError, module="no module")
    refuses("datasets must be a mapping from names", clients={})
    refuses(
        r"clients\['empty'\] must be a Dataset with a length of at least 1",
        clients={"empty": TensorDataset(torch.ones(0, 1))},
    )
    refuses("jax_enable_x64", module=line())
    refuses("float32 or float64", TypeError, module=line(torch.bfloat16))
    refuses("requires a gradient", module=torch.nn.ReLU())
    refuses("objective must|constraint must return a scalar or a vector", g=lambda module, batch: torch.ones(2, 2))
    refuses("one value for each constraint", constraint_surrogate=two)
    refuses("participation must be", participation=0)
    refuses("batch_size = 30 without replacement must be at most 24", batch_size=30, replace=False)
    mixed = data | {"north": DataLoader(data["north"], batch_size=4)}
    refuses("clients must all be DataLoaders", clients=mixed)
    refuses("optimizer must be", TypeError, optimizer="adam")
    refuses("held_out must have names of clients", held_out={"nowhere": data["north"]})
    with pytest.raises(TypeError, match="method must be"):
        flat.solve_torch(line(torch.float32), objective, misses, data, "no rule")
    federation = flat.torch_federation(line(torch.float32), objective, misses, data)
    with pytest.raises(ValueError, match="vectorize must be"):
        flat.sweep_federation(federation, {"one": method}, seeds=1, rounds=2, vectorize=True)


def test_a_module_that_diverges_says_so():
    x, y = rows(np.float32)

    def wild(module, batch):
        return (module(batch[0]) ** 4).sum() * 1e20

    result = flat.solve_torch(
        torch.nn.Linear(FEATURES, 1),
        wild,
        misses,
        for_torch(x, y),
        ss.SoftmaxSGM(alpha=1, step_size=1e10, tolerance=1e9),
        rounds=50,
    )
    assert result.status.code == "diverged"
    assert len(result.history) < 50


def test_batch_normalisation_of_a_single_row_is_refused_with_the_client():
    def f(module, batch):
        return torch.nn.functional.binary_cross_entropy_with_logits(module(batch[0])[:, 0], batch[1])

    def solve(norm, sizes, shape, **options):
        data = {
            f"site {i}": TensorDataset(torch.ones(size, *shape) * torch.arange(size).reshape(-1, *[1] * len(shape)))
            for i, size in enumerate(sizes)
        }
        data = {name: TensorDataset(*one.tensors, torch.ones(len(one))) for name, one in data.items()}
        module = torch.nn.Sequential(norm, torch.nn.Flatten(), torch.nn.Linear(int(np.prod(shape)), 1))
        method = ss.SoftmaxSGM(alpha=5, step_size=0.1, tolerance=10.0)
        return flat.solve_torch(
            module, f, lambda module, batch: f(module, batch) - 9, data, method, rounds=2, **options
        )

    with pytest.raises(ValueError, match=r"'site 1'\] has 1 row, .*at least 2 rows"):
        solve(torch.nn.BatchNorm1d(3), (4, 1), (3,))
    with pytest.raises(ValueError, match=r"'site 0'\] has 4 rows, and a batch of 1"):
        solve(torch.nn.BatchNorm1d(3, track_running_stats=False), (4, 5), (3,), batch_size=1)
