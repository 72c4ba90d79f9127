"""One cell of the leaderboard: a method on a task, tuned by successive halving and judged on fresh seeds."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from softswitch.engine.defaults import chosen_for
from softswitch.engine.sweep import sweep_federation
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory
from softswitch.results.result import Result
from softswitch_experiments.leaderboard.bench_method import BenchMethod, Settings
from softswitch_experiments.leaderboard.bench_task import BenchTask, Stage
from softswitch_experiments.leaderboard.scheme import Scheme

PRICE = 10.0
"""What a violation counts: 1% of the scale of the constraint as much as 10% of the objective's."""
TUNING_SEED = 1000
"""The seeds that judge are 0, 1, 2, …: none of them has tuned anything."""
LEAST = 1e-2
"""An objective that is smaller at the start is no unit."""
BYTES = 4
"""Of a number on the wire."""
SETTLED = 4
"""So often it is asked how many looks the rounds take that are left after paying for looks."""


@dataclass(frozen=True)
class Effort:
    """How much is spent on a cell.

    Attributes:
        points: settings that are tried.
        thirds: how often their number falls to a third while their budget grows to three times as much.
        seeds: fresh ones to judge by.
        share: of every task's budget.
    """

    points: int = 12
    thirds: int = 2
    seeds: int = 5
    share: float = 1.0


QUICK = Effort(points=3, thirds=1, seeds=2, share=0.05)


class Scored(NamedTuple):
    """What one run reaches on all training rows, by the better of its two answers.

    Attributes:
        merit: F in units of the start's plus ``PRICE`` times the violation in units of the bound: smaller is better.
        objective: F.
        constraint: G.
        answer: "average" of the feasible iterates, or the "last" one.
        passes: data passes it took.
        bytes: that all clients sent and received.
        rounds: how many.
    """

    merit: float
    objective: float
    constraint: float
    answer: str
    passes: float
    bytes: float
    rounds: int


class TaskUnits(NamedTuple):
    """Units of a task, by its start.

    Attributes:
        objective: of F.
        constraint: of G.
    """

    objective: float
    constraint: float

    @classmethod
    def of(cls, task: BenchTask, stage: Stage) -> TaskUnits:
        """|F|, of the optimum where it is 0 at the start; the bound, or a tenth of how far the start is from it."""
        federation = stage.federation
        judged = federation.oracle.evaluate_params(federation.start)
        beyond = abs(float(np.max(judged.constraint)) - task.tolerance)
        size = abs(float(np.max(judged.objective)))
        if size < LEAST:
            size = max(abs(task.optimum or 0.0), LEAST)
        return cls(size, max(task.tolerance, 0.1 * beyond, 1e-3))

    def merit(self, task: BenchTask, objective: float, constraint: float) -> float:
        """Of an answer; infinite where it is not finite."""
        if not (math.isfinite(objective) and math.isfinite(constraint)):
            return math.inf
        return objective / self.objective + PRICE * max(0.0, constraint - task.tolerance) / self.constraint


