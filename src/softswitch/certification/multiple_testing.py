"""Several claims tested on the same rows in a fixed order: all that pass hold together, and none costs confidence.

**Theorem** (tests in a fixed order; Maurer, Hothorn and Lehmacher, 1995). Let claims 1, …, m and their order be settled
before the rows are looked at, and let each have a test that passes it with a chance of at most δ if it is false. Test
them one after the other, and stop at the first that does not pass. Then the chance that any claim that passed is false
is at most δ, whichever of them are false.

*Proof.* If all claims are true, there is nothing to be wrong about. Else let j be the first false claim in the order;
which one that is does not depend on the rows. Any false claim that passed stands at j or later, and for one at j or
later to be tested, or to pass, j itself must pass. That has a chance of at most δ. ∎

So no test need be stricter for there being many, whatever they have in common: the same rows, like models. The price is
paid by the order: a claim behind one that did not pass is not tested, be it as true as it may. So those most likely to
pass stand in front.
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
from softswitch.problem.ranges import Range, ends
from softswitch.results.certificate import Certificate, ClientCertificate, Interval, IntervalMethod, Verdict

Claim = TypeVar("Claim")


def fixed_sequence_test(claims: Iterable[Claim], passes: Callable[[Claim], bool]) -> tuple[bool, ...]:
    """Which claims passed, from the first on; the first that did not is the last that was tested.

    Args:
        claims: in an order that was settled before the rows were looked at.
        passes: tests a claim on the rows. Of claims behind the first that does not pass it is never asked.
    """
    found = []
    for claim in claims:
        found.append(passes(claim))
        if not found[-1]:
            break
    return tuple(found)


def build_certificate(
    clients: Sequence[tuple[Any, Sequence[Interval] | None]],
    confidence: float,
    levels: ErrorLevels,
    ranges: Sequence[Range | None],
) -> Certificate:
    """What the intervals say of all clients.

    Args:
        clients: each one's name, and the intervals of f and then g; None where nothing is known of it.
        confidence: of the statements.
        levels: at which the intervals are.
        ranges: of f and then g on a single row.
    """
    told = [
        _completed(intervals, levels) if intervals else (unknown_interval(),) * len(ranges) for _, intervals in clients
    ]
    meeting = hochberg([_meets_at(own[1:]) for own in told], levels.marginal)
    violating = hochberg([_violates_at(own[1:]) for own in told], levels.marginal)
    above = [_above(own[1:], levels.tolerance) for own in told if _is_known(own[1:])]
    levels_needed = levels.marginal / (sum(above) + 1), levels.marginal / (len(above) - sum(above) + 1)
    found = []
    for (name, _), own, meets, violates in zip(clients, told, meeting, violating, strict=True):
        verdict, needed = Verdict.UNCLEAR, None
        if violates:
            verdict = Verdict.VIOLATES
        elif meets:
            verdict = Verdict.MEETS
        elif any(math.isnan(interval.estimate) for interval in own[1:]):
            verdict = Verdict.UNKNOWN
        else:
            needed = _rows_needed(own[1:], levels.tolerance, levels_needed, ranges[1:])
        found.append(ClientCertificate(name, own[0], tuple(own[1:]), verdict, needed))
    return Certificate(levels.tolerance, confidence, tuple(found))


def hochberg(p_values: Sequence[float | None], error: float) -> list[bool]:
    """Which hypotheses are rejected by Hochberg's procedure; None is no hypothesis.

    No hypothesis is made of a client without rows. Whether it has any does not depend on their values.
    """
    known = sorted(p for p in p_values if p is not None)
    many = len(known)
    held = [p for k, p in enumerate(known, 1) if p <= error / (many - k + 1)]
    largest = held[-1] if held else -math.inf
    return [p is not None and p <= largest for p in p_values]


def _completed(intervals: Sequence[Interval], levels: ErrorLevels) -> tuple[Interval, ...]:
    """With p-values, also where whoever made an interval told only its ends: then they are those of its level or 1."""
    told = []
    for interval in intervals:
        meets = levels.joint if interval.upper <= levels.tolerance else 1.0
        violates = levels.joint if interval.lower > levels.tolerance else 1.0
        told.append(
            replace(
                interval,
                marginal_upper=interval.upper if math.isnan(interval.marginal_upper) else interval.marginal_upper,
                meets_at=min(interval.meets_at, meets),
                violates_at=min(interval.violates_at, violates),
            )
        )
    return tuple(told)


def _is_known(constraints: Sequence[Interval]) -> bool:
    return all(interval.rows > 0 for interval in constraints)


def _meets_at(constraints: Sequence[Interval]) -> float | None:
    return max(interval.meets_at for interval in constraints) if _is_known(constraints) else None


def _violates_at(constraints: Sequence[Interval]) -> float | None:
    p_values = [interval.violates_at for interval in constraints if interval.rows > 0]
    return min(1.0, len(p_values) * min(p_values)) if p_values else None


def _above(constraints: Sequence[Interval], tolerance: float) -> bool:
    return not max(interval.estimate for interval in constraints) <= tolerance


def _rows_needed(
    constraints: Sequence[Interval], tolerance: float, levels: tuple[float, float], ranges: Sequence[Range | None]
) -> int | None:
    """How many more rows would probably decide an open client, if the others are what they look like.

    Where v of n clients are above the tolerance, Hochberg's procedure decides those below at (1 − confidence)/(v + 1),
    and those above at (1 − confidence)/(n − v + 1). One that is within the former waits for the others only: 0.
    """
    known = list(zip(constraints, ranges, strict=True))
    if not _above(constraints, tolerance):
        meets, _ = levels
        needed = [rows_needed(one, tolerance, meets, bounds) for one, bounds in known if one.meets_at > meets]
        return None if None in needed else max((more for more in needed if more is not None), default=0)
    violates = levels[1] / len(known)
    found = [rows_needed(one, tolerance, violates, bounds) for one, bounds in known if one.estimate > tolerance]
    return min((more for more in found if more is not None), default=None)


def rows_needed(interval: Interval, tolerance: float, level: float, bounds: Range | None) -> int | None:
    """How many more rows, with the same mean and scatter, bring the p-value down to the level."""
    margin = abs(tolerance - interval.estimate)
    if not margin > 0 or interval.rows < 1:
        return None
    if interval.method in (IntervalMethod.BINOMIAL, IntervalMethod.BETTING) and bounds is not None:
        low, high = ends(bounds)
        mean, bound = ((value - low) / (high - low) for value in (interval.estimate, tolerance))
        if interval.method is IntervalMethod.BINOMIAL:
            return binomial.more_rows(interval.rows, mean, bound, level)
        deviation = interval.deviation / (high - low) if interval.rows > 1 else 0.5
        return betting.more_rows(interval.rows, mean, deviation, bound, level)
    # What the others' limits rest on comes nearer by the root of the rows.
    spread = interval.deviation
    if not 0 < spread < math.inf:
        return None
    wanted = float(np.square(ndtri(level) * spread / margin))
    if interval.method is IntervalMethod.GAP:
        wanted *= math.log(1 / level) / float(np.square(ndtri(level)))
    return max(1, math.ceil(wanted) - interval.rows) if wanted < 10**12 else None
