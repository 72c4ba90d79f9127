"""Checks that detect problems of a run from its history and its answer. Each yields a ``Diagnostic`` or nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from scipy.stats import hypergeom, norm

from softswitch.methods.base import Method
from softswitch.methods.consistency import Consistency
from softswitch.methods.weighting import trimmed_clients, trimmed_max
from softswitch.oracles.base import Evaluation
from softswitch.results.baseline import START, Baseline, compare_with_trivial
from softswitch.results.history import ClientOutcome, History
from softswitch.results.status import Diagnostic, Restart, RunEnd
from softswitch.results.status import DiagnosticCode as Code
from softswitch.support.text import format_number, format_percent, format_value, join_first

MIN_ROUNDS = 20  # checks of a trend, an average or a share need at least this many rounds
MIN_AVERAGED_SHARE = 0.05  # few averaged rounds: a smaller share of those that could have joined the average
MAX_SWITCH_SHARE = 0.99  # inactive constraint: a larger share of rounds is feasible
MAX_VOID_SHARE = 0.1  # void rounds: a larger share of rounds is void
MAX_LOST_SHARE = 0.05  # client dropout: a larger share of participants was lost
LARGE_GAIN, LARGE_GAIN_OF_FIRST = 0.01, 1e-4  # a gain in F is large above the sum of these shares of last and first F
MIN_EVALUATIONS = 9  # fewest evaluations of F for a trend
MIN_STANDARD_ERRORS = 3.0  # a trend is significant if it exceeds this many standard errors
MIN_COMPARISONS = 12  # fewest comparisons of a client's reports with its updates
MIN_DEVIATIONS = 4.0  # a client disagrees if it is this many standard deviations above the usual rate
MAX_SCALE_RATIO = 1000.0  # largest plausible ratio of a client's scale to the median scale
OUTLIER_DISTANCE = 100.0  # an outlier's distance from the remaining clients, in units of their spread
OVERFITTING_LEVEL = 0.01  # significance level of a larger value on held-out rows
MIN_RATE_INCREASE, MIN_LOSS_INCREASE = 0.03, 0.1  # smallest increase of a rate, and relative increase of a loss
MIN_LOSS_ROWS = 20  # fewest rows of a client for the normal approximation of its mean loss
Found = Iterator[Diagnostic]


def diagnose(end: RunEnd, evaluation: Evaluation, clients: Any, scatter: Callable[[], float]) -> Found:
    """Yield all diagnostics of a run, the most important first.

    ``evaluation`` has the values of the answer at every client. ``clients`` is an ``Oracle``, or has its
    ``participants``, ``noise_setting`` and ``report_batch_size``. ``scatter`` returns the standard deviation of the
    sampled G at a fixed iterate, and is called only if a diagnostic needs it.
    """
    history, method, restarts = end.history, end.method, end.restarts
    yield from _client_dropout(history, end.names)
    if end.diverged_at >= 0:
        yield _diverged(end)
        return
    # Earlier restarts have large steps on purpose: only the last one is diagnosed.
    first = restarts[-1].begin if restarts else 0
    yield from diagnose_model(end.names, method, evaluation)
    if method.robust is not None and (known := end.state.parts.get("consistency")) is not None:
        yield from _inconsistent_updates(end.names, known, method.robust)
        yield from _scale_mismatch(end.names, known, method.robust)
    if not (history.feasible_rounds or history.void.all() or end.stopped):
        yield _no_feasible_round(end, evaluation, clients.noise_setting)
    if end.start is not None:
        answer, start = (Baseline.of(START, values, method) for values in (evaluation, end.start))
        yield from compare_with_trivial(answer, [start])
    yield from _void_rounds(history, clients.participants, len(end.names))
    yield from _missing_strata(history, clients.participants, evaluation)
    yield from _unstable_switch(end, first, clients, scatter)
    if len(history) >= MIN_ROUNDS and history.feasible_rounds and history.switch_share > MAX_SWITCH_SHARE:
        largest = f"the largest reported constraint was {format_value(history.constraint.max())}"
        advice = "If that is unexpected, check the sign and the scale of the constraint, and the tolerance"
        evidence = f"{history.switch_share:.1%} of the rounds were feasible; {largest}"
        yield Diagnostic(Code.INACTIVE_CONSTRAINT, evidence, advice)
    yield from _masked_worst_client(history, first, method)
    if not restarts:
        yield from _few_averaged_rounds(end)
    if not end.stopped and history.feasible_rounds:
        yield from still_improving(history, restarts, method.tolerance)


def _diverged(end: RunEnd) -> Diagnostic:
    if end.vanished:
        nothing = "no client has an objective, or none has a constraint: all are −∞ on all data"
        advice = "Check the functions: −∞ means that a client has nothing to measure, but may also be an overflow"
        return Diagnostic(Code.NO_VALUES, f"from round {end.diverged_at} on {nothing}", advice)
    step = float(end.method.step_size_at(end.diverged_at))
    advice = f"Lower step_size (now {step:.3g}), or see the status for the client"
    return Diagnostic(Code.DIVERGED, f"a value was not finite in round {end.diverged_at}", advice)


def _client_dropout(history: History, names: Sequence[Any]) -> Found:
    if history.lost_share <= MAX_LOST_SHARE:
        return
    per_client: Any = history.per_client  # lost_share is 0 without outcomes
    lost = ~np.isin(per_client.outcomes, (ClientOutcome.EMPTY, ClientOutcome.COUNTED, ClientOutcome.VOID))
    worst = names[int(np.argmax(np.bincount(per_client.clients[lost], minlength=len(names))))]
    evidence = f"{history.lost_share:.0%} of the participants did not complete their round, most often {worst!r}"
    advice = "Check the log for that client's reasons, or raise report_timeout and update_timeout"
    yield Diagnostic(Code.CLIENT_DROPOUT, evidence, advice)


def _no_feasible_round(end: RunEnd, evaluation: Evaluation, noise_setting: str) -> Diagnostic:
    """Diagnose a run without feasible rounds: the answer violates the tolerance, or only its noisy reports did."""
    tolerance, worst = end.method.tolerance, evaluation.constraint.max(axis=1)
    if not trimmed_max(evaluation.constraint, end.method.robust) <= tolerance:
        above = np.flatnonzero(~(worst <= tolerance))
        listed = [f"{end.names[i]!r} ({format_value(worst[i])})" for i in above[np.argsort(-worst[above])]]
        clients = f"{len(above)} of {len(worst)} clients are above the tolerance {tolerance:g} at best"
        advice = "Run longer, change the step size, or raise the tolerance; or train one of these clients alone"
        evidence = f"{clients}: {join_first(listed)}"
        return Diagnostic(Code.NEVER_FEASIBLE, evidence, advice, suggests_more_rounds=True)
    within = f"all {len(worst)} clients are within the tolerance {tolerance:g} on all their data"
    level = format_value(float(end.method.switch_at))
    evidence = f"at the iterate with the smallest criterion {within}, but no round's criterion was at most {level}"
    threshold = "or raise the threshold towards the tolerance, or run longer"
    advice = f"The largest of noisy reports is too large: raise {noise_setting}; {threshold}"
    return Diagnostic(Code.SWITCH_NEVER_PASSES, evidence, advice, suggests_more_rounds=True)


def _void_rounds(history: History, participants: int, clients: int) -> Found:
    share = float(np.mean(history.void)) if len(history) else 0.0
    if share > MAX_VOID_SHARE and history.lost_share <= MAX_LOST_SHARE:  # else dropout is the reason
        none = f"none of {participants} participants had an objective, or none a constraint"
        advice = "Sample by the class or group that batches lack (strata=…), or raise batch_size"
        if participants < clients:
            advice = f"Raise participation (now {participants} of {clients} clients)"
        evidence = f"in {share:.0%} of the rounds {none}, and the model did not change"
        yield Diagnostic(Code.VOID_ROUNDS, evidence, advice)


def _missing_strata(history: History, participants: int, evaluation: Evaluation) -> Found:
    """Diagnose batches that often lack a class or group of their client, so that reports have no value."""
    expected = float(np.mean(np.isneginf(evaluation.objective) | np.isneginf(evaluation.constraint).any(axis=1)))
    reports = max(1, participants * len(history))
    missing = float(np.sum(history.absent)) / reports
    # More than client sampling explains, and more than 5% of the reports that could have a value.
    excess = max(0.05 * (1 - expected), 3 * math.sqrt(expected * (1 - expected) / reports))
    if len(history) >= MIN_ROUNDS and missing - expected > excess:
        data = f"but on all their data only {expected:.0%} of the clients do"
        evidence = f"{missing:.0%} of the reports had no objective or lacked a constraint, {data}"
        columns = "all columns that the functions distinguish, such as strata=('group', 'y')"
        yield Diagnostic(Code.MISSING_STRATA, evidence, f"Sample by {columns}; or raise batch_size")


def _unstable_switch(end: RunEnd, first: int, clients: Any, scatter: Callable[[], float]) -> Found:
    """Diagnose a criterion that changes by more than the tolerance in a round: noisy reports, or too large steps."""
    method, everyone = end.method, clients.participants == len(end.names)
    criterion = end.history.criterion[first:]
    level, later = _constraint_scale(criterion, method), _finite(criterion[len(criterion) // 2 :])
    change = float(np.median(np.abs(np.diff(later)))) if len(later) >= MIN_ROUNDS // 2 else 0.0
    if level is None or change <= level:
        return
    noise = scatter()
    if noise > level:
        threshold = f"{float(method.switch_at):.3g}{'' if everyone else '; not all clients participate'}"
        variation = f"the sampled worst constraint varies by {noise:.3g}, with a threshold of {threshold}"
        advice = f"Raise {clients.noise_setting}"
        if (rows := clients.report_batch_size) is not None:
            # Twice the square of the noise's ratio to the level: the noise is a rough estimate.
            enough = math.ceil(2 * rows * (noise / _given_scale(method)) ** 2)
            advice += f" from {rows:,} to about {enough:,} (None: all rows)"
        advice += "" if everyone else ", or participation"
        yield Diagnostic(Code.NOISY_SWITCH, f"at a fixed iterate {variation}: noise decides the switch", advice)
    elif change > 2 * level and not end.restarts:
        evidence = f"a single round changes the criterion by {change:.3g}, with a tolerance of {method.tolerance:g}"
        advice = f"Lower step_size (now {float(method.step_size_at(len(criterion) - 1)):.3g})"
        yield Diagnostic(Code.STEP_SIZE_TOO_LARGE, evidence, advice)


def _masked_worst_client(history: History, first: int, method: Method) -> Found:
    """Diagnose feasible rounds with a sampled client far above the tolerance, because the criterion is a mean."""
    level, feasible = _constraint_scale(history.criterion[first:], method), history.feasible[first:]
    if len(feasible) < MIN_ROUNDS or not feasible.any() or method.switches_on in ("max", "pooled") or level is None:
        return
    excess = history.constraint[first:][feasible] - method.tolerance
    if np.median(excess) > level:
        above = f"was above the tolerance {method.tolerance:g}, by up to {excess.max():.3g}"
        evidence = f"in {np.mean(excess > 0):.0%} of the feasible rounds some sampled client {above}"
        advice = "Use SoftmaxSGM with a larger alpha of the constraint (constraint_alpha), or criterion='max'"
        yield Diagnostic(Code.MASKED_WORST_CLIENT, evidence, advice)


def _few_averaged_rounds(end: RunEnd) -> Found:
    candidates, count = len(end.history) - end.averaging_from, int(end.state.average.rounds)
    is_averaged = end.answer == "average" and end.history.feasible[end.averaging_from :].any()
    few = count < MIN_ROUNDS or count < MIN_AVERAGED_SHARE * candidates
    if is_averaged and candidates >= MIN_ROUNDS and few:
        rounds = f"of {candidates} rounds that could have joined it"
        evidence = f"the answer is the mean of {count} feasible iterates, {rounds}"
        advice = "Run longer, or take the best feasible iterate (iterate='best')"
        yield Diagnostic(Code.FEW_AVERAGED_ROUNDS, evidence, advice, suggests_more_rounds=True)


def still_improving(history: History, restarts: Sequence[Restart], tolerance: float) -> Found:
    """Diagnose an F that decreased by a large gain in the last restart, or in the last third of the evaluations."""
    reported = _finite(history.objective)
    first = float(reported[0]) if len(reported) else 0.0
    if restarts:
        if len(restarts) < 2 or restarts[-2].constraint > tolerance:  # until the tolerance is met, gains are in G
            return
        (before, after), period = (restart.objective for restart in restarts[-2:]), "the last restart"
    else:
        values = np.asarray(history.full.objective, dtype=float)
        known = np.flatnonzero(np.isfinite(values))
        if len(known) < MIN_EVALUATIONS:
            return
        known = known[-max(len(known) // 3, MIN_EVALUATIONS // 2) :]
        rounds = history.full_rounds[known].astype(float)
        centred = rounds - rounds.mean()
        (slope, mean), covariance = np.polyfit(centred, values[known], 1, cov=True)
        if -slope <= MIN_STANDARD_ERRORS * np.sqrt(covariance[0, 0]):
            return
        before, after = (float(mean + slope * centred[i]) for i in (0, -1))
        period = f"the last {int(rounds[-1] - rounds[0]):,} rounds"
    if before - after > LARGE_GAIN * abs(after) + LARGE_GAIN_OF_FIRST * abs(first):
        evidence = f"{period} brought F from {format_value(before)} to {format_value(after)}"
        advice = "Run longer: raise rounds, or continue from this result with warm_start"
        yield Diagnostic(Code.STILL_IMPROVING, evidence, advice, suggests_more_rounds=True)


def _finite(values: np.ndarray) -> np.ndarray:
    return np.extract(np.isfinite(values), values)


def _constraint_scale(criterion: np.ndarray, method: Method) -> float | None:
    """Return the largest of tolerance, threshold and 5% of the criterion's range; None if the first two are 0."""
    given, finite = _given_scale(method), _finite(criterion)
    return None if given == 0 or len(finite) == 0 else max(given, 0.05 * float(np.ptp(finite)))


