"""The default with small batches, over Flower and for a PyTorch module: a memory that is corrected, and without it.

``python -m benchmarks.corrected [--seeds 5] [--first 0] [--batch 4]``
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import TensorDataset

import softswitch as ss
import softswitch.flower as fl
from benchmarks import flat
from softswitch.engine.auto_tuning import SMOOTHING
from softswitch_experiments.leaderboard.tasks import TOLERANCE, VARIABLES, find_quadratics_optimum, make_quadratics

ROUNDS = 300
RULE = ss.Automatic(tolerance=TOLERANCE)
WITHOUT: dict[str, ss.Memory | None] = {"Flower": None, "PyTorch": ss.Memory(smoothing=SMOOTHING)}
"""What is chosen where clients can report at one iterate only, and everyone takes part."""


def client_rows(seed: int) -> list[dict[str, np.ndarray]]:
    """Every client's rows, of the leaderboard's quadratics."""
    _, clients = make_quadratics(seed)
    ends = np.cumsum(clients.sizes)
    return [
        {name: np.array(column[end - size : end]) for name, column in clients.rows.columns.items()}
        for end, size in zip(ends, clients.sizes, strict=True)
    ]


def over_flower(seed: int, batch: int, rounds: int, memory: Any) -> ss.Result:
    """Every client is a ``NumpyClient``, in this process."""
    rows, start = client_rows(seed), {"w": np.zeros(VARIABLES, np.float32)}

    def objective(params: Any, batch: Any) -> Any:
        apart = params["w"] - batch["centre"]
        return 0.5 * np.square(apart).sum(axis=1).mean(), {"w": apart.mean(axis=0)}

    def constraint(params: Any, batch: Any) -> Any:
        slope = batch["slope"].mean(axis=0)
        return slope @ params["w"] + 0.5, {"w": slope}

    def factory(context: Any) -> fl.NumpyClient:
        i = int(context.node_config["partition-id"])
        return fl.NumpyClient(objective, constraint, rows[i], start, name=f"site {i}", batch_size=batch)

    app = fl.client_app(factory, fl.ClientPolicy.for_simulations())
    strategy = fl.SwitchingStrategy(RULE, seed=seed, memory=memory)
    logging.getLogger("flwr").setLevel(logging.ERROR)  # no line a round
    strategy.start(fl.InProcessGrid(app, len(rows)), fl.initial_arrays(start), rounds)
    assert strategy.result is not None
    return strategy.result


def with_torch(seed: int, batch: int, rounds: int, memory: Any) -> ss.Result:
    """The same functions of a module's parameters."""
    clients = {
        f"site {i}": TensorDataset(*(torch.from_numpy(own[name]) for name in ("centre", "slope")))
        for i, own in enumerate(client_rows(seed))
    }

    def objective(module: Any, rows: Any) -> Any:
        return 0.5 * (module["w"] - rows[0]).square().sum(dim=1).mean()

    def constraint(module: Any, rows: Any) -> Any:
        return (rows[1] @ module["w"]).mean() + 0.5

    return flat.solve_torch(
        torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.zeros(VARIABLES))}),
        objective,
        constraint,
        clients,
        RULE,
        rounds=rounds,
        batch_size=batch,
        value_batch_size=batch,
        eval_every=0,
        memory=memory,
        seed=seed,
        progress=False,
    )


def main() -> None:
    """Print one row a way and memory: means over seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--batch", type=int, default=4)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(asked.first, asked.first + asked.seeds)
    best = [find_quadratics_optimum(seed) for seed in seeds]
    table = Table("way", "memory", "rounds", "F − F*", "± of the mean", "G, largest", "rows, thousands")
    ways: dict[str, Callable[..., ss.Result]] = {"Flower": over_flower, "PyTorch": with_torch}
    for way, run in ways.items():
        # A report at two iterates costs another batch: two thirds of the rounds are as many rows.
        for memory, rounds in ((WITHOUT[way], ROUNDS), ("auto", ROUNDS), ("auto", 2 * ROUNDS // 3)):
            found = [run(seed, asked.batch, rounds, memory) for seed in seeds]
            above = [each.worst_objective - least for each, least in zip(found, best, strict=True)]
            spent = [each.history.value_evaluations[-1] + each.history.gradient_evaluations[-1] for each in found]
            table.add_row(
                way,
                "corrected" if memory == "auto" else "none" if memory is None else "running means",
                str(rounds),
                f"{np.mean(above):.4f}",
                f"{np.std(above) / np.sqrt(len(above)):.4f}",
                f"{max(each.worst_constraint for each in found):.4f}",
                f"{np.mean(spent) / 1e3:.0f}",
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
