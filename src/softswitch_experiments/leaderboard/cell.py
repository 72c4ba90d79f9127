"""One cell of the leaderboard: a method on a task, tuned by successive halving and evaluated on other seeds."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from softswitch.engine.auto_tuning import choose_for_federation
from softswitch.engine.request import resolve_method
from softswitch.engine.sweep import sweep
from softswitch.methods.automatic import Automatic
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory
from softswitch.oracles.options import Logging, Output, Sampling
from softswitch.results.result import Result
from softswitch_experiments.leaderboard.methods import BenchMethod, Settings
from softswitch_experiments.leaderboard.tasks import BenchTask, Scheme, Setup

VIOLATION_PRICE = 10.0
"""Weight of a violation: 1% of the unit of the constraint counts as much as 10% of the unit of the objective."""
TUNING_SEED = 1000
"""Seed of the tuning runs. The evaluation uses the seeds 0, 1, 2, …"""
MIN_OBJECTIVE_UNIT = 1e-2
BYTES_PER_NUMBER = 4
ROUND_ITERATIONS = 4
"""Iterations for the number of rounds, which depends on the evaluations that these rounds need."""


@dataclass(frozen=True)
class Effort:
    """Computation per cell."""

    trials: int = 12  # number of settings to try
    rungs: int = 2  # how often their number is reduced to a third while the budget is tripled
    seeds: int = 5  # number of seeds for the evaluation
    budget_share: float = 1.0  # share of the budget of every task


QUICK = Effort(trials=3, rungs=1, seeds=2, budget_share=0.05)


class Score(NamedTuple):
    """Result of one run on all training rows, for the better of its two answers."""

    merit: float  # F in its unit plus ``VIOLATION_PRICE`` times the violation in its unit. Smaller is better
    objective: float  # F
    constraint: float  # G
    answer: str  # "average" of the feasible iterates, or "last" iterate
    passes: float  # passes over the data
    bytes: float  # bytes that all clients sent and received
    rounds: int  # number of rounds


class TaskUnits(NamedTuple):
    """Units of the objective and the constraint of a task."""

    objective: float
    constraint: float

    @classmethod
    def measure(cls, task: BenchTask, setup: Setup) -> TaskUnits:
        """Return the units from the values at the start.

        The unit of the objective is |F| at the start, or |F*| if that is almost 0. The unit of the constraint is the
        bound, or a tenth of the distance from the start to it.
        """
        objective, constraint = _evaluate(setup, setup.federation.start)
        objective_unit = abs(objective)
        if objective_unit < MIN_OBJECTIVE_UNIT:
            objective_unit = max(abs(task.optimum or 0.0), MIN_OBJECTIVE_UNIT)
        return cls(objective_unit, max(task.tolerance, 0.1 * abs(constraint - task.tolerance), 1e-3))

    def merit(self, task: BenchTask, objective: float, constraint: float) -> float:
        """Return the merit of an answer, infinite if a value is not finite."""
        if not (math.isfinite(objective) and math.isfinite(constraint)):
            return math.inf
        violation = max(0.0, constraint - task.tolerance)
        return objective / self.objective + VIOLATION_PRICE * violation / self.constraint


def _evaluate(setup: Setup, params: Any) -> tuple[float, float]:
    """Return F and G on all rows."""
    values = setup.federation.oracle.evaluate_params(params)
    return float(np.max(values.objective)), float(np.max(values.constraint))


class Cell(NamedTuple):
    """A method on a task."""

    task: BenchTask
    method: BenchMethod
    setup: Setup
    units: TaskUnits

    @property
    def memory(self) -> Memory | None:
        """The server's memory, if it has one. Reports on all rows need no drift correction."""
        oracle = self.setup.federation.oracle
        all_participate, is_noisy = oracle.participants == oracle.client_count, oracle.report_batch_size is not None
        if self.method.corrects and is_noisy:
            return Memory(corrected=True)
        return Memory() if (self.method.remembers or self.method.corrects) and not all_participate else None

    def rounds(self, share: float, budget_kind: str) -> int:
        """Return the rounds that a share of the budget pays for, at equal "passes" or equal "bytes".

        The budget in bytes is that of the plain method at equal passes. A method that tunes itself also pays for the
        answers that it evaluates on the way, except the last two, which all methods have.
        """
        oracle, budget = self.setup.federation.oracle, self.task.passes * share * self.setup.rows
        held = self.setup.rows * oracle.participants / oracle.client_count
        values, gradients = (float(rows) for rows in oracle.cost(held))
        round_cost, evaluation_cost = values + gradients, float(self.setup.rows)
        if budget_kind == "passes":
            method = resolve_method(self.method.make(self.method.draw_settings(1)[0], self.task.tolerance, 1))
            values *= 2 if method.compares else 1 if self.memory is None else self.memory.values_a_report
            round_cost = values + gradients
        else:  # in units of the rows of a plain round, which sends and receives one vector
            evaluation_cost = round_cost * oracle.client_count / (2 * oracle.participants)
            round_cost *= (self.method.sends + self.method.receives) / 2
        rounds = max(10, round(budget / round_cost))
        if self.method.tuned:
            return rounds
        for _ in range(ROUND_ITERATIONS):
            evaluations = choose_for_federation(self.setup.federation, rounds, self.memory).count_evaluations()
            rounds = max(10, round((budget - evaluations * evaluation_cost) / round_cost))
        return rounds

    def run(self, settings: list[Settings], seeds: list[int], rounds: int) -> list[list[Score]]:
        """Run all settings with all seeds."""
        methods: dict[str, Method | Automatic] = {
            str(i): self.method.make(one, self.task.tolerance, rounds) for i, one in enumerate(settings)
        }
        swept = sweep(
            self.setup.federation,
            None,
            methods,
            seeds=seeds,
            rounds=rounds,
            sampling=Sampling(memory=self.memory),
            output=Output(
                iterate="auto" if not self.method.tuned else "average",
                average_last=None if not self.method.tuned else 0.5,
            ),
            logging=Logging(eval_every=0, progress=False),
        )
        return [[self._score(result) for result in results] for results in swept.results]

    def _score(self, result: Result) -> Score:
        federation, oracle, history = self.setup.federation, self.setup.federation.oracle, result.history
        answers = {
            "average": (result.worst_objective, result.worst_constraint),
            "last": _evaluate(self.setup, result.last),
        }
        merits = {name: self.units.merit(self.task, *values) for name, values in answers.items()}
        best = min(merits, key=lambda name: merits[name])
        rows = int(history.value_evaluations[-1] + history.gradient_evaluations[-1])
        evaluations = 1 + sum(one.judged for one in result.restarts) - len(answers) if result.restarts else 0
        size = sum(leaf.size for leaf in jax.tree.leaves(federation.start))
        numbers = (self.method.sends + self.method.receives) * size + 2 + oracle.constraints
        sent = BYTES_PER_NUMBER * (
            numbers * oracle.participants * len(history) + evaluations * size * oracle.client_count
        )
        return Score(merits[best], *answers[best], best, rows / self.setup.rows + evaluations, sent, len(history))

    def tune(self, effort: Effort) -> tuple[Settings, list[dict[str, Any]]]:
        """Return the best settings and all trials of successive halving by thirds."""
        candidates: list[Settings] = list(self.method.draw_settings(effort.trials))
        trials: list[dict[str, Any]] = []
        if len(candidates) == 1:
            return candidates[0], trials
        for rung in range(effort.rungs + 1):
            share = effort.budget_share / 3 ** (effort.rungs - rung)
            merits = [runs[0].merit for runs in self.run(candidates, [TUNING_SEED], self.rounds(share, "passes"))]
            trials += [
                {"settings": one, "share": share, "merit": merit} for one, merit in zip(candidates, merits, strict=True)
            ]
            order = np.argsort(merits, kind="stable")
            candidates = [candidates[i] for i in order[: max(1, math.ceil(len(candidates) / 3))]]
        return candidates[0], trials


def run_cell(task: BenchTask, method: BenchMethod, scheme: Scheme, effort: Effort) -> dict[str, Any]:
    """Tune and evaluate a method on a task; return the content of its file."""
    start_time = time.perf_counter()
    setup = task.setup(scheme)
    cell = Cell(task, method, setup, TaskUnits.measure(task, setup))
    settings, trials = cell.tune(effort)
    scores: dict[str, list[Score]] = {}
    for kind in ("passes", "bytes"):
        rounds = cell.rounds(effort.budget_share, kind)
        is_same = kind == "bytes" and rounds == scores["passes"][0].rounds
        scores[kind] = scores["passes"] if is_same else cell.run([settings], list(range(effort.seeds)), rounds)[0]
    return {
        "task": task.name,
        "method": method.name,
        "scheme": scheme.name,
        "effort": asdict(effort),
        "settings": settings,
        "trials": trials,
        "units": cell.units._asdict(),
        "start": cell.units.merit(task, *_evaluate(setup, setup.federation.start)),
        "runs": {kind: [score._asdict() for score in runs] for kind, runs in scores.items()},
        "seconds": time.perf_counter() - start_time,
    }