def _given_scale(method: Method) -> float:
    return max(method.tolerance, abs(float(method.switch_at)))


# Suspicious clients of robust methods. These diagnostics are indications, not proofs.


def diagnose_model(names: Sequence[Any], method: Method, evaluation: Evaluation) -> list[Diagnostic]:
    """Diagnose suspicious clients from a model's values at every client; an empty list if the method is not robust."""
    if method.robust is None:
        return []
    return [*_trimmed_violation(names, method, evaluation), *_outliers(names, evaluation, method.robust)]


def _list_values(names: Sequence[Any], clients: Sequence[int], values: Any) -> str:
    return join_first([f"{names[i]!r} ({format_value(float(values[i]))})" for i in clients])


def _trimmed_violation(names: Sequence[Any], method: Method, evaluation: Evaluation) -> Found:
    worst, tolerance = evaluation.constraint.max(axis=1), method.tolerance
    above = [i for i in trimmed_clients(worst, method.robust) if worst[i] > tolerance]
    if above and trimmed_max(evaluation.constraint, method.robust) <= tolerance:
        violation = f"{_list_values(names, above, worst)} {'is' if len(above) == 1 else 'are'} above the tolerance"
        answered = " that have answered" if np.isnan(worst).any() else ""
        remaining = f"all remaining clients{answered} are within it, and robust={method.robust} trims as many"
        reason = "The client is Byzantine, or it is the worst-off client and robustness works against it"
        advice = f"{reason}: check with it; if you trust all clients, omit robust"
        yield Diagnostic(Code.TRIMMED_VIOLATION, f"{violation} {tolerance:g}; {remaining}", advice)


