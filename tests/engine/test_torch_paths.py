"""PyTorch clients computed together and one after another: equal results, and the reason for the choice."""

import numpy as np
import pytest
import torch
from torch.nn.functional import softplus
from torch.utils.data import DataLoader, Dataset, TensorDataset

import softswitch as ss
from softswitch.engine.torch import torch_federation
from softswitch.methods.messages import Decision, LocalLoss
from softswitch.oracles import torch as torch_oracles
from softswitch.oracles.base import HostDraws
from softswitch.oracles.torch_functions import parameters
from softswitch.oracles.torch_rows import seeded

torch.set_num_threads(1)  # small problems run faster on one thread
TOGETHER = "computed together by vmap"
SPLIT = "module computed together, functions one after another"
SEPARATE = "computed one after another"


def make_clients(sizes=(24, 29, 34, 24), features=4, seed=0):
    generator = np.random.default_rng(seed)
    clients = {}
    for i, size in enumerate(sizes):
        x = generator.normal(size=(size, features)) + 0.1 * i
        y = (x.sum(axis=1) + generator.normal(size=size) > 0.3 * i).astype(float)
        clients[f"client {i}"] = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    return clients


def make_module(*extra):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), *extra, torch.nn.Linear(5, 1)).double()


def masked_mean(values, mask):
    return (values * mask).sum() / mask.sum()


def false_alarms(module, batch):
    x, y = batch
    return masked_mean(softplus(module(x)[:, 0]), 1 - y)


def misses(module, batch):
    x, y = batch
    return masked_mean(softplus(-module(x)[:, 0]), y)


def indexed_false_alarms(module, batch):
    x, y = batch
    return softplus(module(x)[y == 0, 0]).mean()


def indexed_misses(module, batch):
    x, y = batch
    return softplus(-module(x)[y == 1, 0]).mean()


def two_constraints(module, batch):
    return torch.stack([misses(module, batch), (module[0].weight ** 2).sum() / 50])


def miss_rate(module, batch):
    x, y = batch
    return masked_mean((module(x)[:, 0] <= 0).double(), y)


def run(functions, sampling=None, method=None, clients=None, module=None, together=None, optimizer=None, **options):
    objective, constraint, *surrogate = functions
    problem = ss.Problem(objective, constraint, module or make_module(), constraint_surrogate=(*surrogate, None)[0])
    data = ss.TorchData(clients or make_clients(), optimizer=optimizer)
    method = method or ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45)
    options = {"rounds": 30, "compute": ss.Compute(client_batch_size=together)} | options
    return ss.solve(problem, data, method, sampling=sampling or ss.Sampling(), **options)


def assert_equal_runs(result, expected, tolerance=1e-9):
    assert np.array_equal(result.history.feasible, expected.history.feasible)
    for values, reference in ((result.last, expected.last), (result.params, expected.params)):
        for name in reference:
            np.testing.assert_allclose(values[name], reference[name], rtol=0, atol=tolerance)


CASES = {
    "batches": {"sampling": ss.Sampling(batch_size=8)},
    "all rows": {},
    "local steps": {"sampling": ss.Sampling(batch_size=8, local_steps=3)},
    "local steps on all rows": {"sampling": ss.Sampling(local_steps=3)},
    "without replacement": {"sampling": ss.Sampling(batch_size=8, replace=False, local_steps=2)},
    "memory": {"sampling": ss.Sampling(batch_size=8, participation=0.5, memory=ss.Memory(smoothing=0.3))},
    "penalty": {
        "method": ss.Penalty(penalty=3.0, step_size=0.1, tolerance=0.45),
        "sampling": ss.Sampling(local_steps=2),
    },
    "robust": {"method": ss.SoftmaxSGM(alpha=20, step_size=0.2, tolerance=0.45, robust=1)},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("functions", "path"),
    [((false_alarms, two_constraints), TOGETHER), ((indexed_false_alarms, indexed_misses), SPLIT)],
    ids=["vmap", "split"],
)
def test_paths_agree(x64, case, functions, path):
    result = run(functions, **CASES[case])
    expected = run(functions, **CASES[case], together=1)
    uses_all_rows = CASES[case].get("sampling", ss.Sampling()).batch_size is None  # of clients with unequal numbers
    assert result.auto_settings["clients"].startswith(SPLIT if uses_all_rows else path)
    assert expected.auto_settings["clients"] == f"{SEPARATE}, because client_batch_size is 1"
    assert_equal_runs(result, expected)


def test_slices_do_not_change_results(x64):
    options = {"sampling": ss.Sampling(batch_size=8, local_steps=2)}
    assert_equal_runs(run((false_alarms, misses), **options, together=3), run((false_alarms, misses), **options))


