"""What an answer is worth: models without the constraint and constant predictions, put beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from softswitch.data.client_data import ClientData
from softswitch.engine.auto_tuning import MOMENTUM, Choice, choose_settings, default_memory
from softswitch.engine.defaults import resolve_options
from softswitch.engine.loop import run
from softswitch.engine.request import RunSettings, request
from softswitch.methods.automatic import Automatic
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory
from softswitch.methods.schedules import FallingStep
from softswitch.oracles.base import Evaluation
from softswitch.oracles.evaluation import Evaluator, functions_ignoring_weights, make_evaluator, padded_widths
from softswitch.oracles.options import BatchSize, Compute, Sampling
from softswitch.oracles.regret import to_regret_task
from softswitch.problem.parameters import Params
from softswitch.problem.problem import Problem
from softswitch.results.baseline import (
    CONSTANT,
    UNCONSTRAINED_MEAN,
    UNCONSTRAINED_WORST,
    Baseline,
    compare_with_trivial,
)
from softswitch.results.result import Result
from softswitch.support import checks

NO_BOUND = 1e30
"""A tolerance that everything meets."""
PART = 1 / 8
"""Each of the two models without the constraint takes at most this part of the run's work,"""
WANTED_ROUNDS, FEWEST_ROUNDS, FEWEST_ROWS = 300, 20, 8
"""in about so many rounds where all rows are too many; never fewer, with so many rows a client at least."""
ROUNDS_AS_IN_RUN = 75
"""Where rounds are as those of the run, whose program they then share, there are so many of them at least."""
FOR_ALL_ALIKE = 1e-30
"""An α so small that all clients weigh the same."""
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
    held_out: ClientData | None = None,
    cost: Callable[..., Any] | None = None,
) -> Result:
    """The same result with more models beside its answer, and what they say of it in the diagnosis.

    Where the run minimised regrets, all of them are told by their regrets.

    Args:
        result: of ``solve``.
        problem: what was solved.
        clients: with whose data.
        constants: the parameters that predict one and the same log-odds for every row, from that number; the best of
            them is put beside the answer.
        unconstrained: also train from the answer on without the constraint, for the worst client and for the mean one,
            each with about an eighth of the work of the run. ``result.price`` is then what the constraint costs.
        held_out: the rows that the run looked at beside, where it had such: what was compiled for it then serves again.
        cost: a function like the objective, by whose largest value at any client the answer is compared with the
            constant; by default the objective itself. Where decisions are bounded it is a rate of decisions: a loss
            of scores near 0 is small, whatever they decide.
    """
    checks.check_instance("result", result, Result)
    checks.check_instance("clients", clients, ClientData)
    if result.client_optimum is not None:
        task = to_regret_task(problem, clients, result.client_optimum)
        problem, clients = task.problem, task.clients
        held_out = None if held_out is None else task.transform(held_out)
    judge = make_evaluator(problem, clients)
    more: list[Baseline] = []
    costs: list[float] | None = None
    if constants is not None:
        odds, judged = best_constant(judge, constants, result.method)
        if cost is not None:
            by_cost = make_evaluator(replace(problem, objective=cost, objective_range=None), clients)
            costs = [float(by_cost(params).objective.max()) for params in (result.params, constants(odds))]
        more.append(Baseline.of(CONSTANT, judged, result.method, constants(odds)))
    if unconstrained and np.isfinite(result.worst_objective):
        budget = _budget(result, problem, clients)
        if budget is not None:
            free = _Unconstrained(result, problem, clients, budget, held_out)
            for name, params in (
                (UNCONSTRAINED_WORST, free.for_the_worst()),
                (UNCONSTRAINED_MEAN, free.for_the_mean()),
            ):
                more.append(Baseline.of(name, judge(params), result.method, params))
    names = {one.name for one in more}
    beside = (*(one for one in result.baselines if one.name not in names), *more)
    known = {finding.code for finding in result.diagnostics}
    found = [
        finding for finding in compare_with_trivial(result.as_baseline, beside, costs) if finding.code not in known
    ]
    return replace(result, baselines=beside, diagnostics=(*result.diagnostics, *found))


class _Budget(NamedTuple):
    """How a model without the constraint is trained, so that it costs a part of what the run did.

    Attributes:
        rounds: how many.
        rows: how many rows a client draws; None: all; "auto": as many as a run chooses.
        participation: the share of clients in a round.
    """

    rounds: int
    rows: BatchSize
    participation: float


def _budget(result: Result, problem: Problem, clients: ClientData) -> _Budget | None:
    """By the rows that the run evaluated, a gradient counted three times; None where it is too little for a look."""
    history, many, largest = result.history, len(clients), int(clients.sizes.max())
    if not len(history):
        return None
    spent = float(history.value_evaluations[-1] + 3 * history.gradient_evaluations[-1])
    if result.restarts and _rows_a_round(problem, clients) <= 1.01 * spent / len(history):
        return _Budget(min(len(history), max(ROUNDS_AS_IN_RUN, int(PART * len(history)))), "auto", 1.0)
    spent *= PART
    all_rows, alike = int(padded_widths(clients).sum()), int(clients.sizes.min()) == largest
    whole = alike or not functions_ignoring_weights(
        problem, clients
    )  # functions that ignore weights cannot be given padded batches
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


