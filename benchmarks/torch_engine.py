"""One problem by both engines in turns: compiled by JAX, and a PyTorch module round by round.

    python -m benchmarks.torch_engine

Whole local data, the same rounds to 1e-4; milliseconds a round, compilation left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils.data import TensorDataset

import softswitch as ss
from benchmarks import flat
from benchmarks.timing import seconds_in_turns

ROUNDS = 100


class Case(NamedTuple):
    """A model and clients."""

    name: str
    clients: int
    rows: int
    features: int
    hidden: int
    local_steps: int


CASES = (
    Case("logistic, 20 clients of 25 rows", 20, 25, 30, 0, 1),
    Case("logistic, 20 clients of 25 rows, E = 5", 20, 25, 30, 0, 5),
    Case("logistic, 20 clients of 5,000 rows", 20, 5_000, 100, 0, 1),
    Case("network 100→64→1, 20 clients of 500 rows", 20, 500, 100, 64, 1),
    Case("network 100→256→1, 20 clients of 5,000 rows", 20, 5_000, 100, 256, 1),
)
RULE = ss.SoftmaxSGM(alpha=20, step_size=0.1, tolerance=0.5)


def by_jax(case: Case, x: np.ndarray, y: np.ndarray, start: dict[str, np.ndarray]) -> Callable[[], Any]:
    """The problem for the compiled engine."""

    def score(params: Any, rows: Any) -> Any:
        if not case.hidden:
            return rows @ params["weight"][0]
        return jnp.tanh(rows @ params["0.weight"].T) @ params["2.weight"][0]

    def of_class(sign: int, label: int) -> Callable[..., Any]:
        def loss(params: Any, batch: Any) -> Any:
            mine = batch["weight"] * (batch["y"] == label)
            return ss.mean_over(jax.nn.softplus(sign * score(params, batch["x"])), mine)

        return loss

    names = np.repeat(np.arange(case.clients), case.rows)
    data = ss.ClientData.from_arrays({"x": x.reshape(-1, case.features), "y": y.reshape(-1)}, names)
    problem = ss.Problem(of_class(1, 0), of_class(-1, 1), start)
    return lambda: flat.solve(
        problem, data, RULE, rounds=ROUNDS, local_steps=case.local_steps, batch_size=None, eval_every=0
    )


def by_torch(case: Case, x: np.ndarray, y: np.ndarray, start: dict[str, np.ndarray], device: str) -> Callable[[], Any]:
    """The same for a module."""
    softplus = torch.nn.functional.softplus

    def objective(module: Any, batch: Any) -> Any:
        return softplus(module(batch[0])[batch[1] == 0, 0]).mean()

    def constraint(module: Any, batch: Any) -> Any:
        return softplus(-module(batch[0])[batch[1] == 1, 0]).mean()

    clients = {i: TensorDataset(torch.from_numpy(x[i]), torch.from_numpy(y[i])) for i in range(case.clients)}
    module = network(case)

    def run() -> Any:
        module.load_state_dict({name: torch.from_numpy(array) for name, array in start.items()})
        return flat.solve_torch(
            module,
            objective,
            constraint,
            clients,
            RULE,
            rounds=ROUNDS,
            local_steps=case.local_steps,
            batch_size=None,
            eval_every=0,
            device=device,
        )

    return run


def network(case: Case) -> torch.nn.Module:
    """Without biases: fewer names to keep in step."""
    if not case.hidden:
        return torch.nn.Linear(case.features, 1, bias=False)
    return torch.nn.Sequential(
        torch.nn.Linear(case.features, case.hidden, bias=False),
        torch.nn.Tanh(),
        torch.nn.Linear(case.hidden, 1, bias=False),
    )


def main() -> None:
    """Print a table."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    print("| case | JAX, compiled | " + " | ".join(f"PyTorch, {device}" for device in devices) + " | ratio |")
    print("|---" * (3 + len(devices)) + "|")
    for case in CASES:
        generator = np.random.default_rng(0)
        x = generator.normal(size=(case.clients, case.rows, case.features)).astype(np.float32)
        y = (x.mean(axis=2) + 0.1 * generator.normal(size=x.shape[:2]) > 0).astype(np.float32)
        torch.manual_seed(0)
        start = {name: w.detach().numpy() for name, w in network(case).named_parameters()}
        runs = {"jax": by_jax(case, x, y, start)}
        runs |= {device: by_torch(case, x, y, start, device) for device in devices}
        wanted = runs["jax"]().last
        for device in devices:
            found = runs[device]().last
            for name in start:
                np.testing.assert_allclose(found[name], wanted[name], atol=1e-4)
        taken = seconds_in_turns(runs, 3)
        times = [1000 * seconds / ROUNDS for seconds in taken.values()]
        cells = " | ".join(f"{ms:.2f} ms" for ms in times)
        print(f"| {case.name} | {cells} | {times[-1] / times[0]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
