"""Baselines of a result: a model trained without the constraint, and the best constant prediction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np

from softswitch.data.client_data import ClientData
from softswitch.engine.request import RunOptions
from softswitch.engine.second_order import solve_second_order
from softswitch.methods.base import Method
from softswitch.methods.sqp import SQP
from softswitch.methods.weighting import trimmed_max
from softswitch.oracles.base import Evaluation
from softswitch.oracles.client_shifts import to_regret_task
from softswitch.oracles.derivatives import RowDerivatives
from softswitch.oracles.evaluation import Evaluator, make_evaluator
from softswitch.oracles.options import Output
from softswitch.problem.parameters import Params
from softswitch.problem.problem import Problem
from softswitch.results.baseline import CONSTANT, UNCONSTRAINED_WORST, Baseline, compare_with_trivial
from softswitch.results.result import Result
from softswitch.support import checks

NO_BOUND = 1e30  # a tolerance that every model meets
LARGEST_ODDS, GRID, ZOOMS = 16.0, 17, 9  # search for a constant: largest log-odds, grid size, refinements by 3


def add_baselines(
    result: Result,
    problem: Problem,
    clients: ClientData,
    *,
    constants: Callable[[float], Params] | None = None,
    unconstrained: bool = True,
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
        unconstrained: Whether to train a model without the constraint too if the result is of ``SQP``, which takes few
            exchanges. ``result.price`` is then the cost of the constraint. Default: True.
        cost: Rate that a tighter bound increases. With it, the result is not compared with the constant by F, because
            the loss of scores near 0 is small. Default: none.
    """
    checks.check_instance("result", result, Result)
    checks.check_instance("clients", clients, ClientData)
    if result.client_optimum is not None:
        task = to_regret_task(problem, clients, result.client_optimum)
        problem, clients = task.problem, task.clients
    evaluate = make_evaluator(problem, clients)
    models: dict[str, tuple[Params, Evaluation]] = {}
    if constants is not None:
        odds, evaluation = best_constant(evaluate, constants, result.method)
        models[CONSTANT] = constants(odds), evaluation
    if unconstrained and isinstance(result.method, SQP) and np.isfinite(result.worst_objective):
        derivatives = RowDerivatives(replace(problem, start=result.params), clients)
        options = RunOptions(output=Output(lower_bound=False))
        params = solve_second_order(derivatives, SQP(tolerance=NO_BOUND), options).params
        models[UNCONSTRAINED_WORST] = params, evaluate(params)
    added = [Baseline.of(name, values, result.method, params) for name, (params, values) in models.items()]
    baselines = (*(one for one in result.baselines if one.name not in models), *added)
    known = {diagnostic.code for diagnostic in result.diagnostics}
    compared = [one for one in baselines if cost is None or one.name != CONSTANT]
    new = [one for one in compare_with_trivial(result.as_baseline, compared) if one.code not in known]
    return replace(result, baselines=baselines, diagnostics=(*result.diagnostics, *new))


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