def _rows_a_round(problem: Problem, clients: ClientData) -> float:
    """What a round costs where everything is chosen: rows, those for a gradient counted three times."""
    sampling = choose_settings(problem, clients, Sampling.automatic(), Compute(), None, None)[1]
    for_report, for_update = (
        float(len(clients) * rows) if isinstance(rows, int) else float(clients.sizes.sum())
        for rows in (sampling.value_batch_size, sampling.batch_size)
    )
    return for_report + 3 * for_update


class _Unconstrained:
    """Models that are trained from the answer on, without the constraint, as far as the budget goes."""

    def __init__(
        self,
        result: Result,
        problem: Problem,
        clients: ClientData,
        budget: _Budget,
        held_out: ClientData | None,
    ) -> None:
        self._result, self._problem, self._clients = result, problem, clients
        self._held_out = held_out if budget.rows == "auto" else None
        sampling = Sampling(batch_size=budget.rows, value_batch_size=budget.rows, participation=budget.participation)
        settings = RunSettings(
            rounds=budget.rounds,
            average_last=None,
            answer="auto",
            eval_every=None if budget.rows == "auto" else 0,
            record_clients=budget.rows == "auto" and result.history.per_client is not None,
            memory="auto" if budget.rows == "auto" else _memory(budget),
        )
        self._template = Automatic(NO_BOUND).template
        _, self._sampling, self._compute, self._settings, self._choice = resolve_options(
            problem, clients, (self._template,), sampling, Compute(), settings
        )

    def for_the_worst(self) -> Params:
        """Smallest F, never larger than the answer's."""
        return self._run(self._result.params, self._template, self._settings, self._choice).params

    def for_the_mean(self) -> Params:
        """Smallest mean of all clients: some runs one after the other, each from the best so far, with smaller steps.

        All are of the program of the other model: its rule weighs all clients alike where its α is next to nothing.
        """
        rounds = max(1, self._settings.rounds // len(STEPS))
        settings = replace(self._settings, rounds=rounds, answer="last")
        best, least = self._result.params, self._result.as_baseline.mean_objective
        alike = Automatic(NO_BOUND, alpha=FOR_ALL_ALIKE, alpha_scale="change").template
        assert self._choice is not None
        for part in STEPS:
            step = FallingStep(first=part * self._choice.first_step, rounds=rounds)
            method = self._choice.method(alike, step, MOMENTUM, NO_BOUND)
            found = self._run(best, method, settings, None)
            mean = found.as_baseline.mean_objective
            if mean < least:
                best, least = found.params, mean
        return best

    def _run(self, start: Params, method: Method, settings: RunSettings, choice: Choice | None) -> Result:
        problem = replace(self._problem, start=start)
        options: dict[str, Any] = {"compute": self._compute, "held_out": self._held_out, "choice": choice}
        return run(
            request(problem, self._clients, (method,), self._sampling, settings, **options), method, self._result.seed
        )


def _memory(budget: _Budget) -> Memory | None:
    """What a server remembers of reports that cost one value a row, as budgets have it."""
    return default_memory(all_take_part=budget.participation == 1, noisy=budget.rows is not None)


def best_constant(judge: Evaluator, constants: Callable[[float], Params], method: Method) -> tuple[float, Evaluation]:
    """The constant prediction with the smallest F among those that are feasible; else the one nearest to it.

    Returns:
        Its log-odds, and what every client has of it.
    """

    def rank(odds: float) -> tuple[tuple[float, float], Evaluation]:
        of_all = judge(constants(odds))
        pooled = of_all.pooled if method.switches_on == "pooled" else None
        level = of_all.constraint.max() if pooled is None else pooled.max()
        above = max(0.0, float(level) - method.tolerance)
        objective = float(of_all.objective.max())
        usable = math.isfinite(above) and not math.isnan(objective)
        return ((above, objective) if usable else (math.inf, math.inf)), of_all

    apart = 2 * LARGEST_ODDS / (GRID - 1)
    best, centre = min(((rank(odds), odds) for odds in np.linspace(-LARGEST_ODDS, LARGEST_ODDS, GRID)), key=_by_rank)
    for _ in range(ZOOMS):
        apart /= 3
        nearer = [(rank(odds), odds) for odds in centre + apart * np.array([-2, -1, 1, 2])]
        best, centre = min([(best, centre), *nearer], key=_by_rank)
    return float(centre), best[1]


def _by_rank(found: tuple[tuple[tuple[float, float], Evaluation], float]) -> tuple[float, float]:
    return found[0][0]
