"""Diagnostics of a run, from its history and its answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import optax

from softswitch.methods.base import Method
from softswitch.methods.hard_sgm import HardSGM
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.oracles.base import Evaluation
from softswitch.results.baseline import START, Baseline, compare_with_trivial
from softswitch.results.byzantine import diagnose_clients
from softswitch.results.history import ClientOutcome, History
from softswitch.results.infeasibility import diagnose_no_feasible_round
from softswitch.results.restart import Restart, measure_improvement
from softswitch.results.status import Diagnostic, RunEnd
from softswitch.results.status import DiagnosticCode as Code
from softswitch.support.text import format_value

MIN_ROUNDS = 20  # fewest rounds for a trend, an average or a share
MIN_AVERAGED_SHARE = 0.05  # smallest share of the rounds that could join the average
LARGE_PERCENTILE = 90  # the percentile of changes that counts as large
MIN_CHANGE = 0.05  # smallest change of F that matters, as a share of its range
MIN_EVALUATIONS = 4  # fewest evaluations on all data that separate noise from steps
MAX_DIVERGED_SHARE = 1 / 3  # largest share of rounds in diverged restarts
MIN_SWITCH_SHARE, MAX_SWITCH_SHARE = 0.02, 0.99  # limits of the share of feasible rounds
MAX_VOID_SHARE = 0.1  # largest share of void rounds
MAX_LOST_SHARE = 0.05  # largest share of participants that were lost
Found = Iterator[Diagnostic]


def diagnose(end: RunEnd, evaluation: Evaluation, clients: Any, scatter: Callable[[], float]) -> tuple[Diagnostic, ...]:
    """Return all diagnostics of a run, the most important first.

    ``evaluation`` has the values of the answer at every client. ``clients`` is an ``Oracle``, or has its
    ``participants``, ``noise_setting`` and ``report_batch_size``. ``scatter`` measures how much the sampled G varies at
    one iterate, and is called only if a diagnostic needs it.
    """
    return tuple(_diagnose(end, evaluation, clients, scatter))


def _diagnose(end: RunEnd, evaluation: Evaluation, clients: Any, scatter: Callable[[], float]) -> Found:
    history, method, restarts = end.history, end.method, end.restarts
    yield from _client_dropout(history, end.names)
    if end.diverged_at >= 0:
        yield _diverged(end)
        return
    # Earlier restarts have large steps on purpose: only the last one is diagnosed.
    late = history.since(restarts[-1].begin) if restarts else history
    if method.robust is not None:
        yield from diagnose_clients(end, evaluation)
    if not (history.feasible_rounds or history.void.all() or end.stopped):
        yield from diagnose_no_feasible_round(end, evaluation, clients.noise_setting)
    if end.start is not None:
        answer, start = (Baseline.of(START, values, method) for values in (evaluation, end.start))
        yield from compare_with_trivial(answer, [start])
    yield from _void_rounds(history, clients.participants, len(end.names))
    yield from _missing_strata(history, clients.participants, evaluation)
    unstable = list(_unstable_switch(end, late, clients, scatter))
    if not unstable and not restarts:
        unstable = unstable_objective(late, evaluation, float(method.step_size_at(len(late) - 1)))
    yield from unstable
    if len(history) >= MIN_ROUNDS and history.feasible_rounds and history.switch_share > MAX_SWITCH_SHARE:
        largest = f"the largest reported constraint was {format_value(history.constraint.max())}"
        advice = "If that is unexpected, check the sign and the scale of the constraint, and the tolerance"
        yield Diagnostic(Code.INACTIVE_CONSTRAINT, f"{_describe_feasible_share(history)}; {largest}", advice)
    yield from _masked_worst_client(late, method, clients.participants * evaluation.constraint.shape[1])
    if restarts:
        yield from diverged_restarts(restarts)
        yield from _still_improving(end)
    elif len(history) >= MIN_ROUNDS and history.feasible_rounds and history.switch_share < MIN_SWITCH_SHARE:
        advice = "The average rests on few iterates: run longer, start nearer to feasibility, or raise the threshold"
        yield Diagnostic(Code.RARELY_FEASIBLE, _describe_feasible_share(history), advice, suggests_more_rounds=True)
        yield from _limit_cycle(history, method)
    else:
        yield from _few_averaged_rounds(end)
        yield from _limit_cycle(history, method)
        yield from _still_improving(end)


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
    clients, outcomes = per_client.clients, per_client.outcomes
    lost = ~np.isin(outcomes, (ClientOutcome.EMPTY, ClientOutcome.COUNTED, ClientOutcome.VOID))
    counts = np.bincount(clients[lost], minlength=len(names))
    worst = int(np.argmax(counts))
    common = ClientOutcome(int(np.bincount(outcomes[lost & (clients == worst)]).argmax())).label
    times = f"{counts[worst]} time{'s' if counts[worst] > 1 else ''}, mostly {common!r}"
    evidence = f"{history.lost_share:.0%} of the participants did not complete their round, most often {names[worst]!r}"
    advice = "Check the log for that client's reasons, or raise report_timeout and update_timeout"
    yield Diagnostic(Code.CLIENT_DROPOUT, f"{evidence} ({times})", advice)


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
    """Clients with a class or group that their batches often lack: their reports have no value then."""
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


def _unstable_switch(end: RunEnd, history: History, clients: Any, scatter: Callable[[], float]) -> Found:
    """The criterion changes by more than the tolerance between rounds: noisy reports, or too large steps."""
    method, everyone = end.method, clients.participants == len(end.names)
    level, later = _constraint_scale(history, method), _finite(history.criterion[len(history) // 2 :])
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
        advice = f"Lower step_size (now {float(method.step_size_at(len(history) - 1)):.3g})"
        yield Diagnostic(Code.STEP_SIZE_TOO_LARGE, evidence, advice)


def unstable_objective(history: History, evaluation: Evaluation, step: float) -> list[Diagnostic]:
    """Diagnose an F whose changes between late rounds exceed F: the answer depends on when the run ended."""
    half = len(history) // 2
    later, reached = _finite(history.objective[half:]), _finite(evaluation.objective)
    if len(later) < MIN_ROUNDS or not len(reached):
        return []
    change = float(np.percentile(np.abs(np.diff(later)), LARGE_PERCENTILE))
    worst = float(reached.max())
    scale = max(abs(worst), worst - float(reached.min()), MIN_CHANGE * float(np.ptp(_finite(history.objective))))
    evaluated = history.full_rounds >= half
    reports = history.objective[history.full_rounds[evaluated]]
    deviations = _finite(np.abs(reports - np.asarray(history.full.objective)[evaluated]))
    noise = np.percentile(deviations, LARGE_PERCENTILE) if len(deviations) >= MIN_EVALUATIONS else 0.0
    if change <= scale or noise >= 0.5 * change:  # noisy reports of steady iterates
        return []
    evidence = f"one round in ten of the second half changes F by {change:.3g} or more"
    advice = f"Lower step_size (now {step:.3g}), or omit it to have it chosen automatically"
    return [Diagnostic(Code.UNSTABLE_OBJECTIVE, f"{evidence}, and the answer has F = {format_value(worst)}", advice)]


def _describe_feasible_share(history: History) -> str:
    counted = len(history) - int(history.void.sum())
    rounds = "rounds" if counted == len(history) else "rounds that were not void"
    return f"{history.feasible_rounds} of {counted} {rounds} were feasible"


def _masked_worst_client(history: History, method: Method, pairs: int) -> Found:
    """Feasible rounds in which a sampled client was well above the tolerance: the mean masked it."""
    level, masks = _constraint_scale(history, method), method.switches_on not in ("max", "pooled")
    if len(history) < MIN_ROUNDS or not history.feasible_rounds or not masks or level is None:
        return
    alpha, per_spread = 0.0, False
    if isinstance(method, SoftmaxSGM) and method.switches_on == "softmax":
        alpha = (method.alpha or 0.0) if method.constraint_alpha is None else method.constraint_alpha
        per_spread = alpha > 0 and method.alpha_scale == "spread"
    gap = math.log(pairs) / alpha if alpha > 0 else math.inf
    if per_spread:
        gap = float(np.median((history.constraint - history.criterion)[history.feasible]))
    excess = history.constraint[history.feasible] - method.tolerance
    share = np.mean(excess > 0)
    if share <= 0.5 or gap <= method.tolerance or np.median(excess) <= 0.1 * level:
        return
    above = f"was above the tolerance {method.tolerance:g}, by up to {excess.max():.3g}"
    evidence = f"in {share:.0%} of the feasible rounds some sampled client {above}"
    enough = f"α of {math.log(pairs) / (0.1 * level):.3g} or more"
    advice = f"Use SoftmaxSGM and its criterion with {enough}"
    if per_spread:
        advice = f"Raise α of the constraint (now {alpha:.3g} per spread)"
    elif alpha > 0:
        evidence += f"; the criterion may be ln(m)/α = {gap:.3g} below the maximum"
        advice = f"Give the constraint an {enough}"
    yield Diagnostic(Code.MASKED_WORST_CLIENT, evidence, advice)


def _limit_cycle(history: History, method: Method) -> Found:
    """αη > 2, and the worst client alternates from round to round: A, B, A, B."""
    switches = isinstance(method, SoftmaxSGM | HardSGM)
    if len(history) < MIN_ROUNDS or not switches or method.server_optimizer is not optax.sgd:
        return
    step = float(method.step_size_at(len(history) - 1))
    # The distance of the two points, in steps. Per spread, α grows without bound as the clients' values approach.
    per_spread = isinstance(method, SoftmaxSGM) and method.alpha_scale == "spread"
    given = math.inf if not isinstance(method, SoftmaxSGM) or method.alpha is None else method.alpha
    alpha, distance = (math.inf, math.tanh(given / 2)) if per_spread else (given, 1.0)
    last = slice(-max(MIN_ROUNDS, len(history) // 4), None)
    worst, feasible = history.worst_client[last], history.feasible[last]
    three = feasible[2:] & feasible[1:-1] & feasible[:-2]
    if alpha * step <= 2 or distance < 0.5 or three.sum() < MIN_ROUNDS // 2:
        return
    alternates = ((worst[2:] == worst[:-2]) & (worst[1:-1] != worst[:-2]))[three].mean()
    if alternates < 0.8:
        return
    evidence = f"in {alternates:.0%} of the last feasible rounds the worst client alternates between two"
    if math.isinf(alpha):
        evidence += f", due to {'α per spread' if per_spread else 'the hard maximum'}"
        near = f"Iterates stay up to {distance * step:.3g} from the optimum"
        advice = f"{near}: use a smaller or decaying step size (now {step:.3g})"
    else:
        evidence += f", and αη = {alpha * step:.3g} is above 2"
        limits = f"the step size (below {2 / alpha:.3g}) or α (below {2 / step:.3g})"
        advice = f"Iterates stay up to a step (η = {step:.3g}) from the optimum; if that is too coarse, lower {limits}"
    yield Diagnostic(Code.LIMIT_CYCLE, evidence, advice)


def _few_averaged_rounds(end: RunEnd) -> Found:
    candidates, count = len(end.history) - end.averaging_from, int(end.state.average.rounds)
    is_averaged = end.answer == "average" and end.history.feasible[end.averaging_from :].any()
    few = count < MIN_ROUNDS or count < MIN_AVERAGED_SHARE * candidates
    if is_averaged and candidates >= MIN_ROUNDS and few:
        rounds = f"of {candidates} rounds that could have joined it"
        evidence = f"the answer is the mean of {count} feasible iterates, {rounds}"
        advice = "Run longer, or take the best feasible iterate (answer='best')"
        yield Diagnostic(Code.FEW_AVERAGED_ROUNDS, evidence, advice, suggests_more_rounds=True)


def _still_improving(end: RunEnd) -> Found:
    improvement = measure_improvement(end.history, end.restarts, end.method.tolerance)
    if not end.stopped and end.history.feasible_rounds and improvement is not None and improvement.is_ongoing:
        advice = "Run longer: raise rounds, or continue from this result with warm_start"
        yield Diagnostic(Code.STILL_IMPROVING, str(improvement), advice, suggests_more_rounds=True)


def diverged_restarts(restarts: Sequence[Restart]) -> list[Diagnostic]:
    """Diagnose an answer that suffers from restarts with values that were not finite."""
    lengths = np.array([restart.end - restart.begin for restart in restarts])
    diverged = np.array([restart.diverged for restart in restarts], dtype=bool)
    share = float(lengths[diverged].sum() / max(1, lengths.sum()))
    if not diverged.any() or not (diverged[-1] or share > MAX_DIVERGED_SHARE):
        return []
    restarted = f"{diverged.sum()} of {len(restarts)} restarts, {share:.0%} of the rounds,"
    evidence = f"{restarted} ended in a value that was not finite; the answer comes from the remaining ones"
    advice = "Check objective and constraint for values that overflow, or bound the parameters by a domain (Ball, Box)"
    return [Diagnostic(Code.DIVERGED_RESTARTS, evidence, advice)]


def _finite(values: np.ndarray) -> np.ndarray:
    return np.extract(np.isfinite(values), values)


def _constraint_scale(history: History, method: Method) -> float | None:
    """Return the scale on which the constraint is judged: at least 5% of the criterion's range; None if unknown."""
    given, finite = _given_scale(method), _finite(history.criterion)
    return None if given == 0 or len(finite) == 0 else max(given, 0.05 * float(np.ptp(finite)))


def _given_scale(method: Method) -> float:
    return max(method.tolerance, abs(float(method.switch_at)))
