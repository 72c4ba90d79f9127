"""What the Neyman–Pearson experiments share: data, settings, methods, and the numbers taken from a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from softswitch.paper.experiment import Row, Scale
from softswitch.result import Result
from softswitch.rules import AverageSGM, Penalty, PrimalDual, Rule, SoftmaxSGM
from softswitch.solve import evaluate
from softswitch.sweep import sweep
from softswitch.tasks.neyman_pearson import BreastCancer, breast_cancer
from softswitch.text import mean_and_spread

CLIENTS, ROUNDS, TOLERANCE, ALPHA = 20, 1000, 0.1, 6400.0
HELD_OUT_SPLIT = 42
"""The seed of the split into training and test rows, the same for all runs; a run's seed deals rows to clients."""


@dataclass(frozen=True)
class Way:
    """How clients take part."""

    name: str
    local_steps: int
    participation: float

    @property
    def options(self) -> dict[str, Any]:
        """For ``solve`` and ``sweep``."""
        return {"local_steps": self.local_steps, "participation": self.participation}


FULL = Way("E = 1, m = n", 1, 1.0)
PARTIAL = Way("E = 5, m/n = 0.5", 5, 0.5)


def ways(scale: Scale) -> tuple[Way, ...]:
    """Both of the paper's ways to take part; the quick version shows the first."""
    both: tuple[Way, ...] = scale.pick((FULL, PARTIAL), (FULL,))
    return both


PAPER: dict[str, Rule] = {
    "Softmax SGM": SoftmaxSGM(alpha=ALPHA, step_size=0.5, tolerance=TOLERANCE),
    "Penalty": Penalty(penalty=2.5, step_size=0.1, tolerance=TOLERANCE),
    "Primal-dual": PrimalDual(multiplier=2.5, dual_step_size=0.01, step_size=0.1, tolerance=TOLERANCE),
}
"""The methods at the paper's settings."""
AVERAGE = AverageSGM(step_size=0.5, tolerance=TOLERANCE)


@lru_cache
def tasks(seeds: int, concentration: float | None = None) -> tuple[BreastCancer, ...]:
    """One split over clients a seed."""
    return tuple(
        breast_cancer(CLIENTS, seed=seed, split_seed=HELD_OUT_SPLIT, concentration=concentration)
        for seed in range(seeds)
    )


def runs(
    rules: Mapping[str, Rule],
    way: Way,
    scale: Scale,
    *,
    concentration: float | None = None,
    evaluations: int = 0,
    **options: Any,
) -> dict[str, tuple[Result, ...]]:
    """Every rule with every seed, each seed on its own split; ``evaluations`` on all data in the course of a run."""
    own = tasks(scale.seeds, concentration)
    rounds = scale.pick(ROUNDS, 200)
    settings = {"rounds": rounds, "eval_every": rounds // evaluations if evaluations else 0} | way.options | options
    data = [task.train for task in own]
    held_out = [task.test for task in own]
    found = sweep(
        own[0].problem, data, rules, seeds=scale.seeds, held_out=held_out, progress=scale.progress, **settings
    )
    return dict(found)


@dataclass(frozen=True)
class Point:
    """An iterate of a run, on all training data: every client's f_i and g_i."""

    objective: np.ndarray
    constraint: np.ndarray

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
        return int((self.constraint > TOLERANCE).sum())


def average(result: Result) -> Point:
    """w̄, the average of the feasible iterates."""
    return Point(result.client_objective, result.client_constraint[:, 0])


def averages(results: Sequence[Result]) -> list[Point]:
    """w̄ of every seed's run."""
    return [average(result) for result in results]


def lasts(results: Sequence[Result], own: Iterable[BreastCancer]) -> list[Point]:
    """The last iterate of every seed's run."""
    found = []
    for result, task in zip(results, own, strict=True):
        objective, constraint = evaluate(task.problem, task.train, result.last)
        found.append(Point(objective, constraint[:, 0]))
    return found


def answers(results: Sequence[Result], own: Iterable[BreastCancer]) -> list[Point]:
    """What a user takes home, one a seed: w̄ from a switching method, the last iterate from the others."""
    return averages(results) if results[0].rule.switches else lasts(results, own)


def mean(points: Sequence[Point], name: str) -> float:
    """The mean over seeds of a point's number."""
    return float(np.mean([getattr(point, name) for point in points]))


def said(points: Sequence[Point], name: str) -> str:
    """Mean ± standard deviation over seeds."""
    return mean_and_spread([getattr(point, name) for point in points])


def curve_rows(results: Sequence[Result], **labels: Any) -> list[Row]:
    """A row a seed and evaluated round: the worst and the mean client on training and test rows."""
    rows = []
    for result in results:
        history = result.history
        for i, k in enumerate(history.full_rounds):
            row: Row = {"round": int(k), "gradient_evaluations": gradient_evaluations(result)[i]}
            for part, seen in (("train", history.full), ("test", history.held_out)):
                if seen is not None:
                    row |= {f"{part}_{name}": float(values[i]) for name, values in seen._asdict().items()}
            rows.append({**labels, "seed": result.seed, **row})
    return rows


def gradient_evaluations(result: Result) -> np.ndarray:
    """How many gradients led to each evaluated iterate: those of the rounds before it."""
    done = np.concatenate([[0], result.history.gradient_evaluations])
    return done[result.history.full_rounds]


def answer_rows(points: Sequence[Point], **labels: Any) -> list[Row]:
    """A row a seed: what an answer reaches on the training data."""
    names = ("worst_objective", "worst_constraint", "mean_objective", "mean_constraint", "violating")
    return [
        {**labels, "seed": seed, **{name: getattr(point, name) for name in names}} for seed, point in enumerate(points)
    ]
