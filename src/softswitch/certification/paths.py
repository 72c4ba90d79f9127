"""Tests of several models on the same calibration rows, in an order that is fixed before the rows are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from softswitch.certification.certifiability import certifiability
from softswitch.certification.certify import build_certificate, complete_interval, compute_intervals, row_ranges
from softswitch.certification.intervals import ErrorLevels
from softswitch.certification.row_values import Kind
from softswitch.data.client_data import ClientData
from softswitch.problem.parameters import Params
from softswitch.problem.problem import Problem
from softswitch.results.certificate import Certificate, Interval, Verdict

Claim = TypeVar("Claim")


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

    Args:
        models: Parameters in the order of the tests. The order must not depend on the calibration rows.
        problem: Objective and constraint.
        calibration: Rows that were used neither for training nor to order the models.
        confidence: Confidence of the certificate, in (0, 1).
        tolerance: Upper bound on the constraint.
        preferred: Index of the answer if no model passes. Default: 0.
        is_monotone: Whether every client's constraint increases along the path on any rows. The end of the path is then
            found by bisection. Default: False.
        kinds: Kinds of the objective and each constraint. Default: determined from the rows.
        names: Labels of all clients; those without calibration rows have too few. Default: none.
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
        low, high = 0, len(models)  # the first ``low`` models pass, and the model ``high`` fails
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if passes(middle) else (low, middle)
        passed = low
    else:
        passed = sum(fixed_sequence_test(range(len(models)), passes))
    answer = passed - 1 if passed else preferred
    known = set(map(str, calibration.names))
    absent = [name for name in names if str(name) not in known]
    pairs = [*zip(calibration.names, intervals_of(answer), strict=True), *((name, None) for name in absent)]
    certificate = build_certificate(pairs, confidence, levels, ranges)
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
