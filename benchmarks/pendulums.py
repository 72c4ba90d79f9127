"""Pendulums under four gravities with one policy: Softmax SGM beside Parallel CRPO, seed by seed.

    python -m benchmarks.pendulums --seeds 10
    python -m benchmarks.pendulums --seeds 10 --learn-first 40 --rounds 60

Every run is kept as it ends (``--save``); called again, it goes on with those that are missing.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small matrices: threads would only wait for each other

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import t as student

import softswitch as ss
from benchmarks import flat
from softswitch_experiments.tasks.pendulums import pendulums

METHODS = {"Softmax SGM": 0.2, "Parallel CRPO": 0.0}
"""α of each: at 0 every client counts alike, in the direction and in the switch."""
BUDGET, NO_BOUND, ROUNDS, LAST = 15.0, 200.0, 100, 20
FIRST_SEED = 100


class Task(NamedTuple):
    """A run."""

    label: str
    seed: int
    rounds: int
    budget: float
    learn_first: int


def one(task: Task) -> dict[str, Any]:
    """Return and cost of every client in every round of a run."""
    settings: dict[str, Any] = {"gradient_episodes": 16, "estimation_episodes": 0, "kl_limit": 0.02, "seed": task.seed}
    options: dict[str, Any] = {"seed": task.seed, "eval_every": 0, "progress": False, "answer": "last"}
    clients = pendulums(budget=task.budget, **settings)
    if task.learn_first:  # for the mean of the clients, without a bound: the same start for every method
        free = ss.AverageSGM(step_size=1.0, tolerance=0.0)
        begun = flat.solve_federation(pendulums(budget=NO_BOUND, **settings), free, rounds=task.learn_first, **options)
        clients = replace(clients, start=begun.last)
    method = ss.SoftmaxSGM(alpha=METHODS[task.label], step_size=1.0, tolerance=0.0)
    result = flat.solve_federation(clients, method, rounds=task.rounds, record_clients=True, **options)
    assert result.history.per_client is not None
    told = result.history.per_client.metrics
    return {
        **task._asdict(),
        "names": list(result.names),
        "return": told["return"].tolist(),
        "cost": told["cost"].tolist(),
        "seconds": result.seconds,
    }


def all_runs(seeds: int, rounds: int, budget: float, learn_first: int, save: Path) -> list[dict[str, Any]]:
    """All runs; those that a file has already are not repeated."""
    done = json.loads(save.read_text(encoding="utf-8")) if save.exists() else []
    wanted = [
        Task(label, seed, rounds, budget, learn_first)
        for seed in range(FIRST_SEED, FIRST_SEED + seeds)
        for label in METHODS
    ]
    known = {_task(run) for run in done}
    save.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for run in pool.map(one, [task for task in wanted if task not in known]):
            done.append(run)
            save.write_text(json.dumps(done), encoding="utf-8")
    return [run for run in done if _task(run) in set(wanted)]


def _task(run: dict[str, Any]) -> Task:
    return Task(*(run[name] for name in Task._fields))


def last_rounds(runs: list[dict[str, Any]], label: str, what: str) -> np.ndarray:
    """Means over the last rounds; seeds × clients."""
    own = sorted((run for run in runs if run["method"] == label), key=lambda run: run["seed"])
    return np.asarray([np.asarray(run[what])[-LAST:].mean(axis=0) for run in own])


def table(runs: list[dict[str, Any]], budget: float) -> str:
    """Return and cost by client, and the worst of each; means over seeds with 95% intervals."""
    names = runs[0]["names"]
    lines = [
        f"| last {LAST} rounds, {len(last_rounds(runs, next(iter(METHODS)), 'cost'))} seeds | "
        + " | ".join([*names, "worst client"])
        + " |",
        "|---" * (len(names) + 2) + "|",
    ]
    for label in METHODS:
        for what, worst in (("return", np.min), ("cost", np.max)):
            values = last_rounds(runs, label, what)
            columns = np.concatenate([values, worst(values, axis=1, keepdims=True)], axis=1)
            cells = [_with_interval(column) for column in columns.T]
            lines.append(f"| {label}: {what} | " + " | ".join(cells) + " |")
    for what, worst in (("return", np.min), ("cost", np.max)):
        ours, theirs = (worst(last_rounds(runs, label, what), axis=1) for label in METHODS)
        lines.append(f"\nworst {what}, Softmax SGM less Parallel CRPO, paired by seed: {_with_interval(ours - theirs)}")
    over = {label: int((last_rounds(runs, label, "cost").max(axis=1) > budget).sum()) for label in METHODS}
    lines.append(f"seeds whose worst client is above the budget of {budget:g}: {over}")
    lines.append(f"seconds a run: {np.mean([run['seconds'] for run in runs]):.0f}")
    return "\n".join(lines)


def _with_interval(values: np.ndarray) -> str:
    half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{values.mean():.1f} ± {half:.1f}"


def figure(runs: list[dict[str, Any]], budget: float, file: Path) -> None:
    """The worst client's return and cost over the rounds: the mean of the seeds, and their middle half."""
    drawn, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for label, colour in zip(METHODS, ("#2060a0", "#c05020"), strict=True):
        for axis, (what, worst) in zip(axes, (("return", np.min), ("cost", np.max)), strict=True):
            values = np.asarray([worst(np.asarray(run[what]), axis=1) for run in runs if run["method"] == label])
            low, high = np.quantile(values, [0.25, 0.75], axis=0)
            axis.plot(values.mean(axis=0), color=colour, label=label)
            axis.fill_between(range(values.shape[1]), low, high, color=colour, alpha=0.2, linewidth=0)
            axis.set(xlabel="round", ylabel=f"worst client's {what} an episode")
    axes[1].axhline(budget, color="grey", linestyle="--", linewidth=1, label="budget")
    axes[1].legend(frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(file, dpi=110)
    plt.close(drawn)


def main() -> None:
    """Run what is missing, print the table, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--budget", type=float, default=BUDGET, help="fast steps an episode; 200 is no bound at all")
    parser.add_argument("--learn-first", type=int, default=0, help="rounds without a bound before those with it")
    parser.add_argument("--save", type=Path, default=Path("build/pendulums.json"))
    parser.add_argument("--figure", type=Path, default=Path("build/pendulums.png"))
    given = parser.parse_args()
    runs = all_runs(given.seeds, given.rounds, given.budget, given.learn_first, given.save)
    print(table(runs, given.budget))
    figure(runs, given.budget, given.figure)


if __name__ == "__main__":
    main()