def test_surrogate_penalises_only_violated_constraints(x64):
    functions, method = (false_alarms, miss_rate, misses), ss.Penalty(penalty=2.0, step_size=0.1, tolerance=0.2)
    options = {"method": method, "clients": make_clients((24,) * 4)}
    result = run(functions, **options)
    assert result.auto_settings["clients"] == TOGETHER
    assert_equal_runs(result, run(functions, **options, together=1))


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_local_optimizers_step_together(x64, optimizer):
    options = {"optimizer": optimizer, "sampling": ss.Sampling(local_steps=3, batch_size=8)}
    result = run((false_alarms, misses), **options)
    assert result.auto_settings["clients"] == TOGETHER
    assert_equal_runs(result, run((false_alarms, misses), **options, together=1))


def test_steps_of_whole_clients_are_computed_separately(x64):
    result = run((false_alarms, misses), optimizer=torch.optim.Adafactor, rounds=3)
    assert result.auto_settings["clients"].startswith(f"{SEPARATE}, because steps of Adafactor")


def test_batch_normalisation_is_computed_separately(x64):
    result = run((false_alarms, misses), module=make_module(torch.nn.BatchNorm1d(5)), rounds=3)
    assert result.auto_settings["clients"].startswith(f"{SEPARATE}, because batch normalisation")


class Centred(torch.nn.Module):
    """A layer that mixes the rows of a batch."""

    def forward(self, x):
        return x - x.mean(dim=0)


def test_module_that_mixes_rows_is_not_called_on_rows_of_several_clients(x64):
    functions, options = (indexed_false_alarms, indexed_misses), {"sampling": ss.Sampling(batch_size=8)}
    result = run(functions, module=make_module(Centred()), **options)
    assert (
        result.auto_settings["clients"]
        == f"{SEPARATE}, because the rows of other clients change the values of a client"
    )
    mapped = run((false_alarms, misses), module=make_module(Centred()), **options)
    assert mapped.auto_settings["clients"] == TOGETHER  # vmap keeps clients apart
    assert_equal_runs(mapped, run((false_alarms, misses), module=make_module(Centred()), **options, together=1))


def test_functions_that_call_the_module_twice(x64):
    def smooth(module, batch):
        change = module(batch[0]) - module(batch[0] + 0.1)
        return indexed_misses(module, batch) + (change**2).mean()

    result = run((indexed_false_alarms, smooth), rounds=3)
    assert result.auto_settings["clients"] == f"{SEPARATE}, because a function calls the module more than once"


def test_dropout_draws_by_the_seed():
    functions, options = (false_alarms, misses), {"rounds": 5, "sampling": ss.Sampling(batch_size=8, local_steps=2)}
    results = [
        run(functions, module=make_module(torch.nn.Dropout(0.5)).float(), clients=in_float32(), seed=seed, **options)
        for seed in (1, 1, 2)
    ]
    assert results[0].auto_settings["clients"] == TOGETHER
    weights = [result.last["0.weight"] for result in results]
    assert np.array_equal(weights[0], weights[1])
    assert not np.allclose(weights[0], weights[2])


@pytest.mark.parametrize("together", [None, 1])
def test_two_calls_in_one_function_draw_twice(together):
    """The difference of two passes through dropout has a gradient only if each draws a mask of its own."""

    def disagreement(module, batch):
        return ((module(batch[0]) - module(batch[0])) ** 2).mean() + 1

    options = {"clients": in_float32(), "together": together, "rounds": 3, "sampling": ss.Sampling(batch_size=8)}
    module = make_module(torch.nn.Dropout(0.5)).float()
    before = {name: weight.detach().numpy().copy() for name, weight in module.named_parameters()}
    result = run((false_alarms, disagreement), module=module, **options)
    assert result.auto_settings["clients"].startswith(TOGETHER if together is None else SEPARATE)
    assert not result.history.feasible.any()
    assert not np.array_equal(result.last["3.weight"], before["3.weight"])


def in_float32():
    return {name: TensorDataset(*(t.float() for t in rows.tensors)) for name, rows in make_clients().items()}


class Texts(Dataset):
    """Rows that a batch pads to the longest of its texts."""

    def __init__(self, count, seed):
        generator = np.random.default_rng(seed)
        self.lengths = np.where(np.arange(count) < 10, 4, generator.integers(2, 9, count))
        self.texts = [torch.from_numpy(generator.normal(size=(length, 4))) for length in self.lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return self.texts[i]


class Pooled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 1).double()

    def forward(self, x):
        return self.linear(x.sum(dim=1))


def test_batches_of_other_shapes_are_computed_separately_from_then_on(x64):
    def loss(module, x):
        return (module(x)[x[:, 0, 0] > -9, 0] ** 2).mean()

    def collate(rows):
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    clients = {i: DataLoader(Texts(20, seed=i), batch_size=12, shuffle=True, collate_fn=collate) for i in range(3)}
    result = run((loss, loss), module=Pooled(), clients=clients, rounds=4)
    assert result.auto_settings["clients"].startswith(f"{SEPARATE}, because Sizes of tensors must match")
    assert_equal_runs(result, run((loss, loss), module=Pooled(), clients=clients, rounds=4, together=1))