def _outliers(names: Sequence[Any], evaluation: Evaluation, byzantine: int) -> Found:
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


def _inconsistent_updates(names: Sequence[Any], known: Consistency, byzantine: int) -> Found:
    """Diagnose clients that report a decrease of their loss although their update direction predicts an increase."""
    increases, contradictions = np.asarray(known.predicted_increases), np.asarray(known.contradictions)
    enough = increases >= MIN_COMPARISONS
    if not enough.any():
        return
    usual = min(0.5, trimmed_max((contradictions / np.maximum(increases, 1))[enough], byzantine))
    excess = (contradictions - increases * usual) / np.sqrt(np.maximum(increases, 1) * max(usual * (1 - usual), 0.05))
    suspicious = np.flatnonzero(enough & (excess >= MIN_DEVIATIONS)).tolist()
    if suspicious:
        listed = join_first([f"{names[i]!r} in {contradictions[i]} of {increases[i]} rounds" for i in suspicious])
        evidence = "a client's update predicts that a step increases its loss, but it then reports a decrease"
        others = f"no other client does so in more than {usual:.0%}"
        contradiction = "Its updates contradict its reports, by mistake or on purpose"
        advice = f"{contradiction}: check its code, or continue without it (exclude)"
        yield Diagnostic(Code.INCONSISTENT_UPDATES, f"{evidence}: {listed}; {others}", advice)


