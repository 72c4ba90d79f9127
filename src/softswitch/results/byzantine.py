"""Clients whose numbers do not go together: findings for people to follow up. None of them is a proof."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from softswitch.methods.base import Method
from softswitch.methods.consistency import Consistency
from softswitch.methods.trimming import largest_few, worst_but
from softswitch.oracles.base import Evaluation
from softswitch.results.answer import RunEnd
from softswitch.results.diagnostic import Diagnostic, DiagnosticCode
from softswitch.support.text import few_of, in_words

FEWEST = 12
"""Of fewer rounds nothing is said."""
CERTAIN = 4.0
"""So many standard deviations from what the others do is not luck."""
OUT_OF_PROPORTION = 1000.0
"""Reports that change so many times more, or less, than the others' do, by what directions foretell."""
FAR_OFF = 100.0
"""A number so many times as far from the others as these are from each other."""


def suspects(ending: RunEnd, judged: Evaluation) -> list[Diagnostic]:
    """What looks like a lie in a run whose rule is robust; nothing is looked for in others.

    Args:
        ending: where the run ended.
        judged: what every client says of the answer.
    """
    liars = ending.method.robust
    if liars is None:
        return []
    found = diagnose_model(ending.names, ending.method, judged)
    if ending.state.consistency is not None:
        along = (_disagree(ending, ending.state.consistency, liars), _out_of_proportion(ending, liars))
        found += [finding for finding in along if finding is not None]
    return found


def diagnose_model(names: Sequence[Any], method: Method, judged: Evaluation) -> list[Diagnostic]:
    """What looks like a lie in what clients say of one model, whatever came before it.

    Args:
        names: of the clients.
        method: the method.
        judged: what every client says of the model.
    """
    if method.robust is None:
        return []
    found = (_set_aside(names, method, judged), _far_from_others(names, judged, method.robust))
    return [finding for finding in found if finding is not None]


def _set_aside(names: Sequence[Any], method: Method, judged: Evaluation) -> Diagnostic | None:
    """Clients above the tolerance that do not count, since as many may lie."""
    worst, tolerance, liars = judged.constraint.max(axis=1), method.tolerance, method.robust
    above = [i for i in largest_few(worst, liars) if worst[i] > tolerance]
    if not above or not worst_but(judged.constraint, liars) <= tolerance:
        return None
    unknown = " that have answered" if np.isnan(worst).any() else ""
    return Diagnostic(
        DiagnosticCode.TRIMMED_VIOLATION,
        f"{_named(names, above, worst)} {'is' if len(above) == 1 else 'are'} above the tolerance {tolerance:g}; all "
        f"others{unknown} are within it, and robust={liars} sets as many aside",
        "It lies, or it is the worst-off client and pays for the protection of the others: ask it; if you trust all "
        "clients, leave robust out",
    )


def _far_from_others(names: Sequence[Any], judged: Evaluation, liars: int) -> Diagnostic | None:
    """Clients that claim a number unlike anybody else's."""
    far, told = [], np.full(len(judged.objective), np.nan)
    for values in (judged.objective, *judged.constraint.T):
        known = values[np.isfinite(values)]
        if len(known) <= 2 * liars + 1:
            continue
        ordered = np.sort(known)
        low, high = ordered[liars], ordered[-1 - liars]
        reach = FAR_OFF * (high - low)
        for i in np.flatnonzero(np.isfinite(values) & ((values > high + reach) | (values < low - reach))):
            if high > low and i not in far:
                far.append(int(i))
                told[i] = values[i]
    if not far:
        return None
    return Diagnostic(
        DiagnosticCode.OUTLIER_VALUES,
        f"{_named(names, far, told)}: more than {FAR_OFF:g} times as far from the other clients as these are from "
        "each other",
        "Look at that client's data and units, or go on without it (exclude)",
    )


def _disagree(ending: RunEnd, known: Consistency, liars: int) -> Diagnostic | None:
    """Clients that report to be better off where their own direction says that they would be worse off."""
    hurt, denied = np.asarray(known.hurt), np.asarray(known.denied)
    enough = hurt >= FEWEST
    if not enough.any():
        return None
    share = denied / np.maximum(hurt, 1)
    usual = min(0.5, worst_but(share[enough], liars))
    beyond = (denied - hurt * usual) / np.sqrt(np.maximum(hurt, 1) * max(usual * (1 - usual), 0.05))
    found = np.flatnonzero(enough & (beyond >= CERTAIN)).tolist()
    if not found:
        return None
    told = few_of([f"{ending.names[i]!r} in {denied[i]} of {hurt[i]} rounds" for i in found])
    return Diagnostic(
        DiagnosticCode.INCONSISTENT_UPDATES,
        f"a client's direction says that a step would hurt it, and it then reports to be better off: {told}; of the "
        f"others nobody in more than {usual:.0%}",
        "It points elsewhere than its reports, by mistake or on purpose: look at its code, or go on without it "
        "(exclude)",
    )


def _out_of_proportion(ending: RunEnd, liars: int) -> Diagnostic | None:
    """Clients whose reports change far more, or far less, than their directions foretell."""
    known = ending.state.consistency
    assert known is not None
    said, meant = np.asarray(known.said, float), np.asarray(known.meant, float)
    compared = (said > 0) & (meant > 0) & (np.asarray(known.times) >= FEWEST)
    if compared.sum() <= 2 * liars + 1:
        return None
    ratio = np.where(compared, said / np.where(compared, meant, 1), np.nan)
    usual = float(np.nanmedian(ratio))
    odd = (ratio > OUT_OF_PROPORTION * usual) | (ratio < usual / OUT_OF_PROPORTION)
    found = np.flatnonzero(odd).tolist()
    if not found:
        return None
    told = few_of([f"{ending.names[i]!r} ({ratio[i]:.2g} times as much)" for i in found])
    return Diagnostic(
        DiagnosticCode.UPDATE_SCALE_MISMATCH,
        f"reports changed by {usual:.2g} times what directions foretell, at the client in the middle; but {told}",
        "Its reports or its directions are in other units, or made up: look at its code, or go on without it (exclude)",
    )


def _named(names: Sequence[Any], clients: list[int], values: Any) -> str:
    return few_of([f"{names[i]!r} ({in_words(float(values[i]))})" for i in clients])
