"""What an answer is worth: models without the constraint and constant predictions, put beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from softswitch.clients.client_data import ClientData
from softswitch.clients.evaluation import judged, way_through, widths_by_size
from softswitch.clients.losses import Losses
from softswitch.clients.oracle import Judged
from softswitch.engines.choice import first_choice
from softswitch.engines.solve import solve
from softswitch.method.rules import AverageSGM, Rule, SoftmaxSGM
from softswitch.method.steps import FallingStep, NormalizedAdam
from softswitch.problem.parameters import Params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.results.baseline import CONSTANT, FOR_THE_MEAN, FOR_THE_WORST, Baseline, no_better
from softswitch.results.result import Result
from softswitch.support import checks

NO_BOUND = 1e30
"""A tolerance that everything meets."""
PART = 1 / 8
"""Each of the two models without the constraint takes at most this part of the run's work,"""
WANTED_ROUNDS, FEWEST_ROUNDS, FEWEST_ROWS = 300, 20, 8
"""in about so many rounds where all rows are too many; never fewer, with so many rows a client at least."""
STEPS = (1.0, 0.3, 0.1)
"""The model for the mean client takes its rounds in so many parts, with these steps."""
LARGEST_ODDS, GRID, ZOOMS = 16.0, 17, 9
"""Constants are log-odds up to this: a grid of so many, made three times finer so many times."""


def add_baselines(
    result: Result,
    problem: Problem,
    clients: ClientData,
    *,
    constants: Callable[[float], Params] | None = None,
    unconstrained: bool = True,
) -> Result:
    """The same result with more models beside its answer, and what they say of it in the diagnosis.

    Args:
        result: of ``solve``.
        problem: what was solved.
        clients: with whose data.
        constants: the parameters that predict one and the same log-odds for every row, from that number; the best of
            them is put beside the answer.
        unconstrained: also train from the answer on without the constraint, for the worst client and for the mean one,
            each with at most an eighth of the work of the run. ``result.price`` is then what the constraint costs.
    """
    checks.expect("result", result, Result)
    judge = _judge(problem, clients)
    more = []
    if constants is not None:
        more.append(Baseline.of(CONSTANT, best_constant(judge, constants, result.rule), result.rule))
    if unconstrained and np.isfinite(result.worst_objective):
        budget = _budget(result, problem, clients)
        if budget is not None:
            more.append(
                Baseline.of(FOR_THE_WORST, judge(_for_the_worst(result, problem, clients, budget)), result.rule)
            )
            more.append(
                Baseline.of(FOR_THE_MEAN, judge(_for_the_mean(result, problem, clients, budget, judge)), result.rule)
            )
    names = {one.name for one in more}
    beside = (*(one for one in result.baselines if one.name not in names), *more)
    known = {finding.illness for finding in result.diagnosis}
    found = [finding for finding in no_better(result.as_baseline, beside) if finding.illness not in known]
    return replace(result, baselines=beside, diagnosis=(*result.diagnosis, *found))


Judge = Callable[[Params], Judged]


def _judge(problem: Problem, clients: ClientData) -> Judge:
    """What judges parameters by all rows of the clients."""
    losses, way = Losses.of(problem), way_through(clients, _ignoring(problem, clients))
    return lambda params: judged(way, clients.rows, params, losses)


def _ignoring(problem: Problem, clients: ClientData) -> tuple[str, ...]:
    """The functions that do not read the rows' weights."""
    batch = clients.batch_shapes(int(clients.sizes.max()), float_dtype(problem.start))
    return problem.trace(batch).ignore_weight


class _Budget(NamedTuple):
    """How a model without the constraint is trained, so that it costs a part of what the run did.

    Attributes:
        rounds: how many.
        rows: how many rows a client draws; None: all.
        participation: the share of clients in a round.
    """

    rounds: int
    rows: int | None
    participation: float

    @property
    def how(self) -> dict[str, Any]:
        """As ``solve`` takes it."""
        return {"batch_size": self.rows, "value_batch_size": self.rows, "participation": self.participation}