def _scale_mismatch(names: Sequence[Any], known: Consistency, byzantine: int) -> Found:
    """Diagnose clients whose reports change far more, or far less, than their updates predict."""
    reported, predicted = np.asarray(known.reported_total, float), np.asarray(known.predicted_total, float)
    compared = (reported > 0) & (predicted > 0) & (np.asarray(known.times) >= MIN_COMPARISONS)
    if compared.sum() <= 2 * byzantine + 1:
        return
    ratio = np.where(compared, reported / np.where(compared, predicted, 1), np.nan)
    usual = float(np.nanmedian(ratio))
    suspicious = np.flatnonzero((ratio > MAX_SCALE_RATIO * usual) | (ratio < usual / MAX_SCALE_RATIO)).tolist()
    if suspicious:
        listed = join_first([f"{names[i]!r} ({ratio[i]:.2g} times)" for i in suspicious])
        usually = f"the median client's reports change by {usual:.2g} times what its updates predict"
        units = "Its reports and updates have different units, or are made up"
        advice = f"{units}: check its code, or continue without it (exclude)"
        yield Diagnostic(Code.UPDATE_SCALE_MISMATCH, f"{usually}; those of {listed}", advice)


# Overfitting: the same metric on training rows and on held-out rows.


def diagnose_overfitting(
    metric: str, training: Mapping[Any, np.ndarray], held_out: Mapping[Any, np.ndarray], *, bound: float | None = None
) -> list[Diagnostic]:
    """Diagnose a metric that is significantly larger on held-out rows than on training rows.

    The client with the smallest p-value is compared at the level ``OVERFITTING_LEVEL`` divided by the number of
    clients, and the mean over the clients at that level. Rates are compared by Fisher's exact test. ``training`` and
    ``held_out`` have, by client, the value of each row: whether it is an error, or its loss. ``bound`` is that of the
    metric, if it is the constraint.
    """
    names = [name for name, rows in held_out.items() if len(rows) and len(training.get(name, ()))]
    pairs = [(np.asarray(training[name], float), np.asarray(held_out[name], float)) for name in names]
    if not pairs:
        return []
    is_rate = all(np.isin(rows, (0.0, 1.0)).all() for pair in pairs for rows in pair)
    compare, write = (_compare_rates, format_percent) if is_rate else (_compare_means, format_number)

    def is_large(before: float, after: float) -> bool:
        return after - before >= (MIN_RATE_INCREASE if is_rate else MIN_LOSS_INCREASE * abs(before))

    tested = [
        (compare(first, second), name, first, second)
        for name, (first, second) in zip(names, pairs, strict=True)
        if is_large(float(first.mean()), float(second.mean()))
    ]
    p_value, name, first, second = min(tested, key=itemgetter(0), default=(1.0, "", *pairs[0]))
    if p_value <= OVERFITTING_LEVEL / len(pairs):
        values = f"{write(float(first.mean()))} on {len(first):,} training rows"
        held_out_values = f"{write(float(second.mean()))} on {len(second):,} held-out rows"
        evidence = f"the {metric} of client {name!r} is {values}, but {held_out_values}"
    else:
        before, after = (float(np.mean([rows.mean() for rows in side])) for side in zip(*pairs, strict=True))
        variances = [np.concatenate(pair).var() * sum(1 / len(rows) for rows in pair) for pair in pairs]
        error = math.sqrt(sum(variances)) / len(pairs)
        if not is_large(before, after) or not error > 0 or norm.sf((after - before) / error) > OVERFITTING_LEVEL:
            return []
        values = f"{write(before)} on training rows, but {write(after)} on held-out rows"
        evidence = f"the mean {metric} over {len(pairs):,} clients is {values}"
    evidence += "" if bound is None else f", with a bound of {write(bound)}"
    advice = "Use a smaller model or fewer features, add rows, or raise the bound"
    return [Diagnostic(Code.OVERFITTED, evidence, advice)]


def _compare_rates(first: np.ndarray, second: np.ndarray) -> float:
    """Return the one-sided p-value of Fisher's exact test that the second rate is not larger."""
    total, errors = len(first) + len(second), int(first.sum() + second.sum())
    return float(hypergeom.sf(int(second.sum()) - 1, total, errors, len(second)))


def _compare_means(first: np.ndarray, second: np.ndarray) -> float:
    """Return the one-sided p-value, by normal approximation, that the second mean is not larger."""
    if min(len(first), len(second)) < MIN_LOSS_ROWS:
        return 1.0
    error = math.sqrt(first.var(ddof=1) / len(first) + second.var(ddof=1) / len(second))
    return float(norm.sf((second.mean() - first.mean()) / error)) if error > 0 else 1.0
