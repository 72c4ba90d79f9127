"""How a run ended: its answer, its status (a code for programs, a message for people) and the kinds of diagnostics."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from softswitch.methods.base import Method
from softswitch.methods.state import State
from softswitch.methods.weighting import trimmed_max
from softswitch.oracles.base import Evaluation
from softswitch.problem.parameters import Params
from softswitch.results.history import History
from softswitch.results.json_numbers import JsonRecord
from softswitch.support.text import format_value, join_first


class StatusCode(StrEnum):
    """How a run ended.

    FEASIBLE: all rounds were run and the answer meets the tolerance at every client on all training data. VIOLATED: all
    rounds were run and some were feasible, but the answer violates the tolerance at some client. NO_FEASIBLE_ROUND: no
    round was feasible, hence there is no feasible average; an auto-tuned run evaluates its answer on all data and is
    FEASIBLE if that meets the tolerance. DIVERGED: a report or a step was not finite. STOPPED: a callback or Ctrl-C
    stopped the run early.
    """

    FEASIBLE = "feasible"
    VIOLATED = "answer-violates"
    NO_FEASIBLE_ROUND = "no-feasible-round"
    DIVERGED = "diverged"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Status:
    """How a run ended.

    Attributes:
        code: The kind of ending, for programs.
        message: What happened, for people.
        round: The round in question: where the run diverged or stopped, or where the criterion was smallest.
        client: The label of the client in question: the one with the largest constraint or a value that is not finite.
        criterion: The smallest criterion of any round.
    """

    code: StatusCode
    message: str
    round: int | None = None
    client: Hashable | None = None
    criterion: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the run completed and its answer is feasible."""
        return self.code is StatusCode.FEASIBLE

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class DiagnosticCode(StrEnum):
    """The kind of problem."""

    DIVERGED = "diverged"
    NO_VALUES = "no-values"
    VOID_ROUNDS = "void-rounds"
    MISSING_STRATA = "missing-strata"
    CLIENT_DROPOUT = "client-dropout"
    EXCLUDED_CLIENTS = "excluded-clients"
    SUPPRESSED_CLASSES = "suppressed-classes"
    NEVER_FEASIBLE = "never-feasible"
    SWITCH_NEVER_PASSES = "switch-never-passes"
    INACTIVE_CONSTRAINT = "inactive-constraint"
    MASKED_WORST_CLIENT = "masked-worst-client"
    NOISY_SWITCH = "noisy-switch"
    STEP_SIZE_TOO_LARGE = "step-size-too-large"
    FEW_AVERAGED_ROUNDS = "few-averaged-rounds"
    STILL_IMPROVING = "still-improving"
    LIMITED_PRECISION = "limited-precision"
    NO_BETTER_THAN_START = "no-better-than-start"
    NO_BETTER_THAN_CONSTANT = "no-better-than-constant"
    TRIMMED_VIOLATION = "trimmed-violation"
    OUTLIER_VALUES = "outlier-values"
    INCONSISTENT_UPDATES = "inconsistent-updates"
    UPDATE_SCALE_MISMATCH = "update-scale-mismatch"
    UNKNOWN_BENEFIT = "unknown-benefit"
    CLIPPED_ROWS = "clipped-rows"


@dataclass(frozen=True)
class Diagnostic:
    """A problem detected in a run.

    Attributes:
        code: The kind of problem.
        evidence: What in the run points to it.
        advice: What to try.
        suggests_more_rounds: Whether the advice includes a longer run.
    """

    code: DiagnosticCode
    evidence: str
    advice: str
    suggests_more_rounds: bool = False

    def __str__(self) -> str:
        return f"{self.code}: {self.evidence}. {self.advice}."


