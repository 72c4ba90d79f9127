"""Certificates: confidence limits of every client's constraint on new data, and verdicts.

``row_values.py`` evaluates the functions on single rows, and ``intervals.py`` computes confidence limits. This module
combines clients by Hochberg's procedure, and tests several models on the same rows in an order that is fixed before the
rows are read.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from scipy.special import ndtri

from softswitch.certification.certifiability import certifiability
from softswitch.certification.intervals import ErrorLevels, Ranges, unknown_interval
from softswitch.certification.limits import MAX_ROWS, additional_mean_rows, additional_rate_rows
from softswitch.certification.private import certificate_noise, count_applicable_rows, private_intervals
from softswitch.certification.row_values import Kind, compute_intervals, row_ranges, values_apart
from softswitch.data.client_data import ClientData
from softswitch.oracles.options import TorchData
from softswitch.privacy.settings import RecordPrivacy
from softswitch.problem.parameters import Params, check_params
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import Range, endpoints
from softswitch.results.certificate import Certificate, ClientCertificate, Interval, IntervalMethod, Verdict
from softswitch.results.result import Result
from softswitch.support import checks

Claim = TypeVar("Claim")
ClientIntervals = tuple[Any, Sequence[Interval] | None]  # label of a client, and its intervals of f and then each g


def certify(
    result: Result | Params,
    problem: Problem,
    held_out: ClientData | TorchData | Mapping[Any, Any],
    confidence: float = 0.95,
    *,
    tolerance: float | None = None,
    privacy: RecordPrivacy | None = None,
) -> Certificate:
    """Bound every client's objective and constraint on new data, and decide which clients meet the tolerance.

    ``Certificate`` describes what holds for all clients simultaneously. Limits are exact if the problem has a range of
    the values on a row: binomial limits for two values, limits by betting otherwise. For a gap between groups
    (``PooledConstraint(…, gaps=True)``) they combine both groups' means. Other limits are approximate.

    A function counts as a mean over rows if the mean of its values on single rows equals its value on all rows and on
    a random half of them, at every client whose values differ. A row on which it is −∞ or NaN (a loss of another
    class, for example) is excluded. A client without applicable rows has the verdict "unknown", and so has a client of
    the result without held-out rows.

    Args:
        result: Result of ``solve``, or the parameters of a model.
        problem: Objective and constraint, with ``objective_range`` and ``constraint_range`` if they are known.
        held_out: ``ClientData`` with rows that were not used for training. The clients may differ from the training's.
            For a PyTorch module a data set for each trained client, or ``TorchData``; the module keeps its parameters.
        confidence: Probability, in (0, 1), with which each kind of statement holds for all clients. Default: 0.95.
        tolerance: Upper bound on g_i. Default: the tolerance of the result's method; required if it is parameters.
        privacy: Privacy budget of the held-out rows. The certificate then uses one noisy sum per client and function.
            The ranges of the constraints must be known, and all functions must be means over rows. An objective without
            a range is omitted. Default: not private.
    """
    if problem.is_torch and privacy is not None:
        raise ValueError("privacy must be None for PyTorch modules: certify each client with PrivateClient")
    params: Params = result
    trained: tuple[Any, ...] = ()
    if isinstance(result, Result):
        params = result.params
        trained = result.names
        tolerance = result.method.tolerance if tolerance is None else tolerance
    elif tolerance is None:
        raise ValueError("tolerance must be given if result is not a Result")
    if problem.is_torch:
        certify_torch = import_module("softswitch.certification.torch").certify_torch
        return certify_torch(params, trained, problem, held_out, confidence, tolerance)
    checks.check_instance("held_out", held_out, ClientData)
    held_out = cast(ClientData, held_out)
    levels = ErrorLevels.of(confidence, len(held_out.names), tolerance)
    params = check_params("params", params)
    ranges = row_ranges(problem, held_out, params)
    noise = None if privacy is None else certificate_noise(privacy)
    if noise is None:
        intervals = compute_intervals(params, problem, held_out, levels, ranges)
    else:
        count_applicable_rows(problem, held_out)
        values, at_start = (values_apart(problem, held_out, at) for at in (params, problem.start))
        pairs = zip(values, at_start, strict=True)
        intervals = [private_intervals(*pair, noise.multiplier, levels, ranges) for pair in pairs]
    clients = list(zip(held_out.names, intervals, strict=True))
    certificate = build_certificate(clients, confidence, levels, ranges, trained)
    return certificate if noise is None else replace(certificate, epsilon=noise.epsilon, delta=noise.delta)


def hochberg(p_values: Sequence[float | None], error: float) -> list[bool]:
    """Return whether Hochberg's procedure at level ``error`` rejects each hypothesis; False for a p-value of None."""
    known = sorted(p for p in p_values if p is not None)
    rejected = [p for k, p in enumerate(known, 1) if p <= error / (len(known) - k + 1)]
    largest = rejected[-1] if rejected else -math.inf
    return [p is not None and p <= largest for p in p_values]


