"""A study: a task with the settings and methods of the paper, and the values that experiments read from its runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from softswitch.engine.sweep import sweep
from softswitch.methods.base import Method
from softswitch.oracles.out_of_core import evaluate
from softswitch.results.result import Result
from softswitch.support.text import format_mean_std
from softswitch_experiments.options import group_options
from softswitch_experiments.paper.experiment import Row, Scale
from softswitch_experiments.tasks.fair_classification import Adult
from softswitch_experiments.tasks.neyman_pearson import BreastCancer
from softswitch_experiments.tasks.paper_settings import RUN

StudyTask = BreastCancer | Adult
Runs = dict[str, tuple[Result, ...]]
"""Results of each method, one per seed."""


@dataclass(frozen=True)
class Scheme:
    """Number of local steps, and share of the clients that participate in a round."""

    name: str
    local_steps: int
    participation: float


@dataclass(frozen=True)
class Grid:
    """Settings of one method to try.

    Attributes:
        make: Function that returns the method for a value, a second value and a step size.
    """

    symbol: str  # setting on the x-axis
    values: tuple[float, ...]  # its values
    paper: float  # its value in the paper
    make: Callable[[float, float, float], Method]
    second: str = ""  # second setting, if there is one
    second_values: tuple[float, ...] = (0.0,)  # its values


@dataclass(frozen=True, eq=False)
class Study:
    """A task of the paper."""

    title: str  # title for figures
    make_task: Callable[..., StudyTask]  # function that returns the task for a seed and, as keywords, a variant
    methods: Mapping[str, Method]  # methods at the settings of the paper
    full: Scheme  # scheme with all clients in every round
    partial: Scheme  # scheme with some clients and several local steps
    tolerance: float  # ε
    rounds: int  # K
    quick_rounds: int  # K of the quick version
    batch_size: int  # rows per batch
    grids: Mapping[str, Grid]  # settings of each method to try
    steps: tuple[float, ...]  # step sizes of the grids
    tuning_seeds: int  # number of seeds for tuning
    _cache: dict[Any, StudyTask] = field(default_factory=dict)

    def schemes(self, scale: Scale) -> tuple[Scheme, ...]:
        """Return both schemes, or the first for the quick version."""
        return (self.full,) if scale.quick else (self.full, self.partial)

    def tasks(self, seeds: int, first: int = 0, /, **variant: Any) -> list[StudyTask]:
        """Return one task per seed, from the seed ``first`` on."""
        tasks = []
        for seed in range(first, first + seeds):
            key = (seed, *sorted(variant.items()))
            if key not in self._cache:
                self._cache[key] = self.make_task(seed, **variant)
            tasks.append(self._cache[key])
        return tasks

    def run(
        self,
        methods: Mapping[str, Method],
        scheme: Scheme,
        scale: Scale,
        *,
        variant: Mapping[str, Any] | None = None,
        evaluations: int = 0,
        first: int = 0,
        keep: bool = True,
        **options: Any,
    ) -> Runs:
        """Run every method with every seed, from the seed ``first`` on, each seed on its own task.

        Each run evaluates all data, with test rows, ``evaluations`` times. Without evaluations, tasks with clients of
        different sizes share their compiled programs. With ``keep``, the runs are written to the output folder.
        """
        tasks = self.tasks(scale.seeds, first, **(variant or {}))
        rounds = self.quick_rounds if scale.quick else self.rounds
        settings = RUN | {
            "rounds": rounds,
            "local_steps": scheme.local_steps,
            "participation": scheme.participation,
            "batch_size": self.batch_size,
            "eval_every": max(1, rounds // evaluations) if evaluations else 0,
            "held_out": [task.test for task in tasks] if evaluations else None,
            "progress": scale.progress,
        }
        runs = sweep(
            [task.problem for task in tasks],
            [task.train for task in tasks],
            methods,
            seeds=range(first, first + scale.seeds),
            **group_options(**settings | options),
        )
        for label, results in runs if keep else ():
            scale.add_runs(" ".join([label, scheme.name, *map(str, (variant or {}).values())]), results)
        return dict(runs)


@dataclass(frozen=True)
class Point:
    """An iterate of a run on all training data: f_i of every client, and its largest g_i."""

    objective: np.ndarray
    constraint: np.ndarray
    tolerance: float

    @property
    def worst_objective(self) -> float:
        """F."""
        return float(self.objective.max())

    @property
    def worst_constraint(self) -> float:
        """G."""
        return float(self.constraint.max())

    @property
    def mean_objective(self) -> float:
        """Mean of f_i over the clients that have one."""
        return float(self.objective[np.isfinite(self.objective)].mean())

    @property
    def mean_constraint(self) -> float:
        """Mean of g_i over the clients that have one."""
        return float(self.constraint[np.isfinite(self.constraint)].mean())

    @property
    def violating(self) -> int:
        """Number of clients above the tolerance."""
        return int((self.constraint > self.tolerance).sum())


def averages(results: Sequence[Result]) -> list[Point]:
    """Return w̄, the average of the feasible iterates, for every seed."""
    return [Point(r.client_objective, r.client_constraint.max(axis=1), r.method.tolerance) for r in results]


def last_iterates(results: Sequence[Result], tasks: Sequence[StudyTask]) -> list[Point]:
    """Return the last iterate for every seed."""
    points = []
    for result, task in zip(results, tasks, strict=True):
        objective, constraint = evaluate(task.problem, task.train, result.last)
        points.append(Point(objective, constraint.max(axis=1), result.method.tolerance))
    return points


def answers(results: Sequence[Result], tasks: Sequence[StudyTask]) -> list[Point]:
    """Return w̄ for a switching method and the last iterate for any other, for every seed."""
    return averages(results) if results[0].method.switches else last_iterates(results, tasks)


def values_of(points: Sequence[Point], name: str) -> list[float]:
    """Return an attribute of every point."""
    return [getattr(point, name) for point in points]


def mean(points: Sequence[Point], name: str) -> float:
    """Return the mean of an attribute over seeds."""
    return float(np.mean(values_of(points, name)))


def paired_difference(points: Sequence[Point], others: Sequence[Point], name: str) -> tuple[float, float]:
    """Return the mean of the first minus the second over seeds, and half its 95% interval."""
    differences = [a - b for a, b in zip(values_of(points, name), values_of(others, name), strict=True)]
    return float(np.mean(differences)), half_interval(differences)


def half_interval(values: Sequence[float] | np.ndarray) -> float:
    """Return half of the 95% interval (Student's t) of a mean, infinite for a single number."""
    if len(values) < 2:
        return float("inf")
    from scipy import stats  # slow to import

    return float(stats.t(len(values) - 1).isf(0.025) * stats.sem(values))


def format_mean(points: Sequence[Point], name: str) -> str:
    """Return mean ± standard deviation over seeds."""
    return format_mean_std(values_of(points, name))


def format_point(points: Sequence[Point]) -> str:
    """Return F and G as text."""
    return f"F {format_mean(points, 'worst_objective')}, G {format_mean(points, 'worst_constraint')}"


def gradient_evaluations(result: Result) -> np.ndarray:
    """Return the number of gradients before each evaluated iterate."""
    cumulative = np.concatenate([[0], result.history.gradient_evaluations])
    return cumulative[result.history.full_rounds]


def curve_rows(results: Sequence[Result], **labels: Any) -> list[Row]:
    """Return a row per seed and evaluated round: the worst and the mean client on training and test data."""
    rows = []
    for result in results:
        history, gradients = result.history, gradient_evaluations(result)
        for i, k in enumerate(history.full_rounds):
            row: Row = {"round": int(k), "gradient_evaluations": gradients[i]}
            for part, curves in (("train", history.full), ("test", history.held_out)):
                if curves is not None:
                    row |= {f"{part}_{name}": float(values[i]) for name, values in curves._asdict().items()}
            rows.append({**labels, "seed": result.seed, **row})
    return rows


def answer_rows(points: Sequence[Point], **labels: Any) -> list[Row]:
    """Return a row per seed: the values of an answer on the training data."""
    names = ("worst_objective", "worst_constraint", "mean_objective", "mean_constraint", "violating")
    return [
        {**labels, "seed": seed, **{name: getattr(point, name) for name in names}} for seed, point in enumerate(points)
    ]
