"""How many data passes a method takes to an accuracy: tuned on one seed, judged on others."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.stats import qmc

import softswitch as ss
from benchmarks import flat
from benchmarks.spider_claim.finite_sums import FiniteSum, Look
from benchmarks.spider_claim.loops import LOOPS, Loop, Settings
from softswitch_experiments.leaderboard.methods import Between, OneOf

TUNING_SEEDS = (1000, 1001)
FIRST_LOOK, FURTHER = 0.1, 1.2
"""Looks at all rows, which are not counted: after a tenth of a pass, and after a fifth more rows each."""
GOALS = (0.1, 0.03, 0.01)
ROUGH = GOALS[0]
"""The goal of the KKT residual: how near to stationary a point is says more of the last digits of f than f does."""


@dataclass(frozen=True)
class Effort:
    """How much is tried.

    Attributes:
        points: settings of each method.
        seeds: that judge.
        rows: that a run may look at,
        rounds: or so many passes, where every round goes through all rows.
    """

    points: int = 12
    seeds: int = 5
    rows: int = 2_000_000
    rounds: int = 1500


@dataclass(frozen=True, eq=False)
class Aim:
    """A task with what its goals are measured by.

    Attributes:
        task: the task.
        best: f*, the best that is known.
        first: ‖∇f‖ at the start.
        look: what all rows say of parameters.
    """

    task: FiniteSum
    best: float
    first: float
    look: Callable[[jax.Array], Look]

    @classmethod
    def of(cls, task: FiniteSum) -> Aim:
        """With the optimum found by a solver."""
        look = task.look()
        return cls(task, task.best(), look(task.start).slope, look)

    def error(self, look: Look) -> float:
        """The smallest δ with f <= (1 + δ) f* and g at most δ of its bound above it."""
        found = max(look.objective / self.best - 1, look.constraint / self.task.bound, 0.0)
        return found if math.isfinite(found) else math.inf

    def residual(self, look: Look, goal: float) -> float:
        """δ of a δ-KKT point: as far above the bound, and ‖∇f + μ∇g‖ in units of the start's ‖∇f‖.

        A constraint that is further than the goal below its bound has no price.
        """
        norm = look.kkt if look.constraint >= -goal * self.task.bound else look.slope
        found = max(norm / self.first, look.constraint / self.task.bound, 0.0)
        return found if math.isfinite(found) else math.inf


class Course(NamedTuple):
    """One run.

    Attributes:
        passes: at every look.
        looks: what all rows said then.
        most: passes that it could have taken.
    """

    passes: list[float]
    looks: list[Look]
    most: float

    def to(self, aim: Aim, goal: float, by: str = "error") -> float:
        """Data passes to the first look at which the goal is reached; infinite where none is."""
        for passes, look in zip(self.passes, self.looks, strict=True):
            if (aim.error(look) if by == "error" else aim.residual(look, goal)) <= goal:
                return passes
        return math.inf

    def nearest(self, aim: Aim) -> float:
        """The smallest error at any look."""
        return min(aim.error(look) for look in self.looks)


@dataclass(frozen=True, eq=False)
class Found:
    """A method's passes to every goal.

    Attributes:
        name: the method's.
        most: passes that a run could take.
        chosen: the settings that were best for each goal on the seeds that tune: by the slower of them.
        passes: of every judging seed to each goal,
        stationary: and to a KKT residual of the roughest.
    """

    name: str
    most: float
    chosen: Mapping[float, Settings]
    passes: Mapping[float, list[float]]
    stationary: Sequence[float] = ()


def played(aim: Aim, loop: Loop, settings: Settings, seed: int, effort: Effort, finest: float = min(GOALS)) -> Course:
    """A run to the end of its budget, or until the finest goal is reached and it is nearly stationary."""
    task, key = aim.task, jax.random.key(seed)
    most = float(effort.rounds) if loop.sees == "all" else effort.rows / task.count
    go_on, standing = loop.go_on(task, settings), loop.begun(task)
    course, after = Course([], [], most), FIRST_LOOK
    while after <= most:
        standing = go_on(standing, key, int(after * task.count))
        passes = int(standing.rows) / task.count
        course.passes.append(passes)
        course.looks.append(aim.look(standing.w))
        astray = not math.isfinite(course.looks[-1].objective)
        if astray or math.isfinite(course.to(aim, finest) + course.to(aim, ROUGH, "residual")):
            break
        after = max(after, passes) * FURTHER
    return course


def spread(space: Mapping[str, Between | OneOf], many: int) -> list[dict[str, Any]]:
    """So many settings, spread evenly over a space."""
    draws = qmc.Halton(len(space), seed=np.random.default_rng(zlib.crc32(repr(space).encode()))).random(many)
    return [{name: axis.at(place) for (name, axis), place in zip(space.items(), row, strict=True)} for row in draws]


def tried(aim: Aim, loop: Loop, effort: Effort) -> Found:
    """Tune for each goal, and judge; where no settings reach a goal, those count that come nearest."""
    points = spread(loop.space, effort.points)
    tuning = [[played(aim, loop, one, seed, effort) for seed in TUNING_SEEDS] for one in points]

    def order(goal: float, runs: list[Course]) -> tuple[float, float]:
        return max(run.to(aim, goal) for run in runs), max(run.nearest(aim) for run in runs)

    chosen = {goal: min(zip(points, tuning, strict=True), key=lambda one: order(goal, one[1]))[0] for goal in GOALS}
    judged = {
        str(settings): [played(aim, loop, settings, seed, effort) for seed in range(effort.seeds)]
        for settings in {str(one): one for one in chosen.values()}.values()
    }
    runs = {goal: judged[str(settings)] for goal, settings in chosen.items()}
    return Found(
        loop.name,
        tuning[0][0].most,
        chosen,
        {goal: [run.to(aim, goal) for run in runs[goal]] for goal in GOALS},
        [run.to(aim, ROUGH, "residual") for run in runs[ROUGH]],
    )


def by_default(aim: Aim, batch: int | None, effort: Effort) -> Found:
    """``solve`` with nothing but the tolerance and perhaps a batch; answers judged on its way are paid for."""
    problem, clients = aim.task.as_client()
    method, most = ss.Automatic(tolerance=aim.task.bound), effort.rows / aim.task.count
    a_round = 2.0 if batch is None else 3 * batch / aim.task.count  # reports are compared with those before
    how: dict[str, Any] = {} if batch is None else {"batch_size": batch, "value_batch_size": "same"}
    rounds = round(most / a_round)
    runs = [
        of_history(
            aim,
            flat.solve(
                problem,
                clients,
                method,
                seed=seed,
                rounds=rounds,
                eval_every=max(1, rounds // 100),
                lower_bound=False,
                progress=False,
                **how,
            ),
            most,
        )
        for seed in range(effort.seeds)
    ]
    name = "softswitch, default" + ("" if batch is None else f", batches of {batch}")
    return Found(name, most, {}, {goal: [run.to(aim, goal) for run in runs] for goal in GOALS})


def of_history(aim: Aim, result: ss.Result, most: float) -> Course:
    """A run of ``solve`` by the rounds that were evaluated, each before its step."""
    history, bound = result.history, aim.task.bound
    rows = np.concatenate([[0], history.value_evaluations + history.gradient_evaluations])[history.full_rounds]
    judged = [sum(cycle.judged for cycle in result.restarts if cycle.end <= k) for k in history.full_rounds]
    passes = rows / aim.task.count + judged
    within = passes <= most
    looks = [
        Look(float(f), float(g) - bound, math.nan, math.nan)
        for f, g in zip(history.full.objective[within], history.full.constraint[within], strict=True)
    ]
    return Course([float(one) for one in passes[within]], looks, most)


def with_one_batch(aim: Aim, batch: int, effort: Effort) -> tuple[list[float], list[float], float]:
    """Passes to the roughest goal with the same step and batch for both, nothing tuned: SPIDER penalty, switching.

    Switching sees g on all rows in every round. The last number is what its rounds cost, in units of the other's.
    """
    spider, switching = LOOPS[0], LOOPS[-1]
    every = 1000
    settings = {"step": 0.3, "batch": batch, "price": 3.0, "width": 0.01, "every": every}
    found = [
        [
            played(aim, loop, {name: settings[name] for name in loop.space}, seed, effort, ROUGH).to(aim, ROUGH)
            for seed in range(effort.seeds)
        ]
        for loop in (spider, switching)
    ]
    rows = aim.task.count
    return found[0], found[1], (rows + batch) / (rows / every + (1 - 1 / every) * 2 * batch + batch)


class Times(NamedTuple):
    """How many times another method's passes, seed by seed.

    Attributes:
        median: of the seeds.
        least: of them,
        most: and most.
        beyond: whether some run did not arrive, and counts with all that it could have taken.
    """

    median: float
    least: float
    most: float
    beyond: bool


def times(one: Found, other: Found, goal: float) -> Times | None:
    """By the seeds in which the other arrives; None where there is none."""
    pairs = [(up, down) for up, down in zip(one.passes[goal], other.passes[goal], strict=True) if math.isfinite(down)]
    if not pairs:
        return None
    each = [min(up, one.most) / down for up, down in pairs]
    return Times(float(np.median(each)), min(each), max(each), any(math.isinf(up) for up, _ in pairs))
