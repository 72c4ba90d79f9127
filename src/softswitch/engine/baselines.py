"""Baselines of a result: a model trained without the constraint, and the best constant prediction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np

from softswitch.data.client_data import ClientData
from softswitch.engine.auto_tuning import SMOOTHING, choose_settings
from softswitch.engine.loop import run
from softswitch.engine.request import RunOptions, prepare_run
from softswitch.engine.second_order import solve_second_order
from softswitch.methods.automatic import Automatic
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.methods.sqp import SQP
from softswitch.methods.weighting import trimmed_max
from softswitch.oracles.base import Evaluation
from softswitch.oracles.client_shifts import to_regret_task
from softswitch.oracles.derivatives import RowDerivatives
from softswitch.oracles.evaluation import Evaluator, functions_ignoring_weights, make_evaluator
from softswitch.oracles.options import Compute, Logging, Output, Sampling
from softswitch.problem.parameters import Params
from softswitch.problem.problem import Problem
from softswitch.results.baseline import CONSTANT, UNCONSTRAINED_WORST, Baseline, compare_with_trivial
from softswitch.results.result import Result
from softswitch.support import checks

NO_BOUND = 1e30  # a tolerance that every model meets
WORK_SHARE = 1 / 8  # work of training the unconstrained model, relative to the run
WANTED_ROUNDS, FEWEST_ROUNDS, FEWEST_ROWS = 300, 20, 8  # rounds of an unconstrained model, and rows per client
FEWEST_SHARED_ROUNDS = 75  # smallest number of rounds if it shares the compiled program of the run
LARGEST_ODDS, GRID, ZOOMS = 16.0, 17, 9  # search for a constant: largest log-odds, grid size, refinements by 3


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
    """Return the result with further baselines, and with diagnostics that follow from them.

    If the run minimised regrets, the baselines are evaluated by their regrets.

    Args:
        result: Result of ``solve``.
        problem: The problem that was solved.
        clients: The clients' training data.
        constants: Function from log-odds to parameters that predict them for every row. The best constant prediction
            becomes a baseline. Default: none.
        unconstrained: Whether to train a model without the constraint from the result on, with about an eighth of the
            work of the run. ``result.price`` is then the cost of the constraint. Default: True.
        held_out: Held-out data of the run, so that its compiled program is reused. Default: it had none.
        cost: Rate that a tighter bound increases. With it, the result is not compared with the constant by F, because
            the loss of scores near 0 is small. Default: none.
    """
    checks.check_instance("result", result, Result)
    checks.check_instance("clients", clients, ClientData)
    if result.client_optimum is not None:
        task = to_regret_task(problem, clients, result.client_optimum)
        problem, clients = task.problem, task.clients
        held_out = None if held_out is None else task.transform(held_out)
    evaluate = make_evaluator(problem, clients)
    models: dict[str, tuple[Params, Evaluation]] = {}
    if constants is not None:
        odds, evaluation = best_constant(evaluate, constants, result.method)
        models[CONSTANT] = constants(odds), evaluation
    if unconstrained and np.isfinite(result.worst_objective) and len(result.history):
        params = _train_unconstrained(result, problem, clients, held_out)
        if params is not None:
            models[UNCONSTRAINED_WORST] = params, evaluate(params)
    added = [Baseline.of(name, values, result.method, params) for name, (params, values) in models.items()]
    baselines = (*(one for one in result.baselines if one.name not in models), *added)
    known = {diagnostic.code for diagnostic in result.diagnostics}
    compared = [one for one in baselines if cost is None or one.name != CONSTANT]
    new = [one for one in compare_with_trivial(result.as_baseline, compared) if one.code not in known]
    return replace(result, baselines=baselines, diagnostics=(*result.diagnostics, *new))


def _train_unconstrained(
    result: Result, problem: Problem, clients: ClientData, held_out: ClientData | None
) -> Params | None:
    """Return parameters trained without the constraint, from the result on; None if the budget is too small."""
    if isinstance(result.method, SQP):
        derivatives = RowDerivatives(replace(problem, start=result.params), clients)
        options = RunOptions(output=Output(lower_bound=False))
        return solve_second_order(derivatives, SQP(tolerance=NO_BOUND), options).params
    if (limited := _options(result, problem, clients, held_out)) is None:
        return None
    template = Automatic(NO_BOUND, SoftmaxSGM).template
    prepared = prepare_run(problem, clients, (template,), replace(limited, seed=result.seed))
    federation = replace(prepared.federation, start=result.params)
    return run(replace(prepared, federation=federation), template).params


def _options(result: Result, problem: Problem, clients: ClientData, held_out: ClientData | None) -> RunOptions | None:
    """Return options that take ``WORK_SHARE`` of the work of the run; None if it is too little for any training."""
    history, count, largest = result.history, len(clients), int(clients.sizes.max())
    work = WORK_SHARE * float(history.value_evaluations[-1] + 3 * history.gradient_evaluations[-1])
    if result.restarts:  # with the compiled program of the run
        sampling = choose_settings(problem, clients, Sampling.automatic(), Compute(), None, [result.method]).sampling
        values, gradients = (
            float(count * rows) if isinstance(rows, int) else float(clients.sizes.sum())
            for rows in (sampling.value_batch_size, sampling.batch_size)
        )
        rounds = max(FEWEST_SHARED_ROUNDS, int(work / (values + 3 * gradients)))
        logging = Logging(held_out=held_out, record_clients=history.per_client is not None)
        return RunOptions(rounds=min(rounds, len(history)), sampling=Sampling.automatic(), logging=logging)
    fewest = min(largest, max(FEWEST_ROWS, len(clients.strata)))
    wanted = max(WANTED_ROUNDS, int(work / (4 * clients.sizes.sum())))
    rounds = min(wanted, len(history), int(work / (4 * fewest)))
    if rounds < FEWEST_ROUNDS:
        return None
    rows_per_round = work / (4 * rounds)
    participants = min(count, max(1, int(rows_per_round / fewest)))
    rows = max(fewest, int(rows_per_round / participants))
    # Functions that ignore weights cannot use padded batches.
    may_use_all = int(clients.sizes.min()) == largest or not functions_ignoring_weights(problem, clients)
    size = None if may_use_all and rows >= largest else min(rows, largest)
    is_exact = participants == count and size is None
    memory = None if is_exact else Memory(smoothing=0.0 if size is None else SMOOTHING)
    sampling = Sampling(participation=participants / count, batch_size=size, value_batch_size=size, memory=memory)
    return RunOptions(rounds=rounds, sampling=sampling, logging=Logging(eval_every=0))


def best_constant(
    evaluate: Evaluator, constants: Callable[[float], Params], method: Method
) -> tuple[float, Evaluation]:
    """Return the log-odds of the best constant prediction, and its values at every client.

    It is the feasible one with the smallest F or, if none is feasible, the one with the smallest violation.
    """

    def attempt(odds: float) -> tuple[tuple[float, float], float, Evaluation]:
        evaluation = evaluate(constants(odds))
        violation = max(0.0, evaluation.constraint_level(method) - method.tolerance)
        objective = trimmed_max(evaluation.objective, method.robust)
        is_valid = math.isfinite(violation) and not math.isnan(objective)
        return ((violation, objective) if is_valid else (math.inf, math.inf)), odds, evaluation

    step, rank = 2 * LARGEST_ODDS / (GRID - 1), itemgetter(0)
    best = min(map(attempt, np.linspace(-LARGEST_ODDS, LARGEST_ODDS, GRID)), key=rank)
    for _ in range(ZOOMS):
        step /= 3
        best = min([best, *map(attempt, best[1] + step * np.array([-2, -1, 1, 2]))], key=rank)
    return float(best[1]), best[2]
