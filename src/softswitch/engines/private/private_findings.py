"""What is said of a private run beside its numbers: by its settings alone, with no look at rows."""

from __future__ import annotations

from dataclasses import replace

from softswitch.clients.private.record_privacy import RecordPrivacy
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import each_range, ends
from softswitch.results.findings.finding import Finding
from softswitch.results.result import Result

WORTH = Finding(
    "what it is worth is not known",
    "nothing was compared with a constant prediction, nor with a model without the constraint: that would look at "
    "rows, uncounted",
    "Try on rows that need no privacy which rounds and step size do, and features scaled to where most values lie",
)
ANEW = "A private run cannot be made longer: more rounds are a run of its own, at full ε again"


def with_findings(result: Result) -> Result:
    """The result, with what can be said of any private run; advice that a private run cannot follow is put right.

    Args:
        result: of the run.
    """
    told = [
        replace(found, change=f"{found.change}. {ANEW}") if "run longer" in found.change.lower() else found
        for found in result.diagnosis
    ]
    return replace(result, diagnosis=(*told, WORTH))


def by_ranges(problem: Problem, privacy: RecordPrivacy, result: Result) -> Result:
    """The result, with what the ranges of its constraints say of clips and of noise.

    Args:
        problem: with its ranges.
        privacy: how rows are kept private.
        result: of the run.
    """
    ranges = each_range(problem.constraint_range, result.client_constraint.shape[1])
    known = [ends(bounds) for bounds in ranges if bounds is not None]
    largest = max((max(map(abs, bounds)) for bounds in known), default=0.0)
    more = []
    if largest > privacy.clip_value:
        more.append(
            Finding(
                "rows are clipped",
                f"a row may tell of a constraint up to {largest:.3g}, and counts for {privacy.clip_value:g} at most: "
                "constraints may be larger than they look",
                f"Raise clip_value to what rows tell, {largest:.3g} at most; with several functions of the same rows "
                "more",
            )
        )
    least = min((low for low, _ in known), default=float("-inf"))
    if (at := float(result.rule.switch_at)) <= least:
        more.append(
            Finding(
                "noise is larger than the bound",
                f"to be on the safe side of the noise the switch is at {at:.3g}, and no constraint can be below "
                f"{least:.3g}: only noise makes a round feasible",
                "Fewer rounds, more rows at each client, a larger ε, or a larger tolerance",
            )
        )
    return replace(result, diagnosis=(*result.diagnosis, *more))
