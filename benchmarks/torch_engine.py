"""Rounds of PyTorch modules: the library, loops as a user writes them, and the compiled engine.

    python -m benchmarks.torch_engine [--device cuda] [--only NAME] [--compile]

The first table compares, in turns, a plain PyTorch loop, the library with clients one after another, the library with
clients together, and a round written by hand for all clients side by side (the probe). The second table compares
modules with the same functions in JAX. Milliseconds a round, medians of three turns, without the first rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.func import functional_call, grad, vmap
from torch.nn.functional import softplus
from torch.utils.data import TensorDataset

import softswitch as ss
from benchmarks import flat
from benchmarks.timing import seconds_in_turns

ALPHA, STEP_SIZE, TOLERANCE = 20.0, 0.1, 0.1
METHOD = ss.SoftmaxSGM(alpha=ALPHA, step_size=STEP_SIZE, tolerance=TOLERANCE)
Tensors = dict[str, torch.Tensor]
CHUNK = 10  # number of rounds of the library between callbacks


class Case(NamedTuple):
    """A model, its clients, and a round."""

    name: str
    clients: int
    rows: int
    shape: tuple[int, ...]  # of a row
    width: int  # hidden units, or channels of the first convolution
    local_steps: int
    batch: int
    rounds: int  # of a measurement, a multiple of 10


CASES = (
    Case("network 50→32→1, E = 1, B = 32", 20, 200, (50,), 32, 1, 32, 200),
    Case("network 50→32→1, E = 5, B = 32", 20, 200, (50,), 32, 5, 32, 50),
    Case("CNN, 105k parameters, E = 1, B = 128", 10, 2000, (1, 28, 28), 16, 1, 128, 10),
    Case("CNN, 105k parameters, E = 5, B = 128", 10, 2000, (1, 28, 28), 16, 5, 128, 10),
    Case("CNN, 476k parameters, E = 1, B = 512", 10, 2000, (1, 28, 28), 64, 1, 512, 10),
    Case("CNN, 476k parameters, E = 5, B = 512", 10, 2000, (1, 28, 28), 64, 5, 512, 10),
)


def network(case: Case) -> torch.nn.Module:
    """Return the module of a case, with one output."""
    torch.manual_seed(0)
    if len(case.shape) == 1:
        first = torch.nn.Linear(case.shape[0], case.width)
        return torch.nn.Sequential(first, torch.nn.Tanh(), torch.nn.Linear(case.width, 1))
    convolutions = []
    for inputs, outputs in ((1, case.width), (case.width, 2 * case.width)):
        convolutions += [torch.nn.Conv2d(inputs, outputs, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    head = [torch.nn.Linear(2 * case.width * 49, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)]
    return torch.nn.Sequential(*convolutions, torch.nn.Flatten(), *head)


def losses(scores: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the losses of the rows of both classes; the mean of each is an objective or a constraint."""
    return softplus(scores) * (y == 0), softplus(-scores) * (y == 1)


def objective(module: Any, batch: Any) -> torch.Tensor:
    """Return f on a batch."""
    return losses(module(batch[0])[:, 0], batch[1])[0].mean()


def constraint(module: Any, batch: Any) -> torch.Tensor:
    """Return g on a batch."""
    return losses(module(batch[0])[:, 0], batch[1])[1].mean() - 0.2


