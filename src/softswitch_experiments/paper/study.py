"""A study: a task with the paper's settings and methods, and the numbers that experiments take from its runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from softswitch.data.client_data import ClientData
from softswitch.engine.sweep import sweep
from softswitch.methods.base import Method
from softswitch.oracles.evaluation import evaluate
from softswitch.oracles.options import group_options
from softswitch.problem.parameters import Params
from softswitch.problem.problem import Problem
from softswitch.results.result import Result
from softswitch.support.text import mean_and_spread
from softswitch_experiments.paper.experiment import Row, Scale
from softswitch_experiments.tasks.paper_settings import RUN


class StudyTask(Protocol):
    """A problem with its clients' training and test rows."""

    @property
    def problem(self) -> Problem:
        """What to solve."""
        ...

    @property
    def train(self) -> ClientData:
        """What to train on."""
        ...

    @property
    def test(self) -> ClientData:
        """Rows held out."""
        ...


@dataclass(frozen=True)
class Way:
    """How clients take part."""

    name: str
    local_steps: int
    participation: float


@dataclass(frozen=True)
class Grid:
    """The settings to try of one method.

    Attributes:
        symbol: the setting along the x-axis.
        values: its values.
        paper: its value in the paper.
        rule: makes the rule from value, second value and step size.
        other: the second setting, beside the step size, where there is one.
        others: its values.
    """

    symbol: str
    values: tuple[float, ...]
    paper: float
    rule: Callable[[float, float, float], Method]
    other: str = ""
    others: tuple[float, ...] = (0.0,)


