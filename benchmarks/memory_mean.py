"""A mean is wanted and the server remembers: what the weights against asking some clients more often bring.

``python -m benchmarks.memory_mean [--seeds 5]``
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np
import optax
from rich.console import Console
from rich.table import Table

import softswitch as ss
from benchmarks import flat
from benchmarks.memory import LEAST, TASKS, Task

SHARES = (0.1, 0.25)
"""Of the clients, asked in a round."""


@dataclass(frozen=True, kw_only=True)
class Alike(ss.AverageSGM):
    """AverageSGM that weighs all those asked alike, whether they were asked by need or in turn."""

    def decide(self, state: Any, reports: Any) -> tuple[Any, Any]:
        """As if nobody stood for others."""
        return super().decide(state, reports._replace(stand_for=None))


def rows_of(task: Task, seeds: int) -> list[tuple[Any, ...]]:
    """Clients a round, way, mean f as a ratio to asking everyone, mean g and its largest over seeds."""
    made = [task.make(seed) for seed in range(seeds)]
    problems, clients = [problem for problem, _ in made], [data for _, data in made]
    n = len(clients[0])

    def run(kind: Any, asked: int, memory: ss.Memory | None) -> tuple[np.ndarray, np.ndarray]:
        schedule = optax.cosine_decay_schedule(task.step, task.rounds)
        method = kind(step_size=schedule, tolerance=task.bound, optimizer=optax.adam)
        found = flat.sweep(
            problems,
            clients,
            [method],
            seeds=seeds,
            rounds=task.rounds,
            participation=asked / n,
            batch_size=None,
            answer="last",
            eval_every=0,
            memory=memory,
        ).results[0]
        f, g = np.array([(_mean(each.client_objective), _mean(each.client_constraint)) for each in found]).T
        return f, g

    best, constraint = run(ss.AverageSGM, n, None)
    rows: list[tuple[Any, ...]] = [(task.name, n, "everyone", best.mean(), 1.0, constraint.mean(), constraint.max())]
    for asked in sorted({max(LEAST, round(share * n)) for share in SHARES}):
        for way, (f, g) in {
            "plain": run(ss.AverageSGM, asked, None),
            "remembers, all alike": run(Alike, asked, ss.Memory()),
            "remembers": run(ss.AverageSGM, asked, ss.Memory()),
        }.items():
            rows.append((task.name, asked, way, f.mean(), (f / best).mean(), g.mean(), g.max()))
    return rows


def _mean(values: np.ndarray) -> float:
    """Over the clients that have such a value."""
    return float(values.mean(where=np.isfinite(values)))


def main() -> None:
    """Print a table a task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", type=int, nargs="*", default=[0, 1, 2], help="their numbers in benchmarks.memory")
    chosen = parser.parse_args()
    for number in chosen.tasks:
        task = TASKS[number]
        table = Table("task", "clients a round", "", "mean f", "of everyone's", "mean g", "largest", "bound")
        for name, asked, way, *figures in rows_of(task, chosen.seeds):
            table.add_row(name, str(asked), way, *(f"{figure:.4f}" for figure in figures), f"{task.bound:g}")
        Console(width=150).print(table)


if __name__ == "__main__":
    main()