def draw_data(case: Case, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows and labels of all clients, clients × rows × shape of a row."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((case.clients, case.rows, *case.shape), generator=generator).to(device)
    return x, (x.flatten(2).mean(dim=2) > 0).float()


def decide(f: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the switch bit and the weights."""
    q = torch.softmax(ALPHA * g, 0)
    is_feasible = (q @ g <= TOLERANCE / 1.1).float()
    return is_feasible, is_feasible * torch.softmax(ALPHA * f, 0) + (1 - is_feasible) * q


def plain_loop(case: Case, device: str) -> Callable[[int], None]:
    """Return rounds as a user writes them: a loop over the clients, whose module is reset for each of them."""
    x, y = draw_data(case, device)
    module = network(case).to(device)
    weights, size = list(module.parameters()), STEP_SIZE / case.local_steps

    def draw(i: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.randint(case.rows, (case.batch,), device=device)
        return x[i, rows], y[i, rows]

    def run(rounds: int) -> None:
        for _ in range(rounds):
            f, g = [], []
            with torch.no_grad():
                for i in range(case.clients):
                    rows, labels = draw(i)
                    good, bad = losses(module(rows)[:, 0], labels)
                    f.append(good.mean())
                    g.append(bad.mean() - 0.2)
            bit, shares = decide(torch.stack(f), torch.stack(g))
            is_feasible = bool(bit)
            before = [weight.detach().clone() for weight in weights]
            total = [torch.zeros_like(weight) for weight in before]
            for i in range(case.clients):
                with torch.no_grad():
                    for weight, old in zip(weights, before, strict=True):
                        weight.copy_(old)
                for _ in range(case.local_steps):
                    loss = (objective if is_feasible else constraint)(module, draw(i))
                    slopes = torch.autograd.grad(loss, weights)
                    with torch.no_grad():
                        for weight, slope in zip(weights, slopes, strict=True):
                            weight.sub_(slope, alpha=size)
                with torch.no_grad():
                    for part, old, weight in zip(total, before, weights, strict=True):
                        part += shares[i] * (old - weight)
            with torch.no_grad():
                for weight, old, part in zip(weights, before, total, strict=True):
                    weight.copy_(old - part)

    return run


def probe(case: Case, device: str, *, compiles: bool = False) -> Callable[[int], None]:
    """Return rounds that are written by hand for all clients together, with the switch on the device."""
    x, y = draw_data(case, device)
    module, clients, size = network(case).to(device), case.clients, STEP_SIZE / case.local_steps
    weights: Tensors = {name: weight.detach().clone() for name, weight in module.named_parameters()}

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.randint(case.rows, (clients, case.batch), device=device)
        places = torch.arange(clients, device=device)[:, None]
        return x[places, rows], y[places, rows]

    def both(point: Tensors, rows: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        good, bad = losses(functional_call(module, point, (rows.flatten(0, 1),))[:, 0], labels.flatten())
        return good.view(clients, -1).mean(dim=1), bad.view(clients, -1).mean(dim=1) - 0.2

    def local(point: Tensors, rows: torch.Tensor, labels: torch.Tensor, bit: torch.Tensor) -> torch.Tensor:
        good, bad = losses(functional_call(module, point, (rows,))[:, 0], labels)
        return bit * good.mean() + (1 - bit) * (bad.mean() - 0.2)

    slopes = vmap(grad(local), in_dims=(0, 0, 0, None))

    def one_round(point: Tensors) -> Tensors:
        with torch.no_grad():
            bit, shares = decide(*both(point, *draw()))
        if case.local_steps == 1:
            leaves = {name: weight.detach().requires_grad_() for name, weight in point.items()}
            good, bad = both(leaves, *draw())
            gradient = torch.autograd.grad(shares @ (bit * good + (1 - bit) * bad), list(leaves.values()))
            steps = zip(point.items(), gradient, strict=True)
            return {name: weight.detach() - size * slope for (name, weight), slope in steps}
        copies = {name: weight.expand(clients, *weight.shape).clone() for name, weight in point.items()}
        for _ in range(case.local_steps):
            gradients = slopes(copies, *draw(), bit)
            copies = {name: copies[name] - size * gradients[name] for name in copies}
        return {name: weight - torch.tensordot(shares, weight - copies[name], 1) for name, weight in point.items()}

    play = torch.compile(one_round) if compiles else one_round

    def run(rounds: int) -> None:
        nonlocal weights
        for _ in range(rounds):
            weights = play(weights)

    return run


def library(case: Case, device: str, **compute: Any) -> Callable[[], float]:
    """Return a function that returns the seconds of a round of the library, measured between chunks of ten rounds."""
    x, y = draw_data(case, device)
    clients = {i: TensorDataset(x[i], y[i]) for i in range(case.clients)}
    sampling = ss.Sampling(batch_size=case.batch, local_steps=case.local_steps)

    def run() -> float:
        times: list[float] = []

        def note(_: ss.Chunk) -> None:
            synchronise(device)
            times.append(time.perf_counter())

        problem = ss.Problem(objective, constraint, network(case).to(device))
        options: dict[str, Any] = {"logging": ss.Logging(eval_every=0, callbacks=[note])}
        options |= {"compute": ss.Compute(**compute), "rounds": CHUNK + case.rounds}
        ss.solve(problem, ss.TorchData(clients), METHOD, sampling=sampling, **options)
        return (times[-1] - times[0]) / case.rounds

    return run


def synchronise(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def measure(case: Case, device: str, *, compiles: bool, repeats: int = 3) -> None:
    """Print one row of the first table."""
    programs = {"plain": plain_loop(case, device), "probe": probe(case, device)}
    runs = {"separate": library(case, device, client_batch_size=1), "together": library(case, device)}
    if compiles:
        programs["probe, compiled"] = probe(case, device, compiles=True)
        runs["together, compiled"] = library(case, device, compile=True)

    def seconds(program: Callable[[int], None]) -> float:
        program(2)
        synchronise(device)
        start = time.perf_counter()
        program(case.rounds)
        synchronise(device)
        return (time.perf_counter() - start) / case.rounds

    taken: dict[str, list[float]] = {}
    for _ in range(repeats):
        for name, program in programs.items():
            taken.setdefault(name, []).append(seconds(program))
        for name, run in runs.items():
            taken.setdefault(name, []).append(run())
    ms = {name: 1000 * float(np.median(times)) for name, times in taken.items()}
    cells = [f"{value:.2f}" for value in ms.values()]
    ratios = [ms["separate"] / ms["plain"], ms["together"] / ms["plain"], ms["together"] / ms["probe"]]
    if compiles:
        ratios.append(ms["together, compiled"] / ms["probe, compiled"])
    print(f"| {case.name} | {' | '.join([*cells, *(f'{ratio:.2f}' for ratio in ratios)])} |", flush=True)


class Pair(NamedTuple):
    """A model in JAX and in PyTorch, and its clients."""

    name: str
    clients: int
    rows: int
    features: int
    hidden: int
    local_steps: int


PAIRS = (
    Pair("logistic, 20 clients of 25 rows", 20, 25, 30, 0, 1),
    Pair("logistic, 20 clients of 25 rows, E = 5", 20, 25, 30, 0, 5),
    Pair("logistic, 20 clients of 5,000 rows", 20, 5_000, 100, 0, 1),
    Pair("network 100→64→1, 20 clients of 500 rows", 20, 500, 100, 64, 1),
    Pair("network 100→256→1, 20 clients of 5,000 rows", 20, 5_000, 100, 256, 1),
)
PAIR_METHOD, PAIR_ROUNDS = ss.SoftmaxSGM(alpha=20, step_size=0.1, tolerance=0.5), 100


def by_jax(pair: Pair, x: np.ndarray, y: np.ndarray, start: dict[str, np.ndarray]) -> Callable[[], ss.Result]:
    """Return a run of the compiled engine."""

    def score(params: Any, rows: Any) -> Any:
        if not pair.hidden:
            return rows @ params["weight"][0]
        return jnp.tanh(rows @ params["0.weight"].T) @ params["2.weight"][0]

    def class_loss(sign: int, label: int) -> Callable[..., Any]:
        def loss(params: Any, batch: Any) -> Any:
            values = jax.nn.softplus(sign * score(params, batch["x"]))
            return ss.mean_over(values, batch["weight"] * (batch["y"] == label))

        return loss

    names = np.repeat(np.arange(pair.clients), pair.rows)
    data = ss.ClientData.from_arrays({"x": x.reshape(-1, pair.features), "y": y.reshape(-1)}, names)
    problem = ss.Problem(class_loss(1, 0), class_loss(-1, 1), start)
    options: dict[str, Any] = {"rounds": PAIR_ROUNDS, "local_steps": pair.local_steps, "batch_size": None}
    return lambda: flat.solve(problem, data, PAIR_METHOD, eval_every=0, **options)


def by_torch(pair: Pair, x: np.ndarray, y: np.ndarray, start: dict[str, np.ndarray]) -> Callable[[], ss.Result]:
    """Return a run of the same functions of a module."""

    def class_loss(sign: int, label: int) -> Callable[..., torch.Tensor]:
        def loss(module: Any, batch: Any) -> torch.Tensor:
            chosen = (batch[1] == label).float()
            return (softplus(sign * module(batch[0])[:, 0]) * chosen).sum() / chosen.sum()

        return loss

    clients = {i: TensorDataset(torch.from_numpy(x[i]), torch.from_numpy(y[i])) for i in range(pair.clients)}
    module, functions = pair_network(pair), (class_loss(1, 0), class_loss(-1, 1))
    options: dict[str, Any] = {"rounds": PAIR_ROUNDS, "local_steps": pair.local_steps, "batch_size": None}

    def run() -> ss.Result:
        module.load_state_dict({name: torch.from_numpy(array) for name, array in start.items()})
        return flat.solve_torch(module, *functions, clients, PAIR_METHOD, eval_every=0, **options)

    return run


def pair_network(pair: Pair) -> torch.nn.Module:
    """Return a module without biases."""
    if not pair.hidden:
        return torch.nn.Linear(pair.features, 1, bias=False)
    first, last = torch.nn.Linear(pair.features, pair.hidden, bias=False), torch.nn.Linear(pair.hidden, 1, bias=False)
    return torch.nn.Sequential(first, torch.nn.Tanh(), last)


def compare_with_jax(pair: Pair) -> None:
    """Print one row of the second table."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(pair.clients, pair.rows, pair.features)).astype(np.float32)
    y = (x.mean(axis=2) + 0.1 * generator.normal(size=x.shape[:2]) > 0).astype(np.float32)
    torch.manual_seed(0)
    start = {name: weight.detach().numpy() for name, weight in pair_network(pair).named_parameters()}
    runs = {"jax": by_jax(pair, x, y, start), "torch": by_torch(pair, x, y, start)}
    expected, found = (run().last for run in runs.values())
    for name in start:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-4)
    jax_time, torch_time = (1000 * seconds / PAIR_ROUNDS for seconds in seconds_in_turns(runs, 3).values())
    print(f"| {pair.name} | {jax_time:.2f} | {torch_time:.2f} | {torch_time / jax_time:.1f} |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile too")
    given = parser.parse_args()
    columns = ["case", "plain loop", "probe", "one after another", "together"]
    columns += ["probe, compiled", "together, compiled"] * given.compile
    columns += ["one after another / plain", "together / plain", "together / probe"]
    columns += ["compiled / compiled probe"] * given.compile
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for case in CASES:
        if given.only in case.name:
            measure(case, given.device, compiles=given.compile)
    print("\n| case | JAX, compiled | PyTorch | ratio |\n|---|---|---|---|")
    for pair in PAIRS:
        if given.only in pair.name and given.device == "cpu":
            compare_with_jax(pair)


if __name__ == "__main__":
    main()
