"""Why no round was feasible: the constraint is not met, or the reports never show that it is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softswitch.clients.oracle import Judged
from softswitch.results.ending import Ending
from softswitch.results.findings.blocker import Alone
from softswitch.results.findings.finding import Finding
from softswitch.support.set_aside import worst_but
from softswitch.support.text import in_words

NEVER_MET = "constraint never met"


def never_passed(ending: Ending, judged: Judged, steadied_by: str) -> Finding | None:
    """No round passed the switch: by a constraint that is not met, or by reports that never show that it is."""
    history, tolerance = ending.history, ending.rule.tolerance
    if history.feasible_rounds or history.void.all() or ending.stopped:
        return None
    worst = judged.constraint.max(axis=1)
    if not worst_but(judged.constraint, ending.rule.robust) <= tolerance:
        return never_feasible(ending.names, worst, tolerance, int(worst.argmax()), None)
    return Finding(
        "the switch never passes",
        f"at the iterate with the smallest criterion all {len(worst)} clients are within the tolerance {tolerance:g} "
        f"on all their data, the largest at {in_words(float(worst.max()))}, but no round's criterion was at most "
        f"{in_words(float(ending.rule.switch_at))}",
        f"The largest of noisy reports is too large: raise {steadied_by}; or raise the threshold towards the "
        "tolerance, or run longer",
    )


def never_feasible(
    names: tuple[Any, ...], worst: np.ndarray, tolerance: float, blocker: int, alone: Alone | None
) -> Finding:
    """The constraint was never met: who is how far, and whether the worst client could meet it by itself.

    Args:
        names: the clients' labels.
        worst: each client's largest constraint, where the criterion was smallest.
        tolerance: ε.
        blocker: the client that was looked at by itself.
        alone: how far its constraint can be brought down; None where that was not looked for.
    """
    above = np.flatnonzero(~(worst <= tolerance))
    order = above[np.argsort(-worst[above])]
    named = ", ".join(f"{names[i]!r} ({in_words(worst[i])})" for i in order[:5])
    more = f" and {len(order) - 5} more" if len(order) > 5 else ""
    seen = f"{len(above)} of {len(names)} clients are above the tolerance {tolerance:g} at best: {named}{more}"
    longer = "Run longer, change the step size, or raise the tolerance"
    if alone is None or not math.isfinite(alone.smallest):
        return Finding(NEVER_MET, seen, longer)
    if alone.smallest <= tolerance:
        return Finding(
            "constraints look incompatible",
            f"{seen}. By itself client {names[blocker]!r} reaches {in_words(alone.smallest)}, within the tolerance",
            "If a longer run or another step size does not help, the clients pull against each other: raise the "
            "tolerance or enlarge the model",
        )
    if not alone.settled:
        return Finding(
            NEVER_MET,
            f"{seen}. By itself client {names[blocker]!r} was brought to {in_words(alone.smallest)}, with no end in "
            "sight",
            longer,
        )
    return Finding(
        "client infeasible by itself",
        f"{seen}. Minimising the constraint of client {names[blocker]!r} alone ends at {in_words(alone.smallest)}",
        f"No other client is to blame: raise the tolerance, or give {names[blocker]!r} a constraint it can meet",
    )
