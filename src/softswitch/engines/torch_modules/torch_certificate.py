"""certify_torch(): what rows that were not trained on promise of a PyTorch module's constraints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from softswitch.clients.torch_modules.module_functions import Function, ModuleFunctions
from softswitch.clients.torch_modules.torch_rows import TorchRows
from softswitch.guarantees.unseen_rows.intervals import ErrorLevels, intervals_by_rows, others
from softswitch.guarantees.unseen_rows.step_up import certificate_of
from softswitch.problem.pooled import PooledConstraint
from softswitch.problem.ranges import Range, function_ranges
from softswitch.results.certificate import Certificate, Interval
from softswitch.results.result import Result
from softswitch.support import checks


def certify_torch(
    result: Result,
    module: torch.nn.Module,
    objective: Function,
    constraint: Function | PooledConstraint,
    held_out: Mapping[Any, Dataset],
    confidence: float = 0.95,
    *,
    tolerance: float | None = None,
    objective_range: Range | None = None,
    constraint_range: Range | Sequence[Range] | None = None,
) -> Certificate:
    """Bound every client's objective and constraint from rows that were not trained on; see ``certify``.

    Args:
        result: what ``solve_torch`` returned.
        module: the module that holds the answer, as ``solve_torch`` leaves it.
        objective: as it was solved for.
        constraint: likewise.
        held_out: rows that played no part in training, by client. A client of the result without any is "unknown".
        confidence: the probability with which each kind of statement is true of all clients.
        tolerance: what g_i may be at most; by default the result's rule's.
        objective_range: (low, high), between which the objective on a single row lies, or {low, high}, of which it is
            one. Without a range limits are approximate.
        constraint_range: likewise of the constraint, {0, 1} for a rate; one for all constraints, or one each.
    """
    checks.expect("result", result, Result)
    if not held_out:
        raise ValueError(f"held_out must be a mapping from clients to data sets with at least one, but is {held_out!r}")
    functions = ModuleFunctions(module, objective, constraint)
    here = next(iter(functions.trained.values())).device
    rows = {name: TorchRows(f"held_out[{name!r}]", own, here) for name, own in held_out.items()}
    functions.load(result.params)
    ranges = function_ranges(
        objective_range, constraint_range, functions.constraints(next(iter(rows.values())).take(np.arange(1)))
    )
    error = 1 - checks.probability("confidence", confidence)
    aim = result.rule.tolerance if tolerance is None else checks.real_number("tolerance", tolerance)
    levels = ErrorLevels(error / len(rows), error, float(aim))
    found: list[tuple[Any, Sequence[Interval] | None]] = [
        (name, module_intervals(functions, result.params, own, levels, ranges)) for name, own in rows.items()
    ]
    functions.load(result.params)
    found += [(name, None) for name in result.names if name not in rows]
    return certificate_of(found, confidence, levels, ranges)


def module_intervals(
    functions: ModuleFunctions,
    params: Mapping[str, Any],
    rows: TorchRows,
    levels: ErrorLevels,
    ranges: Sequence[Range | None],
) -> list[Interval]:
    """One client's intervals of f and then g, from rows held out; the module is left with other parameters.

    Args:
        functions: the module's.
        params: the parameters to judge.
        rows: the rows held out.
        levels: the error probabilities, and the tolerance.
        ranges: of each function on a single row.
    """

    def value(indices: np.ndarray) -> np.ndarray:
        return functions.values(rows.take(indices))

    def elsewhere(attempt: int) -> Callable[[np.ndarray], np.ndarray]:
        functions.load(others(params, attempt))
        return value

    functions.load(params)
    return intervals_by_rows(value, len(rows), levels, ranges, elsewhere)
