"""certify(): which clients meet their constraints, and with what certainty, from rows not trained on.

What functions are on rows is in ``row_values.py``, how a limit is made of them in ``intervals.py``, and what is said
of all clients together in ``step_up.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from softswitch.certification.intervals import ErrorLevels
from softswitch.certification.multiple_testing import build_certificate
from softswitch.certification.private import CertificateNoise, certificate_noise, private_intervals
from softswitch.certification.row_means import count_applicable_rows
from softswitch.certification.row_values import Kind, RowValues
from softswitch.data.client_data import ClientData
from softswitch.privacy.settings import RecordPrivacy
from softswitch.problem.parameters import Params, checked_params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import Range, function_ranges
from softswitch.results.certificate import Certificate, Interval
from softswitch.results.result import Result
from softswitch.support import checks


def certify(
    result: Result | Params,
    problem: Problem,
    held_out: Any,
    confidence: float = 0.95,
    *,
    tolerance: float | None = None,
    objective_range: Range | None = None,
    constraint_range: Range | Sequence[Range] | None = None,
    kinds: Sequence[Kind] | None = None,
    privacy: RecordPrivacy | None = None,
) -> Certificate:
    """Bound every client's objective and constraint from held-out rows, and say which clients meet the tolerance.

    What is promised of all clients together stands at ``Certificate``. Limits are promises where a row's values have a
    known range, here or in the problem: exact binomial ones where a row has one of two values, else by betting; of a
    gap between groups (``PooledConstraint(…, gaps=True)``) from both groups' means.

    A function counts as a mean over rows if the mean of its values on single rows is its value on all of them, and on a
    random half of them, at every client whose rows differ. A row on which it is −∞ or NaN (a loss of another class,
    say) belongs to no mean and is left out. Of a client without any row that a function concerns nothing is known, and
    so of a client of the result that has no held-out rows at all: it is in the certificate as "unknown".

    Args:
        result: what ``solve`` returned, or parameters.
        problem: the objective and constraint.
        held_out: ``ClientData`` with rows that played no part in training; the clients may be others than those trained
            on. For a PyTorch module a data set for each trained client, or ``TorchData``.
        confidence: the probability with which each kind of statement is true of all clients.
        tolerance: what g_i may be at most; by default the result's rule's.
        objective_range: (low, high), between which the objective on a single row lies, or {low, high}, of which it is
            one; by default the problem's.
        constraint_range: likewise of the constraint; one for all constraints, or one each. Of a gap between groups it
            is the range of the values whose means are compared.
        kinds: what objective and constraints are, mean, gap or other, where that was found out before, on other rows.
        privacy: keep the held-out rows private: of each client only one sum with noise is used of each function, and
            its budget is spent on that. Ranges of constraints must be known, and all functions be means over rows; an
            objective without a range is left out.
    """
    if problem.is_torch:
        if privacy is not None:
            raise ValueError("privacy must be None for PyTorch modules: certify each client with PrivateClient")
        given = {"objective_range": objective_range, "constraint_range": constraint_range}
        certificate: Certificate = import_module("softswitch.certification.torch").certify_torch(
            result, problem, held_out, confidence, tolerance=tolerance, **given
        )
        return certificate
    checks.expect("held_out", held_out, ClientData)
    params = result.params if isinstance(result, Result) else result
    if tolerance is None:
        if not isinstance(result, Result):
            raise ValueError("tolerance must be given where result is not a Result")
        tolerance = result.method.tolerance
    error = 1 - checks.probability("confidence", confidence)
    levels = ErrorLevels(error / len(held_out.names), error, checks.real_number("tolerance", tolerance))
    params = checked_params("params", params)
    constraints = problem.trace(held_out.batch_shapes(1, float_dtype(params)), params).constraints
    ranges = resolve_ranges(problem, objective_range, constraint_range, constraints)
    cost = None if privacy is None else certificate_noise(privacy)
    intervals = (
        compute_intervals(params, problem, held_out, levels, ranges, kinds)
        if cost is None
        else private_intervals_of(params, problem, held_out, levels, ranges, cost)
    )
    found: list[tuple[Any, Sequence[Interval] | None]] = list(zip(held_out.names, intervals, strict=True))
    known = set(map(str, held_out.names))  # a number in one table may be text in another
    trained_on = result.names if isinstance(result, Result) else ()
    found += [(name, None) for name in trained_on if str(name) not in known]
    made = build_certificate(found, confidence, levels, ranges)
    return made if cost is None else replace(made, epsilon=cost.epsilon, delta=cost.delta)


def private_intervals_of(
    params: Params,
    problem: Problem,
    held_out: ClientData,
    levels: ErrorLevels,
    ranges: Sequence[Range | None],
    cost: CertificateNoise,
) -> list[list[Interval]]:
    """Every client's intervals of f and then g, of which only sums with noise are told."""
    count_applicable_rows(problem, held_out)
    both = (RowValues(problem, held_out, at).by_client for at in (params, problem.start))
    return [private_intervals(own, start, cost.multiplier, levels, ranges) for own, start in zip(*both, strict=True)]


def resolve_ranges(
    problem: Problem, objective_range: Any, constraint_range: Any, constraints: int
) -> list[Range | None]:
    """The ranges of f and then g: those given, else the problem's own."""
    objective = problem.objective_range if objective_range is None else objective_range
    constraint = problem.constraint_range if constraint_range is None else constraint_range
    return function_ranges(objective, constraint, constraints)


def compute_intervals(
    params: Params,
    problem: Problem,
    held_out: ClientData,
    levels: ErrorLevels,
    ranges: Sequence[Range | None],
    kinds: Sequence[Kind] | None = None,
) -> list[list[Interval]]:
    """Every client's intervals of f and then g, at the levels given."""
    rows = RowValues(problem, held_out, params, kinds=kinds)
    return [
        [rows.interval(client, j, levels, bounds) for j, bounds in enumerate(ranges)] for client in range(len(held_out))
    ]
