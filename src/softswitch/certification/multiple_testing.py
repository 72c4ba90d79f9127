"""Certificates of several clients, and of several claims on the same rows.

**Theorem** (fixed-sequence testing; Maurer, Hothorn and Lehmacher, 1995). Let the claims 1, …, m and their order be
fixed before the rows are read. Let each claim have a test that passes a false claim with probability at most δ. Test
the claims in order, and stop at the first that fails. Then the probability that any claim that passed is false is at
most δ.

*Proof.* If all claims are true, no error is possible. Otherwise let j be the first false claim in the order; j does not
depend on the rows. A false claim can pass only if claim j passes, which has probability at most δ. ∎

The tests need no correction for their number, even if they share rows or models. Claims after the first failure are not
tested, so those most likely to pass should come first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from scipy.special import ndtri

from softswitch.certification import betting, binomial
from softswitch.certification.intervals import ErrorLevels, unknown_interval
from softswitch.problem.ranges import Range, endpoints
from softswitch.results.certificate import Certificate, ClientCertificate, Interval, IntervalMethod, Verdict

Claim = TypeVar("Claim")


def fixed_sequence_test(claims: Iterable[Claim], passes: Callable[[Claim], bool]) -> tuple[bool, ...]:
    """Test claims in order up to the first that fails, and return the outcomes of those tested.

    Args:
        claims: Claims in an order that was fixed before the rows were read.
        passes: Test of a claim on the rows.
    """
    outcomes = []
    for claim in claims:
        outcomes.append(passes(claim))
        if not outcomes[-1]:
            break
    return tuple(outcomes)


def hochberg(p_values: Sequence[float | None], error: float) -> list[bool]:
    """Return which hypotheses Hochberg's procedure rejects.

    Args:
        p_values: One p-value per client; None for a client without rows, for which no hypothesis is tested.
        error: Family-wise error probability.
    """
    known = sorted(p for p in p_values if p is not None)
    rejected = [p for k, p in enumerate(known, 1) if p <= error / (len(known) - k + 1)]
    largest = rejected[-1] if rejected else -math.inf
    return [p is not None and p <= largest for p in p_values]


def build_certificate(
    clients: Sequence[tuple[Any, Sequence[Interval] | None]],
    confidence: float,
    levels: ErrorLevels,
    ranges: Sequence[Range | None],
) -> Certificate:
    """Return the certificate of all clients.

    Args:
        clients: Each client's name and its intervals of f and then g; None instead of intervals without data.
        confidence: Confidence of the certificate.
        levels: Error probabilities of the intervals, and the tolerance.
        ranges: Ranges of f and then g on a single row.
    """
    intervals = [
        tuple(_complete(interval, levels) for interval in known) if known else (unknown_interval(),) * len(ranges)
        for _, known in clients
    ]
    constraints = [known[1:] for known in intervals]
    meets = hochberg([_p_meets(known) for known in constraints], levels.marginal)
    violates = hochberg([_p_violates(known) for known in constraints], levels.marginal)
    above = [_is_above(known, levels.tolerance) for known in constraints if _has_rows(known)]
    # With v of n clients above the tolerance, Hochberg's procedure decides those below at (1 − confidence)/(v + 1),
    # and those above at (1 − confidence)/(n − v + 1).
    open_levels = levels.marginal / (sum(above) + 1), levels.marginal / (len(above) - sum(above) + 1)
    certificates = []
    for i, (name, _) in enumerate(clients):
        verdict, needed = Verdict.UNDECIDED, None
        if violates[i]:
            verdict = Verdict.VIOLATES
        elif meets[i]:
            verdict = Verdict.MEETS
        elif any(math.isnan(interval.estimate) for interval in constraints[i]):
            verdict = Verdict.UNKNOWN
        else:
            needed = _client_rows_needed(constraints[i], levels.tolerance, open_levels, ranges[1:])
        certificates.append(ClientCertificate(name, intervals[i][0], constraints[i], verdict, needed))
    return Certificate(levels.tolerance, confidence, tuple(certificates))


def _complete(interval: Interval, levels: ErrorLevels) -> Interval:
    """Fill in p-values and the marginal limit of an interval that has only a lower and an upper end."""
    meets = levels.joint if interval.upper <= levels.tolerance else 1.0
    violates = levels.joint if interval.lower > levels.tolerance else 1.0
    return replace(
        interval,
        marginal_upper=interval.upper if math.isnan(interval.marginal_upper) else interval.marginal_upper,
        meets_at=min(interval.meets_at, meets),
        violates_at=min(interval.violates_at, violates),
    )


def _has_rows(constraints: Sequence[Interval]) -> bool:
    return all(interval.rows > 0 for interval in constraints)


def _p_meets(constraints: Sequence[Interval]) -> float | None:
    return max(interval.meets_at for interval in constraints) if _has_rows(constraints) else None


def _p_violates(constraints: Sequence[Interval]) -> float | None:
    p_values = [interval.violates_at for interval in constraints if interval.rows > 0]
    return min(1.0, len(p_values) * min(p_values)) if p_values else None


def _is_above(constraints: Sequence[Interval], tolerance: float) -> bool:
    return not max(interval.estimate for interval in constraints) <= tolerance


def _client_rows_needed(
    constraints: Sequence[Interval], tolerance: float, levels: tuple[float, float], ranges: Sequence[Range | None]
) -> int | None:
    """Estimate how many more rows decide a client, if the other clients' estimates are right.

    The number is 0 if the client's own rows suffice once the remaining clients are decided.
    """
    pairs = list(zip(constraints, ranges, strict=True))
    if not _is_above(constraints, tolerance):
        level = levels[0]
        needed = [rows_needed(one, tolerance, level, bounds) for one, bounds in pairs if one.meets_at > level]
        return None if None in needed else max((rows for rows in needed if rows is not None), default=0)
    level = levels[1] / len(pairs)
    needed = [rows_needed(one, tolerance, level, bounds) for one, bounds in pairs if one.estimate > tolerance]
    return min((rows for rows in needed if rows is not None), default=None)


def rows_needed(interval: Interval, tolerance: float, level: float, bounds: Range | None) -> int | None:
    """Estimate how many more rows, of the same mean and deviation, lower the p-value to the level."""
    margin = abs(tolerance - interval.estimate)
    if not margin > 0 or interval.rows < 1:
        return None
    if interval.method in (IntervalMethod.BINOMIAL, IntervalMethod.BETTING) and bounds is not None:
        low, high = endpoints(bounds)
        mean, bound = ((value - low) / (high - low) for value in (interval.estimate, tolerance))
        if interval.method is IntervalMethod.BINOMIAL:
            return binomial.additional_rows(interval.rows, mean, bound, level)
        deviation = interval.deviation / (high - low) if interval.rows > 1 else 0.5
        return betting.additional_rows(interval.rows, mean, deviation, bound, level)
    if not 0 < interval.deviation < math.inf:
        return None
    # The margins of the remaining methods shrink with the square root of the number of rows.
    total = float(np.square(ndtri(level) * interval.deviation / margin))
    if interval.method is IntervalMethod.GAP:
        total *= math.log(1 / level) / float(np.square(ndtri(level)))
    return max(1, math.ceil(total) - interval.rows) if total < 10**12 else None