def test_memory_of_the_device_is_halved_until_it_suffices(x64, monkeypatch):
    expected, sizes = run((false_alarms, misses)), []
    report = torch_oracles.JointFunctions.report

    def limited(self, batches):
        sizes.append(len(batches))
        if len(batches) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return report(self, batches)

    monkeypatch.setattr(torch_oracles.JointFunctions, "report", limited)
    result = run((false_alarms, misses))
    assert sizes[:4] == [4, 2, 2, 2]
    assert_equal_runs(result, expected)


def test_large_clients_are_computed_separately(x64, monkeypatch):
    monkeypatch.setattr(torch_oracles, "SLICE_BYTES", 100)
    result = run((false_alarms, misses), rounds=3)
    assert result.auto_settings["clients"] == f"{SEPARATE}, because the memory for the gradient of a client is large"


def test_slices_draw_masks_of_their_own():
    """Clients with equal rows and equal places in two slices have different directions because of dropout."""
    data = TensorDataset(torch.ones(8, 4), torch.tensor([0.0, 1.0] * 4))
    clients = ss.TorchData(dict.fromkeys(range(4), data))
    problem = ss.Problem(false_alarms, misses, make_module(torch.nn.Dropout(0.5)).float())
    oracle = torch_federation(problem, clients, ss.Sampling(), None, ss.Compute(client_batch_size=2)).oracle
    seeds = []

    def note(seed, *args):
        seeds.append(seed)
        return seeded(seed, *args)

    draws, params = HostDraws(np.arange(4), 0), parameters(problem.start)
    loss = LocalLoss(1.0, np.zeros((4, 1)), 0.0, 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_oracles, "seeded", note)
        oracle.direction(params, draws, None, Decision(0.0, True, np.full(4, 0.25), loss), True, 0.1)
    assert len(seeds) == len(set(seeds)) == 2


def test_clients_without_held_out_rows(x64):
    result = run((false_alarms, misses), rounds=3, logging=ss.Logging(held_out={}, eval_every=1))
    assert np.isneginf(result.history.held_out.objective).all()


def test_compute_options_are_checked():
    with pytest.raises(ValueError, match="dtype must be"):
        ss.Compute(dtype="float16")
    problem = ss.Problem(lambda w, b: (w * b["x"]).sum(), lambda w, b: w.sum(), np.zeros(1, np.float32))
    clients = ss.ClientData.from_arrays({"x": np.ones((4, 1), np.float32)}, [0, 0, 1, 1])
    for options in ({"compile": True}, {"dtype": "bfloat16"}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} must keep its default for JAX functions"):
            ss.solve(
                problem, clients, ss.HardSGM(step_size=0.1, tolerance=1.0), compute=ss.Compute(**options), rounds=2
            )


def test_sweeps_compute_as_runs_do(x64, monkeypatch):
    used = []
    create = torch_oracles.TorchOracle.__init__

    def note(self, *args, **options):
        create(self, *args, **options)
        used.append(self.path)

    monkeypatch.setattr(torch_oracles.TorchOracle, "__init__", note)
    problem, methods = ss.Problem(false_alarms, misses, make_module()), [ss.HardSGM(step_size=0.1, tolerance=0.5)]
    clients = ss.TorchData(make_clients((24,) * 4))
    for together in (None, 1):
        compute = ss.Compute(client_batch_size=together)
        ss.sweep(problem, clients, methods, rounds=2, compute=compute)
    assert used == [TOGETHER, f"{SEPARATE}, because client_batch_size is 1"]  # in the order of the sweeps
    with pytest.raises(ValueError, match="compute must have the compiled engine on one device"):
        ss.sweep(problem, clients, methods, rounds=2, compute=ss.Compute(devices=1))
    ss.sweep(problem, clients, methods, rounds=2, compute=ss.Compute(dtype="bfloat16"))


def test_bfloat16_rounds_values_only():
    clients, functions = in_float32(), (false_alarms, misses)
    exact = run(functions, module=make_module().float(), clients=clients)
    result = run(functions, module=make_module().float(), clients=clients, compute=ss.Compute(dtype="bfloat16"))
    assert result.last["0.weight"].dtype == np.float32
    difference = max(np.abs(result.last[name] - exact.last[name]).max() for name in exact.last)
    assert 1e-6 < difference < 0.05


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler of PyTorch uses deprecated functions of its own
@pytest.mark.parametrize("steps", [1, 2])
def test_compiled_rounds_agree(x64, steps):
    options = {"sampling": ss.Sampling(batch_size=8, local_steps=steps), "rounds": 10}
    result = run((false_alarms, misses), **options, compute=ss.Compute(compile=True))
    assert result.auto_settings["clients"].startswith(f"{TOGETHER}, compiled")
    assert_equal_runs(result, run((false_alarms, misses), **options))