@dataclass(frozen=True, eq=False)
class Study:
    """A task of the paper.

    Attributes:
        title: for figures.
        task: makes the task for a seed and, as keywords, a variant of it.
        rules: the methods at the paper's settings.
        full: every client in every round.
        partial: some clients, several local steps.
        tolerance: ε.
        rounds: K.
        quick_rounds: K in quick versions.
        batch_size: rows a batch.
        grids: what to try of each method.
        steps: step sizes of the grids.
        tuning_seeds: on how many seeds settings are chosen.
    """

    title: str
    task: Callable[..., StudyTask]
    rules: Mapping[str, Method]
    full: Way
    partial: Way
    tolerance: float
    rounds: int
    quick_rounds: int
    batch_size: int
    grids: Mapping[str, Grid]
    steps: tuple[float, ...]
    tuning_seeds: int
    _made: dict[Any, StudyTask] = field(default_factory=dict)

    def ways(self, scale: Scale) -> tuple[Way, ...]:
        """Both ways to take part; the quick version shows the first."""
        return (self.full,) if scale.quick else (self.full, self.partial)

    def tasks(self, seeds: int, first: int = 0, /, **variant: Any) -> list[StudyTask]:
        """One task a seed, from the seed ``first`` on, each made once."""
        found = []
        for seed in range(first, first + seeds):
            key = (seed, *sorted(variant.items()))
            if key not in self._made:
                self._made[key] = self.task(seed, **variant)
            found.append(self._made[key])
        return found

    def runs(
        self,
        rules: Mapping[str, Method],
        way: Way,
        scale: Scale,
        *,
        variant: Mapping[str, Any] | None = None,
        evaluations: int = 0,
        first: int = 0,
        keep: bool = True,
        **options: Any,
    ) -> dict[str, tuple[Result, ...]]:
        """Every rule with every seed, from the seed ``first`` on, each seed on its own task.

        ``evaluations`` says how often a run looks at all data, test rows included; 0: never, and then tasks whose
        clients differ in size share their programs. Runs are written down unless ``keep`` says otherwise.
        """
        own = self.tasks(scale.seeds, first, **(variant or {}))
        rounds = self.quick_rounds if scale.quick else self.rounds
        settings = RUN | {
            "rounds": rounds,
            "local_steps": way.local_steps,
            "participation": way.participation,
            "batch_size": self.batch_size,
            "eval_every": max(1, rounds // evaluations) if evaluations else 0,
            "held_out": [task.test for task in own] if evaluations else None,
            "progress": scale.progress,
        }
        found = sweep(
            [task.problem for task in own],
            [task.train for task in own],
            rules,
            seeds=range(first, first + scale.seeds),
            **group_options(**settings | options),
        )
        for label, results in found if keep else ():
            scale.add_runs(" ".join([label, way.name, *map(str, (variant or {}).values())]), results)
        return dict(found)


@dataclass(frozen=True)
class Point:
    """An iterate of a run, on all training data: every client's f_i and its largest g_i."""

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
        """The mean of f_i over the clients that have one."""
        return float(self.objective[np.isfinite(self.objective)].mean())

    @property
    def mean_constraint(self) -> float:
        """The mean of g_i over the clients that have one."""
        return float(self.constraint[np.isfinite(self.constraint)].mean())

    @property
    def violating(self) -> int:
        """How many clients are above the tolerance."""
        return int((self.constraint > self.tolerance).sum())


def averages(results: Sequence[Result]) -> list[Point]:
    """w̄, the average of the feasible iterates, of every seed's run."""
    return [Point(r.client_objective, r.client_constraint.max(axis=1), r.method.tolerance) for r in results]


def lasts(results: Sequence[Result], own: Sequence[StudyTask]) -> list[Point]:
    """The last iterate of every seed's run."""
    return [at(result.last, result, task) for result, task in zip(results, own, strict=True)]


def at(params: Params, result: Result, task: StudyTask) -> Point:
    """Any parameters on a task's training data."""
    objective, constraint = evaluate(task.problem, task.train, params)
    return Point(objective, constraint.max(axis=1), result.method.tolerance)


def answers(results: Sequence[Result], own: Sequence[StudyTask]) -> list[Point]:
    """What a user takes home, one a seed: w̄ from a switching method, the last iterate from the others."""
    return averages(results) if results[0].method.switches else lasts(results, own)


def mean(points: Sequence[Point], name: str) -> float:
    """The mean over seeds of a point's number."""
    return float(np.mean([getattr(point, name) for point in points]))


def paired(points: Sequence[Point], others: Sequence[Point], name: str) -> tuple[float, float]:
    """The mean over seeds of the first minus the second, and half its 95% interval: seeds share split and draws."""
    differences = [getattr(a, name) - getattr(b, name) for a, b in zip(points, others, strict=True)]
    return float(np.mean(differences)), half_interval(differences)


def half_interval(differences: Sequence[float] | np.ndarray) -> float:
    """Half of the 95% interval (Student's t) of a mean; infinite for a single number."""
    if len(differences) < 2:
        return float("inf")
    from scipy import stats  # takes half a second to import

    return float(stats.t(len(differences) - 1).isf(0.025) * stats.sem(differences))


def said(points: Sequence[Point], name: str) -> str:
    """Mean ± standard deviation over seeds."""
    return mean_and_spread([getattr(point, name) for point in points])


def reached(points: Sequence[Point]) -> str:
    """F and G, in words."""
    return f"F {said(points, 'worst_objective')}, G {said(points, 'worst_constraint')}"


def gradient_evaluations(result: Result) -> np.ndarray:
    """How many gradients led to each evaluated iterate: those of the rounds before it."""
    done = np.concatenate([[0], result.history.gradient_evaluations])
    return done[result.history.full_rounds]


def curve_rows(results: Sequence[Result], **labels: Any) -> list[Row]:
    """A row a seed and evaluated round: the worst and the mean client on training and test rows."""
    rows = []
    for result in results:
        history, spent = result.history, gradient_evaluations(result)
        for i, k in enumerate(history.full_rounds):
            row: Row = {"round": int(k), "gradient_evaluations": spent[i]}
            for part, seen in (("train", history.full), ("test", history.held_out)):
                if seen is not None:
                    row |= {f"{part}_{name}": float(values[i]) for name, values in seen._asdict().items()}
            rows.append({**labels, "seed": result.seed, **row})
    return rows


def answer_rows(points: Sequence[Point], **labels: Any) -> list[Row]:
    """A row a seed: what an answer reaches on the training data."""
    names = ("worst_objective", "worst_constraint", "mean_objective", "mean_constraint", "violating")
    return [
        {**labels, "seed": seed, **{name: getattr(point, name) for name in names}} for seed, point in enumerate(points)
    ]