def _budget(result: Result, problem: Problem, clients: ClientData) -> _Budget | None:
    """By the rows that the run evaluated, a gradient counted three times; None where it is too little for a look."""
    history, many, largest = result.history, len(clients), int(clients.sizes.max())
    if not len(history):
        return None
    spent = PART * float(history.value_evaluations[-1] + 3 * history.gradient_evaluations[-1])
    all_rows, alike = int(widths_by_size(clients).sum()), int(clients.sizes.min()) == largest
    whole = alike or not _ignoring(problem, clients)  # functions that ignore weights cannot be given padded batches
    if whole and spent >= 4 * all_rows * WANTED_ROUNDS:
        return _Budget(min(int(spent / (4 * all_rows)), len(history)), None, 1.0)
    fewest = max(FEWEST_ROWS, len(clients.strata))
    rounds = min(WANTED_ROUNDS, len(history), int(spent / (4 * fewest)))
    if rounds < FEWEST_ROUNDS:
        return None
    a_round = spent / (4 * rounds)
    taking_part = min(many, max(1, int(a_round / fewest)))
    rows = max(fewest, int(a_round / taking_part))
    return _Budget(rounds, None if whole and rows >= largest else min(rows, largest), taking_part / many)


def _from_answer(params: Params, problem: Problem) -> Problem:
    return replace(problem, start=params)


def _for_the_worst(result: Result, problem: Problem, clients: ClientData, budget: _Budget) -> Params:
    """Smallest F without the constraint, as far as the budget goes; never larger than the answer's."""
    rule = SoftmaxSGM(tolerance=NO_BOUND)
    free = solve(
        _from_answer(result.params, problem),
        clients,
        rule,
        rounds=budget.rounds,
        **budget.how,
        seed=result.seed,
        eval_every=0,
        progress=False,
    )
    return free.params


def _for_the_mean(result: Result, problem: Problem, clients: ClientData, budget: _Budget, judge: Judge) -> Params:
    """The same for the mean client: some runs one after the other, each from the best so far, with smaller steps."""
    rounds = max(1, budget.rounds // len(STEPS))
    best, least = result.params, result.as_baseline.mean_objective
    first = first_choice(best, budget.rounds, may_end=False, exact=False).first_step
    for part in STEPS:
        rule = AverageSGM(
            tolerance=NO_BOUND,
            threshold=NO_BOUND,
            step_size=FallingStep(first=part * first, rounds=rounds),
            optimizer=NormalizedAdam(),
        )
        free = solve(
            _from_answer(best, problem),
            clients,
            rule,
            rounds=rounds,
            **budget.how,
            answer="last",
            seed=result.seed,
            eval_every=0,
            progress=False,
        )
        mean = free.as_baseline.mean_objective
        if mean < least:
            best, least = free.params, mean
    return best


def best_constant(judge: Judge, constants: Callable[[float], Params], rule: Rule) -> Judged:
    """The constant prediction with the smallest F among those that are feasible; else the one nearest to it."""

    def rank(odds: float) -> tuple[tuple[float, float], Judged]:
        of_all = judge(constants(odds))
        pooled = of_all.pooled if rule.switches_on == "pooled" else None
        level = of_all.constraint.max() if pooled is None else pooled.max()
        above = max(0.0, float(level) - rule.tolerance)
        objective = float(of_all.objective.max())
        usable = math.isfinite(above) and not math.isnan(objective)
        return ((above, objective) if usable else (math.inf, math.inf)), of_all

    apart = 2 * LARGEST_ODDS / (GRID - 1)
    best, centre = min(((rank(odds), odds) for odds in np.linspace(-LARGEST_ODDS, LARGEST_ODDS, GRID)), key=_by_rank)
    for _ in range(ZOOMS):
        apart /= 3
        nearer = [(rank(odds), odds) for odds in centre + apart * np.array([-2, -1, 1, 2])]
        best, centre = min([(best, centre), *nearer], key=_by_rank)
    return best[1]


def _by_rank(found: tuple[tuple[tuple[float, float], Judged], float]) -> tuple[float, float]:
    return found[0][0]