def build_certificate(
    clients: Sequence[ClientIntervals],
    confidence: float,
    levels: ErrorLevels,
    ranges: Ranges,
    names: Sequence[Any] = (),
) -> Certificate:
    """Return the certificate of ``clients``, and of clients ``names`` that are not among them.

    Those, and clients whose intervals are None, have the verdict "unknown".
    """
    known = {str(name) for name, _ in clients}  # a number in one table may be text in another
    clients = [*clients, *((name, None) for name in names if str(name) not in known)]
    intervals = [
        tuple(complete_interval(interval, levels) for interval in reported)
        if reported
        else (unknown_interval(),) * len(ranges)
        for _, reported in clients
    ]
    constraints = [known[1:] for known in intervals]
    tested = [known if all(interval.rows > 0 for interval in known) else () for known in constraints]
    p_meets = [max((interval.meets_at for interval in known), default=None) for known in tested]
    meets = hochberg(p_meets, levels.marginal)
    p_values = [[interval.violates_at for interval in known if interval.rows > 0] for known in constraints]
    violates = hochberg([min(1.0, len(p) * min(p)) if p else None for p in p_values], levels.marginal)
    above = [_is_above(known, levels) for known in tested if known]
    # With v clients above the tolerance, Hochberg's procedure decides those below at (1 − confidence)/(v + 1).
    level = levels.marginal / (sum(above) + 1)
    certificates = []
    for i, (name, _) in enumerate(clients):
        verdict, needed = Verdict.UNDECIDED, None
        if violates[i]:
            verdict = Verdict.VIOLATES
        elif meets[i]:
            verdict = Verdict.MEETS
        elif any(math.isnan(interval.estimate) for interval in constraints[i]):
            verdict = Verdict.UNKNOWN
        elif not _is_above(constraints[i], levels):  # more rows of a client above it would prove the violation
            needed = _client_rows_needed(constraints[i], levels, level, ranges[1:])
        certificates.append(ClientCertificate(name, intervals[i][0], constraints[i], verdict, needed))
    return Certificate(levels.tolerance, confidence, tuple(certificates))


def complete_interval(interval: Interval, levels: ErrorLevels) -> Interval:
    """Fill in the marginal limit and, from the joint limits, the p-values of an interval that lacks them."""
    return replace(
        interval,
        marginal_upper=interval.marginal_limit,
        meets_at=min(interval.meets_at, levels.joint if interval.upper <= levels.tolerance else 1.0),
        violates_at=min(interval.violates_at, levels.joint if interval.lower > levels.tolerance else 1.0),
    )


def _is_above(constraints: Sequence[Interval], levels: ErrorLevels) -> bool:
    return not max(interval.estimate for interval in constraints) <= levels.tolerance


def _client_rows_needed(
    constraints: Sequence[Interval], levels: ErrorLevels, level: float, ranges: Ranges
) -> int | None:
    """Estimate how many more rows an undecided client needs; 0 if none once others are decided, None if unknown."""
    needed = [
        _rows_needed(interval, levels.tolerance, level, bounds)
        for interval, bounds in zip(constraints, ranges, strict=True)
        if interval.meets_at > level
    ]
    known = [rows for rows in needed if rows is not None]
    return max(known, default=0) if len(known) == len(needed) else None