@dataclass(frozen=True)
class Restart(JsonRecord):
    """A stretch of rounds, from ``begin`` to before ``end``, over which the step size decays to 0.

    It starts from the best answer so far. ``objective`` and ``constraint`` are F and G of the best answer after it on
    all training data, and ``aim`` is the value there that the method minimises: F, or the clients' mean. ``better``:
    whether this restart found that answer. ``diverged``: whether a value in the last round was not finite. ``judged``:
    the number of answers evaluated at its end.
    """

    begin: int
    end: int
    step_size: float
    momentum: float
    threshold: float
    objective: float
    constraint: float
    answer: str
    better: bool
    diverged: bool = False
    aim: float = math.nan
    judged: int = 0

    def __str__(self) -> str:
        step, level = f"{self.step_size:.3g}", format_value(self.threshold)
        settings = f"rounds {self.begin} to {self.end - 1}, step {step} decaying to 0, λ = {level}"
        if self.diverged:
            return f"{settings}: not finite"
        outcome = f"F {format_value(self.objective)}, G {format_value(self.constraint)}"
        return f"{settings}: {outcome}{'' if self.better else ', no improvement'}"


@dataclass(frozen=True, eq=False)
class RunEnd:
    """A run after its last round.

    ``averaging_from`` is the first round that could join the average, ``answer`` the requested iterate, ``culprit`` the
    client that made the run diverge, and ``start`` has the values of the start at every client, if these are known.
    ``vanished``: whether no client has an objective, or none a constraint, on all its data.
    """

    state: State
    history: History
    method: Method
    names: tuple[Any, ...]
    averaging_from: int
    answer: str
    stopped: bool
    seed: int
    seconds: float
    vanished: bool = False
    culprit: Any = None
    restarts: tuple[Restart, ...] = ()
    start: Evaluation | None = None
    auto_settings: dict[str, str] = field(default_factory=dict)

    @property
    def diverged_at(self) -> int:
        """The round in which a value was not finite; −1 if there was none."""
        return int(self.state.diverged_at)

    @property
    def smallest_criterion_round(self) -> int:
        """The round with the smallest criterion."""
        criterion = self.history.criterion
        return int(np.argmin(np.where(np.isfinite(criterion), criterion, np.inf)))


def select_answer(end: RunEnd) -> tuple[Params, str]:
    """Return the answer and its description: the requested iterate or, if there is none, the next best."""
    state, history, first = end.state, end.history, end.averaging_from
    if end.restarts:
        return state.params, end.restarts[-1].answer
    if end.answer == "last":
        return state.params, f"last iterate, after {len(history)} rounds"
    reason = ""
    if end.answer == "average":
        in_window, count = int(np.sum(history.feasible[first:])), int(state.average.rounds)
        if in_window and count:
            window = f"rounds {first} to {len(history) - 1}" if first else f"{len(history)} rounds"
            window += " and of the previous run" if count > in_window else ""
            return state.averaged_params, f"mean of the {count} feasible iterates of {window}"
        reason = f": no feasible round from {first} on"
        if len(history) <= first:
            reason = f": the average begins with round {first}, and the run ended before it"
    if history.feasible_rounds:
        best = np.argmin(np.where(history.feasible, history.objective, np.inf))
        return state.best.params, f"best feasible iterate by its reports, from round {best}{reason}"
    if np.isfinite(state.best.criterion):
        return state.best.params, f"iterate with the smallest criterion, round {end.smallest_criterion_round}"
    return state.params, "the start: no round was completed"