class CellRuns(NamedTuple):
    """A cell's task, method and stage, with what follows from them."""

    task: BenchTask
    method: BenchMethod
    stage: Stage
    scale: TaskUnits

    @property
    def memory(self) -> Memory | None:
        """How the server remembers, where it does: nothing is corrected where reports are of all rows."""
        oracle = self.stage.federation.oracle
        everyone, noisy = oracle.participants == oracle.client_count, oracle.report_batch_size is not None
        if self.method.corrects and noisy:
            return Memory(corrected=True)
        return Memory() if (self.method.remembers or self.method.corrects) and not everyone else None

    def rounds(self, share: float, by: str) -> int:
        """How many rounds a budget pays for: of data passes, or as many as the plain method has, of bytes.

        A run that chooses for itself pays for every answer that it has judged on its way, beside the last two, which
        all methods have.
        """
        oracle, budget = self.stage.federation.oracle, self.task.passes * share * self.stage.rows
        held = self.stage.rows * oracle.participants / oracle.client_count
        values, gradients = (float(rows) for rows in oracle.cost(held))
        a_round, a_look = values + gradients, float(self.stage.rows)
        if by == "passes":
            rule = self.method.made(self.method.points(1)[0], self.task.tolerance, 1)
            values *= 2 if rule.compares else 1 if self.memory is None else self.memory.values_a_report
            if rule.direction is not None:
                gradients = rule.direction.rows(gradients, held * oracle.local_steps)
            a_round = values + gradients
        else:  # in units of the rows of a plain round, which sends and receives one vector
            a_look = a_round * oracle.client_count / (2 * oracle.participants)
            a_round *= (self.method.sends + self.method.receives) / 2
        rounds = max(10, round(budget / a_round))
        if self.method.tuned:
            return rounds
        for _ in range(SETTLED):
            looks = chosen_for(self.stage.federation, rounds, self.memory).looks
            rounds = max(10, round((budget - looks * a_look) / a_round))
        return rounds

    def run(self, settings: list[Settings], seeds: list[int], rounds: int) -> list[list[Scored]]:
        """All settings with all seeds."""
        rules: dict[str, Method] = {
            str(i): self.method.made(one, self.task.tolerance, rounds) for i, one in enumerate(settings)
        }
        swept = sweep_federation(
            self.stage.federation,
            rules,
            seeds=seeds,
            rounds=rounds,
            answer="auto" if not self.method.tuned else "average",
            average_last=None if not self.method.tuned else 0.5,
            eval_every=0,
            memory=self.memory,
            progress=False,
        )
        return [[self._scored(result) for result in results] for results in swept.results]

    def _scored(self, result: Result) -> Scored:
        federation = self.stage.federation
        last = federation.oracle.evaluate_params(result.last)
        tried = {
            "average": (result.worst_objective, result.worst_constraint),
            "last": (float(np.max(last.objective)), float(np.max(last.constraint))),
        }
        merits = {name: self.scale.merit(self.task, *found) for name, found in tried.items()}
        best = min(merits, key=lambda name: merits[name])
        length, history = len(result.history), result.history
        evaluations = int(history.value_evaluations[-1] + history.gradient_evaluations[-1])
        looks = 1 + sum(cycle.judged for cycle in result.restarts) - len(tried) if result.restarts else 0
        size = sum(leaf.size for leaf in jax.tree.leaves(federation.start))
        numbers = (self.method.sends + self.method.receives) * size + 2 + federation.oracle.constraints
        oracle = federation.oracle
        sent = BYTES * (numbers * oracle.participants * length + looks * size * oracle.client_count)
        return Scored(merits[best], *tried[best], best, evaluations / self.stage.rows + looks, sent, length)


def played(task: BenchTask, method: BenchMethod, scheme: Scheme, effort: Effort) -> dict[str, Any]:
    """Tune and judge: what goes into the book."""
    began = time.perf_counter()
    stage = task.stage(scheme)
    cell = CellRuns(task, method, stage, TaskUnits.of(task, stage))
    settings, tried = _tuned(cell, effort)
    found: dict[str, list[Scored]] = {}
    for by in ("passes", "bytes"):
        rounds = cell.rounds(effort.share, by)
        same = by == "bytes" and rounds == found["passes"][0].rounds
        found[by] = found["passes"] if same else cell.run([settings], list(range(effort.seeds)), rounds)[0]
    return {
        "task": task.name,
        "method": method.name,
        "scheme": scheme.name,
        "effort": asdict(effort),
        "settings": settings,
        "tried": tried,
        "scale": cell.scale._asdict(),
        "start": _start(cell),
        "runs": {by: [one._asdict() for one in runs] for by, runs in found.items()},
        "seconds": time.perf_counter() - began,
    }


def _start(cell: CellRuns) -> float:
    judged = cell.stage.federation.oracle.evaluate_params(cell.stage.federation.start)
    return cell.scale.merit(cell.task, float(np.max(judged.objective)), float(np.max(judged.constraint)))


def _tuned(cell: CellRuns, effort: Effort) -> tuple[Settings, list[dict[str, Any]]]:
    """The best settings: all with a small budget, the best third with three times as much, and so on."""
    left: list[Settings] = list(cell.method.points(effort.points))
    tried: list[dict[str, Any]] = []
    if len(left) == 1:
        return left[0], tried
    for stage in range(effort.thirds + 1):
        share = effort.share / 3 ** (effort.thirds - stage)
        merits = [runs[0].merit for runs in cell.run(left, [TUNING_SEED], cell.rounds(share, "passes"))]
        tried += [{"settings": one, "share": share, "merit": merit} for one, merit in zip(left, merits, strict=True)]
        order = np.argsort(merits, kind="stable")
        left = [left[i] for i in order[: max(1, math.ceil(len(left) / 3))]]
    return left[0], tried