def _rows_needed(interval: Interval, tolerance: float, level: float, bounds: Range | None) -> int | None:
    """Estimate how many more rows, of the same mean and deviation, lower the p-value to ``level``; None if unknown."""
    margin = abs(tolerance - interval.estimate)
    if not margin > 0 or interval.rows < 1:
        return None
    if interval.method in (IntervalMethod.BINOMIAL, IntervalMethod.BETTING) and bounds is not None:
        low, high = endpoints(bounds)
        mean, bound = ((value - low) / (high - low) for value in (interval.estimate, tolerance))
        if interval.method is IntervalMethod.BINOMIAL:
            return additional_rate_rows(interval.rows, mean, bound, level)
        deviation = interval.deviation / (high - low) if interval.rows > 1 else 0.5
        return additional_mean_rows(interval.rows, mean, deviation, bound, level)
    if not 0 < interval.deviation < math.inf:
        return None
    # The margins of the remaining methods shrink with the square root of the number of rows.
    total = float(np.square(ndtri(level) * interval.deviation / margin))
    if interval.method is IntervalMethod.GAP:
        total *= math.log(1 / level) / float(np.square(ndtri(level)))
    return max(1, math.ceil(total) - interval.rows) if total < MAX_ROWS else None


def fixed_sequence_test(claims: Iterable[Claim], passes: Callable[[Claim], bool]) -> tuple[bool, ...]:
    """Test claims in order up to and including the first that fails, and return whether each tested claim passed.

    If the order is fixed before the rows are read, and each test passes a false claim with probability at most δ, the
    probability that any claim that passed is false is at most δ (Maurer, Hothorn and Lehmacher, 1995): it requires that
    the first false claim in the order passes. The tests may share rows.
    """
    outcomes = []
    for claim in claims:
        outcomes.append(passes(claim))
        if not outcomes[-1]:
            break
    return tuple(outcomes)


class PathTest(NamedTuple):
    """The outcome of ``certify_path``."""

    answer: int  # index of the model to use: the last that passed or, if none did, the preferred one
    passed: int  # number of models that passed; 0 if the model is not certified
    certificate: Certificate  # of the answer


def certify_path(
    models: Sequence[Params],
    problem: Problem,
    calibration: ClientData,
    confidence: float,
    *,
    tolerance: float,
    preferred: int = 0,
    is_monotone: bool = False,
    kinds: Sequence[Kind] | None = None,
    names: Sequence[object] = (),
) -> PathTest:
    """Test models in order, from the safest on, until a client fails, and certify the last that passed.

    A model passes if the constraint is within the tolerance at every client, each tested at level 1 − ``confidence``
    (an intersection-union test). The probability that the answer violates the tolerance at a tested client is at most
    1 − ``confidence``, for any number of models and clients. Clients whose numbers of rows cannot certify the tolerance
    for any model are not tested. They have the verdict "too few rows", or "violates" if their rows show that.

    The rows of ``calibration`` must have been used neither for training nor to order the models. ``preferred`` is the
    index of the answer if no model passes. With ``is_monotone``, every client's constraint increases along the path on
    any rows, and the end of the path is found by bisection. ``kinds`` are those of the objective and each constraint;
    by default they are determined from the rows. ``names`` are labels of all clients; those without rows have too few.
    """
    levels = ErrorLevels.of(confidence, len(calibration), tolerance)
    ranges = row_ranges(problem, calibration)
    limits = certifiability(problem, calibration, tolerance, confidence)
    tested = [i for i, is_certifiable in enumerate(limits.is_certifiable) if is_certifiable]

    def intervals_of(index: int) -> list[list[Interval]]:
        return compute_intervals(models[index], problem, calibration, levels, ranges, kinds)

    def passes(index: int) -> bool:
        found = intervals_of(index)
        pairs = [(one, complete_interval(one, levels).meets_at) for i in tested for one in found[i][1:]]
        return all(one.rows > 0 and p_value <= levels.marginal for one, p_value in pairs)

    if not tested:
        passed = 0
    elif is_monotone:
        passed = bisect_left(range(len(models)), True, key=lambda index: not passes(index))
    else:
        passed = sum(fixed_sequence_test(range(len(models)), passes))
    answer = passed - 1 if passed else preferred
    pairs = list(zip(calibration.names, intervals_of(answer), strict=True))
    certificate = build_certificate(pairs, confidence, levels, ranges, names)
    clients = []
    for i, client in enumerate(certificate.clients):
        if i in tested:
            verdict = Verdict.MEETS if passed else client.verdict
            client = replace(client, verdict=verdict, rows_needed=None if passed else client.rows_needed)
        elif client.verdict is not Verdict.VIOLATES:
            rows = limits.rows[i] if i < len(limits.rows) else 0
            needed = None if limits.rows_needed is None else max(1, limits.rows_needed - rows)
            client = replace(client, verdict=Verdict.TOO_FEW, rows_needed=needed)
        clients.append(client)
    return PathTest(answer, passed, replace(certificate, clients=tuple(clients)).after_tests(max(passed, 1)))