def run_status(end: RunEnd, evaluation: Evaluation) -> Status:
    """Return the status of a finished run, given its answer's values at every client."""
    history, smallest = end.history, float(end.state.best.criterion)
    if end.diverged_at >= 0:
        cause = "the server's step is not finite"
        if end.culprit is not None:
            cause = f"client {end.culprit!r} reported a value that is not finite"
        elif end.vanished:
            cause = "no client has an objective, or none has a constraint: all are −∞, also on all data"
        advice = "Lower step_size, or check that client's values"
        if not end.diverged_at:
            advice = "Check objective and constraint at the start"
        message = f"in round {end.diverged_at} {cause}; the last finite iterate is returned. {advice}"
        return Status(StatusCode.DIVERGED, message, end.diverged_at, end.culprit, smallest)
    is_feasible, client, message = _judge(end.names, end.method, evaluation, pooled=end.method.switches_on == "pooled")
    if end.stopped:
        message = f"stopped after {len(history)} rounds, {history.feasible_rounds} of them feasible; {message}"
        return Status(StatusCode.STOPPED, message, len(history), client, smallest)
    if history.void.all():
        return Status(StatusCode.NO_FEASIBLE_ROUND, _describe_void_rounds(end), None, None, smallest)
    # The answer of an auto-tuned run was evaluated on all data. Any other answer needs a feasible round.
    if not history.feasible_rounds and not (end.restarts and is_feasible):
        level, when = format_value(float(end.method.switch_at)), end.smallest_criterion_round
        criterion = f"none of {len(history)} rounds had a criterion <= {level}"
        message = f"{criterion}; the smallest was {format_value(smallest)} in round {when}, where {message}"
        return Status(StatusCode.NO_FEASIBLE_ROUND, message, when, client, smallest)
    message = f"{message}. {history.feasible_rounds} of {len(history)} rounds were feasible"
    return Status(StatusCode.FEASIBLE if is_feasible else StatusCode.VIOLATED, message, None, client, smallest)


def model_status(names: Sequence[Any], method: Method, evaluation: Evaluation) -> Status:
    """Return the status of a model that was selected after its run, given its values at every client."""
    pooled = method.switches_on == "pooled"
    is_feasible, client, message = _judge(names, method, evaluation, " on training rows", pooled=pooled)
    return Status(StatusCode.FEASIBLE if is_feasible else StatusCode.VIOLATED, message, None, client)


def _judge(
    names: Sequence[Any], method: Method, evaluation: Evaluation, where: str = "", *, pooled: bool = False
) -> tuple[bool, Any, str]:
    """Return whether a model is feasible, the client with the largest constraint, and a message.

    ``pooled``: whether the tolerance applies to the pooled data instead of every client.
    """
    worst, tolerance = evaluation.constraint.max(axis=1), f"the tolerance {method.tolerance:g}"
    count, above = len(worst), int((~(worst <= method.tolerance)).sum())
    unknown = [repr(names[int(i)]) for i in np.flatnonzero(np.isnan(worst))]
    client = names[int(np.argmax(np.where(np.isnan(worst), -np.inf, worst)))]
    is_feasible = bool(trimmed_max(evaluation.constraint, method.robust) <= method.tolerance)
    parts = [f"{above} of {count} clients {'is' if above == 1 else 'are'} above {tolerance}{where}"]
    if not above:
        parts = [f"all {count} clients are within {tolerance}{where}"]
    elif is_feasible:
        parts[0] += f", trimmed as robust={method.robust} allows"
    if pooled and evaluation.pooled is not None:
        level = float(evaluation.pooled.max())
        is_feasible = level <= method.tolerance and not unknown
        side = "within" if level <= method.tolerance else "above"
        parts.insert(0, f"the constraint on the pooled data is {format_value(level)}, {side} {tolerance}")
    if len(unknown) < count:
        parts.append(f"the largest constraint is {format_value(float(np.nanmax(worst)))}, at client {client!r}")
    if unknown:
        parts.append(f"nothing is known of {join_first(unknown)}, which counts as a violation")
    return is_feasible, client, "; ".join(parts)


def _describe_void_rounds(end: RunEnd) -> str:
    lost, robust = end.history.lost_share, end.method.robust
    message = f"in none of {len(end.history)} rounds did enough participants have an objective and a constraint"
    message += f"; {lost:.0%} of the participants were lost or rejected, and the log names them" if lost else ""
    message += "" if robust is None else f"; robust={robust} needs {2 * robust + 1} clients in every round"
    return f"{message}. Raise participation, or sample by strata"
