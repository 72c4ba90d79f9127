"""Diagnostics of clients whose values are inconsistent. They are indications, not proofs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from softswitch.methods.base import Method
from softswitch.methods.consistency import Consistency
from softswitch.methods.weighting import trimmed_clients, trimmed_max
from softswitch.oracles.base import Evaluation
from softswitch.results.status import Diagnostic, RunEnd
from softswitch.results.status import DiagnosticCode as Code
from softswitch.support.text import format_value, join_first

MIN_ROUNDS = 12  # fewest compared rounds of a client for a diagnostic
MIN_DEVIATIONS = 4.0  # a client disagrees if it is this many standard deviations above the usual rate
MAX_SCALE_RATIO = 1000.0  # largest plausible ratio of a client's scale to the median scale
OUTLIER_DISTANCE = 100.0  # an outlier is this many times as far from the remaining clients as those from each other


def diagnose_clients(end: RunEnd, evaluation: Evaluation) -> Iterator[Diagnostic]:
    """Diagnose suspicious clients of a run with a robust method, given the answer's values at every client."""
    yield from diagnose_model(end.names, end.method, evaluation)
    known = end.state.parts.get("consistency")
    if end.method.robust is not None and known is not None:
        yield from _inconsistent_updates(end.names, known, end.method.robust)
        yield from _scale_mismatch(end.names, known, end.method.robust)


def diagnose_model(names: Sequence[Any], method: Method, evaluation: Evaluation) -> list[Diagnostic]:
    """Diagnose suspicious clients from one model's values at every client, if the method is robust."""
    if method.robust is None:
        return []
    return [*_trimmed_violation(names, method, evaluation), *_outliers(names, evaluation, method.robust)]


def _trimmed_violation(names: Sequence[Any], method: Method, evaluation: Evaluation) -> Iterator[Diagnostic]:
    worst, tolerance = evaluation.constraint.max(axis=1), method.tolerance
    above = [i for i in trimmed_clients(worst, method.robust) if worst[i] > tolerance]
    if above and trimmed_max(evaluation.constraint, method.robust) <= tolerance:
        violation = f"{_list_values(names, above, worst)} {'is' if len(above) == 1 else 'are'} above the tolerance"
        answered = " that have answered" if np.isnan(worst).any() else ""
        remaining = f"all remaining clients{answered} are within it, and robust={method.robust} trims as many"
        reason = "The client is Byzantine, or it is the worst-off client and robustness works against it"
        advice = f"{reason}: check with it; if you trust all clients, omit robust"
        yield Diagnostic(Code.TRIMMED_VIOLATION, f"{violation} {tolerance:g}; {remaining}", advice)


def _outliers(names: Sequence[Any], evaluation: Evaluation, byzantine: int) -> Iterator[Diagnostic]:
    outliers: dict[int, float] = {}
    for values in (evaluation.objective, *evaluation.constraint.T):
        ordered = np.sort(values[np.isfinite(values)])
        if len(ordered) <= 2 * byzantine + 1 or ordered[byzantine] == ordered[-1 - byzantine]:
            continue
        low, high = ordered[byzantine], ordered[-1 - byzantine]
        margin = OUTLIER_DISTANCE * (high - low)
        far = np.flatnonzero(np.isfinite(values) & ((values > high + margin) | (values < low - margin)))
        outliers |= {int(i): values[i] for i in far if int(i) not in outliers}
    if outliers:
        distance = "times as far from the remaining clients as these are from each other"
        evidence = f"{_list_values(names, list(outliers), outliers)}: more than {OUTLIER_DISTANCE:g} {distance}"
        advice = "Check that client's data and units, or continue without it (exclude)"
        yield Diagnostic(Code.OUTLIER_VALUES, evidence, advice)


def _inconsistent_updates(names: Sequence[Any], known: Consistency, byzantine: int) -> Iterator[Diagnostic]:
    """Clients that report an improvement although their own update direction predicts a deterioration."""
    hurt, denied = np.asarray(known.hurt), np.asarray(known.denied)
    enough = hurt >= MIN_ROUNDS
    if not enough.any():
        return
    usual = min(0.5, trimmed_max((denied / np.maximum(hurt, 1))[enough], byzantine))
    excess = (denied - hurt * usual) / np.sqrt(np.maximum(hurt, 1) * max(usual * (1 - usual), 0.05))
    suspicious = np.flatnonzero(enough & (excess >= MIN_DEVIATIONS)).tolist()
    if suspicious:
        listed = join_first([f"{names[i]!r} in {denied[i]} of {hurt[i]} rounds" for i in suspicious])
        evidence = "a client's update predicts that a step increases its loss, but it then reports a decrease"
        others = f"no other client does so in more than {usual:.0%}"
        contradiction = "Its updates contradict its reports, by mistake or on purpose"
        advice = f"{contradiction}: check its code, or continue without it (exclude)"
        yield Diagnostic(Code.INCONSISTENT_UPDATES, f"{evidence}: {listed}; {others}", advice)


def _scale_mismatch(names: Sequence[Any], known: Consistency, byzantine: int) -> Iterator[Diagnostic]:
    """Clients whose reports change far more, or far less, than their updates predict."""
    reported, predicted = np.asarray(known.said, float), np.asarray(known.meant, float)
    compared = (reported > 0) & (predicted > 0) & (np.asarray(known.times) >= MIN_ROUNDS)
    if compared.sum() <= 2 * byzantine + 1:
        return
    ratio = np.where(compared, reported / np.where(compared, predicted, 1), np.nan)
    usual = float(np.nanmedian(ratio))
    suspicious = np.flatnonzero((ratio > MAX_SCALE_RATIO * usual) | (ratio < usual / MAX_SCALE_RATIO)).tolist()
    if suspicious:
        listed = join_first([f"{names[i]!r} ({ratio[i]:.2g} times)" for i in suspicious])
        evidence = (
            f"the median client's reports change by {usual:.2g} times what its updates predict; those of {listed}"
        )
        units = "Its reports and updates have different units, or are made up"
        advice = f"{units}: check its code, or continue without it (exclude)"
        yield Diagnostic(Code.UPDATE_SCALE_MISMATCH, evidence, advice)


def _list_values(names: Sequence[Any], clients: list[int], values: Any) -> str:
    return join_first([f"{names[i]!r} ({format_value(float(values[i]))})" for i in clients])
