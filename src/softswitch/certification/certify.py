"""certify(): which clients meet their constraints on new data, with what confidence.

``row_values.py`` evaluates the functions on single rows, ``intervals.py`` computes confidence limits, and
``multiple_testing.py`` combines the clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, cast

from softswitch.certification.intervals import ErrorLevels
from softswitch.certification.multiple_testing import build_certificate
from softswitch.certification.private import certificate_noise, private_intervals
from softswitch.certification.row_means import count_applicable_rows
from softswitch.certification.row_values import Kind, RowValues
from softswitch.data.client_data import ClientData
from softswitch.oracles.torch_data import TorchData
from softswitch.privacy.settings import RecordPrivacy
from softswitch.problem.parameters import Params, check_params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import Range, function_ranges
from softswitch.results.certificate import Certificate, Interval
from softswitch.results.result import Result
from softswitch.support import checks


def certify(
    result: Result | Params,
    problem: Problem,
    held_out: ClientData | TorchData | Mapping[Any, Any],
    confidence: float = 0.95,
    *,
    tolerance: float | None = None,
    objective_range: Range | None = None,
    constraint_range: Range | Sequence[Range] | None = None,
    kinds: Sequence[Kind] | None = None,
    privacy: RecordPrivacy | None = None,
) -> Certificate:
    """Bound every client's objective and constraint on new data, and decide which clients meet the tolerance.

    ``Certificate`` describes what holds for all clients simultaneously. Limits are exact if a row's values have a
    known range, given here or in the problem: binomial limits for two values, limits by betting otherwise. For a gap
    between groups (``PooledConstraint(…, gaps=True)``) they combine both groups' means. Other limits are approximate.

    A function counts as a mean over rows if the mean of its values on single rows equals its value on all rows and on
    a random half of them, at every client whose values differ. A row on which it is −∞ or NaN (a loss of another
    class, for example) is excluded. A client without applicable rows has the verdict "unknown", and so has a client of
    the result without held-out rows.

    Args:
        result: Result of ``solve``, or parameters.
        problem: Objective and constraint.
        held_out: ``ClientData`` with rows that were not used for training. The clients may differ from the training's.
            For a PyTorch module a data set for each trained client, or ``TorchData``.
        confidence: Probability with which each kind of statement holds for all clients.
        tolerance: Upper bound on g_i. Default: the tolerance of the result's method.
        objective_range: Range of the objective on a single row: (low, high), or {low, high} if it takes only these two
            values. Default: the problem's.
        constraint_range: Range of the constraint on a single row; one for all constraints, or one each. For a gap
            between groups it is the range of the values whose means are compared. Default: the problem's.
        kinds: Kind of the objective and each constraint: mean, gap or other. Default: determined from the rows.
        privacy: Budget of the held-out rows. The certificate uses one noisy sum per client and function. The ranges of
            the constraints must be known, and all functions must be means over rows. An objective without a range is
            omitted.
    """
    if problem.is_torch:
        if privacy is not None:
            raise ValueError("privacy must be None for PyTorch modules: certify each client with PrivateClient")
        given = {"objective_range": objective_range, "constraint_range": constraint_range}
        certificate: Certificate = import_module("softswitch.certification.torch").certify_torch(
            result, problem, held_out, confidence, tolerance=tolerance, **given
        )
        return certificate
    checks.check_instance("held_out", held_out, ClientData)
    held_out = cast(ClientData, held_out)
    params = result.params if isinstance(result, Result) else result
    if tolerance is None:
        if not isinstance(result, Result):
            raise ValueError("tolerance must be given if result is not a Result")
        tolerance = result.method.tolerance
    error = 1 - checks.check_probability("confidence", confidence)
    levels = ErrorLevels(error / len(held_out.names), error, checks.check_real("tolerance", tolerance))
    params = check_params("params", params)
    constraints = problem.trace(held_out.batch_shapes(1, float_dtype(params)), params).constraints
    ranges = resolve_ranges(problem, objective_range, constraint_range, constraints)
    noise = None if privacy is None else certificate_noise(privacy)
    if noise is None:
        intervals = compute_intervals(params, problem, held_out, levels, ranges, kinds)
    else:
        count_applicable_rows(problem, held_out)
        values, at_start = (RowValues(problem, held_out, at).by_client for at in (params, problem.start))
        intervals = [
            private_intervals(*pair, noise.multiplier, levels, ranges) for pair in zip(values, at_start, strict=True)
        ]
    clients: list[tuple[Any, Sequence[Interval] | None]] = list(zip(held_out.names, intervals, strict=True))
    known = set(map(str, held_out.names))  # a number in one table may be text in another
    trained_on = result.names if isinstance(result, Result) else ()
    clients += [(name, None) for name in trained_on if str(name) not in known]
    certificate = build_certificate(clients, confidence, levels, ranges)
    return certificate if noise is None else replace(certificate, epsilon=noise.epsilon, delta=noise.delta)


def resolve_ranges(
    problem: Problem, objective_range: Any, constraint_range: Any, constraints: int
) -> list[Range | None]:
    """Return the ranges of f and then g: those given, with the problem's as defaults."""
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
    """Return every client's intervals of f and then g."""
    rows = RowValues(problem, held_out, params, kinds=kinds)
    return [
        [rows.interval(client, j, levels, bounds) for j, bounds in enumerate(ranges)] for client in range(len(held_out))
    ]
