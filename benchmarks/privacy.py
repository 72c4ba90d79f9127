"""An audit of the stated ε, and what privacy costs: the worst client's objective and constraint at several ε.

``python -m benchmarks.privacy [--releases 4000]`` prints the audit.
``python -m benchmarks.privacy --costs [--seeds 10] [--quick] [--only opportunity] [--clip-value 3] [--figure FILE]``
prints the costs. Needs ``pip install 'softswitch[privacy]'``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import softswitch as ss
from benchmarks import flat
from benchmarks.privacy_audit import DELTA, audit
from softswitch_experiments.plotting import BLUE, VERMILLION, make_narrow_panels, plot_tolerance
from softswitch_experiments.tasks.fair_classification import adult
from softswitch_experiments.tasks.neyman_pearson import neyman_pearson

BUDGETS = (None, 8.0, 3.0, 1.0)
FEATURES = 10
CLIP_VALUE = ss.RecordPrivacy(epsilon=1).clip_value


class Outcome(NamedTuple):
    """Of one run: F and G on the rows as they are, and what the clients told of G."""

    objective: float
    constraint: float
    told: float


@dataclass(frozen=True)
class PrivateTask:
    """A problem with its clients, for a seed.

    Attributes:
        name: for the table.
        make: makes problem and clients of a seed.
        bound: the tolerance.
        in_quick: whether a quick look has it.
        clip_value: how long what one row tells is at most.
    """

    name: str
    make: Callable[[int], tuple[ss.Problem, ss.ClientData]]
    bound: float
    in_quick: bool = False
    clip_value: float = CLIP_VALUE


def _two_classes(rows: int) -> Callable[[int], tuple[ss.Problem, ss.ClientData]]:
    """Ten clients with so many rows of each class, Gaussian, whose positive class lies elsewhere at each client."""

    def make(seed: int) -> tuple[ss.Problem, ss.ClientData]:
        generator = np.random.default_rng(seed)
        labels, features, owners = [], [], []
        for client in range(10):
            y = np.repeat([0, 1], rows)
            apart = 0.3 * generator.normal(size=FEATURES)
            apart[0] += 2.0
            x = generator.normal(size=(2 * rows, FEATURES)) + y[:, None] * apart
            features.append(np.column_stack([x, np.ones(2 * rows)]))
            labels.append(y)
            owners.append(np.full(2 * rows, client))
        columns = {"x": np.concatenate(features).astype(np.float32), "y": np.concatenate(labels)}
        return neyman_pearson(FEATURES + 1), ss.ClientData.from_arrays(columns, client=np.concatenate(owners))

    return make


def _adult(sides: str) -> Callable[[int], tuple[ss.Problem, ss.ClientData]]:
    def make(seed: int) -> tuple[ss.Problem, ss.ClientData]:
        made = adult(10, seed=seed, hidden=(), sides=sides)
        return made.problem, made.train

    return make


TASKS = (
    PrivateTask("Neyman–Pearson, 5,000 rows a class", _two_classes(5000), 0.3),
    PrivateTask("Neyman–Pearson, 1,000 rows a class", _two_classes(1000), 0.3, in_quick=True),
    PrivateTask("Adult, parity", _adult("parity"), 0.1, in_quick=True),
    PrivateTask("Adult, opportunity", _adult("opportunity"), 0.1, clip_value=10.0),
)


def outcome(task: PrivateTask, budget: float | None, seed: int, clip_value: float | None = None) -> Outcome:
    """One run, judged on the rows as they are.

    Args:
        task: what to solve.
        budget: ε; None: without privacy.
        seed: of the data and of the run.
        clip_value: how long what one row tells is at most; None: as the task has it.
    """
    problem, clients = task.make(seed)
    method = ss.Automatic(tolerance=task.bound)
    if budget is None:
        result = flat.solve(problem, clients, method, seed=seed, lower_bound=False, progress=False)
    else:
        privacy = ss.RecordPrivacy(epsilon=budget, clip_value=clip_value or task.clip_value)
        result = flat.solve(problem, clients, method, seed=seed, privacy=privacy, progress=False)
    objective, constraint = ss.evaluate(problem, clients, result.params)
    return Outcome(float(objective.max()), float(constraint.max()), float(result.client_constraint.max()))


def main() -> None:
    """Print the audit or the costs, and draw the figure where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", type=int, default=4000, help="of each kind in the audit")
    parser.add_argument("--costs", action="store_true", help="print the costs of privacy instead of the audit")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="two tasks, two seeds")
    parser.add_argument("--only", default="", help="tasks whose name has this")
    parser.add_argument("--clip-value", type=float, help="instead of the tasks' own")
    parser.add_argument("--figure")
    asked = parser.parse_args()
    if not asked.costs:
        _print_audit(asked.releases)
        return
    tasks = [task for task in TASKS if (task.in_quick or not asked.quick) and asked.only in task.name]
    seeds = 2 if asked.quick else asked.seeds
    table = Table("task", "ε", "F", "G (bound)", "G at most", "within the bound", title=f"{seeds} seeds, δ = 1e-5")
    found = {}
    console = Console(width=120)
    for task in tasks:
        for budget in BUDGETS:
            runs = [outcome(task, budget, seed, asked.clip_value) for seed in range(seeds)]
            found[task.name, budget] = runs
            objective, constraint = (np.array([getattr(run, name) for run in runs]) for name in Outcome._fields[:2])
            table.add_row(
                task.name,
                "none" if budget is None else f"{budget:g}",
                f"{objective.mean():.3f} ± {objective.std():.3f}",
                f"{constraint.mean():.3f} ± {constraint.std():.3f} ({task.bound:g})",
                f"{constraint.max():.3f}",
                f"{(constraint <= task.bound + 1e-4).sum()} of {seeds}",
            )
            console.print(f"{task.name}, ε {budget}: F {objective.mean():.3f}, G {constraint.mean():.3f}")
    console.print(table)
    if asked.figure:
        _draw(asked.figure, tasks, found)


def _print_audit(releases: int) -> None:
    """Print lower bounds on ε from attacks, for all rows and for a Poisson sample of them."""
    table = Table("rows", "release", "stated ε", "by value", "by low bits", title=f"lower bounds on ε, δ = {DELTA}")
    for rate in (1.0, 0.3):
        for row in audit(releases, rate=rate):
            numbers = (f"{number:.2f}" for number in row[1:])
            table.add_row("all" if rate == 1 else f"a share of {rate:g}", row.kind, *numbers)
    Console(width=100).print(table)


def _draw(file: str, tasks: list[PrivateTask], found: dict[tuple[str, float | None], list[Outcome]]) -> None:
    """One panel a task: F and G over ε, the means, and from the smallest to the largest of all seeds."""
    figure, axes = make_narrow_panels(1, len(tasks))
    for axis, task in zip(axes[0], tasks, strict=True):
        for name, colour, label in (("objective", BLUE, "worst F"), ("constraint", VERMILLION, "worst G")):
            values = np.array([[getattr(run, name) for run in found[task.name, budget]] for budget in BUDGETS])
            middle = values.mean(axis=1)
            ends = np.stack([middle - values.min(axis=1), values.max(axis=1) - middle])
            places = np.arange(len(BUDGETS))
            axis.errorbar(places, middle, yerr=ends, color=colour, marker="o", markersize=4, capsize=3, label=label)
        plot_tolerance(axis, task.bound)
        axis.set_title(task.name)
        axis.set_xticks(range(len(BUDGETS)), ["none", *(f"{budget:g}" for budget in BUDGETS[1:])])
        axis.set_xlabel("ε")
        axis.set_ylim(bottom=0)
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()
