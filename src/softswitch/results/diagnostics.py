"""Diagnostics of a run, from its history and its answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import optax

from softswitch.methods.base import Method
from softswitch.methods.hard_sgm import HardSGM
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.oracles.base import Evaluation
from softswitch.results.answer import RunEnd
from softswitch.results.baseline import START, Baseline, compare_with_trivial
from softswitch.results.byzantine import diagnose_clients
from softswitch.results.convergence import measure_improvement
from softswitch.results.diagnostic import Diagnostic, DiagnosticCode
from softswitch.results.history import ClientOutcome, History
from softswitch.results.infeasibility import diagnose_no_feasible_round
from softswitch.results.restart import Restart
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


class Participants(Protocol):
    """The clients of a run; see ``softswitch.oracles.base.Oracle``."""

    @property
    def participants(self) -> int:
        """m, the number of participants in a round."""
        ...

    @property
    def noise_setting(self) -> str:
        """The name of the setting that reduces the noise of reports."""
        ...

    @property
    def report_batch_size(self) -> int | None:
        """The number of rows that a report is computed on; None if it is all of them, or unknown."""
        ...


def diagnose(
    end: RunEnd, evaluation: Evaluation, clients: Participants, scatter: Callable[[], float]
) -> tuple[Diagnostic, ...]:
    """Return all diagnostics of a run, the most important first.

    Args:
        end: The run after its last round.
        evaluation: The values of its answer at every client.
        clients: The clients.
        scatter: Measures how much the sampled G varies at one iterate. Called only if a diagnostic needs it.
    """
    history, participants = end.history, clients.participants
    diagnostics: Iterable[Diagnostic | None]
    if end.diverged_at >= 0:
        diagnostics = [_diverged(end)]
    else:
        # Earlier restarts have large steps on purpose: only the last one is diagnosed.
        late = history.since(end.restarts[-1].begin) if end.restarts else history
        diagnostics = [
            *diagnose_clients(end, evaluation),
            diagnose_no_feasible_round(end, evaluation, clients.noise_setting),
            *_no_better_than_start(end, evaluation),
            _void_rounds(history, participants, len(end.names)),
            _missing_strata(history, participants, evaluation),
            *_instability(end, late, evaluation, clients, scatter),
            _inactive_constraint(history),
            _masked_worst_client(late, end.method, participants * evaluation.constraint.shape[1]),
            *([diverged_restarts(end.restarts), _still_improving(end)] if end.restarts else _of_fixed_steps(end)),
        ]
    return tuple(d for d in (client_dropout(history, end.names), *diagnostics) if d is not None)


def _diverged(end: RunEnd) -> Diagnostic:
    if end.vanished:
        return Diagnostic(
            DiagnosticCode.NO_VALUES,
            f"from round {end.diverged_at} on no client has an objective, or none has a constraint: all are −∞ on all "
            "data",
            "Check the functions: −∞ means that a client has nothing to measure, but may also be an overflow",
        )
    step = float(end.method.step_size_at(end.diverged_at))
    evidence = f"a value was not finite in round {end.diverged_at}"
    return Diagnostic(
        DiagnosticCode.DIVERGED, evidence, f"Lower step_size (now {step:.3g}), or see the status for the client"
    )


def client_dropout(history: History, names: tuple[Any, ...]) -> Diagnostic | None:
    """Diagnose participants that often did not complete a round."""
    if history.lost_share <= MAX_LOST_SHARE:
        return None
    assert history.per_client is not None
    assert history.per_client.outcomes is not None
    clients, outcomes = history.per_client.clients, history.per_client.outcomes
    lost = ~np.isin(outcomes, (ClientOutcome.EMPTY, ClientOutcome.COUNTED, ClientOutcome.VOID))
    counts = np.bincount(clients[lost], minlength=len(names))
    worst = int(np.argmax(counts))
    common = ClientOutcome(int(np.bincount(outcomes[lost & (clients == worst)]).argmax())).label
    return Diagnostic(
        DiagnosticCode.CLIENT_DROPOUT,
        f"{history.lost_share:.0%} of the participants did not complete their round, most often {names[worst]!r} "
        f"({counts[worst]} time{'s' if counts[worst] > 1 else ''}, mostly {common!r})",
        "Check the log for that client's reasons, or raise report_timeout and update_timeout",
    )


def _no_better_than_start(end: RunEnd, evaluation: Evaluation) -> list[Diagnostic]:
    if end.start is None:
        return []
    start = Baseline.of(START, end.start, end.method)
    return compare_with_trivial(Baseline.of("", evaluation, end.method), [start])


def _void_rounds(history: History, participants: int, clients: int) -> Diagnostic | None:
    share = float(np.mean(history.void)) if len(history) else 0.0
    if share <= MAX_VOID_SHARE or history.lost_share > MAX_LOST_SHARE:  # dropout is then the reason
        return None
    return Diagnostic(
        DiagnosticCode.VOID_ROUNDS,
        f"in {share:.0%} of the rounds none of {participants} participants had an objective, or none a constraint, and "
        "the model did not change",
        f"Raise participation (now {participants} of {clients} clients)"
        if participants < clients
        else "Sample by the class or group that batches lack (strata=…), or raise batch_size",
    )


def _missing_strata(history: History, participants: int, evaluation: Evaluation) -> Diagnostic | None:
    """Clients with a class or group that their batches often lack: their reports have no value then."""
    if len(history) < MIN_ROUNDS:
        return None
    expected = float(np.mean(np.isneginf(evaluation.objective) | np.isneginf(evaluation.constraint).any(axis=1)))
    reports = participants * len(history)
    missing = float(np.sum(history.absent)) / reports
    # More than client sampling explains, and more than 5% of the reports that could have a value.
    sampling = 3 * math.sqrt(expected * (1 - expected) / reports)
    if missing - expected <= max(0.05 * (1 - expected), sampling):
        return None
    return Diagnostic(
        DiagnosticCode.MISSING_STRATA,
        f"{missing:.0%} of the reports had no objective or lacked a constraint, but on all their data only "
        f"{expected:.0%} of the clients do",
        "Sample by all columns that the functions distinguish, such as strata=('group', 'y'); or raise batch_size",
    )


def _instability(
    end: RunEnd, late: History, evaluation: Evaluation, clients: Participants, scatter: Callable[[], float]
) -> list[Diagnostic | None]:
    diagnostic = _unstable_switch(end, late, clients, scatter)
    if diagnostic is None and not end.restarts:
        diagnostic = unstable_objective(late, evaluation, float(end.method.step_size_at(len(late) - 1)))
    return [diagnostic]


def _unstable_switch(
    end: RunEnd, history: History, clients: Participants, scatter: Callable[[], float]
) -> Diagnostic | None:
    """The criterion changes by more than the tolerance between rounds: noisy reports, or too large steps."""
    method, everyone = end.method, clients.participants == len(end.names)
    level = _constraint_scale(history, method)
    later = _finite(history.criterion[len(history) // 2 :])
    if len(later) < MIN_ROUNDS // 2 or level is None:
        return None
    change = float(np.median(np.abs(np.diff(later))))
    if change <= level:
        return None
    noise = scatter()
    if noise > level:
        return Diagnostic(
            DiagnosticCode.NOISY_SWITCH,
            f"at a fixed iterate the sampled worst constraint varies by {noise:.3g}, with a threshold of "
            f"{float(method.switch_at):.3g}{'' if everyone else '; not all clients participate'}: noise decides the "
            "switch",
            _advise_batch_size(clients, noise / _given_scale(method)) + ("" if everyone else ", or participation"),
        )
    if change <= 2 * level or end.restarts:
        return None
    return Diagnostic(
        DiagnosticCode.STEP_SIZE_TOO_LARGE,
        f"a single round changes the criterion by {change:.3g}, with a tolerance of {method.tolerance:g}",
        f"Lower step_size (now {float(method.step_size_at(len(history) - 1)):.3g})",
    )


def _advise_batch_size(clients: Participants, factor: float) -> str:
    """Advise the rows that reduce the noise by a factor: twice its square, since the noise is a rough estimate."""
    rows = clients.report_batch_size
    if rows is None:
        return f"Raise {clients.noise_setting}"
    return f"Raise {clients.noise_setting} from {rows:,} to about {math.ceil(2 * rows * factor**2):,} (None: all rows)"


def unstable_objective(history: History, evaluation: Evaluation, step: float) -> Diagnostic | None:
    """Diagnose an F whose changes between late rounds exceed F: the answer depends on when the run ended."""
    half = len(history) // 2
    later, reached = _finite(history.objective[half:]), _finite(evaluation.objective)
    if len(later) < MIN_ROUNDS or not len(reached):
        return None
    change = float(np.percentile(np.abs(np.diff(later)), LARGE_PERCENTILE))
    worst = float(reached.max())
    scale = max(abs(worst), worst - float(reached.min()), MIN_CHANGE * float(np.ptp(_finite(history.objective))))
    if change <= scale or _report_noise(history, half) >= 0.5 * change:  # noisy reports of steady iterates
        return None
    return Diagnostic(
        DiagnosticCode.UNSTABLE_OBJECTIVE,
        f"one round in ten of the second half changes F by {change:.3g} or more, and the answer has F = "
        f"{format_value(worst)}",
        f"Lower step_size (now {step:.3g}), or omit it to have it chosen automatically",
    )


def _report_noise(history: History, first: int) -> float:
    """Return the deviation of reports from F on all data, from round ``first`` on; 0 if too few are known."""
    late = history.full_rounds >= first
    rounds, evaluated = history.full_rounds[late], np.asarray(history.full.objective)[late]
    deviations = _finite(np.abs(history.objective[rounds] - evaluated))
    return float(np.percentile(deviations, LARGE_PERCENTILE)) if len(deviations) >= MIN_EVALUATIONS else 0.0


def _describe_feasible_share(history: History) -> str:
    counted = len(history) - int(history.void.sum())
    rounds = "rounds" if counted == len(history) else "rounds that were not void"
    return f"{history.feasible_rounds} of {counted} {rounds} were feasible"


def _inactive_constraint(history: History) -> Diagnostic | None:
    if len(history) < MIN_ROUNDS or history.feasible_rounds == 0 or history.switch_share <= MAX_SWITCH_SHARE:
        return None
    return Diagnostic(
        DiagnosticCode.INACTIVE_CONSTRAINT,
        f"{_describe_feasible_share(history)}; the largest reported constraint was "
        f"{format_value(history.constraint.max())}",
        "If that is unexpected, check the sign and the scale of the constraint, and the tolerance",
    )


def _masked_worst_client(history: History, method: Method, pairs: int) -> Diagnostic | None:
    """Feasible rounds in which a sampled client was well above the tolerance: the mean masked it."""
    level = _constraint_scale(history, method)
    if (
        len(history) < MIN_ROUNDS
        or not history.feasible_rounds
        or method.switches_on in ("max", "pooled")
        or level is None
    ):
        return None
    excess = history.constraint[history.feasible] - method.tolerance
    alpha = _constraint_alpha(method)
    per_spread = alpha > 0 and isinstance(method, SoftmaxSGM) and method.alpha_scale == "spread"
    gap = math.log(pairs) / alpha if alpha > 0 else math.inf
    if per_spread:
        gap = float(np.median((history.constraint - history.criterion)[history.feasible]))
    if np.mean(excess > 0) <= 0.5 or gap <= method.tolerance or np.median(excess) <= 0.1 * level:
        return None
    evidence = (
        f"in {np.mean(excess > 0):.0%} of the feasible rounds some sampled client was above the tolerance "
        f"{method.tolerance:g}, by up to {excess.max():.3g}"
    )
    if per_spread:
        advice = f"Raise α of the constraint (now {alpha:.3g} per spread)"
        return Diagnostic(DiagnosticCode.MASKED_WORST_CLIENT, evidence, advice)
    if alpha > 0:
        evidence += f"; the criterion may be ln(m)/α = {gap:.3g} below the maximum"
    enough = f"α of {math.log(pairs) / (0.1 * level):.3g} or more"
    advice = f"Give the constraint an {enough}" if alpha > 0 else f"Use SoftmaxSGM and its criterion with {enough}"
    return Diagnostic(DiagnosticCode.MASKED_WORST_CLIENT, evidence, advice)


def _of_fixed_steps(end: RunEnd) -> list[Diagnostic | None]:
    history, cycle = end.history, _limit_cycle(end.history, end.method)
    if len(history) >= MIN_ROUNDS and history.feasible_rounds and history.switch_share < MIN_SWITCH_SHARE:
        rare = Diagnostic(
            DiagnosticCode.RARELY_FEASIBLE,
            _describe_feasible_share(history),
            "The average rests on few iterates: run longer, start nearer to feasibility, or raise the threshold",
            suggests_more_rounds=True,
        )
        return [rare, cycle]
    return [_few_averaged_rounds(end), cycle, _still_improving(end)]


def _limit_cycle(history: History, method: Method) -> Diagnostic | None:
    """αη > 2, and the worst client alternates from round to round: A, B, A, B."""
    if (
        len(history) < MIN_ROUNDS
        or not isinstance(method, SoftmaxSGM | HardSGM)
        or method.server_optimizer is not optax.sgd
    ):
        return None
    step = float(method.step_size_at(len(history) - 1))
    # The distance of the two points, in steps. Per spread, α grows without bound as the clients' values approach.
    per_spread = isinstance(method, SoftmaxSGM) and method.alpha_scale == "spread"
    given = math.inf if not isinstance(method, SoftmaxSGM) or method.alpha is None else method.alpha
    alpha, distance = (math.inf, math.tanh(given / 2)) if per_spread else (given, 1.0)
    if alpha * step <= 2 or distance < 0.5:
        return None
    last = slice(-max(MIN_ROUNDS, len(history) // 4), None)
    worst, feasible = history.worst_client[last], history.feasible[last]
    three = feasible[2:] & feasible[1:-1] & feasible[:-2]
    if three.sum() < MIN_ROUNDS // 2:
        return None
    alternates = ((worst[2:] == worst[:-2]) & (worst[1:-1] != worst[:-2]))[three].mean()
    if alternates < 0.8:
        return None
    evidence = f"in {alternates:.0%} of the last feasible rounds the worst client alternates between two"
    if math.isinf(alpha):
        evidence += f", due to {'α per spread' if per_spread else 'the hard maximum'}"
        advice = f"Iterates stay up to {distance * step:.3g} from the optimum: use a smaller or decaying step size"
        return Diagnostic(DiagnosticCode.LIMIT_CYCLE, evidence, f"{advice} (now {step:.3g})")
    limits = f"the step size (below {2 / alpha:.3g}) or α (below {2 / step:.3g})"
    advice = f"Iterates stay up to a step (η = {step:.3g}) from the optimum; if that is too coarse, lower {limits}"
    return Diagnostic(DiagnosticCode.LIMIT_CYCLE, f"{evidence}, and αη = {alpha * step:.3g} is above 2", advice)


def _few_averaged_rounds(end: RunEnd) -> Diagnostic | None:
    candidates = len(end.history) - end.averaging_from
    in_window = int(np.sum(end.history.feasible[end.averaging_from :]))
    count = int(end.state.average.rounds)
    if end.answer != "average" or candidates < MIN_ROUNDS or not in_window:
        return None
    if count >= MIN_ROUNDS and count >= MIN_AVERAGED_SHARE * candidates:
        return None
    return Diagnostic(
        DiagnosticCode.FEW_AVERAGED_ROUNDS,
        f"the answer is the mean of {count} feasible iterates, of {candidates} rounds that could have joined it",
        "Run longer, or take the best feasible iterate (answer='best')",
        suggests_more_rounds=True,
    )


def _still_improving(end: RunEnd) -> Diagnostic | None:
    if end.stopped or not end.history.feasible_rounds:
        return None
    improvement = measure_improvement(end.history, end.restarts, end.method.tolerance)
    if improvement is None or not improvement.is_ongoing:
        return None
    advice = "Run longer: raise rounds, or continue from this result with warm_start"
    return Diagnostic(DiagnosticCode.STILL_IMPROVING, str(improvement), advice, suggests_more_rounds=True)


def diverged_restarts(restarts: Sequence[Restart]) -> Diagnostic | None:
    """Diagnose an answer that suffers from restarts with values that were not finite."""
    rounds = sum(restart.end - restart.begin for restart in restarts)
    diverged = [restart for restart in restarts if restart.diverged]
    share = sum(restart.end - restart.begin for restart in diverged) / rounds if rounds else 0.0
    if not diverged or not (restarts[-1].diverged or share > MAX_DIVERGED_SHARE):
        return None
    return Diagnostic(
        DiagnosticCode.DIVERGED_RESTARTS,
        f"{len(diverged)} of {len(restarts)} restarts, {share:.0%} of the rounds, ended in a value that was not "
        "finite; the answer comes from the remaining ones",
        "Check objective and constraint for values that overflow, or bound the parameters by a domain (Ball, Box)",
    )


def _finite(values: np.ndarray) -> np.ndarray:
    finite: np.ndarray = values[np.isfinite(values)]
    return finite


def _constraint_scale(history: History, method: Method) -> float | None:
    """Return the scale on which the constraint is judged: at least 5% of the criterion's range; None if unknown."""
    given, finite = _given_scale(method), _finite(history.criterion)
    return None if given == 0 or len(finite) == 0 else max(given, 0.05 * float(np.ptp(finite)))


def _given_scale(method: Method) -> float:
    return max(method.tolerance, abs(float(method.switch_at)))


def _constraint_alpha(method: Method) -> float:
    if not isinstance(method, SoftmaxSGM) or method.switches_on != "softmax":
        return 0.0
    return (method.alpha or 0.0) if method.constraint_alpha is None else method.constraint_alpha
