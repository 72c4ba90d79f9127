"""What looks wrong with a run, from its history: each finding says what was seen and what to change."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import optax

from softswitch.methods.base import Method
from softswitch.methods.hard_sgm import HardSGM
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.oracles.base import Evaluation
from softswitch.results.answer import RunEnd
from softswitch.results.baseline import START, Baseline, compare_with_trivial
from softswitch.results.byzantine import suspects
from softswitch.results.convergence import improvement
from softswitch.results.diagnostic import Diagnostic, DiagnosticCode
from softswitch.results.history import ClientOutcome, History
from softswitch.results.infeasibility import never_passed
from softswitch.results.restart import Restart
from softswitch.support.text import in_words

FEW = 20
"""Fewer rounds than this say nothing of a course, and make no average,"""
FEW_OF_ALL = 0.05
"""and nor does a smaller share of the rounds that could have joined it."""
LARGEST = 90
"""This percentile of the changes is looked at: the worst of them, but not a single one."""
SMALL = 0.05
"""Changes by less than this share of all that F went through are no matter."""
EVALUATIONS = 4
"""So many evaluations on all data are needed to tell steps from noise."""
LOST = 1 / 3
"""A larger share of rounds in cycles that were not finite is worth a word."""


def objective_jumps(history: History, judged: Evaluation, step: float) -> Diagnostic | None:
    """In the later half single rounds change F by more than all of F: the answer hangs on when the run ended."""
    half = len(history) // 2
    later = _finite(history.objective[half:])
    reached = _finite(judged.objective)
    if len(later) < FEW or not len(reached):
        return None
    jump = float(np.percentile(np.abs(np.diff(later)), LARGEST))
    worst = float(reached.max())
    scale = max(abs(worst), worst - float(reached.min()), SMALL * float(np.ptp(_finite(history.objective))))
    if jump <= scale:
        return None
    if _noise(history, half) >= 0.5 * jump:
        return None  # reports are noisy, but the iterates are steady
    return Diagnostic(
        DiagnosticCode.UNSTABLE_OBJECTIVE,
        f"one round in ten of the later half changes F by {jump:.3g} or more, and the answer has F = {in_words(worst)}",
        f"Lower step_size (now {step:.3g}), or leave it out: it is then chosen",
    )


def _noise(history: History, first: int) -> float:
    """How far reports are off F on all data, in the rounds from ``first`` on where both are known; 0 if in too few."""
    rounds = history.full_rounds[history.full_rounds >= first]
    on_all = np.asarray(history.full.objective)[history.full_rounds >= first]
    off = _finite(np.abs(history.objective[rounds] - on_all))
    return float(np.percentile(off, LARGEST)) if len(off) >= EVALUATIONS else 0.0


def few_to_average(ending: RunEnd) -> Diagnostic | None:
    """The answer is an average, but of too few rounds to mean anything."""
    could = len(ending.history) - ending.averaging_from
    own = int(np.sum(ending.history.feasible[ending.averaging_from :]))
    count, stages, way = int(ending.state.average.rounds), ending.state.stages, ending.method.proximal
    if stages is not None and way is not None:
        own = count = int(stages.joined)
        could = math.ceil(way.average_last * way.rounds)
    if ending.answer != "average" or could < FEW or not own:
        return None
    if count >= FEW and count >= FEW_OF_ALL * could:
        return None
    return Diagnostic(
        DiagnosticCode.FEW_AVERAGED_ROUNDS,
        f"the answer is the mean of {count} feasible iterates, of {could} rounds that could have joined it",
        "Run longer, or take the best feasible iterate (answer='best')",
        suggests_more_rounds=True,
    )


def still_improving(ending: RunEnd) -> Diagnostic | None:
    """F was still falling when the rounds were over."""
    if ending.stopped or not ending.history.feasible_rounds:
        return None
    seen = improvement(ending.history, ending.restarts, ending.method.tolerance)
    if seen is None or not seen.going_on:
        return None
    return Diagnostic(
        DiagnosticCode.STILL_IMPROVING,
        str(seen),
        "Run longer: raise rounds, or continue from this result with warm_start",
        suggests_more_rounds=True,
    )


def cycles_lost(cycles: Sequence[Restart]) -> Diagnostic | None:
    """So many rounds were in cycles that were not finite that the answer has suffered."""
    rounds = sum(cycle.end - cycle.begin for cycle in cycles)
    diverged = [cycle for cycle in cycles if cycle.diverged]
    share = sum(cycle.end - cycle.begin for cycle in diverged) / rounds if rounds else 0.0
    if not diverged or not (cycles[-1].diverged or share > LOST):
        return None
    return Diagnostic(
        DiagnosticCode.DIVERGED_RESTARTS,
        f"{len(diverged)} of {len(cycles)} cycles, {share:.0%} of the rounds, ended in a value that was not finite; "
        "the answer comes from the others",
        "Look at objective and constraint for values that overflow, or keep the parameters in a domain (Ball, Box)",
    )


def _finite(values: np.ndarray) -> np.ndarray:
    kept: np.ndarray = values[np.isfinite(values)]
    return kept


FEW_ROUNDS = 20
"""A history shorter than this says nothing about shares."""
RARE, EVER = 0.02, 0.99
"""A switch share below or above these is stuck."""
MOST_VOID = 0.1
"""A larger share of void rounds is worth a word."""
MOST_LOST = 0.05
"""And so is a larger share of clients that were asked and lost."""


class Asked(Protocol):
    """Those who were asked in the rounds; see ``softswitch.oracles.base.Oracle``."""

    @property
    def participants(self) -> int:
        """m, how many take part in a round."""
        ...

    @property
    def noise_setting(self) -> str:
        """The name of the setting that makes reports less noisy, for advice."""
        ...

    @property
    def report_batch_size(self) -> int | None:
        """How many rows a report rests on; None where it is all of them, or not known."""
        ...


def diagnose(
    ending: RunEnd, judged: Evaluation, clients: Asked, scatter: Callable[[], float]
) -> tuple[Diagnostic, ...]:
    """All findings that a run supports, most telling first.

    Args:
        ending: where it ended.
        judged: how good its answer is at every client.
        clients: who was asked.
        scatter: measures how much the sampled G scatters at one iterate; called only where it matters.
    """
    history, method, participants = ending.history, ending.method, clients.participants
    lost = clients_lost(history, ending.names)
    if ending.vanished:
        findings: list[Diagnostic | None] = [_vanished(ending)]
    elif ending.diverged_at >= 0:
        findings = [_diverged(ending)]
    else:
        # A run of cycles is judged by its last one: the first steps of the others are large on purpose.
        late = history.since(ending.restarts[-1].begin) if ending.restarts else history
        findings = [
            *suspects(ending, judged),
            never_passed(ending, judged, clients.noise_setting),
            *_no_better(ending, judged),
            _no_evidence(history, participants, len(ending.names)),
            _batches_lack_rows(history, participants, judged),
            *_unsteady(ending, late, judged, clients, scatter),
            _constraint_never_acts(history),
            _hides_the_worst(late, method, participants * judged.constraint.shape[1]),
            *([cycles_lost(ending.restarts), still_improving(ending)] if ending.restarts else _of_fixed_steps(ending)),
        ]
    return tuple(finding for finding in (lost, *findings) if finding is not None)


def _no_better(ending: RunEnd, judged: Evaluation) -> list[Diagnostic]:
    if ending.start is None:
        return []
    answer, start = (Baseline.of(name, of, ending.method) for name, of in (("", judged), (START, ending.start)))
    return compare_with_trivial(answer, [start])


def _unsteady(
    ending: RunEnd, late: History, judged: Evaluation, clients: Asked, scatter: Callable[[], float]
) -> list[Diagnostic | None]:
    """What goes up and down from round to round more than it should."""
    of_switch = _jumps(ending, late, clients, scatter)
    if of_switch is not None or ending.restarts:
        return [of_switch]
    return [objective_jumps(late, judged, float(ending.method.step_size_at(len(late) - 1)))]


def _of_fixed_steps(ending: RunEnd) -> list[Diagnostic | None]:
    """What only a run can have whose step and answer are as they were set."""
    rare = _hardly_ever_feasible(ending.history)
    cycle = _limit_cycle(ending.history, ending.method)
    return [rare, cycle] if rare is not None else [few_to_average(ending), cycle, still_improving(ending)]


def _vanished(ending: RunEnd) -> Diagnostic:
    return Diagnostic(
        DiagnosticCode.NO_VALUES,
        f"from round {ending.diverged_at} on no client has an objective, or none a constraint: all are −∞ on all data",
        "Look at the functions: −∞ says that a client has nothing to measure, and may also be an overflow",
    )


def _diverged(ending: RunEnd) -> Diagnostic:
    step = float(ending.method.step_size_at(ending.diverged_at))
    seen = f"a value was not finite in round {ending.diverged_at}"
    return Diagnostic(
        DiagnosticCode.DIVERGED, seen, f"Lower step_size (now {step:.3g}), or see the status for the client"
    )


def clients_lost(history: History, names: tuple[Any, ...]) -> Diagnostic | None:
    """Clients that were often asked and did not do their part."""
    if history.lost_share <= MOST_LOST:
        return None
    assert history.per_client is not None
    assert history.per_client.outcomes is not None
    told, outcomes = history.per_client.clients, history.per_client.outcomes
    lost = ~np.isin(outcomes, (ClientOutcome.EMPTY, ClientOutcome.COUNTED, ClientOutcome.VOID))
    counts = np.bincount(told[lost], minlength=len(names))
    worst = int(np.argmax(counts))
    own = outcomes[lost & (told == worst)]
    common = ClientOutcome(int(np.bincount(own).argmax())).label
    return Diagnostic(
        DiagnosticCode.CLIENT_DROPOUT,
        f"{history.lost_share:.0%} of those asked did not do their part, most often {names[worst]!r} "
        f"({counts[worst]} time{'s' if counts[worst] > 1 else ''}, mostly {common!r})",
        "Look at the log for that client's reasons, or raise report_timeout and update_timeout",
    )


def _no_evidence(history: History, participants: int, clients: int) -> Diagnostic | None:
    """Rounds that counted nothing because no participant had an objective, or none a constraint."""
    share = float(np.mean(history.void)) if len(history) else 0.0
    if share <= MOST_VOID or history.lost_share > MOST_LOST:  # then that is why
        return None
    return Diagnostic(
        DiagnosticCode.VOID_ROUNDS,
        f"in {share:.0%} of the rounds none of {participants} participants had an objective, or none a constraint, and "
        "nothing was learnt",
        f"Raise participation (now {participants} of {clients} clients)"
        if participants < clients
        else "Draw by the class or group that batches lack (strata=…), or raise batch_size",
    )


def _batches_lack_rows(history: History, participants: int, judged: Evaluation) -> Diagnostic | None:
    """Clients that have a class or group, but whose batches often have none of its rows, fall out of the switch."""
    if len(history) < FEW_ROUNDS:
        return None
    lacking = np.isneginf(judged.objective) | np.isneginf(judged.constraint).any(axis=1)
    absent_on_all_data = float(np.mean(lacking))
    reports = participants * len(history)
    missing = float(np.sum(history.absent)) / reports
    # Beyond the chance of who takes part, and more than one report in twenty of those that could have a value.
    chance = 3 * math.sqrt(absent_on_all_data * (1 - absent_on_all_data) / reports)
    if missing - absent_on_all_data <= max(0.05 * (1 - absent_on_all_data), chance):
        return None
    return Diagnostic(
        DiagnosticCode.MISSING_STRATA,
        f"{missing:.0%} of the reports had no objective or lacked a constraint, but on all their data only "
        f"{absent_on_all_data:.0%} of the clients do",
        "Draw by all that the functions tell apart, such as strata=('group', 'y'); or raise batch_size",
    )


def _feasible_share(history: History) -> str:
    counted = len(history) - int(history.void.sum())
    that_count = "rounds" if counted == len(history) else "rounds that were not void"
    return f"{history.feasible_rounds} of {counted} {that_count} were feasible"


def _hardly_ever_feasible(history: History) -> Diagnostic | None:
    if len(history) < FEW_ROUNDS or history.feasible_rounds == 0 or history.switch_share >= RARE:
        return None
    return Diagnostic(
        DiagnosticCode.RARELY_FEASIBLE,
        _feasible_share(history),
        "The average rests on few iterates: run longer, start nearer to feasibility, or raise the threshold",
        suggests_more_rounds=True,
    )


def _constraint_never_acts(history: History) -> Diagnostic | None:
    if len(history) < FEW_ROUNDS or history.feasible_rounds == 0 or history.switch_share <= EVER:
        return None
    return Diagnostic(
        DiagnosticCode.INACTIVE_CONSTRAINT,
        f"{_feasible_share(history)}; the largest constraint reported was {in_words(history.constraint.max())}",
        "If that surprises you, look at the sign and the scale of the constraint, and at the tolerance",
    )


def _hides_the_worst(history: History, method: Method, pairs: int) -> Diagnostic | None:
    """Feasible rounds in which a sampled client was well above the tolerance: the mean hid it."""
    level = _level(history, method)
    if (
        len(history) < FEW_ROUNDS
        or not history.feasible_rounds
        or method.switches_on in ("max", "pooled")
        or level is None
    ):
        return None
    excess = history.constraint[history.feasible] - method.tolerance
    alpha = _constraint_alpha(method)
    by_spread = alpha > 0 and isinstance(method, SoftmaxSGM) and method.alpha_scale == "spread"
    gap = math.log(pairs) / alpha if alpha > 0 else math.inf
    if by_spread:
        gap = float(np.median((history.constraint - history.criterion)[history.feasible]))
    if np.mean(excess > 0) <= 0.5 or gap <= method.tolerance or np.median(excess) <= 0.1 * level:
        return None
    seen = (
        f"in {np.mean(excess > 0):.0%} of the feasible rounds some sampled client was above the tolerance "
        f"{method.tolerance:g}, by up to {excess.max():.3g}"
    )
    if by_spread:
        change = f"Raise α of the constraint (now {alpha:.3g} per spread)"
        return Diagnostic(DiagnosticCode.MASKED_WORST_CLIENT, seen, change)
    if alpha > 0:
        seen += f"; the criterion may lie ln(m)/α = {gap:.3g} below the maximum"
    enough = f"α of {math.log(pairs) / (0.1 * level):.3g} or more"
    change = f"Give the constraint an {enough}" if alpha > 0 else f"Use SoftmaxSGM and its criterion with {enough}"
    return Diagnostic(DiagnosticCode.MASKED_WORST_CLIENT, seen, change)


def _limit_cycle(history: History, method: Method) -> Diagnostic | None:
    """αη > 2, and the worst client alternates from round to round: A, B, A, B."""
    if (
        len(history) < FEW_ROUNDS
        or not isinstance(method, SoftmaxSGM | HardSGM)
        or method.server_optimizer is not optax.sgd
    ):
        return None
    step = float(method.step_size_at(len(history) - 1))
    # How far apart the two points can lie, in steps. Per spread, α grows without bound as the clients come to tie.
    by_spread = isinstance(method, SoftmaxSGM) and method.alpha_scale == "spread"
    given = math.inf if not isinstance(method, SoftmaxSGM) or method.alpha is None else method.alpha
    alpha, apart = (math.inf, math.tanh(given / 2)) if by_spread else (given, 1.0)
    if alpha * step <= 2 or apart < 0.5:
        return None
    last = slice(-max(FEW_ROUNDS, len(history) // 4), None)
    worst, feasible = history.worst_client[last], history.feasible[last]
    three = feasible[2:] & feasible[1:-1] & feasible[:-2]
    if three.sum() < FEW_ROUNDS // 2:
        return None
    alternates = ((worst[2:] == worst[:-2]) & (worst[1:-1] != worst[:-2]))[three].mean()
    if alternates < 0.8:
        return None
    seen = f"in {alternates:.0%} of the last feasible rounds the worst client alternates between two"
    if math.isinf(alpha):
        cause = "α per spread" if by_spread else "the hard maximum"
        change = f"Iterates stay up to {apart * step:.3g} from the optimum: use a smaller or falling step size"
        return Diagnostic(DiagnosticCode.LIMIT_CYCLE, f"{seen}, as {cause} makes it", f"{change} (now {step:.3g})")
    limits = f"the step size (below {2 / alpha:.3g}) or α (below {2 / step:.3g})"
    change = f"Iterates stay up to a step (η = {step:.3g}) from the optimum; if that is too coarse, lower {limits}"
    return Diagnostic(DiagnosticCode.LIMIT_CYCLE, f"{seen}, and αη = {alpha * step:.3g} is above 2", change)


def _jumps(ending: RunEnd, history: History, clients: Asked, scatter: Callable[[], float]) -> Diagnostic | None:
    """The criterion jumps by more than the tolerance from round to round: by noisy reports, or by too large steps."""
    method, everyone = ending.method, clients.participants == len(ending.names)
    level = _level(history, method)
    later = history.criterion[len(history) // 2 :]
    later = later[np.isfinite(later)]
    if len(later) < FEW_ROUNDS // 2 or level is None:
        return None
    jump = float(np.median(np.abs(np.diff(later))))
    if jump <= level:
        return None
    noise = scatter()
    if noise > level:
        cause = "" if everyone else "; not all clients take part"
        return Diagnostic(
            DiagnosticCode.NOISY_SWITCH,
            f"at one and the same iterate the sampled worst constraint scatters by {noise:.3g}, with a threshold of "
            f"{float(method.switch_at):.3g}{cause}: noise decides the switch",
            _steadier(clients, noise / _given_level(method)) + ("" if everyone else ", or participation"),
        )
    if jump <= 2 * level or ending.restarts:
        return None
    step = float(method.step_size_at(len(history) - 1))
    return Diagnostic(
        DiagnosticCode.STEP_SIZE_TOO_LARGE,
        f"a single round changes the criterion by {jump:.3g}, with a tolerance of {method.tolerance:g}",
        f"Lower step_size (now {step:.3g})",
    )


def _steadier(clients: Asked, times: float) -> str:
    """What to raise, and to how many rows for noise so many times smaller: it falls as one over their root.

    Twice as many, since the noise was measured by a few reports only.
    """
    rows = clients.report_batch_size
    if rows is None:
        return f"Raise {clients.noise_setting}"
    return f"Raise {clients.noise_setting} from {rows:,} to about {math.ceil(2 * rows * times**2):,} (None: all rows)"


def _level(history: History, method: Method) -> float | None:
    """The scale on which the constraint is judged; None where neither tolerance nor threshold gives one.

    Not finer than a twentieth of what the criterion went through in this run.
    """
    given = _given_level(method)
    finite = history.criterion[np.isfinite(history.criterion)]
    if given == 0 or len(finite) == 0:
        return None
    return max(given, 0.05 * float(np.ptp(finite)))


def _given_level(method: Method) -> float:
    return max(method.tolerance, abs(float(method.switch_at)))


def _constraint_alpha(method: Method) -> float:
    if not isinstance(method, SoftmaxSGM) or method.switches_on != "softmax":
        return 0.0
    return (method.alpha or 0.0) if method.constraint_alpha is None else method.constraint_alpha
